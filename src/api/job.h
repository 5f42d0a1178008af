/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - one request on its way through the api threads. Private to this room.
 *
 *   parse, resolve, count, name,         first step; errors answer 4xx or 5xx before any header
 *   render, tokenize, submit             (a retry attaches to what runs instead)
 *        │
 *   events ──► frames ──► `pending` ──► ring of the connection      stream: no event is taken
 *        │                                                          while frames wait
 *        └───► gathered text ──► one answer                         whole
 *
 * A request may have several choices (n, several prompts): each is a stream of the engine, all are
 * submitted at once, and those of one prompt share its prefill. If one fails, the others are
 * cancelled and the failure is the answer.
 *
 * The client may go at any point: the streams are cancelled, their ENDs still awaited (a job ends
 * only when the engine has let go), and what would be written goes nowhere. */
#ifndef API_JOB_H
#define API_JOB_H

#include <stdatomic.h>

#include "api/access.h"
#include "api/answer.h"
#include "api/api.h"
#include "api/metrics.h"
#include "api/pool.h"
#include "api/request.h"
#include "api/resolve.h"
#include "api/sessions.h"
#include "api/streams.h"

struct api {
  api_options options;
  char *model_name;
  uint32_t vocab, context, token_bytes_max, at_once; /* at_once: requests that run or wait */
  int32_t bos;                                       /* -1: none */
  int64_t started_s;
  uint64_t id_salt;
  atomic_ullong requests;
  atomic_bool draining, closing;
  api_access *access;
  api_sessions *sessions;
  api_streams *streams;
  api_resolver resolver;
  api_metrics metrics;
  http_server *_Atomic server; /* borrowed; NULL until api_attach */
  api_pool *pool;
};

typedef struct api_job {
  api_pool_item item; /* first */
  api *owner;
  http_exchange *x; /* held */
  api_endpoint endpoint;
  api_signals signals;
  bool begun, cancelled, failed;
  bool opened;   /* the headers of a stream are out */
  bool left;     /* the client went before the end */
  bool cut;      /* a frame was lost: nothing more is written */
  bool recorded; /* counted and logged */
  bool resolved;
  bool told; /* its class and so on stand in headers */
  api_request request;
  api_resolved who;  /* if resolved, as is `now` */
  api_stream *entry; /* its name in the registry, until it is recorded; NULL: none */
  char stream_id[API_STREAM_ID_BYTES];
  api_stream_now now; /* when last looked at */
  api_answer answer;
  troika_grammar *grammar; /* NULL: free text */
  api_choice *choices;
  uint32_t choices_n, submitted, ended;
  api_failure failure;  /* if failed */
  bytes_buffer pending; /* frames; those before pending_at are written */
  size_t pending_at;
  int64_t written_ns;     /* when the client last got something */
  int64_t stalled_ns;     /* since when it takes no more; 0: it does */
  int64_t io_ns;          /* for how long it did not, in all */
  int64_t first_ns;       /* when the first token came */
  uint32_t prompt_tokens; /* for the log line of a request that was refused */
  unsigned status;
} api_job;

/* Takes a request that is whole. HTTP thread. False: no memory. */
bool api_job_create(api *a, http_exchange *x, api_endpoint endpoint);
bool api_job_step(api_pool_item *item);
void api_job_finish(api_pool_item *item);
void api_job_news(void *job); /* of a stream or of the client: the job is stepped soon */
/* Answers with the error object and its headers. Any thread. */
void api_answer_with_failure(http_exchange *x, const api_failure *failure);

/* record.c: what is said of a job once, before its answer goes out: whoever has the answer finds it
 * counted, logged, and ended in /v1/streams. */
void api_job_record(api_job *job);
api_usage api_job_usage(const api_job *job);
/* What the answer tells of itself; the end of one choice, or NULL: of the first. */
api_about api_job_about(api_job *job, const api_choice *choice, const troika_event *end);
void api_job_look(api_job *job);
/* The x-troika-... headers; whole: with what is known at the end only. */
void api_job_headers(api_job *job, bool whole);

/* submit.c: makes the prompts and hands the choices to the engine. False: none is left with it. */
bool api_job_submit(api_job *job, api_failure *failure);
/* Who waits for it: resolves, counts, and names it. False: `failure` says why not. */
bool api_job_resolve(api_job *job, api_failure *failure);
/* Why it ends, if somebody ended it through the registry. True: `failure` says it. */
bool api_job_dropped(const api_job *job, api_failure *failure);
/* The tokens of a chat or a text; owned. NULL: `failure` says why. */
int32_t *api_make_tokens(const api *a, const api_request *r, const api_prompt *prompt, size_t *n,
                         api_failure *failure);

/* As the model's template has it; see troika_model_chat. */
troika_status api_chat_tokens(const api *a, const api_request *r, troika_chat_end end, int32_t *out,
                              size_t capacity, size_t *n, troika_error *err);

/* tokens.c: the bodies of /tokenize and /detokenize. */
bool api_tokenize(const api *a, bytes_view body, bytes_buffer *out, api_failure *failure);
bool api_detokenize(const api *a, bytes_view body, bytes_buffer *out, api_failure *failure);
void api_put_tokens_text(const api *a, const int32_t *tokens, size_t n, bytes_buffer *out);

#endif
