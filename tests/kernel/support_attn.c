/* support_attn.c - see support_attn.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernel/support_attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "quant/quant.h"

enum { SYSTEM_PAGE = 4096, UNTOUCHED = 0x7e, WRONG_PAGE = 0x40000000 };

static void fill_floats(check_run *run, attn_fill fill, float size, float *out, size_t n) {
  static const float odd[] = {0.0f,      -0.0f, 1e-40f, -1e-40f, 65504.0f,
                              -65504.0f, 6e-8f, -6e-8f, 1.0f};
  if (fill == ATTN_FILL_HOSTILE) {
    random_floats(run, INPUT_HOSTILE, out, n);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    out[i] = random_normal(run) * size;
    uint32_t pick = random_below(run, 64);
    if (fill == ATTN_FILL_ODD && pick < sizeof odd / sizeof *odd) out[i] = odd[pick];
    if (fill == ATTN_FILL_BF16) out[i] = quant_bf16_to_f32(quant_f32_to_bf16(out[i]));
  }
}

static uint16_t *head_of(const attn_case *c, uint32_t t) {
  return (uint16_t *)(c->pool + c->pages[t / KERNEL_PAGE] * c->call.page_bytes +
                      c->call.head_offset);
}

static void put_token(attn_case *c, uint32_t t, const float *k, const float *v) {
  uint32_t hd = c->call.head_dim, slot = t % KERNEL_PAGE;
  uint16_t *head = head_of(c, t);
  for (uint32_t d = 0; d < hd; d++) {
    head[slot * hd + d] = quant_f32_to_f16(k[d]);
    head[(size_t)KERNEL_PAGE * hd + d * KERNEL_PAGE + slot] = quant_f32_to_f16(v[d]);
  }
}

attn_case *attn_case_create(check_run *run, uint32_t rows, uint32_t group, uint32_t head_dim,
                            uint32_t pos0, uint32_t window, attn_fill fill) {
  float k[256], v[256];
  attn_case *c = calloc(1, sizeof *c);
  if (c == NULL) exit(2);
  kernel_attn *a = &c->call;
  *a = (kernel_attn){.rows = rows,
                     .group = group,
                     .head_dim = head_dim,
                     .pos0 = pos0,
                     .window = window,
                     .scale = 1.0f / sqrtf((float)head_dim)};
  a->head_offset = random_below(run, 4) * 64;
  size_t bytes = a->head_offset + (size_t)KERNEL_PAGE * head_dim * 4;
  a->page_bytes = (bytes + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
  a->part_stride = (head_dim + 2 + 15) / 16 * 16 + random_below(run, 2) * 16;
  a->q_stride = (size_t)group * head_dim + random_below(run, 3) * 16;
  c->positions = pos0 + rows;
  uint32_t count = (c->positions + KERNEL_PAGE - 1) / KERNEL_PAGE;
  c->pool_bytes = count * a->page_bytes;
  c->pool = mmap(NULL, c->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  c->pages = malloc(count * sizeof *c->pages);
  c->q = aligned_alloc(64, (rows * a->q_stride * sizeof(float) + 63) & ~(size_t)63);
  if (c->pool == MAP_FAILED || c->pages == NULL || c->q == NULL) exit(2);
  if (c->pool_bytes > 8u << 20) madvise(c->pool, c->pool_bytes, MADV_HUGEPAGE);
  for (uint32_t i = 0; i < count; i++) { /* a random order, grown in place */
    uint32_t j = random_below(run, i + 1);
    c->pages[i] = c->pages[j];
    c->pages[j] = i;
  }
  a->pool = c->pool;
  a->pages = c->pages;
  a->q = c->q;
  fill_floats(run, fill, fill == ATTN_FILL_SHARP ? 80.0f : 1.5f, c->q, rows * a->q_stride);
  if (fill == ATTN_FILL_ODD) { /* a head whose scores are flushed to zeros of both signs */
    float *q = c->q + random_below(run, rows) * a->q_stride + random_below(run, group) * head_dim;
    for (uint32_t d = 0; d < head_dim; d++) q[d] = d ? 0.0f : -4e-38f;
  }
  for (uint32_t t = 0; t < c->positions; t++) {
    if (t == 0 || fill != ATTN_FILL_ODD || random_below(run, 4)) {
      fill_floats(run, fill, 1.0f, k, head_dim);
      fill_floats(run, fill, 1.0f, v, head_dim);
    }
    put_token(c, t, k, v);
  }
  attn_case_litter(c, run);
  return c;
}

void attn_case_destroy(attn_case **c) {
  if (*c == NULL) return;
  munmap((*c)->pool, (*c)->pool_bytes);
  free((*c)->pages);
  free((*c)->q);
  free(*c);
  *c = NULL;
}

static void litter_slot(attn_case *c, check_run *run, uint16_t *head, uint32_t slot) {
  uint32_t hd = c->call.head_dim;
  for (uint32_t d = 0; d < hd; d++) {
    head[slot * hd + d] = (uint16_t)random_u32(run);
    head[(size_t)KERNEL_PAGE * hd + d * KERNEL_PAGE + slot] = (uint16_t)random_u32(run);
  }
}

void attn_case_litter(attn_case *c, check_run *run) {
  uint32_t window = c->call.window, pos = c->call.pos0;
  for (uint32_t t = 0; window && t + window <= pos; t++)
    litter_slot(c, run, head_of(c, t), t % KERNEL_PAGE);
  for (uint32_t t = c->positions; t % KERNEL_PAGE; t++)
    litter_slot(c, run, head_of(c, c->positions - 1), t % KERNEL_PAGE);
}

static bool page_seen(const kernel_attn *a, uint32_t page) {
  for (uint32_t t = page * KERNEL_PAGE; t < (page + 1) * KERNEL_PAGE; t++) {
    if (t < a->t0 || t >= a->t1) continue;
    for (uint32_t pos = a->pos0; pos < a->pos0 + a->rows; pos++)
      if (t <= pos && (a->window == 0 || t + a->window > pos)) return true;
  }
  return false;
}

void attn_case_guard(attn_case *c) {
  for (uint32_t i = 0; i < (c->positions + KERNEL_PAGE - 1) / KERNEL_PAGE; i++) {
    if (page_seen(&c->call, i)) continue;
    mprotect(c->pool + c->pages[i] * c->call.page_bytes, c->call.page_bytes, PROT_NONE);
    c->pages[i] = WRONG_PAGE;
  }
}

bool attn_case_split(attn_case *c, uint32_t split) {
  c->call.t0 = split * KERNEL_SPLIT;
  c->call.t1 = c->call.t0 + KERNEL_SPLIT;
  if (c->call.t1 > c->positions) c->call.t1 = c->positions;
  return c->call.t0 < c->positions;
}

size_t attn_case_floats(const attn_case *c) {
  return c->call.rows * c->call.group * c->call.part_stride;
}

void attn_case_run(const attn_case *c, check_run *run, const kernel_table *table,
                   kernel_arith arith, float *part) {
  kernel_attn a = c->call;
  size_t bytes = attn_case_floats(c) * sizeof *part;
  guard_buffer scratch = guard_open(run, kernel_attn_scratch_bytes(a.group, a.head_dim));
  guard_buffer out = guard_open(run, bytes);
  memset(scratch.data, 0xff, scratch.len); /* NaN */
  memset(out.data, UNTOUCHED, bytes);
  a.scratch = scratch.data;
  a.part = (float *)(void *)out.data;
  table->attn[arith](&a);
  bool clean = true;
  for (uint32_t i = 0; i < a.rows * a.group; i++)
    for (size_t j = (a.head_dim + 2) * 4; j < a.part_stride * 4; j++)
      clean = clean && out.data[i * a.part_stride * 4 + j] == UNTOUCHED;
  if (!clean) check_report(run, false, "attn", "%s wrote past the state", table->name);
  memcpy(part, out.data, bytes);
  guard_close(run, &scratch, "attn scratch");
  guard_close(run, &out, "attn part");
}

/* A case of any shape; any whole pages of a split may be asked for. */
static attn_case *random_case(check_run *run, bool many) {
  static const uint32_t windows[] = {0, 0, 1, 7, 32, 33, 64, 200, 512};
  uint32_t rows = many ? 1 + random_below(run, KERNEL_ROWS_MAX) : 1;
  if (many && random_below(run, 4) == 0) rows = KERNEL_ROWS_MAX;
  uint32_t group = 1 + random_below(run, random_below(run, 4) ? 5 : 16);
  uint32_t head_dim = 32 * (1 + random_below(run, random_below(run, 4) ? 4 : 8));
  uint32_t pos0 = random_below(run, random_below(run, 4) ? 150 : 1100);
  uint32_t window = windows[random_below(run, 9)];
  attn_fill fill = (attn_fill)random_below(run, ATTN_FILL_COUNT);
  attn_case *c = attn_case_create(run, rows, group, head_dim, pos0, window, fill);
  attn_case_split(c, random_below(run, (c->positions + KERNEL_SPLIT - 1) / KERNEL_SPLIT));
  uint32_t width = c->call.t1 - c->call.t0;
  if (random_below(run, 4) == 0 && width > KERNEL_PAGE) {
    c->call.t0 += random_below(run, width / KERNEL_PAGE) * KERNEL_PAGE;
    c->call.t1 -= random_below(run, c->call.t1 - c->call.t0);
  }
  attn_case_guard(c);
  return c;
}

static void check_round(check_run *run, kernel_arith arith, kernel_activations set,
                        const char *name) {
  kernel_table table;
  uint64_t seed = run->random;
  attn_case *c = random_case(run, arith == KERNEL_PROMPT || set == KERNEL_FLOAT);
  const kernel_attn *a = &c->call;
  size_t floats = attn_case_floats(c);
  float *expected = malloc(floats * sizeof(float)), *got = malloc(floats * sizeof(float));
  if (expected == NULL || got == NULL) exit(2);
  kernel_table_init(&table, set, 0);
  attn_case_run(c, run, &table, arith, expected);
  for (unsigned level = 1; level < run->level_count; level++) {
    kernel_table_init(&table, set, run->levels[level]);
    attn_case_run(c, run, &table, arith, got);
    size_t at = floats_differ(expected, got, floats);
    check_report(run, at == floats, name,
                 "%s: float %zu of part: rows %u group %u head_dim %u pos0 %u window %u t %u..%u "
                 "state %llu",
                 table.name, at, a->rows, a->group, a->head_dim, a->pos0, a->window, a->t0, a->t1,
                 (unsigned long long)seed);
  }
  free(expected);
  free(got);
  attn_case_destroy(&c);
}

void check_attn_prompt(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 24 || bench_now() < end; i++)
    check_round(run, KERNEL_PROMPT, KERNEL_DEFAULT, "attn_prompt");
}

void check_attn_gen(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 24 || bench_now() < end; i++) {
    kernel_activations set = i % 4 ? KERNEL_DEFAULT : KERNEL_FLOAT;
    check_round(run, i % 8 ? KERNEL_GEN : KERNEL_PROMPT, i % 8 ? set : KERNEL_FLOAT, "attn_gen");
  }
}

/* acc, m, l as a split gives them: sometimes of nothing seen. */
static void random_state(check_run *run, float *state, uint32_t head_dim) {
  bool hidden = random_below(run, 5) == 0;
  random_floats(run, random_below(run, 4) ? INPUT_TAME : INPUT_HOSTILE, state, head_dim);
  for (uint32_t d = 0; hidden && d < head_dim; d++) state[d] = 0.0f;
  float size = random_below(run, 2) ? 60.0f : 3.0f;
  state[head_dim] = hidden ? -1e30f : random_normal(run) * size;
  state[head_dim + 1] = hidden ? 0.0f : 1.0f + 9.0f * fabsf(random_unit(run));
}

void check_attn_merge(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (int i = 0; i < 50 || bench_now() < end; i++) {
    float into[272] = {0}, part[272] = {0}, expected[272], got[272], y0[256] = {0}, y1[256] = {0};
    kernel_table table;
    uint32_t hd = 32 * (1 + random_below(run, 8));
    random_state(run, into, hd);
    random_state(run, part, hd);
    memcpy(expected, into, sizeof into);
    kernel_table_init(&table, KERNEL_DEFAULT, 0);
    table.attn_merge(expected, part, hd);
    table.attn_finish(expected, hd, y0);
    for (unsigned level = 1; level < run->level_count; level++) {
      memcpy(got, into, sizeof into);
      kernel_table_init(&table, KERNEL_DEFAULT, run->levels[level]);
      table.attn_merge(got, part, hd);
      table.attn_finish(got, hd, y1);
      bool ok = floats_differ(expected, got, 272) == 272 && floats_differ(y0, y1, 256) == 256;
      check_report(run, ok, "attn_merge", "%s: head_dim %u", table.name, hd);
    }
  }
}

typedef struct bench_call {
  kernel_table table;
  kernel_arith arith;
  attn_case *c;
  uint32_t splits, next; /* of those before the rows, visited in turn */
} bench_call;

static void call_next(void *context) {
  bench_call *b = context;
  attn_case_split(b->c, b->next);
  b->table.attn[b->arith](&b->c->call);
  b->next = (b->next + 1) % b->splits;
}

static bench_call bench_open_attn(check_run *run, kernel_arith arith, uint32_t splits,
                                  uint32_t group, uint32_t head_dim) {
  bench_call b = {.arith = arith, .splits = splits};
  uint32_t rows = arith == KERNEL_PROMPT ? KERNEL_ROWS_MAX : 1;
  size_t bytes = kernel_attn_scratch_bytes(group, head_dim);
  b.c = attn_case_create(run, rows, group, head_dim, splits * KERNEL_SPLIT, 0, ATTN_FILL_PLAIN);
  b.c->call.scratch = aligned_alloc(64, bytes);
  b.c->call.part = aligned_alloc(64, attn_case_floats(b.c) * sizeof(float));
  if (b.c->call.scratch == NULL || b.c->call.part == NULL) exit(2);
  memset(b.c->call.scratch, 0, bytes);
  return b;
}

static void bench_close_attn(bench_call *b) {
  free(b->c->call.scratch);
  free(b->c->call.part);
  attn_case_destroy(&b->c);
}

static const uint32_t bench_shapes[][2] = {{3, 64}, {4, 256}, {1, 64}, {4, 128}, {8, 128}};
enum { BENCH_SHAPES = sizeof bench_shapes / sizeof *bench_shapes };

void bench_attn_prompt(check_run *run) {
  for (int i = 0; i < BENCH_SHAPES; i++) {
    uint32_t group = bench_shapes[i][0], hd = bench_shapes[i][1];
    bench_call b = bench_open_attn(run, KERNEL_PROMPT, 1, group, hd);
    for (unsigned level = 1; level < run->level_count; level++) {
      kernel_table_init(&b.table, KERNEL_DEFAULT, run->levels[level]);
      bench_time t = bench_run(call_next, &b, 0.02, 9);
      double work = 4.0 * 32 * group * hd * 512 * 1e-9;
      printf("attn PROMPT 32 rows, group %u, head %3u %-10s GFLOPS median %.0f (best %.0f)\n",
             group, hd, level_text(run->levels[level]), work / t.median, work / t.best);
    }
    bench_close_attn(&b);
  }
}

/* One split again and again lies in the second cache; 96 MB of them in turn lie in memory. */
void bench_attn_gen(check_run *run) {
  for (int i = 0; i < BENCH_SHAPES; i++) {
    uint32_t group = bench_shapes[i][0], hd = bench_shapes[i][1];
    double bytes = 4.0 * hd * 512;
    bench_call near = bench_open_attn(run, KERNEL_GEN, 1, group, hd);
    bench_call far = bench_open_attn(run, KERNEL_GEN, (uint32_t)(96e6 / bytes), group, hd);
    for (unsigned level = 1; level < run->level_count; level++) {
      kernel_table_init(&near.table, KERNEL_DEFAULT, run->levels[level]);
      far.table = near.table;
      bench_time n = bench_run(call_next, &near, 0.02, 9), f = bench_run(call_next, &far, 0.02, 9);
      printf(
          "attn GEN group %u, head %3u %-10s GB/s of KV median (best): cache %.1f (%.1f), memory "
          "%.1f (%.1f)\n",
          group, hd, level_text(run->levels[level]), bytes / n.median * 1e-9, bytes / n.best * 1e-9,
          bytes / f.median * 1e-9, bytes / f.best * 1e-9);
    }
    bench_close_attn(&near);
    bench_close_attn(&far);
  }
}
