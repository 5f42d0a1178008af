/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are well-formed GGUF and still no model that we can run: each is refused with its
 * status and a sentence that names the key or tensor and both numbers; nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/model.h"
#include "model/tiny_model.h"

/* The error's text holds each of the words, which are separated by '|'. */
static void refused_model(const tiny_model *m, tiny_change change, troika_status status,
                          const char *words) {
  troika_error err = {0};
  size_t len;
  uint8_t *bytes = tiny_bytes(m, &change, &len);
  gguf *file = NULL;
  graph *g = NULL;
  if (gguf_open_memory(bytes, len, &file, &err)) fail_msg("gguf: %s", err.text);
  troika_status got = model_graph_create(file, &g, &err);
  if (got != status || err.status != status)
    fail_msg("status %d (%s), wanted %d for %s", (int)got, err.text, (int)status, words);
  assert_null(g);
  char word[128];
  while (*words) {
    size_t n = strcspn(words, "|");
    snprintf(word, sizeof word, "%.*s", (int)n, words);
    if (!strstr(err.text, word)) fail_msg("\"%s\" does not say \"%s\"", err.text, word);
    words += n + (words[n] == '|');
  }
  for (const char *p = err.text; *p; p++) assert_in_range(*p, ' ', '~');
  gguf_close(&file);
  free(bytes);
}

static void refused(tiny_change change, troika_status status, const char *words) {
  tiny_model m = tiny_llama();
  refused_model(&m, change, status, words);
}

static void refused_gemma3(tiny_change change, troika_status status, const char *words) {
  tiny_model m = tiny_gemma3();
  refused_model(&m, change, status, words);
}

static void unknown_architectures(void **state) {
  (void)state;
  refused((tiny_change){.arch = "zzz"}, TROIKA_UNSUPPORTED, "'zzz'|gemma3|llama"); /* G7 */
  refused((tiny_change){.arch = ""}, TROIKA_UNSUPPORTED, "''|gemma3, llama");
  refused((tiny_change){.arch = "llama2"}, TROIKA_UNSUPPORTED, "'llama2'");
  refused((tiny_change){.arch = "LLAMA"}, TROIKA_UNSUPPORTED, "'LLAMA'");
  refused((tiny_change){.omit = "general.architecture"}, TROIKA_FORMAT, "general.architecture");
}

static void counts_out_of_range(void **state) {
  (void)state;
  /* G4 */
  refused((tiny_change){.key = "block_count", .value = 513}, TROIKA_FORMAT,
          "llama.block_count|513|512");
  refused((tiny_change){.key = "block_count", .value = 1u << 31}, TROIKA_FORMAT,
          "llama.block_count|2147483648");
  refused((tiny_change){.key = "block_count", .value = 0}, TROIKA_FORMAT, "llama.block_count|0");
  refused((tiny_change){.key = "block_count", .value = 512}, TROIKA_FORMAT, "blk.2.");
  refused((tiny_change){.key = "attention.head_count", .value = 0}, TROIKA_FORMAT,
          "llama.attention.head_count|0");
  refused((tiny_change){.key = "attention.head_count_kv", .value = 0}, TROIKA_FORMAT,
          "llama.attention.head_count_kv|0");
  refused((tiny_change){.key = "attention.head_count_kv", .value = 3}, TROIKA_UNSUPPORTED,
          "4 query heads|3 KV heads");
  refused((tiny_change){.key = "attention.head_count", .value = 34}, TROIKA_UNSUPPORTED,
          "34 query heads|2 KV heads"); /* 17 a KV head */
  refused((tiny_change){.key = "embedding_length", .value = 65537}, TROIKA_FORMAT,
          "llama.embedding_length|65537|65536");
  refused((tiny_change){.key = "embedding_length", .value = 72}, TROIKA_UNSUPPORTED, "width 72|32");
  refused((tiny_change){.key = "feed_forward_length", .value = 100}, TROIKA_UNSUPPORTED,
          "feed-forward 100|32");
  refused((tiny_change){.key = "context_length", .value = 0}, TROIKA_FORMAT,
          "llama.context_length|0");
  refused_gemma3((tiny_change){.key = "attention.sliding_window", .value = 0}, TROIKA_FORMAT,
                 "gemma3.attention.sliding_window|0");
  refused_gemma3((tiny_change){.key = "attention.sliding_window_pattern", .value = 0},
                 TROIKA_FORMAT, "gemma3.attention.sliding_window_pattern|0");
}

static void head_sizes(void **state) {
  (void)state;
  refused((tiny_change){.key = "attention.key_length", .value = 33}, TROIKA_UNSUPPORTED,
          "head sizes|33");
  refused((tiny_change){.key = "attention.key_length", .value = 288}, TROIKA_FORMAT,
          "llama.attention.key_length|288|256");
  refused((tiny_change){.key = "attention.value_length", .value = 64}, TROIKA_UNSUPPORTED,
          "key 32|value 64");
  refused((tiny_change){.key = "rope.dimension_count", .value = 16}, TROIKA_UNSUPPORTED,
          "key 32|rotated 16");
  tiny_model m = tiny_llama(); /* 64 / 4 = 16: too small for us */
  m.no_key_length = true;
  refused_model(&m, (tiny_change){0}, TROIKA_FORMAT, "llama.attention.key_length|16|32");
}

static void missing_keys(void **state) {
  (void)state;
  static const char *const keys[] = {"block_count",          "embedding_length",
                                     "attention.head_count", "feed_forward_length",
                                     "context_length",       "attention.layer_norm_rms_epsilon"};
  char words[64];
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    snprintf(words, sizeof words, "has no llama.%s", keys[i]);
    refused((tiny_change){.omit = keys[i]}, TROIKA_FORMAT, words);
  }
  refused_gemma3((tiny_change){.omit = "attention.sliding_window"}, TROIKA_FORMAT,
                 "has no gemma3.attention.sliding_window");
}

static void keys_of_another_type(void **state) {
  (void)state;
  static const char *const keys[] = {
      "block_count",         "embedding_length",       "attention.head_count",
      "feed_forward_length", "context_length",         "attention.layer_norm_rms_epsilon",
      "rope.freq_base",      "attention.key_length",   "attention.head_count_kv",
      "attention.scale",     "attention.value_length", "rope.dimension_count"};
  char words[64];
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    snprintf(words, sizeof words, "llama.%s|string", keys[i]);
    refused((tiny_change){.key = keys[i], .text = "many"}, TROIKA_FORMAT, words);
  }
  refused((tiny_change){.key = "rope.scaling.type", .value = 1}, TROIKA_FORMAT,
          "llama.rope.scaling.type");
}

static void rope_scaling(void **state) {
  (void)state;
  refused((tiny_change){.key = "rope.scaling.type", .text = "linear"}, TROIKA_UNSUPPORTED,
          "llama.rope.scaling.type|'linear'|'none'");
  refused_gemma3((tiny_change){.key = "rope.scaling.type", .text = "yarn"}, TROIKA_UNSUPPORTED,
                 "gemma3.rope.scaling.type|'yarn'");
  refused((tiny_change){.key = "rope.scaling.factor", .real = 8}, TROIKA_UNSUPPORTED,
          "llama.rope.scaling.factor|8");
  refused((tiny_change){.key = "rope.scale_linear", .real = 4}, TROIKA_UNSUPPORTED,
          "llama.rope.scale_linear|4");
}

static void missing_tensors(void **state) {
  (void)state;
  tiny_model models[] = {tiny_llama(), tiny_gemma3()};
  for (int i = 0; i < 2; i++) {
    size_t len;
    gguf *file = NULL;
    uint8_t *bytes = tiny_bytes(&models[i], NULL, &len);
    assert_int_equal(gguf_open_memory(bytes, len, &file, NULL), TROIKA_OK);
    for (size_t t = 0; t < gguf_tensor_count(file); t++) {
      char name[65], words[128];
      bytes_view v = gguf_tensor_at(file, t)->name;
      snprintf(name, sizeof name, "%.*s", (int)v.len, v.ptr);
      snprintf(words, sizeof words, "no tensor %s", name);
      refused_model(&models[i], (tiny_change){.omit = name}, TROIKA_FORMAT, words);
    }
    gguf_close(&file);
    free(bytes);
  }
}

static void wrong_shapes(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  size_t len;
  gguf *file = NULL;
  uint8_t *bytes = tiny_bytes(&m, NULL, &len);
  assert_int_equal(gguf_open_memory(bytes, len, &file, NULL), TROIKA_OK);
  for (size_t t = 0; t < gguf_tensor_count(file); t++) {
    const gguf_tensor *tensor = gguf_tensor_at(file, t);
    char name[65], words[160];
    snprintf(name, sizeof name, "%.*s", (int)tensor->name.len, tensor->name.ptr);
    bool embedding = !strcmp(name, "token_embd.weight"); /* its rows are the vocabulary */
    for (uint32_t dim = 0; dim < 3; dim++) {
      if (embedding && dim == 1) continue;
      tiny_change c = {.tensor = name, .n_dims = 3};
      for (uint32_t i = 0; i < 3; i++) c.dims[i] = (uint32_t)tensor->dims[i] + (i == dim) * 32;
      snprintf(words, sizeof words, "tensor %s|%u|wanted %u x %u", name, c.dims[dim],
               (uint32_t)tensor->dims[1], (uint32_t)tensor->dims[0]);
      refused_model(&m, c, TROIKA_FORMAT, words);
    }
  }
  /* 2^42 rows are the reader's to refuse, a million too many ours. */
  gguf_close(&file);
  free(bytes);
}

static void wrong_tensor_types(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  m.width = m.ff = 256;
  m.head_dim = 64;
  refused_model(&m, (tiny_change){.tensor = "blk.1.ffn_up.weight", .retype = true, .type = 10},
                TROIKA_UNSUPPORTED, "blk.1.ffn_up.weight|Q2_K");
  refused_model(&m, (tiny_change){.tensor = "token_embd.weight", .retype = true, .type = 13},
                TROIKA_UNSUPPORTED, "token_embd.weight|Q5_K");
  refused_model(
      &m, (tiny_change){.tensor = "blk.0.attn_norm.weight", .retype = true, .type = QUANT_Q8_0},
      TROIKA_UNSUPPORTED, "blk.0.attn_norm.weight|quantised");
  refused_model(&m, (tiny_change){.tensor = "output_norm.weight", .retype = true, .type = 24},
                TROIKA_UNSUPPORTED, "output_norm.weight"); /* I8 */
}

static void tensors_that_nobody_reads(void **state) {
  (void)state;
  static const char *const names[] = {"blk.0.attn_q.bias", "blk.1.attn_q_norm.weight",
                                      "blk.2.attn_norm.weight", "cls.weight"};
  tiny_model m = tiny_llama();
  for (int factors = 0; factors < 2; factors++) {
    m.rope_factors = factors;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
      char words[96];
      snprintf(words, sizeof words, "tensor %s|'llama'", names[i]);
      refused_model(&m, (tiny_change){.extra = names[i]}, TROIKA_UNSUPPORTED, words);
    }
  }
  refused_gemma3((tiny_change){.extra = "rope_freqs.weight"}, TROIKA_UNSUPPORTED,
                 "tensor rope_freqs.weight|'gemma3'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unknown_architectures),
      cmocka_unit_test(counts_out_of_range),
      cmocka_unit_test(head_sizes),
      cmocka_unit_test(missing_keys),
      cmocka_unit_test(keys_of_another_type),
      cmocka_unit_test(rope_scaling),
      cmocka_unit_test(missing_tensors),
      cmocka_unit_test(wrong_shapes),
      cmocka_unit_test(wrong_tensor_types),
      cmocka_unit_test(tensors_that_nobody_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
