/* SPDX-License-Identifier: Apache-2.0 */
/* pressure.c - levels of pressure: 1 no model drafters, 2 P only by section 4, 3 refuse new P, 4
 * shorten new requests that allow it, 5 refuse new I, 6 refuse new R. Source: scheduling.md 5.
 *
 * The last two wait for far more pressure than 1: who asks for a hundred answers at once, and waits
 * for them, is better served by a queue than by refusals, until nobody would wait that long. */
#include "sched/internal.h"

enum { LEVEL_MOST = 6, BELOW = SCHED_ONE * 7 / 10 };
/* Pressure above which a level is reached, in targets. */
static const uint32_t reached_above[LEVEL_MOST + 1] = {0, 1, 1, 1, 1, 10, 30};
#define UP_AFTER_NS (2 * SECOND_NS)
#define DOWN_AFTER_NS (10 * SECOND_NS)

/* How long the last request of band R waits before its prompt is computed: shortest first, so for
 * all others; and whoever has no place waits as long as it has waited, at least. */
static int64_t predicted_wait(const decision *d) {
  int64_t sum = 0, longest = 0, waited = 0;
  for (uint32_t g = 0; g <= SCHED_BANDS; g += SCHED_BANDS)
    for (uint32_t k = d->at[g]; k < d->at[g + 1]; k++) {
      const sched_request *r = request_of(d, d->order[k]);
      if (r->held || d->flags[d->order[k]] & (OVER | GONE)) continue;
      int64_t ns = sched_prefill_about_ns(d, r);
      sum = add_ns(sum, ns);
      longest = max_ns(longest, ns);
      if (r->state == SCHED_QUEUED) waited = max_ns(waited, sub_ns(d->now, r->waiting_ns));
    }
  return max_ns(sum - longest, waited);
}

static uint32_t pressure_of(const decision *d) {
  int64_t target = d->c->ttft_target_ns;
  uint64_t most = d->v->power;
  if (target > 0) {
    __int128 wait = ((__int128)predicted_wait(d) << 16) / target;
    if (wait > (__int128)most) most = wait > UINT32_MAX ? UINT32_MAX : (uint64_t)wait;
  }
  for (int g = 0; g < SCHED_GROUPS; g++) {
    uint32_t total = d->v->pages_total[g], there = d->v->pages_free[g];
    if (!total || there >= total) continue;
    uint64_t used = ((uint64_t)(total - there) << 16) / total;
    if (used > most) most = used;
  }
  return (uint32_t)most;
}

/* One clock of the two; 0 says that it stands still. True: it has run for `after`. */
static bool tick(decision *d, int64_t *since, bool runs, int64_t after) {
  if (!runs) {
    *since = 0;
    return false;
  }
  if (!*since) *since = d->now ? d->now : 1;
  if (sub_ns(d->now, *since) >= after) {
    *since = d->now;
    return true;
  }
  sched_wake_by(d, add_ns(*since, after));
  return false;
}

void sched_settle_pressure(decision *d) {
  sched_memory *m = d->m;
  m->pressure = pressure_of(d);
  if (m->level > LEVEL_MOST) m->level = LEVEL_MOST;
  bool up = m->level < LEVEL_MOST && m->pressure > reached_above[m->level + 1] * SCHED_ONE;
  bool down = m->pressure < BELOW && m->level > 0;
  if (tick(d, &m->above_ns, up, UP_AFTER_NS)) m->level++;
  if (tick(d, &m->below_ns, down, DOWN_AFTER_NS)) m->level--;
  /* Another step needs as long again. */
  if (m->above_ns && m->level < LEVEL_MOST) sched_wake_by(d, add_ns(m->above_ns, UP_AFTER_NS));
  if (m->below_ns && m->level) sched_wake_by(d, add_ns(m->below_ns, DOWN_AFTER_NS));
}
