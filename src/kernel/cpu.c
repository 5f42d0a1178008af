/* cpu.c - what the processor and its operating system offer, and the mask people write.
 *
 * A level counts only if every instruction set below it in its family is there too and the
 * operating system saves the registers (XCR0), because a kernel file is compiled for the whole
 * family. Source: Intel SDM vol. 2, CPUID; vol. 1, 13.3. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernel/kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum {
  XCR0_AVX = 0x06,   /* SSE and AVX state */
  XCR0_AVX512 = 0xe6 /* + mask registers, both halves of the large file */
};

static uint32_t xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static bool has(uint32_t word, uint32_t bits) {
  return (word & bits) == bits;
}

uint32_t kernel_cpu_levels(void) {
  uint32_t a, b, c, d, levels = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const uint32_t need1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA, OSXSAVE, AVX, F16C */
  if (!has(c, need1) || !has(xcr0(), XCR0_AVX)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  const uint32_t subleaves = a, b7 = b, c7 = c;
  uint32_t a71 = 0;
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;

  if (!has(b7, 1u << 5 | 1u << 8)) return 0; /* AVX2, BMI2 */
  levels |= 1u << KERNEL_BIT_AVX2;
  if (has(a71, 1u << 4)) levels |= 1u << KERNEL_BIT_AVXVNNI;

  /* F, DQ, CD, BW, VL */
  if (!has(b7, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)) return levels;
  if (!has(xcr0(), XCR0_AVX512)) return levels;
  levels |= 1u << KERNEL_BIT_AVX512;
  if (!has(c7, 1u << 11)) return levels;
  levels |= 1u << KERNEL_BIT_AVX512VNNI;
  if (has(a71, 1u << 5)) levels |= 1u << KERNEL_BIT_AVX512BF16;
  return levels;
}

#else

uint32_t kernel_cpu_levels(void) {
  return 0;
}

#endif

static bool word_bits(const char *word, size_t len, uint32_t *bits) {
  static const struct {
    const char *name;
    uint32_t bits;
  } words[] = {
#define KERNEL_LEVEL_WORD(name, text) {text, 1u << KERNEL_BIT_##name},
      KERNEL_LEVEL_LIST(KERNEL_LEVEL_WORD)
#undef KERNEL_LEVEL_WORD
          {"all", KERNEL_MASK_ALL},
      {"scalar", 0},
  };
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (strlen(words[i].name) == len && memcmp(words[i].name, word, len) == 0) {
      *bits = words[i].bits;
      return true;
    }
  }
  return false;
}

bool kernel_mask_parse(const char *text, uint32_t *mask) {
  uint32_t all = 0;
  for (const char *word = text;;) {
    const size_t len = strcspn(word, ",");
    uint32_t bits;
    if (!word_bits(word, len, &bits)) return false;
    all |= bits;
    if (word[len] == '\0') break;
    word += len + 1;
  }
  /* A level stands on those below it: naming one alone must not switch everything off. */
  if (all & 1u << KERNEL_BIT_AVX512BF16) all |= 1u << KERNEL_BIT_AVX512VNNI;
  if (all & 1u << KERNEL_BIT_AVX512VNNI) all |= 1u << KERNEL_BIT_AVX512;
  if (all & (1u << KERNEL_BIT_AVX512 | 1u << KERNEL_BIT_AVXVNNI)) all |= 1u << KERNEL_BIT_AVX2;
  *mask = all;
  return true;
}
