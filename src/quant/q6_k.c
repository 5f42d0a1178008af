/* q6_k.c - Q6_K: 256 weights in 16 groups of 16, each with an 8-bit scale. 6.5625 bits a weight.
 *
 *   byte 0            127   128          191   192          207   208   209
 *        [ lower 4 bits   ][ upper 2 bits    ][ scales i8       ][ d f16  ]
 *
 *   weight i of half h (128 weights each):
 *     lower   byte      64 h + i % 64, nibble i / 64
 *     upper   byte 128 + 32 h + i % 32, bits 2 (i / 32) and the next
 *     scale   byte 192 + (128 h + i) / 16
 *
 *   w = (d * scale) * ((lower | upper << 4) - 32)
 *
 * The encoder tries 19 step widths per group around the one that gives the weight farthest from
 * zero the code -32, takes the least-squares step of each one's codes, keeps the best, rounds the
 * steps to 8 bits and codes again. About 2,500 operations a group. Source of the layout: PyPI
 * `gguf`, quants.py (it has no encoder; this one is ours).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "quant/formats.h"

enum { GROUPS = 16, GROUP = 16, UPPER = 128, SCALES = 192, STEP = 208 };

void quant_Q6_K_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q6_K_BYTES, out += QUANT_Q6_K_ELEMENTS) {
    float d = quant_load_scale(block + STEP);
    for (int g = 0; g < GROUPS; g++) {
      int half = g / 8, first = g % 8 * GROUP; /* first: weight within the half */
      const uint8_t *lower = block + 64 * half + first % 64;
      const uint8_t *upper = block + UPPER + 32 * half + first % 32;
      int lower_shift = first / 64 * 4, upper_shift = first / 32 * 2;
      float step = d * (float)(int8_t)block[SCALES + g];
      for (int i = 0; i < GROUP; i++) {
        int code = (lower[i] >> lower_shift & 15) | (upper[i] >> upper_shift & 3) << 4;
        out[g * GROUP + i] = step * (float)(code - 32);
      }
    }
  }
}

/* Step of the group that leaves the least squared error; may be negative. */
static float search_step(const float *x) {
  float farthest = x[0];
  for (int i = 1; i < GROUP; i++) {
    if (quant_abs(x[i]) > quant_abs(farthest)) farthest = x[i];
  }
  float best = farthest / -32.0f, most = 0;
  if (farthest == 0) return 0;
  for (int k = -9; k <= 9; k++) {
    float inverse = -(32.0f + 0.1f * (float)k) / farthest;
    float sum_cx = 0, sum_cc = 0;
    for (int i = 0; i < GROUP; i++) {
      float c = (float)quant_nearest(x[i] * inverse, -32, 31);
      sum_cx += c * x[i];
      sum_cc += c * c;
    }
    /* The error is sum x^2 less sum_cx^2 / sum_cc, so the largest quotient wins. */
    float explained = sum_cc > 0 ? sum_cx * (sum_cx / sum_cc) : 0;
    if (explained > most) {
      most = explained;
      best = sum_cx / sum_cc;
    }
  }
  return best;
}

static void encode_block(const float *in, uint8_t *block) {
  float steps[GROUPS], farthest = 0;
  for (int g = 0; g < GROUPS; g++) {
    steps[g] = search_step(in + g * GROUP);
    if (quant_abs(steps[g]) > quant_abs(farthest)) farthest = steps[g];
  }
  uint16_t d_half = quant_f32_to_f16(quant_half_range(farthest / -128.0f));
  float d = quant_f16_to_f32(d_half);
  memset(block, 0, QUANT_Q6_K_BYTES);
  quant_store_u16(block + STEP, d_half);
  for (int g = 0; g < GROUPS; g++) {
    int scale = d != 0 ? quant_nearest(steps[g] / d, -128, 127) : 0;
    float step = d * (float)scale;
    int half = g / 8, first = g % 8 * GROUP;
    uint8_t *lower = block + 64 * half + first % 64;
    uint8_t *upper = block + UPPER + 32 * half + first % 32;
    block[SCALES + g] = (uint8_t)(int8_t)scale;
    for (int i = 0; i < GROUP; i++) {
      float exact = step != 0 ? in[g * GROUP + i] / step : 0;
      int code = quant_nearest(exact, -32, 31) + 32;
      lower[i] |= (uint8_t)((code & 15) << (first / 64 * 4));
      upper[i] |= (uint8_t)((code >> 4) << (first / 32 * 2));
    }
  }
}

void quant_Q6_K_encode(const float *in, void *blocks, size_t n_blocks) {
  for (size_t b = 0; b < n_blocks; b++) {
    encode_block(in + b * QUANT_Q6_K_ELEMENTS, (uint8_t *)blocks + b * QUANT_Q6_K_BYTES);
  }
}
