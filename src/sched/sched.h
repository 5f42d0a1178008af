/* SPDX-License-Identifier: Apache-2.0 */
/* sched.h - the policy: which request runs where, next. Pure.
 *
 * sched_decide reads a snapshot of the engine and says what to do. It touches no clock, lock,
 * device or allocation, computes in integers, and keeps what it must remember in sched_memory,
 * plain data that the runtime owns. Same view, memory and time: same decisions, so that what a
 * simulation proves is what ships, and a recorded run can be replayed (sched/record.h).
 *
 *   band  R  a person waits for it    I  a person waits for its parent    P  background
 *         reactive = R or I. Found anew at every decision.
 *
 *   run   rows that walk the graph together in one activation slot. A launch is one or two runs on
 *         one device: a prefill span, or an iteration of decode rows that may carry a span.
 *         A stopped launch keeps its slots and goes on where it was (RESUME), or is given up
 *         (DROP): nothing of it was emitted.
 *
 *   slots each device has five, and a launch, running or stopped, holds those it uses: prefill of a
 *         reactive, of a P and of a promoted request; decode of R and I rows, and of P rows. The
 *         policy never launches into a slot that is held: so beside a stopped P iteration no P row
 *         joins a reactive one, before that is finished or dropped.
 *
 * A decision, in this order: expire and cancel; bands; accounts; admission; pages; then for each
 * device that is free, what runs next. Source: scheduling.md 1 to 6; numbers of sections below are
 * its. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/cost.h"

enum {
  SCHED_REQUESTS_MAX = 65536 + 1024, /* not ended, in one view: waiting and running */
  SCHED_DEVICES_MAX = 4,
  SCHED_LAUNCHES_MAX = 8,
  SCHED_GROUPS = 4
};
#define SCHED_NONE UINT32_MAX
#define SCHED_NEVER INT64_MAX
#define SCHED_ONE (1 << 16) /* ratios are 16.16 */

typedef enum sched_state {
  SCHED_QUEUED,  /* arrived or suspended: holds nothing */
  SCHED_PREFILL, /* admitted: has a place and pages; rows are left that make no token */
  SCHED_DECODE,  /* one row per iteration */
  SCHED_ENDED    /* to be ignored */
} sched_state;

typedef enum sched_band { SCHED_BAND_R, SCHED_BAND_I, SCHED_BAND_P, SCHED_BANDS } sched_band;
typedef enum sched_class {
  SCHED_REACTIVE,
  SCHED_PROACTIVE,
  SCHED_INHERITED /* a child that says nothing: I while its parent waits, else P */
} sched_class;

typedef struct sched_request {
  uint32_t id;    /* the runtime's; unique among those in the view */
  uint8_t state;  /* sched_state */
  uint8_t class_; /* sched_class, after the key's cap */
  uint8_t child;  /* has a parent session: explicit R is I, unless may_react */
  uint8_t may_react;
  uint8_t parent_waits; /* no open request, last turn ended in tool calls and was R or I */
  uint8_t lift; /* sched_band: the highest band of those that wait for its pages or are attached
                        to it; SCHED_BAND_P: nobody */
  uint8_t held; /* not runnable: its client suspended it, or it waits for another's prefix. While
                   QUEUED it is judged as it arrives */
  uint8_t cancelled;   /* the client asked; ends as soon as no launch holds it */
  uint8_t emitted;     /* its first token is out: first_deadline has been met */
  uint8_t in_last;     /* its row was in the last iteration: first among equals */
  uint8_t shortenable; /* may be shortened at admission under pressure (level 4) */
  uint8_t judged; /* an earlier decision has seen it: the tests at arrival (5) are over for it, also
                     when it is QUEUED again; 0 only the first time */
  uint8_t hinted; /* its deadline is what its client happens to wait for bytes, not asked for: it
                     counts for order, but is no reason to refuse it */
  uint8_t reserved[3];
  uint32_t launch; /* that holds rows of it, in flight or stopped; SCHED_NONE */
  int64_t arrival_ns;
  int64_t first_deadline_ns, done_deadline_ns; /* SCHED_NEVER: none */
  int64_t waiting_ns; /* since when it is runnable and unserved: its last launch's end, its arrival,
                         its release */
  int64_t emit_ns;    /* when its last token was emitted; 0: none yet */
  int64_t blocked_ns; /* so far: time in which it was ready and waited for launches of band P that X
                         did not pay */
  uint32_t prompt_left;   /* rows still to compute before it decodes */
  uint32_t output_left;   /* tokens it may still produce */
  uint32_t expected_left; /* tokens it is expected to produce still: <= output_left */
  uint64_t kv_bytes;      /* that one row of it reads at its present position */
  uint32_t
      need[SCHED_GROUPS]; /* KV pages: queued: to be admitted; else that its next rows need more
                                  than it has (mostly 0) */
  uint32_t most[SCHED_GROUPS];  /* that it needs at its full length: more than all is refused */
  uint32_t holds[SCHED_GROUPS]; /* that suspending it would give back */
  int64_t recompute_ns;         /* to get back what suspending it would lose */
} sched_request;

typedef enum sched_launch_state {
  SCHED_RUNNING,
  SCHED_STOPPING, /* a stop was asked for */
  SCHED_STOPPED   /* stands between two panels (or cuts), holds its slots */
} sched_launch_state;

/* What a LAUNCH takes, by the band and promotion that its request and rows have then. */
enum {
  SCHED_SLOT_PREFILL = 1,          /* a span of a request in band R or I */
  SCHED_SLOT_PREFILL_P = 2,        /* in band P */
  SCHED_SLOT_PREFILL_PROMOTED = 4, /* in band P, and the LAUNCH is promoted */
  SCHED_SLOT_DECODE = 8,           /* rows in band R or I */
  SCHED_SLOT_DECODE_P = 16         /* rows in band P, promoted or not */
};

typedef struct sched_launch_view {
  uint32_t id;      /* below SCHED_LAUNCHES_MAX; chosen by LAUNCH, free again when it has ended */
  uint8_t device;   /* index into view.devices */
  uint8_t state;    /* sched_launch_state */
  uint8_t promoted; /* as its LAUNCH or last RESUME said */
  uint8_t slots;    /* SCHED_SLOT_* that it holds; bands may have changed since its LAUNCH */
  uint32_t prompt_request; /* whose span it carries, or SCHED_NONE; its decode rows are the requests
                              in DECODE that name it */
  uint32_t prompt_rows, decode_rows;
  int64_t start_ns; /* of its present stretch */
  int64_t done_ns;  /* device time of the stretches before */
  int64_t total_ns; /* predicted, all stretches together, as its LAUNCH said */
} sched_launch_view;

typedef struct sched_device {
  const cost_table *cost;
  uint8_t decodes;    /* takes GEN rows */
  uint8_t prefills;   /* takes PROMPT rows */
  uint8_t can_stop;   /* between panels: cost->stop_ns; else a launch runs in cuts of at most
                         preempt_ns and comes back STOPPED by itself after each */
  uint8_t lost;       /* takes nothing now */
  uint32_t step;      /* static shapes: spans are multiples of this; 1: any */
  uint32_t span_rows; /* prompt rows of one launch, at most */
} sched_device;

typedef struct sched_config { /* constant while the engine runs, but for `reserve` */
  uint32_t places;      /* requests that hold pages at once; and one more, for the aged of band P */
  uint32_t queue_max;   /* that may wait */
  uint32_t decode_rows; /* of one launch and band, at most */
  uint32_t ride_rows;   /* prompt rows that ride in an iteration, at most */
  int64_t preempt_ns;   /* D: 10 ms in every formula */
  uint32_t slack_r, slack_i; /* e: tpot_slack with an R row (0.15), else (0.5) */
  int64_t tpot_target_ns;    /* 0: none */
  uint32_t bcap;        /* 0: adaptive; else rows of a batch that holds a reactive one, at most */
  int64_t age_limit_ns; /* L */
  uint32_t background_share; /* s: 5 % */
  int64_t ttft_target_ns;    /* 1 s */
  int64_t backlog_max_ns;    /* of P at admission: 600 s */
  uint8_t degrade_first;     /* level 4 before level 3 */
  uint8_t reserved[3];
  uint32_t shorten_to;            /* tokens that level 4 leaves a new request */
  uint32_t reserve[SCHED_GROUPS]; /* pages kept for reactive: P starts only if these stay; may
                                     change from one decision to the next: each record has it */
} sched_config;

typedef struct sched_view {
  const sched_config *config;
  const sched_request *requests; /* any order; the policy orders by (arrival, id) */
  uint32_t n_requests;
  const sched_launch_view
      *launches; /* in flight or stopped; at most one RUNNING or STOPPING a device */
  uint32_t n_launches;
  const sched_device *devices;
  uint32_t n_devices;
  uint64_t bandwidth; /* C: bytes per second of all devices together; 0: one device, no matter */
  uint64_t kv_token_bytes;           /* KV bytes that a position adds to what a row reads */
  uint32_t pages_free[SCHED_GROUPS]; /* not promised to anyone, cached ones counted */
  uint32_t pages_total[SCHED_GROUPS];
  uint32_t power; /* draw / cap, 16.16; 0: not known */
} sched_view;

typedef enum sched_term { /* what bounded the batch of the last iteration with reactive rows */
                          SCHED_TERM_NONE,
                          SCHED_TERM_SLACK,
                          SCHED_TERM_TARGET,
                          SCHED_TERM_FILL, /* no more rows there, or more would not pay */
                          SCHED_TERM_MEMORY,
                          SCHED_TERM_FIXED
} sched_term;

typedef enum sched_pays { SCHED_PAYS_NOTHING, SCHED_PAYS_X, SCHED_PAYS_CREDIT } sched_pays;

/* How fast the work of some requests is done: its predicted time, over the time it took while there
 * was enough of it; of the last 8 to 16 s. */
typedef struct sched_pace {
  int64_t time_ns, work_ns;
  int64_t span_ns, done_ns; /* the same since, until it is a second */
  int64_t rows, tokens;     /* to do when the last decision was over: of prompts, after them */
  uint8_t enough;           /* there was then */
  uint8_t reserved[7];
} sched_pace;

/* Plain data; all zero at start. What scheduling.md calls accounts, clocks and sticky flags; the
 * last block is for metrics only. */
typedef struct sched_memory {
  uint64_t decisions;
  int64_t then_ns; /* of the last decision */
  int64_t x_ns;    /* X */
  int64_t
      x_floor_ns; /* X is spent down to this while reactive work is runnable: D at a time of what
                         was saved, that the next person may not meet all of it */
  int64_t credit_ns;
  int64_t above_ns, below_ns; /* since when pressure is above 1, below 0.7; 0: it is not */
  uint32_t level;             /* of pressure: 0 to 6 */
  uint32_t promoted_prefill, promoted_row; /* id + 1; 0: none */
  uint32_t promoted_tokens;                /* that the row may still make */
  uint32_t waited_for; /* id + 1 of the first request that the last decision admitted */
  uint32_t aged; /* id + 1: of band P, starved once; its place is one beyond `places`, which no
                    reactive request can take, and none waits for; 0: nobody */
  uint8_t reactive_runnable, reserved[7];
  sched_pace pace[2]; /* of reactive requests; of background */
  int64_t
      until_ns[SCHED_LAUNCHES_MAX]; /* when a launch is to be stopped though nothing else happens;
                                       0: not */
  uint8_t pays[SCHED_LAUNCHES_MAX]; /* sched_pays: of a running P launch that reactive work waits
                                       for. Who waits for one that X pays is not `blocked` */
  /* metrics */
  uint32_t bcap, term; /* of the last iteration with reactive rows; sched_term */
  int64_t pass1_ns;    /* S */
  uint32_t pressure;   /* 16.16 */
  uint32_t reserved2;
  int64_t backlog_ns;                                   /* of band P, predicted */
  uint64_t piggybacked, promotions, drops, preemptions; /* rows, requests, launches, stops */
  int64_t x_spent_ns, x_earned_ns;
} sched_memory;

typedef enum sched_action_kind {
  SCHED_ADMIT,   /* request: give it a place and promise it `need` pages */
  SCHED_REFUSE,  /* request: end it; reason; ns: when to try again (Retry-After) */
  SCHED_SHORTEN, /* request: at most `rows` tokens (level 4, before ADMIT) */
  SCHED_EXPIRE,  /* request: cancelled or past its deadline, no launch holds it: end it */
  SCHED_SUSPEND, /* request: take its place and pages; it is QUEUED again */
  SCHED_LAUNCH,  /* launch, device; request and rows: the prompt span (SCHED_NONE, 0: none); decode
                    rows by the JOINs behind it; promoted; ns: predicted */
  SCHED_JOIN,    /* request: its decode row joins the LAUNCH before; promoted */
  SCHED_RESUME,  /* launch: a stopped one goes on; promoted: it carries what is promoted by now */
  SCHED_DROP,    /* launch: a stopped one is given up; its rows are free again */
  SCHED_STOP     /* launch: a running one is to stop */
} sched_action_kind;

typedef enum sched_reason {
  SCHED_REASON_NONE,
  SCHED_REASON_PAGES,    /* can never fit */
  SCHED_REASON_QUEUE,    /* queue_max wait */
  SCHED_REASON_BACKLOG,  /* too much background */
  SCHED_REASON_PRESSURE, /* level 3, 5, 6 */
  SCHED_REASON_LATE,     /* would not finish before its deadline */
  SCHED_REASON_CANCELLED,
  SCHED_REASON_DEADLINE
} sched_reason;

typedef struct sched_action {
  uint8_t kind, reason, device, promoted;
  uint32_t request; /* id, or SCHED_NONE */
  uint32_t rows;
  uint32_t launch; /* or SCHED_NONE */
  int64_t ns;
} sched_action;

/* Returns the number of actions written (never more than capacity; what does not fit is decided the
 * next time). *wake_ns: when to ask again though nothing happens (SCHED_NEVER: never).
 * O(n log n) in the requests.
 *
 * Actions are carried out in their order. A decision that admits starts no launch of what it
 * admitted; *wake_ns is then now, so that the next one sees what a cached prefix has left of the
 * prompt. It is also now if actions did not fit, if what expires may make room for what waits, or
 * if what is shortened needs less. A wake of now is "once this decision's actions are done, and not
 * before". A device gets at most one LAUNCH or RESUME a decision, and only while nothing is RUNNING
 * or STOPPING on it. */
size_t sched_decide(const sched_view *view, sched_memory *memory, int64_t now_ns, sched_action *out,
                    size_t capacity, int64_t *wake_ns);

/* The band of a request, without what it holds. */
sched_band sched_band_of(const sched_request *r);

#endif
