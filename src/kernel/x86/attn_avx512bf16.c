/* attn_avx512bf16.c - attn_prompt.inc with the conversion instruction: the same tiles as avx512.
 * Its dot product instruction does not serve: it rounds in another order than PROMPT's.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/x86/lanes_avx512.h"
#include "kernel/x86/attn_parts.h"

#define TILE_LANES 3
#define TILE_ROWS_MAX 8
#define TILE_ROWS(vectors) ((vectors) == 1 ? 8 : 4)
#include "kernel/x86/attn_prompt.inc"

void attn_avx512bf16_fill(kernel_table *table) {
  table->attn[KERNEL_PROMPT] = attn_prompt;
}
