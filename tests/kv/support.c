/* SPDX-License-Identifier: Apache-2.0 */
/* Each position of a sequence has a marker: a hash of salt and all tokens up to it, below that a
 * hash of which of them were generated, and in the lowest bit whether any was. It is written into
 * the page's memory where K and V would be, and read back through the tables at any later time: a
 * page that is given to two owners, shared with the wrong prefix or freed too early shows as a
 * wrong marker. */
#include "kv/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 32 * 8, CONTEXT_MOST = 1024, SALTS = 3, EXPECTED = 9 };

#define FULL(bytes) \
  { .kind = KV_FULL, .page_tokens = 32, .layers = 1, .page_bytes = (bytes) }
#define WINDOW(w, bytes) \
  { .kind = KV_WINDOW, .page_tokens = 32, .window = (w), .layers = 1, .page_bytes = (bytes) }

const property_config property_configs[] = {
    {"full", {FULL(PAGE)}, 1, 6, 512, 40, 3},
    {"full and window", {FULL(PAGE), WINDOW(64, PAGE)}, 2, 6, 512, 40, 3},
    {"window", {WINDOW(100, PAGE)}, 1, 5, 512, 33, 3},
    {"two and two",
     {WINDOW(31, PAGE), FULL(PAGE), WINDOW(200, 2 * PAGE), FULL(4 * PAGE)},
     4,
     9,
     800,
     64,
     2},
    {"one sequence's worth", {FULL(PAGE), WINDOW(96, PAGE)}, 2, 4, 300, 32, 1},
};
const int property_configs_n = sizeof property_configs / sizeof *property_configs;

typedef struct model_sequence {
  bool open, suspended;
  bool mixed; /* attached generated tokens of others: which ones the markers do not know */
  uint32_t number, total, prompt, attached, written, extended, keep, promised;
  uint64_t salt;
  int32_t tokens[CONTEXT_MOST];
  uint64_t marker[CONTEXT_MOST];
} model_sequence;

typedef struct model {
  kv *k;
  const property_config *config;
  uint64_t random, seed;
  uint32_t step;
  int64_t now;
  property_counts counts;
  model_sequence *sequences;
  uint32_t expected[EXPECTED + 1];
} model;

static uint64_t hash(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static uint32_t roll(model *m, uint32_t below) {
  m->random = hash(m->random, 1);
  return (uint32_t)((m->random >> 32) % below);
}

#define MODEL_FAIL(m, ...)                                                                    \
  do {                                                                                        \
    print_error("%s, seed %llu, step %u: ", (m)->config->name, (unsigned long long)(m)->seed, \
                (m)->step);                                                                   \
    fail_msg(__VA_ARGS__);                                                                    \
  } while (0)

kv *kv_open_for_test(const property_config *c) {
  uint64_t bytes = 0;
  kv *k = NULL;
  troika_error err;
  for (uint32_t g = 0; g < c->n_groups; g++) {
    uint32_t all = (c->context + 31) / 32,
             most = (c->groups[g].window + 31) / 32 + (c->ahead + 62) / 32;
    uint32_t need = c->groups[g].kind == KV_FULL || all < most ? all : most;
    bytes += (uint64_t)need * c->groups[g].page_bytes * c->contexts;
  }
  kv_options o = {c->groups, c->n_groups, c->sequences, c->context, c->ahead, bytes, EXPECTED};
  if (kv_create(&o, &k, &err)) fail_msg("%s", err.text);
  assert_true(kv_bytes(k) <= bytes);
  return k;
}

void kv_assert_sound(const kv *k, const char *where) {
  troika_error err;
  if (!kv_check(k, &err)) fail_msg("%s: %s", where, err.text);
}

/* --- markers --- */

static uint64_t *cell(model *m, const model_sequence *s, uint32_t g, uint32_t position) {
  uint32_t page = kv_sequence_pages(m->k, s->number, g)[position / 32];
  if (page == KV_NO_PAGE) return NULL;
  return (uint64_t *)(kv_pool(m->k, g) + page * m->config->groups[g].page_bytes) + position % 32;
}

static uint64_t cell_any(model *m, const model_sequence *s, uint32_t position) {
  for (uint32_t g = 0; g < m->config->n_groups; g++) {
    const uint64_t *at = cell(m, s, g, position);
    if (at) return *at;
  }
  MODEL_FAIL(m, "position %u is held by no group", position);
  return 0;
}

enum { WHO = 24 }; /* bits that say who made the tokens */

static uint64_t marker_after(const model_sequence *s, uint32_t position, bool generated) {
  uint64_t before = position ? s->marker[position - 1] : s->salt << WHO;
  uint64_t tokens = hash(before >> WHO, (uint64_t)(uint32_t)s->tokens[position]);
  uint64_t who = hash(before & 0xffffff, generated) >> (64 - WHO) & ~(uint64_t)1;
  return tokens << WHO | who | ((before & 1) || generated);
}

static void read_back(model *m, const model_sequence *s, uint32_t g, uint32_t position) {
  const uint64_t *at = cell(m, s, g, position);
  if (!at) MODEL_FAIL(m, "group %u position %u has no page", g, position);
  bool others = s->mixed && position < s->attached && (s->marker[position] & 1);
  if ((*at ^ s->marker[position]) >> (others ? WHO : 0))
    MODEL_FAIL(m, "group %u position %u holds %llx, not %llx", g, position, (unsigned long long)*at,
               (unsigned long long)s->marker[position]);
}

/* The first position that rows from `keep` on may look at. */
static uint32_t visible_from(const model *m, const model_sequence *s, uint32_t g) {
  const kv_group *group = &m->config->groups[g];
  return group->kind == KV_FULL || s->keep <= group->window ? 0 : s->keep - group->window;
}

static void read_some(model *m, const model_sequence *s, uint32_t reads) {
  for (uint32_t g = 0; g < m->config->n_groups; g++) {
    uint32_t from = visible_from(m, s, g);
    if (from >= s->written) continue;
    for (uint32_t i = 0; i < reads; i++) read_back(m, s, g, from + roll(m, s->written - from));
    read_back(m, s, g, from);
    read_back(m, s, g, s->written - 1);
  }
}

/* --- steps --- */

/* Tokens by choices a page: mostly the first, so that many prefixes are common. */
static void invent_tokens(model *m, model_sequence *s) {
  uint32_t n = m->config->context;
  for (uint32_t page = 0; page * 32 < n; page++) {
    uint32_t choice = roll(m, 8) ? 0 : 1 + roll(m, 2);
    for (uint32_t i = page * 32; i < page * 32 + 32 && i < n; i++)
      s->tokens[i] = (int32_t)(hash(page, choice) % 50000 + i % 32);
  }
}

static uint32_t window_most(const model *m, uint32_t g) {
  return (m->config->groups[g].window + 31) / 32 + (m->config->ahead + 62) / 32;
}

/* For `tokens`; again with more to raise it. */
static bool model_promise(model *m, model_sequence *s, uint32_t tokens) {
  uint32_t need[KV_GROUPS_MAX];
  kv_pool_stats stats;
  bool fits = true;
  uint32_t already[KV_GROUPS_MAX];
  kv_need(m->k, tokens, need);
  kv_need(m->k, s->promised, already);
  for (uint32_t g = 0; g < m->config->n_groups; g++) {
    uint32_t held = 0, all = (tokens + 31) / 32;
    bool full = m->config->groups[g].kind == KV_FULL;
    if (need[g] != (full || all < window_most(m, g) ? all : window_most(m, g)))
      MODEL_FAIL(m, "need of %u tokens in group %u is %u", tokens, g, need[g]);
    const uint32_t *pages = kv_sequence_pages(m->k, s->number, g);
    for (uint32_t i = 0; i < (m->config->context + 31) / 32; i++) held += pages[i] != KV_NO_PAGE;
    if (held < already[g]) held = already[g];
    kv_stats(m->k, g, &stats);
    fits = fits && (need[g] <= held || need[g] - held <= stats.promisable);
  }
  troika_status status = kv_sequence_promise(m->k, s->number, tokens);
  if (status != (fits ? TROIKA_OK : TROIKA_BUSY)) MODEL_FAIL(m, "promise: %d", status);
  if (!fits) return m->counts.busy++, false;
  m->counts.raised += s->promised && tokens > s->promised;
  if (tokens > s->promised) s->promised = tokens;
  m->counts.promises++;
  return true;
}

/* Some of what it will need: at least all that it has. */
static uint32_t some(model *m, const model_sequence *s) {
  uint32_t least = s->prompt > s->written ? s->prompt : s->written;
  return roll(m, 2) ? s->total : least + roll(m, s->total - least + 1);
}

static void model_attach(model *m, model_sequence *s) {
  kv_ref ref;
  bool exact = roll(m, 3) == 0;
  uint32_t n = kv_match(m->k, s->salt, s->tokens, s->prompt, exact, &ref);
  if (n % 32 || n >= s->prompt || n != ref.tokens) MODEL_FAIL(m, "match of %u", n);
  uint32_t got = kv_attach(m->k, s->number, s->salt, s->tokens, &ref);
  if (got != n && (got || s->promised)) MODEL_FAIL(m, "%u matched, %u attached", n, got);
  s->attached = s->written = s->extended = s->keep = got;
  m->counts.attached_tokens += got;
  bool generated = false;
  for (uint32_t i = 0; i < got; i++) { /* which rows were generated is read; the tokens are ours */
    uint64_t found = UINT64_MAX;
    for (uint32_t g = 0; g < m->config->n_groups; g++) {
      const uint64_t *at = i >= visible_from(m, s, g) ? cell(m, s, g, i) : NULL;
      if (!at) continue;
      if (found != UINT64_MAX && (*at ^ found) >> WHO) MODEL_FAIL(m, "groups differ at %u", i);
      if (found != UINT64_MAX && *at != found && exact)
        MODEL_FAIL(m, "exact groups differ at %u", i);
      found = *at;
      generated = generated || (found & 1);
    }
    s->marker[i] = marker_after(s, i, generated);
    if (found != UINT64_MAX && (found ^ s->marker[i]) >> (exact ? 0 : WHO))
      MODEL_FAIL(m, "attached position %u is wrong", i);
  }
  if (got && generated != (cell_any(m, s, got - 1) & 1))
    MODEL_FAIL(m, "the last position is not generated");
  if (generated && exact) MODEL_FAIL(m, "an exact match holds generated tokens");
  m->counts.generated_attached += generated;
  s->mixed = generated;
  read_some(m, s, 4);
}

/* Where the prompt leaves the cache, against the match. */
static void model_diverge(model *m, const model_sequence *s) {
  kv_ref ref;
  uint32_t whole, agreed = kv_diverged(m->k, s->salt, s->tokens, s->prompt, &whole);
  uint32_t n = kv_match(m->k, s->salt, s->tokens, s->prompt, false, &ref);
  if (agreed > s->prompt || whole > agreed || whole < n || whole % 32 ||
      (whole - n) > (whole == s->prompt ? s->prompt : 0))
    MODEL_FAIL(m, "%u agree, %u in whole pages, %u match", agreed, whole, n);
}

static void model_open(model *m, model_sequence *s) {
  troika_status status = kv_sequence_open(m->k, &s->number);
  if (status) MODEL_FAIL(m, "open: %d", status);
  s->open = true;
  s->attached = s->written = s->extended = s->keep = s->promised = 0;
  s->mixed = s->suspended = false;
  s->salt = roll(m, SALTS);
  s->prompt = 1 + roll(m, (m->config->context - 1) >> roll(m, 3));
  s->total = s->prompt + roll(m, (m->config->context - s->prompt + 1) >> roll(m, 2));
  invent_tokens(m, s);
  uint32_t when = roll(m, 5); /* promise first, promise later, or never */
  if (roll(m, 16) == 0) model_diverge(m, s);
  if (when < 3) model_promise(m, s, some(m, s));
  if (when < 3 && !s->promised) { /* as the runtime does: not admitted */
    kv_sequence_close(m->k, s->number);
    s->open = false;
    return;
  }
  if (roll(m, 8)) model_attach(m, s);
  if (when == 3) model_promise(m, s, some(m, s));
}

static void model_hint(model *m, const model_sequence *s) {
  kv_claim_hint hint = {
      .w = roll(m, 2) ? 4 : 1,
      .p = roll(m, 2) ? 100 + roll(m, 900) : 500,
      .cost_ns_per_token = roll(m, 4) ? 300000 : roll(m, 1u << 30),
      .depth_ns = roll(m, 2) ? 200000 : 0,
      .next_use_ns = roll(m, 3) ? m->now + 1000000 * (int64_t)roll(m, 100000) : INT64_MAX};
  kv_hint(m->k, s->number, &hint);
  m->counts.hints++;
}

/* A waiting request comes, or goes. One more than there is room for is not expected. */
static void model_expect(model *m) {
  uint32_t *at = &m->expected[roll(m, EXPECTED + 1)];
  if (*at != KV_NO_EXPECTATION) {
    kv_expect_end(m->k, *at);
    *at = KV_NO_EXPECTATION;
    return;
  }
  model_sequence s = {.salt = roll(m, SALTS)};
  const kv_claim_hint hint = {.w = roll(m, 2) ? 4 : 1,
                              .cost_ns_per_token = 1000 + roll(m, 1000000),
                              .depth_ns = roll(m, 2) ? 200000 : 0};
  uint32_t open = 0, n = 1 + roll(m, m->config->context);
  for (uint32_t i = 0; i <= EXPECTED; i++) open += m->expected[i] != KV_NO_EXPECTATION;
  invent_tokens(m, &s);
  kv_ref ref;
  uint32_t there = kv_match_own(m->k, s.salt, s.tokens, n, UINT32_MAX, &ref);
  *at = kv_expect(m->k, s.salt, s.tokens, n, UINT32_MAX, &hint);
  if ((*at != KV_NO_EXPECTATION) != (there && open < EXPECTED))
    MODEL_FAIL(m, "%u tokens are there, %u expectations open: %u", there, open, *at);
  m->counts.expected += *at != KV_NO_EXPECTATION;
}

/* What closing it would give back, counted over the tables of all. */
static void model_holds(model *m, const model_sequence *s) {
  uint32_t out[KV_GROUPS_MAX], pages = (m->config->context + 31) / 32;
  kv_sequence_holds(m->k, s->number, out);
  for (uint32_t g = 0; g < m->config->n_groups; g++) {
    uint32_t alone = 0;
    const uint32_t *own = kv_sequence_pages(m->k, s->number, g);
    for (uint32_t i = 0; i < pages; i++) {
      bool shared = own[i] == KV_NO_PAGE;
      for (uint32_t o = 0; o < m->config->sequences && !shared; o++)
        shared = m->sequences[o].open && &m->sequences[o] != s &&
                 kv_sequence_pages(m->k, m->sequences[o].number, g)[i] == own[i];
      alone += !shared;
    }
    if (alone != out[g]) MODEL_FAIL(m, "group %u: holds %u pages alone, not %u", g, alone, out[g]);
  }
}

static void model_close(model *m, model_sequence *s) {
  if (roll(m, 2)) model_hint(m, s);
  if (roll(m, 4) == 0) model_holds(m, s);
  kv_sequence_close(m->k, s->number);
  s->open = false;
}

static void model_publish(model *m, model_sequence *s) {
  kv_publish(m->k, s->number, s->salt, s->tokens, s->written, s->prompt);
}

/* Out of its pages, to be taken up again where it was. */
static void model_suspend(model *m, model_sequence *s) {
  model_publish(m, s);
  model_close(m, s);
  s->suspended = true;
  m->counts.suspended++;
}

static void model_resume(model *m, model_sequence *s) {
  kv_ref ref;
  uint32_t was = s->written, n = was + 1 < m->config->context ? was + 1 : m->config->context;
  troika_status status = kv_sequence_open(m->k, &s->number);
  if (status) MODEL_FAIL(m, "open: %d", status);
  s->promised = s->attached = s->written = s->keep = 0; /* nothing is held to be counted */
  if (!model_promise(m, s, was > s->prompt ? was : s->prompt)) {
    s->written = was;
    kv_sequence_close(m->k, s->number);
    return;
  }
  uint32_t found = kv_match_own(m->k, s->salt, s->tokens, n, s->prompt, &ref);
  uint32_t got = kv_attach(m->k, s->number, s->salt, s->tokens, &ref);
  if (got != found || got > was) MODEL_FAIL(m, "%u of %u found, %u attached", found, was, got);
  s->open = true;
  s->suspended = false;
  s->attached = s->written = s->extended = s->keep = got;
  if (s->mixed) /* not the bits that it had: those were another's */
    for (uint32_t i = 0; i < got; i++) s->marker[i] = marker_after(s, i, i >= s->prompt);
  s->mixed = false;
  m->counts.resumed++;
  m->counts.resumed_whole += got == was / 32 * 32;
  m->counts.resumed_generated += got > s->prompt;
  read_some(m, s, 4);
}

static void model_advance(model *m, model_sequence *s) {
  kv_pool_stats before[KV_GROUPS_MAX], after;
  uint32_t rows = s->keep + m->config->ahead - s->written;
  if (rows > s->total - s->written) rows = s->total - s->written;
  uint32_t end = s->written + roll(m, rows + 1);
  bool evicts = false;
  if (s->promised && end > s->promised && !model_promise(m, s, end + roll(m, s->total - end + 1))) {
    if (roll(m, 2)) {
      model_suspend(m, s);
      return;
    }
    end = s->promised > s->written ? s->promised : s->written;
  }
  for (uint32_t g = 0; g < m->config->n_groups; g++) kv_stats(m->k, g, &before[g]);
  troika_status status = kv_sequence_extend(m->k, s->number, s->written, end);
  if (status && (status != TROIKA_NO_MEMORY || s->promised)) MODEL_FAIL(m, "extend: %d", status);
  for (uint32_t g = 0; g < m->config->n_groups; g++) {
    kv_stats(m->k, g, &after);
    evicts = evicts || after.cached < before[g].cached;
    if (status && (before[g].free != after.free || before[g].cached != after.cached ||
                   before[g].promisable != after.promisable))
      MODEL_FAIL(m, "a failed extend changed group %u", g);
  }
  m->counts.evicting += evicts;
  if (status) {
    m->counts.refused++;
    model_close(m, s);
    return;
  }
  if (end > s->extended) s->extended = end;
  uint32_t to = roll(m, 4) ? end : s->written + roll(m, end - s->written + 1); /* rejected drafts */
  for (uint32_t i = s->written; i < end; i++) {
    uint64_t marker = marker_after(s, i, i >= s->prompt);
    if (i < to) s->marker[i] = marker;
    for (uint32_t g = 0; g < m->config->n_groups; g++) *cell(m, s, g, i) = i < to ? marker : 0xdead;
    if (i >= to) break;
  }
  s->written = to;
  if (roll(m, 3) == 0) model_publish(m, s);
  if (roll(m, 3)) {
    s->keep = s->written;
    kv_sequence_keep_from(m->k, s->number, s->keep);
    for (uint32_t g = 0; g < m->config->n_groups; g++)
      m->counts.released += visible_from(m, s, g) >= 32;
  }
  if (roll(m, 3) == 0) model_publish(m, s);
}

static void model_step(model *m) {
  model_sequence *s = &m->sequences[roll(m, m->config->sequences)];
  uint32_t what = roll(m, 16);
  m->now += roll(m, 8) ? 0 : 1000000 * (int64_t)roll(m, 4000);
  kv_clock(m->k, m->now);
  if (roll(m, 8) == 0) model_expect(m);
  if (!s->open && s->suspended) {
    model_resume(m, s);
  } else if (!s->open) {
    model_open(m, s);
  } else if (what == 1) {
    roll(m, 4) ? model_hint(m, s) : model_suspend(m, s);
  } else if (what == 0 || (s->written == s->total && what < 8)) {
    if (roll(m, 4)) model_publish(m, s);
    model_close(m, s);
  } else {
    model_advance(m, s);
  }
  model_sequence *other = &m->sequences[roll(m, m->config->sequences)];
  if (other->open) read_some(m, other, 1);
}

property_counts property_run(const property_config *config, uint64_t seed, uint32_t steps,
                             uint32_t check_every) {
  model m = {.config = config, .seed = seed, .random = seed};
  m.k = kv_open_for_test(config);
  m.sequences = calloc(config->sequences, sizeof *m.sequences);
  assert_non_null(m.sequences);
  for (uint32_t i = 0; i <= EXPECTED; i++) m.expected[i] = KV_NO_EXPECTATION;
  for (m.step = 0; m.step < steps; m.step++) {
    troika_error err;
    model_step(&m);
    if (m.step % check_every) continue;
    if (!kv_check(m.k, &err)) MODEL_FAIL(&m, "%s", err.text);
    for (uint32_t i = 0; i < config->sequences; i++)
      if (m.sequences[i].open)
        for (uint32_t g = 0; g < config->n_groups; g++)
          for (uint32_t p = visible_from(&m, &m.sequences[i], g); p < m.sequences[i].written; p++)
            read_back(&m, &m.sequences[i], g, p);
  }
  for (uint32_t i = 0; i < config->sequences; i++)
    if (m.sequences[i].open) model_close(&m, &m.sequences[i]);
  kv_assert_sound(m.k, config->name);
  for (uint32_t g = 0; g < config->n_groups; g++) {
    kv_pool_stats stats;
    kv_stats(m.k, g, &stats);
    assert_int_equal(stats.owned, 0);
    assert_int_equal(stats.promisable, stats.total);
  }
  free(m.sequences);
  kv_destroy(&m.k);
  assert_null(m.k);
  return m.counts;
}
