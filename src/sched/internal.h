/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - one decision, as the files of the policy share it.
 *
 *   sched.c     the decision: its parts in their order; accounts; actions
 *   order.c     requests in order, launches and devices as they stand
 *   estimate.c  predicted times: what a request still takes, fill, laxity
 *   admit.c     expire, admit, refuse
 *   judge.c     the tests at arrival; how fast the work of a class is done
 *   pressure.c  levels of pressure
 *   pages.c     claims of pages and places, whom to suspend
 *   promote.c   aging: who is promoted, what X pays
 *   batch.c     which rows an iteration has: passes 1 and 2, B_cap
 *   urgent.c    the reactive prefill, reactive rows and when they are due
 *   pick.c      what a device runs next; what a running launch is stopped for
 *   launch.c    LAUNCH, JOIN, RESUME, DROP, STOP
 *
 * A decision lives on the stack of sched_decide: 5 bytes a request that may be in a view (330 KiB)
 * and about 4 KiB beside it; no recursion. Indices of requests are into view->requests. */
#ifndef SCHED_INTERNAL_H
#define SCHED_INTERNAL_H

#include "sched/sched.h"

enum {
  ROWS_MAX = 256,                                       /* of one batch and band */
  FLIGHTS_MAX = SCHED_LAUNCHES_MAX + SCHED_DEVICES_MAX, /* a runtime may show its own work too */
  PROMOTED_TOKENS = 32
};
#define SECOND_NS 1000000000LL

enum {                /* flags of a request in this decision; bits */
       OVER = 1,      /* cancelled or past a deadline */
       GONE = 2,      /* ended, refused, suspended or admitted by this decision */
       TAKEN = 4,     /* in a launch of this decision */
       NO_PAGES = 8,  /* its next rows need pages that are not there */
       CRITICAL = 16, /* it may miss its deadline, or will: first in its band, or last */
       LOST = 32
};

typedef struct flight { /* a launch of the view */
  const sched_launch_view *l;
  uint8_t slots;
  bool dropped, asked;                 /* by this decision: given up; to stop */
  uint32_t members, over, held;        /* requests in it */
  uint32_t rows_reactive, rows_p;      /* decode rows by present band */
  uint32_t prompt;                     /* index of the request whose span it carries */
  bool reactive, reactive_span, has_r; /* has a reactive member; its span is one's; R row */
  cost_load load;
  int64_t rest_ns; /* predicted */
} flight;

typedef struct urgent { /* reactive decode rows that want this device */
  uint32_t rows;
  uint64_t kv;
  bool has_r;
  int64_t iteration_ns; /* S */
  int64_t latest_ns;    /* G after the first one's last token: the iteration is to be over */
  int64_t due_ns;       /* when it is to start; SCHED_NEVER without rows */
  int64_t last_ns;      /* the newest token of these rows */
  uint32_t e;           /* slack */
} urgent;

typedef struct site { /* a device */
  const sched_device *dev;
  const cost_table *cost;
  bool usable;
  bool busy;         /* something is in flight on it, or was started by this decision */
  uint8_t slots;     /* held */
  uint32_t span;     /* prompt rows of one launch */
  int64_t span_ns;   /* of a whole span, without KV */
  int64_t row_ns;    /* of one row */
  cost_load running; /* what is in flight on it */
  bool running_reactive;
  int64_t running_rest_ns, running_slack_ns;
} site;

typedef struct decision {
  const sched_view *v;
  const sched_config *c;
  sched_memory *m;
  int64_t now, wake;
  sched_action *out;
  size_t n, capacity;
  bool full; /* an action did not fit */
  uint32_t pages[SCHED_GROUPS];
  uint32_t places_held;
  uint32_t admitted; /* id + 1 of the first one */
  bool suspended;    /* someone was */
  flight flights[FLIGHTS_MAX];
  uint32_t n_flights;
  site sites[SCHED_DEVICES_MAX];
  uint32_t n_sites;
  uint32_t ids;     /* of launches, that are taken; bits */
  uint32_t started; /* the launch that was launched or resumed last */
  /* estimates */
  uint32_t prefill_site, decode_site; /* fastest; SCHED_NONE: there is none */
  uint32_t n_rows_p, n_rows_reactive; /* in DECODE, runnable */
  uint32_t n_prefill_p;               /* P in PREFILL, runnable */
  uint32_t fill;
  int64_t token_ns[SCHED_BANDS]; /* from one token of a request to its next */
  int64_t token_share_ns;        /* device time of one token when `fill` decode together */
  int64_t reactive_share_ns;     /* of one token of the reactive rows that decode now */
  uint64_t reactive_kv;          /* that one of them reads, on average */
  /* the reactive prefill: index, or SCHED_NONE; where; its stopped launch, if any */
  uint32_t rp, rp_site;
  flight *rp_flight;
  bool rp_runs; /* it is in flight */
  /* order[0, n_running): hold places; order[n_running, n_live): QUEUED; each by (band, arrival,
   * id). at[b], at[3 + b]: where a band begins in them. */
  uint32_t at[2 * SCHED_BANDS + 1], n_running, n_live;
  bool hurried[SCHED_BANDS]; /* some that wait are critical or lost */
  uint8_t flags[SCHED_REQUESTS_MAX];
  uint32_t order[SCHED_REQUESTS_MAX];
} decision;

/* sched.c */
bool sched_act(decision *d, sched_action action);
void sched_wake_by(decision *d, int64_t time_ns);

static inline const sched_request *request_of(const decision *d, uint32_t i) {
  return &d->v->requests[i];
}
static inline sched_band band_of(const sched_request *r) {
  sched_band band = sched_band_of(r);
  return r->lift < band ? (sched_band)r->lift : band;
}
static inline bool is_before(const sched_request *a, const sched_request *b) {
  return a->arrival_ns != b->arrival_ns ? a->arrival_ns < b->arrival_ns : a->id < b->id;
}
/* ns * ratio, 16.16 */
static inline int64_t ratio_of(int64_t ns, int64_t ratio) {
  return (int64_t)(((__int128)ns * ratio) >> 16);
}
static inline int64_t min_ns(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t max_ns(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static inline int64_t add_ns(int64_t a, int64_t b) { /* saturates */
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? (b > 0 ? SCHED_NEVER : INT64_MIN) : sum;
}
static inline int64_t sub_ns(int64_t a, int64_t b) { /* saturates */
  int64_t rest;
  return __builtin_sub_overflow(a, b, &rest) ? (b < 0 ? SCHED_NEVER : INT64_MIN) : rest;
}

/* order.c */
void sched_order_requests(decision *d);
void sched_give_place(decision *d, const sched_request *r); /* it ends or is suspended */
void sched_look_at_launches(decision *d);
/* The launch that holds rows of a request, unless this decision has dropped it; NULL: none. */
flight *sched_flight_of(decision *d, const sched_request *r);
/* In PREFILL or DECODE and allowed to run. */
bool sched_is_runnable(const decision *d, uint32_t i);
/* And in no launch, with its pages: may be launched now. */
bool sched_is_ready(decision *d, uint32_t i);
uint32_t sched_find(const decision *d, uint32_t id); /* among the running; SCHED_NONE */

/* estimate.c */
void sched_estimate(decision *d);
cost_load sched_span_load(const decision *d, const site *s, const sched_request *r, uint32_t rows);
uint32_t sched_span_rows(const decision *d, const site *s, const sched_request *r);
int64_t sched_prefill_ns(const decision *d, const site *s, const sched_request *r);
int64_t sched_prefill_best_ns(const decision *d, const sched_request *r);
int64_t sched_prefill_about_ns(const decision *d, const sched_request *r);
int64_t sched_rest_ns(const decision *d, const sched_request *r); /* to its last token */
/* Of its nearest deadline; *rest: what is predicted until that. SCHED_NEVER: it has none. */
int64_t sched_laxity(const decision *d, const sched_request *r, int64_t *rest);
/* Flags who is critical or lost. */
void sched_look_at_deadlines(decision *d);
/* An iteration behind a stretch of a prompt: the caches hold other weights than its own. */
static inline int64_t sched_after_prompt_ns(int64_t iteration_ns) {
  return iteration_ns + iteration_ns / 3;
}
static inline int64_t sched_worth_ns(const decision *d, const site *s) {
  int64_t stretch = 4 * (s->cost->stop_ns + s->cost->launch_ns);
  return min_ns(stretch, d->c->preempt_ns / 2);
}

/* judge.c */
typedef struct todo {
  int64_t prompts_ns; /* device time of prompts */
  int64_t rows;       /* of them */
  int64_t tokens;     /* after them */
} todo;

typedef struct ahead {        /* grows as the requests are looked at in their order */
  todo bands[SCHED_BANDS];    /* of those that are to run, with and without a place */
  uint32_t live[SCHED_BANDS]; /* them */
  bool background_waits;      /* for a place */
  /* Of reactive requests and of background: of those that an earlier decision has seen; of those
   * that the next one will see. */
  todo known[2], left[2];
} ahead;
todo sched_todo(const decision *d, const sched_request *r);
void sched_add(todo *sum, const todo *t, int sign);
/* Until all that is before a request of this band is done. */
int64_t sched_ahead_ns(const decision *d, const ahead *a, sched_band band);
/* Of background alone, in device time: ten minutes of it are not to be judged by the pace of some
 * seconds. */
int64_t sched_backlog_ns(const decision *d, const ahead *a);
/* May it come in? *wait_ns: if not, how long until that would be another matter. */
sched_reason sched_judge(const decision *d, const ahead *a, const sched_request *r,
                         int64_t *wait_ns);
void sched_settle_paces(decision *d, const ahead *a);

/* admit.c, pressure.c */
void sched_expire(decision *d);
void sched_admit(decision *d);
void sched_settle_pressure(decision *d);

/* pages.c */
bool sched_fits(const uint32_t need[SCHED_GROUPS], const uint32_t there[SCHED_GROUPS]);
void sched_claim_running(decision *d, bool reactive);
/* Makes room for the pages that a request needs and, if `place`, for itself, by suspending others:
 * background, what is held, and, for the `survivor`, later reactive requests. A request of band P
 * suspends only background that came later. True: it is there now. False: it is not, or not before
 * a launch has stopped; then nobody is suspended. */
bool sched_make_room(decision *d, uint32_t i, bool place, bool survivor);

/* promote.c */
void sched_promote(decision *d);
/* Starts the promoted prefill or, if no reactive row is there that it could join, the promoted row.
 * `paid`: reactive work waits meanwhile, so X pays. False: nothing was started. */
bool sched_start_promoted(decision *d, uint32_t device, const urgent *u, bool paid);
/* For how long X lets a promoted launch hold up reactive work now; 0: not at all. */
int64_t sched_x_pays_ns(const decision *d);
bool sched_is_worth(const decision *d, const site *s, int64_t rest_ns, int64_t limit_ns);

/* batch.c */
typedef struct batch {
  uint32_t rows[2 * ROWS_MAX + 1]; /* reactive first */
  uint32_t n, n_reactive;
  uint32_t promoted;        /* one of rows, or SCHED_NONE */
  uint32_t ride, ride_rows; /* whose prompt rows ride, or SCHED_NONE, 0 */
  cost_load load;
  int64_t total_ns;      /* of all */
  int64_t unpromoted_ns; /* without the promoted row */
} batch;
void sched_batch_reactive(decision *d, uint32_t device, const urgent *u, batch *b);
void sched_batch_background(decision *d, uint32_t device, bool promoted_only, batch *b);

/* urgent.c */
void sched_choose_prefill(decision *d);
void sched_look_at_rows(decision *d, uint32_t device, urgent *u);
/* Some reactive request is runnable, wherever. */
bool sched_is_reactive_runnable(const decision *d);
/* Reactive work that could run on the device now, or is stopped on it. */
bool sched_is_wanted(decision *d, uint32_t device, const urgent *u);
/* A P launch of this load and time on the device would keep a reactive one from where it must be,
 * or slow it by more than its slack. */
bool sched_holds_up(decision *d, uint32_t device, const cost_load *load, int64_t ns);

/* pick.c */
void sched_review(decision *d);
void sched_pick(decision *d);

/* launch.c */
flight *sched_stopped_in(decision *d, uint32_t device, uint8_t slots);
bool sched_launch_span(decision *d, uint32_t device, uint32_t i, bool promoted);
bool sched_launch_batch(decision *d, uint32_t device, const batch *b);
bool sched_resume(decision *d, flight *f);
bool sched_drop(decision *d, flight *f);
bool sched_stop(decision *d, flight *f); /* false: nothing is new */
/* A stopped launch of background rows, or span, whatever slot it holds; NULL: none. */
flight *sched_background_rows(decision *d, uint32_t device);
flight *sched_background_span(decision *d, uint32_t device);
/* A launch is stopped at `until`, at the latest, and paid by `pays`. */
void sched_limit(decision *d, uint32_t launch, int64_t until, uint8_t pays);

#endif
