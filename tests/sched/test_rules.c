/* SPDX-License-Identifier: Apache-2.0 */
/* Order of work, preemption, iterations and aging, one rule a test; admission is test_admit.c's.
 * Numbers of sections: scheduling.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "sched/support_scene.h"

static scene s;

static int begin(void **state) {
  (void)state;
  scene_begin(&s);
  return 0;
}

/* ---- 1: bands ---- */

static void bands_by_class_and_parent(void **state) {
  (void)state;
  sched_request r = {.class_ = SCHED_REACTIVE};
  assert_int_equal(sched_band_of(&r), SCHED_BAND_R);
  r.child = 1;
  assert_int_equal(sched_band_of(&r), SCHED_BAND_I);
  r.may_react = 1;
  assert_int_equal(sched_band_of(&r), SCHED_BAND_R);
  r = (sched_request){.class_ = SCHED_PROACTIVE, .child = 1, .parent_waits = 1, .may_react = 1};
  assert_int_equal(sched_band_of(&r), SCHED_BAND_P);
  r = (sched_request){.class_ = SCHED_INHERITED, .child = 1};
  assert_int_equal(sched_band_of(&r), SCHED_BAND_P);
  r.parent_waits = 1;
  assert_int_equal(sched_band_of(&r), SCHED_BAND_I);
}

static void a_lift_puts_background_before_background(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 50);
  scene_prefill(&s, SCHED_PROACTIVE, 900)->lift = SCHED_BAND_R;
  scene_decide(&s);
  const sched_action *a = scene_find(&s, SCHED_LAUNCH, 2);
  assert_non_null(a);
  assert_int_equal(a->reason, SCHED_SLOT_PREFILL);
}

/* ---- 2: order of work ---- */

static void a_running_background_span_is_stopped_for_a_prompt(void **state) {
  (void)state;
  scene_launch(&s, SCHED_RUNNING, scene_prefill(&s, SCHED_PROACTIVE, 900), 256, 130 * MS,
               SCHED_SLOT_PREFILL_P);
  scene_prefill(&s, SCHED_REACTIVE, 100);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_STOP, 0));
  assert_int_equal(scene_count(&s, SCHED_LAUNCH), 0);
  assert_int_equal(s.memory.preemptions, 1);
}

static void it_stays_where_it_is_and_goes_on_afterwards(void **state) {
  (void)state;
  sched_request *p = scene_prefill(&s, SCHED_PROACTIVE, 900);
  scene_launch(&s, SCHED_STOPPED, p, 256, 130 * MS, SCHED_SLOT_PREFILL_P);
  sched_request *r = scene_prefill(&s, SCHED_REACTIVE, 100);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
  assert_int_equal(scene_find(&s, SCHED_LAUNCH, 2)->launch, 1); /* the lowest free id */
  assert_int_equal(scene_count(&s, SCHED_DROP), 0);
  r->state = SCHED_ENDED;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
}

static void a_stop_is_not_asked_for_twice(void **state) {
  (void)state;
  scene_launch(&s, SCHED_STOPPING, scene_prefill(&s, SCHED_PROACTIVE, 900), 256, 130 * MS,
               SCHED_SLOT_PREFILL_P);
  scene_prefill(&s, SCHED_REACTIVE, 100);
  scene_decide(&s);
  assert_int_equal(s.n, 0);
}

static void decode_interrupts_a_reactive_prompt_when_due(void **state) {
  (void)state;
  sched_request *row = scene_decode(&s, SCHED_REACTIVE);
  scene_launch(&s, SCHED_RUNNING, scene_prefill(&s, SCHED_REACTIVE, 900), 256, 130 * MS,
               SCHED_SLOT_PREFILL)
      ->start_ns -= 5 * MS;
  scene_decide(&s);
  /* G = 2 * 10 + 0.5; the iteration takes 10, and a third of it behind a prompt; the stop 0.5 */
  assert_int_equal(s.n, 0);
  assert_int_equal(s.wake, row->emit_ns + 2 * 10 * MS - 10 * MS * 4 / 3);
  s.now = s.wake;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_STOP, 0));
  s.launches[0].state = SCHED_STOPPED;
  s.launches[0].done_ns = 40 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
  assert_null(scene_find(&s, SCHED_RESUME, 0));
  row->emit_ns = s.now;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
}

/* After an iteration it is the prompt's turn, else it might never be. */
static void a_prompt_has_its_turn_however_late_the_decision(void **state) {
  (void)state;
  sched_request *row = scene_decode(&s, SCHED_REACTIVE);
  sched_launch_view *l = scene_launch(&s, SCHED_STOPPED, scene_prefill(&s, SCHED_REACTIVE, 900),
                                      256, 130 * MS, SCHED_SLOT_PREFILL);
  row->emit_ns = s.now - 40 * MS;
  l->start_ns = s.now - 50 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
  assert_in_range(s.memory.until_ns[0], s.now + 1, s.now + 5 * MS);
  l->start_ns = s.now - 30 * MS;
  s.memory = (sched_memory){0};
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
}

static void shortest_prompt_first_r_before_i(void **state) {
  (void)state;
  sched_request *child = scene_prefill(&s, SCHED_REACTIVE, 10);
  child->child = 1;
  scene_prefill(&s, SCHED_REACTIVE, 800);
  scene_prefill(&s, SCHED_REACTIVE, 300);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 3));
  s.requests[0].child = 0;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 1));
}

static void critical_before_others_lost_behind(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_REACTIVE, 100);
  sched_request *late = scene_prefill(&s, SCHED_REACTIVE, 400);
  late->first_deadline_ns = s.now + 700 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
  s.requests[0].first_deadline_ns = s.now + 10 * MS; /* cannot be met */
  late->first_deadline_ns = SCHED_NEVER;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
}

static void who_was_passed_over_goes_next(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_REACTIVE, 100);
  sched_request *old = scene_prefill(&s, SCHED_REACTIVE, 900); /* takes 458 ms */
  old->child = 1;
  old->waiting_ns = s.now - 999 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 1));
  old->waiting_ns = s.now - 1000 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
}

static void work_changes_hands_between_spans_only(void **state) {
  (void)state;
  scene_launch(&s, SCHED_STOPPED, scene_prefill(&s, SCHED_REACTIVE, 900), 256, 130 * MS,
               SCHED_SLOT_PREFILL);
  scene_prefill(&s, SCHED_REACTIVE, 10);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
}

static void a_stopped_iteration_is_finished_if_slack_pays_else_dropped(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  sched_launch_view *l = scene_launch(&s, SCHED_STOPPED, NULL, 0, 20 * MS, SCHED_SLOT_DECODE_P);
  for (int i = 0; i < 11; i++) scene_row(&s, l, scene_decode(&s, SCHED_PROACTIVE));
  l->done_ns = 19 * MS; /* 1 ms is left: e * S = 1.5 ms */
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
  assert_int_equal(s.memory.pays[0], SCHED_PAYS_CREDIT);
  l->done_ns = 15 * MS;
  s.memory = (sched_memory){.decisions = 1, .then_ns = s.now};
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_DROP, 0));
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2); /* and one of its rows rides at once */
  assert_int_equal(s.memory.drops, 1);
}

static void background_prefills_shortest_first_until_fill(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 600);
  scene_prefill(&s, SCHED_PROACTIVE, 200);
  for (int i = 0; i < 15; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
  scene_decode(&s, SCHED_PROACTIVE); /* 16 of 16 places decode */
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 16);
}

static void no_prompt_is_computed_far_ahead_of_decode(void **state) {
  (void)state;
  s.view.n_devices = 2;
  s.devices[0].decodes = 0;
  s.devices[1].prefills = 0;
  scene_prefill(&s, SCHED_PROACTIVE, 200);
  for (int i = 0; i < 15; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_LAUNCH), 2);
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_LAUNCH), 1);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 16);
}

static void no_launch_into_a_held_slot(void **state) {
  (void)state;
  sched_launch_view *l = scene_launch(&s, SCHED_STOPPED, NULL, 0, 20 * MS, SCHED_SLOT_DECODE_P);
  scene_row(&s, l, scene_decode(&s, SCHED_PROACTIVE));
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s); /* it is finished before another row runs */
  assert_int_equal(s.n, 1);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
}

/* ---- 3: one iteration ---- */

static void background_rows_join_within_the_slack(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  for (int i = 0; i < 9; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s); /* 1.15 * 10 = 11.5: one more row */
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2);
  assert_int_equal(s.memory.bcap, 2);
  assert_int_equal(s.memory.term, SCHED_TERM_SLACK);
  assert_int_equal(s.memory.piggybacked, 1);
  assert_int_equal(s.memory.pass1_ns, 10 * MS);
  assert_in_range(s.memory.credit_ns, MS / 2 - 1000, MS / 2); /* 11.5 - 11 */
}

/* By value alone the row of the last iteration would come first: one instead of two. */
static void of_two_orders_the_better_one(void **state) {
  (void)state;
  s.cost[0].gen_kv_ns_per_mib = MS;
  scene_decode(&s, SCHED_REACTIVE)->child = 1;
  sched_request *heavy = scene_decode(&s, SCHED_PROACTIVE);
  heavy->kv_bytes = 4 << 20; /* 1 + 4 of the 5 ms */
  heavy->in_last = 1;
  for (int i = 0; i < 2; i++) scene_decode(&s, SCHED_PROACTIVE)->kv_bytes = 1 << 20;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 3);
  assert_null(scene_find(&s, SCHED_JOIN, 2));
}

static void a_child_alone_leaves_more_slack(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE)->child = 1;
  for (int i = 0; i < 9; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s); /* 1.5 * 10 = 15: five more rows */
  assert_int_equal(scene_count(&s, SCHED_JOIN), 6);
}

static void credit_lets_a_step_grow_to_twice_its_time(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  for (int i = 0; i < 20; i++) scene_decode(&s, SCHED_PROACTIVE);
  s.memory.credit_ns = 20 * MS;
  s.memory.pass1_ns = 10 * MS;
  s.requests[0].emit_ns = s.now;
  scene_decide(&s); /* 31.5, but 20 ms at most: 11 rows in all */
  assert_int_equal(scene_count(&s, SCHED_JOIN), 11);
  assert_int_equal(s.memory.bcap, 2);     /* what the slack allows */
  s.requests[0].emit_ns = s.now - 5 * MS; /* 15 ms are left of two iterations */
  s.memory.credit_ns = 20 * MS;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 6);
}

static void zero_slack_means_reactive_rows_alone(void **state) {
  (void)state;
  for (int i = 1; i < COST_POINTS; i++) s.cost[0].gen[i] += 8 * MS; /* a step right above one */
  scene_decode(&s, SCHED_REACTIVE);
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 1);
  assert_int_equal(s.memory.bcap, 1);
  /* what is saved pays a row every few iterations: 9 ms, 1.5 ms each time */
  uint32_t joined = 0;
  for (int i = 0; i < 13; i++) {
    s.now += 10 * MS;
    s.requests[0].emit_ns = s.now;
    scene_decide(&s);
    joined += scene_count(&s, SCHED_JOIN) == 2;
  }
  assert_int_equal(joined, 2);
}

static void a_target_bounds_too(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE)->child = 1;
  for (int i = 0; i < 9; i++) scene_decode(&s, SCHED_PROACTIVE);
  s.config.tpot_target_ns = 12 * MS;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 3);
  assert_int_equal(s.memory.term, SCHED_TERM_TARGET);
}

static void a_fixed_cap_counts_rows(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  for (int i = 0; i < 9; i++) scene_decode(&s, SCHED_PROACTIVE);
  s.config.bcap = 3;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 3);
  assert_int_equal(s.memory.term, SCHED_TERM_FIXED);
}

static void terms_fill_and_memory(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE)->child = 1;
  sched_request *p = scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(s.memory.term, SCHED_TERM_FILL);
  p->need[0] = 1;
  s.view.pages_free[0] = 0;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 1);
  assert_int_equal(s.memory.term, SCHED_TERM_MEMORY);
}

static void prompt_rows_ride(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) s.cost[0].prompt[i] = cost_rows[i] * MS / 4;
  scene_decode(&s, SCHED_REACTIVE);
  scene_prefill(&s, SCHED_PROACTIVE, 900);
  scene_decide(&s); /* 1.5 ms: three rows are 0.75, a fourth 1 ms, the next 5 */
  const sched_action *a = scene_find(&s, SCHED_LAUNCH, SCHED_NONE);
  assert_int_equal(a->request, 2);
  assert_int_equal(a->rows, 4);
  assert_int_equal(a->reason, SCHED_SLOT_DECODE | SCHED_SLOT_PREFILL_P);
  /* not beside a span that is stopped in that slot */
  scene_launch(&s, SCHED_STOPPED, &s.requests[1], 256, 130 * MS, SCHED_SLOT_PREFILL_P);
  s.memory = (sched_memory){0};
  scene_decide(&s);
  assert_int_equal(scene_find(&s, SCHED_LAUNCH, SCHED_NONE)->rows, 0);
}

static void a_stopped_span_waits_while_rows_are_due(void **state) {
  (void)state;
  sched_request *row = scene_decode(&s, SCHED_REACTIVE);
  scene_launch(&s, SCHED_STOPPED, scene_prefill(&s, SCHED_PROACTIVE, 900), 256, 130 * MS,
               SCHED_SLOT_PREFILL_P);
  s.memory.pass1_ns = 10 * MS;
  row->emit_ns = s.now;
  s.memory.credit_ns = 9 * MS; /* saved by iterations that were shorter than they might have been */
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
  assert_in_range(s.memory.until_ns[0], s.now + 1, s.now + 9 * MS);
  assert_int_equal(s.memory.pays[0], SCHED_PAYS_CREDIT);
  s.memory = (sched_memory){.pass1_ns = 10 * MS};
  scene_decide(&s);
  assert_null(scene_find(&s, SCHED_RESUME, 0));
  assert_null(scene_find(&s, SCHED_DROP, 0));
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
  row->held = 1;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
}

static void rows_beyond_a_launch_take_turns(void **state) {
  (void)state;
  s.config.decode_rows = 2;
  for (int i = 0; i < 4; i++) scene_decode(&s, SCHED_REACTIVE)->waiting_ns = s.now - (i % 2) * MS;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2);
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
  assert_non_null(scene_find(&s, SCHED_JOIN, 4));
}

static void background_alone_takes_the_best_prefix(void **state) {
  (void)state;
  for (int i = 8; i < COST_POINTS; i++) s.cost[0].gen[i] += 40 * MS; /* a step above 16 rows */
  s.config.places = 32;
  for (int i = 0; i < 20; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 16);
}

/* ---- 4: aging ---- */

static void who_starves_is_promoted_one_of_each(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    scene_prefill(&s, SCHED_PROACTIVE, 500 - i)->waiting_ns = s.now - 40 * SECOND - i;
  for (int i = 0; i < 2; i++)
    scene_decode(&s, SCHED_PROACTIVE)->waiting_ns = s.now - 35 * SECOND - i;
  scene_decode(&s, SCHED_REACTIVE);
  scene_decide(&s);
  assert_int_equal(s.memory.promoted_prefill, 3); /* id 2: the longest */
  assert_int_equal(s.memory.promoted_row, 5);
  assert_int_equal(s.memory.promotions, 2);
}

static void x_pays_a_promoted_row(void **state) {
  (void)state;
  for (int i = 1; i < COST_POINTS; i++) s.cost[0].gen[i] += 8 * MS; /* no slack */
  scene_decode(&s, SCHED_REACTIVE);
  scene_decode(&s, SCHED_PROACTIVE)->waiting_ns = s.now - 31 * SECOND;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 1); /* X is empty */
  s.memory.x_ns = 5 * MS;
  scene_decide(&s);
  const sched_action *a = scene_find(&s, SCHED_JOIN, 2);
  assert_non_null(a);
  assert_true(a->promoted);
  assert_int_equal(s.memory.x_ns, 5 * MS - 9 * MS);
  assert_int_equal(s.memory.promoted_tokens, 31);
}

static void x_pays_a_promoted_prompt_for_d(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 900)->waiting_ns = s.now - 31 * SECOND;
  scene_prefill(&s, SCHED_REACTIVE, 500)->arrival_ns = s.now - SECOND;
  s.memory.x_ns = 5 * MS;
  scene_decide(&s);
  const sched_action *a = scene_find(&s, SCHED_LAUNCH, 1);
  assert_non_null(a);
  assert_true(a->promoted);
  assert_int_equal(a->reason, SCHED_SLOT_PREFILL_PROMOTED);
  assert_int_equal(s.memory.pays[0], SCHED_PAYS_X);
  assert_int_equal(s.wake, s.now + 10 * MS);
  scene_launch(&s, SCHED_RUNNING, &s.requests[0], 256, 130 * MS, SCHED_SLOT_PREFILL_PROMOTED);
  s.now += 10 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_STOP, 0));
  assert_in_range(s.memory.x_ns + 10 * MS, 5 * MS, 5 * MS + 501000); /* refilled at 5 % */
}

static void but_not_before_a_persons_first_launch(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 900)->waiting_ns = s.now - 31 * SECOND;
  sched_request *r = scene_prefill(&s, SCHED_REACTIVE, 500);
  r->arrival_ns = r->waiting_ns = s.now - MS;
  s.memory.x_ns = 40 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
}

static void promotion_is_free_when_nothing_reactive_runs(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 100);
  scene_prefill(&s, SCHED_PROACTIVE, 900)->waiting_ns = s.now - 31 * SECOND;
  s.memory.x_ns = -5 * MS;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
  assert_int_equal(s.memory.pays[0], SCHED_PAYS_NOTHING);
}

static void x_is_refilled_while_reactive_work_is_runnable(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  scene_decide(&s);
  s.now += 100 * MS;
  scene_decide(&s);
  assert_in_range(s.memory.x_ns, 5 * MS - 5000, 5 * MS);
  s.requests[0].held = 1;
  s.now += 100 * MS;
  scene_decide(&s);
  int64_t x = s.memory.x_ns;
  s.now += 100 * SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.x_ns, x);
  s.requests[0].held = 0;
  scene_decide(&s);
  s.now += 100 * SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.x_ns, 40 * MS); /* 4 * D */
}

/* ---- two devices ---- */

static void static_shapes_leave_odd_rows_to_the_other(void **state) {
  (void)state;
  s.view.n_devices = 2;
  s.devices[0].decodes = 0;
  s.devices[0].step = 32;
  s.devices[0].can_stop = s.devices[1].can_stop = 0;
  for (int i = 0; i < COST_POINTS; i++) s.cost[1].prompt[i] *= 3;
  sched_request *r = scene_prefill(&s, SCHED_REACTIVE, 75);
  scene_decide(&s);
  const sched_action *a = scene_find(&s, SCHED_LAUNCH, 1);
  assert_int_equal(a->device, 0);
  assert_int_equal(a->rows, 64);
  r->prompt_left = 11;
  scene_decide(&s);
  a = scene_find(&s, SCHED_LAUNCH, 1);
  assert_int_equal(a->device, 1);
  assert_int_equal(a->rows, 11);
}

static void what_cannot_stop_waits_for_what_is_needed_soon(void **state) {
  (void)state;
  s.view.n_devices = 2;
  s.devices[0].decodes = 0;
  s.devices[0].can_stop = s.devices[1].can_stop = 0;
  sched_request *r = scene_prefill(&s, SCHED_REACTIVE, 256);
  sched_launch_view *l = scene_launch(&s, SCHED_RUNNING, r, 256, 130 * MS, SCHED_SLOT_PREFILL);
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s); /* 130 ms are left */
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
  l->done_ns = 125 * MS;
  scene_decide(&s); /* 5 ms are left, the launch takes 10 */
  assert_null(scene_find(&s, SCHED_JOIN, 2));
  l->done_ns = 0;
  r->blocked_ns = 10 * MS; /* it has waited D already */
  scene_decide(&s);
  assert_null(scene_find(&s, SCHED_JOIN, 2));
}

static void background_that_would_slow_the_other_device_waits(void **state) {
  (void)state;
  s.view.n_devices = 2;
  s.view.bandwidth = 100000000000;
  s.devices[0].decodes = 0;
  for (int d = 0; d < 2; d++) s.cost[d].weight_bytes = 800000000; /* in 10 ms: 80 GB/s */
  sched_launch_view *l = scene_launch(&s, SCHED_RUNNING, NULL, 0, 10 * MS, SCHED_SLOT_DECODE);
  l->device = 1;
  scene_row(&s, l, scene_decode(&s, SCHED_REACTIVE));
  scene_prefill(&s, SCHED_PROACTIVE, 16);
  scene_decide(&s);
  assert_null(scene_find(&s, SCHED_LAUNCH, 2));
  s.view.bandwidth = 200000000000;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_LAUNCH, 2));
}

/* ---- 12: same inputs, same decisions ---- */

static void order_of_arrays_says_nothing(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++)
    scene_decode(&s, SCHED_PROACTIVE)->kv_bytes = (uint64_t)(i * 7 % 4) << 20;
  for (int i = 0; i < 3; i++) scene_decode(&s, SCHED_REACTIVE);
  for (int i = 0; i < 4; i++) scene_queued(&s, i % 2 ? SCHED_REACTIVE : SCHED_PROACTIVE, 100, 10);
  scene_launch(&s, SCHED_STOPPED, scene_prefill(&s, SCHED_PROACTIVE, 900), 256, 130 * MS, 2);
  sched_launch_view *l = scene_launch(&s, SCHED_STOPPED, NULL, 0, 20 * MS, SCHED_SLOT_DECODE_P);
  scene_row(&s, l, scene_decode(&s, SCHED_PROACTIVE));
  scene first = s;
  first.view.config = &first.config;
  first.view.requests = first.requests;
  first.view.launches = first.launches;
  scene_decide(&first);
  assert_true(first.n > 3);
  uint32_t random = 1;
  for (int turn = 0; turn < 50; turn++) {
    scene other = s;
    for (uint32_t i = s.view.n_requests; i > 1; i--) {
      random = random * 1664525 + 1013904223;
      uint32_t k = (random >> 8) % i;
      sched_request r = other.requests[k];
      other.requests[k] = other.requests[i - 1];
      other.requests[i - 1] = r;
    }
    other.launches[0] = s.launches[1];
    other.launches[1] = s.launches[0];
    other.view.config = &other.config;
    other.view.requests = other.requests;
    other.view.launches = other.launches;
    scene_decide(&other);
    assert_int_equal(other.n, first.n);
    assert_memory_equal(other.actions, first.actions, sizeof first.actions);
    assert_memory_equal(&other.memory, &first.memory, sizeof first.memory);
    assert_int_equal(other.wake, first.wake);
  }
}

static void what_does_not_fit_is_said_the_next_time(void **state) {
  (void)state;
  for (int i = 0; i < 8; i++) scene_decode(&s, SCHED_PROACTIVE)->cancelled = 1;
  s.capacity = 3;
  scene_decide(&s);
  assert_int_equal(s.n, 3);
  assert_int_equal(s.wake, s.now);
  s.capacity = 0;
  scene_decide(&s);
  assert_int_equal(s.n, 0);
}

static void nothing_to_do(void **state) {
  (void)state;
  scene_decide(&s);
  assert_int_equal(s.n, 0);
  assert_int_equal(s.wake, SCHED_NEVER);
}

#define RULE(name) cmocka_unit_test_setup(name, begin)

int main(void) {
  const struct CMUnitTest tests[] = {
      RULE(bands_by_class_and_parent),
      RULE(a_lift_puts_background_before_background),
      RULE(a_running_background_span_is_stopped_for_a_prompt),
      RULE(it_stays_where_it_is_and_goes_on_afterwards),
      RULE(a_stop_is_not_asked_for_twice),
      RULE(decode_interrupts_a_reactive_prompt_when_due),
      RULE(a_prompt_has_its_turn_however_late_the_decision),
      RULE(shortest_prompt_first_r_before_i),
      RULE(critical_before_others_lost_behind),
      RULE(who_was_passed_over_goes_next),
      RULE(work_changes_hands_between_spans_only),
      RULE(a_stopped_iteration_is_finished_if_slack_pays_else_dropped),
      RULE(background_prefills_shortest_first_until_fill),
      RULE(no_prompt_is_computed_far_ahead_of_decode),
      RULE(no_launch_into_a_held_slot),
      RULE(background_rows_join_within_the_slack),
      RULE(of_two_orders_the_better_one),
      RULE(a_child_alone_leaves_more_slack),
      RULE(credit_lets_a_step_grow_to_twice_its_time),
      RULE(zero_slack_means_reactive_rows_alone),
      RULE(a_target_bounds_too),
      RULE(a_fixed_cap_counts_rows),
      RULE(terms_fill_and_memory),
      RULE(prompt_rows_ride),
      RULE(a_stopped_span_waits_while_rows_are_due),
      RULE(rows_beyond_a_launch_take_turns),
      RULE(background_alone_takes_the_best_prefix),
      RULE(who_starves_is_promoted_one_of_each),
      RULE(x_pays_a_promoted_row),
      RULE(x_pays_a_promoted_prompt_for_d),
      RULE(but_not_before_a_persons_first_launch),
      RULE(promotion_is_free_when_nothing_reactive_runs),
      RULE(x_is_refilled_while_reactive_work_is_runnable),
      RULE(static_shapes_leave_odd_rows_to_the_other),
      RULE(what_cannot_stop_waits_for_what_is_needed_soon),
      RULE(background_that_would_slow_the_other_device_waits),
      RULE(order_of_arrays_says_nothing),
      RULE(what_does_not_fit_is_said_the_next_time),
      RULE(nothing_to_do),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
