/* SPDX-License-Identifier: Apache-2.0 */
/* Where a server learns whom it may answer. Whatever is odd here ends the start: a key that nobody
 * saw being dropped would leave the server open. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/access.h"
#include "cli/options.h"

enum { FILE_MAX = 64 * 1024 };
static const char blanks[] = " \t\r\n";

static bytes_view trim(bytes_view v) {
  while (v.len && memchr(blanks, v.ptr[0], sizeof blanks - 1)) v.ptr++, v.len--;
  while (v.len && memchr(blanks, v.ptr[v.len - 1], sizeof blanks - 1)) v.len--;
  return v;
}

/* A byte that is no text (a NUL of UTF-16, a lone CR that ends lines elsewhere), or that a key
 * cannot have as no header carries it. -1: none. */
static int odd_byte(bytes_view line, bool comment, bool blanks_too) {
  for (size_t i = 0; i < line.len; i++) {
    unsigned char c = (unsigned char)line.ptr[i];
    bool control = (c < ' ' && c != '\t') || c == 0x7F, blank = c == ' ' || c == '\t';
    if (control || (!comment && (c > '~' || (blank && !blanks_too)))) return c;
  }
  return -1;
}

static void add(bytes_view line, bytes_buffer *out) {
  bytes_append(out, line.ptr, line.len);
  bytes_append_string(out, "\n");
}

static bool take_lines(const char *file, bytes_view text, bytes_buffer *out) {
  unsigned number = 1, keys = 0;
  if (text.len >= 3 && !memcmp(text.ptr, "\xEF\xBB\xBF", 3)) text.ptr += 3, text.len -= 3;
  for (; text.len; number++) {
    const char *end = memchr(text.ptr, '\n', text.len);
    size_t len = end ? (size_t)(end - text.ptr) : text.len;
    bytes_view line = trim(bytes_of(text.ptr, len));
    bool comment = line.len && line.ptr[0] == '#';
    int odd = odd_byte(line, comment, true);
    bytes_view key;
    api_key_rules rules;
    troika_error err;
    if (odd >= 0 && comment)
      return cli_fail("%s, line %u: the comment has the control character 0x%02X", file, number,
                      (unsigned)odd),
             false;
    if (odd >= 0)
      return cli_fail("%s, line %u: the API key has the byte 0x%02X: only visible ASCII", file,
                      number, (unsigned)odd),
             false;
    if (line.len && !comment) {
      if (api_key_line(line, &key, &rules, &err))
        return cli_fail("%s, line %u: %s", file, number, err.text), false;
      add(line, out);
      keys++;
    }
    len += end != NULL;
    text.ptr += len;
    text.len -= len;
  }
  return keys || (cli_fail("%s holds no API key", file), false);
}

static bool take_file(const char *file, bytes_buffer *out) {
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return cli_fail("cannot open %s: %s", file, strerror(errno)), false;
  bytes_buffer text;
  bytes_init(&text, FILE_MAX);
  bool ok = cli_read_all(fd, file, &text);
  close(fd);
  ok = ok && take_lines(file, bytes_of(text.data, text.len), out);
  bytes_free(&text);
  return ok;
}

/* One key, without rules. */
static bool take_variable(const char *value, bytes_buffer *out) {
  bytes_view key = trim(bytes_of_string(value));
  if (!key.len) return cli_fail("TROIKA_API_KEY holds only blanks: no API key"), false;
  if (key.ptr[0] == '#')
    return cli_fail("TROIKA_API_KEY begins with \"#\", as no API key may: comments do"), false;
  int odd = odd_byte(key, false, false);
  if (odd >= 0)
    return cli_fail("TROIKA_API_KEY has the byte 0x%02X: only visible ASCII", (unsigned)odd), false;
  add(key, out);
  return true;
}

bool cli_serve_keys(const cli_settings *s, bytes_buffer *out) {
  const char *variable = option_api_key();
  if (s->api_key_file && !take_file(s->api_key_file, out)) return false;
  if (variable && *variable && !take_variable(variable, out)) return false;
  return !out->failed || (cli_fail("no memory for the API keys"), false);
}
