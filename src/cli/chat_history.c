/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/chat_input.h"
#include "cli/cli.h"

/* Twice the length, since each character may be escaped. */
enum { FILE_MAX = CHAT_HISTORY_MAX * (2 * CHAT_HISTORY_ENTRY_MAX + 1) };

static void give_up(chat_history *h, int error) {
  h->usable = false;
  snprintf(h->why, sizeof h->why, "%.180s: %s", h->path, strerror(error));
}

/* The folders above path, for the user alone where they are new. */
static void make_folders(const char *path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *p = folder + 1; *p; p++) {
    if (*p != '/') continue;
    *p = 0;
    mkdir(folder, 0700); /* one that fails shows when the file is opened */
    *p = '/';
  }
}

static unsigned count_lines(const char *text, size_t len) {
  unsigned n = 0;
  for (size_t i = 0; i < len; i++) n += text[i] == '\n';
  return n;
}

/* Where the last CHAT_HISTORY_MAX lines begin. */
static size_t tail_begin(const char *text, size_t len) {
  unsigned skip = count_lines(text, len);
  size_t at = 0;
  for (skip = skip > CHAT_HISTORY_MAX ? skip - CHAT_HISTORY_MAX : 0; skip; skip--)
    at = (size_t)((const char *)memchr(text + at, '\n', len - at) - text) + 1;
  return at;
}

static void replace_file(chat_history *h, const char *text, size_t len) {
  char beside[PATH_MAX + 8];
  snprintf(beside, sizeof beside, "%s.XXXXXX", h->path);
  int fd = mkostemp(beside, O_CLOEXEC);
  if (fd < 0) return give_up(h, errno);
  bool ok = cli_write_fd(fd, text, len);
  if (close(fd) || !ok || rename(beside, h->path)) {
    give_up(h, errno);
    unlink(beside);
  }
}

/* Reads the file and drops what is too old. A file that is no regular one (a link to /dev/null is
 * how people switch a history off) is left as it is. */
static bool read_and_shorten(chat_history *h, bytes_buffer *out) {
  struct stat st;
  int fd = open(h->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return give_up(h, errno), false;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return close(fd), true;
  if (st.st_mode & 077) fchmod(fd, 0600);
  bool ok = cli_read_fd(fd, out);
  if (ok && out->len && out->data[out->len - 1] != '\n') { /* cut in the middle of a line */
    bytes_append_string(out, "\n");
    ok = cli_write_fd(fd, "\n", 1);
  }
  if (!ok) give_up(h, errno);
  close(fd);
  if (!ok) return false;
  size_t begin = tail_begin(out->data, out->len);
  if (begin) {
    replace_file(h, out->data + begin, out->len - begin);
    memmove(out->data, out->data + begin, out->len - begin + 1);
    out->len -= begin;
  }
  h->lines = count_lines(out->data, out->len);
  return h->usable;
}

void chat_history_open(chat_history *h, const char *path,
                       void (*each)(void *context, const char *text, size_t len), void *context) {
  *h = (chat_history){.usable = true};
  snprintf(h->path, sizeof h->path, "%s", path);
  make_folders(h->path);
  bytes_buffer text, entry;
  bytes_init(&text, FILE_MAX);
  bytes_init(&entry, FILE_MAX);
  bytes_append(&text, "", 0);
  if (read_and_shorten(h, &text)) {
    for (size_t at = 0; at < text.len;) {
      size_t len = (size_t)((char *)memchr(text.data + at, '\n', text.len - at) - text.data) - at;
      bytes_clear(&entry);
      chat_line_unescape(text.data + at, len, &entry);
      if (entry.len) each(context, entry.data, entry.len);
      at += len + 1;
    }
  }
  bytes_free(&entry);
  bytes_free(&text);
}

void chat_history_add(chat_history *h, const char *text, size_t len) {
  if (!h->usable || len == 0 || len > CHAT_HISTORY_ENTRY_MAX) return;
  bytes_buffer line;
  bytes_init(&line, FILE_MAX);
  chat_line_escape(text, len, &line);
  bytes_append_string(&line, "\n");
  int fd = open(h->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0 || line.failed || !cli_write_fd(fd, line.data, line.len)) give_up(h, errno);
  if (fd >= 0) close(fd);
  bytes_free(&line);
  if (!h->usable || ++h->lines <= CHAT_HISTORY_MAX) return;
  bytes_buffer all;
  bytes_init(&all, FILE_MAX + 2 * CHAT_HISTORY_ENTRY_MAX);
  bytes_append(&all, "", 0);
  read_and_shorten(h, &all);
  bytes_free(&all);
}
