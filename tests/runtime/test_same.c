/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: slow
 * Greedy answers are the same, tokens and bits of their log-probabilities: alone, in
 * company of both classes, preempted after every panel, with pages taken in mid answer, and from a
 * shared prefix. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "figures.h"
#include "runtime/support_engine.h"

/* A stop costs a sanitizer minutes if there are hundreds of thousands: release has them all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
enum { EVERY = 40 };
#else
enum { EVERY = 1 };
#endif
enum { ASKS = 8, ANSWER = 16, LONG_ANSWER = 72, PROMPT_MOST = 12000 };

typedef struct ask {
  int32_t prompt[PROMPT_MOST];
  troika_request q;
} ask;

typedef struct way {
  const char *name;
  troika_runtime_options options;
  uint32_t asks; /* of those with the shortest prompts */
  bool cached;   /* prefixes may be used */
  bool again;    /* each is asked a second time and starts from what the first one left */
  bool late;     /* the reactive ones come while the others run, and answers are long */
} way;

static const uint32_t lengths[ASKS] = {33, 40, 64, 129, 260, 700, 1100, 90};
static ask asks[ASKS];
static engine_answer alone[ASKS], got;

static void make_asks(const engine *e) {
  for (uint32_t i = 0; i < ASKS; i++) {
    char text[16384];
    size_t len = (size_t)snprintf(text, sizeof text, "Story %u:", i < 7 ? i : 3);
    for (int k = 0; len < sizeof text - 64; k++)
      len += (size_t)snprintf(text + len, sizeof text - len, " %d sheep, %d cows;", k, k * 7);
    if (engine_tokens(e, text, asks[i].prompt, PROMPT_MOST) < lengths[i]) exit(1);
    troika_request_init(&asks[i].q);
    asks[i].q.prompt = asks[i].prompt;
    asks[i].q.prompt_n = lengths[i];
    asks[i].q.max_tokens = LONG_ANSWER;
    asks[i].q.temperature = 0;
    asks[i].q.ignore_eos = asks[i].q.logprobs = true;
    asks[i].q.class_ = i % 2 ? TROIKA_PROACTIVE : TROIKA_REACTIVE;
  }
}

static bool differs(const engine_answer *a, const engine_answer *b, uint32_t n) {
  return a->n != n || b->n < n || memcmp(a->tokens, b->tokens, n * sizeof *a->tokens) ||
         memcmp(a->logprobs, b->logprobs, n * sizeof *a->logprobs);
}

static void submit(troika_stream *s, const ask *a) {
  troika_error err = {0};
  if (!troika_stream_submit(s, &a->q, &err)) return;
  fprintf(stderr, "submit: %s\n", err.text);
  exit(1);
}

static void submit_all(const way *w, troika_stream **streams) {
  for (uint32_t k = 0; k < 2 * w->asks; k++) {
    uint32_t i = k % w->asks;
    bool first = !w->late || asks[i].q.class_ == TROIKA_PROACTIVE;
    if (w->late && k == w->asks) nanosleep(&(struct timespec){0, 150000000}, NULL);
    if (first != (k < w->asks)) continue;
    asks[i].q.no_prefix_cache = !w->cached;
    asks[i].q.max_tokens = w->late ? LONG_ANSWER : ANSWER;
    submit(streams[i], &asks[i]);
  }
}

static void compare(const char *model, const way *w) {
  char name[128];
  uint32_t wrong = 0, cached = 0;
  troika_stream *streams[ASKS];
  troika_runtime_options o = w->options;
  o.size = sizeof o;
  if (!o.context) o.context = 2048;
  engine e = engine_open(model, &o);
  for (uint32_t i = 0; i < w->asks; i++) streams[i] = engine_stream(&e);
  for (int round = 0; round < (w->again ? 2 : 1); round++) {
    submit_all(w, streams);
    for (uint32_t i = 0; i < w->asks; i++) {
      engine_read(streams[i], &got);
      bool other = differs(&got, &alone[i], asks[i].q.max_tokens);
      if (other) fprintf(stderr, "%s: answer %u has %u tokens, %s\n", w->name, i, got.n, got.error);
      wrong += other;
      if (round) cached += got.end.cached_tokens;
    }
  }
  for (uint32_t i = 0; i < w->asks; i++) troika_stream_close(&streams[i]);
  troika_runtime_stats s;
  troika_runtime_describe(e.runtime, &s);
  engine_close(&e);
  snprintf(name, sizeof name, "%s, %s: answers that differ", model, w->name);
  figure(name, "==", 0, wrong);
  if (w->options.test_stop_panels) {
    snprintf(name, sizeof name, "%s, %s: stops", model, w->name);
    figure(name, ">=", 1000, (double)s.stops);
  }
  if (w->late) {
    snprintf(name, sizeof name, "%s, %s: requests whose pages were taken", model, w->name);
    figure(name, ">=", 1, (double)s.suspensions);
  }
  if (w->again) {
    snprintf(name, sizeof name, "%s, %s: tokens from the cache", model, w->name);
    figure(name, ">=", 1000, cached);
  }
}

static void compare_model(const char *model, uint64_t few_bytes) {
  const way ways[] = {
      {.name = "in company of 8", .options = {.parallel = 8}, .asks = ASKS},
      {.name = "in company, B_cap 2", .options = {.parallel = 8, .bcap = 2}, .asks = ASKS},
      {.name = EVERY == 1 ? "stopped after every panel" : "stopped often",
       .options = {.parallel = 2, .test_stop_panels = EVERY},
       .asks = 2},
      {.name = "in company, stopped after 50 panels",
       .options = {.parallel = 8, .test_stop_panels = 50},
       .asks = 5},
      {.name = "pages taken",
       .options = {.parallel = 3, .context = 1280, .kv_bytes = few_bytes},
       .asks = ASKS,
       .cached = true,
       .late = true},
      {.name = "from a shared prefix",
       .options = {.parallel = 8},
       .asks = ASKS,
       .cached = true,
       .again = true}};
  engine e = engine_open(
      model, &(troika_runtime_options){.size = sizeof(troika_runtime_options), .context = 2048});
  make_asks(&e);
  for (uint32_t i = 0; i < ASKS; i++) {
    asks[i].q.no_prefix_cache = true;
    engine_ask(&e, &asks[i].q, &alone[i]);
  }
  engine_close(&e);
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) compare(model, &ways[w]);
}

int main(void) {
  compare_model(SMOLLM2, 32 << 20);
#ifndef SANITIZED
  compare_model(GEMMA3, 24 << 20);
#endif
  return figures_end();
}
