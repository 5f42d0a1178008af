/* SPDX-License-Identifier: Apache-2.0 */
/* One request and its answer: what the handler reads, and what any thread hands back. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/clock.h"
#include "http/internal.h"

/* "http://host/path", as a client sends to a proxy, is the same as "/path" (RFC 9112, 3.2.2). */
static const char *skip_authority(const char *target) {
  static const char scheme[] = "http://";
  if (strncasecmp(target, scheme, sizeof scheme - 1) != 0) return target;
  const char *slash = strchr(target + sizeof scheme - 1, '/');
  return slash ? slash : "/";
}

http_exchange *exchange_create(http_server *s, struct MHD_Connection *connection,
                               const char *method, const char *path) {
  http_exchange *x = calloc(1, sizeof *x);
  char *copy = strdup(skip_authority(path));
  if (!x || !copy) {
    free(x);
    free(copy);
    return NULL;
  }
  x->server = s;
  x->connection = connection;
  x->path = copy;
  x->watch_fd = x->fd = -1;
  x->received_ns = clock_real_now(NULL);
  strncpy(x->method, method, sizeof x->method - 1);
  bytes_init(&x->body, s->options.body_max);
  pthread_mutex_init(&x->lock, NULL);
  atomic_init(&x->refs, 1);
  return x;
}

void http_exchange_hold(http_exchange *x) {
  atomic_fetch_add(&x->refs, 1);
}

void http_exchange_release(http_exchange *x) {
  if (atomic_fetch_sub(&x->refs, 1) != 1) return;
  bytes_free(&x->body);
  bytes_free(&x->out);
  for (unsigned i = 0; i < x->headers_n; i++) free(x->headers[i].value);
  pthread_mutex_destroy(&x->lock);
  free(x->ring);
  free(x->path);
  free(x);
}

const char *http_method(const http_exchange *x) {
  return x->method;
}
const char *http_path(const http_exchange *x) {
  return x->path;
}
bytes_view http_body(const http_exchange *x) {
  return bytes_of(x->body.data ? x->body.data : "", x->body.len);
}
int64_t http_received_ns(const http_exchange *x) {
  return x->received_ns;
}

static bytes_view lookup(const http_exchange *x, enum MHD_ValueKind kind, const char *name) {
  const char *value = NULL;
  size_t len = 0;
  if (!x->connection || MHD_lookup_connection_value_n(x->connection, kind, name, strlen(name),
                                                      &value, &len) != MHD_YES)
    return bytes_of(NULL, 0);
  return bytes_of(value, kind == MHD_HEADER_KIND && value ? header_length(value, len) : len);
}

bytes_view http_header(const http_exchange *x, const char *name) {
  return lookup(x, MHD_HEADER_KIND, name);
}
bytes_view http_query(const http_exchange *x, const char *name) {
  return lookup(x, MHD_GET_ARGUMENT_KIND, name);
}

/* Under the lock: the HTTP thread looks at this exchange again. */
static void resume(http_exchange *x) {
  if (!x->suspended) return;
  x->suspended = false;
  MHD_resume_connection(x->connection);
}

/* What this thread has put off, each held once. */
enum { HELD_MAX = 64 };
static _Thread_local struct {
  bool holding;
  unsigned n;
  http_exchange *x[HELD_MAX];
} wakes;

/* The same, now or when the thread lets its wakes go. */
static void wake_connection(http_exchange *x) {
  if (!x->suspended) return;
  if (!wakes.holding || wakes.n == HELD_MAX) {
    resume(x);
    return;
  }
  for (unsigned i = 0; i < wakes.n; i++)
    if (wakes.x[i] == x) return;
  http_exchange_hold(x);
  wakes.x[wakes.n++] = x;
}

void http_wakes_hold(void) {
  wakes.holding = true;
}

void http_wakes_release(void) {
  wakes.holding = false;
  for (unsigned i = 0; i < wakes.n; i++) {
    http_exchange *x = wakes.x[i];
    pthread_mutex_lock(&x->lock);
    resume(x);
    pthread_mutex_unlock(&x->lock);
    http_exchange_release(x);
  }
  wakes.n = 0;
}

void exchange_mark_gone(http_exchange *x) {
  pthread_mutex_lock(&x->lock);
  bool news = !x->gone;
  x->gone = true;
  resume(x);
  if (news && x->notify) x->notify(x->notify_context);
  pthread_mutex_unlock(&x->lock);
}

bool http_gone(http_exchange *x) {
  pthread_mutex_lock(&x->lock);
  bool gone = x->gone;
  pthread_mutex_unlock(&x->lock);
  return gone;
}

void http_watch(http_exchange *x, void (*notify)(void *context), void *context) {
  pthread_mutex_lock(&x->lock);
  x->notify = notify;
  x->notify_context = context;
  if (notify && x->gone) notify(context);
  pthread_mutex_unlock(&x->lock);
}

void http_answer_header(http_exchange *x, const char *name, const char *value) {
  pthread_mutex_lock(&x->lock);
  CHECK(x->answer == ANSWER_NONE && x->headers_n < HTTP_HEADERS_MAX);
  if ((x->headers[x->headers_n].value = strdup(value))) x->headers[x->headers_n++].name = name;
  pthread_mutex_unlock(&x->lock);
}

void http_answer(http_exchange *x, unsigned status, const char *content_type, bytes_buffer *body) {
  pthread_mutex_lock(&x->lock);
  CHECK(x->answer == ANSWER_NONE);
  x->answer = ANSWER_BODY;
  x->status = status;
  x->content_type = content_type;
  x->out = *body;
  *body = (bytes_buffer){.max = body->max};
  wake_connection(x);
  pthread_mutex_unlock(&x->lock);
}

troika_status http_stream_begin(http_exchange *x, unsigned status, const char *content_type) {
  char *ring = malloc(HTTP_RING_BYTES);
  if (!ring) return TROIKA_NO_MEMORY;
  pthread_mutex_lock(&x->lock);
  CHECK(x->answer == ANSWER_NONE);
  x->answer = ANSWER_STREAM;
  x->status = status;
  x->content_type = content_type;
  x->ring = ring;
  wake_connection(x);
  pthread_mutex_unlock(&x->lock);
  return TROIKA_OK;
}

size_t http_stream_write(http_exchange *x, const char *data, size_t len) {
  pthread_mutex_lock(&x->lock);
  CHECK(x->answer == ANSWER_STREAM && !x->ended);
  if (x->gone) { /* nobody reads: let the writer believe that all went out */
    pthread_mutex_unlock(&x->lock);
    return len;
  }
  if (direct_send(x, data, len)) {
    if (x->cut) wake_connection(x);
    pthread_mutex_unlock(&x->lock);
    return len;
  }
  size_t room = HTTP_RING_BYTES - x->ring_used, n = len < room ? len : room;
  size_t tail = (x->ring_head + x->ring_used) % HTTP_RING_BYTES, first = HTTP_RING_BYTES - tail;
  if (first > n) first = n;
  memcpy(x->ring + tail, data, first);
  memcpy(x->ring, data + first, n - first);
  x->ring_used += n;
  x->want_room = n < len;
  if (n) wake_connection(x);
  pthread_mutex_unlock(&x->lock);
  return n;
}

void http_stream_end(http_exchange *x, bool broken) {
  pthread_mutex_lock(&x->lock);
  CHECK(x->answer == ANSWER_STREAM && !x->ended);
  x->ended = true;
  x->broken = broken;
  wake_connection(x);
  pthread_mutex_unlock(&x->lock);
}

/* The library asks for the next bytes of a stream. HTTP thread. */
static ssize_t stream_read(void *context, uint64_t position, char *out, size_t max) {
  (void)position;
  http_exchange *x = context;
  ssize_t n;
  pthread_mutex_lock(&x->lock);
  if (x->gone || x->cut) {
    n = MHD_CONTENT_READER_END_WITH_ERROR;
  } else if (x->ring_used) {
    size_t take = x->ring_used < max ? x->ring_used : max, first = HTTP_RING_BYTES - x->ring_head;
    if (first > take) first = take;
    memcpy(out, x->ring + x->ring_head, first);
    memcpy(out + first, x->ring, take - first);
    x->ring_head = (x->ring_head + take) % HTTP_RING_BYTES;
    x->ring_used -= take;
    if (x->want_room && x->ring_used <= HTTP_RING_BYTES / 2) {
      x->want_room = false;
      if (x->notify) x->notify(x->notify_context);
    }
    n = (ssize_t)take;
  } else if (x->ended) {
    n = x->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
  } else {
    x->suspended = true;
    MHD_suspend_connection(x->connection);
    n = 0;
  }
  pthread_mutex_unlock(&x->lock);
  return n;
}

static void stream_free(void *context) {
  http_exchange_release(context);
}

enum MHD_Result exchange_queue(http_exchange *x, struct MHD_Connection *connection) {
  struct MHD_Response *response;
  x->queued = true;
  /* The answer is fixed once given, so only the ring needs the lock from here on. */
  if (x->answer == ANSWER_BODY) {
    bytes_buffer body = x->out;
    x->out = (bytes_buffer){0};
    response = MHD_create_response_from_buffer_with_free_callback(body.len, body.data, free);
    if (!response) free(body.data);
  } else {
    http_exchange_hold(x);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    pthread_mutex_lock(&x->lock);
    if (info && x->is_11 && strcmp(x->method, "HEAD") != 0) direct_open(x, info->connect_fd);
    pthread_mutex_unlock(&x->lock);
    response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, stream_read, x, stream_free);
    if (!response) http_exchange_release(x);
  }
  if (!response) return MHD_NO;
  enum MHD_Result ok = MHD_YES;
  if (x->content_type) ok &= MHD_add_response_header(response, "Content-Type", x->content_type);
  for (unsigned i = 0; i < x->headers_n; i++)
    ok &= MHD_add_response_header(response, x->headers[i].name, x->headers[i].value);
  if (x->close) ok &= MHD_add_response_header(response, "Connection", "close");
  if (ok == MHD_YES) ok = MHD_queue_response(connection, x->status, response);
  MHD_destroy_response(response);
  return ok;
}

void http_sse_data(bytes_buffer *out, const char *payload, size_t len) {
  bytes_append_string(out, "data: ");
  bytes_append(out, payload, len);
  bytes_append_string(out, "\n\n");
}

void http_sse_comment(bytes_buffer *out, const char *text) {
  bytes_append_format(out, ": %s\n\n", text);
}
