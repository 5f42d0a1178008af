/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - one pool of pages a group: who is free, owned, cached. O(1) a page, but for the order of
 * the cached ones (evict.c). */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "kv/internal.h"

static uint32_t pages_of(uint64_t tokens) {
  return (uint32_t)((tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

/* A window's live positions are those that the rows after the last whole page see (up to 31 of them
 * are behind keep_from: kept so that the sequence can be closed and taken up there again), and
 * `ahead` more: [P * 32 - window, P * 32 + 31 + ahead). */
uint32_t kv_group_need(const kv_group *group, uint32_t ahead, uint32_t tokens) {
  uint32_t all = pages_of(tokens);
  if (group->kind == KV_FULL) return all;
  uint32_t most = pages_of(group->window) + pages_of((uint64_t)ahead + KV_PAGE_TOKENS - 1);
  return all < most ? all : most;
}

/* The bounds in kv_create keep this below 2^63. */
static uint64_t bytes_for(const kv_options *o, uint32_t sequences, uint32_t tokens,
                          uint32_t totals[KV_GROUPS_MAX]) {
  uint64_t bytes = 0;
  for (uint32_t g = 0; g < o->n_groups; g++) {
    uint64_t pages = (uint64_t)sequences * kv_group_need(&o->groups[g], o->ahead, tokens);
    uint32_t least = kv_group_need(&o->groups[g], o->ahead, o->context);
    if (pages < least) pages = least;
    if (pages >= KV_NO_PAGE) return UINT64_MAX;
    totals[g] = (uint32_t)pages;
    bytes += pages * o->groups[g].page_bytes;
  }
  return bytes;
}

troika_status kv_split_bytes(const kv_options *o, uint32_t totals[KV_GROUPS_MAX],
                             troika_error *err) {
  uint64_t least = bytes_for(o, 1, o->context, totals);
  if (least > o->bytes)
    return error_set(
        err, TROIKA_LIMIT,
        "one sequence of %u tokens needs %llu bytes of KV memory (%.1f MiB), more than "
        "the bound of %llu",
        o->context, (unsigned long long)least, (double)least / 1048576,
        (unsigned long long)o->bytes);
  uint32_t low = 1,
           high = o->context; /* the longest t that fits; 1 may not, then it is the least above */
  while (low < high) {
    uint32_t middle = low + (high - low + 1) / 2;
    if (bytes_for(o, o->sequences, middle, totals) <= o->bytes)
      low = middle;
    else
      high = middle - 1;
  }
  if (bytes_for(o, o->sequences, low, totals) > o->bytes) {
    bytes_for(o, 1, o->context, totals);
    return TROIKA_OK;
  }
  if (low < o->context) return TROIKA_OK;
  uint64_t bytes = bytes_for(o, o->sequences, low, totals);
  double ratio = (double)o->bytes / (double)bytes;
  uint64_t spent = 0;
  for (uint32_t g = 0; g < o->n_groups; g++) {
    double more = (double)totals[g] * ratio;
    uint32_t total = more < (double)(KV_NO_PAGE / 2) ? (uint32_t)more : KV_NO_PAGE / 2;
    uint64_t left = (o->bytes - spent) / o->groups[g].page_bytes;
    totals[g] = total < totals[g] ? totals[g] : total > left ? (uint32_t)left : total;
    spent += totals[g] * (uint64_t)o->groups[g].page_bytes;
  }
  return TROIKA_OK;
}

troika_status kv_pool_create(kv_pool_state *p, const kv_group *group, uint32_t total,
                             troika_error *err) {
  *p = (kv_pool_state){.group = *group, .total = total, .waiting = KV_NO_PAGE};
  for (int i = 0; i < KV_TREES; i++) p->roots[i] = KV_NO_PAGE;
  p->memory = os_memory((size_t)total * group->page_bytes);
  p->pages = malloc(total * sizeof *p->pages);
  p->free = malloc(total * sizeof *p->free);
  if (!p->memory || !p->pages || !p->free)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %u KV pages of %zu bytes", total,
                     group->page_bytes);
  for (uint32_t i = 0; i < total; i++) {
    p->pages[i] = (kv_page){.node = KV_NO_NODE, .left = KV_NO_PAGE, .right = KV_NO_PAGE};
    p->free[i] = total - 1 - i; /* low pages first: what was never used is never touched */
  }
  p->free_n = total;
  return TROIKA_OK;
}

void kv_pool_destroy(kv_pool_state *p) {
  os_memory_free(p->memory, (size_t)p->total * p->group.page_bytes);
  free(p->pages);
  free(p->free);
}

uint32_t kv_pool_promisable(const kv_pool_state *p) {
  uint64_t have = kv_is_full(p) ? (uint64_t)p->free_n + p->cached_n + p->held : p->total;
  return have > p->claims ? (uint32_t)(have - p->claims) : 0;
}

uint32_t kv_page_take(kv *k, uint32_t group) {
  kv_pool_state *p = &k->pools[group];
  if (p->free_n == 0) {
    uint32_t victim = kv_evict_choose(k, group);
    CHECK(victim != KV_NO_PAGE);
    kv_prefix_evict(k, group, victim);
  }
  uint32_t page = p->free[--p->free_n];
  p->pages[page].refs = 1;
  p->pages[page].price = 0;
  p->pages[page].focus_ns = 0;
  return page;
}

void kv_page_hold(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  kv_page *it = &p->pages[page];
  if (!it->refs) {
    kv_evict_remove(k, group, page);
    p->cached_n--;
    it->price = 0; /* the expected use is this one; who holds it now says what comes next */
    it->focus_ns = 0;
  }
  it->refs++;
}

void kv_page_let_go(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  CHECK(p->pages[page].refs > 0);
  if (--p->pages[page].refs) return;
  if (p->pages[page].node != KV_NO_NODE) {
    kv_evict_let_go(k, group, page);
    p->cached_n++;
  } else {
    p->free[p->free_n++] = page;
  }
}

void kv_page_forget(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  bool cached = !p->pages[page].refs;
  if (cached) kv_evict_remove(k, group, page);
  p->pages[page].node = KV_NO_NODE;
  if (!cached) return;
  p->cached_n--;
  p->evictions++;
  p->free[p->free_n++] = page;
}
