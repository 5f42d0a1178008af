/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - what /metrics says, in Prometheus' text format: counters and histograms of finished
 * requests, which the api keeps itself, and a snapshot of the engine and the process.
 *
 * Atomics without a lock: any thread observes, any thread writes; a scrape may see a request in one
 * figure and not yet in the next. Memory: about 25 KB. */
#ifndef API_METRICS_H
#define API_METRICS_H

#include <stdatomic.h>

#include "api/answer.h"
#include "troika/runtime.h"

enum { API_METRICS_BUCKETS = 16, API_STATUS_MAX = 600, API_STATUS_GONE = 499 };

typedef struct api_histogram {
  atomic_ullong
      counts[API_METRICS_BUCKETS + 1]; /* by upper bound, not cumulative; last: above all */
  atomic_ullong sum_ns;
} api_histogram;

typedef struct api_metrics {
  /* Answers by endpoint (the last row: all that is no job) and status; 499: the client had gone. */
  atomic_ullong answers[API_ENDPOINTS + 1][API_STATUS_MAX];
  atomic_ullong prompt_tokens, cached_tokens, completion_tokens; /* of finished requests */
  api_histogram queue, first_token, per_token, request;
} api_metrics;

/* endpoint: API_ENDPOINTS for what is no job. */
void api_metrics_answered(api_metrics *m, api_endpoint endpoint, unsigned status);
/* A request that the engine took and ended. */
void api_metrics_finished(api_metrics *m, const api_usage *usage, int64_t total_ns);
void api_metrics_write(const api_metrics *m, const troika_runtime *runtime, uint32_t connections,
                       bytes_buffer *out);

#endif
