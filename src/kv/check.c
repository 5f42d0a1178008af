/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - walks all of the room's state and counts it again. For tests: O(pages + nodes +
 * tables), allocates. */
#include <stdlib.h>

#include "base/error.h"
#include "kv/internal.h"

#define KV_WRONG(...) (error_set(err, TROIKA_INTERNAL, __VA_ARGS__), false)

static bool sequence_check(const kv *k, uint32_t number, uint32_t g, uint32_t *refs,
                           troika_error *err) {
  const kv_sequence *s = &k->sequences[number];
  for (uint32_t i = 0; i < k->table_pages; i++) {
    uint32_t page = s->table[g][i];
    bool held = s->open && i >= s->first[g] && i < s->end[g];
    if (held != (page != KV_NO_PAGE))
      return KV_WRONG("sequence %u group %u: page %u of the table is %u", number, g, i, page);
    if (held && page >= k->pools[g].total)
      return KV_WRONG("sequence %u group %u: no page %u", number, g, page);
    if (held) refs[page]++;
  }
  return true;
}

static bool page_check(const kv *k, uint32_t g, uint32_t page, uint32_t refs, troika_error *err) {
  const kv_page *it = &k->pools[g].pages[page];
  if (it->refs != refs)
    return KV_WRONG("group %u page %u: %u references, %u holders", g, page, it->refs, refs);
  if (it->node != KV_NO_NODE && (it->node >= k->nodes_used || !k->nodes[it->node].depth ||
                                 k->nodes[it->node].page[g] != page))
    return KV_WRONG("group %u page %u: node %u does not hold it", g, page, it->node);
  return true;
}

/* In order by (focus, stamp): each page at or behind the one before it. */
static bool class_check(const kv *k, uint32_t g, uint32_t class, uint32_t at, uint32_t *last,
                        uint32_t *listed, troika_error *err) {
  const kv_pool_state *p = &k->pools[g];
  if (at == KV_NO_PAGE) return true;
  if (at >= p->total || (*listed)++ >= p->total)
    return KV_WRONG("group %u class %u: the tree breaks at %u", g, class, at);
  const kv_page *page = &p->pages[at];
  if (!class_check(k, g, class, page->left, last, listed, err)) return false;
  const kv_page *before = *last == KV_NO_PAGE ? NULL : &p->pages[*last];
  if (page->refs || page->node == KV_NO_NODE || kv_evict_waits(k, g, at) ||
      kv_evict_tree(k, g, at) != class ||
      (before &&
       (kv_evict_focus(before) > kv_evict_focus(page) ||
        (kv_evict_focus(before) == kv_evict_focus(page) && before->stamp >= page->stamp))))
    return KV_WRONG("group %u class %u: page %u does not belong there", g, class, at);
  *last = at;
  return class_check(k, g, class, page->right, last, listed, err);
}

static bool order_check(const kv *k, uint32_t g, uint32_t *listed, troika_error *err) {
  const kv_pool_state *p = &k->pools[g];
  uint32_t previous = KV_NO_PAGE;
  for (uint32_t class = 0; class < KV_TREES; class ++) {
    uint32_t last = KV_NO_PAGE;
    if ((p->roots[class] != KV_NO_PAGE) != (p->classes[class / 64] >> class % 64 & 1))
      return KV_WRONG("group %u: the bit of class %u is wrong", g, class);
    if (!class_check(k, g, class, p->roots[class], &last, listed, err)) return false;
  }
  for (uint32_t i = p->waiting; i != KV_NO_PAGE; previous = i, i = p->pages[i].right)
    if (p->pages[i].left != previous || p->pages[i].refs || p->pages[i].node == KV_NO_NODE ||
        !kv_evict_waits(k, g, i) || (*listed)++ >= p->total)
      return KV_WRONG("group %u: the list of waiting pages breaks at %u", g, i);
  return true;
}

static bool pool_check(const kv *k, uint32_t g, const uint32_t *refs, troika_error *err) {
  const kv_pool_state *p = &k->pools[g];
  uint32_t owned = 0, cached = 0, listed = 0;
  uint64_t claims = 0, held = 0;
  for (uint32_t i = 0; i < p->total; i++) {
    if (!page_check(k, g, i, refs[i], err)) return false;
    owned += refs[i] > 0;
    cached += refs[i] == 0 && p->pages[i].node != KV_NO_NODE;
  }
  for (uint32_t i = 0; i < p->free_n; i++)
    if (refs[p->free[i]] || p->pages[p->free[i]].node != KV_NO_NODE)
      return KV_WRONG("group %u: page %u is on the free stack and in use", g, p->free[i]);
  if (!order_check(k, g, &listed, err)) return false;
  if (listed != cached || cached != p->cached_n)
    return KV_WRONG("group %u: %u pages cached, %u listed, %u counted", g, cached, listed,
                    p->cached_n);
  if (owned + cached + p->free_n != p->total)
    return KV_WRONG("group %u: %u free + %u cached + %u owned is not %u", g, p->free_n, cached,
                    owned, p->total);
  for (uint32_t i = 0; i < k->n_sequences; i++) {
    if (!k->sequences[i].open) continue;
    claims += kv_claim(&k->sequences[i], g);
    held += kv_held(&k->sequences[i], g);
  }
  if (claims != p->claims || held != p->held)
    return KV_WRONG("group %u: claims %llu, counted %llu; held %llu, counted %llu", g,
                    (unsigned long long)claims, (unsigned long long)p->claims,
                    (unsigned long long)held, (unsigned long long)p->held);
  if ((uint64_t)p->free_n + cached + held < claims)
    return KV_WRONG("group %u: %u free + %u cached pages, %llu promised", g, p->free_n, cached,
                    (unsigned long long)(claims - held));
  if (!kv_is_full(p) && claims > p->total)
    return KV_WRONG("group %u: claims of %llu on %u pages", g, (unsigned long long)claims,
                    p->total);
  return true;
}

static bool node_check(const kv *k, uint32_t n, uint32_t pins, troika_error *err) {
  const kv_node *node = &k->nodes[n];
  bool used = node->child != KV_NO_NODE || pins;
  if (node->pins != pins) return KV_WRONG("node %u: %u pins, %u counted", n, pins, node->pins);
  for (uint32_t g = 0; g < k->n_groups; g++) {
    uint32_t page = node->page[g];
    if (page == KV_NO_PAGE && kv_is_full(&k->pools[g]))
      return KV_WRONG("node %u has no page in the full group %u", n, g);
    if (page != KV_NO_PAGE && (page >= k->pools[g].total || k->pools[g].pages[page].node != n))
      return KV_WRONG("node %u: page %u of group %u is not its own", n, page, g);
    used = used || page != KV_NO_PAGE;
  }
  if (!used) return KV_WRONG("node %u is of no use", n);
  uint32_t previous = KV_NO_NODE;
  for (uint32_t c = node->child; c != KV_NO_NODE; previous = c, c = k->nodes[c].next)
    if (k->nodes[c].parent != n || k->nodes[c].previous != previous ||
        k->nodes[c].depth != node->depth + 1 ||
        (kv_is_generated(node) && k->nodes[c].made_from != node->made_from &&
         k->nodes[c].made_from != KV_MADE_MIXED) ||
        k->nodes[c].salt != node->salt)
      return KV_WRONG("node %u is no child of node %u", c, n);
  return true;
}

static bool tree_check(const kv *k, uint32_t *pins, troika_error *err) {
  uint32_t in_use = 0, in_buckets = 0, unused = 0, linked = 0;
  for (uint32_t i = 0; i < k->n_sequences; i++) {
    const kv_sequence *s = &k->sequences[i];
    if (!s->open || s->published_node == KV_NO_NODE) continue;
    if (k->nodes[s->published_node].depth != s->published)
      return KV_WRONG("sequence %u: %u pages published, the node has %u", i, s->published,
                      k->nodes[s->published_node].depth);
    pins[s->published_node]++;
  }
  for (uint32_t n = 0; n < k->nodes_used; n++) {
    if (!k->nodes[n].depth) continue;
    in_use++;
    if (!node_check(k, n, pins[n], err)) return false;
    for (uint32_t c = k->nodes[n].child; c != KV_NO_NODE; c = k->nodes[c].next) linked++;
  }
  for (uint64_t i = 0; i <= k->buckets_mask; i++)
    for (uint32_t n = k->roots[i]; n != KV_NO_NODE; n = k->nodes[n].next, linked++)
      if (k->nodes[n].depth != 1 || linked > k->nodes_used)
        return KV_WRONG("node %u is no first page", n);
  if (linked != in_use || in_use != k->nodes_n)
    return KV_WRONG("%u nodes in use, %u linked, %u counted", in_use, linked, k->nodes_n);
  for (uint64_t b = 0; b <= k->buckets_mask; b++)
    for (uint32_t n = k->buckets[b]; n != KV_NO_NODE; n = k->nodes[n].bucket_next)
      if (!k->nodes[n].depth || in_buckets++ > k->nodes_used)
        return KV_WRONG("bucket %llu holds node %u", (unsigned long long)b, n);
  for (uint32_t n = k->nodes_free; n != KV_NO_NODE; n = k->nodes[n].next)
    if (k->nodes[n].depth || unused++ > k->nodes_used) return KV_WRONG("node %u is not free", n);
  if (in_buckets != in_use || in_use + unused != k->nodes_used)
    return KV_WRONG("%u nodes in use, %u in buckets, %u free, of %u", in_use, in_buckets, unused,
                    k->nodes_used);
  return true;
}

bool kv_check(const kv *k, troika_error *err) {
  bool good = true;
  for (uint32_t g = 0; g < k->n_groups && good; g++) {
    uint32_t *refs = calloc(k->pools[g].total, sizeof *refs);
    if (!refs) return KV_WRONG("no memory for the check");
    for (uint32_t i = 0; i < k->n_sequences && good; i++) good = sequence_check(k, i, g, refs, err);
    good = good && pool_check(k, g, refs, err);
    free(refs);
  }
  if (!good) return false;
  uint32_t *pins = calloc(k->nodes_used + 1, sizeof *pins);
  if (!pins) return KV_WRONG("no memory for the check");
  good = tree_check(k, pins, err);
  free(pins);
  return good && kv_expect_check(k, err);
}
