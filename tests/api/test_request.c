/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: what is taken, how it arrives, and what is said to the others. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/json.h"
#include "api/request.h"

enum { VOCAB = 1000 };
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void take(const char *body, api_endpoint endpoint, api_request *r) {
  api_failure f;
  if (!api_request_parse(bytes_of_string(body), endpoint, VOCAB, r, &f))
    fail_msg("%s: %s", body, f.message);
}

static void refuse(const char *body, api_endpoint endpoint, const char *param, const char *words) {
  api_request r;
  api_failure f;
  if (api_request_parse(bytes_of_string(body), endpoint, VOCAB, &r, &f))
    fail_msg("taken: %s", body);
  assert_int_equal(f.status, 400);
  if (strcmp(f.param, param)) fail_msg("%s: param is \"%s\", not \"%s\"", body, f.param, param);
  if (!strstr(f.message, words)) fail_msg("%s: \"%s\" does not say \"%s\"", body, f.message, words);
}

static void test_defaults(void **state) {
  (void)state;
  api_request r;
  take("{" USER "}", API_CHAT, &r);
  assert_true(r.engine.temperature == 1 && r.engine.top_p == 1 && r.engine.min_p == 0);
  assert_true(r.engine.max_tokens == TROIKA_MAX_TOKENS_CONTEXT && !r.engine.seeded && !r.stream);
  assert_int_equal(r.engine.top_k, 0);
  api_request_free(&r);
  take("{\"prompt\":\"a\"}", API_COMPLETIONS, &r);
  assert_int_equal(r.engine.max_tokens, 16);
  api_request_free(&r);
}

static void test_all_fields(void **state) {
  (void)state;
  api_request r;
  take("{" USER
       ",\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.25,\"repeat_penalty\":1.5,"
       "\"frequency_penalty\":-2,\"presence_penalty\":2,\"seed\":42,\"stop\":[\"a\",\"\\u00e9\"],"
       "\"max_completion_tokens\":7,\"max_tokens\":9,\"stream\":true,\"stream_options\":{\"include_"
       "usage\":true},"
       "\"logprobs\":true,\"top_logprobs\":20,\"logit_bias\":{\"0\":-100,\"999\":1.5},\"ignore_"
       "eos\":true}",
       API_CHAT, &r);
  const troika_request *e = &r.engine;
  assert_true(e->temperature == 0 && e->top_p == 0.5f && e->min_p == 0.25f &&
              e->repeat_penalty == 1.5f);
  assert_true(e->frequency_penalty == -2 && e->presence_penalty == 2);
  assert_int_equal(e->top_k, 40);
  assert_true(e->seeded && e->seed == 42 && e->ignore_eos && e->logprobs && r.stream &&
              r.include_usage);
  assert_int_equal(e->max_tokens, 7);
  assert_int_equal(e->stop_n, 2);
  assert_string_equal(e->stop[1], "\xc3\xa9");
  assert_int_equal(e->top_logprobs, 20);
  assert_int_equal(e->bias_n, 2);
  assert_true(e->bias[0].token == 0 && e->bias[0].bias == -100 && e->bias[1].token == 999);
  api_request_free(&r);
}

/* L4: what clients send for "not given". */
static void test_null_is_absent(void **state) {
  (void)state;
  api_request r;
  take("{" USER
       ",\"stop\":null,\"logit_bias\":{},\"user\":\"\",\"n\":1,\"max_tokens\":null,\"tools\":[],"
       "\"response_format\":null,\"temperature\":null,\"top_p\":null,\"seed\":null,\"stream\":null,"
       "\"stream_options\":null,\"logprobs\":null,\"top_logprobs\":null,\"tool_choice\":null,"
       "\"model\":null,"
       "\"metadata\":{\"a\":\"b\"},\"some_new_field\":[1,{\"x\":2}]}",
       API_CHAT, &r);
  assert_true(r.engine.temperature == 1 && r.engine.stop_n == 0 && r.engine.bias_n == 0 &&
              !r.engine.seeded);
  assert_null(r.tools);
  api_request_free(&r);
}

/* L6: any int64 is taken as it is, everything else refused. */
static void test_seeds(void **state) {
  (void)state;
  static const char *const good[] = {"-1", "2147483648", "9007199254740993", "9223372036854775807"};
  api_request r;
  for (size_t i = 0; i < 4; i++) {
    char body[128];
    snprintf(body, sizeof body, "{" USER ",\"seed\":%s}", good[i]);
    take(body, API_CHAT, &r);
    assert_true(r.engine.seed == (uint64_t)strtoll(good[i], NULL, 10));
    api_request_free(&r);
  }
  refuse("{" USER ",\"seed\":\"42\"}", API_CHAT, "seed", "an integer");
  refuse("{" USER ",\"seed\":1.5}", API_CHAT, "seed", "an integer");
  refuse("{" USER ",\"seed\":9223372036854775808}", API_CHAT, "", "integer");
}

static void test_lengths(void **state) {
  (void)state;
  api_request r;
  take("{" USER ",\"max_tokens\":0}", API_CHAT, &r);
  assert_int_equal(r.engine.max_tokens, 0);
  api_request_free(&r);
  take("{" USER ",\"max_tokens\":-1}", API_CHAT, &r);
  assert_true(r.engine.max_tokens == TROIKA_MAX_TOKENS_CONTEXT);
  api_request_free(&r);
  take("{" USER ",\"max_tokens\":7.0}", API_CHAT, &r); /* an integer, as JSON Schema counts */
  assert_int_equal(r.engine.max_tokens, 7);
  api_request_free(&r);
  refuse("{" USER ",\"max_tokens\":-2}", API_CHAT, "max_tokens", "-2");
  refuse("{" USER ",\"max_tokens\":1.5}", API_CHAT, "max_tokens", "an integer");
}

static void test_wrong_fields_are_named(void **state) {
  (void)state;
  refuse("{" USER ",\"temperature\":2.1}", API_CHAT, "temperature", "2.1");
  refuse("{" USER ",\"temperature\":\"1\"}", API_CHAT, "temperature", "not a string");
  refuse("{" USER ",\"top_p\":1.5}", API_CHAT, "top_p", "0 to 1");
  refuse("{" USER ",\"stream\":1}", API_CHAT, "stream", "boolean");
  refuse("{" USER ",\"stream_options\":true}", API_CHAT, "stream_options", "object");
  refuse("{" USER ",\"stop\":\"\"}", API_CHAT, "stop", "1 to 256");
  refuse("{" USER ",\"stop\":[1]}", API_CHAT, "stop", "string");
  refuse("{" USER ",\"stop\":\"a\\u0000b\"}", API_CHAT, "stop", "NUL");
  refuse("{" USER ",\"n\":0}", API_CHAT, "n", "1 to 128");
  refuse("{" USER ",\"n\":129}", API_CHAT, "n", "1 to 128");
  refuse("{" USER ",\"n\":2,\"best_of\":3}", API_CHAT, "best_of", "n is 2");
  refuse("{" USER ",\"top_logprobs\":2}", API_CHAT, "top_logprobs", "needs logprobs");
  refuse("{" USER ",\"logprobs\":true,\"top_logprobs\":21}", API_CHAT, "top_logprobs", "0 to 20");
  refuse("{" USER ",\"logit_bias\":{\"1000\":1}}", API_CHAT, "logit_bias", "below 1000");
  refuse("{" USER ",\"logit_bias\":{\"-1\":1}}", API_CHAT, "logit_bias", "below 1000");
  refuse("{" USER ",\"logit_bias\":{\"1\":101}}", API_CHAT, "logit_bias", "-100 to 100");
  refuse("{" USER ",\"tool_choice\":\"required\"}", API_CHAT, "tool_choice", "auto");
  refuse("{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},1]}", API_CHAT,
         "tools[1]", "function");
  refuse("{" USER ",\"stream_options\":{\"include_usage\":5}}", API_CHAT,
         "stream_options.include_usage", "boolean");
  refuse("{" USER ",\"model\":5}", API_CHAT, "model", "string");
}

static void test_messages(void **state) {
  (void)state;
  api_request r;
  /* C1: content null and absent are alike; C8: developer is system; parts are joined; C2: null ids
   * vanish. */
  take(
      "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
      "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"name\":null,\"content\":"
      "\"\\u0000\"},"
      "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":null,\"type\":\"function\","
      "\"function\":"
      "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"assistant\"},"
      "{\"role\":\"tool\",\"tool_call_id\":null,\"content\":\"r\"}]}",
      API_CHAT, &r);
  assert_string_equal(
      r.messages,
      "[{\"role\":\"system\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"\\u0000\"},"
      "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\","
      "\"function\":"
      "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{\"role\":\"assistant\",\"content\":\"\"},"
      "{\"role\":\"tool\",\"content\":\"r\"}]");
  api_request_free(&r);
  refuse("{}", API_CHAT, "messages", "absent");
  refuse("{\"messages\":[]}", API_CHAT, "messages", "empty");
  refuse("{\"messages\":\"hi\"}", API_CHAT, "messages", "an array");
  refuse("{\"messages\":[\"hi\"]}", API_CHAT, "messages[0]", "an object");
  refuse("{\"messages\":[{\"content\":\"a\"}]}", API_CHAT, "messages[0].role", "absent");
  refuse(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"usr\",\"content\":\"a\"}]}",
      API_CHAT, "messages[1].role", "\"usr\"");
  refuse("{\"messages\":[{\"role\":\"user\"}]}", API_CHAT, "messages[0].content", "missing");
  refuse("{\"messages\":[{\"role\":\"user\",\"content\":5}]}", API_CHAT, "messages[0].content",
         "not an integer");
  refuse(
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
      "\"url\":\"x\"}}]}]}",
      API_CHAT, "messages[0].content[0]", "image_url");
  /* C3 */
  refuse(
      "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
      "\"arguments\":\"{\"}}]}]}",
      API_CHAT, "messages[0].tool_calls[0].function.arguments", "JSON object");
}

/* L9 */
static void test_prompts(void **state) {
  (void)state;
  api_request r;
  take("{\"prompt\":\"\"}", API_COMPLETIONS, &r);
  assert_true(r.prompts_n == 1 && !r.prompts[0].tokens && r.prompts[0].text.len == 0);
  api_request_free(&r);
  take("{\"prompt\":[\"a\\u0000b\"]}", API_COMPLETIONS, &r);
  assert_int_equal(r.prompts[0].text.len, 3);
  api_request_free(&r);
  take("{\"prompt\":[1,2,999],\"logprobs\":0}", API_COMPLETIONS, &r);
  assert_true(r.prompts_n == 1 && r.prompts[0].tokens_n == 3 && r.prompts[0].tokens[2] == 999 &&
              r.engine.logprobs);
  api_request_free(&r);
  take("{\"prompt\":[[4]]}", API_COMPLETIONS, &r);
  assert_true(r.prompts_n == 1 && r.prompts[0].tokens_n == 1 && r.prompts[0].tokens[0] == 4);
  api_request_free(&r);
  take("{\"prompt\":[[1,2],[3],\"c\"],\"n\":2,\"best_of\":2,\"echo\":true}", API_COMPLETIONS, &r);
  assert_true(r.prompts_n == 3 && r.n == 2 && r.echo);
  assert_true(r.prompts[1].tokens_n == 1 && r.prompts[1].tokens[0] == 3);
  assert_true(!r.prompts[2].tokens && r.prompts[2].text.len == 1);
  api_request_free(&r);
  refuse("{\"prompt\":[]}", API_COMPLETIONS, "prompt", "empty");
  refuse("{\"prompt\":[[]]}", API_COMPLETIONS, "prompt[0]", "empty");
  refuse("{\"prompt\":[\"a\",[1000]]}", API_COMPLETIONS, "prompt[1]", "below 1000");
  refuse("{\"prompt\":[\"a\",5]}", API_COMPLETIONS, "prompt[1]", "not an integer");
  refuse("{\"prompt\":[\"a\",\"b\"],\"n\":65}", API_COMPLETIONS, "prompt", "at most 128");
  refuse("{\"prompt\":[1000]}", API_COMPLETIONS, "prompt", "below 1000");
  refuse("{\"prompt\":[1,-1]}", API_COMPLETIONS, "prompt", "prompt[1]");
  refuse("{}", API_COMPLETIONS, "prompt", "absent");
  refuse("{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", API_COMPLETIONS, "echo",
         "not supported");
  refuse("{\"prompt\":\"a\",\"suffix\":\"b\"}", API_COMPLETIONS, "suffix", "not supported");
}

/* C9: whether the last message is gone on with. */
static void test_prefill(void **state) {
  (void)state;
  api_request r;
  take(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
      "\"The\"}]}",
      API_CHAT, &r);
  assert_true(r.continues);
  api_request_free(&r);
  take("{" USER "}", API_CHAT, &r);
  assert_false(r.continues);
  api_request_free(&r);
  take("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
       API_CHAT, &r);
  assert_false(r.continues);
  api_request_free(&r);
  refuse(
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\","
      "\"content\":\"b\"}]}",
      API_CHAT, "messages[1]", "role assistant");
}

/* C6 */
static void test_folding(void **state) {
  (void)state;
  api_request r;
  take(
      "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
      "brief.\"},{\"role\":\"user\",\"name\":\"n\","
      "\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"x\"}]}",
      API_CHAT, &r);
  char *folded = api_messages_fold(json_object_get(r.root, "messages"));
  assert_string_equal(folded,
                      "[{\"role\":\"user\",\"name\":\"n\",\"content\":\"Be brief.\\n\\nhi\"},"
                      "{\"role\":\"assistant\",\"content\":\"x\"}]");
  free(folded);
  api_request_free(&r);
  take("{" USER "}", API_CHAT, &r);
  assert_null(api_messages_fold(json_object_get(r.root, "messages")));
  api_request_free(&r);
}

#define FORMAT(text) "{" USER ",\"response_format\":" text "}"
#define SCHEMA(text)                                                                               \
  FORMAT(                                                                                          \
      "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":true,\"schema\":" text \
      "}}")

static void test_formats(void **state) {
  (void)state;
  api_request r;
  take(FORMAT("{\"type\":\"text\"}"), API_CHAT, &r);
  assert_false(r.constrained);
  api_request_free(&r);
  take(FORMAT("{\"type\":\"json_object\"}"), API_CHAT, &r);
  assert_true(r.constrained && r.grammar_kind == TROIKA_GRAMMAR_JSON_OBJECT);
  api_request_free(&r);
  take(SCHEMA("{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}"), API_CHAT,
       &r);
  assert_true(r.constrained && r.grammar_kind == TROIKA_GRAMMAR_JSON_SCHEMA);
  assert_string_equal(r.grammar,
                      "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}");
  api_request_free(&r);
  take(FORMAT("{\"type\":\"grammar\",\"syntax\":\"regex\",\"definition\":\"a\\u0000+\"}"), API_CHAT,
       &r);
  assert_true(r.constrained && r.grammar_kind == TROIKA_GRAMMAR_REGEX);
  assert_int_equal(r.grammar_len, 3);
  api_request_free(&r);
  refuse(FORMAT("\"json\""), API_CHAT, "response_format", "an object");
  refuse(FORMAT("{}"), API_CHAT, "response_format.type", "json_schema");
  refuse(FORMAT("{\"type\":\"text\\u0000x\"}"), API_CHAT, "response_format.type", "json_schema");
  refuse(FORMAT("{\"type\":\"json_schema\"}"), API_CHAT, "response_format.json_schema", "absent");
  refuse(FORMAT("{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}"), API_CHAT,
         "response_format.json_schema.schema", "absent"); /* J7 */
  refuse(FORMAT("{\"type\":\"grammar\",\"syntax\":\"gbnf\"}"), API_CHAT, "response_format.syntax",
         "lark");
  refuse(FORMAT("{\"type\":\"grammar\",\"syntax\":\"lark\"}"), API_CHAT,
         "response_format.definition", "absent");
  /* J4: OpenAI's strict */
  refuse(SCHEMA("{\"type\":\"object\"}"), API_CHAT, "response_format", "object at $ ");
  refuse(
      SCHEMA(
          "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{\"anyOf\":[{"
          "\"type\":\"null\"},{\"properties\":{}}]}}}"),
      API_CHAT, "response_format", "$.properties.a.anyOf[1] ");
  refuse("{" USER
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"response_format\":{"
         "\"type\":\"json_object\"}}",
         API_CHAT, "response_format", "tools"); /* C10 */
}

/* T8, T9, J8 and others: what is no JSON of ours. */
static void test_bad_bodies(void **state) {
  (void)state;
  refuse("", API_CHAT, "", "empty");
  refuse("{", API_CHAT, "", "not JSON");
  refuse("[]", API_CHAT, "", "an array");
  refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"\xc4\xe3\"}]}", API_CHAT, "",
         "not valid UTF-8 at byte 39");
  refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\"}]}", API_CHAT, "", "not JSON");
  refuse("{" USER ",\"temperature\":1,\"temperature\":2}", API_CHAT, "", "duplicate");
  refuse("{" USER ",\"temperature\":1e999}", API_CHAT, "", "not JSON");
  refuse("{" USER ",\"temperature\":NaN}", API_CHAT, "", "not JSON");
  char deep[6100] = "{\"messages\":";
  size_t at = strlen(deep);
  memset(deep + at, '[', 3000);
  memset(deep + at + 3000, ']', 3000);
  deep[at + 6000] = '}';
  refuse(deep, API_CHAT, "", "depth");
}

static void test_writing(void **state) {
  (void)state;
  bytes_buffer b;
  bytes_init(&b, 1000);
  api_json_put_string(&b, "a\"\\\n\x01\x7f\xff\xf0\x9f\x98\x80\xc3", 12);
  assert_string_equal(b.data,
                      "\"a\\\"\\\\\\n\\u0001\\u007f\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\"");
  bytes_clear(&b);
  api_json_put_number(&b, -1.0 / 0.0);
  assert_string_equal(b.data, "-9999");
  bytes_clear(&b);
  api_failure f;
  api_failure_too_long(&f, "messages", 9000, 8192, false);
  api_failure_write(&f, &b);
  assert_string_equal(b.data,
                      "{\"error\":{\"message\":\"the prompt is too long: it has 9000 tokens, the "
                      "context holds 8192\","
                      "\"type\":\"invalid_request_error\",\"param\":\"messages\",\"code\":"
                      "\"context_length_exceeded\",\"n_prompt_tokens\":9000,\"n_ctx\":8192}}");
  bytes_free(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),       cmocka_unit_test(test_all_fields),
      cmocka_unit_test(test_null_is_absent), cmocka_unit_test(test_seeds),
      cmocka_unit_test(test_lengths),        cmocka_unit_test(test_wrong_fields_are_named),
      cmocka_unit_test(test_messages),       cmocka_unit_test(test_prompts),
      cmocka_unit_test(test_bad_bodies),     cmocka_unit_test(test_writing),
      cmocka_unit_test(test_prefill),        cmocka_unit_test(test_folding),
      cmocka_unit_test(test_formats),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
