/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/internal.h"

enum { TOUCH_BYTES = 4096, UNASKED_MAX = 3, TRIES = 5, POLL_NS = 100000000 };
#define IDLE_NS INT64_C(2000000000)
#define RETRY_NS INT64_C(60000000000)
#define STOP_DELAY_MIN INT64_C(50000)
#define STOP_DELAY_MAX INT64_C(40000000)

/* Of each phase, in ns: 30 s in all, whatever the model. What few rounds leave of POINTS_NS is for
 * more: on a machine that others use too, they find its quiet moments. */
#define POINTS_NS INT64_C(9000000000)
static const int64_t budgets[] = {[PROFILE_POINTS] = INT64_C(18000000000),
                                  [PROFILE_GAP] = INT64_C(2000000000),
                                  [PROFILE_STOP] = INT64_C(6000000000),
                                  [PROFILE_CHECK] = INT64_C(4000000000)};

/* ---- when ---- */

static bool idle(const troika_runtime *rt) {
  if (rt->quitting || rt->flight || rt->queue_first || atomic_load(&rt->outstanding[0]))
    return false;
  for (uint32_t i = 0; i < rt->n_places; i++)
    if (rt->places[i]) return false;
  return true;
}

int64_t profile_wake_ns(troika_runtime *rt, int64_t now_ns) {
  profile_state *s = &rt->profile;
  s->wanted = false;
  if (s->in_flight) return INT64_MAX; /* its completion is a letter */
  if (!idle(rt)) {
    s->idle_ns = s->gap_end_ns = 0;
    return INT64_MAX;
  }
  if (!s->idle_ns) s->idle_ns = now_ns;
  int64_t when = s->idle_ns;
  if (!s->asked) {
    /* The thread that reads these two is the one that writes them. */
    if (!s->path || !s->tries_left || !rt->stats.generated_tokens) return INT64_MAX;
    when += IDLE_NS;
    if (when < s->next_ns) when = s->next_ns;
  }
  s->wanted = now_ns >= when;
  return s->wanted ? now_ns : when;
}

bool profile_wants(const troika_runtime *rt) {
  return rt->profile.wanted && !rt->profile.in_flight;
}

void profile_message(troika_runtime *rt, message *m) {
  (void)m;
  rt->profile.asked = true;
}

/* ---- the end ---- */

static void tell_caller(profile_state *s, troika_status status, const char *why) {
  bool asked = s->asked; /* else a caller's letter may still be on its way: it begins anew */
  s->asked = s->wanted = false;
  s->phase = PROFILE_IDLE;
  if (!asked) return;
  pthread_mutex_lock(&s->lock);
  s->ended = true;
  s->status = status;
  snprintf(s->failure, sizeof s->failure, "%s", why);
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

static void give_up(troika_runtime *rt, troika_status status, const char *why) {
  log_line(LOG_WARN, "the cost of launches could not be measured: %s", why);
  rt->profile.tries_left = 0;
  tell_caller(&rt->profile, status, why);
}

static void finish(troika_runtime *rt, profile_facts *facts) {
  profile_state *s = &rt->profile;
  time_t now = time(NULL);
  struct tm utc;
  profile_errors(s, rt->g, facts);
  strftime(facts->when, sizeof facts->when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  facts->measured = true;
  int64_t worked_us = s->worked_ns / 1000 > 0 ? s->worked_ns / 1000 : 1;
  int64_t share = s->cpu_us * 1000 / worked_us;
  facts->share = share > 1000 ? 1000 : (uint32_t)share; /* more: the runtime's own thread */
  rt->costs = s->table;
  s->stop_ns = s->table.stop_ns;
  pthread_mutex_lock(&rt->stats_lock);
  rt->shown_costs = s->table;
  s->facts = *facts;
  pthread_mutex_unlock(&rt->stats_lock);
  log_line(LOG_INFO, "the preemption bound was measured: a launch stops within %.2f ms",
           (double)s->stop_ns * 1e-6);
  bool quiet = facts->share >= PROFILE_QUIET;
  if (quiet || s->asked)
    s->tries_left = 0;
  else if (s->tries_left)
    s->tries_left--, s->next_ns = clock_now(rt->clock) + RETRY_NS;
  if (!quiet)
    log_line(LOG_WARN, "launches were measured beside others, who had %u %% of the processors",
             (1000 - facts->share) / 10);
  bool saved = !s->path || (!quiet && !s->asked) || profile_save(rt);
  tell_caller(s, saved ? TROIKA_OK : TROIKA_IO, saved ? "" : "its file could not be written");
}

/* ---- which launch is next ---- */

static void enter(profile_state *s, profile_phase phase) {
  s->phase = (uint8_t)phase;
  s->at = s->round = s->tries = s->panel = 0;
  s->round_ran = false;
  s->spent_ns = s->gap_end_ns = 0;
}

static void start(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  s->n_gaps = s->n_stops = s->unasked = 0;
  s->cpu_us = s->worked_ns = 0;
  pthread_mutex_lock(&rt->stats_lock); /* written by the thread that opens */
  s->threads = rt->stats.threads;
  pthread_mutex_unlock(&rt->stats_lock);
  s->ratio[0] = s->ratio[1] = 0;
  s->random = UINT64_C(0x9e3779b97f4a7c15);
  profile_guess(rt, &s->table);
  profile_plan(s, rt->g, rt->parallel, rt->span_rows, rt->context);
  s->span = (profile_point){.prompt_rows = (uint16_t)rt->span_rows};
  if (s->span.prompt_rows > rt->context) s->span.prompt_rows = (uint16_t)rt->context;
  for (uint32_t i = 0; i < s->n_points; i++) /* where attention's panels are whole */
    if (s->points[i].prompt_rows && s->points[i].depth) s->span.depth = s->points[i].depth;
  if (s->span.depth + s->span.prompt_rows > rt->context) s->span.depth = 0;
  atomic_store(&s->total, (uint64_t)s->n_points * PROFILE_ROUNDS + PROFILE_GAPS + PROFILE_STOPS +
                              (uint64_t)s->n_checks * PROFILE_CHECK_ROUNDS);
  atomic_store(&s->done, 0);
  enter(s, PROFILE_POINTS);
}

/* As far as one knows before it has run: the guess, by what others of its kind took. */
static int64_t expected(const troika_runtime *rt, const profile_point *p) {
  const profile_state *s = &rt->profile;
  cost_load load = profile_load_of(rt->g, p);
  uint32_t ratio = s->ratio[p->prompt_rows > 0];
  if (!ratio) ratio = s->ratio[0] ? s->ratio[0] : COST_ONE;
  return (int64_t)(((__int128)cost_time(&s->table, &load) * ratio) >> 16);
}

/* The next one of a list that still fits the phase's time; NULL: it is done. */
static profile_point *next_point(troika_runtime *rt, profile_point *list, uint32_t n,
                                 uint32_t rounds) {
  profile_state *s = &rt->profile;
  for (;; s->at++) {
    if (s->at >= n) {
      s->at = 0;
      s->round++;
      if (!s->round_ran) return NULL;
      s->round_ran = false;
    }
    int64_t left = budgets[s->phase] - s->spent_ns;
    if (s->round >= rounds || left <= 0) return NULL;
    if (s->round >= PROFILE_ROUNDS_WELL && s->spent_ns >= POINTS_NS) return NULL;
    profile_point *p = &list[s->at];
    if (p->skipped) continue;
    if (s->round) {
      if (!p->n || p->ns[0] <= left) return p;
    } else if (s->at == 0 || expected(rt, p) <= left / 4) {
      return p;
    } else {
      p->skipped = true;
    }
  }
}

static profile_point *next(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  profile_point *p = NULL;
  profile_facts facts = {0};
  if (s->phase == PROFILE_IDLE) start(rt);
  if (s->phase == PROFILE_POINTS) {
    p = next_point(rt, s->points, s->n_points, PROFILE_ROUNDS);
    if (!p) enter(s, PROFILE_GAP);
  }
  bool time_left = s->spent_ns < budgets[s->phase];
  if (s->phase == PROFILE_GAP) {
    if (s->n_gaps < PROFILE_GAPS && s->tries++ < 3 * PROFILE_GAPS && time_left)
      return &s->points[0];
    enter(s, PROFILE_STOP);
  }
  time_left = s->spent_ns < budgets[s->phase];
  if (s->phase == PROFILE_STOP) {
    if (s->n_stops < PROFILE_STOPS && s->tries++ < 5 * PROFILE_STOPS && time_left &&
        !s->span.skipped)
      return &s->span;
    if (!profile_build(s, rt->g, &facts)) {
      give_up(rt, TROIKA_NO_MEMORY, "no launch fits the KV pages that are free");
      return NULL;
    }
    enter(s, PROFILE_CHECK);
    s->making = facts;
  }
  if (s->phase == PROFILE_CHECK) {
    p = next_point(rt, s->checks, s->n_checks, PROFILE_CHECK_ROUNDS);
    if (!p) finish(rt, &s->making);
  }
  return p;
}

/* ---- a launch ---- */

static void close_sequences(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  while (s->n_seqs) kv_sequence_close(rt->pages, s->seqs[--s->n_seqs]);
}

/* Memory that was never written reads as one page of zeros, which lies in every cache: so each is
 * written once. False: a letter came. */
static bool touch(troika_runtime *rt, uint32_t seq, uint32_t positions, uint32_t seen) {
  for (uint32_t g = 0; g < rt->g->n_groups; g++) {
    const uint32_t *pages = kv_sequence_pages(rt->pages, seq, g);
    size_t bytes = rt->g->groups[g].page_bytes;
    for (uint32_t i = 0; i < (positions + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS; i++) {
      if (pages[i] == KV_NO_PAGE) continue;
      volatile uint8_t *memory = kv_pool(rt->pages, g) + pages[i] * bytes;
      for (size_t at = 0; at < bytes; at += TOUCH_BYTES) memory[at] = 0;
      if (mailbox_signal(&rt->mail) != seen) return false;
    }
  }
  return true;
}

/* A sequence with pages for [first, end) and what a row at `first` sees. */
static bool open_sequence(troika_runtime *rt, uint32_t first, uint32_t end, uint32_t *out) {
  profile_state *s = &rt->profile;
  if (s->n_seqs > PROFILE_ROWS_MAX || kv_sequence_open(rt->pages, out)) return false;
  s->seqs[s->n_seqs++] = *out;
  for (uint32_t g = 0; g < rt->g->n_groups; g++)
    rt->seqs[*out].pages[g] = kv_sequence_pages(rt->pages, *out, g);
  for (uint32_t at = 0, n; at < end; at += n) {
    uint32_t until = at < first ? first : end;
    n = until - at < rt->span_rows ? until - at : rt->span_rows;
    if (kv_sequence_extend(rt->pages, *out, at, at + n)) return false;
    if (at + n <= first) kv_sequence_keep_from(rt->pages, *out, at + n);
  }
  return true;
}

/* Only pages that nobody uses: no prefix is thrown away for this. */
static bool has_room(const troika_runtime *rt, const profile_point *p) {
  uint32_t gen[KV_GROUPS_MAX], prompt[KV_GROUPS_MAX];
  kv_need(rt->pages, profile_gen_position(p) + 1, gen);
  kv_need(rt->pages, p->depth + p->prompt_rows, prompt);
  if (profile_gen_position(p) >= rt->context || p->depth + p->prompt_rows > rt->context)
    return false;
  uint32_t sequences = p->gen_rows + (p->prompt_rows ? 1u : 0u);
  if (sequences > rt->parallel) return false;
  for (uint32_t g = 0; g < rt->g->n_groups; g++) {
    kv_pool_stats stats;
    kv_stats(rt->pages, g, &stats);
    uint64_t need = (uint64_t)gen[g] * p->gen_rows + (p->prompt_rows ? prompt[g] : 0);
    if (need > stats.free) return false;
  }
  return true;
}

static int32_t some_token(const troika_runtime *rt, uint32_t i) {
  return (int32_t)((i * 7919u + 13) % rt->g->vocab);
}

typedef enum made { MADE, NO_ROOM, LETTERS } made;

static made make_rows(troika_runtime *rt, const profile_point *p, uint32_t seen) {
  device_row *gen = launch_slot_rows(rt, SLOT_DECODE_P),
             *prompt = launch_slot_rows(rt, SLOT_PREFILL_PROMOTED);
  uint32_t pos = profile_gen_position(p), seq;
  if (!has_room(rt, p)) return NO_ROOM;
  for (uint32_t i = 0; i < p->gen_rows; i++) {
    if (!open_sequence(rt, pos, pos + 1, &seq)) return NO_ROOM;
    if (!touch(rt, seq, pos + 1, seen)) return LETTERS;
    gen[i] = (device_row){.seq = seq,
                          .pos = pos,
                          .token = some_token(rt, i),
                          .arith = DEVICE_GEN,
                          .want = DEVICE_WANT_LOGITS};
  }
  if (!p->prompt_rows) return MADE;
  if (!open_sequence(rt, p->depth, p->depth + p->prompt_rows, &seq)) return NO_ROOM;
  if (!touch(rt, seq, p->depth + p->prompt_rows, seen)) return LETTERS;
  for (uint32_t i = 0; i < p->prompt_rows; i++)
    prompt[i] = (device_row){.seq = seq,
                             .pos = p->depth + i,
                             .token = some_token(rt, i),
                             .arith = DEVICE_PROMPT,
                             .want = i + 1u == p->prompt_rows ? DEVICE_WANT_LOGITS : 0};
  return MADE;
}

/* Of all threads of this process. */
static int64_t cpu_us(void) {
  return (int64_t)clock() * 1000000 / CLOCKS_PER_SEC;
}

static troika_status submit(troika_runtime *rt, const profile_point *p) {
  profile_state *s = &rt->profile;
  device_command commands[2];
  unsigned n = 0;
  if (p->gen_rows) launch_set_run(rt, SLOT_DECODE_P, p->gen_rows, &commands[n++]);
  if (p->prompt_rows) launch_set_run(rt, SLOT_PREFILL_PROMOTED, p->prompt_rows, &commands[n++]);
  if (s->phase == PROFILE_STOP) rt->runs[SLOT_PREFILL_PROMOTED].panel = s->panel;
  return rt->cpu->driver->queue_submit(rt->queue, commands, n, NULL, 0, &s->event);
}

/* What the longest span takes, by the longest that was measured. */
static int64_t span_time(const profile_state *s) {
  const profile_point *longest = NULL;
  for (uint32_t i = 0; i < s->n_points; i++)
    if (!s->points[i].gen_rows && s->points[i].n &&
        (!longest || s->points[i].prompt_rows > longest->prompt_rows))
      longest = &s->points[i];
  return longest ? profile_time(longest) * s->span.prompt_rows / longest->prompt_rows : 0;
}

static void ask_stop(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  if (s->stop_asked_ns) return;
  s->stop_asked_ns = clock_now(rt->clock);
  rt->cpu->driver->queue_stop(rt->queue, &s->event);
}

/* A random part of the span later; at once if there is a letter (its own completion, or more). */
static void stop_later(troika_runtime *rt, uint32_t seen) {
  profile_state *s = &rt->profile;
  int64_t most = span_time(s) / 2;
  if (most > STOP_DELAY_MAX) most = STOP_DELAY_MAX;
  if (most < STOP_DELAY_MIN) most = STOP_DELAY_MIN;
  s->random ^= s->random << 13;
  s->random ^= s->random >> 7;
  s->random ^= s->random << 17;
  int64_t now = clock_now(rt->clock), until = now + (int64_t)(s->random % (uint64_t)most);
  for (; now < until && mailbox_signal(&rt->mail) == seen; now = clock_now(rt->clock))
    mailbox_sleep(&rt->mail, seen, until - now);
  ask_stop(rt);
}

bool profile_begin(troika_runtime *rt, int64_t now_ns) {
  profile_state *s = &rt->profile;
  CHECK(!s->in_flight);
  /* In this order: what is posted after the look changes the signal. */
  uint32_t seen = mailbox_signal(&rt->mail);
  if (atomic_load(&rt->mail.head)) return false;
  for (profile_point *p; (p = next(rt));) {
    made how = make_rows(rt, p, seen);
    if (how == MADE) {
      s->begin_ns = now_ns;
      s->stop_asked_ns = 0;
      s->stop_hidden = false;
      s->cpu_begin_us = cpu_us();
      troika_status status = submit(rt, p);
      if (!status) {
        s->in_flight = true;
        if (s->phase == PROFILE_STOP) stop_later(rt, seen);
        return true;
      }
      close_sequences(rt);
      give_up(rt, status, "the device takes no launch");
      return false;
    }
    close_sequences(rt);
    s->gap_end_ns = 0;
    if (how == LETTERS) return false;
    if (p == &s->span && p->depth)
      p->depth = 0;
    else
      p->skipped = true;
    if (s->phase == PROFILE_GAP) enter(s, PROFILE_STOP);
  }
  return false;
}

/* The device has let go of the rows when this returns, and the sequences are free: what comes may
 * need them all. Only the letter is still to come. */
void profile_stop(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  s->idle_ns = 0;
  s->wanted = false;
  if (!s->in_flight) return;
  ask_stop(rt);
  s->stop_hidden = true; /* other letters come before the one that says when it was over */
  rt->cpu->driver->queue_wait(rt->queue, &s->event, -1);
  close_sequences(rt);
}

/* ---- a completion ---- */

static void take_point(troika_runtime *rt, profile_point *p, int64_t ns) {
  profile_state *s = &rt->profile;
  if (s->phase == PROFILE_POINTS && !p->n && !(p->gen_rows && p->prompt_rows)) {
    cost_load load = profile_load_of(rt->g, p);
    __int128 ratio = ((__int128)ns << 16) / cost_time(&s->table, &load);
    s->ratio[p->prompt_rows > 0] = ratio > UINT32_MAX ? UINT32_MAX : (uint32_t)ratio + 1;
  }
  if (p->n < PROFILE_ROUNDS) p->ns[p->n++] = ns;
  s->at++;
  s->round_ran = true;
}

/* Whether it counts. */
static bool take_gap(profile_state *s, const device_completion *c) {
  bool counts = s->gap_end_ns && c->start_ns >= s->gap_end_ns && s->n_gaps < PROFILE_GAPS;
  if (counts) s->gaps[s->n_gaps++] = c->start_ns - s->gap_end_ns;
  s->gap_end_ns = c->end_ns;
  return counts;
}

static bool take_stop(profile_state *s, const device_completion *c, int64_t now_ns) {
  bool counts = c->panel != UINT32_MAX && s->n_stops < PROFILE_STOPS && !s->stop_hidden;
  s->panel = c->panel != UINT32_MAX ? c->panel : 0;
  if (counts) s->stops[s->n_stops++] = now_ns - s->stop_asked_ns;
  return counts;
}

void profile_complete(troika_runtime *rt, const device_completion *c) {
  profile_state *s = &rt->profile;
  int64_t now = clock_now(rt->clock);
  bool stopped = c->panel != UINT32_MAX;
  close_sequences(rt);
  s->in_flight = false;
  s->spent_ns += now - s->begin_ns;
  s->cpu_us += cpu_us() - s->cpu_begin_us;
  s->worked_ns += (c->end_ns - c->start_ns) * s->threads;
  if (c->status) {
    give_up(rt, c->status, "a launch failed");
    return;
  }
  if (stopped && !s->stop_asked_ns && ++s->unasked > UNASKED_MAX) {
    give_up(rt, TROIKA_UNSUPPORTED, "launches stop by themselves (a test hook)");
    return;
  }
  bool counts = true;
  if (s->phase == PROFILE_STOP && (s->stop_asked_ns || !stopped)) {
    counts = take_stop(s, c, now);
  } else if (stopped) {
    s->gap_end_ns = 0; /* repeated */
    return;
  } else if (s->phase == PROFILE_GAP) {
    counts = take_gap(s, c);
  } else {
    profile_point *list = s->phase == PROFILE_CHECK ? s->checks : s->points;
    take_point(rt, &list[s->at], c->end_ns > c->start_ns ? c->end_ns - c->start_ns : 1);
  }
  if (counts) atomic_fetch_add(&s->done, 1);
}

/* ---- other threads ---- */

troika_status profile_open(troika_runtime *rt, const char *path, troika_error *err) {
  profile_state *s = &rt->profile;
  pthread_mutex_init(&s->lock, NULL);
  os_cond_init(&s->changed);
  s->opened = true;
  s->letter.kind = MESSAGE_PROFILE;
  profile_guess(rt, &rt->costs);
  if (!profile_identify(rt, path)) return error_set(err, TROIKA_NO_MEMORY, "no memory for a path");
  if (!s->path || !profile_load(rt)) s->tries_left = TRIES;
  s->stop_ns = rt->costs.stop_ns;
  pthread_mutex_lock(&rt->stats_lock);
  rt->shown_costs = rt->costs;
  pthread_mutex_unlock(&rt->stats_lock);
  return TROIKA_OK;
}

void profile_close(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  if (!s->opened) return;
  profile_stop(rt);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  free(s->path);
  s->opened = false;
}

troika_status troika_runtime_profile(troika_runtime *rt,
                                     void (*progress)(void *context, uint64_t done, uint64_t total),
                                     void *progress_context, troika_error *err) {
  profile_state *s = &rt->profile;
  if (atomic_load(&rt->outstanding[0]))
    return error_set(err, TROIKA_BUSY, "requests are open: nothing can be measured beside them");
  pthread_mutex_lock(&s->lock);
  bool calling = s->calling;
  s->calling = true;
  if (!calling) s->ended = false;
  pthread_mutex_unlock(&s->lock);
  if (calling) return error_set(err, TROIKA_BUSY, "it is being measured already");
  atomic_store(&s->done, 0);
  mailbox_post(&rt->mail, &s->letter);
  pthread_mutex_lock(&s->lock);
  while (!s->ended) {
    int64_t until = clock_real_now(NULL) + POLL_NS;
    struct timespec t = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    pthread_cond_timedwait(&s->changed, &s->lock, &t);
    pthread_mutex_unlock(&s->lock);
    if (progress) progress(progress_context, atomic_load(&s->done), atomic_load(&s->total));
    pthread_mutex_lock(&s->lock);
  }
  s->calling = false;
  troika_status status = s->status;
  if (status) error_set(err, status, "%s", s->failure);
  pthread_mutex_unlock(&s->lock);
  return status;
}
