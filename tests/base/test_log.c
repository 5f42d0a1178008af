/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: standard error goes into a file for the length of a call, and is read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

enum { THREADS = 4, LINES = 3000 };

static FILE *file;
static int stderr_before;

static void capture_begin(void) {
  fflush(stderr);
  file = tmpfile();
  assert_non_null(file);
  stderr_before = dup(STDERR_FILENO);
  assert_true(stderr_before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
}

/* Owned: free. */
static char *capture_end(void) {
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  off_t len = lseek(fileno(file), 0, SEEK_END);
  char *text = calloc((size_t)len + 1, 1);
  assert_int_equal(pread(fileno(file), text, (size_t)len, 0), len);
  fclose(file);
  return text;
}

static void levels_are_obeyed(void **state) {
  (void)state;
  static const char *const names[] = {"error", "warn", "info", "debug"};
  for (int wanted = LOG_ERROR; wanted <= LOG_DEBUG; wanted++) {
    log_setup((log_level)wanted, false);
    capture_begin();
    for (int level = LOG_ERROR; level <= LOG_DEBUG; level++) {
      assert_int_equal(log_wants((log_level)level), level <= wanted);
      log_line((log_level)level, "number %d", level);
    }
    char *text = capture_end(), *at = text, expected[40];
    for (int level = LOG_ERROR; level <= wanted; level++) {
      int h, m, s, ms, n = 0;
      assert_int_equal(sscanf(at, "%2d:%2d:%2d.%3d %n", &h, &m, &s, &ms, &n), 4);
      snprintf(expected, sizeof expected, "%-5s number %d\n", names[level], level);
      assert_memory_equal(at + n, expected, strlen(expected));
      at += (size_t)n + strlen(expected);
    }
    assert_int_equal(*at, 0);
    free(text);
  }
}

/* The string after "message":" unescaped; checks that the line is one object. */
static void message_of(const char *line, char *out) {
  const char *p = strstr(line, "\"message\":\"");
  assert_true(line[0] == '{' && p);
  for (p += 11; *p != '"'; p++) {
    assert_true((unsigned char)*p >= 0x20);
    unsigned code;
    if (*p != '\\') {
      *out++ = *p;
    } else if (*++p == 'u') {
      assert_int_equal(sscanf(p + 1, "%4x", &code), 1);
      *out++ = (char)code;
      p += 4;
    } else {
      assert_true(*p == '"' || *p == '\\');
      *out++ = *p;
    }
  }
  *out = 0;
  assert_string_equal(p, "\"}\n");
}

static void json_is_escaped(void **state) {
  (void)state;
  char all[128], message[4096];
  for (int i = 1; i < 128; i++) all[i - 1] = (char)i;
  all[127] = 0;
  log_setup(LOG_INFO, true);
  capture_begin();
  log_line(LOG_WARN, "%s", all);
  char *text = capture_end();
  assert_non_null(strstr(text, "\"level\":\"warn\""));
  message_of(text, message);
  assert_string_equal(message, all);
  free(text);
}

static void long_lines_are_cut_whole(void **state) {
  (void)state;
  static char longest[5000];
  char message[8192];
  static const char fill[] = {'a', '"', '\x01'};
  for (int json = 0; json < 2; json++)
    for (int f = 0; f < 3 - 2 * !json; f++) {
      memset(longest, fill[f], sizeof longest - 1);
      log_setup(LOG_INFO, json);
      capture_begin();
      log_line(LOG_INFO, "%s", longest);
      char *text = capture_end();
      size_t len = strlen(text);
      assert_true(len > 1000 && len < 2400 && text[len - 1] == '\n');
      assert_ptr_equal(strchr(text, '\n'), text + len - 1);
      if (json) {
        message_of(text, message);
        assert_true(strlen(message) > 300);
        assert_memory_equal(message, longest, strlen(message));
      }
      free(text);
    }
}

static void *writer(void *number) {
  for (int i = 0; i < LINES; i++) log_line(LOG_INFO, "thread %d line %d end", *(int *)number, i);
  return NULL;
}

static void lines_of_threads_stay_whole(void **state) {
  (void)state;
  pthread_t threads[THREADS];
  int numbers[THREADS], next[THREADS] = {0};
  log_setup(LOG_INFO, false);
  capture_begin();
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    pthread_create(&threads[i], NULL, writer, &numbers[i]);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  char *text = capture_end();
  int lines = 0;
  char *rest;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    int thread = 0, number = 0;
    char *at = strstr(line, "thread ");
    if (!at || sscanf(at, "thread %d line %d", &thread, &number) != 2 || !strstr(at, " end"))
      fail_msg("broken line: %s", line);
    assert_in_range(thread, 0, THREADS - 1);
    assert_int_equal(number, next[thread]++);
    lines++;
  }
  assert_int_equal(lines, THREADS * LINES);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(levels_are_obeyed),
      cmocka_unit_test(json_is_escaped),
      cmocka_unit_test(long_lines_are_cut_whole),
      cmocka_unit_test(lines_of_threads_stay_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
