/* quant.h - weight formats of GGUF: what a block's bytes are, and the scalar code that defines
 * their value. One file per format; each begins with its byte diagram. decode is bit-exact to the
 * `gguf` Python package. Blocks are little-endian, packed, and need no alignment. Pure functions:
 * any thread, no allocation.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUANT_QUANT_H
#define QUANT_QUANT_H

#include <stddef.h>
#include <stdint.h>

/* Numbers are GGUF's. X(NAME, number, elements per block, bytes per block) */
#define QUANT_LIST(X)   \
  X(F32, 0, 1, 4)       \
  X(F16, 1, 1, 2)       \
  X(Q4_0, 2, 32, 18)    \
  X(Q4_1, 3, 32, 20)    \
  X(Q5_0, 6, 32, 22)    \
  X(Q8_0, 8, 32, 34)    \
  X(Q4_K, 12, 256, 144) \
  X(Q6_K, 14, 256, 210) \
  X(BF16, 30, 1, 2)

typedef enum quant_type {
#define QUANT_ENUM(name, number, elements, bytes) QUANT_##name = number,
  QUANT_LIST(QUANT_ENUM)
#undef QUANT_ENUM
} quant_type;

typedef struct quant_format {
  const char *name;
  uint32_t type, elements, bytes;
  void (*decode)(const void *blocks, float *out, size_t n_blocks);
  void (*encode)(const float *in, void *blocks, size_t n_blocks);
} quant_format;

const quant_format *quant_find(uint32_t type); /* NULL if we do not know it */
const quant_format *quant_list(size_t *count);

/* Exact conversions (round to nearest even; NaN stays NaN). */
float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f);
static inline float quant_bf16_to_f32(uint16_t h) {
  union {
    uint32_t u;
    float f;
  } v = {(uint32_t)h << 16};
  return v.f;
}
uint16_t quant_f32_to_bf16(float f);

#endif
