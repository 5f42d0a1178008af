/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of each layout against numbers worked out by hand, and attention over each of them: the
 * room itself refuses unequal bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/kv_layouts.h"
#include "bench/kv_time.h"
#include "model/model.h"
#include "model/tiny_model.h"

static char path[] = "/tmp/troika_layouts_XXXXXX";
static uint32_t asked;
static uint32_t stop_after = UINT32_MAX;

static bool go_on(void *context, uint32_t done, uint32_t of) {
  assert_ptr_equal(context, &asked);
  assert_true(done == asked % of + 1 && done <= of);
  return ++asked < stop_after;
}

static troika_status measure(const tiny_model *m, uint32_t context, uint32_t sequences,
                             kv_layouts_result *r, troika_error *err) {
  kv_layouts_options o = {.model = path,
                          .context = context,
                          .repetitions = 3,
                          .warmups = 1,
                          .cpu_levels = "all",
                          .go_on = go_on,
                          .go_on_context = &asked};
  FILE *out = fopen(path, "wb");
  assert_non_null(out);
  tiny_write(m, NULL, out);
  assert_int_equal(fclose(out), 0);
  asked = 0;
  return kv_layouts_measure(&o, sequences, r, err);
}

static void lengths_are_a_mix(void **state) {
  (void)state;
  uint32_t sum = 0, whole = 0;
  for (uint32_t i = 0; i < 16; i++) {
    uint32_t length = kv_layouts_length(i, 8192);
    assert_true(length > 0 && length < 8192 && kv_layouts_length(i, 1) == 1);
    sum += length;
    whole += length % 16 == 0;
  }
  assert_true(sum == 2 * 17354 && whole < 3);
}

/* One layer group: two sequences of 26 and 130 tokens of 1,000. */
static void bytes_of_all_positions(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  m.context = 2048;
  kv_layouts_result r;
  troika_error err = {0};
  uint64_t token = (uint64_t)m.layers * m.kv_heads * 2 * m.head_dim * 2;
  if (measure(&m, 1000, 2, &r, &err)) fail_msg("%s", err.text);
  assert_int_equal(asked, 4 * 4);
  assert_int_equal(r.tokens, 26 + 130);
  assert_int_equal(r.used, (26 + 130) * token);
  assert_int_equal(r.of[KV_LAYOUT_RESERVED].held, 2 * 1000 * token);
  assert_int_equal(r.of[KV_LAYOUT_DOUBLED].held, (32 + 256) * token);
  assert_int_equal(r.of[KV_LAYOUT_DOUBLED].copied, (32 + 64 + 128) * token);
  assert_int_equal(r.of[KV_LAYOUT_16].held, (32 + 144) * token);
  assert_int_equal(r.of[KV_LAYOUT_32].held, (32 + 160) * token);
  assert_int_equal(r.of[KV_LAYOUT_64].held, (64 + 192) * token);
  assert_int_equal(kv_layout_wasted(&r, KV_LAYOUT_32), (6 + 30) * token);
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++) {
    const kv_layout_result *l = &r.of[i];
    if (i >= KV_LAYOUT_16) assert_int_equal(l->copied, 0);
    assert_true(l->overhead > 0 && l->min > 0 && l->min <= l->median && l->median <= l->max);
  }
  assert_true(r.of[KV_LAYOUT_RESERVED].overhead < r.of[KV_LAYOUT_64].overhead);
  assert_true(r.of[KV_LAYOUT_64].overhead < r.of[KV_LAYOUT_32].overhead);
  assert_true(r.of[KV_LAYOUT_32].overhead < r.of[KV_LAYOUT_16].overhead);
}

/* Windows slide, more than one split is merged, sequences begin inside pages of 64. */
static void bits_are_equal_with_windows(void **state) {
  (void)state;
  tiny_model m = tiny_gemma3();
  m.context = 4096;
  for (uint32_t window = 31; window <= 610; window += 193) {
    m.window = window;
    kv_layouts_result r;
    troika_error err = {0};
    if (measure(&m, 1500, 8, &r, &err)) fail_msg("window %u: %s", window, err.text);
    assert_true(r.used < r.of[KV_LAYOUT_16].held &&
                r.of[KV_LAYOUT_16].held < r.of[KV_LAYOUT_32].held &&
                r.of[KV_LAYOUT_32].held < r.of[KV_LAYOUT_64].held &&
                r.of[KV_LAYOUT_64].held < r.of[KV_LAYOUT_RESERVED].held);
  }
}

static void what_cannot_be_measured(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  kv_layouts_result r;
  troika_error err = {0};
  m.context = 1024;
  assert_int_equal(measure(&m, 1025, 1, &r, &err), TROIKA_INVALID);
  assert_non_null(strstr(err.text, "1025"));
  assert_int_equal(measure(&m, 0, 0, &r, &err), TROIKA_INVALID);
  assert_int_equal(measure(&m, 0, 65, &r, &err), TROIKA_INVALID);
  assert_int_equal(measure(&m, 1, 64, &r, &err), TROIKA_OK);
  stop_after = 3;
  assert_int_equal(measure(&m, 100, 1, &r, &err), TROIKA_CANCELLED);
  assert_int_equal(asked, 3);
  stop_after = UINT32_MAX;
  FILE *out = fopen(path, "wb");
  assert_non_null(out);
  fputs("no model", out);
  fclose(out);
  kv_layouts_options o = {.model = path, .repetitions = 1, .cpu_levels = "all", .go_on = go_on};
  assert_int_equal(kv_layouts_measure(&o, 1, &r, &err), TROIKA_FORMAT);
  o.model = "/nonexistent/model.gguf";
  assert_int_equal(kv_layouts_measure(&o, 1, &r, &err), TROIKA_NOT_FOUND);
}

static void the_verdict_weighs_bytes_and_time(void **state) {
  (void)state;
  kv_layouts_result r = {.used = 100};
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++)
    r.of[i] = (kv_layout_result){.held = 100 + 10 * (uint64_t)i, .median = 10};
  assert_int_equal(kv_layouts_verdict(&r), KV_LAYOUT_RESERVED);
  r.of[KV_LAYOUT_64].median = 7;
  assert_int_equal(kv_layouts_verdict(&r), KV_LAYOUT_64);
  r.of[KV_LAYOUT_64].overhead = 30;
  assert_int_equal(kv_layouts_verdict(&r), KV_LAYOUT_RESERVED);
}

static int remove_file(void **state) {
  (void)state;
  return unlink(path);
}

static int make_file(void **state) {
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 || close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lengths_are_a_mix),
      cmocka_unit_test(bytes_of_all_positions),
      cmocka_unit_test(bits_are_equal_with_windows),
      cmocka_unit_test(what_cannot_be_measured),
      cmocka_unit_test(the_verdict_weighs_bytes_and_time),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
