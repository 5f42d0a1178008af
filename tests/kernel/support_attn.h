/* support_attn.h - random attention calls, and the comparison of levels on them.
 *
 * A case owns its memory: pages lie in random order in a pool; those that no row sees cannot be
 * read, so that a walk too far ends the test. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KERNEL_SUPPORT_ATTN_H
#define TESTS_KERNEL_SUPPORT_ATTN_H

#include "kernel/support.h"

/* Lines of CHECK_FAMILY_LIST. */
#define CHECK_ATTN_LIST(X)                                                                  \
  X(attn_prompt, "bits", check_attn_prompt, bench_attn_prompt, "attn_ref.c, bf16 operands") \
  X(attn_gen, "bits", check_attn_gen, bench_attn_gen, "attn_ref.c, fp32, one row and many") \
  X(attn_merge, "bits", check_attn_merge, NULL, "attn_ref.c, the merge of splits and the end")

void check_attn_prompt(check_run *run, double seconds);
void check_attn_gen(check_run *run, double seconds);
void check_attn_merge(check_run *run, double seconds);
void bench_attn_prompt(check_run *run);
void bench_attn_gen(check_run *run);

typedef enum attn_fill {
  ATTN_FILL_PLAIN,   /* normal values, scores of a few units */
  ATTN_FILL_BF16,    /* the same, exact in bf16 */
  ATTN_FILL_SHARP,   /* scores of hundreds: most p are 0, others near the edge of exp */
  ATTN_FILL_ODD,     /* zeros of both signs, denormals, the largest f16, equal rows */
  ATTN_FILL_HOSTILE, /* also infinity and NaN */
  ATTN_FILL_COUNT
} attn_fill;

typedef struct attn_case {
  kernel_attn call;   /* points into the memory below; part and scratch are set by the run */
  uint32_t positions; /* pos0 + rows */
  float *q;
  uint32_t *pages;
  uint8_t *pool;
  size_t pool_bytes;
} attn_case;

/* Rows pos0.. of one sequence of pos0 + rows tokens, all in the pool. The caller sets t0 and t1. */
attn_case *attn_case_create(check_run *run, uint32_t rows, uint32_t group, uint32_t head_dim,
                            uint32_t pos0, uint32_t window, attn_fill fill);
void attn_case_destroy(attn_case **c);
/* Slots that no row sees, from `positions` on and before the window: bits of any kind, also NaN. */
void attn_case_litter(attn_case *c, check_run *run);
/* Makes every page unreadable that no row of the call sees, and its entry a wrong one. */
void attn_case_guard(attn_case *c);
/* t0, t1 cut to split number `split`; false if it has no positions. */
bool attn_case_split(attn_case *c, uint32_t split);
/* Floats of all parts. */
size_t attn_case_floats(const attn_case *c);
/* Runs it with scratch of just the stated size, full of nonsense; fails the run if anything but the
 * state of each row and head was written. */
void attn_case_run(const attn_case *c, check_run *run, const kernel_table *table,
                   kernel_arith arith, float *part);

#endif
