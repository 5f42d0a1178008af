/* test_elem.c - the plain vector kernels against float64, and exp over all of its range.
 *
 * Levels are compared with the scalar reference by test_check.c; here the scalar reference and the
 * highest level meet the oracle. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "kernel/exp.h"
#include "kernel/kernel.h"
#include "kernel/support.h"
#include "quant/quant.h"

static const uint32_t masks[] = {0, KERNEL_MASK_ALL};
enum { LEVELS = 2, N = 1536 };
static check_run run = {.random = 7};

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* Distance in units of the last place of the true value's float. */
static double ulps(float got, double exact) {
  int exponent;
  frexp(exact, &exponent);
  return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

/* Every 61st float of both signs in the range: 35 million. */
static void test_exp_ulp(void **state) {
  (void)state;
  double worst = 0;
  for (int sign = 0; sign < 2; sign++) {
    float limit = sign ? -EXP_LOW : EXP_HIGH;
    for (uint32_t bits = 0; float_of(bits) <= limit; bits += 61) {
      float x = sign ? -float_of(bits) : float_of(bits);
      double error = ulps(kernel_exp(x), exp((double)x));
      if (!(error <= worst)) worst = error;
    }
  }
  print_message("exp: worst %.3f ulp\n", worst);
  assert_true(worst <= 1.2);
}

static void test_exp_edges(void **state) {
  (void)state;
  assert_true(kernel_exp(0.0f) == 1.0f && kernel_exp(-0.0f) == 1.0f);
  assert_true(kernel_exp(EXP_HIGH) < INFINITY);
  assert_true(kernel_exp(nextafterf(EXP_HIGH, 100)) == INFINITY);
  assert_true(kernel_exp(INFINITY) == INFINITY && kernel_exp(3e38f) == INFINITY);
  assert_true(kernel_exp(EXP_LOW) >= 0x1p-126f);
  assert_true(kernel_exp(nextafterf(EXP_LOW, -100)) == 0.0f);
  assert_true(kernel_exp(-INFINITY) == 0.0f && kernel_exp(-3e38f) == 0.0f);
  assert_true(isnan(kernel_exp(NAN)) && isnan(kernel_exp(-NAN)));
  assert_true(isnan(kernel_exp(float_of(0x7fffffff))));
}

/* A sum of one is exp itself: every level's exp has the scalar's bits, in each of its lanes. */
static void same_exp(const kernel_table *table, uint32_t bits) {
  float x = float_of(bits), expected = kernel_exp(x), padded[16], got;
  for (int i = 0; i < 16; i++) padded[i] = -INFINITY;
  padded[bits % 16] = x;
  got = table->vec_sum_exp(padded, 16, 0.0f);
  if (isnan(expected) && isnan(got)) return;
  if (memcmp(&expected, &got, sizeof got)) fail_msg("%s: exp(%a)", table->name, (double)x);
}

static void test_exp_levels(void **state) {
  (void)state;
  static const float edges[] = {EXP_LOW, EXP_HIGH, 89.0f, -88.0f, 1e-38f, -1e-38f};
  for (uint32_t bit = 0; bit < KERNEL_BIT_COUNT; bit++) {
    kernel_table table;
    kernel_table_init(&table, KERNEL_DEFAULT, (2u << bit) - 1);
    for (uint32_t bits = 0; bits <= 0xffffffffu - 3001; bits += 3001) same_exp(&table, bits);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
      uint32_t at;
      memcpy(&at, &edges[i], sizeof at);
      for (uint32_t bits = at - 3000; bits < at + 3000; bits++) same_exp(&table, bits);
    }
  }
}

static void test_norm(void **state) {
  (void)state;
  float x[N], w[N], y[N];
  random_floats(&run, INPUT_TAME, x, N);
  random_floats(&run, INPUT_TAME, w, N);
  double sum = 0;
  for (int i = 0; i < N; i++) sum += (double)x[i] * (double)x[i];
  double r = 1 / sqrt(sum / N + (double)1e-5f);
  for (int level = 0; level < LEVELS; level++) {
    kernel_table table;
    kernel_table_init(&table, KERNEL_DEFAULT, masks[level]);
    table.rms_norm(x, w, N, 1e-5f, y);
    for (int i = 0; i < N; i++) {
      double exact = (double)x[i] * r * (double)w[i];
      assert_true(fabs((double)y[i] - exact) <= 1e-6 * fabs(exact));
    }
  }
}

static void test_rope(void **state) {
  (void)state;
  float x[96], y[96], cos_sin[96];
  random_floats(&run, INPUT_TAME, x, 96);
  for (int i = 0; i < 48; i++) {
    cos_sin[2 * i] = cosf((float)i * 0.7f);
    cos_sin[2 * i + 1] = sinf((float)i * 0.7f);
  }
  for (int level = 0; level < LEVELS; level++) {
    for (int adjacent = 0; adjacent < 2; adjacent++) {
      kernel_table table;
      kernel_table_init(&table, KERNEL_DEFAULT, masks[level]);
      memcpy(y, x, sizeof y);
      table.rope(y, cos_sin, 96, adjacent);
      for (int i = 0; i < 48; i++) {
        int a = adjacent ? 2 * i : i, b = adjacent ? a + 1 : i + 48;
        double c = (double)cos_sin[2 * i], s = (double)cos_sin[2 * i + 1];
        assert_true(fabs((double)y[a] - ((double)x[a] * c - (double)x[b] * s)) < 1e-6);
        assert_true(fabs((double)y[b] - ((double)x[a] * s + (double)x[b] * c)) < 1e-6);
      }
    }
  }
}

static void test_gates(void **state) {
  (void)state;
  float g[N], u[N], silu[N], gelu[N], sum[N];
  random_floats(&run, INPUT_TAME, g, N);
  random_floats(&run, INPUT_TAME, u, N);
  for (int i = 0; i < N; i++) g[i] *= 6;
  for (int level = 0; level < LEVELS; level++) {
    kernel_table table;
    kernel_table_init(&table, KERNEL_DEFAULT, masks[level]);
    table.silu_mul(g, u, N, silu);
    table.gelu_mul(g, u, N, gelu);
    memcpy(sum, g, sizeof sum);
    table.add(sum, u, N);
    for (int i = 0; i < N; i++) {
      double x = (double)g[i], scale = fabs(x * (double)u[i]);
      double z = 0.7978845608028654 * (x + 0.044715 * x * x * x);
      assert_true(fabs((double)silu[i] - x / (1 + exp(-x)) * (double)u[i]) <= 2e-6 * scale);
      assert_true(fabs((double)gelu[i] - 0.5 * x * (1 + tanh(z)) * (double)u[i]) <= 4e-6 * scale);
      assert_true(sum[i] == g[i] + u[i]);
    }
  }
}

static void test_sums(void **state) {
  (void)state;
  float x[N];
  random_floats(&run, INPUT_TAME, x, N);
  for (uint32_t n = 1; n <= N; n += n < 40 ? 1 : 187) {
    float max = x[0];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) max = fmaxf(max, x[i]);
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
    for (int level = 0; level < LEVELS; level++) {
      kernel_table table;
      kernel_table_init(&table, KERNEL_DEFAULT, masks[level]);
      assert_true(table.vec_max(x, n) == max);
      assert_true(fabs((double)table.vec_sum_exp(x, n, max) - sum) <= 1e-6 * sum);
      float keep = x[n - 1];
      x[n - 1] = NAN;
      assert_true(isnan(table.vec_max(x, n)));
      x[n - 1] = keep;
    }
  }
}

/* Layout, rounding, saturation; other slots stay. */
static void test_kv_write(void **state) {
  (void)state;
  enum { HD = 64 };
  static uint16_t page[2 * KERNEL_PAGE * HD];
  static const float edges[] = {65504.0f, 65520.0f, 1e9f,  INFINITY, -INFINITY,   -7e4f,
                                1e-7f,    3e-8f,    2e-8f, -1e-40f,  1.00048828f, NAN};
  static const uint16_t halves[] = {0x7bff, 0x7bff, 0x7bff, 0x7bff, 0xfbff, 0xfbff,
                                    0x0002, 0x0001, 0x0000, 0x8000, 0x3c00, 0x7e00};
  float k[HD], v[HD];
  random_floats(&run, INPUT_TAME, k, HD);
  for (int i = 0; i < HD; i++) v[i] = -k[i];
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) k[3 + i] = edges[i];
  for (int level = 0; level < LEVELS; level++) {
    kernel_table table;
    kernel_table_init(&table, KERNEL_DEFAULT, masks[level]);
    for (uint32_t slot = 0; slot < KERNEL_PAGE; slot += 31) {
      memset(page, 0x55, sizeof page);
      table.kv_write((uint8_t *)page, slot, HD, k, v);
      for (uint32_t t = 0; t < KERNEL_PAGE; t++) {
        for (uint32_t d = 0; d < HD; d++) {
          uint16_t key = page[t * HD + d], value = page[(KERNEL_PAGE * HD) + d * KERNEL_PAGE + t];
          if (t != slot) {
            assert_int_equal(key, 0x5555);
            assert_int_equal(value, 0x5555);
            continue;
          }
          bool edge = d >= 3 && d < 3 + sizeof edges / sizeof *edges;
          assert_int_equal(key, edge ? halves[d - 3] : quant_f32_to_f16(k[d]));
          assert_int_equal(value, quant_f32_to_f16(v[d]));
        }
      }
    }
  }
}

int main(void) {
  kernel_thread_setup();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp_ulp),    cmocka_unit_test(test_exp_edges),
      cmocka_unit_test(test_exp_levels), cmocka_unit_test(test_norm),
      cmocka_unit_test(test_rope),       cmocka_unit_test(test_gates),
      cmocka_unit_test(test_sums),       cmocka_unit_test(test_kv_write),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
