/* SPDX-License-Identifier: Apache-2.0 */
/* prefix.c - the tree of published pages: which tokens are in the cache, under whose salt.
 *
 *   key(node) = hash(key(parent) or salt, its 32 tokens) << 1 | generated
 *
 * finds the bucket; a node is the right one if its parent, its tokens, its salt and where generated
 * tokens begin are equal. So two different prefixes are never taken for each other, whatever their
 * keys are.
 *
 * Several nodes may hold the same tokens after the same parent: one with all of them from a client,
 * others with generated ones from some position on, which have other bits. Below a generated node
 * all are. A match that may take any follows the first kind and tries to leave it at every page; it
 * visits no node twice.
 *
 * Cost: a lookup a page of 32 tokens; memory 256 bytes a node. With a full group there are as many
 * nodes as it has pages. Windows alone: a node lives on without pages while one below it has some,
 * up to NODES_PER_PAGE nodes a page, then the cheapest pages go. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "kv/internal.h"

enum { NODES_PER_PAGE = 4, AGREE_MOST = 256 };
#ifndef KV_KEY_BITS
#define KV_KEY_BITS 64 /* a test makes keys collide */
#endif
#define MADE_ANY (UINT32_MAX - 2) /* wherever generated tokens begin, or are mixed with others */

static uint64_t mix(uint64_t a, uint64_t b) {
  a = (a ^ b) * 0x9E3779B97F4A7C15u;
  a ^= a >> 32;
  a *= 0xD6E8FEB86659FD93u;
  return a ^ a >> 29;
}

static uint64_t key_of(uint64_t parent, const int32_t *tokens, bool generated) {
  uint64_t key = mix(parent, generated);
  for (int i = 0; i < KV_PAGE_TOKENS; i += 2)
    key = mix(key, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]);
  if (KV_KEY_BITS < 64) key &= ((uint64_t)1 << (KV_KEY_BITS & 63)) - 1;
  /* A kv_ref names a node by key and tokens only: so the key says what they do not. 0 is "no node".
   */
  return (key ? key << 1 : 2) | generated;
}

static uint64_t key_below(const kv *k, uint32_t parent, uint64_t salt, const int32_t *tokens,
                          bool generated) {
  return key_of(parent == KV_NO_NODE ? mix(salt, 0x73) : k->nodes[parent].key, tokens, generated);
}

troika_status kv_prefix_create(kv *k, troika_error *err) {
  uint64_t total = 0, buckets = 64;
  for (uint32_t g = 0; g < k->n_groups; g++) {
    if (k->has_full && !kv_is_full(&k->pools[g])) continue;
    total = k->has_full ? k->pools[g].total : total + NODES_PER_PAGE * (uint64_t)k->pools[g].total;
    if (k->has_full) break;
  }
  if (total >= KV_NO_NODE / 2) total = KV_NO_NODE / 2;
  while (buckets < total) buckets *= 2;
  k->nodes = calloc(total, sizeof *k->nodes); /* not touched until used */
  k->buckets = malloc(buckets * sizeof *k->buckets);
  k->roots = malloc(buckets * sizeof *k->roots);
  if (!k->nodes || !k->buckets || !k->roots)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %llu KV prefix nodes",
                     (unsigned long long)total);
  for (uint64_t i = 0; i < buckets; i++) k->buckets[i] = k->roots[i] = KV_NO_NODE;
  k->buckets_mask = (uint32_t)(buckets - 1);
  k->nodes_total = (uint32_t)total;
  k->nodes_free = KV_NO_NODE;
  return TROIKA_OK;
}

void kv_prefix_destroy(kv *k) {
  free(k->nodes);
  free(k->buckets);
  free(k->roots);
}

static uint32_t *bucket_of(const kv *k, uint64_t key) {
  return &k->buckets[(key ^ key >> 32) & k->buckets_mask];
}

/* The first such node at or behind n in its bucket. */
static uint32_t find_from(const kv *k, uint32_t n, uint64_t key, uint32_t parent, uint64_t salt,
                          const int32_t *tokens, uint32_t made_from) {
  for (; n != KV_NO_NODE; n = k->nodes[n].bucket_next) {
    const kv_node *node = &k->nodes[n];
    if (node->key == key && node->parent == parent && node->salt == salt &&
        (made_from == MADE_ANY || node->made_from == made_from) &&
        !memcmp(node->tokens, tokens, sizeof node->tokens))
      return n;
  }
  return KV_NO_NODE;
}

static uint32_t find_below(const kv *k, uint32_t parent, uint64_t salt, const int32_t *tokens,
                           uint32_t made_from) {
  uint64_t key = key_below(k, parent, salt, tokens, made_from != KV_MADE_NONE);
  return find_from(k, *bucket_of(k, key), key, parent, salt, tokens, made_from);
}

/* --- nodes come and go --- */

static uint32_t *root_of(kv *k, uint64_t salt) {
  return &k->roots[mix(salt, 0x52) & k->buckets_mask];
}

/* The head of the list that this node is on. */
static uint32_t *first_of(kv *k, const kv_node *node) {
  return node->parent == KV_NO_NODE ? root_of(k, node->salt) : &k->nodes[node->parent].child;
}

/* Cached pages of n leave the order of eviction, and come back, while its having children
 * changes. */
static void order(kv *k, uint32_t n, void (*change)(kv *k, uint32_t group, uint32_t page)) {
  for (uint32_t g = 0; n != KV_NO_NODE && g < k->n_groups; g++) {
    uint32_t page = k->nodes[n].page[g];
    if (kv_is_full(&k->pools[g]) && page != KV_NO_PAGE && !k->pools[g].pages[page].refs)
      change(k, g, page);
  }
}

static void node_link(kv *k, uint32_t n) {
  kv_node *node = &k->nodes[n];
  uint32_t *first = first_of(k, node), bereft = *first == KV_NO_NODE ? node->parent : KV_NO_NODE;
  order(k, bereft, kv_evict_remove);
  node->previous = KV_NO_NODE;
  node->next = *first;
  if (node->next != KV_NO_NODE) k->nodes[node->next].previous = n;
  *first = n;
  order(k, bereft, kv_evict_add);
}

static void node_unlink(kv *k, uint32_t n) {
  const kv_node *node = &k->nodes[n];
  bool only = node->previous == KV_NO_NODE && node->next == KV_NO_NODE;
  uint32_t bereft = only ? node->parent : KV_NO_NODE;
  order(k, bereft, kv_evict_remove);
  if (node->previous != KV_NO_NODE)
    k->nodes[node->previous].next = node->next;
  else
    *first_of(k, node) = node->next;
  if (node->next != KV_NO_NODE) k->nodes[node->next].previous = node->previous;
  order(k, bereft, kv_evict_add);
}

static bool has_pages(const kv *k, const kv_node *node) {
  for (uint32_t g = 0; g < k->n_groups; g++)
    if (node->page[g] != KV_NO_PAGE) return true;
  return false;
}

/* Takes a node without children out of everything. */
static void node_remove(kv *k, uint32_t n) {
  kv_node *node = &k->nodes[n];
  CHECK(node->child == KV_NO_NODE);
  for (uint32_t g = 0; g < k->n_groups; g++)
    if (node->page[g] != KV_NO_PAGE) kv_page_forget(k, g, node->page[g]);
  if (node->pins) /* sequences that publish below it begin anew */
    for (uint32_t i = 0; i < k->n_sequences; i++) {
      kv_sequence *s = &k->sequences[i];
      if (!s->open || s->published_node != n) continue;
      s->published_node = KV_NO_NODE;
      s->published = 0;
    }
  kv_expect_leave(k, n);
  node_unlink(k, n);
  uint32_t *at = bucket_of(k, node->key);
  while (*at != n) at = &k->nodes[*at].bucket_next;
  *at = node->bucket_next;
  node->depth = 0;
  node->next = k->nodes_free;
  k->nodes_free = n;
  k->nodes_n--;
}

static void subtree_remove(kv *k, uint32_t root) {
  uint32_t n = root;
  for (;;) {
    while (k->nodes[n].child != KV_NO_NODE) n = k->nodes[n].child;
    uint32_t parent = k->nodes[n].parent;
    node_remove(k, n);
    if (n == root) return;
    n = parent;
  }
}

/* From n towards the root: what holds nothing, has nothing below and is nobody's place to go on is
 * of no use. */
static void prune(kv *k, uint32_t n) {
  while (n != KV_NO_NODE) {
    const kv_node *node = &k->nodes[n];
    uint32_t parent = node->parent;
    if (node->child != KV_NO_NODE || node->pins || has_pages(k, node)) return;
    node_remove(k, n);
    n = parent;
  }
}

void kv_prefix_evict(kv *k, uint32_t group, uint32_t page) {
  uint32_t n = k->pools[group].pages[page].node;
  CHECK(n != KV_NO_NODE && k->nodes[n].page[group] == page);
  if (kv_is_full(&k->pools[group])) {
    /* A leaf, if any is cached. Not so if a sequence published below this node while it held a page
     * of its own with the same tokens; then it can publish again. */
    subtree_remove(k, n);
    return;
  }
  k->nodes[n].page[group] = KV_NO_PAGE;
  kv_page_forget(k, group, page);
  prune(k, n);
}

/* KV_NO_NODE if there is none to be had. */
static uint32_t node_take(kv *k) {
  for (;;) {
    if (k->nodes_free != KV_NO_NODE) {
      uint32_t n = k->nodes_free;
      k->nodes_free = k->nodes[n].next;
      return n;
    }
    if (k->nodes_used < k->nodes_total) return k->nodes_used++;
    uint32_t g = 0;
    while (g < k->n_groups && !k->pools[g].cached_n) g++;
    if (g == k->n_groups) return KV_NO_NODE;
    kv_prefix_evict(k, g, kv_evict_choose(k, g));
  }
}

static uint32_t node_add(kv *k, uint32_t parent, uint64_t salt, const int32_t *tokens,
                         uint32_t made_from) {
  uint32_t n = node_take(k);
  if (n == KV_NO_NODE) return n;
  kv_node *node = &k->nodes[n];
  *node = (kv_node){.key = key_below(k, parent, salt, tokens, made_from != KV_MADE_NONE),
                    .salt = salt,
                    .parent = parent,
                    .child = KV_NO_NODE,
                    .depth = parent == KV_NO_NODE ? 1 : k->nodes[parent].depth + 1,
                    .made_from = made_from};
  for (uint32_t g = 0; g < KV_GROUPS_MAX; g++) node->page[g] = KV_NO_PAGE;
  memcpy(node->tokens, tokens, sizeof node->tokens);
  node_link(k, n);
  k->nodes_n++;
  uint32_t *bucket = bucket_of(k, node->key);
  node->bucket_next = *bucket;
  *bucket = n;
  return n;
}

/* --- match and attach --- */

typedef struct walk {
  const kv *k;
  uint64_t salt;
  const int32_t *tokens;
  uint32_t pages;       /* to be matched at most */
  uint32_t best, depth; /* node, pages */
  bool diverge;         /* wanted too: */
  uint32_t n, agreed;   /* tokens in all, and those of the longest path */
} walk;

/* `run` counts for each window the pages held without a gap up to this node. */
static void walk_step(walk *w, uint32_t n, uint32_t depth, uint32_t run[KV_GROUPS_MAX]) {
  bool covered = true;
  for (uint32_t g = 0; g < w->k->n_groups; g++) {
    const kv_pool_state *p = &w->k->pools[g];
    if (kv_is_full(p)) continue;
    run[g] = w->k->nodes[n].page[g] == KV_NO_PAGE ? 0 : run[g] + 1;
    covered = covered && run[g] >= depth - kv_window_begin(&p->group, depth);
  }
  if (!covered || depth <= w->depth) return;
  w->best = n;
  w->depth = depth;
}

/* Tokens after node n that one of its children has too, of the newest AGREE_MOST. */
static uint32_t agree_below(const kv *k, uint32_t n, uint64_t salt, const int32_t *tokens,
                            uint32_t left) {
  uint32_t best = 0, most = left < KV_PAGE_TOKENS ? left : KV_PAGE_TOKENS;
  uint32_t at = n == KV_NO_NODE ? k->roots[mix(salt, 0x52) & k->buckets_mask] : k->nodes[n].child;
  for (uint32_t seen = 0; at != KV_NO_NODE && best < most; at = k->nodes[at].next) {
    uint32_t same = 0;
    if (k->nodes[at].salt != salt) continue; /* of another whose first pages are on this list */
    if (seen++ == AGREE_MOST) break;
    while (same < most && k->nodes[at].tokens[same] == tokens[same]) same++;
    if (same > best) best = same;
  }
  return best;
}

static void walk_agree(walk *w, uint32_t n, uint32_t depth) {
  if (!w->diverge) return;
  uint32_t tokens = depth * KV_PAGE_TOKENS;
  tokens += agree_below(w->k, n, w->salt, w->tokens + tokens, w->n - tokens);
  if (tokens > w->agreed) w->agreed = tokens;
}

/* From a node whose tokens are the clients' into those that hold generated ones. */
static void walk_generated(walk *w, uint32_t above, uint32_t above_depth, const uint32_t *above_run,
                           uint32_t made_from) {
  const int32_t *tokens = w->tokens + (size_t)above_depth * KV_PAGE_TOKENS;
  uint64_t key = key_below(w->k, above, w->salt, tokens, true);
  uint32_t first = *bucket_of(w->k, key);
  while ((first = find_from(w->k, first, key, above, w->salt, tokens, made_from)) != KV_NO_NODE) {
    uint32_t run[KV_GROUPS_MAX], n = first, depth = above_depth + 1;
    memcpy(run, above_run, sizeof run);
    walk_step(w, n, depth, run);
    for (; depth < w->pages; depth++) {
      tokens = w->tokens + (size_t)depth * KV_PAGE_TOKENS;
      uint32_t next = find_below(w->k, n, w->salt, tokens, w->k->nodes[n].made_from);
      if (next == KV_NO_NODE && made_from == MADE_ANY)
        next = find_below(w->k, n, w->salt, tokens, KV_MADE_MIXED);
      if (next == KV_NO_NODE) break;
      walk_step(w, n = next, depth + 1, run);
    }
    walk_agree(w, n, depth);
    tokens = w->tokens + (size_t)above_depth * KV_PAGE_TOKENS;
    first = w->k->nodes[first].bucket_next;
  }
}

/* made_from: KV_MADE_NONE, MADE_ANY, or the position from which on all were generated: then what
 * clients sent as a prompt may match only up to there. */
static void walk_all(walk *w, uint32_t made_from) {
  uint32_t run[KV_GROUPS_MAX] = {0}, n = KV_NO_NODE, depth = 0;
  for (; depth < w->pages; depth++) {
    const int32_t *tokens = w->tokens + (size_t)depth * KV_PAGE_TOKENS;
    if (made_from != KV_MADE_NONE) walk_generated(w, n, depth, run, made_from);
    if ((depth + 1) * KV_PAGE_TOKENS > made_from) break;
    uint32_t next = find_below(w->k, n, w->salt, tokens, KV_MADE_NONE);
    if (next == KV_NO_NODE) break;
    walk_step(w, n = next, depth + 1, run);
  }
  walk_agree(w, n, depth);
}

uint32_t kv_prefix_find(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                        uint32_t made_from) {
  walk w = {.k = k, .salt = salt, .tokens = tokens, .best = KV_NO_NODE};
  w.pages = n ? (n - 1) / KV_PAGE_TOKENS : 0;
  walk_all(&w, made_from);
  return w.best;
}

static uint32_t match(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                      uint32_t made_from, kv_ref *out) {
  uint32_t best = kv_prefix_find(k, salt, tokens, n, made_from);
  *out = (kv_ref){0};
  if (best == KV_NO_NODE) return 0;
  const kv_node *node = &k->nodes[best];
  *out = (kv_ref){node->key, node->depth * KV_PAGE_TOKENS, node->made_from};
  return out->tokens;
}

uint32_t kv_match(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, bool exact,
                  kv_ref *out) {
  return match(k, salt, tokens, n, exact ? KV_MADE_NONE : MADE_ANY, out);
}

uint32_t kv_match_own(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                      uint32_t generated_from, kv_ref *out) {
  return match(k, salt, tokens, n, generated_from, out);
}

uint32_t kv_diverged(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                     uint32_t *matched_pages_tokens) {
  walk w = {.k = k, .salt = salt, .tokens = tokens, .best = KV_NO_NODE, .diverge = true, .n = n};
  w.pages = n / KV_PAGE_TOKENS;
  walk_all(&w, MADE_ANY);
  *matched_pages_tokens = w.depth * KV_PAGE_TOKENS;
  return w.agreed;
}

/* Is n the node of exactly these tokens, and does every group still hold what goes on from there?
 */
static bool node_serves(const kv *k, uint32_t n, uint64_t salt, const int32_t *tokens) {
  uint32_t depth = k->nodes[n].depth;
  for (uint32_t i = depth; i-- > 0; n = k->nodes[n].parent) {
    const kv_node *node = &k->nodes[n];
    if (node->salt != salt ||
        memcmp(node->tokens, tokens + (size_t)i * KV_PAGE_TOKENS, sizeof node->tokens))
      return false;
    for (uint32_t g = 0; g < k->n_groups; g++) {
      const kv_pool_state *p = &k->pools[g];
      uint32_t begin = kv_is_full(p) ? 0 : kv_window_begin(&p->group, depth);
      if (i >= begin && node->page[g] == KV_NO_PAGE) return false;
    }
  }
  return true;
}

/* Would these pages break what others were promised? See internal.h. */
static bool may_attach(const kv *k, const kv_sequence *s, uint32_t g, uint32_t n, uint32_t depth) {
  const kv_pool_state *p = &k->pools[g];
  uint32_t begin = kv_is_full(p) ? 0 : kv_window_begin(&p->group, depth), cached = 0;
  uint32_t held = depth - begin, promised = s->promised[g], promisable = kv_pool_promisable(p);
  if (!kv_is_full(p)) return held <= promised || held - promised <= promisable;
  for (; n != KV_NO_NODE; n = k->nodes[n].parent) cached += p->pages[k->nodes[n].page[g]].refs == 0;
  return cached <= promisable + (uint64_t)(held < promised ? held : promised);
}

static void attach_group(kv *k, kv_sequence *s, uint32_t g, uint32_t n) {
  kv_pool_state *p = &k->pools[g];
  uint32_t depth = k->nodes[n].depth;
  p->claims -= kv_claim(s, g);
  s->first[g] = kv_is_full(p) ? 0 : kv_window_begin(&p->group, depth);
  s->end[g] = depth;
  for (uint32_t i = depth; i-- > s->first[g]; n = k->nodes[n].parent) {
    s->table[g][i] = k->nodes[n].page[g];
    kv_page_hold(k, g, s->table[g][i]);
  }
  p->claims += kv_claim(s, g);
  p->held += kv_held(s, g);
}

uint32_t kv_attach(kv *k, uint32_t sequence, uint64_t salt, const int32_t *tokens,
                   const kv_ref *ref) {
  CHECK(sequence < k->n_sequences && k->sequences[sequence].open);
  kv_sequence *s = &k->sequences[sequence];
  uint32_t n = ref->key ? *bucket_of(k, ref->key) : KV_NO_NODE;
  for (uint32_t g = 0; g < k->n_groups; g++) CHECK(s->end[g] == 0);
  for (; n != KV_NO_NODE; n = k->nodes[n].bucket_next)
    if (k->nodes[n].key == ref->key && k->nodes[n].made_from == ref->made_from &&
        k->nodes[n].depth * KV_PAGE_TOKENS == ref->tokens && node_serves(k, n, salt, tokens))
      break;
  if (n == KV_NO_NODE || ref->tokens > k->context) return 0;
  for (uint32_t g = 0; g < k->n_groups; g++)
    if (!may_attach(k, s, g, n, k->nodes[n].depth)) return 0;
  for (uint32_t g = 0; g < k->n_groups; g++) attach_group(k, s, g, n);
  for (uint32_t at = n; at != KV_NO_NODE && kv_is_generated(&k->nodes[at]);
       at = k->nodes[at].parent)
    s->generated_page = k->nodes[at].depth - 1;
  s->made_from = k->nodes[n].made_from;
  k->hits++;
  k->hit_tokens += ref->tokens;
  for (uint32_t g = 0; g < k->n_groups; g++) k->hit_pages += kv_held(s, g);
  s->keep_from = ref->tokens;
  s->published = k->nodes[n].depth;
  s->published_node = n;
  k->nodes[n].pins++;
  return ref->tokens;
}

/* --- publish --- */

void kv_prefix_unpin(kv *k, kv_sequence *s) {
  uint32_t n = s->published_node;
  s->published_node = KV_NO_NODE;
  s->published = 0;
  if (n == KV_NO_NODE) return;
  k->nodes[n].pins--;
  prune(k, n);
}

/* Fills the groups whose page this node lacks from those of the sequence. */
static void node_fill(kv *k, const kv_sequence *s, uint32_t n, uint32_t i) {
  kv_node *node = &k->nodes[n];
  for (uint32_t g = 0; g < k->n_groups; g++) {
    if (node->page[g] != KV_NO_PAGE || i < s->first[g] || i >= s->end[g]) continue;
    kv_page *page = &k->pools[g].pages[s->table[g][i]];
    if (page->node != KV_NO_NODE) continue;
    node->page[g] = s->table[g][i];
    page->node = n;
  }
  for (uint32_t g = 0; g < k->n_groups; g++)
    CHECK(node->page[g] != KV_NO_PAGE ||
          !kv_is_full(&k->pools[g])); /* else: other tokens than attached */
}

static uint32_t made_from_of(const kv *k, const kv_sequence *s, uint32_t i,
                             uint32_t generated_from) {
  for (uint32_t g = 0; g < k->n_groups; g++) { /* published before, by whomever: as it was then */
    if (i < s->first[g] || i >= s->end[g]) continue;
    uint32_t node = k->pools[g].pages[s->table[g][i]].node;
    if (node != KV_NO_NODE) return k->nodes[node].made_from;
  }
  if (generated_from >= (i + 1) * KV_PAGE_TOKENS && i < s->generated_page) return KV_MADE_NONE;
  if (s->made_from == KV_MADE_NONE || s->made_from == generated_from) return generated_from;
  return KV_MADE_MIXED; /* what follows, or is, another one's generated pages */
}

void kv_publish(kv *k, uint32_t sequence, uint64_t salt, const int32_t *tokens, uint32_t n,
                uint32_t generated_from) {
  CHECK(sequence < k->n_sequences && k->sequences[sequence].open);
  kv_sequence *s = &k->sequences[sequence];
  uint32_t pages = n / KV_PAGE_TOKENS;
  while (s->published < pages) {
    uint32_t i = s->published, parent = s->published_node;
    const int32_t *own = tokens + (size_t)i * KV_PAGE_TOKENS;
    uint32_t made_from = made_from_of(k, s, i, generated_from);
    for (uint32_t g = 0; g < k->n_groups; g++) CHECK(i < s->end[g]);
    uint32_t node = find_below(k, parent, salt, own, made_from);
    if (node == KV_NO_NODE) node = node_add(k, parent, salt, own, made_from);
    if (node == KV_NO_NODE) return;
    k->nodes[node].pins++;
    node_fill(k, s, node, i);
    kv_prefix_unpin(k, s);
    s->published = i + 1;
    s->published_node = node;
  }
}
