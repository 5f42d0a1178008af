/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h. UTF-8 against a table made from the other side: every scalar value is encoded, which
 * gives all good characters and all their beginnings; then every string of up to three bytes and
 * random ones of four are judged by both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { WHOLE = 1, BEGUN = 2 };

static uint8_t *judged[4]; /* [bytes - 1][bytes as a big-endian number] */
static uint64_t *judged4;  /* sorted: whole characters of four bytes */
static size_t judged4_n;

static int encode(uint32_t c, unsigned char *out) {
  if (c < 0x80) return out[0] = (unsigned char)c, 1;
  int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static const unsigned char lead[4] = {0, 0xC0, 0xE0, 0xF0};
  out[0] = (unsigned char)(lead[more] | c >> 6 * more);
  for (int i = 1; i <= more; i++) out[i] = (unsigned char)(0x80 | (c >> 6 * (more - i) & 0x3F));
  return more + 1;
}

static uint32_t number_of(const unsigned char *p, int n) {
  uint32_t v = 0;
  for (int i = 0; i < n; i++) v = v << 8 | p[i];
  return v;
}

static void table_make(void) {
  for (int i = 0; i < 3; i++) judged[i] = calloc((size_t)1 << 8 * (i + 1), 1);
  judged4 = malloc(0x110000 * sizeof *judged4);
  assert_true(judged[0] && judged[1] && judged[2] && judged4);
  for (uint32_t c = 0; c < 0x110000; c++) {
    unsigned char p[4];
    if (c >= 0xD800 && c < 0xE000) continue;
    int n = encode(c, p);
    for (int i = 1; i < n; i++) judged[i - 1][number_of(p, i)] = BEGUN;
    if (n < 4)
      judged[n - 1][number_of(p, n)] = WHOLE;
    else
      judged4[judged4_n++] = number_of(p, 4); /* ascending, since encoding keeps the order */
  }
}

static bool is_whole4(uint32_t v) {
  size_t low = 0, high = judged4_n;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (judged4[middle] < v)
      low = middle + 1;
    else
      high = middle;
  }
  return low < judged4_n && judged4[low] == v;
}

static size_t expected_prefix(const unsigned char *p, size_t len, bool *partial) {
  size_t at = 0;
  *partial = false;
  while (at < len) {
    size_t n = 0;
    for (size_t k = 1; k <= 3 && at + k <= len && !n; k++)
      if (judged[k - 1][number_of(p + at, (int)k)] == WHOLE) n = k;
    if (!n && at + 4 <= len && is_whole4(number_of(p + at, 4))) n = 4;
    if (!n) {
      size_t rest = len - at;
      *partial = rest <= 3 && judged[rest - 1][number_of(p + at, (int)rest)] == BEGUN;
      return at;
    }
    at += n;
  }
  return at;
}

static void assert_judged(const unsigned char *p, size_t len) {
  bool partial = true, expected_partial;
  size_t expected = expected_prefix(p, len, &expected_partial);
  size_t got = utf8_valid_prefix((const char *)p, len, &partial);
  if (got != expected || partial != expected_partial)
    fail_msg("%zu bytes %02x %02x %02x %02x: %zu %d, expected %zu %d", len, p[0], p[1], p[2], p[3],
             got, partial, expected, expected_partial);
}

static void utf8_equals_the_table(void **state) {
  (void)state;
  table_make();
  unsigned char p[8] = {0};
  assert_judged(p, 0);
  for (uint32_t v = 0; v < 1 << 24; v++) {
    p[0] = (unsigned char)(v >> 16), p[1] = (unsigned char)(v >> 8), p[2] = (unsigned char)v;
    assert_judged(p, 3);
    if ((v & 0xFF) == 0) assert_judged(p, 2);
    if ((v & 0xFFFF) == 0) assert_judged(p, 1);
  }
  srand(9);
  for (int i = 0; i < 2000000; i++) { /* leads and continuations more often than chance has them */
    for (int j = 0; j < 8; j++)
      p[j] = (unsigned char)(rand() % 3   ? 0x80 + rand() % 0x40
                             : rand() % 2 ? 0xE0 + rand() % 0x20
                                          : rand());
    assert_judged(p, (size_t)(rand() % 9));
    p[0] = (unsigned char)(0xEF + rand() % 7);
    assert_judged(p, 4);
  }
  assert_int_equal(utf8_valid_prefix("a\xC3\xA4z\xFF", 5, NULL), 4);
  for (int i = 0; i < 3; i++) free(judged[i]);
  free(judged4);
}

static void views_compare(void **state) {
  (void)state;
  assert_true(bytes_equal_string(bytes_of("abc", 2), "ab"));
  assert_false(bytes_equal_string(bytes_of("abc", 3), "ab"));
  assert_false(bytes_equal(bytes_of("abc", 3), bytes_of("abd", 3)));
  assert_true(bytes_equal(bytes_of(NULL, 0), bytes_of("", 0)));
  assert_true(bytes_equal(bytes_of_string("x"), bytes_of("xy", 1)));
}

static void a_buffer_grows_and_keeps_a_nul(void **state) {
  (void)state;
  bytes_buffer b;
  char expected[4096] = "";
  bytes_init(&b, sizeof expected);
  for (int i = 0; i < 300; i++) {
    char piece[16];
    snprintf(piece, sizeof piece, "%d,", i * 7);
    strncat(expected, piece, sizeof expected - strlen(expected) - 1);
    if (i % 3 == 0)
      bytes_append_format(&b, "%d%s", i * 7, ",");
    else if (i % 3 == 1)
      bytes_append_string(&b, piece);
    else
      bytes_append(&b, piece, strlen(piece));
    assert_int_equal(b.len, strlen(expected));
    assert_string_equal(b.data, expected);
  }
  bytes_append(&b, NULL, 0);
  assert_false(b.failed);
  char *memory = b.data;
  bytes_clear(&b);
  assert_ptr_equal(b.data, memory);
  assert_string_equal(b.data, "");
  bytes_free(&b);
  assert_null(b.data);
  assert_int_equal(b.max, sizeof expected);
}

static void a_buffer_stops_at_its_maximum(void **state) {
  (void)state;
  for (int how = 0; how < 3; how++) {
    bytes_buffer b;
    bytes_init(&b, 10);
    bytes_append_string(&b, "0123456789");
    assert_false(b.failed);
    bytes_append(&b, "", 0);
    assert_false(b.failed);
    if (how == 0) bytes_append(&b, "x", 1);
    if (how == 1) bytes_append_string(&b, "x");
    if (how == 2) bytes_append_format(&b, "%c", 'x');
    assert_true(b.failed);
    assert_string_equal(b.data, "0123456789");
    bytes_clear(&b);
    assert_false(b.failed);
    bytes_append_format(&b, "%s", "0123456789ab"); /* all or nothing */
    assert_true(b.failed);
    assert_int_equal(b.len, 0);
    bytes_append_string(&b, "y"); /* and nothing after */
    assert_int_equal(b.len, 0);
    bytes_free(&b);
  }
  bytes_buffer b;
  bytes_init(&b, 100);
  assert_int_equal(bytes_reserve(&b, 101), TROIKA_LIMIT);
  assert_int_equal(bytes_reserve(&b, SIZE_MAX), TROIKA_LIMIT);
  assert_int_equal(bytes_reserve(&b, 100), TROIKA_OK);
  assert_true(b.capacity > 100);
  assert_string_equal(b.data, "");
  bytes_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(utf8_equals_the_table),
      cmocka_unit_test(views_compare),
      cmocka_unit_test(a_buffer_grows_and_keeps_a_nul),
      cmocka_unit_test(a_buffer_stops_at_its_maximum),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
