/* SPDX-License-Identifier: Apache-2.0 */
/* request.h - the body of POST /v1/chat/completions and /v1/completions, checked, as what the
 * engine takes.
 *
 * Unknown fields are accepted (every client sends some), wrong ones refused by name, and what is
 * known but not done yet is refused rather than ignored: tool_choice "required", response_format
 * other than text, n > 1, several prompts. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include <jansson.h>

#include "api/failure.h"
#include "base/bytes.h"
#include "troika/stream.h"

typedef enum api_endpoint { API_CHAT, API_COMPLETIONS } api_endpoint;

typedef struct api_request {
  api_endpoint endpoint;
  bool stream, include_usage;
  /* Chat: JSON arrays as text, owned. Completions: text (borrowed from root) or tokens (owned). */
  char *messages, *tools;
  bool has_tokens, parse_special;
  bytes_view prompt;
  int32_t *tokens;
  uint32_t tokens_n;
  troika_request engine; /* all but the prompt; its pointers are into this struct */
  const char *stop[TROIKA_STOP_MAX];
  troika_token_bias *bias;
  json_t *root;
} api_request;

/* vocab bounds token numbers. False: `failure` says why, and *out needs no free. */
bool api_request_parse(bytes_view body, api_endpoint endpoint, uint32_t vocab, api_request *out,
                       api_failure *failure);
void api_request_free(api_request *r);

/* messages.c: checks `messages` and brings each to the shape that templates expect, in place: role
 * developer becomes system, content parts become one text, absent content becomes "", arguments of
 * tool calls become objects. */
bool api_messages_normalise(json_t *messages, api_failure *failure);

#endif
