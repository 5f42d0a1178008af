/* SPDX-License-Identifier: Apache-2.0 */
/* Answers held to a grammar, and several answers to one prompt, through the public interface.
 *
 * ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "runtime/support_engine.h"

#define ASK(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"

static engine e;

static int open_engine(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .parallel = 4, .context = 1024};
  e = engine_open(SMOLLM2, &o);
  return 0;
}

static int close_engine(void **state) {
  (void)state;
  engine_close(&e);
  return 0;
}

enum { FREE = -1 };
static troika_grammar *made[64]; /* freed at the end of each test */
static unsigned made_n;

static int free_grammars(void **state) {
  (void)state;
  while (made_n) troika_grammar_destroy(&made[--made_n]);
  return 0;
}

static const troika_grammar *make(int kind, const char *source) {
  troika_error err = {0};
  if (kind == FREE) return NULL;
  if (troika_grammar_create(e.model, (troika_grammar_kind)kind, source, source ? strlen(source) : 0,
                            &made[made_n], &err))
    fail_msg("%s", err.text);
  return made[made_n++];
}

static troika_request ask(const char *text, int32_t *tokens, uint32_t capacity, int kind,
                          const char *source) {
  troika_request q;
  troika_request_init(&q);
  q.prompt = tokens;
  q.prompt_n = engine_tokens(&e, text, tokens, capacity);
  q.temperature = 0;
  q.max_tokens = 200;
  q.grammar = make(kind, source);
  return q;
}

/* A grammar of one text gives that text, and the answer ends with it. */
static void a_regex_is_matched_to_its_end(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a;
  static const char wanted[] = "The quick br\xc3\xb6wn \xf0\x9f\x98\x80 fox";
  troika_request q = ask(ASK("Hi!"), tokens, 64, TROIKA_GRAMMAR_REGEX, wanted);
  engine_ask(&e, &q, &a);
  assert_int_equal(a.end.finish, TROIKA_FINISH_STOP);
  assert_int_equal(a.end.completion_tokens, a.n);
  assert_int_equal(a.text_len, strlen(wanted));
  assert_memory_equal(a.text, wanted, a.text_len);
  /* Cut short it is a prefix, with whole characters. */
  for (uint32_t n = 1; n < a.n; n++) {
    static engine_answer cut;
    q.max_tokens = n;
    engine_ask(&e, &q, &cut);
    assert_int_equal(cut.end.finish, TROIKA_FINISH_LENGTH);
    assert_int_equal(cut.end.completion_tokens, n);
    assert_memory_equal(cut.tokens, a.tokens, n * sizeof *a.tokens);
  }
}

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":120},\"kind\":{\"enum\":[\"cat\","
    "\"dog\"]}},"
    "\"required\":[\"name\",\"age\",\"kind\"],\"additionalProperties\":false}";

static void check_animal(const engine_answer *a) {
  json_t *root = json_loadb(a->text, a->text_len, 0, NULL);
  if (!root) fail_msg("no JSON: %.*s", (int)a->text_len, a->text);
  json_int_t age = json_integer_value(json_object_get(root, "age"));
  const char *kind = json_string_value(json_object_get(root, "kind"));
  assert_int_equal(json_object_size(root), 3);
  assert_true(json_is_string(json_object_get(root, "name")));
  assert_true(json_is_integer(json_object_get(root, "age")) && age >= 0 && age <= 120);
  assert_true(!strcmp(kind, "cat") || !strcmp(kind, "dog"));
  json_decref(root);
}

static void a_schema_is_kept_hot_and_cold(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a, b;
  for (int i = 0; i < 12; i++) {
    troika_request q =
        ask(ASK("Describe a pet as JSON."), tokens, 64, TROIKA_GRAMMAR_JSON_SCHEMA, schema);
    q.temperature = i ? 1.5f : 0;
    q.seeded = true;
    q.seed = (uint64_t)i;
    engine_ask(&e, &q, &a);
    assert_int_equal(a.end.finish, TROIKA_FINISH_STOP);
    check_animal(&a);
    engine_ask(&e, &q, &b);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.tokens, b.tokens, a.n * sizeof *a.tokens);
  }
}

static void any_object(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a;
  troika_request q = ask(ASK("A pet as JSON."), tokens, 64, TROIKA_GRAMMAR_JSON_OBJECT, NULL);
  q.max_tokens = 300;
  engine_ask(&e, &q, &a);
  json_t *root = json_loadb(a.text, a.text_len, 0, NULL);
  assert_true(a.end.finish == TROIKA_FINISH_LENGTH || json_is_object(root));
  assert_true(a.text[0] == '{');
  json_decref(root);
}

/* What holds for free answers holds for these: company changes nothing. */
static void same_in_company(void **state) {
  (void)state;
  int32_t tokens[4][64];
  static engine_answer alone, a[4];
  troika_stream *s[4];
  troika_request q =
      ask(ASK("Describe a pet as JSON."), tokens[0], 64, TROIKA_GRAMMAR_JSON_SCHEMA, schema);
  engine_ask(&e, &q, &alone);
  for (int i = 0; i < 4; i++) {
    troika_request other = ask(ASK("Tell me a story."), tokens[i], 64, FREE, NULL);
    if (i == 2)
      q = ask(ASK("Describe a pet as JSON."), tokens[i], 64, TROIKA_GRAMMAR_JSON_SCHEMA, schema);
    if (i == 3)
      other = ask(ASK("Which?"), tokens[i], 64, TROIKA_GRAMMAR_LARK,
                  "start: \"yes\" | \"no\" \" \" /[a-z]{3}/");
    s[i] = engine_stream(&e);
    assert_int_equal(troika_stream_submit(s[i], i == 2 ? &q : &other, NULL), TROIKA_OK);
  }
  for (int i = 0; i < 4; i++) {
    engine_read(s[i], &a[i]);
    troika_stream_close(&s[i]);
  }
  assert_int_equal(a[2].n, alone.n);
  assert_memory_equal(a[2].tokens, alone.tokens, alone.n * sizeof *alone.tokens);
  assert_true(!strncmp(a[3].text, "yes", 3) || !strncmp(a[3].text, "no ", 3));
}

static void refused(int kind, const char *source, const char *words) {
  troika_error err = {0};
  troika_grammar *g = NULL;
  troika_status status =
      troika_grammar_create(e.model, (troika_grammar_kind)kind, source, strlen(source), &g, &err);
  assert_true(status != TROIKA_OK && !g);
  if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void wrong_grammars_are_refused(void **state) {
  (void)state;
  refused(TROIKA_GRAMMAR_REGEX, "(?<=x)+", "");
  refused(TROIKA_GRAMMAR_REGEX, "(", "");
  refused(TROIKA_GRAMMAR_LARK, "begin: \"a\"", "start");
  refused(TROIKA_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"foo\":\"bar\"}}", "foo");
  refused(TROIKA_GRAMMAR_JSON_SCHEMA, "{\"not\":{}}", "not");
  refused(9, "", "grammar");
}

/* A bias against all that the grammar allows leaves nothing: an error that says so, and the engine
 * goes on. */
static void nothing_is_left(void **state) {
  (void)state;
  int32_t tokens[64], letter[8];
  static engine_answer a;
  troika_request q = ask(ASK("Hi!"), tokens, 64, TROIKA_GRAMMAR_REGEX, "x");
  troika_token_bias bias[1];
  assert_int_equal(engine_tokens(&e, "x", letter, 8), 1);
  bias[0] = (troika_token_bias){letter[0], -100};
  q.bias = bias;
  q.bias_n = 1;
  engine_ask(&e, &q, &a);
  assert_int_equal(a.end.finish, TROIKA_FINISH_ERROR);
  assert_non_null(strstr(a.error, "logit_bias"));
  q.bias_n = 0;
  engine_ask(&e, &q, &a);
  assert_memory_equal(a.text, "x", 1);
}

/* Each step of an ambiguous grammar takes longer than the one before, on the thread that all share:
 * it ends with an error after a bounded time. */
static void costly_steps_end_the_answer(void **state) {
  (void)state;
  int32_t tokens[64], letter[8];
  static engine_answer a;
  troika_request q = ask(ASK("Hi!"), tokens, 64, TROIKA_GRAMMAR_LARK,
                         "start: s\ns: s s | s s s | \"a\" | \"a\" s | s \"a\"");
  troika_token_bias bias[1];
  assert_int_equal(engine_tokens(&e, "a", letter, 8), 1);
  bias[0] = (troika_token_bias){letter[0], 60};
  q.bias = bias;
  q.bias_n = 1;
  q.max_tokens = 900;
  engine_ask(&e, &q, &a);
  assert_int_equal(a.end.finish, TROIKA_FINISH_ERROR);
  assert_int_equal(a.end.status, TROIKA_LIMIT);
  assert_non_null(strstr(a.error, "too"));
  printf("  after %u tokens: %s\n", a.n, a.error);
}

/* The prompt of several choices is computed once, and each is what it would be alone. */
static void choices_share_their_prompt(void **state) {
  (void)state;
  enum { N = 3 };
  static int32_t tokens[400];
  static char text[4096];
  static engine_answer a[N], alone;
  troika_stream *s[N];
  size_t len = (size_t)snprintf(text, sizeof text, "<|im_start|>user\n");
  for (int i = 0; i < 55; i++)
    len += (size_t)snprintf(text + len, sizeof text - len, "%d and then ", i * 7);
  snprintf(text + len, sizeof text - len, "what?<|im_end|>\n<|im_start|>assistant\n");
  troika_request q = ask(text, tokens, 400, FREE, NULL);
  assert_in_range(q.prompt_n, 300, 400);
  q.temperature = 1;
  q.seeded = true;
  q.seed = 11;
  q.max_tokens = 12;
  for (uint32_t i = 0; i < N; i++) {
    s[i] = engine_stream(&e);
    q.choice = i;
    q.share = i ? s[0] : NULL;
    assert_int_equal(troika_stream_submit(s[i], &q, NULL), TROIKA_OK);
  }
  for (uint32_t i = 0; i < N; i++) engine_read(s[i], &a[i]);
  for (uint32_t i = N; i-- > 0;) troika_stream_close(&s[i]);
  assert_int_equal(a[0].end.cached_tokens, 0);
  for (uint32_t i = 1; i < N; i++)
    assert_in_range(a[i].end.cached_tokens, q.prompt_n - 33, q.prompt_n - 1);
  assert_true(a[0].n != a[1].n || memcmp(a[0].tokens, a[1].tokens, a[0].n * sizeof *a[0].tokens));
  q.choice = 2;
  q.share = NULL;
  q.no_prefix_cache = true;
  engine_ask(&e, &q, &alone);
  assert_int_equal(alone.n, a[2].n);
  assert_memory_equal(alone.tokens, a[2].tokens, alone.n * sizeof *alone.tokens);
}

/* Whatever becomes of the one that computes the prompt, the others get their answer. */
static void a_cancelled_first_choice_holds_nobody_up(void **state) {
  (void)state;
  int32_t tokens[64];
  static engine_answer a;
  troika_stream *s[3];
  troika_request q = ask(ASK("What now?"), tokens, 64, FREE, NULL);
  q.max_tokens = 4;
  q.no_prefix_cache = true;
  for (int i = 0; i < 3; i++) {
    s[i] = engine_stream(&e);
    q.share = i ? s[0] : NULL;
    assert_int_equal(troika_stream_submit(s[i], &q, NULL), TROIKA_OK);
  }
  troika_stream_cancel(s[0]);
  troika_stream_cancel(s[2]);
  engine_read(s[1], &a);
  assert_int_equal(a.end.finish, TROIKA_FINISH_LENGTH);
  engine_read(s[2], &a);
  assert_int_equal(a.end.finish, TROIKA_FINISH_CANCELLED);
  for (int i = 0; i < 3; i++) troika_stream_close(&s[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_regex_is_matched_to_its_end, free_grammars),
      cmocka_unit_test_teardown(a_schema_is_kept_hot_and_cold, free_grammars),
      cmocka_unit_test_teardown(any_object, free_grammars),
      cmocka_unit_test_teardown(same_in_company, free_grammars),
      cmocka_unit_test_teardown(wrong_grammars_are_refused, free_grammars),
      cmocka_unit_test_teardown(nothing_is_left, free_grammars),
      cmocka_unit_test_teardown(costly_steps_end_the_answer, free_grammars),
      cmocka_unit_test_teardown(choices_share_their_prompt, free_grammars),
      cmocka_unit_test_teardown(a_cancelled_first_choice_holds_nobody_up, free_grammars),
  };
  return cmocka_run_group_tests(tests, open_engine, close_engine);
}
