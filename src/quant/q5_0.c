/* q5_0.c - Q5_0: 32 weights of 5 bits around zero, one scale. 5.5 bits a weight.
 *
 *   byte 0    1    2         5    6                 21
 *        [ d f16 ][ fifth bits ][ c0|c16 ... c15|c31 ]     lower nibble: weights 0-15, upper: 16-31
 *
 *   fifth bits: little-endian u32, bit i belongs to weight i
 *   w = d * ((c | fifth << 4) - 16)
 *
 * Source of the layout and of the encoder's rule: PyPI `gguf`, quants.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/formats.h"

void quant_Q5_0_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q5_0_BYTES, out += 32) {
    float d = quant_load_scale(block);
    uint32_t fifth = quant_load_u16(block + 2) | (uint32_t)quant_load_u16(block + 4) << 16;
    for (int i = 0; i < 16; i++) {
      uint8_t pair = block[6 + i];
      int low = (pair & 15) | (int)(fifth >> i & 1) << 4;
      int high = pair >> 4 | (int)(fifth >> (16 + i) & 1) << 4;
      out[i] = d * (float)(low - 16);
      out[16 + i] = d * (float)(high - 16);
    }
  }
}

void quant_Q5_0_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q5_0_BYTES, in += 32) {
    float farthest = in[0];
    for (int i = 1; i < 32; i++) {
      if (quant_abs(in[i]) > quant_abs(farthest)) farthest = in[i];
    }
    float d = farthest / -16.0f;
    float inverse = d == 0 ? 0 : 1.0f / d;
    uint32_t fifth = 0;
    for (int i = 0; i < 16; i++) {
      uint32_t low = quant_code(in[i] * inverse + 16.5f, 31);
      uint32_t high = quant_code(in[16 + i] * inverse + 16.5f, 31);
      fifth |= low >> 4 << i | high >> 4 << (16 + i);
      block[6 + i] = (uint8_t)((low & 15) | (high & 15) << 4);
    }
    quant_store_u16(block, quant_f32_to_f16(d));
    quant_store_u16(block + 2, (uint16_t)fifth);
    quant_store_u16(block + 4, (uint16_t)(fifth >> 16));
  }
}
