/* support.h - small GGUF files for the tests: one made by our writer, and ones put together byte by
 * byte.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GGUF_SUPPORT_H
#define TEST_GGUF_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"

typedef struct file_bytes {
  uint8_t *data; /* owned: free */
  size_t len;
} file_bytes;

/* What the writer writes. The test fails if it cannot. */
file_bytes file_of_writer(const gguf_writer *writer);
file_bytes file_copy(file_bytes from, size_t len);

/* A file with metadata of every type, arrays, three tensors and padding after the last. */
file_bytes sample_file(void);
enum { SAMPLE_KVS = 18, SAMPLE_TENSORS = 3, SAMPLE_WIDTH = 64, SAMPLE_ROWS = 5 };
/* First byte of the entry with this key or tensor name: of the u64 length before it. */
size_t sample_find(file_bytes file, const char *name);

/* Appending to a file that is put together by hand. */
void put_u32(bytes_buffer *file, uint32_t value);
void put_u64(bytes_buffer *file, uint64_t value);
void put_text(bytes_buffer *file, const char *text);
void put_head(bytes_buffer *file, uint64_t tensors, uint64_t kvs);
void put_tensor(bytes_buffer *file, const char *name, uint32_t type, uint64_t width, uint64_t rows,
                uint64_t offset);
void put_zeros(bytes_buffer *file, size_t align, size_t more);

/* Opens an exact copy of the bytes and expects: that status, within 100 ms and 4 MiB, a text that
 * contains `words` and nothing unprintable, *out left alone. */
void expect_refused(file_bytes file, troika_status status, const char *words);
/* Opens, reads everything, closes. */
void expect_good(file_bytes file);

#endif
