/* SPDX-License-Identifier: Apache-2.0 */
/* request.h - the body of POST /v1/chat/completions and /v1/completions, checked, as what the
 * engine takes.
 *
 * Unknown fields are accepted (every client sends some), wrong ones refused by name, and what is
 * known but not done yet is refused rather than ignored: tool_choice "required", best_of above n,
 * suffix, echo with logprobs. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include <jansson.h>

#include "api/failure.h"
#include "base/bytes.h"
#include "troika/stream.h"

typedef enum api_endpoint {
  API_CHAT,
  API_COMPLETIONS,
  API_TOKENIZE,
  API_DETOKENIZE,
  API_ENDPOINTS
} api_endpoint;

enum { API_CHOICES_MAX = 128 }; /* answers to one request: prompts times n */

/* One of the prompts of a completion: text (borrowed from root) or tokens (owned). */
typedef struct api_prompt {
  bytes_view text;
  int32_t *tokens; /* NULL: text */
  uint32_t tokens_n;
} api_prompt;

typedef struct api_request {
  api_endpoint endpoint;
  bool stream, include_usage, echo;
  uint32_t n; /* answers to each prompt */
  /* Chat: JSON arrays as text, owned. */
  char *messages, *tools;
  bool continues;      /* the last message is the assistant's: its text is gone on with */
  api_prompt *prompts; /* completions; owned */
  uint32_t prompts_n;  /* 1 for a chat */
  bool parse_special;
  bool constrained; /* `response_format` asks for a grammar of this kind and source (owned) */
  troika_grammar_kind grammar_kind;
  char *grammar;
  size_t grammar_len;
  troika_request engine; /* all but the prompt; its pointers are into this struct */
  const char *stop[TROIKA_STOP_MAX];
  troika_token_bias *bias;
  json_t *root;
} api_request;

/* vocab bounds token numbers. False: `failure` says why, and *out needs no free. */
bool api_request_parse(bytes_view body, api_endpoint endpoint, uint32_t vocab, api_request *out,
                       api_failure *failure);
/* The same of a body that is JSON already; takes over `root`, whatever it answers. */
bool api_request_read(json_t *root, api_endpoint endpoint, uint32_t vocab, api_request *out,
                      api_failure *failure);
void api_request_free(api_request *r);

/* messages.c: checks `messages` and brings each to the shape that templates expect, in place: role
 * developer becomes system, content parts become one text, absent content becomes "", arguments of
 * tool calls become objects. *continues: the last one is an assistant's text, to be gone on with.
 */
bool api_messages_normalise(json_t *messages, bool *continues, api_failure *failure);

/* The messages as text, with a system message at their head put before the text of the user's first
 * one, for templates that take no system role. Owned; NULL if they do not begin so. */
char *api_messages_fold(const json_t *messages);

/* prompt.c: `prompt` of completions, /tokenize and /detokenize. */
bool api_prompts_read(api_request *r, const char *field, uint32_t vocab, api_failure *failure);
bool api_tokens_read(const json_t *array, const char *field, uint32_t vocab, api_prompt *out,
                     api_failure *failure);

/* format.c: `response_format` and its grammar. */
bool api_format_read(api_request *r, api_failure *failure);

#endif
