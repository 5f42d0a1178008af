/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs are stepped by one worker at a time, no post is lost, and first steps never take all
 * workers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <setjmp.h>
#include <unistd.h>
#include <pthread.h>
#include <cmocka.h>

#include "api/pool.h"

enum { WORKERS = 3, JOBS = 200, POSTS = 200 };

typedef struct job {
  api_pool_item item;
  atomic_int inside, news, taken, steps;
} job;

static atomic_int finished, overlaps, slow_inside, slow_most, fast_steps;

static bool step(api_pool_item *item) {
  job *j = (job *)item;
  if (atomic_fetch_add(&j->inside, 1)) atomic_fetch_add(&overlaps, 1);
  atomic_fetch_add(&j->steps, 1);
  atomic_fetch_add(&j->taken, atomic_exchange(&j->news, 0));
  bool over = atomic_load(&j->taken) == POSTS;
  atomic_fetch_sub(&j->inside, 1);
  return over;
}

static void finish(api_pool_item *item) {
  (void)item;
  atomic_fetch_add(&finished, 1);
}

static job jobs[JOBS];
static api_pool *pool;

/* One sender per job, so that the last post is known to come before the job is over. */
static void *poster(void *context) {
  job *j = context;
  for (int i = 0; i < POSTS; i++) {
    bool last = i == POSTS - 1;
    if (last) usleep(1000);
    atomic_fetch_add(&j->news, 1);
    if (!last) api_pool_post(pool, &j->item);
  }
  return NULL;
}

static void test_no_news_is_lost(void **state) {
  (void)state;
  api_pool_options options = {.workers = WORKERS, .step = step, .finish = finish};
  assert_int_equal(api_pool_open(&options, &pool, NULL), TROIKA_OK);
  for (int round = 0; round < JOBS; round += 20) {
    pthread_t threads[20];
    for (int i = 0; i < 20; i++) {
      api_pool_add(pool, &jobs[round + i].item);
      pthread_create(&threads[i], NULL, poster, &jobs[round + i]);
    }
    for (int i = 0; i < 20; i++) pthread_join(threads[i], NULL);
    api_pool_post_all(pool); /* the last news of each */
  }
  api_pool_wait_empty(pool);
  assert_int_equal(api_pool_count(pool), 0);
  assert_int_equal(atomic_load(&finished), JOBS);
  assert_int_equal(atomic_load(&overlaps), 0);
  for (int i = 0; i < JOBS; i++) assert_true(atomic_load(&jobs[i].steps) <= POSTS + 2 + JOBS / 20);
  api_pool_close(&pool);
  assert_null(pool);
}

typedef struct slow_job {
  api_pool_item item;
  bool slow, begun;
} slow_job;

static bool slow_step(api_pool_item *item) {
  slow_job *j = (slow_job *)item;
  if (j->slow) {
    int n = atomic_fetch_add(&slow_inside, 1) + 1;
    if (n > atomic_load(&slow_most)) atomic_store(&slow_most, n);
    usleep(100000);
    atomic_fetch_sub(&slow_inside, 1);
    return true;
  }
  if (j->begun) atomic_fetch_add(&fast_steps, 1);
  j->begun = true;
  return atomic_load(&fast_steps) >= 5;
}

static void test_first_steps_leave_a_worker(void **state) {
  (void)state;
  static slow_job slow[12], fast;
  api_pool_options options = {.workers = WORKERS, .step = slow_step, .finish = finish};
  assert_int_equal(api_pool_open(&options, &pool, NULL), TROIKA_OK);
  api_pool_add(pool, &fast.item);
  usleep(20000);
  for (int i = 0; i < 12; i++) {
    slow[i].slow = true;
    api_pool_add(pool, &slow[i].item);
  }
  usleep(10000);
  for (int i = 0; i < 5; i++) { /* stepped while slow ones wait for 600 ms */
    int before = atomic_load(&fast_steps);
    api_pool_post(pool, &fast.item);
    for (int k = 0; k < 50 && atomic_load(&fast_steps) == before; k++) usleep(1000);
    assert_int_equal(atomic_load(&fast_steps), before + 1);
  }
  api_pool_wait_empty(pool);
  assert_int_equal(atomic_load(&slow_most), WORKERS - 1);
  api_pool_close(&pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_news_is_lost),
      cmocka_unit_test(test_first_steps_leave_a_worker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
