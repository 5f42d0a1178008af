/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - what the files of this room share: pool.c (pages), evict.c (which cached one goes
 * first), expect.c (what waiting requests will use), prefix.c (what is cached under which tokens),
 * kv.c (sequences, promises), check.c.
 *
 *   page  free (on a stack) | owned (refs > 0) | cached (refs = 0, in a node, ordered by evict.c)
 *   node  32 published tokens after those of its parent: a tree, so that two prefixes are equal
 *         only if all their tokens are; the 64-bit key only finds the bucket. It holds one page a
 *         group: a full group's page always (or the whole subtree is dropped), a window's as long
 *         as nobody needed it more
 *
 * Promises: claim of a sequence in a group = max(promised, held). Kept true at all times, so that
 * what is promised can always be taken:
 *
 *   full    free + cached >= sum(claim - held)
 *           a shared page is let go of by all its holders at close only
 *   window  total >= sum(claim)
 *           shared pages counted once per holder: one of them may slide on and need a page of its
 *           own while the other still holds the shared one */
#ifndef KV_INTERNAL_H
#define KV_INTERNAL_H

#include "kv/kv.h"

#define KV_NO_NODE UINT32_MAX

enum { KV_CLASSES = 256, KV_TREES = 2 * KV_CLASSES };
/* kv_node.made_from where nothing was generated; where tokens of a client follow generated ones. */
#define KV_MADE_NONE UINT32_MAX
#define KV_MADE_MIXED (UINT32_MAX - 1)

typedef struct kv_page {
  uint32_t refs, node;  /* KV_NO_NODE: not published */
  uint32_t left, right; /* while cached: in the tree of its class, or on the list of the waiting */
  uint64_t stamp;       /* counts pages as they are let go of */
  /* What the sequences that held it at the same time claimed, the best of each; from the first
   * claim at their close on, and while cached: */
  uint64_t price;   /* w * p * c; 0: nobody did */
  int64_t focus_ns; /* expected next use; cached: else when it was let go of */
  bool expected;    /* in a tree of those that a waiting request is sure to use */
} kv_page;

typedef struct kv_pool_state {
  kv_group group;
  uint8_t *memory;
  kv_page *pages;
  uint32_t *free; /* stack */
  uint32_t total, free_n, cached_n;
  uint32_t waiting;                /* first of the cached that have something below */
  uint32_t roots[KV_TREES];        /* by class; then those of expected pages, by class */
  uint64_t classes[KV_TREES / 64]; /* a bit each: its root is not empty */
  uint64_t claims, held;           /* sums over the open sequences */
  uint64_t evictions;
} kv_pool_state;

typedef struct kv_node {
  uint64_t key, salt;
  uint32_t parent, child, previous, next; /* tree; those without a parent are in kv.roots; a free
                                             node uses next */
  uint32_t bucket_next;
  uint32_t depth;     /* pages up to its end */
  uint32_t pins;      /* sequences whose `published_node` it is, and a publish in progress */
  uint32_t made_from; /* position of the first generated token; KV_MADE_NONE, _MIXED */
  uint32_t page[KV_GROUPS_MAX];
  /* Expectations that use its page of a group; of the background, of reactive requests. */
  uint16_t expected[KV_GROUPS_MAX][2];
  uint64_t expected_cost; /* ns of one token here, as the last of them said */
  int32_t tokens[KV_PAGE_TOKENS];
} kv_node;

typedef struct kv_expectation {
  bool open, reactive;
  uint32_t node; /* the last of those expected; KV_NO_NODE: all are gone */
} kv_expectation;

typedef struct kv_sequence {
  bool open;
  uint32_t keep_from;
  uint32_t promised[KV_GROUPS_MAX];
  uint32_t first[KV_GROUPS_MAX], end[KV_GROUPS_MAX]; /* held: pages [first, end) of the table */
  uint32_t generated_page; /* first attached page with generated tokens; KV_NO_PAGE: none */
  uint32_t made_from;      /* that of the attached pages */
  uint32_t published,
      published_node; /* whole pages that are in the tree, and the last one's node */
  bool hinted;
  kv_claim_hint hint;
  uint32_t *table[KV_GROUPS_MAX];
} kv_sequence;

struct kv {
  uint32_t n_groups, n_sequences, context, ahead, table_pages;
  bool has_full;
  kv_pool_state pools[KV_GROUPS_MAX];
  kv_sequence *sequences;
  kv_expectation *expectations;
  uint32_t n_expectations;
  uint32_t *tables;
  kv_node *nodes;
  uint32_t nodes_total, nodes_free, nodes_used, nodes_n, *buckets, buckets_mask;
  uint32_t *roots; /* first pages, listed by salt: as many lists as buckets; for kv_diverged */
  int64_t now_ns;
  uint64_t stamps, hits, hit_pages, hit_tokens;
};

static inline bool kv_is_generated(const kv_node *node) {
  return node->made_from != KV_MADE_NONE;
}

static inline bool kv_is_full(const kv_pool_state *p) {
  return p->group.kind == KV_FULL;
}
/* The first page that position `pages` * 32 can see. */
static inline uint32_t kv_window_begin(const kv_group *group, uint32_t pages) {
  uint32_t tokens = pages * KV_PAGE_TOKENS;
  return tokens > group->window ? (tokens - group->window) / KV_PAGE_TOKENS : 0;
}
static inline uint32_t kv_held(const kv_sequence *s, uint32_t group) {
  return s->end[group] - s->first[group];
}
static inline uint32_t kv_claim(const kv_sequence *s, uint32_t group) {
  uint32_t held = kv_held(s, group);
  return s->promised[group] > held ? s->promised[group] : held;
}

/* pool.c */
uint32_t kv_group_need(const kv_group *group, uint32_t ahead, uint32_t tokens);
troika_status kv_split_bytes(const kv_options *options, uint32_t totals[KV_GROUPS_MAX],
                             troika_error *err);
troika_status kv_pool_create(kv_pool_state *p, const kv_group *group, uint32_t total,
                             troika_error *err);
void kv_pool_destroy(kv_pool_state *p);
uint32_t kv_pool_promisable(const kv_pool_state *p);
uint32_t kv_page_take(kv *k,
                      uint32_t group); /* evicts if none is free; there must be one or the other */
void kv_page_hold(kv *k, uint32_t group, uint32_t page);
void kv_page_let_go(kv *k, uint32_t group, uint32_t page);
void kv_page_forget(kv *k, uint32_t group,
                    uint32_t page); /* its node is going: cached becomes free, owned private */

/* evict.c: cached pages */
void kv_evict_let_go(kv *k, uint32_t group, uint32_t page); /* becomes cached */
void kv_evict_add(kv *k, uint32_t group, uint32_t page);
void kv_evict_remove(kv *k, uint32_t group, uint32_t page); /* its node is as it was at add */
uint32_t kv_evict_choose(const kv *k, uint32_t group);      /* KV_NO_PAGE: none is cached */
void kv_evict_claim(kv *k, const kv_sequence *s);
uint64_t kv_evict_cost(const kv_claim_hint *hint, uint32_t depth); /* of a token, in ns */
/* For check.c. */
bool kv_evict_waits(const kv *k, uint32_t group, uint32_t page);
uint32_t kv_evict_tree(const kv *k, uint32_t group, uint32_t page);
int64_t kv_evict_focus(const kv_page *page); /* as trees are ordered */

/* expect.c: what waiting requests are sure to use */
troika_status kv_expect_create(kv *k, uint32_t expected, troika_error *err);
void kv_expect_leave(kv *k, uint32_t node); /* it is going, and has nothing below */
bool kv_expect_check(const kv *k, troika_error *err);

/* prefix.c */
/* The last node of the longest prefix that can be attached; KV_NO_NODE: none. */
uint32_t kv_prefix_find(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                        uint32_t made_from);
troika_status kv_prefix_create(kv *k, troika_error *err);
void kv_prefix_destroy(kv *k);
void kv_prefix_evict(
    kv *k, uint32_t group,
    uint32_t page); /* a cached page becomes free, and what is of no use without it */
void kv_prefix_unpin(kv *k, kv_sequence *s);

#endif
