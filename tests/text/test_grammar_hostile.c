/* test_grammar_hostile.c - what grammars may cost: sources that ask for much work or memory are
 * refused or ended, usual ones are not; case J8 of the user reports goes on here.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "text/support_grammar.h"

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})
static const grammar_kind SCHEMA = GRAMMAR_JSON_SCHEMA;

static void takes(const char *schema, const char *const *texts) {
  support_takes_all(SCHEMA, schema, texts);
}
static void takes_not(const char *schema, const char *const *texts) {
  support_takes_none(SCHEMA, schema, texts);
}

/* `open` n times, `middle`, `close` n times; the caller frees. */
static char *nested(const char *head, const char *open, size_t n, const char *middle,
                    const char *close) {
  size_t room = strlen(head) + n * (strlen(open) + strlen(close)) + strlen(middle) + 8;
  char *text = calloc(1, room), *at = text;
  assert_non_null(text);
  at = stpcpy(at, head);
  for (size_t i = 0; i < n; i++) at = stpcpy(at, open);
  at = stpcpy(at, middle);
  for (size_t i = 0; i < n; i++) at = stpcpy(at, close);
  return text;
}

static void refuse_nested(grammar_kind kind, const char *head, const char *open, size_t n,
                          const char *middle, const char *close, troika_status status,
                          const char *word) {
  char *source = nested(head, open, n, middle, close);
  support_refused(kind, source, status, word);
  free(source);
}

static int32_t token_of(const tokenizer *t, const char *text) {
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++)
    if (bytes_equal_string(tokenizer_piece(t, (int32_t)i, false), text)) return (int32_t)i;
  fail_msg("no token %s", text);
  return -1;
}

/* ---- work and memory of a hostile source ---- */

static bytes_buffer text_of(size_t room) {
  bytes_buffer text;
  bytes_init(&text, room);
  return text;
}

__attribute__((format(printf, 2, 3))) static void add(bytes_buffer *text, const char *format, ...) {
  char piece[300];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(piece, sizeof piece, format, args);
  va_end(args);
  assert_true(n >= 0 && (size_t)n < sizeof piece);
  bytes_append(text, piece, (size_t)n);
}

static void refuse_and_free(grammar_kind kind, bytes_buffer *text, troika_status status,
                            const char *word) {
  assert_true(text->len <= GRAMMAR_SOURCE_MAX);
  support_refused(kind, text->data, status, word);
  bytes_free(text);
}

/* Sixty required properties, three levels of references, sixteen branches that only their last
 * property tells apart: some 10^7 comparisons. */
static void one_of_with_deep_tags_is_bounded(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20);
  add(&s, "{\"$defs\":{\"l0\":{\"type\":\"string\"}");
  for (int level = 1; level < 3; level++) {
    add(&s, ",\"l%d\":{\"type\":\"object\",\"properties\":{", level);
    for (int k = 0; k < 60; k++)
      add(&s, "%s\"k%d\":{\"$ref\":\"#/$defs/l%d\"}", k ? "," : "", k, level - 1);
    add(&s, "},\"required\":[\"k0\"");
    for (int k = 1; k < 60; k++) add(&s, ",\"k%d\"", k);
    add(&s, "]}");
  }
  add(&s, "},\"oneOf\":[");
  for (int b = 0; b < 16; b++) {
    add(&s, "%s{\"type\":\"object\",\"properties\":{", b ? "," : "");
    for (int k = 0; k < 60; k++) add(&s, "\"k%d\":{\"$ref\":\"#/$defs/l2\"},", k);
    add(&s, "\"z\":{\"const\":%d}},\"required\":[", b);
    for (int k = 0; k < 60; k++) add(&s, "\"k%d\",", k);
    add(&s, "\"z\"]}");
  }
  add(&s, "]}");
  refuse_and_free(SCHEMA, &s, TROIKA_LIMIT, "schema at $.oneOf: it takes too long to tell");
}

/* Three levels of 1,200 references: 10^9 if each is followed. */
static void types_of_wide_any_of_are_bounded(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20);
  add(&s, "{\"oneOf\":[{\"$ref\":\"#/$defs/t0\"},{\"type\":\"null\"}],\"$defs\":{");
  for (int level = 0; level < 3; level++) {
    add(&s, "\"t%d\":{\"anyOf\":[", level);
    for (int i = 0; i < 1200; i++) add(&s, "%s{\"$ref\":\"#/$defs/t%d\"}", i ? "," : "", level + 1);
    add(&s, "]},");
  }
  add(&s, "\"t3\":{\"type\":\"string\"}}}");
  refuse_and_free(SCHEMA, &s, TROIKA_LIMIT, "schema at $.oneOf: it takes too long to tell");
}

/* Each of 3,000 references to an anchor at the end of the document. */
static void anchors_are_found_once(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20);
  add(&s, "{\"type\":\"array\",\"prefixItems\":[{}");
  for (int i = 0; i < 3000; i++) add(&s, ",{\"$ref\":\"#z\"}");
  add(&s, "],\"examples\":[0");
  for (int i = 0; i < 5800; i++) add(&s, ",{\"a\":1,\"b\":2}");
  add(&s, "],\"$defs\":{\"y\":{\"$anchor\":\"z\",\"type\":\"null\"}}}");
  assert_true(s.len <= GRAMMAR_SOURCE_MAX);
  support_vocab(SUPPORT_SMOLLM2);
  double began = (double)clock();
  grammar *g = support_grammar(SUPPORT_SMOLLM2, SCHEMA, s.data);
  assert_true(((double)clock() - began) / CLOCKS_PER_SEC < 1);
  grammar_destroy(&g);
  bytes_free(&s);
}

/* 2^12 paths of twelve such names. */
static void long_names_on_many_paths_take_little_memory(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20);
  add(&s,
      "{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}],\"$defs\":{\"a\":{"
      "\"type\":\"object\",\"properties\":{\"");
  for (int i = 0; i < 60000; i++) bytes_append(&s, "p", 1);
  add(&s, "\":{\"$ref\":\"#/$defs/a\"},\"");
  for (int i = 0; i < 60000; i++) bytes_append(&s, "q", 1);
  add(&s, "\":{\"$ref\":\"#/$defs/a\"}}}}}");
  const grammar_vocab *v = support_vocab(SUPPORT_SMOLLM2);
  struct rusage before, after;
  assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
  grammar *g = NULL;
  troika_status status = grammar_create(v, SCHEMA, bytes_of(s.data, s.len), &g, NULL);
  assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
  assert_true(status == TROIKA_OK || status == TROIKA_LIMIT);
  long grown_kb = after.ru_maxrss - before.ru_maxrss;
  if (grown_kb > 150 << 10) fail_msg("%ld MB for %zu KB", grown_kb >> 10, s.len >> 10);
  grammar_destroy(&g);
  bytes_free(&s);
}

/* Where each round finds one entry more, there would be as many rounds as entries. */
static void chains_of_required_parts_are_bounded(void **state) {
  (void)state;
  enum { LINKS = 600 };
  bytes_buffer s = text_of(1 << 20);
  add(&s, "{\"type\":\"array\",\"prefixItems\":[");
  for (int i = LINKS - 1; i >= 0; i--) add(&s, "{\"$ref\":\"#/$defs/d%d\"},", i);
  for (int i = 0; i < 12; i++) add(&s, "{\"$ref\":\"#/$defs/b%d\"},", i);
  add(&s, "{}],\"$defs\":{\"d%d\":{\"type\":\"null\"}", LINKS);
  for (int i = 0; i < LINKS; i++)
    add(&s,
        ",\"d%d\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#/$defs/d%d\"}},"
        "\"required\":[\"x\"]}",
        i, i + 1);
  for (int i = 0; i < 12; i++) {
    add(&s,
        ",\"b%d\":{\"type\":\"object\",\"properties\":{\"a\":{},\"x\":{\"$ref\":\"#/$defs/d0\"}}",
        i);
    add(&s, ",\"required\":[\"a\"");
    for (int k = 0; k < 850; k++) add(&s, ",\"a\"");
    add(&s, ",\"x\"]}");
  }
  add(&s, "}}");
  refuse_and_free(SCHEMA, &s, TROIKA_LIMIT, "schema at $: too many parts that refer to each other");
}

/* A class of Unicode is 5 KB each, and folding its case takes up to 3 ms. */
static void classes_are_counted(void **state) {
  (void)state;
  refuse_nested(GRAMMAR_REGEX, "", "\\w", 60000, "", "", TROIKA_LIMIT, "too many classes");
  refuse_nested(GRAMMAR_REGEX, "(?i)", "\\pL", 30000, "", "", TROIKA_LIMIT, "too many classes");
  refuse_nested(GRAMMAR_REGEX, "(?i)", "[\\W]", 1900, "", "", TROIKA_LIMIT, "too many classes");
  refuse_nested(GRAMMAR_REGEX, "(?i)", "[!-\xef\xbf\xbf]", 9000, "", "", TROIKA_LIMIT, "classes");
  refuse_nested(GRAMMAR_LARK, "start: /", "[a-\xef\xbf\xbf]", 5000, "/i", "", TROIKA_LIMIT,
                "class");
  refuse_nested(SCHEMA, "{\"pattern\":\"", "\\\\s", 40000, "\"}", "", TROIKA_LIMIT, "classes");
  support_takes_all(GRAMMAR_REGEX, "(?i)\\w+ \\p{L}[\\W\\d]", TEXTS("Ab \xc3\x9f."));
}

/* The work of a row of the parser grows with the cube of what is ambiguous. */
static void ambiguity_is_ended(void **state) {
  (void)state;
  static const int branches[] = {200, 400, 3000};
  uint32_t *bits = malloc(4 * (size_t)grammar_mask_words(support_vocab(SUPPORT_SMOLLM2)));
  int32_t x = token_of(support_tokenizer(SUPPORT_SMOLLM2), "x");
  for (size_t i = 0; i < sizeof branches / sizeof branches[0]; i++) {
    char *source = nested("start: a\na: \"x\"", "|a a", (size_t)branches[i], "", "");
    if (branches[i] > 200) {
      support_refused(GRAMMAR_LARK, source, TROIKA_LIMIT, "");
    } else {
      grammar *g = support_grammar(SUPPORT_SMOLLM2, GRAMMAR_LARK, source);
      troika_status status = TROIKA_OK;
      for (int step = 0; step < 100 && status == TROIKA_OK; step++) {
        double began = support_cpu_seconds();
        status = grammar_mask(g, bits);
        if (status == TROIKA_OK) status = grammar_accept(g, x);
        assert_true(support_cpu_seconds() - began < 1);
      }
      assert_int_equal(status, TROIKA_LIMIT);
      assert_true(grammar_failure(g)[0] && grammar_mask(g, bits) == TROIKA_LIMIT);
      grammar_destroy(&g);
    }
    free(source);
  }
  free(bits);
}

/* What is made is small, also where its text is short or its parts are many. */
static void a_grammar_too_large_is_refused(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20);
  add(&s, "{\"const\":{\"k\":0");
  for (int i = 0; i < 8000; i++) add(&s, ",\"k%d\":%d", i, i);
  add(&s, "}}");
  refuse_and_free(SCHEMA, &s, TROIKA_LIMIT, "size exceeds 10 MB");
  s = text_of(1 << 20);
  add(&s, "{\"type\":\"array\",\"prefixItems\":[{}");
  for (int i = 0; i < 2000; i++) add(&s, ",{\"type\":\"integer\",\"multipleOf\":65535}");
  add(&s, "]}");
  refuse_and_free(SCHEMA, &s, TROIKA_LIMIT, "size exceeds 10 MB");
}

/* Feeds the text by its longest tokens, as a model mostly would. */
static void takes_by_long_tokens(const char *schema, const char *text) {
  const tokenizer *t = support_tokenizer(SUPPORT_SMOLLM2);
  uint32_t *bits = malloc(4 * (size_t)grammar_mask_words(support_vocab(SUPPORT_SMOLLM2)));
  grammar *g = support_grammar(SUPPORT_SMOLLM2, SCHEMA, schema);
  for (size_t left = strlen(text); left;) {
    if (grammar_mask(g, bits) != TROIKA_OK) fail_msg("%s", grammar_failure(g));
    int32_t best = -1;
    size_t most = 0;
    for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
      bytes_view piece = tokenizer_piece(t, (int32_t)i, false);
      bool fits = piece.len > most && piece.len <= left && memcmp(piece.ptr, text, piece.len) == 0;
      if (!fits || !(bits[i / 32] >> (i % 32) & 1)) continue;
      best = (int32_t)i;
      most = piece.len;
    }
    assert_int_equal(grammar_accept(g, best), TROIKA_OK);
    text += most;
    left -= most;
  }
  assert_true(grammar_is_complete(g));
  grammar_destroy(&g);
  free(bits);
}

/* And usual ones are far from it: 200 properties with enums and patterns, and all of 10,000
 * characters, token by token. */
static void large_but_usual_schemas_work(void **state) {
  (void)state;
  bytes_buffer s = text_of(1 << 20), text = text_of(1 << 20);
  add(&s, "{\"type\":\"object\",\"properties\":{");
  bytes_append(&text, "{", 1);
  for (int i = 0; i < 200; i++) {
    add(&s, "%s\"field_%d\":", i ? "," : "", i);
    if (i % 2)
      add(&s, "{\"enum\":[\"red\",\"green\",\"blue %d\"]}", i);
    else
      add(&s, "{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{%d,12}$\"}", 1 + i % 7);
    add(&text, "%s\"field_%d\":\"%s\"", i ? "," : "", i, i % 2 ? "green" : "AB-12345678");
  }
  add(&s, "}}");
  bytes_append(&text, "}", 1);
  takes(s.data, TEXTS(text.data, "{}"));
  bytes_free(&s);
  bytes_free(&text);
  char *words = nested("\"", "some words ", 909, "x\"", ""),
       *more = nested("\"", "a", 1001, "\"", "");
  takes_by_long_tokens("{\"type\":\"string\",\"maxLength\":10000}", words);
  takes_not("{\"type\":\"string\",\"maxLength\":1000}", TEXTS(more));
  free(words);
  free(more);
}

/* n choices: clones of a fresh grammar give what a second parse would, while others are used. */
static void *walk_a_clone(void *g) {
  support_walk *walk = calloc(1, sizeof *walk);
  grammar *mine = g;
  support_walk_run(SUPPORT_SMOLLM2, mine, 30, 7, walk);
  grammar_destroy(&mine);
  return walk;
}

static void clones_are_used_on_their_own_threads(void **state) {
  (void)state;
  const char *source =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"enum\":[1,2]}},"
      "\"required\":[\"a\",\"b\"]}";
  grammar *g[4] = {support_grammar(SUPPORT_SMOLLM2, SCHEMA, source)};
  pthread_t threads[4];
  for (int i = 1; i < 4; i++) assert_int_equal(grammar_clone(g[0], &g[i], NULL), TROIKA_OK);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, walk_a_clone, g[i]), 0);
  support_walk *walks[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], (void **)&walks[i]), 0);
  for (int i = 0; i < 4; i++) assert_string_equal(walks[i]->text.data, walks[0]->text.data);
  for (int i = 0; i < 4; i++) {
    bytes_free(&walks[i]->text);
    free(walks[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_with_deep_tags_is_bounded),
                                     cmocka_unit_test(types_of_wide_any_of_are_bounded),
                                     cmocka_unit_test(anchors_are_found_once),
                                     cmocka_unit_test(long_names_on_many_paths_take_little_memory),
                                     cmocka_unit_test(chains_of_required_parts_are_bounded),
                                     cmocka_unit_test(classes_are_counted),
                                     cmocka_unit_test(ambiguity_is_ended),
                                     cmocka_unit_test(a_grammar_too_large_is_refused),
                                     cmocka_unit_test(large_but_usual_schemas_work),
                                     cmocka_unit_test(clones_are_used_on_their_own_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
