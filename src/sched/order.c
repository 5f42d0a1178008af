/* SPDX-License-Identifier: Apache-2.0 */
/* order.c - requests in order, launches and devices as they stand. See internal.h. */
#include "base/check.h"
#include "sched/internal.h"

static bool goes_before(const decision *d, uint32_t a, uint32_t b) {
  return is_before(request_of(d, a), request_of(d, b));
}

static void sift_down(decision *d, uint32_t *order, uint32_t at, uint32_t n) {
  uint32_t moved = order[at];
  for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && goes_before(d, order[child], order[child + 1])) child++;
    if (!goes_before(d, moved, order[child])) break;
    order[at] = order[child];
  }
  order[at] = moved;
}

/* Heap sort: in place, no recursion, n log n whatever comes in. Mostly there is nothing to do: a
 * runtime keeps its queue in the order of arrival. */
static void sort(decision *d, uint32_t *order, uint32_t n) {
  bool sorted = true;
  for (uint32_t i = 1; i < n && sorted; i++) sorted = goes_before(d, order[i - 1], order[i]);
  if (sorted) return;
  for (uint32_t i = n / 2; i-- > 0;) sift_down(d, order, i, n);
  for (uint32_t k = n; k > 1; k--) {
    uint32_t last = order[0];
    order[0] = order[k - 1];
    order[k - 1] = last;
    sift_down(d, order, 0, k - 1);
  }
}

static bool is_over(const decision *d, const sched_request *r) {
  return r->cancelled || r->done_deadline_ns <= d->now ||
         (!r->emitted && r->first_deadline_ns <= d->now);
}

void sched_order_requests(decision *d) {
  uint32_t count[2 * SCHED_BANDS] = {0}, next[2 * SCHED_BANDS];
  for (uint32_t i = 0; i < d->v->n_requests; i++) {
    const sched_request *r = request_of(d, i);
    if (r->state >= SCHED_ENDED) continue;
    if (is_over(d, r)) d->flags[i] |= OVER;
    count[band_of(r) + (r->state == SCHED_QUEUED ? SCHED_BANDS : 0)]++;
  }
  d->at[0] = 0;
  for (int g = 0; g < 2 * SCHED_BANDS; g++) {
    next[g] = d->at[g];
    d->at[g + 1] = d->at[g] + count[g];
  }
  d->n_running = d->at[SCHED_BANDS];
  d->n_live = d->at[2 * SCHED_BANDS];
  for (uint32_t i = 0; i < d->v->n_requests; i++) {
    const sched_request *r = request_of(d, i);
    if (r->state >= SCHED_ENDED) continue;
    d->order[next[band_of(r) + (r->state == SCHED_QUEUED ? SCHED_BANDS : 0)]++] = i;
  }
  for (int g = 0; g < 2 * SCHED_BANDS; g++) sort(d, d->order + d->at[g], count[g]);
  uint32_t aged = d->m->aged ? sched_find(d, d->m->aged - 1) : SCHED_NONE;
  if (aged == SCHED_NONE || band_of(request_of(d, aged)) != SCHED_BAND_P) d->m->aged = 0;
  d->places_held = d->n_running - (d->m->aged != 0);
}

void sched_give_place(decision *d, const sched_request *r) {
  if (d->m->aged == r->id + 1)
    d->m->aged = 0;
  else
    d->places_held--;
}

static flight *flight_by_id(decision *d, uint32_t id) {
  for (uint32_t i = 0; i < d->n_flights; i++)
    if (d->flights[i].l->id == id && !d->flights[i].dropped) return &d->flights[i];
  return NULL;
}

flight *sched_flight_of(decision *d, const sched_request *r) {
  return r->launch == SCHED_NONE ? NULL : flight_by_id(d, r->launch);
}

uint32_t sched_find(const decision *d, uint32_t id) {
  for (uint32_t i = 0; i < d->n_running; i++)
    if (request_of(d, d->order[i])->id == id) return d->order[i];
  return SCHED_NONE;
}

bool sched_is_runnable(const decision *d, uint32_t i) {
  const sched_request *r = request_of(d, i);
  if (d->flags[i] & (OVER | GONE) || r->held) return false;
  return r->state == SCHED_DECODE || (r->state == SCHED_PREFILL && r->prompt_left);
}

bool sched_is_ready(decision *d, uint32_t i) {
  return sched_is_runnable(d, i) && !(d->flags[i] & (TAKEN | NO_PAGES)) &&
         !sched_flight_of(d, request_of(d, i));
}

static void count_member(decision *d, flight *f, uint32_t i) {
  const sched_request *r = request_of(d, i);
  sched_band band = band_of(r);
  /* Who leaves or is held has no more claim to go first, but its slot is where it was. */
  bool urgent_band = band != SCHED_BAND_P;
  bool reactive = urgent_band && !r->held && !(d->flags[i] & OVER);
  f->members++;
  f->over += (d->flags[i] & OVER) != 0;
  f->held += r->held;
  f->reactive = f->reactive || reactive;
  f->has_r = f->has_r || (reactive && band == SCHED_BAND_R);
  if (f->l->prompt_request == r->id) {
    f->prompt = i;
    f->reactive_span = reactive;
    f->load.prompt_rows = f->l->prompt_rows;
    f->load.prompt_kv = f->l->prompt_rows * r->kv_bytes;
    f->slots |= urgent_band      ? SCHED_SLOT_PREFILL
                : f->l->promoted ? SCHED_SLOT_PREFILL_PROMOTED
                                 : SCHED_SLOT_PREFILL_P;
  } else {
    *(reactive ? &f->rows_reactive : &f->rows_p) += 1;
    f->load.gen_rows++;
    f->load.gen_kv += r->kv_bytes;
    f->slots |= urgent_band ? SCHED_SLOT_DECODE : SCHED_SLOT_DECODE_P;
  }
}

static void look_at_devices(decision *d) {
  d->n_sites = d->v->n_devices;
  for (uint32_t i = 0; i < d->n_sites; i++) {
    const sched_device *dev = &d->v->devices[i];
    site *s = &d->sites[i];
    *s = (site){.dev = dev, .cost = dev->cost, .span = dev->span_rows};
    s->usable = dev->cost && !dev->lost;
    if (dev->step > 1 && s->span > dev->step) s->span -= s->span % dev->step;
    if (!s->usable || !dev->prefills || !s->span) continue;
    s->span_ns = cost_prefill(s->cost, s->span, 0);
    s->row_ns = cost_prefill(s->cost, 1, 0);
  }
}

void sched_look_at_launches(decision *d) {
  CHECK(d->v->n_launches <= FLIGHTS_MAX);
  look_at_devices(d);
  d->n_flights = d->v->n_launches;
  d->ids = 0;
  for (uint32_t i = 0; i < d->n_flights; i++) {
    const sched_launch_view *l = &d->v->launches[i];
    CHECK(l->id < SCHED_LAUNCHES_MAX && l->device < d->n_sites);
    uint32_t k = i;
    for (; k && d->flights[k - 1].l->id > l->id; k--) d->flights[k] = d->flights[k - 1];
    d->flights[k] = (flight){.l = l, .prompt = SCHED_NONE};
    d->ids |= 1u << l->id;
  }
  for (uint32_t i = 0; i < d->n_running; i++) {
    flight *f = sched_flight_of(d, request_of(d, d->order[i]));
    if (f) count_member(d, f, d->order[i]);
  }
  for (uint32_t i = 0; i < d->n_flights; i++) {
    flight *f = &d->flights[i];
    site *s = &d->sites[f->l->device];
    bool stands = f->l->state == SCHED_STOPPED;
    int64_t done = f->l->done_ns + (stands ? 0 : sub_ns(d->now, f->l->start_ns));
    if (f->l->slots) f->slots = f->l->slots;
    /* A prediction that has run out says nothing but that it ends soon. */
    f->rest_ns = max_ns(sub_ns(f->l->total_ns, done), s->cost ? s->cost->launch_ns : 0);
    s->slots |= f->slots;
    if (stands) continue;
    s->busy = true;
    s->running = f->load;
    s->running_reactive = f->reactive;
    s->running_rest_ns = f->rest_ns;
    s->running_slack_ns = ratio_of(f->l->total_ns, f->has_r ? d->c->slack_r : d->c->slack_i);
  }
}
