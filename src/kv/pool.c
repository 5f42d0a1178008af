/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - one pool of pages a group: who is free, owned, cached, and who goes first. O(1) a page.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "kv/internal.h"

static uint32_t pages_of(uint64_t tokens) {
  return (uint32_t)((tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

/* A window's live positions, window + ahead of them, begin anywhere inside a page: one page more
 * than they fill. */
uint32_t kv_group_need(const kv_group *group, uint32_t ahead, uint32_t tokens) {
  uint32_t all = pages_of(tokens);
  if (group->kind == KV_FULL) return all;
  uint32_t most = pages_of((uint64_t)group->window + ahead) + 1;
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
  *p = (kv_pool_state){.group = *group, .total = total, .oldest = KV_NO_PAGE, .newest = KV_NO_PAGE};
  p->memory = os_memory((size_t)total * group->page_bytes);
  p->pages = malloc(total * sizeof *p->pages);
  p->free = malloc(total * sizeof *p->free);
  if (!p->memory || !p->pages || !p->free)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %u KV pages of %zu bytes", total,
                     group->page_bytes);
  for (uint32_t i = 0; i < total; i++) {
    p->pages[i] = (kv_page){0, KV_NO_NODE, KV_NO_PAGE, KV_NO_PAGE};
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

static void list_append(kv_pool_state *p, uint32_t page) {
  p->pages[page].older = p->newest;
  p->pages[page].newer = KV_NO_PAGE;
  if (p->newest != KV_NO_PAGE)
    p->pages[p->newest].newer = page;
  else
    p->oldest = page;
  p->newest = page;
  p->cached_n++;
}

static void list_remove(kv_pool_state *p, uint32_t page) {
  kv_page *it = &p->pages[page];
  if (it->older != KV_NO_PAGE)
    p->pages[it->older].newer = it->newer;
  else
    p->oldest = it->newer;
  if (it->newer != KV_NO_PAGE)
    p->pages[it->newer].older = it->older;
  else
    p->newest = it->older;
  p->cached_n--;
}

uint32_t kv_page_take(kv *k, uint32_t group) {
  kv_pool_state *p = &k->pools[group];
  if (p->free_n == 0) {
    CHECK(p->oldest != KV_NO_PAGE);
    kv_prefix_evict(k, group, p->oldest);
  }
  uint32_t page = p->free[--p->free_n];
  p->pages[page].refs = 1;
  return page;
}

void kv_page_hold(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  if (p->pages[page].refs++ == 0) list_remove(p, page);
}

void kv_page_let_go(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  CHECK(p->pages[page].refs > 0);
  if (--p->pages[page].refs) return;
  if (p->pages[page].node != KV_NO_NODE)
    list_append(p, page);
  else
    p->free[p->free_n++] = page;
}

void kv_page_forget(kv *k, uint32_t group, uint32_t page) {
  kv_pool_state *p = &k->pools[group];
  p->pages[page].node = KV_NO_NODE;
  if (p->pages[page].refs) return;
  list_remove(p, page);
  p->free[p->free_n++] = page;
}
