/* SPDX-License-Identifier: Apache-2.0 */
/* Random views: what must hold for any decision, and replay and permutation. Another seed:
 * test_sched_property SEED. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/sched.h"

enum { REQUESTS_MOST = 60, LAUNCHES_MOST = 4, ACTIONS_MOST = 4 * REQUESTS_MOST, VIEWS = 200000 };

static uint64_t seed = 12, random_state;
static uint32_t view_number;

static uint32_t roll(uint32_t below) {
  uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (uint32_t)((z ^ z >> 31) >> 32) % below;
}

#define HOLDS(condition)                                                                     \
  do {                                                                                       \
    if (!(condition))                                                                        \
      fail_msg("seed %llu, view %u: %s", (unsigned long long)seed, view_number, #condition); \
  } while (0)

typedef struct scene {
  sched_request requests[REQUESTS_MOST];
  sched_launch_view launches[LAUNCHES_MOST];
  sched_view view;
  int64_t now_ns;
} scene;

static void scene_invent(scene *s) {
  static const uint32_t sizes[] = {0, 1, 3, 10, REQUESTS_MOST};
  uint32_t n = sizes[roll(5)], crowd = 1 + roll(40);
  memset(s, 0, sizeof *s);
  s->now_ns = roll(1000);
  s->view = (sched_view){.requests = s->requests,
                         .launches = s->launches,
                         .places = roll(12),
                         .queue_max = roll(20),
                         .span_rows = 1 + roll(256),
                         .decode_rows = 1 + roll(10),
                         .launches_max = 1 + roll(3)};
  for (int g = 0; g < 4; g++) {
    s->view.pages_total[g] = g < 2 ? 10 + roll(100) : roll(2) * 50;
    s->view.pages_free[g] = roll(s->view.pages_total[g] + 1);
  }
  s->view.n_launches = roll(s->view.launches_max + 1);
  for (uint32_t i = 0; i < s->view.n_launches; i++)
    s->launches[i] = (sched_launch_view){.id = 100 + i,
                                         .stopping = (uint8_t)(roll(4) == 0),
                                         .prompt_rows = roll(2) * roll(100),
                                         .decode_rows = roll(3)};
  for (uint32_t i = 0; i < n; i++) {
    sched_request *r = &s->requests[i];
    r->id = i * 3 + roll(3);     /* unique */
    r->arrival_ns = roll(crowd); /* many at one time */
    r->deadline_ns = roll(3) ? INT64_MAX : (int64_t)roll(2000);
    r->state = (uint8_t)roll(4);
    r->cancelled = roll(6) == 0;
    if (r->state == SCHED_PREFILL || r->state == SCHED_DECODE)
      r->in_flight = s->view.n_launches > 0 && roll(3) == 0;
    if (r->state == SCHED_QUEUED || r->state == SCHED_PREFILL) r->prompt_left = 1 + roll(1000);
    r->output_left = 1 + roll(100);
    for (int g = 0; g < 4; g++)
      r->need[g] = s->view.pages_total[g] ? roll(s->view.pages_total[g] / (1 + roll(8)) + 2) : 0;
  }
  s->view.n_requests = n;
}

static const sched_request *find(const scene *s, uint32_t id) {
  for (uint32_t i = 0; i < s->view.n_requests; i++)
    if (s->requests[i].id == id) return &s->requests[i];
  fail_msg("seed %llu, view %u: no request %u", (unsigned long long)seed, view_number, id);
  return NULL;
}

static bool earlier(const sched_request *a, const sched_request *b) {
  return a->arrival_ns < b->arrival_ns || (a->arrival_ns == b->arrival_ns && a->id < b->id);
}

static bool over(const scene *s, const sched_request *r) {
  return r->cancelled || r->deadline_ns <= s->now_ns;
}

static const sched_action *action_on(const sched_action *a, size_t n, uint8_t kind, uint32_t id) {
  for (size_t i = 0; i < n; i++)
    if (a[i].kind == kind && a[i].request == id) return &a[i];
  return NULL;
}

static bool never_fits(const scene *s, const sched_request *r) {
  for (int g = 0; g < 4; g++)
    if (r->need[g] > s->view.pages_total[g]) return true;
  return false;
}

/* Everything about ends, admissions and refusals; the number admitted. *at_once: the policy must
 * ask to be called again now. */
static uint32_t check_queue(const scene *s, const sched_action *a, size_t n, bool *at_once) {
  uint32_t running = 0, waiting = 0, admitted = 0, pages[4];
  bool ending = false;
  memcpy(pages, s->view.pages_free, sizeof pages);
  for (uint32_t i = 0; i < s->view.n_requests; i++) {
    const sched_request *r = &s->requests[i];
    const sched_action *expire = action_on(a, n, SCHED_EXPIRE, r->id);
    HOLDS((expire != NULL) == (r->state != SCHED_ENDED && over(s, r) && !r->in_flight));
    if (expire)
      HOLDS(expire->reason == (r->cancelled ? SCHED_REASON_CANCELLED : SCHED_REASON_DEADLINE));
    running += (r->state == SCHED_PREFILL || r->state == SCHED_DECODE) && !expire;
    ending = ending || (expire && r->state != SCHED_QUEUED);
  }
  for (size_t i = 0; i < n; i++) {
    if (a[i].kind != SCHED_ADMIT && a[i].kind != SCHED_REFUSE) continue;
    const sched_request *r = find(s, a[i].request);
    HOLDS(r->state == SCHED_QUEUED && !over(s, r));
    if (a[i].kind == SCHED_REFUSE && a[i].reason == SCHED_REASON_PAGES) HOLDS(never_fits(s, r));
    if (a[i].kind == SCHED_REFUSE) continue;
    HOLDS(running < s->view.places);
    for (int g = 0; g < 4; g++) {
      HOLDS(r->need[g] <= pages[g]);
      pages[g] -= r->need[g];
    }
    running++;
    admitted++;
  }
  /* Nobody is overtaken, the head waits only for a reason, and only the newest are refused. */
  const sched_request *head = NULL, *last_waiting = NULL;
  for (uint32_t i = 0; i < s->view.n_requests; i++) {
    const sched_request *r = &s->requests[i];
    if (r->state != SCHED_QUEUED || over(s, r)) continue;
    const sched_action *refuse = action_on(a, n, SCHED_REFUSE, r->id);
    HOLDS(never_fits(s, r) == (refuse && refuse->reason == SCHED_REASON_PAGES));
    if (refuse || action_on(a, n, SCHED_ADMIT, r->id)) continue;
    waiting++;
    if (!head || earlier(r, head)) head = r;
    if (!last_waiting || earlier(last_waiting, r)) last_waiting = r;
  }
  HOLDS(waiting <= s->view.queue_max);
  for (size_t i = 0; i < n; i++) {
    if (a[i].kind == SCHED_ADMIT && head) HOLDS(earlier(find(s, a[i].request), head));
    if (a[i].kind == SCHED_REFUSE && a[i].reason == SCHED_REASON_QUEUE) {
      HOLDS(waiting == s->view.queue_max);
      if (last_waiting) HOLDS(earlier(last_waiting, find(s, a[i].request)));
    }
  }
  if (head) {
    bool page_missing = false;
    for (int g = 0; g < 4; g++) page_missing = page_missing || head->need[g] > pages[g];
    HOLDS(running >= s->view.places || page_missing);
  }
  *at_once = admitted || (ending && waiting); /* those who end may leave pages for those who wait */
  return admitted;
}

static void check_launch(const scene *s, const sched_action *a, size_t n) {
  uint32_t ready = 0, joined = 0, launches = 0;
  const sched_request *oldest = NULL, *last = NULL;
  for (uint32_t i = 0; i < s->view.n_requests; i++) {
    const sched_request *r = &s->requests[i];
    if (over(s, r) || r->in_flight) continue;
    ready += r->state == SCHED_DECODE;
    if (r->state == SCHED_PREFILL && (!oldest || earlier(r, oldest))) oldest = r;
  }
  for (size_t i = 0; i < n; i++) {
    if (a[i].kind == SCHED_LAUNCH) {
      launches++;
      HOLDS(a[i].request == (oldest ? oldest->id : SCHED_NO_REQUEST));
      uint32_t left = oldest ? oldest->prompt_left : 0;
      HOLDS(a[i].rows == (left < s->view.span_rows ? left : s->view.span_rows));
    }
    if (a[i].kind != SCHED_JOIN) continue;
    const sched_request *r = find(s, a[i].request);
    HOLDS(launches == 1); /* a join follows its launch */
    HOLDS(r->state == SCHED_DECODE && !r->in_flight && !over(s, r));
    if (last) HOLDS(earlier(last, r)); /* so none twice */
    last = r;
    joined++;
  }
  bool room = s->view.n_launches < s->view.launches_max;
  HOLDS(launches == (room && (ready || oldest)));
  if (launches) HOLDS(joined == (ready < s->view.decode_rows ? ready : s->view.decode_rows));
  /* those that are left out are the newest */
  for (uint32_t i = 0; i < s->view.n_requests && last; i++) {
    const sched_request *r = &s->requests[i];
    if (r->state == SCHED_DECODE && !r->in_flight && !over(s, r) && earlier(r, last))
      HOLDS(action_on(a, n, SCHED_JOIN, r->id) != NULL);
  }
}

static void check_stops(const scene *s, const sched_action *a, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (a[i].kind != SCHED_STOP) continue;
    const sched_launch_view *l = NULL;
    bool someone = false;
    for (uint32_t j = 0; j < s->view.n_launches; j++)
      if (s->launches[j].id == a[i].launch) l = &s->launches[j];
    HOLDS(l && !l->stopping);
    HOLDS(l->prompt_rows ? l->decode_rows == 0 : l->decode_rows == 1); /* one request's rows */
    for (uint32_t j = 0; j < s->view.n_requests; j++) {
      const sched_request *r = &s->requests[j];
      someone = someone || (r->in_flight && over(s, r) &&
                            r->state == (l->prompt_rows ? SCHED_PREFILL : SCHED_DECODE));
    }
    HOLDS(someone);
  }
}

static void check_wake(const scene *s, int64_t wake_ns, bool at_once) {
  int64_t first = INT64_MAX;
  for (uint32_t i = 0; i < s->view.n_requests; i++) {
    const sched_request *r = &s->requests[i];
    if (r->state != SCHED_ENDED && !over(s, r) && r->deadline_ns < first) first = r->deadline_ns;
  }
  HOLDS(wake_ns == s->now_ns || wake_ns == first);
  if (at_once) HOLDS(wake_ns == s->now_ns);
  HOLDS(wake_ns >= s->now_ns);
}

static void permute(scene *s) {
  for (uint32_t i = s->view.n_requests; i > 1; i--) {
    uint32_t j = roll(i);
    sched_request swap = s->requests[i - 1];
    s->requests[i - 1] = s->requests[j];
    s->requests[j] = swap;
  }
}

static void random_views(void **state) {
  (void)state;
  static scene s;
  static sched_action first[ACTIONS_MOST], again[ACTIONS_MOST + 1];
  uint32_t seen[SCHED_EXPIRE + 1] = {0};
  random_state = seed;
  for (view_number = 0; view_number < VIEWS; view_number++) {
    sched_memory fresh = {0}, memory = fresh, other = fresh;
    int64_t wake, wake_again;
    scene_invent(&s);
    memset(first, 0, sizeof first);
    memset(again, 0, sizeof again);
    size_t n = sched_decide(&s.view, &memory, s.now_ns, first, ACTIONS_MOST, &wake);
    for (size_t i = 0; i < n; i++) seen[first[i].kind]++;
    bool at_once;
    uint32_t admitted = check_queue(&s, first, n, &at_once);
    check_stops(&s, first, n);
    check_wake(&s, wake, at_once);
    if (admitted)
      for (size_t i = 0; i < n; i++)
        HOLDS(first[i].kind != SCHED_LAUNCH && first[i].kind != SCHED_JOIN);
    else
      check_launch(&s, first, n);
    /* Again with another order of the array: the same. */
    permute(&s);
    size_t m = sched_decide(&s.view, &other, s.now_ns, again, ACTIONS_MOST, &wake_again);
    HOLDS(m == n && wake == wake_again && !memcmp(first, again, n * sizeof *first));
    HOLDS(!memcmp(&memory, &other, sizeof memory));
    /* A request that could not be admitted is not waited for twice. */
    if (admitted) {
      m = sched_decide(&s.view, &other, s.now_ns, again, ACTIONS_MOST, &wake_again);
      HOLDS(m >= n && !memcmp(first, again, n * sizeof *first));
      check_launch(&s, again, m);
    }
    /* Less room: never past it, and it asks to be called again. */
    size_t capacity = n ? roll((uint32_t)n) : 0;
    other = fresh;
    again[capacity].kind = 0xEE;
    m = sched_decide(&s.view, &other, s.now_ns, again, capacity, &wake_again);
    HOLDS(m <= capacity && again[capacity].kind == 0xEE);
    if (n) HOLDS(wake_again == s.now_ns);
  }
  print_message(
      "seed %llu, %u views: %u expire, %u refuse, %u admit, %u launch, %u join, %u stop\n",
      (unsigned long long)seed, VIEWS, seen[SCHED_EXPIRE], seen[SCHED_REFUSE], seen[SCHED_ADMIT],
      seen[SCHED_LAUNCH], seen[SCHED_JOIN], seen[SCHED_STOP]);
  assert_true(seen[SCHED_EXPIRE] > 1000 && seen[SCHED_REFUSE] > 1000 && seen[SCHED_ADMIT] > 1000 &&
              seen[SCHED_LAUNCH] > 1000 && seen[SCHED_JOIN] > 1000 && seen[SCHED_STOP] > 100);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_views)};
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
