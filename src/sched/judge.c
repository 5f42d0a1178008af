/* SPDX-License-Identifier: Apache-2.0 */
/* judge.c - the tests at arrival, and how fast the work of a class is done. See internal.h;
 * scheduling.md 5. */
#include "sched/internal.h"

#define PACE_WINDOW_NS (16 * SECOND_NS)
enum { PACE_MOST = 8 };

todo sched_todo(const decision *d, const sched_request *r) {
  return (todo){sched_prefill_about_ns(d, r), r->prompt_left, r->expected_left};
}

void sched_add(todo *sum, const todo *t, int sign) {
  sum->prompts_ns = add_ns(sum->prompts_ns, sign * t->prompts_ns);
  sum->rows += sign * t->rows;
  sum->tokens += sign * t->tokens;
}

static int64_t times(int64_t n, int64_t ns) {
  __int128 product = (__int128)n * ns;
  if (product < -SCHED_NEVER / 4) return -SCHED_NEVER / 4;
  return product > SCHED_NEVER / 4 ? SCHED_NEVER / 4 : (int64_t)product;
}

/* Device time, if `fill` decode together. */
static int64_t work_of(const decision *d, const todo *t) {
  return add_ns(t->prompts_ns, times(t->tokens, d->token_share_ns));
}

/* Work takes longer than its device time: for what else is to be done, iterations that are not
 * full, the machine's other programs. How much longer is measured while there is enough of it; with
 * less it does not matter, and is forgotten. Of reactive requests tokens count, by the iterations
 * that they are in: these share the machine with the prompts of who comes meanwhile. */
static void settle_pace(decision *d, bool background, bool enough, const ahead *a) {
  sched_pace *p = &d->m->pace[background];
  const todo *known = &a->known[background], *left = &a->left[background];
  int64_t passed = d->m->decisions && d->now > d->m->then_ns ? d->now - d->m->then_ns : 0;
  int64_t done = passed = min_ns(passed, PACE_WINDOW_NS);
  if (p->enough && !d->full) {
    done = times(p->tokens - known->tokens, background ? d->token_share_ns : d->reactive_share_ns);
    /* By what a row costs now: a table that was corrected is no work. */
    if (background && known->rows)
      done = add_ns(done, times(p->rows - known->rows, known->prompts_ns / known->rows));
  }
  p->span_ns += passed;
  p->done_ns = max_ns(-PACE_WINDOW_NS, min_ns(add_ns(p->done_ns, done), PACE_WINDOW_NS));
  if (p->span_ns >= SECOND_NS) {
    /* More than the devices can do was not done but has gone: to another band, or for good. */
    int64_t most = d->n_sites * p->span_ns * 2;
    p->work_ns = max_ns(p->work_ns + max_ns(-p->span_ns, min_ns(p->done_ns, most)), 0);
    p->time_ns += p->span_ns;
    p->span_ns = p->done_ns = 0;
  }
  for (; p->time_ns > PACE_WINDOW_NS; p->time_ns /= 2) p->work_ns /= 2;
  p->rows = left->rows;
  p->tokens = left->tokens;
  p->enough = enough && !d->full;
}

/* How long it takes to do ns of work. */
static int64_t at_pace(const decision *d, bool background, int64_t ns) {
  const sched_pace *p = &d->m->pace[background];
  if (p->time_ns < SECOND_NS || p->work_ns >= p->time_ns) return ns;
  int64_t least = p->time_ns / PACE_MOST;
  __int128 longer = (__int128)ns * p->time_ns / max_ns(p->work_ns, least);
  return longer > SCHED_NEVER / 4 ? SCHED_NEVER / 4 : (int64_t)longer;
}

int64_t sched_ahead_ns(const decision *d, const ahead *a, sched_band band) {
  int64_t ns = work_of(d, &a->bands[SCHED_BAND_R]);
  if (band >= SCHED_BAND_I) ns = add_ns(ns, work_of(d, &a->bands[SCHED_BAND_I]));
  ns = at_pace(d, false, ns);
  return band < SCHED_BAND_P ? ns : add_ns(ns, at_pace(d, true, work_of(d, &a->bands[band])));
}

/* Background is computed in its order, about. Reactive requests decode together: only prompts are
 * in each other's way, as long as there are places, and more rows make slower tokens. */
static int64_t predict(const decision *d, const ahead *a, const sched_request *r, uint32_t tokens) {
  int64_t prompt = sched_prefill_best_ns(d, r);
  if (band_of(r) == SCHED_BAND_P) {
    int64_t own = add_ns(prompt, times(tokens, d->token_ns[SCHED_BAND_P]));
    return add_ns(sched_ahead_ns(d, a, SCHED_BAND_P), at_pace(d, true, own));
  }
  bool child = band_of(r) == SCHED_BAND_I;
  int64_t ns = a->bands[SCHED_BAND_R].prompts_ns;
  if (child) ns = add_ns(ns, a->bands[SCHED_BAND_I].prompts_ns);
  uint32_t n = 1 + a->live[SCHED_BAND_R] + (child ? a->live[SCHED_BAND_I] : 0);
  uint32_t places = d->c->places ? d->c->places : 1, rows = n < places ? n : places;
  int64_t token = 0;
  if (d->decode_site != SCHED_NONE)
    token = cost_decode(d->sites[d->decode_site].cost, rows, rows * d->reactive_kv);
  ns = add_ns(add_ns(ns, prompt), times(tokens, token));
  int64_t turn = times(r->expected_left, token); /* of those that have a place before it has one */
  ns = add_ns(ns, times(n - rows, turn / places));
  return at_pace(d, false, ns);
}

static uint32_t error_of(const decision *d) {
  uint32_t a = d->prefill_site != SCHED_NONE ? d->sites[d->prefill_site].cost->error_q : 0;
  uint32_t b = d->decode_site != SCHED_NONE ? d->sites[d->decode_site].cost->error_q : 0;
  return a > b ? a : b;
}

/* By how much it would be late, by the 75th percentile; 0 or less: it would not. q is the 90th
 * percentile of the error; half of it is about the 75th. */
static int64_t lateness(const decision *d, const ahead *a, const sched_request *r) {
  int64_t deadline[2] = {r->first_deadline_ns, r->done_deadline_ns}, most = 0;
  uint32_t tokens[2] = {1, r->expected_left ? r->expected_left : 1};
  for (int i = 0; i < 2; i++) {
    if (deadline[i] == SCHED_NEVER) continue;
    int64_t ns = predict(d, a, r, tokens[i]);
    ns = add_ns(ns, ratio_of(min_ns(ns, SCHED_NEVER / 4), error_of(d) / 2));
    most = max_ns(most, sub_ns(ns, sub_ns(deadline[i], d->now)));
  }
  return most;
}

int64_t sched_backlog_ns(const decision *d, const ahead *a) {
  return work_of(d, &a->bands[SCHED_BAND_P]);
}

sched_reason sched_judge(const decision *d, const ahead *a, const sched_request *r,
                         int64_t *wait_ns) {
  sched_band band = band_of(r);
  uint32_t level = d->m->level, p_from = d->c->degrade_first ? 4 : 3;
  int64_t backlog = sched_backlog_ns(d, a), late;
  *wait_ns = sched_ahead_ns(d, a, band);
  if (level >= (band == SCHED_BAND_R ? 6 : band == SCHED_BAND_I ? 5 : p_from))
    return SCHED_REASON_PRESSURE;
  if (band == SCHED_BAND_P && backlog > d->c->backlog_max_ns) {
    *wait_ns = backlog - d->c->backlog_max_ns;
    return SCHED_REASON_BACKLOG;
  }
  if (r->hinted || (late = lateness(d, a, r)) <= 0) return SCHED_REASON_NONE;
  *wait_ns = late;
  return SCHED_REASON_LATE;
}

void sched_settle_paces(decision *d, const ahead *a) {
  settle_pace(d, false, d->n_rows_reactive, a);
  bool works = d->n_rows_p + d->n_prefill_p || sched_is_reactive_runnable(d);
  settle_pace(d, true, a->background_waits && works, a);
}
