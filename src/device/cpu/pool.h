/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - workers that all run the same job at the same time, in order of posting.
 *
 * A job is a function that every worker calls with its own index. Between jobs a worker spins for
 * some 50 us (yielding, so that the runtime's thread gets the core), then sleeps. Inside a job
 * pool_arrive is a barrier: the last one to arrive gets true, may change shared state, and lets the
 * others go by pool_release. One thread posts. */
#ifndef DEVICE_CPU_POOL_H
#define DEVICE_CPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/status.h"

enum { POOL_JOBS_MAX = 4, POOL_THREADS_MAX = 256 };

typedef struct pool pool;
typedef void pool_job(void *context, uint32_t worker);

troika_status pool_open(uint32_t threads, pool **out, troika_error *err);
void pool_close(pool **p); /* waits for what was posted */
uint32_t pool_threads(const pool *p);

/* Returns the job's number, 1, 2, ...; at most POOL_JOBS_MAX may be unfinished (CHECKed). */
uint64_t pool_post(pool *p, pool_job *job, void *context);
/* False if `timeout_ns` (negative: none) passed first. */
bool pool_wait(pool *p, uint64_t number, int64_t timeout_ns);
uint64_t pool_finished(const pool *p); /* jobs that every worker has left */

bool pool_arrive(pool *p);
void pool_release(pool *p);

#endif
