/* tensors.c - the tensor infos, and whether the data they claim is really there.
 *
 *   string name | u32 n_dims | u64 dims[n_dims] | u32 type | u64 offset
 *
 * Offsets count from the aligned end of this part.
 *
 * Dimensions are multiplied with overflow checked (2^42+1 rows of 2^22 elements
 * would wrap to one row). Overlap is found by sorting the places; a file written in order, as all
 * are, is not sorted at all.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "gguf/file.h"

static troika_status size_tensor(const gguf_cursor *c, gguf_tensor *t) {
  uint32_t elements, bytes;
  uint64_t total = 1;
  if (!gguf_type_block(t->type, &elements, &bytes)) {
    return gguf_cursor_fail(c, TROIKA_UNSUPPORTED, "tensor type %" PRIu32 " is not known", t->type);
  }
  for (uint32_t d = 0; d < t->n_dims; d++) {
    if (t->dims[d] == 0) {
      return gguf_cursor_fail(c, TROIKA_FORMAT, "dimension %" PRIu32 " is 0", d);
    }
    if (__builtin_mul_overflow(total, t->dims[d], &total)) {
      return gguf_cursor_fail(c, TROIKA_FORMAT,
                              "size overflow: dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64
                              " x %" PRIu64,
                              t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    }
  }
  if (t->dims[0] % elements) {
    return gguf_cursor_fail(c, TROIKA_FORMAT,
                            "rows of %" PRIu64 " elements, %s needs a multiple of %" PRIu32,
                            t->dims[0], gguf_type_name(t->type), elements);
  }
  if (__builtin_mul_overflow(total / elements, (uint64_t)bytes, &t->bytes) ||
      t->bytes > INT64_MAX) {
    return gguf_cursor_fail(c, TROIKA_FORMAT,
                            "size overflow: %" PRIu64 " blocks of %" PRIu32 " bytes",
                            total / elements, bytes);
  }
  return TROIKA_OK;
}

/* t->offset is still relative to the data's begin. */
static troika_status read_info(gguf_cursor *c, uint64_t alignment, gguf_tensor *t) {
  troika_status status = gguf_cursor_string(c, "name", 1, GGUF_NAME_MAX, &t->name);
  if (!status) status = gguf_cursor_u32(c, "number of dimensions", &t->n_dims);
  if (status) return status;
  if (t->n_dims < 1 || t->n_dims > 4) {
    return gguf_cursor_fail(c, TROIKA_FORMAT, "%" PRIu32 " dimensions, allowed are 1 to 4",
                            t->n_dims);
  }
  for (uint32_t d = 0; d < 4; d++) {
    t->dims[d] = 1;
    if (d < t->n_dims) status = gguf_cursor_u64(c, "dimension", &t->dims[d]);
    if (status) return status;
  }
  status = gguf_cursor_u32(c, "tensor type", &t->type);
  if (!status) status = gguf_cursor_u64(c, "offset", &t->offset);
  if (!status) status = size_tensor(c, t);
  if (status) return status;
  if (t->offset % alignment) {
    return gguf_cursor_fail(c, TROIKA_FORMAT,
                            "offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                            t->offset, alignment);
  }
  return TROIKA_OK;
}

typedef struct place {
  uint64_t begin, end;
  size_t index;
} place;

static int compare_places(const void *a, const void *b) {
  const place *left = a, *right = b;
  return (left->begin > right->begin) - (left->begin < right->begin);
}

static troika_status check_overlap(const gguf *file, gguf_cursor *c) {
  const gguf_tensor *t = file->tensors;
  size_t n = file->tensor_count;
  bool ordered = true;
  for (size_t i = 1; ordered && i < n; i++) {
    ordered = t[i - 1].offset + t[i - 1].bytes <= t[i].offset;
  }
  if (ordered) return TROIKA_OK;
  place *places = reallocarray(NULL, n, sizeof *places);
  if (!places) return gguf_cursor_fail(c, TROIKA_NO_MEMORY, "no memory to compare offsets");
  for (size_t i = 0; i < n; i++) {
    places[i] = (place){t[i].offset, t[i].offset + t[i].bytes, i};
  }
  qsort(places, n, sizeof *places, compare_places);
  troika_status status = TROIKA_OK;
  for (size_t i = 1; i < n && !status; i++) {
    if (places[i - 1].end <= places[i].begin) continue;
    c->index = places[i].index;
    status = gguf_cursor_fail(
        c, TROIKA_FORMAT,
        "its data at byte %" PRIu64 " overlaps tensor %zu (bytes %" PRIu64 " to %" PRIu64 ")",
        places[i].begin, places[i - 1].index + 1, places[i - 1].begin, places[i - 1].end);
  }
  free(places);
  return status;
}

/* Turns relative offsets into absolute ones, each checked against the end of the file. */
static troika_status place_tensors(gguf *file, gguf_cursor *c) {
  if (file->tensor_count == 0) return TROIKA_OK;
  uint64_t base = ((uint64_t)c->at + file->alignment - 1) / file->alignment * file->alignment;
  for (c->index = 0; c->index < file->tensor_count; c->index++) {
    gguf_tensor *t = &file->tensors[c->index];
    uint64_t left = base <= file->len ? file->len - base : 0;
    if (t->offset > left || t->bytes > left - t->offset) {
      return gguf_cursor_fail(c, TROIKA_FORMAT,
                              "%" PRIu64 " bytes of data at offset %" PRIu64
                              ", the file has %" PRIu64 " bytes of data (truncated?)",
                              t->bytes, t->offset, left);
    }
    t->offset += base;
    t->data = file->data + t->offset;
  }
  return check_overlap(file, c);
}

troika_status gguf_tensors_read(gguf *file, gguf_cursor *c, uint64_t count) {
  size_t capacity = 0;
  troika_status status = gguf_cursor_fits(c, count, 8 + 1 + 4 + 8 + 4 + 8, "tensor infos");
  if (status) return status;
  c->section = "tensor";
  c->count = count;
  for (c->index = 0; c->index < count; c->index++) {
    gguf_tensor tensor = {0};
    if (file->tensor_count >= UINT32_MAX / 2) {
      return gguf_cursor_fail(c, TROIKA_LIMIT, "at most %u tensors are read", UINT32_MAX / 2);
    }
    void *table = gguf_table_grow(file->tensors, file->tensor_count, &capacity, sizeof tensor);
    if (!table) return gguf_cursor_fail(c, TROIKA_NO_MEMORY, "no memory for the table");
    file->tensors = table;
    status = read_info(c, file->alignment, &tensor);
    if (status) return status;
    file->tensors[file->tensor_count++] = tensor;
  }
  size_t duplicate = 0;
  status = gguf_names_build(&file->tensor_names, file->tensors, sizeof *file->tensors,
                            file->tensor_count, &duplicate);
  c->index = duplicate;
  if (status == TROIKA_FORMAT) return gguf_cursor_fail(c, status, "its name occurs twice");
  if (status) return gguf_cursor_fail(c, status, "no memory for the table of names");
  return place_tensors(file, c);
}
