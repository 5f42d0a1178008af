/* troika_text_rs.h - the C contract of the Rust static library beside this file.
 *
 * Only src/text/template.c calls it. No call unwinds, prints or ends the process; a status is a
 * troika_status number. Parsing and rendering run on a thread of their own with a 64 MiB stack,
 * started and joined within the call. An error's text and a rendered text are owned by the caller:
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

typedef struct troika_rs_render_request {
  troika_rs_bytes messages; /* a JSON list */
  troika_rs_bytes tools;    /* a JSON value, or empty for none */
  const troika_rs_bytes *controls;
  size_t controls_n; /* texts of the vocabulary's control tokens; none: nothing is marked literal */
  size_t output_max; /* bytes; past it TROIKA_LIMIT */
  int64_t now_unix_s;
  bool add_generation_prompt;
} troika_rs_render_request;

/* TROIKA_FORMAT with the line if the source does not parse; TROIKA_LIMIT past 64 KiB. */
int troika_rs_template_create(troika_rs_bytes source, troika_rs_bytes bos, troika_rs_bytes eos,
                              troika_rs_template **out, troika_rs_text *error);
void troika_rs_template_destroy(troika_rs_template *t);
/* TROIKA_INVALID: raise_exception's text, or what the template cannot do with these messages;
 * TROIKA_FORMAT: not JSON; TROIKA_LIMIT: too much work (500,000 steps) or output. */
int troika_rs_template_render(const troika_rs_template *t, const troika_rs_render_request *request,
                              troika_rs_text *out, troika_rs_text *error);
void troika_rs_text_free(troika_rs_text *text);

#endif
