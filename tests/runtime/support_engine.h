/* SPDX-License-Identifier: Apache-2.0 */
/* support_engine.h - a runtime through its public interface, for tests. Failures end the test
 * program with a sentence. */
#ifndef TESTS_RUNTIME_ENGINE_H
#define TESTS_RUNTIME_ENGINE_H

#include "troika/stream.h"

#define SMOLLM2 "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA3 "gemma-3-270m-q4_k_m.gguf"

typedef struct engine {
  troika_model *model;
  troika_runtime *runtime;
} engine;

engine engine_open(const char *model, const troika_runtime_options *options);
void engine_close(engine *e);

typedef struct engine_answer {
  char text[16384];
  size_t text_len;
  int32_t tokens[1024];
  float logprobs[1024];
  uint32_t n;
  troika_event end; /* error_text is copied */
  char error[TROIKA_ERROR_TEXT_MAX];
} engine_answer;

/* Tokens of a raw prompt. */
uint32_t engine_tokens(const engine *e, const char *text, int32_t *out, uint32_t capacity);
troika_stream *engine_stream(const engine *e);
/* Reads to the end. */
void engine_read(troika_stream *s, engine_answer *out);
void engine_ask(const engine *e, const troika_request *q, engine_answer *out);

#endif
