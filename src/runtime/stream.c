/* SPDX-License-Identifier: Apache-2.0 */
/* The client's side of a stream: checking and copying a request, pulling events. */
#include "troika/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "runtime/internal.h"

troika_status troika_stream_open(troika_runtime *rt, const troika_stream_options *options,
                                 troika_stream **out, troika_error *err) {
  if (options && options->size != sizeof *options)
    return error_set(err, TROIKA_INVALID, "troika_stream_options.size is %u, wanted %zu",
                     options->size, sizeof *options);
  troika_stream *s = calloc(1, sizeof *s);
  if (!s) return error_set(err, TROIKA_NO_MEMORY, "no memory for a stream");
  pthread_mutex_init(&s->lock, NULL);
  os_cond_init(&s->changed);
  if (options) s->options = *options;
  s->rt = rt;
  s->close_letter.kind = MESSAGE_CLOSE_STREAM;
  s->attach_letter.kind = MESSAGE_ATTACH;
  atomic_store(&s->class_, TROIKA_REACTIVE);
  atomic_fetch_add(&rt->streams, 1);
  *out = s;
  return TROIKA_OK;
}

void request_let_go(request *r) {
  if (!r || atomic_fetch_sub(&r->refs, 1) > 1) return;
  emit_destroy(&r->stops);
  grammar_destroy(&r->form);
  free(r->allowed);
  free(r->tokens);
  free(r->records);
  free(r->tops);
  free((void *)(uintptr_t)r->params.bias);
  free(r);
}

void troika_stream_close(troika_stream **stream) {
  troika_stream *s = *stream;
  if (!s) return;
  /* The runtime thread may be about to touch the stream: it says when it has let go. */
  atomic_store(&s->cancelled, true);
  mailbox_post(&s->rt->mail, &s->close_letter);
  pthread_mutex_lock(&s->lock);
  while (!s->detached) pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
  request_let_go(s->current);
  emit_destroy(&s->text);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  atomic_fetch_sub(&s->rt->streams, 1);
  free(s);
  *stream = NULL;
}

void troika_request_init(troika_request *r) {
  *r = (troika_request){.size = sizeof *r,
                        .max_tokens = TROIKA_MAX_TOKENS_CONTEXT,
                        .temperature = 1,
                        .top_p = 1,
                        .repeat_penalty = 1,
                        .repeat_last = 64};
}

/* Compared as the field's own type, so that a limit is inside the range. */
#define CHECK_RANGE(field, low, high)                                                         \
  if (!(q->field >= (__typeof__(q->field))(low) && q->field <= (__typeof__(q->field))(high))) \
  return error_set(err, TROIKA_INVALID, #field " is %g, wanted %g to %g", (double)q->field,   \
                   (double)(low), (double)(high))
#define CHECK_MOST(field, high)    \
  if (q->field > (uint32_t)(high)) \
  return error_set(err, TROIKA_INVALID, #field " is %u, wanted at most %d", q->field, (int)(high))

static troika_status check_request(const troika_runtime *rt, const troika_request *q,
                                   troika_error *err) {
  if (q->size != sizeof *q)
    return error_set(err, TROIKA_INVALID, "troika_request.size is %u, wanted %zu", q->size,
                     sizeof *q);
  if (!q->prompt_n) return error_set(err, TROIKA_INVALID, "the prompt is empty");
  if (q->prompt_n > rt->context)
    return error_set(err, TROIKA_LIMIT, "the prompt has %u tokens, the context holds %u",
                     q->prompt_n, rt->context);
  for (uint32_t i = 0; i < q->prompt_n; i++)
    if (q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= rt->g->vocab)
      return error_set(err, TROIKA_INVALID, "prompt token %u is %d, the vocabulary has %u", i,
                       q->prompt[i], rt->g->vocab);
  CHECK_RANGE(temperature, 0, 100);
  CHECK_RANGE(top_p, 0, 1);
  CHECK_RANGE(min_p, 0, 1);
  CHECK_RANGE(repeat_penalty, 0.01, 100);
  CHECK_RANGE(frequency_penalty, -100, 100);
  CHECK_RANGE(presence_penalty, -100, 100);
  CHECK_MOST(top_logprobs, TROIKA_TOP_MAX);
  CHECK_MOST(stop_n, TROIKA_STOP_MAX);
  CHECK_MOST(bias_n, TROIKA_BIAS_MAX);
  CHECK_MOST(class_, TROIKA_INHERITED);
  if (q->first_deadline_ns < 0 || q->done_deadline_ns < 0)
    return error_set(
        err, TROIKA_INVALID, "a deadline is %lld ns after submit",
        (long long)(q->first_deadline_ns < 0 ? q->first_deadline_ns : q->done_deadline_ns));
  if (q->next_use_ns < 0)
    return error_set(err, TROIKA_INVALID, "next_use_ns is %lld, wanted at least 0",
                     (long long)q->next_use_ns);
  for (uint32_t i = 0; i < q->bias_n; i++)
    if (q->bias[i].token < 0 || (uint32_t)q->bias[i].token >= rt->g->vocab ||
        !isfinite(q->bias[i].bias))
      return error_set(err, TROIKA_INVALID, "bias %u: token %d of %u, bias %g", i, q->bias[i].token,
                       rt->g->vocab, (double)q->bias[i].bias);
  return TROIKA_OK;
}

static troika_status text_create(const troika_runtime *rt, const troika_request *q, emit **out,
                                 troika_error *err) {
  bytes_view stops[TROIKA_STOP_MAX];
  for (uint32_t i = 0; i < q->stop_n; i++) stops[i] = bytes_of_string(q->stop[i]);
  return emit_create(stops, q->stop_n, tokenizer_piece_max(rt->model->t), out, err);
}

static uint64_t draw_seed(void) {
  uint64_t seed;
  os_random(&seed, sizeof seed);
  return seed;
}

static request *request_create(troika_runtime *rt, const troika_request *q, troika_error *err) {
  request *r = calloc(1, sizeof *r);
  if (!r) goto no_memory;
  uint32_t room = rt->context - q->prompt_n;
  r->prompt_n = r->n = q->prompt_n;
  r->max_new = q->max_tokens < room ? q->max_tokens : room;
  r->ignore_eos = q->ignore_eos;
  r->no_prefix_cache = q->no_prefix_cache;
  r->expected = q->expected_tokens;
  r->child = q->child;
  r->may_react = q->may_react;
  r->shortenable = q->shortenable;
  r->hinted = q->deadline_hinted;
  r->next_use_ns = q->next_use_ns;
  r->next_steps = q->next_steps;
  r->last_turn = q->last_turn;
  r->session = q->session;
  r->parent = q->parent;
  r->scope = q->cache_scope;
  r->share = q->share;
  r->behind = SCHED_NONE;
  atomic_store(&r->refs, 1);
  r->params = (sample_params){.temperature = q->temperature,
                              .top_p = q->top_p,
                              .min_p = q->min_p,
                              .repeat_penalty = q->repeat_penalty,
                              .frequency_penalty = q->frequency_penalty,
                              .presence_penalty = q->presence_penalty,
                              .top_k = q->top_k,
                              .repeat_last = q->repeat_last,
                              .seed = q->seeded ? q->seed : draw_seed(),
                              .choice = q->choice,
                              .logprobs = q->logprobs,
                              .top_logprobs = q->logprobs ? q->top_logprobs : 0,
                              .bias_n = q->bias_n};
  r->tokens = malloc(((size_t)r->prompt_n + r->max_new) * sizeof *r->tokens);
  r->records = malloc(((size_t)r->max_new + 1) * sizeof *r->records);
  if (!r->tokens || !r->records) goto no_memory;
  memcpy(r->tokens, q->prompt, r->prompt_n * sizeof *r->tokens);
  if (r->params.top_logprobs) {
    r->tops = malloc(((size_t)r->max_new + 1) * r->params.top_logprobs * sizeof *r->tops);
    if (!r->tops) goto no_memory;
  }
  if (q->bias_n) {
    troika_token_bias *bias = malloc(q->bias_n * sizeof *bias);
    if (!bias) goto no_memory;
    memcpy(bias, q->bias, q->bias_n * sizeof *bias);
    r->params.bias = bias;
  }
  if (text_create(rt, q, &r->stops, err) || constrain_create(rt->model, q, r, err)) goto fail;
  r->params.allowed = r->allowed;
  return r;
no_memory:
  error_set(err, TROIKA_NO_MEMORY, "no memory for a request of %u tokens", q->prompt_n);
fail:
  request_let_go(r);
  return NULL;
}

static int64_t deadline(int64_t now_ns, int64_t after_ns) {
  return after_ns && after_ns < INT64_MAX - now_ns ? now_ns + after_ns : INT64_MAX;
}

/* The stream reads `r` from its beginning. */
static void begin(troika_stream *s, request *r, emit *text) {
  pthread_mutex_lock(&s->lock);
  request *last = s->current;
  s->current = r;
  s->written = 0;
  s->ended = s->left = false;
  s->info = (troika_stream_info){.state = TROIKA_STREAM_QUEUED,
                                 .class_ = atomic_load(&s->class_),
                                 .prompt_tokens = r->prompt_n};
  pthread_mutex_unlock(&s->lock);
  request_let_go(last);
  emit_destroy(&s->text);
  s->text = text;
  s->read = 0;
  s->flushed = false;
  atomic_store(&s->cancelled, false);
  atomic_store(&s->suspended, false);
}

/* A retry reads the request that runs already. */
static troika_status attach(troika_stream *s, const troika_request *q, troika_error *err) {
  troika_stream *other =
      (troika_stream *)(uintptr_t)q->attach; /* its lock is no part of its value */
  emit *text = NULL;
  if (other == s || other->rt != s->rt)
    return error_set(err, TROIKA_INVALID, "attach wants another stream of the same runtime");
  if (text_create(s->rt, q, &text, err)) return err->status;
  pthread_mutex_lock(&other->lock);
  request *r = other->current && !other->ended ? other->current : NULL;
  if (r) {
    atomic_fetch_add(&r->refs, 1);
    atomic_fetch_add(&r->attaching, 1);
  }
  pthread_mutex_unlock(&other->lock);
  if (!r) {
    emit_destroy(&text);
    return error_set(err, TROIKA_INVALID, "the request to attach to has ended");
  }
  if (q->class_) atomic_store(&s->class_, q->class_);
  begin(s, r, text);
  mailbox_post(&s->rt->mail, &s->attach_letter);
  return TROIKA_OK;
}

static troika_status is_free(troika_stream *s, troika_error *err) {
  if (!s->current) return TROIKA_OK;
  pthread_mutex_lock(&s->lock);
  bool ended = s->ended;
  pthread_mutex_unlock(&s->lock);
  if (ended && s->flushed) return TROIKA_OK;
  return error_set(err, TROIKA_BUSY, "the stream's last request has not been read to its end");
}

/* Who is less urgent does not fill the queue for who is more so: the policy then refuses the newest
 * of the lowest band that waits. So at most 3 open_max requests are open. */
static bool stream_enter(troika_runtime *rt, uint8_t urgency) {
  uint32_t others = 0;
  for (uint8_t i = 0; i <= urgency; i++) others = atomic_fetch_add(&rt->outstanding[i], 1);
  if (others < rt->open_max) return true;
  stream_leave(rt, urgency);
  return false;
}

void stream_leave(troika_runtime *rt, uint8_t urgency) {
  for (uint8_t i = 0; i <= urgency; i++) atomic_fetch_sub(&rt->outstanding[i], 1);
}

troika_status troika_stream_submit(troika_stream *s, const troika_request *q, troika_error *err) {
  troika_runtime *rt = s->rt;
  troika_error local;
  if (!err) err = &local;
  troika_status status = is_free(s, err);
  if (!status) status = check_request(rt, q, err);
  if (status) return status;
  if (q->attach) return attach(s, q, err);
  uint8_t class_ = q->class_ ? (uint8_t)q->class_ : atomic_load(&s->class_);
  uint8_t urgency = class_ == TROIKA_REACTIVE ? 2 : class_ == TROIKA_INHERITED;
  if (!stream_enter(rt, urgency))
    return error_set(err, TROIKA_BUSY, "%u requests run and %u wait, which is the limit",
                     rt->parallel, rt->queue_max);
  emit *text = NULL;
  request *r = request_create(rt, q, err);
  if (!r || text_create(rt, q, &text, err)) {
    stream_leave(rt, urgency);
    request_let_go(r);
    return err->status;
  }
  r->urgency = urgency;
  atomic_store(&s->class_, class_);
  begin(s, r, text);
  r->readers = s;
  s->reader_next = NULL;
  r->submit_ns = clock_now(rt->clock);
  r->first_deadline_ns = deadline(r->submit_ns, q->first_deadline_ns);
  r->done_deadline_ns = deadline(r->submit_ns, q->done_deadline_ns);
  r->letter.kind = MESSAGE_SUBMIT;
  mailbox_post(&rt->mail, &r->letter);
  return TROIKA_OK;
}

void troika_stream_cancel(troika_stream *s) {
  atomic_store(&s->cancelled, true);
  mailbox_nudge(&s->rt->mail);
}

void troika_stream_suspend(troika_stream *s) {
  atomic_store(&s->suspended, true);
  mailbox_nudge(&s->rt->mail);
}

void troika_stream_resume(troika_stream *s) {
  atomic_store(&s->suspended, false);
  mailbox_nudge(&s->rt->mail);
}

void troika_stream_set_class(troika_stream *s, troika_class class_) {
  if (class_ == TROIKA_CLASS_DEFAULT || class_ > TROIKA_INHERITED) return;
  atomic_store(&s->class_, class_);
  mailbox_nudge(&s->rt->mail);
}

void troika_stream_describe(const troika_stream *stream, troika_stream_info *out) {
  troika_stream *s = (troika_stream *)(uintptr_t)stream; /* its lock is no part of its value */
  pthread_mutex_lock(&s->lock);
  *out = s->info;
  if (!s->current || s->ended) out->state = TROIKA_STREAM_IDLE;
  pthread_mutex_unlock(&s->lock);
  out->class_ = atomic_load(&s->class_);
}

/* True when a record or the end is there. */
static bool wait_for_event(troika_stream *s, int64_t timeout_ns) {
  struct timespec until;
  if (timeout_ns > 0) {
    int64_t now = clock_real_now(NULL);
    int64_t end = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
    until = (struct timespec){end / 1000000000, end % 1000000000};
  }
  while (s->read == s->written && !s->ended) {
    if (timeout_ns == 0) return false;
    if (timeout_ns < 0)
      pthread_cond_wait(&s->changed, &s->lock);
    else if (pthread_cond_timedwait(&s->changed, &s->lock, &until))
      timeout_ns = 0; /* timed out: look once more */
  }
  return true;
}

/* A reader that left while others read on has an end of its own: the request's is not there yet. */
static void put_end(const troika_stream *s, const request *r, troika_event *event) {
  event->prompt_tokens = r->prompt_n;
  event->completion_tokens = s->read;
  event->finish = TROIKA_FINISH_CANCELLED;
  if (s->left) { /* the runtime writes there no more */
    event->cached_tokens = s->info.cached_tokens;
    event->timings = s->info.timings;
    return;
  }
  event->finish = r->finish;
  event->status = r->error.status;
  event->error_text = r->error.text;
  event->cached_tokens = r->cached;
  event->completion_tokens = r->n - r->prompt_n;
  event->timings = r->timings;
  event->retry_after_ns = r->retry_after_ns;
}

troika_status troika_stream_next(troika_stream *s, troika_event *event, int64_t timeout_ns) {
  request *r = s->current;
  if (!r || s->flushed) return TROIKA_END;
  pthread_mutex_lock(&s->lock);
  bool have = wait_for_event(s, timeout_ns), token = s->read < s->written;
  pthread_mutex_unlock(&s->lock);
  if (!have) return TROIKA_TIMEOUT;
  bytes_view text = {"", 0};
  *event = (troika_event){.kind = token ? TROIKA_EVENT_TOKEN : TROIKA_EVENT_END, .error_text = ""};
  if (token) {
    const record *rec = &r->records[s->read];
    event->token = rec->token;
    event->logprob = rec->logprob;
    event->top_n = rec->top_n;
    if (rec->top_n) event->top = r->tops + (size_t)s->read * r->params.top_logprobs;
    s->read++;
    emit_push(s->text, tokenizer_piece(s->rt->model->t, rec->token, false), &text);
  } else {
    s->flushed = true;
    put_end(s, r, event);
    if (emit_stop(s->text) < 0) text = emit_flush(s->text);
  }
  event->text = text.ptr ? text.ptr : "";
  event->text_len = (uint32_t)text.len;
  return TROIKA_OK;
}
