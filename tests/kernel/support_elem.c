/* support_elem.c - see support_elem.h. Each case runs the scalar reference once and every level
 * after it, on twin buffers against unreadable pages. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/support_elem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one call takes: two inputs, one output that may be the first input, and numbers. */
typedef struct elem_call {
  float *x, *w, *y;
  uint32_t n;
  float number;
  bool flag;
} elem_call;
typedef void elem_function(const kernel_table *table, const elem_call *call);

static void call_norm(const kernel_table *t, const elem_call *c) {
  t->rms_norm(c->x, c->w, c->n, c->number, c->y);
}
static void call_rope(const kernel_table *t, const elem_call *c) {
  memcpy(c->y, c->x, c->n * sizeof(float));
  t->rope(c->y, c->w, c->n, c->flag);
}
static void call_add(const kernel_table *t, const elem_call *c) {
  memcpy(c->y, c->x, c->n * sizeof(float));
  t->add(c->y, c->w, c->n);
}
static void call_silu(const kernel_table *t, const elem_call *c) {
  t->silu_mul(c->x, c->w, c->n, c->y);
}
static void call_gelu(const kernel_table *t, const elem_call *c) {
  t->gelu_mul(c->x, c->w, c->n, c->y);
}
static void call_max(const kernel_table *t, const elem_call *c) {
  c->y[0] = t->vec_max(c->x, c->n);
}
static void call_sum_exp(const kernel_table *t, const elem_call *c) {
  c->y[0] = t->vec_sum_exp(c->x, c->n, c->number);
}

/* `outputs` floats of y are compared. in_place: y is x, where the kernel allows it. */
static void check_call(check_run *run, const char *name, elem_function *function, uint32_t n,
                       uint32_t outputs, float number, bool flag, bool in_place) {
  kernel_table table;
  size_t bytes = n * sizeof(float);
  input_kind kind = (input_kind)random_below(run, 3);
  guard_buffer x = guard_open(run, bytes), w = guard_open(run, bytes), y = guard_open(run, bytes);
  float *input = malloc(bytes), *expected = malloc(bytes);
  if (input == NULL || expected == NULL) exit(2);
  elem_call call = {.x = (float *)(void *)x.data,
                    .w = (float *)(void *)w.data,
                    .n = n,
                    .number = number,
                    .flag = flag};
  call.y = in_place ? call.x : (float *)(void *)y.data;
  random_floats(run, kind, input, n);
  random_floats(run, kind, call.w, n);
  for (unsigned level = 0; level < run->level_count; level++) {
    kernel_table_init(&table, KERNEL_DEFAULT, run->levels[level]);
    memcpy(call.x, input, bytes);
    function(&table, &call);
    if (level == 0) {
      memcpy(expected, call.y, bytes);
      continue;
    }
    size_t at = floats_differ(expected, call.y, outputs);
    check_report(run, at == outputs, name, "%s: float %zu of n %u, number %a, flag %d, in place %d",
                 table.name, at, n, (double)number, flag, in_place);
  }
  free(input);
  free(expected);
  guard_close(run, &x, name);
  guard_close(run, &w, name);
  guard_close(run, &y, name);
}

void check_elem_rows(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 30 || bench_now() < end; i++) {
    bool flag = i % 2, again = i / 2 % 2;
    uint32_t n = 16 * (1 + random_below(run, 140)), pairs = 32 * (1 + random_below(run, 8));
    check_call(run, "rms_norm", call_norm, n, n, flag ? 1e-6f : 1e-5f, false, again);
    check_call(run, "rope", call_rope, pairs, pairs, 0, flag, false);
    n = random_below(run, 4) ? 1 + random_below(run, 100) : 2048;
    check_call(run, "add", call_add, n, n, 0, false, false);
  }
}

void check_elem_gates(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 40 || bench_now() < end; i++) {
    uint32_t n = random_below(run, 4) ? 1 + random_below(run, 100) : 1536;
    check_call(run, "silu_mul", call_silu, n, n, 0, false, i % 2);
    check_call(run, "gelu_mul", call_gelu, n, n, 0, false, i % 2);
  }
}

void check_elem_sums(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 60 || bench_now() < end; i++) {
    uint32_t n = i < 40 ? 1 + (uint32_t)i : 1 + random_below(run, 3000);
    check_call(run, "vec_max", call_max, n, 1, 0, false, false);
    check_call(run, "vec_sum_exp", call_sum_exp, n, 1, random_normal(run) * 40, false, false);
  }
}

static bool halves_equal(const uint16_t *a, const uint16_t *b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    bool nan = (a[i] & 0x7fff) > 0x7c00 && (b[i] & 0x7fff) > 0x7c00;
    if (a[i] != b[i] && !nan) return false;
  }
  return true;
}

/* The whole page is compared, so a write to another slot shows. */
void check_elem_kv(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 40 || bench_now() < end; i++) {
    kernel_table table;
    uint32_t hd = 32 * (1 + random_below(run, 8)), slot = random_below(run, KERNEL_PAGE);
    size_t bytes = (size_t)KERNEL_PAGE * hd * 4;
    float k[256], v[256];
    random_floats(run, (input_kind)(i % 3), k, hd);
    random_floats(run, (input_kind)(i % 3), v, hd);
    guard_buffer page = guard_open(run, bytes);
    uint8_t *expected = malloc(bytes);
    if (expected == NULL) exit(2);
    for (unsigned level = 0; level < run->level_count; level++) {
      kernel_table_init(&table, KERNEL_DEFAULT, run->levels[level]);
      memset(page.data, 0x2b, bytes);
      table.kv_write(page.data, slot, hd, k, v);
      if (level == 0) {
        memcpy(expected, page.data, bytes);
        continue;
      }
      bool ok = halves_equal((const uint16_t *)(const void *)expected,
                             (const uint16_t *)(const void *)page.data, bytes / 2);
      check_report(run, ok, "kv_write", "%s: head_dim %u slot %u", table.name, hd, slot);
    }
    free(expected);
    guard_close(run, &page, "kv_write");
  }
}

typedef struct elem_bench {
  kernel_table table;
  elem_function *function;
  elem_call call;
} elem_bench;

static void bench_call(void *context) {
  const elem_bench *b = context;
  b->function(&b->table, &b->call);
}

static void bench_function(check_run *run, const char *name, elem_function *function, uint32_t n) {
  size_t bytes = (n * sizeof(float) + 63) & ~(size_t)63;
  elem_bench b = {.function = function, .call = {.n = n, .number = 1e-5f}};
  b.call.x = aligned_alloc(64, bytes);
  b.call.w = aligned_alloc(64, bytes);
  b.call.y = aligned_alloc(64, bytes);
  if (b.call.x == NULL || b.call.w == NULL || b.call.y == NULL) exit(2);
  random_floats(run, INPUT_TAME, b.call.x, n);
  random_floats(run, INPUT_TAME, b.call.w, n);
  for (unsigned level = 0; level < run->level_count; level++) {
    kernel_table_init(&b.table, KERNEL_DEFAULT, run->levels[level]);
    bench_time t = bench_run(bench_call, &b, 0.005, 9);
    printf("%-12s n %6u %-10s ns a number, median %.3f (best %.3f)\n", name, n,
           level_text(run->levels[level]), t.median / n * 1e9, t.best / n * 1e9);
  }
  free(b.call.x);
  free(b.call.w);
  free(b.call.y);
}

void bench_elem_rows(check_run *run) {
  bench_function(run, "rms_norm", call_norm, 576);
  bench_function(run, "rope", call_rope, 64);
  bench_function(run, "add", call_add, 576);
}

void bench_elem_gates(check_run *run) {
  bench_function(run, "silu_mul", call_silu, 1536);
  bench_function(run, "gelu_mul", call_gelu, 2048);
}

void bench_elem_sums(check_run *run) {
  bench_function(run, "vec_max", call_max, 49152);
  bench_function(run, "vec_sum_exp", call_sum_exp, 49152);
}

static void call_kv(const kernel_table *t, const elem_call *c) {
  t->kv_write((uint8_t *)c->y, 5, 64, c->x, c->w);
}

void bench_elem_kv(check_run *run) {
  bench_function(run, "kv_write", call_kv, 64 * KERNEL_PAGE);
}
