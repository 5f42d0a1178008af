/* SPDX-License-Identifier: Apache-2.0 */
/* The watch thread: who has gone, and who takes too long.
 *
 * A suspended connection is not read, so the library does not see its end. A duplicate of its
 * socket sits in an epoll of ours with EPOLLRDHUP, which fires within a millisecond of the client's
 * FIN or RST. A duplicate, because one descriptor may be in one epoll with one set of events, and
 * because ours must stay valid until we take it out. Events carry slot and generation, not a
 * pointer: the exchange may have ended between the event and our reading it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"
#include "http/internal.h"

enum { SWEEP_MS = 500, EVENTS = 32 };
#define STOP_EVENT UINT64_MAX
#define NO_SLOT UINT32_MAX

bool watch_enter(http_server *s, http_exchange *x) {
  pthread_mutex_lock(&s->lock);
  uint32_t i = s->slot_free;
  if (i != NO_SLOT) {
    http_slot *slot = &s->slots[i];
    s->slot_free = slot->next_free;
    slot->x = x;
    x->watch_id = (uint64_t)slot->generation << 32 | i;
    s->live++;
  }
  pthread_mutex_unlock(&s->lock);
  return i != NO_SLOT;
}

void watch_leave(http_server *s, http_exchange *x) {
  if (x->watch_fd >=
      0) { /* out of the epoll first: closing a duplicate alone does not take it out */
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, x->watch_fd, NULL);
    close(x->watch_fd);
    x->watch_fd = -1;
  }
  pthread_mutex_lock(&s->lock);
  uint32_t i = (uint32_t)x->watch_id;
  s->slots[i].x = NULL;
  s->slots[i].generation++;
  s->slots[i].next_free = s->slot_free;
  s->slot_free = i;
  if (--s->live == 0) pthread_cond_broadcast(&s->idle);
  pthread_mutex_unlock(&s->lock);
}

void watch_socket(http_server *s, http_exchange *x, int fd) {
  if (x->watch_fd >= 0) return;
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return; /* out of descriptors: the end is seen when the answer is written */
  struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = x->watch_id};
  if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, copy, &event)) {
    close(copy);
    return;
  }
  x->watch_fd = copy;
}

/* The exchange of an id, held; NULL if it has ended. */
static http_exchange *find_held(http_server *s, uint64_t id) {
  pthread_mutex_lock(&s->lock);
  http_slot *slot = &s->slots[(uint32_t)id];
  http_exchange *x = slot->generation == id >> 32 ? slot->x : NULL;
  if (x) http_exchange_hold(x);
  pthread_mutex_unlock(&s->lock);
  return x;
}

static void gone_if_alive(http_server *s, uint64_t id) {
  http_exchange *x = find_held(s, id);
  if (!x) return;
  exchange_mark_gone(x);
  http_exchange_release(x);
}

void watch_all_gone(http_server *s) {
  for (uint32_t i = 0; i < s->options.connections_max; i++) {
    pthread_mutex_lock(&s->lock);
    uint64_t id = (uint64_t)s->slots[i].generation << 32 | i;
    pthread_mutex_unlock(&s->lock);
    gone_if_alive(s, id);
  }
  pthread_mutex_lock(&s->lock);
  for (http_connection *c = s->connections; c; c = c->next) shutdown(c->fd, SHUT_RDWR);
  pthread_mutex_unlock(&s->lock);
}

/* The client will send no more. The library looks at a socket once per edge, so an end that came in
 * together with the bytes before it would be seen only at the deadline. */
static bool hung_up(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLRDHUP};
  return poll(&p, 1, 0) == 1 && p.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

/* Past the library, which answers whole requests only. Nothing else is being sent: an answer has no
 * deadline. What the socket's buffer has no room for is lost, as the connection is. */
static void send_timeout(http_server *s, int fd) {
  bytes_buffer body, head;
  bytes_init(&body, 4096);
  bytes_init(&head, 8192);
  if (s->options.refuse)
    s->options.refuse(s->options.context, 408, "the request did not arrive in time", &body);
  bytes_append_format(&head,
                      "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
                      "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                      body.len);
  bytes_append(&head, body.data, body.len);
  ssize_t sent = send(fd, head.data, head.len, MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)sent;
  bytes_free(&body);
  bytes_free(&head);
}

static void end_connection(http_server *s, http_connection *c, bool say_why) {
  if (say_why && os_socket_received(c->fd) > c->received) send_timeout(s, c->fd);
  shutdown(c->fd, SHUT_RDWR);
  c->deadline_ns = INT64_MAX;
}

/* Of those that are not being answered: before which other one it has to go. */
static bool goes_before(const http_connection *a, const http_connection *b) {
  return a->idle != b->idle ? a->idle : a->deadline_ns < b->deadline_ns;
}

/* All places are taken: the connections that have been idle longest make room, then those whose
 * request takes longest to arrive. */
static void make_room(http_server *s) {
  for (http_connection *c = s->connections; c; c = c->next)
    c->idle = os_socket_received(c->fd) <= c->received;
  for (uint32_t over = s->options.connections_max / 16 + 1; over; over--) {
    http_connection *first = NULL;
    for (http_connection *c = s->connections; c; c = c->next)
      if (c->deadline_ns != INT64_MAX && (!first || goes_before(c, first))) first = c;
    if (!first) return;
    end_connection(s, first, true);
  }
}

/* Ends connections whose request is not whole in time, or whose client has been gone for a whole
 * sweep. The descriptor is valid: an entry leaves the list, under this lock, before its socket is
 * closed. */
static void sweep(http_server *s) {
  int64_t now = clock_real_now(NULL);
  pthread_mutex_lock(&s->lock);
  if (s->connections_n >= s->options.connections_max) make_room(s);
  for (http_connection *c = s->connections; c; c = c->next) {
    if (c->deadline_ns == INT64_MAX) { /* being answered: watched on its own */
      c->hung_up = false;
      continue;
    }
    bool was = c->hung_up;
    c->hung_up = hung_up(c->fd);
    if (c->deadline_ns > now && !(was && c->hung_up)) continue;
    end_connection(s, c, !c->hung_up);
  }
  pthread_mutex_unlock(&s->lock);
}

static void *watch_main(void *context) {
  http_server *s = context;
  struct epoll_event events[EVENTS];
  int64_t swept = clock_real_now(NULL);
  os_thread_name("http-watch");
  for (;;) {
    int n = epoll_wait(s->epoll_fd, events, EVENTS, SWEEP_MS);
    for (int i = 0; i < n; i++) {
      if (events[i].data.u64 == STOP_EVENT) return NULL;
      gone_if_alive(s, events[i].data.u64);
    }
    int64_t now = clock_real_now(NULL);
    if (now - swept < SWEEP_MS * INT64_C(1000000)) continue;
    swept = now;
    sweep(s);
  }
}

troika_status watch_open(http_server *s, troika_error *err) {
  s->slots = calloc(s->options.connections_max, sizeof *s->slots);
  if (!s->slots)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %u connections",
                     s->options.connections_max);
  for (uint32_t i = 0; i < s->options.connections_max; i++)
    s->slots[i].next_free = i + 1 < s->options.connections_max ? i + 1 : NO_SLOT;
  s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  s->event_fd = eventfd(0, EFD_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP_EVENT};
  if (s->epoll_fd < 0 || s->event_fd < 0 ||
      epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->event_fd, &event))
    return error_set(err, TROIKA_IO, "cannot watch sockets: %s", strerror(errno));
  if (pthread_create(&s->watch, NULL, watch_main, s))
    return error_set(err, TROIKA_NO_MEMORY, "cannot start the watch thread");
  return TROIKA_OK;
}

void watch_close(http_server *s) {
  if (s->watch) {
    uint64_t one = 1;
    if (write(s->event_fd, &one, sizeof one) == sizeof one) pthread_join(s->watch, NULL);
  }
  if (s->epoll_fd >= 0) close(s->epoll_fd);
  if (s->event_fd >= 0) close(s->event_fd);
  free(s->slots);
}
