/* SPDX-License-Identifier: Apache-2.0 */
#include "api/answer.h"

#include <string.h>

#include "api/json.h"
#include "api/streams.h"
#include "http/http.h"

/* What all choices of a whole answer may gather, each buffer of it; and one chunk, which may hold
 * the echo of a prompt. */
enum { GATHER_MAX = 64 * 1024 * 1024, CHUNK_MAX = 64 * 1024 * 1024 };

void api_answer_init(api_answer *a) {
  bytes_init(&a->head, CHUNK_MAX);
  bytes_init(&a->chunk, CHUNK_MAX);
}

void api_answer_free(api_answer *a) {
  bytes_free(&a->head);
  bytes_free(&a->chunk);
}

void api_choice_init(api_choice *c, uint32_t index, uint32_t prompt, uint32_t of) {
  *c = (api_choice){.index = index, .prompt = prompt};
  bytes_buffer *all[] = {&c->text,           &c->logprobs_json, &c->tokens,
                         &c->token_logprobs, &c->tops,          &c->offsets};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) bytes_init(all[i], GATHER_MAX / of);
}

bool api_choice_overflowed(const api_choice *c) {
  return c->text.failed || c->logprobs_json.failed || c->tokens.failed ||
         c->token_logprobs.failed || c->tops.failed || c->offsets.failed;
}

void api_choice_free(api_choice *c) {
  bytes_free(&c->text);
  bytes_free(&c->logprobs_json);
  bytes_free(&c->tokens);
  bytes_free(&c->token_logprobs);
  bytes_free(&c->tops);
  bytes_free(&c->offsets);
}

static const char *finish_name(troika_finish finish) {
  return finish == TROIKA_FINISH_LENGTH ? "length" : "stop";
}

static const char *object_name(const api_answer *a) {
  if (a->endpoint == API_COMPLETIONS) return "text_completion";
  return a->stream ? "chat.completion.chunk" : "chat.completion";
}

void api_answer_begin(api_answer *a, const char *model_name, const char *tier, int64_t created_s) {
  bytes_append_format(&a->head,
                      "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id,
                      object_name(a), (long long)created_s);
  api_json_put_string(&a->head, model_name, strlen(model_name));
  bytes_append_format(&a->head, ",\"service_tier\":\"%s\"", tier);
}

static void put_head(const api_answer *a, bytes_buffer *out) {
  bytes_append(out, a->head.data, a->head.len);
}

static void put_usage(const api_usage *u, bytes_buffer *out) {
  unsigned long long prompt = u->prompt_tokens, made = u->completion_tokens,
                     cached = u->cached_tokens;
  bytes_append_format(out,
                      "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                      "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                      prompt, made, prompt + made, cached);
}

static double rate(double n, int64_t ns) {
  return n > 0 && ns > 0 ? n * 1e9 / (double)ns : 0;
}

void api_answer_put_times(const troika_timings *t, bytes_buffer *out) {
  bytes_append_format(
      out,
      "\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,\"preempted_ms\":%.3f,"
      "\"slack_ms\":%.3f,\"idle_ms\":%.3f,\"first_launch_ms\":%.3f,\"blocked_ms\":%.3f,"
      "\"first_token_ms\":%.3f,\"gap_ms\":%.3f",
      api_ms(t->queue_ns), api_ms(t->prefill_ns), api_ms(t->decode_ns), api_ms(t->preempted_ns),
      api_ms(t->slack_ns), api_ms(t->idle_ns), api_ms(t->first_launch_ns), api_ms(t->blocked_ns),
      api_ms(t->first_token_ns), api_ms(t->gap_ns));
}

/* The first token is counted with the prefill that makes it. `made`: tokens of the decode time,
 * without the first one. */
static void put_timings(const api_answer *a, const troika_timings *t, int64_t io_ns,
                        double computed, double made, bytes_buffer *out) {
  bytes_append_format(out, ",\"timings\":{\"preprocess_ms\":%.3f,", api_ms(a->preprocess_ns));
  api_answer_put_times(t, out);
  bytes_append_format(out,
                      ",\"tool_ms\":%.3f,\"io_ms\":%.3f,\"prefill_per_second\":%.2f,"
                      "\"decode_per_second\":%.2f}",
                      api_ms(a->tool_ns), api_ms(io_ns), rate(computed, t->prefill_ns),
                      rate(made, t->decode_ns));
}

static void put_about(const api_about *x, bytes_buffer *out) {
  bytes_append_format(
      out,
      ",\"troika\":{\"class\":\"%s\",\"band\":\"%s\",\"stream\":\"%s\",\"decided_by\":\"%s\","
      "\"priority\":",
      api_class_name(x->class_), api_band_name(x->band), x->stream_id, x->decided_by);
  if (x->has_priority)
    bytes_append_format(out, "%lld", (long long)x->priority);
  else
    bytes_append_string(out, "null");
  bytes_append_format(out,
                      ",\"capped\":%s,\"attached\":%s,\"promoted\":%s,\"preemptions\":%u,"
                      "\"diverged_at\":%u,\"cached_tokens\":%llu,\"queue_ms\":%.3f",
                      x->capped ? "true" : "false", x->attached ? "true" : "false",
                      x->promoted ? "true" : "false", x->preemptions, x->diverged_at,
                      (unsigned long long)x->cached_tokens, api_ms(x->queue_ns));
  api_resolved_put_names(x->who, out);
  api_resolved_put(x->who, out);
  bytes_append_string(out, "}");
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

static void gather_completion_logprob(const api_answer *a, api_choice *c, const troika_event *e) {
  size_t len = 0;
  const char *piece = troika_model_piece(a->model, e->token, true, &len);
  if (c->tokens.len) {
    bytes_append_string(&c->tokens, ",");
    bytes_append_string(&c->token_logprobs, ",");
    bytes_append_string(&c->tops, ",");
    bytes_append_string(&c->offsets, ",");
  }
  api_json_put_string(&c->tokens, piece, len);
  api_json_put_number(&c->token_logprobs, (double)e->logprob);
  put_tops(a, e, &c->tops);
  bytes_append_format(&c->offsets, "%zu", c->text_offset);
  c->text_offset += len;
}

/* The value of a choice's "logprobs", from what was gathered; empties it. */
static void put_logprobs(const api_answer *a, api_choice *c, bytes_buffer *out) {
  if (!a->logprobs) {
    bytes_append_string(out, "null");
  } else if (a->endpoint == API_CHAT) {
    bytes_append_string(out, "{\"content\":[");
    bytes_append(out, c->logprobs_json.data, c->logprobs_json.len);
    bytes_append_string(out, "],\"refusal\":null}");
    bytes_clear(&c->logprobs_json);
  } else {
    bytes_buffer *parts[] = {&c->tokens, &c->token_logprobs, &c->tops, &c->offsets};
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

static void gather_logprob(const api_answer *a, api_choice *c, const troika_event *e) {
  if (!a->logprobs || e->kind != TROIKA_EVENT_TOKEN) return;
  if (a->endpoint == API_COMPLETIONS) {
    gather_completion_logprob(a, c, e);
    return;
  }
  if (c->logprobs_json.len) bytes_append_string(&c->logprobs_json, ",");
  put_chat_logprob(a, e, &c->logprobs_json);
}

/* What stands in `chunk`. */
static void put_frame(api_answer *a, bytes_buffer *out) {
  a->failed = a->failed || a->chunk.failed;
  if (!a->failed) http_sse_data(out, a->chunk.data, a->chunk.len);
}

typedef struct chunk_parts { /* what is NULL is left out, or null */
  const char *role, *text;
  size_t len;
  const char *finish;
  const troika_event *end;
  int64_t io_ns;          /* with end */
  const api_about *about; /* with end */
} chunk_parts;

static void put_chunk(api_answer *a, api_choice *c, chunk_parts p, bytes_buffer *out) {
  bytes_buffer *o = &a->chunk;
  bytes_clear(o);
  put_head(a, o);
  bytes_append_format(o, ",\"choices\":[{\"index\":%u,", c->index);
  if (a->endpoint == API_CHAT) {
    bytes_append_string(o, "\"delta\":{");
    if (p.role) bytes_append_format(o, "\"role\":\"%s\"%s", p.role, p.text ? "," : "");
    if (p.text) {
      bytes_append_string(o, "\"content\":");
      api_json_put_string(o, p.text, p.len);
    }
    bytes_append_string(o, "}");
  } else {
    bytes_append_string(o, "\"text\":");
    api_json_put_string(o, p.text ? p.text : "", p.len);
  }
  bytes_append_string(o, ",\"logprobs\":");
  if (a->logprobs && (c->logprobs_json.len || c->tokens.len))
    put_logprobs(a, c, o);
  else
    bytes_append_string(o, "null");
  if (p.finish)
    bytes_append_format(o, ",\"finish_reason\":\"%s\"}]", p.finish);
  else
    bytes_append_string(o, ",\"finish_reason\":null}]");
  if (a->include_usage) bytes_append_string(o, ",\"usage\":null");
  if (p.end) {
    put_timings(a, &p.end->timings, p.io_ns, (double)p.end->prompt_tokens - p.end->cached_tokens,
                (double)p.end->completion_tokens - 1, o);
    put_about(p.about, o);
  }
  bytes_append_string(o, "}");
  put_frame(a, out);
}

void api_answer_first(api_answer *a, const api_choice *c, bytes_buffer *out) {
  api_choice plain = {.index = c->index};
  if (a->endpoint == API_CHAT)
    put_chunk(a, &plain, (chunk_parts){.role = "assistant", .text = ""}, out);
}

void api_answer_text(api_answer *a, api_choice *c, const char *text, size_t len,
                     bytes_buffer *out) {
  put_chunk(a, c, (chunk_parts){.text = text, .len = len}, out);
}

void api_answer_token(api_answer *a, api_choice *c, const troika_event *event, bytes_buffer *out) {
  gather_logprob(a, c, event);
  /* A token whose text is held back has nothing to say, except for its logprob. */
  if (event->text_len || a->logprobs) api_answer_text(a, c, event->text, event->text_len, out);
}

void api_answer_finish(api_answer *a, api_choice *c, const troika_event *event, int64_t io_ns,
                       const api_about *about, bytes_buffer *out) {
  chunk_parts last = {.end = event, .io_ns = io_ns, .about = about};
  if (event->text_len) api_answer_text(a, c, event->text, event->text_len, out);
  last.finish = finish_name(event->finish);
  put_chunk(a, c, last, out);
}

void api_answer_done(api_answer *a, const api_usage *usage, bytes_buffer *out) {
  if (a->include_usage) {
    bytes_buffer *o = &a->chunk;
    bytes_clear(o);
    put_head(a, o);
    bytes_append_string(o, ",\"choices\":[],\"usage\":");
    put_usage(usage, o);
    bytes_append_string(o, "}");
    put_frame(a, out);
  }
  http_sse_data(out, "[DONE]", 6);
}

void api_answer_failure(api_answer *a, const api_failure *failure, bytes_buffer *out) {
  bytes_clear(&a->chunk);
  api_failure_write(failure, &a->chunk);
  put_frame(a, out);
}

void api_answer_gather(api_answer *a, api_choice *c, const troika_event *event) {
  gather_logprob(a, c, event);
  bytes_append(&c->text, event->text, event->text_len);
}

static void put_choice(const api_answer *a, api_choice *c, bytes_buffer *out) {
  const char *text = c->text.data ? c->text.data : "";
  bytes_append_format(out, "{\"index\":%u,", c->index);
  if (a->endpoint == API_CHAT) {
    bytes_append_string(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    api_json_put_string(out, text, c->text.len);
    bytes_append_string(out, ",\"refusal\":null}");
  } else {
    bytes_append_string(out, "\"text\":");
    api_json_put_string(out, text, c->text.len);
  }
  bytes_append_string(out, ",\"logprobs\":");
  put_logprobs(a, c, out);
  bytes_append_format(out, ",\"finish_reason\":\"%s\"}", finish_name(c->end.finish));
}

troika_status api_answer_whole(api_answer *a, api_choice *choices, uint32_t n,
                               const api_usage *usage, const api_about *about, bytes_buffer *out) {
  put_head(a, out);
  bytes_append_string(out, ",\"choices\":[");
  for (uint32_t i = 0; i < n; i++) {
    if (i) bytes_append_string(out, ",");
    put_choice(a, &choices[i], out);
  }
  bytes_append_string(out, "],\"usage\":");
  put_usage(usage, out);
  put_timings(a, &usage->timings, usage->io_ns,
              (double)usage->prompt_tokens - (double)usage->cached_tokens,
              (double)usage->completion_tokens - n, out);
  put_about(about, out);
  bytes_append_string(out, "}");
  return out->failed ? TROIKA_NO_MEMORY : TROIKA_OK;
}
