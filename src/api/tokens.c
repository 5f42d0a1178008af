/* SPDX-License-Identifier: Apache-2.0 */
/* /tokenize and /detokenize: what a prompt is as tokens, without running it. */
#include <stdlib.h>
#include <string.h>

#include "api/job.h"
#include "api/json.h"

/* A text of this length takes about half a second; a longer one would hold up others' requests. */
enum { TEXT_BYTES_MAX = 4 * 1024 * 1024 };

typedef struct token_request {
  json_t *root;
  char *messages, *tools;
  bool add_special, parse_special, strings, continues, generate;
  bytes_view text;
} token_request;

static bool read_chat(token_request *t, api_failure *f) {
  json_t *messages = json_object_get(t->root, "messages");
  const json_t *tools = api_json_field(t->root, "tools");
  if (!api_messages_normalise(messages, &t->continues, f)) return false;
  if (tools && !json_is_array(tools)) return api_json_wrong("tools", "an array", tools, f);
  t->messages = json_dumps(messages, JSON_COMPACT);
  if (tools) t->tools = json_dumps(tools, JSON_COMPACT);
  if (!t->messages || (tools && !t->tools)) return api_failure_memory(f);
  t->text = bytes_of_string(t->messages);
  return true;
}

static bool read_token_request(bytes_view body, token_request *t, api_failure *f) {
  *t = (token_request){.add_special = true, .generate = true};
  if (!(t->root = api_json_parse(body, f))) return false;
  if (!api_json_bool(t->root, "add_special_tokens", &t->add_special, f) ||
      !api_json_bool(t->root, "add_special", &t->add_special, f) ||
      !api_json_bool(t->root, "parse_special", &t->parse_special, f) ||
      !api_json_bool(t->root, "add_generation_prompt", &t->generate, f) ||
      !api_json_bool(t->root, "with_pieces", &t->strings, f) ||
      !api_json_bool(t->root, "return_token_strs", &t->strings, f))
    return false;
  if (api_json_field(t->root, "messages")) return read_chat(t, f);
  const char *name = api_json_field(t->root, "content") ? "content" : "prompt";
  const json_t *text = api_json_field(t->root, name);
  if (!json_is_string(text)) return api_json_wrong(name, "a string", text, f);
  t->text = bytes_of(json_string_value(text), json_string_length(text));
  return true;
}

static void free_token_request(token_request *t) {
  free(t->messages);
  free(t->tools);
  json_decref(t->root);
}

static troika_status make(const api *a, const token_request *t, int32_t *tokens, size_t capacity,
                          size_t *n, troika_error *err) {
  const char *tools = t->tools ? t->tools : "";
  if (t->messages)
    return troika_model_chat(a->options.model, t->text.ptr, t->text.len, tools, strlen(tools),
                             t->continues  ? TROIKA_CHAT_CONTINUE
                             : t->generate ? TROIKA_CHAT_GENERATE
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

bool api_tokenize(const api *a, bytes_view body, bytes_buffer *out, api_failure *failure) {
  token_request t;
  troika_error err = {0};
  bool ok = read_token_request(body, &t, failure);
  const char *param = t.messages ? "messages" : "prompt";
  if (ok && t.text.len > TEXT_BYTES_MAX)
    ok = api_failure_set(failure, param, "the text has %zu bytes, at most %d are taken here",
                         t.text.len, TEXT_BYTES_MAX);
  /* No token is empty, but a template and a begin token may add some: asked again if it was short.
   */
  size_t capacity = t.text.len + 256, n = 0;
  int32_t *tokens = NULL;
  troika_status status = TROIKA_LIMIT;
  for (int round = 0; ok && round < 2 && status == TROIKA_LIMIT; round++) {
    if (round) capacity = n;
    free(tokens);
    if (!(tokens = malloc(capacity * sizeof *tokens))) {
      ok = api_failure_memory(failure);
      break;
    }
    status = make(a, &t, tokens, capacity, &n, &err);
  }
  if (ok && status) {
    api_failure_of_status(failure, status, err.text);
    ok = false;
  }
  if (ok) put_tokens(a, &t, tokens, n, out);
  if (ok && out->failed) ok = api_failure_memory(failure);
  free(tokens);
  free_token_request(&t);
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
  bytes_init(&text, out->max);
  bytes_append(&text, "", 0);
  const json_t *tokens = api_json_field(root, "tokens");
  bool ok =
      json_is_array(tokens) || api_json_wrong("tokens", "an array of tokens", tokens, failure);
  if (ok && json_array_size(tokens)) ok = api_tokens_read(tokens, "tokens", a->vocab, &p, failure);
  if (ok) {
    api_put_tokens_text(a, p.tokens, p.tokens_n, &text);
    bytes_append_string(out, "{\"prompt\":");
    api_json_put_string(out, text.data, text.len);
    bytes_append_string(out, "}");
    if (text.failed || out->failed) ok = api_failure_memory(failure);
  }
  free(p.tokens);
  bytes_free(&text);
  json_decref(root);
  return ok;
}
