/* file.h - inside of the gguf room: the open file, the cursor that walks it, the name tables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GGUF_FILE_H
#define GGUF_FILE_H

#include <string.h>

#include "gguf/gguf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF v3 is read and written in place");

/* Hash table over things whose first member is their name: slot = index + 1, 0 is free, at most
 * half full. The hash is SipHash-1-3 with a key of this process, so that no file can be made whose
 * names all collide. */
typedef struct gguf_names {
  uint32_t *slots; /* owned */
  size_t mask;
  uint64_t key[2];
  const char *first; /* borrowed: entry i begins at first + i * stride */
  size_t stride;
} gguf_names;

/* FORMAT if two entries have one name: the later one's index is in *duplicate. */
troika_status gguf_names_build(gguf_names *names, const void *first, size_t stride, size_t count,
                               size_t *duplicate);
const void *gguf_names_find(const gguf_names *names, bytes_view name);
void gguf_names_free(gguf_names *names);

struct gguf {
  os_map map; /* data is NULL when the bytes are borrowed */
  const uint8_t *data;
  size_t len;
  uint32_t version;
  uint64_t alignment;
  gguf_kv *kvs; /* owned, and each one's `at` */
  size_t kv_count;
  gguf_names kv_names;
  gguf_tensor *tensors; /* owned */
  size_t tensor_count;
  gguf_names tensor_names;
};

/* Where the walk is. A failure says which entry, at which byte of the file, and why. */
typedef struct gguf_cursor {
  const uint8_t *data;
  size_t len, at;
  const char *section; /* "metadata entry" */
  uint64_t index, count;
  troika_error *err;
} gguf_cursor;

troika_status gguf_cursor_fail(const gguf_cursor *c, troika_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* n bytes, stepped over; FORMAT when fewer are left. */
troika_status gguf_cursor_take(gguf_cursor *c, uint64_t n, const char *what, const uint8_t **out);
troika_status gguf_cursor_u32(gguf_cursor *c, const char *what, uint32_t *out);
troika_status gguf_cursor_u64(gguf_cursor *c, const char *what, uint64_t *out);
/* A string whose length must be in min..max. */
troika_status gguf_cursor_string(gguf_cursor *c, const char *what, uint64_t min, uint64_t max,
                                 bytes_view *out);
/* FORMAT unless `count` things of at least `least` bytes each fit into what is left. */
troika_status gguf_cursor_fits(const gguf_cursor *c, uint64_t count, uint64_t least,
                               const char *what);

troika_status gguf_metadata_read(gguf *file, gguf_cursor *c, uint64_t count);
troika_status gguf_tensors_read(gguf *file, gguf_cursor *c, uint64_t count);

/* Room for one more entry of a table that is filled in order; grows by half, so that memory follows
 * what has been read rather than what a count claims. NULL if there is no memory: the table stays
 * as it was. */
void *gguf_table_grow(void *table, size_t count, size_t *capacity, size_t entry);

/* Bytes of one value; 0 for strings, arrays and numbers that are no type. */
size_t gguf_scalar_bytes(uint32_t type);

static inline uint64_t gguf_load_u64(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline uint32_t gguf_load_u32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

enum {
  GGUF_ALIGNMENT_DEFAULT = 32,
  GGUF_KEY_MAX = 65535,
  GGUF_NAME_MAX = 64,
  GGUF_ARRAY_DEPTH_MAX = 4
};

#endif
