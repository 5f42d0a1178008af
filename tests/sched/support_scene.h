/* SPDX-License-Identifier: Apache-2.0 */
/* support_scene.h - a view made by hand, and the decision on it. One device that stops between
 * panels unless a test says otherwise; times that can be added up in the head:
 *
 *   T(M)  10 ms for one row, 1 ms for each more           stop 0.5 ms, launch 0
 *   Tp(P) 2 ms and 0.5 ms a row                           one launch instead of two saves nothing
 *   D     10 ms, slack 0.15 (R) and 0.5 (I), X, credit and all of memory zero */
#ifndef TESTS_SCHED_SUPPORT_SCENE_H
#define TESTS_SCHED_SUPPORT_SCENE_H

#include "sched/sched.h"

enum { SCENE_REQUESTS = 80, SCENE_ACTIONS = 400 };
#define MS 1000000LL
#define SECOND (1000 * MS)
#define SCENE_NOW (100 * SECOND)

typedef struct scene {
  cost_table cost[2];
  sched_device devices[2];
  sched_config config;
  sched_request requests[SCENE_REQUESTS];
  sched_launch_view launches[SCHED_LAUNCHES_MAX];
  sched_view view;
  sched_memory memory;
  int64_t now, wake;
  sched_action actions[SCENE_ACTIONS];
  size_t n, capacity;
} scene;

void scene_begin(scene *s);
/* Requests: ids count from 1 in the order of the calls, arrival too unless a test changes it. */
sched_request *scene_queued(scene *s, sched_class class_, uint32_t prompt, uint32_t output);
sched_request *scene_prefill(scene *s, sched_class class_, uint32_t prompt);
sched_request *scene_decode(scene *s, sched_class class_); /* its last token: 5 ms ago */
/* A launch of a span of `r` (NULL: none); rows by scene_row. total: what it takes. */
sched_launch_view *scene_launch(scene *s, sched_launch_state state, sched_request *r, uint32_t rows,
                                int64_t total_ns, uint8_t slots);
void scene_row(scene *s, sched_launch_view *l, sched_request *r);

void scene_decide(scene *s);
/* The nth action of a kind on a request or launch (SCHED_NONE: any); NULL: there is none. */
const sched_action *scene_find(const scene *s, sched_action_kind kind, uint32_t id);
uint32_t scene_count(const scene *s, sched_action_kind kind);

#endif
