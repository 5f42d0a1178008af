/* SPDX-License-Identifier: Apache-2.0 */
/* kv.c - sequences: their tables, what they hold and what they were promised. See internal.h for
 * why a promise holds. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "kv/internal.h"

/* Bounds under which the byte arithmetic of pool.c cannot overflow: 2^12 * 2^20 * 2^28 * 4 < 2^63.
 */
enum {
  SEQUENCES_MAX = 1 << 12,
  CONTEXT_MAX = 1 << 25,
  PAGE_BYTES_MAX = 1 << 28,
  EXPECTED_MAX = 1 << 14
};

static troika_status options_check(const kv_options *o, troika_error *err) {
  if (o->n_groups < 1 || o->n_groups > KV_GROUPS_MAX)
    return error_set(err, TROIKA_INVALID, "%u KV groups, allowed are 1 to %d", o->n_groups,
                     KV_GROUPS_MAX);
  if (o->expected > EXPECTED_MAX)
    return error_set(err, TROIKA_INVALID, "%u expected prefixes, allowed are 0 to %d", o->expected,
                     EXPECTED_MAX);
  if (o->sequences < 1 || o->sequences > SEQUENCES_MAX)
    return error_set(err, TROIKA_INVALID, "%u sequences, allowed are 1 to %d", o->sequences,
                     SEQUENCES_MAX);
  if (o->context < 1 || o->context > CONTEXT_MAX || o->ahead < 1 || o->ahead > CONTEXT_MAX)
    return error_set(err, TROIKA_INVALID, "context of %u tokens, %u ahead: allowed are 1 to %d",
                     o->context, o->ahead, CONTEXT_MAX);
  for (uint32_t g = 0; g < o->n_groups; g++) {
    const kv_group *group = &o->groups[g];
    if (group->page_tokens != KV_PAGE_TOKENS || group->page_bytes < 64 || group->page_bytes % 64 ||
        group->page_bytes > PAGE_BYTES_MAX)
      return error_set(err, TROIKA_INVALID, "KV group %u: page of %u tokens, %zu bytes", g,
                       group->page_tokens, group->page_bytes);
    if ((group->kind == KV_WINDOW) != (group->window > 0) || group->window > CONTEXT_MAX)
      return error_set(err, TROIKA_INVALID, "KV group %u: kind %u, window of %u tokens", g,
                       group->kind, group->window);
  }
  return TROIKA_OK;
}

static troika_status sequences_create(kv *k, troika_error *err) {
  size_t cells = (size_t)k->n_sequences * k->n_groups * k->table_pages;
  k->sequences = calloc(k->n_sequences, sizeof *k->sequences);
  k->tables = malloc(cells * sizeof *k->tables);
  if (!k->sequences || !k->tables)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the page tables of %u sequences",
                     k->n_sequences);
  for (size_t i = 0; i < cells; i++) k->tables[i] = KV_NO_PAGE;
  uint32_t *next = k->tables;
  for (uint32_t s = 0; s < k->n_sequences; s++)
    for (uint32_t g = 0; g < k->n_groups; g++, next += k->table_pages)
      k->sequences[s].table[g] = next;
  return TROIKA_OK;
}

troika_status kv_create(const kv_options *options, kv **out, troika_error *err) {
  uint32_t totals[KV_GROUPS_MAX];
  kv *k = NULL;
  troika_status status = options_check(options, err);
  if (status) return status;
  if ((status = kv_split_bytes(options, totals, err))) return status;
  if (!(k = calloc(1, sizeof *k))) return error_set(err, TROIKA_NO_MEMORY, "no memory for KV");
  k->n_sequences = options->sequences;
  k->context = options->context;
  k->ahead = options->ahead;
  k->table_pages = (options->context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
  for (uint32_t g = 0; g < options->n_groups; g++) {
    status = kv_pool_create(&k->pools[g], &options->groups[g], totals[g], err);
    k->n_groups = g + 1; /* also a pool half made is destroyed */
    if (status) goto failed;
    k->has_full = k->has_full || options->groups[g].kind == KV_FULL;
  }
  if ((status = sequences_create(k, err))) goto failed;
  if ((status = kv_prefix_create(k, err))) goto failed;
  if ((status = kv_expect_create(k, options->expected, err))) goto failed;
  *out = k;
  return TROIKA_OK;
failed:
  kv_destroy(&k);
  return status;
}

void kv_destroy(kv **k) {
  if (!*k) return;
  for (uint32_t g = 0; g < (*k)->n_groups; g++) kv_pool_destroy(&(*k)->pools[g]);
  kv_prefix_destroy(*k);
  free((*k)->sequences);
  free((*k)->expectations);
  free((*k)->tables);
  free(*k);
  *k = NULL;
}

void kv_stats(const kv *k, uint32_t group, kv_pool_stats *out) {
  CHECK(group < k->n_groups);
  const kv_pool_state *p = &k->pools[group];
  *out = (kv_pool_stats){.total = p->total,
                         .free = p->free_n,
                         .cached = p->cached_n,
                         .owned = p->total - p->free_n - p->cached_n,
                         .promisable = kv_pool_promisable(p),
                         .evictions = p->evictions,
                         .page_bytes = p->group.page_bytes};
}

void kv_totals(const kv *k, kv_total_stats *out) {
  *out = (kv_total_stats){
      .hits = k->hits,
      .hit_pages = k->hit_pages,
      .hit_tokens = k->hit_tokens,
      .nodes = k->nodes_n,
      .node_bytes = k->nodes_n * (uint64_t)sizeof *k->nodes,
      .node_bytes_max = k->nodes_total * (uint64_t)sizeof *k->nodes,
      .bucket_bytes = 2 * ((uint64_t)k->buckets_mask + 1) * sizeof *k->buckets,
      .table_bytes = (uint64_t)k->n_sequences * k->n_groups * k->table_pages * sizeof *k->tables};
  for (uint32_t g = 0; g < k->n_groups; g++) {
    out->evictions += k->pools[g].evictions;
    out->page_entry_bytes +=
        k->pools[g].total * (uint64_t)(sizeof *k->pools[g].pages + sizeof *k->pools[g].free);
  }
}

uint8_t *kv_pool(const kv *k, uint32_t group) {
  CHECK(group < k->n_groups);
  return k->pools[group].memory;
}

uint64_t kv_bytes(const kv *k) {
  uint64_t bytes = 0;
  for (uint32_t g = 0; g < k->n_groups; g++)
    bytes += (uint64_t)k->pools[g].total * k->pools[g].group.page_bytes;
  return bytes;
}

static kv_sequence *sequence_of(const kv *k, uint32_t sequence) {
  CHECK(sequence < k->n_sequences && k->sequences[sequence].open);
  return &k->sequences[sequence];
}

troika_status kv_sequence_open(kv *k, uint32_t *sequence) {
  for (uint32_t i = 0; i < k->n_sequences; i++) {
    kv_sequence *s = &k->sequences[i];
    if (s->open) continue;
    s->open = true;
    s->keep_from = 0;
    s->published = 0;
    s->published_node = KV_NO_NODE;
    s->generated_page = KV_NO_PAGE;
    s->made_from = KV_MADE_NONE;
    s->hinted = false;
    for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) s->promised[g] = s->first[g] = s->end[g] = 0;
    *sequence = i;
    return TROIKA_OK;
  }
  return TROIKA_BUSY;
}

/* The sums of the pool follow the sequence through any change between these two. */
static void accounts_leave(kv *k, const kv_sequence *s, uint32_t g) {
  k->pools[g].claims -= kv_claim(s, g);
  k->pools[g].held -= kv_held(s, g);
}

static void accounts_enter(kv *k, const kv_sequence *s, uint32_t g) {
  k->pools[g].claims += kv_claim(s, g);
  k->pools[g].held += kv_held(s, g);
}

void kv_sequence_close(kv *k, uint32_t sequence) {
  kv_sequence *s = sequence_of(k, sequence);
  kv_evict_claim(k, s);
  kv_prefix_unpin(k, s);
  for (uint32_t g = 0; g < k->n_groups; g++) {
    accounts_leave(k, s, g);
    for (uint32_t i = s->end[g]; i-- > s->first[g];) {
      kv_page_let_go(k, g, s->table[g][i]);
      s->table[g][i] = KV_NO_PAGE;
    }
  }
  s->open = false;
}

const uint32_t *kv_sequence_pages(const kv *k, uint32_t sequence, uint32_t group) {
  CHECK(group < k->n_groups);
  return sequence_of(k, sequence)->table[group];
}

void kv_sequence_holds(const kv *k, uint32_t sequence, uint32_t out[KV_GROUPS_MAX]) {
  const kv_sequence *s = sequence_of(k, sequence);
  for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) {
    out[g] = 0;
    if (g >= k->n_groups) continue;
    for (uint32_t i = s->first[g]; i < s->end[g]; i++)
      out[g] += k->pools[g].pages[s->table[g][i]].refs == 1;
  }
}

void kv_need(const kv *k, uint32_t tokens, uint32_t *need) {
  for (uint32_t g = 0; g < KV_GROUPS_MAX; g++)
    need[g] = g < k->n_groups ? kv_group_need(&k->pools[g].group, k->ahead, tokens) : 0;
}

troika_status kv_sequence_promise(kv *k, uint32_t sequence, uint32_t tokens) {
  kv_sequence *s = sequence_of(k, sequence);
  uint32_t need[KV_GROUPS_MAX];
  kv_need(k, tokens, need);
  if (tokens > k->context) return TROIKA_LIMIT;
  for (uint32_t g = 0; g < k->n_groups; g++)
    if (need[g] > k->pools[g].total) return TROIKA_LIMIT;
  for (uint32_t g = 0; g < k->n_groups; g++) {
    uint32_t claim = kv_claim(s, g);
    if (need[g] > claim && need[g] - claim > kv_pool_promisable(&k->pools[g])) return TROIKA_BUSY;
  }
  for (uint32_t g = 0; g < k->n_groups; g++) {
    if (need[g] <= s->promised[g]) continue;
    accounts_leave(k, s, g);
    s->promised[g] = need[g];
    accounts_enter(k, s, g);
  }
  return TROIKA_OK;
}

/* Pages that holding `held` in all would take from what others may be promised. */
static bool may_hold(const kv *k, const kv_sequence *s, uint32_t g, uint32_t held) {
  uint32_t claim = kv_claim(s, g);
  return held <= claim || held - claim <= kv_pool_promisable(&k->pools[g]);
}

troika_status kv_sequence_extend(kv *k, uint32_t sequence, uint32_t begin, uint32_t end) {
  kv_sequence *s = sequence_of(k, sequence);
  CHECK(begin <= end && begin >= s->keep_from);
  if (end > k->context) return TROIKA_LIMIT;
  if (begin == end) return TROIKA_OK;
  uint32_t first = begin / KV_PAGE_TOKENS, last = (end + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
  for (uint32_t g = 0; g < k->n_groups; g++) {
    CHECK(first >= s->first[g] && first <= s->end[g]);
    for (uint32_t i = first; i < s->end[g] && i < last; i++) {
      const kv_page *page = &k->pools[g].pages[s->table[g][i]];
      CHECK(page->refs == 1 &&
            page->node == KV_NO_NODE); /* shared or published: never written again */
    }
    if (last > s->end[g] && !may_hold(k, s, g, last - s->first[g])) return TROIKA_NO_MEMORY;
  }
  for (uint32_t g = 0; g < k->n_groups; g++) {
    if (last <= s->end[g]) continue;
    accounts_leave(k, s, g);
    while (s->end[g] < last) {
      uint32_t page = kv_page_take(k, g);
      s->table[g][s->end[g]++] = page;
    }
    accounts_enter(k, s, g);
  }
  return TROIKA_OK;
}

void kv_sequence_keep_from(kv *k, uint32_t sequence, uint32_t from) {
  kv_sequence *s = sequence_of(k, sequence);
  if (from <= s->keep_from) return;
  s->keep_from = from;
  for (uint32_t g = 0; g < k->n_groups; g++) {
    const kv_group *group = &k->pools[g].group;
    uint32_t whole = from / KV_PAGE_TOKENS * KV_PAGE_TOKENS; /* see kv_group_need */
    if (group->kind == KV_FULL || whole <= group->window) continue;
    uint32_t first = (whole - group->window) / KV_PAGE_TOKENS;
    accounts_leave(k, s, g);
    while (s->first[g] < first && s->first[g] < s->end[g]) {
      uint32_t i = s->first[g]++;
      kv_page_let_go(k, g, s->table[g][i]);
      s->table[g][i] = KV_NO_PAGE;
    }
    accounts_enter(k, s, g);
  }
}
