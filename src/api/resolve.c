/* SPDX-License-Identifier: Apache-2.0 */
/* Class, times and hints of a request, and the counting of what is open. */
#include "api/resolve.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/json.h"
#include "base/clock.h"
#include "base/sha256.h"

static const int64_t ns_per_ms = 1000000;

static bool is_word(bytes_view v, const char *word) {
  return v.len == strlen(word) && !strncasecmp(v.ptr, word, v.len);
}

/* One of our own headers is wrong; others' are passed over. Always false. */
static bool refuse(const api_signals *s, api_signal which, const char *allowed, api_failure *f) {
  char text[65];
  const char *name = api_signal_name(which);
  api_clean_text(api_signal_of(s, which), text, sizeof text);
  return api_failure_set(f, name, "%s is \"%s\", allowed is %s", name, text, allowed);
}

/* A whole number in decimal digits. False: it is none, or above max. */
static bool whole_number(bytes_view v, int64_t max, int64_t *out) {
  int64_t n = 0;
  if (!v.len) return false;
  for (size_t i = 0; i < v.len; i++) {
    if (v.ptr[i] < '0' || v.ptr[i] > '9') return false;
    n = n * 10 + (v.ptr[i] - '0');
    if (n > max) return false;
  }
  *out = n;
  return true;
}

#define HINTED_GRACE_NS INT64_C(1000000000)

/* "600", "59.5": seconds as nanoseconds. 0: it is no such number, or absurd. */
static int64_t seconds_of(bytes_view v) {
  int64_t whole = 0, ns = 0, unit = 100000000;
  const char *dot = memchr(v.ptr ? v.ptr : "", '.', v.len);
  size_t n = dot ? (size_t)(dot - v.ptr) : v.len;
  if (!whole_number(bytes_of(v.ptr, n), API_DEADLINE_MS_MAX / 1000, &whole)) return 0;
  for (size_t i = n + 1; i < v.len; i++, unit /= 10) {
    if (v.ptr[i] < '0' || v.ptr[i] > '9') return 0;
    ns += (v.ptr[i] - '0') * unit;
  }
  ns += whole * 1000 * ns_per_ms;
  return ns <= API_DEADLINE_MS_MAX * ns_per_ms ? ns : 0;
}

typedef struct verdict {
  troika_class class_;
  const char *by;
  bool lasts; /* it speaks of the client's turns, not only of this one's step */
} verdict;

static bool class_header(const api_signals *s, troika_class *out, api_failure *f) {
  bytes_view v = api_signal_of(s, API_SIGNAL_TROIKA_CLASS);
  *out = is_word(v, "reactive")    ? TROIKA_REACTIVE
         : is_word(v, "proactive") ? TROIKA_PROACTIVE
                                   : TROIKA_CLASS_DEFAULT;
  return *out || !v.len || refuse(s, API_SIGNAL_TROIKA_CLASS, "reactive, proactive", f);
}

static troika_class class_of_sign(int64_t urgency) {
  return urgency > 0 ? TROIKA_REACTIVE : urgency < 0 ? TROIKA_PROACTIVE : TROIKA_CLASS_DEFAULT;
}

static troika_class background_if(bool b) {
  return b ? TROIKA_PROACTIVE : TROIKA_CLASS_DEFAULT;
}

/* What the request itself says; the first that says something. DEFAULT: nothing does. */
static bool explicit_class(const api_signals *s, const api_hints *h, verdict *out, api_failure *f) {
  troika_class header;
  if (!class_header(s, &header, f)) return false;
  bytes_view step = api_signal_of(s, API_SIGNAL_SUBAGENT);
  bool chore = is_word(step, "memory_consolidation") || is_word(step, "compact");
  int64_t urgency = h->priority < 0 ? 1 : h->priority > 0 ? -1 : 0; /* INT64_MIN has no negative */
  const verdict order[] = {
      {header, "x-troika-class", true},
      {h->class_, "troika.class", true},
      {class_of_sign(urgency), "priority", true},
      {class_of_sign(h->urgency), "nvext.agent_hints.priority", true},
      {h->tier, "service_tier", true},
      {background_if(is_word(api_signal_of(s, API_SIGNAL_APP), "cli-bg")), "x-app", false},
      {background_if(chore), "x-openai-subagent", false},
      {background_if(is_word(api_signal_of(s, API_SIGNAL_MEMGEN), "true")),
       "x-openai-memgen-request", false},
  };
  for (size_t i = 0; i < sizeof order / sizeof *order; i++)
    if (order[i].class_ != TROIKA_CLASS_DEFAULT) {
      *out = order[i];
      return true;
    }
  return true;
}

/* Of a request that says nothing itself. */
static verdict implied_class(const api_resolver *resolver, const api_signals *s,
                             const api_request *r, const api_resolved *who, int64_t now_ns) {
  api_session session = {0};
  if (who->child) return (verdict){TROIKA_INHERITED, "parent", false};
  api_sessions_find(resolver->sessions, who->session, &session);
  if (session.said) return (verdict){session.said, "session", false};
  if (s->background) return (verdict){TROIKA_PROACTIVE, "path", false};
  if (s->key->rules.class_) return (verdict){s->key->rules.class_, "key", false};
  if (resolver->default_class == TROIKA_PROACTIVE)
    return (verdict){TROIKA_PROACTIVE, "default", false};
  if (!resolver->no_heuristics && api_resolve_side_call(resolver, s, r, who, now_ns))
    return (verdict){TROIKA_PROACTIVE, "heuristic", false};
  return (verdict){TROIKA_REACTIVE, "default", false};
}

static void set_class(api_resolved *out, troika_class class_, bool asked) {
  out->class_ = class_;
  out->tier = class_ == TROIKA_PROACTIVE           ? "flex"
              : class_ == TROIKA_REACTIVE && asked ? "priority"
                                                   : "default";
}

static bool resolve_class(const api_resolver *resolver, const api_signals *s, const api_request *r,
                          int64_t now_ns, api_resolved *out, api_failure *f) {
  const api_hints *h = &r->hints;
  verdict v = {TROIKA_CLASS_DEFAULT, "", false};
  if (!explicit_class(s, h, &v, f)) return false;
  if (v.lasts) out->said = v.class_;
  if (!v.class_) v = implied_class(resolver, s, r, out, now_ns);
  out->decided_by = v.by;
  out->may_react = s->key->rules.may_react;
  out->has_priority = h->has_priority || h->has_urgency;
  out->priority = h->has_priority ? h->priority : h->urgency;
  out->capped = s->key->rules.capped && v.class_ != TROIKA_PROACTIVE;
  set_class(out, out->capped ? TROIKA_PROACTIVE : v.class_, out->said != TROIKA_CLASS_DEFAULT);
  return true;
}

/* A header of ours, else the body's field. */
static bool deadline(const api_signals *s, api_signal which, int64_t field_ms, int64_t *ns,
                     api_failure *f) {
  bytes_view v = api_signal_of(s, which);
  int64_t ms = field_ms;
  if (v.len && (!whole_number(v, API_DEADLINE_MS_MAX, &ms) || ms < 1))
    return refuse(s, which, "a whole number of milliseconds, 1 to 86400000", f);
  *ns = ms * ns_per_ms;
  return true;
}

/* What has passed since the request arrived is gone; one that is over fails at once, by 1 ns. */
static int64_t remaining(int64_t ns, int64_t passed_ns) {
  if (!ns || passed_ns < 0) return ns;
  return ns > passed_ns ? ns - passed_ns : 1;
}

static bool resolve_times(const api_signals *s, const api_request *r, int64_t now_ns,
                          api_resolved *out, api_failure *f) {
  const api_hints *h = &r->hints;
  int64_t done, first, passed = s->received_ns ? now_ns - s->received_ns : 0;
  if (!deadline(s, API_SIGNAL_TROIKA_DEADLINE, h->deadline_ms, &done, f) ||
      !deadline(s, API_SIGNAL_TROIKA_FIRST_DEADLINE, h->first_deadline_ms, &first, f))
    return false;
  /* How long a client waits for bytes: of a stream that is between any two of them. Its own
   * time-out comes first. */
  if (!done && !r->stream) {
    done = seconds_of(api_signal_of(s, API_SIGNAL_READ_TIMEOUT));
    out->deadline_hinted = done != 0;
    if (done) done += HINTED_GRACE_NS;
  }
  out->done_deadline_ns = remaining(done, passed);
  out->first_deadline_ns = remaining(first, passed);
  out->deadline_ms = done / ns_per_ms;
  out->first_deadline_ms = first / ns_per_ms;
  return true;
}

static bool flag(const api_signals *s, api_signal which, bool has, bool field, bool *out,
                 api_failure *f) {
  bytes_view v = api_signal_of(s, which);
  *out = has && field;
  if (is_word(v, "1") || is_word(v, "true")) return *out = true, true;
  if (is_word(v, "0") || is_word(v, "false")) return *out = false, true;
  return !v.len || refuse(s, which, "1, 0, true, false", f);
}

static bool resolve_hints(const api_signals *s, const api_request *r, api_resolved *out,
                          api_failure *f) {
  const api_hints *h = &r->hints;
  int64_t retries = 0;
  whole_number(api_signal_of(s, API_SIGNAL_RETRY_COUNT), 1000000, &retries);
  out->retry_count = (uint32_t)retries;
  /* Nobody can expect more than he allows. */
  out->expected_tokens =
      h->expected_tokens < r->engine.max_tokens ? h->expected_tokens : r->engine.max_tokens;
  out->next_use_ms = h->next_use_ms;
  out->steps_to_execution = h->steps_to_execution;
  out->speculative_prefill = h->speculative_prefill;
  bytes_view final = api_signal_of(s, API_SIGNAL_DYNAMO_FINAL);
  out->session_final = h->final || is_word(final, "true") || is_word(final, "1");
  if (!flag(s, API_SIGNAL_TROIKA_LATEST, h->has_latest, h->latest, &out->latest_only, f) ||
      !flag(s, API_SIGNAL_TROIKA_SHORTEN, h->has_shorten, h->shorten, &out->shortenable, f))
    return false;
  if (out->latest_only && !out->session)
    return api_failure_set(f, api_signal_name(API_SIGNAL_TROIKA_LATEST),
                           "x-troika-latest replaces what waits of the same session, and this "
                           "request names none: send X-Session-Id, for instance");
  return true;
}

static void make_digest(const char *path, uint64_t scope, bytes_view body, char out[65]) {
  sha256 h;
  bool background;
  const char *route = api_path_route(path, &background);
  sha256_begin(&h);
  sha256_add(&h, route, strlen(route) + 1); /* with its NUL, as an end */
  sha256_add(&h, &scope, sizeof scope);
  sha256_add(&h, body.ptr, body.len);
  sha256_end(&h, out);
}

bool api_resolve(const api_resolver *resolver, const api_signals *s, const char *path,
                 bytes_view body, const api_request *r, api_resolved *out, api_failure *failure) {
  int64_t now_ns = clock_real_now(NULL);
  *out = (api_resolved){.scope = resolver->share_cache ? 0 : s->key->scope};
  api_resolve_identity(s, r, out);
  make_digest(path, s->key->scope, body, out->digest);
  return resolve_class(resolver, s, r, now_ns, out, failure) &&
         resolve_times(s, r, now_ns, out, failure) && resolve_hints(s, r, out, failure);
}

void api_resolved_apply(const api_resolved *resolved, troika_request *engine) {
  engine->class_ = resolved->class_;
  engine->child = resolved->child;
  engine->may_react = resolved->may_react;
  engine->session = resolved->session;
  engine->parent = resolved->parent;
  engine->first_deadline_ns = resolved->first_deadline_ns;
  engine->done_deadline_ns = resolved->done_deadline_ns;
  engine->deadline_hinted = resolved->deadline_hinted;
  engine->expected_tokens = resolved->expected_tokens;
  engine->shortenable = resolved->shortenable;
  /* For the engine 0 is "not known"; no step before it is "at once". */
  int64_t next_ms = resolved->next_use_ms, steps = resolved->steps_to_execution;
  bool at_once = next_ms == 0 || (next_ms < 0 && steps == 0);
  engine->next_use_ns = at_once ? 1 : next_ms > 0 ? next_ms * 1000000 : 0;
  engine->next_steps = steps > 0 ? (uint32_t)steps : 0;
  engine->last_turn = resolved->session_final;
  engine->cache_scope = resolved->scope;
}

static void put_name(const char *name, const char *text, bytes_buffer *out) {
  if (!*text) return;
  bytes_append_format(out, ",\"%s\":", name);
  api_json_put_string(out, text, strlen(text));
}

static void put_number(const char *name, int64_t value, bytes_buffer *out) {
  bytes_append_format(out, ",\"%s\":%lld", name, (long long)value);
}

void api_resolved_put_names(const api_resolved *who, bytes_buffer *out) {
  put_name("session", who->stream, out);
  put_name("agent", who->agent, out);
  put_name("step", who->step, out);
}

void api_resolved_put(const api_resolved *who, bytes_buffer *out) {
  put_name("parent", who->above, out);
  if (who->deadline_ms) put_number("deadline_ms", who->deadline_ms, out);
  if (who->first_deadline_ms) put_number("first_deadline_ms", who->first_deadline_ms, out);
  if (who->expected_tokens) put_number("expected_tokens", who->expected_tokens, out);
  if (who->next_use_ms >= 0) put_number("next_use_ms", who->next_use_ms, out);
  if (who->steps_to_execution >= 0) put_number("steps_to_execution", who->steps_to_execution, out);
  if (who->session_final) bytes_append_string(out, ",\"final\":true");
  if (who->shortenable) bytes_append_string(out, ",\"shorten\":true");
}

bool api_key_begin(const api_resolver *resolver, const api_signals *s, api_resolved *resolved,
                   uint32_t answers, api_key_hold *out, api_failure *failure) {
  uint32_t max = s->key->rules.max;
  int64_t now_ns = clock_real_now(NULL);
  bool reactive = resolved->class_ != TROIKA_PROACTIVE; /* a child's may become so at any time */
  *out = (api_key_hold){.resolver = resolver};
  if (max && answers > max)
    return api_failure_set(failure, "n", "%u answers are asked for: this API key may have %u open",
                           answers, max);
  if (!api_access_count(resolver->access, s->key, answers, reactive, &out->count)) {
    api_failure_of_status(failure, TROIKA_BUSY, "");
    snprintf(failure->message, sizeof failure->message,
             "this API key has as many answers open as it may: %u", max);
    failure->code = "key_limit";
    return false;
  }
  if (reactive && !out->count.reactive) {
    resolved->capped = true;
    set_class(resolved, TROIKA_PROACTIVE, true);
  }
  if (api_sessions_begin(resolver->sessions, resolved->session, resolved->said, now_ns))
    out->session = resolved->session;
  if (resolved->session)
    api_sessions_note(resolver->sessions, resolved->client, TROIKA_CLASS_DEFAULT, now_ns);
  return true;
}

bool api_key_change(api_key_hold *hold, troika_class class_) {
  bool reactive = class_ != TROIKA_PROACTIVE;
  if (!hold->resolver || !api_access_recount(hold->resolver->access, &hold->count, reactive))
    return false;
  if (class_ == TROIKA_INHERITED) class_ = TROIKA_CLASS_DEFAULT; /* nobody says so */
  api_sessions_note(hold->resolver->sessions, hold->session, class_, clock_real_now(NULL));
  return true;
}

void api_key_end(api_key_hold *hold) {
  if (!hold->resolver || !api_access_uncount(hold->resolver->access, &hold->count)) return;
  api_sessions_end(hold->resolver->sessions, hold->session, clock_real_now(NULL));
}
