/* SPDX-License-Identifier: Apache-2.0 */
/* A model file through troika_model_open and troika_runtime_open: a tiny one runs, and what does
 * not fit together is refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "model/tiny_model.h"
#include "troika/stream.h"

static char folder[] = "/tmp/troika-open-XXXXXX";
static char path[64];

static troika_status open_model(const tiny_model *m, const tiny_change *change,
                                troika_model **model, troika_error *err) {
  tiny_write_file(m, change, path);
  troika_status status = troika_model_open(path, NULL, model, err);
  unlink(path); /* the mapping stays */
  return status;
}

static void vocabularies_must_fit(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  troika_model *model = NULL;
  troika_error err = {0};
  m.tokens = m.vocab + 1;
  assert_int_equal(open_model(&m, NULL, &model, &err), TROIKA_FORMAT);
  assert_null(model);
  assert_non_null(strstr(err.text, "51"));
  assert_non_null(strstr(err.text, "50"));
  m.tokens = 0; /* no tokenizer at all */
  assert_int_not_equal(open_model(&m, NULL, &model, &err), TROIKA_OK);
  assert_null(model);
  assert_non_null(strstr(err.text, "tokenizer.ggml.model"));
  m.tokens = m.vocab - 3; /* padded embedding rows are common */
  assert_int_equal(open_model(&m, NULL, &model, &err), TROIKA_OK);
  assert_int_equal(troika_model_close(&model), TROIKA_OK);
}

static void unknown_architectures_are_named(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  tiny_change change = {.arch = "zzz"};
  troika_model *model = NULL;
  troika_error err = {0};
  m.tokens = m.vocab;
  assert_int_equal(open_model(&m, &change, &model, &err), TROIKA_UNSUPPORTED);
  assert_non_null(strstr(err.text, "'zzz'"));
  assert_non_null(strstr(err.text, "gemma3, llama"));
}

/* Every type and both architectures from a prompt to tokens; the same twice. */
static void tiny_models_run(void **state) {
  (void)state;
  size_t n;
  const quant_format *formats = quant_list(&n);
  for (size_t i = 0; i < 2 * n; i++) {
    tiny_model m = i & 1 ? tiny_gemma3() : tiny_llama();
    troika_model *model = NULL;
    troika_runtime *runtime = NULL;
    troika_error err = {0};
    m.type = formats[i / 2].type;
    m.tokens = m.vocab;
    if (formats[i / 2].elements > 32) {
      m.width = m.ff = 256;
      m.head_dim = 64;
    }
    if (open_model(&m, NULL, &model, &err)) fail_msg("%s", err.text);
    troika_runtime_options o = {.size = sizeof o, .threads = 2, .parallel = 2};
    if (troika_runtime_open(model, &o, &runtime, &err)) fail_msg("%s", err.text);
    assert_int_equal(troika_model_close(&model), TROIKA_BUSY);
    int32_t answers[2][12] = {{0}}, prompt[40];
    for (int32_t j = 0; j < 40; j++) prompt[j] = j * 7 % 50;
    for (int twice = 0; twice < 2; twice++) {
      troika_stream *s = NULL;
      troika_request q;
      troika_event event;
      uint32_t got = 0;
      troika_request_init(&q);
      q.prompt = prompt;
      q.prompt_n = 40;
      q.max_tokens = 12;
      q.temperature = 0;
      q.ignore_eos = true;
      if (troika_stream_open(runtime, NULL, &s, &err)) fail_msg("%s", err.text);
      if (troika_stream_submit(s, &q, &err)) fail_msg("%s", err.text);
      while (!troika_stream_next(s, &event, -1)) {
        if (event.kind == TROIKA_EVENT_END)
          assert_int_equal(event.finish, TROIKA_FINISH_LENGTH);
        else
          answers[twice][got++] = event.token;
      }
      assert_int_equal(got, 12);
      troika_stream_close(&s);
    }
    assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    assert_int_equal(troika_runtime_close(&runtime), TROIKA_OK);
    assert_int_equal(troika_model_close(&model), TROIKA_OK);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(vocabularies_must_fit),
      cmocka_unit_test(unknown_architectures_are_named),
      cmocka_unit_test(tiny_models_run),
  };
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/tiny.gguf", folder);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  rmdir(folder);
  return failed;
}
