/* SPDX-License-Identifier: Apache-2.0 */
/* A request's life: queue, place, pages, followers, readers, end. Runtime thread. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/internal.h"

/* Tokens of the answer whose pages are promised at admission, and again when they are used up: so
 * that a request without max_tokens does not keep others out for an answer it will never give. */
enum { PROMISE_AHEAD = 64 };

/* That the pages of one that has ended are used again, in 1/1000; priors of scheduling.md 6. */
enum { CHANCE = 100, CHANCE_SESSION = 500, CHANCE_HINTED = 800 };

/* ---- finding ---- */

request *request_by_id(troika_runtime *rt, uint32_t id) {
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i] && rt->places[i]->id == id) return rt->places[i];
  for (request *r = rt->queue_first; r; r = r->next)
    if (r->id == id) return r;
  return NULL;
}

static bool reads(const request *r, const troika_stream *s) {
  for (const troika_stream *reader = r->readers; reader; reader = reader->reader_next)
    if (reader == s) return true;
  return false;
}

request *request_of(troika_runtime *rt, const troika_stream *s) {
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i] && reads(rt->places[i], s)) return rt->places[i];
  for (request *r = rt->queue_first; r; r = r->next)
    if (reads(r, s)) return r;
  return NULL;
}

uint32_t request_target(const request *r) {
  return r->n > r->prompt_n ? r->n - 1 : r->prompt_n;
}

uint64_t request_kv_bytes(const troika_runtime *rt, uint32_t position) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    const graph_kv_group *group = &rt->g->groups[i];
    uint64_t seen = (uint64_t)position + 1;
    if (group->window && seen > group->window) seen = group->window;
    bytes += seen * (group->page_bytes / KV_PAGE_TOKENS);
  }
  return bytes;
}

/* ---- the queue: in order of arrival ---- */

static void queue_insert(troika_runtime *rt, request *r) {
  request **at = &rt->queue_first;
  if (rt->queue_last && rt->queue_last->submit_ns <= r->submit_ns) at = &rt->queue_last->next;
  while (*at && (*at)->submit_ns <= r->submit_ns) at = &(*at)->next;
  r->next = *at;
  *at = r;
  if (!r->next) rt->queue_last = r;
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

/* ---- followers: the same prompt prefix is computed once ---- */

static uint32_t shared_tokens(const request *a, const request *b) {
  uint32_t n = a->prompt_n < b->prompt_n ? a->prompt_n : b->prompt_n, i = 0;
  while (i < n && a->tokens[i] == b->tokens[i]) i++;
  return i / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
}

/* `r` waits for the pages that `owner` is computing, if it shares more than is there by now. At
 * least one row of r is left, to give its logits. */
static bool could_follow(const request *r, const request *owner, uint32_t *best) {
  if (owner == r || owner->scope != r->scope || owner->behind != SCHED_NONE ||
      owner->computed >= request_target(owner) || owner->no_prefix_cache ||
      view_is_suspended(owner))
    return false;
  uint32_t shared = shared_tokens(r, owner);
  if (shared >= r->prompt_n) shared -= KV_PAGE_TOKENS;
  if (shared <= owner->computed || shared <= *best) return false;
  *best = shared;
  return true;
}

static void follow(troika_runtime *rt, request *r) {
  enum { LOOK = 64 }; /* of the queue: the rest is far from being computed */
  request *owner = NULL;
  uint32_t best = 0, looked = 0;
  if (r->no_prefix_cache) return;
  for (uint32_t i = 0; i < rt->parallel; i++)
    if (rt->places[i] && could_follow(r, rt->places[i], &best)) owner = rt->places[i];
  for (request *q = rt->queue_first; q && looked < LOOK; q = q->next, looked++)
    if (could_follow(r, q, &best)) owner = q;
  if (!owner) return;
  r->behind = owner->id;
  r->behind_tokens = best;
  owner->followers++;
}

/* If the shared pages are there, all start from them; if they will not come, the first of those
 * that wait computes them for the rest. */
void request_release_followers(troika_runtime *rt, request *r) {
  bool comes = r->state != REQUEST_ENDED && !request_cancelled(r) && !view_is_suspended(r);
  request *next = NULL;
  if (!r->followers) return;
  for (request *q = rt->queue_first; q; q = q->next) {
    if (q->behind != r->id) continue;
    bool there = r->computed >= q->behind_tokens;
    if (comes && !there) continue;
    r->followers--;
    q->behind = SCHED_NONE;
    q->waiting_ns = clock_now(rt->clock);
    if (there) continue;
    uint32_t whole = q->behind_tokens / KV_PAGE_TOKENS * KV_PAGE_TOKENS; /* as they are compared */
    if (next && next->scope == q->scope && shared_tokens(next, q) >= whole) {
      q->behind = next->id;
      next->followers++;
    } else if (!next && !request_cancelled(q)) {
      next = q;
    }
  }
}

/* ---- arrival and readers ---- */

bool request_cancelled(const request *r) {
  if (atomic_load(&r->attaching)) return false; /* somebody is about to read it */
  for (const troika_stream *s = r->readers; s; s = s->reader_next)
    if (!atomic_load(&s->cancelled)) return false;
  return true;
}

void request_arrive(troika_runtime *rt, request *r) {
  r->id = rt->next_id++;
  if (rt->next_id >= SCHED_NONE - 1) rt->next_id = 0;
  r->state = REQUEST_QUEUED;
  r->band = SCHED_BAND_R;
  r->waiting_ns = r->submit_ns;
  request *before = r->share ? request_of(rt, r->share) : NULL;
  if (before && before->state != REQUEST_DECODE && before->computed < before->prompt_n) {
    r->behind = before->id;
    r->behind_tokens = before->prompt_n;
    before->followers++;
  } else {
    follow(rt, r);
  }
  runtime_sessions_begin(rt->sessions, r->session);
  queue_insert(rt, r);
}

static void reader_remove(request *r, troika_stream *s) {
  troika_stream **at = &r->readers;
  while (*at != s) at = &(*at)->reader_next;
  *at = s->reader_next;
}

void request_attach(troika_runtime *rt, troika_stream *s) {
  request *r = s->current;
  bool over = r->state == REQUEST_ENDED;
  atomic_fetch_sub(&r->attaching, 1);
  pthread_mutex_lock(&s->lock);
  s->written = r->made;
  s->ended = over;
  pthread_mutex_unlock(&s->lock);
  if (!over) {
    troika_stream **at = &r->readers;
    while (*at) at = &(*at)->reader_next;
    s->reader_next = NULL;
    *at = s;
    account_show(rt, r); /* its client waits to hear whether it came in time */
  }
  stream_has_news(rt, s);
}

void request_drop_readers(troika_runtime *rt, request *r) {
  if (!r->readers->reader_next || request_cancelled(r)) return;
  for (troika_stream *s = r->readers, *next; s; s = next) {
    next = s->reader_next;
    /* The last one stays even if it has just left as well: then the request itself ends. */
    if (!atomic_load(&s->cancelled) || !r->readers->reader_next) continue;
    reader_remove(r, s);
    pthread_mutex_lock(&s->lock);
    s->left = s->ended = true;
    pthread_mutex_unlock(&s->lock);
    stream_has_news(rt, s);
  }
}

/* ---- places and pages ---- */

static uint32_t tokens_at_most(const request *r) {
  return r->prompt_n + r->max_new;
}

static uint32_t tokens_ahead(const request *r, uint32_t n) {
  uint32_t most = tokens_at_most(r);
  return most - n < PROMISE_AHEAD ? most : n + PROMISE_AHEAD;
}

void request_need(const troika_runtime *rt, const request *r, uint32_t need[KV_GROUPS_MAX]) {
  uint32_t held[KV_GROUPS_MAX] = {0};
  memset(need, 0, KV_GROUPS_MAX * sizeof *need);
  if (r->state == REQUEST_QUEUED) {
    kv_need(rt->pages, tokens_ahead(r, r->n), need);
  } else if (r->n > r->promised) {
    kv_need(rt->pages, tokens_ahead(r, r->n), need);
    kv_need(rt->pages, r->promised, held);
    for (uint32_t i = 0; i < rt->g->n_groups; i++) need[i] -= held[i];
  }
}

bool request_grow(troika_runtime *rt, request *r) {
  if (r->n <= r->promised) return true;
  uint32_t tokens = tokens_ahead(r, r->n);
  if (kv_sequence_promise(rt->pages, r->seq, tokens)) return false;
  r->promised = tokens;
  return true;
}

/* What its pages will be worth: V of scheduling.md 6. */
static void claim_pages(troika_runtime *rt, const request *r, uint32_t p, int64_t next_use_ns) {
  int64_t span = cost_prefill(&rt->costs, rt->span_rows, 0);
  kv_claim_hint claim = {.w = r->band == SCHED_BAND_P ? 1 : 4,
                         .p = p,
                         .cost_ns_per_token = (uint64_t)(span / rt->span_rows),
                         .next_use_ns = next_use_ns};
  kv_hint(rt->pages, r->seq, &claim);
}

static void claim_by_hints(troika_runtime *rt, const request *r, int64_t now) {
  int64_t next = r->next_use_ns, most = INT64_MAX - now;
  if (!next && r->next_steps)
    next = rt->request_ns > most / r->next_steps ? most : rt->request_ns * r->next_steps;
  if (r->last_turn)
    claim_pages(rt, r, CHANCE, INT64_MAX);
  else if (next)
    claim_pages(rt, r, CHANCE_HINTED, now + (next < most ? next : most));
  else
    claim_pages(rt, r, r->session ? CHANCE_SESSION : CHANCE, INT64_MAX);
}

static void release_place(troika_runtime *rt, request *r) {
  kv_publish(rt->pages, r->seq, r->scope, r->tokens, r->computed, r->prompt_n);
  kv_sequence_close(rt->pages, r->seq);
  rt->places[r->place] = NULL;
}

/* After a suspension its own generated tokens count too: their pages hold what computing them again
 * would give. */
static void find_prefix(troika_runtime *rt, request *r, bool again) {
  kv_ref ref;
  uint32_t found = 0, unused;
  r->computed = 0;
  if (r->no_prefix_cache) return;
  if (!again) r->diverged_at = kv_diverged(rt->pages, r->scope, r->tokens, r->prompt_n, &unused);
  if (r->n > r->prompt_n)
    found = kv_match_own(rt->pages, r->scope, r->tokens, r->n, r->prompt_n, &ref);
  else
    found = kv_match(rt->pages, r->scope, r->tokens, r->prompt_n, true, &ref);
  if (found) r->computed = kv_attach(rt->pages, r->seq, r->scope, r->tokens, &ref);
  if (!again) r->cached = r->computed;
}

void request_admit(troika_runtime *rt, request *r) {
  uint32_t place = 0;
  while (rt->places[place]) place++;
  CHECK(place < rt->parallel);
  troika_status status = kv_sequence_open(rt->pages, &r->seq);
  CHECK(status == TROIKA_OK);
  r->promised = tokens_ahead(r, r->n);
  status = kv_sequence_promise(rt->pages, r->seq, r->promised);
  CHECK(status == TROIKA_OK); /* the policy counted the pages */
  for (uint32_t i = 0; i < rt->g->n_groups; i++)
    rt->seqs[r->seq].pages[i] = kv_sequence_pages(rt->pages, r->seq, i);
  queue_remove(rt, r);
  r->place = place;
  r->state = REQUEST_PREFILL;
  rt->places[place] = r;
  bool again = r->start_ns != 0;
  find_prefix(rt, r, again);
  pthread_mutex_lock(&rt->stats_lock);
  if (!again && !r->no_prefix_cache) {
    rt->stats.cached_tokens += r->cached;
    rt->stats.prefix_lookups++;
    rt->stats.prefix_hits += r->cached > 0;
  }
  pthread_mutex_unlock(&rt->stats_lock);
}

/* Its pages go to the cache, from which it may get them back; generated tokens are computed again
 * as what they are. */
void request_suspend(troika_runtime *rt, request *r) {
  CHECK(!r->launch && r->state != REQUEST_QUEUED);
  claim_pages(rt, r, CHANCE_HINTED, clock_now(rt->clock));
  release_place(rt, r);
  r->computed = r->promised = 0;
  r->state = REQUEST_QUEUED;
  r->preemptions++;
  queue_insert(rt, r);
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.suspensions++;
  pthread_mutex_unlock(&rt->stats_lock);
}

/* ---- the end ---- */

static void trace_end(troika_runtime *rt, const request *r, int64_t now) {
  static const char *const names[] = {[TROIKA_FINISH_STOP] = "stop",
                                      [TROIKA_FINISH_LENGTH] = "length",
                                      [TROIKA_FINISH_CANCELLED] = "cancelled",
                                      [TROIKA_FINISH_ERROR] = "error"};
  if (!rt->trace) return;
  trace_request t = {.id = r->id,
                     .prompt_tokens = r->prompt_n,
                     .cached_tokens = r->cached,
                     .completion_tokens = r->n - r->prompt_n,
                     .band = r->band,
                     .finish = names[r->finish],
                     .submit_ns = r->submit_ns,
                     .start_ns = r->start_ns,
                     .first_ns = r->first_ns,
                     .last_ns = r->last_ns,
                     .end_ns = now};
  runtime_trace_request(rt->trace, &t);
}

void request_end(troika_runtime *rt, request *r, troika_finish finish, troika_status status,
                 const char *text) {
  int64_t now = clock_now(rt->clock);
  CHECK(!r->launch);
  if (r->state == REQUEST_QUEUED) {
    queue_remove(rt, r);
  } else {
    claim_by_hints(rt, r, now);
    release_place(rt, r);
  }
  if (finish != TROIKA_FINISH_CANCELLED && !status)
    rt->request_ns += (now - r->submit_ns - rt->request_ns) / (rt->request_ns ? 8 : 1);
  r->finish = finish;
  if (status) error_set(&r->error, status, "%s", text);
  account_end(r, now);
  account_request(rt, r);
  trace_end(rt, r, now);
  r->state = REQUEST_ENDED;
  account_show(rt, r);
  request_release_followers(rt, r);
  runtime_sessions_end(rt->sessions, r->session, r->band != SCHED_BAND_P);
  stream_leave(rt, r->urgency);
  /* A reader that sees its end may let go of the request at once. */
  troika_stream *first = r->readers;
  uint32_t made = r->made;
  r->readers = NULL;
  for (troika_stream *s = first, *next; s; s = next) {
    next = s->reader_next;
    pthread_mutex_lock(&s->lock);
    s->written = made;
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    stream_has_news(rt, s);
  }
}
