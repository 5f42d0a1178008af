/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BLOCK_BYTES = 64 * 1024 };

struct arena_block {
  arena_block *next;
  char *at, *end; /* free part of this block */
};

void arena_init(arena *a, size_t max) {
  *a = (arena){.max = max};
}

void arena_free(arena *a) {
  for (arena_block *b = a->blocks; b;) {
    arena_block *next = b->next;
    free(b);
    b = next;
  }
  arena_init(a, a->max);
}

static char *aligned(char *p, size_t align) {
  return p + (-(uintptr_t)p & (align - 1));
}

void *arena_alloc_aligned(arena *a, size_t bytes, size_t align) {
  if (bytes > a->max - a->used) return NULL;
  arena_block *b = a->blocks;
  char *p = b ? aligned(b->at, align) : NULL;
  if (!b || p > b->end || bytes > (size_t)(b->end - p)) {
    size_t body = bytes + align > ARENA_BLOCK_BYTES ? bytes + align : ARENA_BLOCK_BYTES;
    b = calloc(1, sizeof *b + body);
    if (!b) return NULL;
    *b = (arena_block){a->blocks, (char *)(b + 1), (char *)(b + 1) + body};
    a->blocks = b;
    p = aligned(b->at, align);
  }
  b->at = p + bytes;
  a->used += bytes;
  return p;
}

void *arena_alloc(arena *a, size_t count, size_t size) {
  if (size && count > SIZE_MAX / 2 / size) return NULL;
  return arena_alloc_aligned(a, count * size, 16);
}

char *arena_copy_string(arena *a, const char *text, size_t len) {
  char *copy = len < SIZE_MAX ? arena_alloc_aligned(a, len + 1, 1) : NULL;
  if (copy) memcpy(copy, text, len);
  return copy;
}
