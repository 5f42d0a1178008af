/* lanes_avx512.h - the 16 lanes of kernel.h as one AVX-512 register. The same names as
 * lanes_avx2.h, so that elem.inc and attn_*.inc are written once.
 *
 * v16 is a vector, m16 a mask of lanes. A `part` is what one register holds of a v16 (V_PARTS of
 * them): where lanes do not meet, tiles are sized in parts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_LANES_AVX512_H
#define KERNEL_X86_LANES_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/exp.h"

typedef __m512 v16;
typedef __mmask16 m16;
typedef __m512 v_part;
enum { V_PARTS = 1, V_PART_LANES = 16 };

static inline v16 v_zero(void) {
  return _mm512_setzero_ps();
}
static inline v16 v_set(float x) {
  return _mm512_set1_ps(x);
}
static inline v16 v_load(const float *p) {
  return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 a) {
  _mm512_storeu_ps(p, a);
}
/* n < 16 lanes, the others are zero and not read or written. */
static inline v16 v_load_n(const float *p, uint32_t n) {
  return _mm512_maskz_loadu_ps((m16)((1u << n) - 1), p);
}
static inline void v_store_n(float *p, v16 a, uint32_t n) {
  _mm512_mask_storeu_ps(p, (m16)((1u << n) - 1), a);
}

static inline v16 v_fma(v16 a, v16 b, v16 c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline v16 v_fms(v16 a, v16 b, v16 c) {
  return _mm512_fmsub_ps(a, b, c);
}
static inline v16 v_add(v16 a, v16 b) {
  return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b) {
  return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b) {
  return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b) {
  return _mm512_div_ps(a, b);
}
static inline v16 v_neg(v16 a) {
  return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
static inline v16 v_max(v16 a, v16 b) {
  return _mm512_max_ps(b, a);
} /* b > a ? b : a */

static inline m16 m_first(uint32_t n) {
  return (m16)(n >= 16 ? 0xffff : (1u << n) - 1);
}
static inline m16 m_nan(v16 a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
static inline m16 m_or(m16 a, m16 b) {
  return (m16)(a | b);
}
static inline int m_any(m16 m) {
  return m != 0;
}
/* Lanes with first <= t < end. */
static inline m16 m_seen(const int32_t *first, const int32_t *end, int32_t t) {
  __m512i at = _mm512_set1_epi32(t);
  m16 begun = _mm512_cmple_epi32_mask(_mm512_loadu_si512(first), at);
  return _mm512_mask_cmpgt_epi32_mask(begun, _mm512_loadu_si512(end), at);
}
/* Lanes i with first <= t + i < end. */
static inline m16 m_between(int32_t first, int32_t end, int32_t t) {
  __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i at = _mm512_add_epi32(_mm512_set1_epi32(t), lane);
  m16 begun = _mm512_cmple_epi32_mask(_mm512_set1_epi32(first), at);
  return _mm512_mask_cmpgt_epi32_mask(begun, _mm512_set1_epi32(end), at);
}
static inline v16 v_select(m16 m, v16 yes, v16 no) {
  return _mm512_mask_blend_ps(m, no, yes);
}

static inline v_part v_part_zero(void) {
  return _mm512_setzero_ps();
}
static inline v_part v_part_load(const float *p) {
  return _mm512_loadu_ps(p);
}
static inline v_part v_part_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v_part v_part_fma(v_part a, v_part b, v_part c) {
  return _mm512_fmadd_ps(a, b, c);
}
static inline void v_part_put(v16 *a, int part, v_part value) {
  (void)part;
  *a = value;
}

static inline v16 v_load_f16(const uint16_t *p) {
  return v_part_f16(p);
}
/* Saturated at 65504 before the conversion; NaN stays (min and max answer their second operand). */
static inline void v_store_f16(uint16_t *p, v16 a) {
  a = _mm512_min_ps(_mm512_set1_ps(65504.0f), a);
  a = _mm512_max_ps(_mm512_set1_ps(-65504.0f), a);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

#ifdef __AVX512BF16__
static inline v16 v_bf16(v16 a) {
  __m512i wide = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#else
static inline v16 v_bf16(v16 a) {
  __m512i u = _mm512_castps_si512(a);
  m16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  __m512i up = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  up = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  /* NaN: quiet, where rounding might carry out of it. Denormal: a zero of its sign. */
  up = _mm512_mask_or_epi32(up, m_nan(a), u, _mm512_set1_epi32(0x400000));
  m16 normal = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
  __m512i cut = _mm512_and_si512(u, _mm512_set1_epi32(INT32_MIN));
  cut = _mm512_mask_and_epi32(cut, normal, up, _mm512_set1_epi32((int)0xffff0000u));
  return _mm512_castsi512_ps(cut);
}
#endif
/* The same for p = exp(s - m): never negative, never denormal. */
static inline v16 v_bf16_positive(v16 a) {
#ifdef __AVX512BF16__
  return v_bf16(a);
#else
  __m512i u = _mm512_castps_si512(a);
  m16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  __m512i up = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  up = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  up = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
  return _mm512_mask_mov_ps(_mm512_castsi512_ps(up), m_nan(a), a);
#endif
}

/* x <= 0 or NaN. */
static inline v16 v_exp_negative(v16 x) {
  EXP_CORE(v16, v_set, v_fma, v_sub, x, t, p);
  m16 keep = _mm512_cmp_ps_mask(x, v_set(EXP_LOW), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, p, exp_n);
}
static inline v16 v_exp(v16 x) {
  /* scalef overflows to infinity by itself; 89 keeps the steps before it finite. NaN stays. */
  return v_exp_negative(_mm512_min_ps(v_set(89.0f), x));
}

/* Stages of the tree. v_fold4: for each of 4 vectors in turn its sums v[i]+v[i+8], then +4: four
 * lanes for each vector. v_fold16 ends the tree of 16 vectors: x_j holds the vectors j, j+4, j+8,
 * j+12 folded, and the answer's lane i is the sum of vector i. */
static inline v16 v_fold4(v16 a, v16 b, v16 c, v16 d) {
  v16 ab = v_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  v16 cd = v_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return v_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
static inline v16 v_fold16(v16 x0, v16 x1, v16 x2, v16 x3) {
  v16 y0 = v_add(_mm512_shuffle_ps(x0, x1, 0x44), _mm512_shuffle_ps(x0, x1, 0xee));
  v16 y1 = v_add(_mm512_shuffle_ps(x2, x3, 0x44), _mm512_shuffle_ps(x2, x3, 0xee));
  return v_add(_mm512_shuffle_ps(y0, y1, 0x88), _mm512_shuffle_ps(y0, y1, 0xdd));
}

/* Even and odd elements of 32 (a then b), and back; the order within is v_unzip's own. */
static inline void v_unzip(v16 a, v16 b, v16 *even, v16 *odd) {
  *even = _mm512_shuffle_ps(a, b, 0x88);
  *odd = _mm512_shuffle_ps(a, b, 0xdd);
}
static inline void v_zip(v16 even, v16 odd, v16 *a, v16 *b) {
  *a = _mm512_unpacklo_ps(even, odd);
  *b = _mm512_unpackhi_ps(even, odd);
}
/* Even and odd elements in ascending order. */
static inline void v_unzip_ordered(v16 a, v16 b, v16 *even, v16 *odd) {
  __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(a, at, b);
  *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(1)), b);
}

/* r[i] lane j <-> r[j] lane i. */
static inline void v_transpose(v16 r[16]) {
  v16 x[16], y[16];
  for (int i = 0; i < 16; i += 4) { /* 4 x 4 within each quarter */
    v16 ab0 = _mm512_unpacklo_ps(r[i], r[i + 1]), ab1 = _mm512_unpackhi_ps(r[i], r[i + 1]);
    v16 cd0 = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), cd1 = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
    x[i] = _mm512_shuffle_ps(ab0, cd0, 0x44);
    x[i + 1] = _mm512_shuffle_ps(ab0, cd0, 0xee);
    x[i + 2] = _mm512_shuffle_ps(ab1, cd1, 0x44);
    x[i + 3] = _mm512_shuffle_ps(ab1, cd1, 0xee);
  }
  for (int i = 0; i < 4; i++) { /* then 4 x 4 of quarters */
    y[i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);
    y[4 + i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd);
    y[8 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
    y[12 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(y[4 + i], y[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(y[4 + i], y[12 + i], 0xdd);
  }
}

#endif
