/* SPDX-License-Identifier: Apache-2.0 */
/* access.h - who may ask, and as what: API keys with their rules, and web pages of other origins.
 *
 * Keys come as `Authorization: Bearer KEY`. They are compared as SHA-256 digests, all of them, in a
 * time that depends on neither, so that timing tells nothing about a key.
 *
 * A browser sends `Origin` with what a page asks. Allowed are pages of this machine
 * (http://localhost:3000), pages of this server (Origin and Host name the same address), and the
 * origins listed. Any other is 403 whatever it asks: else a foreign page could use the machine of
 * whoever looks at it. A Host that is a name proves nothing (its owner may point it here), so "this
 * server" is told by an IP address only.
 *
 * Constant after open but for the counts of open requests: any thread. */
#ifndef API_ACCESS_H
#define API_ACCESS_H

#include "api/failure.h"
#include "http/http.h"
#include "troika/stream.h"

enum {
  API_KEYS_MAX = 64,
  API_KEY_BYTES_MAX = 512,
  API_KEY_NAME_MAX = 32,
  API_KEY_OPEN_MAX = 65536 /* of max and reactive-max */
};

typedef struct api_access api_access;

/* What may stand behind a key in its line; docs/CLI.md has the words. */
typedef struct api_key_rules {
  troika_class class_;   /* of what says nothing: REACTIVE, PROACTIVE; DEFAULT: not said */
  bool capped;           /* all of it is background */
  bool may_react;        /* a child that says reactive is band R, not I */
  uint32_t reactive_max; /* reactive answers open at once; 0: no limit */
  uint32_t max;          /* answers open at once; 0: no limit */
  char name[API_KEY_NAME_MAX + 1]; /* for logs, which never show the key; "": none */
} api_key_rules;

/* A key, or whoever asks a server without keys. */
typedef struct api_key {
  uint32_t id; /* 1 and up in the order of the lines; 0: no keys are asked for */
  api_key_rules rules;
  uint64_t scope; /* names it within this run of the server, and tells nothing about it; 0: id 0 */
} api_key;

/* keys: one a line, blanks around them and lines that begin with '#' ignored; behind a key and
 * blanks its rules. None: nobody is asked for one. The same key may come twice with the same rules.
 * origins: separated by commas or blanks; "*": all. Both may be NULL; copied. Errors: INVALID (too
 * many or too long; wrong rules; an origin that is none), NO_MEMORY. */
troika_status api_access_open(const char *keys, const char *origins, api_access **out,
                              troika_error *err);
void api_access_close(api_access **a);

/* Splits a line into key and rules. INVALID: the error names no word of the line, since a key with
 * a blank in it would be shown. */
troika_status api_key_line(bytes_view line, bytes_view *key, api_key_rules *out, troika_error *err);

/* Adds what belongs to every answer for the request's origin (Vary, Access-Control-...). False: the
 * origin may not ask; `failure` is filled in. */
bool api_access_origin(const api_access *a, http_exchange *x, api_failure *failure);
/* The headers of an answer to OPTIONS. */
void api_access_preflight(http_exchange *x);
/* The request's key; NULL: one is asked for, and it has none of the server's. Borrowed from `a`.
 * HTTP thread, inside begin and handle. */
const api_key *api_access_key(const api_access *a, http_exchange *x, api_failure *failure);
/* The same for the value of an Authorization header. */
const api_key *api_access_find(const api_access *a, bytes_view authorization);

/* Answers of one request that are counted as open; its fields are guarded by the access' lock. */
typedef struct api_key_count {
  const api_key *key;
  uint32_t answers; /* 0: nothing is counted */
  bool reactive;
} api_key_count;

/* out->reactive is what they may be. False: beyond the key's max, nothing is counted. */
bool api_access_count(api_access *a, const api_key *key, uint32_t answers, bool reactive,
                      api_key_count *out);
/* The same ones the other way. False: the key lets no more be reactive, or nothing is counted. */
bool api_access_recount(api_access *a, api_key_count *count, bool reactive);
/* False: nothing was counted. */
bool api_access_uncount(api_access *a, api_key_count *count);
/* What is open now. */
void api_access_open_now(api_access *a, const api_key *key, uint32_t *answers, uint32_t *reactive);

#endif
