/* SPDX-License-Identifier: Apache-2.0 */
/* pick.c - what a device runs next; what a running launch is stopped for. See internal.h;
 * scheduling.md 2.
 *
 * A device that can stop holds no launch back for being long: it starts, is stopped at `until`, or
 * when more urgent work is there, and goes on afterwards. Whatever takes time from reactive work
 * has an `until` and is paid: by X if it is promoted, by the slack if it is an iteration's rest, or
 * a span in a gap between two iterations. */
#include "sched/internal.h"

static int64_t stretched_ns(const urgent *u) {
  return u->iteration_ns + ratio_of(u->iteration_ns, u->e);
}

/* Another device would compute it sooner and is free, or is where background prompts belong while
 * rows decode here. */
static bool belongs_elsewhere(decision *d, uint32_t device, uint32_t i, bool rows_here) {
  const sched_request *r = request_of(d, i);
  int64_t here = sched_prefill_ns(d, &d->sites[device], r);
  for (uint32_t k = 0; k < d->n_sites; k++) {
    const site *s = &d->sites[k];
    if (k == device || !sched_span_rows(d, s, r) || (d->rp != SCHED_NONE && d->rp_site == k))
      continue;
    if (rows_here && !s->dev->decodes) return true;
    bool is_free = !s->busy && !(s->slots & SCHED_SLOT_PREFILL_P);
    if (is_free && sched_prefill_ns(d, s, r) < here) return true;
  }
  return false;
}

/* Shortest remaining first, who will be late last; SCHED_NONE. */
static uint32_t find_prefill(decision *d, uint32_t device, bool rows_here) {
  uint32_t best = SCHED_NONE;
  int64_t shortest = SCHED_NEVER;
  bool best_lost = true;
  for (uint32_t k = d->at[SCHED_BAND_P]; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    if (r->state != SCHED_PREFILL || !sched_is_ready(d, i)) continue;
    if (!sched_span_rows(d, &d->sites[device], r)) continue;
    int64_t ns = sched_prefill_ns(d, &d->sites[device], r);
    bool lost = d->flags[i] & LOST;
    if (lost != best_lost ? lost : ns >= shortest) continue;
    if (belongs_elsewhere(d, device, i, rows_here)) continue;
    shortest = ns;
    best_lost = lost;
    best = i;
  }
  return best;
}

static uint32_t ready_rows(decision *d, uint32_t device) {
  const site *s = &d->sites[device];
  uint32_t n = 0;
  if (!s->dev->decodes || s->slots & SCHED_SLOT_DECODE_P) return 0;
  for (uint32_t k = d->at[SCHED_BAND_P]; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    n += request_of(d, i)->state == SCHED_DECODE && sched_is_ready(d, i);
  }
  return n;
}

static int64_t span_ns(const decision *d, const site *s, uint32_t i) {
  const sched_request *r = request_of(d, i);
  cost_load load = sched_span_load(d, s, r, sched_span_rows(d, s, r));
  return cost_time(s->cost, &load);
}

/* Between two iterations a background span runs for what the slack has left over once all rows that
 * want to join have done so; no longer than keeps a silence a quarter short of two iterations, for
 * what the machine adds comes on top. */
static bool fill_gap(decision *d, uint32_t device, const urgent *u, const batch *b) {
  const site *s = &d->sites[device];
  if (!s->dev->can_stop || d->rp != SCHED_NONE || d->m->level >= 2 || b->ride_rows) return false;
  int64_t left = d->m->credit_ns - max_ns(0, b->unpromoted_ns - stretched_ns(u));
  int64_t longer = max_ns(0, b->total_ns - u->iteration_ns); /* than what is due by then */
  int64_t until = u->due_ns - u->iteration_ns / 4 - sched_after_prompt_ns(longer);
  int64_t limit = min_ns(left, sub_ns(until, d->now));
  bool full = d->c->bcap && b->n >= d->c->bcap;
  if (limit <= 0 || (!full && ready_rows(d, device) > b->n - b->n_reactive)) return false;
  flight *f = sched_background_span(d, device);
  uint32_t i = f || d->n_rows_p >= d->fill ? SCHED_NONE : find_prefill(d, device, true);
  if (!f && i == SCHED_NONE) return false;
  if (!sched_is_worth(d, s, f ? f->rest_ns : span_ns(d, s, i), limit)) return false;
  if (!(f ? sched_resume(d, f) : sched_launch_span(d, device, i, false))) return false;
  sched_limit(d, d->started, add_ns(d->now, limit), SCHED_PAYS_CREDIT);
  return true;
}

static void account(decision *d, const urgent *u, const batch *b) {
  sched_memory *m = d->m;
  m->pass1_ns = u->iteration_ns;
  m->piggybacked += b->n - b->n_reactive - (b->promoted != SCHED_NONE) + b->ride_rows;
  int64_t cap = 2 * u->iteration_ns, credit = m->credit_ns + stretched_ns(u) - b->unpromoted_ns;
  /* A fixed B_cap overdraws it: fewer gaps pay that back. */
  m->credit_ns = max_ns(min_ns(credit, cap), -(SCHED_NEVER / 4));
  if (b->promoted == SCHED_NONE) return;
  m->x_ns -= b->total_ns - b->unpromoted_ns;
  m->x_spent_ns += b->total_ns - b->unpromoted_ns;
}

/* A stopped background iteration is finished first if the slack pays what is left of it; else it is
 * given up, and its rows may join. True: it goes on. */
static bool finish_background(decision *d, flight *f, const urgent *u) {
  const site *s = &d->sites[f->l->device];
  int64_t slack = stretched_ns(u) - u->iteration_ns; /* and what it had of it before is paid */
  int64_t limit = min_ns(slack, slack + d->m->credit_ns);
  limit = min_ns(limit, sub_ns(u->due_ns, d->now));
  bool goes_on = f->rest_ns <= limit && d->m->level < 2;
  if (!goes_on) {
    sched_drop(d, f);
    return false;
  }
  if (!sched_resume(d, f)) return false;
  sched_limit(d, f->l->id, s->dev->can_stop ? add_ns(d->now, limit) : SCHED_NEVER,
              SCHED_PAYS_CREDIT);
  return true;
}

static flight *stopped_iteration(decision *d, uint32_t device) {
  for (uint32_t k = 0; k < d->n_flights; k++) {
    flight *f = &d->flights[k];
    bool here = !f->dropped && f->l->state == SCHED_STOPPED && f->l->device == device;
    if (here && f->rows_reactive) return f;
  }
  return NULL;
}

static void run_rows(decision *d, uint32_t device, const urgent *u) {
  batch b;
  flight *f = stopped_iteration(d, device);
  if (f) {
    sched_resume(d, f);
    return;
  }
  while ((f = sched_background_rows(d, device)))
    if (d->full || finish_background(d, f, u)) return;
  sched_batch_reactive(d, device, u, &b);
  if (fill_gap(d, device, u, &b)) return;
  if (!sched_launch_batch(d, device, &b)) return;
  account(d, u, &b);
  if (b.promoted != SCHED_NONE && d->m->promoted_tokens) d->m->promoted_tokens--;
}

static void run_prefill(decision *d, uint32_t device, const urgent *u) {
  bool started;
  if (d->rp_flight) {
    started = sched_resume(d, d->rp_flight);
  } else {
    /* The slot of one that was lowered since. */
    flight *f = sched_stopped_in(d, device, SCHED_SLOT_PREFILL);
    if (f && !f->reactive) sched_drop(d, f);
    started = sched_launch_span(d, device, d->rp, false);
  }
  const site *s = &d->sites[device];
  if (started && u->rows && s->dev->can_stop)
    sched_limit(d, d->started, max_ns(u->due_ns, add_ns(d->now, sched_worth_ns(d, s))),
                SCHED_PAYS_NOTHING);
}

static bool resume_background(decision *d, flight *f) {
  return !sched_holds_up(d, f->l->device, &f->load, f->rest_ns) && sched_resume(d, f);
}

static bool run_background_rows(decision *d, uint32_t device) {
  batch b;
  const site *s = &d->sites[device];
  if (!s->dev->decodes || s->slots & SCHED_SLOT_DECODE_P) return false;
  sched_batch_background(d, device, false, &b);
  if (!b.n || sched_holds_up(d, device, &b.load, b.total_ns)) return false;
  if (!sched_launch_batch(d, device, &b)) return false;
  if (b.promoted != SCHED_NONE && d->m->promoted_tokens) d->m->promoted_tokens--;
  return true;
}

static bool run_background_prefill(decision *d, uint32_t device, bool rows_here) {
  const site *s = &d->sites[device];
  flight *f = sched_background_span(d, device);
  if (f) return resume_background(d, f);
  if (d->n_rows_p >= d->fill) return false;
  uint32_t i = find_prefill(d, device, rows_here);
  if (i == SCHED_NONE) return false;
  const sched_request *r = request_of(d, i);
  cost_load load = sched_span_load(d, s, r, sched_span_rows(d, s, r));
  if (sched_holds_up(d, device, &load, cost_time(s->cost, &load))) return false;
  return sched_launch_span(d, device, i, false);
}

static void run_background(decision *d, uint32_t device) {
  urgent none = {.due_ns = SCHED_NEVER};
  if (sched_start_promoted(d, device, &none, false)) return;
  /* Level 2: by section 4 alone, for which all is free while nothing reactive runs. */
  bool holds_back = !d->sites[device].dev->can_stop && sched_is_reactive_runnable(d);
  if (d->m->level >= 2 && holds_back) return;
  /* Nothing joins a stopped iteration, and nothing takes its slot: it is finished first. */
  flight *f = stopped_iteration(d, device);
  if (!f) f = sched_background_rows(d, device);
  if (f) {
    resume_background(d, f);
    return;
  }
  bool rows_here = ready_rows(d, device) > 0;
  if (d->n_rows_p >= d->fill && rows_here) {
    run_background_rows(d, device);
    return;
  }
  if (run_background_prefill(d, device, rows_here)) return;
  if (rows_here) run_background_rows(d, device);
}

/* Nothing was done for it yet: X may make a person wait, but not for the first launch. */
static bool is_fresh(const decision *d) {
  const sched_request *r = request_of(d, d->rp);
  bool never_served = r->waiting_ns == r->arrival_ns && !d->rp_flight;
  return never_served && sub_ns(d->now, r->arrival_ns) < d->c->preempt_ns;
}

static void pick(decision *d, uint32_t device) {
  const site *s = &d->sites[device];
  urgent u;
  sched_look_at_rows(d, device, &u);
  bool prefill = d->rp != SCHED_NONE && !d->rp_runs && d->rp_site == device;
  int64_t until_due = sub_ns(u.due_ns, d->now);
  if (u.rows && prefill) {
    const sched_request *r = request_of(d, d->rp);
    int64_t rest = d->rp_flight ? d->rp_flight->rest_ns : span_ns(d, s, d->rp);
    /* However short iterations are, and however late a decision: after one it is the prompt's turn,
     * or it might never be. */
    int64_t ran_ns = d->rp_flight ? d->rp_flight->l->start_ns : r->waiting_ns;
    bool its_turn = s->dev->can_stop && ran_ns < u.last_ns;
    if (!its_turn && !sched_is_worth(d, s, rest, until_due)) {
      run_rows(d, device, &u);
      return;
    }
  }
  if ((u.rows || (prefill && !is_fresh(d))) && sched_start_promoted(d, device, &u, true)) return;
  if (prefill)
    run_prefill(d, device, &u);
  else if (u.rows)
    run_rows(d, device, &u);
  else
    run_background(d, device);
}

void sched_pick(decision *d) {
  for (uint32_t i = 0; i < d->n_sites; i++)
    if (d->sites[i].usable && !d->sites[i].busy) pick(d, i);
}

static void preempt(decision *d, flight *f) {
  if (sched_stop(d, f)) d->m->preemptions++;
}

static void review_background(decision *d, flight *f, const urgent *u) {
  sched_memory *m = d->m;
  uint32_t id = f->l->id, device = f->l->device;
  bool prefill = d->rp != SCHED_NONE && !d->rp_runs && d->rp_site == device;
  if (!sched_is_wanted(d, device, u)) {
    sched_limit(d, id, SCHED_NEVER, SCHED_PAYS_NOTHING);
    if (sched_holds_up(d, device, &f->load, f->rest_ns)) preempt(d, f);
    return;
  }
  /* A gap is one between two iterations: a reactive prompt ends it. */
  bool goes_on = m->pays[id] == SCHED_PAYS_X || (m->pays[id] == SCHED_PAYS_CREDIT && !prefill);
  int64_t until = m->until_ns[id] ? min_ns(m->until_ns[id], u->due_ns) : u->due_ns;
  if (!goes_on || d->now >= until)
    preempt(d, f);
  else
    sched_limit(d, id, until, m->pays[id]);
}

/* Launches in flight, on devices that can stop. */
void sched_review(decision *d) {
  for (uint32_t k = 0; k < d->n_flights; k++) {
    flight *f = &d->flights[k];
    const site *s = &d->sites[f->l->device];
    urgent u;
    if (f->l->state != SCHED_RUNNING || !f->members || !s->usable || !s->dev->can_stop) continue;
    sched_look_at_rows(d, f->l->device, &u);
    if (!f->reactive) {
      review_background(d, f, &u);
    } else if (f->reactive_span && !f->l->decode_rows) {
      int64_t least = add_ns(f->l->start_ns, sched_worth_ns(d, s));
      int64_t until = u.rows ? max_ns(u.due_ns, least) : SCHED_NEVER;
      if (d->now >= until)
        preempt(d, f);
      else
        sched_limit(d, f->l->id, until, SCHED_PAYS_NOTHING);
    }
  }
}
