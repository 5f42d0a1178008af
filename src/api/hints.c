/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that say who waits: OpenAI's service_tier, vLLM's priority, Dynamo's nvext, our own block
 * `troika`, and those that name a session.
 *
 * What asks for something (a class, a time, a length) is refused if it is wrong; what only names a
 * conversation is taken if it is a text and passed over else, as all kinds of things are sent
 * there. */
#include "api/json.h"
#include "api/request.h"
#include "api/resolve.h"

#define NVEXT_HINTS "nvext.agent_hints"

/* The member as an object; NULL: absent. `name` is its last part, `path` all of it. */
static bool read_object(const json_t *outer, const char *name, const char *path, const json_t **out,
                        api_failure *f) {
  const json_t *value = outer ? api_json_field(outer, name) : NULL;
  *out = value;
  return !value || json_is_object(value) || api_json_wrong(path, "an object", value, f);
}

static bytes_view text_of(const json_t *object, const char *name) {
  const json_t *value = object ? api_json_field(object, name) : NULL;
  size_t len = json_is_string(value) ? json_string_length(value) : 0;
  return len ? bytes_of(json_string_value(value), len) : bytes_of(NULL, 0);
}

/* The first of the names that is there. */
static bytes_view first_text(const json_t *object, const char *const *names) {
  bytes_view v = bytes_of(NULL, 0);
  for (; *names && !v.len; names++) v = text_of(object, *names);
  return v;
}

/* OpenAI's values, and Anthropic's standard_only. "scale" buys capacity elsewhere and
 * "standard_only" declines to pay more: neither says that nobody waits. */
static bool read_tier(api_request *r, api_failure *f) {
  static const struct {
    const char *name;
    troika_class class_;
  } tiers[] = {
      {"auto", TROIKA_CLASS_DEFAULT},
      {"default", TROIKA_CLASS_DEFAULT},
      {"flex", TROIKA_PROACTIVE},
      {"scale", TROIKA_CLASS_DEFAULT},
      {"priority", TROIKA_REACTIVE},
      {"fast", TROIKA_REACTIVE},
      {"standard_only", TROIKA_CLASS_DEFAULT},
  };
  const json_t *value = api_json_field(r->root, "service_tier");
  if (!value) return true;
  if (!json_is_string(value)) return api_json_wrong("service_tier", "a string", value, f);
  for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
    if (api_json_is(value, tiers[i].name)) {
      r->hints.tier = tiers[i].class_;
      return true;
    }
  return api_failure_set(f, "service_tier",
                         "service_tier is \"%.40s\", allowed is auto, default, flex, scale, "
                         "priority, fast, standard_only",
                         json_string_value(value));
}

static bool read_flag(const json_t *o, const char *name, bool *has, bool *out, api_failure *f) {
  *has = api_json_field(o, name) != NULL;
  return api_json_bool(o, name, out, f);
}

static bool read_own_class(const json_t *own, troika_class *out, api_failure *f) {
  const json_t *value = api_json_field(own, "class");
  if (!value) return true;
  if (!json_is_string(value)) return api_json_wrong("class", "a string", value, f);
  if (api_json_is(value, "reactive"))
    *out = TROIKA_REACTIVE;
  else if (api_json_is(value, "proactive"))
    *out = TROIKA_PROACTIVE;
  else
    return api_failure_set(f, "class", "class is \"%.40s\", allowed is reactive, proactive",
                           json_string_value(value));
  return true;
}

/* The two that have no field of a standard yet; ours wins over nvext's. */
static bool read_workflow(const json_t *o, api_hints *h, api_failure *f) {
  return api_json_integer(o, "next_use_ms", 0, API_DEADLINE_MS_MAX, &h->next_use_ms, f) &&
         api_json_integer(o, "steps_to_execution", 0, 1000000, &h->steps_to_execution, f);
}

static bool read_own(api_request *r, api_failure *f) {
  api_hints *h = &r->hints;
  const json_t *own;
  if (!read_object(r->root, "troika", "troika", &own, f)) return false;
  if (!own) return true;
  int64_t expected = h->expected_tokens;
  bool ok = read_own_class(own, &h->class_, f) &&
            api_json_integer(own, "deadline_ms", 1, API_DEADLINE_MS_MAX, &h->deadline_ms, f) &&
            api_json_integer(own, "first_deadline_ms", 1, API_DEADLINE_MS_MAX,
                             &h->first_deadline_ms, f) &&
            api_json_integer(own, "expected_tokens", 0, UINT32_MAX, &expected, f) &&
            read_workflow(own, h, f) && read_flag(own, "latest", &h->has_latest, &h->latest, f) &&
            read_flag(own, "shorten", &h->has_shorten, &h->shorten, f);
  h->expected_tokens = (uint32_t)expected;
  return ok || api_failure_inside(f, "troika");
}

static bool read_nvext(api_request *r, api_failure *f) {
  static const char *const selves[] = {"trajectory_id", "program_id", NULL};
  static const char *const parents[] = {"parent_trajectory_id", "parent_program_id",
                                        "parent_session_id", NULL};
  static const char *const sessions[] = {"session_id", "workflow_id", NULL};
  api_hints *h = &r->hints;
  const json_t *nvext, *hints, *context;
  if (!read_object(r->root, "nvext", "nvext", &nvext, f) ||
      !read_object(nvext, "agent_hints", NVEXT_HINTS, &hints, f) ||
      !read_object(nvext, "agent_context", "nvext.agent_context", &context, f))
    return false;
  int64_t expected = 0;
  if (hints) {
    h->has_urgency = api_json_field(hints, "priority") != NULL;
    if (!api_json_integer(hints, "priority", INT32_MIN, INT32_MAX, &h->urgency, f) ||
        !api_json_integer(hints, "osl", 0, UINT32_MAX, &expected, f) ||
        !api_json_bool(hints, "speculative_prefill", &h->speculative_prefill, f) ||
        !read_workflow(hints, h, f))
      return api_failure_inside(f, NVEXT_HINTS);
  }
  h->expected_tokens = (uint32_t)expected;
  h->final = context && json_is_true(json_object_get(context, "trajectory_final"));
  h->nv_session = first_text(context, sessions);
  h->nv_self = first_text(context, selves);
  h->nv_parent = first_text(context, parents);
  return true;
}

/* Who spoke last, as frameworks of several agents write it; a tool's name is no agent. */
static bytes_view last_name(const json_t *messages) {
  for (size_t i = json_array_size(messages); i-- > 0;) {
    const json_t *message = json_array_get(messages, i);
    const json_t *role = json_object_get(message, "role");
    bytes_view name = text_of(message, "name");
    if (name.len && (api_json_is(role, "user") || api_json_is(role, "assistant"))) return name;
  }
  return bytes_of(NULL, 0);
}

bool api_hints_read(api_request *r, api_failure *failure) {
  static const char *const sessions[] = {"session_id", "thread_id", "conversation_id", NULL};
  static const char *const users[] = {"safety_identifier", "user", NULL};
  api_hints *h = &r->hints;
  *h = (api_hints){.next_use_ms = -1, .steps_to_execution = -1};
  h->has_priority = api_json_field(r->root, "priority") != NULL;
  if (!api_json_integer(r->root, "priority", INT64_MIN, INT64_MAX, &h->priority, failure) ||
      !read_tier(r, failure) || !read_nvext(r, failure) || !read_own(r, failure))
    return false;
  h->cache_key = text_of(r->root, "prompt_cache_key");
  h->metadata_session = first_text(json_object_get(r->root, "metadata"), sessions);
  h->user = first_text(r->root, users);
  if (r->endpoint == API_CHAT) h->name = last_name(json_object_get(r->root, "messages"));
  return true;
}
