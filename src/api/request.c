/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's fields, and the common extensions to them, one reader per group. */
#include "api/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"

enum { TOOLS_NESTING_MAX = 100 }; /* the template's own JSON reader takes 128 */

static bool read_float(const json_t *o, const char *name, double min, double max, float *out,
                       api_failure *f) {
  double v = (double)*out;
  if (!api_json_number(o, name, min, max, &v, f)) return false;
  *out = (float)v;
  return true;
}

static bool read_sampling(api_request *r, api_failure *f) {
  const json_t *o = r->root;
  troika_request *e = &r->engine;
  int64_t top_k = 0, repeat_last = e->repeat_last, seed = 0;
  if (!read_float(o, "temperature", 0, 2, &e->temperature, f) ||
      !read_float(o, "top_p", 0, 1, &e->top_p, f) || !read_float(o, "min_p", 0, 1, &e->min_p, f) ||
      !read_float(o, "frequency_penalty", -2, 2, &e->frequency_penalty, f) ||
      !read_float(o, "presence_penalty", -2, 2, &e->presence_penalty, f) ||
      !read_float(o, "repetition_penalty", 0.01, 100, &e->repeat_penalty, f) || /* vLLM's name */
      !read_float(o, "repeat_penalty", 0.01, 100, &e->repeat_penalty, f) ||
      !api_json_integer(o, "top_k", -1, INT32_MAX, &top_k, f) ||
      !api_json_integer(o, "repeat_last_n", 0, 1 << 20, &repeat_last, f) ||
      !api_json_integer(o, "seed", INT64_MIN, INT64_MAX, &seed, f) ||
      !api_json_bool(o, "ignore_eos", &e->ignore_eos, f))
    return false;
  e->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* -1 is "off" for several clients */
  e->repeat_last = (uint32_t)repeat_last;
  e->seeded = api_json_field(o, "seed") != NULL;
  e->seed = (uint64_t)seed;
  return true;
}

/* Absent, null and -1 (which some clients send): until the context is full. */
static bool read_length(api_request *r, api_failure *f) {
  int64_t n = -1;
  if (r->endpoint == API_COMPLETIONS && !api_json_field(r->root, "max_tokens"))
    n = 16; /* OpenAI's default */
  if (!api_json_integer(r->root, "max_tokens", -1, UINT32_MAX - 1, &n, f) ||
      !api_json_integer(r->root, "max_completion_tokens", -1, UINT32_MAX - 1, &n, f))
    return false;
  r->engine.max_tokens = n < 0 ? TROIKA_MAX_TOKENS_CONTEXT : (uint32_t)n;
  return true;
}

static bool add_stop(api_request *r, const json_t *text, api_failure *f) {
  if (!json_is_string(text))
    return api_json_wrong("stop", "a string or an array of strings", text, f);
  size_t len = json_string_length(text);
  if (len == 0 || len > TROIKA_STOP_BYTES_MAX || strlen(json_string_value(text)) != len)
    return api_failure_set(f, "stop",
                           "a stop string has 1 to %d bytes and no NUL; this one has %zu",
                           TROIKA_STOP_BYTES_MAX, len);
  if (r->engine.stop_n == TROIKA_STOP_MAX)
    return api_failure_set(f, "stop", "at most %d stop strings", TROIKA_STOP_MAX);
  r->stop[r->engine.stop_n++] = json_string_value(text);
  return true;
}

static bool read_stop(api_request *r, api_failure *f) {
  const json_t *stop = api_json_field(r->root, "stop"), *text;
  size_t i;
  if (!stop) return true;
  if (!json_is_array(stop)) return add_stop(r, stop, f);
  json_array_foreach(stop, i, text) if (!add_stop(r, text, f)) return false;
  return true;
}

static bool read_bias(api_request *r, uint32_t vocab, api_failure *f) {
  json_t *map = json_object_get(r->root, "logit_bias"), *value;
  const char *key;
  if (!map || json_is_null(map)) return true;
  if (!json_is_object(map)) return api_json_wrong("logit_bias", "an object", map, f);
  size_t n = json_object_size(map);
  if (n > TROIKA_BIAS_MAX)
    return api_failure_set(f, "logit_bias", "logit_bias has %zu tokens, at most %d", n,
                           TROIKA_BIAS_MAX);
  if (n == 0) return true;
  if (!(r->bias = calloc(n, sizeof *r->bias))) return api_failure_memory(f);
  json_object_foreach(map, key, value) {
    char *end;
    errno = 0;
    long token = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end || errno || token >= (long)vocab)
      return api_failure_set(f, "logit_bias", "logit_bias: a key is not a token number below %u",
                             vocab);
    double bias = json_is_number(value) ? json_number_value(value) : 1000;
    if (!(bias >= -100 && bias <= 100))
      return api_failure_set(f, "logit_bias",
                             "logit_bias of token %ld must be a number from -100 to 100", token);
    r->bias[r->engine.bias_n++] = (troika_token_bias){(int32_t)token, (float)bias};
  }
  r->engine.bias = r->bias;
  return true;
}

static bool read_logprobs(api_request *r, api_failure *f) {
  int64_t top = 0;
  if (r->endpoint == API_COMPLETIONS) {
    const json_t *value = api_json_field(r->root, "logprobs");
    if (!value || json_is_false(value)) return true;
    if (!api_json_integer(r->root, "logprobs", 0, TROIKA_TOP_MAX, &top, f)) return false;
    r->engine.logprobs = true;
  } else {
    if (!api_json_bool(r->root, "logprobs", &r->engine.logprobs, f) ||
        !api_json_integer(r->root, "top_logprobs", 0, TROIKA_TOP_MAX, &top, f))
      return false;
    if (top && !r->engine.logprobs)
      return api_failure_set(f, "top_logprobs", "top_logprobs needs logprobs to be true");
  }
  r->engine.top_logprobs = (uint32_t)top;
  return true;
}

static bool read_streaming(api_request *r, api_failure *f) {
  if (!api_json_bool(r->root, "stream", &r->stream, f)) return false;
  const json_t *options = api_json_field(r->root, "stream_options");
  if (!options) return true;
  if (!json_is_object(options)) return api_json_wrong("stream_options", "an object", options, f);
  return api_json_bool(options, "include_usage", &r->include_usage, f) ||
         api_failure_inside(f, "stream_options");
}

/* Known, but not done yet: refused, so that nobody believes it was honoured. */
static bool check_unsupported(const api_request *r, api_failure *f) {
  int64_t best = 1;
  const json_t *model = api_json_field(r->root, "model");
  if (model && !json_is_string(model)) return api_json_wrong("model", "a string", model, f);
  if (!api_json_integer(r->root, "best_of", 1, API_CHOICES_MAX, &best, f)) return false;
  if (best > r->n)
    return api_failure_set(f, "best_of", "best_of above n is not supported: n is %u", r->n);
  if (r->endpoint == API_CHAT) return true;
  const json_t *suffix = api_json_field(r->root, "suffix");
  if (suffix && !json_is_string(suffix)) return api_json_wrong("suffix", "a string", suffix, f);
  if (json_string_length(suffix))
    return api_failure_set(f, "suffix", "suffix is not supported: this model only goes on");
  if (r->echo && r->engine.logprobs)
    return api_failure_set(f, "echo", "echo together with logprobs is not supported");
  return true;
}

static bool read_count(api_request *r, api_failure *f) {
  int64_t n = 1;
  if (!api_json_integer(r->root, "n", 1, API_CHOICES_MAX, &n, f)) return false;
  r->n = (uint32_t)n;
  return r->endpoint == API_CHAT || api_json_bool(r->root, "echo", &r->echo, f);
}

static bool check_tools(const json_t *tools, api_failure *f) {
  size_t i;
  const json_t *tool;
  json_array_foreach(tools, i, tool) {
    char at[32];
    snprintf(at, sizeof at, "tools[%zu]", i);
    const json_t *function = json_object_get(tool, "function");
    if (!api_json_is(json_object_get(tool, "type"), "function") ||
        !json_is_string(json_object_get(function, "name")))
      return api_failure_set(
          f, at, "%s must be an object of type \"function\" that has a function with a name", at);
  }
  return true;
}

static bool read_tools(api_request *r, api_failure *f) {
  const json_t *tools = api_json_field(r->root, "tools"),
               *choice = api_json_field(r->root, "tool_choice");
  if (tools && !json_is_array(tools)) return api_json_wrong("tools", "an array", tools, f);
  if (!check_tools(tools, f)) return false;
  bool none = api_json_is(choice, "none");
  if (choice && !none && !api_json_is(choice, "auto"))
    return api_failure_set(f, "tool_choice", "tool_choice can be \"auto\" or \"none\" so far");
  if (none || !json_array_size(tools)) return true;
  if (r->constrained)
    return api_failure_set(f, "response_format",
                           "response_format together with tools is not supported: give tool_choice "
                           "\"none\", or no tools");
  if (!api_json_shallow(tools, TOOLS_NESTING_MAX))
    return api_failure_set(f, "tools", "tools is nested deeper than %d levels", TOOLS_NESTING_MAX);
  return (r->tools = json_dumps(tools, JSON_COMPACT)) || api_failure_memory(f);
}

static bool read_messages(api_request *r, api_failure *f) {
  json_t *messages = json_object_get(r->root, "messages");
  if (!api_messages_normalise(messages, &r->continues, f)) return false;
  if (!(r->messages = json_dumps(messages, JSON_COMPACT))) return api_failure_memory(f);
  r->prompts_n = 1;
  return read_tools(r, f);
}

bool api_request_read(json_t *root, api_endpoint endpoint, uint32_t vocab, api_request *out,
                      api_failure *failure) {
  api_request *r = out;
  *r = (api_request){.endpoint = endpoint, .root = root};
  troika_request_init(&r->engine);
  r->engine.stop = r->stop;
  bool ok = read_sampling(r, failure) && read_length(r, failure) && read_stop(r, failure) &&
            read_bias(r, vocab, failure) && read_logprobs(r, failure) &&
            read_streaming(r, failure) && read_count(r, failure) && check_unsupported(r, failure) &&
            api_format_read(r, failure);
  if (ok)
    ok = endpoint == API_CHAT ? read_messages(r, failure)
                              : api_prompts_read(r, "prompt", vocab, failure);
  ok = ok && api_hints_read(r, failure); /* of messages as they are now */
  if (!ok) api_request_free(r);
  return ok;
}

bool api_request_parse(bytes_view body, api_endpoint endpoint, uint32_t vocab, api_request *out,
                       api_failure *failure) {
  json_t *root = api_json_parse(body, failure);
  *out = (api_request){.endpoint = endpoint};
  return root && api_request_read(root, endpoint, vocab, out, failure);
}

void api_request_free(api_request *r) {
  free(r->messages);
  free(r->tools);
  for (uint32_t i = 0; i < r->prompts_n && r->prompts; i++) free(r->prompts[i].tokens);
  free(r->prompts);
  free(r->grammar);
  free(r->bias);
  json_decref(r->root);
  *r = (api_request){0};
}
