/* SPDX-License-Identifier: Apache-2.0 */
/* streams.h - the requests of this server by name, for /v1/streams: what each does, and what others
 * may do to it: raise, lower, suspend, cancel, replace (latest-only), attach to (a retry). Private
 * to this room.
 *
 *     enter ──► PREPARING ──set──► in the engine ──► end ──► ring of the last API_STREAMS_ENDED
 *        the job holds it                                      the registry's alone
 *
 * One lock guards all of it, and each call holds it for microseconds. Under it a job's streams of
 * the engine are alive: they leave with `end`, before the job closes them. What is called under it
 * never waits for the engine: describe, cancel, suspend, set_class, and the submit that attaches.
 * Lock order: registry, then the engine's or the pool's.
 *
 * Ids are 128 random bits, and a key sees its own streams only. Cost: about 800 bytes a request,
 * eight more for each answer of it. */
#ifndef API_STREAMS_H
#define API_STREAMS_H

#include "api/resolve.h"
#include "troika/stream.h"

enum { API_STREAMS_ENDED = 256, API_STREAM_ID_BYTES = 40 };

typedef struct api_streams api_streams;
typedef struct api_stream api_stream;

/* How a request ended. */
typedef enum api_stream_end {
  API_END_DONE,
  API_END_CANCELLED, /* its client left, or somebody ended it */
  API_END_REFUSED,   /* 4xx, or no room for it */
  API_END_FAILED
} api_stream_end;

/* Why somebody ended it. */
typedef enum api_drop {
  API_DROP_NONE,
  API_DROP_CANCELLED, /* DELETE */
  API_DROP_SUPERSEDED /* a newer one of its session replaces it */
} api_drop;

/* What a request is at the moment. */
typedef struct api_stream_now {
  /* Its answers taken together. class_ is REACTIVE or PROACTIVE: what it really is. */
  troika_stream_info info;
  bool decided;           /* the engine has looked at all of them */
  bool attached;          /* a retry that shares an earlier one's answers */
  const char *decided_by; /* of its class: as resolved, or "PATCH" */
  const char *tier;       /* service_tier */
} api_stream_now;

typedef struct api_stream_facts {
  const api_resolved *who; /* copied, as is request_id */
  const char *request_id;
  uint32_t key;             /* whose it is: its id */
  const api_key_hold *hold; /* copied: `end` ends it */
  uint32_t n, each;         /* answers; of each prompt */
  bool streaming;           /* as server-sent events */
  int64_t arrived_ns;       /* clock_real */
  void (*news)(void *job);  /* posts the job: something happened to it */
  void *job;                /* borrowed until end */
} api_stream_facts;

troika_status api_streams_open(const char *model_name, api_streams **out, troika_error *err);
void api_streams_close(api_streams **s); /* no request is left but ended ones */

/* A request is resolved. If it is latest-only, older ones of its session that only wait are
 * dropped; and it is itself, if a newer one has overtaken it. NULL: no memory. */
api_stream *api_streams_enter(api_streams *s, const api_stream_facts *facts);
const char *api_stream_id(const api_stream *e);
/* Answer i is with the engine: as what was asked of it meanwhile has it. attached: see below. */
void api_stream_set(api_streams *s, api_stream *e, uint32_t i, troika_stream *stream,
                    bool attached);
/* Submits `stream` as answer i with `request`, attached to the same answer of a running request
 * with the same digest and key. False: there is none any more. */
bool api_stream_attach(api_streams *s, const api_stream *e, uint32_t i, troika_stream *stream,
                       troika_request *request);
/* A decision of the engine has seen it: its place and band are known, or it has ended. */
bool api_stream_decided(const troika_stream_info *info);
api_drop api_stream_dropped(api_streams *s, const api_stream *e);
void api_stream_look(api_streams *s, const api_stream *e, api_stream_now *out);
/* The same of a request that has no name. */
void api_stream_guess(const api_resolved *who, api_stream_now *out);
/* It is over, answered with `status`; e is the registry's from here on. */
void api_stream_end_as(api_streams *s, api_stream *e, api_stream_end how, unsigned status);

/* The names that answers and headers carry. */
const char *api_band_name(troika_band band);
const char *api_class_name(troika_class class_);

/* GET /v1/streams and /v1/streams/ID, PATCH, DELETE; HTTP thread. `key`: who asks. The JSON is
 * appended to `out`. False: `failure` says why not. */
void api_streams_list(api_streams *s, const api_key *key, bytes_buffer *out);
bool api_streams_show(api_streams *s, const api_key *key, const char *id, bytes_buffer *out,
                      api_failure *failure);
bool api_streams_patch(api_streams *s, const api_key *key, const char *id, bytes_view body,
                       bytes_buffer *out, api_failure *failure);
bool api_streams_cancel(api_streams *s, const api_key *key, const char *id, bytes_buffer *out,
                        api_failure *failure);

#endif
