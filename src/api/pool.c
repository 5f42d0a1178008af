/* SPDX-License-Identifier: Apache-2.0 */
#include "api/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"

enum { IDLE, QUEUED, RUNNING, AGAIN };
enum { ROW_MAX = 32 };
enum { STEP_NS = 1000000 }; /* a step of a running job that takes longer is long */

typedef struct queue {
  api_pool_item *first, **last;
} queue;

struct api_pool {
  api_pool_options options;
  pthread_t *threads;
  pthread_t tick;
  unsigned threads_n;
  bool ticking;

  pthread_mutex_t lock; /* guards all below and every item */
  pthread_cond_t work, empty, stop_tick;
  queue fresh, running;
  api_pool_item *all;
  uint32_t count;
  unsigned starting; /* workers in a first step */
  unsigned stepping; /* workers awake and in no first step */
  int64_t taken_ns;  /* when one of them last came for work */
  bool stopping;
};

static void push(queue *q, api_pool_item *item) {
  item->next = NULL;
  *q->last = item;
  q->last = &item->next;
}

static api_pool_item *pop(queue *q) {
  api_pool_item *item = q->first;
  if (!item) return NULL;
  q->first = item->next;
  if (!q->first) q->last = &q->first;
  return item;
}

static void post_locked(api_pool *p, api_pool_item *item) {
  if (item->state == RUNNING) item->state = AGAIN;
  if (item->state != IDLE) return;
  item->state = QUEUED;
  push(item->started ? &p->running : &p->fresh, item);
  /* An iteration of the engine has news for all its streams at once, a few microseconds of work
   * each: one worker does it in less time than it takes to wake the others. Unless that one is in
   * a long step. */
  if (!item->started || !p->stepping || clock_real_now(NULL) - p->taken_ns > STEP_NS)
    pthread_cond_signal(&p->work);
}

void api_pool_post(api_pool *p, api_pool_item *item) {
  pthread_mutex_lock(&p->lock);
  post_locked(p, item);
  pthread_mutex_unlock(&p->lock);
}

void api_pool_post_all(api_pool *p) {
  pthread_mutex_lock(&p->lock);
  for (api_pool_item *item = p->all; item; item = item->down) post_locked(p, item);
  pthread_mutex_unlock(&p->lock);
}

void api_pool_add(api_pool *p, api_pool_item *item) {
  pthread_mutex_lock(&p->lock);
  item->state = IDLE;
  item->started = false;
  item->up = NULL;
  item->down = p->all;
  if (p->all) p->all->up = item;
  p->all = item;
  p->count++;
  post_locked(p, item);
  pthread_mutex_unlock(&p->lock);
}

static void remove_locked(api_pool *p, api_pool_item *item) {
  if (item->up)
    item->up->down = item->down;
  else
    p->all = item->down;
  if (item->down) item->down->up = item->up;
}

/* Ends a row of steps; the lock is let go meanwhile, so there may be news afterwards. */
static void end_row(api_pool *p, unsigned *row) {
  *row = 0;
  if (!p->options.release) return;
  pthread_mutex_unlock(&p->lock);
  p->options.release();
  pthread_mutex_lock(&p->lock);
}

/* The next item that this worker may take; NULL when the pool stops. */
static api_pool_item *take(api_pool *p, unsigned *row) {
  for (;;) {
    api_pool_item *item = *row < ROW_MAX ? pop(&p->running) : NULL;
    if (item) p->taken_ns = clock_real_now(NULL);
    if (!item && *row) {
      end_row(p, row);
      continue;
    }
    if (!item && p->starting + 1 < p->threads_n && (item = pop(&p->fresh))) p->starting++;
    if (item || p->stopping) return item;
    p->stepping--;
    pthread_cond_wait(&p->work, &p->lock);
    p->stepping++;
  }
}

static void *worker_main(void *context) {
  api_pool *p = context;
  api_pool_item *item;
  unsigned row = 0; /* steps of running jobs since the last rest */
  os_thread_name("api");
  pthread_mutex_lock(&p->lock);
  p->stepping++;
  while ((item = take(p, &row))) {
    bool first = !item->started;
    if (!first && !row++ && p->options.gather) p->options.gather();
    item->started = true;
    item->state = RUNNING;
    if (first) p->stepping--;
    pthread_mutex_unlock(&p->lock);
    bool over = p->options.step(item);
    pthread_mutex_lock(&p->lock);
    if (first) {
      p->starting--;
      p->stepping++;
      if (p->fresh.first) pthread_cond_signal(&p->work);
    }
    if (over) {
      remove_locked(p, item);
      if (row) end_row(p, &row); /* finishing may wait for the engine */
      pthread_mutex_unlock(&p->lock);
      p->options.finish(item);
      pthread_mutex_lock(&p->lock);
      if (--p->count == 0) pthread_cond_broadcast(&p->empty);
      continue;
    }
    bool again = item->state == AGAIN;
    item->state = IDLE;
    if (again) post_locked(p, item);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

static void *tick_main(void *context) {
  api_pool *p = context;
  os_thread_name("api-tick");
  pthread_mutex_lock(&p->lock);
  while (!p->stopping) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&p->stop_tick, &p->lock, &until);
    for (api_pool_item *item = p->all; item; item = item->down)
      if (item->started) post_locked(p, item);
    if (p->running.first) pthread_cond_signal(&p->work);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

troika_status api_pool_open(const api_pool_options *options, api_pool **out, troika_error *err) {
  CHECK(options->workers >= 2);
  api_pool *p = calloc(1, sizeof *p);
  if (p) p->threads = calloc(options->workers, sizeof *p->threads);
  if (!p || !p->threads) {
    free(p);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the api threads");
  }
  pthread_condattr_t monotonic;
  p->options = *options;
  p->fresh.last = &p->fresh.first;
  p->running.last = &p->running.first;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->empty, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&p->stop_tick, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_mutex_lock(&p->lock); /* workers read threads_n */
  while (p->threads_n < options->workers &&
         !pthread_create(&p->threads[p->threads_n], NULL, worker_main, p))
    p->threads_n++;
  p->ticking = !pthread_create(&p->tick, NULL, tick_main, p);
  bool whole = p->threads_n == options->workers && p->ticking;
  pthread_mutex_unlock(&p->lock);
  if (!whole) {
    api_pool_close(&p);
    return error_set(err, TROIKA_NO_MEMORY, "cannot start %u api threads", options->workers);
  }
  *out = p;
  return TROIKA_OK;
}

uint32_t api_pool_count(api_pool *p) {
  pthread_mutex_lock(&p->lock);
  uint32_t n = p->count;
  pthread_mutex_unlock(&p->lock);
  return n;
}

void api_pool_wait_empty(api_pool *p) {
  pthread_mutex_lock(&p->lock);
  while (p->count) pthread_cond_wait(&p->empty, &p->lock);
  pthread_mutex_unlock(&p->lock);
}

void api_pool_close(api_pool **pool) {
  api_pool *p = *pool;
  *pool = NULL;
  pthread_mutex_lock(&p->lock);
  CHECK(p->count == 0);
  p->stopping = true;
  pthread_cond_broadcast(&p->work);
  pthread_cond_broadcast(&p->stop_tick);
  pthread_mutex_unlock(&p->lock);
  for (unsigned i = 0; i < p->threads_n; i++) pthread_join(p->threads[i], NULL);
  if (p->ticking) pthread_join(p->tick, NULL);
  pthread_cond_destroy(&p->work);
  pthread_cond_destroy(&p->empty);
  pthread_cond_destroy(&p->stop_tick);
  pthread_mutex_destroy(&p->lock);
  free(p->threads);
  free(p);
}
