/* SPDX-License-Identifier: Apache-2.0 */
/* access.h - who may ask: API keys, and web pages of other origins.
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
 * Constant after open: any thread. */
#ifndef API_ACCESS_H
#define API_ACCESS_H

#include "api/failure.h"
#include "http/http.h"

enum { API_KEYS_MAX = 64, API_KEY_BYTES_MAX = 512 };

typedef struct api_access api_access;

/* keys: one a line, blanks around them and lines that begin with '#' ignored; none: nobody is asked
 * for one. origins: separated by commas or blanks; "*": all. Both may be NULL; copied. Errors:
 * INVALID (too many or too long; an origin that is none), NO_MEMORY. */
troika_status api_access_open(const char *keys, const char *origins, api_access **out,
                              troika_error *err);
void api_access_close(api_access **a);

/* Adds what belongs to every answer for the request's origin (Vary, Access-Control-...). False: the
 * origin may not ask; `failure` is filled in. */
bool api_access_origin(const api_access *a, http_exchange *x, api_failure *failure);
/* The headers of an answer to OPTIONS. */
void api_access_preflight(http_exchange *x);
/* True if no key is asked for or the request has one. */
bool api_access_key(const api_access *a, http_exchange *x, api_failure *failure);

#endif
