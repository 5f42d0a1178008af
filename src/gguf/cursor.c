/* cursor.c - stepping through a file without ever trusting a length.
 *
 * Every comparison is of the form n <= left, never at + n <= len: the sum of a hostile length
 * wraps. Texts carry numbers only, so that no byte of the file reaches a terminal or a log.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "gguf/file.h"

troika_status gguf_cursor_fail(const gguf_cursor *c, troika_status status, const char *format,
                               ...) {
  char reason[256];
  va_list args;
  va_start(args, format);
  vsnprintf(reason, sizeof reason, format, args);
  va_end(args);
  if (!c->section) return error_set(c->err, status, "byte %zu: %s", c->at, reason);
  return error_set(c->err, status, "%s %" PRIu64 " of %" PRIu64 ", at byte %zu: %s", c->section,
                   c->index + 1, c->count, c->at, reason);
}

troika_status gguf_cursor_take(gguf_cursor *c, uint64_t n, const char *what, const uint8_t **out) {
  size_t left = c->len - c->at;
  if (n > left) {
    return gguf_cursor_fail(c, TROIKA_FORMAT,
                            "%s needs %" PRIu64 " bytes, the file has %zu left (truncated?)", what,
                            n, left);
  }
  *out = c->data + c->at;
  c->at += (size_t)n;
  return TROIKA_OK;
}

troika_status gguf_cursor_u32(gguf_cursor *c, const char *what, uint32_t *out) {
  const uint8_t *p = NULL;
  troika_status status = gguf_cursor_take(c, 4, what, &p);
  if (!status) *out = gguf_load_u32(p);
  return status;
}

troika_status gguf_cursor_u64(gguf_cursor *c, const char *what, uint64_t *out) {
  const uint8_t *p = NULL;
  troika_status status = gguf_cursor_take(c, 8, what, &p);
  if (!status) *out = gguf_load_u64(p);
  return status;
}

troika_status gguf_cursor_string(gguf_cursor *c, const char *what, uint64_t min, uint64_t max,
                                 bytes_view *out) {
  uint64_t n;
  const uint8_t *p = NULL;
  troika_status status = gguf_cursor_u64(c, what, &n);
  if (status) return status;
  if (n < min || n > max) {
    return gguf_cursor_fail(c, TROIKA_FORMAT,
                            "%s of %" PRIu64 " bytes, allowed are %" PRIu64 " to %" PRIu64, what, n,
                            min, max);
  }
  status = gguf_cursor_take(c, n, what, &p);
  if (!status) *out = bytes_of((const char *)p, (size_t)n);
  return status;
}

troika_status gguf_cursor_fits(const gguf_cursor *c, uint64_t count, uint64_t least,
                               const char *what) {
  size_t left = c->len - c->at;
  if (count <= left / least) return TROIKA_OK;
  return gguf_cursor_fail(c, TROIKA_FORMAT,
                          "%" PRIu64 " %s of at least %" PRIu64
                          " bytes each, the file has %zu bytes left (truncated?)",
                          count, what, least, left);
}

void *gguf_table_grow(void *table, size_t count, size_t *capacity, size_t entry) {
  if (count < *capacity) return table;
  size_t larger = *capacity + *capacity / 2 + 16;
  void *moved = reallocarray(table, larger, entry);
  if (moved) *capacity = larger;
  return moved;
}
