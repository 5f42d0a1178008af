/* SPDX-License-Identifier: Apache-2.0 */
#include "api/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/json.h"
#include "base/clock.h"
#include "base/log.h"

enum { PENDING_MAX = 64 * 1024 * 1024, ANSWER_MAX = 512 * 1024 * 1024 };

void api_answer_with_failure(http_exchange *x, const api_failure *failure) {
  bytes_buffer body;
  char text[16];
  bytes_init(&body, 8192);
  api_failure_write(failure, &body);
  if (failure->retry_after_s) {
    snprintf(text, sizeof text, "%u", failure->retry_after_s);
    http_answer_header(x, "Retry-After", text);
  }
  if (failure->status == 401) http_answer_header(x, "WWW-Authenticate", "Bearer");
  if (failure->status == 500)
    http_answer_header(x, "x-should-retry", "false"); /* it would fail again */
  http_answer(x, failure->status, "application/json", &body);
}

void api_job_news(void *context) {
  api_job *job = context;
  api_pool_post(job->owner->pool, &job->item);
}

bool api_job_create(api *a, http_exchange *x, api_endpoint endpoint) {
  static const char *const kinds[] = {"chatcmpl", "cmpl", "tok", "detok"};
  api_job *job = calloc(1, sizeof *job);
  if (!job) return false;
  job->owner = a;
  job->x = x;
  job->endpoint = endpoint;
  http_exchange_hold(x);
  bytes_init(&job->pending, PENDING_MAX);
  api_answer_init(&job->answer);
  unsigned long long n = atomic_fetch_add(&a->requests, 1);
  uint64_t id = (a->id_salt ^ n) * UINT64_C(0x9E3779B97F4A7C15);
  snprintf(job->answer.id, sizeof job->answer.id, "%s-%016llx%08llx", kinds[endpoint],
           (unsigned long long)(id ^ id >> 29), n);
  api_pool_add(a->pool, &job->item);
  return true;
}

static api_usage usage_of(const api_job *job) {
  api_usage u = {.preprocess_ns = job->answer.preprocess_ns};
  for (uint32_t i = 0; i < job->choices_n; i++) {
    const api_choice *c = &job->choices[i];
    const troika_event *e = &c->end;
    if (!c->ended) continue;
    u.completion_tokens += e->completion_tokens;
    if (i == 0) u.timings = e->timings;
    if (e->timings.decode_ns >= u.timings.decode_ns && e->completion_tokens > 1) {
      u.timings.decode_ns = e->timings.decode_ns;
      u.per_token_ns = e->timings.decode_ns / (e->completion_tokens - 1);
    }
    if (i % job->request.n) continue; /* a prompt counts once */
    u.prompt_tokens += e->prompt_tokens;
    u.cached_tokens += e->cached_tokens;
  }
  if (job->first_ns) u.first_token_ns = job->first_ns - http_received_ns(job->x);
  return u;
}

static double ms(int64_t ns) {
  return (double)ns / 1e6;
}

static void log_job(const api_job *job, const api_usage *u, unsigned status, int64_t total_ns) {
  char members[512], outcome[16] = "gone";
  if (!log_wants(LOG_INFO)) return;
  if (status != API_STATUS_GONE) snprintf(outcome, sizeof outcome, "%u", status);
  snprintf(
      members, sizeof members,
      "\"id\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%u,\"stream\":%s,"
      "\"choices\":%u,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"completion_tokens\":%llu,"
      "\"preprocess_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,"
      "\"first_token_ms\":%.3f,\"total_ms\":%.3f",
      job->answer.id, http_method(job->x), http_path(job->x), status,
      job->answer.stream ? "true" : "false", job->choices_n, (unsigned long long)u->prompt_tokens,
      (unsigned long long)u->cached_tokens, (unsigned long long)u->completion_tokens,
      ms(u->preprocess_ns), ms(u->timings.queue_ns), ms(u->timings.prefill_ns),
      ms(u->timings.decode_ns), ms(u->first_token_ns), ms(total_ns));
  log_with(LOG_INFO, members,
           "%s %s %s%s prompt %llu cached %llu generated %llu preprocess %.1f queue %.1f prefill "
           "%.1f decode %.1f total %.1f ms %s",
           http_method(job->x), http_path(job->x), outcome, job->answer.stream ? " stream" : "",
           (unsigned long long)u->prompt_tokens, (unsigned long long)u->cached_tokens,
           (unsigned long long)u->completion_tokens, ms(u->preprocess_ns), ms(u->timings.queue_ns),
           ms(u->timings.prefill_ns), ms(u->timings.decode_ns), ms(total_ns), job->answer.id);
}

/* Before the answer goes out: whoever has it finds it counted and logged. Once. */
static void record(api_job *job) {
  if (job->recorded) return;
  job->recorded = true;
  bool all_ended = job->choices_n && job->ended == job->choices_n;
  unsigned status = job->left || !job->status ? API_STATUS_GONE : job->status;
  int64_t total_ns = clock_real_now(NULL) - http_received_ns(job->x);
  api_usage usage = usage_of(job);
  if (all_ended && !job->failed && !job->left)
    api_metrics_finished(&job->owner->metrics, &usage, total_ns);
  if (!usage.prompt_tokens) usage.prompt_tokens = job->prompt_tokens;
  api_metrics_answered(&job->owner->metrics, job->endpoint, status);
  log_job(job, &usage, status, total_ns);
}

static bool fail(api_job *job, const api_failure *failure) {
  job->status = failure->status;
  record(job);
  api_answer_with_failure(job->x, failure);
  return true;
}

/* /tokenize and /detokenize end with their first step. */
static bool answer_tokens(api_job *job) {
  api_failure failure = {0};
  bytes_buffer body;
  bytes_init(&body, ANSWER_MAX);
  bytes_view text = http_body(job->x);
  bool ok = job->endpoint == API_TOKENIZE ? api_tokenize(job->owner, text, &body, &failure)
                                          : api_detokenize(job->owner, text, &body, &failure);
  if (ok) {
    job->status = 200;
    record(job);
    http_answer(job->x, 200, "application/json", &body);
  } else {
    fail(job, &failure);
  }
  bytes_free(&body);
  return true;
}

static void set_answer(api_job *job) {
  const api *a = job->owner;
  api_answer *w = &job->answer;
  w->model = a->options.model;
  w->endpoint = job->endpoint;
  w->stream = job->request.stream;
  w->include_usage = job->request.include_usage;
  w->logprobs = job->request.engine.logprobs;
  api_answer_begin(w, a->model_name, time(NULL));
}

static void cancel_all(api_job *job) {
  job->cancelled = true;
  for (uint32_t i = 0; i < job->choices_n; i++)
    if (job->choices[i].stream) troika_stream_cancel(job->choices[i].stream);
}

/* Headers and the first chunks. False: no memory, nothing was sent. */
static bool begin_stream(api_job *job) {
  http_answer_header(job->x, "Cache-Control", "no-cache");
  /* Proxies that gather would hold tokens back. */
  http_answer_header(job->x, "X-Accel-Buffering", "no");
  if (http_stream_begin(job->x, 200, "text/event-stream; charset=utf-8")) return false;
  job->status = 200;
  job->written_ns = clock_real_now(NULL);
  for (uint32_t i = 0; i < job->choices_n; i++) {
    api_choice *c = &job->choices[i];
    api_answer_first(&job->answer, c, &job->pending);
    if (!c->text.len) continue;
    api_answer_text(&job->answer, c, c->text.data, c->text.len, &job->pending); /* the echo */
    bytes_clear(&c->text);
  }
  return true;
}

/* The first step. True: over, and answered. */
static bool start(api_job *job) {
  api *a = job->owner;
  api_failure failure = {0};
  job->begun = true;
  http_watch(job->x, api_job_news, job);
  if (http_gone(job->x)) return true;
  http_answer_header(job->x, "x-request-id", job->answer.id);
  if (job->endpoint == API_TOKENIZE || job->endpoint == API_DETOKENIZE) return answer_tokens(job);
  if (!api_request_parse(http_body(job->x), job->endpoint, a->vocab, &job->request, &failure))
    return fail(job, &failure);
  set_answer(job);
  if (!api_job_submit(job, &failure)) return fail(job, &failure); /* finish closes the streams */
  job->answer.preprocess_ns = clock_real_now(NULL) - http_received_ns(job->x);
  if (!job->answer.stream || begin_stream(job)) return false;
  api_failure_memory(&failure);
  return fail(job, &failure);
}

static void drop_frames(api_job *job) {
  bytes_clear(&job->pending);
  job->pending_at = 0;
}

/* Writes what waits. True: all is out (or nobody reads it). */
static bool flush(api_job *job) {
  bytes_buffer *p = &job->pending;
  if (job->cut) drop_frames(job);
  if (job->pending_at < p->len) {
    size_t n = http_stream_write(job->x, p->data + job->pending_at, p->len - job->pending_at);
    job->pending_at += n;
    if (n) job->written_ns = clock_real_now(NULL);
    if (job->pending_at < p->len) return false;
  }
  bytes_clear(p);
  job->pending_at = 0;
  return true;
}

/* An end that is no answer fails the whole request, and with it its other choices. */
static bool end_failed(api_job *job, const troika_event *e) {
  if (e->finish != TROIKA_FINISH_ERROR && e->finish != TROIKA_FINISH_CANCELLED) return false;
  if (job->failed || job->left) return true; /* this one was cancelled because of it */
  job->failed = true;
  troika_status status = e->finish == TROIKA_FINISH_CANCELLED ? TROIKA_CANCELLED : e->status;
  api_failure_of_status(&job->failure, status ? status : TROIKA_INTERNAL,
                        job->cancelled ? "the server is stopping" : e->error_text);
  /* A place in the queue can still be lost to another's, and a grammar or a bias can turn out to
   * leave no token, or to take too long; all else that fails now is ours. */
  bool theirs = status == TROIKA_LIMIT && e->completion_tokens + e->timings.prefill_ns > 0;
  if (theirs)
    snprintf(job->failure.param, sizeof job->failure.param, "%s",
             job->grammar ? "response_format" : "logit_bias");
  if (job->failure.status < 500 && !theirs && (job->failure.status != 429 || job->answer.stream)) {
    job->failure.status = 500;
    job->failure.type = api_failure_type_of(500);
  }
  job->status = job->failure.status;
  cancel_all(job);
  return true;
}

/* What went wrong on our side of the engine; the rest of the request is of no use to anybody. */
static void fail_all(api_job *job, const api_failure *failure) {
  if (job->failed || job->left) return;
  job->failed = true;
  job->failure = *failure;
  job->status = failure->status;
  cancel_all(job);
}

static void take_end(api_job *job, api_choice *c, const troika_event *e) {
  c->ended = true;
  job->ended++;
  c->end = *e;
  c->end.text = c->end.error_text = NULL; /* valid until the next call only */
  if (end_failed(job, e)) return;
  if (job->answer.stream)
    api_answer_finish(&job->answer, c, e, &job->pending);
  else
    api_answer_gather(&job->answer, c, e);
}

/* Takes one event of a choice. False: there is none now. */
static bool take_event(api_job *job, api_choice *c) {
  troika_event event;
  if (c->ended || troika_stream_next(c->stream, &event, 0)) return false;
  if (event.kind == TROIKA_EVENT_END) {
    take_end(job, c, &event);
    return true;
  }
  if (!job->first_ns) job->first_ns = clock_real_now(NULL);
  if (job->answer.stream)
    api_answer_token(&job->answer, c, &event, &job->pending);
  else
    api_answer_gather(&job->answer, c, &event);
  if (!job->answer.stream && api_choice_overflowed(c)) {
    api_failure failure;
    api_failure_set(&failure, NULL,
                    "the answer is too large: ask for fewer choices, tokens or log-probabilities");
    fail_all(job, &failure);
  }
  return true;
}

/* A frame that is lost cannot be told of in the same stream: it is cut. */
static void check_frames(api_job *job) {
  api_failure failure;
  if (!job->answer.failed && !job->pending.failed) return;
  api_failure_memory(&failure);
  fail_all(job, &failure);
  job->cut = true;
}

static void take_events(api_job *job) {
  bool more = true;
  while (more && flush(job)) {
    more = false;
    for (uint32_t i = 0; i < job->choices_n; i++) more = take_event(job, &job->choices[i]) || more;
    check_frames(job);
  }
}

static void answer_whole(api_job *job) {
  bytes_buffer body;
  api_failure failure;
  api_usage usage = usage_of(job);
  if (job->failed) {
    fail(job, &job->failure);
    return;
  }
  bytes_init(&body, ANSWER_MAX);
  if (api_answer_whole(&job->answer, job->choices, job->choices_n, &usage, &body)) {
    api_failure_memory(&failure);
    fail(job, &failure);
  } else {
    job->status = 200;
    record(job);
    http_answer(job->x, 200, "application/json", &body);
  }
  bytes_free(&body);
}

static void keep_alive(api_job *job) {
  int64_t most = job->owner->options.keepalive_ns;
  if (!most || !job->answer.stream || job->pending.len ||
      clock_real_now(NULL) - job->written_ns < most)
    return;
  http_sse_comment(&job->pending, "keep-alive");
  flush(job);
}

/* True: over. */
static bool advance(api_job *job) {
  bool gone = http_gone(job->x), nobody = gone || atomic_load(&job->owner->closing);
  bool all_ended = job->ended == job->choices_n;
  if (gone && !all_ended) job->left = true;
  if (nobody && !job->cancelled && !all_ended) cancel_all(job);
  if (!all_ended) {
    take_events(job);
    if (job->ended < job->choices_n) {
      keep_alive(job);
      if (gone) drop_frames(job); /* with its ring full: they go nowhere */
      return false;
    }
    api_usage usage = usage_of(job);
    if (!job->answer.stream && !job->left)
      answer_whole(job);
    else if (!job->answer.stream)
      return true;
    else if (job->failed)
      api_answer_failure(&job->answer, &job->failure, &job->pending);
    else
      api_answer_done(&job->answer, &usage, &job->pending);
    check_frames(job);
    record(job);
  }
  if (!job->answer.stream) return true;
  bool out = flush(job);
  if (!out && !nobody) return false;
  http_stream_end(job->x, job->failed || !out);
  return true;
}

bool api_job_step(api_pool_item *item) {
  api_job *job = (api_job *)item;
  if (!job->begun && start(job)) return true;
  return advance(job);
}

void api_job_finish(api_pool_item *item) {
  api_job *job = (api_job *)item;
  http_exchange *x = job->x;
  /* Both callbacks post to the pool, so both are ended before the job is freed. */
  http_watch(x, NULL, NULL);
  if (job->ended < job->submitted) cancel_all(job); /* all at once: each close waits for its own */
  for (uint32_t i = 0; i < job->choices_n; i++) {
    if (job->choices[i].stream) troika_stream_close(&job->choices[i].stream);
    api_choice_free(&job->choices[i]);
  }
  record(job);
  free(job->choices);
  troika_grammar_destroy(&job->grammar);
  api_request_free(&job->request);
  api_answer_free(&job->answer);
  bytes_free(&job->pending);
  free(job);
  http_exchange_release(x);
}
