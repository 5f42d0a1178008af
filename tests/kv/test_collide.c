/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree with keys of three bits, so that nearly all of them collide: matches must still
 * be right, since a key only finds the bucket. The file under test is compiled into this program;
 * the linker then takes none from the library. */
#define KV_KEY_BITS 3
#include "kv/prefix.c"

#include "kv/support.h"

static void random_life_with_colliding_keys(void **state) {
  (void)state;
  for (int i = 0; i < property_configs_n; i++) {
    property_counts n = property_run(&property_configs[i], 77 + (uint64_t)i, 20000, 512);
    assert_true(n.attached_tokens > 100);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_life_with_colliding_keys)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
