/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - what is said to the runtime about launches. See internal.h. */
#include "sched/internal.h"

/* Background leaves ids to reactive work: as many as two devices can hold at most. */
static uint32_t free_id(const decision *d, bool reactive) {
  uint32_t taken = 0, lowest = SCHED_NONE;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++) {
    if (d->ids >> i & 1)
      taken++;
    else if (lowest == SCHED_NONE)
      lowest = i;
  }
  return reactive || taken + 2 < SCHED_LAUNCHES_MAX ? lowest : SCHED_NONE;
}

static bool is_stopped_on(const flight *f, uint32_t device) {
  return !f->dropped && f->l->device == device && f->l->state == SCHED_STOPPED;
}

flight *sched_stopped_in(decision *d, uint32_t device, uint8_t slots) {
  for (uint32_t i = 0; i < d->n_flights; i++)
    if (is_stopped_on(&d->flights[i], device) && d->flights[i].slots & slots) return &d->flights[i];
  return NULL;
}

flight *sched_background_rows(decision *d, uint32_t device) {
  for (uint32_t i = 0; i < d->n_flights; i++) {
    flight *f = &d->flights[i];
    if (is_stopped_on(f, device) && f->l->decode_rows && !f->rows_reactive) return f;
  }
  return NULL;
}

flight *sched_background_span(decision *d, uint32_t device) {
  for (uint32_t i = 0; i < d->n_flights; i++) {
    flight *f = &d->flights[i];
    if (is_stopped_on(f, device) && !f->l->decode_rows && !f->reactive) return f;
  }
  return NULL;
}

void sched_limit(decision *d, uint32_t launch, int64_t until, uint8_t pays) {
  d->m->until_ns[launch] = until == SCHED_NEVER ? 0 : until;
  d->m->pays[launch] = pays;
  sched_wake_by(d, until);
}

static void occupy(decision *d, uint32_t device, uint32_t id, uint8_t slots, const cost_load *load,
                   bool reactive, int64_t rest_ns, int64_t slack_ns) {
  site *s = &d->sites[device];
  s->busy = true;
  s->slots |= slots;
  s->running = *load;
  s->running_reactive = reactive;
  s->running_rest_ns = rest_ns;
  s->running_slack_ns = slack_ns;
  d->ids |= 1u << id;
  d->started = id;
  sched_limit(d, id, SCHED_NEVER, SCHED_PAYS_NOTHING);
}

static uint32_t slack_of(const decision *d, bool has_r) {
  return has_r ? d->c->slack_r : d->c->slack_i;
}

bool sched_launch_span(decision *d, uint32_t device, uint32_t i, bool promoted) {
  const sched_request *r = request_of(d, i);
  site *s = &d->sites[device];
  sched_band band = band_of(r);
  bool reactive = band != SCHED_BAND_P;
  uint8_t slot = reactive   ? SCHED_SLOT_PREFILL
                 : promoted ? SCHED_SLOT_PREFILL_PROMOTED
                            : SCHED_SLOT_PREFILL_P;
  uint32_t rows = sched_span_rows(d, s, r), id = free_id(d, reactive);
  if (!rows || s->slots & slot || id == SCHED_NONE) return false;
  cost_load load = sched_span_load(d, s, r, rows);
  int64_t ns = cost_time(s->cost, &load);
  if (!sched_act(d, (sched_action){.kind = SCHED_LAUNCH,
                                   .reason = slot,
                                   .device = (uint8_t)device,
                                   .promoted = promoted,
                                   .request = r->id,
                                   .rows = rows,
                                   .launch = id,
                                   .ns = ns}))
    return false;
  d->flags[i] |= TAKEN;
  occupy(d, device, id, slot, &load, reactive, ns, ratio_of(ns, slack_of(d, band == SCHED_BAND_R)));
  return true;
}

bool sched_launch_batch(decision *d, uint32_t device, const batch *b) {
  uint32_t id = free_id(d, b->n_reactive != 0), span = SCHED_NONE;
  uint8_t slots = 0;
  if (!b->n || id == SCHED_NONE) return false;
  /* All of it, or it is decided the next time: a part would not be what was weighed. */
  if (d->capacity - d->n < b->n + 1) {
    d->full = true;
    sched_wake_by(d, d->now);
    if (d->n) return false;
  }
  if (b->n_reactive) slots |= SCHED_SLOT_DECODE;
  if (b->n > b->n_reactive) slots |= SCHED_SLOT_DECODE_P;
  if (d->capacity - d->n < 2) return false; /* an iteration has a row */
  if (b->ride_rows) {
    slots |= SCHED_SLOT_PREFILL_P;
    span = request_of(d, b->ride)->id;
    d->flags[b->ride] |= TAKEN;
  }
  sched_act(d, (sched_action){.kind = SCHED_LAUNCH,
                              .reason = slots,
                              .device = (uint8_t)device,
                              .request = span,
                              .rows = b->ride_rows,
                              .launch = id,
                              .ns = b->total_ns});
  bool has_r = false;
  for (uint32_t k = 0; k < b->n; k++) {
    const sched_request *r = request_of(d, b->rows[k]);
    if (!sched_act(d, (sched_action){.kind = SCHED_JOIN,
                                     .promoted = b->rows[k] == b->promoted,
                                     .request = r->id,
                                     .launch = id}))
      break;
    has_r = has_r || band_of(r) == SCHED_BAND_R;
    d->flags[b->rows[k]] |= TAKEN;
  }
  occupy(d, device, id, slots, &b->load, b->n_reactive != 0, b->total_ns,
         ratio_of(b->total_ns, slack_of(d, has_r)));
  return true;
}

/* It may have been launched before what it carries was promoted. */
static bool holds_promoted(decision *d, const flight *f) {
  const sched_memory *m = d->m;
  if (m->promoted_prefill && f->l->prompt_request == m->promoted_prefill - 1) return true;
  uint32_t i = m->promoted_row ? sched_find(d, m->promoted_row - 1) : SCHED_NONE;
  return i != SCHED_NONE && sched_flight_of(d, request_of(d, i)) == f;
}

bool sched_resume(decision *d, flight *f) {
  sched_action action = {.kind = SCHED_RESUME,
                         .device = f->l->device,
                         .promoted = holds_promoted(d, f),
                         .request = SCHED_NONE,
                         .launch = f->l->id};
  if (!sched_act(d, action)) return false;
  occupy(d, f->l->device, f->l->id, f->slots, &f->load, f->reactive, f->rest_ns,
         ratio_of(f->l->total_ns, slack_of(d, f->has_r)));
  return true;
}

bool sched_drop(decision *d, flight *f) {
  sched_action action = {
      .kind = SCHED_DROP, .device = f->l->device, .request = SCHED_NONE, .launch = f->l->id};
  if (!sched_act(d, action)) return false;
  f->dropped = true;
  d->sites[f->l->device].slots &= (uint8_t)~f->slots;
  d->m->drops++;
  return true;
}

bool sched_stop(decision *d, flight *f) {
  if (f->l->state != SCHED_RUNNING || f->asked) return false;
  f->asked = sched_act(
      d,
      (sched_action){
          .kind = SCHED_STOP, .device = f->l->device, .request = SCHED_NONE, .launch = f->l->id});
  return f->asked;
}
