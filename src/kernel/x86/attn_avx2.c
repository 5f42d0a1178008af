/* attn_avx2.c - attention at level avx2: 16 registers hold 3 x 16 lanes of e and o chains (12), one
 * v16 of queries (2) and a broadcast. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/x86/lanes_avx2.h"
#include "kernel/x86/attn_parts.h"

#define TILE_LANES 1
#define TILE_ROWS_MAX 3
#define TILE_ROWS(vectors) 3
#define GEN_HEADS 3
#include "kernel/x86/attn_prompt.inc"
#include "kernel/x86/attn_gen.inc"

void attn_avx2_fill(kernel_table *table) {
  table->attn[KERNEL_PROMPT] = attn_prompt;
  table->attn[KERNEL_GEN] = attn_gen;
  table->attn_merge = attn_merge;
  table->attn_finish = attn_finish;
}
