/* SPDX-License-Identifier: Apache-2.0 */
/* profile.h - measures what launches cost (plan/cost.h), by launches like any other, which run only
 * while the engine has nothing else to do and are stopped as soon as a request comes.
 *
 *   points   each load of a list several times, in rounds: what slows the machine for a while then
 *            hits all of them a little and none altogether. The first round warms up and says what
 *            fits the time there is; what does not is drawn from its neighbours, and marked
 *   gaps     between the end of a small launch and the start of the next: launch_ns
 *   stops    the longest span stopped at random times and resumed, over and over: stop_ns
 *   check    loads that were not measured, predicted and observed: error_q
 *
 * Of the times of one load the lowest eighth's upper end counts: others on the machine only ever
 * add to a launch's own time, in steps of their time slices, so a low quantile is nearest to it;
 * the least of many alone may be a fluke. What the others do add is the business of the corrections
 * (cost_observe).
 *
 * A measurement holds KV sequences and free pages (it evicts nothing) while it is in flight. Slots:
 * promoted prefill for PROMPT rows, background decode for GEN rows.
 *
 * Runtime thread, unless said otherwise. */
#ifndef RUNTIME_PROFILE_H
#define RUNTIME_PROFILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "plan/cost.h"
#include "runtime/mailbox.h"
#include "runtime/quantile.h"
#include "troika/runtime.h"

enum {
  PROFILE_POINTS_MAX = 2 * COST_POINTS + 8,
  PROFILE_CHECKS_MAX = 16,
  PROFILE_ROUNDS = 16,     /* at most; the first one only warms up */
  PROFILE_ROUNDS_WELL = 8, /* so many, and no more if they took long */
  PROFILE_CHECK_ROUNDS = 3,
  PROFILE_GAPS = 24,
  PROFILE_STOPS = 120,
  PROFILE_STOPS_PROVE = 32,
  PROFILE_ROWS_MAX = 64, /* GEN rows: sequences at once */
  PROFILE_QUIET = 750    /* share below which others had the machine */
};

typedef enum profile_phase {
  PROFILE_IDLE,
  PROFILE_POINTS,
  PROFILE_GAP,
  PROFILE_STOP,
  PROFILE_CHECK
} profile_phase;

typedef struct profile_point {
  uint16_t gen_rows, prompt_rows;
  uint32_t depth; /* positions in front of each sequence's first row */
  bool skipped;   /* does not fit the pool, the context or the time */
  uint8_t n;
  int64_t ns[PROFILE_ROUNDS];
} profile_point;

/* What is known about the table besides its numbers. */
typedef struct profile_facts {
  bool measured;                      /* else guessed */
  uint16_t gen_points, prompt_points; /* bit i: cost_rows[i] was measured, not drawn */
  uint32_t stops;
  int64_t stop_p95_ns;
  uint32_t error_median, error_p90; /* 16.16, of the check */
  uint32_t share; /* of the processors that our threads had while they worked, 1/1000 */
  char when[24];  /* UTC */
} profile_facts;

typedef struct profile_state {
  message letter; /* PROFILE */
  bool opened;
  char *path;                       /* of the file; NULL: none. Constant */
  char key[65];                     /* machine, model and settings. Constant */
  uint32_t wants_rows, wants_depth; /* of a file, at least: requests at once; positions before the
                                       rows of its deepest points. Constant */

  pthread_mutex_t lock; /* guards what a troika_runtime_profile waits for: */
  pthread_cond_t changed;
  bool calling, ended;
  troika_status status;
  char failure[128];
  _Atomic uint64_t done, total; /* launches */

  /* The runtime thread's. */
  bool asked, wanted;       /* by a caller; now */
  uint32_t tries_left;      /* without a caller */
  int64_t idle_ns, next_ns; /* since when (0: not idle); not before, without a caller */
  uint8_t phase;
  bool in_flight, stop_hidden;
  device_event event; /* of what is in flight */
  int64_t begin_ns, stop_asked_ns, spent_ns;
  uint32_t threads;
  int64_t cpu_begin_us, cpu_us,
      worked_ns; /* processor time; time that all workers should have worked */
  uint32_t seqs[PROFILE_ROWS_MAX + 1], n_seqs;
  profile_point points[PROFILE_POINTS_MAX], checks[PROFILE_CHECKS_MAX], span;
  uint32_t n_points, n_checks, at, round;
  bool round_ran;
  int64_t gap_end_ns; /* of the gap launch before; 0: there was something between */
  int64_t gaps[PROFILE_GAPS], stops[PROFILE_STOPS];
  uint32_t n_gaps, n_stops, tries, panel, unasked;
  uint32_t ratio[2]; /* of GEN and PROMPT launches: measured over guessed, 16.16 */
  uint64_t random;
  int64_t stop_ns;      /* of the table in use, as it was measured or guessed */
  cost_table table;     /* in the making */
  profile_facts making; /* about it */

  profile_facts facts; /* under stats_lock, as shown_costs */
} profile_state;

/* The thread that opens the runtime, once device and pages are there: rt->costs and shown_costs
 * from `path` (borrowed; NULL: none; a folder's, if it ends with a slash) if it fits this machine,
 * model and settings, else guessed. NO_MEMORY. */
troika_status profile_open(troika_runtime *rt, const char *path, troika_error *err);
void profile_close(troika_runtime *rt); /* the runtime's thread has ended; also if never opened */

/* A machine that others use gives a table that is too slow for good. So one that nobody asked for
 * is kept in the file only if the processors were ours; else it serves for the time being, and is
 * measured again a minute later, a few times. */

/* Once a turn of the loop: when the loop must look again because of this (INT64_MAX: never). From
 * it follows what profile_wants says: that measuring is asked for, or a file is named and not
 * there, a token has been made and nothing has been asked for 2 s; and no request is open. */
int64_t profile_wake_ns(troika_runtime *rt, int64_t now_ns);
bool profile_wants(const troika_runtime *rt);
/* Submits the next launch to rt->queue. False: nothing is in flight (it is all done, or there are
 * letters). Sleeps in the mailbox before a stop; a letter wakes it. */
bool profile_begin(troika_runtime *rt, int64_t now_ns);
/* A request has come: what is in flight stops (this waits for it, about the stop bound), lets go of
 * its sequences and pages, and is repeated later; its completion is still to come. */
void profile_stop(troika_runtime *rt);
/* The completion of profile.event. */
void profile_complete(troika_runtime *rt, const device_completion *c);
void profile_message(troika_runtime *rt, message *m);

/* ---- profile_plan.c: which loads, and what follows from their times; pure ---- */
/* What one row at `position` reads of the KV: as much as its windows let it see. */
uint64_t profile_kv_bytes(const graph *g, uint32_t position);
uint32_t profile_gen_position(const profile_point *p);
cost_load profile_load_of(const graph *g, const profile_point *p);
/* Fills points and checks, most needed first. */
/* A depth that no context or memory is too small for; 0: none. */
uint32_t profile_deepest(const graph *g, uint32_t span_rows, uint32_t context);
void profile_plan(profile_state *s, const graph *g, uint32_t parallel, uint32_t span_rows,
                  uint32_t context);
int64_t profile_low(int64_t *ns, uint32_t n); /* that quantile; sorts; 0 if n is 0 */
int64_t profile_time(const profile_point *p); /* of its repetitions; 0: none */
/* s->table, so far a guess, from the points, gaps and stops; false: too little was measured. */
bool profile_build(profile_state *s, const graph *g, profile_facts *facts);
/* What a stop is held to take at most, from the table's own stop_ns and the stops of launches seen
 * since: the 95th percentile of these, at most `most_ns`, once there are PROFILE_STOPS_PROVE
 * and it is longer; else the table's. So no single late stop moves it, and it falls back when they
 * are shorter again. */
int64_t profile_stop_bound(const quantile *stops, int64_t table_ns, int64_t most_ns);
/* Of the checks; the last step. */
void profile_errors(profile_state *s, const graph *g, profile_facts *facts);

/* ---- profile_file.c ---- */
/* s->key, and s->path from what was named. False: no memory. */
bool profile_identify(troika_runtime *rt, const char *path);
void profile_guess(const troika_runtime *rt, cost_table *out);
/* The file at s->path, if it was measured for s->key and can be true. False: the log says why,
 * unless it is not there. Any thread. */
bool profile_read(const profile_state *s, cost_table *t, profile_facts *facts);
bool profile_load(troika_runtime *rt); /* the same into rt->costs, before its thread starts */
bool profile_save(troika_runtime *rt);

#endif
