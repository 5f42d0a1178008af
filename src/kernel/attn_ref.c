/* attn_ref.c - scalar reference of attn.h, and the sizes that every level shares.
 * Reads like the definition in kernel.h; about 2 ns per fma where the baseline calls it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/attn.h"

#include <math.h>

#include "base/check.h"
#include "kernel/exp.h"
#include "quant/quant.h"

/* For every level alike, so that a table may change without new buffers. Lanes are queries: Q^T and
 * O [head_dim][lanes], four numbers a lane, K and V of a page as fp32, a copy of V, the scores of
 * one unit. GEN needs less: 512 scores for each of four heads and two copies of V. */
size_t kernel_attn_scratch_bytes(uint32_t group, uint32_t head_dim) {
  size_t lanes = (size_t)KERNEL_ROWS_MAX * group;
  size_t floats = lanes * (2 * (size_t)head_dim + 4) + 3 * (size_t)KERNEL_PAGE * head_dim +
                  KERNEL_PAGE * ATTN_UNIT_LANES;
  return (floats * sizeof(float) + 63) & ~(size_t)63;
}

const uint16_t *attn_values_seen(const kernel_attn *a, uint32_t t, uint32_t first, uint32_t end,
                                 uint16_t *copy) {
  uint32_t page = t & ~(uint32_t)(KERNEL_PAGE - 1);
  const uint16_t *values = attn_page(a, t) + (size_t)KERNEL_PAGE * a->head_dim;
  if (first <= page && end >= page + KERNEL_PAGE) return values;
  uint16_t keep[KERNEL_PAGE];
  for (uint32_t i = 0; i < KERNEL_PAGE; i++)
    keep[i] = page + i >= first && page + i < end ? 0xffff : 0;
  for (uint32_t d = 0; d < a->head_dim; d++)
    for (uint32_t i = 0; i < KERNEL_PAGE; i++)
      copy[d * KERNEL_PAGE + i] = values[d * KERNEL_PAGE + i] & keep[i];
  return copy;
}

static float dot_lanes(const float *q, const uint16_t *k, uint32_t head_dim) {
  float lanes[ELEM_LANES] = {0};
  for (uint32_t d = 0; d < head_dim; d++)
    lanes[d % ELEM_LANES] = fmaf(q[d], quant_f16_to_f32(k[d]), lanes[d % ELEM_LANES]);
  return elem_tree(lanes);
}

static void gen_head(const kernel_attn *a, uint32_t row, const float *q, float *part) {
  uint32_t hd = a->head_dim, first = attn_first(a, row), end = attn_end(a, row);
  float s[KERNEL_SPLIT]; /* s[t - t0], then p */
  float max = ATTN_HIDDEN;
  for (uint32_t t = first; t < end; t++) {
    const uint16_t *key = attn_page(a, t) + (size_t)(t % KERNEL_PAGE) * hd;
    s[t - a->t0] = a->scale * dot_lanes(q, key, hd);
    max = elem_max(max, s[t - a->t0]);
  }
  max += 0.0f;
  float lanes[ELEM_LANES] = {0};
  for (uint32_t t = first; t < end; t++) {
    s[t - a->t0] = exp_scalar(s[t - a->t0] - max);
    lanes[t % ELEM_LANES] += s[t - a->t0];
  }
  part[hd] = max;
  part[hd + 1] = elem_tree(lanes);
  for (uint32_t d = 0; d < hd; d++) {
    for (int i = 0; i < ELEM_LANES; i++) lanes[i] = 0.0f;
    for (uint32_t t = first; t < end; t++) {
      const uint16_t *v = attn_page(a, t) + (size_t)KERNEL_PAGE * (hd + d);
      lanes[t % ELEM_LANES] =
          fmaf(s[t - a->t0], quant_f16_to_f32(v[t % KERNEL_PAGE]), lanes[t % ELEM_LANES]);
    }
    part[d] = elem_tree(lanes) + 0.0f;
  }
}

static void attn_gen_ref(const kernel_attn *a) {
  for (uint32_t row = 0; row < a->rows; row++)
    for (uint32_t g = 0; g < a->group; g++)
      gen_head(a, row, a->q + row * a->q_stride + (size_t)g * a->head_dim,
               a->part + ((size_t)row * a->group + g) * a->part_stride);
}

/* sum over 32 k of x[k * step] * y[k] as one TDPBF16PS of 16 pairs adds them. */
static float block_dot(const float *x, const float *y) {
  float even = 0.0f, odd = 0.0f;
  for (int i = 0; i < KERNEL_BLOCK; i += 2) {
    even = fmaf(x[i], y[i], even);
    odd = fmaf(x[i + 1], y[i + 1], odd);
  }
  return even + odd;
}

/* One page onto one row's state in `part`. keys [32][hd], values [hd][32], both rounded to bf16. */
static void prompt_page(const kernel_attn *a, uint32_t t0, uint32_t row, const float *q,
                        const float *keys, const float *values, float *part) {
  uint32_t hd = a->head_dim, first = attn_first(a, row), end = attn_end(a, row);
  float q16[ATTN_HEAD_DIM_MAX], p[KERNEL_PAGE];
  for (uint32_t d = 0; d < hd; d++) q16[d] = elem_bf16(q[d]);
  float max = part[hd], sum = 0.0f;
  for (uint32_t i = 0; i < KERNEL_PAGE; i++) {
    p[i] = -INFINITY;
    if (t0 + i < first || t0 + i >= end) continue;
    float dot = 0.0f;
    for (uint32_t d = 0; d < hd; d += KERNEL_BLOCK)
      dot += block_dot(q16 + d, keys + (size_t)i * hd + d);
    p[i] = a->scale * dot;
    max = elem_max(max, p[i]);
  }
  max += 0.0f;
  float keep = exp_scalar(part[hd] - max);
  for (uint32_t i = 0; i < KERNEL_PAGE; i++) {
    float e = exp_scalar(p[i] - max);
    sum += e;
    p[i] = elem_bf16(e);
  }
  part[hd] = max;
  part[hd + 1] = part[hd + 1] * keep + sum;
  for (uint32_t d = 0; d < hd; d++)
    part[d] = (part[d] * keep + block_dot(p, values + (size_t)d * KERNEL_PAGE)) + 0.0f;
}

static void attn_prompt_ref(const kernel_attn *a) {
  uint32_t hd = a->head_dim;
  CHECK(hd <= ATTN_HEAD_DIM_MAX && a->group <= ATTN_GROUP_MAX && a->rows <= KERNEL_ROWS_MAX);
  float *keys = a->scratch, *values = keys + (size_t)KERNEL_PAGE * hd;
  uint16_t *copy = (uint16_t *)(values + (size_t)KERNEL_PAGE * hd);
  for (uint32_t i = 0; i < a->rows * a->group; i++) {
    float *part = a->part + i * a->part_stride;
    for (uint32_t d = 0; d < hd; d++) part[d] = 0.0f;
    part[hd] = ATTN_HIDDEN;
    part[hd + 1] = 0.0f;
  }
  uint32_t first = attn_first(a, 0), end = attn_end(a, a->rows - 1);
  for (uint32_t t = attn_page_first(first, end); t < end; t += KERNEL_PAGE) {
    const uint16_t *page = attn_page(a, t);
    const uint16_t *seen = attn_values_seen(a, t, first, end, copy);
    for (uint32_t i = 0; i < KERNEL_PAGE * hd; i++) {
      keys[i] = elem_bf16(quant_f16_to_f32(page[i]));
      values[i] = elem_bf16(quant_f16_to_f32(seen[i]));
    }
    for (uint32_t row = 0; row < a->rows; row++)
      for (uint32_t g = 0; g < a->group; g++)
        prompt_page(a, t, row, a->q + row * a->q_stride + (size_t)g * hd, keys, values,
                    a->part + ((size_t)row * a->group + g) * a->part_stride);
  }
}

static void attn_merge_ref(float *into, const float *part, uint32_t head_dim) {
  float max = elem_max(into[head_dim], part[head_dim]);
  float keep = exp_scalar(into[head_dim] - max), take = exp_scalar(part[head_dim] - max);
  for (uint32_t d = 0; d < head_dim; d++) into[d] = fmaf(into[d], keep, part[d] * take);
  into[head_dim] = max;
  into[head_dim + 1] = fmaf(into[head_dim + 1], keep, part[head_dim + 1] * take);
}

static void attn_finish_ref(const float *state, uint32_t head_dim, float *y) {
  float sum = state[head_dim + 1];
  for (uint32_t d = 0; d < head_dim; d++) y[d] = state[d] / sum;
}

void attn_ref_fill(kernel_table *table) {
  table->attn[KERNEL_PROMPT] = attn_prompt_ref;
  table->attn[KERNEL_GEN] = attn_gen_ref;
  table->attn_merge = attn_merge_ref;
  table->attn_finish = attn_finish_ref;
}

static void fill_by_level(kernel_table *table) {
  attn_ref_fill(table);
#if defined(__x86_64__)
  if (table->levels & 1u << KERNEL_BIT_AVX2) attn_avx2_fill(table);
  if (!(table->levels & 1u << KERNEL_BIT_AVX512)) return;
  attn_avx512_fill(table);
  if (!(table->levels & 1u << KERNEL_BIT_AVX512BF16)) return;
  attn_avx512bf16_fill(table);
#endif
}

void kernel_attn_fill(kernel_table *table) {
  fill_by_level(table);
  if (table->activations == KERNEL_FLOAT) table->attn[KERNEL_PROMPT] = table->attn[KERNEL_GEN];
}
