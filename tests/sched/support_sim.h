/* SPDX-License-Identifier: Apache-2.0 */
/* support_sim.h - an engine without a model around sched_decide: requests, pages, slots and
 * launches as the runtime keeps them, on the virtual devices of device/soc, under a virtual clock.
 *
 * It carries out every action as sched.h says, checks that each is one that sched.h allows, and
 * after every step the invariants of scheduling.md 12. What breaks one is printed with seed and
 * step; the same plan gives the same run. A step is one call of sched_decide. */
#ifndef TESTS_SCHED_SUPPORT_SIM_H
#define TESTS_SCHED_SUPPORT_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "device/soc/soc.h"
#include "sched/sched.h"

enum {
  SIM_SPECS_MAX = 512,
  SIM_PLACES_MAX = 16,
  SIM_SPAN_MAX = 256,
  SIM_DECODES_MAX = 32,
  SIM_OUTPUT_MAX = 512,
  SIM_CONTEXT = 4096,
  SIM_PREFIXES = 6,
  SIM_SESSIONS = 64,
  SIM_VOCAB = 50000,
  SIM_FAULTS_MAX = 64
};

/* ---- invariants ---- */

enum {
  INV_LEGAL = 0, /* actions are what sched.h allows */
  INV_END = 1,
  INV_TOKENS = 2,
  INV_PAGES = 3,
  INV_ACCOUNTS = 4,
  INV_BLOCKED = 5,
  INV_STRETCH = 6,
  INV_PROMOTED = 7,
  INV_SHARE = 8,
  INV_BUSY = 9,
  INV_LIFTS = 10,
  INV_ORDER = 11,
  INV_REPLAY = 12,
  INV_CANCEL = 13,
  INV_FAULTS = 14,
  INV_ALONE = 15,
  INV_PASSES = 16,
  INV_FLUID = 19,
  INV_MONOTONE = 20,
  INV_GAP = 21, /* second half of 6 */
  INVS = 22
};

typedef struct sim_tally {
  uint64_t checks, violations;
  double worst; /* measured / bound, or what the invariant's row says */
  uint64_t worst_seed, worst_step;
} sim_tally;

typedef struct sim_report {
  sim_tally of[INVS];
  uint64_t steps, episodes, requests, launches, printed;
  double losses[4096]; /* of invariant 16, the last ones */
  uint64_t n_losses;
  uint64_t trace_from, trace_to; /* steps whose actions are printed */
} sim_report;

/* ---- what happens ---- */

typedef struct sim_spec {
  int64_t arrival_ns, cancel_ns, suspend_ns, resume_ns, reclass_ns, attach_ns, detach_ns;
  int64_t first_deadline_ns, done_deadline_ns; /* absolute; SCHED_NEVER: none */
  uint8_t class_, reclass, attach_band, child, may_react, tool_end, shortenable;
  uint32_t session, parent;    /* parent: a session, or SCHED_NONE */
  uint32_t prefix, prefix_len; /* SCHED_NONE, 0: shares nothing */
  uint32_t prompt, output, expected;
  uint32_t content; /* names the tokens of its prompt */
} sim_spec;

typedef struct sim_plan {
  uint64_t seed;
  sched_config config;
  uint32_t n_devices;
  cost_table cost[SCHED_DEVICES_MAX]; /* of the devices, and what the policy believes */
  sched_device devices[SCHED_DEVICES_MAX];
  int64_t panel_ns[SCHED_DEVICES_MAX];
  uint32_t truth[SCHED_DEVICES_MAX]; /* what launches really cost: times this */
  uint32_t faults[SCHED_DEVICES_MAX][SIM_FAULTS_MAX], n_faults[SCHED_DEVICES_MAX];
  int64_t lost_ns[SCHED_DEVICES_MAX], back_ns[SCHED_DEVICES_MAX]; /* takes nothing meanwhile */
  uint64_t capacity[SOC_DEVICES_MAX];
  uint64_t kv_token_bytes;
  uint32_t window; /* of the second group; 0: one group */
  uint32_t pages[SCHED_GROUPS];
  bool grows;        /* admission promises the prompt only; rows take the rest as they need it */
  bool tail;         /* the last row of a prompt is the first decode row; else it ends a span */
  bool observe;      /* launches correct the table */
  uint32_t cut_last; /* of 4: how often a suspended request finds its pages again */
  uint32_t n_specs;
  sim_spec specs[SIM_SPECS_MAX]; /* by arrival */
} sim_plan;

/* Random devices, configuration and requests; the pair if the seed is odd, else the CPU. */
void sim_plan_random(sim_plan *p, uint64_t seed);
void sim_plan_devices(sim_plan *p, bool pair, uint64_t seed);
void sim_plan_defaults(sim_plan *p, uint64_t seed); /* configuration as shipped, ample memory */
int64_t sim_plan_service(const sim_plan *p, uint32_t prompt, uint32_t output); /* of one request */
/* One more request, by default in a session of its own, with nothing special about it. */
sim_spec *sim_plan_add(sim_plan *p, int64_t arrival_ns, uint8_t class_, uint32_t prompt,
                       uint32_t output);
void sim_plan_sort(sim_plan *p);

/* ---- the run ---- */

enum { SIM_OPEN, SIM_DONE, SIM_REFUSED, SIM_EXPIRED };

typedef struct sim_result {
  uint8_t end, reason;
  int64_t admitted_ns, first_launch_ns, first_ns, end_ns, blocked_ns, cancel_seen_ns, gap_ns;
  uint32_t tokens;
  uint64_t hash; /* of its tokens */
} sim_result;

typedef struct sim sim;

/* Runs the plan to its end, or max_steps. results: one a spec; may be NULL. Returns steps. */
uint64_t sim_run(const sim_plan *p, sim_report *report, uint64_t max_steps, sim_result *results);

/* What a run leaves beside results, of the last sim_run. */
typedef struct sim_totals {
  int64_t end_ns, x_spent_ns, x_earned_ns, reactive_ns, promoted_ns, longest_wait_ns;
  uint64_t steps, background_tokens;
} sim_totals;
extern sim_totals sim_last;

#endif
