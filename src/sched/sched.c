/* SPDX-License-Identifier: Apache-2.0 */
/* sched.c - one decision: its parts in their order. See sched.h, internal.h.
 *
 *   settle    what the time since the last decision has cost and earned
 *   look      requests in order, launches, devices, predicted times
 *   expire    what is cancelled or late
 *   pages     claims of running reactive requests
 *   admit     R, I; claims of running background; P; refuse
 *   promote   whose time has come
 *   review    what is in flight: stop it?
 *   pick      for each free device: what next? Not if someone was admitted: see sched.h
 *
 * All is found anew from the view but what sched_memory holds, and no loop depends on the order of
 * its arrays: requests are walked in a total order, launches by what they hold. */
#include "sched/sched.h"

#include <string.h>

#include "base/check.h"
#include "sched/internal.h"

sched_band sched_band_of(const sched_request *r) {
  switch (r->class_) {
    case SCHED_REACTIVE:
      return r->child && !r->may_react ? SCHED_BAND_I : SCHED_BAND_R;
    case SCHED_INHERITED:
      return r->parent_waits ? SCHED_BAND_I : SCHED_BAND_P;
    default:
      return SCHED_BAND_P;
  }
}

void sched_wake_by(decision *d, int64_t time_ns) {
  if (time_ns < d->wake) d->wake = time_ns;
}

bool sched_act(decision *d, sched_action action) {
  if (d->n == d->capacity) {
    d->full = true;
    sched_wake_by(d, d->now);
    return false;
  }
  d->out[d->n++] = action;
  return true;
}

/* Time that a promoted launch took from reactive work is X's, time of a gap the credit's. They are
 * charged as it passes, so that a launch stopped early costs what it took; but never more than X
 * may hold or, of a gap, 2 S below 0, since a machine that stood still is not the background's
 * debt. Time without reactive work is the background's anyway, so it pays what is owed. */
static void settle_accounts(decision *d) {
  sched_memory *m = d->m;
  int64_t then = m->decisions ? m->then_ns : d->now;
  int64_t passed = d->now > then ? d->now - then : 0;
  int64_t cap = max_ns(4 * d->c->preempt_ns, 2 * m->pass1_ns);
  if (m->reactive_runnable) {
    for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++) {
      if (m->pays[i] == SCHED_PAYS_X) {
        int64_t spent = min_ns(passed, max_ns(m->x_ns + cap, 0));
        m->x_ns -= spent;
        m->x_spent_ns += spent;
      } else if (m->pays[i] == SCHED_PAYS_CREDIT) {
        m->credit_ns -= min_ns(passed, max_ns(m->credit_ns + 2 * m->pass1_ns, 0));
      }
    }
    int64_t earned = ratio_of(passed, d->c->background_share);
    m->x_ns += earned;
    m->x_earned_ns += earned;
  } else if (m->credit_ns < 0) {
    m->credit_ns = min_ns(m->credit_ns + passed, 0);
  }
  m->x_ns = min_ns(m->x_ns, cap);
  m->x_floor_ns = min_ns(m->x_floor_ns, max_ns(cap - d->c->preempt_ns, 0)); /* S may have fallen */
  if (m->credit_ns > 2 * m->pass1_ns) m->credit_ns = 2 * m->pass1_ns;
}

/* What was admitted is waited for once; and not twice in a row while others give way: however they
 * change places, something runs. */
static bool is_waited_for(const decision *d) {
  if (!d->admitted || d->admitted == d->m->waited_for) return false;
  return !(d->suspended && d->m->waited_for);
}

static void remember(decision *d) {
  sched_memory *m = d->m;
  bool runnable = sched_is_reactive_runnable(d);
  if (runnable && !m->reactive_runnable) m->x_floor_ns = max_ns(m->x_ns - d->c->preempt_ns, 0);
  m->reactive_runnable = runnable;
  m->waited_for = d->admitted;
  m->then_ns = d->now;
  m->decisions++;
}

/* What is no longer in flight is paid and needs no end. */
static void forget_launches(decision *d) {
  uint32_t flying = 0;
  for (uint32_t i = 0; i < d->n_flights; i++) {
    const sched_launch_view *l = d->flights[i].l;
    if (l->state != SCHED_STOPPED) flying |= 1u << l->id;
  }
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (!(flying >> i & 1)) {
      d->m->until_ns[i] = 0;
      d->m->pays[i] = SCHED_PAYS_NOTHING;
    }
}

static void begin(decision *d, const sched_view *view, sched_memory *memory, int64_t now_ns) {
  d->v = view;
  d->c = view->config;
  d->m = memory;
  d->now = now_ns;
  d->wake = SCHED_NEVER;
  d->n = 0;
  d->full = false;
  d->admitted = 0;
  d->suspended = false;
  d->rp = SCHED_NONE;
  d->rp_site = SCHED_NONE;
  d->rp_flight = NULL;
  d->rp_runs = false;
  CHECK(view->n_requests <= SCHED_REQUESTS_MAX && view->n_devices <= SCHED_DEVICES_MAX);
  memset(d->flags, 0, view->n_requests);
  memcpy(d->pages, view->pages_free, sizeof d->pages);
}

size_t sched_decide(const sched_view *view, sched_memory *memory, int64_t now_ns, sched_action *out,
                    size_t capacity, int64_t *wake_ns) {
  decision d;
  begin(&d, view, memory, now_ns);
  d.out = out;
  d.capacity = capacity;
  settle_accounts(&d);
  sched_order_requests(&d);
  sched_look_at_launches(&d);
  forget_launches(&d);
  sched_estimate(&d);
  sched_look_at_deadlines(&d);
  sched_expire(&d);
  sched_settle_pressure(&d);
  sched_claim_running(&d, true);
  sched_admit(&d);
  sched_promote(&d);
  sched_choose_prefill(&d);
  sched_review(&d);
  if (d.admitted && d.admitted != memory->waited_for) sched_wake_by(&d, now_ns);
  if (!is_waited_for(&d)) sched_pick(&d);
  remember(&d);
  *wake_ns = d.wake;
  return d.n;
}
