/* q8_0.c - Q8_0: 32 weights of 8 bits around zero, one scale. 8.5 bits a weight.
 *
 *   byte 0    1    2            33
 *        [ d f16 ][ c0 ... c31 i8 ]
 *
 *   w = c * d
 *
 * The encoder rounds halves away from zero and never gives -128. Source of the layout and of the
 * rule: PyPI `gguf`, quants.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/formats.h"

void quant_Q8_0_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q8_0_BYTES, out += 32) {
    float d = quant_load_scale(block);
    for (int i = 0; i < 32; i++) out[i] = (float)(int8_t)block[2 + i] * d;
  }
}

/* Not x + 0.5 cut off: that sum rounds 0.49999997 up to 1. */
static int8_t round_half_away(float x) {
  float size = quant_abs(x);
  if (!(size < 128.0f)) return x != x ? 0 : (int8_t)(x < 0 ? -127 : 127);
  int whole = (int)size;
  if (size - (float)whole >= 0.5f) whole++;
  if (whole > 127) whole = 127;
  return (int8_t)(x < 0 ? -whole : whole);
}

void quant_Q8_0_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q8_0_BYTES, in += 32) {
    float largest = 0;
    for (int i = 0; i < 32; i++) {
      if (quant_abs(in[i]) > largest) largest = quant_abs(in[i]);
    }
    float d = largest / 127.0f;
    float inverse = d == 0 ? 0 : 1.0f / d;
    quant_store_u16(block, quant_f32_to_f16(d));
    for (int i = 0; i < 32; i++) block[2 + i] = (uint8_t)round_half_away(in[i] * inverse);
  }
}
