/* SPDX-License-Identifier: Apache-2.0 */
/* Records of decisions: what is written comes back and is decided again alike; whatever else the
 * bytes are, they are refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "sched/record.h"
#include "sched/support_random.h"

enum { REQUESTS = 40, LAUNCHES = 3, ACTIONS = 200, BYTES = 1 << 16 };

typedef struct scene { /* a decision of its own making */
  sched_config config;
  cost_table cost[2];
  sched_device devices[2];
  sched_request requests[REQUESTS];
  sched_launch_view launches[LAUNCHES];
  sched_view view;
  sched_memory before, after;
  sched_action actions[ACTIONS];
  size_t n_actions;
  int64_t now_ns;
} scene;

static void fill_request(sched_request *q, uint32_t i, sim_random *r, int64_t now) {
  *q = (sched_request){.id = 100 + i,
                       .state = (uint8_t)sim_random_below(r, 4),
                       .class_ = (uint8_t)sim_random_below(r, 3),
                       .child = (uint8_t)sim_random_below(r, 2),
                       .parent_waits = (uint8_t)sim_random_below(r, 2),
                       .lift = (uint8_t)sim_random_below(r, 3),
                       .cancelled = sim_random_below(r, 20) == 0,
                       .judged = (uint8_t)sim_random_below(r, 2),
                       .launch = SCHED_NONE,
                       .arrival_ns = now - sim_random_below(r, 1000000000),
                       .first_deadline_ns = SCHED_NEVER,
                       .done_deadline_ns = now + (int64_t)sim_random_below(r, 50) * 1000000000,
                       .output_left = 1 + sim_random_below(r, 300),
                       .kv_bytes = 40000 * (1 + sim_random_below(r, 500))};
  q->waiting_ns = q->arrival_ns;
  q->expected_left = q->output_left / 2 + 1;
  if (q->state != SCHED_DECODE) q->prompt_left = 1 + sim_random_below(r, 2000);
  q->need[0] = q->state == SCHED_QUEUED ? 1 + sim_random_below(r, 40) : 0;
  q->holds[0] = q->state == SCHED_QUEUED ? 0 : 20;
  q->most[0] = 60;
  if (q->state != SCHED_QUEUED && q->state != SCHED_ENDED && sim_random_below(r, 3) == 0)
    q->launch = sim_random_below(r, LAUNCHES);
}

static scene *make(uint64_t seed) {
  sim_random random, *r = &random;
  scene *s = calloc(1, sizeof *s);
  assert_non_null(s);
  sim_random_seed(r, seed, "record");
  s->now_ns = 5000000000 + sim_random_below(r, 1000000000);
  s->config = (sched_config){.places = 16,
                             .queue_max = 64,
                             .decode_rows = 16,
                             .ride_rows = 32,
                             .preempt_ns = 10000000,
                             .slack_r = 9830,
                             .slack_i = 32768,
                             .bcap = sim_random_below(r, 4),
                             .age_limit_ns = 30000000000,
                             .background_share = 3276,
                             .ttft_target_ns = 1000000000,
                             .backlog_max_ns = 600000000000,
                             .shorten_to = 64};
  s->view = (sched_view){.config = &s->config,
                         .requests = s->requests,
                         .n_requests = sim_random_below(r, REQUESTS + 1),
                         .launches = s->launches,
                         .n_launches = sim_random_below(r, LAUNCHES + 1),
                         .devices = s->devices,
                         .n_devices = 1 + sim_random_below(r, 2),
                         .bandwidth = 40000000000,
                         .kv_token_bytes = 40000,
                         .pages_free = {sim_random_below(r, 500)},
                         .pages_total = {600},
                         .power = sim_random_below(r, 70000)};
  for (uint32_t i = 0; i < s->view.n_devices; i++) {
    cost_guess(&s->cost[i], 100000000, 200000000, 2 + i);
    s->devices[i] = (sched_device){.cost = &s->cost[i],
                                   .decodes = 1,
                                   .prefills = 1,
                                   .can_stop = 1,
                                   .step = 1,
                                   .span_rows = 256};
  }
  for (uint32_t i = 0; i < s->view.n_requests; i++) fill_request(&s->requests[i], i, r, s->now_ns);
  for (uint32_t i = 0; i < s->view.n_launches; i++)
    s->launches[i] = (sched_launch_view){.id = i,
                                         .device = (uint8_t)(i % s->view.n_devices),
                                         .state = SCHED_STOPPED,
                                         .prompt_request = SCHED_NONE,
                                         .decode_rows = 2,
                                         .total_ns = 20000000,
                                         .done_ns = 3000000};
  s->before = (sched_memory){.decisions = 7 + seed, .then_ns = s->now_ns - 9000000, .x_ns = 4000};
  s->after = s->before;
  int64_t wake;
  s->n_actions = sched_decide(&s->view, &s->after, s->now_ns, s->actions, ACTIONS, &wake);
  return s;
}

static size_t write_scene(const scene *s, uint8_t *out, size_t capacity) {
  return sched_record_write(&s->view, &s->before, s->now_ns, s->actions, s->n_actions, out,
                            capacity);
}

static void check_same(const scene *s, const sched_recorded *got) {
  const sched_view *v = &got->view;
  assert_int_equal(got->now_ns, s->now_ns);
  assert_int_equal(got->n_actions, s->n_actions);
  assert_int_equal(v->n_requests, s->view.n_requests);
  assert_int_equal(v->n_launches, s->view.n_launches);
  assert_int_equal(v->n_devices, s->view.n_devices);
  assert_true(v->bandwidth == s->view.bandwidth && v->kv_token_bytes == s->view.kv_token_bytes);
  assert_true(v->power == s->view.power);
  assert_memory_equal(v->pages_free, s->view.pages_free, sizeof v->pages_free);
  assert_memory_equal(v->pages_total, s->view.pages_total, sizeof v->pages_total);
  assert_memory_equal(v->config, &s->config, sizeof s->config);
  assert_memory_equal(&got->before, &s->before, sizeof s->before);
  assert_memory_equal(got->actions, s->actions, s->n_actions * sizeof *s->actions);
  assert_memory_equal(v->requests, s->requests, v->n_requests * sizeof *v->requests);
  assert_memory_equal(v->launches, s->launches, v->n_launches * sizeof *v->launches);
  for (uint32_t i = 0; i < v->n_devices; i++) {
    assert_memory_equal(v->devices[i].cost, &s->cost[i], sizeof s->cost[i]);
    assert_int_equal(v->devices[i].span_rows, s->devices[i].span_rows);
  }
}

static void check_again(const scene *s, const sched_recorded *got) {
  sched_action actions[ACTIONS];
  sched_memory memory = got->before;
  int64_t wake;
  size_t n = sched_decide(&got->view, &memory, got->now_ns, actions, ACTIONS, &wake);
  assert_int_equal(n, s->n_actions);
  assert_memory_equal(actions, s->actions, n * sizeof *actions);
  assert_memory_equal(&memory, &s->after, sizeof memory);
}

static void test_round_trip(void **state) {
  (void)state;
  static _Alignas(8) uint8_t bytes[BYTES];
  static sched_recorded got;
  uint64_t acted = 0;
  for (uint64_t seed = 0; seed < 500; seed++) {
    scene *s = make(seed);
    const char *problem = "unset";
    memset(bytes, 0xA5, sizeof bytes);
    size_t n = write_scene(s, bytes, sizeof bytes);
    assert_true(n > 0 && n % 8 == 0);
    assert_int_equal(n, sched_record_size(&s->view, s->n_actions));
    for (size_t i = n; i < n + 64; i++) assert_int_equal(bytes[i], 0xA5);
    assert_int_equal(sched_record_read(bytes, n, &got, &problem), n);
    assert_null(problem);
    check_same(s, &got);
    check_again(s, &got);
    /* with more behind it, it ends where it ends */
    assert_int_equal(sched_record_read(bytes, sizeof bytes, &got, &problem), n);
    assert_int_equal(write_scene(s, bytes, n), n);
    assert_int_equal(write_scene(s, bytes, n - 1), 0);
    acted += s->n_actions;
    free(s);
  }
  assert_true(acted > 1000); /* else there was nothing to compare */
}

static void test_cut_everywhere(void **state) {
  (void)state;
  scene *s = make(3);
  static _Alignas(8) uint8_t bytes[BYTES];
  static sched_recorded got;
  size_t n = write_scene(s, bytes, sizeof bytes);
  for (size_t len = 0; len < n; len++) {
    const char *problem = "unset";
    uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read beyond it */
    assert_non_null(exact);
    memcpy(exact, bytes, len);
    assert_int_equal(sched_record_read(exact, len, &got, &problem), 0);
    assert_ptr_equal(problem, len ? sched_record_cut : NULL);
    free(exact);
  }
  free(s);
}

/* A record with one field changed. */
static void refused(const scene *s, size_t at, uint64_t value, size_t width, const char *why) {
  static _Alignas(8) uint8_t bytes[BYTES];
  static sched_recorded got;
  const char *problem = NULL;
  size_t n = write_scene(s, bytes, sizeof bytes);
  memcpy(bytes + at, &value, width); /* little-endian, as the file is */
  assert_int_equal(sched_record_read(bytes, n, &got, &problem), 0);
  assert_non_null(problem);
  if (!strstr(problem, why)) fail_msg("byte %zu: \"%s\", wanted \"%s\"", at, problem, why);
}

enum { /* of the header */
       AT_MAGIC = 0,
       AT_BYTES = 8,
       AT_SIZES = 16,
       AT_DEVICES = 44,
       AT_LAUNCHES = 48,
       AT_REQUESTS = 52,
       AT_ACTIONS = 56
};

static void test_wrong_headers(void **state) {
  (void)state;
  scene *s = make(11);
  for (size_t i = 0; i < 8; i++) refused(s, AT_MAGIC + i, 0, 1, "no record");
  for (size_t i = 0; i < 7; i++) refused(s, AT_SIZES + 4 * i, 1, 4, "another build");
  refused(s, AT_BYTES, 0, 8, "size");
  refused(s, AT_BYTES, UINT64_MAX, 8, "size");
  refused(s, AT_DEVICES, 0, 4, "counts");
  refused(s, AT_DEVICES, SCHED_DEVICES_MAX + 1, 4, "counts");
  refused(s, AT_LAUNCHES, SCHED_LAUNCHES_MAX + 2, 4, "counts");
  refused(s, AT_REQUESTS, SCHED_REQUESTS_MAX + 1, 4, "counts");
  refused(s, AT_REQUESTS, UINT32_MAX, 4, "counts");
  refused(s, AT_ACTIONS, UINT32_MAX, 4, "counts");
  refused(s, AT_ACTIONS, (uint64_t)s->n_actions + 1, 4, "size");
  free(s);
}

/* What sched_decide would trip over. */
static void test_wrong_parts(void **state) {
  (void)state;
  static _Alignas(8) uint8_t bytes[BYTES];
  static sched_recorded got;
  static const char *const whys[] = {"launch", "launch", "launch", "request", "request",
                                     "times",  "times",  "cost",   "action",  "request"};
  for (int k = 0; k < 10; k++) {
    scene *s = NULL;
    const char *problem = NULL;
    for (uint64_t seed = 20; !s; seed++) { /* one that has some of everything */
      s = make(seed);
      if (s->view.n_launches && s->view.n_requests && s->n_actions) break;
      free(s);
      s = NULL;
    }
    if (k == 0) s->launches[0].id = SCHED_LAUNCHES_MAX;
    if (k == 1) s->launches[0].device = (uint8_t)s->view.n_devices;
    if (k == 2) s->launches[0].start_ns = INT64_MIN;
    if (k == 3) s->requests[0].lift = SCHED_BANDS;
    if (k == 4) s->requests[0].arrival_ns = INT64_MIN;
    if (k == 5) s->now_ns = INT64_MAX;
    if (k == 6) s->before.x_ns = INT64_MIN;
    if (k == 7) s->cost[0].gen[3] = -1;
    if (k == 8) s->actions[0].kind = SCHED_STOP + 1;
    if (k == 9) s->requests[0].state = 9;
    size_t n = write_scene(s, bytes, sizeof bytes);
    assert_int_equal(sched_record_read(bytes, n, &got, &problem), 0);
    if (!problem || !strstr(problem, whys[k])) fail_msg("case %d: %s", k, problem ? problem : "-");
    free(s);
  }
}

/* Bits that flip: refused, or decided again without harm. */
static void test_damaged(void **state) {
  (void)state;
  static _Alignas(8) uint8_t whole[BYTES], bytes[BYTES];
  static sched_recorded got;
  static sched_action actions[ACTIONS];
  sim_random r;
  sim_random_seed(&r, 5, "damage");
  uint32_t accepted = 0;
  for (int k = 0; k < 3000; k++) {
    scene *s = make((uint64_t)k % 40);
    const char *problem = NULL;
    int64_t wake;
    size_t n = write_scene(s, whole, sizeof whole);
    memcpy(bytes, whole, n);
    for (uint32_t flips = 1 + sim_random_below(&r, 4); flips; flips--)
      bytes[sim_random_below(&r, (uint32_t)n)] ^= (uint8_t)(1 << sim_random_below(&r, 8));
    if (sched_record_read(bytes, n, &got, &problem)) {
      sched_memory memory = got.before;
      accepted++;
      assert_true(sched_decide(&got.view, &memory, got.now_ns, actions, ACTIONS, &wake) <= ACTIONS);
    } else {
      assert_non_null(problem);
    }
    free(s);
  }
  assert_true(accepted > 300 && accepted < 3000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_cut_everywhere),
      cmocka_unit_test(test_wrong_headers), cmocka_unit_test(test_wrong_parts),
      cmocka_unit_test(test_damaged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
