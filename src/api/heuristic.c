/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that a client makes beside a conversation and that nobody reads as they come: titles, tags,
 * "is this a new topic?". They say nothing about themselves, so they are told by all of this:
 *
 *   - a chat of one user's message, with at most a system message before it, no tools, one answer
 *   - it names no session, and within ten minutes the same client has sent turns that do
 *   - at most 64 tokens of answer are asked for, or the system message speaks of a title
 *
 * The same client is the same key and User-Agent. Libraries that many programs have in common do
 * not count: another program's short question would be taken for a helper's. This can only make
 * background of what is reactive since nobody said anything. */
#include <string.h>
#include <strings.h>

#include "api/json.h"
#include "api/resolve.h"

enum { SIDE_TOKENS_MAX = 64, SYSTEM_LOOK = 4096 };
static const int64_t client_ns = INT64_C(600) * 1000000000;

static bool names_itself(bytes_view agent) {
  static const char *const common[] = {
      "OpenAI/", "AsyncOpenAI/", "python-", "Python/",         "Python-", "aiohttp", "curl/",
      "node",    "undici",       "axios",   "Go-http-client/", "okhttp",  "Java",    "Mozilla/",
      "ai/",     "ai-sdk/",      "litellm", "PostmanRuntime/", "Wget/"};
  for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
    size_t n = strlen(common[i]);
    if (agent.len >= n && !strncasecmp(agent.ptr, common[i], n)) return false;
  }
  return agent.len > 0;
}

static bool holds_word(const json_t *text, const char *word) {
  const char *at = json_is_string(text) ? json_string_value(text) : "";
  size_t len = strnlen(at, SYSTEM_LOOK), n = strlen(word);
  for (; len >= n; at++, len--)
    if (!strncasecmp(at, word, n)) return true;
  return false;
}

static bool is_one_shot(const api_request *r, bool *title) {
  const json_t *messages = json_object_get(r->root, "messages"),
               *first = json_array_get(messages, 0);
  size_t n = json_array_size(messages);
  bool system = api_json_is(json_object_get(first, "role"), "system");
  const json_t *last = json_array_get(messages, n - 1);
  *title = system && holds_word(json_object_get(first, "content"), "title");
  return n == (system ? 2 : 1) && api_json_is(json_object_get(last, "role"), "user");
}

bool api_resolve_side_call(const api_resolver *resolver, const api_signals *s, const api_request *r,
                           const api_resolved *who, int64_t now_ns) {
  api_session client;
  bool title;
  if (r->endpoint != API_CHAT || r->n != 1 || r->tools || who->session || who->child ||
      api_json_field(r->root, "tools") || who->step[0] || !is_one_shot(r, &title))
    return false;
  if (!title && !(r->engine.max_tokens >= 1 && r->engine.max_tokens <= SIDE_TOKENS_MAX))
    return false;
  if (!names_itself(api_signal_of(s, API_SIGNAL_USER_AGENT))) return false;
  return who->client && api_sessions_find(resolver->sessions, who->client, &client) &&
         now_ns - client.seen_ns <= client_ns;
}
