/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/support_scene.h"
#include "sched/support_config.h"

#include <string.h>

void scene_begin(scene *s) {
  memset(s, 0, sizeof *s);
  s->now = SCENE_NOW;
  s->capacity = SCENE_ACTIONS;
  for (int d = 0; d < 2; d++) {
    for (int i = 0; i < COST_POINTS; i++) {
      s->cost[d].gen[i] = 9 * MS + cost_rows[i] * MS;
      s->cost[d].prompt[i] = 2 * MS + cost_rows[i] * MS / 2;
      s->cost[d].gen_fix[i] = s->cost[d].prompt_fix[i] = COST_ONE;
    }
    s->cost[d].stop_ns = MS / 2;
    s->devices[d] = (sched_device){.cost = &s->cost[d],
                                   .decodes = 1,
                                   .prefills = 1,
                                   .can_stop = 1,
                                   .step = 1,
                                   .span_rows = 256};
  }
  s->config = support_config(16);
  s->config.queue_max = 100;
  s->config.shorten_to = 16;
  s->view = (sched_view){.config = &s->config,
                         .requests = s->requests,
                         .launches = s->launches,
                         .devices = s->devices,
                         .n_devices = 1,
                         .pages_free = {1000},
                         .pages_total = {1000}};
}

static sched_request *add(scene *s, uint8_t state, sched_class class_) {
  sched_request *r = &s->requests[s->view.n_requests++];
  int64_t arrival = SCENE_NOW - SECOND + s->view.n_requests * MS;
  *r = (sched_request){.id = s->view.n_requests,
                       .state = state,
                       .class_ = (uint8_t)class_,
                       .lift = SCHED_BAND_P,
                       .launch = SCHED_NONE,
                       .arrival_ns = arrival,
                       .waiting_ns = SCENE_NOW - 5 * MS,
                       .first_deadline_ns = SCHED_NEVER,
                       .done_deadline_ns = SCHED_NEVER,
                       .output_left = 50,
                       .expected_left = 50,
                       .holds = {10},
                       .recompute_ns = 100 * MS};
  return r;
}

sched_request *scene_queued(scene *s, sched_class class_, uint32_t prompt, uint32_t output) {
  sched_request *r = add(s, SCHED_QUEUED, class_);
  r->waiting_ns = r->arrival_ns;
  r->prompt_left = prompt;
  r->output_left = r->expected_left = output;
  r->need[0] = r->most[0] = 10;
  r->holds[0] = 0;
  return r;
}

sched_request *scene_prefill(scene *s, sched_class class_, uint32_t prompt) {
  sched_request *r = add(s, SCHED_PREFILL, class_);
  r->prompt_left = prompt;
  return r;
}

sched_request *scene_decode(scene *s, sched_class class_) {
  sched_request *r = add(s, SCHED_DECODE, class_);
  r->emitted = 1;
  r->emit_ns = SCENE_NOW - 5 * MS;
  return r;
}

sched_launch_view *scene_launch(scene *s, sched_launch_state state, sched_request *r, uint32_t rows,
                                int64_t total_ns, uint8_t slots) {
  sched_launch_view *l = &s->launches[s->view.n_launches];
  *l = (sched_launch_view){.id = s->view.n_launches++,
                           .state = (uint8_t)state,
                           .slots = slots,
                           .prompt_request = r ? r->id : SCHED_NONE,
                           .prompt_rows = rows,
                           .start_ns = s->now,
                           .total_ns = total_ns};
  if (r) r->launch = l->id;
  return l;
}

void scene_row(scene *s, sched_launch_view *l, sched_request *r) {
  (void)s;
  r->launch = l->id;
  l->decode_rows++;
}

void scene_decide(scene *s) {
  memset(s->actions, 0, sizeof s->actions);
  s->n = sched_decide(&s->view, &s->memory, s->now, s->actions, s->capacity, &s->wake);
}

static bool is_about_launch(uint8_t kind) {
  return kind == SCHED_RESUME || kind == SCHED_DROP || kind == SCHED_STOP;
}

const sched_action *scene_find(const scene *s, sched_action_kind kind, uint32_t id) {
  for (size_t i = 0; i < s->n; i++) {
    const sched_action *a = &s->actions[i];
    if (a->kind != kind) continue;
    if (id == SCHED_NONE || id == (is_about_launch(a->kind) ? a->launch : a->request)) return a;
  }
  return NULL;
}

uint32_t scene_count(const scene *s, sched_action_kind kind) {
  uint32_t n = 0;
  for (size_t i = 0; i < s->n; i++) n += s->actions[i].kind == kind;
  return n;
}
