/* mm_lanes_avx512.h - 16 columns as one register: the vocabulary in which the matrix kernels are
 * written.
 *
 * mm_lanes_avx2.h offers the same words on two registers, so that one .inc serves every level.
 * Which dot instruction stands behind lanes_dot16_each is the including file's flags.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_MM_LANES_AVX512_H
#define KERNEL_X86_MM_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES_INLINE static inline __attribute__((always_inline))
#define LANES_WIDE 1 /* 32 registers of 16 lanes */
#if defined(__AVX512VNNI__)
#define LANES_ROWS_8 1 /* 8 rows of integers without spilling */
#else
#define LANES_ROWS_8 0
#endif

typedef __m512 lanes;
typedef __m512i lanes_i;

LANES_INLINE lanes lanes_zero(void) {
  return _mm512_setzero_ps();
}
LANES_INLINE lanes lanes_set(float f) {
  return _mm512_set1_ps(f);
}
LANES_INLINE lanes lanes_load(const float *p) {
  return _mm512_loadu_ps(p);
}
LANES_INLINE void lanes_store(float *p, lanes v) {
  _mm512_storeu_ps(p, v);
}
LANES_INLINE lanes lanes_add(lanes a, lanes b) {
  return _mm512_add_ps(a, b);
}
LANES_INLINE lanes lanes_mul(lanes a, lanes b) {
  return _mm512_mul_ps(a, b);
}
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c) {
  return _mm512_fmadd_ps(a, b, c);
}
LANES_INLINE lanes lanes_neg(lanes a) {
  return _mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)));
}

LANES_INLINE lanes lanes_f16(const uint8_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
LANES_INLINE lanes lanes_bf16(const uint8_t *p) {
  const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
LANES_INLINE lanes lanes_u8(const uint8_t *p) {
  const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}
LANES_INLINE lanes lanes_i8(const uint8_t *p) {
  const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

/* A denormal becomes a zero of its sign, a NaN a quiet one. (A multiplication by one, under DAZ,
 * would do both, but compilers fold it away.) */
LANES_INLINE lanes lanes_clean(lanes v) {
#if defined(__AVX512BF16__)
  return v; /* the conversion does so itself */
#else
  const __m512i u = _mm512_castps_si512(v), sign = _mm512_set1_epi32(INT32_MIN);
  const __mmask16 normal = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i flushed = _mm512_mask_mov_epi32(_mm512_and_si512(u, sign), normal, u);
  return _mm512_castsi512_ps(
      _mm512_mask_or_epi32(flushed, nan, flushed, _mm512_set1_epi32(0x00400000)));
#endif
}

/* bf16 and back, nearest even, of a clean value. */
LANES_INLINE lanes lanes_round_bf16(lanes v) {
#if defined(__AVX512BF16__)
  const __m256i half = (__m256i)_mm512_cvtneps_pbh(v);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
#else
  const __m512i u = _mm512_castps_si512(v), top = _mm512_set1_epi32((int32_t)0xffff0000);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(u, number, up), top));
#endif
}

LANES_INLINE lanes_i lanes_i_set(int32_t i) {
  return _mm512_set1_epi32(i);
}
LANES_INLINE lanes_i lanes_i_load(const uint8_t *p) {
  return _mm512_loadu_si512(p);
}
LANES_INLINE lanes_i lanes_i_and(lanes_i a, lanes_i b) {
  return _mm512_and_si512(a, b);
}
LANES_INLINE lanes_i lanes_i_add(lanes_i a, lanes_i b) {
  return _mm512_add_epi32(a, b);
}
LANES_INLINE lanes_i lanes_i_max(lanes_i a, lanes_i b) {
  return _mm512_max_epi32(a, b);
}
LANES_INLINE lanes_i lanes_i_of(lanes v) {
  return _mm512_castps_si512(v);
}
LANES_INLINE lanes_i lanes_i_round(lanes v) {
  return _mm512_cvtps_epi32(v);
}
LANES_INLINE lanes lanes_from_i(lanes_i v) {
  return _mm512_cvtepi32_ps(v);
}
LANES_INLINE int32_t lanes_i_sum(lanes_i v) {
  return _mm512_reduce_add_epi32(v);
}
LANES_INLINE int32_t lanes_i_largest(lanes_i v) {
  return _mm512_reduce_max_epi32(v);
}
/* In a register from here on: gcc would rather load the same memory for each of several shifts. */
#define lanes_i_keep(v) __asm__("" : "+v"(v))
#define lanes_i_right16(v, n) _mm512_srli_epi16(v, n)

/* s + the dot of each lane's 2 signed words with b[0..1], of its 4 unsigned bytes with b[0..3].
 * Assembly, because gcc knows no memory operand with {1to16} here and would spend a third of the
 * loop's instructions on broadcasts. */
LANES_INLINE lanes_i lanes_dot16_each(lanes_i s, lanes_i a, const int16_t *b) {
#if defined(__AVX512VNNI__)
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(a), "m"(*(const int16_t(*)[2])b));
  return s;
#else
  int32_t two;
  memcpy(&two, b, sizeof two);
  s = _mm512_add_epi32(s, _mm512_madd_epi16(a, _mm512_set1_epi32(two)));
  lanes_i_keep(s); /* else gcc sums the products of a block as a tree, which it has to spill */
  return s;
#endif
}
#if defined(__AVX512VNNI__)
#define LANES_DOT8 1
LANES_INLINE lanes_i lanes_dot8_each(lanes_i s, lanes_i a, const int8_t *b) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(a), "m"(*(const int8_t(*)[4])b));
  return s;
}
#endif

/* Codes of a panel as floats. A permutation reads only the low four bits of an index: no mask. */
typedef __m512 lanes_nibbles;
LANES_INLINE lanes_nibbles lanes_nibbles_minus(float offset) {
  const __m512 count = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_sub_ps(count, _mm512_set1_ps(offset));
}
#define lanes_nibble(v, shift, table) \
  _mm512_permutexvar_ps((shift) ? _mm512_srli_epi32(v, shift) : (v), table)
/* Byte t of each lane, minus 128. */
LANES_INLINE lanes_i lanes_bytes_minus_128(lanes_i v) {
  return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80));
}
#define lanes_byte(v, t) \
  _mm512_cvtepi32_ps(_mm512_srai_epi32((t) == 3 ? (v) : _mm512_slli_epi32(v, 24 - 8 * (t)), 24))

/* 16 values within 16 (8) bits: words in the order of kernel_block16, bytes in their own. */
LANES_INLINE void lanes_i_store_pairs(int16_t *p, lanes_i v) {
  const __m512i other = _mm512_slli_epi32(_mm512_shuffle_epi32(v, _MM_PERM_BADC), 16);
  const __m512i pairs = _mm512_mask_mov_epi16(v, 0xaaaaaaaau, other);
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6);
  const __m512i packed = _mm512_permutexvar_epi64(order, pairs);
  _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(packed));
}
LANES_INLINE void lanes_i_store_bytes(int8_t *p, lanes_i v) {
  _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v));
}

#endif
