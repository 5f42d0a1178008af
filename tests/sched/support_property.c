/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/support_property.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "sched/support_random.h"
#include "sched/support_sim.h"

#define SECOND 1000000000LL

static const struct {
  int invariant;
  const char *name, *worst; /* worst: what the measured column is, against 1; NULL: nothing */
} rows[] = {
    {INV_LEGAL, "0 actions are what sched.h allows", NULL},
    {INV_END, "1 each request ends exactly once", NULL},
    {INV_TOKENS, "2 tokens equal those of the lone run", NULL},
    {INV_PAGES, "3 pages: free + owned = total", "pages owned / total"},
    {INV_ACCOUNTS, "4 X within its cap, never below one launch", "X / bound"},
    {INV_BLOCKED, "5 blocked <= 2 D + what cannot be cut", "blocked / bound"},
    {INV_STRETCH, "6 mean of 16 iterations <= (1+e) S / (1-s)", "mean / bound"},
    {INV_GAP, "6 gap <= G + one launch", "gap / bound"},
    {INV_PROMOTED, "7 one promoted prefill and row", "at once"},
    {INV_SHARE, "8 X is spent, the head of P moves", "bound / measured"},
    {INV_BUSY, "9 no device idle > D while work may run", "idle / D"},
    {INV_LIFTS, "10 no reactive lift without a waiter", NULL},
    {INV_ORDER, "11 P never delays admission, pages, order of R", NULL},
    {INV_REPLAY, "12 replay and permuted arrays decide alike", NULL},
    {INV_CANCEL, "13 a cancel is seen, and delays nobody", "time / bound"},
    {INV_FAULTS, "14 faults: as 1 to 3", NULL},
    {INV_ALONE, "15 P lengthens by <= (e+s) alone + 2 D on average", "longer / bound"},
    {INV_PASSES, "16 pass 2 against brute force, P95 of the loss <= 5 %", "loss"},
    {INV_MONOTONE, "20 T monotone in rows and bytes", NULL},
};

static sim_plan plan, other; /* large */
static sim_result results[SIM_SPECS_MAX], base[SIM_SPECS_MAX];

static void note(sim_report *r, int invariant, double measured, uint64_t seed) {
  sim_tally *t = &r->of[invariant];
  t->checks++;
  if (measured > t->worst) {
    t->worst = measured;
    t->worst_seed = seed;
  }
  if (measured <= 1) return;
  if (t->violations++ < 4)
    printf("seed %llu: invariant %d: %.4g of its bound\n", (unsigned long long)seed, invariant,
           measured);
}

/* ---- 8: nine tenths of the time reactive, three times as much background as fits ---- */

static void share(sim_report *r, uint64_t seed) {
  sim_random arrive, work;
  sim_random_seed(&arrive, seed, "share.arrive");
  sim_random_seed(&work, seed, "share.work");
  memset(&plan, 0, sizeof plan);
  sim_plan_devices(&plan, seed & 1, seed);
  sim_plan_defaults(&plan, seed);
  plan.config.age_limit_ns = SECOND;
  int64_t reactive = sim_plan_service(&plan, 160, 48), at = 0, end = 0;
  for (uint32_t i = 0; i < 80; i++) {
    at += (int64_t)sim_random_exponential(&arrive, (double)reactive / 0.9);
    sim_plan_add(&plan, at, SCHED_REACTIVE, 160, 48);
    end = at;
  }
  for (at = 0; at < end && plan.n_specs < SIM_SPECS_MAX;) {
    uint32_t in = sim_random_between(&work, 50, 600), out = sim_random_between(&work, 20, 120);
    sim_plan_add(&plan, at, SCHED_PROACTIVE, in, out);
    at += sim_plan_service(&plan, in, out) / 3;
  }
  sim_plan_sort(&plan);
  sim_run(&plan, r, UINT64_MAX, NULL);
  double s = (double)plan.config.background_share / SCHED_ONE;
  double due = 0.9 * s * (double)sim_last.promoted_ns;
  note(r, INV_SHARE, sim_last.x_spent_ns > 0 ? due / (double)sim_last.x_spent_ns : 1e9, seed);
  /* What is promoted before it: a span or an iteration. */
  int64_t work_ns = cost_prefill(&plan.cost[0], plan.devices[0].span_rows, 0) +
                    cost_decode(&plan.cost[plan.n_devices - 1], 16, 16 * 700 * 32768);
  double bound = (double)plan.config.age_limit_ns + (double)work_ns / s;
  note(r, INV_SHARE, (double)sim_last.longest_wait_ns / bound, seed);
}

/* ---- 15, 13: one reactive request at a time, alone and in company, in which some are cancelled */

static void alone(sim_report *r, uint64_t seed) {
  sim_random w;
  sim_random_seed(&w, seed, "alone");
  memset(&plan, 0, sizeof plan);
  sim_plan_devices(&plan, seed & 1, seed);
  sim_plan_defaults(&plan, seed);
  plan.config.age_limit_ns = (int64_t)sim_random_between(&w, 1, 30) * SECOND;
  int64_t at = SECOND;
  uint32_t n = 12;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t in = sim_random_between(&w, 20, 800), out = sim_random_between(&w, 2, 60);
    sim_plan_add(&plan, at, SCHED_REACTIVE, in, out);
    at += sim_plan_service(&plan, in, out) * 16 / 4 + SECOND / 2;
  }
  sim_run(&plan, r, UINT64_MAX, base);
  other = plan;
  bool cancels = seed % 4 >= 2;
  for (int64_t p = 0; p < at && other.n_specs < SIM_SPECS_MAX;) {
    uint32_t in = sim_random_between(&w, 50, 900), out = sim_random_between(&w, 20, 200);
    sim_spec *s = sim_plan_add(&other, p, SCHED_PROACTIVE, in, out);
    int64_t service = sim_plan_service(&other, in, out);
    if (cancels && sim_random_below(&w, 2))
      s->cancel_ns = p + (int64_t)sim_random_exponential(&w, (double)service * 4);
    p += (int64_t)((double)service * (0.3 + sim_random_unit(&w)));
  }
  for (uint32_t i = 0; i < n; i++) other.specs[i].session = i;
  sim_plan_sort(&other);
  sim_run(&other, r, UINT64_MAX, results);
  double es = (double)(plan.config.slack_r + plan.config.background_share) / SCHED_ONE;
  double longer = 0, may = 0, d = (double)plan.config.preempt_ns;
  for (uint32_t i = 0, k = 0; i < other.n_specs; i++) {
    if (other.specs[i].class_ != SCHED_REACTIVE) continue;
    int64_t lone = base[k].end_ns - plan.specs[k].arrival_ns;
    int64_t company = results[i].end_ns - other.specs[i].arrival_ns;
    /* What X has stored (4 D, if that is more than two iterations) may fall on one request. */
    double bound = es * (double)lone + 2 * d + 4 * d;
    longer += (double)(company - lone);
    may += es * (double)lone + 2 * d;
    if (base[k].end != SIM_DONE || results[i].end != SIM_DONE || base[k].hash != results[i].hash)
      note(r, INV_ALONE, 1e9, seed);
    uint64_t before = r->of[INV_ALONE].violations + r->of[INV_CANCEL].violations;
    note(r, cancels ? INV_CANCEL : INV_ALONE, (double)(company - lone) / bound, seed);
    if (r->of[INV_ALONE].violations + r->of[INV_CANCEL].violations > before)
      printf("  alone %llu: request %u at %.3f ms, %u in, %u out: %.3f ms alone, %.3f in company\n",
             (unsigned long long)seed, other.specs[i].content,
             (double)other.specs[i].arrival_ns * 1e-6, other.specs[i].prompt, other.specs[i].output,
             (double)lone * 1e-6, (double)company * 1e-6);
    k++;
  }
  note(r, cancels ? INV_CANCEL : INV_ALONE, longer / may, seed);
}

/* ---- all of it ---- */

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double p95(sim_report *r) {
  uint64_t n = r->n_losses < 4096 ? r->n_losses : 4096;
  if (!n) return 1;
  qsort(r->losses, n, sizeof *r->losses, by_size);
  return r->losses[(n * 95 + 99) / 100 - 1];
}

static void show(sim_report *r) {
  printf("\n%-58s %12s %10s %8s  %s\n", "invariant", "checks", "violations", "worst", "of");
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const sim_tally *t = &r->of[rows[i].invariant];
    printf("%-58s %12llu %10llu ", rows[i].name, (unsigned long long)t->checks,
           (unsigned long long)t->violations);
    if (rows[i].worst)
      printf("%8.3f  %s (seed %llu step %llu)", t->worst, rows[i].worst,
             (unsigned long long)t->worst_seed, (unsigned long long)t->worst_step);
    printf("\n");
  }
  printf("\n%llu steps, %llu episodes, %llu requests, %llu launches\n\n",
         (unsigned long long)r->steps, (unsigned long long)r->episodes,
         (unsigned long long)r->requests, (unsigned long long)r->launches);
}

static int figures(sim_report *r) {
  char name[160];
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const sim_tally *t = &r->of[rows[i].invariant];
    snprintf(name, sizeof name, "%s: violations", rows[i].name);
    if (rows[i].invariant == INV_PASSES)
      figure(rows[i].name, "<=", 0.05, p95(r));
    else
      figure(name, "==", 0, (double)t->violations);
    snprintf(name, sizeof name, "%s: worst", rows[i].name);
    if (rows[i].worst && rows[i].invariant != INV_PASSES) figure(name, "<=", 1, t->worst);
    snprintf(name, sizeof name, "%s: checks", rows[i].name);
    figure(name, ">=", 1, (double)t->checks); /* what was never looked at holds nothing */
  }
  return figures_end();
}

int property_main(int argc, char **argv, uint64_t steps) {
  static sim_report report;
  uint64_t first = 1, only = 0, lone = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    uint64_t value = strtoull(argv[i + 1], NULL, 0);
    if (!strcmp(argv[i], "--steps")) steps = value;
    if (!strcmp(argv[i], "--seed")) only = value;
    if (!strcmp(argv[i], "--first")) first = value;
    if (!strcmp(argv[i], "--alone")) lone = value;
    if (!strcmp(argv[i], "--from")) report.trace_from = value;
    if (!strcmp(argv[i], "--to")) report.trace_to = value;
  }
  if (only) {
    sim_plan_random(&plan, only);
    sim_run(&plan, &report, UINT64_MAX, NULL);
    show(&report);
    return 0;
  }
  if (lone) {
    alone(&report, lone);
    show(&report);
    return 0;
  }
  for (uint64_t seed = first; report.steps < steps; seed++) {
    sim_plan_random(&plan, seed);
    sim_run(&plan, &report, steps - report.steps, NULL);
  }
  uint64_t turns = 2 + steps / 100000;
  for (uint64_t seed = 0; seed < (turns < 24 ? turns : 24); seed++) {
    share(&report, first + seed);
    for (uint64_t k = 0; k < 4; k++) alone(&report, first + 4 * seed + k);
  }
  show(&report);
  return figures(&report);
}
