/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - measurements and how they are told.
 *
 * A number is worth what its record says: machine, version, model hash, kernel set, command,
 * spread. Rates are per repetition, then median, least and most are told: a mean hides a machine
 * whose clock moves. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/cli.h"

enum { BENCH_RESULTS_MAX = 64, BENCH_LIST_MAX = 16, BENCH_REPETITIONS_MAX = 1000 };

typedef struct bench_result {
  char name[32];    /* "prefill 512" */
  const char *kind; /* "prefill", "decode", "batch" */
  uint32_t n;       /* prompt tokens, or generated tokens, or requests together */
  uint32_t repetitions;
  double median, min, max; /* tokens per second */
} bench_result;

typedef struct bench_record {
  const cli_settings *settings;
  const cli_engine *engine;
  bench_result results[BENCH_RESULTS_MAX];
  unsigned results_n;
} bench_record;

/* troika bench kv */
int cli_bench_kv(const cli_settings *s);

/* "64,256" to numbers from 1 to max; returns how many, 0 if the text is wrong (said on stderr). */
unsigned bench_read_list(const char *name, const char *text, unsigned max,
                         uint32_t out[BENCH_LIST_MAX]);
/* "time", "version", "commit", "machine": what each record begins with. */
void bench_put_head(bytes_buffer *out);
/* "key":"text", or "text" alone if key is NULL. */
void bench_put_text(bytes_buffer *out, const char *key, const char *text);

void bench_print(const bench_record *r);
void bench_print_json(const bench_record *r);

/* What was built: "0123abcd4567", with "-changed" where the tree differed (cmake/commit.cmake). */
extern const char bench_commit[];

#endif
