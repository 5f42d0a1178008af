/* attn.h - attention of one KV head over the pages of one split, and the merge of splits.
 *
 * kernel.h defines both arithmetics to the bit. What it leaves open and we fix here, so that every
 * level agrees and no hidden slot, whatever bits lie in it, can show:
 *
 * - max starts at -1e30, passes over a NaN (b > a ? b : a) and is stored with zero as +0; a NaN
 *   score shows through exp in p, l and acc.
 * - acc is stored as acc + 0: a sum that is zero is +0, so p = 0 for a hidden position adds
 * nothing.
 * - Pages that no row of the call sees are skipped; their entries in `pages` are not read.
 * - A slot that no row of the call sees may hold anything, also a NaN that an earlier owner of the
 *   page left there: its value is taken as 0. One that a later row of a PROMPT call sees must be
 *   finite (0 * inf is NaN); it belongs to the same sequence.
 * - NaN payloads are not part of the definition. Positions stay below 2^31.
 *
 * Cost per (row, head, position): 2 * head_dim fma and one exp.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ATTN_H
#define KERNEL_ATTN_H

#include "kernel/elem.h"
#include "kernel/kernel.h"

/* m of a row that has seen nothing: exp(m - m') is 0, and m - m is no NaN. */
#define ATTN_HIDDEN -1e30f
enum {
  ATTN_HEAD_DIM_MAX = 256,
  ATTN_GROUP_MAX = 16,
  ATTN_UNIT_LANES = 48 /* most queries that a level takes through a page at once */
};

/* Fills the pointers of this family by table->levels and table->activations. */
void kernel_attn_fill(kernel_table *table);
/* One level each. attn[GEN] takes any number of rows here, for the `float` kernel set. */
void attn_ref_fill(kernel_table *table);
void attn_avx2_fill(kernel_table *table);
void attn_avx512_fill(kernel_table *table);
void attn_avx512bf16_fill(kernel_table *table); /* attn[PROMPT] only */

/* First and one past the last position of [t0, t1) that row i sees; equal or crossed if none. */
static inline uint32_t attn_first(const kernel_attn *a, uint32_t row) {
  uint32_t pos = a->pos0 + row;
  uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
  return first > a->t0 ? first : a->t0;
}

static inline uint32_t attn_end(const kernel_attn *a, uint32_t row) {
  uint32_t end = a->pos0 + row + 1;
  return end < a->t1 ? end : a->t1;
}

/* The page at which a walk up to `end` begins: no walk at all if `first` is not before it. */
static inline uint32_t attn_page_first(uint32_t first, uint32_t end) {
  return first < end ? first & ~(uint32_t)(KERNEL_PAGE - 1) : end;
}

static inline const uint16_t *attn_page(const kernel_attn *a, uint32_t t) {
  return (const uint16_t *)(a->pool + a->pages[t / KERNEL_PAGE] * a->page_bytes + a->head_offset);
}

/* The values [head_dim][32] of the page of t, with the slots outside [first, end) zeroed in `copy`
 * (as large as the page's values) if there are any. */
const uint16_t *attn_values_seen(const kernel_attn *a, uint32_t t, uint32_t first, uint32_t end,
                                 uint16_t *copy);

#endif
