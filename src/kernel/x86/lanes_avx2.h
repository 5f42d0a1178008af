/* lanes_avx2.h - the 16 lanes of kernel.h as two AVX registers: lanes 0-7 and 8-15. The same names
 * as lanes_avx512.h.
 *
 * Sixteen registers hold eight v16: tiles are sized in parts (one register), and code that lets
 * lanes meet works on few v16 at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_LANES_AVX2_H
#define KERNEL_X86_LANES_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/exp.h"

typedef struct v16 {
  __m256 lo, hi;
} v16;
typedef v16 m16; /* all bits of a lane, or none */
typedef __m256 v_part;
enum { V_PARTS = 2, V_PART_LANES = 8 };

#define V_EACH(op, a) ((v16){op((a).lo), op((a).hi)})
#define V_EACH2(op, a, b) ((v16){op((a).lo, (b).lo), op((a).hi, (b).hi)})
#define V_EACH3(op, a, b, c) ((v16){op((a).lo, (b).lo, (c).lo), op((a).hi, (b).hi, (c).hi)})

static inline v16 v_zero(void) {
  return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
static inline v16 v_set(float x) {
  return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v_load(const float *p) {
  return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v_store(float *p, v16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

static inline v16 v_fma(v16 a, v16 b, v16 c) {
  return V_EACH3(_mm256_fmadd_ps, a, b, c);
}
static inline v16 v_fms(v16 a, v16 b, v16 c) {
  return V_EACH3(_mm256_fmsub_ps, a, b, c);
}
static inline v16 v_add(v16 a, v16 b) {
  return V_EACH2(_mm256_add_ps, a, b);
}
static inline v16 v_sub(v16 a, v16 b) {
  return V_EACH2(_mm256_sub_ps, a, b);
}
static inline v16 v_mul(v16 a, v16 b) {
  return V_EACH2(_mm256_mul_ps, a, b);
}
static inline v16 v_div(v16 a, v16 b) {
  return V_EACH2(_mm256_div_ps, a, b);
}
static inline v16 v_neg(v16 a) {
  return V_EACH2(_mm256_xor_ps, a, v_set(-0.0f));
}
static inline v16 v_max(v16 a, v16 b) {
  return V_EACH2(_mm256_max_ps, b, a);
} /* b > a ? b : a */

static inline __m256 m_part_between(__m256i first, __m256i end, __m256i at) {
  __m256i early = _mm256_cmpgt_epi32(first, at);
  return _mm256_castsi256_ps(_mm256_andnot_si256(early, _mm256_cmpgt_epi32(end, at)));
}
/* Lanes with first <= t < end. */
static inline m16 m_seen(const int32_t *first, const int32_t *end, int32_t t) {
  const __m256i *from = (const __m256i *)first, *to = (const __m256i *)end;
  __m256i at = _mm256_set1_epi32(t);
  return (m16){m_part_between(_mm256_loadu_si256(from), _mm256_loadu_si256(to), at),
               m_part_between(_mm256_loadu_si256(from + 1), _mm256_loadu_si256(to + 1), at)};
}
/* Lanes i with first <= t + i < end. */
static inline m16 m_between(int32_t first, int32_t end, int32_t t) {
  __m256i from = _mm256_set1_epi32(first), to = _mm256_set1_epi32(end);
  __m256i lo = _mm256_add_epi32(_mm256_set1_epi32(t), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
  return (m16){m_part_between(from, to, lo), m_part_between(from, to, hi)};
}
static inline m16 m_first(uint32_t n) {
  return m_between(0, n < 16 ? (int32_t)n : 16, 0);
}
static inline __m256 m_part_nan(__m256 a) {
  return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
static inline m16 m_nan(v16 a) {
  return V_EACH(m_part_nan, a);
}
static inline m16 m_or(m16 a, m16 b) {
  return V_EACH2(_mm256_or_ps, a, b);
}
static inline int m_any(m16 m) {
  return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0;
}
static inline v16 v_select(m16 m, v16 yes, v16 no) {
  return V_EACH3(_mm256_blendv_ps, no, yes, m);
}

/* n < 16 lanes, the others are zero and not read or written. */
static inline v16 v_load_n(const float *p, uint32_t n) {
  m16 m = m_first(n);
  return (v16){_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
               _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
static inline void v_store_n(float *p, v16 a, uint32_t n) {
  m16 m = m_first(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

static inline v_part v_part_zero(void) {
  return _mm256_setzero_ps();
}
static inline v_part v_part_load(const float *p) {
  return _mm256_loadu_ps(p);
}
static inline v_part v_part_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline v_part v_part_fma(v_part a, v_part b, v_part c) {
  return _mm256_fmadd_ps(a, b, c);
}
static inline void v_part_put(v16 *a, int part, v_part value) {
  if (part == 0) {
    a->lo = value;
  } else {
    a->hi = value;
  }
}

static inline v16 v_load_f16(const uint16_t *p) {
  return (v16){v_part_f16(p), v_part_f16(p + 8)};
}
static inline void v_part_store_f16(uint16_t *p, __m256 a) {
  a = _mm256_min_ps(_mm256_set1_ps(65504.0f), a);
  a = _mm256_max_ps(_mm256_set1_ps(-65504.0f), a);
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
/* Saturated at 65504 before the conversion; NaN stays (min and max answer their second operand). */
static inline void v_store_f16(uint16_t *p, v16 a) {
  v_part_store_f16(p, a.lo);
  v_part_store_f16(p + 8, a.hi);
}

static inline __m256i v_part_bf16_round(__m256i u) {
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}
static inline __m256 v_part_bf16(__m256 a) {
  __m256i u = _mm256_castps_si256(a);
  __m256 up = _mm256_castsi256_ps(v_part_bf16_round(u));
  /* NaN: quiet, where rounding might carry out of it. Denormal: a zero of its sign. */
  __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(u, _mm256_set1_epi32(0x400000)));
  up = _mm256_blendv_ps(up, quiet, m_part_nan(a));
  up = _mm256_and_ps(up, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
  __m256i exponent = _mm256_and_si256(u, _mm256_set1_epi32(0x7f800000));
  __m256i small = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  small = _mm256_and_si256(small, _mm256_set1_epi32(INT32_MAX));
  return _mm256_andnot_ps(_mm256_castsi256_ps(small), up);
}
static inline v16 v_bf16(v16 a) {
  return V_EACH(v_part_bf16, a);
}
/* The same for p = exp(s - m): never negative, never denormal. */
static inline __m256 v_part_bf16_positive(__m256 a) {
  __m256i up = v_part_bf16_round(_mm256_castps_si256(a));
  up = _mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000u));
  return _mm256_blendv_ps(_mm256_castsi256_ps(up), a, m_part_nan(a));
}
static inline v16 v_bf16_positive(v16 a) {
  return V_EACH(v_part_bf16_positive, a);
}

/* x <= 0 or NaN. */
static inline __m256 v_part_exp_negative(__m256 x) {
  EXP_CORE(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_sub_ps, x, t, p);
  __m256i power = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
  p = _mm256_and_ps(p, _mm256_cmp_ps(x, _mm256_set1_ps(EXP_LOW), _CMP_GE_OQ));
  return _mm256_or_ps(p, _mm256_and_ps(x, m_part_nan(x)));
}
static inline v16 v_exp_negative(v16 x) {
  return V_EACH(v_part_exp_negative, x);
}
static inline __m256 v_part_exp(__m256 x) {
  __m256 large = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_HIGH), _CMP_GT_OQ);
  return _mm256_blendv_ps(v_part_exp_negative(x), _mm256_set1_ps(INFINITY), large);
}
static inline v16 v_exp(v16 x) {
  return V_EACH(v_part_exp, x);
}

/* Stages of the tree, as in lanes_avx512.h. */
static inline __m256 v_part_fold2(v16 a, v16 b) {
  __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi);
  return _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
}
static inline v16 v_fold4(v16 a, v16 b, v16 c, v16 d) {
  return (v16){v_part_fold2(a, b), v_part_fold2(c, d)};
}
static inline __m256 v_part_fold16(__m256 x0, __m256 x1, __m256 x2, __m256 x3) {
  __m256 y0 = _mm256_add_ps(_mm256_shuffle_ps(x0, x1, 0x44), _mm256_shuffle_ps(x0, x1, 0xee));
  __m256 y1 = _mm256_add_ps(_mm256_shuffle_ps(x2, x3, 0x44), _mm256_shuffle_ps(x2, x3, 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(y0, y1, 0x88), _mm256_shuffle_ps(y0, y1, 0xdd));
}
static inline v16 v_fold16(v16 x0, v16 x1, v16 x2, v16 x3) {
  return (v16){v_part_fold16(x0.lo, x1.lo, x2.lo, x3.lo),
               v_part_fold16(x0.hi, x1.hi, x2.hi, x3.hi)};
}

/* Even and odd elements of 32 (a then b), and back; the order within is v_unzip's own. */
static inline void v_unzip(v16 a, v16 b, v16 *even, v16 *odd) {
  *even = (v16){_mm256_shuffle_ps(a.lo, a.hi, 0x88), _mm256_shuffle_ps(b.lo, b.hi, 0x88)};
  *odd = (v16){_mm256_shuffle_ps(a.lo, a.hi, 0xdd), _mm256_shuffle_ps(b.lo, b.hi, 0xdd)};
}
static inline void v_zip(v16 even, v16 odd, v16 *a, v16 *b) {
  *a = (v16){_mm256_unpacklo_ps(even.lo, odd.lo), _mm256_unpackhi_ps(even.lo, odd.lo)};
  *b = (v16){_mm256_unpacklo_ps(even.hi, odd.hi), _mm256_unpackhi_ps(even.hi, odd.hi)};
}
static inline __m256 v_part_ordered(__m256 x) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
/* Even and odd elements in ascending order. */
static inline void v_unzip_ordered(v16 a, v16 b, v16 *even, v16 *odd) {
  v16 e, o;
  v_unzip(a, b, &e, &o);
  *even = V_EACH(v_part_ordered, e);
  *odd = V_EACH(v_part_ordered, o);
}

static inline void v_part_transpose(__m256 r[8]) {
  __m256 x[8];
  for (int i = 0; i < 8; i += 4) { /* 4 x 4 within each half */
    __m256 ab0 = _mm256_unpacklo_ps(r[i], r[i + 1]), ab1 = _mm256_unpackhi_ps(r[i], r[i + 1]);
    __m256 cd0 = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
    __m256 cd1 = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    x[i] = _mm256_shuffle_ps(ab0, cd0, 0x44);
    x[i + 1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
    x[i + 2] = _mm256_shuffle_ps(ab1, cd1, 0x44);
    x[i + 3] = _mm256_shuffle_ps(ab1, cd1, 0xee);
  }
  for (int i = 0; i < 4; i++) { /* then 2 x 2 of halves */
    r[i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
  }
}
/* r[i] lane j <-> r[j] lane i. */
static inline void v_transpose(v16 r[16]) {
  __m256 block[4][8]; /* rows 0-7 and 8-15 of lo, then of hi */
  for (int i = 0; i < 8; i++) {
    block[0][i] = r[i].lo;
    block[1][i] = r[8 + i].lo;
    block[2][i] = r[i].hi;
    block[3][i] = r[8 + i].hi;
  }
  for (int i = 0; i < 4; i++) v_part_transpose(block[i]);
  for (int i = 0; i < 8; i++) {
    r[i] = (v16){block[0][i], block[1][i]};
    r[8 + i] = (v16){block[2][i], block[3][i]};
  }
}

#endif
