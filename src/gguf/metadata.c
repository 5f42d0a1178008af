/* metadata.c - the key-value part of a file.
 *
 *   string key | u32 type | value          value of an array: u32 element type | u64 n | n values
 *
 * Walked once, in order. Arrays of strings get a table of where each string lies (16 bytes each,
 * twice what the shortest string takes in the file), because a vocabulary is asked for by index.
 * Nested arrays are checked, not indexed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "gguf/file.h"

/* The least a value of this type takes in the file. */
static uint64_t least_bytes(uint32_t type) {
  if (type == GGUF_STRING) return 8;
  if (type == GGUF_ARRAY) return 12;
  return gguf_scalar_bytes(type);
}

static troika_status check_type(const gguf_cursor *c, uint32_t type, const char *what) {
  if (type < GGUF_TYPE_COUNT) return TROIKA_OK;
  return gguf_cursor_fail(c, TROIKA_FORMAT, "%s has type %" PRIu32 ", known are 0 to %d", what,
                          type, GGUF_TYPE_COUNT - 1);
}

static troika_status read_array_head(gguf_cursor *c, uint32_t *elem, uint64_t *n) {
  troika_status status = gguf_cursor_u32(c, "array", elem);
  if (!status) status = gguf_cursor_u64(c, "array", n);
  if (!status) status = check_type(c, *elem, "array element");
  if (!status) status = gguf_cursor_fits(c, *n, least_bytes(*elem), "array elements");
  return status;
}

static troika_status check_bools(gguf_cursor *c, uint64_t n) {
  const uint8_t *p;
  troika_status status = gguf_cursor_take(c, n, "bool", &p);
  for (uint64_t i = 0; !status && i < n; i++) {
    if (p[i] > 1) {
      status = gguf_cursor_fail(c, TROIKA_FORMAT, "a bool is %u, must be 0 or 1", p[i]);
    }
  }
  return status;
}

/* Steps over n strings; notes where they lie in `at` unless that is NULL. */
static troika_status read_strings(gguf_cursor *c, uint64_t n, uint64_t *at) {
  const uint8_t *first = c->data + c->at;
  for (uint64_t i = 0; i < n; i++) {
    bytes_view string;
    troika_status status = gguf_cursor_string(c, "string", 0, UINT64_MAX, &string);
    if (status) return status;
    if (at) {
      at[2 * i] = (uint64_t)((const uint8_t *)string.ptr - first);
      at[2 * i + 1] = string.len;
    }
  }
  return TROIKA_OK;
}

/* Steps over n values of a type. Recursion ends at GGUF_ARRAY_DEPTH_MAX. */
static troika_status skip_values(gguf_cursor *c, uint32_t type, uint64_t n, int depth) {
  const uint8_t *unused;
  if (type == GGUF_BOOL) return check_bools(c, n);
  if (type == GGUF_STRING) return read_strings(c, n, NULL);
  if (type != GGUF_ARRAY) {
    /* No overflow: the caller has checked that n of them fit. */
    return gguf_cursor_take(c, n * gguf_scalar_bytes(type), "value", &unused);
  }
  if (n && depth >= GGUF_ARRAY_DEPTH_MAX) {
    return gguf_cursor_fail(c, TROIKA_FORMAT, "arrays nested deeper than %d", GGUF_ARRAY_DEPTH_MAX);
  }
  for (uint64_t i = 0; i < n; i++) {
    uint32_t elem;
    uint64_t inner;
    troika_status status = read_array_head(c, &elem, &inner);
    if (!status) status = skip_values(c, elem, inner, depth + 1);
    if (status) return status;
  }
  return TROIKA_OK;
}

static troika_status read_array(gguf_cursor *c, gguf_kv *kv) {
  uint32_t elem;
  troika_status status = read_array_head(c, &elem, &kv->n);
  if (status) return status;
  kv->elem = (gguf_type)elem;
  kv->data = c->data + c->at;
  if (elem != GGUF_STRING || kv->n == 0) return skip_values(c, elem, kv->n, 1);
  uint64_t *at = reallocarray(NULL, kv->n, 2 * sizeof *at);
  if (!at) {
    return gguf_cursor_fail(c, TROIKA_NO_MEMORY, "no memory for %" PRIu64 " strings", kv->n);
  }
  status = read_strings(c, kv->n, at);
  if (status) {
    free(at);
  } else {
    kv->at = at;
  }
  return status;
}

static troika_status read_entry(gguf_cursor *c, gguf_kv *kv) {
  uint32_t type;
  troika_status status = gguf_cursor_string(c, "key", 1, GGUF_KEY_MAX, &kv->key);
  if (!status) status = gguf_cursor_u32(c, "type", &type);
  if (!status) status = check_type(c, type, "value");
  if (status) return status;
  kv->type = kv->elem = (gguf_type)type;
  kv->n = 1;
  kv->data = c->data + c->at;
  if (type == GGUF_ARRAY) return read_array(c, kv);
  status = gguf_cursor_fits(c, 1, least_bytes(type), "value");
  return status ? status : skip_values(c, type, 1, 0);
}

troika_status gguf_metadata_read(gguf *file, gguf_cursor *c, uint64_t count) {
  size_t capacity = 0;
  troika_status status = gguf_cursor_fits(c, count, 8 + 1 + 4 + 1, "metadata entries");
  if (status) return status;
  c->section = "metadata entry";
  c->count = count;
  for (c->index = 0; c->index < count; c->index++) {
    gguf_kv kv = {0};
    if (file->kv_count >= UINT32_MAX / 2) {
      return gguf_cursor_fail(c, TROIKA_LIMIT, "at most %u entries are read", UINT32_MAX / 2);
    }
    void *table = gguf_table_grow(file->kvs, file->kv_count, &capacity, sizeof kv);
    if (!table) {
      return gguf_cursor_fail(c, TROIKA_NO_MEMORY, "no memory for the table");
    }
    file->kvs = table;
    status = read_entry(c, &kv);
    if (status) return status;
    file->kvs[file->kv_count++] = kv;
  }
  size_t duplicate = 0;
  status =
      gguf_names_build(&file->kv_names, file->kvs, sizeof *file->kvs, file->kv_count, &duplicate);
  c->index = duplicate;
  if (status == TROIKA_FORMAT) return gguf_cursor_fail(c, status, "its key occurs twice");
  if (status) return gguf_cursor_fail(c, status, "no memory for the table of keys");
  c->section = NULL;
  return TROIKA_OK;
}
