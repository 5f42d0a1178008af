/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes against the published parameter counts, which layers have the finer format, and pools:
 * the same bytes however they are asked for, values of the size that was asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "cli/synth.h"
#include "quant/quant.h"

typedef struct published {
  const char *name;
  uint64_t parameters;
  unsigned tensors;
  uint32_t fine; /* a bit for each layer with Q6_K in Q4_K_M */
} published;

/* Source: the models' published cards; the layers are those of the published Q4_K_M files. */
static const published known[] = {
    {"llama-3.2-1b", 1235814400, 147, 0xe493},
    {"llama-3.2-3b", 3212749824, 255, 0xf924927},
    {"llama-3.1-8b", 8030261248, 292, 0xf924924f},
};

static void test_shapes(void **state) {
  (void)state;
  unsigned n, found = 0;
  const synth_shape *shapes = synth_shapes(&n);
  for (unsigned i = 0; i < n; i++) {
    for (unsigned k = 0; k < sizeof known / sizeof *known; k++) {
      if (strcmp(shapes[i].name, known[k].name) != 0) continue;
      synth_tensor tensors[SYNTH_TENSORS_MAX];
      unsigned count = synth_tensors(&shapes[i], SYNTH_Q4_K_M, tensors);
      uint32_t fine = 0;
      uint64_t parameters = 0;
      for (unsigned t = 0; t < count; t++) {
        if (tensors[t].content != SYNTH_ROPE_FACTORS)
          parameters += tensors[t].dims[0] * (tensors[t].n_dims > 1 ? tensors[t].dims[1] : 1);
        if (strstr(tensors[t].name, "ffn_down") && tensors[t].type == QUANT_Q6_K)
          fine |= 1u << strtoul(tensors[t].name + strlen("blk."), NULL, 10);
      }
      assert_int_equal(parameters, known[k].parameters);
      assert_int_equal(count, known[k].tensors);
      assert_int_equal(fine, known[k].fine);
      found++;
    }
  }
  assert_int_equal(found, sizeof known / sizeof *known);
}

/* Every shape and mix can be made, with blocks that fit its rows (the writer refuses others). */
static void test_every_mix_is_made(void **state) {
  (void)state;
  unsigned n;
  const synth_shape *shapes = synth_shapes(&n);
  for (unsigned i = 0; i < n; i++) {
    for (int mix = 0; mix < SYNTH_MIXES; mix++) {
      synth_model *m = NULL;
      troika_error err = {0};
      synth_tensor tensors[SYNTH_TENSORS_MAX];
      assert_int_equal(synth_model_create(&shapes[i], (synth_mix)mix, -5, &m, &err), TROIKA_OK);
      unsigned count = synth_tensors(&shapes[i], (synth_mix)mix, tensors);
      assert_int_equal(synth_model_tensors(m), count);
      for (unsigned t = 0; t < count; t++) {
        const quant_format *format = quant_find(tensors[t].type);
        assert_true(format && tensors[t].dims[0] % format->elements == 0);
      }
      synth_model_destroy(&m);
      assert_null(m);
    }
  }
}

static void test_hash(void **state) {
  (void)state;
  /* the first two outputs of SplitMix64 that begins with state 0, as published */
  assert_true(synth_hash(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu);
  assert_true(synth_hash(2 * 0x9e3779b97f4a7c15u) == 0x6e789e6aa1b965f4u);
}

static void test_pools(void **state) {
  (void)state;
  static const uint32_t types[] = {QUANT_Q4_0, QUANT_Q8_0, QUANT_Q4_K, QUANT_Q6_K};
  enum { BLOCKS = 256 };
  static uint8_t whole[BLOCKS * 256], pieces[BLOCKS * 256];
  static float values[BLOCKS * 256];
  for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
    const float deviation = 0.02f;
    const quant_format *format = quant_find(types[i]);
    synth_pool pool;
    assert_true(synth_pool_create(types[i], deviation, 7, &pool));
    synth_pool_draw(&pool, 99, 0, whole, BLOCKS);
    for (size_t at = 0, step = 1; at < BLOCKS; at += step, step = step * 2 + 1) {
      if (step > BLOCKS - at) step = BLOCKS - at;
      synth_pool_draw(&pool, 99, at, pieces + at * format->bytes, step);
    }
    assert_memory_equal(whole, pieces, BLOCKS * (size_t)format->bytes);
    synth_pool_draw(&pool, 100, 0, pieces, BLOCKS);
    assert_memory_not_equal(whole, pieces, BLOCKS * (size_t)format->bytes);
    size_t n = (size_t)BLOCKS * format->elements;
    double sum = 0, squares = 0;
    format->decode(whole, values, BLOCKS);
    for (size_t v = 0; v < n; v++) {
      sum += (double)values[v];
      squares += (double)values[v] * (double)values[v];
    }
    double d = (double)deviation, mean = sum / (double)n;
    assert_true(fabs(mean) < 5 * d / sqrt((double)n)); /* five standard errors */
    assert_true(fabs(sqrt(squares / (double)n) / d - 1) < 0.05);
    synth_pool_free(&pool);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shapes),
      cmocka_unit_test(test_every_mix_is_made),
      cmocka_unit_test(test_hash),
      cmocka_unit_test(test_pools),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
