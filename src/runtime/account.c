/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time goes: of each request, of each class, of the machine. Runtime thread. */
#include <string.h>

#include "base/check.h"
#include "runtime/internal.h"

enum { QUEUE_SHOWN_NS = 10000000 }; /* how old what is shown of waiting requests may be */

static int64_t overlap(int64_t from, int64_t start_ns, int64_t end_ns) {
  if (from < start_ns) from = start_ns;
  return from < end_ns ? end_ns - from : 0;
}

static void account_one(request *r, const launch *l, int64_t start_ns, int64_t end_ns) {
  if (r->launch == l) {
    if (l->prefill == r)
      r->spent.prefill_ns += end_ns - start_ns;
    else
      r->spent.decode_ns += end_ns - start_ns;
    return;
  }
  if (r->suspended_ns) return; /* all of it is counted when that ends */
  /* Beside rows that decode the policy lets background run only within their slack. */
  if (r->state == REQUEST_DECODE && r->band != SCHED_BAND_P && l->band == SCHED_BAND_P &&
      !l->promoted) {
    r->spent.slack_ns += overlap(r->waiting_ns, start_ns, end_ns);
    return;
  }
  if (r->start_ns) r->spent.preempted_ns += overlap(r->start_ns, start_ns, end_ns);
  if (r->band != SCHED_BAND_P && l->band == SCHED_BAND_P && !l->promoted && !r->launch)
    r->spent.blocked_ns += overlap(r->waiting_ns, start_ns, end_ns);
}

static void trace(troika_runtime *rt, const launch *l, int64_t start_ns, int64_t end_ns) {
  trace_stretch s = {.launch = (uint32_t)(l - rt->launches),
                     .prompt_rows = l->prefill ? l->prefill->flying : 0,
                     .reactive_rows = l->n_decodes[0],
                     .background_rows = l->n_decodes[1],
                     .request = l->prefill ? l->prefill->id : SCHED_NONE,
                     .band = l->band,
                     .promoted = l->promoted,
                     .stopped = l->state == SCHED_STOPPING,
                     .start_ns = start_ns,
                     .end_ns = end_ns};
  runtime_trace_stretch(rt->trace, &s);
}

void account_stretch(troika_runtime *rt, const launch *l, int64_t start_ns, int64_t end_ns) {
  for (uint32_t i = 0; i < rt->n_places; i++)
    if (rt->places[i]) account_one(rt->places[i], l, start_ns, end_ns);
  for (request *r = rt->queue_first; r; r = r->next) account_one(r, l, start_ns, end_ns);
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.launch_s_by[l->band == SCHED_BAND_P] += (double)(end_ns - start_ns) * 1e-9;
  pthread_mutex_unlock(&rt->stats_lock);
  if (rt->trace) trace(rt, l, start_ns, end_ns);
}

static void fill_timings(const request *r, int64_t now_ns, troika_timings *out) {
  *out = r->spent;
  out->queue_ns = (r->start_ns ? r->start_ns : now_ns) - r->submit_ns;
  if (r->start_ns) out->first_launch_ns = out->queue_ns;
  if (r->first_ns) out->first_token_ns = r->first_ns - r->submit_ns;
  if (r->last_ns) out->last_token_ns = r->last_ns - r->submit_ns;
  int64_t rest =
      now_ns - r->submit_ns - out->queue_ns - out->prefill_ns - out->decode_ns - out->slack_ns;
  if (out->preempted_ns > rest) out->preempted_ns = rest > 0 ? rest : 0;
  out->idle_ns = rest > out->preempted_ns ? rest - out->preempted_ns : 0;
}

void account_suspension(request *r, int64_t now_ns) {
  bool suspended = r->state != REQUEST_ENDED && view_is_suspended(r);
  if (suspended == (r->suspended_ns != 0)) return;
  if (!suspended && r->start_ns)
    r->spent.preempted_ns +=
        now_ns - (r->suspended_ns > r->start_ns ? r->suspended_ns : r->start_ns);
  r->suspended_ns = suspended ? now_ns : 0;
}

void account_end(request *r, int64_t now_ns) {
  if (r->suspended_ns && r->start_ns) r->spent.preempted_ns += now_ns - r->suspended_ns;
  fill_timings(r, now_ns, &r->timings);
}

void account_request(troika_runtime *rt, const request *r) {
  uint32_t made = r->n - r->prompt_n;
  bool background = r->band == SCHED_BAND_P;
  if (r->finish == TROIKA_FINISH_STOP || r->finish == TROIKA_FINISH_LENGTH) {
    int64_t mean = rt->mean_answer[background];
    rt->mean_answer[background] = (uint32_t)(mean + (((int64_t)made << 16) - mean) / 16);
  }
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.requests++;
  memcpy(rt->stats.generated_tokens_by, rt->made, sizeof rt->made); /* before its client hears */
  rt->stats.cancelled += r->finish == TROIKA_FINISH_CANCELLED;
  rt->stats.failed += r->finish == TROIKA_FINISH_ERROR;
  pthread_mutex_unlock(&rt->stats_lock);
}

static troika_stream_state state_of(const request *r, const troika_stream *s) {
  if (r->state == REQUEST_ENDED) return TROIKA_STREAM_IDLE;
  if (atomic_load(&s->suspended)) return TROIKA_STREAM_SUSPENDED;
  return r->state == REQUEST_QUEUED    ? TROIKA_STREAM_QUEUED
         : r->state == REQUEST_PREFILL ? TROIKA_STREAM_PREFILL
                                       : TROIKA_STREAM_DECODE;
}

static void show(const troika_runtime *rt, request *r, uint32_t place, int64_t now_ns) {
  uint32_t id = r->id + 1;
  troika_stream_info info = {
      .band = (troika_band)r->band,
      .place = place,
      .prompt_tokens = r->prompt_n,
      .cached_tokens = r->cached,
      .computed_tokens = r->computed,
      .completion_tokens = r->n - r->prompt_n,
      .diverged_at = r->diverged_at,
      .preemptions = r->preemptions,
      .promoted = rt->memory.promoted_prefill == id || rt->memory.promoted_row == id};
  fill_timings(r, now_ns, &info.timings);
  if (r->state == REQUEST_ENDED) info.timings = r->timings;
  for (troika_stream *s = r->readers; s; s = s->reader_next) {
    info.state = state_of(r, s);
    info.class_ = atomic_load(&s->class_);
    pthread_mutex_lock(&s->lock);
    s->info = info;
    pthread_mutex_unlock(&s->lock);
  }
}

/* The queue is kept in order of arrival; who goes first goes by band, then by arrival. */
static uint32_t place_of(const troika_runtime *rt, const request *r) {
  uint32_t place = 1;
  bool behind = false;
  for (const request *q = rt->queue_first; q; q = q->next) {
    behind = behind || q == r;
    place += q->band < r->band || (q->band == r->band && !behind);
  }
  return place;
}

void account_show(troika_runtime *rt, request *r) {
  show(rt, r, r->state == REQUEST_QUEUED ? place_of(rt, r) : 0, clock_now(rt->clock));
}

static void show_queue(troika_runtime *rt, int64_t now_ns) {
  uint32_t count[SCHED_BANDS] = {0}, next[SCHED_BANDS], before = 0;
  for (const request *r = rt->queue_first; r; r = r->next) count[r->band]++;
  for (int band = 0; band < SCHED_BANDS; before += count[band++]) next[band] = before;
  for (request *r = rt->queue_first; r; r = r->next) show(rt, r, ++next[r->band], now_ns);
  rt->queue_shown_ns = now_ns;
}

static void count_kv(troika_runtime *rt, troika_runtime_stats *s) {
  kv_total_stats totals;
  uint64_t used = 0;
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    kv_pool_stats stats;
    kv_stats(rt->pages, i, &stats);
    used += (uint64_t)(stats.owned + stats.cached) * stats.page_bytes;
  }
  kv_totals(rt->pages, &totals);
  s->kv_bytes_used = used;
  s->kv_evictions = totals.evictions;
}

static const char *term_name(uint32_t term) {
  static const char *const names[] = {
      [SCHED_TERM_NONE] = "none", [SCHED_TERM_SLACK] = "slack",   [SCHED_TERM_TARGET] = "target",
      [SCHED_TERM_FILL] = "fill", [SCHED_TERM_MEMORY] = "memory", [SCHED_TERM_FIXED] = "fixed"};
  return term < sizeof names / sizeof *names ? names[term] : "none";
}

/* Only what has changed: a line in the file each. */
static void trace_counters(troika_runtime *rt, const uint32_t running[2], int64_t now_ns) {
  static const char *const names[] = {"running reactive", "running background", "B_cap"};
  const uint32_t values[] = {running[0], running[1], rt->memory.bcap};
  for (int i = 0; i < 3; i++) {
    if (rt->traced[i] == values[i]) continue;
    rt->traced[i] = values[i];
    runtime_trace_counter(rt->trace, names[i], now_ns, values[i]);
  }
}

void account_update(troika_runtime *rt) {
  int64_t now = clock_now(rt->clock);
  uint32_t running[2] = {0, 0}, queued[2] = {0, 0};
  for (uint32_t i = 0; i < rt->n_places; i++) {
    request *r = rt->places[i];
    if (!r) continue;
    running[r->band == SCHED_BAND_P]++;
    show(rt, r, 0, now);
  }
  for (const request *r = rt->queue_first; r; r = r->next) queued[r->band == SCHED_BAND_P]++;
  if (now - rt->queue_shown_ns >= QUEUE_SHOWN_NS) show_queue(rt, now);
  if (rt->trace) trace_counters(rt, running, now);
  const sched_memory *m = &rt->memory;
  pthread_mutex_lock(&rt->stats_lock);
  troika_runtime_stats *s = &rt->stats;
  s->running = running[0] + running[1];
  s->queued = rt->queued;
  s->generated_tokens = rt->made[0] + rt->made[1];
  memcpy(s->generated_tokens_by, rt->made, sizeof rt->made);
  memcpy(s->running_by, running, sizeof running);
  memcpy(s->queued_by, queued, sizeof queued);
  count_kv(rt, s);
  s->bcap = m->bcap;
  s->bcap_term = term_name(m->term);
  s->level = m->level;
  s->pressure = (double)m->pressure / SCHED_ONE;
  s->backlog_s = (double)m->backlog_ns * 1e-9;
  s->x_ms = (double)m->x_ns * 1e-6;
  s->promotions = m->promotions;
  s->piggybacked = m->piggybacked;
  s->dropped = m->drops;
  s->preempt_bound_ms = (double)rt->costs.stop_ns * 1e-6;
  s->bound_measured = rt->profile.facts.measured;
  s->model_error = (double)rt->costs.error_q / COST_ONE;
  rt->shown_costs = rt->costs;
  pthread_mutex_unlock(&rt->stats_lock);
}
