/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h - from logits to a token: a pure function of (logits, history, seed, choice, position).
 *
 * Random numbers come from a counter, not from a state: Philox4x32-10 with the seed as key and
 * (position, choice) as counter. So a request that is batched, preempted or resumed draws the same
 * numbers.
 *
 * Order: logprobs are taken from the untouched logits; then what is not allowed goes; bias;
 * repetition, frequency and presence penalties; greedy if temperature is 0; else top-k on the
 * logits, division by temperature, softmax, top-p, min-p, draw. Ties are ordered by lower id. Sums
 * are in float64 in descending order of the logits (the sum over a whole vocabulary: in a fixed
 * order): same bits everywhere.
 * Memory: sample_scratch_bytes(vocab) of scratch, given by the caller; no allocation. */
#ifndef RUNTIME_SAMPLE_H
#define RUNTIME_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/stream.h"

typedef struct sample_params {
  float temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
  uint32_t top_k, repeat_last;
  uint64_t seed;
  uint32_t choice;
  bool logprobs;
  uint32_t top_logprobs;
  const troika_token_bias *bias; /* borrowed */
  uint32_t bias_n;
  const uint32_t
      *allowed; /* borrowed; bit i % 32 of word i / 32: token i may be drawn. NULL: all */
} sample_params;

typedef struct sample_history {
  const int32_t *tokens; /* prompt, then answer */
  uint32_t n, prompt_n;
} sample_history;

typedef struct sample_result {
  int32_t token;
  float logprob; /* valid if logprobs */
  uint32_t top_n;
  troika_top top[TROIKA_TOP_MAX];
} sample_result;

size_t sample_scratch_bytes(uint32_t vocab);
/* logits[vocab] are changed in place (bias, penalties). `position`: of the token being chosen.
 * `scratch`: 64-byte aligned. max_of / sum_exp: fast kernels for the vector maximum (NaN if any is
 * NaN) and the sum of exp(x - max); both may be NULL for plain loops. TROIKA_NUMERIC if a logit is
 * NaN or +Inf, or all are -Inf; TROIKA_LIMIT if bias and `allowed` leave none: *out is left alone.
 */
typedef struct sample_kernels {
  float (*vec_max)(const float *x, uint32_t n);
  float (*vec_sum_exp)(const float *x, uint32_t n, float max);
} sample_kernels;
troika_status sample_token(const sample_params *params, const sample_history *history,
                           uint32_t position, float *logits, uint32_t vocab,
                           const sample_kernels *kernels, void *scratch, sample_result *out);

/* Philox4x32-10, exposed for tests against its published vectors. */
void sample_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
