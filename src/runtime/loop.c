/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime thread: takes messages, asks the policy, does what it says, sleeps. It alone owns
 * requests in progress, KV pages and launches. */
#include <stdio.h>
#include <stdlib.h>
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

static void handle_completion(troika_runtime *rt, completion_letter *letter) {
  device_completion completion = letter->completion;
  atomic_store(&letter->used, false);
  if (rt->profile.in_flight)
    profile_complete(rt, &completion);
  else
    launch_complete(rt, &completion);
}

static void handle_message(troika_runtime *rt, message *m) {
  switch (m->kind) {
    case MESSAGE_SUBMIT:
      request_arrive(rt, (request *)(void *)((char *)m - offsetof(request, letter)));
      profile_stop(rt);
      rt->queue_shown_ns = 0;
      break;
    case MESSAGE_ATTACH:
      request_attach(rt,
                     (troika_stream *)(void *)((char *)m - offsetof(troika_stream, attach_letter)));
      break;
    case MESSAGE_CLOSE_STREAM:
      close_stream(rt,
                   (troika_stream *)(void *)((char *)m - offsetof(troika_stream, close_letter)));
      break;
    case MESSAGE_COMPLETION:
      handle_completion(rt, (completion_letter *)m);
      break;
    case MESSAGE_PROFILE:
      profile_message(rt, m);
      break;
    default:
      rt->quitting = true;
  }
}

static void refuse(troika_runtime *rt, request *r, const sched_action *a) {
  char text[200];
  double seconds = (double)rt->memory.backlog_ns * 1e-9;
  troika_status status = TROIKA_BUSY;
  switch (a->reason) {
    case SCHED_REASON_PAGES:
      status = TROIKA_LIMIT;
      snprintf(text, sizeof text,
               "%u tokens of prompt and answer need more KV memory than the pool of %llu bytes has",
               r->prompt_n + r->max_new, (unsigned long long)kv_bytes(rt->pages));
      break;
    case SCHED_REASON_QUEUE:
      snprintf(text, sizeof text, "%u requests are waiting, which is the limit", rt->queue_max);
      break;
    case SCHED_REASON_BACKLOG:
      snprintf(text, sizeof text, "the background has work for %.0f s already, at most %.0f",
               seconds, (double)rt->config.backlog_max_ns * 1e-9);
      break;
    case SCHED_REASON_LATE:
      snprintf(text, sizeof text, "it would not be done before its deadline");
      break;
    default:
      snprintf(text, sizeof text, "the engine is overloaded (level %u of 6)", rt->memory.level);
  }
  r->retry_after_ns = a->ns;
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.refused++;
  pthread_mutex_unlock(&rt->stats_lock);
  request_end(rt, r, TROIKA_FINISH_ERROR, status, text);
}

static void expire(troika_runtime *rt, request *r, const sched_action *a) {
  char text[160];
  int64_t now = clock_now(rt->clock);
  if (a->reason != SCHED_REASON_DEADLINE) {
    request_end(rt, r, TROIKA_FINISH_CANCELLED, TROIKA_OK, "");
    return;
  }
  snprintf(text, sizeof text,
           "the request's deadline passed after %.3f s, with %u tokens of answer",
           (double)(now - r->submit_ns) * 1e-9, r->n - r->prompt_n);
  request_end(rt, r, TROIKA_FINISH_ERROR, TROIKA_DEADLINE, text);
}

static void shorten(request *r, uint32_t tokens) {
  uint32_t made = r->n - r->prompt_n;
  if (tokens < r->max_new && tokens > made) r->max_new = tokens;
}

/* Returns the actions it took: a LAUNCH takes its JOINs. */
static size_t apply_one(troika_runtime *rt, const sched_action *a, size_t n) {
  request *r = a->request == SCHED_NONE ? NULL : request_by_id(rt, a->request);
  CHECK(r || a->kind >= SCHED_LAUNCH);
  launch *l = a->launch < SCHED_LAUNCHES_MAX ? &rt->launches[a->launch] : NULL;
  size_t taken = 1;
  switch (a->kind) {
    case SCHED_ADMIT:
      request_admit(rt, r);
      break;
    case SCHED_REFUSE:
      refuse(rt, r, a);
      break;
    case SCHED_SHORTEN:
      shorten(r, a->rows);
      break;
    case SCHED_EXPIRE:
      expire(rt, r, a);
      break;
    case SCHED_SUSPEND:
      request_suspend(rt, r);
      break;
    case SCHED_LAUNCH:
      while (taken < n && a[taken].kind == SCHED_JOIN) taken++;
      launch_begin(rt, a, taken);
      break;
    case SCHED_RESUME:
      launch_resume(rt, l, a->promoted);
      break;
    case SCHED_DROP:
      launch_drop(rt, l);
      break;
    case SCHED_STOP:
      if (l->active)
        launch_stop(rt, l);
      else
        profile_stop(rt);
      break;
    default:
      CHECK(!"an action that this runtime does not know");
  }
  return taken;
}

/* What the clients did since: streams left, suspended. */
static void look_at_readers(troika_runtime *rt, int64_t now_ns) {
  for (uint32_t i = 0; i < rt->n_places; i++) {
    request *r = rt->places[i];
    if (!r) continue;
    request_drop_readers(rt, r);
    account_suspension(r, now_ns);
    if (r->followers && view_is_suspended(r)) request_release_followers(rt, r);
  }
  for (request *r = rt->queue_first; r; r = r->next) {
    request_drop_readers(rt, r);
    account_suspension(r, now_ns);
    if (r->followers && view_is_suspended(r)) request_release_followers(rt, r);
  }
}

/* True: something was done, which may allow more. */
static bool turn(troika_runtime *rt, int64_t *wake_ns) {
  int64_t now = clock_now(rt->clock);
  kv_clock(rt->pages, now);
  look_at_readers(rt, now);
  size_t n = view_decide(rt, now, wake_ns);
  for (size_t i = 0; i < n;) i += apply_one(rt, &rt->actions[i], n - i);
  bool measures = false;
  if (!n && !rt->flight && !rt->profile.in_flight) {
    if (!atomic_load(&rt->outstanding[0]) && profile_wants(rt)) measures = profile_begin(rt, now);
    int64_t later = profile_wake_ns(rt, now);
    if (later < *wake_ns) *wake_ns = later;
  }
  if (rt->closing) retry_closing(rt);
  tell_news(rt);
  for (uint32_t i = 0; i < rt->n_places; i++) /* the devices are busy meanwhile */
    if (rt->places[i]) constrain_prepare(rt->places[i]);
  account_update(rt);
  return n || measures;
}

void *runtime_main(void *runtime) {
  troika_runtime *rt = runtime;
  os_thread_name("runtime");
  rt->math.thread_setup();
  while (!rt->quitting || rt->left_requests) {
    uint32_t seen = mailbox_signal(&rt->mail);
    int64_t wake_ns = INT64_MAX;
    for (message *m = mailbox_take(&rt->mail), *next; m; m = next) {
      next = m->next; /* the message may be gone or reused once handled */
      handle_message(rt, m);
    }
    if (turn(rt, &wake_ns) || (rt->quitting && !rt->left_requests)) continue;
    int64_t now = clock_now(rt->clock);
    mailbox_sleep(&rt->mail, seen, wake_ns == INT64_MAX ? -1 : wake_ns > now ? wake_ns - now : 0);
  }
  return NULL;
}
