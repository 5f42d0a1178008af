/* SPDX-License-Identifier: Apache-2.0 */
/* expect.c - prefixes that waiting requests are sure to use: each node counts them, so that what
 * one takes back stays for the others. An expectation is known by the last node of its prefix; when
 * that is evicted, the rest of the prefix is what is expected. In a window group it is what can be
 * seen from the prefix's end. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "kv/internal.h"

troika_status kv_expect_create(kv *k, uint32_t expected, troika_error *err) {
  k->n_expectations = expected;
  if (!expected) return TROIKA_OK;
  k->expectations = calloc(expected, sizeof *k->expectations);
  if (k->expectations) return TROIKA_OK;
  return error_set(err, TROIKA_NO_MEMORY, "no memory for %u expected prefixes", expected);
}

static void order(kv *k, uint32_t n, void (*change)(kv *k, uint32_t group, uint32_t page)) {
  for (uint32_t g = 0; g < k->n_groups; g++) {
    uint32_t page = k->nodes[n].page[g];
    if (page != KV_NO_PAGE && !k->pools[g].pages[page].refs) change(k, g, page);
  }
}

/* Does an expectation that ends at `end` pages use this node's page of group g? */
static bool is_used(const kv *k, uint32_t g, uint32_t depth, uint32_t end) {
  const kv_pool_state *p = &k->pools[g];
  return depth <= end && (kv_is_full(p) || depth > kv_window_begin(&p->group, end));
}

/* From its last node to the root. */
static void count(kv *k, const kv_expectation *e, int by, const kv_claim_hint *hint) {
  uint32_t end = e->node == KV_NO_NODE ? 0 : k->nodes[e->node].depth;
  for (uint32_t n = e->node; n != KV_NO_NODE; n = k->nodes[n].parent) {
    kv_node *node = &k->nodes[n];
    order(k, n, kv_evict_remove);
    for (uint32_t g = 0; g < k->n_groups; g++)
      if (is_used(k, g, node->depth, end))
        node->expected[g][e->reactive] = (uint16_t)(node->expected[g][e->reactive] + by);
    if (hint) node->expected_cost = kv_evict_cost(hint, node->depth);
    order(k, n, kv_evict_add);
  }
}

uint32_t kv_expect(kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, uint32_t generated_from,
                   const kv_claim_hint *hint) {
  uint32_t at = 0, node;
  while (at < k->n_expectations && k->expectations[at].open) at++;
  if (at == k->n_expectations) return KV_NO_EXPECTATION;
  if ((node = kv_prefix_find(k, salt, tokens, n, generated_from)) == KV_NO_NODE)
    return KV_NO_EXPECTATION;
  k->expectations[at] = (kv_expectation){true, hint->w > 1, node};
  count(k, &k->expectations[at], 1, hint);
  return at;
}

void kv_expect_end(kv *k, uint32_t expectation) {
  if (expectation == KV_NO_EXPECTATION) return;
  CHECK(expectation < k->n_expectations && k->expectations[expectation].open);
  count(k, &k->expectations[expectation], -1, NULL);
  k->expectations[expectation].open = false;
}

/* A window then begins at most a page further up. */
static void shorten(kv *k, kv_expectation *e) {
  uint32_t end = k->nodes[e->node].depth;
  e->node = k->nodes[e->node].parent;
  for (uint32_t n = e->node; n != KV_NO_NODE; n = k->nodes[n].parent) {
    kv_node *node = &k->nodes[n];
    bool more = false, above = false;
    for (uint32_t g = 0; g < k->n_groups; g++) {
      bool now = is_used(k, g, node->depth, end - 1);
      more = more || (now && !is_used(k, g, node->depth, end));
      above = above || (now && !kv_is_full(&k->pools[g]));
    }
    if (!more && !above) return;
    if (!more) continue;
    order(k, n, kv_evict_remove);
    for (uint32_t g = 0; g < k->n_groups; g++)
      if (is_used(k, g, node->depth, end - 1) && !is_used(k, g, node->depth, end))
        node->expected[g][e->reactive]++;
    order(k, n, kv_evict_add);
  }
}

void kv_expect_leave(kv *k, uint32_t n) {
  const kv_node *node = &k->nodes[n];
  uint32_t most = 0, moved = 0;
  for (uint32_t g = 0; g < k->n_groups; g++) { /* each group counts all that end here */
    uint32_t here = (uint32_t)node->expected[g][0] + node->expected[g][1];
    if (here > most) most = here;
  }
  for (uint32_t i = 0; moved < most && i < k->n_expectations; i++) {
    kv_expectation *e = &k->expectations[i];
    if (!e->open || e->node != n) continue;
    shorten(k, e);
    moved++;
  }
}

bool kv_expect_check(const kv *k, troika_error *err) {
  size_t cells = (size_t)k->nodes_used * KV_GROUPS_MAX * 2;
  uint32_t *counts = calloc(cells + 1, sizeof *counts);
  bool good = counts != NULL;
  for (uint32_t i = 0; good && i < k->n_expectations; i++) {
    const kv_expectation *e = &k->expectations[i];
    if (!e->open || e->node == KV_NO_NODE) continue;
    uint32_t end = k->nodes[e->node].depth;
    good = end > 0;
    for (uint32_t n = e->node; good && n != KV_NO_NODE; n = k->nodes[n].parent)
      for (uint32_t g = 0; g < k->n_groups; g++)
        counts[((size_t)n * KV_GROUPS_MAX + g) * 2 + e->reactive] +=
            is_used(k, g, k->nodes[n].depth, end);
  }
  for (uint32_t n = 0; good && n < k->nodes_used; n++)
    for (uint32_t g = 0; k->nodes[n].depth && g < k->n_groups; g++)
      for (uint32_t r = 0; r < 2; r++)
        good =
            good && counts[((size_t)n * KV_GROUPS_MAX + g) * 2 + r] == k->nodes[n].expected[g][r];
  free(counts);
  if (good) return true;
  error_set(err, TROIKA_INTERNAL, "expectations are counted wrongly, or no memory for the check");
  return false;
}
