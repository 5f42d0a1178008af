/* walk.h - reads everything an open file offers, by index and by name, and sums it so that nothing
 * is left out by the compiler. What gguf_open accepts must survive this; the fuzzer and the tests
 * of damaged files share it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GGUF_WALK_H
#define TEST_GGUF_WALK_H

#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

static inline uint64_t walk_bytes(const void *data, size_t len) {
  const unsigned char *p = data;
  uint64_t sum = len;
  for (size_t i = 0; i < len; i++) sum = sum * 31 + p[i];
  return sum;
}

static inline uint64_t walk_value(const gguf_kv *kv) {
  uint64_t sum = kv->n;
  for (uint64_t i = 0; i < kv->n; i++) {
    switch (kv->elem) {
      case GGUF_STRING: {
        bytes_view text = gguf_string_at(kv, i);
        sum += walk_bytes(text.ptr, text.len);
        break;
      }
      case GGUF_ARRAY:
        break; /* nested arrays have no accessor */
      case GGUF_F32:
      case GGUF_F64: {
        float f = gguf_f32_at(kv, i);
        sum += walk_bytes(&f, sizeof f);
        break;
      }
      default:
        sum += (uint64_t)gguf_int_at(kv, i);
    }
  }
  return sum;
}

/* A name as the C string that the look-ups take; the caller frees it. */
static inline char *walk_name(bytes_view name) {
  char *text = malloc(name.len + 1);
  if (!text) abort();
  memcpy(text, name.ptr, name.len);
  text[name.len] = 0;
  return text;
}

static inline uint64_t walk_kv(const gguf *file, const gguf_kv *kv) {
  char *key = walk_name(kv->key);
  uint32_t u = 0;
  float f = 0;
  bool b = false;
  bytes_view text = {0};
  troika_error err;
  const gguf_kv *found = gguf_find(file, key);
  if (strlen(key) == kv->key.len && found != kv)
    abort(); /* names are unique and all can be found */
  uint64_t sum = walk_value(kv) + strlen(gguf_value_type_name(kv->type));
  if (!gguf_get_u32(file, key, &u, &err)) sum += u;
  if (!gguf_get_f32(file, key, &f, &err)) sum += walk_bytes(&f, sizeof f);
  if (!gguf_get_bool(file, key, &b, &err)) sum += b;
  if (!gguf_get_string(file, key, &text, &err)) sum += walk_bytes(text.ptr, text.len);
  free(key);
  return sum;
}

static inline uint64_t walk_tensor(const gguf *file, const gguf_tensor *tensor) {
  char *name = walk_name(tensor->name);
  const gguf_tensor *found = gguf_tensor_find(file, name);
  if (strlen(name) == tensor->name.len && found != tensor) abort();
  free(name);
  uint32_t elements, bytes;
  if (!gguf_type_block(tensor->type, &elements, &bytes)) abort();
  uint64_t blocks =
      tensor->dims[0] / elements * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
  if (blocks * bytes != tensor->bytes || tensor->offset % gguf_alignment(file)) abort();
  if (tensor->offset + tensor->bytes > gguf_size(file)) abort();
  return walk_bytes(tensor->data, (size_t)tensor->bytes) + strlen(gguf_type_name(tensor->type));
}

static inline uint64_t walk_file(const gguf *file) {
  uint64_t sum = gguf_version(file) + gguf_alignment(file) + gguf_size(file);
  for (size_t i = 0; i < gguf_kv_count(file); i++) sum += walk_kv(file, gguf_kv_at(file, i));
  for (size_t i = 0; i < gguf_tensor_count(file); i++) {
    sum += walk_tensor(file, gguf_tensor_at(file, i));
  }
  return sum;
}

#endif
