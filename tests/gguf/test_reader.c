/* test_reader.c - what a good file holds comes out as it was put in; both real models are what we
 * know them to be.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "gguf/support.h"
#include "gguf/walk.h"

static gguf *open_file(file_bytes file) {
  gguf *opened = NULL;
  troika_error err;
  if (gguf_open_memory(file.data, file.len, &opened, &err)) fail_msg("%s", err.text);
  return opened;
}

static void test_counts_and_lookups(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *f = open_file(file);
  assert_int_equal(gguf_version(f), 3);
  assert_int_equal(gguf_alignment(f), 32);
  assert_int_equal(gguf_size(f), file.len);
  assert_null(gguf_map(f));
  assert_int_equal(gguf_kv_count(f), SAMPLE_KVS);
  assert_int_equal(gguf_tensor_count(f), SAMPLE_TENSORS);
  assert_ptr_equal(gguf_find(f, "general.architecture"), gguf_kv_at(f, 0));
  assert_null(gguf_find(f, "general.architectur"));
  assert_null(gguf_find(f, "general.architecture2"));
  assert_null(gguf_find(f, ""));
  assert_ptr_equal(gguf_tensor_find(f, "norm.weight"), gguf_tensor_at(f, 2));
  assert_null(gguf_tensor_find(f, "norm.weigh"));
  gguf_close(&f);
  gguf_close(&f); /* of nothing is nothing */
  free(file.data);
}

static void test_tensors(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *f = open_file(file);
  const gguf_tensor *t = gguf_tensor_at(f, 0);
  assert_true(bytes_equal_string(t->name, "token_embd.weight"));
  assert_int_equal(t->type, 0);
  assert_int_equal(t->n_dims, 2);
  assert_int_equal(t->dims[0], SAMPLE_WIDTH);
  assert_int_equal(t->dims[1], SAMPLE_ROWS);
  assert_int_equal(t->dims[2], 1);
  assert_int_equal(t->dims[3], 1);
  assert_int_equal(t->bytes, SAMPLE_WIDTH * SAMPLE_ROWS * 4);
  assert_ptr_equal(t->data, file.data + t->offset);
  float last;
  memcpy(&last, t->data + t->bytes - 4, 4);
  assert_true(last == SAMPLE_WIDTH * SAMPLE_ROWS - 1);
  t = gguf_tensor_at(f, 1);
  assert_int_equal(t->bytes, 2 * 34);
  assert_int_equal(t->offset % 32, 0);
  for (int i = 0; i < 68; i++) assert_int_equal(t->data[i], i);
  t = gguf_tensor_at(f, 2);
  assert_int_equal(t->n_dims, 1);
  assert_int_equal(t->bytes, 33 * 4);
  gguf_close(&f);
  free(file.data);
}

static void test_scalars(void **unused) {
  (void)unused;
  static const struct {
    const char *key;
    int64_t value;
    bool fits;
  } integers[] = {
      {"scalar.u8", 200, true},         {"scalar.i8", -100, false},
      {"scalar.u16", 60000, true},      {"scalar.i16", -30000, false},
      {"scalar.u32", 4000000000, true}, {"scalar.i32", -2000000000, false},
      {"scalar.u64", INT64_MAX, false}, {"scalar.i64", INT64_MIN, false},
  };
  file_bytes file = sample_file();
  gguf *f = open_file(file);
  troika_error err;
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
    uint32_t out = 77;
    assert_true(gguf_int_at(gguf_find(f, integers[i].key), 0) == integers[i].value);
    troika_status status = gguf_get_u32(f, integers[i].key, &out, &err);
    assert_int_equal(status, integers[i].fits ? TROIKA_OK : TROIKA_FORMAT);
    assert_int_equal(out, integers[i].fits ? (uint32_t)integers[i].value : 77);
    if (!integers[i].fits) assert_non_null(strstr(err.text, integers[i].key));
  }
  float single = 0;
  assert_int_equal(gguf_get_f32(f, "scalar.f32", &single, &err), TROIKA_OK);
  assert_true(single == 0.1f);
  single = 5;
  assert_int_equal(gguf_get_f32(f, "scalar.f64", &single, &err), TROIKA_FORMAT); /* 1e300 */
  assert_true(single == 5);
  assert_true(gguf_f32_at(gguf_find(f, "scalar.f64"), 0) == FLT_MAX);
  bool truth = false;
  assert_int_equal(gguf_get_bool(f, "scalar.bool", &truth, &err), TROIKA_OK);
  assert_true(truth);
  bytes_view text;
  assert_int_equal(gguf_get_string(f, "general.architecture", &text, &err), TROIKA_OK);
  assert_true(bytes_equal_string(text, "sample"));
  assert_int_equal(gguf_get_string(f, "scalar.empty", &text, &err), TROIKA_OK);
  assert_int_equal(text.len, 0);
  gguf_close(&f);
  free(file.data);
}

static void test_wrong_type_and_absent_key(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *f = open_file(file);
  troika_error err;
  uint32_t u = 1;
  float x = 2;
  bool b = true;
  bytes_view text = bytes_of("kept", 4);
  assert_int_equal(gguf_get_u32(f, "none", &u, &err), TROIKA_NOT_FOUND);
  assert_string_equal(err.text, "metadata has no key none");
  assert_int_equal(gguf_get_f32(f, "none", &x, NULL), TROIKA_NOT_FOUND);
  assert_int_equal(gguf_get_bool(f, "none", &b, NULL), TROIKA_NOT_FOUND);
  assert_int_equal(gguf_get_string(f, "none", &text, NULL), TROIKA_NOT_FOUND);
  assert_int_equal(gguf_get_u32(f, "scalar.f32", &u, &err), TROIKA_FORMAT);
  assert_string_equal(err.text, "metadata key scalar.f32 has type f32, must be an integer");
  assert_int_equal(gguf_get_u32(f, "scalar.bool", &u, &err), TROIKA_FORMAT);
  assert_int_equal(gguf_get_u32(f, "array.i32", &u, &err), TROIKA_FORMAT);
  assert_int_equal(gguf_get_f32(f, "scalar.u32", &x, &err), TROIKA_FORMAT);
  assert_int_equal(gguf_get_bool(f, "scalar.u8", &b, &err), TROIKA_FORMAT);
  assert_int_equal(gguf_get_string(f, "array.string", &text, &err), TROIKA_FORMAT);
  assert_string_equal(err.text, "metadata key array.string has type array, must be string");
  assert_true(u == 1 && x == 2 && b && text.len == 4);
  gguf_close(&f);
  free(file.data);
}

static void test_arrays(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *f = open_file(file);
  const gguf_kv *ints = gguf_find(f, "array.i32");
  assert_int_equal(ints->type, GGUF_ARRAY);
  assert_int_equal(ints->elem, GGUF_I32);
  assert_int_equal(ints->n, 3);
  assert_int_equal(gguf_int_at(ints, 1), -2);
  const gguf_kv *floats = gguf_find(f, "array.f32");
  assert_true(gguf_f32_at(floats, 0) == 0.5f && gguf_f32_at(floats, 1) == -1.5f);
  const gguf_kv *bools = gguf_find(f, "array.bool");
  assert_int_equal(bools->n, 4);
  assert_int_equal(gguf_int_at(bools, 1), 0);
  assert_int_equal(gguf_int_at(bools, 3), 1);
  const gguf_kv *strings = gguf_find(f, "array.string");
  assert_int_equal(strings->n, 4);
  assert_true(bytes_equal_string(gguf_string_at(strings, 0), "one"));
  assert_int_equal(gguf_string_at(strings, 1).len, 0);
  assert_true(bytes_equal(gguf_string_at(strings, 2), bytes_of("th\0ree", 6)));
  assert_true(bytes_equal_string(gguf_string_at(strings, 3), "\xe2\x82\xac"));
  assert_int_equal(gguf_find(f, "array.empty")->n, 0);
  gguf_close(&f);
  free(file.data);
}

static void test_every_tensor_type_has_its_block(void **unused) {
  (void)unused;
  /* Bits a weight that each type is known for, times 1000. */
  static const struct {
    uint32_t type, milli_bits;
    const char *name;
  } known[] = {
      {0, 32000, "F32"},     {1, 16000, "F16"},    {2, 4500, "Q4_0"},     {3, 5000, "Q4_1"},
      {6, 5500, "Q5_0"},     {7, 6000, "Q5_1"},    {8, 8500, "Q8_0"},     {9, 9000, "Q8_1"},
      {10, 2625, "Q2_K"},    {11, 3437, "Q3_K"},   {12, 4500, "Q4_K"},    {13, 5500, "Q5_K"},
      {14, 6562, "Q6_K"},    {15, 9125, "Q8_K"},   {16, 2062, "IQ2_XXS"}, {17, 2312, "IQ2_XS"},
      {18, 3062, "IQ3_XXS"}, {19, 1562, "IQ1_S"},  {20, 4500, "IQ4_NL"},  {21, 3437, "IQ3_S"},
      {22, 2562, "IQ2_S"},   {23, 4250, "IQ4_XS"}, {24, 8000, "I8"},      {25, 16000, "I16"},
      {26, 32000, "I32"},    {27, 64000, "I64"},   {28, 64000, "F64"},    {29, 1750, "IQ1_M"},
      {30, 16000, "BF16"},   {34, 1687, "TQ1_0"},  {35, 2062, "TQ2_0"},   {39, 4250, "MXFP4"},
      {40, 4500, "NVFP4"},   {41, 1125, "Q1_0"},   {42, 2250, "Q2_0"},
  };
  size_t found = 0;
  uint32_t elements, bytes;
  for (uint32_t type = 0; type < 100; type++) found += gguf_type_block(type, &elements, &bytes);
  assert_int_equal(found, sizeof known / sizeof *known);
  for (size_t i = 0; i < found; i++) {
    assert_string_equal(gguf_type_name(known[i].type), known[i].name);
    assert_true(gguf_type_block(known[i].type, &elements, &bytes));
    assert_int_equal(bytes * 8000 / elements, known[i].milli_bits);
  }
  assert_null(gguf_type_name(4));
  assert_null(gguf_type_name(UINT32_MAX));
  assert_false(gguf_type_block(9999, &elements, &bytes));
  assert_string_equal(gguf_value_type_name(GGUF_F64), "f64");
  assert_string_equal(gguf_value_type_name((gguf_type)99), "unknown");
}

static gguf *open_model(const char *name) {
  const char *models = getenv("TROIKA_MODELS"), *cache = getenv("TROIKA_CACHE");
  const char *user_cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char path[1024];
  if (models && *models) {
    snprintf(path, sizeof path, "%s/%s", models, name);
  } else if (cache && *cache) {
    snprintf(path, sizeof path, "%s/models/%s", cache, name);
  } else if (user_cache && *user_cache) {
    snprintf(path, sizeof path, "%s/troika/models/%s", user_cache, name);
  } else {
    snprintf(path, sizeof path, "%s/.cache/troika/models/%s", home ? home : "", name);
  }
  gguf *file = NULL;
  troika_error err;
  clock_source clock = clock_real();
  int64_t begin = clock_now(clock);
  if (gguf_open(path, &file, &err)) {
    fail_msg("%s: %s (the tests' set-up puts it there; TROIKA_MODELS names another folder)", path,
             err.text);
  }
  print_message("%s opens in %.2f ms\n", name, (double)(clock_now(clock) - begin) / 1e6);
  assert_true(clock_now(clock) - begin < 2000000000);
  assert_non_null(gguf_map(file));
  assert_int_equal(gguf_map(file)->len, gguf_size(file));
  return file;
}

static uint32_t u32_of(const gguf *file, const char *key) {
  uint32_t value;
  troika_error err;
  if (gguf_get_u32(file, key, &value, &err)) fail_msg("%s", err.text);
  return value;
}

static float f32_of(const gguf *file, const char *key) {
  float value;
  troika_error err;
  if (gguf_get_f32(file, key, &value, &err)) fail_msg("%s", err.text);
  return value;
}

static void assert_string(const gguf *file, const char *key, const char *expected) {
  bytes_view value;
  troika_error err;
  if (gguf_get_string(file, key, &value, &err)) fail_msg("%s", err.text);
  assert_true(bytes_equal_string(value, expected));
}

static void assert_tensor(const gguf *file, const char *name, uint32_t type, uint64_t width,
                          uint64_t rows, uint64_t offset) {
  const gguf_tensor *t = gguf_tensor_find(file, name);
  if (!t) fail_msg("no tensor %s", name);
  assert_int_equal(t->type, type);
  assert_int_equal(t->dims[0], width);
  assert_int_equal(t->dims[1], rows);
  assert_int_equal(t->offset, offset);
}

static size_t count_type(const gguf *file, uint32_t type) {
  size_t n = 0;
  for (size_t i = 0; i < gguf_tensor_count(file); i++) n += gguf_tensor_at(file, i)->type == type;
  return n;
}

/* Types and offsets as the `gguf` package reads them. */
static void test_smollm2(void **unused) {
  (void)unused;
  gguf *f = open_model("SmolLM2-135M-Instruct.Q4_1.gguf");
  assert_int_equal(gguf_size(f), 98362432);
  assert_int_equal(gguf_version(f), 3);
  assert_int_equal(gguf_kv_count(f), 33);
  assert_int_equal(gguf_tensor_count(f), 272);
  assert_int_equal(count_type(f, 3), 210);
  assert_int_equal(count_type(f, 0), 61);
  assert_int_equal(count_type(f, 8), 1);
  assert_string(f, "general.architecture", "llama");
  assert_int_equal(u32_of(f, "llama.block_count"), 30);
  assert_int_equal(u32_of(f, "llama.embedding_length"), 576);
  assert_int_equal(u32_of(f, "llama.feed_forward_length"), 1536);
  assert_int_equal(u32_of(f, "llama.attention.head_count"), 9);
  assert_int_equal(u32_of(f, "llama.attention.head_count_kv"), 3);
  assert_int_equal(u32_of(f, "llama.context_length"), 8192);
  assert_true(f32_of(f, "llama.rope.freq_base") == 1e5f);
  assert_true(f32_of(f, "llama.attention.layer_norm_rms_epsilon") == 1e-5f);
  assert_string(f, "tokenizer.ggml.model", "gpt2");
  assert_string(f, "tokenizer.ggml.pre", "smollm");
  assert_int_equal(u32_of(f, "tokenizer.ggml.eos_token_id"), 2);
  bool add_bos = true;
  assert_int_equal(gguf_get_bool(f, "tokenizer.ggml.add_bos_token", &add_bos, NULL), TROIKA_OK);
  assert_false(add_bos);
  const gguf_kv *tokens = gguf_find(f, "tokenizer.ggml.tokens");
  assert_int_equal(tokens->n, 49152);
  assert_true(bytes_equal_string(gguf_string_at(tokens, 2), "<|im_end|>"));
  assert_int_equal(gguf_find(f, "tokenizer.ggml.merges")->n, 48900);
  assert_int_equal(gguf_int_at(gguf_find(f, "tokenizer.ggml.token_type"), 2), 3);
  assert_tensor(f, "token_embd.weight", 8, 576, 49152, 1785664);
  assert_tensor(f, "blk.0.ffn_down.weight", 3, 1536, 576, 31868992);
  assert_tensor(f, "blk.0.attn_k.weight", 3, 576, 192, 33530176);
  assert_tensor(f, "blk.1.attn_norm.weight", 0, 576, 1, 34083136);
  walk_file(f);
  gguf_close(&f);
}

static void test_gemma3(void **unused) {
  (void)unused;
  gguf *f = open_model("gemma-3-270m-q4_k_m.gguf");
  assert_int_equal(gguf_size(f), 253113024);
  assert_int_equal(gguf_kv_count(f), 33);
  assert_int_equal(gguf_tensor_count(f), 236);
  assert_int_equal(count_type(f, 0), 109);
  assert_int_equal(count_type(f, 6), 81);
  assert_int_equal(count_type(f, 12), 27);
  assert_int_equal(count_type(f, 8), 10);
  assert_int_equal(count_type(f, 14), 9);
  assert_string(f, "general.architecture", "gemma3");
  assert_int_equal(u32_of(f, "gemma3.block_count"), 18);
  assert_int_equal(u32_of(f, "gemma3.embedding_length"), 640);
  assert_int_equal(u32_of(f, "gemma3.feed_forward_length"), 2048);
  assert_int_equal(u32_of(f, "gemma3.attention.head_count"), 4);
  assert_int_equal(u32_of(f, "gemma3.attention.head_count_kv"), 1);
  assert_int_equal(u32_of(f, "gemma3.attention.key_length"), 256);
  assert_int_equal(u32_of(f, "gemma3.attention.sliding_window"), 512);
  assert_int_equal(u32_of(f, "gemma3.context_length"), 32768);
  assert_true(f32_of(f, "gemma3.rope.freq_base") == 1e6f);
  assert_string(f, "tokenizer.ggml.model", "llama");
  assert_int_equal(u32_of(f, "tokenizer.ggml.bos_token_id"), 2);
  bytes_view template;
  assert_int_equal(gguf_get_string(f, "tokenizer.chat_template", &template, NULL),
                   TROIKA_NOT_FOUND);
  const gguf_kv *tokens = gguf_find(f, "tokenizer.ggml.tokens");
  assert_int_equal(tokens->n, 262144);
  assert_true(bytes_equal_string(gguf_string_at(tokens, 106), "<end_of_turn>"));
  const gguf_kv *scores = gguf_find(f, "tokenizer.ggml.scores");
  assert_int_equal(scores->n, 262144);
  assert_true(isfinite(gguf_f32_at(scores, 262143)));
  assert_tensor(f, "token_embd.weight", 8, 640, 262144, 6527680);
  assert_tensor(f, "blk.0.attn_q.weight", 6, 640, 1024, 185270464);
  assert_tensor(f, "blk.0.attn_output.weight", 12, 1024, 640, 184901824);
  assert_tensor(f, "blk.0.ffn_down.weight", 14, 2048, 640, 185896128);
  walk_file(f);
  gguf_close(&f);
}

static void test_open_a_path(void **unused) {
  (void)unused;
  gguf *f = NULL;
  troika_error err;
  assert_int_equal(gguf_open("/nonexistent/model.gguf", &f, &err), TROIKA_NOT_FOUND);
  char path[] = "/tmp/troika-gguf-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(gguf_open(path, &f, &err), TROIKA_FORMAT); /* empty */
  file_bytes file = sample_file();
  assert_int_equal(write(fd, file.data, file.len), file.len);
  close(fd);
  if (gguf_open(path, &f, &err)) fail_msg("%s", err.text);
  walk_file(f);
  gguf_close(&f);
  assert_int_equal(truncate(path, (off_t)file.len / 2), 0);
  assert_int_equal(gguf_open(path, &f, &err), TROIKA_FORMAT);
  assert_null(f);
  unlink(path);
  free(file.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_counts_and_lookups),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_scalars),
      cmocka_unit_test(test_wrong_type_and_absent_key),
      cmocka_unit_test(test_arrays),
      cmocka_unit_test(test_every_tensor_type_has_its_block),
      cmocka_unit_test(test_open_a_path),
      cmocka_unit_test(test_smollm2),
      cmocka_unit_test(test_gemma3),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
