/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of FIPS 180-4's examples, and every way to cut a text in two. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/sha256.h"

static void expect(const char *text, const char *wanted) {
  char hex[65];
  for (size_t cut = 0; cut <= strlen(text); cut++) {
    sha256 h;
    sha256_begin(&h);
    sha256_add(&h, text, cut);
    sha256_add(&h, text + cut, strlen(text) - cut);
    sha256_end(&h, hex);
    assert_string_equal(hex, wanted);
  }
}

static void test_vectors(void **state) {
  (void)state;
  expect("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  expect("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_number(void **state) {
  (void)state;
  sha256 h;
  sha256_begin(&h);
  sha256_add(&h, "abc", 3);
  assert_true(sha256_end_number(&h) == (UINT64_C(0xba7816bf8f01cfea) | 1));
}

static void test_a_million(void **state) {
  (void)state;
  char block[1000], hex[65];
  sha256 h;
  memset(block, 'a', sizeof block);
  sha256_begin(&h);
  for (int i = 0; i < 1000; i++) sha256_add(&h, block, sizeof block);
  sha256_end(&h, hex);
  assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_number),
                                     cmocka_unit_test(test_a_million)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
