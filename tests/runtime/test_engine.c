/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime through its public interface: answers, company, cancelling, limits, memory. For
 * ThreadSanitizer: test_company.c.
 *
 * ctest: slow */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "runtime/support_engine.h"

/* Counts what anyone allocates, so that "no allocation while decoding" can be seen. Sanitizers
 * bring their own malloc. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
static _Atomic uint64_t allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *malloc(size_t size) {
  allocations++;
  return __libc_malloc(size);
}
void *calloc(size_t n, size_t size) {
  allocations++;
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t size) {
  allocations++;
  return __libc_realloc(p, size);
}
#endif

static engine e; /* one for most tests: SmolLM2, 9 places */

static int open_engine(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .parallel = 9, .context = 2048};
  e = engine_open(SMOLLM2, &o);
  return 0;
}

static int close_engine(void **state) {
  (void)state;
  engine_close(&e);
  return 0;
}

static troika_request ask(const char *text, int32_t *tokens, uint32_t capacity) {
  troika_request q;
  troika_request_init(&q);
  q.prompt = tokens;
  q.prompt_n = engine_tokens(&e, text, tokens, capacity);
  q.temperature = 0;
  return q;
}

#define FRANCE "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

static void answers_a_question(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a;
  troika_request q = ask(FRANCE, tokens, 64);
  engine_ask(&e, &q, &a);
  troika_event event;
  troika_stream *s = engine_stream(&e);
  assert_int_equal(troika_stream_submit(s, &q, NULL), TROIKA_OK);
  while (!troika_stream_next(s, &event, INT64_MAX)) continue; /* as good as for ever */
  troika_stream_close(&s);
  assert_string_equal(a.text, "The capital of France is Paris.");
  assert_int_equal(a.end.finish, TROIKA_FINISH_STOP);
  assert_int_equal(a.end.prompt_tokens, q.prompt_n);
  assert_int_equal(a.end.completion_tokens, a.n);
  assert_true(a.end.timings.prefill_ns > 0 && a.end.timings.decode_ns > 0);
}

static void same_answer_in_company(void **state) {
  (void)state;
  enum { COMPANY = 9, NEW = 24 };
  static engine_answer alone[COMPANY], together[COMPANY];
  static int32_t tokens[COMPANY][600];
  troika_request q[COMPANY];
  troika_stream *s[COMPANY];
  char text[4096];
  for (int i = 0; i < COMPANY; i++) {
    size_t n = 0;
    for (int j = 0; j <= i * 4; j++)
      n += (size_t)snprintf(text + n, sizeof text - n, "Story %d begins with sentence %d. ", i, j);
    q[i] = ask(text, tokens[i], 600);
    q[i].max_tokens = NEW;
    q[i].logprobs = true;
    q[i].ignore_eos = true;
    q[i].no_prefix_cache = true;
    if (i % 2) { /* half of them draw */
      q[i].temperature = 0.9f;
      q[i].seed = 77 + (uint64_t)i;
      q[i].seeded = true;
    }
    engine_ask(&e, &q[i], &alone[i]);
    assert_int_equal(alone[i].n, NEW);
  }
  for (int i = 0; i < COMPANY; i++) {
    s[i] = engine_stream(&e);
    assert_int_equal(troika_stream_submit(s[i], &q[i], NULL), TROIKA_OK);
  }
  for (int i = 0; i < COMPANY; i++) {
    engine_read(s[i], &together[i]);
    troika_stream_close(&s[i]);
    assert_int_equal(together[i].n, alone[i].n);
    assert_memory_equal(together[i].tokens, alone[i].tokens, NEW * sizeof(int32_t));
    assert_memory_equal(together[i].logprobs, alone[i].logprobs, NEW * sizeof(float));
  }
}

static void cached_prefix_gives_the_same_answer(void **state) {
  (void)state;
  static int32_t tokens[1024];
  static engine_answer cold, warm;
  char text[4096];
  size_t n = 0;
  for (int i = 0; i < 40; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, "Item %d of the shared prefix is here. ", i);
  troika_request q = ask(text, tokens, 1024);
  q.max_tokens = 16;
  q.logprobs = q.ignore_eos = true;
  q.no_prefix_cache = true;
  engine_ask(&e, &q, &cold);
  q.no_prefix_cache = false;
  engine_ask(&e, &q, &warm);
  assert_int_equal(cold.end.cached_tokens, 0);
  assert_true(warm.end.cached_tokens >= q.prompt_n - 64 && warm.end.cached_tokens < q.prompt_n);
  assert_memory_equal(cold.logprobs, warm.logprobs, 16 * sizeof(float));
  assert_memory_equal(cold.tokens, warm.tokens, 16 * sizeof(int32_t));
}

static void stop_strings_cut_across_tokens(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a;
  const char *stops[] = {"never here", "of Fra"};
  troika_request q = ask(FRANCE, tokens, 64);
  q.stop = stops;
  q.stop_n = 2;
  engine_ask(&e, &q, &a);
  assert_string_equal(a.text, "The capital ");
  assert_int_equal(a.end.finish, TROIKA_FINISH_STOP);
}

static void limits_of_length(void **state) {
  (void)state;
  static int32_t tokens[2049];
  static engine_answer a;
  troika_error err;
  troika_request q = ask(FRANCE, tokens, 64);
  for (uint32_t most = 0; most < 4; most++) {
    q.max_tokens = most;
    engine_ask(&e, &q, &a);
    assert_int_equal(a.n, most);
    assert_int_equal(a.end.finish, TROIKA_FINISH_LENGTH);
  }
  for (int i = 0; i < 2049; i++) tokens[i] = 300 + i % 1000;
  q.max_tokens = TROIKA_MAX_TOKENS_CONTEXT;
  q.prompt_n = 2049;
  troika_stream *s = engine_stream(&e);
  assert_int_equal(troika_stream_submit(s, &q, &err), TROIKA_LIMIT);
  assert_non_null(strstr(err.text, "2049"));
  assert_non_null(strstr(err.text, "2048"));
  troika_stream_close(&s);
  q.prompt_n = 2048; /* full from the start: nothing can be added */
  engine_ask(&e, &q, &a);
  assert_int_equal(a.n, 0);
  assert_int_equal(a.end.finish, TROIKA_FINISH_LENGTH);
  q.prompt_n = 2040; /* the context ends it */
  q.ignore_eos = true;
  engine_ask(&e, &q, &a);
  assert_int_equal(a.n, 8);
  assert_int_equal(a.end.finish, TROIKA_FINISH_LENGTH);
}

static void wrong_requests_are_named(void **state) {
  (void)state;
  int32_t tokens[64];
  troika_error err;
  troika_stream *s = engine_stream(&e);
  troika_request good = ask(FRANCE, tokens, 64), q;
#define REFUSED(change, word)                                          \
  q = good;                                                            \
  change;                                                              \
  assert_int_equal(troika_stream_submit(s, &q, &err), TROIKA_INVALID); \
  assert_non_null(strstr(err.text, word))
  REFUSED(q.prompt_n = 0, "empty");
  REFUSED(q.temperature = -1, "temperature");
  REFUSED(q.temperature = NAN, "temperature");
  REFUSED(q.top_p = 1.5f, "top_p");
  REFUSED(q.min_p = -0.1f, "min_p");
  REFUSED(q.repeat_penalty = 0, "repeat_penalty");
  REFUSED(q.top_logprobs = 21, "top_logprobs");
  REFUSED(q.size = 3, "size");
  const char *empty[] = {""};
  REFUSED((q.stop = empty, q.stop_n = 1), "stop");
  troika_token_bias bias = {1 << 30, 1};
  REFUSED((q.bias = &bias, q.bias_n = 1), "bias");
  int32_t wild[] = {5, -3};
  REFUSED((q.prompt = wild, q.prompt_n = 2), "-3");
  troika_event event;
  assert_int_equal(troika_stream_next(s, &event, 0), TROIKA_END);
  assert_int_equal(troika_stream_submit(s, &good, &err), TROIKA_OK);
  assert_int_equal(troika_stream_submit(s, &good, &err), TROIKA_BUSY);
  troika_stream_close(&s); /* while it runs */
}

/* Cancels after a time or a number of tokens, and looks whether the others' answers stay as they
 * were. */
static void cancel_in_every_stage(void **state) {
  (void)state;
  static int32_t tokens[2000], other[64];
  static engine_answer before, after, cut;
  troika_request q = {0}, witness = ask(FRANCE, other, 64);
  witness.ignore_eos = true;
  witness.max_tokens = 12;
  witness.logprobs = true;
  engine_ask(&e, &witness, &before);
  for (int i = 0; i < 1500; i++) tokens[i] = 300 + (i * 7) % 3000;
  troika_request_init(&q);
  q.prompt = tokens;
  q.prompt_n = 1500;
  q.no_prefix_cache = true;
  for (int round = 0; round < 12; round++) {
    troika_stream *s = engine_stream(&e), *w = engine_stream(&e);
    tokens[0] = 300 + round;
    assert_int_equal(troika_stream_submit(w, &witness, NULL), TROIKA_OK);
    assert_int_equal(troika_stream_submit(s, &q, NULL), TROIKA_OK);
    if (round < 8) { /* queued, in prefill */
      struct timespec t = {0, round * round * 2000000L};
      nanosleep(&t, NULL);
    } else { /* decoding */
      troika_event event;
      for (int i = 8; i <= round; i++)
        assert_int_equal(troika_stream_next(s, &event, -1), TROIKA_OK);
    }
    int64_t began = clock_real_now(NULL);
    troika_stream_cancel(s);
    engine_read(s, &cut);
    int64_t took = clock_real_now(NULL) - began;
    assert_int_equal(cut.end.finish, TROIKA_FINISH_CANCELLED);
    assert_true(took < 2000000000);
    troika_stream_close(&s);
    engine_read(w, &after);
    troika_stream_close(&w);
    assert_memory_equal(before.tokens, after.tokens, 12 * sizeof(int32_t));
    assert_memory_equal(before.logprobs, after.logprobs, 12 * sizeof(float));
  }
}

static void queue_refuses_past_its_limit(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .parallel = 1, .queue_max = 2, .context = 512};
  engine small = engine_open(SMOLLM2, &o);
  int32_t tokens[64];
  static engine_answer a;
  troika_stream *s[5];
  troika_request q = ask(FRANCE, tokens, 64);
  uint32_t refused = 0;
  q.max_tokens = 40;
  q.ignore_eos = true;
  for (int i = 0; i < 5; i++) {
    troika_error err;
    s[i] = engine_stream(&small);
    troika_status status = troika_stream_submit(s[i], &q, &err);
    assert_true(status == TROIKA_OK || status == TROIKA_BUSY);
    refused += status == TROIKA_BUSY;
  }
  assert_int_equal(refused, 2);
  for (int i = 0; i < 5; i++) {
    engine_read(s[i], &a);
    assert_int_equal(a.n, i < 3 ? 40 : 0);
    troika_stream_close(&s[i]);
  }
  assert_int_equal(troika_model_close(&small.model), TROIKA_BUSY);
  s[0] = engine_stream(&small);
  assert_int_equal(troika_runtime_close(&small.runtime), TROIKA_BUSY);
  troika_stream_close(&s[0]);
  engine_close(&small);
}

static void too_little_kv_is_refused_with_numbers(void **state) {
  (void)state;
  troika_runtime_options o = {
      .size = sizeof o, .parallel = 2, .context = 8192, .kv_bytes = 1 << 20};
  engine small = {0};
  small.model = e.model;
  troika_error err = {0};
  assert_int_equal(troika_runtime_open(small.model, &o, &small.runtime, &err), TROIKA_LIMIT);
  assert_non_null(strpbrk(err.text, "0123456789"));
}

static void one_panel_at_a_time_through_the_runtime(void **state) {
  (void)state;
  troika_runtime_options o = {
      .size = sizeof o, .parallel = 2, .context = 256, .test_stop_panels = 1};
  engine stopping = engine_open(SMOLLM2, &o);
  int32_t tokens[64];
  static engine_answer whole, panels;
  troika_request q = ask("Once upon a time", tokens, 64);
  q.max_tokens = 3;
  q.logprobs = true;
  q.no_prefix_cache = true;
  engine_ask(&e, &q, &whole);
  engine_ask(&stopping, &q, &panels);
  troika_runtime_stats stats;
  troika_runtime_describe(stopping.runtime, &stats);
  assert_true(stats.stops > 5000);
  assert_memory_equal(whole.logprobs, panels.logprobs, 3 * sizeof(float));
  engine_close(&stopping);
}

static void nothing_is_allocated_while_decoding(void **state) {
  (void)state;
#ifdef COUNTS_ALLOCATIONS
  int32_t tokens[64];
  troika_stream *s = engine_stream(&e);
  troika_request q = ask("Count: one two three", tokens, 64);
  troika_event event;
  q.max_tokens = 200;
  q.ignore_eos = q.logprobs = true;
  q.top_logprobs = 5;
  q.temperature = 1;
  q.top_p = 0.9f;
  assert_int_equal(troika_stream_submit(s, &q, NULL), TROIKA_OK);
  assert_int_equal(troika_stream_next(s, &event, -1), TROIKA_OK);
  uint64_t before = allocations;
  for (int i = 1; i < 200; i++) assert_int_equal(troika_stream_next(s, &event, -1), TROIKA_OK);
  assert_int_equal(allocations, before);
  troika_stream_close(&s);
#endif
}

static void seeds_and_choices(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a, b;
  troika_request q = ask("Once upon a time", tokens, 64);
  q.temperature = 1;
  q.max_tokens = 16;
  q.ignore_eos = q.seeded = true;
  q.seed = (1ull << 53) + 1;
  engine_ask(&e, &q, &a);
  engine_ask(&e, &q, &b);
  assert_memory_equal(a.tokens, b.tokens, 16 * sizeof(int32_t));
  q.seed--;
  engine_ask(&e, &q, &b);
  assert_memory_not_equal(a.tokens, b.tokens, 16 * sizeof(int32_t));
  q.seed++;
  q.choice = 1;
  engine_ask(&e, &q, &b);
  assert_memory_not_equal(a.tokens, b.tokens, 16 * sizeof(int32_t));
  q.choice = 0;
  q.seeded = false;
  engine_ask(&e, &q, &a);
  engine_ask(&e, &q, &b);
  assert_memory_not_equal(a.tokens, b.tokens, 16 * sizeof(int32_t));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_a_question),
      cmocka_unit_test(same_answer_in_company),
      cmocka_unit_test(cached_prefix_gives_the_same_answer),
      cmocka_unit_test(stop_strings_cut_across_tokens),
      cmocka_unit_test(limits_of_length),
      cmocka_unit_test(wrong_requests_are_named),
      cmocka_unit_test(cancel_in_every_stage),
      cmocka_unit_test(queue_refuses_past_its_limit),
      cmocka_unit_test(too_little_kv_is_refused_with_numbers),
      cmocka_unit_test(one_panel_at_a_time_through_the_runtime),
      cmocka_unit_test(nothing_is_allocated_while_decoding),
      cmocka_unit_test(seeds_and_choices),
  };
  return cmocka_run_group_tests(tests, open_engine, close_engine);
}
