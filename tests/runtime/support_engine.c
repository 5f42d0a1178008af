/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/support_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/support_rig.h"

static void need(troika_status status, const char *what, const troika_error *err) {
  if (!status) return;
  fprintf(stderr, "engine: %s: %s: %s\n", what, troika_status_text(status), err->text);
  exit(1);
}

engine engine_open(const char *model, const troika_runtime_options *options) {
  engine e = {0};
  char path[4096];
  troika_error err = {0};
  rig_model_path(model, path, sizeof path);
  need(troika_model_open(path, NULL, &e.model, &err), path, &err);
  need(troika_runtime_open(e.model, options, &e.runtime, &err), "runtime", &err);
  return e;
}

void engine_close(engine *e) {
  troika_error err = {0};
  need(troika_runtime_close(&e->runtime), "close runtime", &err);
  need(troika_model_close(&e->model), "close model", &err);
}

uint32_t engine_tokens(const engine *e, const char *text, int32_t *out, uint32_t capacity) {
  troika_error err = {0};
  size_t n = 0;
  need(troika_model_tokenize(e->model, text, strlen(text), true, true, out, capacity, &n, &err),
       "tokenize", &err);
  return (uint32_t)n;
}

troika_stream *engine_stream(const engine *e) {
  troika_stream *s = NULL;
  troika_error err = {0};
  need(troika_stream_open(e->runtime, NULL, &s, &err), "stream", &err);
  return s;
}

void engine_read(troika_stream *s, engine_answer *out) {
  troika_event event;
  memset(out, 0, sizeof *out);
  while (!troika_stream_next(s, &event, -1)) {
    if (out->text_len + event.text_len < sizeof out->text) {
      memcpy(out->text + out->text_len, event.text, event.text_len);
      out->text_len += event.text_len;
    }
    if (event.kind == TROIKA_EVENT_END) {
      out->end = event;
      snprintf(out->error, sizeof out->error, "%s", event.error_text);
      continue;
    }
    if (out->n == 1024) continue;
    out->logprobs[out->n] = event.logprob;
    out->tokens[out->n++] = event.token;
  }
}

void engine_ask(const engine *e, const troika_request *q, engine_answer *out) {
  troika_stream *s = engine_stream(e);
  troika_error err = {0};
  need(troika_stream_submit(s, q, &err), "submit", &err);
  engine_read(s, out);
  troika_stream_close(&s);
}
