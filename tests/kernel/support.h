/* support.h - the checker's tools: seeded random input with structure, guarded twin buffers,
 * comparison.
 *
 * A guarded buffer lies against an unreadable page, behind it or before it by turns, and the rest
 * of its own pages holds a canary pattern. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KERNEL_SUPPORT_H
#define TESTS_KERNEL_SUPPORT_H

#include "kernel/kernel.h"

typedef struct check_run {
  uint64_t random;    /* state; printed seed is its start */
  const char *filter; /* substring of a case's name, or NULL */
  double seconds;     /* for all random checks together */
  unsigned passed, failed;
  uint32_t levels[1 + KERNEL_BIT_COUNT]; /* masks to walk, the first is 0: scalar */
  unsigned level_count;
} check_run;

void check_mask(check_run *run, double seconds);
void check_pack(check_run *run, double seconds);
void check_mm(check_run *run, double seconds);
void check_mm_oracle(check_run *run, double seconds);
void bench_mm(check_run *run);

/* Random. `below` is exclusive, not 0. */
uint32_t random_u32(check_run *run);
uint32_t random_below(check_run *run, uint32_t below);
float random_unit(check_run *run);   /* [-1, 1) */
float random_normal(check_run *run); /* mean 0, deviation 1, sum of uniforms */

/* How a run of floats is made. TAME stays where every bound is meaningful; WILD reaches every
 * branch: zero blocks, huge and tiny scales, denormals, equal magnitudes, ties; HOSTILE adds Inf
 * and NaN. */
typedef enum input_kind { INPUT_TAME, INPUT_WILD, INPUT_HOSTILE } input_kind;
void random_floats(check_run *run, input_kind kind, float *out, size_t n);
/* GGUF bytes of `rows` rows of k values, scales of the same kinds. */
void random_weights(check_run *run, input_kind kind, uint32_t quant_type_number, uint32_t rows,
                    uint32_t k, uint8_t *out);

typedef struct guard_buffer {
  uint8_t *data; /* 64-byte aligned; len bytes */
  size_t len;
  uint8_t *pages;          /* first accessible page */
  size_t accessible, lead; /* bytes between the guard pages; before data */
} guard_buffer;
guard_buffer guard_open(check_run *run, size_t len);
void guard_close(check_run *run, guard_buffer *buffer,
                 const char *what); /* fails the run if a canary died */
void guard_read_only(guard_buffer *buffer);

/* First float that differs (any NaN equals any NaN), or n. */
size_t floats_differ(const float *a, const float *b, size_t n);

/* Counts and prints. `detail` is printf-like and only shown on failure. */
void check_report(check_run *run, bool ok, const char *name, const char *detail, ...)
    __attribute__((format(printf, 4, 5)));
bool check_wanted(const check_run *run, const char *name);
const char *level_text(uint32_t mask);

double bench_now(void);                          /* seconds of the wall clock */
double bench_median(double *values, unsigned n); /* sorts them */
/* Best and median of `repeats` timings of call(context) in processor time, each at least `least`
 * seconds, per call.
 */
typedef struct bench_time {
  double best, median;
} bench_time;
bench_time bench_run(void (*call)(void *), void *context, double least, unsigned repeats);

#endif
