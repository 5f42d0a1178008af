/* SPDX-License-Identifier: Apache-2.0 */
/* admit.c - expire, admit, refuse. See internal.h; scheduling.md 5. */
#include "sched/internal.h"

#define RETRY_LEAST_NS SECOND_NS
#define RETRY_MOST_NS (60 * SECOND_NS)
#define PACE_WINDOW_NS (16 * SECOND_NS)
enum { PACE_MOST = 8 };

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
    d->places_held--;
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
  int64_t ahead_ns[SCHED_BANDS]; /* work of a band that comes before who arrives in it now */
  uint32_t waiting, background;  /* that wait; of band P that hold a place and run */
  bool closed;                   /* the head of the queue waits, so all do: nobody is overtaken */
  int64_t known_ns, left_ns;     /* work of band P, of those that an earlier decision has seen, and
                                    of those that the next one will see */
  bool background_waits;         /* for a place */
} gate;

/* Device time. Reactive requests decode together: only their prompts are in each other's way. */
static int64_t work_of(const decision *d, const sched_request *r) {
  int64_t ns = sched_prefill_about_ns(d, r);
  if (band_of(r) != SCHED_BAND_P) return ns;
  __int128 tokens = (__int128)r->expected_left * d->token_share_ns;
  return tokens > SCHED_NEVER / 4 ? SCHED_NEVER / 4 : ns + (int64_t)tokens;
}

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

static uint32_t error_of(const decision *d) {
  uint32_t a = d->prefill_site != SCHED_NONE ? d->sites[d->prefill_site].cost->error_q : 0;
  uint32_t b = d->decode_site != SCHED_NONE ? d->sites[d->decode_site].cost->error_q : 0;
  return a > b ? a : b;
}

/* What band P has to do takes longer than its device time: reactive work, iterations that are not
 * full, the machine's other programs. How much longer is measured while some of it waits for a
 * place, over the last 8 to 16 s; while nothing waits it does not matter, and is forgotten. */
static void settle_pace(decision *d, const gate *g) {
  sched_memory *m = d->m;
  int64_t passed = m->decisions && d->now > m->then_ns ? d->now - m->then_ns : 0;
  int64_t done = m->background_waits ? sub_ns(m->p_left_ns, g->known_ns) : passed;
  passed = min_ns(passed, PACE_WINDOW_NS);
  done = max_ns(-PACE_WINDOW_NS, min_ns(done, PACE_WINDOW_NS));
  m->p_time_ns += passed;
  m->p_work_ns = max_ns(m->p_work_ns + done, 0);
  for (; m->p_time_ns > PACE_WINDOW_NS; m->p_time_ns /= 2) m->p_work_ns /= 2;
  m->p_left_ns = g->left_ns;
  m->background_waits = g->background_waits && !d->full;
}

/* ns of device time of band P as time, by the pace. */
static int64_t at_pace(const decision *d, int64_t ns) {
  const sched_memory *m = d->m;
  if (m->p_time_ns < SECOND_NS || m->p_work_ns >= m->p_time_ns) return ns;
  int64_t least = m->p_time_ns / PACE_MOST;
  __int128 longer = (__int128)ns * m->p_time_ns / max_ns(m->p_work_ns, least);
  return longer > SCHED_NEVER / 4 ? SCHED_NEVER / 4 : (int64_t)longer;
}

static int64_t ahead_of(const decision *d, const gate *g, sched_band band) {
  int64_t ns = g->ahead_ns[SCHED_BAND_R];
  if (band >= SCHED_BAND_I) ns = add_ns(ns, g->ahead_ns[SCHED_BAND_I]);
  return band < SCHED_BAND_P ? ns : add_ns(ns, at_pace(d, g->ahead_ns[SCHED_BAND_P]));
}

/* The tests at arrival. q is the 90th percentile of the error; half of it is about the 75th. */
static sched_reason judge(const decision *d, const gate *g, const sched_request *r,
                          int64_t *wait_ns) {
  sched_band band = band_of(r);
  uint32_t level = d->m->level, p_from = d->c->degrade_first ? 4 : 3;
  int64_t ahead = ahead_of(d, g, band), background = at_pace(d, g->ahead_ns[SCHED_BAND_P]);
  *wait_ns = ahead;
  if (level >= (band == SCHED_BAND_R ? 6 : band == SCHED_BAND_I ? 5 : p_from))
    return SCHED_REASON_PRESSURE;
  if (band == SCHED_BAND_P && background > d->c->backlog_max_ns) {
    *wait_ns = background - d->c->backlog_max_ns;
    return SCHED_REASON_BACKLOG;
  }
  int64_t rest, laxity = sched_laxity(d, r, &rest);
  if (laxity == SCHED_NEVER || r->hinted) return SCHED_REASON_NONE;
  int64_t needed = add_ns(ahead, band == SCHED_BAND_P ? at_pace(d, rest) : rest);
  needed = add_ns(needed, ratio_of(min_ns(needed, SCHED_NEVER / 4), error_of(d) / 2));
  if (needed <= add_ns(laxity, rest)) return SCHED_REASON_NONE;
  return SCHED_REASON_LATE;
}

static bool reserve_stays(const decision *d, const sched_request *r) {
  for (int g = 0; g < SCHED_GROUPS; g++)
    if ((uint64_t)r->need[g] + d->c->reserve[g] > d->pages[g]) return false;
  return true;
}

/* Prompts computed far ahead of decode only hold pages, so background has `fill` places at most. */
static bool has_room(decision *d, const gate *g, uint32_t i) {
  const sched_request *r = request_of(d, i);
  bool place = d->places_held < d->c->places;
  if (band_of(r) != SCHED_BAND_P) return d->c->places && sched_make_room(d, i, !place, false);
  return place && g->background < d->fill && reserve_stays(d, r);
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
  d->places_held++;
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
    if (band_of(r) == SCHED_BAND_P) g->left_ns = sub_ns(g->left_ns, work_of(d, r));
    refuse(d, i, SCHED_REASON_QUEUE, ahead_of(d, g, band_of(r)));
    g->waiting--;
  }
}

/* Everybody's place in the account of the pace; who is gone or over takes no part in the rest. */
static bool takes_part(const decision *d, gate *g, uint32_t i, int64_t work_ns) {
  const sched_request *r = request_of(d, i);
  bool over = d->flags[i] & OVER, gone = d->flags[i] & GONE;
  if (band_of(r) == SCHED_BAND_P) {
    bool known = r->judged || r->state != SCHED_QUEUED;
    if (known) g->known_ns = add_ns(g->known_ns, work_ns);
    if (known && !(over && gone)) g->left_ns = add_ns(g->left_ns, work_ns);
  }
  return !over && !gone;
}

void sched_admit(decision *d) {
  gate g = {.background = 0};
  bool claimed = false;
  for (uint32_t k = 0; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    int64_t work = work_of(d, r);
    if (!takes_part(d, &g, i, work) || r->held) continue;
    g.ahead_ns[band_of(r)] = add_ns(g.ahead_ns[band_of(r)], work);
    g.background += band_of(r) == SCHED_BAND_P;
  }
  for (uint32_t k = d->n_running; k < d->n_live && !d->full; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    sched_request shorter;
    sched_band band = band_of(r);
    int64_t wait_ns = 0, work = work_of(d, r);
    if (!takes_part(d, &g, i, work)) continue;
    /* Running background first, or who is admitted and who is suspended would take turns. */
    if (band == SCHED_BAND_P && !claimed) sched_claim_running(d, false);
    claimed = claimed || band == SCHED_BAND_P;
    if (is_shortened(d, r)) {
      shorter = shortened(d, r);
      work = work_of(d, r = &shorter);
    }
    sched_reason reason = SCHED_REASON_NONE;
    if (!sched_fits(r->most, d->v->pages_total))
      reason = SCHED_REASON_PAGES;
    else if (!r->judged)
      reason = judge(d, &g, r, &wait_ns);
    if (reason != SCHED_REASON_NONE) {
      refuse(d, i, reason, wait_ns);
      continue;
    }
    if (r == &shorter && !tell_shortened(d, r)) break;
    if (band == SCHED_BAND_P && !r->judged) g.left_ns = add_ns(g.left_ns, work);
    g.ahead_ns[band] = add_ns(g.ahead_ns[band], work);
    bool goes = !r->held && !g.closed && has_room(d, &g, i);
    if (!r->held && !goes) g.closed = true;
    if (goes && admit(d, &g, i)) continue;
    g.waiting++;
    g.background_waits = g.background_waits || (band == SCHED_BAND_P && !r->held);
  }
  if (!claimed) sched_claim_running(d, false);
  d->m->backlog_ns = at_pace(d, g.ahead_ns[SCHED_BAND_P]);
  if (!d->full) limit_queue(d, &g);
  settle_pace(d, &g);
}
