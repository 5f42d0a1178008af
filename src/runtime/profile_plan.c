/* SPDX-License-Identifier: Apache-2.0 */
/* Which loads are measured, and the table that follows from their times. Pure. */
#include <stdlib.h>
#include <string.h>

#include "runtime/profile.h"

enum {
  PAGE_TOKENS = 32,
  GEN_POSITION = 31, /* of GEN rows without depth: the last of a page */
  DEPTH_MAX = 4096,
  MIXED_PROMPT = 64 /* of shared */
};
#define KV_READ_MAX ((uint64_t)64 << 20) /* by one launch: bytes that measuring makes resident */

uint64_t profile_kv_bytes(const graph *g, uint32_t position) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < g->n_groups; i++) {
    uint64_t seen = (uint64_t)position + 1;
    if (g->groups[i].window && g->groups[i].window < seen) seen = g->groups[i].window;
    bytes += seen * (g->groups[i].page_bytes / PAGE_TOKENS);
  }
  return bytes;
}

uint32_t profile_gen_position(const profile_point *p) {
  return p->depth > GEN_POSITION ? p->depth : GEN_POSITION;
}

cost_load profile_load_of(const graph *g, const profile_point *p) {
  cost_load load = {.gen_rows = p->gen_rows, .prompt_rows = p->prompt_rows};
  load.gen_kv = p->gen_rows * profile_kv_bytes(g, profile_gen_position(p));
  for (uint32_t i = 0; i < p->prompt_rows; i++) load.prompt_kv += profile_kv_bytes(g, p->depth + i);
  return load;
}

/* ---- which loads ---- */

enum { SHALLOW, MIDDLE, DEEP };
typedef struct wish {
  uint16_t gen, prompt;
  uint8_t depth;
} wish;

/* Most needed first: a model whose launches take seconds gets no further than the time allows. */
static const wish wishes[] = {
    {1, 0, SHALLOW},   {0, 64, SHALLOW}, {2, 0, SHALLOW},  {0, 16, SHALLOW},  {4, 0, SHALLOW},
    {8, 0, SHALLOW},   {1, 64, SHALLOW}, {1, 0, DEEP},     {0, 64, DEEP},     {16, 0, SHALLOW},
    {0, 1, SHALLOW},   {3, 0, SHALLOW},  {0, 32, SHALLOW}, {0, 256, SHALLOW}, {6, 0, SHALLOW},
    {0, 128, SHALLOW}, {32, 0, SHALLOW}, {8, 64, SHALLOW}, {1, 0, MIDDLE},    {0, 4, SHALLOW},
    {0, 8, SHALLOW},   {12, 0, SHALLOW}, {24, 0, SHALLOW}, {4, 0, MIDDLE},    {0, 64, MIDDLE},
    {0, 2, SHALLOW},   {0, 3, SHALLOW},  {0, 6, SHALLOW},  {0, 12, SHALLOW},  {0, 24, SHALLOW},
    {0, 48, SHALLOW},  {48, 0, SHALLOW}, {64, 0, SHALLOW},
};
_Static_assert(sizeof wishes / sizeof *wishes <= PROFILE_POINTS_MAX, "room for all points");

/* None of these is a point: depths in positions. */
static const profile_point checks[] = {
    {.gen_rows = 1, .depth = 300},
    {.gen_rows = 3, .depth = 100},
    {.gen_rows = 5, .depth = 200},
    {.gen_rows = 7, .depth = 60},
    {.gen_rows = 11},
    {.gen_rows = 20},
    {.prompt_rows = 20},
    {.prompt_rows = 100},
    {.prompt_rows = 100, .depth = 500},
    {.prompt_rows = 200, .depth = 100},
    {.gen_rows = 1, .prompt_rows = 16, .depth = 200},
    {.gen_rows = 2, .prompt_rows = 64},
    {.gen_rows = 4, .prompt_rows = 100},
    {.gen_rows = 6, .prompt_rows = 32},
    {.gen_rows = 1, .prompt_rows = 200, .depth = 100},
};
_Static_assert(sizeof checks / sizeof *checks <= PROFILE_CHECKS_MAX, "room for all checks");

uint32_t profile_deepest(const graph *g, uint32_t span_rows, uint32_t context) {
  uint32_t depth = context > span_rows ? context - span_rows : 0;
  if (depth > DEPTH_MAX) depth = DEPTH_MAX;
  while (depth && profile_kv_bytes(g, depth) > KV_READ_MAX) depth /= 2;
  depth = depth / PAGE_TOKENS * PAGE_TOKENS;
  return depth >= 4 * PAGE_TOKENS ? depth : 0;
}

void profile_plan(profile_state *s, const graph *g, uint32_t parallel, uint32_t span_rows,
                  uint32_t context) {
  uint32_t deep = profile_deepest(g, span_rows, context);
  if (parallel > PROFILE_ROWS_MAX) parallel = PROFILE_ROWS_MAX;
  s->n_points = s->n_checks = 0;
  for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
    const wish *w = &wishes[i];
    if (w->gen > parallel || w->prompt > span_rows || w->prompt > context) continue;
    if (w->depth && !deep) continue;
    s->points[s->n_points++] = (profile_point){.gen_rows = w->gen,
                                               .prompt_rows = w->prompt,
                                               .depth = w->depth == DEEP     ? deep
                                                        : w->depth == MIDDLE ? deep / 4
                                                                             : 0};
  }
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    const profile_point *c = &checks[i];
    if (c->gen_rows <= parallel && c->prompt_rows <= span_rows &&
        c->depth + c->prompt_rows + PAGE_TOKENS <= context)
      s->checks[s->n_checks++] = *c;
  }
}

/* ---- what follows from their times ---- */

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int64_t profile_low(int64_t *ns, uint32_t n) {
  if (!n) return 0;
  qsort(ns, n, sizeof *ns, by_value);
  return ns[n / 8];
}

int64_t profile_time(const profile_point *p) {
  int64_t ns[PROFILE_ROUNDS];
  uint32_t warm = p->n > 2; /* the first one only warmed up, if there are others */
  memcpy(ns, p->ns, sizeof ns);
  return profile_low(ns + warm, p->n - warm);
}

static const profile_point *find(const profile_state *s, uint32_t gen, uint32_t prompt,
                                 bool shallow, uint32_t depth) {
  for (uint32_t i = 0; i < s->n_points; i++) {
    const profile_point *p = &s->points[i];
    if (p->gen_rows == gen && p->prompt_rows == prompt && p->n &&
        (shallow ? !p->depth : p->depth == depth))
      return p;
  }
  return NULL;
}

/* All extra time over all extra bytes; *out stays without a deep point. */
static void kv_slope(const profile_state *s, const graph *g, bool gen, int64_t *out) {
  __int128 ns = 0, bytes = 0;
  for (uint32_t i = 0; i < s->n_points; i++) {
    const profile_point *p = &s->points[i];
    if (!p->n || !p->depth || gen != (p->gen_rows > 0)) continue;
    const profile_point *base = find(s, p->gen_rows, p->prompt_rows, true, 0);
    if (!base) continue;
    cost_load deep = profile_load_of(g, p), flat = profile_load_of(g, base);
    ns += profile_time(p) - profile_time(base);
    bytes += (__int128)(gen ? deep.gen_kv - flat.gen_kv : deep.prompt_kv - flat.prompt_kv);
  }
  if (bytes > 0) *out = ns > 0 ? (int64_t)((ns << 20) / bytes) : 0;
}

static int64_t kv_time(uint64_t bytes, int64_t ns_per_mib) {
  return (int64_t)(((__int128)bytes * ns_per_mib) >> 20);
}

/* Points that were not measured lie on the line through their measured neighbours, or go on with
 * the slope of the last two; a single one scales the guess. */
static void draw(int64_t *tab, uint16_t measured) {
  int32_t last = -1, before = -1; /* the two measured ones below i */
  for (int32_t i = 0; i < COST_POINTS; i++) {
    if (!(measured & 1u << i)) continue;
    for (int32_t j = last + 1; last >= 0 && j < i; j++)
      tab[j] = tab[last] + (tab[i] - tab[last]) * (cost_rows[j] - cost_rows[last]) /
                               (cost_rows[i] - cost_rows[last]);
    before = last;
    last = i;
  }
  int64_t rise = before >= 0 && tab[last] > tab[before] ? tab[last] - tab[before] : 0;
  for (int32_t j = last + 1; before >= 0 && j < COST_POINTS; j++)
    tab[j] =
        tab[last] + rise * (cost_rows[j] - cost_rows[last]) / (cost_rows[last] - cost_rows[before]);
}

static uint16_t fill(profile_state *s, const graph *g, bool gen, int64_t *tab) {
  uint16_t measured = 0;
  int64_t guess[COST_POINTS], scale = 0, scale_of = 1;
  memcpy(guess, tab, sizeof guess);
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    const profile_point *p = find(s, gen ? cost_rows[i] : 0, gen ? 0 : cost_rows[i], true, 0);
    if (!p) continue;
    cost_load load = profile_load_of(g, p);
    int64_t kv = gen ? kv_time(load.gen_kv, s->table.gen_kv_ns_per_mib)
                     : kv_time(load.prompt_kv, s->table.prompt_kv_ns_per_mib);
    tab[i] = profile_time(p) - kv;
    if (tab[i] < 1) tab[i] = 1;
    if (!measured) scale = tab[i], scale_of = guess[i];
    measured |= (uint16_t)(1u << i);
  }
  for (uint32_t i = 0; measured && i < COST_POINTS; i++)
    if (!(measured & 1u << i)) tab[i] = (int64_t)((__int128)guess[i] * scale / scale_of);
  draw(tab, measured);
  return measured;
}

static int64_t saved(const profile_state *s, uint32_t gen) {
  const profile_point *both = find(s, gen, MIXED_PROMPT, true, 0);
  const profile_point *alone = find(s, gen, 0, true, 0),
                      *prompt = find(s, 0, MIXED_PROMPT, true, 0);
  if (!both || !alone || !prompt) return -1;
  int64_t ns = profile_time(alone) + profile_time(prompt) - profile_time(both);
  return ns > 0 ? ns : 0;
}

int64_t profile_stop_bound(const quantile *stops, int64_t table_ns, int64_t most_ns) {
  if (stops->n < PROFILE_STOPS_PROVE) return table_ns;
  int64_t seen = quantile_of(stops, 950);
  if (seen > most_ns) seen = most_ns;
  return seen > table_ns ? seen : table_ns;
}

bool profile_build(profile_state *s, const graph *g, profile_facts *facts) {
  cost_table *t = &s->table;
  kv_slope(s, g, true, &t->gen_kv_ns_per_mib);
  kv_slope(s, g, false, &t->prompt_kv_ns_per_mib);
  facts->gen_points = fill(s, g, true, t->gen);
  facts->prompt_points = fill(s, g, false, t->prompt);
  if (!facts->gen_points || !facts->prompt_points) return false;
  cost_make_monotone(t);
  int64_t one = saved(s, 1), eight = saved(s, 8);
  t->shared_ns[0] = one >= 0 ? one : 0;
  t->shared_ns[1] = eight >= 0 ? eight : t->shared_ns[0];
  if (s->n_gaps) t->launch_ns = profile_low(s->gaps, s->n_gaps);
  facts->stops = s->n_stops;
  if (s->n_stops) {
    qsort(s->stops, s->n_stops, sizeof *s->stops, by_value);
    facts->stop_p95_ns = s->stops[(s->n_stops * 95 + 99) / 100 - 1];
    t->stop_ns = s->stops[s->n_stops - 1];
  }
  t->bandwidth = (uint64_t)((unsigned __int128)t->weight_bytes * 1000000000u /
                            (uint64_t)(t->gen[0] > 0 ? t->gen[0] : 1));
  return cost_valid(t);
}

void profile_errors(profile_state *s, const graph *g, profile_facts *facts) {
  cost_table *t = &s->table;
  int64_t errors[PROFILE_CHECKS_MAX * PROFILE_ROUNDS];
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_checks; i++) {
    const profile_point *c = &s->checks[i];
    cost_load load = profile_load_of(g, c);
    int64_t predicted = cost_time(t, &load) - t->launch_ns;
    if (predicted < 1) predicted = 1;
    for (uint32_t j = 0; j < c->n; j++) {
      int64_t off = c->ns[j] > predicted ? c->ns[j] - predicted : predicted - c->ns[j];
      __int128 ratio = ((__int128)off << 16) / predicted;
      errors[n++] = ratio > 16 * COST_ONE ? 16 * COST_ONE : (int64_t)ratio;
    }
  }
  if (!n) return;
  t->errors_n = 0; /* the ring goes on from these, so that one launch does not make q alone */
  for (uint32_t i = 0; i < n && i < COST_ERRORS; i++)
    t->errors[t->errors_n++] = (uint32_t)errors[i];
  t->errors_at = t->errors_n % COST_ERRORS;
  qsort(errors, n, sizeof *errors, by_value);
  facts->error_median = (uint32_t)errors[n / 2];
  facts->error_p90 = t->error_q = (uint32_t)errors[(n * 9 + 9) / 10 - 1];
}
