/* SPDX-License-Identifier: Apache-2.0 */
/* promote.c - aging: who of the background goes before reactive work, and what X pays. See
 * internal.h; scheduling.md 4. */
#include "sched/internal.h"

/* A stretch on a device that can stop is paid as it passes, so X stays above -D there; elsewhere
 * above minus one launch. */
int64_t sched_x_pays_ns(const decision *d) {
  int64_t left = d->m->x_ns - d->m->x_floor_ns;
  return left > 0 ? max_ns(left, d->c->preempt_ns) : 0;
}

bool sched_is_worth(const decision *d, const site *s, int64_t rest_ns, int64_t limit_ns) {
  if (!s->dev->can_stop) return min_ns(rest_ns, d->c->preempt_ns) <= limit_ns;
  return cost_sure(s->cost, rest_ns) <= limit_ns || limit_ns >= sched_worth_ns(d, s);
}

static bool is_candidate(const decision *d, uint32_t i, uint8_t state) {
  const sched_request *r = request_of(d, i);
  return sched_is_runnable(d, i) && r->state == state && band_of(r) == SCHED_BAND_P;
}

/* Nobody takes its turn while its launch is there: at most one at a time. */
static bool stays_promoted(decision *d, uint32_t id, uint8_t state, bool done) {
  uint32_t i = id ? sched_find(d, id - 1) : SCHED_NONE;
  if (i == SCHED_NONE) return false;
  return sched_flight_of(d, request_of(d, i)) || (!done && is_candidate(d, i, state));
}

typedef struct head { /* of those that starve */
  uint32_t at;
  bool critical;
  int64_t laxity, since;
} head;

static bool starves_more(const decision *d, const head *a, const head *b) {
  if (a->critical != b->critical) return a->critical;
  if (a->critical && a->laxity != b->laxity) return a->laxity < b->laxity;
  if (!a->critical && a->since != b->since) return a->since < b->since;
  return is_before(request_of(d, a->at), request_of(d, b->at));
}

/* Critical ones first, then in the order of starvation; SCHED_NONE: nobody starves. */
static uint32_t find_head(decision *d, uint8_t state) {
  head best = {.at = SCHED_NONE};
  for (uint32_t k = d->at[SCHED_BAND_P]; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    flight *f = sched_flight_of(d, r);
    if (!is_candidate(d, i, state) || d->flags[i] & NO_PAGES) continue;
    if (f && f->l->state != SCHED_STOPPED) continue;
    int64_t rest;
    head h = {.at = i, .critical = d->flags[i] & CRITICAL, .laxity = sched_laxity(d, r, &rest)};
    h.since = f ? max_ns(r->waiting_ns, f->l->start_ns) : r->waiting_ns;
    if (!h.critical && sub_ns(d->now, h.since) <= d->c->age_limit_ns) continue;
    if (best.at == SCHED_NONE || starves_more(d, &h, &best)) best = h;
  }
  return best.at;
}

void sched_promote(decision *d) {
  sched_memory *m = d->m;
  if (!stays_promoted(d, m->promoted_prefill, SCHED_PREFILL, false)) m->promoted_prefill = 0;
  if (!stays_promoted(d, m->promoted_row, SCHED_DECODE, !m->promoted_tokens)) m->promoted_row = 0;
  if (!m->promoted_prefill) {
    uint32_t i = find_head(d, SCHED_PREFILL);
    if (i != SCHED_NONE) {
      m->promoted_prefill = request_of(d, i)->id + 1;
      m->promotions++;
    }
  }
  if (!m->promoted_row) {
    uint32_t i = find_head(d, SCHED_DECODE);
    if (i != SCHED_NONE) {
      m->promoted_row = request_of(d, i)->id + 1;
      m->promoted_tokens = PROMOTED_TOKENS;
      m->promotions++;
    }
  }
  if (!m->aged) m->aged = m->promoted_row ? m->promoted_row : m->promoted_prefill;
}

static bool start_prefill(decision *d, uint32_t device, bool paid, int64_t limit) {
  uint32_t i = d->m->promoted_prefill ? sched_find(d, d->m->promoted_prefill - 1) : SCHED_NONE;
  const site *s = &d->sites[device];
  if (i == SCHED_NONE || !is_candidate(d, i, SCHED_PREFILL)) return false;
  const sched_request *r = request_of(d, i);
  flight *f = sched_flight_of(d, r);
  if (f) {
    if (f->l->state != SCHED_STOPPED || f->l->device != device || f->l->decode_rows) return false;
    if (!sched_is_worth(d, s, f->rest_ns, limit)) return false;
    if (!paid && sched_holds_up(d, device, &f->load, f->rest_ns)) return false;
    return sched_resume(d, f);
  }
  uint32_t rows = sched_span_rows(d, s, r);
  if (!rows || !sched_is_ready(d, i) || s->slots & SCHED_SLOT_PREFILL_PROMOTED) return false;
  cost_load load = sched_span_load(d, s, r, rows);
  int64_t ns = cost_time(s->cost, &load);
  if (!sched_is_worth(d, s, ns, limit)) return false;
  if (!paid && sched_holds_up(d, device, &load, ns)) return false;
  return sched_launch_span(d, device, i, true);
}

static bool start_row(decision *d, uint32_t device, bool paid, int64_t limit) {
  uint32_t i = d->m->promoted_row ? sched_find(d, d->m->promoted_row - 1) : SCHED_NONE;
  const site *s = &d->sites[device];
  if (i == SCHED_NONE || !s->dev->decodes || !is_candidate(d, i, SCHED_DECODE)) return false;
  flight *f = sched_flight_of(d, request_of(d, i));
  if (f) {
    if (f->l->state != SCHED_STOPPED || f->l->device != device) return false;
    if (!sched_is_worth(d, s, f->rest_ns, limit)) return false;
    if (!paid && sched_holds_up(d, device, &f->load, f->rest_ns)) return false;
    return sched_resume(d, f);
  }
  if (!sched_is_ready(d, i) || s->slots & SCHED_SLOT_DECODE_P) return false;
  batch b;
  sched_batch_background(d, device, paid, &b);
  if (b.promoted == SCHED_NONE || !sched_is_worth(d, s, b.total_ns, limit)) return false;
  if (!paid && sched_holds_up(d, device, &b.load, b.total_ns)) return false;
  return sched_launch_batch(d, device, &b);
}

bool sched_start_promoted(decision *d, uint32_t device, const urgent *u, bool paid) {
  int64_t limit = paid ? sched_x_pays_ns(d) : SCHED_NEVER;
  if (!limit) return false;
  if (paid && u->rows) limit = min_ns(limit, sub_ns(u->due_ns, d->now));
  if (!start_prefill(d, device, paid, limit) && (u->rows || !start_row(d, device, paid, limit)))
    return false;
  if (paid)
    sched_limit(d, d->started, d->sites[device].dev->can_stop ? add_ns(d->now, limit) : SCHED_NEVER,
                SCHED_PAYS_X);
  return true;
}
