/* SPDX-License-Identifier: Apache-2.0 */
/* answer.h - the JSON of answers: chunks of a stream, or one object at the end. Plain text writing,
 * no tree; one writer per job, with what each choice has gathered. */
#ifndef API_ANSWER_H
#define API_ANSWER_H

#include "api/calls.h"
#include "api/request.h"
#include "api/resolve.h"
#include "base/bytes.h"
#include "troika/model.h"
#include "troika/stream.h"

/* One of the answers to a request. */
typedef struct api_choice {
  troika_stream *stream; /* owned by the job */
  uint32_t index, prompt;
  bool ended;
  troika_event end; /* valid once ended; its texts are not */
  bytes_buffer text, logprobs_json;
  bytes_buffer tokens, token_logprobs, tops, offsets; /* completions: four parallel arrays */
  size_t text_offset;
  api_calls calls;
} api_choice;

/* What all choices together cost. */
typedef struct api_usage {
  uint64_t prompt_tokens, cached_tokens, completion_tokens;
  int64_t preprocess_ns;
  int64_t io_ns;          /* in which the answer waited for its reader */
  troika_timings timings; /* queue and prefill of the first choice, the longest decode */
  int64_t per_token_ns;   /* mean time between tokens, the slowest choice's; 0: fewer than two */
  int64_t first_token_ns; /* from the headers' arrival; 0: none came */
} api_usage;

/* Who waited for it, and how it fared: the object `troika` of an answer. */
typedef struct api_about {
  troika_class class_;
  troika_band band;
  uint32_t diverged_at, preemptions;
  uint64_t cached_tokens;
  int64_t queue_ns;
  bool promoted, capped, attached, has_priority;
  int64_t priority;
  const char *stream_id, *decided_by; /* borrowed */
  const api_resolved *who;            /* borrowed */
} api_about;

typedef struct api_answer {
  /* Set once by the owner. */
  const troika_model *model;
  api_endpoint endpoint;
  bool stream, include_usage, logprobs;
  bool failed; /* a chunk was too large, or had no memory: the stream is not whole any more */
  char id[48];
  int64_t preprocess_ns, tool_ns; /* tool: between the session's last turn and this one */
  bytes_buffer head;  /* `{"id":...,"model":...`, the same in every chunk: see api_answer_begin */
  bytes_buffer chunk; /* scratch */
} api_answer;

void api_answer_init(api_answer *a);
/* tier: `service_tier`. */
void api_answer_begin(api_answer *a, const char *model_name, const char *tier, int64_t created_s);
void api_answer_free(api_answer *a);
/* of: choices of the request, which share what one answer may gather. */
void api_choice_init(api_choice *c, uint32_t index, uint32_t prompt, uint32_t of);
bool api_choice_overflowed(const api_choice *c); /* it gathered more, or memory ran out */
void api_choice_free(api_choice *c);             /* all but the stream */

/* Streams: SSE frames are appended to `out`. */
void api_answer_first(api_answer *a, const api_choice *c, bytes_buffer *out); /* the role */
void api_answer_text(api_answer *a, api_choice *c, const char *text, size_t len, bytes_buffer *out);
void api_answer_token(api_answer *a, api_choice *c, const troika_event *event, bytes_buffer *out);
void api_answer_finish(api_answer *a, api_choice *c, const troika_event *event, int64_t io_ns,
                       const api_about *about, bytes_buffer *out);
void api_answer_done(api_answer *a, const api_usage *usage, bytes_buffer *out); /* usage, [DONE] */
void api_answer_failure(api_answer *a, const api_failure *failure, bytes_buffer *out);
/* Whole answers: the same events gathered, then written. NO_MEMORY: there was none. */
void api_answer_gather(api_answer *a, api_choice *c, const troika_event *event);
troika_status api_answer_whole(api_answer *a, api_choice *choices, uint32_t n,
                               const api_usage *usage, const api_about *about, bytes_buffer *out);

/* The engine's times as members of an object, milliseconds. */
void api_answer_put_times(const troika_timings *t, bytes_buffer *out);

static inline double api_ms(int64_t ns) {
  return (double)ns * 1e-6;
}

#endif
