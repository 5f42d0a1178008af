/* SPDX-License-Identifier: Apache-2.0 */
#include "api/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"

/* Seconds. From a token of a small model to a prompt of minutes, about 2 apart. */
static const double bounds[API_METRICS_BUCKETS] = {
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
static const char *const classes[2] = {"reactive", "proactive"};
/* Codes of errors; the last one stands for all others. */
static const char *const reasons[API_REASONS] = {"queue_full",
                                                 "overloaded",
                                                 "key_limit",
                                                 "deadline_exceeded",
                                                 "superseded",
                                                 "cancelled",
                                                 "context_length_exceeded",
                                                 "other"};

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

/* Two at once may lose one of the two: it is a mean. */
static void follow(atomic_llong *mean, int64_t ns) {
  long long old = atomic_load(mean);
  if (ns < 1) ns = 1;
  atomic_store(mean, old ? old + (ns - old) / 16 : ns);
}

void api_metrics_finished(api_metrics *m, troika_class class_, const api_usage *u,
                          int64_t total_ns) {
  int k = class_ == TROIKA_PROACTIVE;
  atomic_fetch_add(&m->prompt_tokens, u->prompt_tokens);
  atomic_fetch_add(&m->cached_tokens, u->cached_tokens);
  atomic_fetch_add(&m->completion_tokens, u->completion_tokens);
  observe(&m->queue[k], u->timings.queue_ns);
  observe(&m->request[k], total_ns);
  follow(&m->whole_ns[k], total_ns);
  follow(&m->placed_ns[k], total_ns - u->timings.queue_ns);
  if (u->first_token_ns) observe(&m->first_token[k], u->first_token_ns);
  if (u->per_token_ns) observe(&m->per_token[k], u->per_token_ns);
}

void api_metrics_refused(api_metrics *m, const char *code) {
  int i = 0;
  while (i < API_REASONS - 1 && strcmp(code, reasons[i]) != 0) i++;
  atomic_fetch_add(&m->refused[i], 1);
}

static void put_help(const char *name, const char *type, const char *help, bytes_buffer *out) {
  bytes_append_format(out, "# HELP troika_%s %s\n# TYPE troika_%s %s\n", name, help, name, type);
}

static void put_value(const char *name, const char *type, const char *help, double value,
                      bytes_buffer *out) {
  put_help(name, type, help, out);
  bytes_append_format(out, "troika_%s %.17g\n", name, value);
}

static void put_histograms(const char *name, const char *help, const api_histogram by_class[2],
                           bytes_buffer *out) {
  put_help(name, "histogram", help, out);
  for (int k = 0; k < 2; k++) {
    const api_histogram *h = &by_class[k];
    unsigned long long total = 0;
    char le[16] = "+Inf";
    for (int i = 0; i <= API_METRICS_BUCKETS; i++) {
      total += atomic_load(&h->counts[i]);
      if (i < API_METRICS_BUCKETS)
        snprintf(le, sizeof le, "%g", bounds[i]);
      else
        snprintf(le, sizeof le, "+Inf");
      bytes_append_format(out, "troika_%s_bucket{class=\"%s\",le=\"%s\"} %llu\n", name, classes[k],
                          le, total);
    }
    bytes_append_format(
        out, "troika_%s_sum{class=\"%s\"} %.9g\ntroika_%s_count{class=\"%s\"} %llu\n", name,
        classes[k], (double)atomic_load(&h->sum_ns) / 1e9, name, classes[k], total);
  }
}

static void put_by_class(const char *name, const char *type, const char *help,
                         const double values[2], bytes_buffer *out) {
  put_help(name, type, help, out);
  for (int k = 0; k < 2; k++)
    bytes_append_format(out, "troika_%s{class=\"%s\"} %.17g\n", name, classes[k], values[k]);
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

static void put_refusals(const api_metrics *m, bytes_buffer *out) {
  put_help("refused_total", "counter", "Completions refused or given up, by the error's code.",
           out);
  for (int i = 0; i < API_REASONS; i++)
    bytes_append_format(out, "troika_refused_total{reason=\"%s\"} %llu\n", reasons[i],
                        (unsigned long long)atomic_load(&m->refused[i]));
}

static void put_engine(const troika_runtime_stats *stats, bytes_buffer *out) {
  troika_runtime_stats s = *stats;
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
  put_value("slot_bytes", "gauge", "Activation slots.", (double)s.slot_bytes, out);
  put_value("weight_bytes", "gauge", "Packed weights.", (double)s.weight_bytes, out);
}

/* The scheduler's own figures. */
static void put_scheduling(const troika_runtime_stats *s, bytes_buffer *out) {
  put_by_class("class_requests_running", "gauge", "Requests that have a place, by class.",
               (double[]){s->running_by[0], s->running_by[1]}, out);
  put_by_class("class_requests_queued", "gauge", "Requests that wait for a place, by class.",
               (double[]){s->queued_by[0], s->queued_by[1]}, out);
  put_by_class("class_prompt_tokens_computed_total", "counter", "Prompt tokens computed, by class.",
               (double[]){(double)s->prompt_tokens_by[0], (double)s->prompt_tokens_by[1]}, out);
  put_by_class("class_generated_tokens_total", "counter", "Tokens generated, by class.",
               (double[]){(double)s->generated_tokens_by[0], (double)s->generated_tokens_by[1]},
               out);
  put_by_class("launch_seconds_total", "counter",
               "Device time of launches with a row of the class; one with both is reactive.",
               s->launch_s_by, out);
  put_value("preemptions_total", "counter", "Launches stopped for a more urgent one.",
            (double)s->preemptions, out);
  put_value("suspensions_total", "counter", "Requests whose pages were taken.",
            (double)s->suspensions, out);
  put_value("iterations_dropped_total", "counter", "Stopped iterations that were given up.",
            (double)s->dropped, out);
  put_value("piggybacked_rows_total", "counter", "Rows of the background in reactive iterations.",
            (double)s->piggybacked, out);
  put_value("promotions_total", "counter", "Requests promoted because they had waited too long.",
            (double)s->promotions, out);
  put_value("engine_refused_total", "counter", "Requests that the engine did not take.",
            (double)s->refused, out);
  put_value("bytes_copied_total", "counter", "Bytes of KV copied by switches between requests.",
            (double)s->bytes_copied, out);
  put_help("bcap", "gauge",
           "Rows that the last reactive iteration was allowed, and what bound them.", out);
  bytes_append_format(out, "troika_bcap{term=\"%s\"} %u\n", s->bcap_term ? s->bcap_term : "none",
                      s->bcap);
  put_value("pressure_level", "gauge", "Of pressure, 0 to 6.", s->level, out);
  put_value("pressure", "gauge", "Above 1 for long, the level rises.", s->pressure, out);
  put_value("backlog_seconds", "gauge", "Predicted time of the background that waits.",
            s->backlog_s, out);
  put_value("aging_account_seconds", "gauge",
            "What promoted work may still cost reactive work (X).", s->x_ms / 1e3, out);
  put_value("preempt_bound_seconds", "gauge",
            "What a stop of a launch is held to take at most: the longest measured for the cost "
            "table, or a guess; preempt_stop_seconds, at most 0.01, while that is longer after 32 "
            "stops or more.",
            s->preempt_bound_ms / 1e3, out);
  put_value("preempt_bound_measured", "gauge",
            "1: the cost table's longest stop was measured; 0: it is a guess.", s->bound_measured,
            out);
  put_help("preempt_stop_seconds", "gauge",
           "From asking a launch to stop to seeing it stopped, of the last 128 of "
           "preemptions_total.",
           out);
  bytes_append_format(out, "troika_preempt_stop_seconds{quantile=\"0.95\"} %.17g\n",
                      s->stop_p95_ms / 1e3);
  put_value("preempt_stop_max_seconds", "gauge", "The longest of all of these.",
            s->stop_max_ms / 1e3, out);
  put_value("model_error", "gauge", "90th percentile of |observed - predicted| / predicted.",
            s->model_error, out);
}

static void put_cache(const troika_runtime_stats *s, bytes_buffer *out) {
  put_value("prefix_lookups_total", "counter", "Requests that looked for a cached prefix.",
            (double)s->prefix_lookups, out);
  put_value("prefix_hits_total", "counter", "Those of them that found one.", (double)s->prefix_hits,
            out);
  put_value("kv_evictions_total", "counter", "KV pages whose content was dropped for others.",
            (double)s->kv_evictions, out);
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
  troika_runtime_stats s;
  troika_runtime_describe(runtime, &s);
  put_engine(&s, out);
  put_scheduling(&s, out);
  put_cache(&s, out);
  put_devices(runtime, out);
  put_answers(m, out);
  put_refusals(m, out);
  put_value("usage_prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
            (double)atomic_load(&m->prompt_tokens), out);
  put_value("usage_cached_tokens_total", "counter", "Those of them that were found in the cache.",
            (double)atomic_load(&m->cached_tokens), out);
  put_value("usage_completion_tokens_total", "counter", "Tokens of finished answers.",
            (double)atomic_load(&m->completion_tokens), out);
  put_histograms("queue_seconds", "From the engine's taking a request to its first launch.",
                 m->queue, out);
  put_histograms("time_to_first_token_seconds", "From a request's headers to its first token.",
                 m->first_token, out);
  put_histograms("time_per_output_token_seconds", "Mean time of a token after the first.",
                 m->per_token, out);
  put_histograms("request_seconds", "From a request's headers to the end of its answer.",
                 m->request, out);
  put_value("http_connections", "gauge", "Open connections.", connections, out);
  put_value("resident_bytes", "gauge", "Memory of this process.", (double)os_memory_resident(),
            out);
  put_value("resident_bytes_peak", "gauge", "The most it has had.", (double)os_memory_peak(), out);
}
