/* SPDX-License-Identifier: Apache-2.0 */
#include "api/retry.h"

static const int64_t ns_per_ms = 1000000;
enum { LEAST_MS = 1000, MOST_MS = 60000 };

void api_load_read(const troika_runtime *runtime, const api_metrics *m, api_load *out) {
  troika_runtime_stats s;
  troika_runtime_describe(runtime, &s);
  *out = (api_load){.backlog_ns = s.backlog_s < 1e6 ? (int64_t)(s.backlog_s * 1e9) : INT64_MAX};
  for (int k = 0; k < 2; k++) {
    out->running[k] = s.running_by[k];
    out->queued[k] = s.queued_by[k];
    out->whole_ns[k] = atomic_load(&m->whole_ns[k]);
    out->placed_ns[k] = atomic_load(&m->placed_ns[k]);
  }
}

static int64_t longer(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Those that run leave one after the other, and each lets in one that waits. */
int64_t api_retry_full_ns(const api_load *load, bool background) {
  uint32_t running = load->running[0] ? load->running[0] : 1;
  double turns = (double)(load->queued[0] + (load->running[0] > 0)) / running;
  double people = turns * (double)load->placed_ns[0];
  int64_t ns = people < 1e15 ? (int64_t)people : INT64_MAX;
  return background ? longer(ns, load->backlog_ns) : ns;
}

int64_t api_retry_key_ns(const api_load *load, bool background, uint32_t open) {
  return load->whole_ns[background] / (open ? open : 1);
}

/* 0 to 65,535, spread evenly: FNV-1a, and its bits mixed. */
static int64_t spread_of(const char *id) {
  uint64_t hash = UINT64_C(14695981039346656037);
  for (; *id; id++) hash = (hash ^ (unsigned char)*id) * UINT64_C(1099511628211);
  return (int64_t)(((hash ^ hash >> 32) * UINT64_C(0x9E3779B97F4A7C15)) >> 48);
}

void api_retry_set(api_failure *f, int64_t wait_ns, const char *id) {
  int64_t ms = wait_ns / ns_per_ms;
  ms = ms < LEAST_MS ? LEAST_MS : ms > MOST_MS ? MOST_MS : ms;
  int64_t span = ms / 4 > LEAST_MS ? ms / 4 : LEAST_MS;
  if (ms > MOST_MS - span) ms = MOST_MS - span; /* room to be spread in */
  ms += span * spread_of(id) >> 16;
  f->retry_after_ms = (unsigned)ms;
  /* To the nearest: rounded up, all that wait shortest would have the same whole seconds. */
  f->retry_after_s = (unsigned)(ms + 500) / 1000;
}
