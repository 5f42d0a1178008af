/* SPDX-License-Identifier: Apache-2.0 */
/* Random devices, configurations and workloads of support_sim.h. */
#include <string.h>

#include "sched/support_random.h"
#include "sched/support_sim.h"
#include "sched/support_config.h"

#define US 1000LL
#define MS 1000000LL
#define SECOND 1000000000LL

static int64_t scaled(int64_t ns, double x) {
  return (int64_t)((double)ns * x);
}

/* A table with steps where kernels have theirs: at the second row, at tiles of 16. */
static void table(cost_table *t, sim_random *r, int64_t base_ns, int64_t row_ns) {
  *t = (cost_table){.launch_ns = 20 * US + (int64_t)sim_random_below(r, 300) * US};
  int64_t gen = base_ns, prompt = base_ns + row_ns;
  double second = 1 + sim_random_unit(r);
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    uint32_t more = i ? cost_rows[i] - cost_rows[i - 1] : 0;
    if (i == 1) gen = scaled(gen, second);
    if (i > 1 && sim_random_below(r, 3)) gen += scaled(row_ns, sim_random_unit(r) * more);
    if (cost_rows[i] == 24) gen += scaled(base_ns, sim_random_unit(r));
    prompt += scaled(row_ns * more, 0.8 + 0.4 * sim_random_unit(r));
    t->gen[i] = gen;
    t->prompt[i] = prompt;
    t->gen_fix[i] = t->prompt_fix[i] = COST_ONE;
  }
  t->gen_kv_ns_per_mib = (int64_t)sim_random_between(r, 10, 100) * US;
  t->prompt_kv_ns_per_mib = t->gen_kv_ns_per_mib / 32;
  t->shared_ns[0] = base_ns / 2;
  t->shared_ns[1] = base_ns / 2 + base_ns / 4;
  t->weight_bytes = (uint64_t)base_ns * 30; /* read at 30 GB/s by one row */
  t->bandwidth = 30u * 1000000000u;
  t->error_q = sim_random_below(r, COST_ONE / 10);
}

void sim_plan_devices(sim_plan *p, bool pair, uint64_t seed) {
  sim_random r;
  sim_random_seed(&r, seed, "devices");
  int64_t base = (2 + (int64_t)sim_random_below(&r, 30)) * MS;
  int64_t row = scaled(base, 0.02 + 0.1 * sim_random_unit(&r));
  p->n_devices = pair ? 2 : 1;
  for (uint32_t i = 0; i < p->n_devices; i++) {
    bool npu = pair && i == 0;
    table(&p->cost[i], &r, npu ? base * 2 : base, npu ? row / 4 : row);
    p->panel_ns[i] = pair ? (1 + (int64_t)sim_random_below(&r, 3)) * MS
                          : (100 + (int64_t)sim_random_below(&r, 300)) * US;
    p->cost[i].stop_ns = p->panel_ns[i];
    p->truth[i] = COST_ONE;
    p->devices[i] = (sched_device){.decodes = !npu,
                                   .prefills = 1,
                                   .can_stop = !pair,
                                   .step = npu ? 32 : 1,
                                   .span_rows = 32u << sim_random_below(&r, 4)};
  }
  for (uint32_t k = 0; k < SOC_DEVICES_MAX; k++)
    p->capacity[k] = (45u + 10 * k) * (uint64_t)1000000000u;
}

void sim_plan_defaults(sim_plan *p, uint64_t seed) {
  p->seed = seed;
  p->config = support_config(16);
  p->kv_token_bytes = 32768 + 8;
  p->window = 0;
  memset(p->pages, 0, sizeof p->pages);
  p->pages[0] = 16 * SIM_CONTEXT / SOC_PAGE_TOKENS;
  for (uint32_t i = 0; i < SCHED_DEVICES_MAX; i++) p->lost_ns[i] = p->back_ns[i] = SCHED_NEVER;
}

static void random_config(sim_plan *p, sim_random *r) {
  sched_config *c = &p->config;
  c->places = sim_random_between(r, 2, SIM_PLACES_MAX);
  c->queue_max = sim_random_between(r, 4, 64);
  c->decode_rows = sim_random_between(r, 2, SIM_DECODES_MAX);
  c->ride_rows = sim_random_below(r, 3) ? sim_random_between(r, 1, 64) : 0;
  c->tpot_target_ns = sim_random_below(r, 5) ? 0 : (int64_t)sim_random_between(r, 5, 80) * MS;
  c->bcap = sim_random_below(r, 5) ? 0 : sim_random_between(r, 1, 8);
  c->age_limit_ns = (int64_t)sim_random_between(r, 1, 100) * 300 * MS;
  c->backlog_max_ns = (int64_t)sim_random_between(r, 5, 600) * SECOND;
  c->degrade_first = (uint8_t)sim_random_below(r, 2);
  c->shorten_to = sim_random_between(r, 4, 64);
  p->kv_token_bytes = 1024 * (uint64_t)sim_random_between(r, 4, 64) + 8;
  p->window = sim_random_below(r, 3) ? 0 : 512;
  p->grows = sim_random_below(r, 2);
  p->tail = sim_random_below(r, 2);
  p->cut_last = sim_random_below(r, 5);
  /* from a pool that holds two long requests to one that holds them all */
  p->pages[0] = sim_random_between(r, 120, 60 * c->places + 100);
  if (p->window) p->pages[1] = sim_random_between(r, 60, 20 * c->places + 60);
  c->reserve[0] = sim_random_below(r, p->pages[0] / 4);
  c->reserve[1] = p->window ? sim_random_below(r, p->pages[1] / 4) : 0;
}

static void random_faults(sim_plan *p, sim_random *r) {
  for (uint32_t d = 0; d < p->n_devices; d++) {
    uint32_t number = 0;
    p->n_faults[d] = sim_random_below(r, SIM_FAULTS_MAX);
    for (uint32_t i = 0; i < p->n_faults[d]; i++)
      p->faults[d][i] = number += 1 + sim_random_below(r, 60);
  }
  if (sim_random_below(r, 2)) return;
  uint32_t d = sim_random_below(r, p->n_devices);
  p->lost_ns[d] = (int64_t)sim_random_below(r, 5000) * MS;
  p->back_ns[d] = p->lost_ns[d] + (int64_t)sim_random_below(r, 2000) * MS;
}

int64_t sim_plan_service(const sim_plan *p, uint32_t prompt, uint32_t output) {
  int64_t best = INT64_MAX;
  for (uint32_t i = 0; i < p->n_devices; i++) {
    uint32_t span = p->devices[i].span_rows;
    int64_t ns = cost_prefill(&p->cost[i], span, 0) * prompt / span;
    if (ns < best) best = ns;
  }
  const cost_table *t = &p->cost[p->n_devices - 1];
  return best + cost_decode(t, 4, 4 * p->kv_token_bytes * prompt) / 4 * output;
}

sim_spec *sim_plan_add(sim_plan *p, int64_t arrival_ns, uint8_t class_, uint32_t prompt,
                       uint32_t output) {
  sim_spec *s = &p->specs[p->n_specs];
  *s = (sim_spec){.arrival_ns = arrival_ns,
                  .cancel_ns = SCHED_NEVER,
                  .suspend_ns = SCHED_NEVER,
                  .resume_ns = SCHED_NEVER,
                  .reclass_ns = SCHED_NEVER,
                  .attach_ns = SCHED_NEVER,
                  .detach_ns = SCHED_NEVER,
                  .first_deadline_ns = SCHED_NEVER,
                  .done_deadline_ns = SCHED_NEVER,
                  .class_ = class_,
                  .session = p->n_specs % SIM_SESSIONS,
                  .parent = SCHED_NONE,
                  .prefix = SCHED_NONE,
                  .prompt = prompt,
                  .output = output,
                  .expected = output,
                  .content = p->n_specs};
  p->n_specs++;
  return s;
}

void sim_plan_sort(sim_plan *p) { /* stable */
  for (uint32_t i = 1; i < p->n_specs; i++) {
    sim_spec moved = p->specs[i];
    uint32_t at = i;
    for (; at && p->specs[at - 1].arrival_ns > moved.arrival_ns; at--)
      p->specs[at] = p->specs[at - 1];
    p->specs[at] = moved;
  }
}

typedef struct draws { /* a stream for each quantity */
  sim_random arrive, who, in, out, event, time;
} draws;

static int64_t later(draws *w, int64_t from, int64_t mean_ns) {
  return from + (int64_t)sim_random_exponential(&w->time, (double)mean_ns);
}

static void random_events(sim_spec *s, draws *w, int64_t service) {
  uint32_t what = sim_random_below(&w->event, 100);
  int64_t from = s->arrival_ns, mean = service * 4;
  if (what < 10) s->cancel_ns = later(w, from, mean);
  if (what >= 8 && what < 18) {
    s->suspend_ns = later(w, from, mean);
    s->resume_ns = later(w, s->suspend_ns, mean);
  }
  if (what >= 15 && what < 27) {
    s->reclass_ns = later(w, from, mean);
    s->reclass = (uint8_t)sim_random_below(&w->event, 3);
  }
  if (what >= 25 && what < 32) {
    s->attach_ns = later(w, from, mean);
    s->detach_ns = later(w, s->attach_ns, mean);
    s->attach_band = (uint8_t)sim_random_below(&w->event, 2);
  }
  if (what >= 30 && what < 42) s->first_deadline_ns = later(w, from, mean * 2) + 1;
  if (what >= 40 && what < 52) s->done_deadline_ns = later(w, from, mean * 4) + 1;
}

static uint32_t length(sim_random *r, double mean, uint32_t most) {
  double n = 1 + sim_random_exponential(r, mean);
  return n > most ? most : (uint32_t)n;
}

static void random_request(sim_plan *p, draws *w, int64_t at, uint32_t reactive_percent,
                           const uint32_t prefix_len[SIM_PREFIXES]) {
  static const double in[3] = {60, 250, 700}, out[3] = {8, 40, 90};
  uint32_t kind = sim_random_below(&w->who, 100);
  uint8_t class_ = kind < reactive_percent ? SCHED_REACTIVE : SCHED_PROACTIVE;
  uint32_t prompt = length(&w->in, in[sim_random_below(&w->in, 3)], 2500);
  uint32_t output = length(&w->out, out[sim_random_below(&w->out, 3)], 400);
  sim_spec *s = sim_plan_add(p, at, class_, prompt, output);
  s->expected = sim_random_between(&w->out, 1, output);
  s->session = sim_random_below(&w->who, SIM_SESSIONS / 4);
  s->tool_end = sim_random_below(&w->who, 3) == 0;
  s->may_react = sim_random_below(&w->who, 2);
  s->shortenable = sim_random_below(&w->who, 2);
  if (sim_random_below(&w->who, 4) == 0) {
    s->child = 1;
    s->parent = sim_random_below(&w->who, SIM_SESSIONS / 4);
    if (sim_random_below(&w->who, 2)) s->class_ = SCHED_INHERITED;
  }
  if (sim_random_below(&w->who, 4) == 0) {
    s->prefix = sim_random_below(&w->who, SIM_PREFIXES);
    s->prefix_len = prefix_len[s->prefix];
    if (s->prompt <= s->prefix_len) s->prompt = s->prefix_len + 1 + s->prompt % 100;
  }
  random_events(s, w, sim_plan_service(p, s->prompt, s->output));
}

void sim_plan_random(sim_plan *p, uint64_t seed) {
  sim_random r;
  draws w;
  memset(p, 0, sizeof *p);
  sim_random_seed(&r, seed, "plan");
  sim_random_seed(&w.arrive, seed, "arrive");
  sim_random_seed(&w.who, seed, "who");
  sim_random_seed(&w.in, seed, "len.in");
  sim_random_seed(&w.out, seed, "len.out");
  sim_random_seed(&w.event, seed, "event");
  sim_random_seed(&w.time, seed, "time");
  sim_plan_devices(p, seed & 1, seed);
  sim_plan_defaults(p, seed);
  random_config(p, &r);
  if (sim_random_below(&r, 3) == 0) random_faults(p, &r);
  if (sim_random_below(&r, 4) == 0) {
    p->observe = true;
    for (uint32_t d = 0; d < p->n_devices; d++)
      p->truth[d] = (uint32_t)(COST_ONE * (0.8 + 0.5 * sim_random_unit(&r)));
  }
  uint32_t prefix_len[SIM_PREFIXES];
  for (uint32_t i = 0; i < SIM_PREFIXES; i++)
    prefix_len[i] = SOC_PAGE_TOKENS * sim_random_between(&r, 1, 24);
  double load = 0.3 + 3.7 * sim_random_unit(&r);
  int64_t gap = scaled(sim_plan_service(p, 340, 46), 1 / load);
  uint32_t n = sim_random_between(&r, 20, 160), reactive = sim_random_between(&r, 5, 95);
  bool bursts = sim_random_below(&r, 3) == 0;
  int64_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!bursts || sim_random_below(&w.arrive, 4) == 0)
      at += (int64_t)sim_random_exponential(&w.arrive, (double)gap * (bursts ? 4 : 1));
    random_request(p, &w, at, reactive, prefix_len);
  }
}
