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
  for (uint32_t i = 0; i < rt->n_places; i++)
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
  for (uint32_t i = 0; i < rt->n_places; i++)
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

static bool share_page(const request *a, const request *b, uint32_t at) {
  uint32_t n = a->prompt_n < b->prompt_n ? a->prompt_n : b->prompt_n;
  return at + KV_PAGE_TOKENS <= n &&
         !memcmp(a->tokens + at, b->tokens + at, KV_PAGE_TOKENS * sizeof *a->tokens);
}

/* In whole pages, if that is more than `least`. */
static uint32_t shared_tokens(const request *a, const request *b, uint32_t least) {
  uint32_t i = 0;
  if (!share_page(a, b, least)) return 0; /* mostly */
  while (share_page(a, b, i)) i += KV_PAGE_TOKENS;
  return i;
}

/* `r` waits for the pages that `owner` is computing, if it shares more than is there by now. At
 * least one row of r is left, to give its logits. */
static bool could_follow(const request *r, const request *owner, uint32_t *best) {
  if (owner->scope != r->scope || owner->behind != SCHED_NONE ||
      owner->computed >= request_target(owner) || owner->no_prefix_cache ||
      view_is_suspended(owner) || request_cancelled(owner))
    return false;
  uint32_t shared = shared_tokens(r, owner, *best);
  if (shared && shared >= r->prompt_n) shared -= KV_PAGE_TOKENS;
  if (shared <= owner->computed || shared <= *best) return false;
  *best = shared;
  return true;
}

/* Of those that wait only one in front of it, so that of two one goes on. */
static void follow(troika_runtime *rt, request *r) {
  enum { LOOK = 64 }; /* of the queue: the rest is far from being computed */
  request *owner = NULL;
  kv_ref unused;
  uint32_t looked = 0;
  if (r->no_prefix_cache) return;
  uint32_t best = kv_match(rt->pages, r->scope, r->tokens, r->prompt_n, true, &unused);
  for (uint32_t i = 0; i < rt->n_places; i++)
    if (rt->places[i] && could_follow(r, rt->places[i], &best)) owner = rt->places[i];
  for (request *q = rt->queue_first; q && q != r && looked < LOOK; q = q->next, looked++)
    if (could_follow(r, q, &best)) owner = q;
  if (!owner) return;
  r->behind = owner->id;
  r->behind_tokens = best;
  owner->followers++;
}

/* Once the shared pages are there, or will not come, those that waited for them are looked at anew,
 * each after those in front of it: they may share more with each other than they did with `r`, or
 * the first of them computes for the rest what `r` did not. */
void request_release_followers(troika_runtime *rt, request *r) {
  bool comes = r->state != REQUEST_ENDED && !request_cancelled(r) && !view_is_suspended(r);
  int64_t now = clock_now(rt->clock);
  if (!r->followers) return;
  for (request *q = rt->queue_first; q; q = q->next) {
    if (q->behind != r->id || (comes && r->computed < q->behind_tokens)) continue;
    r->followers--;
    q->behind = SCHED_NONE;
    q->waiting_ns = now;
    follow(rt, q);
    request_expect(rt, q);
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
  r->expectation = KV_NO_EXPECTATION;
  request_expect(rt, r);
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

static void reader_leaves(troika_runtime *rt, request *r, troika_stream *s) {
  reader_remove(r, s);
  pthread_mutex_lock(&s->lock);
  s->left = s->ended = true;
  pthread_mutex_unlock(&s->lock);
  stream_has_news(rt, s);
}

static bool shares_launch(const request *r) {
  const launch *l = r->launch;
  return l && l->n_decodes[0] + l->n_decodes[1] + (l->prefill != NULL) > 1;
}

/* Nobody reads it any more, but its launch goes on for others: its readers are told at once, and it
 * is kept until that launch has ended. One may still attach meanwhile, who had begun to before. */
static void leave_to_launch(troika_runtime *rt, request *r) {
  if (!r->left) {
    r->left = true;
    rt->left_requests++;
    atomic_fetch_add(&r->refs, 1);
  }
  account_show(rt, r); /* what their ends will say */
  while (r->readers) reader_leaves(rt, r, r->readers);
}

void request_drop_readers(troika_runtime *rt, request *r) {
  if (!r->readers) return;
  if (request_cancelled(r)) {
    if (shares_launch(r)) leave_to_launch(rt, r);
    return;
  }
  for (troika_stream *s = r->readers, *next; s; s = next) {
    next = s->reader_next;
    /* The last one stays even if it has just left as well: it is looked at again. */
    if (atomic_load(&s->cancelled) && r->readers->reader_next) reader_leaves(rt, r, s);
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

/* What its pages will be worth: V of scheduling.md 6. Computing them again costs the more the
 * deeper they are: each row reads what is in front of it, but for windows, whose part soon stays as
 * it is. */
static kv_claim_hint price_of(const troika_runtime *rt, const request *r, uint32_t p,
                              int64_t next_use_ns) {
  enum { POSITIONS = 1024 };
  uint32_t rows = rt->span_rows;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < rt->g->n_groups; i++)
    if (!rt->g->groups[i].window) bytes += rt->g->groups[i].page_bytes / KV_PAGE_TOKENS * POSITIONS;
  int64_t span = cost_prefill(&rt->costs, rows, 0);
  int64_t deeper = (cost_prefill(&rt->costs, rows, bytes * rows) - span) / rows;
  return (kv_claim_hint){.w = r->band == SCHED_BAND_P ? 1 : 4,
                         .p = p,
                         .cost_ns_per_token = (uint64_t)(span / rows),
                         .depth_ns = deeper < UINT32_MAX ? (uint32_t)deeper : UINT32_MAX,
                         .next_use_ns = next_use_ns};
}

static void claim_pages(troika_runtime *rt, const request *r, uint32_t p, int64_t next_use_ns) {
  kv_claim_hint claim = price_of(rt, r, p, next_use_ns);
  kv_hint(rt->pages, r->seq, &claim);
}

static void expect_no_more(troika_runtime *rt, request *r) {
  kv_expect_end(rt->pages, r->expectation);
  r->expectation = KV_NO_EXPECTATION;
}

void request_expect(troika_runtime *rt, request *r) {
  kv_claim_hint price = price_of(rt, r, 1000, clock_now(rt->clock));
  expect_no_more(rt, r);
  r->expected_band = r->band;
  if (r->no_prefix_cache) return;
  uint32_t generated_from = r->n > r->prompt_n ? r->prompt_n : UINT32_MAX;
  r->expectation = kv_expect(rt->pages, r->scope, r->tokens, r->n, generated_from, &price);
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

/* The 90th percentile of what reactive requests need is kept for the next one. */
static void count_need(troika_runtime *rt, const request *r) {
  enum { ENOUGH = 20, P90 = 900 };
  uint32_t need[KV_GROUPS_MAX];
  if (r->band == SCHED_BAND_P || r->start_ns || rt->parallel == 1) return;
  request_need(rt, r, need);
  for (uint32_t i = 0; i < rt->g->n_groups; i++) {
    quantile_add(&rt->needs[i], need[i]);
    if (rt->needs[i].n < ENOUGH) continue;
    rt->config.reserve[i] = (uint32_t)quantile_of(&rt->needs[i], P90);
  }
}

void request_admit(troika_runtime *rt, request *r) {
  uint32_t place = 0;
  while (rt->places[place]) place++;
  CHECK(place < rt->n_places);
  troika_status status = kv_sequence_open(rt->pages, &r->seq);
  CHECK(status == TROIKA_OK);
  r->promised = tokens_ahead(r, r->n);
  if (kv_sequence_promise(rt->pages, r->seq, r->promised)) {
    /* The policy takes it that who was suspended for it gave all pages back, but others share
     * some: it waits, and the next decision sees what is there. */
    kv_sequence_close(rt->pages, r->seq);
    r->promised = 0;
    return;
  }
  for (uint32_t i = 0; i < rt->g->n_groups; i++)
    rt->seqs[r->seq].pages[i] = kv_sequence_pages(rt->pages, r->seq, i);
  count_need(rt, r);
  queue_remove(rt, r);
  expect_no_more(rt, r);
  r->place = place;
  r->state = REQUEST_PREFILL;
  rt->places[place] = r;
  bool again = r->start_ns != 0;
  find_prefix(rt, r, again);
  if (r->n > r->prompt_n && r->computed == request_target(r)) r->state = REQUEST_DECODE;
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
  request_expect(rt, r);
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
    expect_no_more(rt, r);
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
  bool left = r->left;
  r->readers = NULL;
  for (troika_stream *s = first, *next; s; s = next) {
    next = s->reader_next;
    pthread_mutex_lock(&s->lock);
    s->written = made;
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    stream_has_news(rt, s);
  }
  if (!left) return;
  rt->left_requests--;
  request_let_go(r);
}
