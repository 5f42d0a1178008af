/* SPDX-License-Identifier: Apache-2.0 */
#include "text/template.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/rust/troika_text_rs.h"
#include "text/rust_error.h"
#include "text/tokenizer_internal.h"

_Static_assert((int)CHAT_GENERATE == TROIKA_RS_GENERATE &&
                   (int)CHAT_CONTINUE == TROIKA_RS_CONTINUE && (int)CHAT_CLOSED == TROIKA_RS_CLOSED,
               "the enum of template.h and that of troika_text_rs.h");

/* ChatML, for a file without a template whose vocabulary has its tokens. */
static const char chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + "
    "'\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

enum { OUTPUT_MAX = 8 << 20 };

struct chat_template {
  troika_rs_template *rs;
  char *source;
  bool builtin;
};

static troika_rs_bytes rs_bytes(bytes_view v) {
  return (troika_rs_bytes){v.ptr, v.len};
}

static troika_status create(bytes_view source, bytes_view bos, bytes_view eos, bool builtin,
                            chat_template **out, troika_error *err) {
  chat_template *t = calloc(1, sizeof *t);
  char *copy = malloc(source.len + 1);
  if (!t || !copy) {
    free(copy);
    free(t);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the chat template");
  }
  if (source.len) memcpy(copy, source.ptr, source.len);
  copy[source.len] = 0;
  t->source = copy;
  t->builtin = builtin;
  troika_rs_text error = {0};
  int status =
      troika_rs_template_create(rs_bytes(source), rs_bytes(bos), rs_bytes(eos), &t->rs, &error);
  if (status != TROIKA_OK) {
    chat_template_destroy(&t);
    return rs_failed(status, "chat template: ", &error, err);
  }
  *out = t;
  return TROIKA_OK;
}

troika_status chat_template_create_source(bytes_view source, const char *bos, const char *eos,
                                          chat_template **out, troika_error *err) {
  return create(source, bytes_of_string(bos ? bos : ""), bytes_of_string(eos ? eos : ""), false,
                out, err);
}

static bool has_control(const tokenizer *t, const char *text) {
  int32_t id;
  size_t len = strlen(text);
  return special_match(t, bytes_of(text, len), 0, true, NULL, 0, &id) == len;
}

troika_status chat_template_create(const gguf *file, const tokenizer *t, chat_template **out,
                                   troika_error *err) {
  bytes_view source = bytes_of_string(chatml);
  troika_status status = gguf_get_string(file, "tokenizer.chat_template", &source, err);
  bool builtin = status == TROIKA_NOT_FOUND;
  if (builtin && !(has_control(t, "<|im_start|>") && has_control(t, "<|im_end|>")))
    return error_set(err, TROIKA_NOT_FOUND,
                     "the file has no chat template and its vocabulary no <|im_start|> for ChatML");
  if (status != TROIKA_OK && !builtin) return status;
  return create(source, tokenizer_piece(t, t->bos, true), tokenizer_piece(t, t->eos, true), builtin,
                out, err);
}

void chat_template_destroy(chat_template **t) {
  if (!*t) return;
  troika_rs_template_destroy((*t)->rs);
  free((*t)->source);
  free(*t);
  *t = NULL;
}

const char *chat_template_source(const chat_template *t) {
  return t->source;
}
bool chat_template_is_builtin(const chat_template *t) {
  return t->builtin;
}

troika_status chat_template_render(const chat_template *t, bytes_view messages_json,
                                   bytes_view tools_json, chat_render_options options,
                                   bytes_buffer *out, troika_error *err) {
  troika_rs_render_request request = {.messages = rs_bytes(messages_json),
                                      .tools = rs_bytes(tools_json),
                                      .output_max = OUTPUT_MAX,
                                      .now_unix_s = options.now_unix_s,
                                      .end = (troika_rs_chat_end)options.end};
  troika_rs_text text = {0}, error = {0};
  int status = troika_rs_template_render(t->rs, &request, &text, &error);
  if (status != TROIKA_OK) return rs_failed(status, "", &error, err);
  troika_status room = bytes_reserve(out, text.len);
  if (room == TROIKA_OK)
    bytes_append(out, text.ptr, text.len);
  else
    error_set(err, room, "no room for %zu bytes of prompt", text.len);
  troika_rs_text_free(&text);
  return room;
}

/* The texts of all control tokens, borrowed from the tokenizer; the list is malloc'ed. */
static troika_rs_bytes *controls_list(const tokenizer *t, size_t *n) {
  troika_rs_bytes *list = malloc(((size_t)t->special_n + 1) * sizeof *list);
  *n = 0;
  for (uint32_t i = 0; list && i < t->special_n; i++)
    if (t->type[t->special[i]] == TOKEN_CONTROL)
      list[(*n)++] = rs_bytes(vocab_text(t, t->special[i]));
  return list;
}

troika_status chat_template_tokenize(const chat_template *t, const tokenizer *tok,
                                     bytes_view messages_json, bytes_view tools_json,
                                     chat_render_options options, size_t max, tokenizer_ids *out,
                                     troika_error *err) {
  troika_rs_render_request request = {.messages = rs_bytes(messages_json),
                                      .tools = rs_bytes(tools_json),
                                      .output_max = OUTPUT_MAX,
                                      .now_unix_s = options.now_unix_s,
                                      .end = (troika_rs_chat_end)options.end};
  troika_rs_bytes *controls = controls_list(tok, &request.controls_n);
  if (!controls) return error_set(err, TROIKA_NO_MEMORY, "no memory for the chat template");
  request.controls = controls;
  troika_rs_text text = {0}, error = {0};
  int failed = troika_rs_template_render(t->rs, &request, &text, &error);
  free(controls);
  if (failed != TROIKA_OK) return rs_failed(failed, "", &error, err);
  troika_status status = tokenizer_encode_literal(
      tok, bytes_of(text.ptr, text.len), text.literal, text.literal_n,
      (tokenizer_options){.parse_special = true, .add_bos = true}, max, out, err);
  troika_rs_text_free(&text);
  return status;
}
