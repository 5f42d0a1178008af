/* SPDX-License-Identifier: Apache-2.0 */
/* pages.c - claims of pages and places; whom to suspend. See internal.h; scheduling.md 6. */
#include "sched/internal.h"

typedef struct room { /* for whom, and what is there */
  uint32_t claimant;
  bool place, survivor;
  const uint32_t *need;
} room;

bool sched_fits(const uint32_t need[SCHED_GROUPS], const uint32_t there[SCHED_GROUPS]) {
  for (int g = 0; g < SCHED_GROUPS; g++)
    if (need[g] > there[g]) return false;
  return true;
}

static bool is_satisfied(const decision *d, const room *m, const uint32_t pages[SCHED_GROUPS],
                         uint32_t places_held) {
  return sched_fits(m->need, pages) && (!m->place || places_held < d->c->places);
}

/* Ranks: background and what is held go first, then, for the survivor, later reactive requests. */
enum { NEVER_GOES, GOES_FIRST, GOES_LAST };

static int rank_of(const decision *d, const room *m, uint32_t i) {
  const sched_request *r = request_of(d, i), *claimant = request_of(d, m->claimant);
  if (i == m->claimant || d->flags[i] & (GONE | TAKEN)) return NEVER_GOES;
  bool background = band_of(r) == SCHED_BAND_P;
  if (band_of(claimant) == SCHED_BAND_P)
    return background && is_before(claimant, r) ? GOES_FIRST : NEVER_GOES;
  if (background || r->held) return GOES_FIRST;
  return m->survivor && is_before(claimant, r) ? GOES_LAST : NEVER_GOES;
}

/* What is in flight is pinned; of what is stopped, reactive launches go on. */
static bool is_pinned(decision *d, uint32_t i) {
  flight *f = sched_flight_of(d, request_of(d, i));
  return f && (f->l->state != SCHED_STOPPED || f->reactive);
}

static bool helps(const decision *d, const room *m, const sched_request *r) {
  if (m->place && d->places_held >= d->c->places && d->m->aged != r->id + 1) return true;
  for (int g = 0; g < SCHED_GROUPS; g++)
    if (m->need[g] > d->pages[g] && r->holds[g]) return true;
  return false;
}

static uint64_t pages_held(const sched_request *r) {
  uint64_t n = 1;
  for (int g = 0; g < SCHED_GROUPS; g++) n += r->holds[g];
  return n;
}

/* Cheapest to compute again per page; of equals, and among reactive ones always, the latest. */
static bool goes_sooner(const decision *d, const room *m, uint32_t a, uint32_t b) {
  const sched_request *x = request_of(d, a), *y = request_of(d, b);
  int rank_a = rank_of(d, m, a), rank_b = rank_of(d, m, b);
  if (rank_a != rank_b) return rank_a < rank_b;
  if (rank_a == GOES_FIRST) {
    unsigned __int128 cost_a = (unsigned __int128)max_ns(x->recompute_ns, 0) * pages_held(y);
    unsigned __int128 cost_b = (unsigned __int128)max_ns(y->recompute_ns, 0) * pages_held(x);
    if (cost_a != cost_b) return cost_a < cost_b;
  }
  return is_before(y, x);
}

/* Could it be done, by what is not pinned, or else once background launches have stopped? */
static bool is_possible(decision *d, const room *m, bool with_flying) {
  uint32_t pages[SCHED_GROUPS], held = d->places_held;
  for (int g = 0; g < SCHED_GROUPS; g++) pages[g] = d->pages[g];
  for (uint32_t k = 0; k < d->n_running; k++) {
    uint32_t i = d->order[k];
    if (rank_of(d, m, i) == NEVER_GOES || (!with_flying && is_pinned(d, i))) continue;
    const sched_request *r = request_of(d, i);
    for (int g = 0; g < SCHED_GROUPS; g++)
      pages[g] = pages[g] + r->holds[g] < pages[g] ? UINT32_MAX : pages[g] + r->holds[g];
    held -= d->m->aged != r->id + 1;
  }
  return is_satisfied(d, m, pages, held);
}

static bool suspend(decision *d, uint32_t i) {
  const sched_request *r = request_of(d, i);
  flight *f = sched_flight_of(d, r);
  if (f && !sched_drop(d, f)) return false;
  if (!sched_act(d, (sched_action){.kind = SCHED_SUSPEND, .request = r->id, .launch = SCHED_NONE}))
    return false;
  d->flags[i] |= GONE;
  d->suspended = true;
  sched_give_place(d, r);
  for (int g = 0; g < SCHED_GROUPS; g++) d->pages[g] += r->holds[g];
  return true;
}

bool sched_make_room(decision *d, uint32_t i, bool place, bool survivor) {
  room m = {.claimant = i, .place = place, .survivor = survivor, .need = request_of(d, i)->need};
  if (is_satisfied(d, &m, d->pages, d->places_held)) return true;
  if (!is_possible(d, &m, false)) {
    if (band_of(request_of(d, i)) == SCHED_BAND_P || !is_possible(d, &m, true)) return false;
    for (uint32_t k = 0; k < d->n_flights; k++) {
      flight *f = &d->flights[k];
      bool stops = d->sites[f->l->device].dev->can_stop;
      if (stops && f->members && !f->reactive) sched_stop(d, f);
    }
    return false;
  }
  while (!is_satisfied(d, &m, d->pages, d->places_held)) {
    uint32_t best = SCHED_NONE;
    for (uint32_t k = 0; k < d->n_running; k++) {
      uint32_t v = d->order[k];
      if (rank_of(d, &m, v) == NEVER_GOES || is_pinned(d, v)) continue;
      if (!helps(d, &m, request_of(d, v))) continue;
      if (best == SCHED_NONE || goes_sooner(d, &m, v, best)) best = v;
    }
    if (best == SCHED_NONE || !suspend(d, best)) return false;
  }
  return true;
}

static void claim(decision *d, uint32_t i, bool survivor) {
  const sched_request *r = request_of(d, i);
  static const uint32_t none[SCHED_GROUPS];
  if (sched_fits(r->need, none) || !sched_is_ready(d, i)) return;
  if (!sched_make_room(d, i, false, survivor)) {
    d->flags[i] |= NO_PAGES;
    return;
  }
  for (int g = 0; g < SCHED_GROUPS; g++) d->pages[g] -= r->need[g];
}

/* The oldest reactive request can always go on: its claim comes first. Then in the order of bands;
 * who gets nothing waits. */
void sched_claim_running(decision *d, bool reactive) {
  uint32_t first = reactive ? 0 : d->at[SCHED_BAND_P];
  uint32_t end = reactive ? d->at[SCHED_BAND_P] : d->n_running, oldest = SCHED_NONE;
  for (uint32_t k = first; k < end && reactive; k++) {
    uint32_t i = d->order[k];
    if (!sched_is_runnable(d, i)) continue;
    if (oldest == SCHED_NONE || is_before(request_of(d, i), request_of(d, oldest))) oldest = i;
  }
  if (oldest != SCHED_NONE) claim(d, oldest, true);
  for (uint32_t k = first; k < end; k++)
    if (d->order[k] != oldest) claim(d, d->order[k], false);
}
