/* SPDX-License-Identifier: Apache-2.0 */
#include "api/metrics.h"

#include <math.h>

#include "base/os.h"

/* Seconds. From a token of a small model to a prompt of minutes, about 2.5 apart. */
static const double bounds[API_METRICS_BUCKETS] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

static void observe(api_histogram *h, int64_t ns) {
  int i = 0;
  if (ns < 0) ns = 0;
  while (i < API_METRICS_BUCKETS && (double)ns > bounds[i] * 1e9) i++;
  atomic_fetch_add(&h->counts[i], 1);
  atomic_fetch_add(&h->sum_ns, (unsigned long long)ns);
}

void api_metrics_answered(api_metrics *m, api_endpoint endpoint, unsigned status) {
  if (status < API_STATUS_MAX) atomic_fetch_add(&m->answers[endpoint][status], 1);
}

void api_metrics_finished(api_metrics *m, const api_usage *u, int64_t total_ns) {
  atomic_fetch_add(&m->prompt_tokens, u->prompt_tokens);
  atomic_fetch_add(&m->cached_tokens, u->cached_tokens);
  atomic_fetch_add(&m->completion_tokens, u->completion_tokens);
  observe(&m->queue, u->timings.queue_ns);
  observe(&m->request, total_ns);
  if (u->first_token_ns) observe(&m->first_token, u->first_token_ns);
  if (u->per_token_ns) observe(&m->per_token, u->per_token_ns);
}

static void put_help(const char *name, const char *type, const char *help, bytes_buffer *out) {
  bytes_append_format(out, "# HELP troika_%s %s\n# TYPE troika_%s %s\n", name, help, name, type);
}

static void put_value(const char *name, const char *type, const char *help, double value,
                      bytes_buffer *out) {
  put_help(name, type, help, out);
  bytes_append_format(out, "troika_%s %.17g\n", name, value);
}

static void put_histogram(const char *name, const char *help, const api_histogram *h,
                          bytes_buffer *out) {
  unsigned long long total = 0;
  put_help(name, "histogram", help, out);
  for (int i = 0; i <= API_METRICS_BUCKETS; i++) {
    total += atomic_load(&h->counts[i]);
    if (i < API_METRICS_BUCKETS)
      bytes_append_format(out, "troika_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], total);
    else
      bytes_append_format(out, "troika_%s_bucket{le=\"+Inf\"} %llu\n", name, total);
  }
  bytes_append_format(out, "troika_%s_sum %.9g\ntroika_%s_count %llu\n", name,
                      (double)atomic_load(&h->sum_ns) / 1e9, name, total);
}

static void put_answers(const api_metrics *m, bytes_buffer *out) {
  static const char *const names[] = {"chat", "completions", "tokenize", "detokenize", "other"};
  put_help("requests_total", "counter",
           "HTTP answers by endpoint and status; 499: the client left before its answer was whole.",
           out);
  for (int e = 0; e <= API_ENDPOINTS; e++)
    for (int s = 0; s < API_STATUS_MAX; s++) {
      unsigned long long n = atomic_load(&m->answers[e][s]);
      if (n)
        bytes_append_format(out, "troika_requests_total{endpoint=\"%s\",code=\"%d\"} %llu\n",
                            names[e], s, n);
    }
}

static void put_engine(const troika_runtime *runtime, bytes_buffer *out) {
  troika_runtime_stats s;
  troika_runtime_describe(runtime, &s);
  put_help("build_info", "gauge", "Version and kernels, as labels.", out);
  bytes_append_format(out, "troika_build_info{version=\"%s\",kernels=\"%s\"} 1\n", troika_version(),
                      s.kernels);
  put_value("requests_running", "gauge", "Requests that have a place in the engine.", s.running,
            out);
  put_value("requests_queued", "gauge", "Requests that wait for a place.", s.queued, out);
  put_value("places", "gauge", "Requests that may run at once.", s.parallel, out);
  put_value("cancelled_total", "counter", "Requests that ended because they were cancelled.",
            (double)s.cancelled, out);
  put_value("failed_total", "counter", "Requests that ended with an error of the engine.",
            (double)s.failed, out);
  put_value("prompt_tokens_computed_total", "counter", "Prompt tokens that were computed.",
            (double)s.prompt_tokens, out);
  put_value("prompt_tokens_cached_total", "counter", "Prompt tokens found in the KV cache.",
            (double)s.cached_tokens, out);
  put_value("generated_tokens_total", "counter", "Tokens of ended requests that were generated.",
            (double)s.generated_tokens, out);
  put_value("launches_total", "counter", "Launches handed to devices.", (double)s.launches, out);
  put_value("launch_stops_total", "counter", "Launches stopped before their end.", (double)s.stops,
            out);
  put_value("kv_bytes", "gauge", "KV memory that is reserved.", (double)s.kv_bytes, out);
  put_value("kv_bytes_used", "gauge", "KV memory that holds tokens, cached ones included.",
            (double)s.kv_bytes_used, out);
  put_value("weight_bytes", "gauge", "Packed weights.", (double)s.weight_bytes, out);
}

static void put_devices(const troika_runtime *runtime, bytes_buffer *out) {
  troika_device_info d[8];
  uint32_t n = troika_runtime_devices(runtime, d, 8);
  if (n > 8) n = 8;
  put_help("device_utilisation", "gauge", "Busy share of the time since start, 0 to 1.", out);
  for (uint32_t i = 0; i < n; i++)
    bytes_append_format(out, "troika_device_utilisation{device=\"%s\"} %.6f\n", d[i].driver,
                        d[i].utilisation);
  put_help("device_queue_depth", "gauge", "Launches submitted and not finished.", out);
  for (uint32_t i = 0; i < n; i++)
    bytes_append_format(out, "troika_device_queue_depth{device=\"%s\"} %u\n", d[i].driver,
                        d[i].queue_depth);
  put_help("device_launch_seconds_mean", "gauge", "Mean time of a launch.", out);
  for (uint32_t i = 0; i < n; i++)
    bytes_append_format(out, "troika_device_launch_seconds_mean{device=\"%s\"} %.6g\n", d[i].driver,
                        d[i].latency_ms_mean / 1e3);
}

void api_metrics_write(const api_metrics *m, const troika_runtime *runtime, uint32_t connections,
                       bytes_buffer *out) {
  put_engine(runtime, out);
  put_devices(runtime, out);
  put_answers(m, out);
  put_value("usage_prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
            (double)atomic_load(&m->prompt_tokens), out);
  put_value("usage_cached_tokens_total", "counter", "Those of them that were found in the cache.",
            (double)atomic_load(&m->cached_tokens), out);
  put_value("usage_completion_tokens_total", "counter", "Tokens of finished answers.",
            (double)atomic_load(&m->completion_tokens), out);
  put_histogram("queue_seconds", "From the engine's taking a request to its first launch.",
                &m->queue, out);
  put_histogram("time_to_first_token_seconds", "From a request's headers to its first token.",
                &m->first_token, out);
  put_histogram("time_per_output_token_seconds", "Mean time of a token after the first.",
                &m->per_token, out);
  put_histogram("request_seconds", "From a request's headers to the end of its answer.",
                &m->request, out);
  put_value("http_connections", "gauge", "Open connections.", connections, out);
  put_value("resident_bytes", "gauge", "Memory of this process.", (double)os_memory_resident(),
            out);
  put_value("resident_bytes_peak", "gauge", "The most it has had.", (double)os_memory_peak(), out);
}
