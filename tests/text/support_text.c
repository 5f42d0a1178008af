/* SPDX-License-Identifier: Apache-2.0 */
#include "text/support_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const files[SUPPORT_MODELS] = {"models/SmolLM2-135M-Instruct.Q4_1.gguf",
                                                  "models/gemma-3-270m-q4_k_m.gguf",
                                                  "test-data/llama2-vocab.gguf"};

const char *support_path(const char *name) {
  static char path[4096];
  const char *cache = getenv("TROIKA_CACHE"), *home = getenv("HOME");
  if (cache)
    snprintf(path, sizeof path, "%s/%s", cache, name);
  else
    snprintf(path, sizeof path, "%s/.cache/troika/%s", home ? home : "", name);
  if (access(path, R_OK) != 0) fail_msg("%s is missing; `tools/setup.sh test` makes it", path);
  return path;
}

char *support_read(const char *path, size_t *len) {
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("cannot read %s", path);
  fseek(f, 0, SEEK_END);
  *len = (size_t)ftell(f);
  rewind(f);
  char *data = malloc(*len + 1);
  assert_non_null(data);
  assert_int_equal(fread(data, 1, *len, f), *len);
  data[*len] = 0;
  fclose(f);
  return data;
}

static gguf *opened[SUPPORT_MODELS];
static tokenizer *made[SUPPORT_MODELS];

static void release(void) {
  for (int i = 0; i < SUPPORT_MODELS; i++) {
    if (made[i]) tokenizer_destroy(&made[i]);
    if (opened[i]) gguf_close(&opened[i]);
  }
}

const gguf *support_file(support_model which) {
  static bool registered;
  if (!registered) registered = atexit(release) == 0;
  troika_error err = {0};
  if (!opened[which] && gguf_open(support_path(files[which]), &opened[which], &err) != TROIKA_OK)
    fail_msg("%s: %s", files[which], err.text);
  return opened[which];
}

const tokenizer *support_tokenizer(support_model which) {
  troika_error err = {0};
  if (!made[which] && tokenizer_create(support_file(which), &made[which], &err) != TROIKA_OK)
    fail_msg("%s: %s", files[which], err.text);
  return made[which];
}

static void print_ids(const char *name, const int32_t *ids, size_t n, size_t at) {
  size_t from = at > 6 ? at - 6 : 0;
  fprintf(stderr, "  %s, from %zu of %zu:", name, from, n);
  for (size_t i = from; i < n && i < at + 10; i++)
    fprintf(stderr, i == at ? " [%d]" : " %d", (int)ids[i]);
  fprintf(stderr, "\n");
}

void support_ids_equal(const char *what, const int32_t *got, size_t got_n, const int32_t *expected,
                       size_t expected_n) {
  size_t at = 0;
  while (at < got_n && at < expected_n && got[at] == expected[at]) at++;
  if (at == got_n && at == expected_n) return;
  print_ids("got", got, got_n, at);
  print_ids("expected", expected, expected_n, at);
  fail_msg("%s: ids differ at %zu", what, at);
}

void support_encodes(const tokenizer *t, const char *text, tokenizer_options options,
                     const int32_t *expected, size_t n) {
  tokenizer_ids ids = {0};
  troika_error err = {0};
  if (tokenizer_encode(t, bytes_of_string(text), options, 0, &ids, &err) != TROIKA_OK)
    fail_msg("%s: %s", text, err.text);
  support_ids_equal(text, ids.data, ids.n, expected, n);
  tokenizer_ids_free(&ids);
}

static double seconds_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double support_seconds(void) {
  return seconds_of(CLOCK_MONOTONIC);
}
double support_cpu_seconds(void) {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}
