/* floats.c - F32, F16 and BF16: one element is one block.
 *
 *   F32    seeeeeee emmmmmmm mmmmmmmm mmmmmmmm    4 bytes, little-endian
 *   F16    seeeeemm mmmmmmmm                      2 bytes; exponent bias 15, subnormals of 2^-24
 *   BF16   seeeeeee emmmmmmm                      2 bytes: the upper half of an F32
 *
 * Conversions are integer code, so that they are exact whatever the processor's rounding and
 * flush-to-zero modes are. NaN comes out quiet with the bits of its payload that fit, as the F16C
 * instructions do it. Source: IEEE 754-2019, 3.4 and 4.3.1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "quant/formats.h"

static uint32_t bits_of_float(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static float float_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

float quant_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  uint32_t exponent = (h >> 10) & 31;
  uint32_t mantissa = h & 0x3ff;
  if (exponent == 31) {
    uint32_t quiet = mantissa ? 0x400000 : 0;
    return float_of_bits(sign | 0x7f800000 | quiet | mantissa << 13);
  }
  if (exponent == 0) {
    if (mantissa == 0) return float_of_bits(sign);
    exponent = 1;
    while (!(mantissa & 0x400)) { /* at most ten steps: F32 has a normal number for each */
      mantissa <<= 1;
      exponent--;
    }
    mantissa &= 0x3ff;
  }
  return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t quant_f32_to_f16(float f) {
  uint32_t u = bits_of_float(f);
  uint32_t sign = (u >> 16) & 0x8000;
  uint32_t size = u & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((size >> 13) & 0x1ff));
  if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and up */
  if (size >=
      0x38800000) { /* 2^-14: a carry of the rounding runs into the exponent, up to infinity */
    uint32_t rebased = size - (112u << 23);
    return (uint16_t)(sign | (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13);
  }
  if (size < 0x33000000) return (uint16_t)sign; /* below half of the smallest subnormal */
  uint32_t shift = 126 - (size >> 23);          /* 14 to 24 */
  uint32_t mantissa = (size & 0x7fffff) | 0x800000;
  uint32_t half = 1u << (shift - 1);
  return (uint16_t)(sign | (mantissa + half - 1 + ((mantissa >> shift) & 1)) >> shift);
}

uint16_t quant_f32_to_bf16(float f) {
  uint32_t u = bits_of_float(f);
  if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

void quant_F32_decode(const void *blocks, float *out, size_t n_blocks) {
  if (n_blocks) memcpy(out, blocks, n_blocks * sizeof *out);
}

void quant_F32_encode(const float *in, void *blocks, size_t n_blocks) {
  if (n_blocks) memcpy(blocks, in, n_blocks * sizeof *in);
}

void quant_F16_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t i = 0; i < n_blocks; i++) out[i] = quant_load_scale(block + 2 * i);
}

void quant_F16_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t i = 0; i < n_blocks; i++) quant_store_u16(block + 2 * i, quant_f32_to_f16(in[i]));
}

void quant_BF16_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t i = 0; i < n_blocks; i++) out[i] = quant_bf16_to_f32(quant_load_u16(block + 2 * i));
}

void quant_BF16_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t i = 0; i < n_blocks; i++) quant_store_u16(block + 2 * i, quant_f32_to_bf16(in[i]));
}
