/* elem_ref.c - scalar reference of elem.h: plain loops in the order that kernel.h defines.
 * fmaf is one rounding everywhere (a call where the baseline has no FMA); speed is the business of
 * x86/elem_*.c. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/elem.h"

#include <math.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernel/exp.h"
#include "quant/quant.h"

static void rms_norm_ref(const float *x, const float *w, uint32_t n, float eps, float *y) {
  float lanes[ELEM_LANES] = {0};
  for (uint32_t i = 0; i < n; i++) lanes[i % ELEM_LANES] = fmaf(x[i], x[i], lanes[i % ELEM_LANES]);
  float r = 1.0f / sqrtf(elem_tree(lanes) / (float)n + eps);
  for (uint32_t i = 0; i < n; i++) y[i] = (x[i] * r) * w[i];
}

static void rope_ref(float *x, const float *cos_sin, uint32_t n, bool adjacent) {
  for (uint32_t i = 0; i < n / 2; i++) {
    float *a = x + (adjacent ? 2 * i : i);
    float *b = adjacent ? a + 1 : a + n / 2;
    float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
    float x0 = *a, x1 = *b;
    *a = fmaf(x0, c, -(x1 * s));
    *b = fmaf(x0, s, x1 * c);
  }
}

static void add_ref(float *x, const float *y, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) x[i] += y[i];
}

static void silu_mul_ref(const float *gate, const float *up, uint32_t n, float *y) {
  for (uint32_t i = 0; i < n; i++) {
    float g = gate[i];
    y[i] = g / (1.0f + exp_scalar(-g)) * up[i];
  }
}

static void gelu_mul_ref(const float *gate, const float *up, uint32_t n, float *y) {
  for (uint32_t i = 0; i < n; i++) {
    float g = gate[i];
    float z = 0.7978845608f * fmaf(0.044715f * g * g, g, g);
    y[i] = g / (1.0f + exp_scalar(-2.0f * z)) * up[i];
  }
}

/* Clamped before the conversion, so that infinity becomes 65504 too. */
static uint16_t f16_saturated(float x) {
  if (x > 65504.0f) x = 65504.0f;
  if (x < -65504.0f) x = -65504.0f;
  return quant_f32_to_f16(x);
}

static void kv_write_ref(uint8_t *head, uint32_t slot, uint32_t head_dim, const float *k,
                         const float *v) {
  uint8_t *row = head + (size_t)slot * head_dim * 2;
  uint8_t *column = head + (size_t)KERNEL_PAGE * head_dim * 2 + (size_t)slot * 2;
  for (uint32_t d = 0; d < head_dim; d++) {
    uint16_t key = f16_saturated(k[d]), value = f16_saturated(v[d]);
    memcpy(row + (size_t)d * 2, &key, sizeof key);
    memcpy(column + (size_t)d * KERNEL_PAGE * 2, &value, sizeof value);
  }
}

static float vec_max_ref(const float *x, uint32_t n) {
  float max = x[0];
  for (uint32_t i = 0; i < n; i++) {
    if (x[i] != x[i]) return NAN;
    max = elem_max(max, x[i]);
  }
  return max + 0.0f;
}

static float vec_sum_exp_ref(const float *x, uint32_t n, float max) {
  float lanes[ELEM_LANES] = {0};
  for (uint32_t i = 0; i < n; i++) lanes[i % ELEM_LANES] += exp_scalar(x[i] - max);
  return elem_tree(lanes);
}

float kernel_exp(float x) {
  return exp_scalar(x);
}

void kernel_thread_setup(void) {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | 1u << 24)); /* FZ does both */
#endif
}

void elem_ref_fill(kernel_table *table) {
  table->rms_norm = rms_norm_ref;
  table->rope = rope_ref;
  table->add = add_ref;
  table->silu_mul = silu_mul_ref;
  table->gelu_mul = gelu_mul_ref;
  table->kv_write = kv_write_ref;
  table->vec_max = vec_max_ref;
  table->vec_sum_exp = vec_sum_exp_ref;
}

void kernel_elem_fill(kernel_table *table) {
  elem_ref_fill(table);
#if defined(__x86_64__)
  if (table->levels & 1u << KERNEL_BIT_AVX2) elem_avx2_fill(table);
  if (!(table->levels & 1u << KERNEL_BIT_AVX512)) return;
  elem_avx512_fill(table);
#endif
}
