/* SPDX-License-Identifier: Apache-2.0 */
/* Keys with their rules, what is counted of them, what is remembered of sessions, and the calls
 * that are taken for a helper's. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "api/support_resolve.h"
#include "base/clock.h"

static const char keys[] = "plain\ntwo reactive-max=2\nthree max=3\nday class=reactive\n";

static void test_scope_and_digest(void **state) {
  (void)state;
  server s;
  api_resolved a, b;
  api_failure f;
  server_open(&s, keys);
  ask(&s, "authorization: Bearer plain", "", &a);
  ask(&s, "authorization: bearer  two", "", &b);
  assert_true(a.scope && b.scope && a.scope != b.scope);
  assert_memory_not_equal(a.digest, b.digest, 32);
  /* A retry says other things in its headers, and may come by the other path. */
  assert_true(ask_full(&s, "/bg" CHAT_PATH,
                       "authorization: Bearer plain\nx-troika-class: reactive"
                       "\nx-stainless-retry-count: 1",
                       "", &b, NULL, &f));
  assert_memory_equal(a.digest, b.digest, 32);
  ask(&s, "authorization: Bearer plain", "\"n\":1", &b);
  assert_memory_not_equal(a.digest, b.digest, 32);
  s.resolver.share_cache = true;
  ask(&s, "authorization: Bearer plain", "", &b);
  assert_int_equal(b.scope, 0);
  assert_memory_equal(a.digest, b.digest, 32); /* shares no running request */
  server_close(&s);
  server_open(&s, NULL);
  ask(&s, "authorization: Bearer anything", "", &a);
  ask(&s, "", "", &b);
  assert_true(a.scope == 0 && b.scope == 0);
  server_close(&s);
}

static void test_key_lines(void **state) {
  (void)state;
  api_key_rules r;
  bytes_view key;
  troika_error err;
  assert_int_equal(api_key_line(bytes_of_string("k\tclass=proactive  reactive-max=2 max=65536 "
                                                "may-react name=Ann_1.x-y "),
                                &key, &r, &err),
                   TROIKA_OK);
  assert_true(bytes_equal_string(key, "k") && r.class_ == TROIKA_PROACTIVE && r.max == 65536 &&
              r.reactive_max == 2 && r.may_react && !r.capped);
  assert_string_equal(r.name, "Ann_1.x-y");
  static const char *const bad[][2] = {
      {"k secret", "0x20"},
      {"k\tsecret", "0x09"},
      {"k class=fast", "class= takes"},
      {"k class=", "class= takes"},
      {"k cap=reactive", "cap= takes"},
      {"k max=0", "1 to 65536"},
      {"k max=65537", "1 to 65536"},
      {"k max=999999999999", "1 to 65536"},
      {"k max=-1", "1 to"},
      {"k max=1.5", "1 to"},
      {"k max=", "1 to"},
      {"k reactive-max=x", "reactive-max= takes"},
      {"k may-react=1", "none of"},
      {"k name=", "name= takes"},
      {"k name=a\"b", "name= takes"},
      {"k name=abcdefghijklmnopqrstuvwxyz0123456789", "name= takes"},
      {"k max=1 max=1", "twice"},
      {"k may-react may-react", "twice"},
      {"k cap=proactive may-react", "goes with none"},
      {"k cap=proactive class=reactive", "goes with none"},
      {"k MAX=1", "none of"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    api_access *a = NULL;
    assert_int_equal(api_access_open(bad[i][0], NULL, &a, &err), TROIKA_INVALID);
    assert_null(a);
    if (!strstr(err.text, bad[i][1]) || strstr(err.text, "secret"))
      fail_msg("%s: %s", bad[i][0], err.text);
  }
  api_access *a = NULL;
  assert_int_equal(api_access_open("k max=1\nk max=2", NULL, &a, &err), TROIKA_INVALID);
  assert_non_null(strstr(err.text, "keys 1 and 2"));
  assert_int_equal(api_access_open("k max=1\nother\nk max=1", NULL, &a, &err), TROIKA_OK);
  assert_int_equal(api_access_find(a, bytes_of_string("Bearer k"))->id, 1);
  assert_int_equal(api_access_find(a, bytes_of_string("Bearer other"))->id, 2);
  static const char *const strangers[] = {
      "",          "Bearer", "Bearer ",        "Basic k",
      "Bearer kk", "k",      "Bearer k max=1", "Bearer other name=x"};
  for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
    assert_null(api_access_find(a, bytes_of_string(strangers[i])));
  api_access_close(&a);
}

static bool begin(server *s, const char *headers, const char *members, api_resolved *who,
                  api_key_hold *hold, api_failure *f) {
  return ask_full(s, CHAT_PATH, headers, members, who, hold, f);
}

static void test_reactive_max(void **state) {
  (void)state;
  static const char head[] = "authorization: Bearer two";
  server s;
  api_resolved who;
  api_failure f;
  api_key_hold a, b, c, d;
  server_open(&s, keys);
  assert_true(begin(&s, head, "", &who, &a, &f) && !who.capped);
  assert_true(begin(&s, "authorization: Bearer two\nx-parent-session-id: p", "", &who, &b, &f));
  assert_true(who.class_ == TROIKA_INHERITED && !who.capped); /* a child's counts, too */
  assert_true(begin(&s, head, "\"service_tier\":\"priority\"", &who, &c, &f));
  assert_true(who.capped && who.class_ == TROIKA_PROACTIVE);
  assert_string_equal(who.tier, "flex");
  assert_true(begin(&s, head, "\"service_tier\":\"flex\"", &who, &d, &f) && !who.capped);
  assert_false(api_key_change(&c, TROIKA_REACTIVE));
  assert_true(api_key_change(&c, TROIKA_PROACTIVE));
  assert_true(api_key_change(&a, TROIKA_PROACTIVE)); /* makes room */
  assert_true(api_key_change(&c, TROIKA_REACTIVE) && api_key_change(&c, TROIKA_REACTIVE));
  assert_false(api_key_change(&d, TROIKA_REACTIVE));
  api_key_end(&a);
  api_key_end(&a); /* once is enough */
  assert_false(api_key_change(&a, TROIKA_PROACTIVE));
  assert_false(api_key_change(&d, TROIKA_REACTIVE));
  api_key_end(&c);
  assert_true(api_key_change(&d, TROIKA_REACTIVE));
  /* Several answers are several: two do not fit beside one. */
  api_key_end(&d);
  assert_true(begin(&s, head, "\"n\":2", &who, &a, &f) && who.capped);
  api_key_end(&b);
  assert_true(begin(&s, head, "\"n\":2", &who, &b, &f) && !who.capped);
  api_key_end(&a);
  api_key_end(&b);
  assert_true(begin(&s, head, "\"n\":3", &who, &a, &f) && who.capped);
  api_key_end(&a);
  uint32_t answers, reactive;
  api_access_open_now(s.access, api_access_find(s.access, bytes_of_string("Bearer two")), &answers,
                      &reactive);
  assert_true(answers == 0 && reactive == 0);
  server_close(&s);
}

static void test_key_max(void **state) {
  (void)state;
  static const char head[] = "authorization: Bearer three";
  server s;
  api_resolved who;
  api_failure f;
  api_key_hold a, b, c = {0};
  server_open(&s, keys);
  assert_true(begin(&s, head, "\"n\":2", &who, &a, &f) && begin(&s, head, "", &who, &b, &f));
  assert_false(begin(&s, head, "\"service_tier\":\"flex\"", &who, &c, &f));
  assert_true(f.status == 429 && f.retry_after_s >= 1 && strstr(f.message, "3"));
  assert_string_equal(f.code, "key_limit");
  assert_string_equal(f.type, "rate_limit_error");
  api_key_end(&c); /* refused: holds nothing */
  assert_true(begin(&s, "authorization: Bearer plain", "", &who, &c, &f));
  api_key_end(&c);
  api_key_end(&b);
  assert_false(begin(&s, head, "\"n\":2", &who, &c, &f)); /* two beside two */
  assert_int_equal(f.status, 429);
  assert_true(begin(&s, head, "", &who, &b, &f));
  api_key_end(&a);
  api_key_end(&b);
  assert_false(begin(&s, head, "\"n\":4", &who, &c, &f)); /* never: asking again is of no use */
  assert_int_equal(f.status, 400);
  assert_string_equal(f.param, "n");
  server_close(&s);
}

/* Eight threads open and end requests of one key; nothing is lost, and the cap always holds. */
typedef struct crowd {
  server s;
  atomic_uint reactive, wrong, refused;
} crowd;

static void *crowd_member(void *context) {
  crowd *c = context;
  for (int i = 0; i < 2000; i++) {
    api_resolved who = {.class_ = TROIKA_REACTIVE, .session = (uint64_t)i % 7 + 1, .tier = ""};
    api_signals signals = {.key = api_access_find(c->s.access, bytes_of_string("Bearer k"))};
    api_key_hold hold;
    api_failure f;
    if (!api_key_begin(&c->s.resolver, &signals, &who, 1, &hold, &f)) {
      atomic_fetch_add(&c->refused, 1);
      continue;
    }
    bool reactive = who.class_ == TROIKA_REACTIVE;
    if (reactive && atomic_fetch_add(&c->reactive, 1) >= 2) atomic_fetch_add(&c->wrong, 1);
    if (i % 3 == 0) sched_yield();
    if (reactive) atomic_fetch_sub(&c->reactive, 1);
    if (i % 5 == 0) api_key_change(&hold, TROIKA_PROACTIVE);
    api_key_end(&hold);
  }
  return NULL;
}

static void test_counts_under_threads(void **state) {
  (void)state;
  enum { N = 8 };
  pthread_t threads[N];
  crowd c = {0};
  uint32_t answers, reactive;
  api_session session;
  server_open(&c.s, "k reactive-max=2 max=6");
  c.s.resolver.access = c.s.access;
  for (int i = 0; i < N; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, crowd_member, &c), 0);
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&c.wrong), 0);
  api_access_open_now(c.s.access, api_access_find(c.s.access, bytes_of_string("Bearer k")),
                      &answers, &reactive);
  assert_true(answers == 0 && reactive == 0);
  for (uint64_t i = 1; i <= 7; i++)
    if (api_sessions_find(c.s.sessions, i, &session)) assert_int_equal(session.open, 0);
  server_close(&c.s);
}

static void test_sessions_table(void **state) {
  (void)state;
  enum { N = 16 };
  api_sessions *s;
  api_session e;
  troika_error err;
  assert_int_equal(api_sessions_open(N, &s, &err), TROIKA_OK);
  assert_false(api_sessions_begin(s, 0, TROIKA_REACTIVE, 1)); /* none */
  for (uint64_t i = 1; i <= N; i++)
    assert_true(api_sessions_begin(s, i, TROIKA_PROACTIVE, (int64_t)i));
  assert_false(api_sessions_begin(s, 99, TROIKA_REACTIVE, 20)); /* all are busy */
  assert_false(api_sessions_find(s, 99, &e));
  api_sessions_end(s, 99, 21);
  for (uint64_t i = N; i >= 1; i--) api_sessions_end(s, i, 30);
  assert_true(api_sessions_find(s, 3, &e) && !e.open && e.said == TROIKA_PROACTIVE);
  api_sessions_end(s, 3, 31); /* one too many changes nothing */
  assert_true(api_sessions_find(s, 3, &e) && !e.open && e.seen_ns == 30);
  assert_true(api_sessions_begin(s, 3, TROIKA_CLASS_DEFAULT, 32));
  assert_true(api_sessions_find(s, 3, &e) && e.open == 1 && e.said == TROIKA_PROACTIVE);
  api_sessions_note(s, 3, TROIKA_REACTIVE, 33);
  assert_true(api_sessions_find(s, 3, &e) && e.said == TROIKA_REACTIVE && e.seen_ns == 33);
  api_sessions_note(s, 16, TROIKA_CLASS_DEFAULT, 34); /* was the quietest; 15 is now */
  assert_true(api_sessions_begin(s, 100, TROIKA_CLASS_DEFAULT, 35));
  assert_true(api_sessions_find(s, 16, &e) && !api_sessions_find(s, 15, &e));
  assert_true(api_sessions_find(s, 100, &e) && e.said == TROIKA_CLASS_DEFAULT);
  assert_int_equal(api_sessions_count(s), N);
  /* The busy ones stay, whatever comes. */
  for (uint64_t i = 1000; i < 9000; i++) api_sessions_note(s, i, TROIKA_REACTIVE, 40);
  assert_true(api_sessions_find(s, 3, &e) && api_sessions_find(s, 100, &e) &&
              api_sessions_find(s, 8999, &e) && !api_sessions_find(s, 16, &e));
  assert_int_equal(api_sessions_count(s), N);
  api_sessions_close(&s);
}

/* Against a model that is plain: random begins, ends and notes in a small table. */
static void test_sessions_random(void **state) {
  (void)state;
  enum { N = 8, KEYS = 20, STEPS = 200000 };
  struct {
    bool known;
    uint32_t open, said;
    long quiet_at;
  } model[KEYS + 1] = {0};
  api_sessions *s;
  troika_error err;
  uint32_t random = 12345;
  assert_int_equal(api_sessions_open(N, &s, &err), TROIKA_OK);
  for (long step = 1; step <= STEPS; step++) {
    random = random * 1664525 + 1013904223;
    uint32_t k = (random >> 8) % KEYS + 1, what = (random >> 16) % 3, said = (random >> 20) % 3;
    uint32_t known = 0, oldest = 0;
    for (uint32_t i = 1; i <= KEYS; i++) {
      known += model[i].known;
      if (model[i].known && !model[i].open &&
          (!oldest || model[i].quiet_at < model[oldest].quiet_at))
        oldest = i;
    }
    bool fits = model[k].known || known < N || oldest;
    if (what != 1 && fits && !model[k].known) {
      if (known == N) model[oldest].known = false;
      model[k].known = true, model[k].open = model[k].said = 0, model[k].quiet_at = step;
    }
    if (what == 0) {
      assert_true(api_sessions_begin(s, k, (troika_class)said, step) == fits);
      if (fits) model[k].open++;
    } else if (what == 1) {
      api_sessions_end(s, k, step);
      if (model[k].known && model[k].open && --model[k].open == 0) model[k].quiet_at = step;
    } else {
      api_sessions_note(s, k, (troika_class)said, step);
      if (fits && !model[k].open) model[k].quiet_at = step;
    }
    if (what != 1 && fits && said) model[k].said = said;
    for (uint32_t i = 1; i <= KEYS; i++) {
      api_session e;
      assert_true(api_sessions_find(s, i, &e) == model[i].known);
      if (model[i].known)
        assert_true(e.open == model[i].open && e.said == (troika_class)model[i].said);
    }
  }
  api_sessions_close(&s);
}

#define AGENT "user-agent: opencode/1.2"
static void side(server *s, const char *headers, const char *members, int class_) {
  api_resolved who;
  ask(s, headers, members, &who);
  bool as = (int)who.class_ == class_ && !strcmp(who.decided_by, "heuristic") == (class_ == P);
  if (!as) fail_msg("%s | %s: %d by %s", headers, members, (int)who.class_, who.decided_by);
}

#define TITLE                                                              \
  "\"messages\":[{\"role\":\"system\",\"content\":\"Generate a Title.\"}," \
  "{\"role\":\"user\",\"content\":\"hi\"}]"
static void test_side_calls(void **state) {
  (void)state;
  server s;
  server_open(&s, NULL);
  side(&s, AGENT, "\"max_tokens\":20", R); /* nobody of this client has named a session */
  side(&s, AGENT "\nx-session-id: s", "", R);
  side(&s, AGENT, "\"max_tokens\":20", P);
  side(&s, AGENT, "\"max_tokens\":64,\"service_tier\":\"auto\",\"priority\":0", P);
  side(&s, AGENT, TITLE, P);
  /* What is not quite one stays what it is. */
  side(&s, AGENT, "\"max_tokens\":65", R);
  side(&s, AGENT, "\"max_tokens\":0", R);
  side(&s, AGENT, "", R);
  side(&s, AGENT "\nx-session-id: s", "\"max_tokens\":20", R);
  side(&s, AGENT, "\"max_tokens\":20,\"user\":\"ann\"", R);
  side(&s, AGENT, "\"max_tokens\":20,\"n\":2", R);
  side(&s, AGENT, "\"max_tokens\":20,\"stop\":[\"<end_plan>\"]", R);
  side(&s, AGENT,
       "\"max_tokens\":20,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
       "{\"name\":\"LedgerEntry\",\"schema\":{\"type\":\"object\"}}}",
       R);
  side(&s, AGENT,
       "\"max_tokens\":20,\"tools\":[{\"type\":\"function\",\"function\":"
       "{\"name\":\"f\"}}]",
       R);
  side(&s, AGENT,
       "\"max_tokens\":20,\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\","
       "\"function\":{\"name\":\"f\"}}]",
       R);
  side(&s, AGENT,
       "\"max_tokens\":20,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
       "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]",
       R);
  side(&s, "user-agent: another/1", "\"max_tokens\":20", R);
  side(&s, "", "\"max_tokens\":20", R);
  /* Nothing explicit is overruled, and an explicit class of another turn is not its own. */
  api_resolved who;
  ask(&s, AGENT "\nx-troika-class: reactive", "\"max_tokens\":20", &who);
  assert_string_equal(who.decided_by, "x-troika-class");
  ask(&s, AGENT "\nx-parent-session-id: p", "\"max_tokens\":20", &who);
  assert_string_equal(who.decided_by, "parent");
  s.resolver.no_heuristics = true;
  side(&s, AGENT, "\"max_tokens\":20", R);
  s.resolver.no_heuristics = false;
  /* A library that many programs use is no client. */
  side(&s, "user-agent: OpenAI/Python 1.99\nx-session-id: s", "", R);
  side(&s, "user-agent: OpenAI/Python 1.99", "\"max_tokens\":20", R);
  server_close(&s);
  server_open(&s, keys);
  side(&s, "authorization: Bearer plain\nuser-agent: tool/1\nx-session-id: s", "", R);
  side(&s, "authorization: Bearer plain\nuser-agent: tool/1", "\"max_tokens\":20", P);
  side(&s, "authorization: Bearer two\nuser-agent: tool/1", "\"max_tokens\":20", R);
  /* Who wrote the key's rule has said it. */
  side(&s, "authorization: Bearer day\nuser-agent: tool/1\nx-session-id: s", "", R);
  side(&s, "authorization: Bearer day\nuser-agent: tool/1", "\"max_tokens\":20", R);
  server_close(&s);
}

/* The client's other turns were long ago. */
static void test_side_call_needs_company(void **state) {
  (void)state;
  server s;
  api_resolved who;
  server_open(&s, NULL);
  ask(&s, AGENT, "\"max_tokens\":20", &who);
  assert_true(who.client != 0);
  int64_t now = clock_real_now(NULL), minute = INT64_C(60000000000);
  api_sessions_note(s.sessions, who.client, TROIKA_CLASS_DEFAULT, now - 11 * minute);
  side(&s, AGENT, "\"max_tokens\":20", R);
  api_sessions_note(s.sessions, who.client, TROIKA_CLASS_DEFAULT, now - 9 * minute);
  side(&s, AGENT, "\"max_tokens\":20", P);
  server_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_scope_and_digest),
      cmocka_unit_test(test_key_lines),
      cmocka_unit_test(test_reactive_max),
      cmocka_unit_test(test_key_max),
      cmocka_unit_test(test_counts_under_threads),
      cmocka_unit_test(test_sessions_table),
      cmocka_unit_test(test_sessions_random),
      cmocka_unit_test(test_side_calls),
      cmocka_unit_test(test_side_call_needs_company),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
