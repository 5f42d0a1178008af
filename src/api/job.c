/* SPDX-License-Identifier: Apache-2.0 */
#include "api/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

enum { PENDING_MAX = 4 * 1024 * 1024, ANSWER_MAX = 512 * 1024 * 1024, CHAT_TRIES = 2 };

void api_answer_with_failure(http_exchange *x, const api_failure *failure) {
  bytes_buffer body;
  char text[16];
  bytes_init(&body, 8192);
  api_failure_write(failure, &body);
  if (failure->retry_after_s) {
    snprintf(text, sizeof text, "%u", failure->retry_after_s);
    http_answer_header(x, "Retry-After", text);
  }
  if (failure->status == 500)
    http_answer_header(x, "x-should-retry", "false"); /* it would fail again */
  http_answer(x, failure->status, "application/json", &body);
}

/* The engine's or the HTTP side's news: stepped soon. */
static void on_news(void *context) {
  api_job *job = context;
  api_pool_post(job->owner->pool, &job->item);
}

bool api_job_create(api *a, http_exchange *x, api_endpoint endpoint) {
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
  snprintf(job->answer.id, sizeof job->answer.id, "%s-%016llx%08llx",
           endpoint == API_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)(id ^ id >> 29), n);
  api_pool_add(a->pool, &job->item);
  return true;
}

static bool fail(api_job *job, const api_failure *failure) {
  job->status = failure->status;
  api_answer_with_failure(job->x, failure);
  return true;
}

/* Room for one token more than fits, so that "too long" is told apart from "exactly full" with its
 * true length. */
static bool make_prompt(api_job *job, int32_t **tokens, size_t *n, api_failure *failure) {
  const api *a = job->owner;
  api_request *r = &job->request;
  size_t capacity = (size_t)a->context + 1;
  troika_error err = {0};
  const char *param = job->endpoint == API_CHAT ? "messages" : "prompt";
  int32_t *out = malloc(capacity * sizeof *out);
  troika_status status;
  *n = 0;
  /* Megabytes that cannot fit are refused before they are tokenized, which would take seconds: no
   * token is longer than the longest one, and JSON writes no byte in more than six. */
  size_t bytes = job->endpoint == API_CHAT ? strlen(r->messages) / 6 : r->prompt.len;
  size_t least = bytes / (a->token_bytes_max ? a->token_bytes_max : 1);
  if (least > a->context) {
    api_failure_too_long(failure, param, least < UINT32_MAX ? (uint32_t)least : UINT32_MAX,
                         a->context, true);
    free(out);
    return false;
  }
  if (!out) {
    api_failure_of_status(failure, TROIKA_NO_MEMORY, "no memory for the prompt");
    return false;
  }
  if (job->endpoint == API_CHAT)
    status = troika_model_chat(a->options.model, r->messages, strlen(r->messages),
                               r->tools ? r->tools : "", r->tools ? strlen(r->tools) : 0, true, out,
                               capacity, n, &err);
  else
    status = troika_model_tokenize(a->options.model, r->prompt.ptr, r->prompt.len, true,
                                   r->parse_special, out, capacity, n, &err);
  if (*n > a->context && (!status || status == TROIKA_LIMIT))
    api_failure_too_long(failure, param, (uint32_t)*n, a->context, false), status = TROIKA_LIMIT;
  else if (status) {
    api_failure_of_status(failure, status, err.text);
    if (failure->status == 400) snprintf(failure->param, sizeof failure->param, "%s", param);
  } else if (*n == 0)
    api_failure_set(failure, param, "%s is empty, and this model has no token to begin with",
                    param),
        status = TROIKA_INVALID;
  if (status) {
    free(out);
    return false;
  }
  *tokens = out;
  return true;
}

static bool submit(api_job *job, api_failure *failure) {
  const api *a = job->owner;
  api_request *r = &job->request;
  int32_t *made = NULL;
  size_t n = r->tokens_n;
  if (r->has_tokens && n > a->context) {
    api_failure_too_long(failure, "prompt", (uint32_t)n, a->context, false);
    return false;
  }
  if (!r->has_tokens && !make_prompt(job, &made, &n, failure)) return false;
  troika_error err = {0};
  troika_stream_options options = {.size = sizeof options, .wake = on_news, .wake_context = job};
  troika_status status = troika_stream_open(a->options.runtime, &options, &job->stream, &err);
  r->engine.prompt = made ? made : r->tokens;
  r->engine.prompt_n = (uint32_t)n;
  if (!status) status = troika_stream_submit(job->stream, &r->engine, &err);
  free(made);
  job->end.prompt_tokens = (uint32_t)n;
  if (status) api_failure_of_status(failure, status, err.text);
  return status == TROIKA_OK;
}

/* The first step. True: over, and answered. */
static bool start(api_job *job) {
  api *a = job->owner;
  api_answer *w = &job->answer;
  api_failure failure = {0};
  job->begun = true;
  http_watch(job->x, on_news, job);
  if (http_gone(job->x)) return true;
  http_answer_header(job->x, "x-request-id", w->id);
  if (!api_request_parse(http_body(job->x), job->endpoint, a->vocab, &job->request, &failure))
    return fail(job, &failure);
  w->model = a->options.model;
  w->endpoint = job->endpoint;
  w->stream = job->request.stream;
  w->include_usage = job->request.include_usage;
  w->logprobs = job->request.engine.logprobs;
  w->model_name = a->model_name;
  w->created_s = time(NULL);
  if (!submit(job, &failure)) return fail(job, &failure);
  w->preprocess_ns = clock_real_now(NULL) - http_received_ns(job->x);
  if (!w->stream) return false;
  http_answer_header(job->x, "Cache-Control", "no-cache");
  http_answer_header(job->x, "X-Accel-Buffering",
                     "no"); /* proxies that gather would hold tokens back */
  if (http_stream_begin(job->x, 200, "text/event-stream; charset=utf-8")) {
    api_failure_of_status(&failure, TROIKA_NO_MEMORY, "no memory for the stream");
    troika_stream_close(&job->stream);
    return fail(job, &failure);
  }
  job->status = 200;
  job->written_ns = clock_real_now(NULL);
  api_answer_first(w, &job->pending);
  return false;
}

/* Writes what waits. True: all is out (or nobody reads it). */
static bool flush(api_job *job) {
  bytes_buffer *p = &job->pending;
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

static bool event_failed(const api_job *job, const troika_event *e, api_failure *failure) {
  if (e->finish != TROIKA_FINISH_ERROR && e->finish != TROIKA_FINISH_CANCELLED) return false;
  troika_status status = e->finish == TROIKA_FINISH_CANCELLED ? TROIKA_CANCELLED : e->status;
  api_failure_of_status(failure, status ? status : TROIKA_INTERNAL,
                        job->cancelled ? "the server is stopping" : e->error_text);
  if (failure->status < 500) { /* the request was accepted: what fails now is ours */
    failure->status = 500;
    failure->type = api_failure_type_of(500);
  }
  return true;
}

static void take_end(api_job *job, const troika_event *e) {
  api_failure failure;
  job->ended = true;
  job->end = *e;
  job->end.text = job->end.error_text = NULL; /* valid until the next call only */
  if (job->answer.stream) {
    if (event_failed(job, e, &failure)) {
      job->status = failure.status;
      api_answer_failure(&job->answer, &failure, &job->pending);
    } else {
      api_answer_end(&job->answer, e, &job->pending);
    }
    return;
  }
  bytes_buffer body;
  bytes_init(&body, ANSWER_MAX);
  api_answer_gather(&job->answer, e);
  if (event_failed(job, e, &failure)) {
    fail(job, &failure);
  } else if (api_answer_whole(&job->answer, e, &body)) {
    api_failure_of_status(&failure, TROIKA_NO_MEMORY, "the answer is too large");
    fail(job, &failure);
  } else {
    job->status = 200;
    http_answer(job->x, 200, "application/json", &body);
  }
  bytes_free(&body);
}

static void keep_alive(api_job *job) {
  int64_t most = job->owner->options.keepalive_ns;
  if (!most || !job->answer.stream || clock_real_now(NULL) - job->written_ns < most) return;
  http_sse_comment(&job->pending, "keep-alive");
  flush(job);
}

/* True: over. */
static bool advance(api_job *job) {
  bool nobody = http_gone(job->x) || atomic_load(&job->owner->closing);
  if (nobody && !job->cancelled && !job->ended) {
    job->cancelled = true;
    troika_stream_cancel(job->stream);
  }
  troika_event event;
  while (flush(job) && !job->ended && !troika_stream_next(job->stream, &event, 0)) {
    if (event.kind == TROIKA_EVENT_END)
      take_end(job, &event);
    else if (job->answer.stream)
      api_answer_token(&job->answer, &event, &job->pending);
    else
      api_answer_gather(&job->answer, &event);
  }
  if (!job->ended) {
    if (!job->pending.len) keep_alive(job);
    if (!nobody) return false;
    /* A client that went with its ring full: its frames go nowhere. */
    bytes_clear(&job->pending);
    job->pending_at = 0;
    return false;
  }
  if (!job->answer.stream) return true;
  if (!flush(job) && !nobody) return false;
  http_stream_end(job->x, job->status != 200);
  return true;
}

bool api_job_step(api_pool_item *item) {
  api_job *job = (api_job *)item;
  if (!job->begun && start(job)) return true;
  return advance(job);
}

static void log_job(const api_job *job, bool gone) {
  const troika_event *e = &job->end;
  char outcome[16] = "gone";
  if (!gone || (job->ended && !job->cancelled))
    snprintf(outcome, sizeof outcome, "%u", job->status);
  log_line(LOG_INFO,
           "%s %s %s%s prompt %u cached %u generated %u queue %.1f prefill %.1f decode %.1f total "
           "%.1f ms %s",
           http_method(job->x), http_path(job->x), outcome, job->answer.stream ? " stream" : "",
           e->prompt_tokens, e->cached_tokens, e->completion_tokens,
           (double)e->timings.queue_ns / 1e6, (double)e->timings.prefill_ns / 1e6,
           (double)e->timings.decode_ns / 1e6,
           (double)(clock_real_now(NULL) - http_received_ns(job->x)) / 1e6, job->answer.id);
}

void api_job_finish(api_pool_item *item) {
  api_job *job = (api_job *)item;
  http_exchange *x = job->x;
  /* Both callbacks post to the pool, so both are ended before the job is freed. */
  http_watch(x, NULL, NULL);
  if (job->stream) troika_stream_close(&job->stream);
  log_job(job, http_gone(x));
  api_request_free(&job->request);
  api_answer_free(&job->answer);
  bytes_free(&job->pending);
  free(job);
  http_exchange_release(x);
}
