/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants of scheduling.md 12, looked at from outside: from requests, launches and tables,
 * never from what the policy says of itself, but for its accounts. */
#include <string.h>

#include "sched/support_internal.h"

enum { REPLAY_EVERY = 8, PASSES_EVERY = 1000, MONOTONE_EVERY = 500, ROWS_BRUTE = 7 };

static double ratio(int64_t a, int64_t b) {
  return b > 0 ? (double)a / (double)b : a > 0 ? 1e9 : 0;
}

static int64_t times(int64_t ns, uint32_t x) { /* 16.16 */
  return (int64_t)(((__int128)ns * x) >> 16);
}

/* ---- 12: the same again, from shuffled arrays ---- */

static void replay(sim *s, const sched_memory *before, size_t room) {
  static sched_request requests[SIM_SPECS_MAX];
  static sched_action actions[SIM_ACTIONS];
  sched_launch_view launches[SCHED_LAUNCHES_MAX];
  sched_memory memory = *before;
  sched_view view = s->view;
  memcpy(requests, s->requests, view.n_requests * sizeof *requests);
  memcpy(launches, s->launch_views, view.n_launches * sizeof *launches);
  for (uint32_t i = view.n_requests; i > 1; i--) {
    uint32_t k = sim_random_below(&s->shuffle, i);
    sched_request other = requests[k];
    requests[k] = requests[i - 1];
    requests[i - 1] = other;
  }
  for (uint32_t i = view.n_launches; i > 1; i--) {
    uint32_t k = sim_random_below(&s->shuffle, i);
    sched_launch_view other = launches[k];
    launches[k] = launches[i - 1];
    launches[i - 1] = other;
  }
  view.requests = requests;
  view.launches = launches;
  int64_t wake;
  memset(actions, 0xA5, room * sizeof *actions);
  size_t n = sched_decide(&view, &memory, s->clock.now_ns, actions, room, &wake);
  sim_checked(s, INV_REPLAY, 0);
  bool same =
      n == s->n_actions && wake == s->wake_ns && !memcmp(&memory, &s->memory, sizeof memory);
  for (size_t i = 0; i < n && same; i++) {
    const sched_action *a = &actions[i], *b = &s->actions[i];
    same = a->kind == b->kind && a->reason == b->reason && a->device == b->device &&
           a->promoted == b->promoted && a->request == b->request && a->rows == b->rows &&
           a->launch == b->launch && a->ns == b->ns;
  }
  if (!same) sim_violation(s, INV_REPLAY, false, "permuted arrays give another decision");
}

/* ---- 4, 10, 11: decisions ---- */

static int64_t longest(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* X pays a row that joins when it is launched, by what was predicted, and a launch of its own as
 * time passes, by what it takes. */
static void check_accounts(sim *s, const sched_memory *before) {
  const sched_memory *m = &s->memory;
  int64_t d = s->p->config.preempt_ns, s_ns = longest(before->pass1_ns, m->pass1_ns);
  int64_t cap = longest(4 * d, 2 * s_ns), floor = longest(s->longest_background_ns, 1);
  for (size_t i = 0; i < s->n_actions; i++)
    if (s->actions[i].kind == SCHED_LAUNCH) floor = longest(floor, s->actions[i].ns);
  sim_checked(s, INV_ACCOUNTS, m->x_ns < 0 ? ratio(-m->x_ns, floor) : ratio(m->x_ns, cap));
  if (m->x_ns > cap || m->x_ns < -floor)
    sim_violation(s, INV_ACCOUNTS, false, "X is %.3f ms: wanted -%.3f..%.3f ms",
                  (double)m->x_ns * 1e-6, (double)floor * 1e-6, (double)cap * 1e-6);
  if (m->x_spent_ns < before->x_spent_ns || m->x_earned_ns < before->x_earned_ns)
    sim_violation(s, INV_ACCOUNTS, false, "what X spent or earned has fallen");
}

static bool is_over(const sim *s, const sched_request *r) {
  return r->cancelled || s->clock.now_ns >= r->done_deadline_ns ||
         (!r->emitted && s->clock.now_ns >= r->first_deadline_ns);
}

static void check_bands(sim *s) {
  bool reactive = false;
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    sched_band band = sched_band_of(&j->r);
    if ((sched_band)j->r.lift < band) band = (sched_band)j->r.lift;
    if (band != sim_band(j))
      sim_violation(s, INV_LIFTS, false, "request %u is in band %d, not %d", j->r.id, band,
                    sim_band(j));
    bool in = j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE;
    if (in && band != SCHED_BAND_P && !j->r.held && !is_over(s, &j->r)) reactive = true;
  }
  sim_checked(s, INV_LIFTS, 0);
  /* What this decision suspends or stops for good is not runnable any more; the other way round
   * there is no excuse: a lift that was kept. */
  if (s->memory.reactive_runnable && !reactive)
    sim_violation(s, INV_LIFTS, false, "reactive work is said to be there, and is not");
}

static bool fits(const uint32_t need[SCHED_GROUPS], const uint32_t free[SCHED_GROUPS]) {
  for (uint32_t g = 0; g < SCHED_GROUPS; g++)
    if (need[g] > free[g]) return false;
  return true;
}

/* Who has aged takes a place that no reactive request could have; their pages it may not take. */
static void check_admissions(sim *s) {
  bool gone[SIM_SPECS_MAX] = {false};
  uint32_t free[SCHED_GROUPS];
  memcpy(free, s->free, sizeof free);
  for (size_t i = 0; i < s->n_actions; i++) {
    const sched_action *a = &s->actions[i];
    if (a->kind > SCHED_SUSPEND) continue;
    sim_job *j = sim_job_of(s, a->request);
    if (!j) continue;
    gone[sim_index(s, j)] = true;
    uint32_t there[SCHED_GROUPS];
    memcpy(there, free, sizeof free);
    for (uint32_t g = 0; g < SCHED_GROUPS; g++)
      free[g] += a->kind == SCHED_ADMIT ? -j->r.need[g] : j->promised[g];
    if (a->kind != SCHED_ADMIT || sim_band(j) != SCHED_BAND_P) continue;
    sim_checked(s, INV_ORDER, 0);
    for (uint32_t k = 0; k < s->n_active; k++) {
      const sim_job *o = &s->jobs[s->active[k]];
      if (o->r.state != SCHED_QUEUED || gone[s->active[k]] || o->r.held || is_over(s, &o->r) ||
          sim_band(o) == SCHED_BAND_P)
        continue;
      if (s->memory.aged == j->r.id + 1 && fits(o->r.need, there)) continue;
      sim_violation(s, INV_ORDER, false, "P request %u is admitted while %u of band %c waits",
                    j->r.id, o->r.id, "RIP"[sim_band(o)]);
    }
  }
}

void sim_check_decision(sim *s, const sched_memory *before, size_t room) {
  if (s->step % REPLAY_EVERY == 0) replay(s, before, room);
  check_accounts(s, before);
  check_bands(s);
  check_admissions(s);
}

/* ---- 6, 7, 16: launches ---- */

static bool is_reactive(const sim_job *j) {
  return sim_band(j) != SCHED_BAND_P;
}

static void add_gen(const sim *s, cost_load *load, const sim_job *j) {
  load->gen_rows++;
  load->gen_kv += sim_row_kv(s->p, j->computed);
}

static void check_promoted(sim *s) {
  uint32_t spans = 0, rows = 0, who = SCHED_NONE;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++) {
    const sim_launch *l = &s->launches[i];
    if (!l->used || l->v.state == SCHED_STOPPED) continue;
    rows += l->promoted_rows;
    /* Who was raised since is no background any more. */
    if (!l->promoted_span || is_reactive(&s->jobs[l->prompt_job])) continue;
    if (l->prompt_job != who) spans++;
    who = l->prompt_job;
  }
  sim_checked(s, INV_PROMOTED, spans > rows ? spans : rows);
  if (spans > 1 || rows > 1)
    sim_violation(s, INV_PROMOTED, false, "%u promoted prefills, %u promoted rows", spans, rows);
}

/* S of a device by what is there now, in whole iterations. */
static int64_t reactive_iteration(const sim *s, uint32_t d) {
  cost_load load = {0};
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (j->r.state == SCHED_DECODE && is_reactive(j) && !j->r.held) add_gen(s, &load, j);
  }
  uint32_t most = s->p->config.decode_rows;
  uint32_t rounds = (load.gen_rows + most - 1) / most;
  return cost_time(&s->cost[d], &load) * (rounds > 1 ? rounds : 1);
}

static void passes(sim *s, const sim_launch *l, const cost_load *reactive, int64_t total);

void sim_check_launch(sim *s, sim_launch *l) {
  uint32_t d = l->v.device;
  const cost_table *cost = &s->cost[d];
  cost_load all = {0}, reactive = {0};
  bool has_r = false, reactive_span = false;
  if (l->prompt_job != SCHED_NONE) {
    const sim_job *j = &s->jobs[l->prompt_job];
    reactive_span = is_reactive(j);
    for (uint32_t i = 0; i < l->v.prompt_rows; i++)
      all.prompt_kv += sim_row_kv(s->p, j->computed + i);
    all.prompt_rows = l->v.prompt_rows;
  }
  for (uint32_t i = 0; i < l->n_decodes; i++) {
    const sim_job *j = &s->jobs[l->decodes[i]];
    add_gen(s, &all, j);
    if (!is_reactive(j)) continue;
    add_gen(s, &reactive, j);
    has_r = has_r || sim_band(j) == SCHED_BAND_R;
  }
  int64_t total = cost_time(cost, &all);
  l->load = all;
  l->measured = reactive.gen_rows && !reactive_span;
  if (l->measured) {
    uint32_t e = has_r ? s->p->config.slack_r : s->p->config.slack_i;
    l->alone_ns = cost_time(cost, &reactive);
    l->allowed_ns = l->alone_ns + times(l->alone_ns, e);
    s->longest_iteration_ns = longest(s->longest_iteration_ns, l->allowed_ns);
    if (s->step % PASSES_EVERY == 0 || s->step % 37 == 0) passes(s, l, &reactive, total);
  }
  int64_t takes = longest(total, times(total, s->p->truth[d]));
  if (all.gen_rows > reactive.gen_rows || (l->v.prompt_rows && !reactive_span))
    s->longest_background_ns =
        longest(s->longest_background_ns, takes * (s->p->n_devices > 1 ? 2 : 1)); /* in company */
  s->longest_launch_ns = longest(s->longest_launch_ns, total);
  check_promoted(s);
  for (uint32_t i = 0; i < s->n_active; i++) {
    sim_job *j = &s->jobs[s->active[i]];
    if (total > j->gap_launch_ns) j->gap_launch_ns = total;
  }
}

static int64_t most_truth(const sim *s) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < s->p->n_devices; i++)
    if (s->p->truth[i] > most) most = s->p->truth[i];
  return most;
}

/* From the end of one iteration with reactive rows to the end of the next, with what ran between,
 * as long as only background could be the reason. Over 16 of them in a row the credit may give back
 * what earlier ones have left (2 S at most), and X what it holds (its cap, down to one stretch,
 * or what a promoted row costs in one iteration, below 0); and over all of them together no more
 * than once. */
static void check_stretch(sim *s, const sim_period *p, const char *what, uint32_t n) {
  int64_t d_ns = s->p->config.preempt_ns;
  int64_t stock = 2 * p->alone + longest(4 * d_ns, 2 * p->alone) + longest(d_ns, p->promoted);
  int64_t bound = (int64_t)(((__int128)(p->allowed + stock) << 16) /
                            (SCHED_ONE - (int64_t)s->p->config.background_share));
  sim_checked(s, INV_STRETCH, ratio(p->actual, bound));
  if (p->actual > bound)
    sim_violation(s, INV_STRETCH, false, "%s%u iterations took %.3f ms: at most %.3f ms", what, n,
                  (double)p->actual * 1e-6, (double)bound * 1e-6);
}

static void add_period(sim_period *sum, const sim_period *p) {
  sum->actual += p->actual;
  sum->allowed += p->allowed;
  sum->alone = longest(sum->alone, p->alone);
  sum->promoted = longest(sum->promoted, p->promoted);
}

void sim_check_launch_end(sim *s, const sim_launch *l) {
  int64_t now = s->clock.now_ns, since = s->period_since_ns;
  if (!l->measured) return;
  bool clean = s->period_clean;
  s->period_since_ns = now;
  s->period_clean = true;
  /* A fixed B_cap counts rows and asks for no slack. */
  if (s->p->n_devices > 1 || most_truth(s) != COST_ONE || s->p->config.bcap) return;
  if (!clean) { /* meanwhile the accounts may have been filled again */
    s->n_window = 0;
    s->all = (sim_period){0};
  }
  sim_period *p = &s->window[s->n_window++ % SIM_WINDOW];
  *p = (sim_period){.actual = clean && now - since > l->device_ns ? now - since : l->device_ns,
                    .allowed = l->allowed_ns,
                    .alone = l->alone_ns,
                    .promoted = l->promoted_rows ? l->device_ns - l->alone_ns : 0};
  add_period(&s->all, p);
  if (s->n_window < SIM_WINDOW) return;
  sim_period sum = {0};
  for (uint32_t i = 0; i < SIM_WINDOW; i++) add_period(&sum, &s->window[i]);
  check_stretch(s, &sum, "", SIM_WINDOW);
  check_stretch(s, &s->all, "all ", s->n_window);
}

/* What the credit was before this launch, which changed it by (1+e) S - T; or less than that, if it
 * has come to its cap. False: not known. */
static bool credit_before(const sim *s, int64_t allowed, int64_t total, int64_t *credit) {
  int64_t cap = 2 * s->memory.pass1_ns, now = s->memory.credit_ns;
  *credit = now - allowed + total;
  return now > -cap;
}

/* 16: the P rows that joined against the most that would have fitted, of all subsets: brute force
 * keeps us honest about KV and about steps of the table. The budget is (1+e) S, less if the credit
 * is below 0 or G is used up, but never below S; what is saved may allow more. A decode row's value
 * is 1, so the most are the best. */
static void passes(sim *s, const sim_launch *l, const cost_load *reactive, int64_t total) {
  uint64_t kv[ROWS_BRUTE];
  int64_t credit, budget;
  uint32_t n = 0, chosen = 0;
  const sched_config *c = &s->p->config;
  if (l->promoted_rows || c->bcap || c->tpot_target_ns || l->v.prompt_rows) return;
  if (s->view.n_launches && s->p->n_devices > 1) return; /* contention is part of it */
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (j->r.state != SCHED_DECODE || is_reactive(j) || j->r.held || is_over(s, &j->r)) continue;
    if (j->admitted_now) continue;
    bool joined = j->r.launch == l->v.id;
    if (!joined && (j->r.launch != SCHED_NONE || j->r.need[0] || j->r.need[1])) continue;
    if (n == ROWS_BRUTE) return;
    kv[n++] = sim_row_kv(s->p, j->computed);
    chosen += joined;
  }
  if (!n) return;
  uint8_t held = 0;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && &s->launches[i] != l && s->launches[i].v.device == l->v.device)
      held |= s->launches[i].v.slots;
  if (held & SCHED_SLOT_DECODE_P || s->memory.level >= 2) return;
  if (!credit_before(s, l->allowed_ns, total, &credit)) return;
  budget = l->allowed_ns + (credit < 0 ? credit : 0);
  const sched_device *dev = &s->device_views[l->v.device];
  int64_t first = SCHED_NEVER, g = 2 * l->alone_ns + s->p->config.preempt_ns;
  if (dev->can_stop && dev->cost->stop_ns < s->p->config.preempt_ns)
    g = 2 * l->alone_ns + dev->cost->stop_ns;
  for (uint32_t i = 0; i < l->n_decodes; i++) {
    const sim_job *j = &s->jobs[l->decodes[i]];
    if (is_reactive(j) && j->r.emit_ns < first) first = j->r.emit_ns;
  }
  if (first + g - s->clock.now_ns < budget) budget = first + g - s->clock.now_ns;
  if (budget < l->alone_ns) budget = l->alone_ns;
  uint32_t best = 0;
  for (uint32_t set = 0; set < 1u << n; set++) {
    cost_load load = *reactive;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
      if (!(set >> i & 1)) continue;
      load.gen_rows++;
      load.gen_kv += kv[i];
      rows++;
    }
    if (rows > best && rows <= c->decode_rows && cost_time(&s->cost[l->v.device], &load) <= budget)
      best = rows;
  }
  if (!best) return; /* nothing to lose */
  double loss = best > chosen ? (double)(best - chosen) / best : 0;
  s->report->losses[s->report->n_losses++ % 4096] = loss;
  sim_checked(s, INV_PASSES, loss);
}

/* ---- 6: gaps ---- */

void sim_check_token(sim *s, sim_job *j) {
  int64_t now = s->clock.now_ns, gap = now - j->r.emit_ns;
  if (j->r.emit_ns && j->gap_clean && s->p->n_devices == 1 && most_truth(s) == COST_ONE) {
    int64_t bound = 2 * j->gap_s_ns + s->p->config.preempt_ns + j->gap_launch_ns;
    /* Where no reactive prompt ran and X paid for nothing: one batch, and a stop on either side. */
    if (j->gap_plain && !s->p->config.bcap)
      bound = 2 * j->gap_s_ns + times(j->gap_s_ns, s->p->config.slack_i) + 2 * s->p->panel_ns[0];
    sim_checked(s, INV_GAP, ratio(gap, bound));
    if (gap > j->result.gap_ns) j->result.gap_ns = gap;
    if (gap > bound)
      sim_violation(s, INV_GAP, false, "request %u waited %.3f ms for a token: at most %.3f ms",
                    j->r.id, (double)gap * 1e-6, (double)bound * 1e-6);
  }
  j->gap_clean = j->gap_plain = true;
  j->gap_s_ns = j->gap_launch_ns = 0;
}

/* ---- 13: what is cancelled ends within two bounds, or with the launch that it shares ---- */

void sim_check_cancel(sim *s, sim_job *j) {
  int64_t took = s->clock.now_ns - j->cancelled_at_ns;
  int64_t bound = 2 * s->p->config.preempt_ns +
                  times(j->gap_launch_ns, (uint32_t)most_truth(s)) * (s->p->n_devices > 1 ? 2 : 1);
  sim_checked(s, INV_CANCEL, ratio(took, bound));
  if (took > bound)
    sim_violation(s, INV_CANCEL, false, "request %u ends %.3f ms after its cancel: at most %.3f ms",
                  j->r.id, (double)took * 1e-6, (double)bound * 1e-6);
}

/* ---- 9, 11: after a decision ---- */

static bool device_idle(const sim *s, uint32_t d) {
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && s->launches[i].v.device == d &&
        s->launches[i].v.state != SCHED_STOPPED)
      return false;
  return true;
}

static uint8_t slots_of(const sim *s, uint32_t d) {
  uint8_t slots = 0;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && s->launches[i].v.device == d) slots |= s->launches[i].v.slots;
  return slots;
}

/* Something that sections 2 to 4 let run on this idle device. On one device that is whatever is
 * runnable and has a slot. On several, reactive work may keep others from background work, and
 * placement decides between them: there, what nobody else could want. */
static bool could_run(const sim *s, uint32_t d) {
  const sched_device *dev = &s->device_views[d];
  uint8_t slots = slots_of(s, d);
  bool several = s->p->n_devices > 1, reactive = false, background = false, others = false;
  if (dev->lost) return false;
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (is_reactive(j) && j->r.state != SCHED_QUEUED) others = true;
    if (!is_reactive(j) && (j->r.state == SCHED_DECODE || j->r.launch != SCHED_NONE)) others = true;
  }
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (!sim_runnable(s, j) || !fits(j->r.need, s->free)) continue;
    bool p = !is_reactive(j), decode = j->r.state == SCHED_DECODE;
    uint8_t slot = decode ? (p ? SCHED_SLOT_DECODE_P : SCHED_SLOT_DECODE)
                          : (p ? SCHED_SLOT_PREFILL_P : SCHED_SLOT_PREFILL);
    if (slots & slot || !(decode ? dev->decodes : dev->prefills)) continue;
    if (!decode && (j->r.prompt_left < dev->step || (several && others))) continue;
    *(p ? &background : &reactive) = true;
  }
  if (several && others && reactive == false && background) {
    for (uint32_t i = 0; i < s->n_active; i++)
      if (is_reactive(&s->jobs[s->active[i]])) return false;
  }
  return reactive || (background && s->memory.level < 2);
}

/* What R or I would find if P gave back all that no launch holds. */
static void check_claims(sim *s) {
  uint32_t free[SCHED_GROUPS], places = s->p->config.places, used = s->places_used;
  memcpy(free, s->free, sizeof free);
  bool holders = false;
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (is_reactive(j) || j->r.state == SCHED_QUEUED || j->r.launch != SCHED_NONE) continue;
    for (uint32_t g = 0; g < SCHED_GROUPS; g++) free[g] += j->promised[g];
    places += j->r.id + 1 != s->memory.aged;
    holders = true;
  }
  const sim_job *aged = s->memory.aged ? sim_job_of(s, s->memory.aged - 1) : NULL;
  used -= aged && aged->r.state != SCHED_QUEUED && !is_reactive(aged);
  places = places > used ? places - used : 0;
  const sim_job *first = NULL;
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (!is_reactive(j) || j->r.state != SCHED_QUEUED || j->r.held || is_over(s, &j->r)) continue;
    if (!first || sim_band(j) < sim_band(first) ||
        (sim_band(j) == sim_band(first) &&
         (j->r.arrival_ns < first->r.arrival_ns ||
          (j->r.arrival_ns == first->r.arrival_ns && j->r.id < first->r.id))))
      first = j;
  }
  if (!first) return;
  sim_checked(s, INV_ORDER, 0);
  for (uint32_t i = 0; i < s->n_active; i++) { /* running rows claim their next pages first */
    const sim_job *j = &s->jobs[s->active[i]];
    if (j->r.state == SCHED_QUEUED || !is_reactive(j)) continue;
    for (uint32_t g = 0; g < SCHED_GROUPS; g++)
      free[g] -= j->r.need[g] < free[g] ? j->r.need[g] : free[g];
  }
  if (!places || !fits(first->r.need, free)) return;
  /* Whoever may just make its deadline is before it; what is not there for that one is kept. */
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    bool hurries = j->r.first_deadline_ns != SCHED_NEVER || j->r.done_deadline_ns != SCHED_NEVER;
    if (sim_band(j) == sim_band(first) && j->r.state == SCHED_QUEUED && hurries &&
        !fits(j->r.need, free))
      return;
  }
  sim_violation(s, INV_ORDER, false, "request %u of band %c waits for a place or pages that %s",
                first->r.id, "RIP"[sim_band(first)], holders ? "background holds" : "are free");
}

static void check_monotone(sim *s) {
  const cost_table *t = &s->cost[sim_random_below(&s->noise, s->p->n_devices)];
  cost_load a = {.gen_rows = sim_random_below(&s->noise, 300),
                 .prompt_rows = sim_random_below(&s->noise, 300),
                 .gen_kv = sim_random_below(&s->noise, 1u << 31),
                 .prompt_kv = sim_random_below(&s->noise, 1u << 31)};
  cost_load b = a;
  b.gen_rows += sim_random_below(&s->noise, 4);
  b.prompt_rows += sim_random_below(&s->noise, 4);
  b.gen_kv += sim_random_below(&s->noise, 1u << 20);
  b.prompt_kv += sim_random_below(&s->noise, 1u << 20);
  sim_checked(s, INV_MONOTONE, 0);
  if (cost_time(t, &b) < cost_time(t, &a))
    sim_violation(s, INV_MONOTONE, false, "T falls from %u+%u to %u+%u rows", a.gen_rows,
                  a.prompt_rows, b.gen_rows, b.prompt_rows);
}

static void check_pages(sim *s) {
  uint32_t places = 0, owned[SCHED_GROUPS] = {0};
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    bool in = j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE;
    places += in;
    for (uint32_t g = 0; g < SCHED_GROUPS; g++) owned[g] += j->promised[g];
  }
  sim_checked(s, INV_PAGES, ratio(owned[0], s->p->pages[0]));
  for (uint32_t g = 0; g < SCHED_GROUPS; g++)
    if (owned[g] + s->free[g] != s->p->pages[g] || places != s->places_used)
      sim_violation(s, INV_PAGES, true, "group %u: %u free, %u owned of %u", g, s->free[g],
                    owned[g], s->p->pages[g]);
}

void sim_check_step(sim *s) {
  int64_t now = s->clock.now_ns;
  check_pages(s);
  check_claims(s);
  if (s->step % MONOTONE_EVERY == 0) check_monotone(s);
  for (uint32_t d = 0; d < s->p->n_devices; d++) {
    bool could = device_idle(s, d) && could_run(s, d);
    sim_checked(s, INV_BUSY, 0);
    if (!could)
      s->waiting_since_ns[d] = -1;
    else if (s->waiting_since_ns[d] < 0)
      s->waiting_since_ns[d] = now;
  }
}

/* ---- 5, 9: time ---- */

/* X pays for who is promoted now, also if its launch began before. */
static bool is_promoted(const sim *s, const sim_job *j) {
  return j->r.id + 1 == s->memory.promoted_prefill || j->r.id + 1 == s->memory.promoted_row;
}

/* A launch of band P alone that X does not pay. */
static bool is_plain_background(const sim *s, const sim_launch *l) {
  if (l->promoted_span || l->promoted_rows) return false;
  for (uint32_t i = 0; i <= l->n_decodes; i++) {
    uint32_t index = i < l->n_decodes ? l->decodes[i] : l->prompt_job;
    if (index == SCHED_NONE) continue;
    if (is_reactive(&s->jobs[index]) || is_promoted(s, &s->jobs[index])) return false;
  }
  return true;
}

static const sim_launch *flying_on(const sim *s, uint32_t d) {
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && s->launches[i].v.device == d &&
        s->launches[i].v.state != SCHED_STOPPED)
      return &s->launches[i];
  return NULL;
}

/* The stopped launch that it is in and that could go on; NULL. */
static const sim_launch *stands_in(const sim *s, const sim_job *j) {
  if (j->r.launch == SCHED_NONE || j->r.held || is_over(s, &j->r)) return NULL;
  const sim_launch *l = &s->launches[j->r.launch];
  return l->v.state == SCHED_STOPPED ? l : NULL;
}

/* One reactive prefill at a time, and work changes hands between chunks only: who waits for
 * another's, waits for that. */
static bool is_next_prefill(const sim *s, const sim_job *j) {
  if (stands_in(s, j)) return true;
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *o = &s->jobs[s->active[i]];
    if (o == j || o->r.state != SCHED_PREFILL || !is_reactive(o)) continue;
    if (stands_in(s, o)) return false;
    if (!sim_runnable(s, o)) continue;
    if (sim_band(o) < sim_band(j) ||
        (sim_band(o) == sim_band(j) && o->r.prompt_left < j->r.prompt_left))
      return false;
  }
  return true;
}

static bool is_blocked(const sim *s, const sim_job *j) {
  const sim_launch *own = stands_in(s, j);
  if ((!own && !sim_runnable(s, j)) || !is_reactive(j)) return false;
  bool any = false, decode = j->r.state == SCHED_DECODE;
  if (!decode && !is_next_prefill(s, j)) return false;
  for (uint32_t d = 0; d < s->p->n_devices; d++) {
    const sched_device *dev = &s->device_views[d];
    const sim_launch *l = flying_on(s, d);
    if (!decode && l && l->prompt_job != SCHED_NONE && is_reactive(&s->jobs[l->prompt_job]))
      return false;
    if (own && own->v.device != d) continue;
    if (dev->lost || !(decode ? dev->decodes : dev->prefills && j->r.prompt_left >= dev->step))
      continue;
    if (!l || !is_plain_background(s, l)) return false;
    any = true;
  }
  return any;
}

/* Until its first token. Later the slack pays for gaps between its iterations: see 6. */
static void check_blocked(sim *s, sim_job *j, int64_t passed) {
  j->r.blocked_ns += passed;
  if (j->r.emitted) return;
  int64_t uncuttable = 0, bound;
  for (uint32_t d = 0; d < s->p->n_devices; d++)
    uncuttable = longest(uncuttable, times(s->p->panel_ns[d], s->p->truth[d]));
  bound = 2 * s->p->config.preempt_ns + uncuttable * (s->p->n_devices > 1 ? 2 : 1);
  sim_checked(s, INV_BLOCKED, ratio(j->r.blocked_ns, bound));
  if (j->r.blocked_ns > bound && !j->busy_told) {
    j->busy_told = true;
    sim_violation(s, INV_BLOCKED, false, "request %u was blocked for %.3f ms: at most %.3f ms",
                  j->r.id, (double)j->r.blocked_ns * 1e-6, (double)bound * 1e-6);
  }
}

static bool runs_prompt_or_promoted(const sim *s) {
  for (uint32_t d = 0; d < s->p->n_devices; d++) {
    const sim_launch *l = flying_on(s, d);
    if (!l) continue;
    if (l->promoted_span || l->promoted_rows) return true;
    for (uint32_t i = 0; i <= l->n_decodes; i++) {
      uint32_t index = i < l->n_decodes ? l->decodes[i] : l->prompt_job;
      if (index == SCHED_NONE) continue;
      if (is_promoted(s, &s->jobs[index])) return true;
      if (index == l->prompt_job && is_reactive(&s->jobs[index])) return true;
    }
  }
  return false;
}

void sim_check_passage(sim *s, int64_t to_ns) {
  int64_t now = s->clock.now_ns, passed = to_ns - now, d_ns = s->p->config.preempt_ns;
  bool reactive = false, background = false, flies = false, rows = false;
  int64_t s_ns = reactive_iteration(s, s->p->n_devices - 1);
  bool unusual = runs_prompt_or_promoted(s);
  bool lost = s->device_views[s->p->n_devices - 1].lost;
  for (uint32_t i = 0; i < s->n_active; i++) {
    sim_job *j = &s->jobs[s->active[i]];
    bool in = j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE;
    if (in && is_reactive(j) && !j->r.held && !is_over(s, &j->r)) reactive = true;
    if (is_blocked(s, j) && passed) check_blocked(s, j, passed);
    if (j->r.state != SCHED_DECODE || !is_reactive(j) || j->r.held || lost || j->r.need[0] ||
        j->r.need[1]) /* pages may not be there */
      j->gap_clean = false;
    if (j->r.state == SCHED_DECODE && is_reactive(j) && !j->r.held) rows = true;
    if (j->r.state == SCHED_PREFILL && is_reactive(j) && j->r.launch != SCHED_NONE &&
        s->launches[j->r.launch].v.state != SCHED_STOPPED)
      s->period_clean = false;
    if (s_ns > j->gap_s_ns) j->gap_s_ns = s_ns;
    if (unusual) j->gap_plain = false;
    if (is_reactive(j) || j->r.held || !in) continue;
    background = true;
    if (j->r.launch != SCHED_NONE && s->launches[j->r.launch].v.state != SCHED_STOPPED)
      flies = true;
  }
  if (!rows || lost) s->period_clean = false;
  if (flies || !background) s->background_seen_ns = to_ns;
  s->longest_wait_ns = longest(s->longest_wait_ns, to_ns - s->background_seen_ns);
  if (reactive) s->reactive_ns += passed;
  if (reactive && (s->memory.promoted_prefill || s->memory.promoted_row)) s->promoted_ns += passed;
  for (uint32_t d = 0; d < s->p->n_devices; d++) {
    if (s->waiting_since_ns[d] < 0) continue;
    int64_t idle = to_ns - s->waiting_since_ns[d];
    sim_checked(s, INV_BUSY, ratio(idle, d_ns));
    if (idle <= d_ns) continue;
    sim_violation(s, INV_BUSY, false, "device %u stands idle for %.3f ms though work is there", d,
                  (double)idle * 1e-6);
    s->waiting_since_ns[d] = -1;
  }
}

void sim_check_end(sim *s) {
  sim_checked(s, INV_PAGES, 0);
  for (uint32_t g = 0; g < SCHED_GROUPS; g++)
    if (s->free[g] != s->p->pages[g] || s->places_used)
      sim_violation(s, INV_PAGES, true, "at the end %u of %u pages are free", s->free[g],
                    s->p->pages[g]);
}
