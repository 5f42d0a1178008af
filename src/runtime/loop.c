/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime thread: takes messages, asks the policy, does what it says, sleeps. It alone owns
 * requests in progress, KV pages and launches. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "runtime/internal.h"

void runtime_done(void *runtime, const device_completion *completion) {
  troika_runtime *rt = runtime;
  for (uint32_t i = 0; i < sizeof rt->completions / sizeof *rt->completions; i++) {
    completion_letter *c = &rt->completions[i];
    if (atomic_exchange(&c->used, true)) continue;
    c->completion = *completion;
    mailbox_post(&rt->mail, &c->letter);
    return;
  }
  CHECK(!"more completions than lists in flight");
}

request *request_by_id(troika_runtime *rt, uint32_t id) {
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i] && rt->places[i]->id == id) return rt->places[i];
  for (request *r = rt->queue_first; r; r = r->next)
    if (r->id == id) return r;
  return NULL;
}

static void queue_push(troika_runtime *rt, request *r) {
  r->next = NULL;
  if (rt->queue_last)
    rt->queue_last->next = r;
  else
    rt->queue_first = r;
  rt->queue_last = r;
  rt->queued++;
}

static void queue_remove(troika_runtime *rt, request *r) {
  request *before = NULL;
  for (request *q = rt->queue_first; q != r; q = q->next) before = q;
  if (before)
    before->next = r->next;
  else
    rt->queue_first = r->next;
  if (rt->queue_last == r) rt->queue_last = before;
  rt->queued--;
}

static void release_place(troika_runtime *rt, request *r) {
  kv_publish(rt->pages, r->seq, 0, r->tokens, r->computed, r->prompt_n);
  kv_sequence_close(rt->pages, r->seq);
  rt->places[r->place] = NULL;
}

static void count_end(troika_runtime *rt, const request *r, troika_finish finish) {
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.requests++;
  rt->stats.cancelled += finish == TROIKA_FINISH_CANCELLED;
  rt->stats.failed += finish == TROIKA_FINISH_ERROR;
  rt->stats.generated_tokens += r->n - r->prompt_n;
  pthread_mutex_unlock(&rt->stats_lock);
}

void stream_has_news(troika_runtime *rt, troika_stream *s) {
  if (s->has_news) return;
  s->has_news = true;
  s->news_next = rt->news;
  rt->news = s;
}

/* All at once, after the next launch has begun: a launch gives news to each of its streams, and
 * waking their readers one by one in between would hold it up and wake each reader for itself. */
static void tell_news(troika_runtime *rt) {
  while (rt->news) {
    troika_stream *s = rt->news;
    rt->news = s->news_next;
    s->has_news = false;
    pthread_mutex_lock(&s->lock);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->options.wake) s->options.wake(s->options.wake_context);
  }
}

/* If it is computed, all start from its pages; else the first of them computes it for the rest. */
void release_followers(troika_runtime *rt, request *r) {
  request *next = NULL;
  if (!r->followers) return;
  for (request *q = rt->queue_first; q; q = q->next) {
    if (q->behind != r->id) continue;
    q->behind = next ? next->id : SCHED_NO_REQUEST;
    if (next) next->followers++;
    bool leads = r->computed < r->prompt_n && !atomic_load(&q->stream->cancelled);
    if (!next && leads) next = q;
  }
  r->followers = 0;
}

/* After this the request belongs to the client's thread. */
void request_end(troika_runtime *rt, request *r, troika_finish finish, troika_status status,
                 const char *text) {
  CHECK(!r->in_flight);
  release_followers(rt, r);
  if (r->state == REQUEST_QUEUED)
    queue_remove(rt, r);
  else
    release_place(rt, r);
  count_end(rt, r, finish);
  atomic_fetch_sub(&rt->outstanding, 1);
  troika_stream *s = r->stream;
  int64_t now = clock_now(rt->clock);
  pthread_mutex_lock(&s->lock);
  s->finish = finish;
  if (status) error_set(&s->error, status, "%s", text);
  s->prompt_tokens = r->prompt_n;
  s->cached_tokens = r->cached;
  s->completion_tokens = r->n - r->prompt_n;
  s->timings = (troika_timings){
      .queue_ns = (r->start_ns ? r->start_ns : now) - r->submit_ns,
      .prefill_ns = r->start_ns ? (r->first_ns ? r->first_ns : now) - r->start_ns : 0,
      .decode_ns = r->first_ns ? r->last_ns - r->first_ns : 0};
  s->ended = true;
  pthread_mutex_unlock(&s->lock);
  stream_has_news(rt, s);
}

static void close_stream(troika_runtime *rt, troika_stream *s);
static request *request_of(troika_runtime *rt, const troika_stream *s);

static void handle_message(troika_runtime *rt, message *m) {
  switch (m->kind) {
    case MESSAGE_SUBMIT: {
      request *r = (request *)(void *)((char *)m - offsetof(request, letter));
      r->id = rt->next_id++;
      if (rt->next_id == SCHED_NO_REQUEST) rt->next_id = 0;
      r->state = REQUEST_QUEUED;
      request *before = r->share ? request_of(rt, r->share) : NULL;
      if (before && before->state != REQUEST_DECODE) {
        r->behind = before->id;
        before->followers++;
      }
      kv_need(rt->pages, r->prompt_n + r->max_new, r->need);
      queue_push(rt, r);
      break;
    }
    case MESSAGE_CLOSE_STREAM:
      close_stream(rt,
                   (troika_stream *)(void *)((char *)m - offsetof(troika_stream, close_letter)));
      break;
    case MESSAGE_COMPLETION: {
      completion_letter *c = (completion_letter *)m;
      device_completion completion = c->completion;
      atomic_store(&c->used, false);
      launch_complete(rt, &completion);
      break;
    }
    default:
      rt->quitting = true;
  }
}

static request *request_of(troika_runtime *rt, const troika_stream *s) {
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i] && rt->places[i]->stream == s) return rt->places[i];
  for (request *r = rt->queue_first; r; r = r->next)
    if (r->stream == s) return r;
  return NULL;
}

/* Lets go of the stream as soon as it has no request; its request was cancelled before the message
 * was sent. */
static void close_stream(troika_runtime *rt, troika_stream *s) {
  if (request_of(rt, s)) {
    s->close_letter.next = rt->closing;
    rt->closing = &s->close_letter;
    return;
  }
  tell_news(rt); /* it is gone once it is detached */
  pthread_mutex_lock(&s->lock);
  s->detached = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

static void retry_closing(troika_runtime *rt) {
  message *m = rt->closing;
  rt->closing = NULL;
  while (m) {
    message *next = m->next;
    close_stream(rt, (troika_stream *)(void *)((char *)m - offsetof(troika_stream, close_letter)));
    m = next;
  }
}

static sched_request view_of(const request *r) {
  static const uint8_t states[] = {[REQUEST_QUEUED] = SCHED_QUEUED,
                                   [REQUEST_PREFILL] = SCHED_PREFILL,
                                   [REQUEST_DECODE] = SCHED_DECODE,
                                   [REQUEST_ENDED] = SCHED_ENDED};
  sched_request v = {.id = r->id,
                     .state = states[r->state],
                     .in_flight = r->in_flight,
                     .cancelled = atomic_load(&r->stream->cancelled),
                     .arrival_ns = r->submit_ns,
                     .deadline_ns = INT64_MAX,
                     .prompt_left = r->computed < r->prompt_n ? r->prompt_n - r->computed : 0,
                     .output_left = r->prompt_n + r->max_new - r->n};
  if (r->state == REQUEST_QUEUED) memcpy(v.need, r->need, sizeof v.need);
  return v;
}

static size_t decide(troika_runtime *rt, int64_t *wake_ns) {
  sched_view view = {.requests = rt->view,
                     .places = rt->parallel,
                     .queue_max = rt->queue_max,
                     .span_rows = rt->span_rows,
                     .decode_rows = rt->parallel,
                     .launches_max = 1};
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i]) rt->view[view.n_requests++] = view_of(rt->places[i]);
  /* What waits behind another is none of the policy's business yet, unless it is over anyway. */
  for (const request *r = rt->queue_first; r; r = r->next)
    if (r->behind == SCHED_NO_REQUEST || atomic_load(&r->stream->cancelled))
      rt->view[view.n_requests++] = view_of(r);
  sched_launch_view flight = {.id = 0,
                              .stopping = rt->flight.stopping,
                              .decode_rows = rt->flight.n_decodes,
                              .start_ns = rt->flight.start_ns};
  if (rt->flight.active) {
    if (rt->flight.prefill != UINT32_MAX)
      flight.prompt_rows = rt->places[rt->flight.prefill]->flying;
    view.launches = &flight;
    view.n_launches = 1;
  }
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    kv_pool_stats stats;
    kv_stats(rt->pages, i, &stats);
    view.pages_total[i] = stats.total;
    view.pages_free[i] = stats.promisable;
  }
  return sched_decide(&view, &rt->memory, clock_now(rt->clock), rt->actions, rt->actions_capacity,
                      wake_ns);
}

static void admit(troika_runtime *rt, request *r) {
  uint32_t place = 0;
  while (rt->places[place]) place++;
  CHECK(place < rt->parallel);
  troika_status status = kv_sequence_open(rt->pages, &r->seq);
  CHECK(status == TROIKA_OK);
  status = kv_sequence_promise(rt->pages, r->seq, r->prompt_n + r->max_new);
  CHECK(status == TROIKA_OK); /* the policy counted the pages */
  for (uint32_t i = 0; i < rt->g->n_groups; i++)
    rt->seqs[r->seq].pages[i] = kv_sequence_pages(rt->pages, r->seq, i);
  queue_remove(rt, r);
  r->place = place;
  r->state = REQUEST_PREFILL;
  rt->places[place] = r;
  kv_ref ref;
  if (!r->no_prefix_cache && kv_match(rt->pages, 0, r->tokens, r->prompt_n, true, &ref))
    r->cached = r->computed = kv_attach(rt->pages, r->seq, 0, r->tokens, &ref);
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.cached_tokens += r->cached;
  pthread_mutex_unlock(&rt->stats_lock);
}

static void refuse(troika_runtime *rt, request *r, uint8_t reason) {
  char text[160];
  if (reason == SCHED_REASON_PAGES) {
    snprintf(text, sizeof text,
             "%u tokens of prompt and answer need more KV memory than the pool of %llu bytes has",
             r->prompt_n + r->max_new, (unsigned long long)kv_bytes(rt->pages));
    request_end(rt, r, TROIKA_FINISH_ERROR, TROIKA_LIMIT, text);
  } else {
    snprintf(text, sizeof text, "%u requests are waiting, which is the limit", rt->queue_max);
    request_end(rt, r, TROIKA_FINISH_ERROR, TROIKA_BUSY, text);
  }
}

static void apply(troika_runtime *rt, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const sched_action *a = &rt->actions[i];
    request *r = a->request == SCHED_NO_REQUEST ? NULL : request_by_id(rt, a->request);
    CHECK(r || a->kind == SCHED_LAUNCH || a->kind == SCHED_STOP);
    switch (a->kind) {
      case SCHED_ADMIT:
        admit(rt, r);
        break;
      case SCHED_REFUSE:
        refuse(rt, r, a->reason);
        break;
      case SCHED_EXPIRE:
        if (a->reason == SCHED_REASON_DEADLINE)
          request_end(rt, r, TROIKA_FINISH_ERROR, TROIKA_DEADLINE, "the request's deadline passed");
        else
          request_end(rt, r, TROIKA_FINISH_CANCELLED, TROIKA_OK, "");
        break;
      case SCHED_LAUNCH: {
        size_t m = 1;
        while (i + m < n && rt->actions[i + m].kind == SCHED_JOIN) m++;
        launch_begin(rt, a, m);
        i += m - 1;
        break;
      }
      case SCHED_STOP:
        rt->flight.stopping = true;
        rt->cpu->driver->queue_stop(rt->queue, &rt->flight.event);
        break;
      default:
        CHECK(!"an action that this runtime does not know");
    }
  }
}

static void update_stats(troika_runtime *rt) {
  uint32_t running = 0;
  uint64_t used = 0;
  for (uint32_t i = 0; i < rt->parallel; i++) running += rt->places[i] != NULL;
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    kv_pool_stats stats;
    kv_stats(rt->pages, i, &stats);
    used += (uint64_t)(stats.owned + stats.cached) * stats.page_bytes;
  }
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.running = running;
  rt->stats.queued = rt->queued;
  rt->stats.kv_bytes_used = used;
  pthread_mutex_unlock(&rt->stats_lock);
}

void *runtime_main(void *runtime) {
  troika_runtime *rt = runtime;
  os_thread_name("runtime");
  rt->math.thread_setup();
  while (!rt->quitting) {
    uint32_t seen = mailbox_signal(&rt->mail);
    for (message *m = mailbox_take(&rt->mail), *next; m; m = next) {
      next = m->next; /* the message may be gone or reused once handled */
      handle_message(rt, m);
    }
    int64_t wake_ns = INT64_MAX;
    size_t n = decide(rt, &wake_ns);
    apply(rt, n);
    if (rt->closing) retry_closing(rt);
    tell_news(rt);
    for (uint32_t i = 0; i < rt->parallel; i++) /* the devices are busy meanwhile */
      if (rt->places[i]) constrain_prepare(rt->places[i]);
    update_stats(rt);
    if (n || rt->quitting) continue; /* what was done may allow more */
    int64_t now = clock_now(rt->clock);
    mailbox_sleep(&rt->mail, seen, wake_ns == INT64_MAX ? -1 : wake_ns > now ? wake_ns - now : 0);
  }
  return NULL;
}
