/* SPDX-License-Identifier: Apache-2.0 */
/* support.h - a server with a few plain paths, and raw sockets to talk to it. */
#ifndef TESTS_HTTP_SUPPORT_H
#define TESTS_HTTP_SUPPORT_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "http/http.h"

/*  GET  /now      answered from begin
 *  GET  /later    answered by another thread
 *  POST /echo     the body back, by another thread
 *  GET  /stream?n=COUNT&size=BYTES&pause=MS   COUNT frames of x, from another thread;
 *                 of 100 bytes and more each begins with its number
 *  GET  /hang     a stream that says nothing until the client is gone
 *  GET  /wait     no answer until the client is gone */
typedef struct test_server {
  http_server *http;
  atomic_int handled, threads,
      gone;             /* requests handled; threads that still work; clients seen to go */
  atomic_llong gone_ns; /* when the last one was seen to go */
} test_server;

void server_start(test_server *s, const http_options *options); /* NULL: defaults */
void server_stop(test_server *s);

int client_open(const test_server *s);
void client_send(int fd, const char *text);
void client_send_bytes(int fd, const void *data, size_t len);
/* Reads until the peer closes, `until` has been seen (NULL: never) or ms are over; returns the
 * bytes read in a static buffer. */
const char *client_read(int fd, const char *until, int ms);
bool client_closed(int fd, int ms); /* the peer closed within ms */
int count_of(const char *text, const char *what);
int64_t now_ns(void);

#endif
