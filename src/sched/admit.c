/* SPDX-License-Identifier: Apache-2.0 */
/* admit.c - expire, admit, refuse. See internal.h; scheduling.md 5. */
#include "sched/internal.h"

#define RETRY_LEAST_NS SECOND_NS
#define RETRY_MOST_NS (60 * SECOND_NS)

/* Others in a stopped background launch lose what they have of it, which was not emitted; a
 * reactive launch goes on soon and is waited for. */
static bool is_free(decision *d, const sched_request *r) {
  flight *f = sched_flight_of(d, r);
  if (!f) return true;
  bool alone = f->members == f->over;
  bool lost = !d->sites[f->l->device].usable;
  if (f->l->state == SCHED_STOPPED) return (alone || lost || !f->reactive) && sched_drop(d, f);
  if (alone && d->sites[f->l->device].dev->can_stop) sched_stop(d, f);
  return false;
}

void sched_expire(decision *d) {
  bool ended = false;
  for (uint32_t k = 0; k < d->n_live; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    if (!(d->flags[i] & OVER)) {
      sched_wake_by(d, r->done_deadline_ns);
      if (!r->emitted) sched_wake_by(d, r->first_deadline_ns);
      continue;
    }
    if (k < d->n_running && !is_free(d, r)) continue;
    if (!sched_act(d, (sched_action){
                          .kind = SCHED_EXPIRE,
                          .reason = r->cancelled ? SCHED_REASON_CANCELLED : SCHED_REASON_DEADLINE,
                          .request = r->id,
                          .launch = SCHED_NONE}))
      return;
    d->flags[i] |= GONE;
    if (k >= d->n_running) continue;
    sched_give_place(d, r);
    ended = true;
  }
  /* What its client has suspended keeps no slot; what a lost device holds is placed elsewhere. */
  for (uint32_t k = 0; k < d->n_flights; k++) {
    flight *f = &d->flights[k];
    if (f->dropped || f->l->state != SCHED_STOPPED) continue;
    bool waits = f->prompt != SCHED_NONE && request_of(d, f->prompt)->held;
    waits = waits || (f->held && f->held == f->members);
    if (waits || !d->sites[f->l->device].usable) sched_drop(d, f);
  }
  /* The pages of those that end now are not in this view yet. */
  for (uint32_t k = d->n_running; ended && k < d->n_live; k++)
    if (!(d->flags[d->order[k]] & GONE)) sched_wake_by(d, d->now);
}

typedef struct gate {
  ahead ahead;
  uint32_t waiting, background; /* that wait; of band P that hold a place and run */
  bool closed;                  /* the head of the queue waits, so all do: nobody is overtaken */
  bool no_pages;                /* for pages */
} gate;

/* Spread by id, so that those refused together do not come back together. */
static int64_t retry_after(int64_t ns, uint32_t id) {
  uint32_t hash = (id + 1) * 0x9E3779B1u;
  ns = ns < RETRY_LEAST_NS ? RETRY_LEAST_NS : ns > RETRY_MOST_NS ? RETRY_MOST_NS : ns;
  return min_ns(ns + ratio_of(ns / 4, hash >> 16), RETRY_MOST_NS);
}

static void refuse(decision *d, uint32_t i, sched_reason reason, int64_t wait_ns) {
  const sched_request *r = request_of(d, i);
  bool again = reason != SCHED_REASON_PAGES;
  sched_act(d, (sched_action){.kind = SCHED_REFUSE,
                              .reason = (uint8_t)reason,
                              .request = r->id,
                              .launch = SCHED_NONE,
                              .ns = again ? retry_after(wait_ns, r->id) : 0});
  d->flags[i] |= GONE; /* if it did not fit, the next decision says it */
}

/* Of an empty pool it gets what it needs, whatever is to stay. */
static bool reserve_stays(const decision *d, const sched_request *r) {
  for (int g = 0; g < SCHED_GROUPS; g++) {
    uint32_t most = d->v->pages_total[g] < r->need[g] ? 0 : d->v->pages_total[g] - r->need[g];
    uint32_t stays = d->c->reserve[g] < most ? d->c->reserve[g] : most;
    if ((uint64_t)r->need[g] + stays > d->pages[g]) return false;
  }
  return true;
}

/* Prompts computed far ahead of decode only hold pages, so background has `fill` places at most. */
static bool has_room(decision *d, const gate *g, uint32_t i) {
  const sched_request *r = request_of(d, i);
  bool place = d->places_held < d->c->places;
  if (band_of(r) != SCHED_BAND_P) return d->c->places && sched_make_room(d, i, !place, false);
  return place && g->background < d->fill && reserve_stays(d, r);
}

/* Where people hold all places, who has starved for one gets one beyond them. */
static bool ages(decision *d, const gate *g, uint32_t i) {
  const sched_request *r = request_of(d, i);
  if (band_of(r) != SCHED_BAND_P || d->m->aged || g->no_pages || !d->c->places) return false;
  if (d->places_held > d->c->places) return false; /* who had the place is reactive now */
  if (sub_ns(d->now, r->waiting_ns) <= d->c->age_limit_ns) {
    sched_wake_by(d, add_ns(add_ns(r->waiting_ns, d->c->age_limit_ns), 1));
    return false;
  }
  if (g->background >= d->fill || !reserve_stays(d, r)) return false;
  d->m->aged = r->id + 1;
  return true;
}

/* Who is new and allows it, at level 4. */
static bool is_shortened(const decision *d, const sched_request *r) {
  uint32_t from = d->c->degrade_first ? 3 : 4, to = d->c->shorten_to;
  return !r->judged && r->shortenable && d->m->level >= from && to && r->output_left > to;
}

static sched_request shortened(const decision *d, const sched_request *r) {
  sched_request s = *r;
  s.output_left = d->c->shorten_to;
  if (s.expected_left > s.output_left) s.expected_left = s.output_left;
  return s;
}

static bool tell_shortened(decision *d, const sched_request *s) {
  sched_action told = {.kind = SCHED_SHORTEN, .request = s->id, .launch = SCHED_NONE};
  told.rows = s->output_left;
  return sched_act(d, told);
}

static bool admit(decision *d, gate *g, uint32_t i) {
  const sched_request *r = request_of(d, i);
  if (!sched_act(d, (sched_action){.kind = SCHED_ADMIT, .request = r->id, .launch = SCHED_NONE}))
    return false;
  if (!d->admitted) d->admitted = r->id + 1;
  d->flags[i] |= GONE;
  d->places_held += d->m->aged != r->id + 1;
  g->background += band_of(r) == SCHED_BAND_P;
  for (int p = 0; p < SCHED_GROUPS; p++) d->pages[p] -= r->need[p];
  return true;
}

/* The newest of the lowest band goes first; not who has told its client something already. Who
 * waits behind another's prefix leaves places empty for it: these count as well. */
static void limit_queue(decision *d, gate *g) {
  uint32_t most = d->c->places + d->c->queue_max;
  for (uint32_t k = d->n_live; k-- > d->n_running && d->places_held + g->waiting > most;) {
    uint32_t i = d->order[k];
    if (d->flags[i] & (OVER | GONE) || request_of(d, i)->emitted) continue;
    const sched_request *r = request_of(d, i);
    sched_request shorter = is_shortened(d, r) ? shortened(d, r) : *r;
    todo t = sched_todo(d, &shorter);
    sched_add(&g->ahead.left[band_of(r) == SCHED_BAND_P], &t, -1);
    refuse(d, i, SCHED_REASON_QUEUE, sched_ahead_ns(d, &g->ahead, band_of(r)));
    g->waiting--;
  }
}

/* Everybody's place in the account of the pace; who is gone or over takes no part in the rest. */
static bool takes_part(const decision *d, gate *g, uint32_t i, const todo *t) {
  const sched_request *r = request_of(d, i);
  bool over = d->flags[i] & OVER, gone = d->flags[i] & GONE;
  bool background = band_of(r) == SCHED_BAND_P;
  if (r->judged || r->state != SCHED_QUEUED) {
    sched_add(&g->ahead.known[background], t, 1);
    if (!over || !gone) sched_add(&g->ahead.left[background], t, 1);
  }
  return !over && !gone;
}

/* One that waits. */
static void consider(decision *d, gate *g, uint32_t i, todo t) {
  const sched_request *r = request_of(d, i);
  sched_request shorter;
  sched_band band = band_of(r);
  sched_reason reason = SCHED_REASON_NONE;
  int64_t wait_ns = 0;
  if (is_shortened(d, r)) {
    shorter = shortened(d, r);
    r = &shorter;
    t = sched_todo(d, r);
  }
  if (!sched_fits(r->most, d->v->pages_total))
    reason = SCHED_REASON_PAGES;
  else if (!r->judged)
    reason = sched_judge(d, &g->ahead, r, &wait_ns);
  if (reason != SCHED_REASON_NONE) {
    refuse(d, i, reason, wait_ns);
    return;
  }
  if (r == &shorter && !tell_shortened(d, r)) return;
  if (!r->judged) sched_add(&g->ahead.left[band == SCHED_BAND_P], &t, 1);
  sched_add(&g->ahead.bands[band], &t, 1);
  g->ahead.live[band]++;
  bool goes = !r->held && ((!g->closed && has_room(d, g, i)) || ages(d, g, i));
  if (!r->held && !goes) {
    g->closed = true;
    g->no_pages = g->no_pages || !sched_fits(r->need, d->pages);
  }
  if (goes && admit(d, g, i)) return;
  if (r == &shorter) sched_wake_by(d, d->now); /* it needs fewer pages than this view says */
  g->waiting++;
  g->ahead.background_waits = g->ahead.background_waits || (band == SCHED_BAND_P && !r->held);
}

/* Who may just make its deadline first, who will not last. */
static uint32_t turn_of(const decision *d, uint32_t i) {
  return d->flags[i] & CRITICAL ? 0 : d->flags[i] & LOST ? 2 : 1;
}

void sched_admit(decision *d) {
  gate g = {.background = 0};
  for (uint32_t k = 0; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    todo t = sched_todo(d, r);
    if (!takes_part(d, &g, i, &t) || r->held) continue;
    sched_add(&g.ahead.bands[band_of(r)], &t, 1);
    g.ahead.live[band_of(r)]++;
    g.background += band_of(r) == SCHED_BAND_P;
  }
  for (uint32_t band = 0; band < SCHED_BANDS; band++) {
    uint32_t first = d->at[SCHED_BANDS + band], end = d->at[SCHED_BANDS + band + 1];
    /* Running background first, or who is admitted and who is suspended would take turns. */
    if (band == SCHED_BAND_P) sched_claim_running(d, false);
    for (uint32_t turn = d->hurried[band] ? 0 : 1; turn <= (d->hurried[band] ? 2u : 1u); turn++)
      for (uint32_t k = first; k < end && !d->full; k++) {
        uint32_t i = d->order[k];
        if (d->hurried[band] && turn_of(d, i) != turn) continue;
        todo t = sched_todo(d, request_of(d, i));
        if (takes_part(d, &g, i, &t)) consider(d, &g, i, t);
      }
  }
  d->m->backlog_ns = sched_backlog_ns(d, &g.ahead);
  if (!d->full) limit_queue(d, &g);
  sched_settle_paces(d, &g.ahead);
}
