/* SPDX-License-Identifier: Apache-2.0 */
/* The cost table: by hand where a number can be worked out, by random observations where a rule
 * must hold whatever was seen. */
#include "plan/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static uint64_t random_state;

static uint64_t random_next(void) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 2685821657736338717u;
}

static uint64_t random_below(uint64_t n) {
  return random_next() % n;
}

/* gen: 1000 ns a row and 9000; prompt: 2000 a row and 8000; both linear, so that every number
 * between is exact. */
static cost_table linear(void) {
  cost_table t = {.launch_ns = 500,
                  .gen_kv_ns_per_mib = 300,
                  .prompt_kv_ns_per_mib = 40,
                  .shared_ns = {1000, 4500},
                  .stop_ns = 100,
                  .weight_bytes = 1000000};
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    t.gen[i] = 9000 + 1000 * cost_rows[i];
    t.prompt[i] = 8000 + 2000 * cost_rows[i];
    t.gen_fix[i] = t.prompt_fix[i] = COST_ONE;
  }
  return t;
}

static void the_points_are_those_of_the_rules(void **state) {
  static const uint16_t wanted[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256};
  (void)state;
  assert_memory_equal(cost_rows, wanted, sizeof wanted);
}

static void between_points_it_is_linear(void **state) {
  (void)state;
  cost_table t = linear();
  assert_true(cost_valid(&t));
  for (uint32_t rows = 1; rows <= 1000; rows++) { /* beyond 256 the last piece goes on */
    assert_int_equal(cost_decode(&t, rows, 0), 9500 + 1000 * rows);
    assert_int_equal(cost_prefill(&t, rows, 0), 8500 + 2000 * rows);
  }
  assert_int_equal(cost_decode(&t, 5, 10 * MIB), 9500 + 5000 + 3000);
  assert_int_equal(cost_decode(&t, 5, MIB / 2), 9500 + 5000 + 150);
  assert_int_equal(cost_prefill(&t, 5, 10 * MIB), 8500 + 10000 + 400);
  assert_int_equal(cost_decode(&t, 0, 10 * MIB), 0);
  assert_int_equal(cost_prefill(&t, 0, 10 * MIB), 0);
}

/* A step of the table stays where it is: nothing smooths it. */
static void a_step_stays_a_step(void **state) {
  (void)state;
  cost_table t = linear();
  for (uint32_t i = 1; i < COST_POINTS; i++) t.gen[i] += 20000;
  assert_int_equal(cost_decode(&t, 1, 0), 10500);
  assert_int_equal(cost_decode(&t, 2, 0), 31500);
}

static void one_launch_for_both_saves_what_is_shared(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load load = {1, 64, 0, 0},
                  loads[] = {{8, 64, MIB, MIB}, {64, 64, 0, 0}, {2, 64, 0, 0}};
  assert_int_equal(cost_time(&t, &load), 10500 + 136500 - 500 - 1000);
  assert_int_equal(cost_time(&t, &loads[0]), 17500 + 300 + 136500 + 40 - 500 - 4500);
  assert_int_equal(cost_time(&t, &loads[1]), 73500 + 136500 - 500 - 4500);
  assert_int_equal(cost_time(&t, &loads[2]), 11500 + 136500 - 500 - 1500);
  const cost_load gen = {8, 0, MIB, 7}, prompt = {0, 64, 7, MIB}, none = {0, 0, 9, 9};
  assert_int_equal(cost_time(&t, &gen), cost_decode(&t, 8, MIB));
  assert_int_equal(cost_time(&t, &prompt), cost_prefill(&t, 64, MIB));
  assert_int_equal(cost_time(&t, &none), 0);
}

/* However much was measured to be shared, a launch is no shorter than each half of it. */
static void no_launch_is_shorter_than_a_part_of_it(void **state) {
  (void)state;
  cost_table t = linear();
  t.shared_ns[0] = t.shared_ns[1] = 1000000;
  const cost_load few = {64, 1, 0, 0}, many = {1, 64, 0, 0};
  assert_int_equal(cost_time(&t, &few), cost_decode(&t, 64, 0));
  assert_int_equal(cost_time(&t, &many), cost_prefill(&t, 64, 0));
}

static void sixteen_observations_move_most_of_the_way(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load load = {4, 0, 0, 0};
  cost_observe(&t, &load, 13000 * 3 / 2);
  assert_int_equal(t.gen_fix[3], COST_ONE + COST_ONE / 2 / 16);
  for (int i = 1; i < 16; i++) cost_observe(&t, &load, 13000 * 3 / 2);
  /* 1 - (15/16)^16 = 0.644 of a half */
  assert_in_range(t.gen_fix[3], COST_ONE * 1.321, COST_ONE * 1.323);
  for (int i = 0; i < 300; i++) cost_observe(&t, &load, 13000 * 3 / 2);
  assert_in_range(cost_decode(&t, 4, 0), 13000 * 3 / 2 + 500 - 40, 13000 * 3 / 2 + 500);
  /* All others have followed a good part of the way, the other table not at all. */
  assert_in_range(t.gen_fix[0], COST_ONE * 1.3, COST_ONE * 1.4);
  assert_int_equal(t.prompt_fix[3], COST_ONE);
}

/* Between two points both are corrected, so that what was seen is what is said. */
static void an_observation_between_points_is_learnt(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load load = {40, 0, 2 * MIB, 0}, prompt = {0, 100, 0, 0};
  for (int i = 0; i < 1000; i++) cost_observe(&t, &load, 60000);
  assert_in_range(cost_decode(&t, 40, 2 * MIB), 60200, 60600);
  for (int i = 0; i < 1000; i++) cost_observe(&t, &prompt, 150000);
  assert_in_range(cost_prefill(&t, 100, 0), 149800, 151500);
  const cost_load far = {0, 1000, 0, 0};
  for (int i = 0; i < 1000; i++) cost_observe(&t, &far, 3000000);
  /* Beyond the last point a correction of the one before counts five times. */
  assert_in_range(cost_prefill(&t, 1000, 0), 2940000, 3060000);
}

static void corrections_stay_between_a_half_and_two(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load load = {4, 0, 0, 0};
  for (int i = 0; i < 500; i++) cost_observe(&t, &load, INT64_MAX);
  assert_in_range(cost_decode(&t, 4, 0), 2 * 13000 + 500 - 30, 2 * 13000 + 500);
  assert_true(cost_valid(&t));
  for (int i = 0; i < 500; i++) cost_observe(&t, &load, 1);
  assert_in_range(t.gen_fix[3], COST_ONE / 2, COST_ONE / 2 + 16);
  assert_true(cost_valid(&t));
}

static void mixed_launches_count_as_errors_only(void **state) {
  (void)state;
  cost_table t = linear(), before = t;
  const cost_load both = {4, 64, 0, 0}, none = {0, 0, 5, 5}, gen = {4, 0, 0, 0};
  cost_observe(&t, &none, 5000);
  cost_observe(&t, &gen, 0);
  cost_observe(&t, &gen, -5);
  assert_memory_equal(&t, &before, sizeof t);
  int64_t device = cost_time(&t, &both) - t.launch_ns;
  cost_observe(&t, &both, device + device / 4);
  assert_memory_equal(t.gen_fix, before.gen_fix, sizeof t.gen_fix);
  assert_memory_equal(t.prompt_fix, before.prompt_fix, sizeof t.prompt_fix);
  assert_int_equal(t.errors_n, 1);
  assert_in_range(t.error_q, COST_ONE / 4 - 4, COST_ONE / 4 + 4);
}

/* Mixed launches, so that nothing is learnt and each error is what was put in. */
static void q_is_the_ninetieth_percentile_of_the_last_errors(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load both = {4, 64, 0, 0};
  int64_t device = cost_time(&t, &both) - t.launch_ns;
  for (int i = 1; i <= 10; i++)
    cost_observe(&t, &both, device + (i % 2 ? 1 : -1) * device * i / 100);
  assert_in_range(t.error_q, COST_ONE * 0.0898, COST_ONE * 0.0902); /* 9 of 10 are at most this */
  for (int i = 0; i < COST_ERRORS - 7; i++) cost_observe(&t, &both, device + device / 2);
  assert_in_range(t.error_q, COST_ONE * 0.499, COST_ONE * 0.501);
  for (int i = 0; i < COST_ERRORS; i++) cost_observe(&t, &both, device);
  assert_int_equal(t.error_q, 0); /* old ones are forgotten */
  t.error_q = COST_ONE / 4;
  assert_int_equal(cost_sure(&t, 1000), 1250);
}

static cost_table random_table(void) {
  cost_table t = {.launch_ns = (int64_t)random_below(1000000),
                  .gen_kv_ns_per_mib = (int64_t)random_below(10000000),
                  .prompt_kv_ns_per_mib = (int64_t)random_below(10000000),
                  .shared_ns = {(int64_t)random_below(20000000), (int64_t)random_below(20000000)},
                  .weight_bytes = random_below(1u << 30)};
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    bool flat = random_below(3) == 0; /* steps and plateaus */
    t.gen[i] = (i ? t.gen[i - 1] : 1) + (flat ? 0 : (int64_t)random_below(10000000));
    t.prompt[i] = (i ? t.prompt[i - 1] : 1) + (flat ? 0 : (int64_t)random_below(10000000));
    t.gen_fix[i] = t.prompt_fix[i] = COST_ONE;
  }
  assert_true(cost_valid(&t));
  return t;
}

static cost_load random_load(void) {
  uint32_t rows = random_below(2) ? 40 : 700;
  uint64_t bytes = random_below(4) ? 64 * MIB : 1;
  return (cost_load){(uint32_t)random_below(rows), (uint32_t)random_below(rows),
                     random_below(bytes), random_below(bytes)};
}

static void assert_monotone(const cost_table *t, uint64_t seed, int step) {
  for (int i = 0; i < 40; i++) {
    cost_load a = random_load(), b = a;
    b.gen_rows += (uint32_t)random_below(3);
    b.prompt_rows += (uint32_t)random_below(3);
    b.gen_kv += random_below(2) * random_below(MIB);
    b.prompt_kv += random_below(2) * random_below(MIB);
    int64_t less = cost_time(t, &a), more = cost_time(t, &b);
    if (less > more || less < 0)
      fail_msg("seed %llu step %d: %lld for %u+%u rows, %lld for %u+%u", (unsigned long long)seed,
               step, (long long)less, a.gen_rows, a.prompt_rows, (long long)more, b.gen_rows,
               b.prompt_rows);
  }
}

static void more_work_never_takes_less_time(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    random_state = seed * 0x9e3779b97f4a7c15u;
    cost_table t = random_table();
    for (int step = 0; step < 100; step++) {
      cost_load load = random_load();
      if (random_below(2)) load.prompt_rows = 0;
      int64_t ns = cost_time(&t, &load);
      cost_observe(
          &t, &load,
          (int64_t)(random_below(16) ? random_below((uint64_t)ns * 3 + 1) : random_next() >> 1));
      assert_monotone(&t, seed, step);
      assert_true(cost_valid(&t));
    }
  }
}

static void absurd_numbers_do_not_overflow(void **state) {
  (void)state;
  cost_table t = linear();
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    t.gen[i] = t.prompt[i] = (int64_t)1 << 46;
    t.gen_fix[i] = t.prompt_fix[i] = 2 * COST_ONE;
  }
  t.gen_kv_ns_per_mib = t.prompt_kv_ns_per_mib = (int64_t)1 << 40;
  t.launch_ns = (int64_t)1 << 46;
  t.error_q = 16 * COST_ONE;
  assert_true(cost_valid(&t));
  const cost_load load = {UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX};
  assert_true(cost_time(&t, &load) >= cost_decode(&t, 1, 0));
  assert_true(cost_decode(&t, UINT32_MAX, UINT64_MAX) >= cost_decode(&t, 256, MIB));
  assert_true(cost_sure(&t, cost_time(&t, &load)) > cost_time(&t, &load));
  cost_observe(&t, &load, INT64_MAX);
  const cost_load gen = {UINT32_MAX, 0, UINT64_MAX, 0};
  cost_observe(&t, &gen, INT64_MAX);
  cost_observe(&t, &gen, 1);
  assert_true(cost_valid(&t));
  assert_true(cost_demand(&t, &load) > 0);
  t = linear();
  t.weight_bytes = UINT64_MAX;
  const cost_load one = {1, 0, 0, 0};
  assert_true(cost_demand(&t, &one) == UINT64_MAX);
}

static void demand_is_bytes_over_time(void **state) {
  (void)state;
  cost_table t = linear();
  const cost_load load = {1, 0, MIB, 0}, none = {0};
  assert_int_equal(cost_demand(&t, &load), (1000000 + MIB) * 1000000000 / (10500 + 300));
  assert_int_equal(cost_demand(&t, &none), 0);
}

static void a_guess_is_valid_and_slow(void **state) {
  (void)state;
  cost_table t;
  /* SmolLM2-135M, Q4_1, two cores with AVX2 or better: 6 ms a token, 0.2 s for 256 rows. */
  cost_guess(&t, 92000000, 270000000, 2);
  assert_true(cost_valid(&t));
  assert_in_range(cost_decode(&t, 1, 0), 6000000, 60000000);
  assert_in_range(cost_prefill(&t, 256, 0), 250000000, 4000000000);
  assert_true(cost_prefill(&t, 256, 64 * MIB) > cost_prefill(&t, 256, 0));
  cost_table more;
  cost_guess(&more, 92000000, 270000000, 8);
  assert_true(cost_decode(&more, 1, 0) < cost_decode(&t, 1, 0));
  const uint64_t absurd[] = {0, 1, UINT64_MAX};
  for (int i = 0; i < 27; i++) {
    cost_guess(&t, absurd[i % 3], absurd[i / 3 % 3], (uint32_t)absurd[i / 9]);
    assert_true(cost_valid(&t));
  }
}

static void measured_points_are_made_monotone(void **state) {
  (void)state;
  cost_table t = linear();
  t.gen[5] = t.gen[4] - 1;
  assert_false(cost_valid(&t));
  t.prompt[13] = 1;
  cost_make_monotone(&t);
  assert_true(cost_valid(&t));
  assert_int_equal(t.gen[5], t.gen[4]);
  assert_int_equal(t.prompt[13], t.prompt[12]);
}

static void nonsense_is_not_valid(void **state) {
  (void)state;
  cost_table t = linear();
  int64_t *const numbers[] = {
      &t.gen[3],       &t.prompt[3],    &t.launch_ns, &t.gen_kv_ns_per_mib, &t.prompt_kv_ns_per_mib,
      &t.shared_ns[0], &t.shared_ns[1], &t.stop_ns};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    t = linear();
    *numbers[i] = -1;
    assert_false(cost_valid(&t));
    *numbers[i] = INT64_MAX;
    assert_false(cost_valid(&t));
  }
  t = linear();
  t.gen[0] = 0;
  assert_false(cost_valid(&t));
  uint32_t *const small[] = {&t.gen_fix[2], &t.prompt_fix[13], &t.error_q, &t.errors_n,
                             &t.errors_at};
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    t = linear();
    *small[i] = UINT32_MAX;
    assert_false(cost_valid(&t));
  }
  t = linear();
  t.gen_fix[2] = 0;
  assert_false(cost_valid(&t));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_points_are_those_of_the_rules),
      cmocka_unit_test(between_points_it_is_linear),
      cmocka_unit_test(a_step_stays_a_step),
      cmocka_unit_test(one_launch_for_both_saves_what_is_shared),
      cmocka_unit_test(no_launch_is_shorter_than_a_part_of_it),
      cmocka_unit_test(sixteen_observations_move_most_of_the_way),
      cmocka_unit_test(an_observation_between_points_is_learnt),
      cmocka_unit_test(corrections_stay_between_a_half_and_two),
      cmocka_unit_test(mixed_launches_count_as_errors_only),
      cmocka_unit_test(q_is_the_ninetieth_percentile_of_the_last_errors),
      cmocka_unit_test(more_work_never_takes_less_time),
      cmocka_unit_test(absurd_numbers_do_not_overflow),
      cmocka_unit_test(demand_is_bytes_over_time),
      cmocka_unit_test(a_guess_is_valid_and_slow),
      cmocka_unit_test(measured_points_are_made_monotone),
      cmocka_unit_test(nonsense_is_not_valid),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
