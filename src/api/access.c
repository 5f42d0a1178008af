/* SPDX-License-Identifier: Apache-2.0 */
#include "api/access.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/sha256.h"

enum { DIGEST_BYTES = 65, ORIGINS_MAX = 64, NAME_MAX_BYTES = 256 };

struct api_access {
  char keys[API_KEYS_MAX][DIGEST_BYTES]; /* hexadecimal */
  unsigned keys_n;
  char *origins[ORIGINS_MAX];
  unsigned origins_n;
  bool any_origin;
};

static void digest(const char *key, size_t len, char out[DIGEST_BYTES]) {
  sha256 h;
  sha256_begin(&h);
  sha256_add(&h, key, len);
  sha256_end(&h, out);
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

static troika_status read_keys(api_access *a, const char *text, troika_error *err) {
  for (const char *line = text; line && *line;) {
    const char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
    if (!end) end = line + strlen(line);
    while (line < end && is_blank(*line)) line++;
    while (end > line && is_blank(end[-1])) end--;
    size_t len = (size_t)(end - line);
    if (len && *line != '#') {
      if (len > API_KEY_BYTES_MAX)
        return error_set(err, TROIKA_INVALID, "API key %u has %zu bytes, at most %d are allowed",
                         a->keys_n + 1, len, API_KEY_BYTES_MAX);
      for (size_t i = 0; i < len; i++)
        if (line[i] <= ' ' || line[i] > '~')
          return error_set(err, TROIKA_INVALID,
                           "API key %u has a byte that no header can carry: only visible ASCII",
                           a->keys_n + 1);
      if (a->keys_n == API_KEYS_MAX)
        return error_set(err, TROIKA_INVALID, "more than %d API keys", API_KEYS_MAX);
      digest(line, len, a->keys[a->keys_n++]);
    }
    line = next;
  }
  return TROIKA_OK;
}

/* "http://name:port", nothing after it. */
static bool is_origin(const char *text, size_t len) {
  size_t scheme = !strncasecmp(text, "http://", 7) ? 7 : !strncasecmp(text, "https://", 8) ? 8 : 0;
  return scheme && len > scheme && !memchr(text + scheme, '/', len - scheme);
}

static troika_status read_origins(api_access *a, const char *text, troika_error *err) {
  for (; text && *text; text += strspn(text, ", ")) {
    size_t len = strcspn(text, ", ");
    if (len == 1 && *text == '*') {
      a->any_origin = true;
    } else if (len) {
      if (!is_origin(text, len))
        return error_set(err, TROIKA_INVALID,
                         "\"%.*s\" is no origin: http://NAME:PORT, https://NAME, or *",
                         (int)(len < 80 ? len : 80), text);
      if (a->origins_n == ORIGINS_MAX)
        return error_set(err, TROIKA_INVALID, "more than %d origins", ORIGINS_MAX);
      if (!(a->origins[a->origins_n] = strndup(text, len)))
        return error_set(err, TROIKA_NO_MEMORY, "no memory for the origins");
      a->origins_n++;
    }
    text += len;
  }
  return TROIKA_OK;
}

troika_status api_access_open(const char *keys, const char *origins, api_access **out,
                              troika_error *err) {
  api_access *a = calloc(1, sizeof *a);
  if (!a) return error_set(err, TROIKA_NO_MEMORY, "no memory for the API keys");
  troika_status status = read_keys(a, keys, err);
  if (!status) status = read_origins(a, origins, err);
  if (status)
    api_access_close(&a);
  else
    *out = a;
  return status;
}

void api_access_close(api_access **access) {
  api_access *a = *access;
  *access = NULL;
  if (!a) return;
  for (unsigned i = 0; i < a->origins_n; i++) free(a->origins[i]);
  free(a);
}

/* The host of "http://host:port", without brackets and port. */
static bytes_view host_of(bytes_view authority) {
  bytes_view h = authority;
  if (h.len && *h.ptr == '[') {
    const char *end = memchr(h.ptr, ']', h.len);
    return end ? bytes_of(h.ptr + 1, (size_t)(end - h.ptr) - 1) : bytes_of(h.ptr, 0);
  }
  const char *colon = memchr(h.ptr, ':', h.len);
  return colon ? bytes_of(h.ptr, (size_t)(colon - h.ptr)) : h;
}

static bool host_is(bytes_view host, const char *name) {
  return host.len == strlen(name) && !strncasecmp(host.ptr, name, host.len);
}

static bool is_loopback(bytes_view host) {
  static const char tail[] = ".localhost";
  size_t n = sizeof tail - 1;
  return host_is(host, "localhost") || host_is(host, "127.0.0.1") || host_is(host, "::1") ||
         (host.len > n && !strncasecmp(host.ptr + host.len - n, tail, n));
}

/* Digits and dots, or hexadecimal digits and colons: no name that somebody's DNS answers for. */
static bool is_address(bytes_view host) {
  bool colon = false, letter = false;
  for (size_t i = 0; i < host.len; i++) {
    char c = host.ptr[i];
    colon = colon || c == ':';
    bool hex = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    letter = letter || hex;
    if (!(c >= '0' && c <= '9') && c != '.' && c != ':' && !hex) return false;
  }
  return host.len && (colon || !letter);
}

static bool origin_allowed(const api_access *a, bytes_view origin, bytes_view own) {
  if (a->any_origin) return true;
  for (unsigned i = 0; i < a->origins_n; i++)
    if (host_is(origin, a->origins[i])) return true;
  if (!is_origin(origin.ptr, origin.len)) return false; /* "null", of files and sandboxes */
  const char *start = strstr(origin.ptr, "://") + 3;
  bytes_view authority = bytes_of(start, origin.len - (size_t)(start - origin.ptr));
  bytes_view host = host_of(authority);
  if (is_loopback(host)) return true;
  return is_address(host) && authority.len == own.len &&
         !strncasecmp(authority.ptr, own.ptr, own.len);
}

bool api_access_origin(const api_access *a, http_exchange *x, api_failure *failure) {
  bytes_view origin = http_header(x, "Origin");
  char text[NAME_MAX_BYTES + 1];
  http_answer_header(x, "Vary", "Origin"); /* also to those without: a cache gives it to others */
  if (!origin.len) return true;
  bool fits = origin.len <= NAME_MAX_BYTES;
  size_t len = fits ? origin.len : 0;
  memcpy(text, origin.ptr, len);
  text[len] = 0;
  if (!fits || !origin_allowed(a, bytes_of(text, len), http_header(x, "Host"))) {
    api_failure_set(failure, NULL,
                    "pages of this origin may not ask here: start the server with --cors-origin to "
                    "allow them");
    failure->status = 403;
    failure->type = api_failure_type_of(403);
    failure->code = "origin_not_allowed";
    return false;
  }
  http_answer_header(x, "Access-Control-Allow-Origin", text);
  http_answer_header(x, "Access-Control-Expose-Headers", "x-request-id, Retry-After");
  return true;
}

void api_access_preflight(http_exchange *x) {
  bytes_view wanted = http_header(x, "Access-Control-Request-Headers");
  char text[1024];
  size_t len = wanted.len < sizeof text ? wanted.len : 0;
  if (len) memcpy(text, wanted.ptr, len);
  text[len] = 0;
  http_answer_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  http_answer_header(x, "Access-Control-Allow-Headers", len ? text : "authorization, content-type");
  http_answer_header(x, "Access-Control-Max-Age", "600");
  if (http_header(x, "Access-Control-Request-Private-Network").len)
    http_answer_header(x, "Access-Control-Allow-Private-Network", "true");
}

static bytes_view bearer(bytes_view value) {
  static const char scheme[] = "bearer";
  size_t n = sizeof scheme - 1;
  if (value.len <= n || strncasecmp(value.ptr, scheme, n) || !is_blank(value.ptr[n]))
    return bytes_of(NULL, 0);
  while (n < value.len && is_blank(value.ptr[n])) n++;
  return bytes_of(value.ptr + n, value.len - n);
}

bool api_access_key(const api_access *a, http_exchange *x, api_failure *failure) {
  if (!a->keys_n) return true;
  bytes_view value = http_header(x, "Authorization"), key = bearer(value);
  char mine[DIGEST_BYTES];
  unsigned found = 0;
  digest(key.len ? key.ptr : "", key.len, mine);
  for (unsigned i = 0; i < a->keys_n; i++) {
    unsigned char differ = 0;
    for (int j = 0; j < DIGEST_BYTES; j++) differ |= (unsigned char)(mine[j] ^ a->keys[i][j]);
    found |= differ == 0;
  }
  if (found) return true;
  api_failure_set(failure, NULL,
                  value.len ? "this API key is not one of the server's"
                            : "this server asks for an API key: Authorization: Bearer KEY");
  failure->status = 401;
  failure->type = api_failure_type_of(401);
  failure->code = "invalid_api_key";
  return false;
}
