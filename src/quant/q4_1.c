/* q4_1.c - Q4_1: 32 weights of 4 bits above a minimum, one scale. 5 bits a weight.
 *
 *   byte 0    1    2    3    4                 19
 *        [ d f16 ][ m f16 ][ c0|c16 ... c15|c31 ]     lower nibble: weights 0-15, upper: 16-31
 *
 *   w = d * c + m      two roundings, no FMA
 *
 * Source of the layout and of the encoder's rule: PyPI `gguf`, quants.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/formats.h"

void quant_Q4_1_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q4_1_BYTES, out += 32) {
    float d = quant_load_scale(block);
    float m = quant_load_scale(block + 2);
    for (int i = 0; i < 16; i++) {
      uint8_t pair = block[4 + i];
      out[i] = d * (float)(pair & 15) + m;
      out[16 + i] = d * (float)(pair >> 4) + m;
    }
  }
}

void quant_Q4_1_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q4_1_BYTES, in += 32) {
    float low = in[0], high = in[0];
    for (int i = 1; i < 32; i++) {
      if (in[i] < low) low = in[i];
      if (in[i] > high) high = in[i];
    }
    float d = (high - low) / 15.0f;
    float inverse = d == 0 ? 0 : 1.0f / d;
    quant_store_u16(block, quant_f32_to_f16(d));
    quant_store_u16(block + 2, quant_f32_to_f16(low));
    for (int i = 0; i < 16; i++) {
      uint8_t first = quant_code((in[i] - low) * inverse + 0.5f, 15);
      uint8_t second = quant_code((in[16 + i] - low) * inverse + 0.5f, 15);
      block[4 + i] = (uint8_t)(first | second << 4);
    }
  }
}
