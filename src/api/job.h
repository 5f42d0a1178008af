/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - one request on its way through the api threads. Private to this room.
 *
 *   parse, render, tokenize, submit      first step; errors answer 4xx or 5xx before any header
 *        │
 *   events ──► frames ──► `pending` ──► ring of the connection      stream: no event is taken
 *        │                                                          while frames wait
 *        └───► gathered text ──► one answer                         whole
 *
 * The client may go at any point: the stream is cancelled, its END still awaited (a job ends only
 * when the engine has let go), and what would be written goes nowhere. */
#ifndef API_JOB_H
#define API_JOB_H

#include <stdatomic.h>

#include "api/api.h"
#include "api/answer.h"
#include "api/pool.h"
#include "api/request.h"

struct api {
  api_options options;
  char *model_name;
  uint32_t vocab, context, token_bytes_max;
  int64_t started_s;
  uint64_t id_salt;
  atomic_ullong requests;
  atomic_bool draining, closing;
  api_pool *pool;
};

typedef struct api_job {
  api_pool_item item; /* first */
  api *owner;
  http_exchange *x; /* held */
  api_endpoint endpoint;
  bool begun, cancelled, ended;
  api_request request;
  api_answer answer;
  troika_stream *stream;
  bytes_buffer pending; /* frames; those before pending_at are written */
  size_t pending_at;
  int64_t written_ns; /* when the client last got something */
  /* For the log line. */
  unsigned status;
  troika_event end;
} api_job;

/* Takes a request that is whole. HTTP thread. False: no memory. */
bool api_job_create(api *a, http_exchange *x, api_endpoint endpoint);
bool api_job_step(api_pool_item *item);
void api_job_finish(api_pool_item *item);
/* Answers with the error object and its headers. Any thread. */
void api_answer_with_failure(http_exchange *x, const api_failure *failure);

#endif
