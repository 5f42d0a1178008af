/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/bytes.h"

troika_status error_set(troika_error *err, troika_status status, const char *format, ...) {
  if (!err) return status;
  va_list args;
  va_start(args, format);
  vsnprintf(err->text, sizeof err->text, format, args);
  va_end(args);
  err->status = status;
  utf8_clean(err->text, false);
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

const char *troika_version(void) {
  return TROIKA_VERSION;
}
