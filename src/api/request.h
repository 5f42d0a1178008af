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

/* What the body says about who waits for the answer; resolve.h makes sense of it. Texts are
 * borrowed from root; {NULL, 0}: absent. */
typedef struct api_hints {
  troika_class class_;                    /* troika.class; DEFAULT: absent */
  bool has_priority, has_urgency;         /* which of the two integers there are */
  int64_t priority;                       /* vLLM's `priority`: lower first */
  int64_t urgency;                        /* nvext.agent_hints.priority: higher first */
  troika_class tier;                      /* what service_tier asks for; DEFAULT: nothing */
  int64_t deadline_ms, first_deadline_ms; /* troika's; 0: none */
  uint32_t expected_tokens; /* troika.expected_tokens, else nvext.agent_hints.osl; 0 */
  int64_t next_use_ms, steps_to_execution; /* troika's, else nvext.agent_hints'; -1 */
  bool has_latest, latest, has_shorten, shorten;
  bool speculative_prefill, final; /* nvext.agent_hints; nvext.agent_context.trajectory_final */
  bytes_view nv_session, nv_self, nv_parent;          /* nvext.agent_context */
  bytes_view cache_key, metadata_session, user, name; /* name: the last one in messages */
} api_hints;

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
  api_hints hints;
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

/* hints.c: into r->hints. */
bool api_hints_read(api_request *r, api_failure *failure);

/* format.c: `response_format` and its grammar. */
bool api_format_read(api_request *r, api_failure *failure);

#endif
