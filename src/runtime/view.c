/* SPDX-License-Identifier: Apache-2.0 */
/* The engine as the policy sees it. Runtime thread. */
#include <string.h>

#include "base/check.h"
#include "runtime/internal.h"

uint8_t view_class(const request *r) {
  uint8_t best = SCHED_PROACTIVE;
  for (const troika_stream *s = r->readers; s; s = s->reader_next) {
    uint8_t class_ = atomic_load(&s->class_);
    if (class_ == TROIKA_REACTIVE) return SCHED_REACTIVE;
    if (class_ == TROIKA_INHERITED) best = SCHED_INHERITED;
  }
  return best;
}

bool view_is_suspended(const request *r) {
  if (!r->readers) return false;
  for (const troika_stream *s = r->readers; s; s = s->reader_next)
    if (!atomic_load(&s->suspended)) return false;
  return true;
}

/* What an answer of its class has been on average, if it does not say. */
static uint32_t expected_left(const troika_runtime *rt, const request *r, uint8_t class_) {
  uint32_t made = r->n - r->prompt_n, left = r->max_new - made;
  uint32_t expected = r->expected ? r->expected : rt->mean_answer[class_ != SCHED_REACTIVE] >> 16;
  uint32_t more = expected > made ? expected - made : 1;
  return more < left ? more : left;
}

static int64_t recompute_ns(const troika_runtime *rt, const request *r) {
  uint32_t prompt = r->computed < r->prompt_n ? r->computed : r->prompt_n;
  int64_t span = cost_prefill(&rt->costs, rt->span_rows, 0);
  int64_t row = cost_decode(&rt->costs, 8, 0) / 8;
  return span * prompt / rt->span_rows + row * (r->computed - prompt);
}

static uint8_t state_of(const request *r) {
  static const uint8_t states[] = {[REQUEST_QUEUED] = SCHED_QUEUED,
                                   [REQUEST_PREFILL] = SCHED_PREFILL,
                                   [REQUEST_DECODE] = SCHED_DECODE,
                                   [REQUEST_ENDED] = SCHED_ENDED};
  return states[r->state];
}

static void describe(const troika_runtime *rt, const request *r, sched_request *v) {
  uint32_t target = request_target(r), position = r->computed < target ? r->computed : target;
  uint8_t class_ = view_class(r);
  *v = (sched_request){.id = r->id,
                       .state = state_of(r),
                       .class_ = class_,
                       .child = r->child,
                       .may_react = r->may_react,
                       .parent_waits = r->child && runtime_sessions_wait(rt->sessions, r->parent),
                       .lift = SCHED_BAND_P,
                       .held = view_is_suspended(r) || r->behind != SCHED_NONE,
                       .cancelled = request_cancelled(r),
                       .emitted = r->first_ns != 0,
                       .in_last = r->in_last,
                       .judged = r->judged,
                       .hinted = r->hinted,
                       .shortenable = r->shortenable,
                       .launch = r->launch ? (uint32_t)(r->launch - rt->launches) : SCHED_NONE,
                       .arrival_ns = r->submit_ns,
                       .first_deadline_ns = r->first_deadline_ns,
                       .done_deadline_ns = r->done_deadline_ns,
                       .waiting_ns = r->waiting_ns,
                       .emit_ns = r->last_ns,
                       .blocked_ns = r->spent.blocked_ns,
                       .prompt_left = target - position,
                       .output_left = r->prompt_n + r->max_new - r->n,
                       .expected_left = expected_left(rt, r, class_),
                       .kv_bytes = request_kv_bytes(rt, position)};
  request_need(rt, r, v->need);
  kv_need(rt->pages, r->prompt_n + r->max_new, v->most);
  if (r->state == REQUEST_QUEUED) return;
  kv_need(rt->pages, r->promised, v->holds);
  v->recompute_ns = recompute_ns(rt, r);
}

static uint8_t band_of(const sched_request *r) {
  uint8_t band = (uint8_t)sched_band_of(r);
  return r->lift < band ? r->lift : band;
}

static void see(troika_runtime *rt, request *r, sched_view *view) {
  rt->seen[view->n_requests] = r;
  describe(rt, r, &rt->view[view->n_requests++]);
}

/* A request is as urgent as the most urgent one that waits for its pages. Followers may have
 * followers of their own (choices of one prompt): two rounds. */
static void lift_owners(troika_runtime *rt, sched_view *view) {
  for (int round = 0; round < 2; round++)
    for (uint32_t i = 0; i < view->n_requests; i++) {
      if (rt->seen[i]->behind == SCHED_NONE) continue;
      uint8_t band = band_of(&rt->view[i]);
      for (uint32_t k = 0; k < view->n_requests; k++) {
        if (rt->view[k].id != rt->seen[i]->behind) continue;
        if (band < rt->view[k].lift) rt->view[k].lift = band;
        break;
      }
    }
}

static void see_requests(troika_runtime *rt, sched_view *view) {
  bool follows = false;
  for (uint32_t i = 0; i < rt->n_places; i++)
    if (rt->places[i]) see(rt, rt->places[i], view);
  for (request *r = rt->queue_first; r; r = r->next) {
    follows = follows || r->behind != SCHED_NONE;
    see(rt, r, view);
  }
  if (follows) lift_owners(rt, view);
  for (uint32_t i = 0; i < view->n_requests; i++) {
    request *r = rt->seen[i];
    r->band = band_of(&rt->view[i]);
    bool other = (r->band == SCHED_BAND_P) != (r->expected_band == SCHED_BAND_P);
    if (r->state == REQUEST_QUEUED && other) request_expect(rt, r);
  }
}

/* The device is taken by a measurement, which nobody waits for. */
static sched_launch_view see_profile(const troika_runtime *rt) {
  return (sched_launch_view){.id = SCHED_LAUNCHES_MAX - 1,
                             .state = SCHED_STOPPING,
                             .prompt_request = SCHED_NONE,
                             .start_ns = rt->decided_ns,
                             .total_ns = rt->config.preempt_ns};
}

static uint32_t see_launches(const troika_runtime *rt, sched_launch_view *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++) {
    const launch *l = &rt->launches[i];
    if (!l->active) continue;
    out[n++] = (sched_launch_view){.id = i,
                                   .state = l->state,
                                   .promoted = l->promoted,
                                   .slots = l->slots,
                                   .prompt_request = l->prefill ? l->prefill->id : SCHED_NONE,
                                   .prompt_rows = l->prefill ? l->prefill->flying : 0,
                                   .decode_rows = l->n_decodes[0] + l->n_decodes[1],
                                   .start_ns = l->start_ns,
                                   .done_ns = l->done_ns,
                                   .total_ns = l->total_ns};
  }
  if (rt->profile.in_flight) out[n++] = see_profile(rt);
  return n;
}

size_t view_decide(troika_runtime *rt, int64_t now_ns, int64_t *wake_ns) {
  sched_launch_view launches[SCHED_LAUNCHES_MAX + 1];
  sched_device cpu = {.cost = &rt->costs,
                      .decodes = true,
                      .prefills = true,
                      .can_stop = true,
                      .step = 1,
                      .span_rows = rt->span_rows};
  sched_view view = {.config = &rt->config,
                     .requests = rt->view,
                     .launches = launches,
                     .n_launches = see_launches(rt, launches),
                     .devices = &cpu,
                     .n_devices = 1};
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    kv_pool_stats stats;
    kv_stats(rt->pages, i, &stats);
    view.pages_total[i] = stats.total;
    view.pages_free[i] = stats.promisable;
    if (!rt->g->groups[i].window)
      view.kv_token_bytes += rt->g->groups[i].page_bytes / KV_PAGE_TOKENS;
  }
  see_requests(rt, &view);
  sched_memory before = rt->memory;
  size_t n = sched_decide(&view, &rt->memory, now_ns, rt->actions, rt->actions_capacity, wake_ns);
  for (uint32_t i = 0; i < view.n_requests; i++) rt->seen[i]->judged = true;
  rt->decided_ns = now_ns;
  if (rt->recorder) runtime_recorder_decision(rt->recorder, &view, &before, now_ns, rt->actions, n);
  return n;
}
