/* mm_ref.c - what the matrix kernels compute, in scalar code: kernel.h's definitions and nothing
 * else.
 *
 * Every level is compared with these functions bit by bit, so this file must stay plain: one
 * column, one block, one row at a time. The only liberty is the order of independent columns and
 * rows. Cost: some hundred times that of the vector kernels. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernel/mm.h"
#include "kernel/panel.h"

/* bf16 and back: nearest even, denormals to zero of their sign, NaN stays NaN (quiet). */
static float round_bf16(float f) {
  union {
    float f;
    uint32_t u;
  } v = {f};
  const uint32_t exponent = v.u & 0x7f800000u;
  if (exponent == 0) {
    v.u &= 0x80000000u;
  } else if (isnan(f)) {
    v.u = (v.u | 0x00400000u) & 0xffff0000u;
  } else {
    v.u = (v.u + 0x7fffu + (v.u >> 16 & 1)) & 0xffff0000u;
  }
  return v.f;
}

static void act_prompt_ref(const float *x, uint32_t k, void *packed) {
  float *out = packed;
  for (uint32_t i = 0; i < k; i++) out[i] = round_bf16(x[i]);
}

static void act_float_ref(const float *x, uint32_t k, void *packed) {
  memcpy(packed, x, (size_t)k * sizeof *x);
}

/* Largest magnitude of 32 values, compared as integers so that Inf and NaN win. */
static float block_amax(const float *x) {
  union {
    float f;
    uint32_t u;
  } amax = {0}, v;
  for (int i = 0; i < KERNEL_BLOCK; i++) {
    v.f = x[i];
    v.u &= 0x7fffffffu;
    if (v.u > amax.u) amax.u = v.u;
  }
  return amax.f;
}

/* One block to 16 bits with the largest magnitude at `top`. A block so small that its scale would
 * be denormal is zero, which also keeps 1 / amax finite. */
static void block_quantize(const float *x, float top, kernel_block16 *out) {
  int32_t q[KERNEL_BLOCK] = {0}, sums[2] = {0, 0};
  const float amax = block_amax(x);
  out->d = 0;
  if (!isfinite(amax)) {
    out->d = NAN;
  } else if (amax >= top * 0x1p-126f) {
    const float inv = top / amax;
    out->d = amax / top;
    for (int i = 0; i < KERNEL_BLOCK; i++) q[i] = (int32_t)lrintf(x[i] * inv);
  }
  for (unsigned i = 0; i < KERNEL_BLOCK; i++) {
    out->q[kernel_block16_place(i)] = (int16_t)q[i];
    sums[i / 16] += q[i];
  }
  out->sum = (float)(sums[0] + sums[1]);
  out->start_u4 = -8 * (sums[0] + sums[1]);
  out->start_u8 = -128 * (sums[0] + sums[1]);
  out->start_u8k[0] = -128 * sums[0];
  out->start_u8k[1] = -128 * sums[1];
  memset(out->unused, 0, sizeof out->unused);
}

static void act_gen_ref(const float *x, uint32_t k, void *packed) {
  kernel_block16 *out = packed;
  for (uint32_t b = 0; b < k / KERNEL_BLOCK; b++) block_quantize(x + b * 32, 32512.0f, out + b);
}

static void act_int8_ref(const float *x, uint32_t k, void *packed) {
  kernel_block16 *out = packed;
  for (uint32_t b = 0; b < k / KERNEL_BLOCK; b++) block_quantize(x + b * 32, 127.0f, out + b);
}

static float prompt_step(const float *x, const float *w, float acc) {
  float even = 0, odd = 0;
  for (int i = 0; i < KERNEL_BLOCK; i += 2) {
    even = fmaf(x[i], w[i], even);
    odd = fmaf(x[i + 1], w[i + 1], odd);
  }
  return acc + (even + odd);
}

static float float_step(const float *x, const float *w, float acc) {
  for (int i = 0; i < KERNEL_BLOCK; i++) acc = fmaf(x[i], w[i], acc);
  return acc;
}

static void mm_values(const kernel_mm *args, bool prompt) {
  const kernel_pack pack = (kernel_pack)args->weight->pack;
  for (uint32_t p = args->panel0; p < args->panel0 + args->panels; p++) {
    const kernel_panel panel = kernel_panel_at(args->weight, p);
    for (uint32_t lane = 0; lane < KERNEL_PANEL; lane++) {
      float *y = args->y + (size_t)p * KERNEL_PANEL + lane;
      for (uint32_t row = 0; row < args->rows; row++) y[row * args->y_stride] = 0;
      for (uint32_t b = 0; b < args->weight->k / 32; b++) {
        float w[KERNEL_BLOCK];
        kernel_panel_values(pack, &panel, b, lane, w);
        for (int i = 0; prompt && i < KERNEL_BLOCK; i++) w[i] = round_bf16(w[i]);
        for (uint32_t row = 0; row < args->rows; row++) {
          const float *x = (const float *)(const void *)(args->x + row * args->x_stride) + b * 32;
          float *acc = &y[row * args->y_stride];
          *acc = prompt ? prompt_step(x, w, *acc) : float_step(x, w, *acc);
        }
      }
    }
  }
}

static void mm_prompt_ref(const kernel_mm *args) {
  mm_values(args, true);
}
static void mm_float_ref(const kernel_mm *args) {
  mm_values(args, false);
}

/* S of values [first, first + count) of a block. */
static float block_dot(const kernel_block16 *x, const uint8_t *codes, int offset, unsigned first,
                       unsigned count) {
  int32_t sum = 0;
  for (unsigned i = first; i < first + count; i++)
    sum += (codes[i] - offset) * x->q[kernel_block16_place(i)];
  return (float)sum;
}

static float integer_step(kernel_pack pack, const kernel_block16 *x, const uint8_t *codes,
                          const float *w_d, const float *w_m, float acc) {
  switch (pack) {
    case PACK_U4:
      return fmaf(block_dot(x, codes, 8, 0, 32) * w_d[0], x->d, acc);
    case PACK_U8:
      return fmaf(block_dot(x, codes, 128, 0, 32) * w_d[0], x->d, acc);
    case PACK_U8K:
      acc = fmaf(block_dot(x, codes, 128, 0, 16) * w_d[0], x->d, acc);
      return fmaf(block_dot(x, codes, 128, 16, 16) * w_d[1], x->d, acc);
    default: /* U4M, U4K */
      return fmaf(fmaf(x->sum, w_m[0], block_dot(x, codes, 0, 0, 32) * w_d[0]), x->d, acc);
  }
}

static void mm_integer_ref(const kernel_mm *args) {
  const kernel_pack pack = (kernel_pack)args->weight->pack;
  for (uint32_t p = args->panel0; p < args->panel0 + args->panels; p++) {
    const kernel_panel panel = kernel_panel_at(args->weight, p);
    for (uint32_t lane = 0; lane < KERNEL_PANEL; lane++) {
      float *y = args->y + (size_t)p * KERNEL_PANEL + lane;
      for (uint32_t row = 0; row < args->rows; row++) y[row * args->y_stride] = 0;
      for (uint32_t b = 0; b < args->weight->k / 32; b++) {
        uint8_t codes[KERNEL_BLOCK];
        float w_d[2], w_m[2];
        kernel_panel_codes(pack, &panel, b, lane, codes);
        kernel_panel_scales(pack, &panel, 2 * b, lane, &w_d[0], &w_m[0]);
        kernel_panel_scales(pack, &panel, 2 * b + 1, lane, &w_d[1], &w_m[1]);
        for (uint32_t row = 0; row < args->rows; row++) {
          const uint8_t *x = args->x + row * args->x_stride + b * sizeof(kernel_block16);
          float *acc = &y[row * args->y_stride];
          *acc = integer_step(pack, (const kernel_block16 *)(const void *)x, codes, w_d, w_m, *acc);
        }
      }
    }
  }
}

void kernel_mm_fill_ref(kernel_table *out) {
  const kernel_activations set = out->activations;
  for (int arith = 0; arith < 2; arith++) {
    const bool prompt = set == KERNEL_DEFAULT && arith == KERNEL_PROMPT;
    for (int pack = 0; pack < PACK_COUNT; pack++) {
      const bool floats = set == KERNEL_FLOAT || (pack < PACK_U4 && !prompt);
      out->act_float[arith][pack] = floats;
      out->mm[arith][pack] = prompt ? mm_prompt_ref : floats ? mm_float_ref : mm_integer_ref;
    }
    out->act[arith] = prompt                  ? act_prompt_ref
                      : set == KERNEL_DEFAULT ? act_gen_ref
                      : set == KERNEL_INT8    ? act_int8_ref
                                              : act_float_ref;
  }
}

size_t kernel_scratch_bytes(uint32_t k) {
  const uint32_t chunk = k < KERNEL_MM_CHUNK ? k : KERNEL_MM_CHUNK;
  return (size_t)chunk * 2 * KERNEL_PANEL * sizeof(float);
}
