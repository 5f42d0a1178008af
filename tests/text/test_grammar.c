/* test_grammar.c - what a grammar allows, and what is refused before it could be broken: cases J1,
 * J2, J4, J5, J7 and J8 of the user reports (J6 is in test_grammar_walk.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/support_grammar.h"
#include "text/tiny_vocab.h"

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})
static const grammar_kind SCHEMA = GRAMMAR_JSON_SCHEMA;

static void takes(const char *schema, const char *const *texts) {
  support_takes_all(SCHEMA, schema, texts);
}
static void takes_not(const char *schema, const char *const *texts) {
  support_takes_none(SCHEMA, schema, texts);
}

static void J1_pattern_is_enforced(void **state) {
  (void)state;
  const char *schema =
      "{\"type\":\"object\",\"properties\":{\"foo\":{\"type\":\"string\","
      "\"pattern\":\"^hello there indeed\\\\!$\"}},\"required\":[\"foo\"],"
      "\"additionalProperties\":false}";
  takes(schema, TEXTS("{\"foo\":\"hello there indeed!\"}", "{ \"foo\": \"hello there indeed!\" }"));
  takes_not(schema,
            TEXTS("{\"foo\":\"hello there\"}", "{\"foo\":\"hello there indeed\\\\!\"}", "{}"));
  const char *literal = "{\"type\":\"string\",\"pattern\":\"^hello there indeed\\\\\\\\!$\"}";
  takes(literal, TEXTS("\"hello there indeed\\\\!\""));
  takes_not(literal, TEXTS("\"hello there indeed!\"", "\"x\""));
}

static void J2_patterns_nested_as_on_top(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *good, *bad;
  } cases[] = {
      {"\\\\d{4,4}", "\"in 2024 or so\"", "\"in 202 or so\""},
      {"^\\\\d{4,4}$", "\"2024\"", "\"20245\""},
      {"\\\\S", "\"  x \"", "\"   \""},
      {"^(\\\\d+|imap:[A-Za-z0-9_-]+)$", "\"imap:a_-9\"", "\"imap:\""},
      {"^(\\\\d+|imap:[A-Za-z0-9_-]+)$", "\"77\"", "\"77x\""},
      {"^a|b$", "\"xxb\"", "\"xbx\""},
      {"^[[&~]+$", "\"[&~\"", "\"x\""},
      {"^[^/\\\\s]+/?$", "\"ab/\"", "\"a b\""},
      {"^[\\\\w.-]+$", "\"a_.-\"", "\"\\u00e9\""},
      {"^\\\\u0041\\\\x42\\\\/$", "\"AB/\"", "\"AB\""},
      {"^a.b$",
       "\"a\xc3\xa9"
       "b\"",
       "\"a\\rb\""},
      {"^[^\\\\s]\\\\S\\\\s$", "\"ab\xc2\xa0\"", "\"a\xef\xbb\xbf \""},
      {"^(?<y>[0-9]{2})(?:-x)?$", "\"12-x\"", "\"1-x\""},
  };
  static const char *const around[] = {
      "{\"type\":\"string\",\"pattern\":\"%s\"}",
      "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"%s\"}}",
      "{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"pattern\":\"%s\",\"type\":\"string\"}}}"};
  static const char *const text_around[] = {"%s", "[\"imap\",%s]", "%s"};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (size_t a = 0; a < 3; a++) {
      char schema[256], good[64], bad[64];
      const char *text = a == 1 ? "[%s]" : text_around[a];
      snprintf(schema, sizeof schema, around[a], cases[i].pattern);
      snprintf(good, sizeof good, text, cases[i].good);
      snprintf(bad, sizeof bad, text, cases[i].bad);
      takes(schema, TEXTS(good));
      takes_not(schema, TEXTS(bad));
    }
}

static void J4_additional_properties(void **state) {
  (void)state;
  const char *open = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}";
  const char *yes =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
      "\"additionalProperties\":true}";
  const char *no =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
      "\"additionalProperties\":false}";
  const char *extra = "{\"a\":1,\"b\":[null]}";
  takes(open, TEXTS("{}", "{\"a\":1}", extra));
  takes(yes, TEXTS("{}", "{\"a\":1}", extra));
  takes(no, TEXTS("{}", "{\"a\":1}"));
  takes_not(no, TEXTS(extra, "{\"b\":1}"));
  /* A named key has one spelling, so its type holds. */
  takes_not(open, TEXTS("{\"a\":\"x\"}", "{\"\\u0061\":\"x\"}", "{\"a\":1,\"\\u0061\":\"x\"}"));
}

static void J5_references(void **state) {
  (void)state;
  const char *behind =
      "{\"type\":\"object\",\"properties\":{\"c\":{\"$ref\":\"#/$defs/color\"}},"
      "\"required\":[\"c\"],\"$defs\":{\"color\":{\"enum\":[\"red\",2,null]}}}";
  takes(behind, TEXTS("{\"c\":\"red\"}", "{\"c\":2}", "{\"c\":null}"));
  takes_not(behind, TEXTS("{\"c\":\"blue\"}", "{\"c\":22}", "{\"c\":[]}"));
  const char *tree =
      "{\"type\":\"object\",\"properties\":{\"tree\":{\"type\":\"object\",\"properties\":{\"left\":"
      "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"v\":{\"const\":\"leaf\"}},\"required\":"
      "[\"v\"],\"additionalProperties\":false},{\"type\":\"null\"}]},\"right\":{\"$ref\":"
      "\"#/properties/tree/properties/left/anyOf/0\"}},\"required\":[\"left\",\"right\"],"
      "\"additionalProperties\":false}},\"required\":[\"tree\"],\"additionalProperties\":false}";
  takes(tree, TEXTS("{\"tree\":{\"left\":null,\"right\":{\"v\":\"leaf\"}}}"));
  takes_not(tree, TEXTS("{\"tree\":{\"left\":null,\"right\":null}}"));
  const char *mutual =
      "{\"$ref\":\"#/definitions/a\",\"definitions\":{\"a\":{\"type\":\"object\",\"properties\":"
      "{\"b\":{\"$ref\":\"#/definitions/b\"}},\"additionalProperties\":false},\"b\":{\"type\":"
      "\"array\",\"items\":{\"$ref\":\"#/definitions/a\"}}}}";
  takes(mutual, TEXTS("{}", "{\"b\":[{},{\"b\":[{\"b\":[]}]}]}"));
  takes_not(mutual, TEXTS("{\"b\":[[]]}", "[]"));
  takes("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":1}", TEXTS("[[[[]]]]"));
  takes(
      "{\"$id\":\"https://a.example/s\",\"items\":{\"$ref\":\"https://a.example/s#/$defs/x%20y\"},"
      "\"type\":\"array\",\"$defs\":{\"x y\":{\"$anchor\":\"z\",\"type\":\"null\"}}}",
      TEXTS("[null]"));
  takes("{\"$ref\":\"#z\",\"$defs\":{\"x\":{\"$anchor\":\"z\",\"type\":\"null\"}}}", TEXTS("null"));
  support_refused(SCHEMA, "{\"$ref\":\"http://127.0.0.1:9/s.json\"}", TROIKA_UNSUPPORTED,
                  "schema at $.$ref: \"http://127.0.0.1:9/s.json\" leads out of the schema");
  support_refused(SCHEMA, "{\"items\":{\"$ref\":\"#/$defs/nope\"}}", TROIKA_INVALID,
                  "schema at $.items.$ref: \"#/$defs/nope\" leads to no schema");
  support_refused(SCHEMA, "{\"$ref\":\"#/properties\",\"properties\":{}}", TROIKA_INVALID, "$ref");
  support_refused(SCHEMA, "{\"$ref\":\"#\"}", TROIKA_INVALID, "$");
  support_refused(SCHEMA,
                  "{\"type\":\"object\",\"required\":[\"x\"],\"properties\":{\"x\":{\"$ref\":"
                  "\"#\"}}}",
                  TROIKA_INVALID, "requires itself");
}

static void J7_not_a_schema(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{\"properties\":{\"foo\":\"bar\"}}", "schema at $.properties.foo: must be an object"},
      {"{\"properties\":[]}", "schema at $.properties: must be an object"},
      {"{\"type\":\"strin\"}", "schema at $.type: must be one of"},
      {"{\"type\":[]}", "schema at $.type: must be one of"},
      {"{\"items\":3}", "schema at $.items: must be"},
      {"{\"required\":\"a\"}", "schema at $.required: must be an array of strings"},
      {"{\"type\":\"object\",\"properties\":{\"a b\":{\"enum\":[]}}}",
       "schema at $.properties[\"a b\"].enum: must be an array that is not empty"},
      {"{\"anyOf\":[{},{\"minLength\":-1}]}", "schema at $.anyOf[1].minLength: must be a whole"},
      {"{\"maximum\":\"3\"}", "schema at $.maximum: must be a number"},
      {"{\"multipleOf\":0}", "schema at $.multipleOf: must be more than 0"},
      {"{\"pattern\":3}", "schema at $.pattern: must be a string"},
      {"[]", "schema at $: must be an object"},
      {"", "schema: EOF"},
      {"{\"type\":", "schema: EOF"},
      {"false", "schema at $: false allows nothing"},
      {"{\"type\":\"string\",\"const\":3}", "Unsatisfiable"},
      {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "minimum (3) is greater"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    support_refused(SCHEMA, cases[i][0], TROIKA_INVALID, cases[i][1]);
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

static void J8_hostile_sources(void **state) {
  (void)state;
  refuse_nested(SCHEMA, "", "[", 3000, "", "]", TROIKA_LIMIT, "nested deeper");
  refuse_nested(SCHEMA, "", "{\"items\":", 3000, "{}", "}", TROIKA_LIMIT, "nested deeper");
  refuse_nested(SCHEMA, "{\"const\":", "[", 3000, "", "]", TROIKA_LIMIT, "nested deeper");
  refuse_nested(GRAMMAR_LARK, "start: ", "(", 60000, "", "", TROIKA_LIMIT, "nested deeper");
  refuse_nested(GRAMMAR_LARK, "start: ", "(", 60000, "\"a\"", ")", TROIKA_LIMIT, "at most");
  refuse_nested(GRAMMAR_LARK, "start: A\nA: /a/ & ", "~", 60000, "\"a\"", "", TROIKA_LIMIT,
                "nested");
  refuse_nested(GRAMMAR_REGEX, "", "(", 60000, "a", ")", TROIKA_LIMIT, "nest");
  refuse_nested(GRAMMAR_REGEX, "", ".*", 5000, "", "", TROIKA_LIMIT, "too many repeated parts");
  refuse_nested(GRAMMAR_REGEX, "", ".*", 1000, "", "", TROIKA_LIMIT, "regular expression");
  refuse_nested(GRAMMAR_LARK, "start: /", ".*", 5000, "/", "", TROIKA_LIMIT, "too many repeated");
  refuse_nested(GRAMMAR_LARK, "start: A\nA: ", "(/a/|) ", 5000, "", "", TROIKA_LIMIT, "");
  refuse_nested(SCHEMA, "{\"pattern\":\"", ".*", 5000, "\"}", "", TROIKA_LIMIT, "$.pattern");
  refuse_nested(SCHEMA, "{\"pattern\":\"", ".*", 1000, "\"}", "", TROIKA_LIMIT, "schema");
  refuse_nested(GRAMMAR_LARK, "start: a\n", "a: a\n", 12000, "", "", TROIKA_LIMIT, "definitions");
  refuse_nested(GRAMMAR_REGEX, "", "a", GRAMMAR_SOURCE_MAX + 1, "", "", TROIKA_LIMIT, "at most");
  support_refused(GRAMMAR_REGEX, "(?<=x)+", TROIKA_UNSUPPORTED, "look-around");
  support_refused(GRAMMAR_LARK, "start: /(?<=x)+/", TROIKA_UNSUPPORTED, "look-around");
  support_refused(SCHEMA, "{\"type\":\"string\",\"pattern\":\"(?<=x)+\"}", TROIKA_UNSUPPORTED,
                  "schema at $.pattern: look-around is not supported: \"(?<=x)+\"");
  /* Intersections are multiplied out by the engine: a few are well, many are refused. */
  char *meet = calloc(1, 8192), *at = stpcpy(meet, "{\"allOf\":[{}");
  for (int i = 1; i < 60; i++)
    at += snprintf(at, 100, ",{\"type\":\"string\",\"pattern\":\"a{%d}.*b{%d}\"}", i, i);
  stpcpy(at, "]}");
  support_refused(SCHEMA, meet, TROIKA_LIMIT, "too many patterns meet");
  at = stpcpy(meet, "start: A\nA: /x/");
  for (int i = 1; i < 60; i++) at += snprintf(at, 100, "&/.*a{%d}.*b{%d}.*/", i, i);
  support_refused(GRAMMAR_LARK, meet, TROIKA_LIMIT, "too much");
  free(meet);
  /* Large repetitions are counted, not written out. */
  support_takes_all(GRAMMAR_REGEX, "a{1,100000}{1,100000}", TEXTS("a", "aaaaaaaaaaaaaaaa"));
  support_takes_all(GRAMMAR_LARK, "start: (\"x\" \"y\"){1,1000000}", TEXTS("xy", "xyxy"));
}

/* Each refused keyword with its place; none is passed over. */
static void refused_keywords_have_a_place(void **state) {
  (void)state;
  static const char *const names[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependencies",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "uniqueItems",
                                      "propertyNames",
                                      "disallow",
                                      "extends"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char source[200], word[100];
    snprintf(source, sizeof source,
             "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"%s\":{\"a\":\"b\"}}}", names[i]);
    snprintf(word, sizeof word, "keyword \"%s\" at $.items is not supported", names[i]);
    support_refused(SCHEMA, source, TROIKA_UNSUPPORTED, word);
  }
  static const char *const more[][2] = {
      {"{\"$defs\":{\"a\":{\"not\":{}}},\"$ref\":\"#/$defs/a\"}", "\"not\" at $.$defs.a is not"},
      {"{\"format\":\"iri\"}", "schema at $.format: \"iri\" is not supported"},
      {"{\"format\":\"unknown\"}", "schema at $.format: \"unknown\" is not supported"},
      {"{\"pattern\":\"\\\\bfoo\"}", "schema at $.pattern: lookarounds not"},
      {"{\"pattern\":\"(a)\\\\1\"}", "schema at $.pattern"},
      {"{\"pattern\":\"a(?!b)\"}", "look-around"},
      {"{\"pattern\":\"(?i)a\"}", "is no group"},
      {"{\"pattern\":\"\\\\Aa\"}", "means nothing"},
      {"{\"pattern\":\"a^b\"}", "schema at $.pattern"},
      {"{\"pattern\":\"a\\\\\"}", "a backslash at the end"},
      {"{\"patternProperties\":{\"(?=a)\":{}}}", "schema at $.patternProperties[\"(?=a)\"]"},
      {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "schema at $.oneOf: cannot"},
      {"{\"type\":\"object\",\"minProperties\":2}", "schema at $.minProperties"},
      {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"maxProperties\":2}", "$.maxProperties"},
      {"{\"const\":18014398509481985}", "schema at $.const"},
      {"{\"const\":\"\\u0001\"}", "schema at $.const: character U+0001"},
      {"{\"items\":{\"$id\":\"b\"}}", "schema at $.items.$id"},
      {"{\"allOf\":[{\"multipleOf\":3},{\"multipleOf\":5}]}", "$.allOf[1].multipleOf"},
      {"{\"x-guidance\":{\"lenient\":true},\"not\":{}}", "\"not\" at $"},
  };
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
    support_refused(SCHEMA, more[i][0], TROIKA_UNSUPPORTED, more[i][1]);
}

static void annotations_and_unknown_names_pass(void **state) {
  (void)state;
  const char *schema =
      "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"$id\":\"s\",\"title\":\"t\","
      "\"description\":\"d\",\"$comment\":\"c\",\"default\":{\"not\":1},\"examples\":[{\"if\":1}],"
      "\"deprecated\":true,\"readOnly\":true,\"writeOnly\":false,\"x-order\":[1],\"foo\":{\"not\":"
      "1},"
      "\"type\":\"object\",\"properties\":{\"not\":{\"type\":\"integer\",\"title\":\"T\"},"
      "\"x-guidance\":{\"type\":\"null\"}},\"required\":[\"not\"],\"additionalProperties\":false,"
      "\"x-guidance\":{\"whitespace_pattern\":\" *\",\"lenient\":true},\"uniqueItems\":false,"
      "\"propertyNames\":{\"type\":\"string\"}}";
  takes(schema, TEXTS("{\"not\":3}", "{\"not\":3,\"x-guidance\":null}"));
  takes_not(schema, TEXTS("{}", "{\"not\":\"3\"}",
                          "{                                             \"not\":3}"));
}

static void numbers_and_older_drafts(void **state) {
  (void)state;
  takes("{\"type\":\"integer\",\"format\":\"int64\",\"minimum\":0}", TEXTS("0", "999999999999999"));
  takes("{\"type\":\"integer\",\"maximum\":18446744073709551615,\"minimum\":0}", TEXTS("0", "77"));
  takes_not("{\"type\":\"integer\",\"format\":\"int8\"}", TEXTS("128", "-129", "1.5", "1e1"));
  takes("{\"type\":\"integer\",\"format\":\"int8\"}", TEXTS("127", "-128"));
  takes("{\"type\":\"number\",\"minimum\":1,\"exclusiveMinimum\":true}", TEXTS("1.5", "2"));
  takes_not("{\"type\":\"number\",\"minimum\":1,\"exclusiveMinimum\":true}", TEXTS("1", "1.0"));
  takes("{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false,\"type\":\"array\"}",
        TEXTS("[]", "[1]"));
  takes_not("{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false,\"type\":\"array\"}",
            TEXTS("[1,2]", "[null]"));
  takes_not("{\"prefixItems\":[{\"type\":\"null\"}],\"additionalItems\":false,\"type\":\"array\"}",
            TEXTS("[1]"));
  takes("{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"const\":5}", TEXTS("5"));
  takes_not("{\"$schema\":\"http://json-schema.org/draft-04/schema#\",\"const\":5}", TEXTS("6"));
  takes(
      "{\"type\":\"object\",\"properties\":{\"a\":{}},\"maxProperties\":1,\"minProperties\":1,"
      "\"additionalProperties\":false}",
      TEXTS("{\"a\":null}"));
  takes(
      "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"number\",\"multipleOf\":0.01},"
      "{\"type\":\"integer\",\"multipleOf\":5}],\"items\":false}",
      TEXTS("[0.07,15]", "[]"));
  takes("{\"required\":[\"a\"]}", TEXTS("{\"a\":1}"));
  takes_not("{\"required\":[\"a\"]}", TEXTS("1", "[]", "{}"));
}

static void formats(void **state) {
  (void)state;
  static const struct {
    const char *name, *good, *bad;
  } cases[] = {
      {"date", "\"2024-02-29\"", "\"2023-02-29\""},
      {"date", "\"2000-02-29\"", "\"1900-02-29\""},
      {"date", "\"2023-04-30\"", "\"2023-04-31\""},
      {"date", "\"0001-01-01\"", "\"\""},
      {"time", "\"23:59:59Z\"", "\"23:59:60Z\""},
      {"time", "\"00:00:00.123+02:00\"", "\"00:00:00\""},
      {"date-time", "\"2024-02-29T12:00:00Z\"", "\"2024-02-30T12:00:00Z\""},
      {"email", "\"a.b@c.example\"", "\"a.b\""},
      {"hostname", "\"a-b.example\"", "\"-a\""},
      {"ipv4", "\"255.1.0.19\"", "\"256.1.0.19\""},
      {"ipv6", "\"fe80::1\"", "\"fe80:::1\""},
      {"uuid", "\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567\""},
      {"uri", "\"https://a.example/b?c#d\"", "\"a b\""},
      {"duration", "\"P1DT2H\"", "\"P\""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char schema[100];
    snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", cases[i].name);
    takes(schema, TEXTS(cases[i].good));
    takes_not(schema, TEXTS(cases[i].bad));
  }
  takes("{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^19\"}", TEXTS("\"1999-01-01\""));
  takes_not("{\"type\":\"string\",\"format\":\"date\",\"pattern\":\"^19\"}",
            TEXTS("\"2000-01-01\""));
}

static void json_object(void **state) {
  (void)state;
  support_takes_all(
      GRAMMAR_JSON_OBJECT, "",
      TEXTS("{}", "{\"a\":[1,{\"b\":null}],\"\":\"\"}", "{\n  \"a\": -1.5e3,\n  \"b\": true\n}"));
  support_takes_none(GRAMMAR_JSON_OBJECT, "",
                     TEXTS("[]", "1", "null", "\"a\"", " {}", "{} ", "{\"a\":01}", "{\"a\":1,}",
                           "{a:1}", "{\"a\":\""));
}

static void regex_matches_the_whole(void **state) {
  (void)state;
  support_takes_all(GRAMMAR_REGEX, "(yes|no)[!?]*", TEXTS("yes", "no", "yes!?"));
  support_takes_none(GRAMMAR_REGEX, "(yes|no)[!?]*", TEXTS("", "ye", "yes sir", " yes"));
  support_takes_all(GRAMMAR_REGEX, "^a|bc$", TEXTS("a", "bc"));
  support_takes_none(GRAMMAR_REGEX, "^a|bc$", TEXTS("ax", "xbc"));
  support_takes_all(GRAMMAR_REGEX, "a*", TEXTS("", "aaa"));
  support_takes_all(GRAMMAR_REGEX, "", TEXTS(""));
  support_takes_none(GRAMMAR_REGEX, "", TEXTS("a"));
  support_takes_all(GRAMMAR_REGEX, "/a/b\n//", TEXTS("/a/b\n//"));
  support_takes_all(GRAMMAR_REGEX, "\\p{Lu}\\d\xf0\x9f\x98\x80",
                    TEXTS("\xc3\x84"
                          "5\xf0\x9f\x98\x80"));
  support_refused(GRAMMAR_REGEX, "[a-z", TROIKA_INVALID, "unclosed character class");
  support_refused(GRAMMAR_REGEX, "abc\\", TROIKA_INVALID, "backslash");
  support_refused(GRAMMAR_REGEX, "a^b", TROIKA_UNSUPPORTED, "lookarounds");
  support_refused(GRAMMAR_REGEX, "[a&&b]", TROIKA_INVALID, "no text fits");
}

static void lark(void **state) {
  (void)state;
  const char *sums =
      "start: sum\n"
      "sum: product (\"+\" product)* // no minus\n"
      "product: NUMBER | \"(\" sum \")\"\n"
      "NUMBER: /[0-9]+/ & ~/0[0-9]+/\n"
      "%import common.WS_INLINE\n"
      "%ignore WS_INLINE\n";
  support_takes_all(GRAMMAR_LARK, sums, TEXTS("1", "1+(2+30)", "1 + 2"));
  support_takes_none(GRAMMAR_LARK, sums, TEXTS("1+", "01", "(1", "1-2", ""));
  static const char *const cases[][2] = {
      {"start: %json {\"type\":\"object\",\"x-guidance\":{\"lenient\":true}}", "%json"},
      {"start: <|im_end|>", "special token"},
      {"start: <[1-5]>", "special token"},
      {"start: @other", "another grammar"},
      {"%llguidance {\"allow_invalid_utf8\":true}\nstart: \"a\"", "line 1: %llguidance"},
      {"start: a\na[stop=\"x\"]: /.*/", "line 2: an attribute"},
      {"start: a\na[max_tokens=3]: /.*/", "line 2: an attribute"},
      {"start: %lark { start: \"a\" }", "%lark"},
      {"start: a::_\na::_: \"x\" %if true", "::"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    support_refused(GRAMMAR_LARK, cases[i][0], TROIKA_UNSUPPORTED, cases[i][1]);
  support_refused(GRAMMAR_LARK, "", TROIKA_INVALID, "no start rule");
  support_refused(GRAMMAR_LARK, "start: x", TROIKA_INVALID, "unknown name");
  support_refused(GRAMMAR_LARK, "start: \"a", TROIKA_INVALID, "lexer error");
  support_refused(GRAMMAR_LARK, "start: start \"a\"", TROIKA_INVALID, "no text fits");
}

static void constants_walk_exactly(void **state) {
  (void)state;
  for (support_model m = SUPPORT_SMOLLM2; m <= SUPPORT_GEMMA3; m++)
    for (uint64_t seed = 1; seed <= 20; seed++) {
      grammar *g = support_grammar(
          m, SCHEMA,
          "{\"enum\":[\"red \\u00e9\\\\\",\"green\",[1,{\"a\":true}],-0.5,\"\\u4e2d\"]}");
      static const char *const all[] = {"\"red \xc3\xa9\\\\\"", "\"green\"", "-0.5",
                                        "\"\xe4\xb8\xad\""};
      support_walk walk;
      support_walk_run(m, g, 1000, seed, &walk);
      assert_true(walk.ended);
      bool known = walk.text.data[0] == '[';
      for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        known |= bytes_equal_string(bytes_of(walk.text.data, walk.text.len), all[i]) ||
                 (all[i][0] == '-' && strtod(walk.text.data, NULL) == -0.5);
      if (!known) fail_msg("%s", walk.text.data);
      bytes_free(&walk.text);
      grammar_destroy(&g);
    }
}

/* ---- states ---- */

static int32_t token_of(const tokenizer *t, const char *text) {
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++)
    if (bytes_equal_string(tokenizer_piece(t, (int32_t)i, false), text)) return (int32_t)i;
  fail_msg("no token %s", text);
  return -1;
}

static void ends_and_states(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_SMOLLM2);
  uint32_t words = grammar_mask_words(support_vocab(SUPPORT_SMOLLM2));
  assert_int_equal(words, (tokenizer_vocab_size(t) + 31) / 32);
  uint32_t *bits = malloc(4 * (size_t)words), *again = malloc(4 * (size_t)words);
  int32_t x = token_of(t, "x"), y = token_of(t, "y"), end = tokenizer_eos(t);
  grammar *g = support_grammar(SUPPORT_SMOLLM2, GRAMMAR_REGEX, "xy?"), *copy = NULL;
  assert_false(grammar_is_complete(g) || grammar_is_over(g));
  assert_int_equal(grammar_accept(g, end), TROIKA_INVALID);
  assert_int_equal(grammar_accept(g, y), TROIKA_INVALID);
  assert_int_equal(grammar_accept(g, -1), TROIKA_INVALID);
  assert_int_equal(grammar_accept(g, INT32_MAX), TROIKA_INVALID);
  assert_int_equal(grammar_accept(g, x), TROIKA_OK);
  assert_true(grammar_is_complete(g) && !grammar_is_over(g));
  assert_int_equal(grammar_clone(g, &copy, NULL), TROIKA_OK);
  assert_int_equal(grammar_accept(g, y), TROIKA_OK);
  assert_true(grammar_is_complete(g) && grammar_is_over(g));
  assert_int_equal(grammar_accept(g, y), TROIKA_INVALID);
  assert_int_equal(grammar_mask(g, bits), TROIKA_OK);
  uint32_t set = 0, ends = 0;
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    set += bits[i / 32] >> (i % 32) & 1;
    ends += tokenizer_is_end(t, (int32_t)i);
  }
  assert_int_equal(set, ends);
  assert_int_equal(grammar_accept(g, end), TROIKA_OK);
  assert_int_equal(grammar_accept(g, end), TROIKA_INVALID);
  assert_true(grammar_is_complete(g) && grammar_is_over(g));
  assert_int_equal(grammar_mask(g, again), TROIKA_OK);
  assert_memory_equal(bits, again, 4 * (size_t)words);
  /* The copy is where it was. */
  assert_true(grammar_is_complete(copy) && !grammar_is_over(copy));
  assert_int_equal(grammar_mask(copy, bits), TROIKA_OK);
  assert_true(bits[y / 32] >> (y % 32) & 1 && !(bits[x / 32] >> (x % 32) & 1));
  assert_int_equal(grammar_accept(copy, y), TROIKA_OK);
  assert_string_equal(grammar_failure(copy), "");
  grammar_destroy(&copy);
  grammar_destroy(&g);
  grammar_destroy(&g);
  free(bits);
  free(again);
}

/* A step that would take too long is the end of that answer, not of the process; and it ends the
 * grammar for good. */
static void a_step_too_large_fails_cleanly(void **state) {
  (void)state;
  const tokenizer *t = support_tokenizer(SUPPORT_SMOLLM2);
  uint32_t *bits = malloc(4 * (size_t)grammar_mask_words(support_vocab(SUPPORT_SMOLLM2)));
  grammar *g = support_grammar(SUPPORT_SMOLLM2, GRAMMAR_REGEX, "(a|b)*a(a|b){40}c");
  int32_t a = token_of(t, "a"), b = token_of(t, "b");
  uint64_t random = 1;
  troika_status status = TROIKA_OK;
  double most = 0;
  for (int i = 0; i < 100000 && status == TROIKA_OK; i++) {
    double began = support_cpu_seconds();
    status = grammar_mask(g, bits);
    if (status == TROIKA_OK) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      status = grammar_accept(g, random >> 63 ? a : b);
    }
    double took = support_cpu_seconds() - began;
    if (took > most) most = took;
  }
  print_message("steps take at most %.1f ms; %s\n", 1e3 * most, grammar_failure(g));
  assert_int_equal(status, TROIKA_LIMIT);
  assert_true(strlen(grammar_failure(g)) > 0);
  assert_true(most < 0.1);
  assert_int_equal(grammar_mask(g, bits), TROIKA_LIMIT);
  for (uint32_t i = 0; i < grammar_mask_words(support_vocab(SUPPORT_SMOLLM2)); i++)
    assert_int_equal(bits[i], 0);
  assert_int_equal(grammar_accept(g, a), TROIKA_LIMIT);
  assert_false(grammar_is_complete(g) || grammar_is_over(g));
  grammar_destroy(&g);
  free(bits);
}

static void the_same_tokens_give_the_same_masks(void **state) {
  (void)state;
  const char *source =
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"
      "\"number\"}},\"required\":[\"a\",\"b\"]}";
  for (uint64_t seed = 1; seed <= 6; seed++) {
    support_walk one, two;
    grammar *g = support_grammar(SUPPORT_SMOLLM2, SCHEMA, source);
    grammar *h = support_grammar(SUPPORT_SMOLLM2, SCHEMA, source);
    support_walk_run(SUPPORT_SMOLLM2, g, 30, seed, &one); /* the draw depends on every mask */
    support_walk_run(SUPPORT_SMOLLM2, h, 30, seed, &two);
    assert_int_equal(one.steps, two.steps);
    assert_string_equal(one.text.data, two.text.data);
    bytes_free(&one.text);
    bytes_free(&two.text);
    grammar_destroy(&g);
    grammar_destroy(&h);
  }
}

/* ---- threads, stacks, odd vocabularies ---- */

static void *walk_on_a_thread(void *seed) {
  static const char *const sources[] = {"{\"type\":\"object\"}",
                                        "{\"type\":\"string\",\"pattern\":\".*a.{1000}b\"}",
                                        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                                        "\"string\",\"pattern\":\"(((a+b?)*c)*d)*\"}"
                                        "},\"required\":[\"a\"]}"};
  const tokenizer *t = support_tokenizer(SUPPORT_SMOLLM2);
  const grammar_vocab *v = support_vocab(SUPPORT_SMOLLM2);
  uint32_t *bits = malloc(4 * (size_t)grammar_mask_words(v));
  uint64_t random = (uint64_t)(uintptr_t)seed;
  for (size_t s = 0; s < 3; s++) {
    grammar *g = NULL;
    if (grammar_create(v, SCHEMA, bytes_of_string(sources[s]), &g, NULL) != TROIKA_OK) return NULL;
    for (int i = 0; i < 40 && !grammar_is_over(g); i++) {
      if (grammar_mask(g, bits) != TROIKA_OK) break;
      int32_t pick = -1;
      for (uint32_t k = 0, seen = 0; k < tokenizer_vocab_size(t); k++) {
        if (!(bits[k / 32] >> (k % 32) & 1)) continue;
        random = random * 6364136223846793005u + 1442695040888963407u;
        if ((random >> 33) % ++seen == 0) pick = (int32_t)k;
      }
      if (pick < 0 || grammar_accept(g, pick) != TROIKA_OK) return NULL;
    }
    grammar_destroy(&g);
  }
  free(bits);
  return seed;
}

/* Also on stacks that are much smaller than the runtime thread's. */
static void threads_share_a_vocabulary(void **state) {
  (void)state;
  support_vocab(SUPPORT_SMOLLM2);
  pthread_t threads[3];
  pthread_attr_t attr;
  assert_int_equal(pthread_attr_init(&attr), 0);
  assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
  for (uintptr_t i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&threads[i], &attr, walk_on_a_thread, (void *)(i + 1)), 0);
  pthread_attr_destroy(&attr);
  for (int i = 0; i < 3; i++) {
    void *result;
    assert_int_equal(pthread_join(threads[i], &result), 0);
    assert_non_null(result);
  }
}

static void grammars_outlive_their_vocabulary(void **state) {
  (void)state;
  for (int spm = 0; spm < 2; spm++) {
    tokenizer *t = tiny_tokenizer(spm ? NULL : "gpt2");
    grammar_vocab *v = NULL;
    grammar *g = NULL;
    troika_error err = {0};
    assert_non_null(t);
    assert_int_equal(grammar_vocab_create(t, &v, &err), TROIKA_OK);
    uint32_t *bits = malloc(4 * (size_t)grammar_mask_words(v));
    assert_int_equal(grammar_create(v, GRAMMAR_REGEX, bytes_of_string("hello \xc3\xa9"), &g, NULL),
                     TROIKA_OK);
    grammar_vocab_destroy(&v);
    grammar_vocab_destroy(&v);
    bytes_buffer text;
    bytes_init(&text, 100);
    while (!grammar_is_over(g)) {
      int32_t pick = -1;
      assert_int_equal(grammar_mask(g, bits), TROIKA_OK);
      for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++)
        if (bits[i / 32] >> (i % 32) & 1) pick = (int32_t)i;
      assert_int_equal(grammar_accept(g, pick), TROIKA_OK);
      bytes_view piece = tokenizer_piece(t, pick, false);
      bytes_append(&text, piece.ptr, piece.len);
    }
    assert_string_equal(text.data, "hello \xc3\xa9");
    bytes_free(&text);
    free(bits);
    grammar_destroy(&g);
    tokenizer_destroy(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(J1_pattern_is_enforced),
                                     cmocka_unit_test(J2_patterns_nested_as_on_top),
                                     cmocka_unit_test(J4_additional_properties),
                                     cmocka_unit_test(J5_references),
                                     cmocka_unit_test(J7_not_a_schema),
                                     cmocka_unit_test(J8_hostile_sources),
                                     cmocka_unit_test(refused_keywords_have_a_place),
                                     cmocka_unit_test(annotations_and_unknown_names_pass),
                                     cmocka_unit_test(numbers_and_older_drafts),
                                     cmocka_unit_test(formats),
                                     cmocka_unit_test(json_object),
                                     cmocka_unit_test(regex_matches_the_whole),
                                     cmocka_unit_test(lark),
                                     cmocka_unit_test(constants_walk_exactly),
                                     cmocka_unit_test(ends_and_states),
                                     cmocka_unit_test(a_step_too_large_fails_cleanly),
                                     cmocka_unit_test(the_same_tokens_give_the_same_masks),
                                     cmocka_unit_test(threads_share_a_vocabulary),
                                     cmocka_unit_test(grammars_outlive_their_vocabulary)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
