/* SPDX-License-Identifier: Apache-2.0 */
/* troika bench: prefill at several lengths, decode alone, decode together.
 *
 *   prefill N   submit to end of a request of N prompt tokens that generates nothing
 *   decode N    first to last token of N generated ones, after a prompt of PROMPT tokens
 *   batch B     the sum of the rates of B such requests that were submitted together
 *
 * Decode times are the engine's own: this thread may be late to read, since all processors work.
 *
 * Prompts are drawn tokens, new ones each time, so that no cache can know them; speed does not
 * depend on what they say. */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "troika/stream.h"

enum { PROMPT = 32, STREAMS_MAX = 64, POLL_NS = 50000000 };

typedef struct bench {
  bench_record record;
  troika_runtime *runtime;
  uint32_t vocab, context;
  uint64_t draw; /* state of the prompt generator */
  uint64_t steps, steps_all;
  cli_progress bar;
  int64_t end_ns; /* of the last stream followed */
} bench;

static uint32_t draw(bench *b) { /* a linear congruence; only variety matters */
  b->draw = b->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(b->draw >> 33);
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

/* Waits for the end of a stream; *rate is its tokens per second between its first and last one. */
static troika_status follow(bench *b, troika_stream *stream, double *rate, troika_error *err) {
  troika_event event;
  troika_status status;
  for (;;) {
    status = troika_stream_next(stream, &event, POLL_NS);
    if (cli_signals_seen()) troika_stream_cancel(stream);
    if (status == TROIKA_TIMEOUT) continue;
    if (status) return error_set(err, TROIKA_INTERNAL, "a stream without an end");
    if (event.kind == TROIKA_EVENT_END) break;
  }
  b->end_ns = clock_real_now(NULL);
  if (event.finish == TROIKA_FINISH_ERROR)
    return error_set(err, event.status, "%s", event.error_text);
  if (event.timings.decode_ns > 0)
    *rate = (event.completion_tokens - 1) * 1e9 / (double)event.timings.decode_ns;
  return TROIKA_OK;
}

/* *rate in tokens per second of all requests together; generate 0 measures the prompt. */
static troika_status measure(bench *b, uint32_t requests, uint32_t prompt_n, uint32_t generate,
                             double *rate, troika_error *err) {
  troika_stream *streams[STREAMS_MAX] = {0};
  troika_status status = TROIKA_OK;
  for (uint32_t i = 0; i < requests && !status; i++)
    status = troika_stream_open(b->runtime, NULL, &streams[i], err);
  int64_t begun_ns = clock_real_now(NULL);
  for (uint32_t i = 0; i < requests && !status; i++)
    status = submit(b, streams[i], prompt_n, generate, err);
  *rate = 0;
  for (uint32_t i = 0; i < requests && !status; i++) {
    double one = 0;
    status = follow(b, streams[i], &one, err);
    *rate += one;
  }
  if (!generate && !status) *rate = prompt_n * 1e9 / (double)(b->end_ns - begun_ns);
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

unsigned bench_read_list(const char *name, const char *text, unsigned max,
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
  if (s->arguments_n && !strcmp(s->arguments[0], "kv")) return cli_bench_kv(s);
  uint32_t prefill[BENCH_LIST_MAX], batch[BENCH_LIST_MAX], most = 1;
  unsigned prefill_n = bench_read_list("--prefill", s->prefill, 1 << 20, prefill);
  unsigned batch_n = prefill_n ? bench_read_list("--batch", s->batch, STREAMS_MAX, batch) : 0;
  if (!batch_n || s->arguments_n) {
    if (s->arguments_n)
      cli_fail("bench takes no arguments but kv: is \"%.60s\" meant for --model?", s->arguments[0]);
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
