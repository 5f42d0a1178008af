/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

/* Foreign bytes may have come in through %s: what is not printable UTF-8 becomes '?'. */
static void clean_text(char *text) {
  size_t len = strlen(text);
  for (size_t i = 0; i < len;) {
    size_t good = utf8_valid_prefix(text + i, len - i, NULL);
    for (size_t j = i; j < i + good; j++)
      if ((unsigned char)text[j] < 0x20 || text[j] == 0x7f) text[j] = text[j] == '\n' ? '\n' : '?';
    i += good;
    if (i < len) text[i++] = '?';
  }
}

troika_status error_set(troika_error *err, troika_status status, const char *format, ...) {
  if (!err) return status;
  va_list args;
  va_start(args, format);
  vsnprintf(err->text, sizeof err->text, format, args);
  va_end(args);
  err->status = status;
  clean_text(err->text);
  return status;
}

const char *troika_status_text(troika_status status) {
  switch (status) {
#define STATUS_TEXT(name, number, text) \
  case TROIKA_##name:                   \
    return text;
    TROIKA_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
  }
  return "unknown status";
}

const char *troika_version(void) { return TROIKA_VERSION; }
