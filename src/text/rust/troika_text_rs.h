/* troika_text_rs.h - the C contract of the Rust static library beside this file.
 *
 * Only src/text/template.c and grammar.c call it. No call unwinds, prints or ends the process; a
 * status is a troika_status number. Parsing (templates, grammars, vocabularies) and rendering run
 * on a thread of their own with a 64 MiB stack, started and joined within the call; all else on the
 * caller's. The first grammar starts a thread "grammar-watch", which sleeps while there is none and
 * lives as long as the process. An error's text and a rendered text are owned by the caller:
 * troika_rs_text_free, also with {0}.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_RUST_TROIKA_TEXT_RS_H
#define TEXT_RUST_TROIKA_TEXT_RS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct troika_rs_template troika_rs_template; /* immutable: any thread, several at once */

typedef struct troika_rs_bytes {
  const char *ptr; /* borrowed for the call; UTF-8, else TROIKA_FORMAT */
  size_t len;
} troika_rs_bytes;

typedef struct troika_rs_text {
  char *ptr; /* UTF-8, no NUL after it */
  size_t len, capacity;
  size_t *literal; /* ascending byte places in it that no control token may cover */
  size_t literal_n, literal_capacity;
} troika_rs_text;

/* What follows the messages (text/template.h). */
typedef enum troika_rs_chat_end {
  TROIKA_RS_GENERATE,
  TROIKA_RS_CONTINUE,
  TROIKA_RS_CLOSED
} troika_rs_chat_end;

typedef struct troika_rs_render_request {
  troika_rs_bytes messages; /* a JSON list */
  troika_rs_bytes tools;    /* a JSON value, or empty for none */
  const troika_rs_bytes *controls;
  size_t controls_n; /* texts of the vocabulary's control tokens; none: nothing is marked literal */
  size_t output_max; /* bytes; past it TROIKA_LIMIT */
  int64_t now_unix_s;
  troika_rs_chat_end end;
} troika_rs_render_request;

/* TROIKA_FORMAT with the line if the source does not parse; TROIKA_LIMIT past 64 KiB. */
int troika_rs_template_create(troika_rs_bytes source, troika_rs_bytes bos, troika_rs_bytes eos,
                              troika_rs_template **out, troika_rs_text *error);
void troika_rs_template_destroy(troika_rs_template *t);
/* TROIKA_INVALID: raise_exception's text, or what the template cannot do with these messages, or
 * nothing to continue;
 * TROIKA_FORMAT: not JSON; TROIKA_LIMIT: too much work (500,000 steps) or output. */
int troika_rs_template_render(const troika_rs_template *t, const troika_rs_render_request *request,
                              troika_rs_text *out, troika_rs_text *error);
void troika_rs_text_free(troika_rs_text *text);

/* ---- grammars; only src/text/grammar.c calls these ---- */

typedef struct troika_rs_vocab troika_rs_vocab;     /* immutable: any thread; counts its grammars */
typedef struct troika_rs_grammar troika_rs_grammar; /* one thread at a time */

typedef enum troika_rs_token_kind {
  TROIKA_RS_TOKEN_NEVER, /* control, unknown, unused */
  TROIKA_RS_TOKEN_TEXT,
  TROIKA_RS_TOKEN_END
} troika_rs_token_kind;

typedef struct troika_rs_vocab_source {
  const char *bytes;      /* all borrowed for the call */
  const uint32_t *offset; /* n + 1; token i is bytes[offset[i] .. offset[i + 1]) */
  const uint8_t *kind;    /* n of troika_rs_token_kind */
  uint32_t n;
} troika_rs_vocab_source;

int troika_rs_vocab_create(const troika_rs_vocab_source *source, const troika_rs_vocab **out,
                           troika_rs_text *error);
void troika_rs_vocab_destroy(const troika_rs_vocab *v);
/* kind: a number of grammar_kind. Compiles on a thread of its own with a deep stack. */
int troika_rs_grammar_create(const troika_rs_vocab *v, uint32_t kind, troika_rs_bytes source,
                             troika_rs_grammar **out, troika_rs_text *error);
int troika_rs_grammar_clone(const troika_rs_grammar *g, troika_rs_grammar **out,
                            troika_rs_text *error);
void troika_rs_grammar_destroy(troika_rs_grammar *g);
int troika_rs_grammar_mask(troika_rs_grammar *g, uint32_t *bits); /* (n + 31) / 32 words */
int troika_rs_grammar_accept(troika_rs_grammar *g, uint32_t token);
bool troika_rs_grammar_is_complete(troika_rs_grammar *g);
bool troika_rs_grammar_is_over(troika_rs_grammar *g);
troika_rs_bytes troika_rs_grammar_failure(const troika_rs_grammar *g); /* borrowed from g */

#endif
