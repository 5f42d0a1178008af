/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked request to streams of the engine: who waits for it, prompts become tokens, choices
 * are submitted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/job.h"
#include "api/json.h"
#include "api/retry.h"
#include "base/clock.h"

/* The engine looks at each message between two launches, below a millisecond even with many
 * requests; a machine that does other work may let it wait. */
static const int64_t ATTACH_NS = INT64_C(2000000000);

/* A template that takes no system role says so by refusing; then its text goes before the user's
 * first one, and if that is refused too, the first refusal stands. */
troika_status api_chat_tokens(const api *a, const api_request *r, troika_chat_end end, int32_t *out,
                              size_t capacity, size_t *n, troika_error *err) {
  const char *tools = r->tools ? r->tools : "";
  troika_status status = troika_model_chat(a->options.model, r->messages, strlen(r->messages),
                                           tools, strlen(tools), end, out, capacity, n, err);
  if (status != TROIKA_INVALID) return status;
  char *folded = api_messages_fold(json_object_get(r->root, "messages"));
  if (!folded) return status;
  troika_error other;
  troika_status again = troika_model_chat(a->options.model, folded, strlen(folded), tools,
                                          strlen(tools), end, out, capacity, n, &other);
  free(folded);
  if (again && again != TROIKA_LIMIT) return status;
  *err = other;
  return again;
}

/* Megabytes that cannot fit are refused before they are tokenized, which would take seconds: no
 * token is longer than the longest one, and JSON writes no byte in more than six. */
static bool fits_at_all(const api *a, size_t bytes, const char *param, api_failure *failure) {
  size_t least = bytes / (a->token_bytes_max ? a->token_bytes_max : 1);
  if (least <= a->context) return true;
  api_failure_too_long(failure, param, least < UINT32_MAX ? (uint32_t)least : UINT32_MAX,
                       a->context, true);
  return false;
}

static int32_t *copy_tokens(const api *a, const api_prompt *prompt, size_t *n,
                            api_failure *failure) {
  *n = prompt->tokens_n;
  if (*n > a->context) {
    api_failure_too_long(failure, "prompt", prompt->tokens_n, a->context, false);
    return NULL;
  }
  int32_t *out = malloc(*n * sizeof *out);
  if (out)
    memcpy(out, prompt->tokens, *n * sizeof *out);
  else
    api_failure_memory(failure);
  return out;
}

int32_t *api_make_tokens(const api *a, const api_request *r, const api_prompt *prompt, size_t *n,
                         api_failure *failure) {
  bool chat = r->endpoint == API_CHAT;
  const char *param = chat ? "messages" : "prompt";
  if (!chat && prompt->tokens) return copy_tokens(a, prompt, n, failure);
  size_t bytes =
      chat ? (strlen(r->messages) + (r->tools ? strlen(r->tools) : 0)) / 6 : prompt->text.len;
  if (!fits_at_all(a, bytes, param, failure)) return NULL;
  /* Room for one token more than fits, so that "too long" is told apart from "exactly full" with
   * its true length. */
  size_t capacity = (size_t)a->context + 1;
  int32_t *out = malloc(capacity * sizeof *out);
  troika_error err = {0};
  troika_status status;
  *n = 0;
  if (!out) {
    api_failure_memory(failure);
    return NULL;
  }
  if (chat)
    status = api_chat_tokens(a, r, r->continues ? TROIKA_CHAT_CONTINUE : TROIKA_CHAT_GENERATE, out,
                             capacity, n, &err);
  else
    status = troika_model_tokenize(a->options.model, prompt->text.ptr, prompt->text.len, true,
                                   r->parse_special, out, capacity, n, &err);
  if (!status && *n == 0 && a->bos >= 0) { /* nothing can be computed from nothing */
    out[0] = a->bos;
    *n = 1;
  }
  if (*n > a->context && (!status || status == TROIKA_LIMIT)) {
    api_failure_too_long(failure, param, (uint32_t)*n, a->context, false);
  } else if (status) {
    api_failure_of_status(failure, status, err.text);
    if (failure->status == 400) snprintf(failure->param, sizeof failure->param, "%s", param);
  } else if (*n == 0) {
    api_failure_set(failure, param, "%s is empty, and this model has no token to begin with",
                    param);
  } else {
    return out;
  }
  free(out);
  return NULL;
}

/* Why it ends, if its client has gone, the server stops, or somebody ended it. */
static bool may_go_on(const api_job *job, api_failure *failure) {
  if (api_job_dropped(job, failure)) return false;
  if (!http_gone(job->x) && !atomic_load(&job->owner->closing)) return true;
  api_failure_of_status(failure, TROIKA_CANCELLED, "the server is stopping");
  return false;
}

/* Once for all choices. */
static bool make_grammar(api_job *job, api_failure *failure) {
  api_request *r = &job->request;
  troika_error err = {0};
  if (!r->constrained || job->grammar) return true;
  troika_status status = troika_grammar_create(job->owner->options.model, r->grammar_kind,
                                               r->grammar, r->grammar_len, &job->grammar, &err);
  r->engine.grammar = job->grammar;
  if (!status) return true;
  api_failure_of_status(failure, status, err.text);
  if (failure->status == 400) snprintf(failure->param, sizeof failure->param, "response_format");
  return false;
}

/* The tokens of one prompt, made when the first of its choices needs them. */
typedef struct prompt_tokens {
  uint32_t index;
  int32_t *tokens; /* owned */
  size_t n;
} prompt_tokens;

static bool make_prompt(api_job *job, prompt_tokens *t, api_failure *failure) {
  api_request *r = &job->request;
  if (t->tokens) return true;
  if (!make_grammar(job, failure)) return false;
  t->tokens =
      api_make_tokens(job->owner, r, r->prompts ? &r->prompts[t->index] : NULL, &t->n, failure);
  if (!t->tokens) return false;
  job->prompt_tokens += (uint32_t)t->n;
  r->engine.prompt = t->tokens;
  r->engine.prompt_n = (uint32_t)t->n;
  r->engine.share = NULL;
  return may_go_on(job, failure); /* that may have taken its time */
}

static void put_echo(const api_job *job, api_choice *c) {
  const api_request *r = &job->request;
  if (!r->echo) return;
  const api_prompt *p = &r->prompts[c->prompt];
  if (p->tokens)
    api_put_tokens_text(job->owner, p->tokens, p->tokens_n, &c->text);
  else
    bytes_append(&c->text, p->text.ptr, p->text.len);
}

static troika_status open_stream(api_job *job, api_choice *c, troika_error *err) {
  troika_stream_options options = {
      .size = sizeof options, .wake = api_job_news, .wake_context = job};
  return troika_stream_open(job->owner->options.runtime, &options, &c->stream, err);
}

/* A retry gets the answer that is on its way already. It may end, by its end or because its client
 * has gone, just before the engine hears of the second reader: so that is waited for, not for long.
 * False: there is none, or no more; c->stream is free for a request of its own, or NULL. */
static bool attach(api_job *job, api_choice *c, troika_error *err) {
  static const int32_t unused = 0;
  api *a = job->owner;
  troika_request request = job->request.engine; /* stop strings count for each reader */
  troika_stream_info info;
  struct timespec pause = {.tv_nsec = 100000};
  int64_t most = clock_real_now(NULL) + ATTACH_NS;
  if (!job->who.retry_count) return false;
  request.prompt = &unused;
  request.prompt_n = 1;
  request.share = NULL;
  if (!api_stream_attach(a->streams, job->entry, c->index, c->stream, &request)) return false;
  for (;;) {
    troika_stream_describe(c->stream, &info);
    if (api_stream_decided(&info) || http_gone(job->x) || clock_real_now(NULL) >= most) break;
    nanosleep(&pause, NULL);
    if (pause.tv_nsec < 1000000) pause.tv_nsec *= 2;
  }
  if (info.state != TROIKA_STREAM_IDLE) {
    api_stream_set(a->streams, job->entry, c->index, c->stream, true);
    return true;
  }
  troika_stream_close(&c->stream);
  if (open_stream(job, c, err)) c->stream = NULL;
  return false;
}

/* When it would be admitted; open: answers of its key, if these are too many, or 0. */
static void tell_when(const api_job *job, uint32_t open, api_failure *failure) {
  const api *a = job->owner;
  bool background = job->who.class_ == TROIKA_PROACTIVE;
  api_load load;
  api_load_read(a->options.runtime, &a->metrics, &load);
  int64_t wait_ns =
      open ? api_retry_key_ns(&load, background, open) : api_retry_full_ns(&load, background);
  api_retry_set(failure, wait_ns, job->answer.id);
}

/* The first choice of a prompt computes it, the others share its pages. */
static bool submit_choice(api_job *job, api_choice *c, prompt_tokens *t, api_failure *failure) {
  api_request *r = &job->request;
  troika_error err = {0};
  put_echo(job, c);
  c->calls.wanted = r->tools != NULL;
  troika_status status = open_stream(job, c, &err);
  if (!status && attach(job, c, &err)) {
    job->submitted++;
    return true;
  }
  if (!status && !c->stream) status = TROIKA_NO_MEMORY;
  if (!status) {
    if (!make_prompt(job, t, failure)) return false;
    r->engine.choice = c->index % r->n;
    status = troika_stream_submit(c->stream, &r->engine, &err);
  }
  if (status) {
    api_failure_of_status(failure, status, err.text);
    if (status == TROIKA_BUSY) tell_when(job, 0, failure);
    return false;
  }
  job->submitted++;
  api_stream_set(job->owner->streams, job->entry, c->index, c->stream, false);
  if (!r->engine.share) r->engine.share = c->stream;
  return true;
}

static bool submit_prompt(api_job *job, uint32_t p, api_failure *failure) {
  const api_request *r = &job->request;
  prompt_tokens t = {.index = p};
  bool ok = true;
  for (uint32_t i = 0; i < r->n && ok; i++)
    ok = may_go_on(job, failure) && submit_choice(job, &job->choices[p * r->n + i], &t, failure);
  free(t.tokens);
  return ok;
}

bool api_job_submit(api_job *job, api_failure *failure) {
  const api_request *r = &job->request;
  uint32_t n = r->prompts_n * r->n;
  if (!(job->choices = calloc(n, sizeof *job->choices))) return api_failure_memory(failure);
  job->choices_n = n;
  for (uint32_t i = 0; i < n; i++) api_choice_init(&job->choices[i], i, i / r->n, n);
  for (uint32_t p = 0; p < r->prompts_n; p++)
    if (!submit_prompt(job, p, failure)) return false;
  return true;
}

bool api_job_dropped(const api_job *job, api_failure *failure) {
  api_drop why = job->entry ? api_stream_dropped(job->owner->streams, job->entry) : API_DROP_NONE;
  if (why == API_DROP_SUPERSEDED)
    api_failure_conflict(failure, "superseded", "a newer request of its session replaces this one");
  else if (why)
    api_failure_conflict(failure, "cancelled", "the request was cancelled through /v1/streams");
  return why != API_DROP_NONE;
}

/* Time since the session's last turn, if this one brings what tools answered. */
static int64_t tool_time(const api_job *job) {
  api_session session;
  const json_t *messages = json_object_get(job->request.root, "messages");
  const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
  bool answers = api_json_is(json_object_get(last, "role"), "tool") ||
                 api_json_is(json_object_get(last, "role"), "function");
  if (!answers || !job->who.session ||
      !api_sessions_find(job->owner->sessions, job->who.session, &session) || session.open)
    return 0;
  int64_t time = http_received_ns(job->x) - session.seen_ns;
  return time > 0 ? time : 0;
}

static bool enter(api_job *job, uint32_t answers, const api_key_hold *hold) {
  api_stream_facts facts = {.who = &job->who,
                            .request_id = job->answer.id,
                            .key = job->signals.key->id,
                            .hold = hold,
                            .n = answers,
                            .each = job->request.n,
                            .streaming = job->request.stream,
                            .arrived_ns = http_received_ns(job->x),
                            .news = api_job_news,
                            .job = job};
  job->entry = api_streams_enter(job->owner->streams, &facts);
  if (!job->entry) return false;
  memcpy(job->stream_id, api_stream_id(job->entry), sizeof job->stream_id);
  return true;
}

bool api_job_resolve(api_job *job, api_failure *failure) {
  api *a = job->owner;
  api_request *r = &job->request;
  api_key_hold hold = {0};
  uint32_t n = r->prompts_n * r->n;
  if (n > a->at_once)
    return api_failure_set(failure, "n",
                           "%u answers are asked for: this server takes %u at once, running and "
                           "waiting",
                           n, a->at_once);
  if (!api_resolve(&a->resolver, &job->signals, http_path(job->x), http_body(job->x), r, &job->who,
                   failure))
    return false;
  job->resolved = true;
  job->answer.tool_ns = tool_time(job);
  bool counted = api_key_begin(&a->resolver, &job->signals, &job->who, n, &hold, failure);
  api_stream_guess(&job->who, &job->now); /* until it has a name */
  if (!counted) {
    if (failure->status == 429) tell_when(job, job->signals.key->rules.max, failure);
    return false;
  }
  if (!enter(job, n, &hold)) {
    api_key_end(&hold);
    return api_failure_memory(failure);
  }
  api_resolved_apply(&job->who, &r->engine);
  return true;
}
