/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule of kv.h by itself, with numbers worked out by hand. */
#include <stdlib.h>
#include <string.h>

#include "kv/support.h"

enum { PAGE = 64, N = 2048 };

static int32_t tokens_a[N], tokens_b[N];

static kv *open_kv(uint32_t window, uint32_t contexts, uint32_t context) {
  property_config c = {.n_groups = window ? 2 : 1,
                       .sequences = 8,
                       .context = context,
                       .ahead = 32,
                       .contexts = contexts};
  c.groups[0] = (kv_group){KV_FULL, 32, 0, 1, PAGE};
  c.groups[1] = (kv_group){KV_WINDOW, 32, window, 1, PAGE};
  return kv_open_for_test(&c);
}

static kv_pool_stats stats_of(const kv *k, uint32_t group) {
  kv_pool_stats s;
  kv_stats(k, group, &s);
  kv_assert_sound(k, "stats");
  assert_int_equal(s.free + s.cached + s.owned, s.total);
  return s;
}

/* A sequence that computes tokens[from, n) in spans of 32 rows, publishing as it goes if asked. */
static uint32_t compute(kv *k, uint32_t sequence, const int32_t *tokens, uint32_t from, uint32_t n,
                        bool publish, uint64_t salt, uint32_t generated_from) {
  for (uint32_t at = from; at < n; at += 32) {
    uint32_t end = at + 32 < n ? at + 32 : n;
    assert_int_equal(kv_sequence_extend(k, sequence, at, end), TROIKA_OK);
    if (publish) kv_publish(k, sequence, salt, tokens, end, generated_from);
    kv_sequence_keep_from(k, sequence, end);
  }
  return sequence;
}

static uint32_t opened(kv *k) {
  uint32_t s;
  assert_int_equal(kv_sequence_open(k, &s), TROIKA_OK);
  return s;
}

static uint32_t matched(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, bool exact) {
  kv_ref ref;
  uint32_t got = kv_match(k, salt, tokens, n, exact, &ref);
  assert_int_equal(got, ref.tokens);
  assert_true((ref.key == 0) == (got == 0));
  return got;
}

static void bytes_are_split_by_sequences(void **state) {
  (void)state;
  /* Context 1024: 32 pages full; window 64 + ahead 32 are 3 pages + 1 = 4. One context is 36 pages
   * of 64. */
  kv_group groups[2] = {{KV_FULL, 32, 0, 1, 64}, {KV_WINDOW, 32, 64, 1, 64}};
  static const struct {
    uint32_t pages, full, window;
  } cases[] = {
      {36, 32, 4},                         /* one context */
      {39, 32, 4},                         /* not even 8 of one page */
      {63, 32, 24},                        /* 8 sequences of 3 pages */
      {64, 32, 32},                        /* 8 sequences of 4 pages */
      {71, 32, 32},          {72, 40, 32}, /* 8 of 5 pages, of which a window holds 4 */
      {8 * 36, 256, 32},                   /* 8 of 32 pages */
      {8 * 36 * 3, 768, 96},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kv_options o = {groups, 2, 8, 1024, 32, cases[i].pages * 64, 0};
    kv *k = NULL;
    assert_int_equal(kv_create(&o, &k, NULL), TROIKA_OK);
    if (stats_of(k, 0).total != cases[i].full || stats_of(k, 1).total != cases[i].window)
      fail_msg("%u pages: %u and %u", cases[i].pages, stats_of(k, 0).total, stats_of(k, 1).total);
    assert_int_equal(kv_bytes(k), (cases[i].full + cases[i].window) * 64);
    kv_destroy(&k);
  }
}

static void wrong_options_are_refused(void **state) {
  (void)state;
  kv_group good[2] = {{KV_FULL, 32, 0, 1, 64}, {KV_WINDOW, 32, 64, 1, 64}};
  kv_options o = {good, 2, 8, 1024, 32, 36 * 64 - 1, 0};
  kv *k = NULL;
  troika_error err;
  assert_int_equal(kv_create(&o, &k, &err), TROIKA_LIMIT);
  assert_non_null(strstr(err.text, "1024 tokens"));
  o.bytes = 1 << 20;
  for (int what = 0; what < 12; what++) {
    kv_group g[2] = {good[0], good[1]};
    kv_options wrong = o;
    wrong.groups = g;
    if (what == 0) wrong.n_groups = 0;
    if (what == 1) wrong.n_groups = KV_GROUPS_MAX + 1;
    if (what == 2) wrong.sequences = 0;
    if (what == 3) wrong.sequences = UINT32_MAX;
    if (what == 4) wrong.context = 0;
    if (what == 5) wrong.context = UINT32_MAX;
    if (what == 6) wrong.ahead = 0;
    if (what == 7) g[0].page_tokens = 16;
    if (what == 8) g[1].page_bytes = 100;
    if (what == 9) g[1].window = 0;
    if (what == 10) g[0].window = 5;
    if (what == 11) g[0].page_bytes = SIZE_MAX - 63;
    assert_int_equal(kv_create(&wrong, &k, &err), TROIKA_INVALID);
    assert_null(k);
  }
}

static void sequences_run_out(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 256);
  uint32_t s[9];
  for (int i = 0; i < 8; i++) s[i] = opened(k);
  assert_int_equal(kv_sequence_open(k, &s[8]), TROIKA_BUSY);
  kv_sequence_close(k, s[3]);
  assert_int_equal(opened(k), s[3]);
  assert_int_equal(kv_sequence_extend(k, s[0], 0, 257), TROIKA_LIMIT);
  assert_int_equal(kv_sequence_promise(k, s[0], 257), TROIKA_LIMIT);
  kv_destroy(&k);
}

static void a_match_leaves_one_token(void **state) {
  (void)state;
  kv *k = open_kv(0, 2, 512);
  uint32_t s = compute(k, opened(k), tokens_a, 0, 100, true, 0, 100);
  assert_int_equal(matched(k, 0, tokens_a, 500, true), 96); /* also while it is open */
  kv_sequence_close(k, s);
  static const uint32_t n[] = {0, 1, 32, 33, 64, 65, 96, 97, 500},
                        expect[] = {0, 0, 0, 32, 32, 64, 64, 96, 96};
  for (int i = 0; i < 9; i++) assert_int_equal(matched(k, 0, tokens_a, n[i], true), expect[i]);
  assert_int_equal(stats_of(k, 0).cached, 3);
  kv_destroy(&k);
}

static void salts_do_not_share(void **state) {
  (void)state;
  kv *k = open_kv(0, 4, 512);
  kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 128, true, 7, 128));
  assert_int_equal(matched(k, 7, tokens_a, 129, false), 128);
  assert_int_equal(matched(k, 8, tokens_a, 129, false), 0);
  kv_ref ref;
  kv_match(k, 7, tokens_a, 129, false, &ref);
  uint32_t s = opened(k); /* nor does a reference open another's cache */
  assert_int_equal(kv_attach(k, s, 8, tokens_a, &ref), 0);
  assert_int_equal(kv_attach(k, s, 7, tokens_b, &ref), 0);
  assert_int_equal(kv_attach(k, s, 7, tokens_a, &ref), 128);
  kv_destroy(&k);
}

static uint32_t diverged(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                         uint32_t expect_whole) {
  uint32_t whole = 1, agreed = kv_diverged(k, salt, tokens, n, &whole);
  assert_int_equal(whole, expect_whole);
  return agreed;
}

/* What one salt does shows to no other: not in a match, not in where a prompt diverges, not in a
 * first page, not in the counters of hits. (What is evicted for whom is the pool's, and so common.)
 */
static void nothing_shows_across_salts(void **state) {
  (void)state;
  kv *k = open_kv(64, 64, 512);
  kv_total_stats before, after;
  kv_ref ref;
  for (uint64_t salt = 0; salt < 300; salt++) /* more than there are lists of first pages */
    if (salt != 42) kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 96, true, salt, 70));
  kv_totals(k, &before);
  for (uint32_t n = 0; n <= 200; n++) {
    for (int exact = 0; exact < 2; exact++) assert_int_equal(matched(k, 42, tokens_a, n, exact), 0);
    assert_int_equal(kv_match_own(k, 42, tokens_a, n, 70, &ref), 0);
    assert_int_equal(diverged(k, 42, tokens_a, n, 0), 0);
  }
  for (uint64_t salt = 1000; salt < 1300; salt++) /* some share a list with one that is there */
    assert_int_equal(diverged(k, salt, tokens_a, 200, 0), 0);
  uint32_t s = opened(k);
  for (uint64_t salt = 0; salt < 300; salt++) {
    kv_match(k, salt, tokens_a, 200, false, &ref);
    assert_int_equal(kv_attach(k, s, 42, tokens_a, &ref), 0);
  }
  kv_totals(k, &after);
  assert_true(after.hits == before.hits && after.hit_pages == before.hit_pages &&
              after.hit_tokens == before.hit_tokens && after.nodes == before.nodes &&
              after.evictions == before.evictions && after.node_bytes == before.node_bytes);
  compute(k, s, tokens_a, 0, 64, true, 42, N); /* the same tokens: pages of its own */
  kv_totals(k, &after);
  assert_true(after.nodes == before.nodes + 2 || after.evictions > before.evictions);
  assert_int_equal(diverged(k, 42, tokens_a, 200, 64), 64);
  kv_destroy(&k);
}

static void where_a_prompt_diverges(void **state) {
  (void)state;
  static int32_t other[N];
  kv *k = open_kv(0, 8, 1024);
  memcpy(other, tokens_a, sizeof other);
  other[517] = -5;
  assert_int_equal(diverged(k, 0, tokens_a, 600, 0), 0);
  kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 600, true, 0, 600));
  assert_int_equal(diverged(k, 0, other, 600, 512), 517);
  assert_int_equal(diverged(k, 0, tokens_a, 600, 576), 576); /* 24 more were no whole page */
  assert_int_equal(diverged(k, 0, other, 514, 512), 514);    /* no more tokens than it has */
  assert_int_equal(diverged(k, 0, other, 20, 0), 20);
  assert_int_equal(diverged(k, 0, other, 0, 0), 0);
  assert_int_equal(diverged(k, 0, tokens_b, 600, 0), 0);
  other[3] = -5;
  assert_int_equal(diverged(k, 0, other, 600, 0), 3);
  other[3] = tokens_a[3];
  /* A path that holds generated tokens counts as well; whichever goes farther. */
  kv_sequence_close(k, compute(k, opened(k), other, 0, 640, true, 0, 100));
  assert_int_equal(diverged(k, 0, other, 700, 640), 640);
  other[630] = -6;
  assert_int_equal(diverged(k, 0, other, 700, 608), 630);
  kv_destroy(&k);
}

static void generated_tokens_are_not_exact(void **state) {
  (void)state;
  kv *k = open_kv(0, 4, 512);
  /* prompt 70, answer up to 160: pages 0 and 1 are the prompt's, 2 to 4 hold generated tokens */
  uint32_t s = compute(k, opened(k), tokens_a, 0, 160, true, 0, 70);
  kv_sequence_close(k, s);
  assert_int_equal(matched(k, 0, tokens_a, 400, true), 64);
  assert_int_equal(matched(k, 0, tokens_a, 400, false), 160);
  /* The next turn attaches all of it; what it computes after is not exact either, though it is
   * prompt. */
  kv_ref ref;
  s = opened(k);
  kv_match(k, 0, tokens_a, 300, false, &ref);
  assert_int_equal(kv_attach(k, s, 0, tokens_a, &ref), 160);
  compute(k, s, tokens_a, 160, 300, true, 0, 300);
  assert_int_equal(matched(k, 0, tokens_a, 400, true), 64);
  assert_int_equal(matched(k, 0, tokens_a, 400, false), 288);
  /* Computed anew as prompt it is exact, and both stay. */
  uint32_t t = compute(k, opened(k), tokens_a, 0, 200, true, 0, 200);
  assert_int_equal(matched(k, 0, tokens_a, 400, true), 192);
  assert_int_equal(matched(k, 0, tokens_a, 400, false), 288);
  kv_sequence_close(k, s);
  kv_sequence_close(k, t);
  kv_assert_sound(k, "both kinds");
  kv_destroy(&k);
}

static void a_window_must_be_covered(void **state) {
  (void)state;
  kv *k = open_kv(64, 4, 1024);
  uint32_t s = compute(k, opened(k), tokens_a, 0, 320, false, 0, 320);
  const uint32_t *full = kv_sequence_pages(k, s, 0), *window = kv_sequence_pages(k, s, 1);
  for (uint32_t i = 0; i < 10; i++) { /* rows from 320 on see [256, ...) */
    assert_true(full[i] != KV_NO_PAGE);
    assert_int_equal(window[i] != KV_NO_PAGE, i >= 8);
  }
  kv_publish(k, s, 0, tokens_a, 320, 320);
  kv_sequence_close(k, s);
  /* Only pages 8 and 9 of the window group are held: position 320 needs [256, 320), position 288
   * [224, 288). */
  assert_int_equal(matched(k, 0, tokens_a, 321, true), 320);
  assert_int_equal(matched(k, 0, tokens_a, 320, true), 0);
  /* Another one publishes as it goes: every prefix is covered while its window pages stay cached.
   */
  s = compute(k, opened(k), tokens_a, 0, 200, true, 0, 200);
  for (uint32_t n = 33; n <= 200; n += 32)
    assert_int_equal(matched(k, 0, tokens_a, n, true), n - 1);
  assert_int_equal(matched(k, 0, tokens_a, 300, true), 192);
  kv_ref ref;
  uint32_t t = opened(k);
  kv_match(k, 0, tokens_a, 321, true, &ref);
  assert_int_equal(kv_attach(k, t, 0, tokens_a, &ref), 320);
  window = kv_sequence_pages(k, t, 1);
  for (uint32_t i = 0; i < 10; i++) assert_int_equal(window[i] != KV_NO_PAGE, i >= 8);
  assert_int_equal(kv_sequence_extend(k, t, 320, 352), TROIKA_OK);
  kv_assert_sound(k, "attached");
  kv_destroy(&k);
}

static void a_window_holds_no_more_than_it_needs(void **state) {
  (void)state;
  kv *k = open_kv(64, 1, 2048);
  uint32_t need[KV_GROUPS_MAX], s = opened(k);
  kv_need(k, 2048, need);
  assert_int_equal(need[0], 64);
  assert_int_equal(need[1], 4);
  assert_int_equal(stats_of(k, 1).total, 4);
  assert_int_equal(kv_sequence_promise(k, s, 2048), TROIKA_OK);
  for (uint32_t at = 0; at < 2048;) { /* spans of 31 rows touch a page more than they fill */
    uint32_t end = at + 31 < 2048 ? at + 31 : 2048;
    assert_int_equal(kv_sequence_extend(k, s, at, end), TROIKA_OK);
    kv_sequence_keep_from(k, s, at = end);
    assert_true(stats_of(k, 1).owned <= 4);
  }
  kv_destroy(&k);
}

/* Full group of 32 pages. */
static void promises_are_kept(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024);
  uint32_t a = opened(k), b = opened(k), c = opened(k);
  assert_int_equal(kv_sequence_promise(k, a, 20 * 32), TROIKA_OK);
  assert_int_equal(stats_of(k, 0).promisable, 12);
  assert_int_equal(kv_sequence_promise(k, b, 12 * 32 + 1), TROIKA_BUSY);
  assert_int_equal(kv_sequence_promise(k, b, 10 * 32), TROIKA_OK);
  assert_int_equal(kv_sequence_extend(k, c, 0, 3 * 32),
                   TROIKA_NO_MEMORY); /* 2 are left to one without a promise */
  assert_int_equal(stats_of(k, 0).free, 32);
  assert_int_equal(kv_sequence_extend(k, c, 0, 2 * 32), TROIKA_OK);
  compute(k, a, tokens_a, 0, 20 * 32, true, 0, N);
  compute(k, b, tokens_b, 0, 10 * 32, true, 0, N);
  assert_int_equal(stats_of(k, 0).free, 0);
  /* Shared pages of the full group are paid for once: d needs 5 pages of its own, for which c must
   * go. */
  kv_ref ref;
  uint32_t d = opened(k);
  kv_match(k, 0, tokens_b, 15 * 32, true, &ref);
  assert_int_equal(kv_attach(k, d, 0, tokens_b, &ref), 10 * 32);
  assert_int_equal(kv_sequence_promise(k, d, 12 * 32), TROIKA_BUSY);
  kv_sequence_close(k, c);
  assert_int_equal(kv_sequence_promise(k, d, 12 * 32), TROIKA_OK);
  kv_sequence_close(k, b); /* its pages stay with d */
  assert_int_equal(stats_of(k, 0).cached, 0);
  assert_int_equal(stats_of(k, 0).promisable, 0);
  assert_int_equal(kv_sequence_extend(k, d, 10 * 32, 12 * 32), TROIKA_OK);
  kv_destroy(&k);
}

/* A request begins with a promise for its prompt and a little, and raises it as it goes. */
static void a_promise_is_raised(void **state) {
  (void)state;
  kv *k = open_kv(64, 1, 1024); /* 32 pages, 4 of the window */
  uint32_t a = opened(k), b = opened(k);
  assert_int_equal(kv_sequence_promise(k, a, 10 * 32), TROIKA_OK);
  assert_int_equal(stats_of(k, 0).promisable, 22);
  assert_int_equal(stats_of(k, 1).promisable, 0);
  assert_int_equal(kv_sequence_promise(k, b, 1), TROIKA_BUSY); /* a window has all that there are */
  compute(k, a, tokens_a, 0, 10 * 32, true, 0, N);
  assert_int_equal(kv_sequence_promise(k, a, 11 * 32), TROIKA_OK);
  assert_int_equal(kv_sequence_promise(k, a, 5 * 32), TROIKA_OK); /* nothing is given back */
  assert_int_equal(stats_of(k, 0).promisable, 21);
  assert_int_equal(kv_sequence_extend(k, a, 10 * 32, 11 * 32), TROIKA_OK);
  kv_sequence_close(k, a);
  kv_destroy(&k);
  k = open_kv(0, 1, 1024);
  a = opened(k), b = opened(k);
  assert_int_equal(kv_sequence_promise(k, a, 10 * 32), TROIKA_OK);
  assert_int_equal(kv_sequence_promise(k, b, 20 * 32), TROIKA_OK);
  assert_int_equal(kv_sequence_promise(k, a, 12 * 32 + 1), TROIKA_BUSY); /* 2 are left */
  assert_int_equal(stats_of(k, 0).promisable, 2);
  assert_int_equal(kv_sequence_promise(k, a, 1025), TROIKA_LIMIT);
  assert_int_equal(kv_sequence_promise(k, a, 12 * 32), TROIKA_OK);
  assert_int_equal(kv_sequence_promise(k, b, 20 * 32 + 1), TROIKA_BUSY);
  compute(k, a, tokens_a, 0, 12 * 32, false, 0, N); /* both have what they were promised */
  compute(k, b, tokens_b, 0, 20 * 32, false, 0, N);
  assert_int_equal(stats_of(k, 0).free, 0);
  kv_sequence_close(k, a);
  assert_int_equal(kv_sequence_promise(k, b, 32 * 32), TROIKA_OK);
  kv_destroy(&k);
}

static void what_closing_would_give_back(void **state) {
  (void)state;
  kv *k = open_kv(64, 4, 1024);
  uint32_t holds[KV_GROUPS_MAX], a = compute(k, opened(k), tokens_a, 0, 200, true, 0, N);
  kv_sequence_holds(k, a, holds);
  assert_int_equal(holds[0], 7);
  assert_int_equal(holds[1], 3); /* rows from 192 on see [128, ...) */
  assert_int_equal(holds[2], 0);
  kv_ref ref;
  uint32_t b = opened(k);
  kv_match(k, 0, tokens_a, 161, true, &ref);
  assert_int_equal(kv_attach(k, b, 0, tokens_a, &ref), 160);
  kv_sequence_holds(k, a, holds);
  assert_int_equal(holds[0], 2);
  assert_int_equal(holds[1], 2); /* page 4 is b's too */
  kv_sequence_holds(k, b, holds);
  assert_int_equal(holds[0], 0);
  assert_int_equal(holds[1], 1); /* page 3, which slid out of a's window */
  kv_total_stats t;
  kv_totals(k, &t);
  assert_int_equal(t.hits, 1);
  assert_int_equal(t.hit_tokens, 160);
  assert_int_equal(t.hit_pages, 5 + 2);
  assert_int_equal(t.nodes, 6);
  assert_int_equal(t.evictions, 0);
  assert_int_equal(t.table_bytes, 8 * 2 * 32 * 4);
  assert_true(t.node_bytes > 6 * 128 && t.node_bytes <= t.node_bytes_max);
  assert_true(t.page_entry_bytes && t.bucket_bytes);
  kv_destroy(&k);
}

/* Suspended after any number of tokens, it goes on from its last whole page: with a window too,
 * whose pages in front of the last whole page's end are kept for this. */
static void a_suspended_one_goes_on(void **state) {
  (void)state;
  static const uint32_t windows[] = {0, 1, 31, 32, 33, 64, 100};
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
    for (uint32_t at = 1; at <= 300; at++) {
      property_config c = {
          .groups = {{KV_FULL, 32, 0, 1, PAGE}, {KV_WINDOW, 32, windows[w], 1, PAGE}},
          .n_groups = windows[w] ? 2 : 1,
          .sequences = 2,
          .context = 512,
          .ahead = 32,
          .contexts = 2};
      kv *k = kv_open_for_test(&c);
      uint32_t s = opened(k), prompt = 1 + at * 7 % 61;
      assert_int_equal(kv_sequence_promise(k, s, at), TROIKA_OK);
      compute(k, s, tokens_a, 0, at, true, 3, prompt);
      for (uint64_t other = 4; other < 8; other++) /* takes what it let go of on the way */
        kv_sequence_close(k, compute(k, opened(k), tokens_b, 0, 160, true, other, N));
      kv_sequence_close(k, s);
      kv_ref ref;
      s = opened(k);
      assert_int_equal(kv_sequence_promise(k, s, 512), TROIKA_OK);
      uint32_t found = kv_match_own(k, 3, tokens_a, at + 1, prompt, &ref);
      if (found != at / 32 * 32) fail_msg("window %u: %u of %u found", windows[w], found, at);
      assert_int_equal(kv_attach(k, s, 3, tokens_a, &ref), found);
      compute(k, s, tokens_a, found, 512, true, 3, prompt);
      kv_assert_sound(k, "went on");
      kv_destroy(&k);
    }
}

/* Its own bits: not pages with the same tokens of which others were generated. */
static void only_its_own_generated_tokens(void **state) {
  (void)state;
  kv *k = open_kv(0, 8, 512);
  kv_ref ref;
  kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 256, true, 0, 70));
  assert_int_equal(kv_match_own(k, 0, tokens_a, 300, 70, &ref), 256);
  assert_int_equal(kv_match_own(k, 0, tokens_a, 300, 71, &ref), 64);
  assert_int_equal(kv_match_own(k, 0, tokens_a, 300, 96, &ref), 64);
  kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 256, true, 0, 256)); /* all sent */
  assert_int_equal(kv_match_own(k, 0, tokens_a, 300, 100, &ref), 96);
  assert_int_equal(kv_match_own(k, 0, tokens_a, 300, 70, &ref), 256);
  uint32_t s = opened(k), t = opened(k);
  assert_int_equal(kv_attach(k, s, 0, tokens_a, &ref), 256);
  assert_int_equal(kv_match(k, 0, tokens_a, 300, true, &ref), 256);
  assert_int_equal(kv_attach(k, t, 0, tokens_a, &ref), 256);
  const uint32_t *p = kv_sequence_pages(k, s, 0), *q = kv_sequence_pages(k, t, 0);
  for (int i = 0; i < 8; i++) assert_int_equal(p[i] == q[i], i < 2);
  kv_destroy(&k);
}

/* --- the price, in numbers --- */

enum { SECOND = 1000000000 };

/* Computes `pages` pages under a salt and closes with a hint. */
static void leave(kv *k, uint64_t salt, uint32_t pages, kv_claim_hint hint) {
  uint32_t s = compute(k, opened(k), tokens_a, 0, pages * 32, true, salt, N);
  kv_hint(k, s, &hint);
  kv_sequence_close(k, s);
}

/* How many pages are left of salts 1 and 2 once `taken` pages were needed by somebody else. */
static void take(kv *k, uint32_t taken, uint32_t left_1, uint32_t left_2) {
  uint32_t s = opened(k);
  assert_int_equal(kv_sequence_extend(k, s, 0, taken * 32), TROIKA_OK);
  assert_int_equal(matched(k, 1, tokens_a, N, true), left_1 * 32);
  assert_int_equal(matched(k, 2, tokens_a, N, true), left_2 * 32);
  kv_sequence_close(k, s);
  kv_assert_sound(k, "taken");
}

static void the_price_decides(void **state) {
  (void)state;
  static const struct {
    const char *what;
    kv_claim_hint first, second; /* the first is the older one by 3 s */
    int64_t wait_s;
    uint32_t left_1, left_2; /* of 16 pages each, after 8 were taken */
  } cases[] = {
      {"equal: the older one",
       {1, 500, 1000, 0, INT64_MAX},
       {1, 500, 1000, 0, INT64_MAX},
       1,
       8,
       16},
      {"weight 4", {4, 500, 1000, 0, INT64_MAX}, {1, 500, 1000, 0, INT64_MAX}, 1, 16, 8},
      /* 4 / (100 + 1 + 3) against 1 / (100 + 1): ever more alike, but not the other way round */
      {"weight 4, much later",
       {4, 500, 1000, 0, INT64_MAX},
       {1, 500, 1000, 0, INT64_MAX},
       100,
       16,
       8},
      {"chance", {1, 800, 1000, 0, INT64_MAX}, {1, 100, 1000, 0, INT64_MAX}, 1, 16, 8},
      {"cost", {1, 500, 9000, 0, INT64_MAX}, {1, 500, 1000, 0, INT64_MAX}, 1, 16, 8},
      {"expected in 5 s, in 60 s", {1, 500, 1000, 0, 8}, {1, 500, 1000, 0, 63}, 1, 16, 8},
      {"expected in 60 s, in 5 s", {1, 500, 1000, 0, 63}, {1, 500, 1000, 0, 8}, 1, 8, 16},
      {"expected in 60 s, used 4 s ago",
       {1, 500, 1000, 0, INT64_MAX},
       {1, 500, 1000, 0, 60},
       1,
       16,
       8},
      {"expected 40 s ago, used 50 s ago",
       {1, 500, 1000, 0, 13},
       {1, 500, 1000, 0, INT64_MAX},
       50,
       16,
       8},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kv *k = open_kv(0, 1, 1024); /* 32 pages */
    kv_claim_hint a = cases[i].first, b = cases[i].second;
    if (a.next_use_ns != INT64_MAX) a.next_use_ns *= SECOND;
    if (b.next_use_ns != INT64_MAX) b.next_use_ns *= SECOND;
    print_message("%s\n", cases[i].what);
    leave(k, 1, 16, a);
    kv_clock(k, INT64_C(3) * SECOND);
    leave(k, 2, 16, b);
    kv_clock(k, (3 + cases[i].wait_s) * SECOND);
    kv_clock(k, 0); /* goes not back */
    take(k, 8, cases[i].left_1, cases[i].left_2);
    kv_destroy(&k);
  }
}

/* A shared beginning stays while anything that follows it does, whatever it is worth by itself. */
static void a_prefix_stays_as_long_as_its_suffixes(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024);
  kv_ref ref;
  leave(k, 1, 4, (kv_claim_hint){1, 100, 1, 0, INT64_MAX}); /* nearly worthless */
  uint32_t s = opened(k);
  kv_match(k, 1, tokens_a, N, true, &ref);
  assert_int_equal(kv_attach(k, s, 1, tokens_a, &ref), 4 * 32);
  compute(k, s, tokens_a, 4 * 32, 16 * 32, true, 1, N);
  kv_hint(k, s, &(kv_claim_hint){4, 1000, 1000000, 0, 5 * (int64_t)SECOND});
  kv_sequence_close(k, s);
  leave(k, 2, 16, (kv_claim_hint){1, 500, 1000, 0, INT64_MAX});
  take(k, 12, 16, 4);
  take(k, 20, 12, 0);
  kv_destroy(&k);
}

/* Deeper is dearer if the hint says so: then another's end goes first, though it is younger. */
static void depth_has_its_price(void **state) {
  (void)state;
  for (uint32_t depth_ns = 0; depth_ns <= 4000; depth_ns += 4000) {
    kv *k = open_kv(0, 1, 1024);
    leave(k, 1, 24, (kv_claim_hint){1, 500, 1000, depth_ns, INT64_MAX});
    leave(k, 2, 8, (kv_claim_hint){1, 500, 1000, depth_ns, INT64_MAX});
    take(k, 4, depth_ns ? 24 : 20, depth_ns ? 4 : 8);
    kv_destroy(&k);
  }
}

/* The best of two who held it together counts; attached again later, it is worth what that one
 * says. */
static void claims_are_joined_and_end(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024);
  const kv_claim_hint high = {4, 800, 1000, 0, INT64_MAX}, low = {1, 100, 1000, 0, INT64_MAX};
  kv_ref ref;
  uint32_t a = compute(k, opened(k), tokens_a, 0, 16 * 32, true, 1, N), b = opened(k);
  kv_match(k, 1, tokens_a, N, true, &ref);
  kv_attach(k, b, 1, tokens_a, &ref);
  kv_hint(k, a, &high);
  kv_sequence_close(k, a);
  kv_hint(k, b, &low);
  kv_sequence_close(k, b);
  leave(k, 2, 16, (kv_claim_hint){1, 500, 1000, 0, INT64_MAX});
  take(k, 4, 16, 12);
  b = opened(k);
  kv_match(k, 1, tokens_a, N, true, &ref);
  kv_attach(k, b, 1, tokens_a, &ref);
  kv_hint(k, b, &low);
  kv_sequence_close(k, b);
  take(k, 8, 12, 12);
  kv_destroy(&k);
}

/* One whose pages were published by another first claims those: its own are not kept. */
static void a_claim_on_the_twin(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024);
  uint32_t a = compute(k, opened(k), tokens_a, 0, 8 * 32, true, 1, N);
  uint32_t b = compute(k, opened(k), tokens_a, 0, 8 * 32, true, 1, N);
  kv_sequence_close(k, a);
  kv_hint(k, b, &(kv_claim_hint){4, 800, 1000000, 0, INT64_MAX});
  kv_sequence_close(k, b);
  assert_int_equal(stats_of(k, 0).cached, 8);
  leave(k, 2, 16, (kv_claim_hint){1, 500, 1000000, 0, INT64_MAX});
  take(k, 16, 8, 8);
  kv_destroy(&k);
}

/* What nobody promised for must not take cached pages out of what others were promised. */
static void attaching_does_not_break_promises(void **state) {
  (void)state;
  for (uint32_t window = 0; window <= 64; window += 64) {
    kv *k = open_kv(window, 1, 1024);
    kv_ref ref;
    kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 96, true, 0, N));
    uint32_t a = opened(k), b = opened(k);
    assert_int_equal(kv_sequence_promise(k, a, 1024), TROIKA_OK);
    assert_int_equal(kv_match(k, 0, tokens_a, 97, true, &ref), 96);
    assert_int_equal(kv_attach(k, b, 0, tokens_a, &ref), 0);
    assert_int_equal(kv_attach(k, a, 0, tokens_a, &ref), 96);
    compute(k, a, tokens_a, 96, 1024, true, 0, N);
    kv_assert_sound(k, "a has all");
    kv_destroy(&k);
  }
}

static void the_oldest_suffix_goes_first(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024); /* 32 pages */
  kv_sequence_close(k, compute(k, opened(k), tokens_a, 0, 10 * 32, true, 0, N));
  kv_sequence_close(k, compute(k, opened(k), tokens_b, 0, 12 * 32, true, 0, N)); /* 10 are free */
  uint32_t s = compute(k, opened(k), tokens_b, 0, 13 * 32, false, 5, N);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 7 * 32); /* three pages from its end */
  assert_int_equal(matched(k, 0, tokens_b, N, true), 12 * 32);
  kv_ref ref; /* used again: b's are older now, and lose theirs */
  uint32_t t = opened(k);
  kv_match(k, 0, tokens_a, N, true, &ref);
  assert_int_equal(kv_attach(k, t, 0, tokens_a, &ref), 7 * 32);
  kv_sequence_close(k, t);
  assert_int_equal(kv_sequence_extend(k, s, 13 * 32, 15 * 32), TROIKA_OK);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 7 * 32);
  assert_int_equal(matched(k, 0, tokens_b, N, true), 10 * 32);
  kv_sequence_close(k, s); /* never published: free at once */
  assert_int_equal(stats_of(k, 0).free, 15);
  kv_destroy(&k);
}

/* Two compute the same prefix at once. The second goes on below the first one's pages; when those
 * are evicted while it still runs, it publishes its own. */
static void the_same_prefix_twice(void **state) {
  (void)state;
  kv *k = open_kv(0, 1, 1024); /* 32 pages */
  uint32_t a = compute(k, opened(k), tokens_a, 0, 4 * 32, true, 0, N);
  uint32_t b = compute(k, opened(k), tokens_a, 0, 8 * 32, true, 0, N);
  assert_int_equal(stats_of(k, 0).owned, 12);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 8 * 32);
  kv_sequence_close(k, a);
  assert_int_equal(stats_of(k, 0).cached, 4);
  uint32_t c = compute(k, opened(k), tokens_b, 0, 24 * 32, false, 0, N); /* takes the last one */
  assert_int_equal(stats_of(k, 0).cached, 0);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 0);
  kv_publish(k, b, 0, tokens_a, 8 * 32, N);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 8 * 32);
  kv_sequence_close(k, b);
  kv_sequence_close(k, c);
  assert_int_equal(matched(k, 0, tokens_a, N, true), 8 * 32);
  assert_int_equal(stats_of(k, 0).cached, 8);
  kv_destroy(&k);
}

/* Against a list of everything published, where nothing is evicted: the longest prefix, no less. */
static void matches_are_the_longest(void **state) {
  (void)state;
  enum { SEQUENCES = 60, LENGTH = 320 };
  static int32_t lists[SEQUENCES][LENGTH];
  kv *k = open_kv(0, SEQUENCES, LENGTH);
  uint32_t generated_from[SEQUENCES];
  srand(4);
  for (int i = 0; i < SEQUENCES; i++) {
    for (int j = 0; j < LENGTH; j++) lists[i][j] = j % 32 ? j : 1000 + rand() % 8 / 7;
    generated_from[i] = (uint32_t)(rand() % (LENGTH + 1));
    for (int exact = 0; exact < 2; exact++) {
      uint32_t best = 0;
      for (int other = 0; other < i; other++) {
        uint32_t n = 0, most = exact ? generated_from[other] / 32 * 32 : LENGTH;
        while (n < LENGTH && lists[other][n] == lists[i][n]) n++;
        n = n / 32 * 32;
        if (n > most) n = most;
        if (n > (LENGTH - 1) / 32 * 32) n = (LENGTH - 1) / 32 * 32;
        if (n > best) best = n;
      }
      assert_int_equal(matched(k, 3, lists[i], LENGTH, exact), best);
    }
    uint32_t s = compute(k, opened(k), lists[i], 0, LENGTH, true, 3, generated_from[i]);
    kv_sequence_close(k, s);
  }
  kv_assert_sound(k, "all published");
  kv_destroy(&k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_are_split_by_sequences),
      cmocka_unit_test(wrong_options_are_refused),
      cmocka_unit_test(sequences_run_out),
      cmocka_unit_test(a_match_leaves_one_token),
      cmocka_unit_test(salts_do_not_share),
      cmocka_unit_test(nothing_shows_across_salts),
      cmocka_unit_test(where_a_prompt_diverges),
      cmocka_unit_test(generated_tokens_are_not_exact),
      cmocka_unit_test(a_window_must_be_covered),
      cmocka_unit_test(a_window_holds_no_more_than_it_needs),
      cmocka_unit_test(promises_are_kept),
      cmocka_unit_test(a_promise_is_raised),
      cmocka_unit_test(what_closing_would_give_back),
      cmocka_unit_test(a_suspended_one_goes_on),
      cmocka_unit_test(only_its_own_generated_tokens),
      cmocka_unit_test(the_price_decides),
      cmocka_unit_test(a_prefix_stays_as_long_as_its_suffixes),
      cmocka_unit_test(depth_has_its_price),
      cmocka_unit_test(claims_are_joined_and_end),
      cmocka_unit_test(a_claim_on_the_twin),
      cmocka_unit_test(attaching_does_not_break_promises),
      cmocka_unit_test(the_oldest_suffix_goes_first),
      cmocka_unit_test(the_same_prefix_twice),
      cmocka_unit_test(matches_are_the_longest),
  };
  for (int i = 0; i < N; i++) tokens_a[i] = i * 7 + 1, tokens_b[i] = i * 5 + 2;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
