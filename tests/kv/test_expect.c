/* SPDX-License-Identifier: Apache-2.0 */
/* What a waiting request is sure to use stays before what is only cached, as long as it waits. */
#include "kv/support.h"

enum { TOKENS = 1024, SECOND = 1000000000, PAGE = 64 };

static int32_t tokens[TOKENS];

static kv *open_kv(uint32_t window) { /* 32 pages a group, with a window: as many as they need */
  property_config c = {.groups = {{KV_FULL, 32, 0, 1, PAGE}},
                       .n_groups = 1,
                       .sequences = 4,
                       .context = TOKENS,
                       .ahead = 32,
                       .contexts = 1};
  if (window) c.groups[c.n_groups++] = (kv_group){KV_WINDOW, 32, window, 1, PAGE};
  if (window) c.contexts = 2;
  for (int i = 0; i < TOKENS; i++) tokens[i] = i * 31 % 997;
  return kv_open_for_test(&c);
}

static uint32_t matched(const kv *k, uint64_t salt) {
  kv_ref ref;
  return kv_match(k, salt, tokens, TOKENS, true, &ref) / 32;
}

/* Computes `pages` pages under a salt, after what is cached, and closes. */
static void leave(kv *k, uint64_t salt, uint32_t pages, const kv_claim_hint *hint) {
  uint32_t s, at;
  kv_ref ref;
  assert_int_equal(kv_sequence_open(k, &s), TROIKA_OK);
  kv_match(k, salt, tokens, TOKENS, true, &ref);
  at = kv_attach(k, s, salt, tokens, &ref);
  for (; at < pages * 32; at += 32) {
    assert_int_equal(kv_sequence_extend(k, s, at, at + 32), TROIKA_OK);
    kv_publish(k, s, salt, tokens, at + 32, UINT32_MAX);
    kv_sequence_keep_from(k, s, at + 32);
  }
  if (hint) kv_hint(k, s, hint);
  kv_sequence_close(k, s);
}

/* Somebody needs so many pages of all groups, and goes. */
static void take(kv *k, uint32_t pages) {
  uint32_t s;
  assert_int_equal(kv_sequence_open(k, &s), TROIKA_OK);
  assert_int_equal(kv_sequence_extend(k, s, 0, pages * 32), TROIKA_OK);
  kv_sequence_close(k, s);
  kv_assert_sound(k, "taken");
}

static const kv_claim_hint session = {1, 500, 1000000, 0, INT64_MAX};
static const kv_claim_hint person = {4, 500, 1000000, 0, INT64_MAX};
static const kv_claim_hint background = {1, 1, 1000000, 0, 0};

/* The older of two equal ones goes, unless somebody waits for it, and until that one goes. */
static void what_is_waited_for_stays(void **state) {
  (void)state;
  for (int how = 0; how < 4; how++) { /* nobody waits; one does; two do and one goes; it has gone */
    kv *k = open_kv(0);
    leave(k, 1, 16, &session);
    kv_clock(k, INT64_C(3) * SECOND);
    leave(k, 2, 16, &session);
    uint32_t a = KV_NO_EXPECTATION, b = KV_NO_EXPECTATION;
    if (how) a = kv_expect(k, 1, tokens, TOKENS, UINT32_MAX, &background);
    if (how == 2) b = kv_expect(k, 1, tokens, TOKENS, UINT32_MAX, &background);
    if (how >= 2) kv_expect_end(k, a);
    kv_assert_sound(k, "expected");
    kv_clock(k, INT64_C(60) * SECOND); /* it is sure however long it waits */
    take(k, 8);
    bool stays = how == 1 || how == 2;
    assert_int_equal(matched(k, 1), stays ? 16 : 8);
    assert_int_equal(matched(k, 2), stays ? 8 : 16);
    kv_expect_end(k, how == 1 ? a : b);
    kv_assert_sound(k, "taken back");
    kv_destroy(&k);
  }
}

/* A person's before the background's; what the background waits for after what is soon used and
 * dearer. Pages that go nevertheless are no more expected, and computed again they are new. */
static void by_weight_and_by_price(void **state) {
  (void)state;
  kv *k = open_kv(0);
  leave(k, 1, 16, &session);
  leave(k, 2, 16, &session);
  uint32_t a = kv_expect(k, 1, tokens, TOKENS, UINT32_MAX, &person);
  uint32_t b = kv_expect(k, 2, tokens, TOKENS, UINT32_MAX, &background);
  take(k, 4);
  assert_int_equal(matched(k, 1), 16);
  assert_int_equal(matched(k, 2), 12);
  take(k, 20);
  assert_int_equal(matched(k, 1), 12);
  assert_int_equal(matched(k, 2), 0);
  kv_expect_end(k, b); /* nothing of it is left */
  leave(k, 2, 16, &(kv_claim_hint){16, 1000, 9000000, 0, SECOND});
  kv_assert_sound(k, "again");
  take(k, 8);
  assert_int_equal(matched(k, 1), 8);
  assert_int_equal(matched(k, 2), 16);
  kv_expect_end(k, a);
  kv_assert_sound(k, "taken back");
  kv_destroy(&k);
}

/* Of a window only what the prefix's end can see is expected; when that end goes, what the new end
 * can see. */
static void a_window_as_far_as_it_is_seen(void **state) {
  (void)state;
  kv *k = open_kv(96);
  leave(k, 1, 12, &session);
  uint32_t a = kv_expect(k, 1, tokens, TOKENS, UINT32_MAX, &person);
  assert_int_not_equal(a, KV_NO_EXPECTATION);
  kv_assert_sound(k, "expected");
  for (uint32_t salt = 2; salt < 40; salt++) {
    leave(k, salt, 1 + salt * 7 % 16, salt % 3 ? &session : &person);
    kv_assert_sound(k, "others");
  }
  assert_int_equal(matched(k, 1), 12);
  kv_expect_end(k, a);
  kv_assert_sound(k, "taken back");
  for (uint32_t salt = 2; salt < 40; salt++) leave(k, salt, 1 + salt * 7 % 16, &person);
  assert_int_equal(matched(k, 1), 0);
  kv_destroy(&k);
}

static void there_is_room_for_so_many(void **state) {
  (void)state;
  kv *k = open_kv(0);
  uint32_t all[16], n = 0;
  assert_int_equal(kv_expect(k, 1, tokens, TOKENS, UINT32_MAX, &person), KV_NO_EXPECTATION);
  kv_expect_end(k, KV_NO_EXPECTATION);
  leave(k, 1, 2, &session);
  assert_int_equal(kv_expect(k, 1, tokens, 32, UINT32_MAX, &person), KV_NO_EXPECTATION);
  while (n < 16 && (all[n] = kv_expect(k, 1, tokens, 33, UINT32_MAX, &person)) != KV_NO_EXPECTATION)
    n++;
  assert_in_range(n, 1, 15);
  kv_expect_end(k, all[0]);
  assert_int_equal(kv_expect(k, 1, tokens, 33, UINT32_MAX, &person), all[0]);
  kv_assert_sound(k, "full");
  kv_destroy(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_waited_for_stays), cmocka_unit_test(by_weight_and_by_price),
      cmocka_unit_test(a_window_as_far_as_it_is_seen), cmocka_unit_test(there_is_room_for_so_many)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
