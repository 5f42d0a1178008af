/* SPDX-License-Identifier: Apache-2.0 */
#include "api/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/json.h"
#include "base/clock.h"

enum {
  PENDING_MAX = 64 * 1024 * 1024,
  ANSWER_MAX = 512 * 1024 * 1024,
  DECISION_NS = 3 * 1000 * 1000 /* see await_decision */
};

void api_answer_with_failure(http_exchange *x, const api_failure *failure) {
  bytes_buffer body;
  char text[16];
  bytes_init(&body, 8192);
  api_failure_write(failure, &body);
  if (failure->retry_after_s) {
    unsigned ms = failure->retry_after_ms;
    snprintf(text, sizeof text, "%u", failure->retry_after_s);
    http_answer_header(x, "Retry-After", text);
    snprintf(text, sizeof text, "%u", ms ? ms : failure->retry_after_s * 1000);
    http_answer_header(x, "retry-after-ms", text);
  }
  if (failure->status == 401) http_answer_header(x, "WWW-Authenticate", "Bearer");
  if (failure->no_retry || failure->status == 500) http_answer_header(x, "x-should-retry", "false");
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
  if (!api_signals_take(&a->resolver, x, &job->signals)) {
    api_signals_free(&job->signals);
    free(job);
    return false;
  }
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

static bool fail(api_job *job, const api_failure *failure) {
  job->status = failure->status;
  if (http_gone(job->x)) job->left = true;
  if (failure->code && job->resolved) api_metrics_refused(&job->owner->metrics, failure->code);
  api_job_record(job);
  api_job_headers(job, true);
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
    api_job_record(job);
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
  api_answer_begin(w, a->model_name, job->who.tier, time(NULL));
}

static void cancel_all(api_job *job) {
  job->cancelled = true;
  for (uint32_t i = 0; i < job->choices_n; i++)
    if (job->choices[i].stream) troika_stream_cancel(job->choices[i].stream);
}

/* The role of each choice, and the echo of its prompt: before any token of it. */
static void put_first(api_job *job) {
  for (uint32_t i = 0; i < job->choices_n; i++) {
    api_choice *c = &job->choices[i];
    api_answer_first(&job->answer, c, &job->pending);
    if (!c->text.len) continue;
    api_answer_text(&job->answer, c, c->text.data, c->text.len, &job->pending); /* the echo */
    bytes_clear(&c->text);
  }
}

/* False: no memory, nothing was sent. */
static bool begin_stream(api_job *job) {
  api_job_look(job);
  api_job_headers(job, false);
  http_answer_header(job->x, "Cache-Control", "no-cache");
  /* Proxies that gather would hold tokens back. */
  http_answer_header(job->x, "X-Accel-Buffering", "no");
  if (http_stream_begin(job->x, 200, "text/event-stream; charset=utf-8")) return false;
  job->opened = true;
  job->status = 200;
  job->written_ns = clock_real_now(NULL);
  return true;
}

/* What the engine refuses, it refuses with its first decision about it, well below a millisecond
 * later. To tell the client by a status, the stream's headers wait for that; not for long, though,
 * if the engine is busy. */
static void await_decision(api_job *job) {
  int64_t most = clock_real_now(NULL) + DECISION_NS;
  struct timespec pause = {.tv_nsec = 50000};
  for (;;) {
    api_job_look(job);
    if (job->now.decided || http_gone(job->x) || clock_real_now(NULL) >= most) return;
    nanosleep(&pause, NULL);
    if (pause.tv_nsec < 1000000) pause.tv_nsec *= 2;
  }
}

static void take_first(api_job *job);

static bool start_stream(api_job *job) {
  put_first(job);
  await_decision(job);
  take_first(job);
  return job->failed || begin_stream(job); /* a failure is answered once all choices have ended */
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
  if (!api_job_resolve(job, &failure)) return fail(job, &failure);
  set_answer(job);
  if (!api_job_submit(job, &failure)) return fail(job, &failure); /* finish closes the streams */
  job->answer.preprocess_ns = clock_real_now(NULL) - http_received_ns(job->x);
  if (!job->answer.stream || start_stream(job)) return false;
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
    int64_t now = clock_real_now(NULL);
    job->pending_at += n;
    if (n) job->written_ns = now;
    if (job->pending_at < p->len) {
      if (!job->stalled_ns) job->stalled_ns = now;
      return false;
    }
    if (job->stalled_ns) job->io_ns += now - job->stalled_ns;
    job->stalled_ns = 0;
  }
  bytes_clear(p);
  job->pending_at = 0;
  return true;
}

/* Why a request ended without an answer. */
static void set_failure(api_job *job, const troika_event *e) {
  troika_status status = e->finish == TROIKA_FINISH_CANCELLED ? TROIKA_CANCELLED : e->status;
  api_failure *f = &job->failure;
  if (status == TROIKA_CANCELLED && api_job_dropped(job, f)) return;
  api_failure_of_status(f, status ? status : TROIKA_INTERNAL,
                        job->cancelled ? "the server is stopping" : e->error_text);
  if (status == TROIKA_BUSY) {
    api_failure_retry_after(f, e->retry_after_ns);
    f->code = "overloaded"; /* there was a place in the queue */
  }
  /* A grammar or a bias can turn out to leave no token, or to take too long; a prompt and the
   * answer asked for may fit no memory. All else that is refused so late is our fault. */
  if (status == TROIKA_LIMIT && e->completion_tokens + e->timings.prefill_ns > 0)
    snprintf(f->param, sizeof f->param, "%s",
             job->request.constrained ? "response_format" : "logit_bias");
  if (f->status < 500 && status != TROIKA_LIMIT && status != TROIKA_BUSY) {
    f->status = 500;
    f->type = api_failure_type_of(500);
    f->no_retry = true;
  }
}

/* An end that is no answer fails the whole request, and with it its other choices. */
static bool end_failed(api_job *job, const troika_event *e) {
  if (e->finish != TROIKA_FINISH_ERROR && e->finish != TROIKA_FINISH_CANCELLED) return false;
  if (job->failed || job->left) return true; /* this one was cancelled because of it */
  job->failed = true;
  set_failure(job, e);
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
  api_calls_add(&c->calls, e->text, e->text_len);
  if (job->answer.stream) {
    api_about about = api_job_about(job, c, e);
    api_answer_finish(&job->answer, c, e, api_job_usage(job).io_ns, &about, &job->pending);
  } else {
    api_answer_gather(&job->answer, c, e);
  }
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
  api_calls_add(&c->calls, event.text, event.text_len);
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
  while (more && (!job->opened || flush(job))) {
    more = false;
    for (uint32_t i = 0; i < job->choices_n; i++) more = take_event(job, &job->choices[i]) || more;
    check_frames(job);
  }
}

/* One event of each choice, before anything is sent. */
static void take_first(api_job *job) {
  for (uint32_t i = 0; i < job->choices_n; i++) take_event(job, &job->choices[i]);
  check_frames(job);
}

static void answer_whole(api_job *job) {
  bytes_buffer body;
  api_failure failure;
  api_usage usage = api_job_usage(job);
  if (job->failed) {
    fail(job, &job->failure);
    return;
  }
  api_about about = api_job_about(job, NULL, NULL);
  about.cached_tokens = usage.cached_tokens;
  about.queue_ns = usage.timings.queue_ns;
  bytes_init(&body, ANSWER_MAX);
  if (api_answer_whole(&job->answer, job->choices, job->choices_n, &usage, &about, &body)) {
    api_failure_memory(&failure);
    fail(job, &failure);
  } else {
    job->status = 200;
    api_job_record(job);
    api_job_headers(job, true);
    http_answer(job->x, 200, "application/json", &body);
  }
  bytes_free(&body);
}

static void keep_alive(api_job *job) {
  int64_t most = job->owner->options.keepalive_ns;
  if (!most || !job->opened || job->pending.len || clock_real_now(NULL) - job->written_ns < most)
    return;
  http_sse_comment(&job->pending, "keep-alive");
  flush(job);
}

/* All choices have ended: the last frames of a stream, or the answer. */
static void conclude(api_job *job) {
  api_usage usage = api_job_usage(job);
  if (!job->opened) {
    if (!job->left) answer_whole(job);
    return;
  }
  if (job->failed && job->failure.code)
    api_metrics_refused(&job->owner->metrics, job->failure.code);
  if (job->failed)
    api_answer_failure(&job->answer, &job->failure, &job->pending);
  else
    api_answer_done(&job->answer, &usage, &job->pending);
  check_frames(job);
  api_job_record(job);
}

/* True: over. */
static bool advance(api_job *job) {
  bool gone = http_gone(job->x), nobody = gone || atomic_load(&job->owner->closing);
  if (job->ended < job->choices_n) {
    if (gone) job->left = true;
    if (nobody && !job->cancelled) cancel_all(job);
    take_events(job);
    if (job->ended < job->choices_n) {
      keep_alive(job);
      if (gone) drop_frames(job); /* with its ring full: they go nowhere */
      return false;
    }
  }
  if (!job->recorded) conclude(job);
  if (!job->opened) return true;
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
  api_job_record(job);
  for (uint32_t i = 0; i < job->choices_n; i++) {
    if (job->choices[i].stream) troika_stream_close(&job->choices[i].stream);
    api_choice_free(&job->choices[i]);
  }
  free(job->choices);
  troika_grammar_destroy(&job->grammar);
  api_request_free(&job->request);
  api_answer_free(&job->answer);
  api_signals_free(&job->signals);
  bytes_free(&job->pending);
  free(job);
  http_exchange_release(x);
}
