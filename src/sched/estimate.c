/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c - predicted times. See internal.h; T, fill: scheduling.md 1 and 2. */
#include "sched/internal.h"

#include <string.h>

static uint32_t padded(const site *s, uint32_t rows) {
  uint32_t step = s->dev->step;
  return step > 1 ? (rows + step - 1) / step * step : rows;
}

/* Sum over n rows, each of which sees one position more than the one before. */
static uint64_t span_kv(const decision *d, const sched_request *r, uint64_t n) {
  unsigned __int128 kv = (unsigned __int128)n * r->kv_bytes;
  kv += (unsigned __int128)n * (n ? n - 1 : 0) / 2 * d->v->kv_token_bytes;
  return kv >> 62 ? (uint64_t)1 << 62 : (uint64_t)kv;
}

cost_load sched_span_load(const decision *d, const site *s, const sched_request *r, uint32_t rows) {
  return (cost_load){.prompt_rows = padded(s, rows), .prompt_kv = span_kv(d, r, rows)};
}

/* A device with static shapes leaves what is less than a step to another, if there is one. */
uint32_t sched_span_rows(const decision *d, const site *s, const sched_request *r) {
  uint32_t rows = r->prompt_left < s->span ? r->prompt_left : s->span, step = s->dev->step;
  if (!s->usable || !s->dev->prefills) return 0;
  if (step <= 1 || rows % step == 0) return rows;
  if (rows > step) return rows - rows % step;
  for (uint32_t i = 0; i < d->n_sites; i++) {
    const site *o = &d->sites[i];
    if (o->usable && o->dev->prefills && o->dev->step <= 1 && o->span) return 0;
  }
  return rows;
}

int64_t sched_prefill_ns(const decision *d, const site *s, const sched_request *r) {
  if (!s->usable || !s->dev->prefills || !s->span) return SCHED_NEVER;
  uint32_t full = r->prompt_left / s->span, rest = r->prompt_left % s->span;
  __int128 ns = (__int128)full * s->span_ns;
  if (rest) ns += cost_prefill(s->cost, padded(s, rest), 0);
  ns += cost_kv(span_kv(d, r, r->prompt_left), s->cost->prompt_kv_ns_per_mib);
  return ns > SCHED_NEVER / 4 ? SCHED_NEVER / 4 : (int64_t)ns;
}

/* For sums over a long queue: spans as if they could be cut anywhere, no table looked up. */
int64_t sched_prefill_about_ns(const decision *d, const sched_request *r) {
  if (!r->prompt_left || d->prefill_site == SCHED_NONE) return 0;
  const site *s = &d->sites[d->prefill_site];
  int64_t row = min_ns(s->span_ns / s->span, SECOND_NS);
  int64_t kv = cost_kv(span_kv(d, r, r->prompt_left), s->cost->prompt_kv_ns_per_mib);
  return min_ns(add_ns(max_ns(row * r->prompt_left, s->row_ns), kv), SCHED_NEVER / 4);
}

int64_t sched_prefill_best_ns(const decision *d, const sched_request *r) {
  if (!r->prompt_left || d->prefill_site == SCHED_NONE) return 0;
  return sched_prefill_ns(d, &d->sites[d->prefill_site], r);
}

int64_t sched_rest_ns(const decision *d, const sched_request *r) {
  uint32_t tokens = r->expected_left ? r->expected_left : 1;
  __int128 ns = (__int128)tokens * d->token_ns[band_of(r)] + sched_prefill_best_ns(d, r);
  return ns > SCHED_NEVER / 2 ? SCHED_NEVER / 2 : (int64_t)ns;
}

int64_t sched_laxity(const decision *d, const sched_request *r, int64_t *rest) {
  int64_t laxity = SCHED_NEVER;
  *rest = 0;
  if (r->done_deadline_ns != SCHED_NEVER) {
    *rest = sched_rest_ns(d, r);
    laxity = sub_ns(sub_ns(r->done_deadline_ns, d->now), *rest);
  }
  if (r->first_deadline_ns != SCHED_NEVER && !r->emitted) {
    int64_t first = add_ns(sched_prefill_best_ns(d, r), d->token_ns[band_of(r)]);
    int64_t lax = sub_ns(sub_ns(r->first_deadline_ns, d->now), first);
    if (lax < laxity) {
      laxity = lax;
      *rest = first;
    }
  }
  return laxity;
}

void sched_look_at_deadlines(decision *d) {
  memset(d->hurried, 0, sizeof d->hurried);
  for (uint32_t k = 0; k < d->n_live; k++) {
    uint32_t i = d->order[k];
    const sched_request *r = request_of(d, i);
    int64_t rest, laxity = sched_laxity(d, r, &rest);
    if (laxity >= max_ns(SECOND_NS, rest / 4)) continue;
    d->flags[i] |= laxity < 0 ? LOST : CRITICAL;
    if (k >= d->n_running) d->hurried[band_of(r)] = true;
  }
}

/* fill: the M that maximises M / T(M, K). tab is a line between its points, so M / T has no
 * maximum but at a point, or at the last M. */
static void find_fill(decision *d, uint64_t row_kv) {
  const cost_table *t = d->sites[d->decode_site].cost;
  uint32_t most = d->c->decode_rows < ROWS_MAX ? d->c->decode_rows : ROWS_MAX;
  if (d->c->places < most) most = d->c->places;
  uint32_t best = 1;
  int64_t best_ns = cost_decode(t, 1, row_kv);
  for (uint32_t k = 0; k <= COST_POINTS; k++) {
    uint32_t m = k < COST_POINTS ? cost_rows[k] : most;
    if (m > most) continue;
    int64_t ns = cost_decode(t, m, m * row_kv);
    /* m / ns > best / best_ns; of equals the larger */
    if ((__int128)m * best_ns < (__int128)best * ns) continue;
    if (m < best && (__int128)m * best_ns == (__int128)best * ns) continue;
    best = m;
    best_ns = ns;
  }
  d->fill = best;
  d->token_share_ns = best_ns / best;
}

void sched_estimate(decision *d) {
  uint32_t rows[2] = {0, 0};
  uint64_t kv[2] = {0, 0};
  int64_t per_row = SCHED_NEVER;
  d->prefill_site = d->decode_site = SCHED_NONE;
  d->n_rows_p = d->n_prefill_p = 0;
  d->fill = 1;
  d->token_share_ns = 0;
  d->reactive_share_ns = 0;
  d->reactive_kv = 0;
  for (int b = 0; b < SCHED_BANDS; b++) d->token_ns[b] = 0;
  for (uint32_t i = 0; i < d->n_sites; i++) {
    const site *s = &d->sites[i];
    if (!s->usable) continue;
    if (s->dev->decodes && d->decode_site == SCHED_NONE) d->decode_site = i;
    if (!s->dev->prefills || !s->span || s->span_ns / s->span >= per_row) continue;
    per_row = s->span_ns / s->span;
    d->prefill_site = i;
  }
  for (uint32_t i = 0; i < d->n_running; i++) {
    const sched_request *r = request_of(d, d->order[i]);
    if (!sched_is_runnable(d, d->order[i])) continue;
    bool background = band_of(r) == SCHED_BAND_P;
    d->n_prefill_p += background && r->state == SCHED_PREFILL;
    if (r->state != SCHED_DECODE) continue;
    rows[background]++;
    kv[background] += r->kv_bytes;
  }
  d->n_rows_p = rows[1];
  d->n_rows_reactive = rows[0];
  if (d->decode_site == SCHED_NONE) return;
  const cost_table *t = d->sites[d->decode_site].cost;
  find_fill(d, rows[1] ? kv[1] / rows[1] : 0);
  if (rows[0]) d->reactive_kv = kv[0] / rows[0];
  int64_t reactive = cost_decode(t, rows[0] ? rows[0] : 1, kv[0]);
  d->reactive_share_ns = reactive / (rows[0] ? rows[0] : 1);
  d->token_ns[SCHED_BAND_R] = d->token_ns[SCHED_BAND_I] = reactive;
  uint32_t together = rows[1] < d->fill ? rows[1] + !rows[1] : d->fill;
  d->token_ns[SCHED_BAND_P] = cost_decode(t, together, rows[1] ? kv[1] / rows[1] * together : 0);
}
