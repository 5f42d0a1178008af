/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize and /detokenize: what a prompt is as tokens, without running it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/job.h"
#include "api/json.h"

/* A text of this length takes about half a second; a longer one would hold up others' requests. */
enum { TEXT_BYTES_MAX = 4 * 1024 * 1024 };

typedef struct token_request {
  json_t *root;
  bool is_chat, add_special, parse_special, strings, generate;
  api_request
      chat;        /* if is_chat: read as /v1/chat/completions reads it, so that the tokens agree */
  bytes_view text; /* else */
  const char *param; /* what the text came as */
} token_request;

static bool read_text(token_request *t, api_failure *f) {
  static const char *const names[] = {"messages", "prompt", "content"};
  unsigned given = 0;
  t->param = "prompt";
  for (int i = 0; i < 3; i++)
    if (api_json_field(t->root, names[i])) {
      given++;
      t->param = names[i];
    }
  if (given > 1)
    return api_failure_set(f, t->param, "only one of messages, prompt and content can be given");
  if (!strcmp(t->param, "messages")) {
    t->is_chat = true;
    return true;
  }
  const json_t *text = api_json_field(t->root, t->param);
  if (!json_is_string(text)) return api_json_wrong(t->param, "a string", text, f);
  t->text = bytes_of(json_string_value(text), json_string_length(text));
  return true;
}

static bool read_token_request(const api *a, bytes_view body, token_request *t, api_failure *f) {
  *t = (token_request){.add_special = true, .generate = true};
  if (!(t->root = api_json_parse(body, f))) return false;
  if (!api_json_bool(t->root, "add_special_tokens", &t->add_special, f) ||
      !api_json_bool(t->root, "add_special", &t->add_special, f) ||
      !api_json_bool(t->root, "parse_special", &t->parse_special, f) ||
      !api_json_bool(t->root, "add_generation_prompt", &t->generate, f) ||
      !api_json_bool(t->root, "with_pieces", &t->strings, f) ||
      !api_json_bool(t->root, "return_token_strs", &t->strings, f) || !read_text(t, f))
    return false;
  size_t more = 0;
  if (t->is_chat) {
    json_t *root = t->root;
    t->root = NULL;
    if (!api_request_read(root, API_CHAT, a->vocab, &t->chat, f)) return false;
    t->text = bytes_of_string(t->chat.messages);
    if (t->chat.tools) more = strlen(t->chat.tools);
  }
  if (t->text.len + more > TEXT_BYTES_MAX)
    return api_failure_set(f, t->param, "the text has %zu bytes, at most %d are taken here",
                           t->text.len + more, TEXT_BYTES_MAX);
  return true;
}

static troika_status make(const api *a, const token_request *t, int32_t *tokens, size_t capacity,
                          size_t *n, troika_error *err) {
  if (t->is_chat)
    return api_chat_tokens(a, &t->chat,
                           t->chat.continues ? TROIKA_CHAT_CONTINUE
                           : t->generate     ? TROIKA_CHAT_GENERATE
                                             : TROIKA_CHAT_CLOSED,
                           tokens, capacity, n, err);
  return troika_model_tokenize(a->options.model, t->text.ptr, t->text.len, t->add_special,
                               t->parse_special, tokens, capacity, n, err);
}

static void put_tokens(const api *a, const token_request *t, const int32_t *tokens, size_t n,
                       bytes_buffer *out) {
  bytes_append_format(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", n, a->context);
  for (size_t i = 0; i < n; i++) bytes_append_format(out, i ? ",%d" : "%d", tokens[i]);
  bytes_append_string(out, "]");
  if (t->strings) {
    bytes_append_string(out, ",\"token_strs\":[");
    for (size_t i = 0; i < n; i++) {
      size_t len = 0;
      const char *piece = troika_model_piece(a->options.model, tokens[i], true, &len);
      if (i) bytes_append_string(out, ",");
      api_json_put_string(out, piece, len);
    }
    bytes_append_string(out, "]");
  }
  bytes_append_string(out, "}");
}

/* No token is empty, but a template and a begin token may add some: asked again if it was short. */
static int32_t *make_all(const api *a, const token_request *t, size_t *n, api_failure *failure) {
  size_t capacity = t->text.len + 256;
  troika_error err = {0};
  troika_status status = TROIKA_LIMIT;
  int32_t *tokens = NULL;
  for (int round = 0; round < 2 && status == TROIKA_LIMIT; round++) {
    if (round) capacity = *n;
    free(tokens);
    if (!(tokens = malloc(capacity * sizeof *tokens))) {
      api_failure_memory(failure);
      return NULL;
    }
    status = make(a, t, tokens, capacity, n, &err);
  }
  if (!status) return tokens;
  api_failure_of_status(failure, status, err.text);
  if (failure->status == 400) snprintf(failure->param, sizeof failure->param, "%s", t->param);
  free(tokens);
  return NULL;
}

bool api_tokenize(const api *a, bytes_view body, bytes_buffer *out, api_failure *failure) {
  token_request t;
  size_t n = 0;
  bool ok = read_token_request(a, body, &t, failure);
  int32_t *tokens = ok ? make_all(a, &t, &n, failure) : NULL;
  if (tokens) put_tokens(a, &t, tokens, n, out);
  ok = tokens && (!out->failed || api_failure_memory(failure));
  free(tokens);
  api_request_free(&t.chat);
  json_decref(t.root);
  return ok;
}

void api_put_tokens_text(const api *a, const int32_t *tokens, size_t n, bytes_buffer *out) {
  for (size_t i = 0; i < n; i++) {
    size_t len = 0;
    const char *piece = troika_model_piece(a->options.model, tokens[i], true, &len);
    bytes_append(out, piece, len);
  }
}

bool api_detokenize(const api *a, bytes_view body, bytes_buffer *out, api_failure *failure) {
  api_prompt p = {0};
  bytes_buffer text;
  json_t *root = api_json_parse(body, failure);
  if (!root) return false;
  bytes_init(&text, TEXT_BYTES_MAX);
  bytes_append(&text, "", 0);
  const json_t *tokens = api_json_field(root, "tokens");
  bool ok =
      json_is_array(tokens) || api_json_wrong("tokens", "an array of tokens", tokens, failure);
  if (ok && json_array_size(tokens)) ok = api_tokens_read(tokens, "tokens", a->vocab, &p, failure);
  if (ok) {
    api_put_tokens_text(a, p.tokens, p.tokens_n, &text);
    if (text.failed)
      ok = api_failure_set(failure, "tokens", "the text has more than the %d bytes given here",
                           TEXT_BYTES_MAX);
  }
  if (ok) {
    bytes_append_string(out, "{\"prompt\":");
    api_json_put_string(out, text.data, text.len);
    bytes_append_string(out, "}");
    if (out->failed) ok = api_failure_memory(failure);
  }
  free(p.tokens);
  bytes_free(&text);
  json_decref(root);
  return ok;
}
