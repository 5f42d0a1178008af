/* table.c - one table of the best kernels within a mask.
 *
 * Each family fills its part from the scalar references upwards; a level that is not in the mask,
 * or not in the processor, is stepped over. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "kernel/attn.h"
#include "kernel/elem.h"
#include "kernel/kernel.h"
#include "kernel/mm.h"

void kernel_mm_fill(kernel_table *out) {
  const uint32_t levels = out->levels;
  kernel_mm_fill_ref(out);
#if defined(__x86_64__)
  if (levels & 1u << KERNEL_BIT_AVX2) {
    kernel_mm_fill_avx2(out);
    if (levels & 1u << KERNEL_BIT_AVXVNNI) kernel_mm_fill_avxvnni(out);
  }
  if (!(levels & 1u << KERNEL_BIT_AVX512)) return;
  kernel_mm_fill_avx512(out);
  if (!(levels & 1u << KERNEL_BIT_AVX512VNNI)) return;
  kernel_mm_fill_avx512vnni(out);
  if (!(levels & 1u << KERNEL_BIT_AVX512BF16)) return;
  kernel_mm_fill_avx512bf16(out);
#else
  (void)levels;
#endif
}

static const char *level_name(uint32_t levels) {
  const char *name = "scalar";
#define KERNEL_LEVEL_NAME(level, text) \
  if (levels & 1u << KERNEL_BIT_##level) name = text;
  KERNEL_LEVEL_LIST(KERNEL_LEVEL_NAME)
#undef KERNEL_LEVEL_NAME
  return name;
}

/* A level without the one it builds on says nothing. */
static uint32_t levels_complete(uint32_t levels) {
  if (!(levels & 1u << KERNEL_BIT_AVX2)) levels &= ~(1u << KERNEL_BIT_AVXVNNI);
  if (!(levels & 1u << KERNEL_BIT_AVX512)) levels &= ~(1u << KERNEL_BIT_AVX512VNNI);
  if (!(levels & 1u << KERNEL_BIT_AVX512VNNI)) levels &= ~(1u << KERNEL_BIT_AVX512BF16);
  return levels;
}

void kernel_table_init(kernel_table *out, kernel_activations activations, uint32_t mask) {
  static const char *const sets[KERNEL_ACTIVATIONS_COUNT] = {"default", "float", "int8"};
  CHECK((unsigned)activations < KERNEL_ACTIVATIONS_COUNT);
  memset(out, 0, sizeof *out);
  out->activations = activations;
  out->levels = levels_complete(mask & kernel_cpu_levels());
  snprintf(out->name, sizeof out->name, "%s %s", sets[activations], level_name(out->levels));
  kernel_mm_fill(out);
  kernel_attn_fill(out);
  kernel_elem_fill(out);
}
