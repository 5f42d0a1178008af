/* elem.h - the kernels over plain vectors: norm, rotary embedding, gates, adds, KV write, softmax.
 *
 * kernel.h defines each to the bit. What it leaves open and we fix here, so that every level
 * agrees:
 *
 * - A maximum passes over a NaN (b > a ? b : a) and a zero comes out as +0: no order of the
 *   comparisons shows. vec_max is a NaN if any element is.
 * - NaN payloads are not part of the definition.
 *
 * Every level fills the same pointers; elem_ref.c is the reference.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ELEM_H
#define KERNEL_ELEM_H

#include <stdint.h>
#include <string.h>

#include "kernel/kernel.h"

enum { ELEM_LANES = 16 };

/* Fills the pointers of this family by table->levels: the highest level that has them. */
void kernel_elem_fill(kernel_table *table);
/* One level each. */
void elem_ref_fill(kernel_table *table);
void elem_avx2_fill(kernel_table *table);
void elem_avx512_fill(kernel_table *table);

static inline float elem_max(float a, float b) {
  return b > a ? b : a;
}

/* v[i] + v[i+8], then +4, +2, +1: the one order in which 16 lanes are summed. */
static inline float elem_tree(const float lanes[ELEM_LANES]) {
  float sum[ELEM_LANES / 2];
  for (int i = 0; i < 8; i++) sum[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; i++) sum[i] += sum[i + 4];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* bf16(x) as a float: nearest even, a denormal becomes a zero of its sign, NaN stays (quiet). */
static inline float elem_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  uint32_t size = u & 0x7fffffff;
  if (size > 0x7f800000) {
    u = (u & 0xffff0000) | 0x400000;
  } else if (size < 0x00800000) {
    u &= 0x80000000;
  } else {
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
  }
  memcpy(&x, &u, sizeof x);
  return x;
}

#endif
