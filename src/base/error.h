/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - filling in a caller's troika_error.
 * Returns the status it was given, so that a failing check is one line:
 *     if (n > max) return error_set(err, TROIKA_LIMIT, "%u tensors, at most %u", n, max);
 * Text is cut at TROIKA_ERROR_TEXT_MAX and bytes that are not printable UTF-8 become '?'. Any
 * thread. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "troika/status.h"

troika_status error_set(troika_error *err, troika_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
