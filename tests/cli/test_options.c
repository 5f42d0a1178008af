/* SPDX-License-Identifier: Apache-2.0 */
/* The option table itself, and one value after another through it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "cli/options.h"

static bool set(const char *name, const char *text, cli_settings *s) {
  char problem[256] = "";
  bool ok = option_set(option_find(name, strlen(name)), text, s, problem, sizeof problem);
  if (!ok) assert_non_null(strstr(problem, name));
  return ok;
}

static void test_table(void **state) {
  (void)state;
  for (unsigned i = 0; i < options_count; i++) {
    const option *o = &options_table[i];
    cli_settings s = {0};
    assert_ptr_equal(option_find(o->name, strlen(o->name)), o); /* no name twice */
    if (o->alias) assert_ptr_equal(option_find(o->alias, strlen(o->alias)), o);
    if (o->letter) assert_ptr_equal(option_find_letter(o->letter), o);
    if (o->missing && !set(o->name, o->missing, &s)) fail_msg("default of %s", o->name);
    assert_true(o->commands && o->help && o->help[strlen(o->help) - 1] == '.');
    assert_true((o->type == OPTION_FLAG) == (o->value == NULL));
    assert_true((o->type == OPTION_CHOICE) == (o->choices != NULL));
    for (unsigned j = 0; j < i; j++) assert_true(options_table[j].offset != o->offset);
  }
}

static void test_values(void **state) {
  (void)state;
  cli_settings s;
  options_set_defaults(&s);
  assert_true(s.port == 8080 && s.body_max == 32 << 20 && !strcmp(s.model, "smollm2") && !s.seeded);
  assert_true(set("kv-size", "64M", &s) && s.kv_size == 64 << 20);
  assert_true(set("kv-size", "1.5g", &s) && s.kv_size == 3ll << 29);
  assert_true(set("kv-size", "100", &s) && s.kv_size == 100);
  assert_true(set("kv_size", "2KB", &s) && s.kv_size == 2048);
  assert_false(set("kv-size", "-1", &s));
  assert_false(set("kv-size", "1X", &s));
  assert_false(set("kv-size", "", &s));
  assert_true(set("temp", "0.5", &s) && s.temperature == 0.5);
  assert_false(set("temp", "inf", &s));
  assert_false(set("temp", "1,5", &s));
  assert_true(set("seed", "-9", &s) && s.seed == -9 && s.seeded);
  assert_false(set("port", "99999999999999999999", &s));
  assert_false(set("port", "0x10", &s));
  assert_true(set("activations", "int8", &s) && s.activations == TROIKA_ACTIVATIONS_INT8);
  assert_true(set("activations", "float", &s) && s.activations == TROIKA_ACTIVATIONS_FLOAT);
  assert_false(set("activations", "in", &s));
  assert_true(set("raw", "Yes", &s) && s.raw && set("raw", "off", &s) && !s.raw);
  assert_int_equal(s.kv_size, 2048); /* what was refused changed nothing */
  arena_free(&s.owned);
}

static void test_nearest(void **state) {
  (void)state;
  assert_string_equal(option_nearest("tmep", CLI_RUN), "temp");
  assert_string_equal(option_nearest("thread", CLI_SERVE), "threads");
  assert_string_equal(option_nearest("activation", CLI_BENCH), "activations");
  assert_null(option_nearest("zzzzzz", CLI_RUN));
  const char *near = option_nearest("prot", CLI_RUN); /* port is not an option of run */
  assert_true(!near || strcmp(near, "port"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_nearest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
