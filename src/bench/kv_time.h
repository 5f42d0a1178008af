/* SPDX-License-Identifier: Apache-2.0 */
/* kv_time.h - attention over the keys and values of some sequences, as a layout has them in memory.
 */
#ifndef BENCH_KV_TIME_H
#define BENCH_KV_TIME_H

#include "bench/kv_layouts.h"
#include "device/graph.h"
#include "kernel/kernel.h"

typedef struct kv_time kv_time;

/* Memory and tables for `sequences` of the mix. `g` is borrowed until kv_time_destroy. */
troika_status kv_time_create(const graph *g, const kernel_table *kernels, uint32_t sequences,
                             uint32_t context, kv_time **out, troika_error *err);
void kv_time_destroy(kv_time **t);
/* Writes everything in this layout (RESERVED, 16, 32 or 64), reads it once untimed, then measures:
 * microseconds a token. INTERNAL: the result has other bits than that of the layout before. */
troika_status kv_time_measure(kv_time *t, kv_layout layout, double *us, troika_error *err);

#endif
