/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"

static log_level log_level_wanted = LOG_INFO;
static bool log_as_json;

void log_setup(log_level level, bool json) {
  log_level_wanted = level;
  log_as_json = json;
}

bool log_wants(log_level level) {
  return level <= log_level_wanted;
}

static size_t json_escape(const char *text, char *out, size_t size) {
  size_t n = 0;
  for (; *text && n + 7 < size; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      out[n++] = '\\';
      out[n++] = (char)c;
    } else if (c < 0x20) {
      n += (size_t)snprintf(out + n, size - n, "\\u%04x", c);
    } else {
      out[n++] = (char)c;
    }
  }
  out[n] = 0;
  return n;
}

static const char *const names[] = {"error", "warn", "info", "debug"};

/* One write per line keeps lines of several threads whole. */
static void put_line(char *line, int n, size_t size) {
  if (n > (int)size - 1) n = (int)size - 1;
  if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

static int put_stamp(char *out, size_t size) {
  struct timespec t;
  struct tm local;
  clock_gettime(CLOCK_REALTIME, &t);
  localtime_r(&t.tv_sec, &local);
  strftime(out, size, log_as_json ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &local);
  return (int)(t.tv_nsec / 1000000);
}

static void put_message(log_level level, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void put_message(log_level level, const char *format, va_list args) {
  char text[1024], line[2400], stamp[32];
  vsnprintf(text, sizeof text, format, args);
  utf8_clean(text, log_as_json);
  if (!log_as_json)
    for (char *c = text; *c; c++)
      if (*c == '\n') *c = ' '; /* one message, one line */
  int ms = put_stamp(stamp, sizeof stamp), n;
  if (log_as_json) {
    char escaped[2200];
    json_escape(text, escaped, sizeof escaped);
    n = snprintf(line, sizeof line, "{\"time\":\"%s.%03d\",\"level\":\"%s\",\"message\":\"%s\"}\n",
                 stamp, ms, names[level], escaped);
  } else {
    n = snprintf(line, sizeof line, "%s.%03d %-5s %s\n", stamp, ms, names[level], text);
  }
  put_line(line, n, sizeof line);
}

void log_line(log_level level, const char *format, ...) {
  va_list args;
  if (!log_wants(level)) return;
  va_start(args, format);
  put_message(level, format, args);
  va_end(args);
}

void log_with(log_level level, const char *members, const char *format, ...) {
  va_list args;
  char line[1200], stamp[32];
  if (!log_wants(level)) return;
  if (log_as_json) {
    int ms = put_stamp(stamp, sizeof stamp);
    int n = snprintf(line, sizeof line, "{\"time\":\"%s.%03d\",\"level\":\"%s\",%s}\n", stamp, ms,
                     names[level], members);
    put_line(line, n, sizeof line);
    return;
  }
  va_start(args, format);
  put_message(level, format, args);
  va_end(args);
}
