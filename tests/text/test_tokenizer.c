/* test_tokenizer.c - ids equal to the reference tokenizers', on every text that
 * tools/tokenizer_oracle.py wrote; cases T1, T2, T3, T5 and the raw half of T7 of the user reports;
 * time near-linear. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf/writer.h"
#include "text/support_text.h"
#include "text/tiny_vocab.h"
#include "text/tokenizer.h"

enum { PARSE_SPECIAL = 1, ROUND_TRIP = 2 };
static const tokenizer_options plain = {0};
static const tokenizer_options special = {.parse_special = true};

/* ---- the reference's ids ---- */

typedef struct record {
  uint32_t flags, bytes, n;
} record;

static void compare_record(const tokenizer *t, size_t number, record head, const char *text,
                           const int32_t *expected) {
  tokenizer_ids ids = {0};
  troika_error err = {0};
  char what[160];
  snprintf(what, sizeof what, "text %zu (flags %u, %u bytes) \"%.60s\"", number, head.flags,
           head.bytes, text);
  troika_status status = tokenizer_encode(
      t, bytes_of(text, head.bytes), head.flags & PARSE_SPECIAL ? special : plain, 0, &ids, &err);
  if (status != TROIKA_OK) fail_msg("%s: %s", what, err.text);
  support_ids_equal(what, ids.data, ids.n, expected, head.n);
  if (head.flags & ROUND_TRIP) {
    bytes_buffer back;
    bytes_init(&back, SIZE_MAX);
    tokenizer_decode(t, ids.data, ids.n, true, &back);
    if (!bytes_equal(bytes_of(back.data, back.len), bytes_of(text, head.bytes)))
      fail_msg("%s: no round trip", what);
    bytes_free(&back);
  }
  tokenizer_ids_free(&ids);
}

static void compare_all(support_model which, const char *name) {
  const tokenizer *t = support_tokenizer(which);
  size_t len, at = 12, bytes = 0;
  char *data = support_read(support_path(name), &len);
  uint32_t n;
  assert_true(len > at && memcmp(data, "TOKORC1", 8) == 0);
  memcpy(&n, data + 8, sizeof n);
  assert_true(n > 1000);
  for (uint32_t i = 0; i < n; i++) {
    record head;
    assert_true(at + sizeof head <= len);
    memcpy(&head, data + at, sizeof head);
    at += sizeof head;
    assert_true(at + head.bytes + 4 * (size_t)head.n <= len);
    int32_t *expected = malloc(4 * (size_t)head.n + 1);
    char *text = malloc((size_t)head.bytes + 1);
    assert_true(expected && text);
    memcpy(text, data + at, head.bytes);
    text[head.bytes] = 0;
    memcpy(expected, data + at + head.bytes, 4 * (size_t)head.n);
    at += head.bytes + 4 * (size_t)head.n;
    bytes += head.bytes;
    compare_record(t, i, head, text, expected);
    free(text);
    free(expected);
  }
  assert_int_equal(at, len);
  assert_true(bytes >= 1 << 20);
  free(data);
}

static void smollm2_equals_reference(void **state) {
  (void)state;
  compare_all(SUPPORT_SMOLLM2, "test-data/tokens-smollm2.bin");
}
static void gemma3_equals_reference(void **state) {
  (void)state;
  compare_all(SUPPORT_GEMMA3, "test-data/tokens-gemma3.bin");
}
static void llama2_equals_reference(void **state) {
  (void)state;
  compare_all(SUPPORT_LLAMA2, "test-data/tokens-llama2.bin");
}

/* ---- named cases ---- */

static void decodes_to(const tokenizer *t, const int32_t *ids, size_t n, const char *expected) {
  bytes_buffer back;
  bytes_init(&back, 1 << 20);
  tokenizer_decode(t, ids, n, false, &back);
  assert_string_equal(back.data, expected);
  bytes_free(&back);
}

static void t1_one_dummy_space(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_LLAMA2);
  const int32_t bare[] = {15043, 3186}, spaced[] = {29871, 15043, 3186};
  support_encodes(t, "Hello world", plain, bare, 2);
  support_encodes(t, " Hello world", plain, spaced, 3);
  decodes_to(t, bare, 2, "Hello world");
  decodes_to(t, spaced, 3, " Hello world");
}

static void t2_byte_fallback_after_bos(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_LLAMA2);
  const int32_t expected[] = {1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223};
  support_encodes(t, "This is 🦙.cpp", (tokenizer_options){.add_bos = true}, expected, 10);
}

/* T3's expected ids are in the reference's files; here: that they are, and that text is literal
 * unless it is parsed. */
static void t3_space_after_special(void **state) {
  (void)state;
  const tokenizer *llama2 = support_tokenizer(SUPPORT_LLAMA2),
                  *gemma = support_tokenizer(SUPPORT_GEMMA3);
  const int32_t after_bos[] = {1, 402}, after_eos[] = {2, 29871, 22172};
  support_encodes(llama2, "<s>G", special, after_bos, 2);
  support_encodes(llama2, "</s> hello", special, after_eos, 3);
  const int32_t turn[] = {105, 2364};
  support_encodes(gemma, "<start_of_turn>user", special, turn, 2);
  tokenizer_ids ids = {0};
  assert_int_equal(
      tokenizer_encode(gemma, bytes_of_string("<start_of_turn>user"), plain, 0, &ids, NULL),
      TROIKA_OK);
  for (size_t i = 0; i < ids.n; i++) assert_false(tokenizer_is_control(gemma, ids.data[i]));
  tokenizer_ids_free(&ids);
}

static double encode_seconds(const tokenizer *t, const char *unit, size_t bytes) {
  size_t size = strlen(unit);
  char *text = malloc(bytes + size);
  assert_non_null(text);
  for (size_t i = 0; i < bytes; i += size) memcpy(text + i, unit, size);
  double best = 1e9;
  for (int round = 0; round < 3; round++) {
    tokenizer_ids ids = {0};
    double start = support_cpu_seconds();
    assert_int_equal(tokenizer_encode(t, bytes_of(text, bytes / size * size), plain, 0, &ids, NULL),
                     TROIKA_OK);
    double took = support_cpu_seconds() - start;
    if (took < best) best = took;
    assert_true(ids.n > 0);
    tokenizer_ids_free(&ids);
  }
  free(text);
  return best;
}

/* 16 times the text may take 16 times as long, and as much again for caches and the logarithm, and
 * 2 ms of noise. A quadratic one takes 256 times. Processor time, so that company does not count.
 */
static void t5_near_linear(void **state) {
  (void)state;
  static const char *const units[] = {"A", "us", "\n", " ", " \n", "-",
                                      "é", "😀",  "<",  "▁", "1",   "\r\n"};
  for (support_model m = 0; m < SUPPORT_MODELS; m++) {
    const tokenizer *t = support_tokenizer(m);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
      double small = encode_seconds(t, units[i], 64 << 10),
             large = encode_seconds(t, units[i], 1 << 20);
      if (large > 48 * small + 0.002)
        fail_msg("%s: '%s' 64 KiB in %.1f ms, 1 MiB in %.1f ms", tokenizer_kind(t), units[i],
                 1e3 * small, 1e3 * large);
    }
  }
}

/* On a stack of 128 KiB: nothing recurses over the text. */
static void *encode_on_small_stack(void *unused) {
  for (support_model m = 0; m < SUPPORT_MODELS; m++) {
    encode_seconds(support_tokenizer(m), "A", 1 << 20);
    encode_seconds(support_tokenizer(m), "\n", 1 << 20);
    encode_seconds(support_tokenizer(m), "(", 1 << 18);
  }
  return unused;
}

static void t5_stack_is_flat(void **state) {
  (void)state;
  for (support_model m = 0; m < SUPPORT_MODELS; m++) support_tokenizer(m);
  pthread_attr_t attributes;
  pthread_t thread;
  assert_int_equal(pthread_attr_init(&attributes), 0);
  assert_int_equal(pthread_attr_setstacksize(&attributes, 128 << 10), 0);
  assert_int_equal(pthread_create(&thread, &attributes, encode_on_small_stack, NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  pthread_attr_destroy(&attributes);
}

static void t7_raw_prompt_has_one_bos(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_GEMMA3);
  assert_true(tokenizer_adds_bos(t));
  tokenizer_options options = {.add_bos = true};
  const int32_t once[] = {2, 2202}, empty[] = {2};
  support_encodes(t, "hi", options, once, 2);
  support_encodes(t, "", options, empty, 1);
  options.parse_special = true;
  support_encodes(t, "<bos>hi", options, once, 2);
  const tokenizer *none = support_tokenizer(SUPPORT_SMOLLM2);
  tokenizer_ids ids = {0};
  assert_int_equal(tokenizer_encode(none, bytes_of_string("hi"), options, 0, &ids, NULL),
                   TROIKA_OK);
  assert_int_equal(ids.n, 1);
  assert_int_not_equal(ids.data[0], tokenizer_bos(none));
  tokenizer_ids_free(&ids);
}

static void ends_and_roles(void **state) {
  (void)state;
  const tokenizer *smollm2 = support_tokenizer(SUPPORT_SMOLLM2),
                  *gemma = support_tokenizer(SUPPORT_GEMMA3);
  assert_string_equal(tokenizer_kind(smollm2), "gpt2/smollm");
  assert_int_equal(tokenizer_vocab_size(smollm2), 49152);
  assert_int_equal(tokenizer_eos(smollm2), 2);
  assert_true(tokenizer_is_end(smollm2, 2) && tokenizer_is_end(smollm2, 0));
  assert_false(tokenizer_is_end(smollm2, 1) || tokenizer_is_end(smollm2, -1));
  assert_string_equal(tokenizer_kind(gemma), "llama");
  assert_true(tokenizer_is_end(gemma, 1) && tokenizer_is_end(gemma, 106));
  assert_false(tokenizer_is_end(gemma, 105));
  assert_int_equal(tokenizer_piece(gemma, 106, false).len, 0);
  assert_true(bytes_equal_string(tokenizer_piece(gemma, 106, true), "<end_of_turn>"));
  assert_int_equal(tokenizer_piece(gemma, -1, true).len, 0);
  assert_int_equal(tokenizer_piece(gemma, 262144, true).len, 0);
}

/* ---- limits and bad input ---- */

static void limits_hold(void **state) {
  (void)state;
  for (support_model m = 0; m < SUPPORT_MODELS; m++) {
    const tokenizer *t = support_tokenizer(m);
    tokenizer_ids ids = {0};
    troika_error err = {0};
    assert_int_equal(
        tokenizer_encode(t, bytes_of_string("one two three four"), plain, 4, &ids, &err),
        TROIKA_OK);
    assert_int_equal(ids.n, 4);
    assert_int_equal(
        tokenizer_encode(t, bytes_of_string("one two three four"), plain, 3, &ids, &err),
        TROIKA_LIMIT);
    assert_int_equal(ids.n, 4); /* as it was */
    assert_non_null(strstr(err.text, "more than 3"));
    assert_int_equal(tokenizer_encode(t, bytes_of("ab\xc4\xe3", 4), plain, 0, &ids, &err),
                     TROIKA_FORMAT);
    assert_non_null(strstr(err.text, "byte 2"));
    assert_int_equal(tokenizer_encode(t, bytes_of("\xed\xa0\xbd", 3), plain, 0, &ids, &err),
                     TROIKA_FORMAT);
    assert_int_equal(ids.n, 4);
    tokenizer_ids_free(&ids);
  }
}

/* ---- files ---- */

typedef struct broken_file {
  const char *model, *pre;
  bool no_tokens, short_types, no_scores, bos_outside;
  troika_status expected;
  const char *says;
} broken_file;

static void build_broken(gguf_writer *w, const broken_file *b) {
  static const char *const texts[] = {"a", "b", "<s>"};
  bytes_view tokens[3];
  int32_t types[] = {1, 1, 3};
  float scores[] = {0, 0, 0};
  for (int i = 0; i < 3; i++) tokens[i] = bytes_of_string(texts[i]);
  if (b->model) gguf_writer_add_string(w, "tokenizer.ggml.model", bytes_of_string(b->model));
  if (b->pre) gguf_writer_add_string(w, "tokenizer.ggml.pre", bytes_of_string(b->pre));
  if (!b->no_tokens) gguf_writer_add_strings(w, "tokenizer.ggml.tokens", tokens, 3);
  gguf_writer_add_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, b->short_types ? 2 : 3);
  if (!b->no_scores) gguf_writer_add_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, 3);
  gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", b->bos_outside ? 3 : 2);
}

static void bad_files_are_named(void **state) {
  (void)state;
  static const broken_file files[] = {
      {.model = NULL, .expected = TROIKA_NOT_FOUND, .says = "tokenizer.ggml.model"},
      {.model = "rwkv",
       .expected = TROIKA_UNSUPPORTED,
       .says = "'rwkv' is not known; known: gpt2, llama"},
      {.model = "gpt2",
       .pre = "mystery",
       .expected = TROIKA_UNSUPPORTED,
       .says = "'mystery' is not known; known: gpt2"},
      {.model = "gpt2", .pre = "smollm", .expected = TROIKA_FORMAT, .says = "merges"},
      {.model = "llama", .no_tokens = true, .expected = TROIKA_NOT_FOUND, .says = "tokens"},
      {.model = "llama", .short_types = true, .expected = TROIKA_FORMAT, .says = "token_type"},
      {.model = "llama", .no_scores = true, .expected = TROIKA_FORMAT, .says = "scores"},
      {.model = "llama", .bos_outside = true, .expected = TROIKA_FORMAT, .says = "bos_token_id"},
      {.model = "llama", .expected = TROIKA_OK, .says = ""},
  };
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    char *bytes = NULL;
    size_t len = 0;
    gguf *file = NULL;
    tokenizer *t = NULL;
    troika_error err = {0};
    gguf_writer *w = gguf_writer_create(32);
    FILE *out = open_memstream(&bytes, &len);
    build_broken(w, &files[i]);
    assert_int_equal(gguf_writer_write(w, out, &err), TROIKA_OK);
    fclose(out);
    assert_int_equal(gguf_open_memory(bytes, len, &file, &err), TROIKA_OK);
    assert_int_equal(tokenizer_create(file, &t, &err), files[i].expected);
    if (!strstr(err.text, files[i].says))
      fail_msg("'%s' does not say '%s'", err.text, files[i].says);
    if (t) tokenizer_destroy(&t);
    gguf_close(&file);
    gguf_writer_destroy(&w);
    free(bytes);
  }
}

/* The four patterns on a small vocabulary: every byte comes back, also with digits apart and pieces
 * taken whole. */
static void every_pre_tokenizer_gives_the_bytes_back(void **state) {
  (void)state;
  static const char *const names[] = {"gpt2", "default", "smollm", "llama-bpe", "qwen2"};
  static const char text[] =
      "hello HELLO'LL don't 1234567 ½Ⅷ é \t\r\n\n  x\xc2\x85\xe1\xa0\x8e aaaaa 日本語😀 (!?) "
      "<|im_end|>";
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    tokenizer *t = tiny_tokenizer(names[i]);
    assert_non_null(t);
    tokenizer_ids ids = {0};
    bytes_buffer back;
    bytes_init(&back, 1 << 16);
    assert_int_equal(tokenizer_encode(t, bytes_of_string(text), plain, 0, &ids, NULL), TROIKA_OK);
    tokenizer_decode(t, ids.data, ids.n, false, &back);
    assert_string_equal(back.data, text);
    assert_int_equal(ids.data[0], 259); /* hello */
    bytes_free(&back);
    tokenizer_ids_free(&ids);
    tokenizer_destroy(&t);
  }
}

/* T4 in part: Qwen2's tokenizer composes first, the others keep a combining mark. */
static void t4_only_qwen2_composes(void **state) {
  (void)state;
  static const char *const names[] = {"qwen2", "llama-bpe"};
  for (size_t i = 0; i < 2; i++) {
    tokenizer *t = tiny_tokenizer(names[i]);
    assert_non_null(t);
    tokenizer_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, bytes_of_string("e\xcc\x81"), plain, 0, &ids, NULL),
                     TROIKA_OK);
    assert_int_equal(ids.n, i == 0 ? 2 : 3);
    tokenizer_ids_free(&ids);
    tokenizer_destroy(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(smollm2_equals_reference),
      cmocka_unit_test(gemma3_equals_reference),
      cmocka_unit_test(llama2_equals_reference),
      cmocka_unit_test(t1_one_dummy_space),
      cmocka_unit_test(t2_byte_fallback_after_bos),
      cmocka_unit_test(t3_space_after_special),
      cmocka_unit_test(t5_near_linear),
      cmocka_unit_test(t7_raw_prompt_has_one_bos),
      cmocka_unit_test(t5_stack_is_flat),
      cmocka_unit_test(bad_files_are_named),
      cmocka_unit_test(t4_only_qwen2_composes),
      cmocka_unit_test(every_pre_tokenizer_gives_the_bytes_back),
      cmocka_unit_test(ends_and_roles),
      cmocka_unit_test(limits_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
