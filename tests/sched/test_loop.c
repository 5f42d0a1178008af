/* SPDX-License-Identifier: Apache-2.0 */
/* A loop like the runtime's on a virtual clock: requests arrive, are cancelled, have deadlines;
 * launches take time. Every request ends exactly once, places and pages are never overdrawn, nobody
 * starves, and the device is never idle while something could run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/sched.h"

enum { REQUESTS = 120, PLACES = 6, QUEUE = 30, PAGES = 400, ACTIONS = 200, ROWS_MOST = 8 };
enum { END_NOT, END_DONE, END_REFUSED, END_EXPIRED };

static uint64_t random_state;
static uint32_t roll(uint32_t below) {
  uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

typedef struct job {
  sched_request r;
  uint32_t prompt, output, launch; /* launch: index of the one that has rows of it */
  int64_t cancel_ns, admitted_ns, joined_ns;
  int end;
} job;

typedef struct flight {
  bool used;
  sched_launch_view l;
  uint32_t prefill, rows, joined[ROWS_MOST];
  int64_t done_ns;
} flight;

typedef struct loop {
  job jobs[REQUESTS];
  flight flights[3];
  uint32_t launches_max, next_launch, pages_free, running, ended, seed;
  int64_t now_ns, last_arrival_admitted;
  sched_memory memory;
} loop;

static void end_job(loop *s, job *j, int how) {
  if (j->end != END_NOT) fail_msg("seed %u: request %u ends twice", s->seed, j->r.id);
  if (j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE) {
    s->running--;
    s->pages_free += j->r.need[0];
  }
  assert_false(j->r.in_flight);
  j->r.state = SCHED_ENDED;
  j->end = how;
  s->ended++;
}

static void act_launch(loop *s, const sched_action *a, size_t n, size_t at) {
  flight *f = NULL;
  for (uint32_t i = 0; i < s->launches_max && !f; i++)
    if (!s->flights[i].used) f = &s->flights[i];
  assert_non_null(f);
  *f = (flight){.used = true, .prefill = SCHED_NO_REQUEST};
  f->l.id = s->next_launch++;
  f->l.start_ns = s->now_ns;
  if (a[at].rows) {
    job *j = &s->jobs[a[at].request];
    assert_true(j->r.state == SCHED_PREFILL && !j->r.in_flight && a[at].rows <= j->r.prompt_left);
    f->prefill = a[at].request;
    f->l.prompt_rows = f->rows = a[at].rows;
    j->r.in_flight = 1;
  }
  for (size_t i = at + 1; i < n && a[i].kind == SCHED_JOIN; i++) {
    job *j = &s->jobs[a[i].request];
    assert_true(j->r.state == SCHED_DECODE && !j->r.in_flight);
    f->joined[f->l.decode_rows++] = a[i].request;
    j->r.in_flight = 1;
    j->joined_ns = s->now_ns;
  }
  f->done_ns = s->now_ns + 5 + f->l.decode_rows + f->l.prompt_rows / 4;
}

static void act(loop *s, const sched_action *a, size_t n) {
  for (size_t i = 0; i < n; i++) {
    job *j = a[i].request == SCHED_NO_REQUEST ? NULL : &s->jobs[a[i].request];
    switch (a[i].kind) {
      case SCHED_ADMIT:
        assert_true(s->running < PLACES && j->r.need[0] <= s->pages_free);
        assert_true(j->r.arrival_ns >= s->last_arrival_admitted); /* first come, first served */
        s->last_arrival_admitted = j->r.arrival_ns;
        s->running++;
        s->pages_free -= j->r.need[0];
        j->r.state = SCHED_PREFILL;
        j->admitted_ns = s->now_ns;
        j->r.prompt_left = 1 + roll(j->r.prompt_left); /* a cached prefix */
        break;
      case SCHED_REFUSE:
        end_job(s, j, END_REFUSED);
        break;
      case SCHED_EXPIRE:
        end_job(s, j, END_EXPIRED);
        break;
      case SCHED_LAUNCH:
        act_launch(s, a, n, i);
        break;
      case SCHED_STOP:
        for (int k = 0; k < 3; k++)
          if (s->flights[k].used && s->flights[k].l.id == a[i].launch) {
            assert_false(s->flights[k].l.stopping);
            s->flights[k].l.stopping = 1;
            s->flights[k].done_ns = s->now_ns + 1;
            s->flights[k].rows = 0; /* nothing is gained from it */
          }
        break;
      case SCHED_JOIN:
        break;
      default:
        fail_msg("seed %u: action %u", s->seed, a[i].kind);
    }
  }
}

static void complete(loop *s, flight *f) {
  f->used = false;
  if (f->prefill != SCHED_NO_REQUEST) {
    job *j = &s->jobs[f->prefill];
    j->r.in_flight = 0;
    j->r.prompt_left -= f->rows;
    if (!j->r.prompt_left) j->r.state = SCHED_DECODE;
  }
  for (uint32_t i = 0; i < f->l.decode_rows; i++) {
    job *j = &s->jobs[f->joined[i]];
    j->r.in_flight = 0;
    if (!f->l.stopping && --j->r.output_left == 0 && !j->r.cancelled &&
        j->r.deadline_ns > s->now_ns)
      end_job(s, j, END_DONE);
    else if (!j->r.output_left)
      j->r.output_left = 1; /* it is over: the policy must say so */
  }
}

static void decide(loop *s) {
  sched_request requests[REQUESTS];
  sched_launch_view launches[3];
  sched_action actions[ACTIONS];
  int64_t wake;
  for (int rounds = 0;; rounds++) {
    sched_view v = {.requests = requests,
                    .launches = launches,
                    .places = PLACES,
                    .queue_max = QUEUE,
                    .span_rows = 64,
                    .decode_rows = ROWS_MOST,
                    .launches_max = s->launches_max};
    v.pages_free[0] = s->pages_free;
    v.pages_total[0] = PAGES;
    for (int i = 0; i < REQUESTS; i++)
      if (s->jobs[i].r.arrival_ns <= s->now_ns && s->jobs[i].end == END_NOT)
        requests[v.n_requests++] = s->jobs[i].r;
    for (uint32_t i = 0; i < s->launches_max; i++)
      if (s->flights[i].used) launches[v.n_launches++] = s->flights[i].l;
    size_t n = sched_decide(&v, &s->memory, s->now_ns, actions, ACTIONS, &wake);
    act(s, actions, n);
    assert_true(rounds < 10);
    if (wake > s->now_ns) return;
  }
}

/* The device must be busy if anyone is admitted and not waiting to end. */
static void assert_not_idle(const loop *s) {
  bool busy = false;
  for (int i = 0; i < 3; i++) busy = busy || s->flights[i].used;
  for (int i = 0; i < REQUESTS; i++) {
    const job *j = &s->jobs[i];
    bool here = j->end == END_NOT && j->r.arrival_ns <= s->now_ns;
    if (here && !busy)
      fail_msg("seed %u: idle at %lld beside request %u", s->seed, (long long)s->now_ns, j->r.id);
    if (here && j->r.state == SCHED_DECODE && !j->r.in_flight && s->launches_max == 1)
      fail_msg("seed %u: a decode row was left out", s->seed); /* decode_rows >= places: all join */
  }
}

static void invent(loop *s, uint32_t seed, uint32_t launches_max) {
  memset(s, 0, sizeof *s);
  random_state = seed * 1000 + launches_max;
  s->seed = seed;
  s->launches_max = launches_max;
  s->pages_free = PAGES;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    job *j = &s->jobs[i];
    j->prompt = 1 + roll(500);
    j->output = 1 + roll(100);
    j->cancel_ns = roll(6) ? INT64_MAX : (int64_t)roll(9000);
    j->r = (sched_request){.id = i,
                           .arrival_ns = roll(6000),
                           .deadline_ns = roll(8) ? INT64_MAX : (int64_t)roll(9000),
                           .prompt_left = j->prompt,
                           .output_left = j->output};
    j->r.need[0] = roll(40) ? (j->prompt + j->output + 31) / 32 * (1 + roll(6)) : PAGES + 1;
  }
}

static void all_end_and_none_starves(void **state) {
  (void)state;
  static loop s;
  uint32_t ends[4] = {0};
  int64_t longest = 0;
  for (uint32_t seed = 1; seed <= 150; seed++) {
    invent(&s, seed, 1 + seed % 3);
    while (s.ended < REQUESTS) {
      for (int i = 0; i < REQUESTS; i++)
        if (s.jobs[i].cancel_ns <= s.now_ns && s.jobs[i].end == END_NOT) s.jobs[i].r.cancelled = 1;
      for (int i = 0; i < 3; i++)
        if (s.flights[i].used && s.flights[i].done_ns <= s.now_ns) complete(&s, &s.flights[i]);
      decide(&s);
      assert_not_idle(&s);
      s.now_ns++;
      if (s.now_ns > 200000) fail_msg("seed %u: %u of %u ended", seed, s.ended, REQUESTS);
    }
    assert_int_equal(s.pages_free, PAGES);
    assert_int_equal(s.running, 0);
    for (int i = 0; i < REQUESTS; i++) {
      const job *j = &s.jobs[i];
      ends[j->end]++;
      if (j->r.need[0] > PAGES) assert_int_not_equal(j->end, END_DONE);
      if (j->end == END_DONE && j->joined_ns - j->admitted_ns > longest)
        longest = j->joined_ns - j->admitted_ns;
      if (j->end == END_EXPIRED) assert_true(j->r.cancelled || j->r.deadline_ns < INT64_MAX);
    }
  }
  print_message("done %u, refused %u, expired %u; longest from admission to the last row %lld\n",
                ends[END_DONE], ends[END_REFUSED], ends[END_EXPIRED], (long long)longest);
  assert_true(ends[END_DONE] > 1000 && ends[END_REFUSED] > 1000 && ends[END_EXPIRED] > 1000);
  /* From admission on at most PLACES prompts of 500 rows in spans of 64 go before it, then 100
   * rows: each launch <= 5 + 8 + 16. */
  assert_true(longest <= (PLACES * 8 + 100) * 29 * 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_end_and_none_starves)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
