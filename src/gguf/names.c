/* names.c - finding a key or a tensor by its name.
 *
 * A file is hostile until proved otherwise, and a plain hash (FNV, djb2) lets it choose names that
 * all meet in one slot: 100,000 of them would take minutes to check for duplicates. SipHash with a
 * key that differs per process closes that; sorting was the alternative, but then each look-up
 * costs a dozen comparisons. Cost: 8 to 16 bytes an entry. Source: Aumasson, Bernstein, "SipHash: a
 * fast short-input PRF" (2012), 1 compression and 3 finalisation rounds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "gguf/file.h"

static uint64_t rotate(uint64_t x, int by) {
  return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4]) {
  v[0] += v[1];
  v[2] += v[3];
  v[1] = rotate(v[1], 13) ^ v[0];
  v[3] = rotate(v[3], 16) ^ v[2];
  v[0] = rotate(v[0], 32) + v[3];
  v[2] += v[1];
  v[3] = rotate(v[3], 21) ^ v[0];
  v[1] = rotate(v[1], 17) ^ v[2];
  v[2] = rotate(v[2], 32);
}

static uint64_t sip_hash(const uint64_t key[2], bytes_view name) {
  uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                   key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
  size_t whole = name.len & ~(size_t)7;
  for (size_t i = 0; i < whole; i += 8) {
    uint64_t m = gguf_load_u64((const uint8_t *)name.ptr + i);
    v[3] ^= m;
    sip_round(v);
    v[0] ^= m;
  }
  uint64_t last = (uint64_t)name.len << 56;
  if (name.len > whole) memcpy(&last, name.ptr + whole, name.len - whole);
  v[3] ^= last;
  sip_round(v);
  v[0] ^= last;
  v[2] ^= 0xff;
  for (int i = 0; i < 3; i++) sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static bytes_view name_at(const gguf_names *names, size_t i) {
  return *(const bytes_view *)(const void *)(names->first + i * names->stride);
}

/* The slot that holds `name`, or the free one where it belongs. */
static size_t find_slot(const gguf_names *names, bytes_view name) {
  size_t slot = (size_t)sip_hash(names->key, name) & names->mask;
  while (names->slots[slot] && !bytes_equal(name_at(names, names->slots[slot] - 1), name)) {
    slot = (slot + 1) & names->mask;
  }
  return slot;
}

troika_status gguf_names_build(gguf_names *names, const void *first, size_t stride, size_t count,
                               size_t *duplicate) {
  size_t capacity = 8;
  while (capacity < 2 * count) capacity *= 2;
  names->slots = calloc(capacity, sizeof *names->slots);
  if (!names->slots) return TROIKA_NO_MEMORY;
  names->mask = capacity - 1;
  names->first = first;
  names->stride = stride;
  /* Where the loader and the allocator put things is what a file's author cannot know. */
  names->key[0] = (uint64_t)(uintptr_t)names->slots * 0x9e3779b97f4a7c15;
  names->key[1] = (uint64_t)(uintptr_t)&sip_hash * 0xd1b54a32d192ed03 ^ (uint64_t)(uintptr_t)&count;
  for (size_t i = 0; i < count; i++) {
    size_t slot = find_slot(names, name_at(names, i));
    if (names->slots[slot]) {
      *duplicate = i;
      return TROIKA_FORMAT;
    }
    names->slots[slot] = (uint32_t)(i + 1);
  }
  return TROIKA_OK;
}

const void *gguf_names_find(const gguf_names *names, bytes_view name) {
  uint32_t entry = names->slots[find_slot(names, name)];
  return entry ? names->first + (size_t)(entry - 1) * names->stride : NULL;
}

void gguf_names_free(gguf_names *names) {
  free(names->slots);
  names->slots = NULL;
}
