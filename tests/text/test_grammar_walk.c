/* test_grammar_walk.c - texts drawn at random from a grammar are what its source describes: they
 * parse and fit, whatever the tokens were. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/support_grammar.h"
#include "text/support_json.h"

enum { WALKS = 12, WALKS_GEMMA3 = 4, FREE_STEPS = 24 };

static const char *const schemas[] = {
    "{\"type\":\"object\"}",
    "true",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
    "\"age\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b \\\"c\\\"\",3.5,null]},"
    "\"minItems\":1,\"maxItems\":4}},\"required\":[\"name\",\"tags\"]}",
    "{\"type\":\"object\",\"properties\":{\"foo\":{\"type\":\"boolean\"}},"
    "\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"patternProperties\":{\"^x_\":{\"type\":\"integer\"},"
    "\"^y\":{\"type\":\"string\",\"maxLength\":3}},\"properties\":{\"x_1\":{\"maximum\":3}},"
    "\"required\":[\"x_1\"],\"additionalProperties\":false}",
    "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":"
    "{\"value\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1.5},"
    "\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"},\"maxItems\":2}},"
    "\"required\":[\"value\"],\"additionalProperties\":false}}}",
    "{\"oneOf\":[{\"$ref\":\"#/$defs/cat\"},{\"$ref\":\"#/$defs/dog\"},{\"type\":\"null\"}],"
    "\"$defs\":{\"cat\":{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"cat\"},"
    "\"lives\":{\"type\":\"integer\",\"multipleOf\":3,\"minimum\":0}},"
    "\"required\":[\"kind\",\"lives\"]},"
    "\"dog\":{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"dog\",\"puppy\"]}},"
    "\"required\":[\"kind\"],\"additionalProperties\":false}}}",
    "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},"
    "\"required\":[\"a\"]},{\"properties\":{\"a\":{\"minLength\":2,\"maxLength\":3},"
    "\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}]}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":[\"string\",\"null\"]}],"
    "\"items\":{\"type\":\"boolean\"},\"minItems\":3,\"maxItems\":5}",
    "{\"type\":\"array\",\"minItems\":1,\"maxItems\":3,\"items\":{\"type\":\"string\","
    "\"pattern\":\"^(\\\\d+|imap:[A-Za-z0-9_-]+)$\"}}",
    "{\"type\":\"string\",\"pattern\":\"[A-F]-?[0-9]{2,3}\",\"maxLength\":30}",
    "{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":-1,\"maximum\":2}",
    "{\"properties\":{\"a b\\n\\\"\":{\"type\":\"integer\"},\"\\u00e9\\u4e2d\":{\"const\":{\"k\":"
    "[1,2.5,\"x\",{}]}}},\"required\":[\"\\u00e9\\u4e2d\",\"other\"]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"},\"minProperties\":1,"
    "\"maxProperties\":3}",
    "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":9007199254740990,"
    "\"maximum\":9223372036854775807},{\"const\":-0.125},{\"enum\":[true,[]]}]}",
};

static void walk_schema(support_model which, const char *source, uint64_t walks, uint64_t *ended,
                        double *mask_s, double *max_s, size_t *steps) {
  size_t blanks = 0;
  json *schema = json_read(source, strlen(source), NULL);
  assert_non_null(schema);
  grammar *first = support_grammar(which, GRAMMAR_JSON_SCHEMA, source);
  for (uint64_t seed = 1; seed <= walks; seed++) {
    grammar *g = NULL;
    support_walk walk;
    assert_int_equal(grammar_clone(first, &g, NULL), TROIKA_OK);
    support_walk_run(which, g, seed % 3 ? FREE_STEPS : 0, seed, &walk);
    if (walk.ended) {
      json *value = json_read(walk.text.data, walk.text.len, &blanks);
      if (!value) fail_msg("%s\n  gave %s", source, walk.text.data);
      const char *why = json_misfit(value, schema, schema);
      if (why[0]) fail_msg("%s\n  gave %s\n  which breaks %s", source, walk.text.data, why);
      json_free(value);
      if (blanks > GRAMMAR_BLANKS_MAX + 1) fail_msg("%zu blanks in %s", blanks, walk.text.data);
      assert_true(grammar_is_over(g) && grammar_is_complete(g));
    }
    *ended += walk.ended;
    *mask_s += walk.mask_s;
    *steps += walk.steps;
    if (walk.mask_max_s > *max_s) *max_s = walk.mask_max_s;
    bytes_free(&walk.text);
    grammar_destroy(&g);
  }
  grammar_destroy(&first);
  json_free(schema);
}

static void walk_all(support_model which, uint64_t walks, const char *name) {
  enum { N = sizeof schemas / sizeof schemas[0] };
  double mask_s = 0, max_s = 0;
  uint64_t ended = 0;
  size_t steps = 0;
  for (size_t i = 0; i < N; i++)
    walk_schema(which, schemas[i], walks, &ended, &mask_s, &max_s, &steps);
  print_message("%s: %zu masks, mean %.1f us, at most %.1f us; %u of %u texts ended\n", name, steps,
                1e6 * mask_s / (double)steps, 1e6 * max_s, (unsigned)ended, (unsigned)(N * walks));
  assert_true(ended * 100 >= N * walks * 95);
}

static void walks_fit_smollm2(void **state) {
  (void)state;
  walk_all(SUPPORT_SMOLLM2, WALKS, "smollm2");
}
static void walks_fit_gemma3(void **state) {
  (void)state;
  walk_all(SUPPORT_GEMMA3, WALKS_GEMMA3, "gemma3");
}

static bool all_blank(bytes_view piece) {
  for (size_t i = 0; i < piece.len; i++)
    if (!memchr(" \n\t\r", piece.ptr[i], 4)) return false;
  return piece.len > 0;
}

/* What a model does that has lost its way: blanks, the most at once, whenever they may come; else
 * the shortest token. Within a string it writes nothing. */
static int32_t blank_token(const tokenizer *t, const uint32_t *bits, bool in_string) {
  int32_t pick = -1;
  bytes_view best = {0};
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    bytes_view p = tokenizer_piece(t, (int32_t)i, false);
    if (!(bits[i / 32] >> (i % 32) & 1) || p.len == 0) continue;
    if (in_string && bytes_equal_string(p, "\"")) return (int32_t)i;
    bool blank = all_blank(p) && !in_string, was = all_blank(best) && !in_string;
    bool better = blank ? !was || p.len > best.len : !was && p.len < best.len;
    if (pick >= 0 && !better) continue;
    pick = (int32_t)i;
    best = p;
  }
  return pick;
}

static void J6_no_runaway_in_blanks(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_SMOLLM2);
  const char *source =
      "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"},"
      "\"more\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}},"
      "\"required\":[\"text\",\"more\"]}";
  grammar *g = support_grammar(SUPPORT_SMOLLM2, GRAMMAR_JSON_SCHEMA, source);
  uint32_t *bits = malloc(grammar_mask_words(support_vocab(SUPPORT_SMOLLM2)) * sizeof *bits);
  assert_non_null(bits);
  size_t run = 0, longest = 0, runs = 0;
  bool in_string = false;
  for (size_t step = 0; step < 2048 && !grammar_is_over(g); step++) {
    assert_int_equal(grammar_mask(g, bits), TROIKA_OK);
    int32_t pick = blank_token(t, bits, in_string);
    assert_true(pick >= 0);
    bytes_view piece = tokenizer_piece(t, pick, false);
    for (size_t i = 0; i < piece.len; i++) {
      in_string ^= piece.ptr[i] == '"';
      bool blank = memchr(" \n\t\r", piece.ptr[i], 4) != NULL;
      runs += blank && run == 0;
      run = blank ? run + 1 : 0;
      if (run > longest) longest = run;
    }
    assert_int_equal(grammar_accept(g, pick), TROIKA_OK);
  }
  assert_true(runs > 5 && longest > 2 && longest <= GRAMMAR_BLANKS_MAX + 1);
  free(bits);
  grammar_destroy(&g);
}

static void regex_and_lark_walk(void **state) {
  (void)state;
  static const struct {
    grammar_kind kind;
    const char *source, *again; /* what any text must match, by the same engine's regex */
  } cases[] = {
      {GRAMMAR_REGEX, "[a-c]{3,9}(-[0-9]+)?", "[a-c]{3,9}(-[0-9]+)?"},
      {GRAMMAR_LARK, "start: \"x\" (A | B)+ \"!\"\nA: /[0-9]/\nB: \"ab\"i\n", "x([0-9]|(?i)ab)+!"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (uint64_t seed = 1; seed <= WALKS; seed++) {
      grammar *g = support_grammar(SUPPORT_GEMMA3, cases[i].kind, cases[i].source);
      support_walk walk;
      support_walk_run(SUPPORT_GEMMA3, g, 5, seed, &walk);
      assert_true(walk.ended);
      if (!support_takes(SUPPORT_SMOLLM2, GRAMMAR_REGEX, cases[i].again, walk.text.data))
        fail_msg("%s gave %s", cases[i].source, walk.text.data);
      bytes_free(&walk.text);
      grammar_destroy(&g);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(walks_fit_smollm2), cmocka_unit_test(walks_fit_gemma3),
      cmocka_unit_test(J6_no_runaway_in_blanks), cmocka_unit_test(regex_and_lark_walk)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
