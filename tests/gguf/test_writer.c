/* test_writer.c - what is written can be read back; what is wrong is not written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "gguf/support.h"
#include "gguf/walk.h"

static gguf *open_file(file_bytes file) {
  gguf *opened = NULL;
  troika_error err;
  if (gguf_open_memory(file.data, file.len, &opened, &err)) fail_msg("%s", err.text);
  return opened;
}

/* Every byte of the smallest file, from the specification. */
static void test_bytes_are_as_specified(void **unused) {
  (void)unused;
  /* clang-format off */
  static const uint8_t expected[] = {
      'G', 'G', 'U', 'F', 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
      17, 0, 0, 0, 0, 0, 0, 0, 'g', 'e', 'n', 'e', 'r', 'a', 'l', '.',
      'a', 'l', 'i', 'g', 'n', 'm', 'e', 'n', 't', 4, 0, 0, 0, 8, 0, 0, 0,
      1, 0, 0, 0, 0, 0, 0, 0, 'a', 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
      2, 0, 0, 0, 0, 0, 0, 0, 'h', 'i',
      1, 0, 0, 0, 0, 0, 0, 0, 't', 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
      1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, /* to a multiple of 8 */
      0xcd, 0xab, 0, 0, 0, 0, 0, 0};
  /* clang-format on */
  static const uint8_t half[] = {0xcd, 0xab};
  gguf_writer *w = gguf_writer_create(8);
  gguf_writer_add_strings(w, "a", &(bytes_view){"hi", 2}, 1);
  gguf_writer_add_tensor(w, "t", 1, 2, (uint64_t[]){1, 1}, half);
  file_bytes file = file_of_writer(w);
  assert_int_equal(file.len, sizeof expected);
  assert_memory_equal(file.data, expected, sizeof expected);
  gguf_writer_destroy(&w);
  assert_null(w);
  gguf_writer_destroy(&w);
  free(file.data);
}

static void add_reference_scalars(gguf_writer *w) {
  gguf_writer_add_string(w, "general.architecture", bytes_of_string("sample"));
  gguf_writer_add(w, "scalar.u8", GGUF_U8, &(uint8_t){200});
  gguf_writer_add(w, "scalar.i8", GGUF_I8, &(int8_t){-100});
  gguf_writer_add(w, "scalar.u16", GGUF_U16, &(uint16_t){60000});
  gguf_writer_add(w, "scalar.i16", GGUF_I16, &(int16_t){-30000});
  gguf_writer_add_u32(w, "scalar.u32", 4000000000u);
  gguf_writer_add(w, "scalar.i32", GGUF_I32, &(int32_t){-2000000000});
  gguf_writer_add_f32(w, "scalar.f32", 0.1f);
  gguf_writer_add_bool(w, "scalar.bool", true);
  gguf_writer_add(w, "scalar.u64", GGUF_U64, &(uint64_t){UINT64_MAX});
  gguf_writer_add(w, "scalar.i64", GGUF_I64, &(int64_t){INT64_MIN});
  gguf_writer_add(w, "scalar.f64", GGUF_F64, &(double){1e300});
  gguf_writer_add_string(w, "scalar.string", bytes_of_string("na\xc3\xafve"));
  gguf_writer_add_string(w, "scalar.empty", bytes_of_string(""));
}

static void test_bytes_equal_the_reference_writers(void **unused) {
  (void)unused;
  const bytes_view words[] = {bytes_of_string("one"), bytes_of_string(""), bytes_of("th\0ree", 6),
                              bytes_of_string("\xe2\x82\xac")};
  static float embedding[64 * 5];
  static uint8_t coded[68];
  for (int i = 0; i < 64 * 5; i++) embedding[i] = (float)i;
  for (int i = 0; i < 68; i++) coded[i] = (uint8_t)i;
  gguf_writer *w = gguf_writer_create(32);
  add_reference_scalars(w);
  gguf_writer_add_array(w, "array.i32", GGUF_I32, (int32_t[]){1, -2, 3}, 3);
  gguf_writer_add_array(w, "array.f32", GGUF_F32, (float[]){0.5f, -1.5f}, 2);
  gguf_writer_add_array(w, "array.bool", GGUF_BOOL, (uint8_t[]){1, 0, 1}, 3);
  gguf_writer_add_strings(w, "array.string", words, 4);
  gguf_writer_add_tensor(w, "token_embd.weight", 0, 2, (uint64_t[]){64, 5}, embedding);
  gguf_writer_add_tensor(w, "blk.0.weight", 8, 2, (uint64_t[]){32, 2}, coded);
  gguf_writer_add_tensor(w, "norm.weight", 0, 1, (uint64_t[]){3}, (float[]){1, 2, 3});
  file_bytes ours = file_of_writer(w);
  static uint8_t theirs[1 << 16];
  FILE *in = fopen(TEST_DATA "/golden/gguf/reference.gguf", "rb");
  if (!in) fail_msg("golden/gguf/reference.gguf is missing: tools/gguf_golden.py makes it");
  size_t len = fread(theirs, 1, sizeof theirs, in);
  fclose(in);
  assert_int_equal(ours.len, len);
  assert_memory_equal(ours.data, theirs, len);
  gguf_writer_destroy(&w);
  free(ours.data);
}

static void test_written_twice_is_the_same(void **unused) {
  (void)unused;
  file_bytes one = sample_file(), two = sample_file();
  assert_int_equal(one.len, two.len);
  assert_memory_equal(one.data, two.data, one.len);
  free(one.data);
  free(two.data);
}

static void test_alignments(void **unused) {
  (void)unused;
  static const uint8_t data[34] = {1, 2, 3};
  for (uint32_t alignment = 8; alignment <= 65536; alignment *= 2) {
    gguf_writer *w = gguf_writer_create(alignment);
    for (char name[] = "a"; name[0] < 'e'; name[0]++) {
      gguf_writer_add_tensor(w, name, 8, 1, (uint64_t[]){32}, data);
    }
    file_bytes file = file_of_writer(w);
    gguf *f = open_file(file);
    assert_int_equal(gguf_alignment(f), alignment);
    assert_int_equal(gguf_kv_count(f), alignment == 32 ? 0 : 1);
    assert_int_equal(file.len % alignment, 0);
    for (size_t i = 0; i < 4; i++) {
      assert_int_equal(gguf_tensor_at(f, i)->offset % alignment, 0);
      assert_memory_equal(gguf_tensor_at(f, i)->data, data, 34);
    }
    gguf_close(&f);
    gguf_writer_destroy(&w);
    free(file.data);
  }
}

static void test_nothing_at_all(void **unused) {
  (void)unused;
  gguf_writer *w = gguf_writer_create(32);
  file_bytes file = file_of_writer(w);
  assert_int_equal(file.len, 24);
  expect_good(file);
  gguf_writer_destroy(&w);
  free(file.data);
}

/* All of one file through add_copy, and nested arrays, which only a copy can bring. */
static void test_copying_metadata(void **unused) {
  (void)unused;
  bytes_buffer nested;
  put_head(&nested, 0, 3);
  put_text(&nested, "general.alignment");
  put_u32(&nested, GGUF_U32);
  put_u32(&nested, 64);
  put_text(&nested, "nested");
  put_u32(&nested, GGUF_ARRAY);
  put_u32(&nested, GGUF_ARRAY);
  put_u64(&nested, 2);
  put_u32(&nested, GGUF_STRING);
  put_u64(&nested, 2);
  put_text(&nested, "deep");
  put_text(&nested, "");
  put_u32(&nested, GGUF_U16);
  put_u64(&nested, 1);
  bytes_append(&nested, "xy", 2);
  put_text(&nested, "after");
  put_u32(&nested, GGUF_BOOL);
  bytes_append(&nested, "\1", 1);
  file_bytes sources[] = {sample_file(), {(uint8_t *)nested.data, nested.len}};
  for (size_t s = 0; s < 2; s++) {
    gguf *from = open_file(sources[s]);
    gguf_writer *w = gguf_writer_create(32);
    for (size_t i = 0; i < gguf_kv_count(from); i++) gguf_writer_add_copy(w, gguf_kv_at(from, i));
    file_bytes copy = file_of_writer(w);
    gguf *to = open_file(copy);
    size_t skip = s == 1; /* the alignment */
    assert_int_equal(gguf_kv_count(to), gguf_kv_count(from) - skip);
    for (size_t i = 0; i < gguf_kv_count(to); i++) {
      const gguf_kv *a = gguf_kv_at(from, i + skip), *b = gguf_kv_at(to, i);
      assert_true(bytes_equal(a->key, b->key));
      assert_int_equal(a->type, b->type);
      assert_int_equal(a->elem, b->elem);
      assert_int_equal(walk_value(a), walk_value(b));
    }
    if (s == 1) assert_memory_equal(copy.data + 24, nested.data + 24 + 33, copy.len - 24);
    gguf_close(&to);
    gguf_close(&from);
    gguf_writer_destroy(&w);
    free(copy.data);
  }
  free(sources[0].data);
  bytes_free(&nested);
}

typedef struct filler {
  uint64_t next, row_bytes, fail_at;
  size_t calls;
} filler;

static troika_status fill(void *context, uint64_t offset, void *out, size_t len,
                          troika_error *err) {
  filler *f = context;
  assert_int_equal(offset, f->next);
  assert_true(len > 0 && len <= GGUF_WRITER_PIECE);
  assert_int_equal(len % f->row_bytes, 0);
  if (offset >= f->fail_at) return error_set(err, TROIKA_CANCELLED, "stopped at %d", 7);
  for (size_t i = 0; i < len; i++) ((uint8_t *)out)[i] = (uint8_t)((offset + i) % 251);
  f->next += len;
  f->calls++;
  return TROIKA_OK;
}

static void test_data_from_a_callback(void **unused) {
  (void)unused;
  static const struct {
    uint32_t type;
    uint64_t width, rows, unit;
    size_t calls;
  } cases[] = {
      {0, 5000, 300, 20000, 6},  /* 52 rows a piece */
      {8, 32 * 40000, 2, 34, 3}, /* rows of 1.36 MB: whole blocks */
      {12, 256, 1, 144, 1},
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    filler f = {.row_bytes = cases[c].unit, .fail_at = UINT64_MAX};
    gguf_writer *w = gguf_writer_create(32);
    gguf_writer_add_tensor_fill(w, "t", cases[c].type, 2,
                                (uint64_t[]){cases[c].width, cases[c].rows}, fill, &f);
    file_bytes file = file_of_writer(w);
    assert_int_equal(f.calls, cases[c].calls);
    gguf *opened = open_file(file);
    const gguf_tensor *t = gguf_tensor_at(opened, 0);
    assert_int_equal(t->bytes, f.next);
    for (uint64_t i = 0; i < t->bytes; i++) assert_true(t->data[i] == i % 251);
    gguf_close(&opened);
    gguf_writer_destroy(&w);
    free(file.data);
  }
}

static void expect_failed(gguf_writer *w, const char *words) {
  FILE *out = tmpfile();
  troika_error err;
  assert_non_null(out);
  gguf_writer_add_u32(w, "later", 1); /* does not hide the first error */
  assert_int_equal(gguf_writer_write(w, out, &err), TROIKA_INVALID);
  if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
  assert_int_equal(ftell(out), 0);
  fclose(out);
  gguf_writer_destroy(&w);
}

static void test_mistakes_are_told_when_writing(void **unused) {
  (void)unused;
  static const float data[512];
  gguf_writer *w = gguf_writer_create(24);
  expect_failed(w, "alignment 24");
  w = gguf_writer_create(32);
  gguf_writer_add_u32(w, "twice", 1);
  gguf_writer_add_f32(w, "twice", 1);
  expect_failed(w, "metadata key twice is added twice");
  w = gguf_writer_create(32);
  gguf_writer_add_u32(w, "", 1);
  expect_failed(w, "key of 0 bytes");
  w = gguf_writer_create(32);
  gguf_writer_add_tensor(w, "t", 0, 1, (uint64_t[]){4}, data);
  gguf_writer_add_tensor(w, "t", 0, 1, (uint64_t[]){4}, data);
  expect_failed(w, "tensor t is added twice");
  static const struct {
    uint32_t type, n_dims;
    uint64_t dims[4];
    const char *words;
  } bad[] = {
      {9999, 1, {4}, "type 9999 is not known"},
      {0, 0, {4}, "0 dimensions (1 to 4)"},
      {0, 5, {1, 1, 1, 1}, "5 dimensions (1 to 4)"},
      {0, 2, {4, 0}, "shape of 4 x 0"},
      {12, 1, {128}, "does not go with Q4_K"},
      {0, 2, {1ull << 22, (1ull << 42) + 1}, "does not go with F32"},
      {0, 4, {1ull << 31, 1ull << 31, 1ull << 31, 1ull << 31}, "does not go with F32"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    w = gguf_writer_create(32);
    gguf_writer_add_tensor(w, "t", bad[i].type, bad[i].n_dims, bad[i].dims, data);
    expect_failed(w, bad[i].words);
  }
  w = gguf_writer_create(32);
  gguf_writer_add_tensor(w, "a name of more than sixty-four bytes, which no reader would take back",
                         0, 1, (uint64_t[]){4}, data);
  expect_failed(w, "a name of 69 bytes");
}

static void test_write_file(void **unused) {
  (void)unused;
  char folder[] = "/tmp/troika-writer-XXXXXX", path[64], part[72];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/model.gguf", folder);
  snprintf(part, sizeof part, "%s.part", path);
  troika_error err;
  filler f = {.row_bytes = 4096, .fail_at = 1 << 20};
  gguf_writer *w = gguf_writer_create(32);
  gguf_writer_add_tensor_fill(w, "t", 0, 2, (uint64_t[]){1024, 1024}, fill, &f);
  assert_int_equal(gguf_writer_write_file(w, path, &err), TROIKA_CANCELLED);
  assert_string_equal(err.text, "stopped at 7");
  assert_int_equal(access(path, F_OK), -1); /* neither a half file nor a rest */
  assert_int_equal(access(part, F_OK), -1);
  f = (filler){.row_bytes = 4096, .fail_at = UINT64_MAX};
  if (gguf_writer_write_file(w, path, &err)) fail_msg("%s", err.text);
  assert_int_equal(access(part, F_OK), -1);
  gguf *opened = NULL;
  if (gguf_open(path, &opened, &err)) fail_msg("%s", err.text);
  assert_int_equal(gguf_tensor_at(opened, 0)->bytes, 4 << 20);
  gguf_close(&opened);
  assert_int_equal(gguf_writer_write_file(w, "/nonexistent/model.gguf", &err), TROIKA_IO);
  unlink(path);
  assert_int_equal(rmdir(folder), 0);
  gguf_writer_destroy(&w);
}

static void test_a_full_disk_is_an_error(void **unused) {
  (void)unused;
  FILE *out = fopen("/dev/full", "wb");
  if (!out) fail_msg("this test needs /dev/full");
  filler f = {.row_bytes = 4096, .fail_at = UINT64_MAX};
  gguf_writer *w = gguf_writer_create(32);
  gguf_writer_add_tensor_fill(w, "t", 0, 2, (uint64_t[]){1024, 1024}, fill, &f);
  troika_error err;
  assert_int_equal(gguf_writer_write(w, out, &err), TROIKA_IO);
  assert_non_null(strstr(err.text, "No space left"));
  fclose(out);
  gguf_writer_destroy(&w);

  out = fopen("/dev/full", "wb"); /* small enough to fail only when flushed */
  w = gguf_writer_create(32);
  gguf_writer_add_u32(w, "k", 1);
  assert_int_equal(gguf_writer_write(w, out, &err), TROIKA_IO);
  fclose(out);
  gguf_writer_destroy(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes_are_as_specified),
      cmocka_unit_test(test_bytes_equal_the_reference_writers),
      cmocka_unit_test(test_written_twice_is_the_same),
      cmocka_unit_test(test_alignments),
      cmocka_unit_test(test_nothing_at_all),
      cmocka_unit_test(test_copying_metadata),
      cmocka_unit_test(test_data_from_a_callback),
      cmocka_unit_test(test_mistakes_are_told_when_writing),
      cmocka_unit_test(test_write_file),
      cmocka_unit_test(test_a_full_disk_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
