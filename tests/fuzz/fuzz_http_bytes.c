/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_http_bytes.c - any bytes at the real server, over a socket.
 *
 * Input: one byte that says how the connection ends ('0' wait, '1' half-close, '2' reset, '3'
 * close), then what is sent; 0x1e is not sent, it is where one packet ends and the next begins. One
 * server serves all inputs.
 *
 * What must hold: no crash; what comes back is a row of whole HTTP/1.1 answers, with statuses that
 * this server has; a connection that was half-closed is ended by the server within END_MS; and
 * after each input a well-formed request on another connection gets its answer. The end of a
 * connection is not waited for: up to PENDING_MAX wait together, so that an input costs a
 * millisecond or so. Where one fails that a later input was not the cause of, its bytes are
 * printed. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum {
  INPUT_MAX = 4096,
  PACKETS_MAX = 8, /* the rest goes in one */
  ANSWER_MS = 4,   /* how long an input waits for its answer before it half-closes */
  END_MS = 20000,  /* two sweeps of the watch thread and a busy machine */
  LOOK_MS = 20,
  PENDING_MAX = 200,
  ANSWERS_MAX = 8 * 8 * 4096, /* 4096 by a power of 8 */
  FLOOD = 128 * 1024          /* more than a ring */
};

/* --- the server: early answers, whole ones, and streams from another thread */

static http_server *server;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the worker's list, and `room` */
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static http_exchange *waiting[4096]; /* a ring: more than connections */
static size_t waiting_head, waiting_n;
static bool room;
static http_exchange *busy_with; /* the worker, now */

static void answer_text(http_exchange *x, unsigned status, const char *text) {
  bytes_buffer body;
  bytes_init(&body, 4096);
  bytes_append_string(&body, text);
  http_answer(x, status, "text/plain", &body);
}

static void on_begin(void *context, http_exchange *x) {
  (void)context;
  const char *path = http_path(x);
  bytes_view key = http_header(x, "authorization"), n = http_query(x, "n");
  if (!strcmp(path, "/now"))
    answer_text(x, 200, key.ptr && key.len > 100 ? "a long key" : n.ptr ? "n is given" : "now");
  else if (path[0] != '/' || !strchr("ewsfb", path[1]))
    answer_text(x, 404, "missing");
}

static void on_handle(void *context, http_exchange *x) {
  (void)context;
  if (!strcmp(http_path(x), "/echo")) {
    char text[64];
    bytes_view body = http_body(x);
    unsigned sum = 0;
    for (size_t i = 0; i < body.len; i++) sum += (uint8_t)body.ptr[i];
    snprintf(text, sizeof text, "%zu bytes, sum %u", body.len, sum);
    http_answer_header(x, "x-method", http_method(x));
    answer_text(x, 200, text);
    return;
  }
  http_exchange_hold(x);
  pthread_mutex_lock(&lock);
  CHECK(waiting_n < sizeof waiting / sizeof *waiting);
  waiting[(waiting_head + waiting_n++) % (sizeof waiting / sizeof *waiting)] = x;
  pthread_cond_broadcast(&news);
  pthread_mutex_unlock(&lock);
}

static void on_room(void *context) {
  (void)context;
  pthread_mutex_lock(&lock);
  room = true;
  pthread_cond_broadcast(&news);
  pthread_mutex_unlock(&lock);
}

static void wait_for_room(void) {
  pthread_mutex_lock(&lock);
  while (!room) pthread_cond_wait(&news, &lock);
  room = false;
  pthread_mutex_unlock(&lock);
}

static void stream(http_exchange *x, size_t frames, bool broken) {
  char frame[1024];
  memset(frame, 'f', sizeof frame);
  CHECK(http_stream_begin(x, 200, "text/plain") == TROIKA_OK);
  http_watch(x, on_room, NULL);
  for (size_t i = 0; i < frames; i++)
    for (size_t done = 0; done < sizeof frame;) {
      done += http_stream_write(x, frame + done, sizeof frame - done);
      if (done < sizeof frame) wait_for_room();
    }
  http_watch(x, NULL, NULL);
  http_stream_end(x, broken);
}

static void *worker_main(void *context) {
  for (;;) {
    pthread_mutex_lock(&lock);
    while (!waiting_n) pthread_cond_wait(&news, &lock);
    http_exchange *x = waiting[waiting_head];
    waiting_head = (waiting_head + 1) % (sizeof waiting / sizeof *waiting);
    waiting_n--;
    room = false;
    busy_with = x;
    pthread_mutex_unlock(&lock);
    switch (http_path(x)[1]) {
      case 's':
        stream(x, 3, false);
        break;
      case 'f':
        stream(x, FLOOD / 1024, false);
        break;
      case 'b':
        stream(x, 1, true);
        break;
      default:
        answer_text(x, 200, "whole");
    }
    pthread_mutex_lock(&lock);
    busy_with = NULL;
    pthread_mutex_unlock(&lock);
    http_exchange_release(x);
  }
  return context;
}

static void on_refuse(void *context, unsigned status, const char *message, bytes_buffer *out) {
  (void)context;
  bytes_append_format(out, "{\"status\":%u,\"message\":\"%s\"}", status, message);
}

/* --- what came back */

static const unsigned statuses[] = {100, 200, 400, 404, 408, 413, 414, 431, 501, 505};

static bool status_is_known(unsigned status) {
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
    if (statuses[i] == status) return true;
  return false;
}

/* The length of the chunked body at p, or of what there is of it; -1 if it is none. */
static ptrdiff_t chunked_length(const char *p, size_t len) {
  size_t at = 0;
  for (;;) {
    size_t size = 0, digits = 0;
    for (; at < len && digits < 8 && strchr("0123456789abcdefABCDEF", p[at]) && p[at];
         at++, digits++)
      size = size * 16 + (size_t)(p[at] <= '9' ? p[at] - '0' : (p[at] | 32) - 'a' + 10);
    if (at + 2 > len) return (ptrdiff_t)len;
    if (!digits || p[at] != '\r' || p[at + 1] != '\n') return -1;
    at += 2;
    if (at + size + 2 > len) return (ptrdiff_t)len;
    at += size;
    if (p[at] != '\r' || p[at + 1] != '\n') return -1;
    at += 2;
    if (!size) return (ptrdiff_t)at;
  }
}

static bool begins(const char *p, size_t len, const char *with) {
  size_t n = strlen(with);
  return !memcmp(p, with, len < n ? len : n);
}

/* A header's value within head, which ends with an empty line; NULL if it has none. */
static const char *find_header(const char *head, const char *end, const char *name) {
  for (const char *line = head; line < end;) {
    if (!strncasecmp(line, name, strlen(name))) return line + strlen(name);
    line = (const char *)memmem(line, (size_t)(end - line), "\r\n", 2) + 2;
  }
  return NULL;
}

/* What is wrong with the answers, or NULL. They may be cut off at any place: the client has gone.
 */
static const char *problem_of(const char *p, size_t len) {
  while (len) {
    if (!begins(p, len, "HTTP/1.1 ")) return "no status line";
    const char *end = memmem(p, len, "\r\n\r\n", 4);
    if (!end) return NULL;
    end += 4;
    unsigned status = (unsigned)strtoul(p + 9, NULL, 10);
    if (!status_is_known(status)) return "an unknown status";
    const char *length = find_header(p, end, "content-length: ");
    bool chunked = find_header(p, end, "transfer-encoding: chunked") != NULL;
    bool closes = find_header(p, end, "connection: close") != NULL;
    len -= (size_t)(end - p);
    p = end;
    if (status == 100) continue;
    if (length && chunked) return "both a length and chunks";
    if (!length && !chunked && closes) return NULL; /* a stream for HTTP/1.0: until the end */
    /* No body here begins so: this was the answer to a HEAD. (The library also writes the head of
     * some of its own 400s twice.) */
    if (len == 0 || begins(p, len, "HTTP/1.1 ")) continue;
    if (!length && !chunked) return "neither length nor chunks";
    if (chunked) {
      ptrdiff_t n = chunked_length(p, len);
      if (n < 0) return "no chunks";
      p += n;
      len -= (size_t)n;
    } else {
      size_t n = strtoul(length, NULL, 10);
      n = n < len ? n : len;
      p += n;
      len -= n;
    }
  }
  return NULL;
}

/* --- the clients */

typedef struct client {
  int fd;
  int64_t until_ns; /* INT64_MAX: its end is not waited for */
  char *input, *answers;
  size_t input_len, answers_len, answers_size;
} client;

static client pending[PENDING_MAX];
static size_t pending_n;

static void fail_of(const client *c, const char *problem) {
  fprintf(stderr, "http_bytes: ERROR: %s, for the input \"", problem);
  for (size_t i = 0; i < c->input_len; i++) {
    unsigned char b = (unsigned char)c->input[i];
    fprintf(stderr, b >= 0x20 && b < 0x7f && b != '"' && b != '\\' ? "%c" : "\\x%02x", b);
  }
  fprintf(stderr, "\"\n%zu bytes came: \"%.*s\"\n", c->answers_len,
          (int)(c->answers_len < 2000 ? c->answers_len : 2000), c->answers ? c->answers : "");
  CHECK(!"the server was wrong");
}

/* libFuzzer's own alarm interrupts this thread once in a while. */
static int poll_one(struct pollfd *p, int ms) {
  int64_t end = clock_real_now(NULL) + ms * INT64_C(1000000);
  for (;;) {
    int n = poll(p, 1, ms);
    if (n >= 0 || errno != EINTR) return n;
    int64_t left = (end - clock_real_now(NULL)) / 1000000;
    ms = left > 0 ? (int)left : 0;
  }
}

/* An interrupted connect goes on by itself. */
static bool connected(int fd, const struct sockaddr_in *to) {
  if (!connect(fd, (const struct sockaddr *)to, sizeof *to)) return true;
  int problem = errno;
  socklen_t len = sizeof problem;
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  if (problem == EINTR && poll_one(&p, END_MS) == 1)
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &len);
  if (problem) fprintf(stderr, "http_bytes: ERROR: cannot connect: %s\n", strerror(problem));
  return problem == 0;
}

/* From an address of its own: one address has too few ports for thousands of connections a second,
 * and a port that is used again too soon meets what is left of its last connection. */
static int open_client(void) {
  static uint32_t from;
  int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(http_server_port(server))},
                     own = {.sin_family = AF_INET};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + from++ % 50000);
  CHECK(fd >= 0);
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  CHECK(bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
  CHECK(connected(fd, &a));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

/* By RST: thousands a second would else leave no free port. */
static void close_client(client *c) {
  struct linger reset = {1, 0};
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close(c->fd);
  free(c->input);
  free(c->answers);
}

/* Takes what is there; true once the connection has ended. */
static bool take(client *c) {
  for (;;) {
    if (c->answers_len == ANSWERS_MAX) return true; /* enough of a flood */
    if (c->answers_len == c->answers_size) {
      c->answers_size = c->answers_size ? c->answers_size * 8 : 4096;
      CHECK(c->answers = realloc(c->answers, c->answers_size));
    }
    ssize_t n =
        recv(c->fd, c->answers + c->answers_len, c->answers_size - c->answers_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) return true;
    c->answers_len += (size_t)n;
  }
}

static void over(client *c) {
  const char *problem = problem_of(c->answers, c->answers_len);
  if (problem) fail_of(c, problem);
  close_client(c);
}

/* Looks after those that wait for their end, until at most `most` are left. */
static void look_after(size_t most) {
  for (;;) {
    int64_t now = clock_real_now(NULL);
    for (size_t i = 0; i < pending_n;) {
      if (take(&pending[i])) {
        over(&pending[i]);
        pending[i] = pending[--pending_n];
        continue;
      }
      if (now > pending[i].until_ns) fail_of(&pending[i], "half-closed, and not ended");
      i++;
    }
    if (pending_n <= most) return;
    usleep(1000);
  }
}

/* Who could be to blame, for whoever reads the log. */
static void say_state(const char *asked, const char *answer) {
  pthread_mutex_lock(&lock);
  fprintf(stderr,
          "http_bytes: ERROR: no answer to %s, only \"%s\"; %u connections, %u exchanges, %zu "
          "pending; the "
          "worker has %zu more, room %d, and is busy with %s %s (gone %d)\n",
          asked, answer, http_server_connections(server), http_server_exchanges(server), pending_n,
          waiting_n, room, busy_with ? http_method(busy_with) : "nothing",
          busy_with ? http_path(busy_with) : "", busy_with && http_gone(busy_with));
  pthread_mutex_unlock(&lock);
  for (size_t i = 0; i < pending_n; i++)
    fprintf(stderr, "pending: %zu bytes came to \"%.*s\"\n", pending[i].answers_len,
            (int)pending[i].input_len, pending[i].input);
}

/* A well-formed request on a connection of its own is answered whatever went on before. */
static void check_served(unsigned number) {
  static const char *const asked[] = {"/now", "/whole", "/stream", "/now"};
  static const char *const wanted[] = {"\r\n\r\nnow", "\r\n\r\nwhole", "\r\n0\r\n\r\n",
                                       "\r\n\r\nnow"};
  char request[128], *answer = malloc(8192);
  size_t n = 0;
  CHECK(answer);
  client c = {.fd = open_client(), .answers = answer};
  int len =
      snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", asked[number % 4]);
  CHECK(send(c.fd, request, (size_t)len, MSG_NOSIGNAL) == len);
  for (answer[0] = 0; !strstr(answer, wanted[number % 4]); answer[n] = 0) {
    struct pollfd p = {.fd = c.fd, .events = POLLIN};
    int news_n = 0;
    /* The others go on reading: the worker may be writing to one of them. */
    for (int ms = 0; ms < END_MS && !news_n; ms += LOOK_MS) {
      news_n = poll_one(&p, LOOK_MS);
      if (!news_n) look_after(PENDING_MAX);
    }
    if (news_n != 1) say_state(asked[number % 4], answer);
    CHECK(news_n == 1);
    ssize_t got = recv(c.fd, answer + n, 8191 - n, 0);
    if (got < 0 && errno == EINTR) continue;
    CHECK(got > 0);
    n += (size_t)got;
  }
  CHECK(!strncmp(answer, "HTTP/1.1 200 ", 13));
  close_client(&c);
}

static void send_packets(int fd, const char *data, size_t len) {
  for (int i = 0; len; i++) {
    const char *mark = i < PACKETS_MAX ? memchr(data, 0x1e, len) : NULL;
    size_t n = mark ? (size_t)(mark - data) : len;
    if (n && send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n) return; /* it closed */
    if (!mark) return;
    usleep(50); /* the server's turn */
    data += n + 1;
    len -= n + 1;
  }
}

static void end_of_process(void) {
  look_after(0);
}

static void start(void) {
  struct rlimit files;
  pthread_t worker;
  troika_error err = {0};
  http_options o;
  if (!getrlimit(RLIMIT_NOFILE, &files)) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  http_options_init(&o);
  o.port = 0;
  o.body_max = 2048;
  o.header_max = 1024;
  o.request_time_s = 2;
  o.write_time_s = 5;
  o.begin = on_begin;
  o.handle = on_handle;
  o.refuse = on_refuse;
  CHECK(http_server_open(&o, &server, &err) == TROIKA_OK);
  CHECK(!pthread_create(&worker, NULL, worker_main, NULL));
  CHECK(!atexit(end_of_process));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  static unsigned number;
  if (len < 2 || len > INPUT_MAX) return -1;
  if (!server) start();
  look_after(PENDING_MAX - 1);
  client c = {.fd = open_client(),
              .input = malloc(len),
              .input_len = len,
              .until_ns = clock_real_now(NULL) + END_MS * INT64_C(1000000)};
  CHECK(c.input);
  memcpy(c.input, data, len);
  send_packets(c.fd, (const char *)data + 1, len - 1);
  unsigned how = data[0] & 3;
  if (how == 0) {
    struct pollfd p = {.fd = c.fd, .events = POLLIN};
    poll_one(&p, ANSWER_MS);
  }
  if (take(&c) || how == 2 || how == 3) {
    if (how == 3) shutdown(c.fd, SHUT_RDWR);
    over(&c);
  } else {
    shutdown(c.fd, SHUT_WR);
    pending[pending_n++] = c;
  }
  check_served(number++);
  return 0;
}
