/* SPDX-License-Identifier: Apache-2.0 */
#include "api/answer.h"

#include <string.h>

#include "api/json.h"
#include "http/http.h"

enum { TEXT_MAX = 64 * 1024 * 1024, LOGPROBS_MAX = 256 * 1024 * 1024, CHUNK_MAX = 1024 * 1024 };

void api_answer_init(api_answer *a) {
  bytes_init(&a->chunk, CHUNK_MAX);
  bytes_init(&a->text, TEXT_MAX);
  bytes_init(&a->logprobs_json, LOGPROBS_MAX);
  bytes_init(&a->tokens, TEXT_MAX);
  bytes_init(&a->token_logprobs, TEXT_MAX);
  bytes_init(&a->tops, LOGPROBS_MAX);
  bytes_init(&a->offsets, TEXT_MAX);
}

void api_answer_free(api_answer *a) {
  bytes_free(&a->chunk);
  bytes_free(&a->text);
  bytes_free(&a->logprobs_json);
  bytes_free(&a->tokens);
  bytes_free(&a->token_logprobs);
  bytes_free(&a->tops);
  bytes_free(&a->offsets);
}

static const char *finish_name(troika_finish finish) {
  return finish == TROIKA_FINISH_LENGTH ? "length" : "stop";
}

static const char *object_name(const api_answer *a) {
  if (a->endpoint == API_COMPLETIONS) return "text_completion";
  return a->stream ? "chat.completion.chunk" : "chat.completion";
}

static void put_head(const api_answer *a, bytes_buffer *out) {
  bytes_append_format(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id,
                      object_name(a), (long long)a->created_s);
  api_json_put_string(out, a->model_name, strlen(a->model_name));
}

static void put_usage(const troika_event *e, bytes_buffer *out) {
  bytes_append_format(out,
                      "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
                      "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
                      e->prompt_tokens, e->completion_tokens,
                      e->prompt_tokens + e->completion_tokens, e->cached_tokens);
}

static double rate(double n, int64_t ns) {
  return n > 0 && ns > 0 ? n * 1e9 / (double)ns : 0;
}

/* Milliseconds; the first token is counted with the prefill that makes it. */
static void put_timings(const api_answer *a, const troika_event *e, bytes_buffer *out) {
  const troika_timings *t = &e->timings;
  bytes_append_format(
      out,
      "{\"preprocess_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,"
      "\"preempted_ms\":%.3f,\"prefill_per_second\":%.2f,\"decode_per_second\":%.2f}",
      (double)a->preprocess_ns / 1e6, (double)t->queue_ns / 1e6, (double)t->prefill_ns / 1e6,
      (double)t->decode_ns / 1e6, (double)t->preempted_ns / 1e6,
      rate((double)e->prompt_tokens - e->cached_tokens, t->prefill_ns),
      rate((double)e->completion_tokens - 1, t->decode_ns));
}

/* "token":"..","logprob":-0.1,"bytes":[..] */
static void put_token(const api_answer *a, int32_t token, float logprob, bytes_buffer *out) {
  size_t len = 0;
  const char *piece = troika_model_piece(a->model, token, true, &len);
  bytes_append_string(out, "\"token\":");
  api_json_put_string(out, piece, len);
  bytes_append_string(out, ",\"logprob\":");
  api_json_put_number(out, (double)logprob);
  bytes_append_string(out, ",\"bytes\":[");
  for (size_t i = 0; i < len; i++)
    bytes_append_format(out, i ? ",%u" : "%u", (unsigned char)piece[i]);
  bytes_append_string(out, "]");
}

static void put_chat_logprob(const api_answer *a, const troika_event *e, bytes_buffer *out) {
  bytes_append_string(out, "{");
  put_token(a, e->token, e->logprob, out);
  bytes_append_string(out, ",\"top_logprobs\":[");
  for (uint32_t i = 0; i < e->top_n; i++) {
    bytes_append_string(out, i ? ",{" : "{");
    put_token(a, e->top[i].token, e->top[i].logprob, out);
    bytes_append_string(out, "}");
  }
  bytes_append_string(out, "]}");
}

/* Several tokens may read alike once they are text; a key is written once, for the likeliest. */
static void put_tops(const api_answer *a, const troika_event *e, bytes_buffer *out) {
  bytes_append_string(out, "{");
  for (uint32_t i = 0; i < e->top_n; i++) {
    size_t len = 0, other_len = 0;
    const char *piece = troika_model_piece(a->model, e->top[i].token, true, &len);
    bool seen = utf8_valid_prefix(piece, len, NULL) < len && i; /* all of these read as U+FFFD */
    for (uint32_t j = 0; j < i && !seen; j++) {
      const char *other = troika_model_piece(a->model, e->top[j].token, true, &other_len);
      seen = other_len == len && !memcmp(piece, other, len);
    }
    if (seen) continue;
    if (i) bytes_append_string(out, ",");
    api_json_put_string(out, piece, len);
    bytes_append_string(out, ":");
    api_json_put_number(out, (double)e->top[i].logprob);
  }
  bytes_append_string(out, "}");
}

static void gather_completion_logprob(api_answer *a, const troika_event *e) {
  size_t len = 0;
  const char *piece = troika_model_piece(a->model, e->token, true, &len);
  bool more = a->tokens.len > 0;
  if (more) {
    bytes_append_string(&a->tokens, ",");
    bytes_append_string(&a->token_logprobs, ",");
    bytes_append_string(&a->tops, ",");
    bytes_append_string(&a->offsets, ",");
  }
  api_json_put_string(&a->tokens, piece, len);
  api_json_put_number(&a->token_logprobs, (double)e->logprob);
  put_tops(a, e, &a->tops);
  bytes_append_format(&a->offsets, "%zu", a->text_offset);
  a->text_offset += len;
}

/* The value of a choice's "logprobs", from what was gathered; empties it. */
static void put_logprobs(api_answer *a, bytes_buffer *out) {
  if (!a->logprobs) {
    bytes_append_string(out, "null");
  } else if (a->endpoint == API_CHAT) {
    bytes_append_string(out, "{\"content\":[");
    bytes_append(out, a->logprobs_json.data, a->logprobs_json.len);
    bytes_append_string(out, "],\"refusal\":null}");
    bytes_clear(&a->logprobs_json);
  } else {
    bytes_buffer *parts[] = {&a->tokens, &a->token_logprobs, &a->tops, &a->offsets};
    static const char *const names[] = {"{\"tokens\":[", "],\"token_logprobs\":[",
                                        "],\"top_logprobs\":[", "],\"text_offset\":["};
    for (int i = 0; i < 4; i++) {
      bytes_append_string(out, names[i]);
      bytes_append(out, parts[i]->data, parts[i]->len);
      bytes_clear(parts[i]);
    }
    bytes_append_string(out, "]}");
  }
}

static void gather_logprob(api_answer *a, const troika_event *e) {
  if (!a->logprobs || e->kind != TROIKA_EVENT_TOKEN) return;
  if (a->endpoint == API_COMPLETIONS) {
    gather_completion_logprob(a, e);
    return;
  }
  if (a->logprobs_json.len) bytes_append_string(&a->logprobs_json, ",");
  put_chat_logprob(a, e, &a->logprobs_json);
}

/* One chunk. role and text may be NULL (no such key), finish too (null). */
static void put_chunk(api_answer *a, const char *role, const char *text, size_t len,
                      const char *finish, const troika_event *end, bytes_buffer *out) {
  bytes_buffer *c = &a->chunk;
  bytes_clear(c);
  put_head(a, c);
  bytes_append_string(c, ",\"choices\":[{\"index\":0,");
  if (a->endpoint == API_CHAT) {
    bytes_append_string(c, "\"delta\":{");
    if (role) bytes_append_format(c, "\"role\":\"%s\"%s", role, text ? "," : "");
    if (text) {
      bytes_append_string(c, "\"content\":");
      api_json_put_string(c, text, len);
    }
    bytes_append_string(c, "}");
  } else {
    bytes_append_string(c, "\"text\":");
    api_json_put_string(c, text ? text : "", len);
  }
  bytes_append_string(c, ",\"logprobs\":");
  if (a->logprobs && (a->logprobs_json.len || a->tokens.len))
    put_logprobs(a, c);
  else
    bytes_append_string(c, "null");
  bytes_append_format(c, finish ? ",\"finish_reason\":\"%s\"}]" : ",\"finish_reason\":null}]",
                      finish);
  if (a->include_usage) bytes_append_string(c, ",\"usage\":null");
  if (end) {
    bytes_append_string(c, ",\"timings\":");
    put_timings(a, end, c);
  }
  bytes_append_string(c, "}");
  http_sse_data(out, c->data, c->len);
}

void api_answer_first(api_answer *a, bytes_buffer *out) {
  if (a->endpoint == API_CHAT) put_chunk(a, "assistant", "", 0, NULL, NULL, out);
}

void api_answer_token(api_answer *a, const troika_event *event, bytes_buffer *out) {
  gather_logprob(a, event);
  /* A token whose text is held back has nothing to say, except for its logprob. */
  if (event->text_len || a->logprobs)
    put_chunk(a, NULL, event->text, event->text_len, NULL, NULL, out);
}

void api_answer_end(api_answer *a, const troika_event *event, bytes_buffer *out) {
  if (event->text_len) put_chunk(a, NULL, event->text, event->text_len, NULL, NULL, out);
  put_chunk(a, NULL, NULL, 0, finish_name(event->finish), event, out);
  if (a->include_usage) {
    bytes_buffer *c = &a->chunk;
    bytes_clear(c);
    put_head(a, c);
    bytes_append_string(c, ",\"choices\":[],\"usage\":");
    put_usage(event, c);
    bytes_append_string(c, "}");
    http_sse_data(out, c->data, c->len);
  }
  http_sse_data(out, "[DONE]", 6);
}

void api_answer_failure(api_answer *a, const api_failure *failure, bytes_buffer *out) {
  bytes_clear(&a->chunk);
  api_failure_write(failure, &a->chunk);
  http_sse_data(out, a->chunk.data, a->chunk.len);
}

void api_answer_gather(api_answer *a, const troika_event *event) {
  gather_logprob(a, event);
  bytes_append(&a->text, event->text, event->text_len);
}

troika_status api_answer_whole(api_answer *a, const troika_event *end, bytes_buffer *out) {
  put_head(a, out);
  bytes_append_string(out, ",\"choices\":[{\"index\":0,");
  if (a->endpoint == API_CHAT) {
    bytes_append_string(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    api_json_put_string(out, a->text.data ? a->text.data : "", a->text.len);
    bytes_append_string(out, ",\"refusal\":null}");
  } else {
    bytes_append_string(out, "\"text\":");
    api_json_put_string(out, a->text.data ? a->text.data : "", a->text.len);
  }
  bool failed = a->text.failed || a->logprobs_json.failed || a->tokens.failed || a->tops.failed;
  bytes_append_string(out, ",\"logprobs\":");
  put_logprobs(a, out);
  bytes_append_format(out, ",\"finish_reason\":\"%s\"}],\"usage\":", finish_name(end->finish));
  put_usage(end, out);
  bytes_append_string(out, ",\"timings\":");
  put_timings(a, end, out);
  bytes_append_string(out, "}");
  return failed || out->failed ? TROIKA_LIMIT : TROIKA_OK;
}
