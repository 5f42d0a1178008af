/* SPDX-License-Identifier: Apache-2.0 */
/* When a refused client is told to ask again: the prediction, its limits, and how it is spread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "api/retry.h"

static const int64_t second = 1000000000;
enum { IDS = 1000 };

static void test_full(void **state) {
  (void)state;
  api_load l = {0};
  assert_int_equal(api_retry_full_ns(&l, false), 0); /* nothing is known */
  assert_int_equal(api_retry_full_ns(&l, true), 0);
  /* Four people run for 2 s each, eight wait: who comes now goes after nine, four at a time. */
  l = (api_load){.running = {4, 3}, .queued = {8, 50}, .placed_ns = {2 * second, 7 * second}};
  assert_int_equal(api_retry_full_ns(&l, false), 9 * second / 2);
  /* The background goes after them, and after its own. */
  assert_int_equal(api_retry_full_ns(&l, true), 9 * second / 2);
  l.backlog_ns = 20 * second;
  assert_int_equal(api_retry_full_ns(&l, true), 20 * second + 9 * second / 2);
  assert_int_equal(api_retry_full_ns(&l, false), 9 * second / 2);
  l.queued[0] = 12;
  assert_int_equal(api_retry_full_ns(&l, false), 13 * second / 2);
  /* Only the background is there. */
  l = (api_load){.running = {0, 4}, .queued = {0, 9}, .placed_ns = {2 * second, second}};
  l.backlog_ns = 3 * second;
  assert_int_equal(api_retry_full_ns(&l, true), 3 * second);
  assert_int_equal(api_retry_full_ns(&l, false), 0);
  l = (api_load){.queued = {UINT32_MAX, 0}, .placed_ns = {INT64_MAX, 0}, .backlog_ns = INT64_MAX};
  assert_int_equal(api_retry_full_ns(&l, true), INT64_MAX);
}

static void test_key(void **state) {
  (void)state;
  api_load l = {.whole_ns = {8 * second, 30 * second}};
  assert_int_equal(api_retry_key_ns(&l, false, 4), 2 * second);
  assert_int_equal(api_retry_key_ns(&l, true, 4), 15 * second / 2);
  assert_int_equal(api_retry_key_ns(&l, true, 0), 30 * second);
  l.whole_ns[0] = 0;
  assert_int_equal(api_retry_key_ns(&l, false, 1), 0);
}

typedef struct spread {
  unsigned least_ms, most_ms, different;
  bool seconds[62];
} spread;

/* What many requests are told of one wait. */
static spread spread_of(int64_t wait_ns) {
  static bool seen[60001];
  spread s = {.least_ms = UINT32_MAX};
  memset(seen, 0, sizeof seen);
  for (unsigned i = 0; i < IDS; i++) {
    char id[48];
    api_failure a = {0}, b = {0};
    snprintf(id, sizeof id, "chatcmpl-%016llx%08x", (i + 1) * 0x9E3779B97F4A7C15ull, i);
    api_retry_set(&a, wait_ns, id);
    api_retry_set(&b, wait_ns, id);
    assert_true(a.retry_after_ms == b.retry_after_ms && a.retry_after_s == b.retry_after_s);
    assert_in_range(a.retry_after_ms, 1000, 60000);
    assert_in_range(a.retry_after_s, 1, 60);
    assert_in_range(a.retry_after_s * 1000 + 500, a.retry_after_ms, a.retry_after_ms + 1000);
    s.different += !seen[a.retry_after_ms];
    seen[a.retry_after_ms] = s.seconds[a.retry_after_s] = true;
    if (a.retry_after_ms < s.least_ms) s.least_ms = a.retry_after_ms;
    if (a.retry_after_ms > s.most_ms) s.most_ms = a.retry_after_ms;
  }
  return s;
}

static void test_spread(void **state) {
  (void)state;
  static const struct {
    int64_t wait_ns;
    unsigned from_ms, to_ms;
  } rows[] = {{0, 1000, 2000},
              {-5, 1000, 2000},
              {1, 1000, 2000},
              {INT64_C(1400000000), 1400, 2400},
              {INT64_C(8000000000), 8000, 10000},
              {INT64_C(47000000000), 45000, 60000},
              {INT64_C(59000000000), 45000, 60000},
              {INT64_C(600000000000), 45000, 60000},
              {INT64_MAX, 45000, 60000}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    spread s = spread_of(rows[i].wait_ns);
    unsigned width = rows[i].to_ms - rows[i].from_ms;
    if (rows[i].wait_ns == INT64_C(47000000000)) width = 11750; /* 47 s and a quarter: to 58.75 */
    if (s.least_ms < rows[i].from_ms || s.most_ms > rows[i].to_ms ||
        s.most_ms - s.least_ms < width * 9 / 10 || s.different < IDS / 2)
      fail_msg("row %zu: %u to %u ms, %u different", i, s.least_ms, s.most_ms, s.different);
  }
  spread s = spread_of(0); /* those who read whole seconds are spread, too */
  assert_true(s.seconds[1] && s.seconds[2] && !s.seconds[3]);
}

static void test_means(void **state) {
  (void)state;
  static api_metrics m;
  api_usage u = {.timings.queue_ns = 3 * second};
  assert_int_equal(atomic_load(&m.whole_ns[0]), 0);
  api_metrics_finished(&m, TROIKA_REACTIVE, &u, 5 * second);
  assert_int_equal(atomic_load(&m.whole_ns[0]), 5 * second);
  assert_int_equal(atomic_load(&m.placed_ns[0]), 2 * second);
  assert_int_equal(atomic_load(&m.whole_ns[1]), 0);
  for (int i = 0; i < 200; i++) {
    u.timings.queue_ns = second;
    api_metrics_finished(&m, TROIKA_REACTIVE, &u, 11 * second);
    api_metrics_finished(&m, TROIKA_PROACTIVE, &u, 31 * second);
  }
  assert_in_range(atomic_load(&m.whole_ns[0]), 11 * second - second / 10, 11 * second);
  assert_in_range(atomic_load(&m.placed_ns[0]), 10 * second - second / 10, 10 * second);
  assert_in_range(atomic_load(&m.placed_ns[1]), 30 * second - second / 10, 30 * second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_full),
      cmocka_unit_test(test_key),
      cmocka_unit_test(test_spread),
      cmocka_unit_test(test_means),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
