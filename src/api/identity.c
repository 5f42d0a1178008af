/* SPDX-License-Identifier: Apache-2.0 */
/* Whose request it is: session, parent, agent, step.
 *
 * A hash is of a name and not of the header that brought it: a child names its parent by another
 * header than the parent names itself. Where an agent shares its session's name with others (Claude
 * Code's agents, Codex' threads), the hash is of the agent's own, since a parent that waits for its
 * child and the child are two. It holds the key's scope, so two keys never share a session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "api/resolve.h"
#include "base/sha256.h"

typedef enum hash_kind { HASH_SESSION, HASH_CLIENT, HASH_SYSTEM } hash_kind;

static void add_text(sha256 *h, bytes_view v) {
  uint64_t len = v.len;
  sha256_add(h, &len, sizeof len); /* so that "ab" "c" is not "a" "bc" */
  if (v.len) sha256_add(h, v.ptr, v.len);
}

static bytes_view cut(bytes_view v) {
  return bytes_of(v.ptr, v.len < API_SIGNAL_BYTES_MAX ? v.len : API_SIGNAL_BYTES_MAX);
}

/* 0 of an empty name. */
static uint64_t hash_of(hash_kind kind, uint64_t scope, bytes_view name, bytes_view agent) {
  sha256 h;
  if (!name.len) return 0;
  sha256_begin(&h);
  sha256_add(&h, &kind, sizeof kind);
  sha256_add(&h, &scope, sizeof scope);
  add_text(&h, cut(name));
  add_text(&h, cut(agent));
  return sha256_end_number(&h);
}

static bool is_hex(bytes_view v, size_t from, size_t n, bool *zero) {
  *zero = true;
  for (size_t i = from; i < from + n; i++) {
    char c = v.ptr[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    *zero = *zero && c == '0';
  }
  return true;
}

/* "00-<32 digits>-<16 digits>-<2 digits>" of W3C's Trace Context; more may follow in a later
 * version. Malformed: nobody's. */
static bytes_view trace_of(bytes_view v) {
  bool zero, no_trace, no_parent;
  if (v.len < 55 || v.ptr[2] != '-' || v.ptr[35] != '-' || v.ptr[52] != '-' ||
      !is_hex(v, 0, 2, &zero) || !is_hex(v, 3, 32, &no_trace) || !is_hex(v, 36, 16, &no_parent) ||
      !is_hex(v, 53, 2, &zero) || no_trace || no_parent)
    return bytes_of(NULL, 0);
  return bytes_of(v.ptr + 3, 32);
}

static bytes_view first_of(const api_signals *s, const api_signal *list, size_t n) {
  bytes_view v = bytes_of(NULL, 0);
  for (size_t i = 0; i < n && !v.len; i++) v = api_signal_of(s, list[i]);
  return v;
}

static bytes_view session_name(const api_signals *s, const api_hints *h) {
  static const api_signal headers[] = {
      API_SIGNAL_CLAUDE_SESSION, API_SIGNAL_SESSION_ID,       API_SIGNAL_SESSION_ID_LOW,
      API_SIGNAL_X_SESSION_ID,   API_SIGNAL_SESSION_AFFINITY, API_SIGNAL_OPENCODE_SESSION,
      API_SIGNAL_OPENWEBUI_CHAT, API_SIGNAL_LITELLM_SESSION,  API_SIGNAL_THREAD_ID,
      API_SIGNAL_DYNAMO_SESSION, API_SIGNAL_AMP_THREAD,       API_SIGNAL_OLLA_SESSION,
      API_SIGNAL_AFFINITY,       API_SIGNAL_GROK_CONVERSATION};
  const bytes_view body[] = {h->nv_session, h->nv_self, h->cache_key, h->metadata_session, h->user};
  bytes_view v = first_of(s, headers, sizeof headers / sizeof *headers);
  for (size_t i = 0; i < sizeof body / sizeof *body && !v.len; i++) v = body[i];
  return v.len ? v : trace_of(api_signal_of(s, API_SIGNAL_TRACEPARENT));
}

/* name: of it. */
static uint64_t parent_of(const api_signals *s, const api_hints *h, bytes_view session,
                          bytes_view *name) {
  static const api_signal plain[] = {API_SIGNAL_PARENT_SESSION, API_SIGNAL_CODEX_PARENT};
  bytes_view none = bytes_of(NULL, 0);
  uint64_t scope = s->key->scope;
  *name = first_of(s, plain, sizeof plain / sizeof *plain);
  if (!name->len && session.len && api_signal_of(s, API_SIGNAL_CLAUDE_AGENT).len) {
    bytes_view agent = api_signal_of(s, API_SIGNAL_CLAUDE_PARENT);
    *name = agent.len ? agent : session;
    return hash_of(HASH_SESSION, scope, session, agent);
  }
  if (!name->len) *name = api_signal_of(s, API_SIGNAL_DYNAMO_PARENT);
  if (!name->len) *name = h->nv_parent;
  return hash_of(HASH_SESSION, scope, *name, none);
}

/* Its own name among those that share the session's; empty: the session's is its own. */
static uint64_t own_hash(const api_signals *s, const api_hints *h, bytes_view session) {
  bytes_view agent = api_signal_of(s, API_SIGNAL_CLAUDE_AGENT),
             thread = api_signal_of(s, API_SIGNAL_THREAD_ID), none = bytes_of(NULL, 0);
  uint64_t scope = s->key->scope;
  if (session.len && agent.len) return hash_of(HASH_SESSION, scope, session, agent);
  if (thread.len) return hash_of(HASH_SESSION, scope, thread, none);
  return hash_of(HASH_SESSION, scope, h->nv_self.len ? h->nv_self : session, none);
}

/* Of one agent's calls the system message and the tools stay the same. */
static void put_system_hash(const api_request *r, uint64_t scope, char out[65]) {
  const json_t *first = json_array_get(json_object_get(r->root, "messages"), 0), *tool,
               *tools = json_object_get(r->root, "tools");
  const json_t *text = json_object_get(first, "content");
  bool system = api_json_is(json_object_get(first, "role"), "system") && json_is_string(text);
  hash_kind kind = HASH_SYSTEM;
  size_t i;
  sha256 h;
  if (!system && !json_array_size(tools)) return;
  sha256_begin(&h);
  sha256_add(&h, &kind, sizeof kind);
  sha256_add(&h, &scope, sizeof scope);
  if (system) add_text(&h, bytes_of(json_string_value(text), json_string_length(text)));
  json_array_foreach(tools, i, tool) {
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    if (json_is_string(name))
      add_text(&h, bytes_of(json_string_value(name), json_string_length(name)));
  }
  snprintf(out, 65, "system-%08x", (unsigned)(sha256_end_number(&h) >> 32));
}

static void put_agent(const api_signals *s, const api_request *r, bytes_view session,
                      api_resolved *out) {
  const api_hints *h = &r->hints;
  const bytes_view candidates[] = {api_signal_of(s, API_SIGNAL_CLAUDE_AGENT),
                                   api_signal_of(s, API_SIGNAL_THREAD_ID), h->nv_self, h->name};
  for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
    if (candidates[i].len && !bytes_equal(candidates[i], session)) {
      api_clean_text(candidates[i], out->agent, sizeof out->agent);
      return;
    }
  if (r->endpoint == API_CHAT) put_system_hash(r, s->key->scope, out->agent);
}

/* Frameworks whose planner's and actor's calls differ by their stop strings or form only. */
static const char *step_of_form(const api_request *r) {
  const json_t *form = json_object_get(r->root, "response_format");
  for (uint32_t i = 0; i < r->engine.stop_n; i++) {
    if (!strcmp(r->stop[i], "<end_plan>")) return "plan";
    if (!strcmp(r->stop[i], "Observation:")) return "action";
  }
  if (api_json_is(json_object_get(json_object_get(form, "json_schema"), "name"), "LedgerEntry"))
    return "ledger";
  return "";
}

void api_resolve_identity(const api_signals *s, const api_request *r, api_resolved *out) {
  bytes_view name = session_name(s, &r->hints), agent = api_signal_of(s, API_SIGNAL_USER_AGENT),
             step = api_signal_of(s, API_SIGNAL_SUBAGENT), above;
  out->session = own_hash(s, &r->hints, name);
  out->parent = parent_of(s, &r->hints, name, &above);
  if (out->parent == out->session) out->parent = 0; /* nobody waits for himself */
  if (out->parent) api_clean_text(above, out->above, sizeof out->above);
  out->child = out->parent != 0;
  out->client = hash_of(HASH_CLIENT, s->key->scope, agent, bytes_of(NULL, 0));
  api_clean_text(name, out->stream, sizeof out->stream);
  put_agent(s, r, name, out);
  if (step.len)
    api_clean_text(step, out->step, sizeof out->step);
  else if (api_signal_of(s, API_SIGNAL_MEMGEN).len)
    snprintf(out->step, sizeof out->step, "memory");
  else
    snprintf(out->step, sizeof out->step, "%s", step_of_form(r));
}
