/* writer.c - see writer.h.
 *
 * Metadata is kept as the bytes it will be in the file; tensor infos as numbers, since their
 * offsets are known only when all are there. Cost: the metadata twice at most while its buffer
 * grows, about 160 bytes a tensor, one piece of 1 MiB.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "gguf/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "gguf/file.h"

typedef struct writer_tensor {
  char name[GGUF_NAME_MAX + 1];
  uint32_t type, n_dims;
  uint64_t dims[4];
  uint64_t bytes, offset, piece;
  const void *data;
  gguf_writer_fill fill; /* when data is NULL */
  void *context;
} writer_tensor;

struct gguf_writer {
  uint32_t alignment;
  bytes_buffer metadata; /* entries as in the file */
  size_t *keys;          /* owned: where each entry begins in metadata */
  size_t key_count, key_capacity;
  writer_tensor *tensors; /* owned */
  size_t tensor_count, tensor_capacity;
  uint64_t data_bytes; /* of the tensors so far, padded */
  troika_error error;  /* the first one; status OK while there is none */
};

gguf_writer *gguf_writer_create(uint32_t alignment) {
  gguf_writer *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  bytes_init(&w->metadata, SIZE_MAX / 4);
  w->alignment = alignment;
  if (alignment < 8 || (alignment & (alignment - 1))) {
    error_set(&w->error, TROIKA_INVALID,
              "alignment %" PRIu32 ", must be a power of two of at least 8", alignment);
  } else if (alignment != GGUF_ALIGNMENT_DEFAULT) {
    gguf_writer_add_u32(w, "general.alignment", alignment);
  }
  return w;
}

void gguf_writer_destroy(gguf_writer **writer) {
  gguf_writer *w = *writer;
  if (!w) return;
  *writer = NULL;
  bytes_free(&w->metadata);
  free(w->keys);
  free(w->tensors);
  free(w);
}

static void put_u32(bytes_buffer *buffer, uint32_t v) {
  bytes_append(buffer, &v, sizeof v);
}
static void put_u64(bytes_buffer *buffer, uint64_t v) {
  bytes_append(buffer, &v, sizeof v);
}

static void put_string(bytes_buffer *buffer, bytes_view string) {
  put_u64(buffer, string.len);
  if (string.len) bytes_append(buffer, string.ptr, string.len);
}

static bool has_key(const gguf_writer *w, bytes_view key) {
  for (size_t i = 0; i < w->key_count; i++) {
    const uint8_t *entry = (const uint8_t *)w->metadata.data + w->keys[i];
    bytes_view other = bytes_of((const char *)entry + 8, (size_t)gguf_load_u64(entry));
    if (bytes_equal(other, key)) return true;
  }
  return false;
}

/* Key and type of a new entry; false once the writer has failed. */
static bool begin_entry(gguf_writer *w, bytes_view key, gguf_type type) {
  if (w->error.status) return false;
  if (key.len < 1 || key.len > GGUF_KEY_MAX) {
    error_set(&w->error, TROIKA_INVALID, "metadata key of %zu bytes, allowed are 1 to %d", key.len,
              GGUF_KEY_MAX);
    return false;
  }
  if (has_key(w, key)) {
    error_set(&w->error, TROIKA_INVALID, "metadata key %.*s is added twice", (int)key.len, key.ptr);
    return false;
  }
  void *table = gguf_table_grow(w->keys, w->key_count, &w->key_capacity, sizeof *w->keys);
  if (!table) {
    error_set(&w->error, TROIKA_NO_MEMORY, "no memory for metadata entry %zu", w->key_count + 1);
    return false;
  }
  w->keys = table;
  w->keys[w->key_count++] = w->metadata.len;
  put_string(&w->metadata, key);
  put_u32(&w->metadata, type);
  return true;
}

static void end_entry(gguf_writer *w) {
  if (!w->metadata.failed || w->error.status) return;
  error_set(&w->error, TROIKA_NO_MEMORY, "no memory for metadata entry %zu", w->key_count);
}

void gguf_writer_add(gguf_writer *w, const char *key, gguf_type type, const void *value) {
  CHECK(gguf_scalar_bytes(type));
  if (!begin_entry(w, bytes_of_string(key), type)) return;
  bytes_append(&w->metadata, value, gguf_scalar_bytes(type));
  end_entry(w);
}

void gguf_writer_add_u32(gguf_writer *w, const char *key, uint32_t value) {
  gguf_writer_add(w, key, GGUF_U32, &value);
}

void gguf_writer_add_f32(gguf_writer *w, const char *key, float value) {
  gguf_writer_add(w, key, GGUF_F32, &value);
}

void gguf_writer_add_bool(gguf_writer *w, const char *key, bool value) {
  uint8_t byte = value;
  gguf_writer_add(w, key, GGUF_BOOL, &byte);
}

void gguf_writer_add_string(gguf_writer *w, const char *key, bytes_view value) {
  if (!begin_entry(w, bytes_of_string(key), GGUF_STRING)) return;
  put_string(&w->metadata, value);
  end_entry(w);
}

void gguf_writer_add_array(gguf_writer *w, const char *key, gguf_type elem, const void *values,
                           uint64_t n) {
  CHECK(gguf_scalar_bytes(elem) && n <= SIZE_MAX / 8);
  if (!begin_entry(w, bytes_of_string(key), GGUF_ARRAY)) return;
  put_u32(&w->metadata, elem);
  put_u64(&w->metadata, n);
  if (n) bytes_append(&w->metadata, values, (size_t)n * gguf_scalar_bytes(elem));
  end_entry(w);
}

void gguf_writer_add_strings(gguf_writer *w, const char *key, const bytes_view *values,
                             uint64_t n) {
  if (!begin_entry(w, bytes_of_string(key), GGUF_ARRAY)) return;
  put_u32(&w->metadata, GGUF_STRING);
  put_u64(&w->metadata, n);
  for (uint64_t i = 0; i < n; i++) put_string(&w->metadata, values[i]);
  end_entry(w);
}

/* End of n values that were checked when their file was opened. */
static const uint8_t *end_of_values(const uint8_t *p, uint32_t type, uint64_t n) {
  if (type != GGUF_STRING && type != GGUF_ARRAY) return p + n * gguf_scalar_bytes(type);
  for (uint64_t i = 0; i < n; i++) {
    if (type == GGUF_STRING) {
      p += 8 + gguf_load_u64(p);
    } else {
      p = end_of_values(p + 12, gguf_load_u32(p), gguf_load_u64(p + 4));
    }
  }
  return p;
}

void gguf_writer_add_copy(gguf_writer *w, const gguf_kv *kv) {
  if (bytes_equal_string(kv->key, "general.alignment")) return;
  if (!begin_entry(w, kv->key, kv->type)) return;
  if (kv->type == GGUF_ARRAY) {
    put_u32(&w->metadata, kv->elem);
    put_u64(&w->metadata, kv->n);
  }
  const uint8_t *end = end_of_values(kv->data, kv->elem, kv->n);
  if (end > kv->data) bytes_append(&w->metadata, kv->data, (size_t)(end - kv->data));
  end_entry(w);
}

/* Bytes of the tensor and of one piece, and that the reader would take its shape. */
static troika_status size_tensor(writer_tensor *t, troika_error *err) {
  uint32_t elements, bytes;
  uint64_t rows = 1, row;
  if (!gguf_type_block(t->type, &elements, &bytes)) {
    return error_set(err, TROIKA_INVALID, "tensor %s: type %" PRIu32 " is not known", t->name,
                     t->type);
  }
  bool overflow = false;
  for (uint32_t d = 1; d < t->n_dims; d++) {
    overflow |= __builtin_mul_overflow(rows, t->dims[d], &rows);
  }
  overflow |= __builtin_mul_overflow(t->dims[0] / elements, (uint64_t)bytes, &row);
  overflow |= __builtin_mul_overflow(row, rows, &t->bytes);
  if (overflow || t->bytes == 0 || t->bytes > INT64_MAX / 2 || t->dims[0] % elements) {
    return error_set(err, TROIKA_INVALID,
                     "tensor %s: a shape of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                     " does not go with %s (blocks of %" PRIu32 ")",
                     t->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3],
                     gguf_type_name(t->type), elements);
  }
  uint64_t unit = row <= GGUF_WRITER_PIECE ? row : bytes;
  t->piece = GGUF_WRITER_PIECE / unit * unit;
  return TROIKA_OK;
}

static uint64_t padded(const gguf_writer *w, uint64_t n) {
  return (n + w->alignment - 1) & ~((uint64_t)w->alignment - 1);
}

static void add_tensor(gguf_writer *w, const char *name, const uint64_t *dims, writer_tensor t) {
  size_t len = strlen(name);
  if (w->error.status) return;
  if (len < 1 || len > GGUF_NAME_MAX || t.n_dims < 1 || t.n_dims > 4) {
    error_set(&w->error, TROIKA_INVALID,
              "tensor %zu: a name of %zu bytes (1 to %d), %" PRIu32 " dimensions (1 to 4)",
              w->tensor_count + 1, len, GGUF_NAME_MAX, t.n_dims);
    return;
  }
  memcpy(t.name, name, len + 1);
  for (uint32_t d = 0; d < 4; d++) t.dims[d] = d < t.n_dims ? dims[d] : 1;
  if (size_tensor(&t, &w->error)) return;
  for (size_t i = 0; i < w->tensor_count; i++) {
    if (strcmp(w->tensors[i].name, name) == 0) {
      error_set(&w->error, TROIKA_INVALID, "tensor %s is added twice", name);
      return;
    }
  }
  t.offset = w->data_bytes;
  if (t.bytes > (uint64_t)INT64_MAX / 2 - t.offset) {
    error_set(&w->error, TROIKA_INVALID, "tensor %s: a file of over 2^62 bytes", name);
    return;
  }
  void *table =
      gguf_table_grow(w->tensors, w->tensor_count, &w->tensor_capacity, sizeof *w->tensors);
  if (!table) {
    error_set(&w->error, TROIKA_NO_MEMORY, "no memory for tensor %zu", w->tensor_count + 1);
    return;
  }
  w->tensors = table;
  w->tensors[w->tensor_count++] = t;
  w->data_bytes = padded(w, t.offset + t.bytes);
}

void gguf_writer_add_tensor(gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *dims, const void *data) {
  CHECK(data);
  add_tensor(w, name, dims, (writer_tensor){.type = type, .n_dims = n_dims, .data = data});
}

void gguf_writer_add_tensor_fill(gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                                 const uint64_t *dims, gguf_writer_fill fill, void *context) {
  CHECK(fill);
  add_tensor(w, name, dims,
             (writer_tensor){.type = type, .n_dims = n_dims, .fill = fill, .context = context});
}

static troika_status put_file(FILE *out, const void *data, size_t len, troika_error *err) {
  if (len == 0 || fwrite(data, 1, len, out) == len) return TROIKA_OK;
  return error_set(err, TROIKA_IO, "writing %zu bytes failed: %s", len, strerror(errno));
}

static troika_status put_padding(FILE *out, uint64_t len, troika_error *err) {
  static const uint8_t zeros[4096];
  troika_status status = TROIKA_OK;
  while (len && !status) {
    size_t n = len < sizeof zeros ? (size_t)len : sizeof zeros;
    status = put_file(out, zeros, n, err);
    len -= n;
  }
  return status;
}

static troika_status put_data(const gguf_writer *w, const writer_tensor *t, FILE *out,
                              uint8_t *piece, troika_error *err) {
  troika_status status = TROIKA_OK;
  for (uint64_t at = 0; at < t->bytes && !status;) {
    uint64_t left = t->bytes - at;
    size_t n = (size_t)(left < t->piece ? left : t->piece);
    const void *from = piece;
    if (t->data) {
      from = (const uint8_t *)t->data + at;
    } else {
      status = t->fill(t->context, at, piece, n, err);
    }
    if (!status) status = put_file(out, from, n, err);
    at += n;
  }
  return status ? status : put_padding(out, padded(w, t->bytes) - t->bytes, err);
}

static troika_status build_infos(const gguf_writer *w, bytes_buffer *infos, troika_error *err) {
  for (size_t i = 0; i < w->tensor_count; i++) {
    const writer_tensor *t = &w->tensors[i];
    put_string(infos, bytes_of_string(t->name));
    put_u32(infos, t->n_dims);
    for (uint32_t d = 0; d < t->n_dims; d++) put_u64(infos, t->dims[d]);
    put_u32(infos, t->type);
    put_u64(infos, t->offset);
  }
  if (!infos->failed) return TROIKA_OK;
  return error_set(err, TROIKA_NO_MEMORY, "no memory for %zu tensor infos", w->tensor_count);
}

troika_status gguf_writer_write(const gguf_writer *w, FILE *out, troika_error *err) {
  if (w->error.status) return error_set(err, w->error.status, "%s", w->error.text);
  enum { HEADER = 24 };
  uint8_t *piece = malloc(GGUF_WRITER_PIECE);
  bytes_buffer head, infos;
  bytes_init(&head, HEADER);
  bytes_init(&infos, SIZE_MAX / 4);
  bytes_append(&head, "GGUF", 4);
  put_u32(&head, 3);
  put_u64(&head, w->tensor_count);
  put_u64(&head, w->key_count);
  troika_status status = TROIKA_OK;
  if (!piece || head.failed) status = error_set(err, TROIKA_NO_MEMORY, "no memory to write");
  if (!status) status = build_infos(w, &infos, err);
  if (!status) status = put_file(out, head.data, head.len, err);
  if (!status) status = put_file(out, w->metadata.data, w->metadata.len, err);
  if (!status) status = put_file(out, infos.data, infos.len, err);
  uint64_t at = HEADER + (uint64_t)w->metadata.len + infos.len;
  if (!status && w->tensor_count) status = put_padding(out, padded(w, at) - at, err);
  for (size_t i = 0; i < w->tensor_count && !status; i++) {
    status = put_data(w, &w->tensors[i], out, piece, err);
  }
  if (!status && fflush(out) != 0) {
    status = error_set(err, TROIKA_IO, "writing failed: %s", strerror(errno));
  }
  bytes_free(&infos);
  bytes_free(&head);
  free(piece);
  return status;
}

troika_status gguf_writer_write_file(const gguf_writer *w, const char *path, troika_error *err) {
  bytes_buffer part;
  bytes_init(&part, 1 << 16);
  bytes_append_string(&part, path);
  bytes_append_string(&part, ".part");
  if (part.failed) {
    bytes_free(&part);
    return error_set(err, TROIKA_INVALID, "a path of %zu bytes", strlen(path));
  }
  troika_status status;
  FILE *out = fopen(part.data, "wb");
  if (!out) {
    status = error_set(err, TROIKA_IO, "%s cannot be made: %s", part.data, strerror(errno));
    goto free_part;
  }
  status = gguf_writer_write(w, out, err);
  if (fclose(out) != 0 && !status) {
    status = error_set(err, TROIKA_IO, "writing %s failed: %s", part.data, strerror(errno));
  }
  if (!status && rename(part.data, path) != 0) {
    status = error_set(err, TROIKA_IO, "%s cannot be renamed: %s", part.data, strerror(errno));
  }
  if (status) remove(part.data);
free_part:
  bytes_free(&part);
  return status;
}
