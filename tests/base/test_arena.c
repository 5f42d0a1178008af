/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: zeroed, aligned, apart from each other, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

enum { PIECES = 2000 };

static void pieces_are_zeroed_aligned_and_apart(void **state) {
  (void)state;
  static unsigned char *at[PIECES];
  static size_t size[PIECES];
  arena a;
  size_t used = 0;
  arena_init(&a, (size_t)64 << 20);
  srand(3);
  for (int i = 0; i < PIECES; i++) {
    size_t align = (size_t)1 << rand() % 13;
    size[i] = rand() % 50 ? (size_t)(rand() % 300) : (size_t)(rand() % 200000);
    if (i % 2) {
      at[i] = arena_alloc_aligned(&a, size[i], align);
    } else {
      align = 16;
      at[i] = arena_alloc(&a, size[i], 1);
    }
    assert_non_null(at[i]);
    assert_int_equal((uintptr_t)at[i] & (align - 1), 0);
    for (size_t j = 0; j < size[i]; j++) assert_int_equal(at[i][j], 0);
    memset(at[i], i & 0xFF, size[i]);
    used += size[i];
  }
  assert_int_equal(a.used, used);
  for (int i = 0; i < PIECES; i++)
    for (size_t j = 0; j < size[i]; j++) assert_int_equal(at[i][j], i & 0xFF);
  arena_free(&a);
  assert_null(a.blocks);
  assert_int_equal(a.used, 0);
  arena_free(&a); /* twice does no harm */
}

static void the_maximum_holds(void **state) {
  (void)state;
  arena a;
  arena_init(&a, 1000);
  assert_null(arena_alloc(&a, 1001, 1));
  assert_non_null(arena_alloc(&a, 100, 6));
  assert_null(arena_alloc(&a, 401, 1));
  assert_non_null(arena_alloc(&a, 400, 1));
  assert_null(arena_alloc(&a, 1, 1));
  assert_non_null(arena_alloc(&a, 0, 8));
  arena_free(&a);
  assert_non_null(arena_alloc(&a, 1000, 1)); /* all of it is back */
  arena_free(&a);
}

static void overflow_is_refused(void **state) {
  (void)state;
  arena a;
  arena_init(&a, SIZE_MAX);
  assert_null(arena_alloc(&a, SIZE_MAX, 2));
  assert_null(arena_alloc(&a, (size_t)1 << 33, (size_t)1 << 33));
  assert_null(arena_alloc(&a, 2, SIZE_MAX / 2 + 2));
  assert_non_null(arena_alloc(&a, SIZE_MAX, 0));
  arena_free(&a);
}

static void strings_are_copied(void **state) {
  (void)state;
  arena a;
  arena_init(&a, 100);
  char text[] = "hello\0there";
  char *copy = arena_copy_string(&a, text, 11);
  text[0] = 'j';
  assert_memory_equal(copy, "hello\0there", 12); /* and the NUL after it */
  assert_string_equal(arena_copy_string(&a, "", 0), "");
  assert_null(arena_copy_string(&a, text, 99));
  arena_free(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
      cmocka_unit_test(the_maximum_holds),
      cmocka_unit_test(overflow_is_refused),
      cmocka_unit_test(strings_are_copied),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
