/* SPDX-License-Identifier: Apache-2.0 */
/* The workers: every job runs once on each, in order; nobody passes a barrier before all have come;
 * a pool can be closed at any moment of a worker's day. Thread counts go past the machine's cores
 * on purpose: what depends on all running at once would hang there. A hang is ended by alarm(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/cpu/pool.h"

enum { THREADS_MOST = 8, JOBS = 150, PHASES = 60, HANG_SECONDS = 120 };

static void sleep_ns(int64_t ns) {
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);
}

static pool *open_pool(uint32_t threads) {
  pool *p = NULL;
  troika_error err = {0};
  if (pool_open(threads, &p, &err)) fail_msg("%s", err.text);
  assert_int_equal(pool_threads(p), threads);
  assert_int_equal(pool_finished(p), 0);
  return p;
}

/* ---- order ---- */

typedef struct order {
  pool *p;
  uint32_t number; /* of this job, from 1 */
  _Atomic uint32_t ran[THREADS_MOST];
  _Atomic uint32_t *last; /* [threads]: the job that each worker ran before */
  _Atomic uint32_t *mistakes;
} order;

static void note_order(void *context, uint32_t worker) {
  order *o = context;
  if (atomic_exchange(&o->last[worker], o->number) + 1 != o->number)
    atomic_fetch_add(o->mistakes, 1);
  if (pool_finished(o->p) + 1 != o->number) atomic_fetch_add(o->mistakes, 1); /* one at a time */
  atomic_fetch_add(&o->ran[worker], 1);
}

static void jobs_run_once_each_in_order(void **state) {
  (void)state;
  for (uint32_t threads = 1; threads <= THREADS_MOST; threads++) {
    static order jobs[JOBS];
    _Atomic uint32_t last[THREADS_MOST] = {0}, mistakes = 0;
    pool *p = open_pool(threads);
    memset(jobs, 0, sizeof jobs);
    for (uint32_t i = 0; i < JOBS; i++) {
      jobs[i].p = p;
      jobs[i].number = i + 1;
      jobs[i].last = last;
      jobs[i].mistakes = &mistakes;
      if (i >= POOL_JOBS_MAX) assert_true(pool_wait(p, i + 1 - POOL_JOBS_MAX, -1));
      assert_int_equal(pool_post(p, note_order, &jobs[i]), i + 1);
      if (i % 50 == 49) sleep_ns(200000); /* asleep by now */
    }
    assert_true(pool_wait(p, JOBS, -1));
    assert_int_equal(pool_finished(p), JOBS);
    for (uint32_t i = 0; i < JOBS; i++)
      for (uint32_t w = 0; w < THREADS_MOST; w++)
        assert_int_equal(atomic_load(&jobs[i].ran[w]), w < threads);
    assert_int_equal(atomic_load(&mistakes), 0);
    pool_close(&p);
    assert_null(p);
  }
}

/* ---- barrier ---- */

typedef struct meeting {
  pool *p;
  uint32_t threads;
  uint32_t place[THREADS_MOST]; /* plain memory: the barrier alone orders it */
  uint32_t sum, released;
  uint32_t alone; /* phases in which exactly one was last */
  _Atomic uint32_t mistakes;
  bool uneven;
} meeting;

/* In every phase each worker writes its own number; the last to come adds them up; all read the
 * sum. */
static void meet(void *context, uint32_t worker) {
  meeting *m = context;
  for (uint32_t phase = 0; phase < PHASES; phase++) {
    if (m->uneven && phase % m->threads == worker && phase % 16 < m->threads) sleep_ns(100000);
    m->place[worker] = phase * 100 + worker;
    if (pool_arrive(m->p)) {
      m->sum = 0;
      for (uint32_t i = 0; i < m->threads; i++) m->sum += m->place[i];
      m->alone++;
      pool_release(m->p);
    }
    uint32_t wanted = m->threads * phase * 100 + m->threads * (m->threads - 1) / 2;
    if (m->sum != wanted) atomic_fetch_add(&m->mistakes, 1);
    if (pool_arrive(m->p)) { /* nobody may begin the next phase while another still reads */
      m->released++;
      pool_release(m->p);
    }
  }
}

static void nobody_passes_a_barrier_early(void **state) {
  (void)state;
  for (uint32_t threads = 1; threads <= THREADS_MOST; threads++)
    for (int uneven = 0; uneven < 2; uneven++) {
      meeting m = {.threads = threads, .uneven = uneven};
      m.p = open_pool(threads);
      for (int i = 0; i < 3; i++) assert_true(pool_wait(m.p, pool_post(m.p, meet, &m), -1));
      assert_int_equal(atomic_load(&m.mistakes), 0);
      assert_int_equal(m.alone, 3 * PHASES);
      assert_int_equal(m.released, 3 * PHASES);
      pool_close(&m.p);
    }
}

/* ---- waiting ---- */

static void hold(void *context, uint32_t worker) {
  (void)worker;
  while (!atomic_load((_Atomic bool *)context)) sleep_ns(100000);
}

static void waiting_ends_in_time(void **state) {
  (void)state;
  _Atomic bool go = false;
  pool *p = open_pool(3);
  assert_true(pool_wait(p, 0, 0)); /* nothing to wait for */
  uint64_t job = pool_post(p, hold, &go);
  assert_false(pool_wait(p, job, 0));
  int64_t began = clock_real_now(NULL);
  assert_false(pool_wait(p, job, 20 * 1000 * 1000));
  assert_true(clock_real_now(NULL) - began >= 20 * 1000 * 1000);
  assert_int_equal(pool_finished(p), 0);
  atomic_store(&go, true);
  assert_true(pool_wait(p, job, -1));
  assert_true(pool_wait(p, job, 0)); /* again */
  assert_int_equal(pool_finished(p), 1);
  pool_close(&p);
}

/* ---- closing ---- */

static void count(void *context, uint32_t worker) {
  (void)worker;
  atomic_fetch_add((_Atomic uint32_t *)context, 1);
}

static void close_waits_for_what_was_posted(void **state) {
  (void)state;
  for (uint32_t threads = 1; threads <= 4; threads++) {
    _Atomic uint32_t ran = 0;
    pool *p = open_pool(threads);
    for (uint32_t i = 0; i < POOL_JOBS_MAX; i++) pool_post(p, count, &ran);
    pool_close(&p);
    assert_int_equal(atomic_load(&ran), POOL_JOBS_MAX * threads);
  }
}

/* Workers spin for some 50 us, then go to sleep: closing is tried all around that moment, where one
 * that has looked and not yet slept could miss it. */
static void close_at_any_moment(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 1500; i++) {
    _Atomic uint32_t ran = 0;
    uint32_t threads = 1 + i % 4;
    pool *p = open_pool(threads);
    if (i % 3) assert_true(pool_wait(p, pool_post(p, count, &ran), -1));
    for (int64_t end = clock_real_now(NULL) + 30000 + (int64_t)(i * 7919 % 60000);
         clock_real_now(NULL) < end;) {
    }
    pool_close(&p);
    assert_int_equal(atomic_load(&ran), i % 3 ? threads : 0);
  }
  pool *p = open_pool(2); /* long asleep */
  sleep_ns(20 * 1000 * 1000);
  pool_close(&p);
  pool_close(&p); /* nothing */
}

/* The same moment, for a post. */
static void a_post_wakes_who_was_about_to_sleep(void **state) {
  (void)state;
  _Atomic uint32_t ran = 0;
  pool *p = open_pool(2);
  for (uint32_t i = 0; i < 3000; i++) {
    for (int64_t end = clock_real_now(NULL) + 30000 + (int64_t)(i * 7919 % 60000);
         clock_real_now(NULL) < end;) {
    }
    assert_true(pool_wait(p, pool_post(p, count, &ran), -1));
  }
  assert_int_equal(atomic_load(&ran), 2 * 3000);
  pool_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(jobs_run_once_each_in_order),
      cmocka_unit_test(nobody_passes_a_barrier_early),
      cmocka_unit_test(waiting_ends_in_time),
      cmocka_unit_test(close_waits_for_what_was_posted),
      cmocka_unit_test(close_at_any_moment),
      cmocka_unit_test(a_post_wakes_who_was_about_to_sleep),
  };
  alarm(HANG_SECONDS);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
