/* formats.h - what the format files of this room share: their prototypes and a few helpers.
 *
 * The helpers exist because C leaves float -> integer conversions undefined out of range, and an
 * encoder is handed whatever a user's model holds (NaN, infinity, a scale that overflowed).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUANT_FORMATS_H
#define QUANT_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#include "quant/quant.h"

#define QUANT_PROTOTYPES(name, number, elements, bytes)                        \
  void quant_##name##_decode(const void *blocks, float *out, size_t n_blocks); \
  void quant_##name##_encode(const float *in, void *blocks, size_t n_blocks);  \
  enum { QUANT_##name##_ELEMENTS = (elements), QUANT_##name##_BYTES = (bytes) };
QUANT_LIST(QUANT_PROTOTYPES)
#undef QUANT_PROTOTYPES

static inline uint16_t quant_load_u16(const uint8_t *p) {
  return (uint16_t)(p[0] | (uint32_t)p[1] << 8);
}

static inline void quant_store_u16(uint8_t *p, uint16_t value) {
  p[0] = (uint8_t)value;
  p[1] = (uint8_t)(value >> 8);
}

static inline float quant_load_scale(const uint8_t *p) {
  return quant_f16_to_f32(quant_load_u16(p));
}

static inline float quant_abs(float x) {
  return x < 0 ? -x : x;
}

/* The whole part of x, held to 0..last; NaN is 0. */
static inline uint8_t quant_code(float x, uint8_t last) {
  if (!(x > 0)) return 0;
  return x >= (float)last ? last : (uint8_t)x;
}

/* x rounded, halves away from zero, held to first..last; NaN is 0. */
static inline int quant_nearest(float x, int first, int last) {
  if (x >= (float)last) return last;
  if (x <= (float)first) return first;
  if (x >= 0) return (int)(x + 0.5f);
  return x < 0 ? -(int)(-x + 0.5f) : 0;
}

/* The largest half is 65504: a scale beyond it would decode to infinity, and infinity times 0 to
 * NaN. */
static inline float quant_half_range(float x) {
  if (x > 65504.0f) return 65504.0f;
  return x < -65504.0f ? -65504.0f : x;
}

#endif
