/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked request to streams of the engine: prompts become tokens, choices are submitted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/job.h"
#include "api/json.h"

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

/* The choices of one prompt: the first one computes it, the others share its pages. */
static bool submit_prompt(api_job *job, uint32_t p, api_failure *failure) {
  const api *a = job->owner;
  api_request *r = &job->request;
  size_t n = 0;
  troika_error err = {0};
  troika_status status = TROIKA_OK;
  int32_t *tokens = api_make_tokens(a, r, r->prompts ? &r->prompts[p] : NULL, &n, failure);
  if (!tokens) return false;
  job->prompt_tokens += (uint32_t)n;
  r->engine.prompt = tokens;
  r->engine.prompt_n = (uint32_t)n;
  r->engine.share = NULL;
  for (uint32_t i = 0; i < r->n && !status; i++) {
    if (http_gone(job->x) || atomic_load(&a->closing)) {
      api_failure_of_status(failure, TROIKA_CANCELLED, "the server is stopping");
      free(tokens);
      return false;
    }
    api_choice *c = &job->choices[p * r->n + i];
    troika_stream_options options = {
        .size = sizeof options, .wake = api_job_news, .wake_context = job};
    r->engine.choice = i;
    if (r->echo) {
      if (r->prompts[p].tokens)
        api_put_tokens_text(a, tokens, n, &c->text);
      else
        bytes_append(&c->text, r->prompts[p].text.ptr, r->prompts[p].text.len);
    }
    status = troika_stream_open(a->options.runtime, &options, &c->stream, &err);
    if (!status) status = troika_stream_submit(c->stream, &r->engine, &err);
    if (status) break;
    job->submitted++;
    if (i == 0) r->engine.share = c->stream;
  }
  free(tokens);
  if (!status) return true;
  api_failure_of_status(failure, status, err.text);
  return false;
}

/* Once for all choices. */
static bool make_grammar(api_job *job, api_failure *failure) {
  api_request *r = &job->request;
  troika_error err = {0};
  if (!r->constrained) return true;
  troika_status status = troika_grammar_create(job->owner->options.model, r->grammar_kind,
                                               r->grammar, r->grammar_len, &job->grammar, &err);
  r->engine.grammar = job->grammar;
  if (!status) return true;
  api_failure_of_status(failure, status, err.text);
  if (failure->status == 400) snprintf(failure->param, sizeof failure->param, "response_format");
  return false;
}

bool api_job_submit(api_job *job, api_failure *failure) {
  const api_request *r = &job->request;
  uint32_t n = r->prompts_n * r->n;
  if (n > job->owner->at_once)
    return api_failure_set(failure, "n",
                           "%u answers are asked for: this server takes %u at once, running and "
                           "waiting",
                           n, job->owner->at_once);
  if (!(job->choices = calloc(n, sizeof *job->choices))) return api_failure_memory(failure);
  job->choices_n = n;
  for (uint32_t i = 0; i < n; i++) api_choice_init(&job->choices[i], i, i / r->n, n);
  if (!make_grammar(job, failure)) return false;
  for (uint32_t p = 0; p < r->prompts_n; p++)
    if (!submit_prompt(job, p, failure)) return false;
  return true;
}
