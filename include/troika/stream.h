/* troika/stream.h - a client's requests and their events.
 *
 * A stream carries one request at a time: submit, then pull events until TROIKA_EVENT_END, then
 * submit again.
 *
 *     troika_stream_submit(s, &request, &err);
 *     while (!troika_stream_next(s, &event, -1))
 *       fwrite(event.text, 1, event.text_len, stdout);
 *
 * Events wait in a ring that is sized when the request is admitted and holds the whole answer, so a
 * slow reader never holds up the engine and never grows memory. A stream is used by one thread at a
 * time; cancel may come from any thread.
 *
 * Copyright 2026 the troika authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef TROIKA_STREAM_H
#define TROIKA_STREAM_H

#include "troika/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct troika_stream troika_stream;

typedef struct troika_stream_options {
  uint32_t size; /* sizeof(troika_stream_options) */
  /* Called from the runtime's thread after each new event; must return at once and call nothing of
   * troika. NULL: none. For servers that suspend a connection. */
  void (*wake)(void *context);
  void *wake_context; /* borrowed until the stream is closed */
} troika_stream_options;

TROIKA_API troika_status troika_stream_open(troika_runtime *runtime,
                                            const troika_stream_options *options,
                                            troika_stream **out, troika_error *err);
/* Cancels what runs, waits until the engine has let go of it (milliseconds), frees; NULLs *stream.
 */
TROIKA_API void troika_stream_close(troika_stream **stream);

enum {
  TROIKA_TOP_MAX = 20,
  TROIKA_STOP_MAX = 16,
  TROIKA_STOP_BYTES_MAX = 256,
  TROIKA_BIAS_MAX = 1024
};
/* Class of one turn. */
typedef enum troika_class {
  TROIKA_CLASS_DEFAULT, /* the stream's last explicit class; at first REACTIVE */
  TROIKA_REACTIVE,      /* a person waits */
  TROIKA_PROACTIVE,     /* background */
  TROIKA_INHERITED      /* of a child: as urgent as its parent while that waits, else background */
} troika_class;
#define TROIKA_MAX_TOKENS_CONTEXT UINT32_MAX /* until the context is full */

typedef struct troika_token_bias {
  int32_t token;
  float bias; /* added to its logit before anything else; -100 and less forbids it */
} troika_token_bias;

/* Order of sampling: grammar and bias; repetition, frequency and presence penalties; the best if
 * temperature is 0; else top-k, temperature, softmax, top-p, min-p, draw. Log-probabilities are
 * taken before all of that. All pointers are copied by submit. troika_request_init sets the
 * defaults in brackets. */
typedef struct troika_request {
  uint32_t size; /* sizeof(troika_request) */
  const int32_t *prompt;
  uint32_t prompt_n;   /* >= 1; prompt_n > context is LIMIT with both numbers */
  uint32_t max_tokens; /* [until the context is full]; 0 computes the prompt and ends with LENGTH */
  float temperature;   /* [1]; 0 is greedy: the highest logit, the lowest id among equals */
  uint32_t top_k;      /* [0: off] */
  float top_p;         /* [1: off] smallest set of the best whose probability reaches it */
  float min_p;         /* [0: off] at least this share of the best one's probability */
  float repeat_penalty; /* [1: off] divides positive, multiplies negative logits of tokens among the
                           last repeat_last */
  uint32_t repeat_last; /* [64] tokens of prompt and answer that count as repeated */
  float frequency_penalty,
      presence_penalty; /* [0] subtracted per occurrence, once, in the answer so far */
  uint64_t
      seed; /* used if seeded; else drawn by submit. Same seed, choice and prompt: same answer */
  bool seeded;
  uint32_t choice; /* [0] index among several answers to one prompt: a different draw under the same
                      seed */
  const char *const
      *stop; /* stop_n <= TROIKA_STOP_MAX strings, each 1..TROIKA_STOP_BYTES_MAX bytes */
  uint32_t stop_n;
  bool ignore_eos;       /* end tokens are sampled like others and do not end the answer */
  bool logprobs;         /* log-probability of each token, before temperature and filters */
  uint32_t top_logprobs; /* [0] and of this many best ones, at most TROIKA_TOP_MAX */
  const troika_token_bias *bias;
  uint32_t bias_n;
  bool no_prefix_cache; /* [false] compute the whole prompt although a prefix of it is cached: for
                           measuring */
  /* [NULL] Another stream of this runtime whose present request has the same prompt: this one waits
   * until that prompt is computed and starts from its pages, so that several answers to one prompt
   * cost one prefill. Read during submit only. */
  const troika_stream *share;
  const troika_grammar *grammar; /* [NULL] what the answer must be; copied by submit */

  /* Who waits for it. */
  troika_class class_; /* [DEFAULT] */
  bool child;          /* [false] made by an agent that another one started: explicit REACTIVE is
                          then band I, unless may_react */
  bool may_react;
  uint64_t session, parent; /* [0: none] of this turn and of the session that started it; any number
                               that names it. A parent waits while it has no open request and
                               troika_runtime_session_waits said so */
  int64_t first_deadline_ns, done_deadline_ns; /* [0: none] after submit, for the first token and
                                                  for the last; passed: DEADLINE */
  bool deadline_hinted;     /* [false] done_deadline is what the client happens to wait for, nobody
                               asked for it: it counts for order, but is no reason to refuse */
  uint32_t expected_tokens; /* [0: not known] of the answer: for order and admission only */
  bool shortenable;         /* [false] under pressure a new request may get fewer max_tokens */
  /* When the conversation goes on, which decides what its pages are worth after this request: ns
   * from its end, or how many requests of its workflow come before, each as long as requests take
   * here. */
  int64_t next_use_ns;  /* [0: not known] */
  uint32_t next_steps;  /* [0: not known]; next_use_ns wins */
  bool last_turn;       /* [false] the session ends with this request */
  uint64_t cache_scope; /* [0] whose cached prefixes it may use and leaves its own to: nothing is
                           shared between two scopes, not even by time */
  /* [NULL] Another stream of this runtime, whose present request is the same one (a retry): this
   * stream gets all of its events, from the first, and nothing is computed twice. The request runs
   * in the more urgent class of the two, and is cancelled when both are. If that request has ended
   * by the time of submit, this is INVALID. Of the rest of this struct only `stop` and `class_`
   * count, but it is checked as ever. */
  const troika_stream *attach;
} troika_request;
TROIKA_API void troika_request_init(troika_request *request);

/* Copies the request and hands it to the engine; returns at once. Errors: INVALID (which field, its
 * value, the range), LIMIT (prompt and context in tokens), BUSY (this stream's last request has not
 * ended, or the queue is full: text says which), NO_MEMORY. */
TROIKA_API troika_status troika_stream_submit(troika_stream *stream, const troika_request *request,
                                              troika_error *err);
/* Ends the request: at once while it waits or between launches, between two panels (within a
 * millisecond) if it is alone in its launch. Its END event says CANCELLED. If it shares its launch
 * with others, that event comes at once too; its place and pages are free when that launch has
 * ended, and then it is counted. No request: nothing happens. Any thread. */
TROIKA_API void troika_stream_cancel(troika_stream *stream);

typedef enum troika_event_kind {
  TROIKA_EVENT_TOKEN, /* one token was sampled; text may be empty (part of a character, or held back
                         for a stop string) */
  TROIKA_EVENT_END    /* always the last one of a request */
} troika_event_kind;

typedef enum troika_finish {
  TROIKA_FINISH_STOP,   /* the model's end token, or a stop string */
  TROIKA_FINISH_LENGTH, /* max_tokens, or the context is full */
  TROIKA_FINISH_CANCELLED,
  TROIKA_FINISH_ERROR /* status and error_text say why */
} troika_finish;

typedef struct troika_top {
  int32_t token;
  float logprob;
} troika_top;

/* Where the time from submit to end went, in nanoseconds: the first six add up to it. */
typedef struct troika_timings {
  int64_t queue_ns;     /* until its first launch */
  int64_t prefill_ns;   /* of launches with its prompt rows, on the device */
  int64_t decode_ns;    /* of launches with its decode rows, on the device */
  int64_t preempted_ns; /* ready or stopped between launches while others ran, or suspended */
  int64_t slack_ns; /* between two of its iterations, given to the background within its slack */
  int64_t idle_ns;  /* the rest: decisions, sampling, hand-over */
  int64_t first_launch_ns; /* from the mailbox to the start of its first launch */
  int64_t blocked_ns;      /* of queue and preempted: launches of the background held the device */
  int64_t first_token_ns, last_token_ns; /* from submit; 0: none */
  int64_t gap_ns;                        /* the longest time between two tokens */
} troika_timings;

/* P: background; I: a person waits for its parent; R: a person waits for it. */
typedef enum troika_band { TROIKA_BAND_R, TROIKA_BAND_I, TROIKA_BAND_P } troika_band;

typedef enum troika_stream_state {
  TROIKA_STREAM_IDLE, /* no request yet, or its last one has ended */
  TROIKA_STREAM_QUEUED,
  TROIKA_STREAM_PREFILL,
  TROIKA_STREAM_DECODE,
  TROIKA_STREAM_SUSPENDED /* by troika_stream_suspend */
} troika_stream_state;

typedef struct troika_stream_info {
  troika_stream_state state;
  troika_class class_; /* resolved: REACTIVE, PROACTIVE or INHERITED */
  troika_band band;    /* at the last decision */
  uint32_t place;      /* in the queue, 1 is next; 0: not queued */
  uint32_t prompt_tokens, cached_tokens, computed_tokens, completion_tokens;
  uint32_t diverged_at; /* token of the prompt up to which the cache agreed; cached_tokens is this,
                           rounded down to whole pages */
  uint32_t preemptions; /* times that its launch was stopped for another, or its pages were taken */
  bool promoted;
  troika_timings timings; /* so far */
} troika_stream_info;

/* What its present or last request does. Any thread; never waits for the engine. */
TROIKA_API void troika_stream_describe(const troika_stream *stream, troika_stream_info *out);
/* No rows of it are launched until resume; its pages stay while nobody needs them. Any thread. */
TROIKA_API void troika_stream_suspend(troika_stream *stream);
TROIKA_API void troika_stream_resume(troika_stream *stream);
/* Class of the present request and the default of later ones. Raising acts at once, lowering at the
 * next span or token. Any thread. */
TROIKA_API void troika_stream_set_class(troika_stream *stream, troika_class class_);

/* Pointers are valid until the next call on the stream. */
typedef struct troika_event {
  troika_event_kind kind;
  int32_t token;    /* TOKEN */
  const char *text; /* whole UTF-8 characters that are now certain; END: what was held back */
  uint32_t text_len;
  float logprob; /* if asked for */
  uint32_t top_n;
  const troika_top *top; /* best first */
  troika_finish finish;  /* END, and all below */
  troika_status status;
  const char *error_text; /* "" if status is OK */
  uint32_t prompt_tokens, cached_tokens, completion_tokens;
  troika_timings timings;
  int64_t retry_after_ns; /* END with BUSY: when it would be admitted, predicted; 0: not known */
} troika_event;

/* The next event; waits up to timeout_ns (0: not at all, negative: for ever). TIMEOUT: none yet.
 * END: no request is open. */
TROIKA_API troika_status troika_stream_next(troika_stream *stream, troika_event *event,
                                            int64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
