/* SPDX-License-Identifier: Apache-2.0 */
/* troika tokenize: what the model sees of a text.
 * Encoding asks the model, as the server does; decoding asks the tokenizer, because only it knows
 * whether the blank at the very start is the text's own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/json.h"
#include "cli/cli.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

enum { INPUT_MAX = 256 * 1024 * 1024 };

static bool read_text(const cli_settings *s, bytes_buffer *out) {
  for (int i = 0; i < s->arguments_n; i++) {
    if (i) bytes_append_string(out, " ");
    bytes_append_string(out, s->arguments[i]);
  }
  if (s->arguments_n) return true; /* a text that was given is taken as it is */
  return cli_read_all(STDIN_FILENO, "standard input", out);
}

/* A piece between bars, control characters as escapes, bytes that are no character as <E9>. */
static void put_visible(bytes_buffer *out, const char *text, size_t len) {
  while (len) {
    size_t good = utf8_valid_prefix(text, len, NULL);
    for (size_t i = 0; i < good; i++) {
      unsigned char c = (unsigned char)text[i];
      if (c == '\n')
        bytes_append_string(out, "\\n");
      else if (c == '\t')
        bytes_append_string(out, "\\t");
      else if (c < 0x20 || c == 0x7f)
        bytes_append_format(out, "\\x%02x", c);
      else
        bytes_append(out, &text[i], 1);
    }
    if (good < len) bytes_append_format(out, "<%02X>", (unsigned char)text[good++]);
    text += good;
    len -= good;
  }
}

static void put_json_token(const troika_model *model, int32_t token, bytes_buffer *out) {
  size_t len = 0;
  const char *piece = troika_model_piece(model, token, true, &len);
  bytes_append_format(out, "{\"id\":%d,\"piece\":", token);
  api_json_put_string(out, piece, len);
  if (utf8_valid_prefix(piece, len, NULL) < len) { /* the text cannot say it */
    bytes_append_string(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++)
      bytes_append_format(out, i ? ",%u" : "%u", (unsigned char)piece[i]);
    bytes_append_string(out, "]");
  }
  bytes_append_string(out, "}");
}

static void print_tokens(const cli_settings *s, const troika_model *model, const int32_t *tokens,
                         size_t n) {
  bytes_buffer out;
  bytes_init(&out, SIZE_MAX / 4);
  if (s->count) {
    bytes_append_format(&out, "%zu\n", n);
  } else if (s->json) {
    bytes_append_format(&out, "{\"count\":%zu,\"tokens\":[", n);
    for (size_t i = 0; i < n; i++) {
      if (i) bytes_append_string(&out, ",");
      put_json_token(model, tokens[i], &out);
    }
    bytes_append_string(&out, "]}\n");
  } else if (s->ids) {
    for (size_t i = 0; i < n; i++) bytes_append_format(&out, i ? " %d" : "%d", tokens[i]);
    bytes_append_string(&out, "\n");
  } else {
    for (size_t i = 0; i < n; i++) {
      size_t len = 0;
      const char *piece = troika_model_piece(model, tokens[i], true, &len);
      bytes_append_format(&out, "%8d  |", tokens[i]);
      put_visible(&out, piece, len);
      bytes_append_string(&out, "|\n");
    }
    bytes_append_format(&out, "%zu tokens\n", n);
  }
  fwrite(out.data, 1, out.len, stdout);
  bytes_free(&out);
}

static int encode(const cli_settings *s, const troika_model *model, const bytes_buffer *text) {
  troika_error err = {0};
  size_t n = 0;
  troika_status status = troika_model_tokenize(model, text->data, text->len, !s->no_bos, s->special,
                                               NULL, 0, &n, &err);
  int32_t *tokens = status && status != TROIKA_LIMIT ? NULL : malloc((n + 1) * sizeof *tokens);
  if (tokens && n)
    status = troika_model_tokenize(model, text->data, text->len, !s->no_bos, s->special, tokens, n,
                                   &n, &err);
  else if (tokens)
    status = TROIKA_OK;
  if (!status && tokens)
    print_tokens(s, model, tokens, n);
  else
    cli_fail("%s", err.text[0] ? err.text : "out of memory");
  free(tokens);
  return status ? CLI_FAILED : CLI_OK;
}

/* Numbers separated by anything that no number holds: "1 2", "[1, 2]". */
static bool read_ids(const char *p, uint32_t vocab, tokenizer_ids *out) {
  out->data = malloc((strlen(p) / 2 + 1) * sizeof *out->data); /* a digit and a blank each */
  if (!out->data) return cli_fail("out of memory"), false;
  while (*p) {
    if (*p < '0' || *p > '9') {
      if (!strchr(" \t\r\n,;[]", *p))
        return cli_fail("expected token numbers, found \"%.20s\"", p), false;
      p++;
      continue;
    }
    char *end;
    errno = 0;
    long token = strtol(p, &end, 10);
    if (errno || token >= (long)vocab)
      return cli_fail("%.*s is no token of this model: it has 0 to %u", (int)(end - p), p,
                      vocab - 1),
             false;
    out->data[out->n++] = (int32_t)token;
    p = end;
  }
  return true;
}

static int decode(const cli_settings *s, const cli_engine *e, const bytes_buffer *text) {
  gguf *file = NULL;
  tokenizer *t = NULL;
  tokenizer_ids ids = {0};
  troika_error err = {0};
  bytes_buffer out;
  int code = CLI_FAILED;
  bytes_init(&out, SIZE_MAX / 4);
  if (gguf_open(e->path, &file, &err) || tokenizer_create(file, &t, &err)) {
    cli_fail("%s", err.text);
  } else if (read_ids(text->data, tokenizer_vocab_size(t), &ids)) {
    tokenizer_decode(t, ids.data, ids.n, s->special, &out);
    if (out.len) fwrite(out.data, 1, out.len, stdout);
    if (isatty(STDOUT_FILENO)) putchar('\n');
    code = CLI_OK;
  }
  bytes_free(&out);
  free(ids.data);
  tokenizer_destroy(&t);
  gguf_close(&file);
  return code;
}

int cli_tokenize(const cli_settings *s) {
  bytes_buffer text;
  cli_engine e;
  int code = CLI_FAILED;
  bytes_init(&text, INPUT_MAX);
  bytes_append(&text, "", 0);
  if (read_text(s, &text) && cli_model_open(s, &e)) {
    code = s->decode_ids ? decode(s, &e, &text) : encode(s, e.model, &text);
    cli_engine_close(&e);
  }
  bytes_free(&text);
  return code;
}
