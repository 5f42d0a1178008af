/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - OpenAI's HTTP interface over one model.
 *
 *   HTTP thread: api_begin (404, 405, GETs), api_handle → a job
 *   api threads: parse JSON → template → tokens → submit … events → chunks or one answer
 *
 * A job is a request on its way. Jobs are not threads: a job is stepped by a worker whenever there
 * is news for it (events of its stream, room in its client's ring, the client gone, ten seconds of
 * silence), never by two at once. So 300 waiting requests cost 300 small structures. One worker is
 * always kept from parsing and templates, so that tokens never wait behind a large body.
 *
 * Endpoints and fields: docs/API.md. */
#ifndef API_API_H
#define API_API_H

#include "http/http.h"
#include "troika/model.h"
#include "troika/stream.h"

typedef struct api api;

typedef struct api_options {
  troika_model *model; /* borrowed until api_close, as is runtime */
  troika_runtime *runtime;
  const char *model_name; /* id in /v1/models and in answers; copied */
  const char *keys;       /* API keys, one a line; NULL or none: nobody is asked for one. Copied */
  const char *origins;    /* web origins that may ask besides this machine's; NULL. Copied */
  unsigned workers;       /* api threads, at least 2 */
  troika_class default_class; /* of what says nothing; DEFAULT is REACTIVE */
  bool no_heuristics;         /* the shape of a request demotes nothing */
  bool share_cache;           /* cached prefixes are shared between API keys */
  int64_t keepalive_ns;       /* silence after which a stream gets a comment; 0: never */
} api_options;

void api_options_init(api_options *options);
troika_status api_open(const api_options *options, api **out, troika_error *err);
/* Points begin, handle, refuse and context of HTTP options at this api. */
void api_serve(api *a, http_options *options);
/* The server whose connections /metrics counts; borrowed until it is closed. */
void api_attach(api *a, http_server *server);
/* From now on every new request is refused with 503. Any thread. */
void api_drain(api *a);
/* The same, and those that are on their way are cancelled: each is answered with that, 503 or an
 * error in its stream. Any thread. */
void api_stop(api *a);
uint32_t api_jobs(api *a); /* requests on their way */
/* Ends all requests, joins the threads, frees; after http_server_close. NULLs *a. */
void api_close(api **a);

#endif
