/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h - what the two faces of `troika inspect` share. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "gguf/gguf.h"
#include "troika/model.h"

enum { INSPECT_TYPES_MAX = 64 };

typedef struct inspect_total {
  uint32_t type;
  size_t tensors;
  uint64_t weights, bytes;
} inspect_total;

/* Sums by tensor type, most bytes first. */
size_t inspect_totals(const gguf *file, inspect_total *out, size_t capacity);
void inspect_put_text(bytes_buffer *out, bytes_view text, size_t max);

/* model is NULL where it cannot run; reason says why. Arrays are whole, but for the vocabulary's
 * texts and numbers beyond 32. */
void inspect_json(const gguf *file, const char *path, const troika_model *model,
                  const char *reason);
void inspect_json_error(const char *path, const troika_error *err);

#endif
