/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of encoded blocks, and tensors drawn from them: see synth.h. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/synth.h"
#include "quant/quant.h"

enum { POOL_BYTES_MAX = 1 << 18, CHUNK = 4096 };
/* SplitMix64's step, the golden ratio: numbers i * STEP are well spread before they are hashed. */
#define STEP UINT64_C(0x9e3779b97f4a7c15)

/* Bell-shaped by the sum of four uniform numbers of 16 bits. Whole numbers until the last product:
 * no libm, whose last bits differ between machines. */
static float bell(uint64_t random, float unit) {
  int sum = 0;
  for (int i = 0; i < 4; i++) sum += (int)(random >> (16 * i) & 0xffff);
  return (float)(sum - 2 * 0xffff) * unit;
}

bool synth_pool_create(uint32_t type, float deviation, uint64_t key, synth_pool *out) {
  const quant_format *format = quant_find(type);
  const float sum_deviation = 37837.23f; /* sqrt(4 (65536^2 - 1) / 12) */
  synth_pool pool = {.type = type,
                     .deviation = deviation,
                     .block_bytes = format->bytes,
                     .block_elements = format->elements};
  while (pool.block_bytes << (pool.bits + 1) <= POOL_BYTES_MAX) pool.bits++;
  size_t blocks = (size_t)1 << pool.bits, at_once = CHUNK / pool.block_elements;
  pool.blocks = malloc(blocks * pool.block_bytes);
  if (!pool.blocks) return false;
  float values[CHUNK];
  for (size_t b = 0; b < blocks; b += at_once) {
    for (size_t i = 0; i < CHUNK; i++) {
      uint64_t number = (uint64_t)b * pool.block_elements + i + 1;
      values[i] = bell(synth_hash(key + number * STEP), deviation / sum_deviation);
    }
    format->encode(values, pool.blocks + b * pool.block_bytes, at_once);
  }
  *out = pool;
  return true;
}

void synth_pool_free(synth_pool *pool) {
  free(pool->blocks);
  pool->blocks = NULL;
}

/* Inlined with `bytes` known: a copy of a few words then, not a call. */
static inline void draw(const synth_pool *pool, uint64_t key, uint64_t first, uint8_t *out,
                        size_t n, size_t bytes) {
  unsigned shift = 64 - pool->bits;
  for (size_t i = 0; i < n; i++, out += bytes) {
    uint64_t which = synth_hash(key + (first + i + 1) * STEP) >> shift;
    memcpy(out, pool->blocks + which * bytes, bytes);
  }
}

void synth_pool_draw(const synth_pool *pool, uint64_t key, uint64_t first, uint8_t *out, size_t n) {
  switch (pool->type) {
#define DRAW_CASE(name, number, elements, bytes) \
  case number:                                   \
    draw(pool, key, first, out, n, bytes);       \
    break;
    QUANT_LIST(DRAW_CASE)
#undef DRAW_CASE
    default:
      CHECK(false); /* synth_pool_create knew it */
  }
}
