/* SPDX-License-Identifier: Apache-2.0 */
/* troika bench: prefill at several lengths, decode alone, decode together.
 *
 *   prefill N   submit to end of a request of N prompt tokens that generates nothing
 *   decode N    first to last token of N generated ones, after a prompt of PROMPT tokens
 *   batch B     tokens of B such requests from when all have begun until the first has ended
 *
 * Prompts are drawn tokens, new ones each time, so that no cache can know them; speed does not
 * depend on what they say. */
#include "cli/bench.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/os.h"
#include "troika/stream.h"

enum { PROMPT = 32, STREAMS_MAX = 64 };

typedef struct bench {
  bench_record record;
  troika_runtime *runtime;
  uint32_t vocab, context;
  uint64_t draw; /* state of the prompt generator */
  uint64_t steps, steps_all;
  cli_progress bar;
  uint32_t news; /* futex: an event came in somewhere */
} bench;

static uint32_t draw(bench *b) { /* a linear congruence; only variety matters */
  b->draw = b->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(b->draw >> 33);
}

static void on_wake(void *context) {
  bench *b = context;
  __atomic_fetch_add(&b->news, 1, __ATOMIC_RELEASE);
  os_futex_wake(&b->news, 1);
}

static troika_status submit(bench *b, troika_stream *stream, uint32_t prompt_n, uint32_t max_tokens,
                            troika_error *err) {
  int32_t *tokens = malloc(prompt_n * sizeof *tokens);
  if (!tokens) return TROIKA_NO_MEMORY;
  for (uint32_t i = 0; i < prompt_n; i++) tokens[i] = (int32_t)(draw(b) % b->vocab);
  troika_request request;
  troika_request_init(&request);
  request.prompt = tokens;
  request.prompt_n = prompt_n;
  request.max_tokens = max_tokens;
  request.temperature = 0;
  request.ignore_eos = true;
  troika_status status = troika_stream_submit(stream, &request, err);
  free(tokens);
  return status;
}

/* B requests at once; *rate in tokens per second. max_tokens 0 measures the prompts. */
typedef struct measured {
  int64_t begun_ns, first_ns, last_ns; /* of one stream */
  uint32_t tokens, after;              /* all; those that came while all were decoding */
  bool ended;
} measured;

static troika_status take_events(troika_stream *stream, measured *m, bool counts,
                                 troika_error *err) {
  troika_event event;
  while (!m->ended && !troika_stream_next(stream, &event, 0)) {
    int64_t now = clock_real_now(NULL);
    if (event.kind == TROIKA_EVENT_TOKEN) {
      if (!m->tokens++) m->first_ns = now;
      if (counts) m->after++;
      m->last_ns = now;
      continue;
    }
    m->ended = true;
    if (!m->tokens) m->last_ns = now;
    if (event.finish == TROIKA_FINISH_ERROR) {
      snprintf(err->text, sizeof err->text, "%s", event.error_text);
      return event.status ? event.status : TROIKA_INTERNAL;
    }
  }
  return TROIKA_OK;
}

/* Until one has ended (batch) or all have. Returns the rate. */
static troika_status follow(bench *b, troika_stream **streams, measured *m, uint32_t n,
                            double *rate, troika_error *err) {
  int64_t window_ns = 0, end_ns = 0;
  uint32_t left = n;
  while (left && !cli_signals_seen()) {
    uint32_t before = __atomic_load_n(&b->news, __ATOMIC_ACQUIRE);
    left = 0;
    bool all_begun = true;
    for (uint32_t i = 0; i < n; i++) {
      troika_status status = take_events(streams[i], &m[i], window_ns != 0 && end_ns == 0, err);
      if (status) return status;
      all_begun &= m[i].tokens > 0;
      if (m[i].ended && !end_ns && m[i].tokens) end_ns = m[i].last_ns;
      left += !m[i].ended;
    }
    if (all_begun && !window_ns) window_ns = clock_real_now(NULL);
    if (left) os_futex_wait(&b->news, before, 20000000);
  }
  uint32_t tokens = 0;
  for (uint32_t i = 0; i < n; i++) tokens += m[i].after;
  *rate = end_ns > window_ns && window_ns ? tokens * 1e9 / (double)(end_ns - window_ns) : 0;
  return TROIKA_OK;
}

static troika_status measure(bench *b, uint32_t requests, uint32_t prompt_n, uint32_t generate,
                             double *rate, troika_error *err) {
  troika_stream *streams[STREAMS_MAX] = {0};
  measured m[STREAMS_MAX] = {0};
  troika_status status = TROIKA_OK;
  troika_stream_options options = {.size = sizeof options, .wake = on_wake, .wake_context = b};
  for (uint32_t i = 0; i < requests && !status; i++)
    status = troika_stream_open(b->runtime, &options, &streams[i], err);
  for (uint32_t i = 0; i < requests && !status; i++) {
    m[i].begun_ns = clock_real_now(NULL);
    status = submit(b, streams[i], prompt_n, generate, err);
  }
  if (!status) status = follow(b, streams, m, requests, rate, err);
  if (!generate)
    *rate = prompt_n * 1e9 / (double)(m[0].last_ns - m[0].begun_ns);
  else if (requests == 1 && m[0].last_ns > m[0].first_ns)
    *rate = (m[0].tokens - 1) * 1e9 / (double)(m[0].last_ns - m[0].first_ns);
  for (uint32_t i = 0; i < requests; i++)
    if (streams[i]) troika_stream_close(&streams[i]);
  return status;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static bool repeat(bench *b, const char *kind, uint32_t n, uint32_t requests, uint32_t prompt_n,
                   uint32_t generate) {
  const cli_settings *s = b->record.settings;
  double rates[BENCH_REPETITIONS_MAX];
  uint32_t count = (uint32_t)s->repetitions;
  troika_error err = {0};
  for (int64_t i = -s->warmups; i < count; i++) {
    double rate = 0;
    if (measure(b, requests, prompt_n, generate, &rate, &err))
      return cli_fail("%s %u: %s", kind, n, err.text), false;
    if (cli_signals_seen()) return false;
    if (i >= 0) rates[i] = rate;
    cli_progress_show(&b->bar, ++b->steps, b->steps_all);
  }
  qsort(rates, count, sizeof *rates, by_value);
  bench_result *r = &b->record.results[b->record.results_n++];
  *r = (bench_result){
      .kind = kind, .n = n, .repetitions = count, .min = rates[0], .max = rates[count - 1]};
  r->median = count % 2 ? rates[count / 2] : (rates[count / 2 - 1] + rates[count / 2]) / 2;
  snprintf(r->name, sizeof r->name, "%s %u", kind, n);
  return true;
}

/* "64,256" to numbers; returns how many, 0 if the text is wrong. */
static unsigned read_list(const char *name, const char *text, unsigned max,
                          uint32_t out[BENCH_LIST_MAX]) {
  unsigned n = 0;
  for (const char *p = text; n < BENCH_LIST_MAX; n++) {
    char *end;
    unsigned long v = strtoul(p, &end, 10);
    if (*p < '0' || *p > '9' || v < 1 || v > max || (*end && *end != ',')) break;
    out[n] = (uint32_t)v;
    if (!*end) return n + 1;
    p = end + 1;
  }
  cli_fail("%s is \"%.60s\"; expected are at most %d numbers from 1 to %u with commas between",
           name, text, BENCH_LIST_MAX, max);
  return 0;
}

static bool run_all(bench *b, const uint32_t *prefill, unsigned prefill_n, const uint32_t *batch,
                    unsigned batch_n) {
  const cli_settings *s = b->record.settings;
  uint32_t generate = (uint32_t)s->decode;
  b->steps_all = (uint64_t)(s->repetitions + s->warmups) * (prefill_n + batch_n + 1);
  for (unsigned i = 0; i < prefill_n; i++) {
    if (prefill[i] > b->context) {
      fprintf(stderr, "troika: prefill %u is left out: the context holds %u tokens\n", prefill[i],
              b->context);
      continue;
    }
    if (!repeat(b, "prefill", prefill[i], 1, prefill[i], 0)) return false;
  }
  if (!repeat(b, "decode", generate, 1, PROMPT, generate)) return false;
  for (unsigned i = 0; i < batch_n; i++)
    if (!repeat(b, "batch", batch[i], batch[i], PROMPT, generate)) return false;
  return true;
}

int cli_bench(const cli_settings *s) {
  uint32_t prefill[BENCH_LIST_MAX], batch[BENCH_LIST_MAX], most = 1;
  unsigned prefill_n = read_list("--prefill", s->prefill, 1 << 20, prefill);
  unsigned batch_n = prefill_n ? read_list("--batch", s->batch, STREAMS_MAX, batch) : 0;
  if (!batch_n || s->arguments_n) {
    if (s->arguments_n)
      cli_fail("bench takes no arguments: is \"%.60s\" meant for --model?", s->arguments[0]);
    return CLI_USAGE;
  }
  for (unsigned i = 0; i < batch_n; i++)
    if (batch[i] > most) most = batch[i];
  cli_engine e;
  cli_signals_catch();
  if (!cli_engine_open(s, most, &e)) return CLI_FAILED;
  bench b = {.record = {.settings = s, .engine = &e}, .runtime = e.runtime, .draw = 1};
  troika_model_info m;
  troika_runtime_stats stats;
  troika_model_describe(e.model, &m);
  troika_runtime_describe(e.runtime, &stats);
  b.vocab = m.vocab;
  b.context = stats.context;
  cli_progress_begin(&b.bar, "measuring");
  bool ok = run_all(&b, prefill, prefill_n, batch, batch_n);
  cli_progress_end(&b.bar);
  if (ok && s->json)
    bench_print_json(&b.record);
  else if (ok)
    bench_print(&b.record);
  cli_engine_close(&e);
  return ok ? CLI_OK : cli_signals_seen() ? CLI_INTERRUPTED : CLI_FAILED;
}
