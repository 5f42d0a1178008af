/* SPDX-License-Identifier: Apache-2.0 */
/* error.h: what foreign bytes may do to a message: nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

static void status_comes_back(void **state) {
  (void)state;
  troika_error err;
  assert_int_equal(error_set(&err, TROIKA_LIMIT, "%d of %s", 7, "nine"), TROIKA_LIMIT);
  assert_int_equal(err.status, TROIKA_LIMIT);
  assert_string_equal(err.text, "7 of nine");
  assert_int_equal(error_set(NULL, TROIKA_IO, "nobody %s", "listens"), TROIKA_IO);
}

static void bytes_are_cleaned(void **state) {
  (void)state;
  troika_error err;
  error_set(&err, TROIKA_FORMAT, "%s", "a\x1b[31m\xff\xc3\xa4\xed\xa0\x80z\x7f\r\n\t.");
  assert_string_equal(err.text, "a?[31m?\xc3\xa4???z??\n?.");
  srand(5);
  for (int round = 0; round < 20000; round++) {
    char foreign[700];
    size_t n = (size_t)(rand() % 699);
    for (size_t i = 0; i < n; i++) foreign[i] = (char)(1 + rand() % 255);
    foreign[n] = 0;
    error_set(&err, TROIKA_FORMAT, "name \"%s\"", foreign);
    size_t len = strlen(err.text);
    assert_true(len < TROIKA_ERROR_TEXT_MAX);
    assert_true(len == n + 7 || len == TROIKA_ERROR_TEXT_MAX - 1);
    assert_int_equal(utf8_valid_prefix(err.text, len, NULL), len);
    for (size_t i = 0; i < len; i++)
      assert_true((unsigned char)err.text[i] >= 0x20 || err.text[i] == '\n');
    assert_null(strchr(err.text, 0x7f));
  }
}

static void a_cut_character_is_no_longer_one(void **state) {
  (void)state;
  troika_error err;
  char text[TROIKA_ERROR_TEXT_MAX + 10];
  for (int before = TROIKA_ERROR_TEXT_MAX - 6; before < TROIKA_ERROR_TEXT_MAX; before++) {
    memset(text, 'a', (size_t)before);
    memcpy(text + before, "\xf0\x9f\x98\x80", 5);
    error_set(&err, TROIKA_FORMAT, "%s", text);
    size_t len = strlen(err.text);
    assert_int_equal(utf8_valid_prefix(err.text, len, NULL), len);
    assert_true((strchr(err.text, '?') != NULL) ==
                (before > TROIKA_ERROR_TEXT_MAX - 5 && before < TROIKA_ERROR_TEXT_MAX - 1));
  }
}

static void every_status_has_a_text(void **state) {
  (void)state;
  static const char *const expected[] = {
#define TEXT(name, number, text) [number] = text,
      TROIKA_STATUS_LIST(TEXT)
#undef TEXT
  };
  int n = sizeof expected / sizeof *expected;
  for (int i = 0; i < n; i++) {
    assert_string_equal(troika_status_text((troika_status)i), expected[i]);
    for (int j = 0; j < i; j++) assert_string_not_equal(expected[i], expected[j]);
  }
  assert_non_null(troika_status_text((troika_status)n));
  assert_non_null(troika_status_text((troika_status)-1));
  assert_true(strlen(troika_version()) >= 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(status_comes_back),
      cmocka_unit_test(bytes_are_cleaned),
      cmocka_unit_test(a_cut_character_is_no_longer_one),
      cmocka_unit_test(every_status_has_a_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
