/* SPDX-License-Identifier: Apache-2.0 */
/* urgent.c - the reactive prefill, reactive rows and when they are due, what stands in their way.
 * See internal.h; scheduling.md 2. */
#include "sched/internal.h"

typedef struct claim { /* a reactive request in PREFILL, and its rank */
  uint32_t at;
  flight *f; /* stopped, or NULL */
  bool begun, passed_over, lost, critical;
  sched_band band;
  int64_t rest_ns;
} claim;

/* One that is stopped keeps its slot, so it is first: work changes hands between spans. Who was
 * passed over for long goes next, whatever its band, the longest first: else it might never. */
static bool goes_before(const decision *d, const claim *a, const claim *b) {
  const sched_request *x = request_of(d, a->at), *y = request_of(d, b->at);
  if (a->begun != b->begun) return a->begun;
  if (a->passed_over != b->passed_over) return a->passed_over;
  if (a->passed_over && x->waiting_ns != y->waiting_ns) return x->waiting_ns < y->waiting_ns;
  if (a->band != b->band) return a->band < b->band;
  if (a->lost != b->lost) return b->lost;
  if (a->critical != b->critical) return a->critical;
  if (a->rest_ns != b->rest_ns) return a->rest_ns < b->rest_ns;
  return is_before(x, y);
}

static claim claim_of(const decision *d, uint32_t i, flight *f) {
  const sched_request *r = request_of(d, i);
  claim c = {.at = i, .f = f, .band = band_of(r), .rest_ns = sched_prefill_best_ns(d, r)};
  c.begun = f && f->slots & SCHED_SLOT_PREFILL;
  c.passed_over = sub_ns(d->now, r->waiting_ns) >= max_ns(SECOND_NS, c.rest_ns);
  c.lost = d->flags[i] & LOST;
  c.critical = d->flags[i] & CRITICAL;
  return c;
}

/* When the prefill would be done there, from now. Background in the way does not count for more
 * than its stop; reactive rows take every second turn. */
static int64_t finish_on(decision *d, uint32_t device, const sched_request *r) {
  const site *s = &d->sites[device];
  int64_t ns = sched_prefill_ns(d, s, r), bound = d->c->preempt_ns;
  urgent u;
  if (s->usable && s->dev->can_stop) bound = min_ns(bound, s->cost->stop_ns);
  if (ns == SCHED_NEVER || !sched_span_rows(d, s, r)) return SCHED_NEVER;
  sched_look_at_rows(d, device, &u);
  if (u.rows) ns *= 2;
  if (!s->busy) return ns;
  return ns + (s->running_reactive ? s->running_rest_ns : min_ns(s->running_rest_ns, bound));
}

/* Background decode yields the device that it runs on, unless that gains less than a twentieth. */
static uint32_t place(decision *d, const sched_request *r) {
  uint32_t best = SCHED_NONE;
  int64_t best_ns = SCHED_NEVER;
  bool waits = r->blocked_ns < d->c->preempt_ns; /* for background, no longer than D */
  for (uint32_t round = waits; round < 2 && best == SCHED_NONE; round++)
    for (uint32_t i = 0; i < d->n_sites; i++) {
      int64_t ns = finish_on(d, i, r);
      bool in_the_way = d->sites[i].busy && !d->sites[i].running_reactive;
      if (ns == SCHED_NEVER || (!round && in_the_way && !d->sites[i].dev->can_stop)) continue;
      if (d->n_rows_p && d->sites[i].dev->decodes) ns += ns / 20;
      if (ns >= best_ns) continue;
      best = i;
      best_ns = ns;
    }
  return best;
}

void sched_choose_prefill(decision *d) {
  for (uint32_t k = 0; k < d->n_flights; k++) {
    flight *f = &d->flights[k];
    if (f->l->state == SCHED_STOPPED || !f->reactive_span) continue;
    d->rp = f->prompt;
    d->rp_site = f->l->device;
    d->rp_flight = f;
    d->rp_runs = true;
    return;
  }
  claim best = {.at = SCHED_NONE};
  for (uint32_t k = 0; k < d->at[SCHED_BAND_P]; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    if (r->state != SCHED_PREFILL || !sched_is_runnable(d, i) || d->flags[i] & NO_PAGES) continue;
    flight *f = sched_flight_of(d, r);
    if (f && (f->l->decode_rows || !d->sites[f->l->device].usable)) continue;
    claim c = claim_of(d, i, f);
    if (best.at == SCHED_NONE || goes_before(d, &c, &best)) best = c;
  }
  if (best.at == SCHED_NONE) return;
  d->rp = best.at;
  d->rp_flight = best.f;
  d->rp_site = best.f ? best.f->l->device : place(d, request_of(d, best.at));
}

/* A stopped iteration goes on before other rows join: it is what is due then. T^ by a q of at most
 * one half, or a table that errs much would leave the prefill no time between two iterations. */
void sched_look_at_rows(decision *d, uint32_t device, urgent *u) {
  const site *s = &d->sites[device];
  uint32_t most = d->c->decode_rows < ROWS_MAX ? d->c->decode_rows : ROWS_MAX;
  int64_t first = SCHED_NEVER;
  *u = (urgent){.due_ns = SCHED_NEVER};
  if (!s->usable || !s->dev->decodes || !most) return;
  for (uint32_t k = 0; k < d->at[SCHED_BAND_P]; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    if (r->state != SCHED_DECODE || !sched_is_runnable(d, i)) continue;
    flight *f = sched_flight_of(d, r);
    bool stands = f && f->l->state == SCHED_STOPPED && f->l->device == device;
    if (!stands && !sched_is_ready(d, i)) continue;
    u->rows++;
    u->kv += r->kv_bytes;
    u->has_r = u->has_r || band_of(r) == SCHED_BAND_R;
    first = min_ns(first, r->emit_ns);
    u->last_ns = max_ns(u->last_ns, r->emit_ns);
  }
  if (!u->rows) return;
  if (u->rows > most) {
    u->kv = u->kv / u->rows * most;
    u->rows = most;
  }
  u->e = u->has_r ? d->c->slack_r : d->c->slack_i;
  u->iteration_ns = cost_decode(s->cost, u->rows, u->kv);
  int64_t sure = min_ns(cost_sure(s->cost, u->iteration_ns), u->iteration_ns * 3 / 2);
  /* G. What can be stopped needs no more than its stop beyond two iterations. */
  bool stops = s->dev->can_stop;
  int64_t bound = stops ? min_ns(s->cost->stop_ns, d->c->preempt_ns) : d->c->preempt_ns;
  u->latest_ns = add_ns(first, 2 * u->iteration_ns + bound);
  if (stops)
    sure =
        max_ns(sure, sched_after_prompt_ns(u->iteration_ns)) + min_ns(bound, d->c->preempt_ns / 4);
  u->due_ns = u->latest_ns - sure;
}

bool sched_is_reactive_runnable(const decision *d) {
  for (uint32_t k = 0; k < d->at[SCHED_BAND_P]; k++)
    if (sched_is_runnable(d, d->order[k])) return true;
  return false;
}

bool sched_is_wanted(decision *d, uint32_t device, const urgent *u) {
  return u->rows || (d->rp != SCHED_NONE && !d->rp_runs && d->rp_site == device);
}

/* While no reactive prefill runs: one that background has cost D could run here. */
static bool has_waited_enough(const decision *d, uint32_t device) {
  for (uint32_t k = 0; k < d->at[SCHED_BAND_P] && !d->rp_runs; k++) {
    const sched_request *r = request_of(d, d->order[k]);
    if (r->state != SCHED_PREFILL || r->blocked_ns < d->c->preempt_ns) continue;
    if (!sched_is_runnable(d, d->order[k]) || d->flags[d->order[k]] & TAKEN) continue;
    if (sched_span_rows(d, &d->sites[device], r)) return true;
  }
  return false;
}

/* What cannot be stopped must be over when the reactive prefill, which is elsewhere, comes here: to
 * decode, or with rows that are less than a step there. Once background has cost it D, none starts
 * where it could want to be. */
static bool is_needed_soon(decision *d, uint32_t device, int64_t ns) {
  const site *s = &d->sites[device];
  if (s->dev->can_stop || d->rp == SCHED_NONE || d->rp_site == device) return false;
  const sched_request *r = request_of(d, d->rp);
  if (r->blocked_ns >= d->c->preempt_ns && device == d->decode_site) return true;
  if (has_waited_enough(d, device)) return true;
  if (d->rp_site == SCHED_NONE) return false;
  const site *there = &d->sites[d->rp_site];
  uint32_t odd = there->dev->step > 1 ? r->prompt_left % there->dev->step : 0;
  bool comes = odd && s->dev->prefills && s->dev->step <= 1;
  if (device != d->decode_site && !comes) return false;
  sched_request until = *r;
  if (comes) until.prompt_left -= odd;
  int64_t rest = sched_prefill_ns(d, there, &until);
  if (d->rp_flight) rest = sub_ns(rest, sub_ns(d->rp_flight->l->total_ns, d->rp_flight->rest_ns));
  return min_ns(cost_sure(s->cost, ns), d->c->preempt_ns) > rest;
}

bool sched_holds_up(decision *d, uint32_t device, const cost_load *load, int64_t ns) {
  const site *s = &d->sites[device];
  if (is_needed_soon(d, device, ns)) return true;
  if (!d->v->bandwidth) return false;
  uint64_t c = d->v->bandwidth, asks = cost_demand(s->cost, load);
  for (uint32_t i = 0; i < d->n_sites; i++) {
    const site *o = &d->sites[i];
    if (i == device || !o->busy || !o->running_reactive) continue;
    /* Equal shares, and what the other leaves. */
    uint64_t wants = cost_demand(o->cost, &o->running), gets = asks < c / 2 ? c - asks : c / 2;
    if (gets >= wants) continue;
    int64_t lost = (int64_t)((__int128)o->running_rest_ns * (wants - gets) / wants);
    if (lost > o->running_slack_ns) return true;
  }
  return false;
}
