/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - which rows an iteration has. See internal.h; passes 1 and 2, B_cap: scheduling.md 3.
 *
 * Rows have one token each as long as there are no drafts, so pass 1 is all reactive rows, S their
 * time. Pass 2 may stretch it to (1 + e) * S, and by the credit that earlier iterations have left,
 * to 2 * S at most and not beyond G; so a row that costs more than one iteration's slack joins
 * every few iterations. */
#include "sched/internal.h"

#define RHO_MAX ((int64_t)1 << 40)

typedef struct rows { /* sorted by `before` */
  uint32_t at[ROWS_MAX], n;
} rows;

typedef struct pass { /* what pass 2 weighs */
  const decision *d;
  const site *s;
  int64_t dt_ns; /* price of a row without its KV */
  int64_t budget_ns;
  uint32_t most;            /* P rows, at most */
  uint32_t ride, ride_most; /* whose prompt rows may ride; how many */
  int64_t rho;              /* value of a prompt row, 16.16; of a decode row: 1 */
  cost_load base;           /* that runs anyway */
  bool fixed;               /* rows are counted, not weighed */
} pass;

typedef struct attempt {
  rows r;
  uint32_t ride_rows;
  cost_load load;
  int64_t value;
} attempt;

typedef bool (*before_fn)(const pass *p, const sched_request *a, const sched_request *b);

static int64_t kv_ns(const site *s, uint64_t bytes) {
  return cost_kv(bytes, s->cost->gen_kv_ns_per_mib);
}

static int64_t price_of(const pass *p, const sched_request *r) {
  return p->dt_ns + kv_ns(p->s, r->kv_bytes);
}

/* Prices within a sixteenth of dt are equal, or two rows of nearly one length would take turns. */
static int64_t price_class(const pass *p, const sched_request *r) {
  return (int64_t)((__int128)kv_ns(p->s, r->kv_bytes) * 16 / max_ns(p->dt_ns, 1));
}

static bool serves_sooner(const pass *p, const sched_request *a, const sched_request *b) {
  if (a->in_last != b->in_last) return a->in_last > b->in_last;
  __int128 left_a = (__int128)a->expected_left * price_of(p, a);
  __int128 left_b = (__int128)b->expected_left * price_of(p, b);
  return left_a != left_b ? left_a < left_b : is_before(a, b);
}

static bool is_cheaper(const pass *p, const sched_request *a, const sched_request *b) {
  int64_t class_a = price_class(p, a), class_b = price_class(p, b);
  return class_a != class_b ? class_a < class_b : serves_sooner(p, a, b);
}

/* Least recently served. */
static bool waits_longer(const pass *p, const sched_request *a, const sched_request *b) {
  (void)p;
  return a->waiting_ns != b->waiting_ns ? a->waiting_ns < b->waiting_ns : is_before(a, b);
}

/* Who will be late goes last. */
static bool precedes(const pass *p, uint32_t a, uint32_t b, before_fn before) {
  uint8_t lost_a = p->d->flags[a] & LOST, lost_b = p->d->flags[b] & LOST;
  if (lost_a != lost_b) return !lost_a;
  return before(p, request_of(p->d, a), request_of(p->d, b));
}

/* Insertion; of more than `most` the first stay. */
static void insert(const pass *p, rows *list, uint32_t i, uint32_t most, before_fn before) {
  uint32_t k = list->n;
  if (k == most) {
    if (!k || !precedes(p, i, list->at[k - 1], before)) return;
    k--;
  } else {
    list->n++;
  }
  for (; k && precedes(p, i, list->at[k - 1], before); k--) list->at[k] = list->at[k - 1];
  list->at[k] = i;
}

static uint32_t rows_most(const decision *d) {
  return d->c->decode_rows < ROWS_MAX ? d->c->decode_rows : ROWS_MAX;
}

/* The ready P rows but the promoted one. *no_pages: some wait for pages. */
static void collect(decision *d, const pass *p, uint32_t promoted, rows *list, before_fn before,
                    bool *no_pages) {
  list->n = 0;
  for (uint32_t k = d->at[SCHED_BAND_P]; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    if (i == promoted || request_of(d, i)->state != SCHED_DECODE) continue;
    if (sched_is_runnable(d, i) && d->flags[i] & NO_PAGES) *no_pages = true;
    if (sched_is_ready(d, i)) insert(p, list, i, rows_most(d), before);
  }
}

static bool fits(const pass *p, const cost_load *load, int64_t budget_ns) {
  int64_t ns = cost_time(p->s->cost, load), target = p->d->c->tpot_target_ns;
  return ns <= budget_ns && (target <= 0 || cost_sure(p->s->cost, ns) <= target);
}

static void add_ride(const pass *p, attempt *a) {
  const sched_request *r = request_of(p->d, p->ride);
  uint32_t low = 0, high = p->ride_most; /* the most that fit: T is monotone in rows */
  cost_load base = a->load;
  while (low < high) {
    uint32_t n = low + (high - low + 1) / 2;
    cost_load span = sched_span_load(p->d, p->s, r, n), load = base;
    load.prompt_rows = span.prompt_rows;
    load.prompt_kv = span.prompt_kv;
    if (fits(p, &load, p->budget_ns)) {
      low = n;
      a->load = load;
    } else {
      high = n - 1;
    }
  }
  /* Where a launch can be stopped a span of its own in a gap between two iterations may do more in
   * the same time: each weight is unpacked for few rows here. */
  __int128 extra = cost_time(p->s->cost, &a->load) - cost_time(p->s->cost, &base);
  if (p->s->dev->can_stop && extra * p->s->span * 8 > (__int128)p->s->span_ns * low * 9) {
    a->load = base;
    return;
  }
  a->ride_rows = low;
  a->value += low * p->rho;
}

/* Takes what fits, in the order of the list, prompt rows in front of its row `ride_at`. */
static void try_order(const pass *p, const rows *list, uint32_t ride_at, attempt *a) {
  *a = (attempt){.load = p->base};
  for (uint32_t k = 0; k <= list->n; k++) {
    if (k == ride_at && p->ride_most) add_ride(p, a);
    if (k == list->n || a->r.n == p->most) continue;
    cost_load load = a->load;
    load.gen_rows++;
    load.gen_kv += request_of(p->d, list->at[k])->kv_bytes;
    if (!p->fixed && !fits(p, &load, p->budget_ns)) continue;
    a->load = load;
    a->r.at[a->r.n++] = list->at[k];
    a->value += SCHED_ONE;
  }
}

/* Behind the rows that give more for their time. */
static uint32_t ride_position(const pass *p, const rows *list) {
  cost_load load = p->base, span;
  uint32_t k = 0;
  if (!p->ride_most) return 0;
  span = sched_span_load(p->d, p->s, request_of(p->d, p->ride), p->ride_most);
  load.prompt_rows = span.prompt_rows;
  load.prompt_kv = span.prompt_kv;
  int64_t ns = cost_time(p->s->cost, &load) - cost_time(p->s->cost, &p->base);
  while (k < list->n &&
         (__int128)p->rho * p->ride_most * price_of(p, request_of(p->d, list->at[k])) <
             (__int128)SCHED_ONE * ns)
    k++;
  return k;
}

/* Whose prompt may ride: the shortest one that no launch holds. A device with static shapes takes
 * no odd spans. */
static void find_ride(decision *d, pass *p) {
  int64_t shortest = SCHED_NEVER;
  p->ride = SCHED_NONE;
  p->ride_most = 0;
  if (!p->s->dev->prefills || p->s->dev->step > 1 || p->s->slots & SCHED_SLOT_PREFILL_P) return;
  if (d->n_rows_p >= d->fill || !p->s->span) return;
  for (uint32_t k = d->at[SCHED_BAND_P]; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    if (r->state != SCHED_PREFILL || !sched_is_ready(d, i)) continue;
    if (d->m->promoted_prefill == r->id + 1) continue; /* has a slot and an account of its own */
    int64_t ns = sched_prefill_ns(d, p->s, r);
    if (ns >= shortest) continue;
    shortest = ns;
    p->ride = i;
    p->ride_most = r->prompt_left < d->c->ride_rows ? r->prompt_left : d->c->ride_rows;
    if (p->ride_most > p->s->span) p->ride_most = p->s->span;
  }
  __int128 rho = SCHED_ONE;
  if (d->token_share_ns) rho = ((__int128)p->s->span_ns << 16) / p->s->span / d->token_share_ns;
  p->rho = rho > RHO_MAX ? RHO_MAX : (int64_t)rho;
}

static void begin_pass(const decision *d, const site *s, const cost_load *base, pass *p) {
  *p = (pass){.d = d, .s = s, .base = *base, .ride = SCHED_NONE, .most = rows_most(d)};
  uint32_t m = base->gen_rows;
  p->dt_ns = (cost_decode(s->cost, m + 9, 0) - cost_decode(s->cost, m + 1, 0)) / 8;
}

/* B_cap: how many rows could be in the batch, were there enough; what stands against one more. */
static void report_cap(decision *d, const pass *p, const urgent *u, const rows *list,
                       bool no_pages) {
  int64_t stretched = u->iteration_ns + ratio_of(u->iteration_ns, u->e);
  int64_t target = d->c->tpot_target_ns;
  cost_load load = p->base;
  uint32_t n = 0, term = SCHED_TERM_FILL;
  if (d->c->bcap) {
    d->m->bcap = d->c->bcap > u->rows ? d->c->bcap : u->rows;
    d->m->term = SCHED_TERM_FIXED;
    return;
  }
  for (; n < rows_most(d); n++) {
    load.gen_rows++;
    load.gen_kv += n < list->n ? request_of(d, list->at[n])->kv_bytes : u->kv / u->rows;
    if (fits(p, &load, stretched)) continue;
    int64_t ns = cost_time(p->s->cost, &load);
    term = target > 0 && cost_sure(p->s->cost, ns) > target ? SCHED_TERM_TARGET : SCHED_TERM_SLACK;
    break;
  }
  if (n >= list->n) term = no_pages ? SCHED_TERM_MEMORY : n > list->n ? SCHED_TERM_FILL : term;
  d->m->bcap = u->rows + n;
  d->m->term = term;
}

static void add_row(const decision *d, batch *b, uint32_t i) {
  b->rows[b->n++] = i;
  b->load.gen_rows++;
  b->load.gen_kv += request_of(d, i)->kv_bytes;
}

/* The promoted row, if it may run now; SCHED_NONE. */
static uint32_t promoted_row(decision *d) {
  if (!d->m->promoted_row) return SCHED_NONE;
  uint32_t i = sched_find(d, d->m->promoted_row - 1);
  if (i == SCHED_NONE || band_of(request_of(d, i)) != SCHED_BAND_P) return SCHED_NONE;
  return request_of(d, i)->state == SCHED_DECODE && sched_is_ready(d, i) ? i : SCHED_NONE;
}

static void take(const decision *d, batch *b, const attempt *a, const pass *p) {
  for (uint32_t k = 0; k < a->r.n; k++) add_row(d, b, a->r.at[k]);
  b->load = a->load;
  b->ride_rows = a->ride_rows;
  b->ride = a->ride_rows ? p->ride : SCHED_NONE;
}

static void add_background(decision *d, const urgent *u, pass *p, uint32_t promoted, batch *b) {
  rows by_price, by_value;
  attempt one, two;
  bool no_pages = false;
  collect(d, p, promoted, &by_price, is_cheaper, &no_pages);
  collect(d, p, promoted, &by_value, serves_sooner, &no_pages);
  report_cap(d, p, u, &by_price, no_pages);
  /* Level 2: background only by section 4. */
  if (d->m->level >= 2 || p->s->slots & SCHED_SLOT_DECODE_P) p->most = 0;
  if (d->m->level < 2) find_ride(d, p);
  try_order(p, &by_price, ride_position(p, &by_price), &one);
  try_order(p, &by_value, p->rho > SCHED_ONE ? 0 : by_value.n, &two);
  take(d, b, two.value > one.value ? &two : &one, p);
}

void sched_batch_reactive(decision *d, uint32_t device, const urgent *u, batch *b) {
  const site *s = &d->sites[device];
  uint32_t most = rows_most(d);
  cost_load none = {0};
  rows first = {.n = 0};
  pass p;
  *b = (batch){.promoted = SCHED_NONE, .ride = SCHED_NONE};
  begin_pass(d, s, &none, &p);
  for (uint32_t k = 0; k < d->at[SCHED_BAND_P]; k++) {
    uint32_t i = d->order[k];
    if (request_of(d, i)->state == SCHED_DECODE && sched_is_ready(d, i))
      insert(&p, &first, i, most, waits_longer);
  }
  for (uint32_t k = 0; k < first.n; k++) add_row(d, b, first.at[k]);
  b->n_reactive = b->n;
  begin_pass(d, s, &b->load, &p);
  int64_t stretched = u->iteration_ns + ratio_of(u->iteration_ns, u->e);
  int64_t most_ns = min_ns(2 * u->iteration_ns, sub_ns(u->latest_ns, d->now));
  p.budget_ns = max_ns(u->iteration_ns, min_ns(stretched + d->m->credit_ns, most_ns));
  p.fixed = d->c->bcap != 0;
  if (p.fixed) {
    uint32_t left = d->c->bcap > b->n ? d->c->bcap - b->n : 0;
    if (left < p.most) p.most = left;
  }
  /* What X cannot pay joins as others do, if it fits. */
  bool held = s->slots & SCHED_SLOT_DECODE_P || !sched_x_pays_ns(d);
  uint32_t promoted = held ? SCHED_NONE : promoted_row(d);
  if (promoted != SCHED_NONE && p.most && p.most == most) p.most--; /* the slot holds `most` */
  add_background(d, u, &p, promoted, b);
  b->total_ns = b->unpromoted_ns = cost_time(s->cost, &b->load);
  if (promoted == SCHED_NONE) return;
  add_row(d, b, promoted);
  b->promoted = promoted;
  b->total_ns = cost_time(s->cost, &b->load);
}

/* The prefix with the highest value / time. tab has steps: all are looked at. */
static uint32_t best_prefix(const pass *p, const rows *list, uint32_t most, int64_t *best_ns) {
  cost_load load = p->base;
  uint32_t best = 0, base = load.gen_rows;
  int64_t ns = base ? cost_time(p->s->cost, &load) : SCHED_NEVER;
  for (uint32_t k = 0; k < list->n && base + k < most; k++) {
    load.gen_rows++;
    load.gen_kv += request_of(p->d, list->at[k])->kv_bytes;
    int64_t t = cost_time(p->s->cost, &load);
    if ((__int128)(base + k + 1) * ns < (__int128)(base + best) * t) continue;
    best = k + 1;
    ns = t;
  }
  *best_ns = ns;
  return best;
}

void sched_batch_background(decision *d, uint32_t device, bool promoted_only, batch *b) {
  const site *s = &d->sites[device];
  uint32_t promoted = promoted_row(d), most = d->fill < rows_most(d) ? d->fill : rows_most(d);
  rows by_price, by_value;
  pass p;
  bool no_pages = false;
  *b = (batch){.promoted = SCHED_NONE, .ride = SCHED_NONE};
  if (promoted != SCHED_NONE && most) {
    add_row(d, b, promoted);
    b->promoted = promoted;
  }
  begin_pass(d, s, &b->load, &p);
  if (!promoted_only) {
    collect(d, &p, b->promoted, &by_price, is_cheaper, &no_pages);
    collect(d, &p, b->promoted, &by_value, serves_sooner, &no_pages);
    int64_t one_ns, two_ns;
    uint32_t one = best_prefix(&p, &by_price, most, &one_ns);
    uint32_t two = best_prefix(&p, &by_value, most, &two_ns), base = b->n;
    bool second = (__int128)(base + two) * one_ns > (__int128)(base + one) * two_ns;
    const rows *list = second ? &by_value : &by_price;
    for (uint32_t k = 0; k < (second ? two : one); k++) add_row(d, b, list->at[k]);
  }
  if (b->n) b->total_ns = b->unpromoted_ns = cost_time(s->cost, &b->load);
}
