/* support.c - see support.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

uint8_t *golden_read(const char *name, size_t *len) {
  char path[1024];
  snprintf(path, sizeof path, "%s/golden/quant/%s", TEST_DATA, name);
  FILE *in = fopen(path, "rb");
  if (!in) fail_msg("%s is missing: tools/gguf_golden.py makes it", path);
  uint8_t *data = malloc(1 << 20);
  assert_non_null(data);
  *len = fread(data, 1, 1 << 20, in);
  fclose(in);
  assert_true(*len > 0 && *len < 1 << 20);
  return data;
}

uint32_t random_u32(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 32);
}

/* Twelve uniform numbers: close enough to a bell, and the same on every machine. */
double random_normal(uint64_t *state) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += random_u32(state) / 4294967296.0;
  return sum;
}
