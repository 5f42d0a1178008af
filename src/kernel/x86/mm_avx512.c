/* mm_avx512.c - matrix kernels for AVX-512 F, BW, VL, DQ: words by VPMADDWD.
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
#define VALUES(name) float_##name
#define VALUES_PROMPT 0
#include "kernel/x86/mm_values.inc"
#include "kernel/x86/mm_words.inc"

void kernel_mm_fill_avx512(kernel_table *out) {
  for (int arith = 0; arith < 2; arith++) {
    for (int pack = 0; pack < PACK_COUNT; pack++)
      if (out->act_float[arith][pack]) out->mm[arith][pack] = float_mm_all[pack];
    if (out->activations != KERNEL_INT8) continue;
    out->act[arith] = act_int8_words;
    words_fill(out, (kernel_arith)arith);
  }
  if (out->activations != KERNEL_DEFAULT) return;
  out->act[KERNEL_PROMPT] = act_prompt;
  memcpy(out->mm[KERNEL_PROMPT], prompt_mm_all, sizeof prompt_mm_all);
  out->act[KERNEL_GEN] = act_gen;
  words_fill(out, KERNEL_GEN);
}

#endif
