/* SPDX-License-Identifier: Apache-2.0 */
/* answer.h - the JSON of answers: chunks of a stream, or one object at the end. Plain text writing,
 * no tree; one writer per job. */
#ifndef API_ANSWER_H
#define API_ANSWER_H

#include "api/request.h"
#include "base/bytes.h"
#include "troika/model.h"
#include "troika/stream.h"

typedef struct api_answer {
  /* Set once by the owner. */
  const troika_model *model;
  api_endpoint endpoint;
  bool stream, include_usage, logprobs;
  const char *model_name;
  char id[48];
  int64_t created_s, preprocess_ns;
  /* The writer's: scratch for a chunk, and what a whole answer has gathered. */
  bytes_buffer chunk, text, logprobs_json;
  bytes_buffer tokens, token_logprobs, tops, offsets; /* completions: four parallel arrays */
  size_t text_offset;
} api_answer;

void api_answer_init(api_answer *a);
void api_answer_free(api_answer *a);
/* Streams: SSE frames are appended to `out`. */
void api_answer_first(api_answer *a, bytes_buffer *out); /* the role */
void api_answer_token(api_answer *a, const troika_event *event, bytes_buffer *out);
void api_answer_end(api_answer *a, const troika_event *event,
                    bytes_buffer *out); /* finish, usage, [DONE] */
void api_answer_failure(api_answer *a, const api_failure *failure, bytes_buffer *out);
/* Whole answers: the same events gathered, then written. TROIKA_LIMIT if it grew too large. */
void api_answer_gather(api_answer *a, const troika_event *event);
troika_status api_answer_whole(api_answer *a, const troika_event *end, bytes_buffer *out);

#endif
