/* mm_avx512bf16.c - PROMPT with VCVTNEPS2BF16. VDPBF16PS adds in another order: not used.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/mm.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/panel.h"
#include "kernel/x86/mm_ahead.h"
#include "kernel/x86/mm_lanes_avx512.h"
#include "kernel/x86/mm_rows.h"

#include "kernel/x86/mm_act.inc"
#include "kernel/x86/mm_unpack.inc"
#define VALUES(name) prompt_##name
#define VALUES_PROMPT 1
#include "kernel/x86/mm_values.inc"

void kernel_mm_fill_avx512bf16(kernel_table *out) {
  if (out->activations != KERNEL_DEFAULT) return;
  out->act[KERNEL_PROMPT] = act_prompt;
  memcpy(out->mm[KERNEL_PROMPT], prompt_mm_all, sizeof prompt_mm_all);
}

#endif
