/* fuzz_text_template.c - templates and messages from outside.
 * Input: template source, a NUL, messages as JSON, a NUL, text for a message's content. What must
 * hold: no crash, an error has a reason, output is UTF-8 and tokenizes to itself; and whatever the
 * content is, fixed templates give as many control tokens as they hold, also when it is continued.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../text/tiny_vocab.h"
#include "base/check.h"
#include "text/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

typedef struct fixed_template {
  const char *source;
  size_t controls, open_controls; /* the latter of a continued message */
  chat_template *made;
} fixed_template;

static fixed_template fixed[] = {
    {"<|im_start|>{{ messages[0].content }}<|im_end|>{{ messages[0].content | trim }}", 2, 2, NULL},
    {"<|im_start|>{{ messages | tojson }}{{ messages[0].content.split('|') | join('|') }}", 1, 1,
     NULL},
    {"{% if '</s>' in messages[0].content %}{{ messages[0].content.split('</s>')[-1] }}{% endif %}"
     "{{ messages[0].content + messages[0].content }}<|im_end|>",
     1, 0, NULL},
};

static chat_render_options options_of(chat_end end) {
  return (chat_render_options){.end = end, .now_unix_s = 1764456789};
}

static tokenizer *vocabulary(void) {
  static tokenizer *t;
  if (!t) t = tiny_tokenizer("gpt2");
  CHECK(t);
  return t;
}

/* The input up to a NUL, which is taken off. */
static bytes_view part(bytes_view *rest) {
  const char *end = rest->len ? memchr(rest->ptr, 0, rest->len) : NULL;
  size_t n = end ? (size_t)(end - rest->ptr) : rest->len;
  bytes_view out = bytes_of(rest->ptr, n);
  size_t taken = end ? n + 1 : n;
  if (taken) *rest = bytes_of(rest->ptr + taken, rest->len - taken);
  return out;
}

static void any_template(bytes_view source, bytes_view messages, chat_end end) {
  chat_render_options options = options_of(end);
  chat_template *t = NULL;
  troika_error err = {0};
  if (chat_template_create_source(source, "<s>", "<|im_end|>", &t, &err) != TROIKA_OK) {
    CHECK(err.text[0]);
    return;
  }
  bytes_buffer out, back;
  tokenizer_ids ids = {0};
  bytes_init(&out, 1 << 24);
  bytes_init(&back, 1 << 24);
  troika_status status = chat_template_render(t, messages, bytes_of("", 0), options, &out, &err);
  CHECK(status == TROIKA_OK || err.text[0]);
  CHECK(out.len == 0 || utf8_valid_prefix(out.data, out.len, NULL) == out.len);
  troika_status tokenized =
      chat_template_tokenize(t, vocabulary(), messages, bytes_of("", 0), options, 0, &ids, &err);
  CHECK(tokenized != TROIKA_OK || status == TROIKA_OK);
  if (tokenized == TROIKA_OK) {
    tokenizer_decode(vocabulary(), ids.data, ids.n, true, &back);
    CHECK(bytes_equal(bytes_of(back.data, back.len), bytes_of(out.data, out.len)));
  }
  tokenizer_ids_free(&ids);
  bytes_free(&back);
  bytes_free(&out);
  chat_template_destroy(&t);
}

static void any_content(bytes_view content) {
  if (content.len && utf8_valid_prefix(content.ptr, content.len, NULL) != content.len) return;
  bytes_buffer json;
  bytes_init(&json, 1 << 20);
  bytes_append_string(&json, "[{\"role\": \"assistant\", \"content\": \"");
  for (size_t i = 0; i < content.len; i++)
    bytes_append_format(&json, (uint8_t)content.ptr[i] < 0x80 ? "\\u%04x" : "%c", content.ptr[i]);
  bytes_append_string(&json, "\"}]");
  for (size_t f = 0; f < sizeof fixed / sizeof fixed[0] && !json.failed; f++) {
    if (!fixed[f].made)
      CHECK(chat_template_create_source(bytes_of_string(fixed[f].source), "", "", &fixed[f].made,
                                        NULL) == TROIKA_OK);
    for (int open = 0; open < 2; open++) {
      tokenizer_ids ids = {0};
      size_t n = 0;
      CHECK(chat_template_tokenize(
                fixed[f].made, vocabulary(), bytes_of(json.data, json.len), bytes_of("", 0),
                options_of(open ? CHAT_CONTINUE : CHAT_GENERATE), 0, &ids, NULL) == TROIKA_OK);
      for (size_t i = 0; i < ids.n; i++) n += tokenizer_is_control(vocabulary(), ids.data[i]);
      CHECK(n == (open ? fixed[f].open_controls : fixed[f].controls));
      tokenizer_ids_free(&ids);
    }
  }
  bytes_free(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  bytes_view rest = bytes_of((const char *)data, len);
  bytes_view source = part(&rest), messages = part(&rest), content = part(&rest);
  any_template(source, messages, CHAT_GENERATE);
  any_template(source, messages, CHAT_CONTINUE);
  any_content(content);
  return 0;
}
