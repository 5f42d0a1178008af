/* SPDX-License-Identifier: Apache-2.0 */
#include "text/merge.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_RUN = 40, ARMS = 4 /* children of a heap node: four share a cache line or two */ };

void merge_free(merge_scratch *s) {
  free(s->heap);
  free(s->symbols);
  *s = (merge_scratch){0};
}

troika_status merge_reserve(merge_scratch *s, size_t n) {
  if (n <= s->capacity) return TROIKA_OK;
  size_t capacity = s->capacity ? s->capacity : 256;
  while (capacity < n) capacity *= 2;
  merge_symbol *symbols = realloc(s->symbols, capacity * sizeof *symbols);
  if (!symbols) return TROIKA_NO_MEMORY;
  s->symbols = symbols;
  s->capacity = capacity;
  return TROIKA_OK;
}

static bool candidate_less(const merge_candidate *a, const merge_candidate *b) {
  if (a->rank != b->rank) return a->rank < b->rank;
  if (a->tie != b->tie) return a->tie < b->tie;
  return a->left < b->left;
}

static bool pair_find(const merge_symbol *left, const merge_symbol *right, const char *run,
                      merge_lookup lookup, const void *context, merge_candidate *out) {
  return left->id >= 0 && right->id >= 0 && lookup(context, run, left, right, out);
}

/* ---- short runs: the candidate of pair (i, i + 1) stands in best[i] ---- */

static void short_candidate(merge_scratch *s, merge_candidate *best, size_t i, const char *run,
                            merge_lookup lookup, const void *context) {
  best[i].tie = 0;
  if (!pair_find(&s->symbols[i], &s->symbols[i + 1], run, lookup, context, &best[i]))
    best[i].rank = UINT32_MAX;
}

static void merge_short(merge_scratch *s, const char *run, merge_lookup lookup,
                        const void *context) {
  merge_candidate best[SHORT_RUN];
  for (size_t i = 0; i + 1 < s->n; i++) short_candidate(s, best, i, run, lookup, context);
  while (s->n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < s->n; i++)
      if (best[i].rank < best[at].rank ||
          (best[i].rank == best[at].rank && best[i].tie < best[at].tie))
        at = i;
    if (best[at].rank == UINT32_MAX) return;
    s->symbols[at].len += s->symbols[at + 1].len;
    s->symbols[at].id = best[at].id;
    s->n--;
    memmove(&s->symbols[at + 1], &s->symbols[at + 2], (s->n - at - 1) * sizeof s->symbols[0]);
    if (at + 1 < s->n) memmove(&best[at], &best[at + 1], (s->n - 1 - at) * sizeof best[0]);
    if (at > 0) short_candidate(s, best, at - 1, run, lookup, context);
    if (at + 1 < s->n) short_candidate(s, best, at, run, lookup, context);
  }
}

/* ---- long runs: linked list and heap ---- */

static troika_status heap_push(merge_scratch *s, const merge_candidate *c) {
  if (s->heap_n == s->heap_capacity) {
    size_t capacity = s->heap_capacity ? 2 * s->heap_capacity : 1024;
    merge_candidate *heap = realloc(s->heap, capacity * sizeof *heap);
    if (!heap) return TROIKA_NO_MEMORY;
    s->heap = heap;
    s->heap_capacity = capacity;
  }
  size_t i = s->heap_n++;
  while (i > 0 && candidate_less(c, &s->heap[(i - 1) / ARMS])) {
    s->heap[i] = s->heap[(i - 1) / ARMS];
    i = (i - 1) / ARMS;
  }
  s->heap[i] = *c;
  return TROIKA_OK;
}

static void heap_pop(merge_scratch *s, merge_candidate *out) {
  merge_candidate *heap = s->heap, last = heap[--s->heap_n];
  *out = heap[0];
  size_t i = 0, n = s->heap_n;
  for (;;) {
    size_t child = ARMS * i + 1, end = child + ARMS < n ? child + ARMS : n, best = child;
    if (child >= n) break;
    while (++child < end)
      if (candidate_less(&heap[child], &heap[best])) best = child;
    if (!candidate_less(&heap[best], &last)) break;
    heap[i] = heap[best];
    i = best;
  }
  heap[i] = last;
}

static troika_status long_candidate(merge_scratch *s, int32_t left, int32_t right, const char *run,
                                    merge_lookup lookup, const void *context) {
  if (left < 0 || right < 0) return TROIKA_OK;
  const merge_symbol *a = &s->symbols[left], *b = &s->symbols[right];
  merge_candidate c = {.left = (uint32_t)left, .right = (uint32_t)right, .len = a->len + b->len};
  if (!pair_find(a, b, run, lookup, context, &c)) return TROIKA_OK;
  return heap_push(s, &c);
}

static troika_status merge_long(merge_scratch *s, const char *run, merge_lookup lookup,
                                const void *context) {
  troika_status status = TROIKA_OK;
  merge_symbol *symbols = s->symbols;
  s->heap_n = 0;
  for (size_t i = 0; i < s->n; i++) {
    symbols[i].prev = (int32_t)i - 1;
    symbols[i].next = i + 1 < s->n ? (int32_t)i + 1 : -1;
  }
  for (size_t i = 0; status == TROIKA_OK && i + 1 < s->n; i++)
    status = long_candidate(s, (int32_t)i, (int32_t)i + 1, run, lookup, context);
  while (status == TROIKA_OK && s->heap_n > 0) {
    merge_candidate c;
    heap_pop(s, &c);
    merge_symbol *a = &symbols[c.left], *b = &symbols[c.right];
    /* A swallowed symbol has length 0, so a stale candidate never adds up to its old length. */
    if (a->next != (int32_t)c.right || a->len == 0 || a->len + b->len != c.len) continue;
    a->len = c.len;
    a->id = c.id;
    a->next = b->next;
    if (b->next >= 0) symbols[b->next].prev = (int32_t)c.left;
    b->len = 0;
    status = long_candidate(s, a->prev, (int32_t)c.left, run, lookup, context);
    if (status == TROIKA_OK)
      status = long_candidate(s, (int32_t)c.left, a->next, run, lookup, context);
  }
  size_t n = 0;
  for (size_t i = 0; i < s->n; i++)
    if (symbols[i].len) symbols[n++] = symbols[i];
  s->n = n;
  return status;
}

troika_status merge_run(merge_scratch *s, const char *run, merge_lookup lookup,
                        const void *context) {
  if (s->n > SHORT_RUN) return merge_long(s, run, lookup, context);
  merge_short(s, run, lookup, context);
  return TROIKA_OK;
}
