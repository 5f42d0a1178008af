/* SPDX-License-Identifier: Apache-2.0 */
/* get.h - a small client: GET over plain HTTP/1.1, one connection a request, for `troika top`.
 *
 * An answer is bounded in bytes (the buffer's max; 64 KiB of headers) and in time, whatever the
 * other side sends. No redirects, no proxies, no TLS: it asks a troika server, which has none.
 * Rejected: libcurl, which would bring some 20 libraries for what takes 200 lines here. */
#ifndef HTTP_GET_H
#define HTTP_GET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "troika/status.h"

typedef struct http_peer http_peer;

/* url: http://HOST[:PORT][/], HOST a name, an IPv4 or an [IPv6] address; http:// may be left out.
 * Looks the name up, which may wait for the network. Errors: INVALID (the URL), IO (no such host).
 */
troika_status http_peer_open(const char *url, http_peer **out, troika_error *err);
void http_peer_close(http_peer **peer);
const char *http_peer_url(const http_peer *peer); /* http://HOST:PORT */

typedef struct http_get_options {
  const char *key;    /* sent as Authorization: Bearer; NULL: none. Visible ASCII */
  int64_t timeout_ns; /* for all of it */
  bool (*stop)(void); /* asked whenever a signal interrupts a wait; NULL: never */
} http_get_options;

/* Appends the body to `out`. Errors: IO (no connection, or it broke), DEADLINE, FORMAT (no HTTP
 * answer), LIMIT (longer than `out` may take), CANCELLED (stop), NO_MEMORY. */
troika_status http_get(const http_peer *peer, const char *path, const http_get_options *options,
                       unsigned *status, bytes_buffer *out, troika_error *err);

#endif
