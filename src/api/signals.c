/* SPDX-License-Identifier: Apache-2.0 */
/* The headers that say something, copied out of an exchange whose own end with its handler. */
#include <string.h>

#include "api/resolve.h"

#define NAME_OF(name, header) header,
static const char *const names[API_SIGNALS] = {API_SIGNAL_LIST(NAME_OF)};
#undef NAME_OF

const char *api_signal_name(api_signal which) {
  return names[which];
}

bytes_view api_signal_of(const api_signals *s, api_signal which) {
  if (!s->values[which].len) return bytes_of(NULL, 0);
  return bytes_of(s->text.data + s->values[which].at, s->values[which].len);
}

void api_signals_set(api_signals *s, api_signal which, bytes_view value) {
  if (!value.len) return;
  size_t len = value.len < API_SIGNAL_BYTES_MAX ? value.len : API_SIGNAL_BYTES_MAX;
  size_t at = s->text.len;
  bytes_append(&s->text, value.ptr, len);
  if (s->text.failed) return;
  s->values[which].at = (uint32_t)at;
  s->values[which].len = (uint32_t)len;
}

const char *api_path_route(const char *path, bool *background) {
  *background = !strncmp(path, "/bg/", 4);
  return *background ? path + 3 : path;
}

bool api_signals_take(const api_resolver *r, http_exchange *x, api_signals *out) {
  *out = (api_signals){.received_ns = http_received_ns(x)};
  bytes_init(&out->text, (size_t)API_SIGNALS * API_SIGNAL_BYTES_MAX);
  out->key = api_access_find(r->access, http_header(x, "Authorization"));
  api_path_route(http_path(x), &out->background);
  for (int i = 0; i < API_SIGNALS; i++)
    api_signals_set(out, (api_signal)i, http_header(x, names[i]));
  return !out->text.failed;
}

void api_signals_free(api_signals *s) {
  bytes_free(&s->text);
  *s = (api_signals){0};
}

void api_clean_text(bytes_view text, char *out, size_t size) {
  size_t n = text.len < size - 1 ? text.len : size - 1;
  for (size_t i = 0; i < n; i++) {
    char c = text.ptr[i];
    out[i] = c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : c;
  }
  out[n] = 0;
}
