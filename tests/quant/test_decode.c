/* test_decode.c - decode equals the reference package in every bit, for every format.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/quant.h"
#include "quant/support.h"

static uint8_t *read_case(const char *verb, const quant_format *format, size_t *n_blocks) {
  char name[64];
  snprintf(name, sizeof name, "%s_%s.bin", verb, format->name);
  for (char *p = name; *p; p++) *p = (char)tolower((unsigned char)*p);
  size_t len, block = format->bytes + format->elements * sizeof(float);
  uint8_t *data = golden_read(name, &len);
  assert_int_equal(len % block, 0);
  *n_blocks = len / block;
  return data;
}

static void test_decode_equals_reference(void **unused) {
  (void)unused;
  size_t n_formats;
  const quant_format *format = quant_list(&n_formats);
  for (size_t i = 0; i < n_formats; i++, format++) {
    size_t n;
    uint8_t *data = read_case("decode", format, &n);
    assert_true(n >= 26);
    size_t in_bytes = n * format->bytes, out_bytes = n * format->elements * sizeof(float);
    /* Exact sizes, so that a sanitizer sees a byte too far; blocks at an odd address, since files
     * promise none. */
    uint8_t *odd = malloc(in_bytes + 1);
    float *out = malloc(out_bytes);
    assert_true(odd && out);
    memcpy(odd + 1, data, in_bytes);
    format->decode(odd + 1, out, n);
    for (size_t e = 0; e < n * format->elements; e++) {
      uint32_t ours, theirs;
      memcpy(&ours, &out[e], 4);
      memcpy(&theirs, data + in_bytes + 4 * e, 4);
      if (ours != theirs) {
        fail_msg("%s: element %zu of block %zu is 0x%08x, reference 0x%08x", format->name,
                 e % format->elements, e / format->elements, ours, theirs);
      }
    }
    free(out);
    free(odd);
    free(data);
  }
}

static void test_encode_equals_reference(void **unused) {
  (void)unused;
  static const uint32_t types[] = {QUANT_F16,  QUANT_BF16, QUANT_Q4_0,
                                   QUANT_Q4_1, QUANT_Q5_0, QUANT_Q8_0};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    const quant_format *format = quant_find(types[i]);
    size_t n;
    uint8_t *data = read_case("encode", format, &n);
    size_t in_bytes = n * format->elements * sizeof(float), out_bytes = n * format->bytes;
    float *in = malloc(in_bytes);
    uint8_t *out = malloc(out_bytes + 1);
    assert_true(in && out);
    memcpy(in, data, in_bytes);
    format->encode(in, out + 1, n);
    for (size_t b = 0; b < out_bytes; b++) {
      if (out[1 + b] != data[in_bytes + b]) {
        fail_msg("%s: byte %zu of block %zu is 0x%02x, reference 0x%02x", format->name,
                 b % format->bytes, b / format->bytes, out[1 + b], data[in_bytes + b]);
      }
    }
    free(out);
    free(in);
    free(data);
  }
}

static void test_table(void **unused) {
  (void)unused;
  size_t n;
  const quant_format *formats = quant_list(&n);
  assert_int_equal(n, 9);
  for (size_t i = 0; i < n; i++) assert_ptr_equal(quant_find(formats[i].type), &formats[i]);
  assert_string_equal(quant_find(12)->name, "Q4_K");
  assert_int_equal(quant_find(14)->bytes, 210);
  assert_null(quant_find(4));
  assert_null(quant_find(9999));
  assert_null(quant_find(UINT32_MAX));
}

static void test_nothing_is_touched_for_no_blocks(void **unused) {
  (void)unused;
  size_t n;
  const quant_format *formats = quant_list(&n);
  for (size_t i = 0; i < n; i++) {
    uint8_t block = 0x5a;
    float out = 1.5f;
    formats[i].decode(&block, &out, 0);
    assert_true(out == 1.5f);
    formats[i].encode(&out, &block, 0);
    assert_int_equal(block, 0x5a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_decode_equals_reference),
      cmocka_unit_test(test_encode_equals_reference),
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_nothing_is_touched_for_no_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
