/* writer.h - making a GGUF v3 file: for tests, for models with random weights, for quantising.
 *
 * Add metadata and tensors in any order, then write once or several times; keys and tensors appear
 * in the order they were added. The writer keeps the first error (a duplicate name, a bad shape, no
 * memory), ignores what is added after it, and gives it out when it is asked to write, so that a
 * caller checks in one place. Metadata is copied. Tensor data is not: it is borrowed, or asked for
 * piece by piece while writing, so that a file may be larger than memory. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <stdio.h>

#include "gguf/gguf.h"

typedef struct gguf_writer gguf_writer;

/* alignment: a power of two of at least 8, else the writer starts out failed. One that is not 32 is
 * also written as general.alignment. NULL if there is no memory. */
gguf_writer *gguf_writer_create(uint32_t alignment);
void gguf_writer_destroy(gguf_writer **writer);

/* A scalar: `value` points to one of that type (bool: uint8_t 0 or 1). Not for strings and arrays.
 */
void gguf_writer_add(gguf_writer *writer, const char *key, gguf_type type, const void *value);
void gguf_writer_add_u32(gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_add_f32(gguf_writer *writer, const char *key, float value);
void gguf_writer_add_bool(gguf_writer *writer, const char *key, bool value);
void gguf_writer_add_string(gguf_writer *writer, const char *key, bytes_view value);
/* n scalars of type elem, packed. */
void gguf_writer_add_array(gguf_writer *writer, const char *key, gguf_type elem, const void *values,
                           uint64_t n);
void gguf_writer_add_strings(gguf_writer *writer, const char *key, const bytes_view *values,
                             uint64_t n);
/* The same entry as in another file, whatever its type is. general.alignment is left out: it is the
 * writer's own. */
void gguf_writer_add_copy(gguf_writer *writer, const gguf_kv *kv);

/* Gives bytes offset..offset+len of a tensor's data. Called in ascending order without gaps; a
 * piece is whole rows, or where one row has more than GGUF_WRITER_PIECE bytes, whole blocks. */
typedef troika_status (*gguf_writer_fill)(void *context, uint64_t offset, void *out, size_t len,
                                          troika_error *err);
enum { GGUF_WRITER_PIECE = 1 << 20 };

/* `data` is borrowed until the last write. dims[0] is the contiguous one. */
void gguf_writer_add_tensor(gguf_writer *writer, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *dims, const void *data);
/* The data is asked for while writing. */
void gguf_writer_add_tensor_fill(gguf_writer *writer, const char *name, uint32_t type,
                                 uint32_t n_dims, const uint64_t *dims, gguf_writer_fill fill,
                                 void *context);

/* Writes at the stream's position; needs no seeking. INVALID for what was added wrongly, NO_MEMORY,
 * IO with the system's reason, or what a fill answered. The stream is left where the failure was.
 */
troika_status gguf_writer_write(const gguf_writer *writer, FILE *out, troika_error *err);
/* The same to a file: written beside it (path + ".part") and renamed when whole, so that a file
 * under its name is never a half. */
troika_status gguf_writer_write_file(const gguf_writer *writer, const char *path,
                                     troika_error *err);

#endif
