/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"
#include "kernel/kernel.h"

enum {
  SPIN_PAUSES = 64,         /* between looks at the clock or the scheduler: about 1 us */
  BARRIER_SPINS = 20,       /* rounds of pauses at a barrier: the others are nearly there */
  BARRIER_YIELDS = 200,     /* then rounds that let another thread have the core, if one wants it */
  IDLE_SPIN_NS = 50 * 1000, /* a decode step's hop through the runtime is shorter */
};

typedef struct pool_slot {
  pool_job *job;
  void *context;
} pool_slot;

struct pool {
  uint32_t threads;
  pthread_t *handles;
  pool_slot jobs[POOL_JOBS_MAX];
  /* Written by the poster, read by workers. Wraps after 2^32 jobs without harm. */
  _Alignas(64) _Atomic uint32_t posted;
  /* Futex word of idle workers: moves with `posted` and with `closing`, so that one who is about to
   * sleep misses neither. */
  _Atomic uint32_t signal;
  _Atomic uint32_t sleepers;
  _Atomic bool closing;
  /* Barrier: arrivals of this phase, and the phase. */
  _Alignas(64) _Atomic uint32_t arrived;
  _Atomic uint32_t barrier_sleepers;
  _Alignas(64) _Atomic uint32_t phase; /* futex word */
  /* Workers that have left each job; the last one moves `finished` on. */
  _Alignas(64) _Atomic uint32_t left;
  _Atomic uint32_t finished; /* futex word */
  uint64_t posted_count;     /* poster only */
  _Atomic uint64_t finished_count;
};

typedef struct pool_worker {
  pool *p;
  uint32_t index;
} pool_worker;

static inline void pause_once(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static inline void pause_spin(void) {
  for (int i = 0; i < SPIN_PAUSES; i++) pause_once();
}

static void wait_for_post(pool *p, uint32_t seen) {
  int64_t end = clock_real_now(NULL) + IDLE_SPIN_NS;
  while (atomic_load_explicit(&p->posted, memory_order_acquire) == seen) {
    if (atomic_load(&p->closing)) return;
    if (clock_real_now(NULL) < end) {
      pause_spin();
      sched_yield();
      continue;
    }
    atomic_fetch_add(&p->sleepers, 1);
    uint32_t word = atomic_load(&p->signal);
    if (atomic_load(&p->posted) == seen && !atomic_load(&p->closing))
      os_futex_wait((const uint32_t *)&p->signal, word, -1);
    atomic_fetch_sub(&p->sleepers, 1);
  }
}

static void *worker_main(void *argument) {
  pool_worker *w = argument;
  pool *p = w->p;
  uint32_t index = w->index, seen = 0;
  os_thread_name("cpu-worker");
  free(w);
  /* Two workers on one core would wait for each other at every barrier. */
  os_thread_pin(index, p->threads);
  kernel_thread_setup();
  for (;;) {
    wait_for_post(p, seen);
    if (atomic_load_explicit(&p->posted, memory_order_acquire) == seen) return NULL; /* closing */
    pool_slot slot = p->jobs[seen % POOL_JOBS_MAX];
    slot.job(slot.context, index);
    seen++;
    if (atomic_fetch_add(&p->left, 1) + 1 == p->threads) {
      atomic_store(&p->left, 0);
      atomic_fetch_add(&p->finished_count, 1);
      atomic_fetch_add(&p->finished, 1);
      os_futex_wake((const uint32_t *)&p->finished, INT32_MAX);
    }
    /* Nobody may count itself out of the next job before the last one has reset `left`. */
    while (atomic_load_explicit(&p->finished, memory_order_acquire) + 1 == seen) {
      pause_spin();
      sched_yield();
    }
  }
}

troika_status pool_open(uint32_t threads, pool **out, troika_error *err) {
  CHECK(threads >= 1 && threads <= POOL_THREADS_MAX);
  pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
  pthread_t *handles = calloc(threads, sizeof *handles);
  if (!p || !handles) {
    free(p);
    free(handles);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %u threads", threads);
  }
  memset(p, 0, sizeof *p);
  p->handles = handles;
  p->threads = threads;
  for (uint32_t i = 0; i < threads; i++) {
    pool_worker *w = malloc(sizeof *w);
    int failed = ENOMEM;
    if (w) {
      *w = (pool_worker){p, i};
      failed = pthread_create(&handles[i], NULL, worker_main, w);
    }
    if (failed) {
      free(w);
      p->threads = i;
      pool_close(&p);
      return error_set(err, TROIKA_NO_MEMORY, "cannot start thread %u of %u: %s", i + 1, threads,
                       strerror(failed));
    }
  }
  *out = p;
  return TROIKA_OK;
}

void pool_close(pool **pp) {
  pool *p = *pp;
  if (!p) return;
  atomic_store(&p->closing, true);
  atomic_fetch_add(&p->signal, 1);
  os_futex_wake((const uint32_t *)&p->signal, INT32_MAX);
  for (uint32_t i = 0; i < p->threads; i++) pthread_join(p->handles[i], NULL);
  free(p->handles);
  free(p);
  *pp = NULL;
}

uint32_t pool_threads(const pool *p) {
  return p->threads;
}

uint64_t pool_post(pool *p, pool_job *job, void *context) {
  CHECK(p->posted_count - atomic_load(&p->finished_count) < POOL_JOBS_MAX);
  p->jobs[p->posted_count % POOL_JOBS_MAX] = (pool_slot){job, context};
  p->posted_count++;
  atomic_fetch_add(&p->posted, 1);
  atomic_fetch_add(&p->signal, 1); /* sequentially consistent with `sleepers` in wait_for_post */
  if (atomic_load(&p->sleepers)) os_futex_wake((const uint32_t *)&p->signal, INT32_MAX);
  return p->posted_count;
}

bool pool_wait(pool *p, uint64_t number, int64_t timeout_ns) {
  int64_t end = clock_real_now(NULL) + timeout_ns;
  for (;;) {
    uint32_t word = atomic_load(&p->finished);
    if (atomic_load(&p->finished_count) >= number) return true;
    int64_t left = timeout_ns < 0 ? -1 : end - clock_real_now(NULL);
    if (timeout_ns >= 0 && left <= 0) return false;
    os_futex_wait((const uint32_t *)&p->finished, word, left);
  }
}

uint64_t pool_finished(const pool *p) {
  return atomic_load(&p->finished_count);
}

bool pool_arrive(pool *p) {
  uint32_t phase = atomic_load_explicit(&p->phase, memory_order_acquire);
  if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->threads)
    return true;
  for (uint32_t rounds = 0; rounds < BARRIER_SPINS + BARRIER_YIELDS; rounds++) {
    for (uint32_t i = 0; i < SPIN_PAUSES; i++) {
      if (atomic_load_explicit(&p->phase, memory_order_acquire) != phase) return false;
      pause_once();
    }
    if (rounds >= BARRIER_SPINS) sched_yield();
  }
  /* Somebody else has the core of one that is still at work. A waiter that sleeps leaves it this
   * one; a waiter that spins keeps it away for whole time slices. */
  atomic_fetch_add(&p->barrier_sleepers, 1);
  while (atomic_load(&p->phase) == phase) os_futex_wait((const uint32_t *)&p->phase, phase, -1);
  atomic_fetch_sub(&p->barrier_sleepers, 1);
  return false;
}

void pool_release(pool *p) {
  atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
  atomic_fetch_add(&p->phase, 1); /* sequentially consistent with barrier_sleepers */
  if (atomic_load(&p->barrier_sleepers)) os_futex_wake((const uint32_t *)&p->phase, INT32_MAX);
}
