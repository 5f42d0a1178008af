/* SPDX-License-Identifier: Apache-2.0 */
/* The server over raw sockets: answers, limits, what smuggles, who is gone, stopping with
 * connections alive. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/support.h"

static test_server server;

static int start(void **state) {
  (void)state;
  server_start(&server, NULL);
  return 0;
}

static int stop(void **state) {
  (void)state;
  server_stop(&server);
  return 0;
}

/* One request on a connection of its own; the whole answer. */
static const char *ask(const char *request) {
  int fd = client_open(&server);
  client_send(fd, request);
  const char *answer = client_read(fd, NULL, 400);
  close(fd);
  return answer;
}

/* The same, as soon as `until` has come. */
static const char *ask_until(const char *request, const char *until) {
  int fd = client_open(&server);
  client_send(fd, request);
  const char *answer = client_read(fd, until, 5000);
  close(fd);
  return answer;
}

static void expect_start(const char *answer, const char *start) {
  if (strncmp(answer, start, strlen(start)))
    fail_msg("wanted \"%s\", got \"%.300s\"", start, answer);
}

static void test_answers(void **state) {
  (void)state;
  const char *a = ask("GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
  expect_start(a, "HTTP/1.1 200");
  assert_non_null(strstr(a, "\r\n\r\nnow"));
  a = ask("GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
  assert_non_null(strstr(a, "\r\n\r\nlater"));
  a = ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
  assert_non_null(strstr(a, "\r\n\r\nhello"));
  a = ask("HEAD /now HTTP/1.1\r\nHost: a\r\n\r\n");
  assert_non_null(strstr(a, "Content-Length: 3"));
  assert_null(strstr(a, "\r\n\r\nnow"));
}

static void test_pipelining_and_keep_alive(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd,
              "GET /later HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: "
              "a\r\nContent-Length: 3\r\n\r\nabc"
              "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
  const char *a = client_read(fd, "\r\n\r\nnow", 2000);
  assert_int_equal(count_of(a, "HTTP/1.1 200"), 3);
  assert_true(strstr(a, "later") < strstr(a, "abc"));
  close(fd);
}

static void test_chunked_body(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd,
              "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA;x=y\r\n01234");
  usleep(20000);
  client_send(fd, "56789\r\n3\r\nabc\r\n0\r\nTrailer: t\r\n\r\n");
  const char *a = client_read(fd, "abc", 2000);
  assert_non_null(strstr(a, "\r\n\r\n0123456789abc"));
  close(fd);
  a = ask(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n");
  if (*a) expect_start(a, "HTTP/1.1 400");
}

/* Cut in two at every place, on one connection: what is left over would spoil the next. */
static void test_H1_chunked_in_packets(void **state) {
  (void)state;
  static const char request[] =
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA;x=y\r\n0123456789\r\n"
      "0003;n=\"a b\";m\r\nabc\r\n0;last\r\nTrailer: t\r\nX-Other: u\r\n\r\n";
  size_t len = sizeof request - 1;
  int fd = client_open(&server), on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  for (size_t cut = 1; cut <= len; cut++) { /* the last: a byte a packet */
    for (size_t at = 0; at < len;) {
      size_t n = cut == len ? 1 : at ? len - at : cut;
      client_send_bytes(fd, request + at, n);
      at += n;
      usleep(1000);
    }
    const char *a = client_read(fd, "789abc", 5000);
    expect_start(a, "HTTP/1.1 200");
    assert_non_null(strstr(a, "Content-Length: 13\r\n"));
    if (!strstr(a, "\r\n\r\n0123456789abc")) fail_msg("cut at %zu: \"%s\"", cut, a);
  }
  close(fd);
}

/* Refused with 400 and closed; neither it nor what follows it is taken for a request. */
static void expect_refused(const char *lines) {
  char request[512], answer[2048];
  int before = atomic_load(&server.handled);
  snprintf(request, sizeof request,
           "POST /echo HTTP/1.1\r\nHost: a\r\n%s\r\n0\r\n\r\nGET /now HTTP/1.1\r\nHost: a\r\n\r\n",
           lines);
  int fd = client_open(&server);
  client_send(fd, request);
  snprintf(answer, sizeof answer, "%s", client_read(fd, NULL, 2000));
  if (strstr(answer, "HTTP/1.1 200") || strstr(answer, "HTTP/1.1 404"))
    fail_msg("smuggled by \"%s\": %s", lines, answer);
  /* The library writes the head of its own 400 (a length that is no number) twice, and says 413
   * to a huge one. */
  if (count_of(answer, "HTTP/1.1 4") < 1) fail_msg("no 400 for \"%s\": \"%s\"", lines, answer);
  if (!client_closed(fd, 2000)) fail_msg("still open after \"%s\"", lines);
  assert_int_equal(atomic_load(&server.handled), before);
  close(fd);
}

static void test_H1_both_lengths_are_refused(void **state) {
  (void)state;
  static const char *const both[] = {
      "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
      "transfer-encoding: Chunked\r\nX-A: b\r\ncontent-length: 0\r\n",
      "Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
  };
  for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
    expect_refused(both[i]);
    char request[256];
    snprintf(request, sizeof request, "POST /echo HTTP/1.1\r\nHost: a\r\n%s\r\n", both[i]);
    expect_start(ask(request), "HTTP/1.1 400");
  }
}

static void test_H1_bad_chunk_is_400(void **state) {
  (void)state;
  static const char *const bad[] = {"zz\r\nabc\r\n0\r\n\r\n",  "-1\r\nabc\r\n0\r\n\r\n",
                                    "\r\nabc\r\n0\r\n\r\n",    "0x3\r\nabc\r\n0\r\n\r\n",
                                    "3 5\r\nabc\r\n0\r\n\r\n", "3\r\nabcde\r\n0\r\n\r\n",
                                    "+3\r\nabc\r\n0\r\n\r\n",  "3\r\nabc\r\n0\r\nno colon\r\n\r\n"};
  int before = atomic_load(&server.handled);
  for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) {
    int fd = client_open(&server);
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    if (i % 2) usleep(20000); /* in a packet of its own */
    client_send(fd, bad[i / 2]);
    const char *a = client_read(fd, NULL, 2000);
    if (strncmp(a, "HTTP/1.1 400", 12)) fail_msg("to \"%s\": \"%s\"", bad[i / 2], a);
    assert_true(client_closed(fd, 2000));
    close(fd);
  }
  assert_int_equal(atomic_load(&server.handled), before);
  /* A size that no integer holds; the library says so itself. */
  expect_start(ask("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "fffffffffffffffff\r\nabc"),
               "HTTP/1.1 4");
}

static void test_smuggling_is_refused(void **state) {
  (void)state;
  static const char *const bad[] = {
      "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
      "Content-Length: 5\r\nContent-Length: 5\r\n",
      "Content-Length: 5\r\nContent-Length: 6\r\n",
      "Content-Length: +5\r\n",
      "Content-Length: 5, 5\r\n",
      "Content-Length: 0x5\r\n",
      "Content-Length: -1\r\n",
      "Content-Length: 99999999999999999999\r\n",
      "Transfer-Encoding: gzip\r\n",
      "Transfer-Encoding: gzip, chunked\r\n",
      "Transfer-Encoding: xchunked\r\n",
      "Transfer-Encoding: chunked \r\n", /* to the library another coding: without an end */
      "Transfer-Encoding: chunked\t\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding : chunked\r\n",
      "Content-Length : 5\r\n",
      "X-A: b\r\n Transfer-Encoding: chunked\r\n",
      "X-A: b\r\n\tc\r\nContent-Length: 5\r\n",
      "X-A:\r\n c\r\nContent-Length: 5\r\n",
      "Host: b\r\nContent-Length: 5\r\n",
      "X-\x01: b\r\nContent-Length: 5\r\n",
      "X-A: b\rc\r\nContent-Length: 5\r\n",
      "X(A): b\r\nContent-Length: 5\r\n",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_refused(bad[i]);
  expect_start(ask("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
               "HTTP/1.1 400");
  expect_start(ask("GET /now HTTP/1.1\r\n\r\n"), "HTTP/1.1 400");
}

static void test_unfolded_headers_are_taken(void **state) {
  (void)state;
  const char *a =
      ask("POST /echo HTTP/1.1\r\nHost:a\r\nX-Empty:\r\nX-Blank:   \r\nX-Pad: \t v \t\r\nCookie: "
          "a=b; c=d\r\n"
          "Content-Length:  2\r\nX-Colon: a:b: c\r\n\r\nhi");
  expect_start(a, "HTTP/1.1 200");
}

static void test_early_answer_closes(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd, "POST /missing HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\npart");
  expect_start(client_read(fd, "missing", 2000), "HTTP/1.1 404");
  close(fd);
  fd = client_open(&server);
  client_send(
      fd, "POST /missing HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
  const char *a = client_read(fd, "missing", 2000);
  assert_int_equal(count_of(a, "HTTP/1.1 100"), 0);
  close(fd);
  fd = client_open(&server);
  /* a body on a GET that is answered at once is not read as a second request */
  client_send(fd,
              "GET /now HTTP/1.1\r\nHost: a\r\nContent-Length: 37\r\n\r\nGET /missing "
              "HTTP/1.1\r\nHost: a\r\n\r\n....");
  a = client_read(fd, NULL, 1000);
  assert_int_equal(count_of(a, "HTTP/1.1"), 1);
  close(fd);
}

/* What succeeds for CONNECT has no length and no chunks (RFC 9110, 9.3.6), so no path may take it.
 * Found by the fuzzer. */
static void test_connect_is_refused(void **state) {
  (void)state;
  static const char *const paths[] = {"/now", "/echo", "/stream", "a:443"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    char request[128];
    snprintf(request, sizeof request, "CONNECT %s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
    int fd = client_open(&server);
    client_send(fd, request);
    const char *a = client_read(fd, "method", 2000);
    expect_start(a, "HTTP/1.1 501");
    assert_int_equal(count_of(a, "Content-Length: "), 1);
    close(fd);
  }
}

static void test_limits(void **state) {
  (void)state;
  test_server small;
  http_options o;
  http_options_init(&o);
  o.body_max = 1000;
  o.header_max = 4096;
  server_start(&small, &o);
  int fd = client_open(&small);
  client_send(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
  expect_start(client_read(fd, "large", 2000), "HTTP/1.1 413");
  close(fd);
  fd = client_open(&small);
  client_send(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  char chunk[1024];
  memset(chunk, 'x', sizeof chunk);
  for (int i = 0; i < 4; i++) {
    client_send(fd, "400\r\n");
    client_send_bytes(fd, chunk, sizeof chunk);
    client_send(fd, "\r\n");
  }
  client_send(fd, "0\r\n\r\n");
  expect_start(client_read(fd, "large", 2000), "HTTP/1.1 413");
  close(fd);
  fd = client_open(&small);
  client_send(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  client_send_bytes(fd, chunk, 1000);
  expect_start(client_read(fd, "xxx", 2000), "HTTP/1.1 200");
  close(fd);
  fd = client_open(&small);
  client_send(fd, "GET /now HTTP/1.1\r\nHost: a\r\n");
  for (int i = 0; i < 6; i++) {
    client_send(fd, "X: ");
    client_send_bytes(fd, chunk, 1000);
    client_send(fd, "\r\n");
  }
  client_send(fd, "\r\n");
  expect_start(client_read(fd, NULL, 1000), "HTTP/1.1 431");
  close(fd);
  server_stop(&small);
}

static void test_slow_request_is_closed(void **state) {
  (void)state;
  test_server impatient;
  http_options o;
  http_options_init(&o);
  o.request_time_s = 1;
  server_start(&impatient, &o);
  int slow_header = client_open(&impatient), slow_body = client_open(&impatient),
      idle = client_open(&impatient);
  client_send(slow_header, "GET /now HTTP/1.1\r\nHost: a\r\nX: ");
  client_send(slow_body, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
  int long_stream = client_open(&impatient);
  client_send(long_stream, "GET /stream?n=25&pause=100 HTTP/1.1\r\nHost: a\r\n\r\n");
  for (int i = 0; i < 12; i++) { /* a byte now and then does not help */
    client_send(slow_header, "x");
    client_send(slow_body, "x");
    usleep(100000);
  }
  assert_true(client_closed(slow_header, 1500));
  assert_true(client_closed(slow_body, 1500));
  assert_true(client_closed(idle, 1500));
  const char *a =
      client_read(long_stream, "0\r\n\r\n", 4000); /* an answer may take as long as it takes */
  assert_int_equal(count_of(a, "\r\n1\r\nx"), 25);
  close(slow_header), close(slow_body), close(idle), close(long_stream);
  server_stop(&impatient);
}

/* Half a request, a byte each 100 ms: 408 with a body when the time is over, also as the second on
 * its connection; others are served meanwhile. Who sent nothing is told nothing. */
static void test_H6_slowloris_gets_408(void **state) {
  (void)state;
  static const char *const halves[] = {
      "GET /now HTTP/1.1\r\nHost: a\r\nX: ", "GET /no",
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n"};
  enum { N = 8 };
  test_server impatient;
  http_options o;
  http_options_init(&o);
  o.request_time_s = 1;
  server_start(&impatient, &o);
  int fds[N], silent = client_open(&impatient);
  for (int i = 0; i < N; i++) {
    fds[i] = client_open(&impatient);
    if (i < N / 2) {
      client_send(fds[i], "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
      assert_non_null(strstr(client_read(fds[i], "\r\n\r\nlater", 2000), "later"));
    }
    client_send(fds[i], halves[i % 4]);
  }
  for (int round = 0; round < 8; round++) {
    for (int i = 0; i < N; i++) client_send(fds[i], "x");
    int64_t t = now_ns();
    int fd = client_open(&impatient);
    client_send(fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_start(client_read(fd, "\r\n\r\nlater", 2000), "HTTP/1.1 200");
    assert_true(now_ns() - t < 1000000000);
    close(fd);
    usleep(100000);
  }
  for (int i = 0; i < N; i++) {
    const char *a = client_read(fds[i], NULL, 4000);
    if (strncmp(a, "HTTP/1.1 408 ", 13)) fail_msg("to \"%s\": \"%s\"", halves[i % 4], a);
    assert_int_equal(count_of(a, "HTTP/1.1"), 1);
    assert_non_null(strstr(a, "\r\nConnection: close\r\n"));
    assert_non_null(strstr(a, "\r\n\r\n{\"status\":408,"));
    assert_true(client_closed(fds[i], 1000));
    close(fds[i]);
  }
  assert_string_equal(client_read(silent, NULL, 4000), "");
  assert_true(client_closed(silent, 1000));
  close(silent);
  server_stop(&impatient);
}

static void test_H6_64_KiB_of_headers_are_431(void **state) {
  (void)state;
  static char big[65536 + 256];
  for (int lines = 0; lines < 2; lines++) {
    size_t n = (size_t)snprintf(big, sizeof big, "GET /now HTTP/1.1\r\nHost: a\r\n");
    memset(big + n, 'x', 65536);
    memcpy(big + n, "X: ", 3);
    for (size_t i = 1024; lines && i < 65536; i += 1024) memcpy(big + n + i, "\r\nX: ", 5);
    memcpy(big + n + 65536, "\r\n\r\n", 5);
    int fd = client_open(&server);
    client_send(fd, big);
    expect_start(client_read(fd, NULL, 2000), "HTTP/1.1 431");
    assert_true(client_closed(fd, 2000));
    close(fd);
    expect_start(ask("GET /now HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 200");
  }
}

static void test_H6_body_over_the_limit_is_413(void **state) {
  (void)state;
  test_server small;
  http_options o;
  http_options_init(&o);
  o.body_max = 10000;
  server_start(&small, &o);
  static const char *const length[] = {"10001", "999999999999"};
  for (int i = 0; i < 2; i++) { /* nothing of the body was sent */
    char request[128];
    int fd = client_open(&small);
    snprintf(request, sizeof request,
             "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n", length[i]);
    client_send(fd, request);
    expect_start(client_read(fd, "large", 2000), "HTTP/1.1 413");
    assert_true(client_closed(fd, 2000));
    close(fd);
  }
  assert_int_equal(atomic_load(&small.handled), 0);
  server_stop(&small);
}

static int64_t resident_bytes(void) {
  long total = 0, resident = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f) return 0;
  int n = fscanf(f, "%ld %ld", &total, &resident);
  fclose(f);
  return n == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

static void keep_idle(const test_server *s, int *fds, int n) {
  for (int i = 0; i < n; i++) {
    fds[i] = client_open(s);
    client_send(fds[i], "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
    const char *a = client_read(fds[i], "\r\n\r\nnow", 5000);
    if (strncmp(a, "HTTP/1.1 200", 12)) fail_msg("connection %d: \"%s\"", i, a);
  }
}

/* A thousand that were served and stay: each costs the library's pool (64 KiB, cleared as a whole
 * between two requests) and little more, and others are served. */
static void test_H6_idle_connections(void **state) {
  (void)state;
  enum { N = 1000, EACH = 72 * 1024 };
  static int fds[N];
  struct rlimit files = {0};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  assert_true(files.rlim_cur > 2 * N + 100);
  client_read(client_open(&server), NULL, 1); /* its buffer is there */
  int64_t before = resident_bytes();
  keep_idle(&server, fds, N);
  int64_t grown = resident_bytes() - before;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  grown /= 8; /* shadow memory and quarantine */
#endif
  if (grown > N * (int64_t)EACH) fail_msg("%lld bytes a connection", (long long)grown / N);
  for (int i = 0; i < 20; i++) {
    int64_t t = now_ns();
    expect_start(ask_until("GET /later HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\nlater"),
                 "HTTP/1.1 200");
    assert_true(now_ns() - t < 500000000);
  }
  for (int i = 0; i < N; i++) close(fds[i]);
}

/* More than there are places for: the longest idle ones make room, so that all are served. */
static void test_H6_idle_connections_make_room(void **state) {
  (void)state;
  enum { PLACES = 32, N = 48 };
  int fds[N];
  test_server crowded;
  http_options o;
  http_options_init(&o);
  o.connections_max = PLACES;
  server_start(&crowded, &o);
  keep_idle(&crowded, fds, N);
  assert_true(http_server_connections(crowded.http) <= PLACES);
  assert_true(client_closed(fds[0], 1000)); /* the oldest, not the newest */
  assert_false(client_closed(fds[N - 1], 100));
  for (int i = 0; i < N; i++) close(fds[i]);
  server_stop(&crowded);
}

static void test_stream(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd, "GET /stream?n=10&size=4&pause=20 HTTP/1.1\r\nHost: a\r\n\r\n");
  int64_t t = now_ns();
  const char *a = client_read(fd, "xxxx", 1000);
  assert_non_null(strstr(a, "chunked"));
  assert_true(now_ns() - t < 150000000); /* the first frame does not wait for the rest */
  a = client_read(fd, "0\r\n\r\n", 2000);
  assert_int_equal(count_of(a, "xxxx"), 9);
  for (int i = 0; i < 3; i++) { /* and the connection lives on, also after answers from begin */
    client_send(fd, "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
    a = client_read(fd, "now", 1000);
    expect_start(a, "HTTP/1.1 200");
    assert_null(strstr(a, "Connection: close"));
    client_send(fd, "GET /missing HTTP/1.1\r\nHost: a\r\n\r\n");
    expect_start(client_read(fd, "missing", 1000), "HTTP/1.1 404");
  }
  client_send(fd, "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
  expect_start(client_read(fd, "now", 1000), "HTTP/1.1 200");
  close(fd);
}

/* Takes off the chunks' framing and looks at the frames' numbers; how many there are. */
static unsigned check_frames(const char *p, size_t size) {
  static char body[4 << 20];
  size_t len = 0;
  for (;;) {
    char *end;
    size_t n = strtoul(p, &end, 16);
    assert_true(end > p && !strncmp(end, "\r\n", 2));
    if (!n) break;
    assert_true(len + n <= sizeof body);
    memcpy(body + len, end + 2, n);
    len += n;
    p = end + 2 + n;
    assert_memory_equal(p, "\r\n", 2);
    p += 2;
  }
  assert_int_equal(len % size, 0);
  for (size_t i = 0; i < len / size; i++) {
    char number[24];
    snprintf(number, sizeof number, "%08zu", i);
    assert_memory_equal(body + i * size, number, 8);
    for (size_t j = 8; j < size; j++) assert_true(body[i * size + j] == 'x');
  }
  return (unsigned)(len / size);
}

/* A reader that stops reading fills its ring, and the writer waits; then everything arrives. */
static void test_slow_reader(void **state) {
  (void)state;
  int fd = client_open(&server), size = 64 * 1024;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  client_send(fd, "GET /stream?n=3000&size=1000 HTTP/1.1\r\nHost: a\r\n\r\n");
  usleep(300000);
  const char *a = client_read(fd, "0\r\n\r\n", 8000), *p = strstr(a, "\r\n\r\n");
  assert_non_null(p);
  assert_int_equal(check_frames(p + 4, 1000), 3000);
  close(fd);
}

/* Now and then behind, now and then waiting for more: frames go both ways, through the ring and
 * straight into the socket, and none overtakes another. */
static void test_frames_keep_their_order(void **state) {
  (void)state;
  int fd = client_open(&server), size = 4096;
  static char text[1 << 20];
  size_t len = 0;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  client_send(fd, "GET /stream?n=900&size=500&pause=1 HTTP/1.1\r\nHost: a\r\n\r\n");
  for (int i = 0; len < sizeof text - 1 && !(len > 5 && !memcmp(text + len - 5, "0\r\n\r\n", 5));
       i++) {
    if (i % 60 == 0) usleep(120000);
    ssize_t n = recv(fd, text + len, i % 2 ? 700 : sizeof text - 1 - len, 0);
    assert_true(n > 0);
    len += (size_t)n;
  }
  text[len] = 0;
  const char *p = strstr(text, "\r\n\r\n");
  assert_non_null(p);
  assert_int_equal(check_frames(p + 4, 500), 900);
  close(fd);
}

static void wait_gone(int before) {
  for (int i = 0; i < 200 && atomic_load(&server.gone) == before; i++) usleep(5000);
  assert_int_equal(atomic_load(&server.gone), before + 1);
}

static void expect_seen_to_go(const char *request, int how) {
  int before = atomic_load(&server.gone), handled = atomic_load(&server.handled);
  int fd = client_open(&server);
  client_send(fd, request);
  for (int i = 0; i < 200 && atomic_load(&server.handled) == handled; i++) usleep(5000);
  usleep(50000);
  int64_t t = now_ns();
  if (how == SHUT_RDWR) {
    struct linger reset = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
  } else {
    shutdown(fd, how);
  }
  wait_gone(before);
  int64_t took = atomic_load(&server.gone_ns) - t;
  if (took > 100000000) fail_msg("seen after %lld ms", (long long)took / 1000000);
  if (how != SHUT_RDWR) close(fd);
}

static void test_gone_is_seen(void **state) {
  (void)state;
  expect_seen_to_go("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n", SHUT_RDWR);
  expect_seen_to_go("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", SHUT_RDWR);
  expect_seen_to_go("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n", SHUT_WR);
  expect_seen_to_go("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", SHUT_WR);
}

/* It completes with its headers, while the writer waits for room in the ring. */
static void test_head_of_a_stream_ends_its_writer(void **state) {
  (void)state;
  int before = atomic_load(&server.gone), fd = client_open(&server);
  client_send(fd, "HEAD /stream?n=1000&size=1000 HTTP/1.1\r\nHost: a\r\n\r\n");
  expect_start(client_read(fd, "\r\n\r\n", 2000), "HTTP/1.1 200");
  wait_gone(before);
  client_send(fd, "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
  assert_non_null(strstr(client_read(fd, "\r\n\r\nnow", 2000), "\r\n\r\nnow"));
  close(fd);
}

/* The end comes in the same edge as the bytes before it, which the library reports once. */
static void test_gone_in_mid_request_frees_its_place(void **state) {
  (void)state;
  static const char *const parts[] = {
      "GET /now HTTP/1.1\r\nHo",
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"};
  for (int i = 0; i < 60; i++) {
    int fd = client_open(&server);
    client_send(fd, parts[i % 2]);
    close(fd);
  }
  for (int i = 0; i < 500 && http_server_connections(server.http); i++) usleep(10000);
  assert_int_equal(http_server_connections(server.http), 0);
  int fd = client_open(&server); /* whole, but half-closed: answered, and let go */
  client_send(fd, "GET /now HTTP/1.1\r\nHost: x\r\n\r\n");
  shutdown(fd, SHUT_WR);
  assert_true(client_closed(fd, 5000));
  close(fd);
}

static void test_stop_with_half_a_request(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\nx");
  usleep(100000);
  http_server_quiesce(server.http);
  for (int i = 0; i < 500 && http_server_exchanges(server.http); i++) usleep(10000);
  assert_int_equal(http_server_exchanges(server.http), 0);
  close(fd);
}

static void test_broken_stream_is_cut(void **state) {
  (void)state;
  int fd = client_open(&server);
  client_send(fd, "GET /broken HTTP/1.1\r\nHost: a\r\n\r\n");
  const char *a = client_read(fd, NULL, 2000);
  assert_non_null(strstr(a, "1\r\nx\r\n"));
  assert_null(strstr(a, "\r\n0\r\n"));
  close(fd);
}

static void test_stop_with_live_connections(void **state) {
  (void)state;
  for (int round = 0; round < 20; round++) {
    test_server s;
    server_start(&s, NULL);
    enum { N = 24 };
    int fds[N];
    static const char *const kinds[] = {
        "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /stream?n=100000&size=100 HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf",
        "GET /now HT",
        "",
        "GET /stream?n=1000&pause=1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /later HTTP/1.1\r\nHost: a\r\n\r\n"};
    for (int i = 0; i < N; i++) {
      fds[i] = client_open(&s);
      client_send(fds[i], kinds[i % 8]);
    }
    usleep((useconds_t)(round * 2000));
    int64_t t = now_ns();
    server_stop(&s);
    assert_true(now_ns() - t < 2000000000);
    for (int i = 0; i < N; i++) close(fds[i]);
  }
}

static void test_port_in_use(void **state) {
  (void)state;
  http_options o;
  http_options_init(&o);
  o.port = http_server_port(server.http);
  http_server *second = NULL;
  troika_error err = {0};
  assert_int_equal(http_server_open(&o, &second, &err), TROIKA_BUSY);
  assert_null(second);
  assert_non_null(strstr(err.text, "in use"));
  o.host = "no.such.host.invalid";
  assert_int_equal(http_server_open(&o, &second, &err), TROIKA_INVALID);
}

static void test_sse(void **state) {
  (void)state;
  bytes_buffer b;
  bytes_init(&b, 1000);
  http_sse_data(&b, "{}", 2);
  http_sse_comment(&b, "waiting");
  assert_string_equal(b.data, "data: {}\n\n: waiting\n\n");
  bytes_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_answers, start, stop),
      cmocka_unit_test_setup_teardown(test_pipelining_and_keep_alive, start, stop),
      cmocka_unit_test_setup_teardown(test_chunked_body, start, stop),
      cmocka_unit_test_setup_teardown(test_H1_chunked_in_packets, start, stop),
      cmocka_unit_test_setup_teardown(test_H1_both_lengths_are_refused, start, stop),
      cmocka_unit_test_setup_teardown(test_H1_bad_chunk_is_400, start, stop),
      cmocka_unit_test_setup_teardown(test_smuggling_is_refused, start, stop),
      cmocka_unit_test_setup_teardown(test_unfolded_headers_are_taken, start, stop),
      cmocka_unit_test_setup_teardown(test_early_answer_closes, start, stop),
      cmocka_unit_test_setup_teardown(test_connect_is_refused, start, stop),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_slow_request_is_closed),
      cmocka_unit_test(test_H6_slowloris_gets_408),
      cmocka_unit_test_setup_teardown(test_H6_64_KiB_of_headers_are_431, start, stop),
      cmocka_unit_test(test_H6_body_over_the_limit_is_413),
      cmocka_unit_test_setup_teardown(test_H6_idle_connections, start, stop),
      cmocka_unit_test(test_H6_idle_connections_make_room),
      cmocka_unit_test_setup_teardown(test_stream, start, stop),
      cmocka_unit_test_setup_teardown(test_slow_reader, start, stop),
      cmocka_unit_test_setup_teardown(test_frames_keep_their_order, start, stop),
      cmocka_unit_test_setup_teardown(test_gone_is_seen, start, stop),
      cmocka_unit_test_setup_teardown(test_head_of_a_stream_ends_its_writer, start, stop),
      cmocka_unit_test_setup_teardown(test_gone_in_mid_request_frees_its_place, start, stop),
      cmocka_unit_test_setup_teardown(test_stop_with_half_a_request, start, stop),
      cmocka_unit_test_setup_teardown(test_broken_stream_is_cut, start, stop),
      cmocka_unit_test(test_stop_with_live_connections),
      cmocka_unit_test_setup_teardown(test_port_in_use, start, stop),
      cmocka_unit_test(test_sse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
