/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - worker threads that step jobs, each by one worker at a time.
 *
 *        post          take             step: not over, no news
 *   IDLE ────► QUEUED ────► RUNNING ───────────────────────────► IDLE
 *                 ▲            │ post
 *                 └── AGAIN ◄──┘        step: over → out of the pool, `finish` called
 *
 * A job that has not started (its first step parses and renders) waits in a queue of its own, and
 * at most all workers but one take from it. A tick thread posts every job about once a second, for
 * what depends on time. */
#ifndef API_POOL_H
#define API_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/status.h"

typedef struct api_pool api_pool;

/* First member of whoever is stepped. All fields are the pool's, guarded by its lock. */
typedef struct api_pool_item {
  struct api_pool_item *next;      /* in a queue */
  struct api_pool_item *up, *down; /* among all */
  unsigned char state;
  bool started;
} api_pool_item;

typedef struct api_pool_options {
  unsigned workers;                    /* >= 2 */
  bool (*step)(api_pool_item *item);   /* true: over */
  void (*finish)(api_pool_item *item); /* after the last step; frees it */
  /* Steps of running jobs come in rows: `gather` on a worker's thread before a row, `release` after
   * it, for what is better done once. May be NULL. */
  void (*gather)(void);
  void (*release)(void);
} api_pool_options;

troika_status api_pool_open(const api_pool_options *options, api_pool **out, troika_error *err);
void api_pool_add(api_pool *p, api_pool_item *item); /* and its first step */
/* There is news. Any thread, never waits long; the caller makes sure that the item is not over. */
void api_pool_post(api_pool *p, api_pool_item *item);
void api_pool_post_all(api_pool *p);
uint32_t api_pool_count(api_pool *p);
void api_pool_wait_empty(api_pool *p);
/* Empty before. */
void api_pool_close(api_pool **p);

#endif
