/* attn_avx512.c - attention at level avx512: 32 registers hold 4 x 48 lanes of e and o chains (24),
 * three vectors of queries and a broadcast. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/x86/lanes_avx512.h"
#include "kernel/x86/attn_parts.h"

#define TILE_LANES 3
#define TILE_ROWS_MAX 8
#define TILE_ROWS(vectors) ((vectors) == 1 ? 8 : 4)
#define GEN_HEADS 4
#include "kernel/x86/attn_prompt.inc"
#include "kernel/x86/attn_gen.inc"

void attn_avx512_fill(kernel_table *table) {
  table->attn[KERNEL_PROMPT] = attn_prompt;
  table->attn[KERNEL_GEN] = attn_gen;
  table->attn_merge = attn_merge;
  table->attn_finish = attn_finish;
}
