/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - what a launch costs on one device: a measured table over rows, KV bytes, and what
 * observations have corrected. Plain data and pure integer functions: the scheduler reads it, the
 * runtime feeds it, `troika profile` measures it.
 *
 *   T(M, K)    M GEN rows that read K bytes of KV    = tab(M) + K * gen_kv + launch
 *   Tp(P, K)   P PROMPT rows that see K bytes = tabp(P) + K * prompt_kv + launch
 *   both in one launch: T + Tp - launch - shared(M, P): the weights are read once, not twice
 *
 * tab and tabp are measured at COST_ROWS, made monotone, and interpolated between; there is no
 * formula near the knee. Beyond the last point the slope of the last piece goes on. Each point has
 * a correction, an EWMA (1/16) of observed / predicted, clamped to 0.5-2; those that a launch does
 * not touch follow slowly (1/256). T^ = T * (1 + q), q the 90th percentile of the relative error.
 * Monotone in M and in K at any time (invariant 20): where a correction would make more rows
 * cheaper than fewer, the dearer price holds.
 *
 * Times in nanoseconds, ratios 16.16, bytes of KV as kv_bytes of a row: what its attention reads.
 * Source: scheduling.md 1 (T, tab, tabp, shared, q), 8 (bandwidth). */
#ifndef PLAN_COST_H
#define PLAN_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { COST_POINTS = 14, COST_ONE = 1 << 16, COST_ERRORS = 64 };

/* 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256 */
extern const uint16_t cost_rows[COST_POINTS];

typedef struct cost_table {
  int64_t gen[COST_POINTS];    /* tab: ns, without KV and launch */
  int64_t prompt[COST_POINTS]; /* tabp */
  int64_t launch_ns;           /* decision, hand-over and completion of one launch */
  int64_t gen_kv_ns_per_mib, prompt_kv_ns_per_mib;
  int64_t shared_ns[2];  /* saved by one launch instead of two, at (M, P) = (1, 64) and (8, 64) */
  int64_t stop_ns;       /* longest time from a stop to the completion that was seen: the bound */
  uint64_t weight_bytes; /* read by each launch: for the bandwidth that it asks for */
  uint64_t bandwidth;    /* bytes per second that this device reaches alone; 0: not known */
  uint32_t gen_fix[COST_POINTS], prompt_fix[COST_POINTS]; /* corrections, COST_ONE = 1 */
  uint32_t error_q; /* q: 90th percentile of |observed - predicted| / predicted */
  uint32_t errors[COST_ERRORS], errors_n, errors_at; /* the last relative errors, a ring */
} cost_table;

typedef struct cost_load { /* what one launch does */
  uint32_t gen_rows, prompt_rows;
  uint64_t gen_kv, prompt_kv; /* bytes, summed over the rows */
} cost_load;

/* A table for a machine that was not measured yet: from bytes and operations, deliberately slow. */
void cost_guess(cost_table *t, uint64_t weight_bytes, uint64_t ops_per_row, uint32_t threads);
/* False: a point is missing or negative, not monotone, or out of all reason. */
bool cost_valid(const cost_table *t);
/* Makes gen and prompt monotone: no point below the one before. */
void cost_make_monotone(cost_table *t);

int64_t cost_time(const cost_table *t, const cost_load *load);
/* Of reading that many bytes of KV, at one of the table's two rates. Saturates, as all here. */
int64_t cost_kv(uint64_t bytes, int64_t ns_per_mib);
int64_t cost_decode(const cost_table *t, uint32_t rows, uint64_t kv_bytes);  /* T */
int64_t cost_prefill(const cost_table *t, uint32_t rows, uint64_t kv_bytes); /* Tp */
static inline int64_t cost_sure(const cost_table *t, int64_t ns) {           /* T^ */
  return ns + (int64_t)(((__int128)ns * t->error_q) >> 16);
}

/* A launch of `load` took `ns` on the device, stops and waits not counted. Ignored: loads that mix
 * GEN and PROMPT rows (the error counts, the correction does not), ns <= 0. */
void cost_observe(cost_table *t, const cost_load *load, int64_t ns);

/* Bytes per second that a launch of this load asks for. */
uint64_t cost_demand(const cost_table *t, const cost_load *load);

#endif
