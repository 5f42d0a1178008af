/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - what the files of the runtime share.
 *
 *   model.c      troika_model_*: the file, its tokenizer and template
 *   stream.c     troika_stream_*: the client's side; its thread
 *   runtime.c    troika_runtime_*: open, close
 *   loop.c       the runtime thread: mailbox, decisions, what they say is done
 *   view.c       the runtime thread: the engine as the policy sees it
 *   request.c    the runtime thread: a request's life, from its arrival to its end
 *   launch.c     the runtime thread: rows into launches, completions into tokens
 *   account.c    the runtime thread: where a request's time goes; statistics
 *   constrain.c  grammars: made on the client's thread, stepped on the runtime's
 *   profile.c    measures what launches cost, while there is nothing else to do
 *   sessions.c   which sessions wait for their tools
 *   sample.c     logits to token, pure
 *   quantile.c   of the last values of something, pure
 *
 * Ownership: a `request` is made by submit on the client's thread, belongs to the runtime thread
 * from the SUBMIT message until its END is written, then to those streams that read it, the last of
 * which frees it (refs); one that all of them left while its launch went on is freed with that.
 * What both touch is guarded by stream.lock: the records up to the stream's `written`, the end once
 * `ended` is set. */
#ifndef RUNTIME_INTERNAL_H
#define RUNTIME_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "device/registry.h"
#include "gguf/gguf.h"
#include "kv/kv.h"
#include "model/model.h"
#include "runtime/mailbox.h"
#include "runtime/profile.h"
#include "runtime/quantile.h"
#include "runtime/recorder.h"
#include "runtime/sample.h"
#include "runtime/sessions.h"
#include "runtime/trace.h"
#include "sched/sched.h"
#include "text/emit.h"
#include "text/grammar.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include "troika/stream.h"

enum {
  RUNTIME_PARALLEL_MAX = 64,
  RUNTIME_QUEUE_MAX = 16384,
  RUNTIME_CONTEXT_DEFAULT = 8192,
  RUNTIME_SLOT_BYTES_MAX = 64 << 20
};

struct troika_model {
  char *path;
  gguf *file;
  graph *g;
  tokenizer *t;
  chat_template *chat; /* NULL: none */
  char *name;
  const char *type;
  uint64_t parameters;
  _Atomic uint32_t users;       /* runtimes */
  pthread_mutex_t grammar_lock; /* guards: */
  grammar_vocab *grammar_words; /* made when the first grammar is asked for; then constant */
};

/* Activation slots: reactive, background and promoted prefill, reactive and background decode. */
enum {
  SLOT_PREFILL,
  SLOT_PREFILL_P,
  SLOT_PREFILL_PROMOTED,
  SLOT_DECODE,
  SLOT_DECODE_P,
  SLOT_COUNT
};

typedef struct record { /* one sampled token */
  int32_t token;
  float logprob;
  uint32_t top_n;
} record;

typedef enum request_state {
  REQUEST_QUEUED, /* arrived, or suspended for its pages */
  REQUEST_PREFILL,
  REQUEST_DECODE,
  REQUEST_ENDED
} request_state;

typedef struct request {
  /* Set by submit, constant afterwards. */
  message letter;             /* SUBMIT */
  _Atomic uint32_t refs;      /* streams that read it */
  _Atomic uint32_t attaching; /* of those: whose ATTACH is still in the mailbox */
  sample_params params;       /* bias points into this allocation */
  uint32_t prompt_n, expected;
  bool ignore_eos, no_prefix_cache, child, may_react, shortenable, hinted, last_turn;
  uint32_t next_steps;
  int64_t next_use_ns;
  uint8_t urgency; /* when it was submitted: 0 proactive, 1 inherited, 2 reactive */
  uint64_t session, parent, scope;
  int64_t submit_ns, first_deadline_ns, done_deadline_ns; /* INT64_MAX: none */
  emit *stops; /* the runtime's view of the text: finds stop strings */
  /* The runtime thread's. */
  struct troika_stream *readers; /* by reader_next; the first one submitted it */
  struct request *next;          /* in the queue */
  uint32_t id, place, seq, max_new;
  uint8_t state, band; /* band: at the last decision */
  grammar *form;       /* NULL: free text */
  uint32_t *allowed;   /* the tokens that may come next, a bit each, if allowed_known */
  bool allowed_known;
  bool left; /* all readers left it to its launch once: the runtime has one of refs until its end */
  int64_t form_ns;            /* CPU time that the grammar's steps have taken */
  struct launch *launch;      /* that holds rows of it; NULL: none */
  bool in_last, judged;       /* judged: the policy has let it in, or found no reason against it */
  const troika_stream *share; /* asked for; looked at once, when the SUBMIT arrives */
  uint32_t expectation;       /* of its cached prefix, while QUEUED; or KV_NO_EXPECTATION */
  uint8_t expected_band;      /* as it was then */
  /* Waits for the first behind_tokens of its prompt, which that request is computing. */
  uint32_t behind, behind_tokens; /* behind: its id, or SCHED_NONE */
  uint32_t followers;             /* requests that wait behind this one */
  uint32_t promised;              /* tokens whose pages are promised */
  uint32_t computed, flying;      /* positions whose KV is written; rows in the launch */
  uint32_t n;                     /* tokens known: prompt and answer */
  int32_t *tokens;                /* [prompt_n + max_new] */
  uint32_t cached, diverged_at, preemptions;
  int64_t waiting_ns; /* since when it is runnable and unserved */
  int64_t start_ns, first_ns, last_ns;
  int64_t suspended_ns; /* since when by its client; 0: it is not */
  troika_timings spent; /* what accounts add up: prefill, decode, preempted, blocked, gap */
  /* Records: written by the runtime thread, read by clients as far as their `written`. */
  uint32_t made;
  record *records;  /* [max_new] */
  troika_top *tops; /* [max_new][top_logprobs] */
  /* The end, constant once a reader's `ended` is set. */
  troika_finish finish;
  troika_error error;
  troika_timings timings;
  int64_t retry_after_ns;
} request;

struct troika_stream {
  troika_runtime *rt;
  troika_stream_options options;
  message close_letter, attach_letter;
  _Atomic bool cancelled, suspended; /* of the present request; any thread */
  _Atomic uint8_t class_;            /* troika_class, never DEFAULT; any thread */
  request *current;                  /* written by the client's thread under lock; NULL: none */
  emit *text;                        /* client's thread: turns tokens into text the same way */
  uint32_t read;                     /* records handed out */
  bool flushed;
  struct troika_stream *reader_next; /* the runtime thread's: of the same request */
  struct troika_stream *news_next;   /* the runtime thread's: in its list of those to be told */
  bool has_news;
  pthread_mutex_t lock; /* guards what follows, and the records */
  pthread_cond_t changed;
  uint32_t written;
  bool ended, detached; /* END is set; the runtime has let go of the stream */
  bool left; /* cancelled while others went on to read, or its launch went on: its own end */
  troika_stream_info info;
};

enum {
  MESSAGE_SUBMIT,
  MESSAGE_ATTACH,
  MESSAGE_CLOSE_STREAM,
  MESSAGE_COMPLETION,
  MESSAGE_PROFILE,
  MESSAGE_QUIT
};

typedef struct completion_letter {
  message letter;
  device_completion completion;
  _Atomic bool used;
} completion_letter;

typedef struct launch {
  bool active, promoted;
  uint8_t state; /* sched_launch_state */
  uint8_t band;  /* the most urgent one of its rows */
  uint8_t slots; /* SCHED_SLOT_* */
  device_event event;
  device_command commands[DEVICE_COMMANDS_MAX];
  uint32_t n_commands;
  request *prefill; /* or NULL */
  uint32_t prefill_slot;
  request *decodes[2][RUNTIME_PARALLEL_MAX]; /* of SLOT_DECODE, SLOT_DECODE_P; in order of rows */
  uint32_t n_decodes[2];
  cost_load load;
  int64_t start_ns, done_ns, total_ns; /* of this stretch; of those before; predicted, of all */
  int64_t stop_asked_ns;               /* STOPPING: since when */
} launch;

struct troika_runtime {
  troika_model *model;
  const graph *g;
  device *cpu;
  device_queue *queue;
  device_math math;
  clock_source clock;
  kv *pages;
  mailbox mail;
  message quit_letter;
  pthread_t thread;
  bool started;
  completion_letter completions[DEVICE_LISTS_MAX + 1];
  uint32_t parallel, queue_max, context, span_rows;
  uint32_t n_places; /* parallel, and one for background that has starved (sched.h, aged) */
  uint32_t open_max; /* parallel + queue_max: where submit refuses */
  _Atomic uint32_t streams;
  sched_config config;
  runtime_sessions *sessions;
  runtime_trace *trace; /* NULL: none */
  runtime_recorder *recorder;

  /* The runtime thread's. */
  device_tables tables;
  device_run runs[SLOT_COUNT];
  device_row *rows; /* [sum of slot rows] */
  device_seq *seqs; /* [n_places] */
  float *logits_memory;
  size_t logits_bytes;
  request *places[RUNTIME_PARALLEL_MAX + 1];
  request *queue_first, *queue_last;
  uint32_t queued, left_requests;
  message *closing;    /* streams to let go of when their request has ended */
  troika_stream *news; /* whose clients are to be told, once the next launch is on its way */
  uint32_t next_id;
  launch launches[SCHED_LAUNCHES_MAX];
  launch *flight;   /* on the device now; NULL: none */
  cost_table costs; /* its stop_ns: see profile_stop_bound */
  quantile stops;   /* ns from asking a launch to stop until it was seen stopped */
  profile_state profile;
  sched_memory memory;
  sched_request *view; /* [3 open_max] */
  request **seen;      /* whose they are */
  sched_action *actions;
  uint32_t actions_capacity;
  uint32_t mean_answer[2]; /* tokens, 16.16; by class: what is expected of one that does not say */
  quantile needs[KV_GROUPS_MAX]; /* pages that reactive requests needed to be admitted */
  int64_t request_ns; /* from submit to end, on average: an eighth of it is the last one's */
  int64_t decided_ns, queue_shown_ns;
  uint64_t made[2];   /* tokens, by class */
  uint32_t traced[3]; /* the last values of the timeline's counters */
  void *sample_scratch;
  size_t sample_scratch_bytes;
  bool quitting;

  pthread_mutex_t stats_lock; /* guards stats and shown_costs */
  troika_runtime_stats stats;
  cost_table shown_costs;
  /* Requests submitted and not ended: all; those that were not proactive by then; reactive. */
  _Atomic uint32_t outstanding[3];
};

void *runtime_main(void *runtime);
void runtime_done(void *runtime, const device_completion *completion);

/* launch.c */
device_row *launch_slot_rows(troika_runtime *rt, uint32_t slot);
/* The first `rows` rows of a slot as a run from its first node, and its command. */
void launch_set_run(troika_runtime *rt, uint32_t slot, uint32_t rows, device_command *out);
/* A LAUNCH and the JOINs after it. */
void launch_begin(troika_runtime *rt, const sched_action *actions, size_t n);
void launch_resume(troika_runtime *rt, launch *l, bool promoted);
void launch_stop(troika_runtime *rt, launch *l);
void launch_drop(troika_runtime *rt, launch *l);
void launch_complete(troika_runtime *rt, const device_completion *completion);

/* request.c */
request *request_by_id(troika_runtime *rt, uint32_t id);
request *request_of(troika_runtime *rt, const troika_stream *s);
void request_arrive(troika_runtime *rt, request *r);
void request_admit(troika_runtime *rt, request *r);
/* It waits: what is cached of its prefix by now counts as used at once, by its present band. */
void request_expect(troika_runtime *rt, request *r);
void request_suspend(troika_runtime *rt, request *r);
/* Pages that admission, or its next row, takes beyond what it was promised. */
void request_need(const troika_runtime *rt, const request *r, uint32_t need[KV_GROUPS_MAX]);
bool request_grow(troika_runtime *rt, request *r); /* promises them; false: not to be had */
/* After this the request belongs to its readers. */
void request_end(troika_runtime *rt, request *r, troika_finish finish, troika_status status,
                 const char *text);
void request_attach(troika_runtime *rt, troika_stream *s);
/* Readers that have gone while others read on, or while its launch goes on for others, are told. */
void request_drop_readers(troika_runtime *rt, request *r);
bool request_cancelled(const request *r); /* by all of its readers */
/* Those that wait behind `r` need not any more, as far as their pages are there or will not be. */
void request_release_followers(troika_runtime *rt, request *r);
/* Positions to be computed before its next token is drawn, and the last of them. */
uint32_t request_target(const request *r);
uint64_t request_kv_bytes(const troika_runtime *rt, uint32_t position);
void stream_has_news(troika_runtime *rt, troika_stream *s);
void stream_leave(troika_runtime *rt, uint8_t urgency); /* one of the outstanding has ended */

/* view.c */
size_t view_decide(troika_runtime *rt, int64_t now_ns, int64_t *wake_ns);
bool view_is_suspended(const request *r); /* by all of its readers */
uint8_t view_class(const request *r);     /* sched_class: the most urgent of its readers' */

/* account.c */
/* `l` ran from start to end on the device. */
void account_stretch(troika_runtime *rt, const launch *l, int64_t start_ns, int64_t end_ns);
void account_suspension(request *r, int64_t now_ns);        /* its client's; once a turn */
void account_end(request *r, int64_t now_ns);               /* r->timings */
void account_request(troika_runtime *rt, const request *r); /* its end, in the statistics */
void account_update(troika_runtime *rt);                    /* once a loop */
void account_show(troika_runtime *rt, request *r);          /* now, to all of its readers */

/* stream.c */
void request_let_go(request *r); /* a reader less; the last one frees it */

/* constrain.c */
/* Client's thread: r->form as `q` asks for it, not stepped yet. */
troika_status constrain_create(const troika_model *m, const troika_request *q, request *r,
                               troika_error *err);
void constrain_prepare(request *r); /* r->allowed, if it is not known yet */
/* After the draw. LIMIT: the grammar's steps take too long. */
troika_status constrain_take(request *r, int32_t token, bool *over);
/* Why no token may follow: a sentence. */
const char *constrain_failure(const request *r);

#endif
