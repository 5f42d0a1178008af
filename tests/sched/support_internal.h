/* SPDX-License-Identifier: Apache-2.0 */
/* support_internal.h - the state of the engine of support_sim.h, for it and its checks. */
#ifndef TESTS_SCHED_SUPPORT_INTERNAL_H
#define TESTS_SCHED_SUPPORT_INTERNAL_H

#include "sched/support_random.h"
#include "sched/support_sim.h"

enum {
  SIM_SLOTS = 5, /* index: the bit of SCHED_SLOT_* */
  SIM_PAGES_EACH = SIM_CONTEXT / SOC_PAGE_TOKENS,
  SIM_ACTIONS = 2048,
  SIM_WINDOW = 16, /* iterations of invariant 6 */
  SIM_SLOT_ROWS = SIM_SPAN_MAX
};

typedef struct sim_period { /* of an iteration with reactive rows, and sums of them; ns */
  int64_t actual, allowed;
  int64_t alone, promoted; /* the longest */
} sim_period;

typedef struct sim_job {
  const sim_spec *spec;
  sched_request r;
  sim_result result;
  uint32_t place;                  /* its sequence, while it is admitted */
  uint32_t computed, known, limit; /* tokens in its pages; prompt and emitted; most it may emit */
  uint32_t cached;                 /* tokens whose pages a suspension left */
  uint64_t cached_state, expect;   /* state after `cached`, after `known` tokens of a lone run */
  uint32_t promised[SCHED_GROUPS];
  int32_t out[SIM_OUTPUT_MAX];
  bool arrived, ended, suspended, decoding, done_cancel, done_suspend, done_resume, done_reclass;
  bool admitted_now; /* in this decision */
  uint8_t class_;
  /* the gap since its last token: whether the policy answers for all of it, the longest S and
   * launch meanwhile */
  bool gap_clean, gap_plain, busy_told;
  int64_t gap_s_ns, gap_launch_ns, cancelled_at_ns;
} sim_job;

typedef struct sim_launch {
  bool used;
  sched_launch_view v;
  uint32_t decodes[2 * SIM_DECODES_MAX], n_decodes; /* jobs: reactive ones first in the view */
  uint32_t prompt_job;
  uint32_t prompt_slot, n_rows[SIM_SLOTS];
  device_command commands[DEVICE_COMMANDS_MAX];
  uint32_t n_commands;
  device_event event;
  int64_t device_ns; /* of all stretches */
  bool promoted_span;
  uint32_t promoted_rows;
  /* of an iteration with reactive rows */
  cost_load load;
  bool measured;
  int64_t allowed_ns, alone_ns; /* (1+e)S; S */
} sim_launch;

typedef struct sim_prefix {
  uint32_t owner; /* job, or SCHED_NONE */
  uint32_t cached;
  uint64_t state;
} sim_prefix;

struct sim {
  const sim_plan *p;
  sim_report *report;
  uint64_t step, wakes;
  bool broken; /* the episode cannot go on */
  clock_virtual clock;
  soc *soc;
  device *devices[SCHED_DEVICES_MAX];
  device_queue *queues[SCHED_DEVICES_MAX];
  graph g;
  graph_node node;
  device_tables tables[SCHED_DEVICES_MAX];
  device_run runs[SCHED_DEVICES_MAX][SIM_SLOTS];
  device_row rows[SCHED_DEVICES_MAX][SIM_SLOTS * SIM_SLOT_ROWS];
  device_seq seqs[SIM_PLACES_MAX + 1];
  uint32_t page_numbers[SIM_PLACES_MAX + 1][SIM_PAGES_EACH];
  uint64_t kv[(SIM_PLACES_MAX + 1) * SIM_PAGES_EACH * SOC_PAGE_TOKENS];

  cost_table cost[SCHED_DEVICES_MAX];
  sched_device device_views[SCHED_DEVICES_MAX];
  sched_memory memory;
  sim_job jobs[SIM_SPECS_MAX];
  uint32_t arrived, ended, active[SIM_SPECS_MAX], n_active, id_xor;
  sim_launch launches[SCHED_LAUNCHES_MAX];
  sim_prefix prefixes[SIM_PREFIXES];
  uint32_t session_open[SIM_SESSIONS];
  bool session_waits[SIM_SESSIONS];
  bool place_taken[SIM_PLACES_MAX + 1];
  uint32_t aged_before; /* the last decision */
  uint32_t places_used, free[SCHED_GROUPS];
  sim_random shuffle, noise;

  /* the decision */
  sched_request requests[SIM_SPECS_MAX];
  sched_launch_view launch_views[SCHED_LAUNCHES_MAX];
  sched_view view;
  sched_action actions[SIM_ACTIONS];
  size_t n_actions;
  int64_t wake_ns;

  /* checks */
  int64_t waiting_since_ns[SCHED_DEVICES_MAX]; /* idle though something could run */
  sim_period window[SIM_WINDOW], all;
  uint32_t n_window;
  int64_t period_since_ns; /* end of the last iteration with reactive rows */
  bool period_clean;       /* these were ready all the time since, and no prompt of theirs ran */
  int64_t longest_background_ns, longest_iteration_ns, longest_launch_ns;
  int64_t reactive_ns, promoted_ns; /* in which reactive work was runnable; and somebody promoted */
  uint64_t background_tokens;
  int64_t longest_wait_ns, background_seen_ns;
};

/* Prints seed, step and the view, counts a violation of `invariant`. fatal: the run ends. */
void sim_violation(sim *s, int invariant, bool fatal, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* One more check of an invariant; measured: where it keeps the worst. */
void sim_checked(sim *s, int invariant, double measured);

static inline sim_job *sim_job_of(sim *s, uint32_t id) {
  uint32_t index = id ^ s->id_xor;
  return id != SCHED_NONE && index < s->p->n_specs && s->jobs[index].arrived &&
                 !s->jobs[index].ended
             ? &s->jobs[index]
             : NULL;
}
sched_band sim_band(const sim_job *j); /* the rule of scheduling.md 1, written anew */
bool sim_runnable(const sim *s, const sim_job *j);
uint32_t sim_index(const sim *s, const sim_job *j);
uint64_t sim_row_kv(const sim_plan *p, uint32_t pos);

/* support_check.c: around what the engine does. */
/* view and actions, before they are done */
void sim_check_decision(sim *s, const sched_memory *before, size_t room);
void sim_check_launch(sim *s, sim_launch *l);           /* just begun */
void sim_check_launch_end(sim *s, const sim_launch *l); /* whole */
void sim_check_step(sim *s);                            /* actions are done, and nothing at once */
void sim_check_passage(sim *s, int64_t to_ns);          /* time goes on to there */
void sim_check_token(sim *s, sim_job *j);
void sim_check_cancel(sim *s, sim_job *j); /* it ends for that reason */
void sim_check_end(sim *s);

#endif
