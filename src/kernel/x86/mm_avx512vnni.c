/* mm_avx512vnni.c - integer kernels for AVX512-VNNI: words by VPDPWSSD, bytes by VPDPBUSD.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/mm.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/panel.h"
#include "kernel/x86/mm_ahead.h"
#include "kernel/x86/mm_lanes_avx512.h"
#include "kernel/x86/mm_rows.h"

#include "kernel/x86/mm_act.inc"
#include "kernel/x86/mm_words.inc"
#include "kernel/x86/mm_bytes.inc"

void kernel_mm_fill_avx512vnni(kernel_table *out) {
  if (out->activations == KERNEL_DEFAULT) {
    out->act[KERNEL_GEN] = act_gen;
    words_fill(out, KERNEL_GEN);
  }
  for (int arith = 0; arith < 2 && out->activations == KERNEL_INT8; arith++) {
    out->act[arith] = act_int8_bytes;
    bytes_fill(out, (kernel_arith)arith);
  }
}

#endif
