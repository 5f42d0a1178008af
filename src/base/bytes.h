/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h - a borrowed run of bytes, and a growing buffer that carries its maximum.
 *
 * `bytes_view` owns nothing. `bytes_buffer` owns `data` (freed by bytes_free), keeps a NUL after
 * the last byte, and refuses to grow past `max`: once an append fails, `failed` stays set and
 * appends do nothing, so a writer checks once at the end. Not thread-safe. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

typedef struct bytes_view {
  const char *ptr;
  size_t len;
} bytes_view;

static inline bytes_view bytes_of(const char *ptr, size_t len) {
  return (bytes_view){ptr, len};
}
bytes_view bytes_of_string(const char *text);
bool bytes_equal(bytes_view a, bytes_view b);
bool bytes_equal_string(bytes_view a, const char *text);

typedef struct bytes_buffer {
  char *data; /* never NULL after the first append */
  size_t len, capacity, max;
  bool failed;
} bytes_buffer;

void bytes_init(bytes_buffer *buffer, size_t max);
void bytes_free(bytes_buffer *buffer);
void bytes_clear(bytes_buffer *buffer); /* keeps the memory */
/* Make room for `more` bytes at once. TROIKA_LIMIT past max, TROIKA_NO_MEMORY. */
troika_status bytes_reserve(bytes_buffer *buffer, size_t more);
void bytes_append(bytes_buffer *buffer, const void *data, size_t len);
void bytes_append_string(bytes_buffer *buffer, const char *text);
void bytes_append_format(bytes_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Length of the longest prefix of `text` that is valid UTF-8 (surrogates and overlong forms are
 * not). Equal to len when all is valid. If `partial` is not NULL it tells whether what follows the
 * prefix is a character cut short by the end rather than a wrong byte. */
size_t utf8_valid_prefix(const char *text, size_t len, bool *partial);

/* In a NUL-terminated text, every byte that is not valid UTF-8 becomes '?'; unless keep_controls,
 * so does every control character but the newline, so that it can go to a terminal. */
void utf8_clean(char *text, bool keep_controls);

#endif
