/* SPDX-License-Identifier: Apache-2.0 */
/* sched.h - the policy: which request runs where, next. Pure.
 *
 * sched_decide reads a snapshot of the engine and says what to do. It touches no clock, lock,
 * device or allocation, computes in integers, and keeps what it must remember in sched_memory,
 * plain data that the runtime owns. Same view, memory and time: same decisions, so that what a
 * simulation proves is what ships, and a recorded run can be replayed.
 *
 * This is the first policy: first come, first served, with continuous batching. Requests are
 * admitted in order of arrival while a place and their KV pages are to be had; every launch carries
 * all decode rows and one span of the oldest prefill. The bands and budgets of scheduling.md
 * replace the body, not the interface. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <stddef.h>
#include <stdint.h>

typedef enum sched_state {
  SCHED_QUEUED,  /* arrived, holds nothing */
  SCHED_PREFILL, /* admitted: pages promised; prompt rows are left */
  SCHED_DECODE,  /* one row per iteration */
  SCHED_ENDED    /* to be ignored */
} sched_state;

typedef struct sched_request {
  uint32_t id; /* the runtime's; unique among those in the view */
  uint8_t class_, state;
  uint8_t in_flight;               /* some row of it is in a launch now */
  uint8_t cancelled;               /* the client asked; ends as soon as nothing is in flight */
  int64_t arrival_ns, deadline_ns; /* INT64_MAX: none */
  uint32_t prompt_left;            /* rows of the prompt not yet computed */
  uint32_t output_left;            /* tokens it may still produce */
  uint32_t need[4];                /* KV pages that it needs at most, per group: set while queued */
} sched_request;

typedef struct sched_launch_view {
  uint32_t id;
  uint8_t stopping; /* a stop was asked for */
  uint32_t prompt_rows, decode_rows;
  int64_t start_ns;
} sched_launch_view;

typedef struct sched_view {
  const sched_request *requests; /* any order; the policy orders by (arrival, id) */
  uint32_t n_requests;
  const sched_launch_view *launches; /* submitted and unfinished */
  uint32_t n_launches;
  uint32_t places;                        /* requests that may run at once */
  uint32_t queue_max;                     /* that may wait */
  uint32_t span_rows;                     /* prompt rows of one launch, at most */
  uint32_t decode_rows;                   /* of one launch, at most */
  uint32_t launches_max;                  /* in flight at once */
  uint32_t pages_free[4], pages_total[4]; /* not promised to anyone; all. Per group */
} sched_view;

/* Plain data; all zero at start. */
typedef struct sched_memory {
  uint64_t decisions;
  uint32_t waited_for; /* id + 1 of the first request that the last decision admitted: no launch was
                          started, to wait for it */
  uint32_t reserved;   /* 0 */
} sched_memory;

enum { SCHED_REQUESTS_MAX = 65536 + 1024 }; /* not ended, in one view: waiting and running */

typedef enum sched_action_kind {
  SCHED_ADMIT,  /* request: give it a place and promise its pages */
  SCHED_REFUSE, /* request: end it with a limit; reason */
  SCHED_START,  /* (reserved: first launch of a request on another device) */
  SCHED_LAUNCH, /* request, rows: prompt rows of that request (0: none), and all decode rows listed
                   by following SCHED_JOIN actions */
  SCHED_JOIN,   /* request: its decode row joins the launch before */
  SCHED_STOP,   /* launch */
  SCHED_PROMOTE,
  SCHED_WARM,
  SCHED_EVICT,
  SCHED_SUSPEND, /* (reserved: scheduling.md 4, 6) */
  SCHED_EXPIRE   /* request: cancelled or past its deadline, nothing in flight: end it */
} sched_action_kind;

typedef enum sched_reason {
  SCHED_REASON_NONE,
  SCHED_REASON_PAGES,
  SCHED_REASON_QUEUE,
  SCHED_REASON_CANCELLED,
  SCHED_REASON_DEADLINE
} sched_reason;

typedef struct sched_action {
  uint8_t kind, reason;
  uint16_t reserved; /* 0: no hidden bytes, actions can be compared and hashed as they lie */
  uint32_t request;  /* id, or SCHED_NO_REQUEST */
  uint32_t rows;
  uint32_t launch;
} sched_action;
#define SCHED_NO_REQUEST UINT32_MAX

/* Returns the number of actions written (never more than capacity; what does not fit is decided the
 * next time). *wake_ns: when to ask again though nothing happens (INT64_MAX: never). O(n log n) in
 * the requests. A cancelled request with rows in flight makes it ask for SCHED_STOP of a launch
 * that holds nothing but that request's rows (a launch with other rows runs on).
 *
 * Actions are carried out in their order. A decision that admits starts no launch: *wake_ns is now,
 * so that the next one sees what a cached prefix has left of the prompt. It is also now if actions
 * did not fit, or if what expires may make room for what waits. A wake of now is "once this
 * decision's actions are done, and not before". */
size_t sched_decide(const sched_view *view, sched_memory *memory, int64_t now_ns, sched_action *out,
                    size_t capacity, int64_t *wake_ns);

#endif
