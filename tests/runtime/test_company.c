/* SPDX-License-Identifier: Apache-2.0 */
/* Many clients at once on a tiny model: threads that submit, cancel, leave in the middle and read
 * slowly, while another asks for statistics. Small enough to run under ThreadSanitizer, which is
 * what it is for; an answer that was not cut short is also compared with what the same request gets
 * alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "model/tiny_model.h"
#include "troika/stream.h"

enum { CLIENTS = 6, REQUESTS = 30, KINDS = 8, NEW_MOST = 24, PROMPT_MOST = 120 };

static char folder[] = "/tmp/troika-company-XXXXXX";
static char path[64];

typedef struct answer {
  int32_t tokens[NEW_MOST];
  uint32_t n;
  troika_finish finish;
} answer;

typedef struct office {
  troika_model *model;
  troika_runtime *runtime;
  int32_t prompts[KINDS][PROMPT_MOST];
  answer alone[KINDS];
  _Atomic uint32_t wrong, whole, cancelled, left, busy;
  _Atomic bool closing;
} office;

static troika_request request_of(const office *o, uint32_t kind) {
  troika_request q;
  troika_request_init(&q);
  q.prompt = o->prompts[kind];
  q.prompt_n = 1 + kind * (PROMPT_MOST - 1) / (KINDS - 1);
  q.max_tokens = NEW_MOST - kind;
  q.temperature = kind % 2 ? 0.8f : 0;
  q.seed = kind;
  q.seeded = true;
  q.ignore_eos = true;
  return q;
}

static void sleep_us(long us) {
  struct timespec t = {0, us * 1000};
  nanosleep(&t, NULL);
}

/* Reads at most `most` events; true if the end was among them. */
static bool read_answer(troika_stream *s, answer *a, uint32_t most, long pause_us) {
  troika_event event;
  memset(a, 0, sizeof *a);
  for (uint32_t i = 0; i < most; i++) {
    if (troika_stream_next(s, &event, -1)) return false;
    if (event.kind == TROIKA_EVENT_END) {
      a->finish = event.finish;
      return true;
    }
    if (a->n < NEW_MOST) a->tokens[a->n++] = event.token;
    if (pause_us) sleep_us(pause_us);
  }
  return false;
}

static void *cancel_later(void *stream) {
  sleep_us(700);
  troika_stream_cancel(stream);
  return NULL;
}

static void one_request(office *o, uint64_t *random) {
  uint32_t kind = (uint32_t)((tiny_random(random) + 1) / 2 * KINDS) % KINDS;
  uint32_t way = (uint32_t)((tiny_random(random) + 1) / 2 * 5) % 5;
  troika_stream *s = NULL;
  troika_request q = request_of(o, kind);
  answer a;
  pthread_t helper;
  if (troika_stream_open(o->runtime, NULL, &s, NULL)) abort();
  troika_status status = troika_stream_submit(s, &q, NULL);
  if (status) {
    o->wrong += status != TROIKA_BUSY;
    o->busy++;
    troika_stream_close(&s);
    return;
  }
  bool cancels = way == 1 && !pthread_create(&helper, NULL, cancel_later, s);
  if (way == 2) troika_stream_cancel(s);
  bool ended =
      way == 3 ? read_answer(s, &a, kind, 0) : read_answer(s, &a, 1000, way == 4 ? 200 : 0);
  if (cancels) pthread_join(helper, NULL);
  troika_stream_close(&s); /* way 3: in the middle of its answer */
  const answer *alone = &o->alone[kind];
  if (ended && a.finish == TROIKA_FINISH_LENGTH) {
    o->wrong += a.n != alone->n;
    o->whole++;
  } else if (ended && a.finish == TROIKA_FINISH_CANCELLED) {
    o->wrong += way != 1 && way != 2;
    o->cancelled++;
  } else {
    o->wrong += ended || way != 3;
    o->left++;
  }
  o->wrong += a.n > alone->n || memcmp(a.tokens, alone->tokens, a.n * sizeof *a.tokens) != 0;
}

typedef struct client {
  office *o;
  uint64_t random;
} client;

static void *client_main(void *argument) {
  client *c = argument;
  for (uint32_t i = 0; i < REQUESTS; i++) one_request(c->o, &c->random);
  return NULL;
}

static void *watch(void *argument) {
  office *o = argument;
  while (!o->closing) {
    troika_runtime_stats stats;
    troika_device_info info;
    troika_runtime_describe(o->runtime, &stats);
    o->wrong += troika_runtime_devices(o->runtime, &info, 1) != 1;
    o->wrong += stats.running > stats.parallel || stats.kv_bytes_used > stats.kv_bytes;
    o->wrong += !(info.utilisation >= 0 && info.utilisation <= 1) || info.queue_depth > 3;
    sleep_us(300);
  }
  return NULL;
}

static office *office_open(tiny_model m, const troika_runtime_options *options) {
  office *o = calloc(1, sizeof *o);
  troika_error err = {0};
  assert_non_null(o);
  m.tokens = m.vocab;
  tiny_write_file(&m, NULL, path);
  if (troika_model_open(path, NULL, &o->model, &err)) fail_msg("%s", err.text);
  if (troika_runtime_open(o->model, options, &o->runtime, &err)) fail_msg("%s", err.text);
  unlink(path);
  return o;
}

static void office_close(office *o) {
  assert_int_equal(troika_runtime_close(&o->runtime), TROIKA_OK);
  assert_int_equal(troika_model_close(&o->model), TROIKA_OK);
  free(o);
}

static void crowd(tiny_model m, troika_runtime_options options) {
  office *o = office_open(m, &options);
  client clients[CLIENTS];
  pthread_t threads[CLIENTS], watcher;
  uint64_t random = 5;
  for (uint32_t k = 0; k < KINDS; k++) /* half of each prompt is shared */
    for (uint32_t i = 0; i < PROMPT_MOST; i++)
      o->prompts[k][i] = (int32_t)(i < PROMPT_MOST / 2 ? i % 50 : (i * 31 + k) % 47);
  for (uint32_t k = 0; k < KINDS; k++) {
    troika_stream *s = NULL;
    troika_request q = request_of(o, k);
    q.no_prefix_cache = true;
    assert_int_equal(troika_stream_open(o->runtime, NULL, &s, NULL), TROIKA_OK);
    assert_int_equal(troika_stream_submit(s, &q, NULL), TROIKA_OK);
    assert_true(read_answer(s, &o->alone[k], 1000, 0));
    assert_int_equal(o->alone[k].n, q.max_tokens);
    troika_stream_close(&s);
  }
  assert_int_equal(pthread_create(&watcher, NULL, watch, o), 0);
  for (uint32_t i = 0; i < CLIENTS; i++) {
    clients[i] = (client){o, i + random};
    assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
  }
  for (uint32_t i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
  o->closing = true;
  pthread_join(watcher, NULL);
  print_message("%u whole, %u cancelled, %u left in the middle, %u found it busy\n", o->whole,
                o->cancelled, o->left, o->busy);
  assert_int_equal(o->wrong, 0);
  assert_int_equal(o->whole + o->cancelled + o->left + o->busy, CLIENTS * REQUESTS);
  assert_true(o->whole > 0 && o->cancelled > 0 && o->left > 0);
  office_close(o);
}

static void llama_crowd(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .threads = 2, .parallel = 4, .span_rows = 16};
  crowd(tiny_llama(), o);
}

static void gemma3_crowd_in_little_memory(void **state) {
  (void)state;
  tiny_model m = tiny_gemma3(); /* a page of both groups: 3 layers x 8 KiB */
  troika_runtime_options o = {
      .size = sizeof o, .threads = 3, .parallel = 5, .span_rows = 32, .kv_bytes = 12 * 3 * 8192};
  crowd(m, o);
}

static void crowd_before_a_short_queue(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .threads = 1, .parallel = 1, .queue_max = 1};
  crowd(tiny_llama(), o);
}

static void crowd_with_stops(void **state) {
  (void)state;
  troika_runtime_options o = {
      .size = sizeof o, .threads = 2, .parallel = 4, .test_stop_panels = 40};
  crowd(tiny_gemma3(), o);
}

static void submit(office *o, const troika_request *q, troika_stream **s) {
  assert_int_equal(troika_stream_open(o->runtime, NULL, s, NULL), TROIKA_OK);
  assert_int_equal(troika_stream_submit(*s, q, NULL), TROIKA_OK);
}

/* There is one place: whenever a person comes the background is suspended, after any number of
 * tokens, also where its pages are just full; and its answer is what it is alone. */
static void suspended_after_any_token(void **state) {
  (void)state;
  troika_runtime_options options = {.size = sizeof options, .threads = 1, .parallel = 1};
  office *o = office_open(tiny_llama(), &options);
  troika_stream *background = NULL, *s = NULL;
  troika_request q, person;
  troika_event event;
  troika_runtime_stats stats = {0};
  int32_t prompt[40], alone[70];
  const int64_t second = 1000000000;
  answer a;
  for (int i = 0; i < 40; i++) prompt[i] = i;
  troika_request_init(&q);
  q.prompt = prompt;
  q.prompt_n = 40;
  q.max_tokens = 70;
  q.temperature = 0;
  q.ignore_eos = true;
  person = q;
  q.class_ = TROIKA_PROACTIVE;
  person.class_ = TROIKA_REACTIVE;
  person.prompt_n = person.max_tokens = 1;
  for (int round = 0; round < 1000 && stats.suspensions < 500; round++) {
    submit(o, &q, &background);
    for (uint32_t n = 0; n <= 70; n++) {
      assert_int_equal(troika_stream_next(background, &event, 20 * second), TROIKA_OK);
      assert_int_equal(event.kind, n < 70 ? TROIKA_EVENT_TOKEN : TROIKA_EVENT_END);
      if (!round && n < 70) alone[n] = event.token;
      assert_true(n == 70 || event.token == alone[n]);
      if (!round || (n + (uint32_t)round) % 8) continue;
      submit(o, &person, &s);
      assert_true(read_answer(s, &a, 10, 0));
      troika_stream_close(&s);
    }
    troika_stream_close(&background);
    troika_runtime_describe(o->runtime, &stats);
  }
  print_message("suspended %u times\n", (unsigned)stats.suspensions);
  assert_true(stats.suspensions >= 300);
  office_close(o);
}

/* Two of the background share 6 pages of 9 each, of 24: whoever needs 16 gets 3 by suspending one
 * of them, and not the 9 that it holds. */
static void what_is_shared_comes_back_with_the_last(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  troika_runtime_options options = {
      .size = sizeof options, .threads = 1, .parallel = 2, .context = 512};
  troika_stream *background[2], *s = NULL;
  troika_request q;
  troika_event event;
  troika_runtime_stats stats;
  int32_t prompt[470];
  const int64_t second = 1000000000;
  answer a;
  m.context = 512;
  options.kv_bytes = 24 * m.layers * 2 * 32 * m.kv_heads * m.head_dim * sizeof(uint16_t);
  office *o = office_open(m, &options);
  for (int i = 0; i < 470; i++) prompt[i] = i % 47;
  troika_request_init(&q);
  q.prompt = prompt;
  q.prompt_n = 200;
  q.max_tokens = 300;
  q.temperature = 0;
  q.ignore_eos = true;
  q.class_ = TROIKA_PROACTIVE;
  for (int i = 0; i < 2; i++) submit(o, &q, &background[i]);
  for (int i = 0; i < 2; i++)
    assert_int_equal(troika_stream_next(background[i], &event, 20 * second), TROIKA_OK);
  for (int i = 0; i < 2; i++) troika_stream_suspend(background[i]); /* they keep their pages */
  troika_runtime_describe(o->runtime, &stats);
  assert_int_equal(stats.running, 2);
  prompt[0] = 46; /* shares nothing */
  q.prompt_n = 470;
  q.max_tokens = 20;
  q.class_ = TROIKA_REACTIVE;
  submit(o, &q, &s);
  assert_true(read_answer(s, &a, 1000, 0));
  assert_int_equal(a.n, 20);
  troika_stream_close(&s);
  for (int i = 0; i < 2; i++) {
    troika_stream_resume(background[i]);
    assert_true(read_answer(background[i], &a, 1000, 0));
    assert_int_equal(a.finish, TROIKA_FINISH_LENGTH);
    troika_stream_close(&background[i]);
  }
  troika_runtime_describe(o->runtime, &stats);
  print_message("suspended %u times\n", (unsigned)stats.suspensions);
  assert_true(stats.suspensions >= 2);
  office_close(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_shared_comes_back_with_the_last),
      cmocka_unit_test(suspended_after_any_token),
      cmocka_unit_test(llama_crowd),
      cmocka_unit_test(gemma3_crowd_in_little_memory),
      cmocka_unit_test(crowd_before_a_short_queue),
      cmocka_unit_test(crowd_with_stops),
  };
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/tiny.gguf", folder);
  alarm(300); /* a lost wake-up is a hang */
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  rmdir(folder);
  return failed;
}
