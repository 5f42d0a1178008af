/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bytes_view bytes_of_string(const char *text) {
  return bytes_of(text, strlen(text));
}

bool bytes_equal(bytes_view a, bytes_view b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool bytes_equal_string(bytes_view a, const char *text) {
  return bytes_equal(a, bytes_of_string(text));
}

void bytes_init(bytes_buffer *buffer, size_t max) {
  *buffer = (bytes_buffer){.max = max};
}

void bytes_free(bytes_buffer *buffer) {
  free(buffer->data);
  bytes_init(buffer, buffer->max);
}

void bytes_clear(bytes_buffer *buffer) {
  buffer->len = 0;
  buffer->failed = false;
  if (buffer->data) buffer->data[0] = 0;
}

troika_status bytes_reserve(bytes_buffer *buffer, size_t more) {
  if (buffer->failed || more > buffer->max - buffer->len) return TROIKA_LIMIT;
  size_t need = buffer->len + more + 1;
  if (need <= buffer->capacity) return TROIKA_OK;
  size_t capacity = buffer->capacity < 32 ? 64 : buffer->capacity * 2;
  if (capacity < need) capacity = need;
  char *data = realloc(buffer->data, capacity);
  if (!data) return TROIKA_NO_MEMORY;
  buffer->data = data;
  buffer->capacity = capacity;
  buffer->data[buffer->len] = 0;
  return TROIKA_OK;
}

void bytes_append(bytes_buffer *buffer, const void *data, size_t len) {
  if (bytes_reserve(buffer, len)) {
    buffer->failed = true;
    return;
  }
  if (len) memcpy(buffer->data + buffer->len, data, len);
  buffer->len += len;
  buffer->data[buffer->len] = 0;
}

void bytes_append_string(bytes_buffer *buffer, const char *text) {
  bytes_append(buffer, text, strlen(text));
}

void bytes_append_format(bytes_buffer *buffer, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int len = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (len < 0 || bytes_reserve(buffer, (size_t)len)) {
    buffer->failed = true;
    return;
  }
  va_start(args, format);
  vsnprintf(buffer->data + buffer->len, (size_t)len + 1, format, args);
  va_end(args);
  buffer->len += (size_t)len;
}

/* Length of the character at p, 0 if it is wrong, -1 if the text ends inside it. RFC 3629. */
static int utf8_length(const unsigned char *p, size_t left) {
  if (p[0] < 0x80) return 1;
  int len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
  if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
  for (int i = 1; i < len; i++) {
    if ((size_t)i >= left) return -1;
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) { /* overlong forms, surrogates, past U+10FFFF */
      if (p[0] == 0xE0) low = 0xA0;
      if (p[0] == 0xED) high = 0x9F;
      if (p[0] == 0xF0) low = 0x90;
      if (p[0] == 0xF4) high = 0x8F;
    }
    if (p[i] < low || p[i] > high) return 0;
  }
  return len;
}

size_t utf8_valid_prefix(const char *text, size_t len, bool *partial) {
  size_t i = 0;
  int step = 1;
  while (i < len && (step = utf8_length((const unsigned char *)text + i, len - i)) > 0)
    i += (size_t)step;
  if (partial) *partial = step < 0;
  return i;
}

static bool is_control(char c) {
  return ((unsigned char)c < 0x20 && c != '\n') || c == 0x7f;
}

void utf8_clean(char *text, bool keep_controls) {
  size_t len = strlen(text);
  for (size_t i = 0; i < len;) {
    size_t good = utf8_valid_prefix(text + i, len - i, NULL);
    for (size_t j = i; j < i + good && !keep_controls; j++)
      if (is_control(text[j])) text[j] = '?';
    i += good;
    if (i < len) text[i++] = '?';
  }
}
