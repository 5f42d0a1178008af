/* mm.h - the matrix kernels of the table: their shared activation forms, and one fill per level.
 *
 * A fill overwrites what its level does better. act and mm of one arithmetic are always set by the
 * same fill or share a form, so they agree whatever the mask. SPDX-License-Identifier: Apache-2.0
 */
#ifndef KERNEL_MM_H
#define KERNEL_MM_H

#include "kernel/kernel.h"

/* Each level's part of the table; within, `out->levels` says which of them may be called. */
void kernel_mm_fill(kernel_table *out);
void kernel_mm_fill_ref(kernel_table *out);
void kernel_mm_fill_avx2(kernel_table *out);
void kernel_mm_fill_avxvnni(kernel_table *out);
void kernel_mm_fill_avx512(kernel_table *out);
void kernel_mm_fill_avx512vnni(kernel_table *out);
void kernel_mm_fill_avx512bf16(kernel_table *out);

/* PROMPT's activation row: K floats already rounded to bf16. FLOAT's: the row itself.
 *
 * GEN's (and INT8's where a level has no one-byte dot): one of these per 32 values of k, 128 bytes.
 *   q      16-bit values in the order that codes leave a panel by masking alone: for each four
 * values 4j..4j+3 the pairs (4j, 4j+2) and (4j+1, 4j+3), so no shuffle stands in the inner loop
 *   start  what S begins with, so that sum(code * q) over raw unsigned codes becomes sum((code -
 * offset) * q) */
typedef struct kernel_block16 {
  int16_t q[32];
  float d, sum;         /* scale; f(A) */
  int32_t start_u4;     /* -8 A */
  int32_t start_u8;     /* -128 A */
  int32_t start_u8k[2]; /* -128 A of each half */
  uint8_t unused[40];
} kernel_block16;

/* INT8's on levels that multiply unsigned by signed bytes: 64 bytes, q in natural order. */
typedef struct kernel_block8 {
  int8_t q[32];
  float d, sum;
  int32_t start_u4, start_u8, start_u8k[2];
  uint8_t unused[8];
} kernel_block8;

_Static_assert(sizeof(kernel_block16) == 128 && sizeof(kernel_block8) == 64, "whole cache lines");

/* Place of value k (0..31) in kernel_block16.q. */
static inline unsigned kernel_block16_place(unsigned k) {
  return (k & ~3u) + (k & 1) * 2 + (k >> 1 & 1);
}

/* K is unpacked in chunks of at most this many values, two panels at once: 32 KiB, which stays in
 * the first-level cache together with the rows of a tile. */
enum { KERNEL_MM_CHUNK = 256 };

#endif
