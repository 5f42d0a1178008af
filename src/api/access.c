/* SPDX-License-Identifier: Apache-2.0 */
#include "api/access.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/os.h"
#include "base/sha256.h"

enum { DIGEST_BYTES = 65, ORIGINS_MAX = 64, NAME_MAX_BYTES = 256, SALT_BYTES = 16 };

struct api_access {
  char digests[API_KEYS_MAX][DIGEST_BYTES]; /* hexadecimal */
  api_key keys[API_KEYS_MAX];
  unsigned keys_n;
  api_key nobody;
  char salt[SALT_BYTES];
  pthread_mutex_t lock; /* guards the counts, by id */
  struct {
    uint32_t answers, reactive;
  } open[API_KEYS_MAX + 1];
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

/* The first 64 bits of a salted hash: a client that sees one learns nothing of the key. */
static uint64_t make_scope(const api_access *a, bytes_view key) {
  sha256 h;
  sha256_begin(&h);
  sha256_add(&h, a->salt, sizeof a->salt);
  sha256_add(&h, key.ptr, key.len);
  return sha256_end_number(&h); /* 0 is everybody's */
}

static bool rules_equal(const api_key_rules *a, const api_key_rules *b) {
  return a->class_ == b->class_ && a->capped == b->capped && a->may_react == b->may_react &&
         a->reactive_max == b->reactive_max && a->max == b->max && !strcmp(a->name, b->name);
}

static troika_status add_key(api_access *a, bytes_view key, const api_key_rules *rules,
                             troika_error *err) {
  unsigned number = a->keys_n + 1;
  if (key.len > API_KEY_BYTES_MAX)
    return error_set(err, TROIKA_INVALID, "API key %u has %zu bytes, at most %d are allowed",
                     number, key.len, API_KEY_BYTES_MAX);
  for (size_t i = 0; i < key.len; i++)
    if (key.ptr[i] <= ' ' || key.ptr[i] > '~')
      return error_set(err, TROIKA_INVALID,
                       "API key %u has a byte that no header can carry: only visible ASCII",
                       number);
  if (a->keys_n == API_KEYS_MAX)
    return error_set(err, TROIKA_INVALID, "more than %d API keys", API_KEYS_MAX);
  digest(key.ptr, key.len, a->digests[a->keys_n]);
  for (unsigned i = 0; i < a->keys_n; i++)
    if (!strcmp(a->digests[i], a->digests[a->keys_n]) && !rules_equal(&a->keys[i].rules, rules))
      return error_set(err, TROIKA_INVALID, "API keys %u and %u are the same with other rules",
                       i + 1, number);
  a->keys[a->keys_n] = (api_key){.id = number, .rules = *rules, .scope = make_scope(a, key)};
  a->keys_n++;
  return TROIKA_OK;
}

static troika_status read_keys(api_access *a, const char *text, troika_error *err) {
  for (const char *line = text; line && *line;) {
    const char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
    if (!end) end = line + strlen(line);
    while (line < end && is_blank(*line)) line++;
    while (end > line && is_blank(end[-1])) end--;
    if (end > line && *line != '#') {
      bytes_view key;
      api_key_rules rules;
      troika_error why;
      troika_status status = api_key_line(bytes_of(line, (size_t)(end - line)), &key, &rules, &why);
      if (status) return error_set(err, status, "API key %u: %s", a->keys_n + 1, why.text);
      status = add_key(a, key, &rules, err);
      if (status) return status;
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
  pthread_mutex_init(&a->lock, NULL);
  os_random(a->salt, sizeof a->salt);
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
  pthread_mutex_destroy(&a->lock);
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
  http_answer_header(x, "Access-Control-Expose-Headers",
                     "x-request-id, Retry-After, x-troika-class, x-troika-band, "
                     "x-troika-decided-by, x-troika-stream, x-troika-queue-ms, "
                     "x-troika-cached-tokens");
  return true;
}

void api_access_preflight(http_exchange *x) {
  bytes_view wanted = http_header(x, "Access-Control-Request-Headers");
  char text[1024];
  size_t len = wanted.len < sizeof text ? wanted.len : 0;
  if (len) memcpy(text, wanted.ptr, len);
  text[len] = 0;
  http_answer_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST, PATCH, DELETE, OPTIONS");
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

const api_key *api_access_find(const api_access *a, bytes_view authorization) {
  if (!a->keys_n) return &a->nobody;
  bytes_view key = bearer(authorization);
  char mine[DIGEST_BYTES];
  const api_key *found = NULL;
  digest(key.len ? key.ptr : "", key.len, mine);
  for (unsigned i = a->keys_n; i-- > 0;) { /* of two that are the same, the first */
    unsigned char differ = 0;
    for (int j = 0; j < DIGEST_BYTES; j++) differ |= (unsigned char)(mine[j] ^ a->digests[i][j]);
    found = differ ? found : &a->keys[i];
  }
  return found;
}

const api_key *api_access_key(const api_access *a, http_exchange *x, api_failure *failure) {
  bytes_view value = http_header(x, "Authorization");
  const api_key *found = api_access_find(a, value);
  if (found) return found;
  api_failure_set(failure, NULL,
                  value.len ? "this API key is not one of the server's"
                            : "this server asks for an API key: Authorization: Bearer KEY");
  failure->status = 401;
  failure->type = api_failure_type_of(401);
  failure->code = "invalid_api_key";
  return NULL;
}

/* Under the lock: whether so many more may be reactive. */
static bool room_for_reactive(const api_access *a, const api_key *key, uint32_t answers) {
  const api_key_rules *r = &key->rules;
  return !r->capped &&
         (!r->reactive_max || a->open[key->id].reactive + (uint64_t)answers <= r->reactive_max);
}

bool api_access_count(api_access *a, const api_key *key, uint32_t answers, bool reactive,
                      api_key_count *out) {
  *out = (api_key_count){.key = key};
  pthread_mutex_lock(&a->lock);
  uint32_t max = key->rules.max;
  bool fits = !max || a->open[key->id].answers + (uint64_t)answers <= max;
  if (fits) {
    out->answers = answers;
    out->reactive = reactive && room_for_reactive(a, key, answers);
    a->open[key->id].answers += answers;
    if (out->reactive) a->open[key->id].reactive += answers;
  }
  pthread_mutex_unlock(&a->lock);
  return fits;
}

bool api_access_recount(api_access *a, api_key_count *count, bool reactive) {
  pthread_mutex_lock(&a->lock);
  bool ok = count->answers != 0;
  if (ok && reactive && !count->reactive) {
    ok = room_for_reactive(a, count->key, count->answers);
    if (ok) a->open[count->key->id].reactive += count->answers;
  } else if (ok && !reactive && count->reactive) {
    a->open[count->key->id].reactive -= count->answers;
  }
  if (ok) count->reactive = reactive;
  pthread_mutex_unlock(&a->lock);
  return ok;
}

bool api_access_uncount(api_access *a, api_key_count *count) {
  pthread_mutex_lock(&a->lock);
  uint32_t answers = count->answers;
  if (answers) {
    a->open[count->key->id].answers -= answers;
    if (count->reactive) a->open[count->key->id].reactive -= answers;
    count->answers = 0;
  }
  pthread_mutex_unlock(&a->lock);
  return answers != 0;
}

void api_access_open_now(api_access *a, const api_key *key, uint32_t *answers, uint32_t *reactive) {
  pthread_mutex_lock(&a->lock);
  *answers = a->open[key->id].answers;
  *reactive = a->open[key->id].reactive;
  pthread_mutex_unlock(&a->lock);
}
