/* SPDX-License-Identifier: Apache-2.0 */
/* Which page goes: beside a model that keeps every cached page in one array and looks at all of
 * them by the definition of V. Each eviction is foretold and looked for. Another seed and number of
 * turns: test_kv_evict SEED TURNS. */
#include <stdlib.h>
#include <string.h>

#include "kv/support.h"

enum { STORIES = 24, LENGTH = 10, SLOTS = 3, CONTEXT = LENGTH * 32 + 1, PAGE = 64, WAITING = 9 };
#define SECOND INT64_C(1000000000)

static uint64_t seed = 20261130;
static uint32_t turns = 100000;

typedef enum hints { NO_HINTS, ONLY_TAU, ALL_HINTS } hints;

typedef struct page {
  bool present;
  uint32_t refs, parent, depth, children; /* parent: STORIES * LENGTH: none */
  uint64_t price, stamp, sure_cost;
  int64_t focus;
} page;

typedef struct waiting { /* a request that is sure to use the first pages of its story */
  bool open, reactive;
  uint32_t expectation, story, length; /* length: 0 if all were evicted */
} waiting;

typedef struct life {
  kv *k;
  hints kind;
  uint64_t random, stamps, evictions, future, by_price, expected, sure_gone;
  int64_t now;
  int32_t tokens[STORIES][CONTEXT];
  uint32_t name[STORIES][LENGTH]; /* which page it is: shared beginnings are the same one */
  page pages[STORIES * LENGTH + 1];
  uint32_t present;
  struct {
    bool open;
    uint32_t number, story, length;
  } slots[SLOTS];
  waiting waiting[WAITING];
} life;

static uint32_t roll(life *l, uint32_t below) {
  l->random = l->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)((l->random >> 33) % below);
}

/* Each story goes on from some place of an earlier one. */
static void invent(life *l) {
  for (uint32_t s = 0; s < STORIES; s++) {
    uint32_t from = s ? roll(l, s) : 0, shared = s ? roll(l, LENGTH) : 0;
    for (uint32_t i = 0; i < LENGTH; i++) {
      bool old = i < shared;
      l->name[s][i] = old ? l->name[from][i] : s * LENGTH + i;
      page *p = &l->pages[l->name[s][i]];
      p->depth = i + 1;
      p->parent = i ? l->name[s][i - 1] : STORIES * LENGTH;
      for (uint32_t t = i * 32; t < i * 32 + 32; t++)
        l->tokens[s][t] = old ? l->tokens[from][t] : (int32_t)(s * 100000 + t);
    }
  }
}

static uint64_t rounded(uint64_t price) {
  uint32_t shift = 0;
  for (; price >= 8; price >>= 1) shift++;
  return price << shift;
}

/* The weight of those that wait for it; 0: nobody. */
static uint32_t sure(const life *l, const page *p) {
  uint32_t weight = 0;
  for (uint32_t i = 0; i < WAITING; i++) {
    const waiting *w = &l->waiting[i];
    uint32_t own = w->reactive ? 4 : 1;
    if (w->open && p->depth <= w->length && own > weight &&
        &l->pages[l->name[w->story][p->depth - 1]] == p)
      weight = own;
  }
  return weight;
}

static uint64_t price_of(const life *l, const page *p) {
  uint64_t now = (uint64_t)sure(l, p) * 1000 * p->sure_cost * 32;
  return rounded(now > p->price ? now : p->price);
}

/* a's price by b's distance, against b's by a's: which V is less. */
static int compare(const life *l, const page *a, const page *b) {
  uint64_t tau_a = (sure(l, a) ? 0 : (uint64_t)llabs(a->focus - l->now)) + SECOND,
           tau_b = (sure(l, b) ? 0 : (uint64_t)llabs(b->focus - l->now)) + SECOND;
  unsigned __int128 left = (unsigned __int128)price_of(l, a) * tau_b,
                    right = (unsigned __int128)price_of(l, b) * tau_a;
  return left < right ? -1 : left > right;
}

static bool may_go(const page *p) {
  return p->present && !p->refs && !p->children;
}

static page *foretell(life *l) {
  page *victim = NULL;
  for (uint32_t i = 0; i < STORIES * LENGTH; i++) {
    page *p = &l->pages[i];
    int order = may_go(p) && victim ? compare(l, p, victim) : 0;
    if (may_go(p) && (!victim || order < 0 || (order == 0 && p->stamp < victim->stamp))) victim = p;
  }
  return victim;
}

/* What invariant 17 says of the victim, without the price. */
static void look_at(life *l, const page *victim) {
  for (uint32_t i = 0; i < STORIES * LENGTH; i++) {
    const page *p = &l->pages[i];
    if (!may_go(p)) continue;
    if (l->kind == NO_HINTS) assert_true(p->stamp >= victim->stamp);
    if (l->kind == ONLY_TAU) assert_true(llabs(p->focus - l->now) <= llabs(victim->focus - l->now));
    l->by_price += l->kind == ALL_HINTS && llabs(p->focus - l->now) > llabs(victim->focus - l->now);
  }
  l->evictions++;
  l->future += victim->focus > l->now;
}

static uint32_t cached_pages(const life *l, uint32_t story, uint32_t most) {
  kv_ref ref;
  return kv_match(l->k, 1, l->tokens[story], most * 32 + 1, true, &ref) / 32;
}

static void compare_all(const life *l) {
  kv_assert_sound(l->k, "evict");
  for (uint32_t s = 0; s < STORIES; s++) {
    uint32_t n = 0;
    while (n < LENGTH && l->pages[l->name[s][n]].present) n++;
    assert_int_equal(cached_pages(l, s, LENGTH), n);
  }
}

static void gone(life *l, page *victim) {
  uint32_t story = (uint32_t)(victim - l->pages) / LENGTH;
  look_at(l, victim);
  l->sure_gone += sure(l, victim) > 0;
  for (uint32_t i = 0; i < WAITING; i++) {
    waiting *w = &l->waiting[i];
    bool ends = w->length == victim->depth && l->name[w->story][w->length - 1] == victim - l->pages;
    w->length -= w->open && ends;
  }
  victim->present = false;
  l->pages[victim->parent].children--;
  l->present--;
  if (cached_pages(l, story, victim->depth) != victim->depth - 1)
    fail_msg("seed %llu: page %u of story %u was to go", (unsigned long long)seed, victim->depth,
             story);
}

static void begin(life *l, uint32_t slot) {
  uint32_t s = roll(l, STORIES), most = 1 + roll(l, LENGTH), n = 0;
  kv_ref ref;
  kv_pool_stats stats;
  assert_int_equal(kv_sequence_open(l->k, &l->slots[slot].number), TROIKA_OK);
  uint32_t q = l->slots[slot].number;
  while (n < most && l->pages[l->name[s][n]].present) n++;
  assert_int_equal(kv_match(l->k, 1, l->tokens[s], most * 32 + 1, true, &ref), n * 32);
  assert_int_equal(kv_attach(l->k, q, 1, l->tokens[s], &ref), n * 32);
  for (uint32_t i = 0; i < n; i++) {
    page *p = &l->pages[l->name[s][i]];
    if (!p->refs++) p->price = 0, p->focus = 0;
  }
  kv_stats(l->k, 0, &stats);
  for (; n < most; n++) {
    page *p = &l->pages[l->name[s][n]], *victim = l->present < stats.total ? NULL : foretell(l);
    bool fits = l->present < stats.total || victim;
    assert_int_equal(kv_sequence_extend(l->k, q, n * 32, n * 32 + 32),
                     fits ? TROIKA_OK : TROIKA_NO_MEMORY);
    if (!fits) break;
    if (victim) gone(l, victim);
    kv_publish(l->k, q, 1, l->tokens[s], n * 32 + 32, UINT32_MAX);
    p->present = true;
    p->refs = 1;
    p->price = 0;
    p->focus = 0;
    l->pages[p->parent].children++;
    l->present++;
  }
  l->slots[slot].open = true;
  l->slots[slot].story = s;
  l->slots[slot].length = n;
}

static void claim(life *l, page *p, const kv_claim_hint *h) {
  uint64_t cost = h->cost_ns_per_token + (uint64_t)h->depth_ns * (p->depth - 1) / 32;
  uint64_t price = (uint64_t)h->w * h->p * cost * 32;
  if (price > p->price) p->price = price;
  if (h->next_use_ns == INT64_MAX || h->next_use_ns <= l->now) return;
  if (p->focus <= l->now || h->next_use_ns < p->focus) p->focus = h->next_use_ns;
}

static void end(life *l, uint32_t slot) {
  uint32_t story = l->slots[slot].story;
  kv_claim_hint h = {.w = 1, .p = 500, .cost_ns_per_token = 400000, .next_use_ns = INT64_MAX};
  bool hinted = l->kind == ONLY_TAU || (l->kind == ALL_HINTS && roll(l, 3));
  if (l->kind != NO_HINTS && roll(l, 2)) h.next_use_ns = l->now + SECOND / 7 * roll(l, 600);
  if (l->kind == ALL_HINTS) {
    h.w = roll(l, 2) ? 4 : 1;
    h.p = 100 + roll(l, 3) * 350;
    h.cost_ns_per_token = 200000 + roll(l, 1000000);
    h.depth_ns = roll(l, 5000000);
  }
  if (hinted) kv_hint(l->k, l->slots[slot].number, &h);
  for (uint32_t i = l->slots[slot].length; i-- > 0;) {
    page *p = &l->pages[l->name[story][i]];
    if (hinted) claim(l, p, &h);
    if (--p->refs) continue;
    p->stamp = ++l->stamps;
    if (!p->price) p->price = (uint64_t)100 * 1000000 * 32;
    if (p->focus <= l->now) p->focus = l->now;
  }
  kv_sequence_close(l->k, l->slots[slot].number);
  l->slots[slot].open = false;
}

static void wait_or_leave(life *l) {
  waiting *w = &l->waiting[roll(l, WAITING)];
  if (w->open) {
    kv_expect_end(l->k, w->expectation);
    w->open = false;
    return;
  }
  *w = (waiting){.reactive = roll(l, 2), .story = roll(l, STORIES)};
  const kv_claim_hint h = {.w = w->reactive ? 4 : 1,
                           .cost_ns_per_token = 100 + roll(l, roll(l, 2) ? 1000 : 1000000),
                           .depth_ns = roll(l, roll(l, 2) ? 1000 : 5000000)};
  uint32_t most = 1 + roll(l, LENGTH);
  while (w->length < most && l->pages[l->name[w->story][w->length]].present) w->length++;
  for (uint32_t i = 0; i < w->length; i++)
    l->pages[l->name[w->story][i]].sure_cost = h.cost_ns_per_token + (uint64_t)h.depth_ns * i / 32;
  w->expectation = kv_expect(l->k, 1, l->tokens[w->story], most * 32 + 1, UINT32_MAX, &h);
  w->open = w->length > 0;
  assert_int_equal(w->open, w->expectation != KV_NO_EXPECTATION);
  l->expected += w->open;
}

static void run(hints kind) {
  property_config c = {.groups = {{KV_FULL, 32, 0, 1, PAGE}},
                       .n_groups = 1,
                       .sequences = SLOTS,
                       .context = CONTEXT,
                       .ahead = 32,
                       .contexts = 5}; /* 55 pages for stories of up to 240 */
  life *l = calloc(1, sizeof *l);
  assert_non_null(l);
  l->k = kv_open_for_test(&c);
  l->kind = kind;
  l->random = seed + kind;
  invent(l);
  for (uint32_t turn = 0; turn < turns; turn++) {
    uint32_t slot = roll(l, SLOTS);
    l->slots[slot].open ? end(l, slot) : begin(l, slot);
    if (kind == ALL_HINTS && roll(l, 4) == 0) wait_or_leave(l);
    if (roll(l, 3)) l->now += SECOND / 1000 * roll(l, 2000);
    kv_clock(l->k, l->now);
    if (turn % 256 == 0) compare_all(l);
  }
  print_message("%u turns: evicted %llu, expected again later %llu, nearer than others %llu\n",
                turns, (unsigned long long)l->evictions, (unsigned long long)l->future,
                (unsigned long long)l->by_price);
  print_message("expected %llu prefixes; %llu of their pages went nevertheless\n",
                (unsigned long long)l->expected, (unsigned long long)l->sure_gone);
  assert_true(l->evictions > turns / 10);
  assert_true(kind != ALL_HINTS || (l->expected > turns / 100 && l->sure_gone > turns / 20000));
  assert_true(kind == NO_HINTS ? !l->future : l->future > turns / 100);
  assert_true(kind != ALL_HINTS || l->by_price > turns / 100);
  kv_pool_stats stats;
  kv_stats(l->k, 0, &stats);
  assert_int_equal(stats.evictions, l->evictions);
  kv_destroy(&l->k);
  free(l);
}

static void without_hints_the_oldest_leaf_goes(void **state) {
  (void)state;
  run(NO_HINTS);
}

static void equal_but_for_tau_the_farthest_goes(void **state) {
  (void)state;
  run(ONLY_TAU);
}

static void the_smallest_price_goes(void **state) {
  (void)state;
  run(ALL_HINTS);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_hints_the_oldest_leaf_goes),
      cmocka_unit_test(equal_but_for_tau_the_farthest_goes),
      cmocka_unit_test(the_smallest_price_goes),
  };
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  if (argc > 2) turns = (uint32_t)strtoul(argv[2], NULL, 0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
