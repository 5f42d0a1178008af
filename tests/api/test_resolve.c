/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for a request: every signal, every pair of two that contradict each other, and what
 * hostile clients send. */
#include <stdio.h>
#include <string.h>

#include "api/support_resolve.h"
#include "base/clock.h"

/* Keys: 1 plain, 2 proactive by default, 3 capped, 4 at most 2 reactive, 5 at most 3 open, 6 whose
 * children may react, 7 reactive by default. */
static const char keys[] =
    "plain\n# a comment\nnight class=proactive name=night\ncapped cap=proactive\n"
    "two reactive-max=2\nthree max=3\nreact may-react\nday class=reactive\n";

static void expect(const char *headers, const char *members, int class_, const char *by) {
  server s;
  api_resolved who;
  server_open(&s, NULL);
  ask(&s, headers, members, &who);
  if ((int)who.class_ != class_ || strcmp(who.decided_by, by) != 0)
    fail_msg("%s | %s: class %d by %s, not %d by %s", headers, members, (int)who.class_,
             who.decided_by, class_, by);
  server_close(&s);
}

static void refused(const char *headers, const char *members, const char *param,
                    const char *words) {
  server s;
  api_resolved who;
  api_failure f;
  server_open(&s, NULL);
  if (ask_full(&s, CHAT_PATH, headers, members, &who, NULL, &f))
    fail_msg("taken: %s | %s", headers, members);
  assert_int_equal(f.status, 400);
  if (strcmp(f.param, param) != 0)
    fail_msg("%s | %s: param \"%s\", not \"%s\"", headers, members, f.param, param);
  if (!strstr(f.message, words)) fail_msg("\"%s\" does not say \"%s\"", f.message, words);
  server_close(&s);
}

/* In the order in which they count: the header or member that says reactive, the one that says
 * proactive, and one that says nothing. NULL: it cannot say so. */
typedef struct signal_case {
  const char *by;
  bool header;
  const char *reactive, *proactive, *nothing;
} signal_case;

static const signal_case cases[] = {
    {"x-troika-class", true, "x-troika-class: Reactive", "x-troika-class: proactive",
     "x-troika-class: "},
    {"troika.class", false, "\"troika\":{\"class\":\"reactive\"}",
     "\"troika\":{\"class\":\"proactive\"}", "\"troika\":{\"class\":null,\"later\":[1]}"},
    {"priority", false, "\"priority\":-1", "\"priority\":7", "\"priority\":0"},
    {"nvext.agent_hints.priority", false, "\"nvext\":{\"agent_hints\":{\"priority\":10}}",
     "\"nvext\":{\"agent_hints\":{\"priority\":-10}}",
     "\"nvext\":{\"agent_hints\":{\"priority\":0}}"},
    {"service_tier", false, "\"service_tier\":\"priority\"", "\"service_tier\":\"flex\"",
     "\"service_tier\":\"auto\""},
    {"x-app", true, NULL, "x-app: cli-bg", "x-app: cli"},
    {"x-openai-subagent", true, NULL, "x-openai-subagent: compact", "x-openai-subagent: review"},
    {"x-openai-memgen-request", true, NULL, "x-openai-memgen-request: true",
     "x-openai-memgen-request: false"},
};
enum { CASES = sizeof cases / sizeof *cases };

static void test_each_signal(void **state) {
  (void)state;
  expect("", "", R, "default");
  for (int i = 0; i < CASES; i++) {
    const signal_case *c = &cases[i];
    const char *say[] = {c->reactive, c->proactive, c->nothing};
    for (int j = 0; j < 3; j++)
      if (say[j])
        expect(c->header ? say[j] : "", c->header ? "" : say[j], j == 1 ? P : R,
               j == 2 ? "default" : c->by);
  }
  expect("", "\"service_tier\":\"fast\"", R, "service_tier");
  expect("", "\"service_tier\":null", R, "default");
  expect("", "\"service_tier\":\"default\"", R, "default");
  expect("", "\"service_tier\":\"scale\"", R, "default");
  expect("", "\"service_tier\":\"standard_only\"", R, "default");
  expect("x-openai-subagent: memory_consolidation", "", P, "x-openai-subagent");
  expect("", "\"priority\":-9223372036854775808", R, "priority");
  expect("", "\"priority\":9223372036854775807", P, "priority");
  expect("", "\"priority\":1.0", P, "priority");
  expect("", "\"priority\":null", R, "default");
}

static void join(const signal_case *a, const char *x, const signal_case *b, const char *y,
                 char headers[512], char members[512]) {
  snprintf(headers, 512, "%s%s%s", a->header ? x : "", a->header && b->header ? "\n" : "",
           b->header ? y : "");
  snprintf(members, 512, "%s%s%s", a->header ? "" : x, a->header || b->header ? "" : ",",
           b->header ? "" : y);
}

/* Each pair, both ways: the earlier one decides; one that says nothing leaves it to the later. */
static void test_order_of_signals(void **state) {
  (void)state;
  char headers[512], members[512];
  int pairs = 0;
  for (int i = 0; i < CASES; i++)
    for (int j = i + 1; j < CASES; j++) {
      const signal_case *a = &cases[i], *b = &cases[j];
      if (a->reactive) {
        join(a, a->reactive, b, b->proactive, headers, members);
        expect(headers, members, R, a->by);
      }
      join(a, a->proactive, b, b->reactive ? b->reactive : b->proactive, headers, members);
      expect(headers, members, P, a->by);
      join(a, a->nothing, b, b->proactive, headers, members);
      expect(headers, members, P, b->by);
      pairs++;
    }
  assert_int_equal(pairs, 28);
}

static void test_tier_and_echo(void **state) {
  (void)state;
  server s;
  api_resolved who;
  server_open(&s, keys);
  ask(&s, "authorization: Bearer plain", "", &who);
  assert_string_equal(who.tier, "default");
  assert_false(who.has_priority);
  ask(&s, "authorization: Bearer plain", "\"service_tier\":\"fast\",\"priority\":0", &who);
  assert_string_equal(who.tier, "priority");
  assert_true(who.has_priority && who.priority == 0);
  ask(&s, "authorization: Bearer plain", "\"priority\":-5", &who);
  assert_true(who.has_priority && who.priority == -5);
  assert_string_equal(who.tier, "priority");
  ask(&s, "authorization: Bearer plain", "\"nvext\":{\"agent_hints\":{\"priority\":3}}", &who);
  assert_true(who.has_priority && who.priority == 3);
  ask(&s, "authorization: Bearer capped", "\"service_tier\":\"priority\"", &who);
  assert_string_equal(who.tier, "flex");
  assert_true(who.capped && who.class_ == TROIKA_PROACTIVE);
  assert_string_equal(who.decided_by, "service_tier");
  ask(&s, "authorization: Bearer capped", "\"service_tier\":\"flex\"", &who);
  assert_false(who.capped);
  server_close(&s);
}

static void check(server *s, const char *headers, const char *path, int class_, const char *by) {
  api_resolved who;
  api_failure f;
  api_key_hold hold;
  if (!ask_full(s, path, headers, "", &who, &hold, &f)) fail_msg("%s: %s", headers, f.message);
  api_key_end(&hold);
  if ((int)who.class_ != class_ || strcmp(who.decided_by, by) != 0)
    fail_msg("%s %s: class %d by %s, not %d by %s", path, headers, (int)who.class_, who.decided_by,
             class_, by);
}

/* Parent, session, path, key, server: each before the next. */
static void test_defaults(void **state) {
  (void)state;
  server s;
  server_open(&s, keys);
  check(&s, "authorization: Bearer plain", CHAT_PATH, R, "default");
  check(&s, "authorization: Bearer plain", "/bg" CHAT_PATH, P, "path");
  check(&s, "authorization: Bearer plain", "/bg/v1/completions", P, "path");
  check(&s, "authorization: Bearer night", CHAT_PATH, P, "key");
  check(&s, "authorization: Bearer day", CHAT_PATH, R, "key");
  check(&s, "authorization: Bearer day", "/bg" CHAT_PATH, P, "path");
  check(&s, "authorization: Bearer night\nx-troika-class: reactive", "/bg" CHAT_PATH, R,
        "x-troika-class");
  check(&s, "authorization: Bearer night\nx-session-id: a\nx-parent-session-id: b", "/bg" CHAT_PATH,
        I, "parent");
  s.resolver.default_class = TROIKA_PROACTIVE;
  check(&s, "authorization: Bearer plain", CHAT_PATH, P, "default");
  check(&s, "authorization: Bearer day", CHAT_PATH, R, "key");
  server_close(&s);
}

#define SESSION "authorization: Bearer plain\nx-session-id: s1"
static void test_session_remembers(void **state) {
  (void)state;
  server s;
  api_resolved who;
  server_open(&s, keys);
  check(&s, SESSION, CHAT_PATH, R, "default");
  check(&s, SESSION "\nx-troika-class: proactive", CHAT_PATH, P, "x-troika-class");
  check(&s, SESSION, CHAT_PATH, P, "session");
  check(&s, SESSION, "/bg" CHAT_PATH, P, "session");
  ask(&s, SESSION, "\"service_tier\":\"priority\"", &who);
  check(&s, SESSION, "/bg" CHAT_PATH, R, "session"); /* before the path */
  /* A step's kind is of its turn alone: after a compaction the person waits again. */
  check(&s, SESSION "\nx-openai-subagent: compact", CHAT_PATH, P, "x-openai-subagent");
  check(&s, SESSION "\nx-app: cli-bg", CHAT_PATH, P, "x-app");
  check(&s, SESSION, CHAT_PATH, R, "session");
  check(&s, "authorization: Bearer plain\nx-session-id: s2", CHAT_PATH, R, "default");
  /* Another key's session of the same name is another one. */
  check(&s, SESSION "\nx-troika-class: proactive", CHAT_PATH, P, "x-troika-class");
  check(&s, "authorization: Bearer two\nx-session-id: s1", CHAT_PATH, R, "default");
  check(&s, SESSION "\nx-parent-session-id: other", CHAT_PATH, I,
        "parent"); /* before the session */
  server_close(&s);
}

static void test_session_names(void **state) {
  (void)state;
  /* In the order in which they count. */
  static const char *const headers[] = {"x-claude-code-session-id",
                                        "session-id",
                                        "session_id",
                                        "x-session-id",
                                        "x-session-affinity",
                                        "x-opencode-session",
                                        "x-openwebui-chat-id",
                                        "x-litellm-session-id",
                                        "thread-id",
                                        "x-dynamo-session-id",
                                        "x-amp-thread-id",
                                        "x-olla-session-id",
                                        "x-affinity",
                                        "x-grok-conv-id"};
  static const char *const members[] = {
      "\"nvext\":{\"agent_context\":{\"session_id\":\"b0\"}}",
      "\"nvext\":{\"agent_context\":{\"trajectory_id\":\"b1\"}}",
      "\"prompt_cache_key\":\"b2\"",
      "\"metadata\":{\"session_id\":\"b3\",\"thread_id\":\"x\"}",
      "\"metadata\":{\"thread_id\":\"b4\",\"conversation_id\":\"x\"}",
      "\"metadata\":{\"conversation_id\":\"b5\"}",
      "\"safety_identifier\":\"b6\",\"user\":\"x\"",
      "\"user\":\"b7\""};
  enum { H = sizeof headers / sizeof *headers, M = sizeof members / sizeof *members };
  server s;
  api_resolved who;
  server_open(&s, NULL);
  for (int i = 0; i < H; i++)
    for (int j = i; j < H; j++) {
      char text[256];
      snprintf(text, sizeof text, "%s: first\n%s: %s", headers[i], headers[j],
               i == j ? "first" : "second");
      ask(&s, text, members[0], &who);
      assert_string_equal(who.stream, "first");
      assert_true(who.session != 0 && !who.child);
    }
  for (int i = 0; i < M; i++) {
    char want[3] = {'b', (char)('0' + i), 0};
    ask(&s, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", members[i],
        &who);
    assert_string_equal(who.stream, want);
    ask(&s, "x-session-id: head", members[i], &who);
    assert_string_equal(who.stream, "head");
  }
  ask(&s, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "", &who);
  assert_string_equal(who.stream, "0af7651916cd43dd8448eb211c80319c");
  static const char *const none[] = {
      "",
      "traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01",
      "traceparent: 00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
      "traceparent: 00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
      "traceparent: 00",
      "traceparent: 00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
      "x-session-id: "};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    ask(&s, none[i], "\"user\":7,\"metadata\":\"text\",\"prompt_cache_key\":[]", &who);
    assert_true(who.session == 0 && !*who.stream);
  }
  server_close(&s);
}

/* A child's parent is the session that the parent's own requests have. */
static void test_families(void **state) {
  (void)state;
  static const struct {
    const char *parent, *parent_body, *child, *child_body, *agent;
  } families[] = {
      {"x-session-id: p\nx-session-affinity: p", "", "x-session-id: c\nx-parent-session-id: p", "",
       ""},
      {"x-claude-code-session-id: s", "", "x-claude-code-session-id: s\nx-claude-code-agent-id: a",
       "", "a"},
      {"x-claude-code-session-id: s\nx-claude-code-agent-id: a", "",
       "x-claude-code-session-id: s\nx-claude-code-agent-id: b\nx-claude-code-parent-agent-id: a",
       "", "b"},
      {"session-id: s\nthread-id: t0", "",
       "session-id: s\nthread-id: t1\nx-codex-parent-thread-id: t0", "", "t1"},
      {"session_id: t0", "", "session-id: t1\nthread-id: t1\nx-codex-parent-thread-id: t0", "", ""},
      {"x-dynamo-session-id: p", "", "x-dynamo-session-id: c\nx-dynamo-parent-session-id: p", "",
       ""},
      {"", "\"nvext\":{\"agent_context\":{\"session_id\":\"s\",\"trajectory_id\":\"t0\"}}", "",
       "\"nvext\":{\"agent_context\":{\"session_id\":\"s\",\"trajectory_id\":\"t1\","
       "\"parent_trajectory_id\":\"t0\"}}",
       "t1"},
      {"", "\"nvext\":{\"agent_context\":{\"program_id\":\"p\"}}", "",
       "\"nvext\":{\"agent_context\":{\"program_id\":\"c\",\"parent_program_id\":\"p\"}}", ""},
  };
  server s;
  api_resolved parent, child, other;
  api_failure f;
  server_open(&s, keys);
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    char a[512], b[512], c[512];
    snprintf(a, sizeof a, "authorization: Bearer plain\n%s", families[i].parent);
    snprintf(b, sizeof b, "authorization: Bearer plain\n%s", families[i].child);
    snprintf(c, sizeof c, "authorization: Bearer two\n%s", families[i].child);
    ask(&s, a, families[i].parent_body, &parent);
    ask(&s, b, families[i].child_body, &child);
    assert_true(child.child && child.class_ == TROIKA_INHERITED);
    assert_string_equal(child.decided_by, "parent");
    if (!parent.session || child.parent != parent.session || child.session == parent.session)
      fail_msg("family %zu", i);
    assert_string_equal(child.agent, families[i].agent);
    ask(&s, c, families[i].child_body, &other);
    assert_true(other.parent != child.parent && other.session != child.session);
  }
  /* Nobody is his own parent; a child may say its class; a request identity is no session. */
  ask(&s, "authorization: Bearer plain\nx-session-id: p\nx-parent-session-id: p", "", &child);
  assert_true(!child.child && !child.parent && child.class_ == TROIKA_REACTIVE);
  ask(&s, "authorization: Bearer react\nx-session-id: c\nx-parent-session-id: p", "\"priority\":-1",
      &child);
  assert_true(child.child && child.may_react && child.class_ == TROIKA_REACTIVE);
  ask(&s, "authorization: Bearer plain\nx-session-id: c\nx-parent-session-id: p\nx-app: cli-bg", "",
      &child);
  assert_true(child.child && !child.may_react && child.class_ == TROIKA_PROACTIVE);
  assert_true(ask_full(&s, CHAT_PATH, "authorization: Bearer capped\nx-parent-session-id: p", "",
                       &child, NULL, &f));
  assert_true(child.capped && child.class_ == TROIKA_PROACTIVE);
  server_close(&s);
}

static void test_agent_and_step(void **state) {
  (void)state;
  server s;
  api_resolved a, b;
  server_open(&s, NULL);
  ask(&s, "x-openai-subagent: review", "", &a);
  assert_string_equal(a.step, "review");
  ask(&s, "x-openai-memgen-request: true", "", &a);
  assert_string_equal(a.step, "memory");
  ask(&s, "", "\"stop\":[\"<end_plan>\"]", &a);
  assert_string_equal(a.step, "plan");
  ask(&s, "", "\"stop\":[\"Observation:\",\"Calling tools:\"]", &a);
  assert_string_equal(a.step, "action");
  ask(&s, "",
      "\"messages\":[{\"role\":\"user\",\"name\":\"boss\",\"content\":\"a\"},"
      "{\"role\":\"user\",\"name\":\"coder\",\"content\":\"b\"},{\"role\":\"assistant\","
      "\"content\":\"c\"},{\"role\":\"user\",\"content\":\"d\"}]",
      &a);
  assert_string_equal(a.agent, "coder");
  ask(&s, "",
      "\"messages\":[{\"role\":\"system\",\"content\":\"You plan.\"},"
      "{\"role\":\"user\",\"content\":\"a\"}]",
      &a);
  ask(&s, "",
      "\"messages\":[{\"role\":\"developer\",\"content\":\"You plan.\"},"
      "{\"role\":\"user\",\"content\":\"another\"}]",
      &b);
  assert_true(!strncmp(a.agent, "system-", 7) && !strcmp(a.agent, b.agent));
  ask(&s, "",
      "\"messages\":[{\"role\":\"system\",\"content\":\"You act.\"},"
      "{\"role\":\"user\",\"content\":\"a\"}]",
      &b);
  assert_string_not_equal(a.agent, b.agent);
  server_close(&s);
}

static void test_times(void **state) {
  (void)state;
  static const struct {
    const char *headers, *members;
    double done_ms, first_ms;
  } rows[] = {
      {"", "", 0, 0},
      {"x-troika-deadline-ms: 1500\nx-troika-first-deadline-ms: 1", "", 1500, 1},
      {"", "\"troika\":{\"deadline_ms\":86400000,\"first_deadline_ms\":20}", 86400000, 20},
      {"x-troika-deadline-ms: 5", "\"troika\":{\"deadline_ms\":9}", 5, 0}, /* the header first */
      {"x-stainless-read-timeout: 600", "", 601000, 0},
      {"x-stainless-read-timeout: 59.5", "\"stream\":false", 60500, 0},
      {"x-stainless-read-timeout: 0.0015", "", 1001.5, 0},
      {"x-stainless-read-timeout: 600", "\"stream\":true", 0, 0},
      {"x-stainless-read-timeout: 600\nx-troika-deadline-ms: 7", "", 7, 0},
      {"x-stainless-read-timeout: NaN", "", 0, 0},
      {"x-stainless-read-timeout: -1", "", 0, 0},
      {"x-stainless-read-timeout: 0", "", 0, 0},
      {"x-stainless-read-timeout: 1e3", "", 0, 0},
      {"x-stainless-read-timeout: .5", "", 0, 0},
      {"x-stainless-read-timeout: 1.2.3", "", 0, 0},
      {"x-stainless-read-timeout: 86400.1", "", 0, 0},
      {"x-stainless-read-timeout: 99999999999999999999999", "", 0, 0},
      {"x-stainless-read-timeout: 1.00000000000000000000000009", "", 2000, 0},
  };
  server s;
  api_resolved who;
  server_open(&s, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    ask(&s, rows[i].headers, rows[i].members, &who);
    /* What a client happens to wait for has a second behind it. */
    assert_int_equal(who.deadline_hinted, strstr(rows[i].headers, "read-timeout") &&
                                              !strstr(rows[i].headers, "deadline-ms") &&
                                              who.done_deadline_ns);
    if (who.done_deadline_ns != (int64_t)(rows[i].done_ms * 1e6) ||
        who.first_deadline_ns != (int64_t)(rows[i].first_ms * 1e6))
      fail_msg("row %zu: %lld %lld", i, (long long)who.done_deadline_ns,
               (long long)who.first_deadline_ns);
  }
  server_close(&s);
  refused("x-troika-deadline-ms: 0", "", "x-troika-deadline-ms", "1 to 86400000");
  refused("x-troika-deadline-ms: 86400001", "", "x-troika-deadline-ms", "1 to 86400000");
  refused("x-troika-deadline-ms: -5", "", "x-troika-deadline-ms", "\"-5\"");
  refused("x-troika-deadline-ms: 1.5", "", "x-troika-deadline-ms", "whole");
  refused("x-troika-first-deadline-ms: 99999999999999999999999999999999", "",
          "x-troika-first-deadline-ms", "milliseconds");
  refused("", "\"troika\":{\"deadline_ms\":0}", "troika.deadline_ms", "1 to 86400000");
  refused("", "\"troika\":{\"first_deadline_ms\":\"5\"}", "troika.first_deadline_ms", "integer");
}

/* Deadlines count from the request's arrival, and one that is over is still one. */
static void test_time_that_has_passed(void **state) {
  (void)state;
  server s;
  api_request r;
  api_resolved who;
  api_failure f;
  api_signals signals;
  static const char body[] =
      "{" USER ",\"troika\":{\"deadline_ms\":60000,\"first_deadline_ms\":10}}";
  server_open(&s, NULL);
  signals_read(&s, "", CHAT_PATH, &signals);
  signals.received_ns = clock_real_now(NULL) - INT64_C(1000000000);
  assert_true(api_request_parse(bytes_of_string(body), API_CHAT, VOCAB, &r, &f));
  assert_true(api_resolve(&s.resolver, &signals, CHAT_PATH, bytes_of_string(body), &r, &who, &f));
  assert_in_range(who.done_deadline_ns, INT64_C(50000000000), INT64_C(59000000000));
  assert_int_equal(who.first_deadline_ns, 1);
  api_request_free(&r);
  api_signals_free(&signals);
  server_close(&s);
}

static void test_hints(void **state) {
  (void)state;
  server s;
  api_resolved who;
  server_open(&s, NULL);
  ask(&s, "", "", &who);
  assert_true(who.next_use_ms == -1 && who.steps_to_execution == -1 && !who.expected_tokens &&
              !who.latest_only && !who.shortenable && !who.retry_count && !who.session_final);
  ask(&s, "x-stainless-retry-count: 2\nx-troika-shorten: 1\nx-dynamo-session-final: true",
      "\"nvext\":{\"agent_hints\":{\"osl\":64,\"speculative_prefill\":true,\"next_use_ms\":0,"
      "\"steps_to_execution\":3}}",
      &who);
  assert_true(who.expected_tokens == 64 && who.retry_count == 2 && who.shortenable &&
              who.speculative_prefill && who.next_use_ms == 0 && who.steps_to_execution == 3 &&
              who.session_final);
  ask(&s, "",
      "\"nvext\":{\"agent_hints\":{\"osl\":64,\"steps_to_execution\":3}},\"troika\":{"
      "\"expected_tokens\":12,\"next_use_ms\":500,\"steps_to_execution\":1,\"shorten\":true}",
      &who);
  assert_true(who.expected_tokens == 12 && who.next_use_ms == 500 && who.steps_to_execution == 1 &&
              who.shortenable);
  ask(&s, "", "\"max_tokens\":16,\"troika\":{\"expected_tokens\":90}", &who);
  assert_int_equal(who.expected_tokens, 16);
  ask(&s, "x-troika-latest: 0\nx-session-id: e", "\"troika\":{\"latest\":true}", &who);
  assert_false(who.latest_only);
  ask(&s, "x-session-id: e", "\"troika\":{\"latest\":true}", &who);
  assert_true(who.latest_only);
  ask(&s, "x-troika-latest: true\nx-session-id: e", "", &who);
  assert_true(who.latest_only);
  static const char *const odd[] = {"x-stainless-retry-count: -1", "x-stainless-retry-count: many",
                                    "x-stainless-retry-count: 99999999999999999999"};
  for (int i = 0; i < 3; i++) {
    ask(&s, odd[i], "", &who);
    assert_int_equal(who.retry_count, 0);
  }
  server_close(&s);
  refused("x-troika-latest: 1", "", "x-troika-latest", "session");
  refused("x-troika-latest: yes", "", "x-troika-latest", "allowed is 1, 0");
  refused("x-troika-shorten: 2", "", "x-troika-shorten", "allowed is 1, 0");
}

static void test_apply(void **state) {
  (void)state;
  troika_request e;
  api_resolved who = {.class_ = TROIKA_INHERITED,
                      .child = true,
                      .may_react = true,
                      .session = 5,
                      .parent = 6,
                      .first_deadline_ns = 7,
                      .done_deadline_ns = 8,
                      .expected_tokens = 90,
                      .next_use_ms = -1,
                      .steps_to_execution = -1,
                      .shortenable = true,
                      .scope = 11};
  troika_request_init(&e);
  api_resolved_apply(&who, &e);
  assert_true(e.class_ == TROIKA_INHERITED && e.child && e.may_react && e.session == 5 &&
              e.parent == 6 && e.first_deadline_ns == 7 && e.done_deadline_ns == 8 &&
              e.expected_tokens == 90 && e.shortenable && e.cache_scope == 11);
  static const struct {
    int64_t next_use_ms, steps, next_use_ns;
    uint32_t next_steps;
  } uses[] = {{-1, -1, 0, 0}, {0, -1, 1, 0}, {-1, 0, 1, 0}, {500, 0, 500000000, 0}, {-1, 3, 0, 3}};
  for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
    who.next_use_ms = uses[i].next_use_ms;
    who.steps_to_execution = uses[i].steps;
    api_resolved_apply(&who, &e);
    assert_int_equal(e.next_use_ns, uses[i].next_use_ns);
    assert_int_equal(e.next_steps, uses[i].next_steps);
  }
  assert_false(e.last_turn);
  who.session_final = true;
  api_resolved_apply(&who, &e);
  assert_true(e.last_turn);
}

static void told(const char *headers, const char *members, const char *names, const char *rest) {
  server s;
  api_resolved who;
  bytes_buffer out;
  server_open(&s, NULL);
  ask(&s, headers, members, &who);
  bytes_init(&out, 4096);
  api_resolved_put_names(&who, &out);
  bytes_append(&out, "|", 1);
  api_resolved_put(&who, &out);
  bytes_append(&out, "", 1);
  char wanted[1024];
  snprintf(wanted, sizeof wanted, "%s|%s", names, rest);
  assert_string_equal(out.data, wanted);
  bytes_free(&out);
  server_close(&s);
}

/* Of what was resolved all is given back, under the names of docs/API.md, and nothing else. */
static void test_what_is_told(void **state) {
  (void)state;
  told("", "", "", "");
  told("x-session-id: s\nx-parent-session-id: p", "", ",\"session\":\"s\"", ",\"parent\":\"p\"");
  told("x-session-id: s\nx-parent-session-id: s", "", ",\"session\":\"s\"", "");
  told("x-claude-code-session-id: s\nx-claude-code-agent-id: a\nx-openai-subagent: review", "",
       ",\"session\":\"s\",\"agent\":\"a\",\"step\":\"review\"", ",\"parent\":\"s\"");
  told("x-claude-code-session-id: s\nx-claude-code-agent-id: b\nx-claude-code-parent-agent-id: a",
       "", ",\"session\":\"s\",\"agent\":\"b\"", ",\"parent\":\"a\"");
  told("x-troika-deadline-ms: 5000\nx-troika-shorten: 1",
       "\"troika\":{\"first_deadline_ms\":20,\"deadline_ms\":9,\"expected_tokens\":64,"
       "\"next_use_ms\":0,\"steps_to_execution\":3},\"nvext\":{\"agent_context\":"
       "{\"trajectory_final\":true,\"parent_session_id\":\"p\"}}",
       "",
       ",\"parent\":\"p\",\"deadline_ms\":5000,\"first_deadline_ms\":20,\"expected_tokens\":64,"
       "\"next_use_ms\":0,\"steps_to_execution\":3,\"final\":true,\"shorten\":true");
  told("x-stainless-read-timeout: 600", "", "", ",\"deadline_ms\":601000");
  told("x-session-id: a\"b\\c\x01\xff\nx-parent-session-id: \"},\"class\":\"reactive", "",
       ",\"session\":\"a?b?c??\"", ",\"parent\":\"?},?class?:?reactive\"");
  char header[400] = "x-session-id: ", name[100] = ",\"session\":\"";
  memset(header + strlen(header), 'x', 300);
  memset(name + strlen(name), 'x', 64);
  name[strlen(name)] = '"';
  told(header, "", name, "");
}

static void test_malformed(void **state) {
  (void)state;
  refused("x-troika-class: urgent", "", "x-troika-class", "\"urgent\", allowed is reactive");
  refused("x-troika-class: reactive,proactive", "", "x-troika-class", "allowed");
  refused("x-troika-class: a\"\\\x7f\xc3", "", "x-troika-class", "\"a????\"");
  refused("", "\"troika\":7", "troika", "object");
  refused("", "\"troika\":{\"class\":\"fast\"}", "troika.class", "reactive, proactive");
  refused("", "\"troika\":{\"class\":1}", "troika.class", "string");
  refused("", "\"troika\":{\"latest\":1}", "troika.latest", "boolean");
  refused("", "\"troika\":{\"expected_tokens\":-1}", "troika.expected_tokens", "allowed");
  refused("", "\"troika\":{\"next_use_ms\":86400001}", "troika.next_use_ms", "allowed");
  refused("", "\"troika\":{\"steps_to_execution\":1.5}", "troika.steps_to_execution", "integer");
  refused("", "\"priority\":\"high\"", "priority", "integer");
  refused("", "\"priority\":0.5", "priority", "integer");
  refused("", "\"nvext\":[]", "nvext", "object");
  refused("", "\"nvext\":{\"agent_hints\":\"x\"}", "nvext.agent_hints", "object");
  refused("", "\"nvext\":{\"agent_context\":3}", "nvext.agent_context", "object");
  refused("", "\"nvext\":{\"agent_hints\":{\"priority\":2147483648}}", "nvext.agent_hints.priority",
          "allowed");
  refused("", "\"nvext\":{\"agent_hints\":{\"osl\":-1}}", "nvext.agent_hints.osl", "allowed");
  refused("", "\"service_tier\":\"turbo\"", "service_tier", "auto, default, flex");
  refused("", "\"service_tier\":\"flex\\u0000\"", "service_tier", "allowed");
  refused("", "\"service_tier\":1", "service_tier", "string");
}

/* What a client names is cut, made printable, and hashed as far as it counts. */
static void test_hostile_names(void **state) {
  (void)state;
  server s;
  api_resolved a, b;
  char headers[2048] = "x-session-id: ", members[4096];
  server_open(&s, NULL);
  memset(headers + 14, 'x', 1000);
  ask(&s, headers, "", &a);
  assert_int_equal(strlen(a.stream), 64);
  headers[14 + API_SIGNAL_BYTES_MAX] = 'y'; /* behind what counts */
  ask(&s, headers, "", &b);
  assert_true(a.session == b.session);
  headers[14 + 100] = 'y'; /* not shown, but counts */
  ask(&s, headers, "", &b);
  assert_true(a.session != b.session && !strcmp(a.stream, b.stream));
  ask(&s, "x-session-id: a\tb\x01\xff\"\\ c", "", &a);
  assert_string_equal(a.stream, "a?b???? c");
  ask(&s, "",
      "\"user\":\"a\\u0000b\\n\\r\\u00e9\",\"messages\":[{\"role\":\"user\","
      "\"name\":\"x\\r\\nSet-Cookie: y\",\"content\":\"a\"}]",
      &a);
  assert_string_equal(a.stream, "a?b????");
  assert_string_equal(a.agent, "x??Set-Cookie: y");
  ask(&s, "", "\"user\":\"a\\u0000c\"", &b);
  assert_true(a.session != b.session);
  memset(members, 0, sizeof members);
  snprintf(members, 16, "\"user\":\"");
  memset(members + 8, 'u', 3000);
  members[3008] = '"';
  ask(&s, "", members, &a);
  assert_int_equal(strlen(a.stream), 64);
  ask(&s, "x-openai-subagent: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "", &a);
  assert_int_equal(strlen(a.step), 32);
  server_close(&s);
}

static void test_paths(void **state) {
  (void)state;
  bool b;
  assert_string_equal(api_path_route("/bg/v1/models", &b), "/v1/models");
  assert_true(b);
  static const char *const plain[] = {"/v1/models",    "/bg", "/bgv1/models",
                                      "/BG/v1/models", "/",   ""};
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    assert_string_equal(api_path_route(plain[i], &b), plain[i]);
    assert_false(b);
  }
  assert_string_equal(api_path_route("/bg/bg/v1", &b), "/bg/v1"); /* a route that nobody has */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_signal),
      cmocka_unit_test(test_order_of_signals),
      cmocka_unit_test(test_tier_and_echo),
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_session_remembers),
      cmocka_unit_test(test_session_names),
      cmocka_unit_test(test_families),
      cmocka_unit_test(test_agent_and_step),
      cmocka_unit_test(test_times),
      cmocka_unit_test(test_time_that_has_passed),
      cmocka_unit_test(test_hints),
      cmocka_unit_test(test_apply),
      cmocka_unit_test(test_what_is_told),
      cmocka_unit_test(test_malformed),
      cmocka_unit_test(test_hostile_names),
      cmocka_unit_test(test_paths),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
