/* gguf.h - a GGUF file, read where it lies and checked before use. Version 3, or 2, which has the
 * same layout.
 *
 *   byte 0   "GGUF" | u32 version | u64 tensor_count | u64 kv_count
 *            kv_count x { string key | u32 type | value }
 *            tensor_count x { string name | u32 n_dims | u64 dims[n_dims] | u32 type | u64 offset }
 *            padding to general.alignment (default 32), then tensor data; offsets count from here
 *            (a string is a u64 length and that many bytes, without a NUL)
 *
 * gguf_open maps the file and walks all of it but the tensor data once; whatever a later caller
 * asks for has already been bounds-checked, so reading it cannot fail. Memory: the tables only
 * (about 100 bytes an entry, 16 a string of an array), never more than a small multiple of the
 * bytes actually present. Rejected: counts, lengths or products that do not fit the bytes left;
 * nested arrays past depth 4; empty names, names over 64 bytes (tensor) or 65,535 (key); duplicate
 * keys or names; unknown types; dimensions of 0; bools other than 0 and 1; offsets that are
 * unaligned, overlap or leave the file; an alignment that is no power of two >= 8 or no u32.
 * Padding after the last tensor may be missing.
 *
 * Source: the GGUF specification (ggml repository, docs/gguf.md).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GGUF_GGUF_H
#define GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/os.h"
#include "troika/status.h"

typedef enum gguf_type {
  GGUF_U8,
  GGUF_I8,
  GGUF_U16,
  GGUF_I16,
  GGUF_U32,
  GGUF_I32,
  GGUF_F32,
  GGUF_BOOL,
  GGUF_STRING,
  GGUF_ARRAY,
  GGUF_U64,
  GGUF_I64,
  GGUF_F64,
  GGUF_TYPE_COUNT
} gguf_type;

typedef struct gguf_kv {
  bytes_view key;
  gguf_type type; /* of the value */
  gguf_type elem; /* of an array's elements, else == type */
  uint64_t n;     /* elements of an array, else 1 */
  /* The value's bytes: little-endian, unaligned; of an array, its first element's. A string begins
   * with its u64 length: use gguf_string_at(kv, 0). */
  const uint8_t *data;
  /* Arrays of strings: where each one's bytes begin (from data) and its length, 2 numbers each. */
  const uint64_t *at;
} gguf_kv;

typedef struct gguf_tensor {
  bytes_view name;
  uint32_t type; /* ggml type number; gguf_type_name for the text */
  uint32_t n_dims;
  uint64_t dims[4]; /* dims[0] is the contiguous one (K); unused ones are 1 */
  uint64_t bytes;   /* of its data */
  uint64_t offset;  /* from the start of the file */
  const uint8_t *data;
} gguf_tensor;

typedef struct gguf gguf; /* immutable after open: any thread may read */

troika_status gguf_open(const char *path, gguf **out, troika_error *err);
/* `bytes` is borrowed until gguf_close. For tests, the fuzzer and files made in memory. */
troika_status gguf_open_memory(const void *bytes, size_t len, gguf **out, troika_error *err);
void gguf_close(gguf **file);

uint32_t gguf_version(const gguf *file);
uint64_t gguf_alignment(const gguf *file);
size_t gguf_size(const gguf *file);       /* bytes of the file */
const os_map *gguf_map(const gguf *file); /* NULL when opened from memory */
size_t gguf_kv_count(const gguf *file);
const gguf_kv *gguf_kv_at(const gguf *file, size_t i);
const gguf_kv *gguf_find(const gguf *file, const char *key); /* NULL if absent; by hash */
size_t gguf_tensor_count(const gguf *file);
const gguf_tensor *gguf_tensor_at(const gguf *file, size_t i);
const gguf_tensor *gguf_tensor_find(const gguf *file, const char *name);

/* Typed reads. *out is left alone and NOT_FOUND returned if the key is absent; FORMAT (with key and
 * type in the text) if it has another type. Integers of any width and sign are taken if the value
 * fits, floats of both widths likewise. */
troika_status gguf_get_u32(const gguf *file, const char *key, uint32_t *out, troika_error *err);
troika_status gguf_get_f32(const gguf *file, const char *key, float *out, troika_error *err);
troika_status gguf_get_bool(const gguf *file, const char *key, bool *out, troika_error *err);
troika_status gguf_get_string(const gguf *file, const char *key, bytes_view *out,
                              troika_error *err);

/* Element i of an array, or with i = 0 a scalar (i < n and a fitting type are the caller's duty:
 * CHECKed). An integer above INT64_MAX is given as INT64_MAX. */
bytes_view gguf_string_at(const gguf_kv *array, uint64_t i);
float gguf_f32_at(const gguf_kv *array, uint64_t i);
int64_t gguf_int_at(const gguf_kv *array, uint64_t i); /* integers and bools of any width */

const char *gguf_value_type_name(gguf_type type);
/* "Q4_K"; NULL if unknown: "type 9999" is the caller's to print. */
const char *gguf_type_name(uint32_t tensor_type);
/* Elements and bytes of one block; false if the type is unknown. */
bool gguf_type_block(uint32_t tensor_type, uint32_t *elements, uint32_t *bytes);

#endif
