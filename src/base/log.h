/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - one line to standard error: "12:00:00.123 level text", or one JSON object a line.
 * Set once at start, before threads; log_line itself: any thread, one write per line. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

void log_setup(log_level level, bool json);
bool log_wants(log_level level);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what has figures: the JSON form holds `members` (`"name":value,...`, at most 1,000
 * bytes of JSON) instead of the message. */
void log_with(log_level level, const char *members, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
