/* test_attn.c - attention against a float64 oracle, and against what must not matter: other rows,
 * hidden slots, pages nobody sees. That levels agree in bits is the business of test_check.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "kernel/attn.h"
#include "kernel/support_attn.h"
#include "quant/quant.h"

static const uint32_t masks[] = {0, 1u << KERNEL_BIT_AVX2,
                                 1u << KERNEL_BIT_AVX2 | 1u << KERNEL_BIT_AVX512, KERNEL_MASK_ALL};
enum { LEVELS = sizeof masks / sizeof *masks };

/* False if the processor has it not (the last: all that it has). */
static bool table_of(kernel_table *table, int level, kernel_activations activations) {
  kernel_table_init(table, activations, masks[level]);
  return table->levels == masks[level] || level == LEVELS - 1;
}

/* One for all tests, from a fixed seed; the tools of support.h count what they find wrong in it. */
static check_run run = {.random = 20};

static int nothing_failed(void **state) {
  (void)state;
  return run.failed != 0;
}

/* softmax(scale * q . k) v over what one row sees, in float64 from the same inputs. */
static void oracle(const attn_case *c, uint32_t row, uint32_t g, double *y) {
  const kernel_attn *a = &c->call;
  uint32_t pos = a->pos0 + row, hd = a->head_dim;
  const float *q = a->q + row * a->q_stride + (size_t)g * hd;
  uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
  double *s = malloc((pos + 1) * sizeof *s), max = -INFINITY, sum = 0;
  for (uint32_t d = 0; d < hd; d++) y[d] = 0;
  for (uint32_t t = first; t <= pos; t++) {
    const uint16_t *k = attn_page(a, t) + (size_t)(t % KERNEL_PAGE) * hd;
    s[t] = 0;
    for (uint32_t d = 0; d < hd; d++) s[t] += (double)q[d] * (double)quant_f16_to_f32(k[d]);
    s[t] *= (double)a->scale;
    if (s[t] > max) max = s[t];
  }
  for (uint32_t t = first; t <= pos; t++) {
    double p = exp(s[t] - max);
    const uint16_t *v = attn_page(a, t) + (size_t)KERNEL_PAGE * hd + t % KERNEL_PAGE;
    sum += p;
    for (uint32_t d = 0; d < hd; d++) y[d] += p * (double)quant_f16_to_f32(v[d * KERNEL_PAGE]);
  }
  for (uint32_t d = 0; d < hd; d++) y[d] /= sum;
  free(s);
}

static float *part_create(const attn_case *c) {
  return malloc(attn_case_floats(c) * sizeof(float));
}

/* All splits, merged in order and finished: y [rows * group][head_dim]. */
static void whole(const kernel_table *table, attn_case *c, kernel_arith arith, float *y) {
  size_t stride = c->call.part_stride, count = c->call.rows * c->call.group;
  float *sum = part_create(c), *part = part_create(c);
  for (uint32_t split = 0; attn_case_split(c, split); split++) {
    attn_case_run(c, &run, table, arith, split ? part : sum);
    for (size_t i = 0; split && i < count; i++)
      table->attn_merge(sum + i * stride, part + i * stride, c->call.head_dim);
  }
  for (size_t i = 0; i < count; i++)
    table->attn_finish(sum + i * stride, c->call.head_dim, y + i * c->call.head_dim);
  free(sum);
  free(part);
}

static double worst_error(const kernel_table *table, attn_case *c, kernel_arith arith) {
  uint32_t hd = c->call.head_dim, count = c->call.rows * c->call.group;
  float *y = malloc(count * hd * sizeof *y);
  double expected[ATTN_HEAD_DIM_MAX], worst = 0;
  whole(table, c, arith, y);
  for (uint32_t i = 0; i < count; i++) {
    oracle(c, i / c->call.group, i % c->call.group, expected);
    for (uint32_t d = 0; d < hd; d++) {
      double error = fabs(expected[d] - (double)y[i * hd + d]);
      worst = error > worst || isnan(error) ? error : worst;
    }
  }
  free(y);
  return worst;
}

/* Values are of size 1. GEN: fp32 throughout. PROMPT from inputs exact in bf16: only p is rounded,
 * to 2^-9 of itself, and l is of p unrounded. From other inputs a score of size 2 moves by up to
 * 2^-7. */
static void test_oracle(void **state) {
  (void)state;
  static const uint32_t shapes[][4] = {/* group, head_dim, pos0, window */
                                       {3, 64, 1300, 0}, {4, 256, 540, 512}, {1, 32, 0, 0},
                                       {16, 96, 70, 33}, {8, 128, 500, 0},   {2, 160, 1030, 1}};
  kernel_table table;
  for (int level = 0; level < LEVELS; level++) {
    if (!table_of(&table, level, KERNEL_DEFAULT)) continue;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      const uint32_t *s = shapes[i];
      attn_case *one = attn_case_create(&run, 1, s[0], s[1], s[2], s[3], ATTN_FILL_PLAIN);
      attn_case *exact = attn_case_create(&run, 13, s[0], s[1], s[2], s[3], ATTN_FILL_BF16);
      attn_case *plain = attn_case_create(&run, 7, s[0], s[1], s[2], s[3], ATTN_FILL_PLAIN);
      assert_true(worst_error(&table, one, KERNEL_GEN) < 4e-6);
      assert_true(worst_error(&table, exact, KERNEL_PROMPT) < 6e-3);
      assert_true(worst_error(&table, plain, KERNEL_PROMPT) < 6e-2);
      attn_case_destroy(&one);
      attn_case_destroy(&exact);
      attn_case_destroy(&plain);
    }
    table_of(&table, level, KERNEL_FLOAT);
    attn_case *many = attn_case_create(&run, 9, 3, 64, 700, 100, ATTN_FILL_PLAIN);
    assert_true(worst_error(&table, many, KERNEL_PROMPT) < 4e-6);
    attn_case_destroy(&many);
  }
}

/* 32 rows at once, then rows by themselves: the same bits. Pages visited for other rows' sake, rows
 * beside it and the row's place in the call must not show. */
static void rows_alone(const kernel_table *table, uint32_t group, uint32_t hd, uint32_t pos0,
                       uint32_t window, attn_fill fill) {
  attn_case *c = attn_case_create(&run, 32, group, hd, pos0, window, fill);
  uint32_t splits = (c->positions + KERNEL_SPLIT - 1) / KERNEL_SPLIT;
  float *all = part_create(c), *alone = part_create(c);
  for (uint32_t split = 0; split < splits; split++) {
    attn_case_split(c, split);
    attn_case_run(c, &run, table, KERNEL_PROMPT, all);
    uint32_t t1 = c->call.t1;
    for (uint32_t row = 0, rows; row < 32; row += rows) {
      attn_case view = *c;
      view.call.rows = rows = row < 16 ? 1 : 8;
      view.call.pos0 = pos0 + row;
      view.call.q = c->q + row * c->call.q_stride;
      view.call.t1 = t1 < pos0 + row + rows ? t1 : pos0 + row + rows;
      if (view.call.t1 <= view.call.t0) continue; /* the split lies after the row */
      attn_case_run(&view, &run, table, KERNEL_PROMPT, alone);
      assert_int_equal(floats_differ(all + (size_t)row * group * c->call.part_stride, alone,
                                     rows * group * c->call.part_stride),
                       rows * group * c->call.part_stride);
    }
  }
  free(all);
  free(alone);
  attn_case_destroy(&c);
}

static void test_rows_alone(void **state) {
  (void)state;
  kernel_table table;
  for (int set = 0; set < 2; set++) {
    for (int level = 0; level < LEVELS; level++) {
      if (!table_of(&table, level, set ? KERNEL_FLOAT : KERNEL_DEFAULT)) continue;
      rows_alone(&table, 3, 64, 0, 0, ATTN_FILL_PLAIN);
      rows_alone(&table, 3, 64, 500, 0, ATTN_FILL_SHARP);
      rows_alone(&table, 4, 96, 230, 40, ATTN_FILL_ODD);
      rows_alone(&table, 1, 32, 77, 1, ATTN_FILL_PLAIN);
    }
  }
}

/* What lies in slots that no row sees changes no bit: other litter, the same answer. */
static void test_litter(void **state) {
  (void)state;
  kernel_table table;
  for (int level = 0; level < LEVELS; level++) {
    if (!table_of(&table, level, KERNEL_DEFAULT)) continue;
    for (uint32_t i = 0; i < 12; i++) {
      uint32_t rows = i % 2 ? 5 : 1;
      kernel_arith arith = i % 2 ? KERNEL_PROMPT : KERNEL_GEN;
      attn_fill fill = i % 3 ? ATTN_FILL_ODD : ATTN_FILL_PLAIN;
      attn_case *c = attn_case_create(&run, rows, 3, 64, 40 + 7 * i, i % 4 ? 0 : 37, fill);
      float *before = part_create(c), *after = part_create(c);
      attn_case_split(c, 0);
      attn_case_run(c, &run, &table, arith, before);
      attn_case_litter(c, &run);
      attn_case_run(c, &run, &table, arith, after);
      assert_int_equal(floats_differ(before, after, rows * 3 * c->call.part_stride),
                       rows * 3 * c->call.part_stride);
      for (uint32_t d = 0; d < 64; d++) assert_false(isnan(after[d]));
      free(before);
      free(after);
      attn_case_destroy(&c);
    }
  }
}

/* A NaN that a row sees must come out as NaN, and not in rows before it in other calls. */
static void test_nan_shows(void **state) {
  (void)state;
  kernel_table table;
  for (int level = 0; level < LEVELS; level++) {
    if (!table_of(&table, level, KERNEL_DEFAULT)) continue;
    for (int arith = 0; arith < 2; arith++) {
      attn_case *c = attn_case_create(&run, 1, 2, 64, 45, 0, ATTN_FILL_PLAIN);
      float *y = malloc(2 * 64 * sizeof *y);
      c->q[5] = NAN; /* head 0 */
      whole(&table, c, (kernel_arith)arith, y);
      for (int d = 0; d < 64; d++) {
        assert_true(isnan(y[d]));
        assert_false(isnan(y[64 + d]));
      }
      free(y);
      attn_case_destroy(&c);
    }
  }
}

/* The window has passed all that the call covers, in the very page where it ends: no page is read.
 */
static void test_nothing_seen(void **state) {
  (void)state;
  kernel_table table;
  for (int level = 0; level < LEVELS; level++) {
    if (!table_of(&table, level, KERNEL_DEFAULT)) continue;
    for (int arith = 0; arith < 2; arith++) {
      attn_case *c = attn_case_create(&run, 1, 3, 64, 60, 4, ATTN_FILL_PLAIN);
      float *part = part_create(c);
      c->call.t0 = 32;
      c->call.t1 = 50;
      attn_case_guard(c);
      attn_case_run(c, &run, &table, (kernel_arith)arith, part);
      for (uint32_t g = 0; g < 3; g++) {
        const float *p = part + g * c->call.part_stride;
        for (int d = 0; d < 64; d++) assert_true(p[d] == 0.0f);
        assert_true(p[64] == ATTN_HIDDEN && p[65] == 0.0f);
      }
      free(part);
      attn_case_destroy(&c);
    }
  }
}

int main(void) {
  kernel_thread_setup();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_oracle, nothing_failed),
      cmocka_unit_test_teardown(test_rows_alone, nothing_failed),
      cmocka_unit_test_teardown(test_litter, nothing_failed),
      cmocka_unit_test_teardown(test_nan_shows, nothing_failed),
      cmocka_unit_test_teardown(test_nothing_seen, nothing_failed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
