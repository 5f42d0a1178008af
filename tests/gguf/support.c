/* support.c - see support.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "gguf/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/os.h"
#include "gguf/walk.h"

file_bytes file_of_writer(const gguf_writer *writer) {
  char *data = NULL;
  size_t len = 0;
  troika_error err;
  FILE *out = open_memstream(&data, &len);
  assert_non_null(out);
  if (gguf_writer_write(writer, out, &err)) fail_msg("%s", err.text);
  assert_int_equal(fclose(out), 0);
  return (file_bytes){(uint8_t *)data, len};
}

file_bytes file_copy(file_bytes from, size_t len) {
  file_bytes to = {malloc(len ? len : 1), len};
  assert_non_null(to.data);
  memcpy(to.data, from.data, len < from.len ? len : from.len);
  return to;
}

static void add_scalars(gguf_writer *w) {
  uint8_t u8 = 200;
  int8_t i8 = -100;
  uint16_t u16 = 60000;
  int16_t i16 = -30000;
  int32_t i32 = -2000000000;
  uint64_t u64 = UINT64_MAX;
  int64_t i64 = INT64_MIN;
  double f64 = 1e300;
  gguf_writer_add_string(w, "general.architecture", bytes_of_string("sample"));
  gguf_writer_add(w, "scalar.u8", GGUF_U8, &u8);
  gguf_writer_add(w, "scalar.i8", GGUF_I8, &i8);
  gguf_writer_add(w, "scalar.u16", GGUF_U16, &u16);
  gguf_writer_add(w, "scalar.i16", GGUF_I16, &i16);
  gguf_writer_add_u32(w, "scalar.u32", 4000000000u);
  gguf_writer_add(w, "scalar.i32", GGUF_I32, &i32);
  gguf_writer_add_f32(w, "scalar.f32", 0.1f);
  gguf_writer_add_bool(w, "scalar.bool", true);
  gguf_writer_add(w, "scalar.u64", GGUF_U64, &u64);
  gguf_writer_add(w, "scalar.i64", GGUF_I64, &i64);
  gguf_writer_add(w, "scalar.f64", GGUF_F64, &f64);
  gguf_writer_add_string(w, "scalar.empty", bytes_of_string(""));
}

static void add_arrays(gguf_writer *w) {
  static const int32_t ints[] = {1, -2, 3};
  static const float floats[] = {0.5f, -1.5f};
  static const uint8_t bools[] = {1, 0, 1, 1};
  const bytes_view words[] = {bytes_of_string("one"), bytes_of_string(""), bytes_of("th\0ree", 6),
                              bytes_of_string("\xe2\x82\xac")};
  gguf_writer_add_array(w, "array.i32", GGUF_I32, ints, 3);
  gguf_writer_add_array(w, "array.f32", GGUF_F32, floats, 2);
  gguf_writer_add_array(w, "array.bool", GGUF_BOOL, bools, 4);
  gguf_writer_add_strings(w, "array.string", words, 4);
  gguf_writer_add_array(w, "array.empty", GGUF_U64, NULL, 0);
}

file_bytes sample_file(void) {
  static float embedding[SAMPLE_WIDTH * SAMPLE_ROWS];
  static uint8_t coded[2 * 34];
  static const float norm[SAMPLE_WIDTH / 2 + 1] = {1, 2, 3};
  for (int i = 0; i < SAMPLE_WIDTH * SAMPLE_ROWS; i++) embedding[i] = (float)i;
  for (size_t i = 0; i < sizeof coded; i++) coded[i] = (uint8_t)i;
  gguf_writer *w = gguf_writer_create(32);
  assert_non_null(w);
  add_scalars(w);
  add_arrays(w);
  gguf_writer_add_tensor(w, "token_embd.weight", 0, 2, (uint64_t[]){SAMPLE_WIDTH, SAMPLE_ROWS},
                         embedding);
  gguf_writer_add_tensor(w, "blk.0.weight", 8, 2, (uint64_t[]){32, 2}, coded);
  gguf_writer_add_tensor(w, "norm.weight", 0, 1, (uint64_t[]){SAMPLE_WIDTH / 2 + 1}, norm);
  file_bytes file = file_of_writer(w);
  gguf_writer_destroy(&w);
  return file;
}

size_t sample_find(file_bytes file, const char *name) {
  const uint8_t *at = memmem(file.data, file.len, name, strlen(name));
  assert_non_null(at);
  return (size_t)(at - file.data) - 8;
}

void put_u32(bytes_buffer *file, uint32_t value) {
  bytes_append(file, &value, sizeof value);
}

void put_u64(bytes_buffer *file, uint64_t value) {
  bytes_append(file, &value, sizeof value);
}

void put_text(bytes_buffer *file, const char *text) {
  put_u64(file, strlen(text));
  bytes_append_string(file, text);
}

void put_head(bytes_buffer *file, uint64_t tensors, uint64_t kvs) {
  bytes_init(file, 64 << 20);
  bytes_append(file, "GGUF", 4);
  put_u32(file, 3);
  put_u64(file, tensors);
  put_u64(file, kvs);
}

void put_tensor(bytes_buffer *file, const char *name, uint32_t type, uint64_t width, uint64_t rows,
                uint64_t offset) {
  put_text(file, name);
  put_u32(file, 2);
  put_u64(file, width);
  put_u64(file, rows);
  put_u32(file, type);
  put_u64(file, offset);
}

void put_zeros(bytes_buffer *file, size_t align, size_t more) {
  while (file->len % align) bytes_append(file, "", 1);
  while (more--) bytes_append(file, "", 1);
}

static void check_text(const troika_error *err, troika_status status, const char *words) {
  assert_int_equal(err->status, status);
  if (!strstr(err->text, words)) fail_msg("\"%s\" does not say \"%s\"", err->text, words);
  for (const char *p = err->text; *p; p++) {
    if (*p < ' ' || *p > '~') fail_msg("byte 0x%02x in the text", (unsigned char)*p);
  }
}

void expect_refused(file_bytes file, troika_status status, const char *words) {
  file_bytes exact = file_copy(file, file.len);
  gguf *const untouched = (gguf *)(uintptr_t)16;
  gguf *opened = untouched;
  troika_error err = {0};
  uint64_t memory = os_memory_peak();
  clock_source clock = clock_real();
  int64_t begin = clock_now(clock);
  troika_status got = gguf_open_memory(exact.data, exact.len, &opened, &err);
  int64_t took = clock_now(clock) - begin;
  if (got != status) {
    fail_msg("status %s, not %s: %s", troika_status_text(got), troika_status_text(status),
             got ? err.text : "it opened");
  }
  assert_ptr_equal(opened, untouched);
  check_text(&err, status, words);
  if (took > 100000000) fail_msg("took %lld us", (long long)took / 1000);
  uint64_t grown = os_memory_peak() - memory;
  if (grown > 4 << 20) fail_msg("memory grew by %llu bytes", (unsigned long long)grown);
  assert_int_equal(gguf_open_memory(exact.data, exact.len, &opened, NULL), status);
  free(exact.data);
}

void expect_good(file_bytes file) {
  file_bytes exact = file_copy(file, file.len);
  gguf *opened = NULL;
  troika_error err;
  if (gguf_open_memory(exact.data, exact.len, &opened, &err)) fail_msg("refused: %s", err.text);
  walk_file(opened);
  gguf_close(&opened);
  assert_null(opened);
  free(exact.data);
}
