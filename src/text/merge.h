/* merge.h - the heart of both tokenizers: merge the best neighbouring pair until none is left.
 *
 *   symbols, linked:   h - e - l - l - o        candidates, in a heap by (rank, tie, position):  (h
 * e) (l l) ...
 *
 * Short runs (most words) scan an array for the best pair; long ones use the heap, so that a run of
 * n symbols takes n log n steps and no stack, whatever it holds. A stale candidate is known by its
 * length. Memory: 52 bytes a symbol, only while it runs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_MERGE_H
#define TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

typedef struct merge_symbol {
  uint32_t start, len; /* bytes of the run */
  int32_t id;          /* -1: no token, never merged */
  int32_t prev, next;  /* -1 at the ends */
} merge_symbol;

typedef struct merge_candidate {
  uint32_t rank, tie; /* less is better */
  uint32_t left, right, len;
  int32_t id;
} merge_candidate;

/* Fills rank, tie and id of the pair, or returns false. Both ids are >= 0. */
typedef bool (*merge_lookup)(const void *context, const char *run, const merge_symbol *left,
                             const merge_symbol *right, merge_candidate *out);

typedef struct merge_scratch {
  merge_symbol *symbols;
  size_t n, capacity;
  merge_candidate *heap;
  size_t heap_n, heap_capacity;
} merge_scratch;

void merge_free(merge_scratch *s);
/* Room for n symbols in s->symbols; the caller fills start, len, id and sets s->n. */
troika_status merge_reserve(merge_scratch *s, size_t n);
/* Afterwards symbols[0 .. n) are what is left, in order. */
troika_status merge_run(merge_scratch *s, const char *run, merge_lookup lookup,
                        const void *context);

#endif
