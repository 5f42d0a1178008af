/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/cost.h"

#include <string.h>

const uint16_t cost_rows[COST_POINTS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256};

/* Times saturate at 2.3 years: then no sum of a few of them, and no T^, leaves 64 bits. */
#define NS_MAX ((int64_t)1 << 56)
#define POINT_MAX ((int64_t)1 << 46) /* 19.5 hours for one launch: out of all reason */
#define KV_NS_MAX ((int64_t)1 << 40) /* per MiB: likewise */

enum {
  FIX_MIN = COST_ONE / 2,
  FIX_MAX = COST_ONE * 2,
  FIX_OWN = 16,  /* EWMA of the buckets on both sides of an observation */
  FIX_ALL = 256, /* of all others */
  ERROR_MAX = COST_ONE * 16,
  SHARED_ROWS = 8 /* the second point of `shared` */
};

static int64_t saturate(__int128 ns) {
  return ns > NS_MAX ? NS_MAX : ns < 0 ? 0 : (int64_t)ns;
}

static int64_t scale(int64_t ns, uint32_t ratio) {
  return saturate(((__int128)ns * ratio) >> 16);
}

int64_t cost_kv(uint64_t bytes, int64_t ns_per_mib) {
  return saturate(((__int128)bytes * ns_per_mib) >> 20);
}

/* The first point with at least so many rows; COST_POINTS - 1 beyond the last. */
static uint32_t point_above(uint32_t rows) {
  uint32_t i = 0;
  while (i < COST_POINTS - 1 && cost_rows[i] < rows) i++;
  return i;
}

/* Device time of a launch of `rows` with points p that do not fall. */
static int64_t between(const int64_t p[COST_POINTS], uint32_t rows) {
  uint32_t i = point_above(rows);
  if (!i) return p[0];
  /* Beyond the last point this is the last piece, gone on. */
  int64_t x = (int64_t)rows - cost_rows[i - 1], dx = cost_rows[i] - cost_rows[i - 1];
  return saturate(p[i - 1] + (__int128)(p[i] - p[i - 1]) * x / dx);
}

/* The points up to `last` with KV and corrections. A correction of one bucket must not make fewer
 * rows dearer than more: no point stays below the one before (invariant 20). Each grows with
 * kv_ns, so their maximum does. */
static void corrected(const int64_t *tab, const uint32_t *fix, uint32_t last, int64_t kv_ns,
                      int64_t p[COST_POINTS]) {
  for (uint32_t i = 0; i <= last; i++) {
    p[i] = scale(saturate((__int128)tab[i] + kv_ns), fix[i]);
    if (i && p[i] < p[i - 1]) p[i] = p[i - 1];
  }
}

static int64_t device_time(const int64_t *tab, const uint32_t *fix, uint32_t rows, int64_t kv_ns) {
  int64_t p[COST_POINTS];
  corrected(tab, fix, point_above(rows), kv_ns, p);
  return between(p, rows);
}

int64_t cost_decode(const cost_table *t, uint32_t rows, uint64_t kv_bytes) {
  if (!rows) return 0;
  int64_t kv_ns = cost_kv(kv_bytes, t->gen_kv_ns_per_mib);
  return saturate((__int128)device_time(t->gen, t->gen_fix, rows, kv_ns) + t->launch_ns);
}

int64_t cost_prefill(const cost_table *t, uint32_t rows, uint64_t kv_bytes) {
  if (!rows) return 0;
  int64_t kv_ns = cost_kv(kv_bytes, t->prompt_kv_ns_per_mib);
  return saturate((__int128)device_time(t->prompt, t->prompt_fix, rows, kv_ns) + t->launch_ns);
}

static int64_t shared(const cost_table *t, uint32_t rows) {
  if (rows >= SHARED_ROWS) return t->shared_ns[1];
  return t->shared_ns[0] +
         (t->shared_ns[1] - t->shared_ns[0]) * ((int64_t)rows - 1) / (SHARED_ROWS - 1);
}

/* T(M, K) - launch - shared(M): what GEN rows add to a PROMPT launch. Where shared grows faster
 * than T this would fall with M, so it is the highest of all that have fewer rows. */
static int64_t added(const cost_table *t, uint32_t rows, int64_t kv_ns) {
  int64_t p[COST_POINTS];
  uint32_t last = point_above(rows);
  corrected(t->gen, t->gen_fix, last, kv_ns, p);
  int64_t most = between(p, rows) - shared(t, rows);
  for (uint32_t i = 0; i < last; i++) { /* it is linear between these */
    int64_t ns = p[i] - shared(t, cost_rows[i]);
    if (ns > most) most = ns;
  }
  return most;
}

int64_t cost_time(const cost_table *t, const cost_load *load) {
  int64_t gen = cost_decode(t, load->gen_rows, load->gen_kv);
  int64_t prompt = cost_prefill(t, load->prompt_rows, load->prompt_kv);
  if (!gen || !prompt) return gen + prompt;
  int64_t both = prompt + added(t, load->gen_rows, cost_kv(load->gen_kv, t->gen_kv_ns_per_mib));
  /* A launch is not shorter than a part of it, whatever was measured. */
  int64_t longer = gen > prompt ? gen : prompt;
  return saturate(both > longer ? both : longer);
}

/* ---- observations ---- */

static void move(uint32_t *fix, uint32_t ratio, int64_t rate) {
  *fix = (uint32_t)(*fix + ((int64_t)ratio - *fix) / rate);
}

/* What was seen at `rows` corrects the points on both sides of it, each by its weight, and a little
 * all others: else a machine that has become slower, or a table that is wrong as a whole, would
 * look like a step between the rows that run and the next ones, which would then never be tried. */
static void correct(uint32_t *fix, uint32_t rows, uint32_t ratio) {
  uint32_t above = point_above(rows), below = above ? above - 1 : 0;
  int64_t dx = cost_rows[above] - cost_rows[below];
  int64_t x = rows >= cost_rows[above] ? dx : (int64_t)rows - cost_rows[below];
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    int64_t weight = i == above ? x : i == below ? dx - x : 0;
    if (above == below) weight = i == above;
    int64_t rate = FIX_ALL;
    if (weight && FIX_OWN * (dx ? dx : 1) / weight < rate) rate = FIX_OWN * (dx ? dx : 1) / weight;
    move(&fix[i], ratio, rate);
  }
}

static uint32_t ratio_of(int64_t a, int64_t b, uint32_t max) {
  __int128 ratio = ((__int128)a << 16) / (b > 0 ? b : 1);
  return ratio > max ? max : (uint32_t)ratio;
}

static void count_error(cost_table *t, uint32_t error) {
  uint32_t sorted[COST_ERRORS], n = 0;
  t->errors[t->errors_at] = error;
  t->errors_at = (t->errors_at + 1) % COST_ERRORS;
  if (t->errors_n < COST_ERRORS) t->errors_n++;
  for (; n < t->errors_n; n++) {
    uint32_t at = n;
    for (; at && sorted[at - 1] > t->errors[n]; at--) sorted[at] = sorted[at - 1];
    sorted[at] = t->errors[n];
  }
  t->error_q = sorted[(n * 9 + 9) / 10 - 1];
}

void cost_observe(cost_table *t, const cost_load *load, int64_t ns) {
  if (ns <= 0 || (!load->gen_rows && !load->prompt_rows)) return;
  if (ns > NS_MAX) ns = NS_MAX;
  int64_t predicted = cost_time(t, load) - t->launch_ns; /* hand-over is no device time */
  if (predicted < 1) predicted = 1;
  count_error(t, ratio_of(ns > predicted ? ns - predicted : predicted - ns, predicted, ERROR_MAX));
  if (load->gen_rows && load->prompt_rows) return;
  const int64_t *tab = load->gen_rows ? t->gen : t->prompt;
  uint32_t rows = load->gen_rows ? load->gen_rows : load->prompt_rows;
  int64_t kv_ns = load->gen_rows ? cost_kv(load->gen_kv, t->gen_kv_ns_per_mib)
                                 : cost_kv(load->prompt_kv, t->prompt_kv_ns_per_mib);
  int64_t raw = saturate((__int128)between(tab, rows) + kv_ns);
  uint32_t ratio = ratio_of(ns, raw, FIX_MAX);
  correct(load->gen_rows ? t->gen_fix : t->prompt_fix, rows, ratio < FIX_MIN ? FIX_MIN : ratio);
}

uint64_t cost_demand(const cost_table *t, const cost_load *load) {
  int64_t ns = cost_time(t, load);
  if (ns <= 0) return 0;
  unsigned __int128 bytes = (unsigned __int128)t->weight_bytes + load->gen_kv + load->prompt_kv;
  unsigned __int128 rate = bytes * 1000000000u / (uint64_t)ns;
  /* A span reads a KV page once for many rows, and no launch faster than the device can. */
  if (t->bandwidth && rate > t->bandwidth) return t->bandwidth;
  return rate > UINT64_MAX ? UINT64_MAX : (uint64_t)rate;
}

/* ---- tables ---- */

void cost_make_monotone(cost_table *t) {
  for (uint32_t i = 1; i < COST_POINTS; i++) {
    if (t->gen[i] < t->gen[i - 1]) t->gen[i] = t->gen[i - 1];
    if (t->prompt[i] < t->prompt[i - 1]) t->prompt[i] = t->prompt[i - 1];
  }
}

static bool points_valid(const int64_t *p, const uint32_t *fix) {
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    if (p[i] <= 0 || p[i] > POINT_MAX || (i && p[i] < p[i - 1])) return false;
    if (fix[i] < FIX_MIN || fix[i] > FIX_MAX) return false;
  }
  return true;
}

static bool in_range(int64_t value, int64_t max) {
  return value >= 0 && value <= max;
}

bool cost_valid(const cost_table *t) {
  if (!points_valid(t->gen, t->gen_fix) || !points_valid(t->prompt, t->prompt_fix)) return false;
  if (!in_range(t->launch_ns, POINT_MAX) || !in_range(t->stop_ns, POINT_MAX) ||
      !in_range(t->shared_ns[0], POINT_MAX) || !in_range(t->shared_ns[1], POINT_MAX) ||
      !in_range(t->gen_kv_ns_per_mib, KV_NS_MAX) || !in_range(t->prompt_kv_ns_per_mib, KV_NS_MAX))
    return false;
  if (t->errors_n > COST_ERRORS || t->errors_at >= COST_ERRORS || t->error_q > ERROR_MAX)
    return false;
  for (uint32_t i = 0; i < t->errors_n; i++)
    if (t->errors[i] > ERROR_MAX) return false;
  return true;
}

/* Slower than any processor that one would run this on, by about two to four: so that what is
 * promised from it is kept until it is measured. Bytes and operations add up. */
void cost_guess(cost_table *t, uint64_t weight_bytes, uint64_t ops_per_row, uint32_t threads) {
  if (!threads) threads = 1;
  uint64_t cores = threads < 64 ? threads : 64;
  uint64_t bandwidth = (cores < 8 ? 2 + 2 * cores : 18) * 1000000000u;
  uint64_t ops = cores * 16 * 1000000000u;
  memset(t, 0, sizeof *t);
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    unsigned __int128 read = (unsigned __int128)weight_bytes * 1000000000u / bandwidth;
    unsigned __int128 compute = (unsigned __int128)ops_per_row * cost_rows[i] * 1000000000u / ops;
    unsigned __int128 ns = read + compute + 1;
    t->gen[i] = t->prompt[i] = ns > (unsigned __int128)POINT_MAX ? POINT_MAX : (int64_t)ns;
    t->gen_fix[i] = t->prompt_fix[i] = COST_ONE;
  }
  t->launch_ns = 200000;
  t->gen_kv_ns_per_mib = 1000000 / (int64_t)cores;
  t->prompt_kv_ns_per_mib = 250000 / (int64_t)cores;
  t->stop_ns = 2000000;
  t->weight_bytes = weight_bytes;
  t->error_q = COST_ONE / 2;
}
