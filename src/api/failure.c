/* SPDX-License-Identifier: Apache-2.0 */
#include "api/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/json.h"

/* Official clients take no longer wait than this. */
enum { RETRY_AFTER_MAX_MS = 60000 };

const char *api_failure_type_of(unsigned http_status) {
  if (http_status == 401) return "authentication_error";
  if (http_status == 403) return "permission_error";
  if (http_status == 404) return "not_found_error";
  if (http_status == 409) return "conflict_error";
  if (http_status == 429) return "rate_limit_error";
  return http_status < 500 ? "invalid_request_error" : "server_error";
}

bool api_failure_set(api_failure *f, const char *param, const char *format, ...) {
  va_list args;
  *f = (api_failure){.status = 400, .type = api_failure_type_of(400)};
  if (param) snprintf(f->param, sizeof f->param, "%s", param);
  va_start(args, format);
  vsnprintf(f->message, sizeof f->message, format, args);
  va_end(args);
  return false;
}

static unsigned http_status_of(troika_status status) {
  switch (status) {
    case TROIKA_INVALID:
    case TROIKA_FORMAT:
    case TROIKA_UNSUPPORTED:
    case TROIKA_LIMIT:
    case TROIKA_NOT_FOUND:
      return 400;
    case TROIKA_BUSY:
      return 429;
    case TROIKA_NO_MEMORY:
    case TROIKA_CANCELLED: /* by us: a client that went away gets no answer */
      return 503;
    case TROIKA_DEADLINE:
      return 504;
    default:
      return 500;
  }
}

void api_failure_of_status(api_failure *f, troika_status status, const char *text) {
  *f = (api_failure){.status = http_status_of(status)};
  f->type = api_failure_type_of(f->status);
  if (f->status == 429) f->code = "queue_full";
  if (f->status == 504) f->code = "deadline_exceeded";
  if (f->status == 429 || f->status == 503) f->retry_after_s = 1;
  /* It would fail again, or come too late again. */
  f->no_retry = f->status == 500 || f->status == 504;
  snprintf(f->message, sizeof f->message, "%s", text && *text ? text : troika_status_text(status));
}

bool api_failure_conflict(api_failure *f, const char *code, const char *text) {
  api_failure_set(f, NULL, "%s", text);
  f->status = 409;
  f->type = api_failure_type_of(409);
  f->code = code;
  f->no_retry = true; /* clients repeat a 409 else */
  return false;
}

void api_failure_retry_after(api_failure *f, int64_t wait_ns) {
  int64_t ms = wait_ns / 1000000;
  if (ms < 1000) ms = 1000;
  if (ms > RETRY_AFTER_MAX_MS) ms = RETRY_AFTER_MAX_MS;
  f->retry_after_ms = (unsigned)ms;
  f->retry_after_s = (unsigned)(ms + 999) / 1000;
}

bool api_failure_inside(api_failure *f, const char *outer) {
  char inner[sizeof f->param];
  memcpy(inner, f->param, sizeof inner);
  snprintf(f->param, sizeof f->param, "%.40s.%.50s", outer, inner);
  return false;
}

bool api_failure_memory(api_failure *f) {
  api_failure_of_status(f, TROIKA_NO_MEMORY, "out of memory");
  return false;
}

void api_failure_too_long(api_failure *f, const char *param, uint32_t prompt_tokens,
                          uint32_t context, bool at_least) {
  /* LangChain and LiteLLM look for "prompt is too long", and then trim. */
  api_failure_set(f, param, "the prompt is too long: it has %s%u tokens, the context holds %u",
                  at_least ? "at least " : "", prompt_tokens, context);
  f->code = "context_length_exceeded";
  f->prompt_tokens = prompt_tokens;
  f->context = context;
}

void api_failure_write(const api_failure *f, bytes_buffer *out) {
  bytes_append_string(out, "{\"error\":{\"message\":");
  api_json_put_string(out, f->message, strlen(f->message));
  bytes_append_format(out, ",\"type\":\"%s\",\"param\":", f->type);
  if (f->param[0])
    api_json_put_string(out, f->param, strlen(f->param));
  else
    bytes_append_string(out, "null");
  if (f->code)
    bytes_append_format(out, ",\"code\":\"%s\"", f->code);
  else
    bytes_append_string(out, ",\"code\":null");
  if (f->context)
    bytes_append_format(out, ",\"n_prompt_tokens\":%u,\"n_ctx\":%u", f->prompt_tokens, f->context);
  bytes_append_string(out, "}}");
}
