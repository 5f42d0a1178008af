/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - what the files of the runtime share.
 *
 *   model.c    troika_model_*: the file, its tokenizer and template
 *   stream.c   troika_stream_*: the client's side; its thread
 *   runtime.c  troika_runtime_*: open, close, statistics
 *   loop.c     the runtime thread: mailbox, decisions, requests
 *   launch.c   the runtime thread: rows into launches, completions into tokens
 *   constrain.c  grammars: made on the client's thread, stepped on the runtime's
 *   sample.c   logits to token, pure
 *
 * Ownership: a `request` is made by submit on the client's thread, belongs to the runtime thread
 * from the SUBMIT message until its END record is written, then to the client's thread again. What
 * both touch is guarded by stream.lock. */
#ifndef RUNTIME_INTERNAL_H
#define RUNTIME_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "device/registry.h"
#include "gguf/gguf.h"
#include "kv/kv.h"
#include "model/model.h"
#include "runtime/mailbox.h"
#include "runtime/sample.h"
#include "sched/sched.h"
#include "text/emit.h"
#include "text/grammar.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include "troika/stream.h"

enum {
  RUNTIME_PARALLEL_MAX = 64,
  RUNTIME_QUEUE_MAX = 65536,
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

/* Activation slots: reactive, proactive and promoted prefill, reactive and proactive decode.
 * Today's policy uses the first and the fourth. */
enum { SLOT_PREFILL = 0, SLOT_DECODE = 3, SLOT_COUNT = 5 };

typedef struct record { /* one sampled token */
  int32_t token;
  float logprob;
  uint32_t top_n;
} record;

typedef enum request_state {
  REQUEST_QUEUED,
  REQUEST_PREFILL,
  REQUEST_DECODE,
  REQUEST_ENDED
} request_state;

typedef struct request {
  /* Set by submit, constant afterwards. */
  message letter; /* SUBMIT */
  struct troika_stream *stream;
  sample_params params; /* bias points into this allocation */
  uint32_t prompt_n, max_new;
  bool ignore_eos, no_prefix_cache;
  emit *stops; /* the runtime's view of the text: finds stop strings */
  /* The runtime thread's. */
  struct request *next; /* in the queue */
  uint32_t id, place, seq;
  uint8_t state;
  grammar *form;     /* NULL: free text */
  uint32_t *allowed; /* the tokens that may come next, a bit each, if allowed_known */
  bool allowed_known;
  int64_t form_ns; /* CPU time that the grammar's steps have taken */
  bool in_flight, ending;
  const troika_stream *share; /* asked for; looked at once, when the SUBMIT arrives */
  uint32_t behind;    /* id of the request whose prompt is waited for; else SCHED_NO_REQUEST */
  uint32_t followers; /* queued requests that wait behind this one */
  uint32_t need[KV_GROUPS_MAX]; /* KV pages at most */
  uint32_t computed, flying;    /* positions whose KV is written; rows in the launch */
  uint32_t n;                   /* tokens known: prompt and answer */
  int32_t *tokens;              /* [prompt_n + max_new] */
  int64_t submit_ns, start_ns, first_ns, last_ns;
  uint32_t cached;
  /* Records: written by the runtime thread under stream.lock, read by the client. */
  record *records;  /* [max_new] */
  troika_top *tops; /* [max_new][top_logprobs] */
} request;

struct troika_stream {
  troika_runtime *rt;
  troika_stream_options options;
  message close_letter;
  _Atomic bool cancelled; /* of the present request; any thread */
  request *current;       /* client's thread; NULL: none */
  emit *text;             /* client's thread: turns tokens into text the same way */
  uint32_t read;          /* records handed out */
  bool flushed;
  struct troika_stream *news_next; /* the runtime thread's: in its list of those to be told */
  bool has_news;
  pthread_mutex_t lock; /* guards what follows, and the records */
  pthread_cond_t changed;
  uint32_t written;
  bool ended, detached; /* END is set; the runtime has let go of the stream */
  troika_finish finish;
  troika_error error;
  troika_timings timings;
  uint32_t prompt_tokens, cached_tokens, completion_tokens;
};

enum { MESSAGE_SUBMIT, MESSAGE_CLOSE_STREAM, MESSAGE_COMPLETION, MESSAGE_QUIT };

typedef struct completion_letter {
  message letter;
  device_completion completion;
  _Atomic bool used;
} completion_letter;

typedef struct launch {
  bool active, stopping;
  device_event event;
  device_command commands[2];
  uint32_t n_commands;
  uint32_t prefill;                                  /* place, or UINT32_MAX */
  uint32_t decodes[RUNTIME_PARALLEL_MAX], n_decodes; /* places, in the order of rows */
  int64_t start_ns;
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
  _Atomic uint32_t streams;

  /* The runtime thread's. */
  device_tables tables;
  device_run runs[SLOT_COUNT];
  device_row *rows; /* [sum of slot rows] */
  device_seq *seqs; /* [parallel] */
  float *logits_memory;
  size_t logits_bytes;
  request *places[RUNTIME_PARALLEL_MAX];
  request *queue_first, *queue_last;
  uint32_t queued;
  message *closing;    /* streams to let go of when their request has ended */
  troika_stream *news; /* whose clients are to be told, once the next launch is on its way */
  uint32_t next_id;
  launch flight; /* one at a time today */
  sched_memory memory;
  sched_request *view; /* [parallel + queue_max] */
  sched_action *actions;
  uint32_t actions_capacity;
  void *sample_scratch;
  size_t sample_scratch_bytes;
  bool quitting;

  pthread_mutex_t stats_lock; /* guards stats */
  troika_runtime_stats stats;
  _Atomic uint32_t
      outstanding; /* requests submitted and not ended: submit refuses past parallel + queue_max */
};

void *runtime_main(void *runtime);
void runtime_done(void *runtime, const device_completion *completion);

/* launch.c */
void launch_begin(troika_runtime *rt, const sched_action *actions,
                  size_t n); /* a LAUNCH and the JOINs after it */
void launch_complete(troika_runtime *rt, const device_completion *completion);

/* loop.c */
void request_end(troika_runtime *rt, request *r, troika_finish finish, troika_status status,
                 const char *text);
void stream_has_news(troika_runtime *rt, troika_stream *s);
/* The prompt of `r` is computed, or will not be: those that wait behind it need not any more. */
void release_followers(troika_runtime *rt, request *r);
request *request_by_id(troika_runtime *rt, uint32_t id);

/* stream.c */
void request_free(request *r);

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
