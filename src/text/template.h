/* template.h - chat templates: messages to the prompt text that the model was trained on.
 *
 * The template is Jinja from the file (`tokenizer.chat_template`), rendered by minijinja with
 * Python's methods, in the Rust static library beside this file; a built-in ChatML when the file
 * has none and its vocabulary has <|im_start|>. A template is code from outside: it runs with
 * bounded fuel, bounded output, on a thread of its own with a 64 MiB stack (a deep one overflows
 * the stack, which no handler catches). Never call template_render from the HTTP or the runtime
 * thread.
 *
 * What the template writes may hold control tokens; what the messages hold may not.
 * chat_template_tokenize marks, before rendering, the characters of the messages with which a
 * control token could begin or end, and no control token may cover a marked one: a message's
 * `<|im_end|>` is tokenized as plain text, also when filters move, cut, quote or join it
 * (src/text/rust/src/guard.rs says how). The text itself is always exactly what it
 * would be without marks. Cost: messages that hold such characters are rendered twice. Limits: a
 * control token whose first and last characters the template wrote counts as the template's, also
 * if a message wrote its middle (as in `<|{{ message.role }}|>`): check roles and tool names
 * before. Where a template looks at those characters itself the marking is weaker, and if it
 * changes whole control tokens of a message (quotes them in ASCII, say) the request is
 * TROIKA_INVALID. User-defined tokens (not control) are found in messages too, as the reference
 * tokenizers do; those that end an answer or look like <|this|> count as control tokens.
 *
 * Not bounded: minijinja 3.1.0 joins lists lazily, and a template that doubles a list 33 times
 * (`x = x + x` in a loop) takes all memory whatever the fuel. Templates come from the model file
 * or the command line, never from a request. Rendered differently from jinja2: `'%s' % x`,
 * macro varargs, pprint, autoescape; filters that are generators there are lists here, so
 * `x | map(...) | tojson` is text, not an error.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_TEMPLATE_H
#define TEXT_TEMPLATE_H

#include "base/bytes.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"
#include "troika/status.h"

typedef struct chat_template chat_template; /* immutable: any thread */

/* TROIKA_NOT_FOUND if the file has no template and ChatML does not fit the vocabulary;
 * TROIKA_FORMAT with minijinja's line if it does not parse. */
troika_status chat_template_create(const gguf *file, const tokenizer *t, chat_template **out,
                                   troika_error *err);
/* From source text, for tests and --chat-template. bos/eos are the texts that the template may
 * write. */
troika_status chat_template_create_source(bytes_view source, const char *bos, const char *eos,
                                          chat_template **out, troika_error *err);
void chat_template_destroy(chat_template **t);
const char *chat_template_source(const chat_template *t);
bool chat_template_is_builtin(const chat_template *t);

/* What follows the messages; troika/model.h has the same for clients of the library. */
typedef enum chat_end {
  CHAT_GENERATE, /* the template's generation prompt */
  CHAT_CONTINUE, /* nothing; the last message, of role assistant, is cut open behind its text */
  CHAT_CLOSED    /* nothing */
} chat_end;

typedef struct chat_render_options {
  chat_end end;
  int64_t now_unix_s; /* what strftime_now sees */
} chat_render_options;

/* messages_json: a JSON array of {role, content, ...}; tools_json: a JSON array or empty. `out`
 * receives the text as a person would read it (for /apply-template and tests). raise_exception's
 * text comes back as TROIKA_INVALID in err.
 *
 * CHAT_CONTINUE is the reference library's continue_final_message: a tag that occurs nowhere else
 * goes behind the last message's text, and what the template writes from the tag on is cut off,
 * with the white space before it if the template trimmed the tag's blank. So whether a thinking
 * template can be continued is its own decision. TROIKA_INVALID if the last message has another
 * role or no text, or if the tag does not come out. */
troika_status chat_template_render(const chat_template *t, bytes_view messages_json,
                                   bytes_view tools_json, chat_render_options options,
                                   bytes_buffer *out, troika_error *err);
/* Renders and tokenizes: control tokens only where the template wrote them; exactly one BOS if the
 * model wants one. */
troika_status chat_template_tokenize(const chat_template *t, const tokenizer *tok,
                                     bytes_view messages_json, bytes_view tools_json,
                                     chat_render_options options, size_t max, tokenizer_ids *out,
                                     troika_error *err);

#endif
