/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as clients send them, to messages as templates want them. */
#include <stdio.h>
#include <string.h>

#include "api/json.h"
#include "api/request.h"

/* The template's own JSON reader takes 128 levels; ours are one deeper. */
enum { NESTING_MAX = 100 };

static bool known_role(const char *role, size_t len) {
  static const char *const roles[] = {"system",    "developer", "user",
                                      "assistant", "tool",      "function"};
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
    if (strlen(roles[i]) == len && !memcmp(role, roles[i], len))
      return true; /* len: no NUL hides a tail */
  return false;
}

/* [{"type":"text","text":"a"}, "b"] -> "ab". */
static bool join_parts(const json_t *parts, const char *at, bytes_buffer *out,
                       api_failure *failure) {
  size_t i;
  const json_t *part;
  json_array_foreach(parts, i, part) {
    const json_t *text = json_is_object(part) ? api_json_field(part, "text") : part;
    const char *type =
        json_is_object(part) ? json_string_value(api_json_field(part, "type")) : "text";
    char name[96];
    snprintf(name, sizeof name, "%.60s[%zu]", at, i);
    if (!type) return api_failure_set(failure, name, "%s needs a type", name);
    bool refusal = !strcmp(type, "refusal");
    if (strcmp(type, "text") && strcmp(type, "input_text") && strcmp(type, "output_text") &&
        !refusal)
      return api_failure_set(failure, name, "%s is of type \"%.40s\": this model reads only text",
                             name, type);
    if (refusal) text = api_json_field(part, "refusal");
    if (!json_is_string(text)) return api_failure_set(failure, name, "%s needs a text", name);
    bytes_append(out, json_string_value(text), json_string_length(text));
  }
  return true;
}

static bool normalise_content(json_t *message, const char *at, bool needed, api_failure *failure) {
  const json_t *content = api_json_field(message, "content");
  char name[96];
  snprintf(name, sizeof name, "%.60s.content", at);
  if (json_is_string(content)) return true;
  if (!content && needed) return api_failure_set(failure, name, "%s is missing", name);
  if (content && !json_is_array(content))
    return api_json_wrong(name, "a string or an array of parts", content, failure);
  bytes_buffer text;
  bytes_init(&text, 64 * 1024 * 1024);
  bytes_append(&text, "", 0);
  bool ok = !content || join_parts(content, name, &text, failure);
  if (ok &&
      (text.failed || json_object_set_new(message, "content", json_stringn(text.data, text.len))))
    ok = api_failure_set(failure, name, "%s is too large", name);
  bytes_free(&text);
  return ok;
}

/* On the wire arguments are a string of JSON; templates want the object. Empty or null is {}. */
static bool normalise_arguments(json_t *function, const char *at, api_failure *failure) {
  json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL;
  if (json_is_object(arguments)) return true;
  if (!arguments || json_is_null(arguments) ||
      (json_is_string(arguments) && !json_string_length(arguments)))
    parsed = json_object();
  else if (json_is_string(arguments))
    parsed = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL,
                        NULL);
  if (!json_is_object(parsed)) {
    json_decref(parsed);
    return api_failure_set(failure, at, "%s must be a string that holds a JSON object", at);
  }
  return !json_object_set_new(function, "arguments", parsed) ||
         api_failure_set(failure, at, "out of memory");
}

static bool normalise_tool_calls(json_t *message, const char *at, api_failure *failure) {
  json_t *calls = json_object_get(message, "tool_calls"), *call;
  char name[96];
  size_t i;
  if (!calls || json_is_null(calls)) {
    json_object_del(message, "tool_calls");
    return true;
  }
  if (!json_is_array(calls)) {
    snprintf(name, sizeof name, "%.60s.tool_calls", at);
    return api_json_wrong(name, "an array", calls, failure);
  }
  json_array_foreach(calls, i, call) {
    snprintf(name, sizeof name, "%.40s.tool_calls[%zu].function.arguments", at, i);
    json_t *function = json_object_get(call, "function");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
      return api_failure_set(failure, name, "%.40s.tool_calls[%zu] needs a function with a name",
                             at, i);
    if (json_is_null(json_object_get(call, "id"))) json_object_del(call, "id");
    if (!normalise_arguments(function, name, failure)) return false;
  }
  return true;
}

static bool is_prefill(const json_t *message) {
  return api_json_is(json_object_get(message, "role"), "assistant") &&
         !json_object_get(message, "tool_calls");
}

/* A last message of the assistant is gone on with. After another one of the assistant it would be
 * anybody's guess where one ends and the other begins. */
static bool find_prefill(const json_t *messages, bool *continues, api_failure *failure) {
  size_t n = json_array_size(messages);
  char at[64];
  *continues = is_prefill(json_array_get(messages, n - 1));
  if (!*continues || n < 2 ||
      !api_json_is(json_object_get(json_array_get(messages, n - 2), "role"), "assistant"))
    return true;
  snprintf(at, sizeof at, "messages[%zu]", n - 1);
  return api_failure_set(
      failure, at,
      "the last two messages are of role assistant: the last one is continued, so "
      "what comes before it must be of another role");
}

bool api_messages_normalise(json_t *messages, bool *continues, api_failure *failure) {
  size_t i;
  json_t *message;
  if (!json_is_array(messages)) return api_json_wrong("messages", "an array", messages, failure);
  if (json_array_size(messages) == 0)
    return api_failure_set(failure, "messages", "messages is empty");
  json_array_foreach(messages, i, message) {
    char at[64], name[96];
    snprintf(at, sizeof at, "messages[%zu]", i);
    snprintf(name, sizeof name, "%s.role", at);
    if (!json_is_object(message)) return api_json_wrong(at, "an object", message, failure);
    const json_t *role_value = api_json_field(message, "role");
    if (!json_is_string(role_value)) return api_json_wrong(name, "a string", role_value, failure);
    const char *role = json_string_value(role_value);
    if (!known_role(role, json_string_length(role_value)))
      return api_failure_set(
          failure, name,
          "%s is \"%.40s\": known are system, developer, user, assistant, tool, function", name,
          role);
    bool assistant = !strcmp(role, "assistant");
    if (!strcmp(role, "developer")) json_object_set_new(message, "role", json_string("system"));
    if (json_is_null(json_object_get(message, "tool_call_id")))
      json_object_del(message, "tool_call_id");
    if (json_is_null(json_object_get(message, "name"))) json_object_del(message, "name");
    if (!normalise_content(message, at, !assistant, failure) ||
        !normalise_tool_calls(message, at, failure))
      return false;
    if (!api_json_shallow(message, NESTING_MAX))
      return api_failure_set(failure, at, "%s is nested deeper than %d levels", at, NESTING_MAX);
  }
  return find_prefill(messages, continues, failure);
}

char *api_messages_fold(const json_t *messages) {
  const json_t *system = json_array_get(messages, 0), *user = json_array_get(messages, 1);
  if (!api_json_is(json_object_get(system, "role"), "system") ||
      !api_json_is(json_object_get(user, "role"), "user"))
    return NULL;
  const json_t *a = json_object_get(system, "content"), *b = json_object_get(user, "content");
  bytes_buffer text;
  bytes_init(&text, 64 * 1024 * 1024);
  bytes_append(&text, json_string_value(a), json_string_length(a));
  bytes_append_string(&text, "\n\n");
  bytes_append(&text, json_string_value(b), json_string_length(b));
  json_t *copy = json_copy((json_t *)(uintptr_t)messages), *first = json_deep_copy(user);
  char *out = NULL;
  if (copy && first && !text.failed &&
      !json_object_set_new(first, "content", json_stringn(text.data, text.len)) &&
      !json_array_remove(copy, 0) && !json_array_set(copy, 0, first))
    out = json_dumps(copy, JSON_COMPACT);
  json_decref(first);
  json_decref(copy);
  bytes_free(&text);
  return out;
}
