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
  unsigned starting;         /* workers in a first step */
  unsigned stepping;         /* workers awake and in no first step */
  unsigned sleeping, waking; /* workers that wait; of these, signalled and not yet awake */
  int64_t taken_ns;          /* when one of them last came for work */
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

static void wake_one(api_pool *p) {
  if (p->sleeping == p->waking) return; /* nobody sleeps who is not on the way */
  p->waking++;
  pthread_cond_signal(&p->work);
}

static void post_locked(api_pool *p, api_pool_item *item) {
  if (item->state == RUNNING) item->state = AGAIN;
  if (item->state != IDLE) return;
  item->state = QUEUED;
  push(item->started ? &p->running : &p->fresh, item);
  /* An iteration of the engine has news for all its streams at once, a few microseconds of work
   * each: one worker does it in less time than it takes to wake the others. Unless that one is in
   * a long step. */
  if (!item->started || p->stepping + p->waking == 0 ||
      clock_real_now(NULL) - p->taken_ns > STEP_NS)
    wake_one(p);
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

/* What a worker steps before it looks for more: one job's first step, or a row of running ones. A
 * row is taken and given back at once, so that those who post do not wait for the lock at each. */
typedef struct row {
  api_pool_item *items[ROW_MAX];
  bool over[ROW_MAX];
  unsigned n;
  bool first;
} row;

/* False when the pool stops. */
static bool take(api_pool *p, row *r) {
  api_pool_item *item;
  for (;;) {
    r->n = 0;
    r->first = false;
    while (r->n < ROW_MAX && (item = pop(&p->running))) r->items[r->n++] = item;
    if (r->n) p->taken_ns = clock_real_now(NULL);
    if (!r->n && p->starting + 1 < p->threads_n && (item = pop(&p->fresh))) {
      r->items[r->n++] = item;
      r->first = true;
      p->starting++;
    }
    for (unsigned i = 0; i < r->n; i++) {
      r->items[i]->state = RUNNING;
      r->items[i]->started = true;
    }
    if (r->n || p->stopping) return r->n > 0;
    p->stepping--;
    p->sleeping++;
    pthread_cond_wait(&p->work, &p->lock);
    p->sleeping--;
    if (p->waking) p->waking--;
    p->stepping++;
  }
}

/* Without the lock. */
static void step_row(const api_pool *p, row *r) {
  if (!r->first && p->options.gather) p->options.gather();
  for (unsigned i = 0; i < r->n; i++) r->over[i] = p->options.step(r->items[i]);
  if (!r->first && p->options.release) p->options.release();
}

/* Keeps in the row what is over. */
static void give_back(api_pool *p, row *r) {
  unsigned over = 0;
  for (unsigned i = 0; i < r->n; i++) {
    api_pool_item *item = r->items[i];
    bool again = item->state == AGAIN;
    if (r->over[i]) {
      remove_locked(p, item);
      r->items[over++] = item;
      continue;
    }
    item->state = IDLE;
    if (again) post_locked(p, item);
  }
  r->n = over;
}

static void *worker_main(void *context) {
  api_pool *p = context;
  row r;
  os_thread_name("api");
  pthread_mutex_lock(&p->lock);
  p->stepping++;
  while (take(p, &r)) {
    if (r.first) p->stepping--;
    pthread_mutex_unlock(&p->lock);
    step_row(p, &r);
    pthread_mutex_lock(&p->lock);
    if (r.first) {
      p->starting--;
      p->stepping++;
      if (p->fresh.first) wake_one(p);
    }
    give_back(p, &r);
    if (!r.n) continue;
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < r.n; i++) p->options.finish(r.items[i]);
    pthread_mutex_lock(&p->lock);
    p->count -= r.n;
    if (p->count == 0) pthread_cond_broadcast(&p->empty);
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
    if (p->running.first) wake_one(p);
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
  p->options = *options;
  p->fresh.last = &p->fresh.first;
  p->running.last = &p->running.first;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->empty, NULL);
  os_cond_init(&p->stop_tick);
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
