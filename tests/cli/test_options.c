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
#include "kernel/kernel.h"

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
    assert_true((o->type == OPTION_CHOICE || o->type == OPTION_LIST) == (o->choices != NULL));
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
  assert_true(set("span-rows", "16", &s) && set("span-rows", "4096", &s) && s.span_rows == 4096);
  assert_false(set("span-rows", "1", &s) || set("span-rows", "15", &s));
  assert_int_equal(s.span_rows, 4096);
  assert_true(set("span-rows", "0", &s) && s.span_rows == 0);
  assert_true(set("raw", "Yes", &s) && s.raw && set("raw", "off", &s) && !s.raw);
  assert_int_equal(s.kv_size, 2048); /* what was refused changed nothing */
  arena_free(&s.owned);
}

/* The names in the table are those that the kernels know, all of them. */
static void test_cpu_levels(void **state) {
  (void)state;
  cli_settings s;
  uint32_t mask, all = 0;
  options_set_defaults(&s);
  const char *names = option_find("cpu-levels", 10)->choices;
  for (const char *p = names; *p;) {
    char name[32];
    size_t len = strcspn(p, "|");
    snprintf(name, sizeof name, "%.*s", (int)len, p);
    assert_true(kernel_mask_parse(name, &mask) && set("cpu-levels", name, &s));
    if (strcmp(name, "all") != 0) all |= mask;
    p += len + (p[len] == '|');
  }
  assert_true(kernel_mask_parse("all", &mask) && mask == all);
  assert_true(set("cpu-levels", "avx2,avx512", &s) && !strcmp(s.cpu_levels, "avx2,avx512"));
  static const char *const bad[] = {"", ",", "avx2,", "avx2,nope", "AVX2", "avx2 "};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_false(set("cpu-levels", bad[i], &s));
    assert_false(kernel_mask_parse(bad[i], &mask));
  }
  assert_string_equal(s.cpu_levels, "avx2,avx512");
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
  assert_string_equal(option_nearest("repeat-p", CLI_RUN), "repeat-penalty"); /* its begin */
  static const char *const names[] = {"run", "serve", "bench"};
  assert_string_equal(cli_nearest("rum", names, 3), "run");
  assert_string_equal(cli_nearest("ser", names, 3), "serve");
  assert_null(cli_nearest("nonsense", names, 3));
  assert_null(cli_nearest("", names, 3));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_cpu_levels),
      cmocka_unit_test(test_nearest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
