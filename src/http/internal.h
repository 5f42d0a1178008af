/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - what the files of this room share: the server, its connections and exchanges.
 *
 * Locks, in the order in which they may be taken:
 *     exchange.lock  →  the library's own (inside suspend and resume)  →  whatever notify takes
 *     server.lock    alone: never held while an exchange's lock is taken
 *
 * Suspend and resume. The reader (HTTP thread), under exchange.lock, finds nothing to send, sets
 * `suspended` and suspends; whoever has something, under the same lock, clears `suspended` and
 * resumes. So a resume never overtakes its suspend, and there is exactly one resume for each
 * suspend. */
#ifndef HTTP_INTERNAL_H
#define HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"

typedef struct http_connection { /* guarded by server.lock */
  struct http_connection *next, **at;
  int fd;
  int64_t deadline_ns; /* for a whole request; INT64_MAX while one is being answered */
  uint64_t received;   /* bytes of the socket when the last answer was done */
  bool idle;           /* make_room's: nothing came since the last answer */
  bool hung_up;        /* the last sweep saw its client gone */
} http_connection;

typedef enum http_answer_kind { ANSWER_NONE, ANSWER_BODY, ANSWER_STREAM } http_answer_kind;

struct http_exchange {
  http_server *server; /* valid while connection != NULL */
  atomic_uint refs;
  /* The HTTP thread's alone. */
  http_connection *owner;
  bool handled, queued, close;
  bool has_body;     /* one is announced */
  bool is_11;        /* the request's version */
  size_t discarded;  /* bytes of a body that was too large */
  size_t counted;    /* bytes of the body that the server counts among all */
  bool crowded;      /* there was no room among them */
  uint64_t watch_id; /* slot and generation in the server's table */
  int watch_fd;      /* -1: not watched; the socket's duplicate */
  /* Fixed before the handler sees them. */
  char method[16];
  char *path;
  bytes_buffer body;
  int64_t received_ns;

  pthread_mutex_t lock;              /* guards all below */
  struct MHD_Connection *connection; /* NULL once the library is done with it */
  bool suspended, gone;
  void (*notify)(void *context);
  void *notify_context;
  http_answer_kind answer;
  unsigned status;
  const char *content_type;
  bytes_buffer out; /* ANSWER_BODY */
  struct {
    const char *name;
    char *value;
  } headers[HTTP_HEADERS_MAX];
  unsigned headers_n;
  char *ring; /* ANSWER_STREAM: ring_used bytes from ring_head on */
  size_t ring_head, ring_used;
  bool ended, broken, want_room;
  /* The short way of a stream, see direct.c. */
  int fd; /* the connection's own; -1: the short way is closed */
  int send_most;
  bool cut; /* half a chunk went out: nothing can follow */
};

typedef struct http_slot {
  http_exchange *x;
  uint32_t generation, next_free;
} http_slot;

struct http_server {
  http_options options;
  struct MHD_Daemon *daemon;
  int listen_fd; /* ours again after quiesce */
  uint16_t port;
  int epoll_fd, event_fd;
  pthread_t watch;
  atomic_bool closing;
  size_t bodies; /* bytes of bodies whose requests are not answered; the HTTP thread's */

  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t idle;  /* live became 0 */
  bool quiesced;
  uint32_t live, connections_n;
  http_connection *connections;
  http_slot *slots; /* connections_max of them */
  uint32_t slot_free;
};

/* exchange.c */
http_exchange *exchange_create(http_server *s, struct MHD_Connection *connection,
                               const char *method, const char *path);
void exchange_mark_gone(http_exchange *x);
/* Builds and queues the response; HTTP thread, once. */
enum MHD_Result exchange_queue(http_exchange *x, struct MHD_Connection *connection);

/* direct.c; under the exchange's lock. True: all of it is on its way. */
bool direct_send(http_exchange *x, const char *data, size_t len);
void direct_open(http_exchange *x, int fd);

/* headers.c: NULL if all is well, else what is wrong. */
typedef struct http_head {
  bool chunked, has_length;
  uint64_t length;
} http_head;
/* Of a value without the blanks behind it, which the library leaves there. */
size_t header_length(const char *value, size_t len);
const char *headers_check(struct MHD_Connection *connection, const char *method,
                          const char *version, http_head *out);

/* watch.c */
troika_status watch_open(http_server *s, troika_error *err);
void watch_close(http_server *s);
bool watch_enter(http_server *s, http_exchange *x); /* into the table; false if it is full */
void watch_leave(http_server *s, http_exchange *x);
void watch_socket(http_server *s, http_exchange *x,
                  int fd); /* from now on, report that the client is gone */
void watch_all_gone(http_server *s);

#endif
