/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic on one device that can stop, on a virtual clock, the runtime's part in 200 lines:
 * requests end once and in full, background gets all that is left, and a person waits for no more
 * of it than the bound. The long random walks are test_property.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sched/support_config.h"

#include "sched/sched.h"

enum { REQUESTS = 64, ACTIONS = 256, PLACES = 8 };
#define MS 1000000LL
#define SECOND (1000 * MS)

static cost_table table;

/* An iteration of 10 ms and 1 ms more a row; a prompt row 0.5 ms; a stop 0.5 ms. */
static void make_table(void) {
  memset(&table, 0, sizeof table);
  for (int i = 0; i < COST_POINTS; i++) {
    table.gen[i] = 10 * MS + (cost_rows[i] - 1) * MS;
    table.prompt[i] = 9 * MS + cost_rows[i] * MS / 2;
    table.gen_fix[i] = table.prompt_fix[i] = COST_ONE;
  }
  table.launch_ns = MS / 20;
  table.stop_ns = MS / 2;
  table.shared_ns[0] = table.shared_ns[1] = 7 * MS;
}

typedef struct job {
  sched_request r;
  uint32_t prompt, output, made;
  int64_t end_ns, first_ns, largest_gap_ns;
  bool refused;
} job;

typedef struct flight {
  bool used;
  sched_launch_view l;
  uint32_t rows[PLACES], n;
  int64_t left_ns, blocks;
} flight;

typedef struct loop {
  job jobs[REQUESTS];
  uint32_t n, places;
  flight flights[SCHED_LAUNCHES_MAX];
  int running; /* launch, or -1 */
  int64_t now, stop_at, busy_ns;
  sched_config config;
  sched_memory memory;
} loop;

static void loop_begin(loop *s) {
  memset(s, 0, sizeof *s);
  make_table();
  s->running = -1;
  s->stop_at = SCHED_NEVER;
  s->now = SECOND;
  s->config = support_config(PLACES);
  s->config.decode_rows = PLACES;
  s->config.ride_rows = 16;
  s->config.shorten_to = 0;
}

static job *add(loop *s, uint8_t class_, int64_t arrival, uint32_t prompt, uint32_t output) {
  job *j = &s->jobs[s->n];
  *j = (job){.prompt = prompt, .output = output};
  j->r = (sched_request){.id = s->n++,
                         .class_ = class_,
                         .lift = SCHED_BAND_P,
                         .launch = SCHED_NONE,
                         .arrival_ns = arrival,
                         .waiting_ns = arrival,
                         .first_deadline_ns = SCHED_NEVER,
                         .done_deadline_ns = SCHED_NEVER,
                         .prompt_left = prompt,
                         .output_left = output,
                         .expected_left = output};
  return j;
}

static job *job_of(loop *s, uint32_t id) {
  assert_true(id < s->n);
  return &s->jobs[id];
}

static void end(loop *s, job *j) {
  assert_true(j->r.state != SCHED_ENDED && j->r.launch == SCHED_NONE);
  s->places -= j->r.state != SCHED_QUEUED;
  j->r.state = SCHED_ENDED;
  j->end_ns = s->now;
}

static void emit(loop *s, job *j) {
  if (!j->made++) j->first_ns = s->now;
  if (j->r.emitted && s->now - j->r.emit_ns > j->largest_gap_ns)
    j->largest_gap_ns = s->now - j->r.emit_ns;
  j->r.emitted = 1;
  j->r.emit_ns = j->r.waiting_ns = s->now;
  j->r.output_left--;
  if (j->r.expected_left) j->r.expected_left--;
  if (!j->r.output_left) end(s, j);
}

static void launch(loop *s, const sched_action *a) {
  flight *f = &s->flights[a->launch];
  assert_true(!f->used && s->running < 0);
  *f = (flight){.used = true, .left_ns = a->ns};
  f->l = (sched_launch_view){.id = a->launch,
                             .promoted = a->promoted,
                             .slots = a->reason,
                             .prompt_request = a->request,
                             .prompt_rows = a->rows,
                             .start_ns = s->now,
                             .total_ns = a->ns};
  for (int i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->flights[i].used && i != (int)a->launch)
      assert_int_equal(s->flights[i].l.slots & a->reason, 0);
  s->running = (int)a->launch;
  if (!a->rows) return;
  job *j = job_of(s, a->request);
  assert_true(j->r.state == SCHED_PREFILL && j->r.launch == SCHED_NONE);
  assert_true(a->rows <= j->r.prompt_left);
  j->r.launch = a->launch;
}

static void release(loop *s, flight *f, bool done) {
  f->used = false;
  if (f->l.prompt_request != SCHED_NONE) {
    job *j = job_of(s, f->l.prompt_request);
    j->r.launch = SCHED_NONE;
    if (done) {
      j->r.prompt_left -= f->l.prompt_rows;
      j->r.waiting_ns = s->now;
      if (!j->r.prompt_left) {
        j->r.state = SCHED_DECODE;
        emit(s, j);
      }
    }
  }
  for (uint32_t k = 0; k < f->n; k++) {
    job *j = job_of(s, f->rows[k]);
    j->r.launch = SCHED_NONE;
    if (done) emit(s, j);
  }
}

static void act(loop *s, const sched_action *a) {
  flight *f = a->launch < SCHED_LAUNCHES_MAX ? &s->flights[a->launch] : NULL;
  job *j = a->request != SCHED_NONE ? job_of(s, a->request) : NULL;
  switch (a->kind) {
    case SCHED_ADMIT:
      assert_true(j->r.state == SCHED_QUEUED && s->places < PLACES);
      j->r.state = SCHED_PREFILL;
      s->places++;
      break;
    case SCHED_REFUSE:
      j->refused = true;
      end(s, j);
      break;
    case SCHED_EXPIRE:
      end(s, j);
      break;
    case SCHED_SUSPEND:
      assert_int_equal(j->r.launch, SCHED_NONE);
      j->r.prompt_left = j->prompt + j->made;
      j->r.state = SCHED_QUEUED;
      s->places--;
      break;
    case SCHED_LAUNCH:
      launch(s, a);
      break;
    case SCHED_JOIN:
      assert_true(j->r.state == SCHED_DECODE && j->r.launch == SCHED_NONE);
      f->rows[f->n++] = a->request;
      f->l.decode_rows = f->n;
      j->r.launch = a->launch;
      break;
    case SCHED_RESUME:
      assert_true(f->used && f->l.state == SCHED_STOPPED && s->running < 0);
      f->l.state = SCHED_RUNNING;
      f->l.start_ns = s->now;
      s->running = (int)a->launch;
      break;
    case SCHED_DROP:
      assert_true(f->used && f->l.state == SCHED_STOPPED);
      release(s, f, false);
      break;
    case SCHED_STOP:
      assert_true(s->running == (int)a->launch && f->l.state == SCHED_RUNNING);
      f->l.state = SCHED_STOPPING;
      s->stop_at = s->now + table.stop_ns;
      break;
    default:
      fail();
  }
}

static int64_t decide(loop *s) {
  static sched_action out[ACTIONS];
  sched_request requests[REQUESTS];
  sched_launch_view launches[SCHED_LAUNCHES_MAX];
  sched_device device = {
      .cost = &table, .decodes = 1, .prefills = 1, .can_stop = 1, .step = 1, .span_rows = 256};
  sched_view v = {.config = &s->config,
                  .requests = requests,
                  .launches = launches,
                  .devices = &device,
                  .n_devices = 1,
                  .pages_free = {1000},
                  .pages_total = {1000}};
  int64_t wake;
  for (uint32_t i = 0; i < s->n; i++)
    if (s->jobs[i].r.arrival_ns <= s->now && s->jobs[i].r.state != SCHED_ENDED) {
      requests[v.n_requests++] = s->jobs[i].r;
      s->jobs[i].r.judged = 1;
    }
  for (int i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->flights[i].used) launches[v.n_launches++] = s->flights[i].l;
  size_t n = sched_decide(&v, &s->memory, s->now, out, ACTIONS, &wake);
  if (getenv("LOOP_SHOW"))
    for (size_t i = 0; i < n; i++)
      printf("%9.3f kind %d reason %d request %d rows %u launch %d ns %.3f%s\n",
             (double)s->now / 1e6, out[i].kind, out[i].reason, (int)out[i].request, out[i].rows,
             (int)out[i].launch, (double)out[i].ns / 1e6, out[i].promoted ? " promoted" : "");
  for (size_t i = 0; i < n; i++) act(s, &out[i]);
  return wake;
}

/* Until all requests have ended. */
static void run_loop(loop *s) {
  for (uint32_t step = 0; step < 100000; step++) {
    int64_t wake = decide(s), next = SCHED_NEVER;
    bool open = false;
    for (uint32_t i = 0; i < s->n; i++) {
      open = open || s->jobs[i].r.state != SCHED_ENDED;
      if (s->jobs[i].r.arrival_ns > s->now && s->jobs[i].r.arrival_ns < next)
        next = s->jobs[i].r.arrival_ns;
    }
    if (!open) return;
    if (wake < next) next = wake;
    flight *f = s->running >= 0 ? &s->flights[s->running] : NULL;
    int64_t done = f ? s->now + f->left_ns : SCHED_NEVER;
    if (done < next) next = done;
    if (s->stop_at < next) next = s->stop_at;
    if (next == SCHED_NEVER) fail_msg("nothing goes on at %lld ms", (long long)(s->now / MS));
    if (next < s->now) next = s->now;
    if (f) {
      f->left_ns -= next - s->now;
      s->busy_ns += next - s->now;
    }
    s->now = next;
    if (!f) continue;
    if (!f->left_ns) {
      release(s, f, true);
    } else if (s->stop_at <= s->now) {
      f->l.state = SCHED_STOPPED;
      f->l.done_ns += s->now - f->l.start_ns;
    } else {
      continue;
    }
    s->running = -1;
    s->stop_at = SCHED_NEVER;
  }
  fail_msg("no end");
}

static void background_alone(void **state) {
  (void)state;
  loop s;
  loop_begin(&s);
  for (int i = 0; i < 6; i++) add(&s, SCHED_PROACTIVE, s.now, 300, 40);
  run_loop(&s);
  for (int i = 0; i < 6; i++) assert_int_equal(s.jobs[i].made, 40);
  /* six prompts of a span and a rest, then 39 iterations of six rows and less than ten more */
  int64_t prompts = 6 * (9 * MS + 128 * MS + 9 * MS + 22 * MS), rows = 39 * 15 * MS;
  assert_true(s.now - SECOND < prompts + rows + 10 * 16 * MS);
  assert_true(s.busy_ns == s.now - SECOND);
}

static void a_person_does_not_wait(void **state) {
  (void)state;
  loop s;
  loop_begin(&s);
  for (int i = 0; i < 6; i++) add(&s, SCHED_PROACTIVE, s.now, 1000, 64);
  add(&s, SCHED_REACTIVE, s.now + 700 * MS, 160, 48);
  add(&s, SCHED_REACTIVE, s.now + 4000 * MS, 160, 48);
  run_loop(&s);
  for (uint32_t i = 6; i < 8; i++) {
    const job *j = &s.jobs[i];
    int64_t alone_first = 9 * MS + 80 * MS, alone = alone_first + 47 * 10 * MS;
    int64_t first = j->first_ns - j->r.arrival_ns, all = j->end_ns - j->r.arrival_ns;
    print_message("first %.1f all %.1f (alone %.1f) gap %.1f ms\n", (double)first / 1e6,
                  (double)all / 1e6, (double)alone / 1e6, (double)j->largest_gap_ns / 1e6);
    assert_true(first <= alone_first + 2 * MS);
    assert_true(all <= alone * 120 / 100 + 20 * MS);
    assert_true(j->largest_gap_ns <= 30 * MS + MS);
  }
  for (int i = 0; i < 6; i++) assert_int_equal(s.jobs[i].made, 64);
  print_message("busy %.3f, piggybacked %d, stops %d, drops %d\n",
                (double)s.busy_ns / (double)(s.now - SECOND), (int)s.memory.piggybacked,
                (int)s.memory.preemptions, (int)s.memory.drops);
}

static void saturated_by_people_the_background_moves(void **state) {
  (void)state;
  loop s;
  loop_begin(&s);
  s.config.age_limit_ns = 2 * SECOND;
  s.config.ttft_target_ns = 100 * SECOND;
  for (int i = 0; i < 3; i++) add(&s, SCHED_PROACTIVE, s.now, 300, 20);
  for (int i = 0; i < 40; i++) add(&s, SCHED_REACTIVE, s.now + i * 500 * MS, 400, 40);
  run_loop(&s);
  for (int i = 0; i < 3; i++)
    print_message("P %d: first %.1f s, all %.1f s\n", i,
                  (double)(s.jobs[i].first_ns - SECOND) / 1e9,
                  (double)(s.jobs[i].end_ns - SECOND) / 1e9);
  print_message("all %.1f s, X earned %.3f s, spent %.3f s\n", (double)(s.now - SECOND) / 1e9,
                (double)s.memory.x_earned_ns / 1e9, (double)s.memory.x_spent_ns / 1e9);
  for (uint32_t i = 0; i < s.n; i++) assert_false(s.jobs[i].refused);
  assert_true(s.memory.x_spent_ns <= s.memory.x_earned_ns + 40 * MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(background_alone),
                                     cmocka_unit_test(a_person_does_not_wait),
                                     cmocka_unit_test(saturated_by_people_the_background_moves)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
