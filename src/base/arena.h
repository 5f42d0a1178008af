/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory that is given back all at once.
 * Blocks grow as needed up to `max` bytes in all; arena_alloc answers NULL past it. Memory is
 * zeroed and aligned to 16 (or to `align`, a power of two up to 4096). Owned by the arena until
 * arena_free. Not thread-safe. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

typedef struct arena_block arena_block;
typedef struct arena {
  arena_block *blocks;
  size_t used, max;
} arena;

void arena_init(arena *a, size_t max);
void arena_free(arena *a);
void *arena_alloc(arena *a, size_t count, size_t size); /* NULL on overflow, max or no memory */
void *arena_alloc_aligned(arena *a, size_t bytes, size_t align);
char *arena_copy_string(arena *a, const char *text, size_t len); /* with a NUL after it */

#endif
