/* SPDX-License-Identifier: Apache-2.0 */
#include "http/get.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { HEAD_MAX = 64 * 1024, READ_BYTES = 16 * 1024 };

struct http_peer {
  char url[320], authority[300]; /* http://HOST:PORT; HOST:PORT */
  struct addrinfo *addresses;
};

typedef struct visit { /* one request */
  const http_peer *peer;
  const http_get_options *options;
  int64_t deadline_ns;
  int fd;
  bytes_buffer in; /* [at, len) is not used yet */
  size_t at;
  bool over; /* the other side has closed */
} visit;

static bool split(const char *url, char *host, size_t size, char *port, size_t port_size) {
  const char *p = strncmp(url, "http://", 7) ? url : url + 7;
  bool bracket = *p == '[';
  size_t len = bracket ? strcspn(++p, "]") : strcspn(p, ":/");
  if (!len || len >= size || (bracket && p[len] != ']')) return false;
  for (size_t i = 0; i < len; i++)
    if (p[i] <= ' ' || p[i] > '~' || strchr("/?#@\\%", p[i])) return false;
  memcpy(host, p, len);
  host[len] = 0;
  p += len + bracket;
  snprintf(port, port_size, "80");
  if (*p == ':') {
    len = strspn(++p, "0123456789");
    if (!len || len >= port_size) return false;
    memcpy(port, p, len);
    port[len] = 0;
    if (strtol(port, NULL, 10) > 65535 || strtol(port, NULL, 10) < 1) return false;
    p += len;
  }
  return !*p || !strcmp(p, "/");
}

troika_status http_peer_open(const char *url, http_peer **out, troika_error *err) {
  char host[256], port[6];
  if (!split(url, host, sizeof host, port, sizeof port))
    return error_set(err, TROIKA_INVALID, "\"%.100s\" is no address like http://127.0.0.1:8080",
                     url);
  http_peer *p = calloc(1, sizeof *p);
  if (!p) return error_set(err, TROIKA_NO_MEMORY, "no memory for an address");
  bool v6 = strchr(host, ':') != NULL;
  snprintf(p->authority, sizeof p->authority, v6 ? "[%s]:%s" : "%s:%s", host, port);
  snprintf(p->url, sizeof p->url, "http://%s", p->authority);
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  int failed = getaddrinfo(host, port, &hints, &p->addresses);
  if (failed) {
    error_set(err, TROIKA_IO, "there is no host \"%.100s\": %s", host, gai_strerror(failed));
    free(p);
    return TROIKA_IO;
  }
  *out = p;
  return TROIKA_OK;
}

void http_peer_close(http_peer **peer) {
  if (*peer) freeaddrinfo((*peer)->addresses);
  free(*peer);
  *peer = NULL;
}

const char *http_peer_url(const http_peer *peer) {
  return peer->url;
}

static troika_status wait_for(visit *v, short events, troika_error *err) {
  for (;;) {
    int64_t left = v->deadline_ns - clock_real_now(NULL);
    if (left <= 0) return error_set(err, TROIKA_DEADLINE, "it did not answer in time");
    struct pollfd p = {v->fd, events, 0};
    int n = poll(&p, 1, (int)(left / 1000000) + 1);
    if (n > 0) return TROIKA_OK;
    if (n < 0 && errno != EINTR) return error_set(err, TROIKA_IO, "%s", strerror(errno));
    if (n < 0 && v->options->stop && v->options->stop())
      return error_set(err, TROIKA_CANCELLED, "interrupted");
  }
}

/* To one of its addresses. */
static troika_status connect_to(visit *v, const struct addrinfo *a, troika_error *err) {
  int failed = 0;
  socklen_t len = sizeof failed;
  v->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
  if (v->fd < 0) return error_set(err, TROIKA_IO, "%s", strerror(errno));
  troika_status status = TROIKA_OK;
  if (connect(v->fd, a->ai_addr, a->ai_addrlen)) failed = errno;
  if (failed == EINPROGRESS || failed == EINTR) {
    status = wait_for(v, POLLOUT, err);
    if (!status) getsockopt(v->fd, SOL_SOCKET, SO_ERROR, &failed, &len);
  }
  if (!status && failed) status = error_set(err, TROIKA_IO, "%s", strerror(failed));
  if (!status) return TROIKA_OK;
  close(v->fd);
  v->fd = -1;
  return status;
}

static troika_status connect_any(visit *v, troika_error *err) {
  troika_status status = TROIKA_IO;
  for (const struct addrinfo *a = v->peer->addresses; a; a = a->ai_next) {
    status = connect_to(v, a, err);
    if (status != TROIKA_IO) break;
  }
  return status;
}

static troika_status send_all(visit *v, const bytes_buffer *out, troika_error *err) {
  for (size_t at = 0; at < out->len;) {
    ssize_t n = send(v->fd, out->data + at, out->len - at, MSG_NOSIGNAL);
    if (n >= 0) {
      at += (size_t)n;
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return error_set(err, TROIKA_IO, "%s", strerror(errno));
    troika_status status = wait_for(v, POLLOUT, err);
    if (status) return status;
  }
  return TROIKA_OK;
}

static troika_status send_request(visit *v, const char *path, troika_error *err) {
  bytes_buffer out;
  const char *key = v->options->key;
  bytes_init(&out, 8192);
  bytes_append_format(&out, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", path,
                      v->peer->authority);
  if (key) bytes_append_format(&out, "Authorization: Bearer %s\r\n", key);
  bytes_append_string(&out, "Accept: */*\r\n\r\n");
  troika_status status = out.failed ? error_set(err, TROIKA_NO_MEMORY, "no memory for a request")
                                    : send_all(v, &out, err);
  bytes_free(&out);
  return status;
}

/* Some more bytes, or `over`. */
static troika_status read_some(visit *v, troika_error *err) {
  char bytes[READ_BYTES];
  for (;;) {
    ssize_t n = recv(v->fd, bytes, sizeof bytes, 0);
    if (n >= 0) {
      v->over = n == 0;
      bytes_append(&v->in, bytes, (size_t)n);
      if (v->in.failed) return error_set(err, TROIKA_LIMIT, "its answer is too long");
      return TROIKA_OK;
    }
    if (errno != EAGAIN && errno != EINTR) return error_set(err, TROIKA_IO, "%s", strerror(errno));
    troika_status status = wait_for(v, POLLIN, err);
    if (status) return status;
  }
}

static troika_status no_answer(troika_error *err) {
  return error_set(err, TROIKA_FORMAT, "its answer is no HTTP");
}

/* One line without its end; borrowed until the next read. */
static troika_status read_line(visit *v, bytes_view *line, troika_error *err) {
  for (;;) {
    const char *from = v->in.len ? v->in.data + v->at : "";
    const char *end = memchr(from, '\n', v->in.len - v->at);
    if (end) {
      size_t len = (size_t)(end - from);
      v->at += len + 1;
      *line = bytes_of(from, len && from[len - 1] == '\r' ? len - 1 : len);
      return TROIKA_OK;
    }
    if (v->over || v->in.len - v->at > HEAD_MAX) return no_answer(err);
    troika_status status = read_some(v, err);
    if (status) return status;
  }
}

typedef struct head {
  unsigned status;
  bool chunked;
  int64_t length; /* -1: until the connection ends */
} head;

static bool is_field(bytes_view line, const char *name, bytes_view *value) {
  size_t n = strlen(name);
  if (line.len <= n || strncasecmp(line.ptr, name, n) != 0 || line.ptr[n] != ':') return false;
  *value = bytes_of(line.ptr + n + 1, line.len - n - 1);
  while (value->len && (*value->ptr == ' ' || *value->ptr == '\t')) value->ptr++, value->len--;
  return true;
}

/* Digits of a base, nothing else before `end`; -1: none, or far too many. */
static int64_t number_of(bytes_view text, const char *end, unsigned base) {
  static const char digits[] = "0123456789abcdef";
  int64_t n = 0;
  size_t i = 0;
  for (; i < text.len && !strchr(end, text.ptr[i]); i++) {
    char c = text.ptr[i];
    const char *d = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    if (!d || d - digits >= (int)base || n >= (int64_t)1 << 40) return -1;
    n = n * base + (d - digits);
  }
  return i ? n : -1;
}

/* Passes interim answers (1xx) over. */
static troika_status read_head(visit *v, head *h, troika_error *err) {
  bytes_view line, value;
  size_t total = 0;
  for (int answers = 0; answers < 10; answers++) {
    troika_status status = read_line(v, &line, err);
    if (status) return status;
    if (line.len < 12 || strncmp(line.ptr, "HTTP/1.", 7) != 0) return no_answer(err);
    int64_t code = number_of(bytes_of(line.ptr + 9, 3), "", 10);
    if (code < 100) return no_answer(err);
    *h = (head){.status = (unsigned)code, .length = -1};
    do {
      status = read_line(v, &line, err);
      if (status) return status;
      total += line.len;
      if (total > HEAD_MAX) return no_answer(err);
      if (is_field(line, "Content-Length", &value)) {
        h->length = number_of(value, " \t", 10);
        if (h->length < 0) return no_answer(err);
      }
      if (is_field(line, "Transfer-Encoding", &value)) {
        h->chunked = value.len == 7 && !strncasecmp(value.ptr, "chunked", 7);
        if (!h->chunked) return no_answer(err);
      }
    } while (line.len);
    if (code >= 200) return TROIKA_OK;
  }
  return no_answer(err);
}

/* n bytes; -1: to the end of the connection. */
static troika_status take(visit *v, int64_t n, bytes_buffer *out, troika_error *err) {
  while (n) {
    size_t there = v->in.len - v->at;
    if (n > 0 && (uint64_t)n < there) there = (size_t)n;
    if (there) bytes_append(out, v->in.data + v->at, there);
    if (out->failed) return error_set(err, TROIKA_LIMIT, "its answer is too long");
    v->at += there;
    if (n > 0) n -= (int64_t)there;
    if (!n) break;
    if (v->over)
      return n < 0 ? TROIKA_OK : error_set(err, TROIKA_IO, "it ended in the middle of an answer");
    bytes_clear(&v->in);
    v->at = 0;
    troika_status status = read_some(v, err);
    if (status) return status;
  }
  return TROIKA_OK;
}

static troika_status take_chunks(visit *v, bytes_buffer *out, troika_error *err) {
  for (;;) {
    bytes_view line;
    troika_status status = read_line(v, &line, err);
    if (status) return status;
    int64_t n = number_of(line, "; \t", 16);
    if (n < 0) return no_answer(err);
    if (!n) return TROIKA_OK; /* trailers, and the connection's end, are of no interest */
    status = take(v, n, out, err);
    if (!status) status = read_line(v, &line, err);
    if (status) return status;
    if (line.len) return no_answer(err);
    /* What is used goes, so that the answer's length is bounded by `out` alone. */
    memmove(v->in.data, v->in.data + v->at, v->in.len - v->at);
    v->in.len -= v->at;
    v->at = 0;
  }
}

troika_status http_get(const http_peer *peer, const char *path, const http_get_options *options,
                       unsigned *code, bytes_buffer *out, troika_error *err) {
  visit v = {.peer = peer,
             .options = options,
             .deadline_ns = clock_real_now(NULL) + options->timeout_ns,
             .fd = -1};
  head h = {0};
  bytes_init(&v.in, 4 * HEAD_MAX);
  troika_status status = connect_any(&v, err);
  if (!status) status = send_request(&v, path, err);
  if (!status) status = read_head(&v, &h, err);
  if (!status) {
    *code = h.status;
    status = h.chunked ? take_chunks(&v, out, err) : take(&v, h.length, out, err);
  }
  if (v.fd >= 0) close(v.fd);
  bytes_free(&v.in);
  return status;
}
