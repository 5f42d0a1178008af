/* SPDX-License-Identifier: Apache-2.0 */
/* Two buffers: the runtime thread fills one while the writer's thread writes the other. A decision
 * that finds no room is lost and counted; its number is missing in the file, so a replay can say
 * that the record is not whole. The writer takes what is there five times a second, so that little
 * is lost if the process is killed. */
#include "runtime/recorder.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "sched/record.h"

enum { BUFFER_BYTES = 8 << 20, WRITE_EVERY_NS = 200000000 };

struct runtime_recorder {
  FILE *file;
  pthread_t thread;
  pthread_mutex_t lock; /* guards what follows; held for moments only */
  pthread_cond_t changed;
  uint8_t *buffers[2];
  size_t used;  /* of buffers[filling] */
  int filling;  /* the runtime thread's buffer */
  size_t ready; /* bytes of the other one to be written; 0: it is free */
  bool ending;
  uint64_t lost;
  bool broken; /* the writer's: a write has failed, and nothing may follow a part of a record */
};

static void write_out(runtime_recorder *r, const uint8_t *bytes, size_t n) {
  if (r->broken || fwrite(bytes, 1, n, r->file) == n) return;
  log_line(LOG_WARN, "the record of decisions ends here, it cannot be written: %s",
           strerror(errno));
  r->broken = true;
}

/* The filled buffer to the writer, if it has done with the other one. Under the lock. */
static void hand_over(runtime_recorder *r) {
  if (r->ready || !r->used) return;
  r->ready = r->used;
  r->used = 0;
  r->filling = 1 - r->filling;
}

/* Under the lock. */
static void wait_for_work(runtime_recorder *r) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += WRITE_EVERY_NS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  int late = 0;
  while (!r->ready && !r->ending && !late)
    late = pthread_cond_timedwait(&r->changed, &r->lock, &until);
  hand_over(r);
}

static void *write_all(void *recorder) {
  runtime_recorder *r = recorder;
  os_thread_name("recorder");
  pthread_mutex_lock(&r->lock);
  for (;;) {
    wait_for_work(r);
    if (!r->ready && r->ending) break;
    if (!r->ready) continue;
    const uint8_t *bytes = r->buffers[1 - r->filling];
    size_t n = r->ready;
    pthread_mutex_unlock(&r->lock);
    write_out(r, bytes, n);
    pthread_mutex_lock(&r->lock);
    r->ready = 0;
  }
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

static void free_recorder(runtime_recorder *r) {
  free(r->buffers[0]);
  free(r->buffers[1]);
  pthread_mutex_destroy(&r->lock);
  pthread_cond_destroy(&r->changed);
  free(r);
}

troika_status runtime_recorder_open(const char *path, runtime_recorder **out, troika_error *err) {
  if (!path) return TROIKA_OK;
  runtime_recorder *r = calloc(1, sizeof *r);
  if (!r) return error_set(err, TROIKA_NO_MEMORY, "no memory for a recorder");
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  r->buffers[0] = malloc(BUFFER_BYTES);
  r->buffers[1] = malloc(BUFFER_BYTES);
  r->file = fopen(path, "we");
  if (r->file) setvbuf(r->file, NULL, _IONBF, 0);
  troika_status status = TROIKA_OK;
  if (!r->file)
    status = error_set(err, TROIKA_IO, "%s: %s", path, strerror(errno));
  else if (!r->buffers[0] || !r->buffers[1] || pthread_create(&r->thread, NULL, write_all, r))
    status = error_set(err, TROIKA_NO_MEMORY, "no memory for a recorder");
  if (!status) {
    *out = r;
    return TROIKA_OK;
  }
  if (r->file) fclose(r->file);
  free_recorder(r);
  return status;
}

void runtime_recorder_decision(runtime_recorder *r, const sched_view *view,
                               const sched_memory *before, int64_t now_ns,
                               const sched_action *actions, size_t n) {
  pthread_mutex_lock(&r->lock);
  if (sched_record_size(view, n) > BUFFER_BYTES - r->used) hand_over(r);
  size_t bytes = sched_record_write(view, before, now_ns, actions, n,
                                    r->buffers[r->filling] + r->used, BUFFER_BYTES - r->used);
  if (bytes)
    r->used += bytes;
  else
    r->lost++;
  if (r->used > BUFFER_BYTES / 4) hand_over(r);
  if (r->ready) pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

void runtime_recorder_close(runtime_recorder **recorder) {
  runtime_recorder *r = *recorder;
  if (!r) return;
  pthread_mutex_lock(&r->lock);
  r->ending = true;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
  pthread_join(r->thread, NULL);
  uint64_t lost = r->lost;
  if (fclose(r->file) && !r->broken)
    log_line(LOG_WARN, "the record of decisions is not whole: %s", strerror(errno));
  if (lost)
    log_line(LOG_WARN, "the record of decisions lacks %llu of them", (unsigned long long)lost);
  free_recorder(r);
  *recorder = NULL;
}
