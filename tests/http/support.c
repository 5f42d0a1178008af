/* SPDX-License-Identifier: Apache-2.0 */
#include "http/support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

typedef struct work {
  test_server *s;
  http_exchange *x;
  unsigned count, size, pause_ms;
  pthread_mutex_t lock;
  pthread_cond_t news;
  bool notified;
} work;

int64_t now_ns(void) {
  return clock_real_now(NULL);
}

static unsigned query_number(http_exchange *x, const char *name, unsigned missing) {
  bytes_view v = http_query(x, name);
  return v.ptr ? (unsigned)strtoul(v.ptr, NULL, 10) : missing;
}

static void answer_text(http_exchange *x, unsigned status, const char *text, size_t len) {
  bytes_buffer body;
  bytes_init(&body, 64 * 1024 * 1024);
  bytes_append(&body, text, len);
  http_answer(x, status, "text/plain", &body);
}

static void begin(void *context, http_exchange *x) {
  (void)context;
  if (!strcmp(http_path(x), "/now")) answer_text(x, 200, "now", 3);
  if (!strcmp(http_path(x), "/missing")) answer_text(x, 404, "missing", 7);
}

static void on_notify(void *context) {
  work *w = context;
  pthread_mutex_lock(&w->lock);
  w->notified = true;
  pthread_cond_signal(&w->news);
  pthread_mutex_unlock(&w->lock);
}

static void wait_news(work *w) {
  pthread_mutex_lock(&w->lock);
  while (!w->notified) pthread_cond_wait(&w->news, &w->lock);
  w->notified = false;
  pthread_mutex_unlock(&w->lock);
}

static void stream(work *w) {
  char *frame = malloc(w->size + 1);
  memset(frame, 'x', w->size);
  for (unsigned i = 0; i < w->count && !http_gone(w->x); i++) {
    char number[16];
    snprintf(number, sizeof number, "%08u", i);
    if (w->size >= 100) memcpy(frame, number, 8);
    for (size_t done = 0; done < w->size && !http_gone(w->x);) {
      done += http_stream_write(w->x, frame + done, w->size - done);
      if (done < w->size) wait_news(w);
    }
    if (w->pause_ms) usleep(w->pause_ms * 1000);
  }
  free(frame);
}

static void *work_main(void *context) {
  work *w = context;
  const char *path = http_path(w->x);
  http_watch(w->x, on_notify, w);
  if (!strcmp(path, "/later")) {
    answer_text(w->x, 200, "later", 5);
  } else if (!strcmp(path, "/echo")) {
    bytes_view body = http_body(w->x);
    answer_text(w->x, 200, body.ptr, body.len);
  } else if (!strcmp(path, "/wait")) {
    wait_news(w);
    answer_text(w->x, 200, "too late", 8);
  } else {
    assert_int_equal(http_stream_begin(w->x, 200, "text/plain"), TROIKA_OK);
    if (!strcmp(path, "/hang"))
      wait_news(w);
    else
      stream(w);
    http_stream_end(w->x, !strcmp(path, "/broken"));
  }
  if (http_gone(w->x)) {
    atomic_store(&w->s->gone_ns, now_ns());
    atomic_fetch_add(&w->s->gone, 1);
  }
  http_watch(w->x, NULL, NULL);
  http_exchange_release(w->x);
  atomic_fetch_sub(&w->s->threads, 1);
  free(w);
  return NULL;
}

static void handle(void *context, http_exchange *x) {
  test_server *s = context;
  atomic_fetch_add(&s->handled, 1);
  work *w = calloc(1, sizeof *w);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->news, NULL);
  w->s = s;
  w->x = x;
  w->count = query_number(x, "n", 1);
  w->size = query_number(x, "size", 1);
  w->pause_ms = query_number(x, "pause", 0);
  http_exchange_hold(x);
  atomic_fetch_add(&s->threads, 1);
  pthread_t t;
  pthread_create(&t, NULL, work_main, w);
  pthread_detach(t);
}

static void refuse(void *context, unsigned status, const char *message, bytes_buffer *out) {
  (void)context;
  bytes_append_format(out, "{\"status\":%u,\"message\":\"%s\"}", status, message);
}

void server_start(test_server *s, const http_options *options) {
  http_options o;
  memset(s, 0, sizeof *s);
  if (options)
    o = *options;
  else
    http_options_init(&o);
  o.port = 0;
  o.begin = begin;
  o.handle = handle;
  o.refuse = refuse;
  o.context = s;
  troika_error err = {0};
  if (http_server_open(&o, &s->http, &err)) fail_msg("%s", err.text);
}

void server_stop(test_server *s) {
  http_server_close(&s->http);
  for (int i = 0; i < 500 && atomic_load(&s->threads); i++) usleep(10000);
  assert_int_equal(atomic_load(&s->threads), 0);
}

int client_open(const test_server *s) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(http_server_port(s->http))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
  return fd;
}

void client_send_bytes(int fd, const void *data, size_t len) {
  const char *p = data;
  while (len) {
    ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
    if (n <= 0) return; /* the server closed: what it said is read next */
    p += n;
    len -= (size_t)n;
  }
}

void client_send(int fd, const char *text) {
  client_send_bytes(fd, text, strlen(text));
}

const char *client_read(int fd, const char *until, int ms) {
  static char buffer[4 * 1024 * 1024];
  size_t n = 0, searched = 0;
  int64_t end = now_ns() + ms * INT64_C(1000000);
  buffer[0] = 0;
  while (n + 1 < sizeof buffer && !(until && strstr(buffer + searched, until))) {
    searched = n < 64 ? 0 : n - 64; /* longer than any `until` */
    int64_t left = (end - now_ns()) / 1000000;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (left <= 0 || poll(&p, 1, (int)left) <= 0) break;
    ssize_t got = recv(fd, buffer + n, sizeof buffer - 1 - n, 0);
    if (got <= 0) break;
    n += (size_t)got;
    buffer[n] = 0;
  }
  return buffer;
}

bool client_closed(int fd, int ms) {
  char byte[4096];
  int64_t end = now_ns() + ms * INT64_C(1000000);
  for (;;) {
    int64_t left = (end - now_ns()) / 1000000;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (left <= 0 || poll(&p, 1, (int)left) <= 0) return false;
    if (recv(fd, byte, sizeof byte, 0) <= 0) return true;
  }
}

int count_of(const char *text, const char *what) {
  int n = 0;
  for (const char *p = text; (p = strstr(p, what)); p += strlen(what)) n++;
  return n;
}
