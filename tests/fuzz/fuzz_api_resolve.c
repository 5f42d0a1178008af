/* SPDX-License-Identifier: Apache-2.0 */
/* Any headers and body: what is resolved is in its range and fit for a header and a log line, and
 * nothing stays counted. Lines "NAME: VALUE", or a first byte of "!" for the path /bg, a blank
 * line, the body.
 *
 *   build/fuzz/tests/fuzz_api_resolve NEW_INPUTS tests/fuzz/corpus/api_resolve */
#include <stdlib.h>
#include <string.h>

#include "api/resolve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static api_resolver resolver;

static void expect(bool holds) {
  if (!holds) abort();
}

static void check_text(const char *text, size_t size) {
  expect(memchr(text, 0, size) != NULL);
  for (; *text; text++) expect(*text >= ' ' && *text <= '~' && *text != '"' && *text != '\\');
}

static void check_resolved(const api_resolved *w) {
  const int64_t most = API_DEADLINE_MS_MAX * INT64_C(1000000);
  expect(w->class_ >= TROIKA_REACTIVE && w->class_ <= TROIKA_INHERITED);
  expect(w->class_ != TROIKA_INHERITED || w->child);
  expect(w->child == (w->parent != 0) && (!w->parent || w->parent != w->session));
  expect(w->decided_by && *w->decided_by && w->tier && *w->tier);
  expect(w->done_deadline_ns >= 0 && w->done_deadline_ns <= most);
  expect(w->first_deadline_ns >= 0 && w->first_deadline_ns <= most);
  expect(!w->latest_only || w->session);
  check_text(w->stream, sizeof w->stream);
  check_text(w->agent, sizeof w->agent);
  check_text(w->step, sizeof w->step);
}

static void take_line(api_signals *s, const char *line, size_t len) {
  const char *colon = memchr(line, ':', len);
  if (!colon) return;
  size_t n = (size_t)(colon - line);
  for (int i = 0; i < API_SIGNALS; i++) {
    const char *name = api_signal_name((api_signal)i);
    if (strlen(name) == n && !memcmp(name, line, n))
      api_signals_set(s, (api_signal)i, bytes_of(colon + 1, len - n - 1));
  }
}

static void run(api_signals *s, bytes_view body) {
  api_request r;
  api_failure f;
  api_resolved who;
  api_key_hold hold;
  uint32_t answers, reactive;
  if (!api_request_parse(body, API_CHAT, 1000, &r, &f)) return;
  if (api_resolve(&resolver, s, "/v1/chat/completions", body, &r, &who, &f)) {
    check_resolved(&who);
    bool open = api_key_begin(&resolver, s, &who, r.n * r.prompts_n, &hold, &f);
    check_resolved(&who);
    api_resolved_apply(&who, &r.engine);
    if (open && who.class_ == TROIKA_PROACTIVE) api_key_change(&hold, TROIKA_REACTIVE);
    api_key_end(&hold);
    api_access_open_now(resolver.access, s->key, &answers, &reactive);
    expect(answers == 0 && reactive == 0);
  } else {
    expect(f.status == 400 && f.message[0] && f.param[0]);
  }
  api_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  troika_error err;
  if (!resolver.access) { /* once: leaks nothing, lives to the end */
    expect(!api_access_open("one reactive-max=2 max=64\ntwo cap=proactive", NULL, &resolver.access,
                            &err));
    expect(!api_sessions_open(64, &resolver.sessions, &err));
  }
  api_signals s = {0};
  const char *at = (const char *)data, *end = at + len;
  bytes_init(&s.text, (size_t)API_SIGNALS * API_SIGNAL_BYTES_MAX * 4);
  s.background = len && *at == '!';
  s.key = api_access_find(resolver.access, bytes_of_string(len % 2 ? "Bearer one" : "Bearer two"));
  while (at < end) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    size_t n = stop ? (size_t)(stop - at) : (size_t)(end - at);
    const char *line = at;
    at += n + (stop != NULL);
    if (n == 0) break;
    take_line(&s, line, n);
  }
  if (!s.text.failed) run(&s, bytes_of(at, (size_t)(end - at)));
  api_signals_free(&s);
  return 0;
}
