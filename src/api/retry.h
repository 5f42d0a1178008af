/* SPDX-License-Identifier: Apache-2.0 */
/* retry.h - when a client that is refused should ask again. Private to this room.
 *
 * Predicted is when it would be admitted, from what the engine publishes and from how long requests
 * have taken lately; then it is spread by the request's id, so that those refused together do not
 * come back together. Any thread. Source: scheduling.md 5. */
#ifndef API_RETRY_H
#define API_RETRY_H

#include "api/failure.h"
#include "api/metrics.h"

/* By class: reactive, proactive. */
typedef struct api_load {
  uint32_t running[2], queued[2];
  int64_t backlog_ns;   /* of all background, as the engine predicts it */
  int64_t whole_ns[2];  /* mean time of a request, from its headers to its end; 0: not known */
  int64_t placed_ns[2]; /* the part of it in which it has a place in the engine */
} api_load;

void api_load_read(const troika_runtime *runtime, const api_metrics *m, api_load *out);
/* The queue is full: until what would go before it has gone. 0: not known. */
int64_t api_retry_full_ns(const api_load *load, bool background);
/* A key has `open` answers open: until one of them ends. 0: not known. */
int64_t api_retry_key_ns(const api_load *load, bool background, uint32_t open);
/* Both headers, 1 to 60 s: the wait and up to a quarter of it more (a second at least), which part
 * depends on `id` alone. */
void api_retry_set(api_failure *f, int64_t wait_ns, const char *id);

#endif
