/* SPDX-License-Identifier: Apache-2.0 */
/* sched.c - first come, first served, with continuous batching. See sched.h.
 *
 * A decision, in this order; the actions are meant to be carried out in the order given:
 *
 *   1 EXPIRE  what is cancelled or late and has nothing in flight; STOP its launch if it has
 *   2 REFUSE  of the queue, by arrival, what can never fit
 *     ADMIT   until a place or a page is missing; nobody is overtaken
 *     REFUSE  the newest of what waits beyond queue_max
 *   3 LAUNCH  one span of the oldest prefill and all decode rows, as far as they are not in flight
 *
 * A decision that admits starts no launch but asks to be called again at once, so that the span of
 * a new request counts only rows that its cached prefix has not spared, and does not wait for an
 * iteration that began without it. If the runtime could not admit it, it is not waited for a second
 * time.
 *
 * The order (arrival, id) is total, so the order of the view's array says nothing. Scratch: 4 bytes
 * a request on the stack, 260 KiB if the view is as large as it may be. */
#include "sched/sched.h"

#include <stdbool.h>

#include "base/check.h"

typedef struct decision {
  const sched_view *view;
  int64_t now_ns, wake_ns;
  sched_action *out;
  size_t n, capacity;
  uint32_t admitted;                  /* id + 1 of the first one admitted */
  uint32_t live;                      /* entries of order */
  uint32_t order[SCHED_REQUESTS_MAX]; /* indices into view->requests, by (arrival, id) */
} decision;

static const sched_request *request_at(const decision *d, uint32_t i) {
  return &d->view->requests[d->order[i]];
}

static bool is_before(const decision *d, uint32_t a, uint32_t b) {
  const sched_request *x = &d->view->requests[a], *y = &d->view->requests[b];
  return x->arrival_ns != y->arrival_ns ? x->arrival_ns < y->arrival_ns : x->id < y->id;
}

static void sift_down(decision *d, uint32_t at, uint32_t n) {
  uint32_t moved = d->order[at];
  for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && is_before(d, d->order[child], d->order[child + 1])) child++;
    if (!is_before(d, moved, d->order[child])) break;
    d->order[at] = d->order[child];
  }
  d->order[at] = moved;
}

/* Heap sort: in place, no recursion, n log n whatever comes in. */
static void sort_requests(decision *d) {
  for (uint32_t i = 0; i < d->view->n_requests; i++) {
    if (d->view->requests[i].state == SCHED_ENDED) continue;
    CHECK(d->live < SCHED_REQUESTS_MAX);
    d->order[d->live++] = i;
  }
  for (uint32_t i = d->live / 2; i-- > 0;) sift_down(d, i, d->live);
  for (uint32_t n = d->live; n > 1; n--) {
    uint32_t last = d->order[0];
    d->order[0] = d->order[n - 1];
    d->order[n - 1] = last;
    sift_down(d, 0, n - 1);
  }
}

static void wake_by(decision *d, int64_t time_ns) {
  if (time_ns < d->wake_ns) d->wake_ns = time_ns;
}

/* What has no room is decided next time: now. */
static bool act(decision *d, sched_action action) {
  if (d->n == d->capacity) {
    wake_by(d, d->now_ns);
    return false;
  }
  d->out[d->n++] = action;
  return true;
}

static bool is_over(const decision *d, const sched_request *r) {
  return r->cancelled || r->deadline_ns <= d->now_ns;
}

/* The view does not say which launch holds which rows. It can be told where only one launch has
 * rows of this kind, and none of anyone else: always so on a device with one launch at a time;
 * otherwise the launch is left to end by itself. */
static const sched_launch_view *launch_of_only(const decision *d, const sched_request *r) {
  const sched_launch_view *found = NULL;
  bool prompt = r->state == SCHED_PREFILL;
  for (uint32_t i = 0; i < d->view->n_launches; i++) {
    const sched_launch_view *l = &d->view->launches[i];
    if (!(prompt ? l->prompt_rows : l->decode_rows)) continue;
    if (found) return NULL;
    found = l;
  }
  if (!found) return NULL;
  bool alone =
      prompt ? found->decode_rows == 0 : found->prompt_rows == 0 && found->decode_rows == 1;
  return alone ? found : NULL;
}

static void end_requests(decision *d) {
  for (uint32_t i = 0; i < d->live; i++) {
    const sched_request *r = request_at(d, i);
    if (!is_over(d, r)) {
      wake_by(d, r->deadline_ns);
    } else if (!r->in_flight) {
      uint8_t reason = r->cancelled ? SCHED_REASON_CANCELLED : SCHED_REASON_DEADLINE;
      act(d, (sched_action){.kind = SCHED_EXPIRE, .reason = reason, .request = r->id});
    } else {
      const sched_launch_view *l = launch_of_only(d, r);
      if (l && !l->stopping)
        act(d, (sched_action){.kind = SCHED_STOP, .request = SCHED_NO_REQUEST, .launch = l->id});
    }
  }
}

static bool needs_more_than(const sched_request *r, const uint32_t pages[4]) {
  for (int g = 0; g < 4; g++)
    if (r->need[g] > pages[g]) return true;
  return false;
}

static void admit_and_refuse(decision *d) {
  const sched_view *v = d->view;
  uint32_t running = 0, waiting = 0, pages[4];
  bool ending = false, closed = false; /* closed: the head of the queue waits, so all do */
  for (int g = 0; g < 4; g++) pages[g] = v->pages_free[g];
  for (uint32_t i = 0; i < d->live; i++) {
    const sched_request *r = request_at(d, i);
    if (r->state == SCHED_QUEUED) continue;
    bool ends_now = is_over(d, r) && !r->in_flight;
    ending = ending || ends_now;
    running += !ends_now;
  }
  for (uint32_t i = 0; i < d->live; i++) {
    const sched_request *r = request_at(d, i);
    if (r->state != SCHED_QUEUED || is_over(d, r)) continue;
    sched_action action = {.kind = SCHED_REFUSE, .reason = SCHED_REASON_PAGES, .request = r->id};
    if (needs_more_than(r, v->pages_total)) {
      act(d, action);
      continue;
    }
    closed = closed || running >= v->places || needs_more_than(r, pages);
    if (closed) {
      if (waiting == v->queue_max) {
        action.reason = SCHED_REASON_QUEUE;
        act(d, action);
      } else {
        waiting++;
      }
      continue;
    }
    action.kind = SCHED_ADMIT;
    action.reason = SCHED_REASON_NONE;
    if (!act(d, action)) return;
    if (!d->admitted) d->admitted = r->id + 1;
    running++;
    for (int g = 0; g < 4; g++) pages[g] -= r->need[g];
  }
  /* The pages of those that end now are not in this view yet. */
  if (ending && waiting) wake_by(d, d->now_ns);
}

static void launch(decision *d) {
  const sched_view *v = d->view;
  if (v->n_launches >= v->launches_max) return;
  sched_action head = {.kind = SCHED_LAUNCH, .request = SCHED_NO_REQUEST};
  uint32_t decode_rows = 0;
  for (uint32_t i = 0; i < d->live; i++) {
    const sched_request *r = request_at(d, i);
    if (r->in_flight || is_over(d, r)) continue;
    if (r->state == SCHED_DECODE && decode_rows < v->decode_rows) decode_rows++;
    if (r->state == SCHED_PREFILL && head.request == SCHED_NO_REQUEST && r->prompt_left &&
        v->span_rows) {
      head.request = r->id;
      head.rows = r->prompt_left < v->span_rows ? r->prompt_left : v->span_rows;
    }
  }
  /* A launch of decode rows alone needs room for one of them too. */
  if (!head.rows && (decode_rows == 0 || d->capacity - d->n < 2)) {
    if (decode_rows) wake_by(d, d->now_ns);
    return;
  }
  if (!act(d, head)) return;
  for (uint32_t i = 0; i < d->live && decode_rows; i++) {
    const sched_request *r = request_at(d, i);
    if (r->state != SCHED_DECODE || r->in_flight || is_over(d, r)) continue;
    decode_rows--;
    if (!act(d, (sched_action){.kind = SCHED_JOIN, .request = r->id})) return;
  }
}

size_t sched_decide(const sched_view *view, sched_memory *memory, int64_t now_ns, sched_action *out,
                    size_t capacity, int64_t *wake_ns) {
  decision d;
  d.view = view;
  d.now_ns = now_ns;
  d.wake_ns = INT64_MAX;
  d.out = out;
  d.n = 0;
  d.capacity = capacity;
  d.admitted = 0;
  d.live = 0;
  sort_requests(&d);
  end_requests(&d);
  admit_and_refuse(&d);
  if (d.admitted && d.admitted != memory->waited_for)
    wake_by(&d, now_ns);
  else
    launch(&d);
  memory->waited_for = d.admitted;
  memory->decisions++;
  *wake_ns = d.wake_ns;
  return d.n;
}
