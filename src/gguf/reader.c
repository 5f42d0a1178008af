/* reader.c - opening a file, and what is in it by index and name.
 *
 * The walk costs one pass over the metadata (262,144 strings: a few milliseconds, mostly page
 * faults); tensor data is not touched. After it nothing needs to be checked again, so the accessors
 * are plain loads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "gguf/file.h"

static troika_status read_alignment(gguf *file, troika_error *err) {
  const gguf_kv *kv = gguf_find(file, "general.alignment");
  file->alignment = GGUF_ALIGNMENT_DEFAULT;
  if (!kv) return TROIKA_OK;
  if (kv->type != GGUF_U32) {
    return error_set(err, TROIKA_FORMAT, "general.alignment has type %s, must be u32",
                     gguf_value_type_name(kv->type));
  }
  uint32_t value = gguf_load_u32(kv->data);
  if (value < 8 || (value & (value - 1))) {
    return error_set(err, TROIKA_FORMAT,
                     "general.alignment is %" PRIu32 ", must be a power of two of at least 8",
                     value);
  }
  file->alignment = value;
  return TROIKA_OK;
}

static troika_status read_header(gguf *file, gguf_cursor *c, uint64_t *tensors, uint64_t *kvs) {
  const uint8_t *magic;
  troika_status status = gguf_cursor_take(c, 4, "the mark", &magic);
  if (status) return status;
  if (memcmp(magic, "GGUF", 4) != 0) {
    return error_set(c->err, TROIKA_FORMAT,
                     "not a GGUF file: it begins with 0x%08" PRIx32 ", not 0x%08" PRIx32,
                     gguf_load_u32(magic), gguf_load_u32((const uint8_t *)"GGUF"));
  }
  status = gguf_cursor_u32(c, "version", &file->version);
  if (status) return status;
  if (file->version && !(file->version & 0xffff)) {
    return error_set(c->err, TROIKA_UNSUPPORTED,
                     "GGUF version %" PRIu32 ": a big-endian file, only little-endian is read",
                     __builtin_bswap32(file->version));
  }
  /* 2 and 3 differ in the byte order they allow, not in their layout. */
  if (file->version != 2 && file->version != 3) {
    return error_set(c->err, TROIKA_UNSUPPORTED, "GGUF version %" PRIu32 ", known are 2 and 3",
                     file->version);
  }
  status = gguf_cursor_u64(c, "tensor count", tensors);
  return status ? status : gguf_cursor_u64(c, "metadata count", kvs);
}

static troika_status read_all(gguf *file, troika_error *err) {
  gguf_cursor c = {.data = file->data, .len = file->len, .err = err};
  uint64_t tensors, kvs;
  troika_status status = read_header(file, &c, &tensors, &kvs);
  if (!status) status = gguf_metadata_read(file, &c, kvs);
  if (!status) status = read_alignment(file, err);
  if (!status) status = gguf_tensors_read(file, &c, tensors);
  return status;
}

/* Takes over *map (if any) also when it fails. */
static troika_status open_bytes(os_map *map, const void *bytes, size_t len, gguf **out,
                                troika_error *err) {
  gguf *file = calloc(1, sizeof *file);
  if (!file) {
    if (map) os_map_close(map);
    return error_set(err, TROIKA_NO_MEMORY, "no memory to open a GGUF file");
  }
  if (map) file->map = *map;
  file->data = bytes;
  file->len = len;
  troika_status status = read_all(file, err);
  if (status) {
    gguf_close(&file);
    return status;
  }
  *out = file;
  return TROIKA_OK;
}

troika_status gguf_open(const char *path, gguf **out, troika_error *err) {
  os_map map = {0};
  troika_status status = os_map_open(path, &map, err);
  return status ? status : open_bytes(&map, map.data, map.len, out, err);
}

troika_status gguf_open_memory(const void *bytes, size_t len, gguf **out, troika_error *err) {
  return open_bytes(NULL, len ? bytes : "", len, out, err);
}

void gguf_close(gguf **file) {
  gguf *f = *file;
  if (!f) return;
  *file = NULL;
  for (size_t i = 0; i < f->kv_count; i++) free((void *)(uintptr_t)f->kvs[i].at);
  gguf_names_free(&f->kv_names);
  gguf_names_free(&f->tensor_names);
  free(f->kvs);
  free(f->tensors);
  if (f->map.data) os_map_close(&f->map);
  free(f);
}

uint32_t gguf_version(const gguf *file) {
  return file->version;
}

uint64_t gguf_alignment(const gguf *file) {
  return file->alignment;
}

size_t gguf_size(const gguf *file) {
  return file->len;
}

const os_map *gguf_map(const gguf *file) {
  return file->map.data ? &file->map : NULL;
}

size_t gguf_kv_count(const gguf *file) {
  return file->kv_count;
}

const gguf_kv *gguf_kv_at(const gguf *file, size_t i) {
  CHECK(i < file->kv_count);
  return &file->kvs[i];
}

const gguf_kv *gguf_find(const gguf *file, const char *key) {
  return gguf_names_find(&file->kv_names, bytes_of_string(key));
}

size_t gguf_tensor_count(const gguf *file) {
  return file->tensor_count;
}

const gguf_tensor *gguf_tensor_at(const gguf *file, size_t i) {
  CHECK(i < file->tensor_count);
  return &file->tensors[i];
}

const gguf_tensor *gguf_tensor_find(const gguf *file, const char *name) {
  return gguf_names_find(&file->tensor_names, bytes_of_string(name));
}
