/* support_elem.h - the checks and benchmarks of elem.h. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KERNEL_SUPPORT_ELEM_H
#define TESTS_KERNEL_SUPPORT_ELEM_H

#include "kernel/support.h"

/* Lines of CHECK_FAMILY_LIST. */
#define CHECK_ELEM_LIST(X)                                                              \
  X(elem_rows, "bits", check_elem_rows, bench_elem_rows, "elem_ref.c: norm, rope, add") \
  X(elem_gates, "bits", check_elem_gates, bench_elem_gates, "elem_ref.c: silu, gelu")   \
  X(elem_sums, "bits", check_elem_sums, bench_elem_sums, "elem_ref.c: max, sum of exp") \
  X(elem_kv, "bits", check_elem_kv, bench_elem_kv, "elem_ref.c: KV write")

void check_elem_rows(check_run *run, double seconds);
void check_elem_gates(check_run *run, double seconds);
void check_elem_sums(check_run *run, double seconds);
void check_elem_kv(check_run *run, double seconds);
void bench_elem_rows(check_run *run);
void bench_elem_gates(check_run *run);
void bench_elem_sums(check_run *run);
void bench_elem_kv(check_run *run);

#endif
