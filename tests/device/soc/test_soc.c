/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual devices as drivers: what a launch costs, where it stops, which token comes out, who
 * waits for whom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/soc/soc.h"

enum { VOCAB = 1000, ROWS = 128, SLOTS = 2, PAGES = 8, MS = 1000000 };
enum { NPU, GPU };

typedef struct rig {
  clock_virtual clock;
  soc *soc;
  cost_table cost[2];
  device *d[2];
  device_queue *q[2];
  graph g;
  graph_node node;
  device_tables tables[2];
  device_run runs[2][SLOTS];
  device_row rows[2][SLOTS * ROWS];
  device_seq seqs[2];
  uint32_t pages[2][PAGES];
  uint64_t kv[2 * PAGES * SOC_PAGE_TOKENS];
  float logits[1008];
  device_completion last[2];
  uint32_t completions[2];
} rig;

static void completed(void *context, const device_completion *c) {
  rig *r = context;
  uint32_t i = c->event.queue == r->q[GPU];
  assert_true(c->event.queue == r->q[i] && c->end_ns == r->clock.now_ns);
  r->last[i] = *c;
  r->completions[i]++;
}

static void set_table(cost_table *t, int64_t gen_ns, int64_t prompt_ns, uint64_t bytes) {
  memset(t, 0, sizeof *t);
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    t->gen[i] = gen_ns;
    t->prompt[i] = prompt_ns * cost_rows[i];
    t->gen_fix[i] = t->prompt_fix[i] = COST_ONE;
  }
  t->weight_bytes = bytes;
  t->bandwidth = 40000000000u;
}

static uint64_t npu_bytes; /* that a launch there reads */

static rig *rig_open(const uint32_t *faults, uint32_t n_faults, bool gpu_stops) {
  rig *r = calloc(1, sizeof *r);
  troika_error err;
  assert_non_null(r);
  set_table(&r->cost[NPU], 10 * MS, MS / 2, npu_bytes);
  set_table(&r->cost[GPU], 20 * MS, 2 * MS, 40u * 20 * MS); /* 40 GB/s while it decodes */
  const soc_device_options devices[2] = {{.name = "npu",
                                          .cost = &r->cost[NPU],
                                          .type = TROIKA_DEVICE_NPU,
                                          .prefills = true,
                                          .panel_ns = 3 * MS,
                                          .cut_ns = 10 * MS,
                                          .step = 32},
                                         {.name = "gpu",
                                          .cost = &r->cost[GPU],
                                          .type = TROIKA_DEVICE_GPU,
                                          .prefills = true,
                                          .decodes = true,
                                          .stops = gpu_stops,
                                          .panel_ns = MS,
                                          .step = 1,
                                          .faults = faults,
                                          .n_faults = n_faults}};
  soc_options o = {.clock = &r->clock,
                   .devices = devices,
                   .n_devices = 2,
                   .capacity = {50000000000u, 50000000000u}};
  assert_int_equal(soc_create(&o, &r->soc, &err), TROIKA_OK);
  r->g = (graph){.vocab = VOCAB, .nodes = &r->node, .n_nodes = 1, .n_groups = 1};
  r->g.groups[0].page_bytes = SOC_PAGE_TOKENS * sizeof(uint64_t);
  for (uint32_t s = 0; s < 2; s++) {
    for (uint32_t k = 0; k < PAGES; k++) r->pages[s][k] = s + 2 * (PAGES - 1 - k);
    r->seqs[s].pages[0] = r->pages[s];
  }
  for (uint32_t i = 0; i < 2; i++) {
    r->tables[i] = (device_tables){.graph = &r->g,
                                   .runs = r->runs[i],
                                   .rows = r->rows[i],
                                   .seqs = r->seqs,
                                   .kv_pool = {(uint8_t *)r->kv},
                                   .n_slots = SLOTS,
                                   .slot_rows = {ROWS, ROWS},
                                   .slot_wants = {1, ROWS}};
    r->d[i] = soc_device(r->soc, i);
    assert_int_equal(r->d[i]->driver->queue_open(r->d[i], completed, r, &r->q[i], &err),
                     TROIKA_INVALID); /* not prepared */
    assert_int_equal(r->d[i]->driver->prepare(r->d[i], &r->tables[i], NULL, NULL, &err), TROIKA_OK);
    assert_int_equal(r->d[i]->driver->queue_open(r->d[i], completed, r, &r->q[i], &err), TROIKA_OK);
  }
  return r;
}

static void rig_close(rig *r) {
  for (uint32_t i = 0; i < 2; i++) r->d[i]->driver->queue_close(r->q[i]);
  soc_destroy(&r->soc);
  free(r);
}

/* n rows of a sequence from `pos` on in a slot of device d; the last one wants a token. */
static void fill(rig *r, uint32_t d, uint32_t slot, uint32_t seq, const int32_t *tokens,
                 uint32_t pos, uint32_t n, uint8_t arith) {
  for (uint32_t i = 0; i < n; i++)
    r->rows[d][slot * ROWS + i] = (device_row){.seq = seq,
                                               .pos = pos + i,
                                               .token = tokens[pos + i],
                                               .arith = arith,
                                               .want = i + 1 == n ? DEVICE_WANT_LOGITS : 0};
  r->runs[d][slot] = (device_run){
      .id = slot, .row0 = slot * ROWS, .rows = n, .node_end = 1, .slot = (uint16_t)slot};
}

static troika_status submit(rig *r, uint32_t d, uint32_t slot, const device_event *wait,
                            device_event *done) {
  device_command c = {.run = slot, .node_end = 1, .rows = r->runs[d][slot].rows};
  return r->d[d]->driver->queue_submit(r->q[d], &c, 1, wait, wait ? 1 : 0, done);
}

static void run(rig *r, uint32_t d, uint32_t slot) {
  device_event done;
  assert_int_equal(submit(r, d, slot, NULL, &done), TROIKA_OK);
  assert_int_equal(r->d[d]->driver->queue_wait(r->q[d], &done, -1), TROIKA_OK);
}

static void some_tokens(int32_t *tokens, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(i * 37 % VOCAB);
}

static void test_tokens_are_those_of_a_lone_run(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[128];
  some_tokens(tokens, 128);
  r->tables[GPU].logits[1] = r->logits;
  fill(r, GPU, 0, 0, tokens, 0, 10, DEVICE_PROMPT);
  run(r, GPU, 0);
  fill(r, GPU, 0, 0, tokens, 10, 30, DEVICE_PROMPT);
  run(r, GPU, 0);
  assert_int_equal(soc_token(r->d[GPU], 0, 0), soc_token_after(tokens, 40, VOCAB));
  for (uint32_t n = 40; n < 80; n++) {
    fill(r, GPU, 1, 0, tokens, n, 1, DEVICE_GEN);
    run(r, GPU, 1);
    int32_t token = soc_token(r->d[GPU], 1, 0);
    assert_int_equal(token, soc_token_after(tokens, n + 1, VOCAB));
    for (uint32_t i = 0; i < 1008; i++) assert_true(r->logits[i] == (i == (uint32_t)token));
  }
  /* A position that was left out, another's page: another token. */
  fill(r, GPU, 1, 0, tokens, 82, 1, DEVICE_GEN);
  run(r, GPU, 1);
  assert_int_not_equal(soc_token(r->d[GPU], 1, 0), soc_token_after(tokens, 83, VOCAB));
  rig_close(r);
}

static void test_stops_between_panels(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[64];
  device_event done;
  some_tokens(tokens, 64);
  fill(r, GPU, 0, 0, tokens, 0, 40, DEVICE_PROMPT); /* 80 ms, panels of 1 ms */
  assert_int_equal(submit(r, GPU, 0, NULL, &done), TROIKA_OK);
  soc_advance(r->soc, 10 * MS + 1);
  r->d[GPU]->driver->queue_stop(r->q[GPU], &done);
  soc_advance(r->soc, 30 * MS);
  assert_true(r->completions[GPU] == 1 && r->last[GPU].panel == 11 && !r->last[GPU].status);
  assert_int_equal(r->last[GPU].end_ns, 11 * MS);
  r->runs[GPU][0].panel = 11;
  assert_int_equal(submit(r, GPU, 0, NULL, &done), TROIKA_OK);
  soc_advance(r->soc, 32 * MS);
  r->d[GPU]->driver->queue_stop(r->q[GPU], &done); /* at a panel's end: at once */
  soc_advance(r->soc, 32 * MS);
  assert_true(r->completions[GPU] == 2 && r->last[GPU].panel == 13);
  r->runs[GPU][0].panel = 13;
  assert_int_equal(submit(r, GPU, 0, NULL, &done), TROIKA_OK);
  soc_advance(r->soc, 200 * MS);
  assert_true(r->completions[GPU] == 3 && r->last[GPU].panel == UINT32_MAX);
  assert_int_equal(r->last[GPU].end_ns, 32 * MS + 67 * MS);
  assert_int_equal(soc_token(r->d[GPU], 0, 0), soc_token_after(tokens, 40, VOCAB));
  r->d[GPU]->driver->queue_stop(r->q[GPU], &done); /* over already */
  done.sequence++;
  assert_int_equal(r->d[GPU]->driver->queue_stop(r->q[GPU], &done), TROIKA_INVALID);
  rig_close(r);
}

/* What a stop leaves is noise until the rows have run again: from the start, as after a drop. */
static void test_a_dropped_launch_leaves_noise(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[64];
  device_event done;
  some_tokens(tokens, 64);
  fill(r, GPU, 0, 0, tokens, 0, 20, DEVICE_PROMPT);
  run(r, GPU, 0);
  fill(r, GPU, 0, 0, tokens, 20, 4, DEVICE_PROMPT);
  assert_int_equal(submit(r, GPU, 0, NULL, &done), TROIKA_OK);
  r->d[GPU]->driver->queue_stop(r->q[GPU], &done);
  soc_advance(r->soc, r->clock.now_ns);
  assert_int_equal(r->last[GPU].panel, 0);
  fill(r, GPU, 1, 0, tokens, 24, 1, DEVICE_GEN);
  run(r, GPU, 1);
  assert_int_not_equal(soc_token(r->d[GPU], 1, 0), soc_token_after(tokens, 25, VOCAB));
  fill(r, GPU, 0, 0, tokens, 20, 4, DEVICE_PROMPT);
  run(r, GPU, 0);
  run(r, GPU, 1);
  assert_int_equal(soc_token(r->d[GPU], 1, 0), soc_token_after(tokens, 25, VOCAB));
  rig_close(r);
}

static void test_cuts(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[128];
  device_event done;
  some_tokens(tokens, 128);
  fill(r, NPU, 0, 0, tokens, 0, 64, DEVICE_PROMPT); /* 32 ms, panels of 3: cuts of 9 */
  for (uint32_t cut = 1; cut <= 4; cut++) {
    assert_int_equal(submit(r, NPU, 0, NULL, &done), TROIKA_OK);
    r->d[NPU]->driver->queue_stop(r->q[NPU], &done); /* it cannot */
    soc_advance(r->soc, cut * 100 * MS);
    assert_int_equal(r->completions[NPU], cut);
    assert_int_equal(r->last[NPU].panel, cut < 4 ? 3 * cut : UINT32_MAX);
    assert_int_equal(r->last[NPU].end_ns - r->last[NPU].start_ns, cut < 4 ? 9 * MS : 5 * MS);
    r->runs[NPU][0].panel = r->last[NPU].panel;
  }
  assert_int_equal(soc_token(r->d[NPU], 0, 0), soc_token_after(tokens, 64, VOCAB));
  rig_close(r);
}

static void test_faults(void **state) {
  (void)state;
  static const uint32_t faults[] = {1, 3};
  rig *r = rig_open(faults, 2, true);
  int32_t tokens[64];
  troika_device_info info;
  troika_error err;
  some_tokens(tokens, 64);
  fill(r, GPU, 0, 0, tokens, 0, 20, DEVICE_PROMPT);
  run(r, GPU, 0);
  fill(r, GPU, 0, 0, tokens, 20, 10, DEVICE_PROMPT);
  run(r, GPU, 0); /* the second list */
  assert_int_equal(r->last[GPU].status, TROIKA_DEVICE_LOST);
  assert_int_equal(r->last[GPU].end_ns - r->last[GPU].start_ns, 10 * MS);
  assert_int_equal(r->d[GPU]->driver->reset(r->d[GPU], &err), TROIKA_OK);
  run(r, GPU, 0);
  assert_int_equal(r->last[GPU].status, TROIKA_OK);
  assert_int_equal(soc_token(r->d[GPU], 0, 0), soc_token_after(tokens, 30, VOCAB));
  device_event done;
  fill(r, GPU, 0, 0, tokens, 30, 10, DEVICE_PROMPT);
  assert_int_equal(submit(r, GPU, 0, NULL, &done), TROIKA_OK); /* stopped before it would fail */
  assert_int_equal(r->d[GPU]->driver->reset(r->d[GPU], &err), TROIKA_BUSY);
  r->d[GPU]->driver->queue_stop(r->q[GPU], &done);
  soc_advance(r->soc, r->clock.now_ns + 100 * MS);
  assert_true(!r->last[GPU].status && r->last[GPU].panel == 0);
  r->d[GPU]->driver->describe(r->d[GPU], &info);
  assert_true(info.faults == 1 && info.type == TROIKA_DEVICE_GPU && info.stops_at_panels);
  rig_close(r);
}

static void test_shapes(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[128];
  device_event done = {NULL, 77};
  const char *reason;
  some_tokens(tokens, 128);
  assert_true(r->d[NPU]->driver->can_run(r->d[NPU], &r->g, &r->node, 64, &reason));
  assert_false(r->d[NPU]->driver->can_run(r->d[NPU], &r->g, &r->node, 33, &reason));
  assert_non_null(strstr(reason, "static shapes"));
  assert_false(r->d[GPU]->driver->can_run(r->d[GPU], &r->g, &r->node, 0, &reason));
  fill(r, NPU, 0, 0, tokens, 0, 33, DEVICE_PROMPT);
  assert_int_equal(submit(r, NPU, 0, NULL, &done), TROIKA_UNSUPPORTED);
  fill(r, NPU, 0, 0, tokens, 0, 32, DEVICE_GEN);
  assert_int_equal(submit(r, NPU, 0, NULL, &done), TROIKA_UNSUPPORTED);
  fill(r, NPU, 0, 0, tokens, 0, 32, DEVICE_PROMPT);
  r->runs[NPU][0].panel = 1000; /* beyond its end */
  assert_int_equal(submit(r, NPU, 0, NULL, &done), TROIKA_INVALID);
  assert_true(done.sequence == 77 && !r->completions[NPU]);
  rig_close(r);
}

/* 40 GB/s of decode beside 40 of prefill in 50: both at 25 of 40 of their speed, until one ends. */
static void test_bandwidth_is_shared(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, false);
  int32_t tokens[128];
  device_event done[2];
  some_tokens(tokens, 128);
  fill(r, GPU, 1, 0, tokens, 0, 1, DEVICE_GEN);
  run(r, GPU, 1);
  assert_int_equal(r->last[GPU].end_ns, 20 * MS); /* alone: its own time */
  int64_t start = r->clock.now_ns;
  fill(r, NPU, 0, 1, tokens, 0, 32, DEVICE_PROMPT); /* 16 ms, of which one cut of 9 */
  assert_int_equal(submit(r, GPU, 1, NULL, &done[GPU]), TROIKA_OK);
  assert_int_equal(submit(r, NPU, 0, NULL, &done[NPU]), TROIKA_OK);
  soc_advance(r->soc, start + 20 * MS);
  /* The NPU's weights take no bytes here: nobody is in anybody's way. */
  assert_int_equal(r->last[GPU].end_ns, start + 20 * MS);
  assert_int_equal(r->last[NPU].end_ns, start + 9 * MS);
  rig_close(r);

  npu_bytes = 40u * 16 * MS;
  r = rig_open(NULL, 0, false);
  npu_bytes = 0;
  fill(r, GPU, 1, 0, tokens, 0, 1, DEVICE_GEN);
  fill(r, NPU, 0, 1, tokens, 0, 32, DEVICE_PROMPT);
  assert_int_equal(submit(r, GPU, 1, NULL, &done[GPU]), TROIKA_OK);
  assert_int_equal(submit(r, NPU, 0, NULL, &done[NPU]), TROIKA_OK);
  /* The cut of 9 ms at 25/40: 14.4; the GPU has done 9 of its 20 ms then. Some KV is read, too. */
  soc_advance(r->soc, 40 * MS);
  assert_true(llabs(r->last[NPU].end_ns - 14400000) < 1000);
  assert_true(llabs(r->last[GPU].end_ns - 25400000) < 1000);
  rig_close(r);
}

static void test_queues(void **state) {
  (void)state;
  rig *r = rig_open(NULL, 0, true);
  int32_t tokens[128];
  device_event first, second, third, fourth, npu;
  some_tokens(tokens, 128);
  const device_driver *v = r->d[GPU]->driver;
  fill(r, GPU, 0, 0, tokens, 0, 5, DEVICE_PROMPT);
  fill(r, GPU, 1, 0, tokens, 5, 1, DEVICE_GEN);
  assert_int_equal(submit(r, GPU, 0, NULL, &first), TROIKA_OK);
  assert_int_equal(submit(r, GPU, 1, NULL, &second), TROIKA_OK);
  assert_int_equal(submit(r, GPU, 1, NULL, &third), TROIKA_OK);
  assert_int_equal(submit(r, GPU, 1, NULL, &fourth), TROIKA_BUSY);
  troika_device_info info;
  v->describe(r->d[GPU], &info);
  assert_int_equal(info.queue_depth, 3);
  fill(r, NPU, 0, 1, tokens, 0, 32, DEVICE_PROMPT);
  assert_int_equal(submit(r, NPU, 0, &second, &npu), TROIKA_OK); /* waits for the GPU's second */
  v->queue_stop(r->q[GPU], &third);                              /* has not started */
  assert_int_equal(v->queue_wait(r->q[GPU], &first, 4 * MS), TROIKA_TIMEOUT);
  assert_int_equal(r->clock.now_ns, 4 * MS);
  assert_int_equal(v->queue_wait(r->q[GPU], &first, 100 * MS), TROIKA_OK);
  assert_int_equal(r->clock.now_ns, 10 * MS);
  soc_advance(r->soc, 25 * MS);
  assert_true(r->completions[NPU] == 0 && r->completions[GPU] == 1);
  soc_advance(r->soc, 30 * MS);
  assert_int_equal(soc_token(r->d[GPU], 1, 0), soc_token_after(tokens, 6, VOCAB));
  assert_true(r->completions[GPU] == 3 && r->last[GPU].panel == 0 &&
              r->last[GPU].event.sequence == 3);
  assert_true(r->completions[NPU] == 0 && soc_next(r->soc) == 39 * MS);
  rig_close(r); /* waits for the NPU */
}

static void test_bad_options(void **state) {
  (void)state;
  soc *s = NULL;
  troika_error err;
  clock_virtual clock = {0};
  cost_table good, bad;
  set_table(&good, MS, MS, 0);
  set_table(&bad, MS, MS, 0);
  bad.gen[3] = 1;
  soc_device_options d = {.name = "x", .cost = &good, .decodes = true, .panel_ns = MS, .step = 1};
  soc_options o = {.clock = &clock, .devices = &d, .n_devices = 1, .capacity = {1000000000u}};
  for (int i = 0; i < 7; i++) {
    soc_device_options was = d;
    soc_options o_was = o;
    if (i == 0) o.n_devices = 0;
    if (i == 1) o.n_devices = SOC_DEVICES_MAX + 1;
    if (i == 2) o.clock = NULL;
    if (i == 3) d.cost = &bad;
    if (i == 4) d.panel_ns = 0;
    if (i == 5) d.step = 0;
    if (i == 6) o.capacity[0] = 0;
    assert_int_equal(soc_create(&o, &s, &err), TROIKA_INVALID);
    assert_null(s);
    d = was;
    o = o_was;
  }
  assert_int_equal(soc_create(&o, &s, &err), TROIKA_OK);
  assert_null(soc_device(s, 1));
  assert_int_equal(soc_next(s), SOC_NEVER);
  soc_advance(s, 5 * MS);
  assert_int_equal(clock.now_ns, 5 * MS);
  soc_destroy(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tokens_are_those_of_a_lone_run),
      cmocka_unit_test(test_stops_between_panels),
      cmocka_unit_test(test_a_dropped_launch_leaves_noise),
      cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_faults),
      cmocka_unit_test(test_shapes),
      cmocka_unit_test(test_bandwidth_is_shared),
      cmocka_unit_test(test_queues),
      cmocka_unit_test(test_bad_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
