/* test_emit.c - cases S1, S2, S3 of the user reports on the state machine itself, and a search over
 * random cuts against a direct definition: the joined text does not depend on how the bytes came.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/emit.h"
#include "text/support_text.h"

enum { PIECE_MAX = 64 };

static emit *make(const char *const *stops, size_t n) {
  bytes_view views[EMIT_STOPS_MAX] = {{0}};
  emit *e = NULL;
  for (size_t i = 0; i < n; i++) views[i] = bytes_of_string(stops[i]);
  assert_int_equal(emit_create(views, n, PIECE_MAX, &e, NULL), TROIKA_OK);
  return e;
}

/* Pushes text[from .. to) and checks the delta. */
static bool push(emit *e, const char *piece, const char *expected) {
  bytes_view delta;
  bool stopped = emit_push(e, bytes_of_string(piece), &delta);
  assert_int_equal(delta.len, strlen(expected));
  assert_memory_equal(delta.ptr, expected, delta.len);
  return stopped;
}

static void flush(emit *e, const char *expected) {
  bytes_view delta = emit_flush(e);
  assert_int_equal(delta.len, strlen(expected));
  assert_memory_equal(delta.ptr, expected, delta.len);
}

static void s1_no_broken_characters(void **state) {
  (void)state;
  emit *e = make(NULL, 0);
  assert_false(push(e, "a\xf0\x9f", "a"));
  assert_false(push(e, "\x98", ""));
  assert_false(push(e, "\x80 b", "😀 b")); /* goes on after the split */
  assert_false(push(e, "\xe6\x97", ""));
  assert_false(push(e, "\xa5\xe6", "日"));
  assert_false(push(e, "\x9c\xac\xe8\xaa\x9e", "本語"));
  flush(e, "");
  emit_destroy(&e);
}

static void s2_cut_inside_a_character(void **state) {
  (void)state;
  static const char emoji[] = "\xf0\x9f\x98";
  for (size_t n = 1; n <= 3; n++) {
    emit *e = make(NULL, 0);
    bytes_view delta;
    assert_false(emit_push(e, bytes_of(emoji, n), &delta));
    assert_int_equal(delta.len, 0);
    flush(e, "\xef\xbf\xbd"); /* one, whatever was there */
    flush(e, "");
    emit_destroy(&e);
  }
}

static void s3_stop_across_tokens(void **state) {
  (void)state;
  const char *stops[] = {"own fox"};
  emit *e = make(stops, 1);
  assert_false(push(e, "The", "The"));
  assert_false(push(e, " quick", " quick"));
  assert_false(push(e, " brown", " br"));
  assert_true(push(e, " fox jumps", ""));
  assert_int_equal(emit_stop(e), 0);
  emit_destroy(&e);
}

static void only_the_prefix_is_held(void **state) {
  (void)state;
  const char *stops[] = {"\nObservation:", "aab", "<end>"};
  emit *e = make(stops, 3);
  assert_false(push(e, "x\n", "x"));
  assert_false(push(e, "y", "\ny"));
  assert_false(push(e, "aaa", "a")); /* "aa" may become "aab" */
  assert_false(push(e, "a", "a"));
  assert_false(push(e, "c<en", "aac"));
  assert_false(push(e, "ding", "<ending"));
  assert_false(push(e, "<", ""));
  flush(e, "<");
  emit_reset(e);
  assert_false(push(e, "aa", ""));
  assert_true(push(e, "ab", "a"));
  assert_int_equal(emit_stop(e), 1);
  emit_destroy(&e);
}

static void bad_stops_are_refused(void **state) {
  (void)state;
  emit *e = NULL;
  bytes_view many[EMIT_STOPS_MAX + 1];
  char long_stop[EMIT_STOP_BYTES_MAX + 1];
  memset(long_stop, 'x', sizeof long_stop);
  for (size_t i = 0; i <= EMIT_STOPS_MAX; i++) many[i] = bytes_of_string("s");
  assert_int_equal(emit_create(many, EMIT_STOPS_MAX + 1, 8, &e, NULL), TROIKA_INVALID);
  bytes_view one = bytes_of("", 0);
  assert_int_equal(emit_create(&one, 1, 8, &e, NULL), TROIKA_INVALID);
  one = bytes_of(long_stop, sizeof long_stop);
  assert_int_equal(emit_create(&one, 1, 8, &e, NULL), TROIKA_INVALID);
  one = bytes_of("\xff", 1);
  assert_int_equal(emit_create(&one, 1, 8, &e, NULL), TROIKA_INVALID);
  assert_null(e);
}

/* ---- against a direct definition ---- */

static uint32_t next_random(uint32_t *seed) {
  *seed = *seed * 1664525u + 1013904223u;
  return *seed >> 8;
}

/* The bytes before the stop that ends first (the longest of those), by trying every end. */
static size_t cut_directly(const char *text, size_t len, const char *const *stops, size_t n,
                           int *which) {
  *which = -1;
  for (size_t end = 1; end <= len; end++) {
    size_t longest = 0;
    for (size_t k = 0; k < n; k++) {
      size_t size = strlen(stops[k]);
      if (size > end || size <= longest || memcmp(text + end - size, stops[k], size) != 0) continue;
      longest = size;
      *which = (int)k;
    }
    if (longest) return end - longest;
  }
  return len;
}

static void append_all(emit *e, const char *text, size_t len, uint32_t *seed, bytes_buffer *out) {
  for (size_t at = 0; at < len && emit_stop(e) < 0;) {
    size_t size = 1 + next_random(seed) % 7;
    if (size > len - at) size = len - at;
    bytes_view delta;
    emit_push(e, bytes_of(text + at, size), &delta);
    assert_int_equal(utf8_valid_prefix(delta.ptr, delta.len, NULL), delta.len);
    bytes_append(out, delta.ptr, delta.len);
    at += size;
  }
  bytes_view delta = emit_flush(e);
  bytes_append(out, delta.ptr, delta.len);
}

static void any_cut_gives_the_same(void **state) {
  (void)state;
  static const char alphabet[] = "ab\n<>\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff";
  static const char *const stops[] = {"aab", "ab<", "b\n\n", "é<", "€", "<a>", "aaaaaaaa"};
  uint32_t seed = 7;
  size_t stopped = 0;
  for (int round = 0; round < 20000; round++) {
    char text[48];
    size_t len = 1 + next_random(&seed) % (sizeof text - 1), n = next_random(&seed) % 8;
    for (size_t i = 0; i < len; i++)
      text[i] = next_random(&seed) % 3 ? alphabet[next_random(&seed) % 5]
                                       : alphabet[next_random(&seed) % 15];
    int which;
    size_t cut = cut_directly(text, len, stops, n, &which);
    emit *e = make(stops, n), *whole = make(NULL, 0);
    bytes_buffer out, expected;
    bytes_init(&out, 1 << 16);
    bytes_init(&expected, 1 << 16);
    append_all(e, text, len, &seed, &out);
    assert_int_equal(emit_stop(e), which);
    bytes_view delta = bytes_of("", 0);
    if (cut) emit_push(whole, bytes_of(text, cut), &delta);
    bytes_append(&expected, delta.ptr, delta.len);
    delta = emit_flush(whole);
    bytes_append(&expected, delta.ptr, delta.len);
    assert_true(bytes_equal(bytes_of(out.data, out.len), bytes_of(expected.data, expected.len)));
    stopped += which >= 0;
    bytes_free(&out);
    bytes_free(&expected);
    emit_destroy(&e);
    emit_destroy(&whole);
  }
  assert_true(stopped > 1000);
}

/* Tokens of both real models, one by one, give the text back. */
static void tokens_join_to_the_text(void **state) {
  (void)state;
  static const char text[] =
      "Ünïcödé 😀👨‍👩‍👧 日本語 नमस्ते 𝔘 🦙.cpp\n\n   end";
  for (support_model m = 0; m < SUPPORT_MODELS; m++) {
    const tokenizer *t = support_tokenizer(m);
    tokenizer_ids ids = {0};
    emit *e = NULL;
    bytes_buffer out;
    bytes_init(&out, 1 << 16);
    assert_int_equal(emit_create(NULL, 0, tokenizer_piece_max(t), &e, NULL), TROIKA_OK);
    assert_int_equal(
        tokenizer_encode(t, bytes_of_string(text), (tokenizer_options){0}, 0, &ids, NULL),
        TROIKA_OK);
    for (size_t i = 0; i < ids.n; i++) {
      bytes_view delta;
      assert_false(emit_push(e, tokenizer_piece(t, ids.data[i], false), &delta));
      assert_int_equal(utf8_valid_prefix(delta.ptr, delta.len, NULL), delta.len);
      bytes_append(&out, delta.ptr, delta.len);
    }
    bytes_view delta = emit_flush(e);
    bytes_append(&out, delta.ptr, delta.len);
    assert_string_equal(out.data + (tokenizer_strips_prefix(t) ? 1 : 0), text);
    emit_destroy(&e);
    bytes_free(&out);
    tokenizer_ids_free(&ids);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(s1_no_broken_characters), cmocka_unit_test(s2_cut_inside_a_character),
      cmocka_unit_test(s3_stop_across_tokens),   cmocka_unit_test(only_the_prefix_is_held),
      cmocka_unit_test(bad_stops_are_refused),   cmocka_unit_test(any_cut_gives_the_same),
      cmocka_unit_test(tokens_join_to_the_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
