/* SPDX-License-Identifier: Apache-2.0 */
/* Ends, admission, refusals, pages and pressure, one rule a test. Numbers of sections:
 * scheduling.md. */
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

static uint8_t reason_of(uint32_t id) {
  const sched_action *a = scene_find(&s, SCHED_REFUSE, id);
  return a ? a->reason : SCHED_REASON_NONE;
}

/* ---- ends ---- */

static void what_is_cancelled_or_late_ends(void **state) {
  (void)state;
  scene_queued(&s, SCHED_REACTIVE, 100, 10)->cancelled = 1;
  scene_decode(&s, SCHED_PROACTIVE)->done_deadline_ns = s.now;
  scene_prefill(&s, SCHED_PROACTIVE, 10)->first_deadline_ns = s.now - 1;
  scene_decode(&s, SCHED_PROACTIVE)->first_deadline_ns = s.now - 1; /* was met */
  scene_decide(&s);
  assert_int_equal(scene_find(&s, SCHED_EXPIRE, 1)->reason, SCHED_REASON_CANCELLED);
  assert_int_equal(scene_find(&s, SCHED_EXPIRE, 2)->reason, SCHED_REASON_DEADLINE);
  assert_int_equal(scene_find(&s, SCHED_EXPIRE, 3)->reason, SCHED_REASON_DEADLINE);
  assert_null(scene_find(&s, SCHED_EXPIRE, 4));
}

static void a_deadline_wakes(void **state) {
  (void)state;
  scene_decode(&s, SCHED_PROACTIVE)->done_deadline_ns = s.now + 7 * MS;
  scene_decide(&s);
  assert_int_equal(s.wake, s.now + 7 * MS);
}

static void alone_in_its_launch_it_is_stopped_else_waited_for(void **state) {
  (void)state;
  sched_launch_view *l = scene_launch(&s, SCHED_RUNNING, NULL, 0, 20 * MS, SCHED_SLOT_DECODE_P);
  sched_request *one = scene_decode(&s, SCHED_PROACTIVE), *two = scene_decode(&s, SCHED_PROACTIVE);
  scene_row(&s, l, one);
  scene_row(&s, l, two);
  one->cancelled = 1;
  scene_decide(&s);
  assert_int_equal(s.n, 0);
  two->cancelled = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_STOP), 1);
  l->state = SCHED_STOPPED;
  two->cancelled = 0; /* nothing of it was emitted, so the other begins again */
  scene_decide(&s);
  assert_int_equal(s.actions[0].kind, SCHED_DROP);
  assert_non_null(scene_find(&s, SCHED_EXPIRE, 1));
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
}

static void the_row_of_a_person_is_not_lost_for_another(void **state) {
  (void)state;
  sched_launch_view *l = scene_launch(&s, SCHED_STOPPED, NULL, 0, 20 * MS, SCHED_SLOT_DECODE);
  scene_row(&s, l, scene_decode(&s, SCHED_REACTIVE));
  sched_request *r = scene_decode(&s, SCHED_REACTIVE);
  scene_row(&s, l, r);
  r->cancelled = 1;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_RESUME, 0));
  assert_null(scene_find(&s, SCHED_EXPIRE, 2));
}

static void what_a_cancelled_person_leaves_is_background(void **state) {
  (void)state;
  sched_launch_view *l =
      scene_launch(&s, SCHED_STOPPED, NULL, 0, 20 * MS, SCHED_SLOT_DECODE | SCHED_SLOT_DECODE_P);
  sched_request *r = scene_decode(&s, SCHED_REACTIVE);
  scene_row(&s, l, r);
  scene_row(&s, l, scene_decode(&s, SCHED_PROACTIVE));
  r->cancelled = 1;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_DROP, 0));
  assert_non_null(scene_find(&s, SCHED_EXPIRE, 1));
}

/* Who waits for another's prefix is judged as he arrives, not seconds later when pressure has
 * risen; and waits, though places may be free. */
static void who_is_held_in_the_queue_is_judged_at_once(void **state) {
  (void)state;
  s.config.queue_max = 1;
  s.config.places = 3;
  scene_prefill(&s, SCHED_PROACTIVE, 500);
  sched_request *held[2] = {scene_queued(&s, SCHED_PROACTIVE, 500, 9),
                            scene_queued(&s, SCHED_PROACTIVE, 500, 9)};
  held[0]->held = held[1]->held = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_REFUSE), 0);
  for (int i = 0; i < 2; i++) scene_queued(&s, SCHED_PROACTIVE, 500, 9)->held = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_REFUSE), 1); /* three places and one that waits */
  assert_non_null(scene_find(&s, SCHED_REFUSE, 5));
  s.view.n_requests -= 2;
  s.memory.level = 3;
  held[0]->judged = 1;
  held[1]->judged = 0;
  scene_decide(&s);
  assert_null(scene_find(&s, SCHED_REFUSE, 2));
  assert_non_null(scene_find(&s, SCHED_REFUSE, 3));
}

static void who_is_suspended_by_its_client_keeps_no_slot(void **state) {
  (void)state;
  sched_request *r = scene_prefill(&s, SCHED_PROACTIVE, 500);
  scene_launch(&s, SCHED_STOPPED, r, 256, 130 * MS, SCHED_SLOT_PREFILL_P);
  r->held = 1;
  scene_decide(&s);
  assert_int_equal(s.n, 1);
  assert_non_null(scene_find(&s, SCHED_DROP, 0));
}

/* ---- 5: admission ---- */

static void who_is_admitted_is_waited_for_once(void **state) {
  (void)state;
  scene_decode(&s, SCHED_PROACTIVE);
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_ADMIT, 2));
  assert_int_equal(s.n, 1);
  assert_int_equal(s.wake, s.now);
  scene_decide(&s); /* the runtime could not */
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
}

static void bands_are_admitted_in_order(void **state) {
  (void)state;
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  scene_queued(&s, SCHED_REACTIVE, 100, 10)->child = 1;
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  s.view.pages_free[0] = 20;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 2);
  assert_int_equal(s.actions[0].request, 3);
  assert_int_equal(s.actions[1].request, 2);
}

static void nobody_is_overtaken(void **state) {
  (void)state;
  scene_queued(&s, SCHED_REACTIVE, 100, 10)->need[0] = 50;
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  s.view.pages_free[0] = 40;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
}

static void background_leaves_the_reserve(void **state) {
  (void)state;
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  s.view.pages_free[0] = 29;
  s.config.reserve[0] = 20;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
  s.view.pages_free[0] = 30;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
  /* What nobody else has is there for one who needs nearly all. */
  s.requests[0].need[0] = 995;
  s.view.pages_free[0] = 999;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
  s.view.pages_free[0] = 1000;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
}

static void what_never_fits_is_refused(void **state) {
  (void)state;
  sched_request *r = scene_queued(&s, SCHED_REACTIVE, 100, 10);
  r->most[0] = 1001;
  r->judged = 1;
  scene_decide(&s);
  assert_int_equal(reason_of(1), SCHED_REASON_PAGES);
}

static void a_person_takes_the_place_of_background(void **state) {
  (void)state;
  s.config.places = 3;
  for (int i = 0; i < 3; i++) scene_decode(&s, SCHED_PROACTIVE);
  s.requests[1].recompute_ns = 50 * MS; /* cheapest per page */
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_decide(&s);
  assert_int_equal(s.actions[0].kind, SCHED_SUSPEND);
  assert_int_equal(s.actions[0].request, 2);
  assert_int_equal(s.actions[1].kind, SCHED_ADMIT);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 1);
  s.requests[3].class_ = SCHED_PROACTIVE; /* background waits */
  s.memory = (sched_memory){0};
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND) + scene_count(&s, SCHED_ADMIT), 0);
}

/* Two places, both with people, and one waits: the background gets what nobody else can have, once
 * it has starved; and keeps it. */
static void who_has_starved_gets_a_place_of_its_own(void **state) {
  (void)state;
  s.config.places = 2;
  for (int i = 0; i < 2; i++) scene_decode(&s, SCHED_REACTIVE);
  scene_queued(&s, SCHED_REACTIVE, 10, 10)->judged = 1;
  sched_request *old = scene_queued(&s, SCHED_PROACTIVE, 10, 10);
  scene_queued(&s, SCHED_PROACTIVE, 10, 10);
  s.config.age_limit_ns = s.now - old->waiting_ns;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
  assert_int_equal(s.wake, s.now + 1);
  s.now++;
  s.config.reserve[0] = 500;
  s.view.pages_free[0] = 509; /* 10 of them for it */
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
  s.view.pages_free[0] = 510;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
  assert_non_null(scene_find(&s, SCHED_ADMIT, 4));
  assert_int_equal(s.memory.aged, 5);
  old->state = SCHED_PREFILL;
  old->need[0] = 0;
  old->holds[0] = 10;
  s.now += SECOND;
  scene_decide(&s); /* no place for people or the next one, and none is taken from it */
  assert_int_equal(scene_count(&s, SCHED_ADMIT) + scene_count(&s, SCHED_SUSPEND), 0);
  s.requests[0].state = SCHED_ENDED;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
  assert_non_null(scene_find(&s, SCHED_ADMIT, 3));
  s.requests[2].state = SCHED_DECODE;
  s.requests[2].need[0] = 0;
  s.view.pages_free[0] = 5; /* people want pages, and are not overtaken */
  sched_request *more = scene_queued(&s, SCHED_REACTIVE, 10, 10);
  more->need[0] = 12;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 0); /* a place is what it lacks as well */
  s.requests[1].state = SCHED_ENDED;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_SUSPEND, 4));
  assert_non_null(scene_find(&s, SCHED_ADMIT, 6));
  assert_int_equal(s.memory.aged, 0);
}

static void what_is_in_flight_is_stopped_first(void **state) {
  (void)state;
  s.config.places = 1;
  sched_launch_view *l = scene_launch(&s, SCHED_RUNNING, scene_prefill(&s, SCHED_PROACTIVE, 900),
                                      256, 130 * MS, SCHED_SLOT_PREFILL_P);
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_decide(&s);
  assert_int_equal(s.n, 1);
  assert_non_null(scene_find(&s, SCHED_STOP, 0));
  l->state = SCHED_STOPPED;
  scene_decide(&s);
  assert_int_equal(s.actions[0].kind, SCHED_DROP);
  assert_int_equal(s.actions[1].kind, SCHED_SUSPEND);
  assert_int_equal(s.actions[2].kind, SCHED_ADMIT);
}

static void pages_of_background_are_for_reactive_if_that_helps(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) scene_decode(&s, SCHED_PROACTIVE);
  scene_queued(&s, SCHED_REACTIVE, 100, 10)->need[0] = 30;
  s.view.pages_free[0] = 10;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 2);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
  s.requests[3].need[0] = 41; /* all would not do: nobody loses anything */
  s.memory = (sched_memory){0};
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 0);
}

static void the_queue_is_limited_newest_of_the_lowest_band(void **state) {
  (void)state;
  s.config.places = 0;
  s.config.queue_max = 3;
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_queued(&s, SCHED_REACTIVE, 100, 10);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_REFUSE), 1);
  assert_int_equal(reason_of(2), SCHED_REASON_QUEUE);
  const sched_action *a = scene_find(&s, SCHED_REFUSE, 2);
  assert_in_range(a->ns, SECOND, 60 * SECOND);
  s.requests[1].emitted = 1; /* it was suspended: its answer has begun */
  scene_decide(&s);
  assert_int_equal(reason_of(1), SCHED_REASON_QUEUE);
}

static void backlog_bounds_background(void **state) {
  (void)state;
  s.config.places = 0;
  s.config.backlog_max_ns = 10 * SECOND;
  for (int i = 0; i < 3; i++) scene_queued(&s, SCHED_PROACTIVE, 12000, 10); /* 6 s each */
  scene_queued(&s, SCHED_REACTIVE, 12000, 10);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_REFUSE), 1);
  assert_int_equal(reason_of(3), SCHED_REASON_BACKLOG);
  assert_in_range(s.memory.backlog_ns, 12 * SECOND, 13 * SECOND);
}

static void who_would_be_late_is_told_at_arrival_only(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_REACTIVE, 2000); /* 1.016 s before it */
  sched_request *r = scene_queued(&s, SCHED_REACTIVE, 1000, 10);
  r->first_deadline_ns = s.now + 1400 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(2), SCHED_REASON_LATE);
  r->first_deadline_ns = s.now + 1700 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(2), SCHED_REASON_NONE);
  r->first_deadline_ns = s.now + 1400 * MS;
  r->judged = 1;
  scene_decide(&s);
  assert_int_equal(reason_of(2), SCHED_REASON_NONE);
}

/* 1 s of work each: the second may just make it, the third will not. */
static void deadlines_order_who_waits(void **state) {
  (void)state;
  s.config.places = 1;
  for (int i = 0; i < 4; i++) scene_queued(&s, SCHED_PROACTIVE, 0, 100)->judged = 1;
  s.requests[1].done_deadline_ns = s.now + 1500 * MS;
  s.requests[2].done_deadline_ns = s.now + 900 * MS;
  static const uint32_t order[] = {2, 1, 4, 3};
  for (int i = 0; i < 4; i++) {
    scene_decide(&s);
    assert_int_equal(scene_count(&s, SCHED_ADMIT), 1);
    assert_non_null(scene_find(&s, SCHED_ADMIT, order[i]));
    s.requests[order[i] - 1].state = SCHED_ENDED;
  }
}

static void who_will_be_late_runs_last(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_PROACTIVE, 100)->done_deadline_ns = s.now + 100 * MS;
  scene_prefill(&s, SCHED_PROACTIVE, 200); /* shortest first, but for the deadline */
  scene_decide(&s);
  assert_int_equal(scene_find(&s, SCHED_LAUNCH, SCHED_NONE)->request, 2);
  s.requests[0].done_deadline_ns = SCHED_NEVER;
  scene_decide(&s);
  assert_int_equal(scene_find(&s, SCHED_LAUNCH, SCHED_NONE)->request, 1);
  s.view.n_requests = 0;
  s.config.decode_rows = 1;
  scene_decode(&s, SCHED_PROACTIVE)->done_deadline_ns = s.now + 100 * MS;
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_null(scene_find(&s, SCHED_JOIN, 1));
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
  s.requests[0].done_deadline_ns = SCHED_NEVER;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
}

/* Two requests of 100 tokens, 10 ms each: the second waits for the only place. */
static uint8_t told_after(uint32_t seconds, uint32_t tokens, bool cancelled) {
  scene_begin(&s);
  s.config.places = 1;
  sched_request *one = scene_decode(&s, SCHED_PROACTIVE);
  one->output_left = one->expected_left = 1100;
  sched_request *two = scene_queued(&s, SCHED_PROACTIVE, 0, 1000);
  two->judged = one->judged = 1;
  for (uint32_t i = 0; i <= seconds; i++) {
    one->output_left = one->expected_left = 1100 - tokens * i;
    one->cancelled = cancelled && i == seconds; /* and what it had to do was not done */
    scene_decide(&s);
    s.now += SECOND;
  }
  sched_request *three = scene_queued(&s, SCHED_PROACTIVE, 0, 10);
  three->done_deadline_ns = s.now + 25 * SECOND;
  scene_decide(&s);
  return reason_of(3);
}

static void the_pace_of_background_is_learned(void **state) {
  (void)state;
  assert_int_equal(told_after(5, 100, false), SCHED_REASON_NONE); /* as predicted: 1 s a second */
  assert_int_equal(told_after(5, 50, false), SCHED_REASON_LATE);  /* 18.5 s of work take 37 */
  assert_int_equal(told_after(0, 50, false), SCHED_REASON_NONE);  /* nothing is known yet */
  assert_int_equal(told_after(5, 70, true), SCHED_REASON_NONE);   /* 10.1 s of work take 15 */
  assert_int_equal(told_after(5, 10, true), SCHED_REASON_LATE);
  /* What its client has suspended says nothing. */
  assert_int_equal(told_after(5, 50, false), SCHED_REASON_LATE);
  s.requests[0].held = 1;
  for (int i = 0; i < 64; i++) {
    scene_decide(&s);
    s.now += SECOND;
  }
  s.requests[2].done_deadline_ns = s.now + 25 * SECOND;
  scene_decide(&s);
  assert_int_equal(reason_of(3), SCHED_REASON_NONE);
  /* Nobody waits any more: what was slow is forgotten. */
  s.view.n_requests = 1;
  s.requests[0].cancelled = 0;
  for (int i = 0; i < 64; i++) {
    scene_decide(&s);
    s.now += SECOND;
  }
  sched_request *two = scene_queued(&s, SCHED_PROACTIVE, 0, 10);
  two->done_deadline_ns = s.now + 12 * SECOND;
  scene_decide(&s);
  assert_int_equal(reason_of(2), SCHED_REASON_NONE);
}

/* Two places, both taken, 11 ms for a token of two: 1.1 s of its own, and half of that before one
 * of them is free. */
static void a_person_is_told_when_all_places_are_taken(void **state) {
  (void)state;
  s.config.places = 2;
  for (int i = 0; i < 2; i++) {
    sched_request *r = scene_decode(&s, SCHED_REACTIVE);
    r->output_left = r->expected_left = 500;
    r->judged = 1;
  }
  sched_request *r = scene_queued(&s, SCHED_REACTIVE, 0, 100);
  r->done_deadline_ns = s.now + 1651 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(3), SCHED_REASON_NONE);
  r->done_deadline_ns = s.now + 1649 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(3), SCHED_REASON_LATE);
  /* Tokens came half as fast as that for 4 s: prompts of others were between them. */
  s.memory = (sched_memory){0};
  r->done_deadline_ns = SCHED_NEVER;
  for (uint32_t i = 0; i < 5; i++) {
    for (int k = 0; k < 2; k++)
      s.requests[k].output_left = s.requests[k].expected_left = 500 - 45 * i;
    r->judged = 1;
    scene_decide(&s);
    s.now += SECOND;
  }
  sched_memory before = s.memory;
  r->judged = 0;
  r->done_deadline_ns = s.now + 3200 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(3), SCHED_REASON_LATE);
  s.memory = before;
  r->done_deadline_ns = s.now + 3600 * MS;
  scene_decide(&s);
  assert_int_equal(reason_of(3), SCHED_REASON_NONE);
}

static void retries_are_spread(void **state) {
  (void)state;
  s.config.places = s.config.queue_max = 0;
  for (int i = 0; i < 20; i++) scene_queued(&s, SCHED_PROACTIVE, 4000, 10);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_REFUSE), 20);
  uint32_t equal = 0;
  for (size_t i = 1; i < s.n; i++) equal += s.actions[i].ns == s.actions[i - 1].ns;
  assert_true(equal < 3);
}

/* ---- 6: pages of who runs ---- */

static void a_row_without_a_page_takes_one_of_background(void **state) {
  (void)state;
  s.view.pages_free[0] = 0;
  scene_decode(&s, SCHED_REACTIVE)->need[0] = 1;
  scene_decode(&s, SCHED_PROACTIVE)->recompute_ns = 300 * MS;
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decide(&s);
  assert_int_equal(s.actions[0].kind, SCHED_SUSPEND);
  assert_int_equal(s.actions[0].request, 3);
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
}

static void among_background_the_latest_gives_way(void **state) {
  (void)state;
  s.view.pages_free[0] = 0;
  for (int i = 0; i < 2; i++) scene_decode(&s, SCHED_PROACTIVE)->need[0] = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 1);
  assert_non_null(scene_find(&s, SCHED_SUSPEND, 2));
  assert_non_null(scene_find(&s, SCHED_JOIN, 1));
}

static void but_not_who_came_before(void **state) {
  (void)state;
  s.view.pages_free[0] = 0;
  scene_decode(&s, SCHED_PROACTIVE);
  scene_decode(&s, SCHED_PROACTIVE)->need[0] = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 0);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 1);
}

static void one_survivor(void **state) {
  (void)state;
  s.view.pages_free[0] = 0;
  for (int i = 0; i < 3; i++) scene_decode(&s, SCHED_REACTIVE)->need[0] = i == 1 ? 0 : 1;
  scene_decide(&s); /* the oldest goes on at the cost of the latest; who needs nothing, too */
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 1);
  assert_non_null(scene_find(&s, SCHED_SUSPEND, 3));
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2);
  s.requests[0].need[0] = 0; /* another one waits until pages come back */
  s.memory = (sched_memory){0};
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND), 0);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2);
}

static void what_is_held_gives_way_too(void **state) {
  (void)state;
  s.view.pages_free[0] = 0;
  scene_decode(&s, SCHED_REACTIVE)->held = 1;
  scene_decode(&s, SCHED_REACTIVE)->need[0] = 1;
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_SUSPEND, 1));
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
}

static void who_gives_way_and_who_comes_do_not_take_turns(void **state) {
  (void)state;
  s.view.pages_free[0] = 10;
  scene_decode(&s, SCHED_PROACTIVE)->need[0] = 1;
  scene_decode(&s, SCHED_PROACTIVE);
  scene_queued(&s, SCHED_PROACTIVE, 100, 10);
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SUSPEND) + scene_count(&s, SCHED_ADMIT), 0);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 2);
}

/* ---- 5: pressure ---- */

static void levels_rise_after_two_seconds_and_fall_after_ten(void **state) {
  (void)state;
  s.view.power = 2 * SCHED_ONE;
  scene_decide(&s);
  assert_int_equal(s.wake, s.now + 2 * SECOND);
  for (uint32_t level = 1; level <= 8; level++) {
    if (level == 6) s.view.power = 11 * SCHED_ONE; /* 5 begins at ten targets, 6 at thirty */
    if (level == 8) s.view.power = 31 * SCHED_ONE;
    s.now += 2 * SECOND;
    scene_decide(&s);
    if (level == 6 || level == 8) { /* the clock begins now */
      s.now += 2 * SECOND;
      scene_decide(&s);
    }
    assert_int_equal(s.memory.level, level < 5 ? level : level < 6 ? 4 : level < 8 ? 5 : 6);
  }
  s.now += 20 * SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.level, 6);
  s.view.power = SCHED_ONE / 2;
  scene_decide(&s);
  s.now += 9 * SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.level, 6);
  s.now += SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.level, 5);
  s.view.power = SCHED_ONE * 8 / 10; /* between: both clocks stand still */
  s.now += 100 * SECOND;
  scene_decide(&s);
  assert_int_equal(s.memory.level, 5);
}

static void levels_refuse_and_shorten_who_is_new(void **state) {
  (void)state;
  scene_queued(&s, SCHED_REACTIVE, 100, 100)->shortenable = 1;
  scene_queued(&s, SCHED_REACTIVE, 100, 100)->child = 1;
  scene_queued(&s, SCHED_PROACTIVE, 100, 100);
  static const struct {
    uint8_t level, degrade_first, refused, shortened;
  } rows[] = {{2, 0, 0, 0}, {3, 0, 1, 0}, {4, 0, 1, 1}, {5, 0, 2, 1},
              {6, 0, 3, 0}, {3, 1, 0, 1}, {4, 1, 1, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    s.memory = (sched_memory){.level = rows[i].level};
    s.config.degrade_first = rows[i].degrade_first;
    scene_decide(&s);
    assert_int_equal(scene_count(&s, SCHED_REFUSE), rows[i].refused);
    assert_int_equal(scene_count(&s, SCHED_SHORTEN), rows[i].shortened);
  }
  assert_int_equal(scene_find(&s, SCHED_SHORTEN, 1)->rows, 16);
  for (int i = 0; i < 3; i++) s.requests[i].judged = 1;
  s.memory = (sched_memory){.level = 6};
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 3);
}

/* Not only who gets a place at once. */
static void who_is_new_is_shortened_while_it_waits(void **state) {
  (void)state;
  s.config.places = 1;
  s.memory.level = 4;
  scene_decode(&s, SCHED_REACTIVE);
  scene_queued(&s, SCHED_REACTIVE, 100, 100)->shortenable = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_ADMIT), 0);
  assert_int_equal(scene_find(&s, SCHED_SHORTEN, 2)->rows, 16);
  assert_int_equal(s.wake, s.now); /* it may fit now */
  s.requests[1].judged = 1;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_SHORTEN), 0);
}

static void at_level_two_background_has_no_slack(void **state) {
  (void)state;
  scene_decode(&s, SCHED_REACTIVE);
  scene_decode(&s, SCHED_PROACTIVE);
  s.memory.level = 2;
  scene_decide(&s);
  assert_int_equal(scene_count(&s, SCHED_JOIN), 1);
  s.requests[0].held = 1; /* nothing reactive runs */
  scene_decide(&s);
  assert_non_null(scene_find(&s, SCHED_JOIN, 2));
}

static void people_who_wait_are_pressure(void **state) {
  (void)state;
  scene_prefill(&s, SCHED_REACTIVE, 8000); /* 4 s, but nobody waits for it */
  scene_decide(&s);
  assert_true(s.memory.pressure < SCHED_ONE / 10);
  scene_prefill(&s, SCHED_REACTIVE, 3000); /* the first one waits 1.5 s */
  scene_decide(&s);
  assert_true(s.memory.pressure > SCHED_ONE * 3 / 2);
}

#define RULE(name) cmocka_unit_test_setup(name, begin)

int main(void) {
  const struct CMUnitTest tests[] = {
      RULE(what_is_cancelled_or_late_ends),
      RULE(a_deadline_wakes),
      RULE(alone_in_its_launch_it_is_stopped_else_waited_for),
      RULE(the_row_of_a_person_is_not_lost_for_another),
      RULE(what_a_cancelled_person_leaves_is_background),
      RULE(who_is_held_in_the_queue_is_judged_at_once),
      RULE(who_is_suspended_by_its_client_keeps_no_slot),
      RULE(who_is_admitted_is_waited_for_once),
      RULE(bands_are_admitted_in_order),
      RULE(nobody_is_overtaken),
      RULE(background_leaves_the_reserve),
      RULE(what_never_fits_is_refused),
      RULE(a_person_takes_the_place_of_background),
      RULE(who_has_starved_gets_a_place_of_its_own),
      RULE(what_is_in_flight_is_stopped_first),
      RULE(pages_of_background_are_for_reactive_if_that_helps),
      RULE(the_queue_is_limited_newest_of_the_lowest_band),
      RULE(backlog_bounds_background),
      RULE(who_would_be_late_is_told_at_arrival_only),
      RULE(deadlines_order_who_waits),
      RULE(who_will_be_late_runs_last),
      RULE(the_pace_of_background_is_learned),
      RULE(a_person_is_told_when_all_places_are_taken),
      RULE(retries_are_spread),
      RULE(a_row_without_a_page_takes_one_of_background),
      RULE(among_background_the_latest_gives_way),
      RULE(but_not_who_came_before),
      RULE(one_survivor),
      RULE(what_is_held_gives_way_too),
      RULE(who_gives_way_and_who_comes_do_not_take_turns),
      RULE(levels_rise_after_two_seconds_and_fall_after_ten),
      RULE(levels_refuse_and_shorten_who_is_new),
      RULE(who_is_new_is_shortened_while_it_waits),
      RULE(at_level_two_background_has_no_slack),
      RULE(people_who_wait_are_pressure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
