/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - what /metrics says, in Prometheus' text format: counters and histograms of finished
 * requests, which the api keeps itself, and a snapshot of the engine and the process.
 *
 * Atomics without a lock: any thread observes, any thread writes; a scrape may see a request in one
 * figure and not yet in the next. Memory: about 27 KB. */
#ifndef API_METRICS_H
#define API_METRICS_H

#include <stdatomic.h>

#include "api/answer.h"
#include "troika/runtime.h"

enum {
  API_METRICS_BUCKETS = 18,
  API_STATUS_MAX = 600,
  API_STATUS_GONE = 499,
  API_REASONS = 8 /* of refusals: see metrics.c */
};

typedef struct api_histogram {
  atomic_ullong
      counts[API_METRICS_BUCKETS + 1]; /* by upper bound, not cumulative; last: above all */
  atomic_ullong sum_ns;
} api_histogram;

typedef struct api_metrics {
  /* Answers by endpoint (the last row: all that is no job) and status; 499: the client had gone. */
  atomic_ullong answers[API_ENDPOINTS + 1][API_STATUS_MAX];
  atomic_ullong prompt_tokens, cached_tokens, completion_tokens; /* of finished requests */
  atomic_ullong refused[API_REASONS];
  /* By class: reactive, proactive. */
  api_histogram queue[2], first_token[2], per_token[2], request[2];
  /* Moving means of about the last 16: of a request, of its time in the engine after its first
   * launch; 0: there was none. */
  atomic_llong whole_ns[2], placed_ns[2];
} api_metrics;

/* endpoint: API_ENDPOINTS for what is no job. */
void api_metrics_answered(api_metrics *m, api_endpoint endpoint, unsigned status);
/* A request that the engine took and ended. class_: REACTIVE or PROACTIVE. */
void api_metrics_finished(api_metrics *m, troika_class class_, const api_usage *usage,
                          int64_t total_ns);
/* A completion that was refused or given up; code: of its error. */
void api_metrics_refused(api_metrics *m, const char *code);
void api_metrics_write(const api_metrics *m, const troika_runtime *runtime, uint32_t connections,
                       bytes_buffer *out);

#endif
