/* support_bench.c - how fast the matrix kernels are, on one thread.
 *
 * PROMPT, FLOAT, INT8: GFLOPS (two per multiplication) on weights that lie in cache, and the share
 * of a loop of fp32 fma in registers. GEN, INT8: GB/s of weight bytes that lie in memory, and the
 * share of a plain read of the same bytes. The yardstick runs in alternation with the kernel, a few
 * milliseconds each, and the share is the median of the pairs, because a shared machine's clock
 * moves. All in the thread's processor time. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "quant/quant.h"
#include "support.h"

typedef struct bench_case {
  kernel_table table;
  kernel_mm args;
  kernel_weight weight;
  void (*mm)(const kernel_mm *);
  size_t bytes; /* of weights */
} bench_case;

static uint8_t *bench_memory(size_t bytes) {
  const size_t huge = 2u << 20;
  bytes = (bytes + huge - 1) & ~(huge - 1);
  uint8_t *p = aligned_alloc(huge, bytes);
  if (p == NULL) exit(2);
  madvise(p, bytes, MADV_HUGEPAGE);
  memset(p, 1, bytes);
  return p;
}

static void call_mm(void *context) {
  const bench_case *c = context;
  c->mm(&c->args);
}

/* Yardsticks, in assembly so that no compiler improves them: reading each line of the weights once,
 * and fma without memory, 12 chains of 512 or (levels without AVX-512) 256 bits. */
static void call_read(void *context) {
  const bench_case *c = context;
#if defined(__x86_64__)
  for (const uint8_t *p = c->weight.data, *end = p + c->bytes; p < end; p += 128) {
    __builtin_prefetch(p + 4096);
    __builtin_prefetch(p + 4160);
    __asm__ volatile(
        "vmovdqu (%0), %%ymm0\n\tvmovdqu 32(%0), %%ymm1\n\t"
        "vmovdqu 64(%0), %%ymm2\n\tvmovdqu 96(%0), %%ymm3" ::"r"(p)
        : "xmm0", "xmm1", "xmm2", "xmm3");
  }
#else
  uint64_t sum = 0;
  for (size_t at = 0; at < c->bytes; at += 64) sum += c->weight.data[at];
  *(volatile float *)c->args.y = (float)sum;
#endif
}

enum { PEAK_ROUNDS = 20000 };
#define PEAK_FMA(r, i) "vfmadd231ps %%" r "0, %%" r "1, %%" r #i "\n\t"
#define PEAK_SIX(r, a, b, c, d, e, f) \
  PEAK_FMA(r, a) PEAK_FMA(r, b) PEAK_FMA(r, c) PEAK_FMA(r, d) PEAK_FMA(r, e) PEAK_FMA(r, f)
#define PEAK_ALL(r) PEAK_SIX(r, 2, 3, 4, 5, 6, 7) PEAK_SIX(r, 8, 9, 10, 11, 12, 13)
#define PEAK_CLOBBERS \
  "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"
static void call_peak(void *context) {
#if defined(__x86_64__)
  const bench_case *c = context;
  if (c->table.levels & 1u << KERNEL_BIT_AVX512) {
    for (int i = 0; i < PEAK_ROUNDS; i++) __asm__ volatile(PEAK_ALL("zmm") "" : : : PEAK_CLOBBERS);
  } else {
    for (int i = 0; i < PEAK_ROUNDS; i++) __asm__ volatile(PEAK_ALL("ymm") "" : : : PEAK_CLOBBERS);
  }
#else
  (void)context;
#endif
}

static bench_case bench_open(check_run *run, uint32_t type, uint32_t n, uint32_t k,
                             uint32_t rows_most) {
  bench_case c = {.bytes = 0};
  if (kernel_pack_layout(type, n, k, &c.weight, &c.bytes) != TROIKA_OK) exit(2);
  uint8_t *data = bench_memory(c.bytes), *raw;
  const quant_format *format = quant_find(type);
  /* 64 different rows, packed again and again. */
  raw = malloc((size_t)64 * k / format->elements * format->bytes);
  if (raw == NULL) exit(2);
  random_weights(run, INPUT_TAME, type, 64, k, raw);
  kernel_weight four = c.weight;
  four.n = 64;
  kernel_pack_panels(&four, type, raw, 0, 4, data);
  for (size_t at = 4 * c.weight.panel_bytes; at < c.bytes; at += 4 * c.weight.panel_bytes)
    memcpy(data + at, data,
           c.bytes - at < 4 * c.weight.panel_bytes ? c.bytes - at : 4 * c.weight.panel_bytes);
  free(raw);
  c.weight.data = data;
  c.args = (kernel_mm){
      .panels = (n + 15) / 16, .x_stride = kernel_act_bytes(k), .y_stride = (n + 15) & ~15u};
  c.args.x = bench_memory(rows_most * c.args.x_stride);
  c.args.y = (float *)(void *)bench_memory(rows_most * c.args.y_stride * sizeof(float));
  c.args.scratch = bench_memory(kernel_scratch_bytes(k));
  return c;
}

static void bench_set(check_run *run, bench_case *c, kernel_activations set, kernel_arith arith,
                      uint32_t level, uint32_t rows) {
  kernel_table_init(&c->table, set, level);
  c->mm = c->table.mm[arith][c->weight.pack];
  c->args.rows = rows;
  c->args.weight = &c->weight;
  float *x = malloc(c->weight.k * sizeof(float));
  if (x == NULL) exit(2);
  for (uint32_t r = 0; r < rows; r++) {
    uint8_t *out = (uint8_t *)(uintptr_t)c->args.x + r * c->args.x_stride;
    random_floats(run, INPUT_TAME, x, c->weight.k);
    if (c->table.act_float[arith][c->weight.pack])
      memcpy(out, x, c->weight.k * sizeof(float));
    else
      c->table.act[arith](x, c->weight.k, out);
  }
  free(x);
}

static void bench_close(bench_case *c) {
  free((void *)(uintptr_t)c->weight.data);
  free((void *)(uintptr_t)c->args.x);
  free(c->args.y);
  free(c->args.scratch);
}

/* Pairs of (kernel, yardstick), each long enough to be timed: median and best time of a call, and
 * the median of yardstick / kernel. */
static bench_time bench_beside(bench_case *c, void (*yardstick)(void *), double least,
                               double *share) {
  enum { PAIRS = 15 };
  double times[PAIRS], shares[PAIRS];
  for (int i = 0; i < PAIRS; i++) {
    const double yard = bench_run(yardstick, c, least, 1).best;
    times[i] = bench_run(call_mm, c, least, 1).best;
    shares[i] = yard / times[i];
  }
  *share = bench_median(shares, PAIRS);
  const double median = bench_median(times, PAIRS);
  return (bench_time){times[0], median};
}

static void bench_rate(check_run *run, const char *what, uint32_t type, kernel_activations set,
                       kernel_arith arith, uint32_t k) {
  static const uint32_t rows[] = {1, 4, 32, 256};
  char name[96];
  snprintf(name, sizeof name, "mm %s %s k%u", what, quant_find(type)->name, k);
  if (!check_wanted(run, name)) return;
  bench_case c = bench_open(run, type, 256, k, 256);
  for (unsigned level = 1; level < run->level_count; level++) {
    printf("%-22s %-10s GFLOPS median (best, share of fma):", name, level_text(run->levels[level]));
    for (int i = 0; i < 4; i++) {
      double share;
      bench_set(run, &c, set, arith, run->levels[level], rows[i]);
      const bench_time t = bench_beside(&c, call_peak, 0.002, &share);
      const double work = 2.0 * 256 * k * rows[i];
      const double peak = PEAK_ROUNDS * 12.0 * (c.table.levels & 1u << KERNEL_BIT_AVX512 ? 32 : 16);
      printf("  %u: %.0f (%.0f, %.2f)", rows[i], work / t.median * 1e-9, work / t.best * 1e-9,
             share * work / peak);
    }
    printf("\n");
  }
  bench_close(&c);
}

static void bench_stream(check_run *run, const char *what, uint32_t type, kernel_activations set,
                         kernel_arith arith, uint32_t k) {
  static const uint32_t rows[] = {1, 2, 4, 8};
  char name[96];
  snprintf(name, sizeof name, "mm %s %s stream k%u", what, quant_find(type)->name, k);
  if (!check_wanted(run, name)) return;
  kernel_weight one;
  size_t bytes;
  if (kernel_pack_layout(type, 16, k, &one, &bytes) != TROIKA_OK) exit(2);
  const uint32_t n = (uint32_t)((160u << 20) / bytes) * 16; /* several times the last cache */
  bench_case c = bench_open(run, type, n, k, 8);
  for (unsigned level = 1; level < run->level_count; level++) {
    printf("%-22s %-10s GB/s median (best, share of read):", name, level_text(run->levels[level]));
    for (int i = 0; i < 4; i++) {
      double share;
      bench_set(run, &c, set, arith, run->levels[level], rows[i]);
      const bench_time t = bench_beside(&c, call_read, 0, &share);
      printf("  %u: %.1f (%.1f, %.2f)", rows[i], (double)c.bytes / t.median * 1e-9,
             (double)c.bytes / t.best * 1e-9, share);
    }
    printf("\n");
  }
  bench_close(&c);
}

void bench_mm(check_run *run) {
  bench_rate(run, "PROMPT", QUANT_Q4_0, KERNEL_DEFAULT, KERNEL_PROMPT, 576);
  bench_rate(run, "PROMPT", QUANT_Q4_0, KERNEL_DEFAULT, KERNEL_PROMPT, 2048);
  bench_rate(run, "PROMPT", QUANT_Q4_K, KERNEL_DEFAULT, KERNEL_PROMPT, 2048);
  bench_rate(run, "PROMPT", QUANT_Q8_0, KERNEL_DEFAULT, KERNEL_PROMPT, 2048);
  bench_rate(run, "PROMPT", QUANT_F16, KERNEL_DEFAULT, KERNEL_PROMPT, 2048);
  bench_rate(run, "FLOAT", QUANT_Q4_0, KERNEL_FLOAT, KERNEL_PROMPT, 2048);
  bench_rate(run, "FLOAT", QUANT_F32, KERNEL_FLOAT, KERNEL_PROMPT, 2048);
  bench_rate(run, "INT8", QUANT_Q4_0, KERNEL_INT8, KERNEL_PROMPT, 2048);

  bench_rate(run, "GEN", QUANT_Q4_0, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_Q4_0, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_Q4_0, KERNEL_DEFAULT, KERNEL_GEN, 576);
  bench_stream(run, "GEN", QUANT_Q4_1, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_Q4_K, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_Q8_0, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_Q6_K, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "GEN", QUANT_F16, KERNEL_DEFAULT, KERNEL_GEN, 2048);
  bench_stream(run, "INT8", QUANT_Q4_0, KERNEL_INT8, KERNEL_GEN, 2048);
  bench_stream(run, "FLOAT", QUANT_Q4_0, KERNEL_FLOAT, KERNEL_GEN, 2048);
}
