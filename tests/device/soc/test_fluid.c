/* SPDX-License-Identifier: Apache-2.0 */
/* The fluid model against what it promises (invariant 19 of scheduling.md 12): bytes are conserved,
 * nothing is faster than alone, alone takes exactly its own time, rates add up to at most C, and
 * the filling is the weighted max-min one. Against hand-made cases, and random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/soc/events.h"
#include "device/soc/fluid.h"

static uint64_t random_state;
static uint32_t roll(uint32_t below) {
  uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

static void near(double a, double b) {
  double most = a > b ? a : b, apart = a > b ? a - b : b - a;
  if (apart > most * 1e-9 + 1e-9) fail_msg("%.17g is not %.17g", a, b);
}

static void test_filling_by_hand(void **state) {
  (void)state;
  double got[4];
  fluid_fill(2, (double[]){30, 40}, (double[]){1, 1}, 100, got); /* all fits */
  near(got[0], 30);
  near(got[1], 40);
  fluid_fill(2, (double[]){80, 40}, (double[]){1, 1}, 100, got); /* the smaller is served whole */
  near(got[0], 60);
  near(got[1], 40);
  fluid_fill(2, (double[]){80, 80}, (double[]){1.2, 1}, 110, got); /* by weight */
  near(got[0], 60);
  near(got[1], 50);
  fluid_fill(3, (double[]){0, 500, 10}, (double[]){1, 3, 1}, 100, got); /* compute-bound: free */
  near(got[0], 0);
  near(got[1], 90);
  near(got[2], 10);
  fluid_fill(0, NULL, NULL, 100, got);
}

static void test_filling_is_max_min(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 100000; turn++) {
    random_state = turn;
    uint32_t n = 1 + roll(FLUID_FLOWS);
    double demand[FLUID_FLOWS], weight[FLUID_FLOWS], got[FLUID_FLOWS];
    double capacity = 1 + roll(1000), sum = 0, asked = 0;
    for (uint32_t i = 0; i < n; i++) {
      demand[i] = roll(4) ? roll(500) : 0;
      weight[i] = 0.25 + roll(16) * 0.25;
      got[i] = -1;
    }
    fluid_fill(n, demand, weight, capacity, got);
    for (uint32_t i = 0; i < n; i++) {
      assert_true(got[i] >= 0 && got[i] <= demand[i] * (1 + 1e-12));
      sum += got[i];
      asked += demand[i];
    }
    assert_true(sum <= capacity * (1 + 1e-12));
    near(sum, asked < capacity ? asked : capacity); /* nothing is left over while somebody asks */
    for (uint32_t i = 0; i < n; i++)
      for (uint32_t j = 0; j < n; j++)
        if (got[i] < demand[i] * (1 - 1e-9)) /* who is short has no less a share than anybody */
          assert_true(got[i] / weight[i] >= got[j] / weight[j] * (1 - 1e-9));
  }
}

typedef struct running {
  int64_t start_ns, solo_ns;
  double bytes;
} running;

static int64_t first_end(const fluid *f, uint32_t *who) {
  int64_t first = FLUID_NEVER;
  for (uint32_t i = 0; i < FLUID_FLOWS; i++) {
    if (!f->flows[i].running || f->flows[i].end_ns >= first) continue;
    first = f->flows[i].end_ns;
    *who = i;
  }
  return first;
}

/* Random starts, some ends by a target before the whole; every launch is checked when it ends. */
static void test_launches(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 300; seed++) {
    random_state = seed;
    fluid f = {.now_ns = roll(1000000)};
    for (uint32_t k = 1; k <= FLUID_FLOWS; k++) f.capacity[k] = 50 + 5 * k;
    running runs[FLUID_FLOWS] = {0};
    double moved = 0, wanted = 0;
    for (uint32_t step = 0; step < 400; step++) {
      uint32_t who = 0;
      int64_t end = first_end(&f, &who), next = f.now_ns + roll(3000000);
      if (end <= next) {
        fluid_advance(&f, end);
        fluid_flow *w = &f.flows[who];
        near(w->done_ns, w->target_ns);
        near(w->bytes, runs[who].bytes * w->target_ns / w->total_ns);
        /* never faster than alone: the ns that rounding up may be off */
        assert_true((double)(end - runs[who].start_ns) >= w->target_ns - 1e-3);
        moved += w->bytes;
        wanted += runs[who].bytes * w->target_ns / w->total_ns;
        fluid_end(&f, who);
        continue;
      }
      fluid_advance(&f, next);
      double rates = 0;
      uint32_t n = 0;
      for (uint32_t i = 0; i < FLUID_FLOWS; i++)
        if (f.flows[i].running) rates += f.flows[i].got, n++;
      assert_true(rates <= f.capacity[n] * (1 + 1e-12));
      who = roll(FLUID_FLOWS);
      if (!f.flows[who].running) {
        runs[who] = (running){next, 1 + roll(5000000), 0};
        runs[who].bytes = (double)runs[who].solo_ns * roll(70);
        fluid_start(&f, who, (double)runs[who].solo_ns, runs[who].bytes, 0.5 + roll(3) * 0.5, 0,
                    (double)runs[who].solo_ns);
      } else if (roll(4) == 0) {
        fluid_target(&f, who, f.flows[who].done_ns + roll(1000));
        if (f.flows[who].target_ns > f.flows[who].total_ns)
          fluid_target(&f, who, f.flows[who].total_ns);
      }
    }
    near(moved, wanted);
  }
}

static void test_alone_takes_its_own_time(void **state) {
  (void)state;
  random_state = 5;
  fluid f = {.capacity = {0, 100}};
  for (uint32_t i = 0; i < 10000; i++) {
    int64_t start = f.now_ns + roll(1000000), solo = 1 + roll(1000000000), half = solo / 2;
    fluid_advance(&f, start);
    fluid_start(&f, 0, (double)solo, (double)solo * roll(101), 1, 0, (double)solo);
    assert_int_equal(f.flows[0].end_ns, start + solo);
    fluid_advance(&f, start + half); /* looking changes nothing */
    fluid_target(&f, 0, (double)solo);
    assert_int_equal(f.flows[0].end_ns, start + solo);
    fluid_advance(&f, start + solo);
    fluid_end(&f, 0);
  }
}

/* A bandwidth-bound launch beside a compute-bound one: free until C; two bandwidth-bound ones:
 * each at half its speed, and back to full when the other has ended. */
static void test_company(void **state) {
  (void)state;
  fluid f = {.capacity = {0, 100, 100}};
  fluid_start(&f, 0, 1000, 90 * 1000.0, 1, 0, 1000);
  fluid_start(&f, 1, 1000, 10 * 1000.0, 1, 0, 1000);
  assert_true(f.flows[0].end_ns == 1000 && f.flows[1].end_ns == 1000);
  fluid_end(&f, 1);
  fluid_start(&f, 1, 400, 100 * 400.0, 1, 0, 400); /* 50 + 50 of 90 and 100 */
  assert_int_equal(f.flows[1].end_ns, 800);
  fluid_advance(&f, 800);
  near(f.flows[0].done_ns, 800 * 50.0 / 90);
  fluid_end(&f, 1);
  assert_int_equal(f.flows[0].end_ns, 800 + 556); /* 1000 - 444.4, rounded up */
}

static void test_events_in_order(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 1000; seed++) {
    random_state = seed;
    events e = {0};
    int64_t time[EVENTS_SOURCES];
    uint64_t order[EVENTS_SOURCES], stamp = 0;
    bool has[EVENTS_SOURCES] = {false};
    for (uint32_t step = 0; step < 100; step++) {
      uint32_t s = roll(EVENTS_SOURCES);
      if (roll(3) == 0) {
        events_clear(&e, s);
        has[s] = false;
      } else {
        int64_t at = roll(6);
        if (!has[s] || time[s] != at) order[s] = stamp++;
        events_set(&e, s, time[s] = at);
        has[s] = true;
      }
      uint32_t best = EVENTS_SOURCES, n = 0;
      for (uint32_t i = 0; i < EVENTS_SOURCES; i++) {
        if (!has[i]) continue;
        n++;
        if (best == EVENTS_SOURCES || time[i] < time[best] ||
            (time[i] == time[best] && order[i] < order[best]))
          best = i;
      }
      assert_int_equal(e.n, n);
      if (n) assert_int_equal(e.heap[0], best);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_filling_by_hand), cmocka_unit_test(test_filling_is_max_min),
      cmocka_unit_test(test_launches),        cmocka_unit_test(test_alone_takes_its_own_time),
      cmocka_unit_test(test_company),         cmocka_unit_test(test_events_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
