/* SPDX-License-Identifier: Apache-2.0 */
/* The server: listening, the library's callbacks, stopping. Source: libmicrohttpd 0.9.75 and what
 * was found by probing it. */
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "http/internal.h"

/* A body in chunks that grew too large is read on this far, so that the client gets its 413 instead
 * of a reset. */
enum {
  /* Of a connection's memory, which the library clears after each answer: for the answer's headers,
   * and for pieces of bodies on their way. */
  POOL_BESIDE_HEADER = 8 * 1024,
  DISCARD_MAX = 16 * 1024 * 1024,
  QUIESCE_GRACE_S = 2 /* for requests that are on their way when the server stops */
};

void http_options_init(http_options *options) {
  *options = (http_options){.host = "127.0.0.1",
                            .port = 8080,
                            .body_max = 32 * 1024 * 1024,
                            .header_max = 32 * 1024,
                            .connections_max = 1024,
                            .bodies_max = 256 * 1024 * 1024,
                            .request_time_s = 60,
                            .write_time_s = 60};
}

static void refuse(http_server *s, http_exchange *x, unsigned status, const char *message) {
  bytes_buffer body;
  bytes_init(&body, 4096);
  if (s->options.refuse) s->options.refuse(s->options.context, status, message, &body);
  x->close = true;
  http_answer(x, status, "application/json", &body);
}

static void set_deadline(http_server *s, http_connection *c, int64_t deadline_ns) {
  pthread_mutex_lock(&s->lock);
  c->deadline_ns = deadline_ns;
  pthread_mutex_unlock(&s->lock);
}

static size_t header_bytes(struct MHD_Connection *connection) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  return info ? info->header_size : 0;
}

/* Headers are there. Early answers close a connection that has a body on its way. */
static enum MHD_Result begin_request(http_server *s, struct MHD_Connection *connection,
                                     const char *url, const char *method, const char *version,
                                     void **request) {
  const union MHD_ConnectionInfo *info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  if (!info || !info->socket_context || atomic_load(&s->closing)) return MHD_NO;
  http_exchange *x = exchange_create(s, connection, method, url);
  if (!x) return MHD_NO;
  if (!watch_enter(s, x)) {
    http_exchange_release(x);
    return MHD_NO;
  }
  *request = x;
  x->owner = info->socket_context;
  http_head head = {0};
  const char *problem = headers_check(connection, method, version, &head);
  x->has_body = head.chunked || head.length > 0;
  x->is_11 = strcmp(version, "HTTP/1.1") == 0;
  if (problem)
    refuse(s, x, 400, problem);
  else if (strlen(method) >= sizeof x->method || !strcmp(method, "CONNECT"))
    refuse(s, x, 501, "the method is not one of this server's"); /* CONNECT is for proxies */
  else if (header_bytes(connection) > s->options.header_max)
    refuse(s, x, 431, "the headers are too large");
  else if (head.length > s->options.body_max)
    refuse(s, x, 413, "the body is too large");
  else
    s->options.begin(s->options.context, x);
  /* Without a body the answer waits for the next call: given here it would close the connection. */
  if (x->answer == ANSWER_NONE || (!x->has_body && !x->close)) return MHD_YES;
  x->close = true;
  set_deadline(s, x->owner, INT64_MAX);
  return exchange_queue(x, connection);
}

static enum MHD_Result take_body(http_server *s, http_exchange *x, const char *data, size_t *len) {
  size_t n = *len;
  *len = 0;
  if (!x->body.failed && s->bodies + n > s->options.bodies_max) x->crowded = x->body.failed = true;
  if (x->body.failed) {
    x->discarded += n;
    return x->discarded > DISCARD_MAX ? MHD_NO : MHD_YES;
  }
  bytes_append(&x->body, data, n);
  if (x->body.failed) {
    bytes_free(&x->body);
    x->body.failed = true;
    return MHD_YES;
  }
  s->bodies += n;
  x->counted += n;
  return MHD_YES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_len, void **request) {
  http_server *s = context;
  http_exchange *x = *request;
  if (!x) return begin_request(s, connection, url, method, version, request);
  if (*upload_len) return take_body(s, x, upload, upload_len);
  if (x->queued) return MHD_YES;
  if (!x->handled) {
    x->handled = true;
    set_deadline(s, x->owner, INT64_MAX);
    if (x->answer == ANSWER_NONE && x->crowded)
      refuse(s, x, 503, "too many bodies are on their way at once");
    else if (x->answer == ANSWER_NONE && x->body.failed)
      refuse(s, x, 413, "the body is too large");
    else if (x->answer == ANSWER_NONE)
      s->options.handle(s->options.context, x);
  }
  pthread_mutex_lock(&x->lock);
  enum MHD_Result result = MHD_YES;
  bool ready = x->answer != ANSWER_NONE;
  /* `closing` is read under the exchange's lock: whoever closes marks it gone under that lock
   * afterwards, so none stays suspended. */
  if (x->gone || atomic_load(&s->closing)) {
    result = MHD_NO;
    ready = false;
  } else if (!ready || x->answer == ANSWER_STREAM) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) watch_socket(s, x, info->connect_fd);
    if (!ready) {
      x->suspended = true;
      MHD_suspend_connection(connection);
    }
  }
  pthread_mutex_unlock(&x->lock);
  return ready ? exchange_queue(x, connection) : result;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode code) {
  (void)connection;
  http_server *s = context;
  http_exchange *x = *request;
  if (!x) return;
  *request = NULL;
  uint64_t received = os_socket_received(x->owner->fd);
  s->bodies -= x->counted;
  pthread_mutex_lock(&s->lock);
  x->owner->received = received;
  x->owner->deadline_ns = clock_real_now(NULL) + s->options.request_time_s * INT64_C(1000000000);
  pthread_mutex_unlock(&s->lock);
  pthread_mutex_lock(&x->lock);
  bool writing = x->answer == ANSWER_STREAM && !x->ended; /* HEAD: over, while it still writes */
  pthread_mutex_unlock(&x->lock);
  if (writing || code != MHD_REQUEST_TERMINATED_COMPLETED_OK) exchange_mark_gone(x);
  pthread_mutex_lock(&x->lock);
  x->connection = NULL;
  x->gone = true;
  pthread_mutex_unlock(&x->lock);
  watch_leave(s, x);
  http_exchange_release(x);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code) {
  http_server *s = context;
  static _Thread_local bool named;
  if (!named) os_thread_name("http"); /* the library's own thread */
  named = true;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    http_connection *c = calloc(1, sizeof *c);
    if (!c || !info) {
      free(c);
      return;
    }
    c->fd = info->connect_fd;
    c->deadline_ns = clock_real_now(NULL) + s->options.request_time_s * INT64_C(1000000000);
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    c->at = &s->connections;
    if (c->next) c->next->at = &c->next;
    s->connections = c;
    s->connections_n++;
    pthread_mutex_unlock(&s->lock);
    *socket_context = c;
    return;
  }
  http_connection *c = *socket_context;
  if (!c) return;
  pthread_mutex_lock(&s->lock);
  *c->at = c->next;
  if (c->next) c->next->at = c->at;
  s->connections_n--;
  pthread_mutex_unlock(&s->lock);
  free(c);
  *socket_context = NULL;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

/* %41 becomes A; %00 stays, so that no tail hides behind it. In place. */
static size_t on_unescape(void *context, struct MHD_Connection *connection, char *text) {
  (void)context;
  (void)connection;
  char *to = text;
  for (const char *from = text; *from; to++) {
    int high = from[0] == '%' ? hex_digit(from[1]) : -1, low = high >= 0 ? hex_digit(from[2]) : -1;
    if (low < 0 || high + low == 0) {
      *to = *from++;
    } else {
      *to = (char)(high * 16 + low);
      from += 3;
    }
  }
  *to = 0;
  return (size_t)(to - text);
}

static void on_log(void *context, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void on_log(void *context, const char *format, va_list args) {
  (void)context;
  char text[256];
  if (!log_wants(LOG_DEBUG)) return;
  vsnprintf(text, sizeof text, format, args);
  text[strcspn(text, "\n")] = 0;
  log_line(LOG_DEBUG, "http: %s", text);
}

/* The library calls this where it finds itself broken; its own answer is to abort without a word of
 * where. */
static void on_panic(void *context, const char *file, unsigned line, const char *reason) {
  (void)context;
  check_failed(file, (int)line, "libmicrohttpd", reason ? reason : "panic");
}

static int try_listen(const struct addrinfo *a, int *problem) {
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
  if (fd < 0) {
    *problem = errno;
    return -1;
  }
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 511)) {
    *problem = errno;
    close(fd);
    return -1;
  }
  return fd;
}

static troika_status open_listen(http_server *s, troika_error *err) {
  char port[8];
  struct addrinfo hints = {.ai_family = AF_UNSPEC,
                           .ai_socktype = SOCK_STREAM,
                           .ai_flags = AI_PASSIVE},
                  *list;
  snprintf(port, sizeof port, "%u", s->options.port);
  int code = getaddrinfo(s->options.host, port, &hints, &list);
  if (code)
    return error_set(err, TROIKA_INVALID, "cannot listen on %s: %s", s->options.host,
                     gai_strerror(code));
  int problem = 0;
  for (const struct addrinfo *a = list; a && s->listen_fd < 0; a = a->ai_next)
    s->listen_fd = try_listen(a, &problem);
  freeaddrinfo(list);
  if (s->listen_fd < 0 && problem == EADDRINUSE)
    return error_set(err, TROIKA_BUSY,
                     "port %u of %s is in use: stop what listens there or take another port",
                     s->options.port, s->options.host);
  if (s->listen_fd < 0)
    return error_set(err, TROIKA_IO, "cannot listen on %s, port %u: %s", s->options.host,
                     s->options.port, strerror(problem));
  struct sockaddr_storage bound;
  socklen_t len = sizeof bound;
  char name[16];
  s->port = s->options.port;
  if (!getsockname(s->listen_fd, (struct sockaddr *)&bound, &len) &&
      !getnameinfo((struct sockaddr *)&bound, len, NULL, 0, name, sizeof name, NI_NUMERICSERV))
    s->port = (uint16_t)strtoul(name, NULL, 10);
  return TROIKA_OK;
}

troika_status http_server_open(const http_options *options, http_server **out, troika_error *err) {
  http_server *s = calloc(1, sizeof *s);
  if (!s) return error_set(err, TROIKA_NO_MEMORY, "no memory for the server");
  s->options = *options;
  s->listen_fd = s->epoll_fd = s->event_fd = -1;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->idle, NULL);
  troika_status status = open_listen(s, err);
  if (!status) status = watch_open(s, err);
  if (status) goto done;
  MHD_set_panic_func(on_panic, NULL);
  /* The logger comes first: the library uses it while it reads the rest. */
  s->daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
      on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET,
      s->listen_fd, MHD_OPTION_CONNECTION_LIMIT, options->connections_max,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, options->header_max + (size_t)POOL_BESIDE_HEADER,
      MHD_OPTION_CONNECTION_TIMEOUT, options->write_time_s, MHD_OPTION_NOTIFY_COMPLETED,
      on_completed, s, MHD_OPTION_UNESCAPE_CALLBACK, on_unescape, s, MHD_OPTION_NOTIFY_CONNECTION,
      on_connection, s, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
  if (!s->daemon) {
    status = error_set(err, TROIKA_IO, "the HTTP library did not start");
    goto done;
  }
  *out = s;
  s = NULL;
done:
  if (s) http_server_close(&s);
  return status;
}

uint16_t http_server_port(const http_server *s) {
  return s->port;
}

void http_server_quiesce(http_server *s) {
  pthread_mutex_lock(&s->lock);
  bool first = !s->quiesced && s->daemon;
  s->quiesced = true;
  pthread_mutex_unlock(&s->lock);
  if (!first) return;
  pthread_mutex_lock(&s->lock); /* a request still on its way could only be refused */
  int64_t soon = clock_real_now(NULL) + QUIESCE_GRACE_S * INT64_C(1000000000);
  for (http_connection *c = s->connections; c; c = c->next)
    if (c->deadline_ns != INT64_MAX && c->deadline_ns > soon) c->deadline_ns = soon;
  pthread_mutex_unlock(&s->lock);
  int fd = MHD_quiesce_daemon(s->daemon);
  /* Its thread may still be about to take the socket out of its epoll: refuse now, close when the
   * thread has ended. */
  if (fd >= 0) shutdown(fd, SHUT_RDWR);
  s->listen_fd = fd;
}

uint32_t http_server_connections(http_server *s) {
  pthread_mutex_lock(&s->lock);
  uint32_t n = s->connections_n;
  pthread_mutex_unlock(&s->lock);
  return n;
}

uint32_t http_server_exchanges(http_server *s) {
  pthread_mutex_lock(&s->lock);
  uint32_t n = s->live;
  pthread_mutex_unlock(&s->lock);
  return n;
}

void http_server_close(http_server **server) {
  http_server *s = *server;
  if (!s) return;
  *server = NULL;
  if (s->daemon) {
    http_server_quiesce(s);
    atomic_store(&s->closing, true);
    /* The library panics if a connection is suspended when it stops: mark all, and wait until it
     * let go of each. One that was just being handled sees `closing`. */
    watch_all_gone(s);
    pthread_mutex_lock(&s->lock);
    while (s->live) pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
    MHD_stop_daemon(s->daemon);
  }
  if (s->listen_fd >= 0) close(s->listen_fd);
  watch_close(s);
  pthread_cond_destroy(&s->idle);
  pthread_mutex_destroy(&s->lock);
  free(s);
}
