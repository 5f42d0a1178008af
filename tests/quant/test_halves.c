/* test_halves.c - F16 and BF16 conversions: all halves, and both sides of every rounding boundary.
 *
 * The results are too many to store, so the golden file holds their CRC-32s in chunks
 * (tools/gguf_golden.py).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/quant.h"
#include "quant/support.h"

enum { WIDE_CHUNKS = 16, NARROW_CHUNKS = 62, BF16_CHUNKS = 16 };

static uint32_t crc32_of(const void *data, size_t len) {
  const uint8_t *p = data;
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < len; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

static uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static void check_chunk(const char *what, size_t chunk, const void *data, size_t len, size_t crc) {
  size_t golden_len;
  uint8_t *golden = golden_read("halves.bin", &golden_len);
  assert_int_equal(golden_len, 4 * (WIDE_CHUNKS + NARROW_CHUNKS + BF16_CHUNKS));
  uint32_t expected;
  memcpy(&expected, golden + 4 * crc, 4);
  free(golden);
  uint32_t ours = crc32_of(data, len);
  if (ours != expected)
    fail_msg("%s, chunk %zu: CRC %08x, reference %08x", what, chunk, ours, expected);
}

static void test_every_half_widens_exactly(void **unused) {
  (void)unused;
  static uint32_t wide[4096];
  for (uint32_t chunk = 0; chunk < WIDE_CHUNKS; chunk++) {
    for (uint32_t i = 0; i < 4096; i++) {
      float f = quant_f16_to_f32((uint16_t)(chunk * 4096 + i));
      wide[i] = f != f ? 0x7fc00000 : bits_of(f);
    }
    check_chunk("F16 to F32", chunk, wide, sizeof wide, chunk);
  }
}

static void test_every_rounding_boundary_of_halves(void **unused) {
  (void)unused;
  static uint16_t narrow[512 * 8];
  for (uint32_t chunk = 0; chunk < NARROW_CHUNKS; chunk++) {
    for (uint32_t i = 0; i < 512; i++) {
      uint16_t h = (uint16_t)(chunk * 512 + i);
      double low = quant_f16_to_f32(h);
      double high = h == 0x7bff ? 65536.0 : (double)quant_f16_to_f32((uint16_t)(h + 1));
      uint32_t middle = bits_of((float)((low + high) / 2));
      uint32_t inputs[4] = {bits_of((float)low), middle - 1, middle, middle + 1};
      for (int k = 0; k < 4; k++) {
        narrow[8 * i + k] = quant_f32_to_f16(float_of(inputs[k]));
        narrow[8 * i + 4 + k] = quant_f32_to_f16(float_of(inputs[k] | 0x80000000));
      }
    }
    check_chunk("F32 to F16", chunk, narrow, sizeof narrow, WIDE_CHUNKS + chunk);
  }
}

static void test_bf16_of_random_bits(void **unused) {
  (void)unused;
  static uint16_t narrow[4096];
  uint64_t state = 1;
  for (uint32_t chunk = 0; chunk < BF16_CHUNKS; chunk++) {
    for (uint32_t i = 0; i < 4096; i++) narrow[i] = quant_f32_to_bf16(float_of(random_u32(&state)));
    check_chunk("F32 to BF16", chunk, narrow, sizeof narrow, WIDE_CHUNKS + NARROW_CHUNKS + chunk);
  }
}

static void test_halves_survive_the_round_trip(void **unused) {
  (void)unused;
  for (uint32_t h = 0; h < 65536; h++) {
    uint16_t half = (uint16_t)h;
    uint16_t quiet = (half & 0x7fff) > 0x7c00 ? (uint16_t)(half | 0x200) : half;
    assert_int_equal(quant_f32_to_f16(quant_f16_to_f32(half)), quiet);
    uint16_t quiet_bf16 = (half & 0x7fff) > 0x7f80 ? (uint16_t)(half | 0x40) : half;
    assert_int_equal(quant_f32_to_bf16(quant_bf16_to_f32(half)), quiet_bf16);
  }
}

static void test_nan_and_infinity(void **unused) {
  (void)unused;
  static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
  for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
    uint16_t half = quant_f32_to_f16(float_of(nans[i]));
    uint16_t bf16 = quant_f32_to_bf16(float_of(nans[i]));
    assert_true((half & 0x7fff) > 0x7c00);
    assert_true((bf16 & 0x7fff) > 0x7f80);
    assert_int_equal(half >> 15, nans[i] >> 31);
    assert_int_equal(bf16 >> 15, nans[i] >> 31);
  }
  assert_int_equal(quant_f32_to_f16(float_of(0x7f800000)), 0x7c00);
  assert_int_equal(quant_f32_to_f16(-3e38f), 0xfc00);
  assert_int_equal(quant_f32_to_bf16(float_of(0x7f7fffff)), 0x7f80);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_half_widens_exactly),
      cmocka_unit_test(test_every_rounding_boundary_of_halves),
      cmocka_unit_test(test_bf16_of_random_bits),
      cmocka_unit_test(test_halves_survive_the_round_trip),
      cmocka_unit_test(test_nan_and_infinity),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
