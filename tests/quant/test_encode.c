/* test_encode.c - what an encoder may lose, and what it must survive.
 *
 * Bounds are of the error's root mean square over the input's. For bell-shaped weights they lie 2 %
 * above what was measured when the encoders were written, so that a change that codes worse is
 * seen; that K formats beat the plain format of the same width is the reason why they exist.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/quant.h"
#include "quant/support.h"

enum { N = 256 * 128 };

static float input[N], output[N];
static uint8_t coded[4 * N];

static double relative_error(uint32_t type) {
  const quant_format *format = quant_find(type);
  format->encode(input, coded, N / format->elements);
  format->decode(coded, output, N / format->elements);
  double lost = 0, whole = 0;
  for (int i = 0; i < N; i++) {
    lost += ((double)output[i] - input[i]) * ((double)output[i] - input[i]);
    whole += (double)input[i] * input[i];
  }
  return sqrt(lost / whole);
}

static void fill_normal(double scale, double shift) {
  uint64_t state = 7;
  for (int i = 0; i < N; i++) input[i] = (float)(random_normal(&state) * scale + shift);
}

static void test_error_on_bell_shaped_weights(void **unused) {
  (void)unused;
  static const struct {
    uint32_t type;
    double most;
  } bounds[] = {
      {QUANT_F32, 0},        {QUANT_F16, 2.2e-4},  {QUANT_BF16, 1.70e-3},
      {QUANT_Q4_0, 0.0858},  {QUANT_Q4_1, 0.0784}, {QUANT_Q5_0, 0.0432},
      {QUANT_Q8_0, 0.00537}, {QUANT_Q4_K, 0.0716}, {QUANT_Q6_K, 0.01753},
  };
  for (double scale = 0.002; scale < 300; scale *= 100) {
    fill_normal(scale, 0);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
      double error = relative_error(bounds[i].type);
      print_message("%-5s scale %-5g error %.5f\n", quant_find(bounds[i].type)->name, scale, error);
      if (!(error <= bounds[i].most)) {
        fail_msg("%s at scale %g: error %.5f, at most %.5f", quant_find(bounds[i].type)->name,
                 scale, error, bounds[i].most);
      }
    }
    assert_true(relative_error(QUANT_Q4_K) < relative_error(QUANT_Q4_0));
    assert_true(relative_error(QUANT_Q4_K) < relative_error(QUANT_Q4_1));
    assert_true(relative_error(QUANT_Q6_K) < relative_error(QUANT_Q5_0) / 2);
  }
}

/* Groups whose sizes differ by up to 30, as rows of real models have: what the inner scales are
 * for. */
static void test_error_on_uneven_groups(void **unused) {
  (void)unused;
  uint64_t state = 11;
  for (int i = 0; i < N; i++) input[i] = (float)(random_normal(&state) * (1 + i / 16 % 30));
  double four = relative_error(QUANT_Q4_K), six = relative_error(QUANT_Q6_K);
  print_message("uneven: Q4_K %.5f, Q6_K %.5f\n", four, six);
  assert_true(four < 0.0723);
  assert_true(six < 0.01764);
}

/* All weights above or below zero: a minimum can only be subtracted, so above costs more. */
static void test_error_on_one_sided_weights(void **unused) {
  (void)unused;
  fill_normal(1, -20);
  double below = relative_error(QUANT_Q4_K);
  fill_normal(1, 20);
  double above = relative_error(QUANT_Q4_K);
  print_message("one-sided: Q4_K below %.5f, above %.5f\n", below, above);
  assert_true(below < 0.00416);
  assert_true(above < 0.0196);
}

static void test_exact_values_stay(void **unused) {
  (void)unused;
  static const uint32_t types[] = {QUANT_Q4_K, QUANT_Q6_K};
  for (size_t t = 0; t < 2; t++) {
    for (int i = 0; i < N; i++) input[i] = 0;
    const quant_format *format = quant_find(types[t]);
    format->encode(input, coded, N / format->elements);
    format->decode(coded, output, N / format->elements);
    for (int i = 0; i < N; i++) assert_true(output[i] == 0);
  }
  for (int i = 0; i < N; i++) input[i] = (float)(i * 7 % 64 - 32) * 0.25f; /* Q6_K's own grid */
  for (int i = 0; i < N; i += 16) input[i] = -8;
  assert_true(relative_error(QUANT_Q6_K) < 1e-3);
}

/* No trap, no undefined conversion (the sanitizer build looks), and finite weights wherever a
 * half's range allows it. */
static void test_hostile_input(void **unused) {
  (void)unused;
  static const float hostile[] = {NAN,      -NAN,   INFINITY, -INFINITY, 3.4e38f,
                                  -3.4e38f, 1e-45f, -1e-45f,  0,         -0.0f};
  size_t n_formats;
  const quant_format *format = quant_list(&n_formats);
  for (size_t f = 0; f < n_formats; f++, format++) {
    uint64_t state = 3;
    for (int i = 0; i < N; i++) input[i] = hostile[random_u32(&state) % 10];
    format->encode(input, coded, N / format->elements);
    format->decode(coded, output, N / format->elements);
    for (int k = 0; k < 10; k++) {
      for (int i = 0; i < N; i++) input[i] = i % 1024 == 5 ? hostile[k] : i % 2 ? 0.5f : -1.0f;
      format->encode(input, coded, N / format->elements);
      format->decode(coded, output, N / format->elements);
      for (int i = 256; i < 1024; i++) { /* blocks beside the hostile number are not harmed */
        if (!(fabsf(output[i] - input[i]) <= 0.05f)) {
          fail_msg("%s: %g became %g", format->name, (double)input[i], (double)output[i]);
        }
      }
    }
  }
  static const uint32_t k_types[] = {QUANT_Q4_K, QUANT_Q6_K};
  for (size_t t = 0; t < 2; t++) {
    for (int i = 0; i < N; i++) input[i] = i % 2 ? 3e38f : -3e38f;
    format = quant_find(k_types[t]);
    format->encode(input, coded, N / format->elements);
    format->decode(coded, output, N / format->elements);
    for (int i = 0; i < N; i++) assert_true(isfinite(output[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_error_on_bell_shaped_weights),
      cmocka_unit_test(test_error_on_uneven_groups),
      cmocka_unit_test(test_error_on_one_sided_weights),
      cmocka_unit_test(test_exact_values_stay),
      cmocka_unit_test(test_hostile_input),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
