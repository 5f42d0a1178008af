/* q4_k.c - Q4_K: 256 weights in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
 * 4.5 bits a weight.
 *
 *   byte 0    1    2       3    4         15   16          47                112         143
 *        [ d f16 ][ dmin f16 ][ scales     ][ groups 0|1    ] ... [ groups 6|7              ]
 *
 *   codes: 4 runs of 32 bytes; run r, byte i: lower nibble is weight i of group 2r, upper
 *          nibble weight i of group 2r+1
 *   scales: s and m are scale and minimum of a group; for g = 0..3
 *     byte g     s[g+4] bits 5-4 | s[g]
 *     byte g+4   m[g+4] bits 5-4 | m[g]
 *     byte g+8   m[g+4] bits 3-0 | s[g+4] bits 3-0
 *
 *   w = (d * s) * c - (dmin * m)      four roundings, no FMA
 *
 * The encoder tries 21 step widths per group, solves scale and minimum by least squares for each
 * one's codes, keeps the best, rounds scales and minima to 6 bits and codes the weights again with
 * what was stored. About 10,000 operations a group. Source of the layout: PyPI `gguf`, quants.py
 * (it has no encoder; this one is ours).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "quant/formats.h"

enum { GROUPS = 8, GROUP = 32 };

static void unpack_scales(const uint8_t *packed, uint8_t *scale, uint8_t *minimum) {
  for (int g = 0; g < 4; g++) {
    uint8_t s = packed[g], m = packed[4 + g], low = packed[8 + g];
    scale[g] = s & 63;
    minimum[g] = m & 63;
    scale[4 + g] = (uint8_t)((low & 15) | (s >> 6) << 4);
    minimum[4 + g] = (uint8_t)(low >> 4 | (m >> 6) << 4);
  }
}

static void pack_scales(const uint8_t *scale, const uint8_t *minimum, uint8_t *packed) {
  for (int g = 0; g < 4; g++) {
    packed[g] = (uint8_t)(scale[g] | (scale[4 + g] >> 4) << 6);
    packed[4 + g] = (uint8_t)(minimum[g] | (minimum[4 + g] >> 4) << 6);
    packed[8 + g] = (uint8_t)((scale[4 + g] & 15) | (minimum[4 + g] & 15) << 4);
  }
}

void quant_Q4_K_decode(const void *blocks, float *out, size_t n_blocks) {
  const uint8_t *block = blocks;
  for (size_t b = 0; b < n_blocks; b++, block += QUANT_Q4_K_BYTES) {
    float d = quant_load_scale(block);
    float dmin = quant_load_scale(block + 2);
    uint8_t scale[GROUPS], minimum[GROUPS];
    unpack_scales(block + 4, scale, minimum);
    for (int g = 0; g < GROUPS; g++, out += GROUP) {
      const uint8_t *codes = block + 16 + g / 2 * GROUP;
      float step = d * (float)scale[g];
      float below = dmin * (float)minimum[g];
      int shift = g % 2 * 4;
      for (int i = 0; i < GROUP; i++) out[i] = step * (float)(codes[i] >> shift & 15) - below;
    }
  }
}

typedef struct fit {
  float step, offset; /* w = step * c + offset, step >= 0 >= offset */
} fit;

/* Best step and offset for codes that a step of 1/inverse gives; the squared error through *error.
 */
static fit solve_fit(const float *x, float low, float inverse, float *error) {
  float n = GROUP, sum_c = 0, sum_cc = 0, sum_x = 0, sum_cx = 0;
  uint8_t code[GROUP];
  for (int i = 0; i < GROUP; i++) {
    code[i] = quant_code((x[i] - low) * inverse + 0.5f, 15);
    float c = code[i];
    sum_c += c;
    sum_cc += c * c;
    sum_x += x[i];
    sum_cx += c * x[i];
  }
  fit f = {0, 0};
  float determinant = n * sum_cc - sum_c * sum_c;
  if (determinant > 0) {
    f.step = (n * sum_cx - sum_c * sum_x) / determinant;
    f.offset = (sum_cc * sum_x - sum_c * sum_cx) / determinant;
  }
  if (!(f.offset <= 0)) { /* a minimum is subtracted, so it cannot lift the range above zero */
    f.offset = 0;
    f.step = sum_cc > 0 ? sum_cx / sum_cc : 0;
  }
  if (!(f.step >= 0)) f.step = 0;
  *error = 0;
  for (int i = 0; i < GROUP; i++) {
    float miss = f.step * (float)code[i] + f.offset - x[i];
    *error += miss * miss;
  }
  return f;
}

static fit search_fit(const float *x) {
  float low = 0, high = x[0];
  for (int i = 0; i < GROUP; i++) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
  }
  fit best = {(high - low) / 15.0f, low};
  if (!(high > low)) return (fit){0, low};
  float least = 0;
  for (int k = -10; k <= 10; k++) {
    float error;
    fit f = solve_fit(x, low, (15.0f + 0.1f * (float)k) / (high - low), &error);
    if (k == -10 || error < least) {
      least = error;
      best = f;
    }
  }
  return best;
}

static void encode_block(const float *in, uint8_t *block) {
  fit fits[GROUPS];
  float most_step = 0, most_below = 0;
  for (int g = 0; g < GROUPS; g++) {
    fits[g] = search_fit(in + g * GROUP);
    if (fits[g].step > most_step) most_step = fits[g].step;
    if (-fits[g].offset > most_below) most_below = -fits[g].offset;
  }
  uint16_t d_half = quant_f32_to_f16(quant_half_range(most_step / 63.0f));
  uint16_t dmin_half = quant_f32_to_f16(quant_half_range(most_below / 63.0f));
  float d = quant_f16_to_f32(d_half), dmin = quant_f16_to_f32(dmin_half);
  uint8_t scale[GROUPS], minimum[GROUPS];
  memset(block + 16, 0, QUANT_Q4_K_BYTES - 16);
  for (int g = 0; g < GROUPS; g++) {
    scale[g] = d > 0 ? quant_code(fits[g].step / d + 0.5f, 63) : 0;
    minimum[g] = dmin > 0 ? quant_code(-fits[g].offset / dmin + 0.5f, 63) : 0;
    float step = d * (float)scale[g], below = dmin * (float)minimum[g];
    uint8_t *codes = block + 16 + g / 2 * GROUP;
    for (int i = 0; i < GROUP; i++) {
      float steps = step > 0 ? (in[g * GROUP + i] + below) / step : 0;
      codes[i] |= (uint8_t)(quant_code(steps + 0.5f, 15) << (g % 2 * 4));
    }
  }
  quant_store_u16(block, d_half);
  quant_store_u16(block + 2, dmin_half);
  pack_scales(scale, minimum, block + 4);
}

void quant_Q4_K_encode(const float *in, void *blocks, size_t n_blocks) {
  for (size_t b = 0; b < n_blocks; b++) {
    encode_block(in + b * QUANT_Q4_K_ELEMENTS, (uint8_t *)blocks + b * QUANT_Q4_K_BYTES);
  }
}
