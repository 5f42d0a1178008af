/* SPDX-License-Identifier: Apache-2.0 */
/* evict.c - which cached page goes first: the one price of scheduling.md 6, in integers.
 *
 *   V = A / (tau + 1 s),   A = w * p * c,   tau = |focus - now|
 *
 * focus is the time at which a page is worth most: when its next use is expected, or, with no such
 * hint, when it was let go of (so tau is its age). An expected use that did not come makes tau grow
 * again: it is late by as much. Bytes are equal within a pool, and a page is always taken from one
 * pool, so they fall out of the comparison.
 *
 * A is rounded down to two bits behind its leading one: four classes an octave. Within a class the
 * smallest V has the page at one of the two ends of the order by focus, for V falls with the
 * distance from now. So each class is a search tree by (focus, order of letting go), and choosing
 * compares two pages a class that holds any: O(classes * log pages), where without hints there is
 * one class, and with them a few (w, p and, over depths, c). Putting in and taking out is
 * O(log pages), expected: a treap whose priorities are a hash of the page number.
 *
 * What a waiting request is sure to use (expect.c) has tau = 0 however long it waits: such pages
 * are in trees of their own, a class each, all of one V.
 *
 * Leaves first: in a full group only pages of nodes with nothing below are in the trees. The others
 * wait on a list. Were no leaf cached but one of those (a sequence still owns what is below), it
 * goes with all that is below it in the tree.
 * In a window group each page stands alone: one that slid out of every window is needed by fewer
 * prefixes than what came after it. Pages let go of together go from the end backwards. */
#include "base/check.h"
#include "kv/internal.h"

enum {
  SECOND = 1000000000,
  P_NONE = 100,
  COST_NONE = 1000000,
  W_MAX = 16,
  P_MAX = 1000,
  W_REACTIVE = 4
};
#define COST_MAX ((uint64_t)1 << 36) /* of one token: a minute */

/* --- the price --- */

static uint32_t class_of(uint64_t price) { /* price >= 32 */
  uint32_t high = 63u - (uint32_t)__builtin_clzll(price);
  return high << 2 | ((price >> (high - 2)) & 3);
}

static uint64_t class_price(uint32_t class) {
  return (uint64_t)(4 | (class & 3)) << ((class >> 2) - 2);
}

/* V = price / tau of the first less than that of the second? */
typedef struct worth {
  uint64_t price, tau_ns, stamp;
  uint32_t page;
} worth;

static bool cheaper(const worth *a, const worth *b) {
  unsigned __int128 left = (unsigned __int128)a->price * b->tau_ns,
                    right = (unsigned __int128)b->price * a->tau_ns;
  return left != right ? left < right : a->stamp < b->stamp;
}

/* What waits for it is sure to use it now; it may cost more to others later. */
static uint64_t price_of(const kv *k, uint32_t group, const kv_page *it) {
  const kv_node *node = &k->nodes[it->node];
  if (!it->expected) return it->price;
  uint64_t w = node->expected[group][1] ? W_REACTIVE : 1;
  uint64_t sure = w * P_MAX * node->expected_cost * KV_PAGE_TOKENS;
  return sure > it->price ? sure : it->price;
}

static worth worth_of(const kv *k, uint32_t group, uint32_t page) {
  const kv_page *it = &k->pools[group].pages[page];
  uint64_t focus = (uint64_t)it->focus_ns, now = (uint64_t)k->now_ns; /* both from 0 up */
  uint64_t tau = it->expected ? 0 : focus > now ? focus - now : now - focus;
  return (worth){class_price(class_of(price_of(k, group, it))), tau + SECOND, it->stamp, page};
}

/* --- a class: a treap by (focus, stamp) --- */

static uint32_t priority(uint32_t page) { /* one to one: no two are equal */
  page ^= page >> 16;
  page *= 0x7feb352du;
  page ^= page >> 15;
  page *= 0x846ca68bu;
  return page ^ page >> 16;
}

int64_t kv_evict_focus(const kv_page *page) {
  return page->expected ? 0 : page->focus_ns;
}

static bool before(const kv_page *a, const kv_page *b) {
  int64_t x = kv_evict_focus(a), y = kv_evict_focus(b);
  return x != y ? x < y : a->stamp < b->stamp;
}

static void tree_insert(kv_pool_state *p, uint32_t *root, uint32_t page) {
  kv_page *pages = p->pages, *it = &pages[page];
  uint32_t *at = root, *left = &it->left, *right = &it->right;
  while (*at != KV_NO_PAGE && priority(*at) > priority(page))
    at = before(it, &pages[*at]) ? &pages[*at].left : &pages[*at].right;
  uint32_t rest = *at;
  *at = page;
  while (rest != KV_NO_PAGE) /* what was here is split around the new one */
    if (before(&pages[rest], it)) {
      *left = rest;
      left = &pages[rest].right;
      rest = *left;
    } else {
      *right = rest;
      right = &pages[rest].left;
      rest = *right;
    }
  *left = *right = KV_NO_PAGE;
}

static void tree_remove(kv_pool_state *p, uint32_t *root, uint32_t page) {
  kv_page *pages = p->pages, *it = &pages[page];
  uint32_t *at = root, a = it->left, b = it->right;
  while (*at != page) {
    CHECK(*at != KV_NO_PAGE);
    at = before(it, &pages[*at]) ? &pages[*at].left : &pages[*at].right;
  }
  while (a != KV_NO_PAGE && b != KV_NO_PAGE)
    if (priority(a) > priority(b)) {
      *at = a;
      at = &pages[a].right;
      a = *at;
    } else {
      *at = b;
      at = &pages[b].left;
      b = *at;
    }
  *at = a != KV_NO_PAGE ? a : b;
}

static uint32_t tree_first(const kv_pool_state *p, uint32_t root) {
  while (p->pages[root].left != KV_NO_PAGE) root = p->pages[root].left;
  return root;
}

/* Of those with the latest focus the one that was let go of first. */
static uint32_t tree_farthest(const kv_pool_state *p, uint32_t root) {
  uint32_t last = root, best;
  while (p->pages[last].right != KV_NO_PAGE) last = p->pages[last].right;
  best = last;
  for (uint32_t at = root; at != KV_NO_PAGE;) {
    bool equal = kv_evict_focus(&p->pages[at]) == kv_evict_focus(&p->pages[last]);
    if (equal) best = at;
    at = equal ? p->pages[at].left : p->pages[at].right;
  }
  return best;
}

/* --- cached pages --- */

bool kv_evict_waits(const kv *k, uint32_t group, uint32_t page) {
  const kv_pool_state *p = &k->pools[group];
  return kv_is_full(p) && k->nodes[p->pages[page].node].child != KV_NO_NODE;
}

static bool is_expected(const kv *k, uint32_t group, uint32_t page) {
  const uint16_t *n = k->nodes[k->pools[group].pages[page].node].expected[group];
  return n[0] || n[1];
}

uint32_t kv_evict_tree(const kv *k, uint32_t group, uint32_t page) {
  const kv_page *it = &k->pools[group].pages[page];
  return class_of(price_of(k, group, it)) + (it->expected ? KV_CLASSES : 0);
}

void kv_evict_add(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  kv_page *it = &p->pages[page];
  it->expected = is_expected(k, group, page);
  if (kv_evict_waits(k, group, page)) {
    it->left = KV_NO_PAGE;
    it->right = p->waiting;
    if (p->waiting != KV_NO_PAGE) p->pages[p->waiting].left = page;
    p->waiting = page;
    return;
  }
  uint32_t tree = kv_evict_tree(k, group, page);
  tree_insert(p, &p->roots[tree], page);
  p->classes[tree / 64] |= (uint64_t)1 << tree % 64;
}

void kv_evict_remove(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  const kv_page *it = &p->pages[page];
  if (kv_evict_waits(k, group, page)) {
    if (it->left != KV_NO_PAGE)
      p->pages[it->left].right = it->right;
    else
      p->waiting = it->right;
    if (it->right != KV_NO_PAGE) p->pages[it->right].left = it->left;
    return;
  }
  uint32_t tree = kv_evict_tree(k, group, page);
  tree_remove(p, &p->roots[tree], page);
  if (p->roots[tree] == KV_NO_PAGE) p->classes[tree / 64] &= ~((uint64_t)1 << tree % 64);
}

uint32_t kv_evict_choose(const kv *k, uint32_t group) {
  const kv_pool_state *p = &k->pools[group];
  worth best = {.page = KV_NO_PAGE};
  for (uint32_t word = 0; word < KV_TREES / 64; word++)
    for (uint64_t left = p->classes[word]; left; left &= left - 1) {
      uint32_t root = p->roots[word * 64 + (uint32_t)__builtin_ctzll(left)];
      const worth ends[2] = {worth_of(k, group, tree_first(p, root)),
                             worth_of(k, group, tree_farthest(p, root))};
      for (int i = 0; i < 2; i++)
        if (best.page == KV_NO_PAGE || cheaper(&ends[i], &best)) best = ends[i];
    }
  return best.page != KV_NO_PAGE ? best.page : p->waiting;
}

/* --- claims --- */

void kv_evict_let_go(kv *k, uint32_t group, uint32_t page) {
  kv_page *it = &k->pools[group].pages[page];
  it->stamp = ++k->stamps;
  if (!it->price) it->price = (uint64_t)P_NONE * COST_NONE * KV_PAGE_TOKENS;
  if (it->focus_ns <= k->now_ns) it->focus_ns = k->now_ns;
  kv_evict_add(k, group, page);
}

uint64_t kv_evict_cost(const kv_claim_hint *h, uint32_t depth) {
  uint64_t cost = h->cost_ns_per_token;
  if (!cost) cost = COST_NONE;
  if (cost > COST_MAX) cost = COST_MAX;
  cost += (uint64_t)h->depth_ns * (depth - 1) / (1024 / KV_PAGE_TOKENS);
  return cost > COST_MAX ? COST_MAX : cost;
}

static void claim_page(kv *k, const kv_sequence *s, uint32_t group, uint32_t page, uint32_t depth) {
  kv_page *it = &k->pools[group].pages[page];
  const kv_claim_hint *h = &s->hint;
  uint64_t w = h->w < 1 ? 1 : h->w > W_MAX ? W_MAX : h->w;
  uint64_t chance = h->p < 1 ? 1 : h->p > P_MAX ? P_MAX : h->p;
  uint64_t price = w * chance * kv_evict_cost(h, depth) * KV_PAGE_TOKENS;
  int64_t next = h->next_use_ns;
  bool cached = !it->refs;
  if (cached) kv_evict_remove(k, group, page);
  if (price > it->price) it->price = price;
  if (next != INT64_MAX && next > k->now_ns && (it->focus_ns <= k->now_ns || next < it->focus_ns))
    it->focus_ns = next;
  if (cached) kv_evict_add(k, group, page);
}

/* At close, before the pages are let go of: the sequence's claim on what it still sees. A page of
 * its own whose tokens another published first will be free; the claim is on the other's. */
void kv_evict_claim(kv *k, const kv_sequence *s) {
  if (!s->hinted) return;
  for (uint32_t n = s->published_node; n != KV_NO_NODE; n = k->nodes[n].parent) {
    const kv_node *node = &k->nodes[n];
    for (uint32_t g = 0; g < k->n_groups; g++)
      if (node->page[g] != KV_NO_PAGE && node->depth > s->first[g])
        claim_page(k, s, g, node->page[g], node->depth);
  }
}

void kv_hint(kv *k, uint32_t sequence, const kv_claim_hint *hint) {
  CHECK(sequence < k->n_sequences && k->sequences[sequence].open);
  k->sequences[sequence].hint = *hint;
  k->sequences[sequence].hinted = true;
}

void kv_clock(kv *k, int64_t now_ns) {
  if (now_ns > k->now_ns) k->now_ns = now_ns;
}
