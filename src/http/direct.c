/* SPDX-License-Identifier: Apache-2.0 */
/* The short way of a streamed frame: from the writer's thread straight into the socket.
 *
 * The long way is ring, eventfd, the HTTP thread, its state machine, send: two threads woken and
 * five system calls for each token. But a connection that is suspended, with nothing in its ring,
 * has sent all that the library was given, and the library does not touch its socket until it is
 * resumed. So the writer may send the next chunk itself, framed as the library frames it (RFC 9112,
 * 7.1), under the exchange's lock, which keeps the connection suspended. The short way is for
 * HTTP/1.1, whose streams are chunked, and for clients that read: as soon as bytes wait in the
 * socket, the ring takes over, with its bound and the library's time-out. A chunk that the socket
 * takes in part could not be finished by the library: then the connection is cut. That happens only
 * if the system runs out of memory, since a socket with room is asked. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "http/internal.h"

enum { CHUNK_MOST = 4096 };

void direct_open(http_exchange *x, int fd) {
  int on = 1, off = 0, room = 0;
  socklen_t len = sizeof room;
  if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &len)) return;
  /* Nothing is gathered: a token is sent when it is there. */
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
  x->send_most = room / 8;
  x->fd = fd;
}

bool direct_send(http_exchange *x, const char *data, size_t len) {
  int waiting = 0;
  char head[16];
  if (x->fd < 0 || !x->suspended || x->ring_used || len == 0 || len > CHUNK_MOST) return false;
  if (ioctl(x->fd, TIOCOUTQ, &waiting) || waiting > x->send_most) return false;
  int head_len = snprintf(head, sizeof head, "%zx\r\n", len);
  struct iovec parts[] = {{head, (size_t)head_len}, {(void *)(uintptr_t)data, len}, {"\r\n", 2}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
  ssize_t n = sendmsg(x->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n == (ssize_t)len + head_len + 2) return true;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  x->fd = -1;
  if (n > 0) x->cut = true; /* else it is broken, and the library will see that */
  return n > 0;
}
