/* SPDX-License-Identifier: Apache-2.0 */
/* http.h - an HTTP/1.1 server that knows no models.
 *
 *     client ── socket ── HTTP thread (libmicrohttpd, epoll) ── handler ──► any thread
 *                 │                         ▲                                  │
 *                 └─ watch thread: gone? ───┘◄── answer, or stream ring ◄──────┘
 *
 * One thread owns all sockets; handlers run on it and must not wait. A handler answers at once or
 * keeps the exchange and answers later from another thread: the connection is suspended meanwhile.
 * An answer is a whole body, or a stream of bytes through a bounded ring, so that a slow reader
 * costs its ring and nothing else. A second thread watches suspended sockets, because a suspended
 * connection notices nothing: a client that closes (or half-closes) is reported through `notify`
 * within milliseconds. It also ends connections that take too long to bring a whole request.
 *
 * What the library accepts and must not be trusted with (two lengths, odd transfer codings, folded
 * headers ...) is refused in headers.c before the body is read. Memory: header_max and 10 KiB a
 * connection, whether it talks or idles, plus the body received so far (at most body_max), and
 * RING_BYTES for a running stream.
 *
 * Rejected: a thread per connection (256 waiting requests would be 256 stacks), an own parser (this
 * one is old and patched). */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "troika/status.h"

typedef struct http_server http_server;
/* One request and its answer. Counted: the server holds it while the connection lives, whoever else
 * keeps it calls hold and release. */
typedef struct http_exchange http_exchange;

enum { HTTP_RING_BYTES = 64 * 1024, HTTP_HEADERS_MAX = 16 };

typedef struct http_options {
  const char *host;         /* name or address to listen on; "127.0.0.1" and so on */
  uint16_t port;            /* 0: any free one, see http_server_port */
  size_t body_max;          /* bytes; more is 413 */
  size_t header_max;        /* bytes of request line and headers; more is 431 */
  uint32_t connections_max; /* when as many are open, idle ones are closed, the longest idle first;
                               further ones wait in the kernel's backlog */
  size_t bodies_max;       /* bytes of all bodies that are on their way; what exceeds them is 503 */
  uint32_t request_time_s; /* from accept, or the last answer, to a whole request; then the
                               connection is closed, with a 408 if a part of it came */
  uint32_t write_time_s;   /* without progress of a reader; then the connection is closed */
  /* Both run on the HTTP thread and return at once. `begin` sees the headers before the body and
   * may answer (then the body is not read and the connection closes after a POST). `handle` sees
   * the whole request. */
  void (*begin)(void *context, http_exchange *x);
  void (*handle)(void *context, http_exchange *x);
  /* The body of an error that the server itself answers (400, 408, 413, 503): appended to `out`.
   * Any of its threads. */
  void (*refuse)(void *context, unsigned status, const char *message, bytes_buffer *out);
  void *context; /* borrowed until close */
} http_options;

void http_options_init(http_options *options);

/* Errors: INVALID (host), BUSY (port in use), IO (with the system's words), NO_MEMORY. */
troika_status http_server_open(const http_options *options, http_server **out, troika_error *err);
uint16_t http_server_port(const http_server *s);
/* Accepts no more connections; the living ones go on. Once. Any thread. */
void http_server_quiesce(http_server *s);
uint32_t http_server_connections(http_server *s);
uint32_t http_server_exchanges(http_server *s); /* requests whose answer is not wholly sent */
/* Marks every exchange gone (so their owners let go), ends the connections and threads, frees.
 * Waits for nobody but its own threads; exchanges that are still held stay valid until released.
 * NULLs *s. Not from the HTTP thread. */
void http_server_close(http_server **s);

/* --- the request. Header and query views are valid inside begin and handle only; method, path and
 * body as long as the exchange. */
const char *http_method(const http_exchange *x);
/* Percent-decoded but for %00, without the query, and without scheme and host where the request
 * named them. */
const char *http_path(const http_exchange *x);
bytes_view http_header(const http_exchange *x,
                       const char *name); /* {NULL, 0} if absent; the first of several */
bytes_view http_query(const http_exchange *x, const char *name);
bytes_view http_body(const http_exchange *x);
int64_t http_received_ns(const http_exchange *x); /* clock_real: when the headers were there */

void http_exchange_hold(http_exchange *x);
void http_exchange_release(http_exchange *x);

/* --- the answer; any thread, once per exchange. After the client has gone they do nothing. */
/* Adds a header of the answer; before it is given. name is borrowed for ever (a literal), value is
 * copied; without memory the header is left out. */
void http_answer_header(http_exchange *x, const char *name, const char *value);
/* Takes over body->data (and leaves *body empty). */
void http_answer(http_exchange *x, unsigned status, const char *content_type, bytes_buffer *body);

/* Starts a streamed answer: headers go out at once. NO_MEMORY: nothing was answered. */
troika_status http_stream_begin(http_exchange *x, unsigned status, const char *content_type);
/* Takes as many bytes as the ring has room for and returns their number. After a short write,
 * notify is called when there is room. */
size_t http_stream_write(http_exchange *x, const char *data, size_t len);
/* No more will come; what is in the ring is still sent. `broken`: the connection is cut instead, so
 * that the client knows. */
void http_stream_end(http_exchange *x, bool broken);

/* Between the two, what this thread answers and writes is handed over but the HTTP thread is not
 * woken for it; release wakes it once for all of it. For a thread that serves many streams in a
 * row. Not nested. */
void http_wakes_hold(void);
void http_wakes_release(void);

/* True once the client is gone: nothing answered from now on reaches anyone. */
bool http_gone(http_exchange *x);
/* notify is called, from the HTTP or watch thread under the exchange's lock, when the client has
 * gone or when a stream that was full has room. It must return at once and must not call back into
 * http. NULL ends it: after return no call is running. */
void http_watch(http_exchange *x, void (*notify)(void *context), void *context);

/* "Reason phrase" of a status is the library's; this is what an SSE frame is: appends "data:
 * <payload>\n\n". */
void http_sse_data(bytes_buffer *out, const char *payload, size_t len);
void http_sse_comment(bytes_buffer *out, const char *text);

#endif
