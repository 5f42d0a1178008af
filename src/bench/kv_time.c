/* SPDX-License-Identifier: Apache-2.0 */
/* kv_time.c - see kv_time.h. One buffer holds one layout at a time; what a block of 32 tokens holds
 * is drawn by sequence, layer, head and block, so that it is the same in each. */
#include "bench/kv_time.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"

enum { DRAWN = 1 << 19, SAMPLE_NS = 30000000, PASSES_MAX = 1000 };

typedef struct extent { /* of one sequence in one group, in blocks of 32 */
  uint32_t first, end;  /* visible to the row */
  size_t base;          /* contiguous: byte offset of its run */
  uint32_t *pages;      /* [end]: as the kernel reads them */
  uint32_t *halves;     /* [2 * end]: pages of 16 */
} extent;

struct kv_time {
  const graph *g;
  const kernel_table *k;
  uint32_t sequences, context, lengths[KV_LAYOUTS_SEQUENCES_MAX];
  extent extents[KV_LAYOUTS_SEQUENCES_MAX][GRAPH_KV_GROUPS_MAX];
  uint32_t capacity[GRAPH_KV_GROUPS_MAX]; /* blocks of a contiguous run */
  size_t group_base[GRAPH_KV_GROUPS_MAX], memory_bytes, part_stride;
  uint8_t *memory, *gathered;
  uint16_t *drawn; /* DRAWN values and a block more */
  uint32_t *cells, *order;
  float *q, *parts, *state, *y; /* y: [heads][head_dim] */
  void *scratch;
  uint64_t seed, sum;
  bool has_sum;
};

static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static uint32_t draw(kv_time *t) {
  t->seed += 0x9E3779B97F4A7C15u;
  return (uint32_t)(mix(t->seed) >> 32);
}

/* K [32][d] and V [d][32] of one layer and head. */
static size_t block_values(const kv_time *t) {
  return (size_t)2 * KERNEL_PAGE * t->g->head_dim;
}

static const uint16_t *block_source(const kv_time *t, uint32_t s, uint32_t layer, uint32_t head,
                                    uint32_t block) {
  uint64_t at = ((uint64_t)s << 48 | (uint64_t)layer << 32 | (uint64_t)head << 24) + block;
  return t->drawn + mix(at + 1) % (DRAWN / 32) * 32;
}

/* --- creation --- */

static bool tables_create(kv_time *t) {
  uint64_t cells = 0, most = 0;
  for (uint32_t s = 0; s < t->sequences; s++)
    for (uint32_t g = 0; g < t->g->n_groups; g++) {
      extent *e = &t->extents[s][g];
      uint32_t window = t->g->groups[g].window, length = t->lengths[s];
      e->end = (length + KERNEL_PAGE - 1) / KERNEL_PAGE;
      e->first = window && length > window ? (length - window) / KERNEL_PAGE : 0;
      cells += 3 * (uint64_t)e->end;
      most += 2 * (uint64_t)e->end;
    }
  t->cells = malloc(cells * sizeof *t->cells);
  t->order = malloc(most * sizeof *t->order);
  if (!t->cells || !t->order) return false;
  uint32_t *next = t->cells;
  for (uint32_t s = 0; s < t->sequences; s++)
    for (uint32_t g = 0; g < t->g->n_groups; g++) {
      t->extents[s][g].pages = next;
      t->extents[s][g].halves = next + t->extents[s][g].end;
      next += (size_t)3 * t->extents[s][g].end;
    }
  return true;
}

/* Room for the larger of contiguous runs and pages. */
static void memory_plan(kv_time *t) {
  size_t runs = 0, pools = 0;
  for (uint32_t g = 0; g < t->g->n_groups; g++) {
    const graph_kv_group *group = &t->g->groups[g];
    uint32_t all = (t->context + KERNEL_PAGE - 1) / KERNEL_PAGE,
             ring = (group->window + KERNEL_PAGE - 1) / KERNEL_PAGE + 1, pages = 0;
    t->capacity[g] = group->window && ring < all ? ring : all;
    t->group_base[g] = pools;
    for (uint32_t s = 0; s < t->sequences; s++) {
      extent *e = &t->extents[s][g];
      e->base = runs;
      runs += t->capacity[g] * group->page_bytes;
      pages +=
          (e->end - e->first + 1) / 2 * 2 + 2; /* whole pages of 64, whichever block is first */
    }
    pools += pages * group->page_bytes;
  }
  t->memory_bytes = runs > pools ? runs : pools;
}

static troika_status buffers_create(kv_time *t, troika_error *err) {
  const graph *g = t->g;
  uint32_t group = g->heads / g->kv_heads, splits = t->context / KERNEL_SPLIT + 1;
  size_t block = block_values(t) * sizeof *t->drawn;
  t->part_stride = (g->head_dim + 2 + 15) / 16 * 16;
  if (t->memory_bytes > os_memory_available() / 2)
    return error_set(err, TROIKA_LIMIT,
                     "%u sequences of up to %u tokens need %.1f MiB, more than half of the free "
                     "memory (%.1f MiB); a smaller --context needs less",
                     t->sequences, t->context, (double)t->memory_bytes / 1048576,
                     (double)os_memory_available() / 1048576);
  t->memory = os_memory(t->memory_bytes);
  t->drawn = aligned_alloc(64, DRAWN * sizeof *t->drawn + block);
  t->gathered = aligned_alloc(64, KERNEL_SPLIT / KERNEL_PAGE * block);
  t->q = aligned_alloc(64, (size_t)g->heads * g->head_dim * sizeof *t->q);
  t->y = aligned_alloc(64, (size_t)g->heads * g->head_dim * sizeof *t->y);
  t->parts = aligned_alloc(64, splits * group * t->part_stride * sizeof *t->parts);
  t->scratch = aligned_alloc(64, kernel_attn_scratch_bytes(group, g->head_dim));
  if (!t->memory || !t->drawn || !t->gathered || !t->q || !t->y || !t->parts || !t->scratch)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the KV of %u sequences", t->sequences);
  for (size_t i = 0; i < DRAWN + block_values(t); i++) { /* +-0.06 to 1 in f16 */
    uint32_t r = draw(t);
    t->drawn[i] = (uint16_t)((r & 0x83ff) | (11 + (r >> 16) % 4) << 10);
  }
  for (uint32_t i = 0; i < g->heads * g->head_dim; i++)
    t->q[i] = (float)((int32_t)draw(t) >> 8) / 8388608.0f;
  return TROIKA_OK;
}

troika_status kv_time_create(const graph *g, const kernel_table *kernels, uint32_t sequences,
                             uint32_t context, kv_time **out, troika_error *err) {
  kv_time *t = calloc(1, sizeof *t);
  if (!t) return error_set(err, TROIKA_NO_MEMORY, "no memory to measure in");
  t->g = g;
  t->k = kernels;
  t->sequences = sequences;
  t->context = context;
  t->seed = 1;
  for (uint32_t s = 0; s < sequences; s++) t->lengths[s] = kv_layouts_length(s, context);
  troika_status status = TROIKA_OK;
  if (!tables_create(t))
    status = error_set(err, TROIKA_NO_MEMORY, "no memory for the page tables");
  else
    memory_plan(t);
  if (!status) status = buffers_create(t, err);
  if (status) {
    kv_time_destroy(&t);
    return status;
  }
  kernel_thread_setup();
  *out = t;
  return TROIKA_OK;
}

void kv_time_destroy(kv_time **it) {
  kv_time *t = *it;
  if (!t) return;
  if (t->memory) os_memory_free(t->memory, t->memory_bytes);
  free(t->drawn);
  free(t->gathered);
  free(t->q);
  free(t->y);
  free(t->parts);
  free(t->scratch);
  free(t->cells);
  free(t->order);
  free(t);
  *it = NULL;
}

/* --- where a block lies --- */

/* Numbers 0 to n - 1 in random order. */
static void shuffle(kv_time *t, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    uint32_t j = draw(t) % (i + 1);
    t->order[i] = t->order[j];
    t->order[j] = i;
  }
}

static void place_group(kv_time *t, kv_layout layout, uint32_t g) {
  uint32_t pages = 0, next = 0;
  uint32_t heads = t->g->groups[g].layers * t->g->kv_heads;
  for (uint32_t s = 0; s < t->sequences; s++) {
    const extent *e = &t->extents[s][g];
    if (layout == KV_LAYOUT_16) pages += 2 * (e->end - e->first);
    if (layout == KV_LAYOUT_32) pages += e->end - e->first;
    if (layout == KV_LAYOUT_64) pages += (e->end + 1) / 2 - e->first / 2;
  }
  shuffle(t, pages);
  for (uint32_t s = 0; s < t->sequences; s++) {
    extent *e = &t->extents[s][g];
    for (uint32_t b = e->first; b < e->end; b++) {
      bool begins = b == e->first || b % 2 == 0;
      if (layout == KV_LAYOUT_RESERVED) e->pages[b] = b - e->first;
      if (layout == KV_LAYOUT_32) e->pages[b] = t->order[next++];
      if (layout == KV_LAYOUT_64) /* in units of one head's block */
        e->pages[b] = t->order[begins ? next++ : next - 1] * 2 * heads + b % 2;
      if (layout != KV_LAYOUT_16) continue;
      e->halves[2 * b] = t->order[next++];
      e->halves[2 * b + 1] = t->order[next++];
      e->pages[b] = b % (KERNEL_SPLIT / KERNEL_PAGE); /* of what was gathered */
    }
  }
}

/* The arguments by which the kernel finds blocks of this sequence and head of a layer. */
static void locate(const kv_time *t, kv_layout layout, uint32_t s, uint32_t g, uint32_t head,
                   kernel_attn *a) {
  const extent *e = &t->extents[s][g];
  size_t block = block_values(t) * sizeof(uint16_t);
  a->pages = e->pages;
  a->page_bytes = block;
  a->head_offset = 0;
  a->pool = t->memory + t->group_base[g];
  if (layout == KV_LAYOUT_RESERVED)
    a->pool = t->memory + e->base + (size_t)head * t->capacity[g] * block;
  if (layout == KV_LAYOUT_32) a->page_bytes = t->g->groups[g].page_bytes;
  if (layout == KV_LAYOUT_32) a->head_offset = head * block;
  if (layout == KV_LAYOUT_64) a->head_offset = (size_t)head * 2 * block;
  if (layout == KV_LAYOUT_16) a->pool = t->gathered;
}

/* A half of a block of 16 tokens: K [16][d], V [d][16]. */
static uint8_t *half_at(const kv_time *t, uint32_t s, uint32_t g, uint32_t head, uint32_t half) {
  size_t bytes = block_values(t) * sizeof(uint16_t) / 2;
  return t->memory + t->group_base[g] +
         t->extents[s][g].halves[half] * (t->g->groups[g].page_bytes / 2) + head * bytes;
}

static void fill_halves(kv_time *t, uint32_t s, uint32_t g, uint32_t head, uint32_t block,
                        const uint16_t *from) {
  size_t d = t->g->head_dim;
  for (uint32_t h = 0; h < 2; h++) {
    uint16_t *to = (uint16_t *)half_at(t, s, g, head, 2 * block + h);
    memcpy(to, from + h * 16 * d, 16 * d * sizeof *to);
    for (size_t i = 0; i < d; i++)
      memcpy(to + 16 * (d + i), from + 32 * (d + i) + 16 * h, 16 * sizeof *to);
  }
}

static void gather(kv_time *t, uint32_t s, uint32_t g, uint32_t head, uint32_t first,
                   uint32_t end) {
  size_t d = t->g->head_dim;
  for (uint32_t b = first; b < end; b++) {
    uint16_t *to = (uint16_t *)t->gathered + b % (KERNEL_SPLIT / KERNEL_PAGE) * block_values(t);
    const uint16_t *low = (const uint16_t *)half_at(t, s, g, head, 2 * b),
                   *high = (const uint16_t *)half_at(t, s, g, head, 2 * b + 1);
    memcpy(to, low, 16 * d * sizeof *to);
    memcpy(to + 16 * d, high, 16 * d * sizeof *to);
    for (size_t i = d; i < 2 * d; i++) {
      memcpy(to + 32 * i, low + 16 * i, 16 * sizeof *to);
      memcpy(to + 32 * i + 16, high + 16 * i, 16 * sizeof *to);
    }
  }
}

static void fill(kv_time *t, kv_layout layout) {
  for (uint32_t g = 0; g < t->g->n_groups; g++) {
    uint32_t heads = t->g->groups[g].layers * t->g->kv_heads;
    place_group(t, layout, g);
    for (uint32_t s = 0; s < t->sequences; s++)
      for (uint32_t head = 0; head < heads; head++) {
        kernel_attn a;
        locate(t, layout, s, g, head, &a);
        for (uint32_t b = t->extents[s][g].first; b < t->extents[s][g].end; b++) {
          const uint16_t *from = block_source(t, s, g, head, b);
          if (layout == KV_LAYOUT_16)
            fill_halves(t, s, g, head, b, from);
          else
            memcpy((uint8_t *)(uintptr_t)a.pool + a.pages[b] * a.page_bytes + a.head_offset, from,
                   block_values(t) * sizeof *from);
        }
      }
  }
}

/* --- attention, as the CPU device does it --- */

static void attend(kv_time *t, kv_layout layout, uint32_t s, uint32_t g, uint32_t head) {
  const graph *m = t->g;
  uint32_t group = m->heads / m->kv_heads, length = t->lengths[s], hd = m->head_dim;
  uint32_t from = t->extents[s][g].first * KERNEL_PAGE, kv_head = head % m->kv_heads, parts = 0;
  kernel_attn a = {.q = t->q + (size_t)kv_head * group * hd,
                   .q_stride = (size_t)m->heads * hd,
                   .rows = 1,
                   .group = group,
                   .head_dim = hd,
                   .pos0 = length - 1,
                   .window = m->groups[g].window,
                   .scale = m->attn_scale,
                   .part_stride = t->part_stride,
                   .scratch = t->scratch};
  locate(t, layout, s, g, head, &a);
  for (uint32_t t0 = from / KERNEL_SPLIT * KERNEL_SPLIT; t0 < length; t0 += KERNEL_SPLIT, parts++) {
    a.t0 = t0 > from ? t0 : from;
    a.t1 = t0 + KERNEL_SPLIT < length ? t0 + KERNEL_SPLIT : length;
    a.part = t->parts + (size_t)parts * group * t->part_stride;
    if (layout == KV_LAYOUT_16)
      gather(t, s, g, head, a.t0 / KERNEL_PAGE, (a.t1 + KERNEL_PAGE - 1) / KERNEL_PAGE);
    t->k->attn[KERNEL_GEN](&a);
  }
  for (uint32_t i = 0; i < group; i++) {
    float *state = t->parts + i * t->part_stride;
    for (uint32_t p = 1; p < parts; p++)
      t->k->attn_merge(state, state + (size_t)p * group * t->part_stride, hd);
    t->k->attn_finish(state, hd, t->y + ((size_t)kv_head * group + i) * hd);
  }
}

/* One decode step: each layer, each sequence, each head. The sum is of all results' bits. */
static uint64_t step(kv_time *t, kv_layout layout, bool summed) {
  uint64_t sum = 0;
  for (uint32_t g = 0; g < t->g->n_groups; g++)
    for (uint32_t layer = 0; layer < t->g->groups[g].layers; layer++)
      for (uint32_t s = 0; s < t->sequences; s++) {
        for (uint32_t h = 0; h < t->g->kv_heads; h++)
          attend(t, layout, s, g, layer * t->g->kv_heads + h);
        for (uint32_t i = 0; summed && i < t->g->heads * t->g->head_dim; i++) {
          uint32_t bits;
          memcpy(&bits, &t->y[i], sizeof bits);
          sum = mix(sum + bits + 1);
        }
      }
  return sum;
}

troika_status kv_time_measure(kv_time *t, kv_layout layout, double *us, troika_error *err) {
  fill(t, layout);
  uint64_t sum = step(t, layout, true);
  if (t->has_sum && sum != t->sum)
    return error_set(err, TROIKA_INTERNAL, "attention over %s gives other bits",
                     kv_layout_name(layout));
  t->sum = sum;
  t->has_sum = true;
  int64_t begun = clock_thread_now(), spent = 0;
  uint32_t passes = 0;
  for (; spent < SAMPLE_NS && passes < PASSES_MAX; passes++) {
    step(t, layout, false);
    spent = clock_thread_now() - begun;
  }
  *us = (double)spent / 1000 / passes / t->sequences;
  return TROIKA_OK;
}
