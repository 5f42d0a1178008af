/* SPDX-License-Identifier: Apache-2.0 */
/* kv_layouts.c - bytes of each layout, and the times of all in turn. See kv_layouts.h. */
#include "bench/kv_layouts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/kv_time.h"
#include "gguf/gguf.h"
#include "kv/kv.h"
#include "model/model.h"

enum { CONTEXT_DEFAULT = 8192, SPAN = 256, LEAST = 32 };

uint32_t kv_layouts_length(uint32_t i, uint32_t context) {
  /* Thousandths of the longest: short questions, an agent's turns with tools, documents. No
   * multiples of a page. */
  static const uint32_t mix[8] = {26, 130, 331, 63, 512, 91, 187, 779};
  uint32_t length = (uint32_t)((uint64_t)context * mix[i % 8] / 1000);
  return length ? length : 1;
}

const char *kv_layout_name(kv_layout layout) {
  static const char *const names[KV_LAYOUT_COUNT] = {"contiguous, reserved", "contiguous, doubled",
                                                     "paged 16", "paged 32", "paged 64"};
  return names[layout];
}

uint64_t kv_layout_wasted(const kv_layouts_result *r, kv_layout layout) {
  return r->of[layout].held - r->used;
}

static uint32_t doubled(uint32_t length, uint32_t most) {
  uint32_t n = LEAST;
  while (n < length) n *= 2;
  return n < most ? n : most;
}

/* Pages that hold what rows after the last whole page may see, as the kv room keeps them. */
static uint32_t pages_held(uint32_t length, uint32_t window, uint32_t page) {
  uint32_t whole = length / page * page, end = (length + page - 1) / page;
  return end - (window && whole > window ? (whole - window) / page : 0);
}

static void count_held(const graph *g, kv_layouts_result *r) {
  static const uint32_t tokens[KV_LAYOUT_COUNT] = {
      [KV_LAYOUT_16] = 16, [KV_LAYOUT_32] = 32, [KV_LAYOUT_64] = 64};
  for (uint32_t i = 0; i < r->sequences; i++)
    for (uint32_t n = 0; n < g->n_groups; n++) {
      uint32_t length = kv_layouts_length(i, r->context), window = g->groups[n].window;
      uint64_t bytes = g->groups[n].page_bytes / KV_PAGE_TOKENS; /* of a position */
      uint32_t seen = window && window < length ? window : length;
      uint32_t most = window && window + SPAN < r->context ? window + SPAN : r->context;
      r->used += seen * bytes;
      r->of[KV_LAYOUT_RESERVED].held += most * bytes;
      uint32_t grown = doubled(length, most);
      r->of[KV_LAYOUT_DOUBLED].held += grown * bytes;
      r->of[KV_LAYOUT_DOUBLED].copied += (grown > LEAST ? grown - LEAST : 0) * bytes;
      for (kv_layout p = KV_LAYOUT_16; p <= KV_LAYOUT_64; p++)
        r->of[p].held += (uint64_t)pages_held(length, window, tokens[p]) * tokens[p] * bytes;
    }
  for (uint32_t i = 0; i < r->sequences; i++) r->tokens += kv_layouts_length(i, r->context);
}

/* The sequences in a pool of the kv room, made for them: computed in spans, published, held. */
static troika_status hold(const kv_layouts_result *r, kv *k, troika_error *err) {
  int32_t *tokens = malloc(r->context * sizeof *tokens);
  troika_status status = tokens ? TROIKA_OK : error_set(err, TROIKA_NO_MEMORY, "no memory");
  for (uint32_t i = 0; i < r->sequences && !status; i++) {
    uint32_t s, length = kv_layouts_length(i, r->context);
    for (uint32_t j = 0; j < length; j++) tokens[j] = (int32_t)(i << 20 | j);
    status = kv_sequence_open(k, &s);
    if (!status) status = kv_sequence_promise(k, s, length);
    for (uint32_t at = 0; at < length && !status; at += SPAN) {
      uint32_t end = at + SPAN < length ? at + SPAN : length;
      status = kv_sequence_extend(k, s, at, end);
      if (status) break;
      kv_publish(k, s, 0, tokens, end, end);
      kv_sequence_keep_from(k, s, end);
    }
    if (status) error_set(err, status, "the KV pool does not take sequence %u", i);
  }
  free(tokens);
  return status;
}

static void count_overhead(const kv *k, const graph *g, kv_layouts_result *r) {
  kv_total_stats t;
  kv_totals(k, &t);
  uint64_t run = r->sequences * g->n_groups * (uint64_t)(sizeof(void *) + sizeof(uint32_t));
  r->of[KV_LAYOUT_RESERVED].overhead = r->of[KV_LAYOUT_DOUBLED].overhead = run;
  uint64_t node = t.nodes ? t.node_bytes / t.nodes : 0;
  for (uint32_t page = 16; page <= 64; page *= 2) {
    uint64_t nodes = 0, fixed = t.bucket_bytes + t.table_bytes + t.page_entry_bytes;
    for (uint32_t i = 0; i < r->sequences; i++) nodes += kv_layouts_length(i, r->context) / page;
    if (page == KV_PAGE_TOKENS) nodes = t.nodes;
    uint64_t bytes = node - KV_PAGE_TOKENS * sizeof(int32_t) + page * sizeof(int32_t);
    kv_layout layout = page == 16 ? KV_LAYOUT_16 : page == 32 ? KV_LAYOUT_32 : KV_LAYOUT_64;
    r->of[layout].overhead = nodes * bytes + fixed * KV_PAGE_TOKENS / page;
  }
}

static troika_status count_by_room(const graph *g, kv_layouts_result *r, troika_error *err) {
  kv_group groups[KV_GROUPS_MAX];
  uint64_t bytes = 0, owned = 0;
  kv *k = NULL;
  for (uint32_t n = 0; n < g->n_groups; n++) {
    uint32_t window = g->groups[n].window;
    groups[n] = (kv_group){.kind = window ? KV_WINDOW : KV_FULL,
                           .page_tokens = KV_PAGE_TOKENS,
                           .window = window,
                           .layers = g->groups[n].layers,
                           .page_bytes = g->groups[n].page_bytes};
    bytes += (r->context / KV_PAGE_TOKENS + 2) * (uint64_t)r->sequences * groups[n].page_bytes;
  }
  kv_options o = {groups, g->n_groups, r->sequences, r->context, SPAN, bytes, 0};
  troika_status status = kv_create(&o, &k, err);
  if (!status) status = hold(r, k, err);
  for (uint32_t n = 0; n < g->n_groups && !status; n++) {
    kv_pool_stats stats;
    kv_stats(k, n, &stats);
    owned += stats.owned * (uint64_t)stats.page_bytes;
  }
  if (!status && owned != r->of[KV_LAYOUT_32].held)
    status = error_set(err, TROIKA_INTERNAL, "the KV pool holds %llu bytes, counted are %llu",
                       (unsigned long long)owned, (unsigned long long)r->of[KV_LAYOUT_32].held);
  if (!status) count_overhead(k, g, r);
  kv_destroy(&k);
  return status;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* In turn, in another order each time, so that a machine whose clock moves favours none. */
static troika_status time_all(const kv_layouts_options *o, const graph *g, kv_layouts_result *r,
                              troika_error *err) {
  static const kv_layout timed[] = {KV_LAYOUT_RESERVED, KV_LAYOUT_16, KV_LAYOUT_32, KV_LAYOUT_64};
  enum { TIMED = sizeof timed / sizeof *timed };
  uint32_t runs = o->repetitions, all = (runs + o->warmups) * TIMED, done = 0, mask = 0;
  kernel_table kernels;
  kv_time *t = NULL;
  double *us = malloc(sizeof *us * TIMED * runs);
  if (!us) return error_set(err, TROIKA_NO_MEMORY, "no memory");
  troika_status status = TROIKA_OK;
  if (!kernel_mask_parse(o->cpu_levels, &mask))
    status = error_set(err, TROIKA_INVALID, "cpu levels \"%.60s\"", o->cpu_levels);
  kernel_table_init(&kernels, (kernel_activations)o->activations, mask);
  if (!status) status = kv_time_create(g, &kernels, r->sequences, r->context, &t, err);
  for (uint32_t i = 0; i < all && !status; i++) {
    uint32_t run = i / TIMED, which = (i + run) % TIMED;
    double one = 0;
    status = kv_time_measure(t, timed[which], &one, err);
    if (run >= o->warmups) us[which * runs + run - o->warmups] = one;
    if (!status && !o->go_on(o->go_on_context, ++done, all))
      status = error_set(err, TROIKA_CANCELLED, "interrupted");
  }
  for (uint32_t i = 0; i < TIMED && !status; i++) {
    double *v = us + i * runs;
    qsort(v, runs, sizeof *v, by_value);
    kv_layout_result *to = &r->of[timed[i]];
    to->min = v[0];
    to->max = v[runs - 1];
    to->median = runs % 2 ? v[runs / 2] : (v[runs / 2 - 1] + v[runs / 2]) / 2;
  }
  kv_time_destroy(&t);
  free(us);
  return status;
}

troika_status kv_layouts_measure(const kv_layouts_options *o, uint32_t sequences,
                                 kv_layouts_result *out, troika_error *err) {
  gguf *file = NULL;
  graph *g = NULL;
  *out = (kv_layouts_result){.sequences = sequences};
  if (!sequences || sequences > KV_LAYOUTS_SEQUENCES_MAX || !o->repetitions ||
      o->repetitions > KV_LAYOUTS_RUNS_MAX)
    return error_set(err, TROIKA_INVALID, "%u sequences, %u runs", sequences, o->repetitions);
  troika_status status = gguf_open(o->model, &file, err);
  if (!status) status = model_graph_create(file, &g, err);
  if (!status) {
    uint32_t most = g->context < CONTEXT_DEFAULT ? g->context : CONTEXT_DEFAULT;
    out->context = o->context ? o->context : most;
    if (out->context > g->context)
      status = error_set(err, TROIKA_INVALID, "a context of %u tokens; the model has %u",
                         out->context, g->context);
  }
  if (!status) {
    count_held(g, out);
    status = count_by_room(g, out, err);
  }
  if (!status) status = time_all(o, g, out, err);
  if (!status) {
    const kv_layout_result *c = &out->of[KV_LAYOUT_RESERVED];
    kv_layout_result *d = &out->of[KV_LAYOUT_DOUBLED];
    d->median = c->median;
    d->min = c->min;
    d->max = c->max;
  }
  model_graph_destroy(&g);
  gguf_close(&file);
  return status;
}

kv_layout kv_layouts_verdict(const kv_layouts_result *r) {
  kv_layout best = 0;
  double least = 0;
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++) {
    double product = (double)(r->of[i].held + r->of[i].overhead) * r->of[i].median;
    if (i && product >= least) continue;
    best = i;
    least = product;
  }
  return best;
}
