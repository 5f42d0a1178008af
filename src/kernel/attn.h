/* attn.h - attention of one KV head over the pages of one split, and the merge of splits.
 *
 * kernel.h defines both arithmetics to the bit. What it leaves open and we fix here, so that every level agrees and no
 * hidden slot, whatever bits lie in it, can show:
 *   max     starts at -1e30, passes over a NaN (b > a ? b : a) and is stored with zero as +0; a NaN score shows through
 *           exp in p, l and acc.
 *   acc     is stored as acc + 0: a sum that is zero is +0, so adding p = 0 for a hidden position changes nothing.
 *   pages   that no row sees are skipped; their entries in `pages` are not read. In a page that is read, every slot must
 *           hold finite numbers (0 * inf would be NaN): pools are zeroed once and kv_write saturates.
 *   bits    NaN payloads are not part of the definition.
 * Positions stay below 2^31.
 *
 * Cost per (row, head, position): 2 * head_dim fma and one exp. SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ATTN_H
#define KERNEL_ATTN_H

#include "kernel/elem.h"
#include "kernel/kernel.h"

#define ATTN_HIDDEN -1e30f /* m of a row that has seen nothing: exp(m - m') is 0, and m - m is no NaN */
enum { ATTN_HEAD_DIM_MAX = 256, ATTN_GROUP_MAX = 16 };

/* Fills the pointers of this family by table->levels and table->activations. */
void kernel_attn_fill(kernel_table *table);
/* One level: attn[PROMPT] (bf16 operands), attn[GEN] (fp32, any number of rows), merge and finish. */
void attn_ref_fill(kernel_table *table);
void attn_avx2_fill(kernel_table *table);
void attn_avx512_fill(kernel_table *table);
void attn_avx512bf16_fill(kernel_table *table);

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

/* Where the pages that any row of [row, row + rows) sees begin; the last ends at attn_end of the last row. */
static inline uint32_t attn_page_first(const kernel_attn *a, uint32_t row) {
  return attn_first(a, row) & ~(uint32_t)(KERNEL_PAGE - 1);
}

static inline const uint16_t *attn_page(const kernel_attn *a, uint32_t t) {
  return (const uint16_t *)(a->pool + a->pages[t / KERNEL_PAGE] * a->page_bytes + a->head_offset);
}

#endif
