/* troika/model.h - a model file, opened and checked: its facts, its tokenizer, its chat template.
 *
 * A model is immutable after troika_model_open, so every call here but open and close may come from
 * any thread. Runtimes borrow it: close them first (closing a model that a runtime still uses is
 * TROIKA_BUSY and changes nothing).
 *
 * Copyright 2026 the troika authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef TROIKA_MODEL_H
#define TROIKA_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct troika_model troika_model;

typedef struct troika_model_options {
  uint32_t size;             /* sizeof(troika_model_options) */
  const char *chat_template; /* Jinja source used instead of the file's; NULL: the file's. Borrowed
                                during the call */
} troika_model_options;

/* Maps and checks the GGUF file, builds the tokenizer and the template. Takes milliseconds: the
 * weights are read when a runtime opens. options may be NULL. *out is owned by the caller. Errors:
 * NOT_FOUND, IO, INVALID (options), FORMAT (bad file or template), UNSUPPORTED (architecture, type
 * or tokenizer, by name with the
 * list of known ones), NO_MEMORY. */
TROIKA_API troika_status troika_model_open(const char *path, const troika_model_options *options,
                                           troika_model **out, troika_error *err);
/* NULLs *model. BUSY while a runtime uses it. */
TROIKA_API troika_status troika_model_close(troika_model **model);

/* Texts are borrowed from the model. */
typedef struct troika_model_info {
  const char *name;         /* general.name, or the file's name */
  const char *architecture; /* "llama" */
  const char *type;         /* most frequent weight type by bytes: "Q4_1" */
  const char *tokenizer;    /* "gpt2/smollm" */
  uint64_t file_bytes, parameters;
  uint32_t context_max; /* tokens the model was trained for */
  uint32_t vocab, layers, width;
  uint64_t kv_bytes_per_token; /* with F16 KV, all layers */
  uint32_t token_bytes_max;    /* of the longest token's text: a longer text has more tokens */
  int32_t bos, eos;            /* -1: none */
  bool has_template;           /* false: troika_model_chat is NOT_FOUND */
  bool template_builtin;       /* ChatML of ours, since the file has none */
} troika_model_info;
TROIKA_API void troika_model_describe(const troika_model *model, troika_model_info *out);

/* Text (UTF-8, len bytes) to tokens. Control tokens' names in the text are plain text unless
 * parse_special. *n is set to the number of tokens also when `capacity` is too small (then
 * TROIKA_LIMIT and nothing is written past it). */
TROIKA_API troika_status troika_model_tokenize(const troika_model *model, const char *text,
                                               size_t len, bool add_bos, bool parse_special,
                                               int32_t *tokens, size_t capacity, size_t *n,
                                               troika_error *err);
/* The bytes of one token, borrowed from the model; possibly part of a character. Control tokens are
 * empty unless special. */
TROIKA_API const char *troika_model_piece(const troika_model *model, int32_t token, bool special,
                                          size_t *len);

/* What follows the messages. */
typedef enum troika_chat_end {
  TROIKA_CHAT_GENERATE, /* the template's generation prompt: the model answers */
  TROIKA_CHAT_CONTINUE, /* nothing, and the last message, of role assistant, stays open: the prompt
                           ends with its text as the template writes it, and the model goes on */
  TROIKA_CHAT_CLOSED    /* nothing */
} troika_chat_end;

/* Chat messages to prompt tokens by the model's template. messages: JSON array of {"role",
 * "content", ...}; tools: JSON array, or len 0. Control tokens come from the template alone,
 * whatever a message says. Renders on a thread of its own; milliseconds. Errors: INVALID (the
 * template refused: its own words; or CONTINUE where the last message has another role or no text,
 * or the template drops or changes it), FORMAT (not that JSON), LIMIT (as above), NOT_FOUND (no
 * template). */
TROIKA_API troika_status troika_model_chat(const troika_model *model, const char *messages,
                                           size_t messages_len, const char *tools, size_t tools_len,
                                           troika_chat_end end, int32_t *tokens, size_t capacity,
                                           size_t *n, troika_error *err);
/* The template's source, NUL-terminated, borrowed; "" if there is none. */
TROIKA_API const char *troika_model_template(const troika_model *model);

/* What an answer is held to, token by token: tokens that cannot go on are never drawn, the answer
 * ends when it is complete (FINISH_STOP), and one cut by max_tokens is a prefix of something valid.
 * Steps that take too long end the answer with LIMIT. */
typedef struct troika_grammar troika_grammar;
typedef enum troika_grammar_kind {
  TROIKA_GRAMMAR_JSON_OBJECT, /* any JSON object; no source */
  TROIKA_GRAMMAR_JSON_SCHEMA, /* JSON Schema, 2020-12 and draft 7 */
  TROIKA_GRAMMAR_REGEX,       /* Rust's syntax; the whole answer matches */
  TROIKA_GRAMMAR_LARK         /* llguidance's dialect of Lark; begins at "start" */
} troika_grammar_kind;

/* Compiles `len` bytes of source: milliseconds, up to two seconds for a hostile one; a model's
 * first grammar takes 0.2 to 1 s more. *out is owned, constant, and may be used in any number of
 * requests from any thread. Errors: INVALID (what is wrong, and where), UNSUPPORTED (what of it
 * cannot be enforced: keyword and path), LIMIT (too large, too deep, too much work), FORMAT (not
 * UTF-8), NO_MEMORY. */
TROIKA_API troika_status troika_grammar_create(troika_model *model, troika_grammar_kind kind,
                                               const char *source, size_t len, troika_grammar **out,
                                               troika_error *err);
/* Any time after the submits that use it; NULLs *grammar. */
TROIKA_API void troika_grammar_destroy(troika_grammar **grammar);

#ifdef __cplusplus
}
#endif
#endif
