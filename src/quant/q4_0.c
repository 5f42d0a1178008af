/* q4_0.c - Q4_0: 32 weights of 4 bits around zero, one scale. 4.5 bits a weight.
 *
 *   byte 0    1    2                 17
 *        [ d f16 ][ c0|c16 ... c15|c31 ]     lower nibble: weights 0-15, upper: 16-31
 *
 *   w = d * (c - 8)
 *
 * The encoder gives the weight that is farthest from zero the code 0 (-8, the end of the range that
 * has one step more). Encode: 3 operations a weight. Source of the layout and of the rule: PyPI
 * `gguf`, quants.py.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/formats.h"

void quant_Q4_0_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q4_0_BYTES, out += 32) {
    float d = quant_load_scale(block);
    for (int i = 0; i < 16; i++) {
      uint8_t pair = block[2 + i];
      out[i] = d * (float)((pair & 15) - 8);
      out[16 + i] = d * (float)((pair >> 4) - 8);
    }
  }
}

void quant_Q4_0_encode(const float *in, void *blocks, size_t n_blocks) {
  uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q4_0_BYTES, in += 32) {
    float farthest = in[0];
    for (int i = 1; i < 32; i++) {
      if (quant_abs(in[i]) > quant_abs(farthest)) farthest = in[i];
    }
    float d = farthest / -8.0f;
    float inverse = d == 0 ? 0 : 1.0f / d;
    quant_store_u16(block, quant_f32_to_f16(d));
    for (int i = 0; i < 16; i++) {
      uint8_t low = quant_code(in[i] * inverse + 8.5f, 15);
      uint8_t high = quant_code(in[16 + i] * inverse + 8.5f, 15);
      block[2 + i] = (uint8_t)(low | high << 4);
    }
  }
}
