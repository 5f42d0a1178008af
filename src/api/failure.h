/* SPDX-License-Identifier: Apache-2.0 */
/* failure.h - why a request is refused, as OpenAI's clients read it:
 *
 *     {"error":{"message":"...","type":"invalid_request_error",
 *               "param":"messages[0].role","code":null}}
 *
 * 4xx is the client's to change; 5xx is ours, and clients repeat it, as they repeat 409 and 429,
 * unless x-should-retry says no. */
#ifndef API_FAILURE_H
#define API_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "troika/status.h"

typedef struct api_failure {
  unsigned status;
  const char *type, *code; /* literals; code may be NULL */
  char param[96];          /* "" is null */
  char message[768];
  uint32_t prompt_tokens, context; /* both set where the prompt is too long */
  unsigned retry_after_s;          /* 0: no header */
  unsigned retry_after_ms;         /* the same, finer; 0: from the seconds */
  bool no_retry;                   /* x-should-retry: false */
} api_failure;

/* 400 invalid_request_error about `param` (may be NULL). Always false, so that a check is one line.
 */
bool api_failure_set(api_failure *f, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same about a field inside `outer`: param "a" becomes "outer.a". Always false. */
bool api_failure_inside(api_failure *f, const char *outer);
/* 503: out of memory. Always false. */
bool api_failure_memory(api_failure *f);
/* 409: the request was ended by somebody else's, and asking again is of no use. Always false. */
bool api_failure_conflict(api_failure *f, const char *code, const char *text);
/* A predicted wait becomes Retry-After, 1 to 60 s; 0: not known, 1 s. */
void api_failure_retry_after(api_failure *f, int64_t wait_ns);
/* What the engine said, as a status of HTTP. */
void api_failure_of_status(api_failure *f, troika_status status, const char *text);
void api_failure_too_long(api_failure *f, const char *param, uint32_t prompt_tokens,
                          uint32_t context, bool at_least);
/* The error object, with the outer braces. */
void api_failure_write(const api_failure *f, bytes_buffer *out);
const char *api_failure_type_of(unsigned http_status);

#endif
