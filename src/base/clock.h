/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - time as a value, so that the runtime runs on real or virtual time.
 * Nanoseconds since an arbitrary start, never backwards. Any thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

typedef struct clock_source {
  int64_t (*now)(void *context);
  void *context; /* borrowed */
} clock_source;

int64_t clock_real_now(void *unused);
static inline clock_source clock_real(void) {
  return (clock_source){clock_real_now, 0};
}
static inline int64_t clock_now(clock_source c) {
  return c.now(c.context);
}

/* A clock that a test or the simulator moves by hand. */
typedef struct clock_virtual {
  int64_t now_ns;
} clock_virtual;
int64_t clock_virtual_now(void *clock);
static inline clock_source clock_of_virtual(clock_virtual *c) {
  return (clock_source){clock_virtual_now, c};
}

/* CPU time of the calling thread, ns. */
int64_t clock_thread_now(void);

#endif
