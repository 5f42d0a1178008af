/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that two parsers could read differently are refused: behind a proxy they smuggle a
 * second request.
 *
 * The library takes both lengths at once, several lengths, any transfer coding (and then waits for
 * ever), names with a blank before the colon, and lines folded into the one above. RFC 9112
 * (5.1, 5.2, 6.1, 6.3) says to refuse or to guess; we refuse. A folded line shows only in where its
 * parts lie: the library joins it by moving the part it continues away from its place. */
#include <string.h>
#include <strings.h>

#include "http/internal.h"

typedef struct check_state {
  const char *problem;
  http_head head;
  unsigned lengths, codings, hosts;
  bool coding_is_chunked;
} check_state;

static bool is_token_byte(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool name_is(const char *name, size_t len, const char *wanted) {
  return len == strlen(wanted) && strncasecmp(name, wanted, len) == 0;
}

/* Between a name and its value there is only what was the colon and blanks. */
static bool is_folded(const char *name, size_t name_len, const char *value) {
  if (value <= name + name_len) return true;
  for (const char *p = name + name_len; p < value; p++)
    if (*p != 0 && *p != ' ' && *p != '\t' && *p != ':') return true;
  return false;
}

/* The library ends a value at its first NUL. Behind a whole one there are only blanks and the end
 * of the line, of which it has made NULs, too. The line lies in the connection's buffer, with one
 * end of line at least behind it. */
static bool is_cut(const char *name, size_t name_len, const char *value, size_t value_len) {
  if (value <= name + name_len) return false; /* not in the buffer, or folded */
  const char *p = value + value_len + 1;
  while (*p == ' ' || *p == '\t') p++;
  return *p != 0 && *p != '\r' && *p != '\n';
}

static const char *check_length(check_state *s, const char *value,
                                size_t len) { /* value may be NULL, then len is 0 */
  if (s->lengths++) return "more than one Content-Length";
  if (len == 0 || len > 18) return "Content-Length is not a number";
  uint64_t length = 0;
  for (size_t i = 0; i < len; i++) {
    if (value[i] < '0' || value[i] > '9') return "Content-Length is not a number";
    length = length * 10 + (uint64_t)(value[i] - '0');
  }
  s->head.has_length = true;
  s->head.length = length;
  return NULL;
}

size_t header_length(const char *value, size_t len) {
  while (len && (value[len - 1] == ' ' || value[len - 1] == '\t')) len--;
  return len;
}

static const char *check_one(check_state *s, const char *name, size_t name_len, const char *value,
                             size_t value_len) {
  if (name_len == 0) return "a header has no name";
  for (size_t i = 0; i < name_len; i++)
    if (!is_token_byte((unsigned char)name[i]))
      return "a header's name has a byte that it may not have";
  for (size_t i = 0; i < value_len; i++) {
    unsigned char c = (unsigned char)value[i];
    if ((c < 0x20 && c != '\t') || c == 0x7f) return "a header's value has a control character";
  }
  if (value && is_folded(name, name_len, value)) return "a header is folded over several lines";
  if (value && is_cut(name, name_len, value, value_len))
    return "a header's value has a control character";
  size_t with_blanks = value_len;
  if (value) value_len = header_length(value, value_len);
  if (name_is(name, name_len, "content-length")) return check_length(s, value, value_len);
  if (name_is(name, name_len, "transfer-encoding")) {
    if (s->codings++) return "more than one Transfer-Encoding";
    /* The library compares the blanks too, and waits for ever if the word is not its own. */
    if (!name_is(value, with_blanks, "chunked")) return "Transfer-Encoding is not chunked";
    s->head.chunked = true;
  }
  if (name_is(name, name_len, "host") && s->hosts++) return "more than one Host";
  return NULL;
}

static enum MHD_Result check_next(void *context, enum MHD_ValueKind kind, const char *name,
                                  size_t name_len, const char *value, size_t value_len) {
  (void)kind;
  check_state *s = context;
  s->problem = check_one(s, name, name_len, value, value ? value_len : 0);
  return s->problem ? MHD_NO : MHD_YES;
}

const char *headers_check(struct MHD_Connection *connection, const char *method,
                          const char *version, http_head *out) {
  check_state s = {0};
  bool is_11 = strcmp(version, "HTTP/1.1") == 0;
  if (!is_11 && strcmp(version, "HTTP/1.0")) return "the version is not HTTP/1.1 or HTTP/1.0";
  for (const char *p = method; *p; p++)
    if (!is_token_byte((unsigned char)*p)) return "the method has a byte that it may not have";
  MHD_get_connection_values_n(connection, MHD_HEADER_KIND, check_next, &s);
  if (s.problem) return s.problem;
  if (s.head.chunked && s.head.has_length) return "both Content-Length and Transfer-Encoding";
  if (s.head.chunked && !is_11) return "Transfer-Encoding with HTTP/1.0";
  if (is_11 && !s.hosts) return "Host is missing";
  *out = s.head;
  return NULL;
}
