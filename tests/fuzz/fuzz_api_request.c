/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the body of a request: it is taken, with every number in its range, or refused with
 * an error object that is itself valid JSON and UTF-8.
 *
 *   build/fuzz/tests/fuzz_api_request NEW_INPUTS tests/fuzz/corpus/api_request */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/request.h"

enum { VOCAB = 1000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void expect(bool holds) {
  if (!holds) abort();
}

static void check_taken(const api_request *r) {
  const troika_request *e = &r->engine;
  expect(e->temperature >= 0 && e->temperature <= 2);
  expect(e->top_p >= 0 && e->top_p <= 1 && e->min_p >= 0 && e->min_p <= 1);
  expect(fabsf(e->frequency_penalty) <= 2 && fabsf(e->presence_penalty) <= 2);
  expect(e->repeat_penalty > 0 && e->top_logprobs <= TROIKA_TOP_MAX);
  expect(e->stop_n <= TROIKA_STOP_MAX && e->bias_n <= TROIKA_BIAS_MAX);
  for (uint32_t i = 0; i < e->stop_n; i++) {
    size_t n = strlen(e->stop[i]);
    expect(n >= 1 && n <= TROIKA_STOP_BYTES_MAX);
  }
  for (uint32_t i = 0; i < e->bias_n; i++)
    expect(e->bias[i].token >= 0 && e->bias[i].token < VOCAB);
  expect(r->n >= 1 && r->prompts_n >= 1 && (uint64_t)r->n * r->prompts_n <= API_CHOICES_MAX);
  expect(!r->constrained || r->grammar_kind == TROIKA_GRAMMAR_JSON_OBJECT || r->grammar);
  if (r->endpoint == API_COMPLETIONS) {
    for (uint32_t p = 0; p < r->prompts_n; p++) {
      const api_prompt *prompt = &r->prompts[p];
      expect(prompt->tokens ? prompt->tokens_n > 0 : prompt->text.ptr != NULL);
      for (uint32_t i = 0; prompt->tokens && i < prompt->tokens_n; i++)
        expect(prompt->tokens[i] >= 0 && prompt->tokens[i] < VOCAB);
    }
    return;
  }
  char *folded = api_messages_fold(json_object_get(r->root, "messages"));
  free(folded);
  json_t *messages = json_loads(r->messages, JSON_ALLOW_NUL, NULL);
  expect(json_array_size(messages) > 0);
  json_decref(messages);
}

static void check_refused(const api_failure *f) {
  bytes_buffer out;
  bytes_init(&out, 1 << 20);
  expect(f->status == 400 && f->message[0]);
  api_failure_write(f, &out);
  json_t *root = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
  expect(json_is_string(json_object_get(json_object_get(root, "error"), "message")));
  json_decref(root);
  bytes_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (!len) return 0;
  api_request r;
  api_failure f;
  api_endpoint endpoint =
      data[0] & 1 ? API_CHAT : API_COMPLETIONS; /* '{' is odd: seeds are chats */
  bytes_view body = bytes_of((const char *)data + (data[0] != '{'), len - (data[0] != '{'));
  memset(&f, 0x55, sizeof f);
  if (api_request_parse(body, endpoint, VOCAB, &r, &f)) {
    check_taken(&r);
    api_request_free(&r);
  } else {
    check_refused(&f);
  }
  return 0;
}
