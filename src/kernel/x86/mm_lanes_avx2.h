/* mm_lanes_avx2.h - 16 columns as two registers of 8; the same words as mm_lanes_avx512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_MM_LANES_AVX2_H
#define KERNEL_X86_MM_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline))
#define LANES_WIDE 0 /* 16 registers of 8 lanes */
#define LANES_ROWS_8 0

typedef struct lanes {
  __m256 a, b;
} lanes;
typedef struct lanes_i {
  __m256i a, b;
} lanes_i;

LANES_INLINE lanes lanes_zero(void) {
  return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
LANES_INLINE lanes lanes_set(float f) {
  const __m256 v = _mm256_set1_ps(f);
  return (lanes){v, v};
}
LANES_INLINE lanes lanes_load(const float *p) {
  return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LANES_INLINE void lanes_store(float *p, lanes v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
LANES_INLINE lanes lanes_add(lanes x, lanes y) {
  return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
LANES_INLINE lanes lanes_mul(lanes x, lanes y) {
  return (lanes){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
LANES_INLINE lanes lanes_fma(lanes x, lanes y, lanes z) {
  return (lanes){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANES_INLINE lanes lanes_neg(lanes x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (lanes){_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}

LANES_INLINE __m128i lanes_16_bytes(const uint8_t *p) {
  return _mm_loadu_si128((const __m128i *)(const void *)p);
}
LANES_INLINE __m128i lanes_8_bytes(const uint8_t *p) {
  return _mm_loadl_epi64((const __m128i *)(const void *)p);
}
LANES_INLINE lanes lanes_f16(const uint8_t *p) {
  return (lanes){_mm256_cvtph_ps(lanes_16_bytes(p)), _mm256_cvtph_ps(lanes_16_bytes(p + 16))};
}
LANES_INLINE __m256 lanes_half_bf16(const uint8_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lanes_16_bytes(p)), 16));
}
LANES_INLINE lanes lanes_bf16(const uint8_t *p) {
  return (lanes){lanes_half_bf16(p), lanes_half_bf16(p + 16)};
}
LANES_INLINE lanes lanes_u8(const uint8_t *p) {
  return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(lanes_8_bytes(p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(lanes_8_bytes(p + 8)))};
}
LANES_INLINE lanes lanes_i8(const uint8_t *p) {
  return (lanes){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lanes_8_bytes(p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lanes_8_bytes(p + 8)))};
}

/* A denormal becomes a zero of its sign, a NaN a quiet one. */
LANES_INLINE __m256 lanes_half_clean(__m256 v) {
  const __m256i u = _mm256_castps_si256(v), sign = _mm256_set1_epi32(INT32_MIN);
  const __m256i exponent = _mm256_and_si256(u, _mm256_set1_epi32(0x7f800000));
  const __m256i denormal = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  const __m256i flushed = _mm256_blendv_epi8(u, _mm256_and_si256(u, sign), denormal);
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 quiet = _mm256_and_ps(nan, _mm256_castsi256_ps(_mm256_set1_epi32(0x00400000)));
  return _mm256_or_ps(_mm256_castsi256_ps(flushed), quiet);
}
LANES_INLINE lanes lanes_clean(lanes v) {
  return (lanes){lanes_half_clean(v.a), lanes_half_clean(v.b)};
}

/* bf16 and back, nearest even, of a clean value. */
LANES_INLINE __m256 lanes_half_round_bf16(__m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 top = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)0xffff0000));
  return _mm256_and_ps(_mm256_blendv_ps(_mm256_castsi256_ps(up), v, nan), top);
}
LANES_INLINE lanes lanes_round_bf16(lanes v) {
  return (lanes){lanes_half_round_bf16(v.a), lanes_half_round_bf16(v.b)};
}

LANES_INLINE lanes_i lanes_i_set(int32_t i) {
  const __m256i v = _mm256_set1_epi32(i);
  return (lanes_i){v, v};
}
LANES_INLINE lanes_i lanes_i_load(const uint8_t *p) {
  return (lanes_i){_mm256_loadu_si256((const __m256i *)(const void *)p),
                   _mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}
LANES_INLINE lanes_i lanes_i_and(lanes_i x, lanes_i y) {
  return (lanes_i){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
LANES_INLINE lanes_i lanes_i_add(lanes_i x, lanes_i y) {
  return (lanes_i){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
LANES_INLINE lanes_i lanes_i_max(lanes_i x, lanes_i y) {
  return (lanes_i){_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
LANES_INLINE lanes_i lanes_i_of(lanes v) {
  return (lanes_i){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)};
}
LANES_INLINE lanes_i lanes_i_round(lanes v) {
  return (lanes_i){_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)};
}
LANES_INLINE lanes lanes_from_i(lanes_i v) {
  return (lanes){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)};
}
LANES_INLINE int32_t lanes_i_sum(lanes_i v) {
  const __m256i s = _mm256_add_epi32(v.a, v.b);
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm_cvtsi128_si32(t);
}
LANES_INLINE int32_t lanes_i_largest(lanes_i v) {
  const __m256i s = _mm256_max_epi32(v.a, v.b);
  __m128i t = _mm_max_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm_cvtsi128_si32(t);
}
#define lanes_i_keep(v) __asm__("" : "+x"((v).a), "+x"((v).b))
#define lanes_i_right16(v, n) ((lanes_i){_mm256_srli_epi16((v).a, n), _mm256_srli_epi16((v).b, n)})

/* s + the dot of each lane's 2 signed words with b[0..1], of its 4 unsigned bytes with b[0..3]. */
LANES_INLINE __m256i lanes_half_dot16(__m256i s, __m256i a, __m256i b) {
#if defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(s, a, b);
#else
  return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
#endif
}
LANES_INLINE lanes_i lanes_dot16_each(lanes_i s, lanes_i a, const int16_t *b) {
  int32_t two;
  memcpy(&two, b, sizeof two);
  const __m256i each = _mm256_set1_epi32(two);
  s = (lanes_i){lanes_half_dot16(s.a, a.a, each), lanes_half_dot16(s.b, a.b, each)};
  lanes_i_keep(s); /* else gcc sums the products of a block as a tree, which it has to spill */
  return s;
}
#if defined(__AVXVNNI__)
#define LANES_DOT8 1
LANES_INLINE lanes_i lanes_dot8_each(lanes_i s, lanes_i a, const int8_t *b) {
  int32_t four;
  memcpy(&four, b, sizeof four);
  const __m256i each = _mm256_set1_epi32(four);
  return (lanes_i){_mm256_dpbusd_avx_epi32(s.a, a.a, each),
                   _mm256_dpbusd_avx_epi32(s.b, a.b, each)};
}
#endif

typedef __m256i lanes_nibbles;
LANES_INLINE lanes_nibbles lanes_nibbles_minus(float offset) {
  return _mm256_set1_epi32((int32_t)offset);
}
LANES_INLINE __m256 lanes_half_nibble(__m256i v, lanes_nibbles offset) {
  const __m256i code = _mm256_and_si256(v, _mm256_set1_epi32(15));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, offset));
}
#define lanes_nibble(v, shift, table)                                 \
  ((lanes){lanes_half_nibble(_mm256_srli_epi32((v).a, shift), table), \
           lanes_half_nibble(_mm256_srli_epi32((v).b, shift), table)})
LANES_INLINE lanes_i lanes_bytes_minus_128(lanes_i v) {
  const __m256i flip = _mm256_set1_epi8((char)0x80);
  return (lanes_i){_mm256_xor_si256(v.a, flip), _mm256_xor_si256(v.b, flip)};
}
#define lanes_half_byte(v, t) \
  _mm256_cvtepi32_ps(_mm256_srai_epi32((t) == 3 ? (v) : _mm256_slli_epi32(v, 24 - 8 * (t)), 24))
#define lanes_byte(v, t) ((lanes){lanes_half_byte((v).a, t), lanes_half_byte((v).b, t)})

LANES_INLINE void lanes_half_store_pairs(int16_t *p, __m256i v) {
  const __m256i other = _mm256_slli_epi32(_mm256_shuffle_epi32(v, 0x4e), 16);
  const __m256i pairs = _mm256_blend_epi16(v, other, 0xaa);
  const __m256i packed = _mm256_permute4x64_epi64(pairs, 0x08);
  _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}
LANES_INLINE void lanes_i_store_pairs(int16_t *p, lanes_i v) {
  lanes_half_store_pairs(p, v.a);
  lanes_half_store_pairs(p + 8, v.b);
}
LANES_INLINE void lanes_i_store_bytes(int8_t *p, lanes_i v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
  const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
  _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi16(low, high));
}

#endif
