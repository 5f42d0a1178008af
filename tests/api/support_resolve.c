/* SPDX-License-Identifier: Apache-2.0 */
#include "api/support_resolve.h"

#include <stdio.h>
#include <string.h>

void server_open(server *s, const char *key_lines) {
  troika_error err;
  *s = (server){0};
  if (api_access_open(key_lines, NULL, &s->access, &err)) fail_msg("%s", err.text);
  assert_int_equal(api_sessions_open(API_SESSIONS_MAX, &s->sessions, &err), TROIKA_OK);
  s->resolver = (api_resolver){.access = s->access, .sessions = s->sessions};
}

void server_close(server *s) {
  api_access_close(&s->access);
  api_sessions_close(&s->sessions);
}

void signals_read(const server *s, const char *headers, const char *path, api_signals *out) {
  bytes_view authorization = bytes_of(NULL, 0);
  *out = (api_signals){0};
  bytes_init(&out->text, (size_t)API_SIGNALS * API_SIGNAL_BYTES_MAX);
  api_path_route(path, &out->background);
  for (const char *line = headers; *line;) {
    size_t len = strcspn(line, "\n");
    const char *colon = memchr(line, ':', len);
    size_t n = (size_t)(colon - line), which = 0;
    bytes_view value = bytes_of(colon + 2, len - n - 2);
    while (which < API_SIGNALS && (strlen(api_signal_name((api_signal)which)) != n ||
                                   strncmp(api_signal_name((api_signal)which), line, n) != 0))
      which++;
    if (which < API_SIGNALS)
      api_signals_set(out, (api_signal)which, value);
    else if (n == 13 && !strncmp(line, "authorization", n))
      authorization = value;
    else
      fail_msg("no such header: %.*s", (int)len, line);
    line += len + (line[len] == '\n');
  }
  out->key = api_access_find(s->access, authorization);
  assert_non_null(out->key);
}

bool ask_full(server *s, const char *path, const char *headers, const char *members,
              api_resolved *out, api_key_hold *hold, api_failure *f) {
  char body[8192];
  api_request r;
  api_signals signals;
  bool chat = strstr(path, "chat") != NULL, own = strstr(members, "\"messages\"") != NULL;
  snprintf(body, sizeof body, "{%s%s%s}",
           own    ? ""
           : chat ? USER
                  : "\"prompt\":\"hi\"",
           *members && !own ? "," : "", members);
  signals_read(s, headers, path, &signals);
  bool ok =
      api_request_parse(bytes_of_string(body), chat ? API_CHAT : API_COMPLETIONS, VOCAB, &r, f);
  if (ok) {
    ok = api_resolve(&s->resolver, &signals, path, bytes_of_string(body), &r, out, f);
    if (ok && hold) ok = api_key_begin(&s->resolver, &signals, out, r.n * r.prompts_n, hold, f);
    if (ok) api_resolved_apply(out, &r.engine);
    api_request_free(&r);
  }
  api_signals_free(&signals);
  return ok;
}

void ask(server *s, const char *headers, const char *members, api_resolved *out) {
  api_failure f;
  api_key_hold hold;
  if (!ask_full(s, CHAT_PATH, headers, members, out, &hold, &f))
    fail_msg("%s | %s: %s", headers, members, f.message);
  api_key_end(&hold);
}
