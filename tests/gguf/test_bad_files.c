/* test_bad_files.c - files that are wrong are refused, fast, without memory, with numbers.
 *
 * G1 to G6 name cases that users reported of other engines' loaders: each crashed, hung or filled
 * the memory of one that people use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "gguf/support.h"
#include "gguf/walk.h"

static file_bytes of_buffer(const bytes_buffer *buffer) {
  assert_false(buffer->failed);
  return (file_bytes){(uint8_t *)buffer->data, buffer->len};
}

static void store_u32(file_bytes file, size_t at, uint32_t value) {
  assert_true(at + 4 <= file.len);
  memcpy(file.data + at, &value, 4);
}

static void store_u64(file_bytes file, size_t at, uint64_t value) {
  assert_true(at + 8 <= file.len);
  memcpy(file.data + at, &value, 8);
}

/* Where the fields of the sample's first tensor lie. */
static size_t embedding_dims(file_bytes file) {
  return sample_find(file, "token_embd.weight") + 8 + strlen("token_embd.weight") + 4;
}

/* A metadata entry's value: after key and type. */
static size_t value_of(file_bytes file, const char *key) {
  return sample_find(file, key) + 8 + strlen(key) + 4;
}

static void test_the_sample_is_good(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  expect_good(file);
  free(file.data);
}

static void test_G1_dimensions_whose_product_wraps(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  size_t dims = embedding_dims(file);
  store_u64(file, dims + 8, (1ull << 42) + 1); /* does not wrap yet, but is not in the file */
  expect_refused(file, TROIKA_FORMAT, "tensor 1 of 3");
  store_u64(file, dims, 1ull << 22); /* (2^42 + 1) * 2^22 = 2^22 mod 2^64 */
  expect_refused(file, TROIKA_FORMAT, "size overflow");
  store_u64(file, dims, 4); /* 2^62 elements of 4 bytes: the bytes wrap, to 0 */
  store_u64(file, dims + 8, 1ull << 60);
  expect_refused(file, TROIKA_FORMAT, "size overflow");
  store_u64(file, dims, UINT64_MAX);
  store_u64(file, dims + 8, UINT64_MAX);
  expect_refused(file, TROIKA_FORMAT, "size overflow");
  store_u64(file, dims, 0);
  expect_refused(file, TROIKA_FORMAT, "dimension 0 is 0");
  free(file.data);
}

static void test_G2_counts_and_lengths_of_2_to_the_63(void **unused) {
  (void)unused;
  static const uint64_t claims[] = {1ull << 63, UINT64_MAX, 1ull << 62,
                                    1ull << 60, 1ull << 32, 1000};
  for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
    file_bytes file = sample_file();
    store_u64(file, 8, claims[i]);
    expect_refused(file, TROIKA_FORMAT, "");
    store_u64(file, 8, SAMPLE_TENSORS);
    store_u64(file, 16, claims[i]);
    expect_refused(file, TROIKA_FORMAT, "metadata entries");
    store_u64(file, 16, SAMPLE_KVS);
    size_t at = value_of(file, "general.architecture");
    if (claims[i] != 1000) {
      store_u64(file, at, claims[i]);
      expect_refused(file, TROIKA_FORMAT, "metadata entry 1 of 18");
      store_u64(file, at, strlen("sample"));
      size_t key = sample_find(file, "scalar.u8");
      store_u64(file, key, claims[i]);
      expect_refused(file, TROIKA_FORMAT, "metadata entry 2 of 18");
      store_u64(file, key, strlen("scalar.u8"));
    }
    static const char *const arrays[] = {"array.i32", "array.f32", "array.bool", "array.string"};
    for (int a = 0; a < 4; a++) {
      file_bytes copy = file_copy(file, file.len);
      store_u64(copy, value_of(copy, arrays[a]) + 4, claims[i] == 1000 ? 2000 : claims[i]);
      expect_refused(copy, TROIKA_FORMAT, "metadata entry");
      free(copy.data);
    }
    at = value_of(file, "array.string") + 12; /* the first string */
    store_u64(file, at, claims[i] == 1000 ? 2000 : claims[i]);
    expect_refused(file, TROIKA_FORMAT, "metadata entry 17 of 18");
    free(file.data);
  }
}

static void test_G2_a_file_of_43_bytes(void **unused) {
  (void)unused;
  bytes_buffer file;
  put_head(&file, 0, 1);
  put_u64(&file, 1ull << 63); /* the key's length */
  bytes_append(&file, "eleven byte", 11);
  assert_int_equal(file.len, 43);
  expect_refused(of_buffer(&file), TROIKA_FORMAT, "key of 9223372036854775808 bytes");
  bytes_free(&file);

  put_head(&file, 0, 1);
  put_text(&file, "k");
  put_u32(&file, GGUF_STRING);
  put_u64(&file, 1ull << 63);
  expect_refused(of_buffer(&file), TROIKA_FORMAT,
                 "needs 9223372036854775808 bytes, the file has 0 left");
  bytes_free(&file);
}

static void test_G2_nested_arrays(void **unused) {
  (void)unused;
  bytes_buffer file;
  put_head(&file, 0, 1);
  put_text(&file, "nested");
  put_u32(&file, GGUF_ARRAY);
  put_u32(&file, GGUF_ARRAY);
  put_u64(&file, 2);
  put_u32(&file, GGUF_U8);
  put_u64(&file, 1ull << 62);
  put_zeros(&file, 8, 16);
  expect_refused(of_buffer(&file), TROIKA_FORMAT, "4611686018427387904 array elements");
  bytes_free(&file);

  put_head(&file, 0, 1);
  put_text(&file, "nested");
  put_u32(&file, GGUF_ARRAY);
  put_u32(&file, GGUF_ARRAY);
  put_u64(&file, 1ull << 62);
  put_zeros(&file, 8, 160);
  expect_refused(of_buffer(&file), TROIKA_FORMAT, "4611686018427387904 array elements");
  bytes_free(&file);

  for (int depth = 2; depth <= 100000; depth = depth < 6 ? depth + 1 : depth * 100) {
    put_head(&file, 0, 1);
    put_text(&file, "nested");
    put_u32(&file, GGUF_ARRAY);
    for (int d = 1; d < depth; d++) {
      put_u32(&file, GGUF_ARRAY);
      put_u64(&file, 1);
    }
    put_u32(&file, GGUF_U8);
    put_u64(&file, 3);
    bytes_append(&file, "abc", 3);
    if (depth <= 4) {
      expect_good(of_buffer(&file));
    } else {
      expect_refused(of_buffer(&file), TROIKA_FORMAT, "nested deeper than 4");
    }
    bytes_free(&file);
  }
}

static void refuse_alignment(gguf_type type, const void *value, size_t len, const char *words) {
  bytes_buffer file;
  put_head(&file, 1, 1);
  put_text(&file, "general.alignment");
  put_u32(&file, type);
  bytes_append(&file, value, len);
  put_tensor(&file, "t", 0, 8, 1, 0);
  put_zeros(&file, 64, 64);
  if (words) {
    expect_refused(of_buffer(&file), TROIKA_FORMAT, words);
  } else {
    expect_good(of_buffer(&file));
  }
  bytes_free(&file);
}

static void test_G3_alignment(void **unused) {
  (void)unused;
  static const uint32_t bad[] = {0, 1, 2, 3, 4, 7, 12, 33, 48, 0x7fffffff, 0xffffffff};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    refuse_alignment(GGUF_U32, &bad[i], 4, "must be a power of two of at least 8");
  }
  uint32_t good[] = {8, 16, 32, 64}, beyond = 1u << 31;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    refuse_alignment(GGUF_U32, &good[i], 4, NULL);
  }
  refuse_alignment(GGUF_U32, &beyond, 4, "the file has 0 bytes of data");
  refuse_alignment(GGUF_I32, &good[2], 4, "has type i32, must be u32");
  uint64_t wide = 32;
  refuse_alignment(GGUF_U64, &wide, 8, "has type u64, must be u32");
  refuse_alignment(GGUF_STRING, "\2\0\0\0\0\0\0\00032", 10, "has type string, must be u32");
}

static void test_G3_unaligned_offset(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  size_t offset = sample_find(file, "norm.weight") + 8 + strlen("norm.weight") + 4 + 8 + 4;
  uint64_t right;
  memcpy(&right, file.data + offset, 8);
  for (uint64_t off = 1; off < 32; off++) {
    store_u64(file, offset, right + off);
    expect_refused(file, TROIKA_FORMAT, "is no multiple of the alignment 32");
  }
  free(file.data);
}

static void test_G4_dimensions_types_and_counts(void **unused) {
  (void)unused;
  static const uint32_t n_dims[] = {0, 5, 6, 1000, 0x7fffffff, 0xffffffff};
  file_bytes file = sample_file();
  size_t at = embedding_dims(file) - 4;
  for (size_t i = 0; i < sizeof n_dims / sizeof *n_dims; i++) {
    store_u32(file, at, n_dims[i]);
    expect_refused(file, TROIKA_FORMAT, "dimensions, allowed are 1 to 4");
  }
  store_u32(file, at, 2);
  size_t type = embedding_dims(file) + 16;
  static const uint32_t types[] = {4, 5, 31, 36, 43, 9999, 0x80000000, 0xffffffff};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char words[64];
    snprintf(words, sizeof words, "tensor type %u is not known", types[i]);
    store_u32(file, type, types[i]);
    expect_refused(file, TROIKA_UNSUPPORTED, words);
  }
  store_u32(file, type, 12); /* Q4_K: 64 is no multiple of 256 */
  expect_refused(file, TROIKA_FORMAT, "rows of 64 elements, Q4_K needs a multiple of 256");
  store_u32(file, type, 0);
  static const uint64_t per[] = {1, 64, sizeof(gguf_tensor), sizeof(gguf_kv), 24, 33};
  for (size_t i = 0; i < sizeof per / sizeof *per; i++) {
    for (int64_t near = -1; near <= 1; near++) {
      store_u64(file, 8, SIZE_MAX / per[i] + (uint64_t)near + (i == 0 && near == 1 ? SIZE_MAX : 0));
      if (i == 0 && near == 1) continue; /* wraps to a valid count */
      expect_refused(file, TROIKA_FORMAT, "tensor infos");
    }
  }
  free(file.data);
}

static void test_G6_padding_after_the_last_tensor(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *opened = NULL;
  assert_int_equal(gguf_open_memory(file.data, file.len, &opened, NULL), TROIKA_OK);
  const gguf_tensor *last = gguf_tensor_at(opened, SAMPLE_TENSORS - 1);
  size_t end = (size_t)(last->offset + last->bytes);
  gguf_close(&opened);
  assert_true(end < file.len); /* there is padding to leave out */
  for (size_t len = end; len <= file.len; len++) {
    file_bytes cut = file_copy(file, len);
    expect_good(cut);
    free(cut.data);
  }
  file_bytes cut = file_copy(file, end - 1);
  expect_refused(cut, TROIKA_FORMAT, "tensor 3 of 3");
  free(cut.data);
  free(file.data);
}

static void test_G6_truncated_at_every_byte(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *opened = NULL;
  assert_int_equal(gguf_open_memory(file.data, file.len, &opened, NULL), TROIKA_OK);
  const gguf_tensor *last = gguf_tensor_at(opened, SAMPLE_TENSORS - 1);
  size_t end = (size_t)(last->offset + last->bytes);
  gguf_close(&opened);
  for (size_t len = 0; len < end; len++) {
    file_bytes cut = file_copy(file, len);
    expect_refused(cut, TROIKA_FORMAT, "");
    free(cut.data);
  }
  free(file.data);
}

/* A larger file, cut where each section begins and ends, and one byte to either side. */
static void test_G6_truncated_at_every_section_edge(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  gguf *opened = NULL;
  assert_int_equal(gguf_open_memory(file.data, file.len, &opened, NULL), TROIKA_OK);
  size_t edges[64], n = 0, end = 0;
  edges[n++] = 4;
  edges[n++] = 8;
  edges[n++] = 16;
  edges[n++] = 24;
  for (size_t i = 0; i < gguf_kv_count(opened); i++) {
    const gguf_kv *kv = gguf_kv_at(opened, i);
    edges[n++] = (size_t)((const uint8_t *)kv->key.ptr - file.data) - 8;
    edges[n++] = (size_t)(kv->data - file.data);
  }
  for (size_t i = 0; i < gguf_tensor_count(opened); i++) {
    const gguf_tensor *t = gguf_tensor_at(opened, i);
    edges[n++] = (size_t)((const uint8_t *)t->name.ptr - file.data) - 8;
    edges[n++] = (size_t)t->offset;
    edges[n++] = end = (size_t)(t->offset + t->bytes);
  }
  gguf_close(&opened);
  assert_true(n > 40 && n < 64);
  for (size_t i = 0; i < n; i++) {
    for (size_t len = edges[i] - 1; len <= edges[i] + 1; len++) {
      file_bytes cut = file_copy(file, len);
      if (len < end) {
        expect_refused(cut, TROIKA_FORMAT, "");
      } else {
        expect_good(cut);
      }
      free(cut.data);
    }
  }
  free(file.data);
}

static void test_magic_and_version(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  static const uint32_t versions[] = {0, 1, 4, 99, 0xffffffff};
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
    char words[64];
    snprintf(words, sizeof words, "GGUF version %u, known are 2 and 3", versions[i]);
    store_u32(file, 4, versions[i]);
    expect_refused(file, TROIKA_UNSUPPORTED, words);
  }
  store_u32(file, 4, 0x03000000);
  expect_refused(file, TROIKA_UNSUPPORTED, "version 3: a big-endian file");
  store_u32(file, 4, 2);
  expect_good(file);
  memcpy(file.data, "GGML", 4);
  expect_refused(file, TROIKA_FORMAT, "not a GGUF file");
  memcpy(file.data, "\x1b[2J", 4); /* nothing a terminal would obey */
  expect_refused(file, TROIKA_FORMAT, "not a GGUF file");
  free(file.data);
  expect_refused((file_bytes){(uint8_t *)"", 0}, TROIKA_FORMAT,
                 "needs 4 bytes, the file has 0 left");
}

static void test_names(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  memcpy(file.data + sample_find(file, "scalar.i8") + 8, "scalar.u8", 9);
  expect_refused(file, TROIKA_FORMAT, "metadata entry 3 of 18");
  free(file.data);

  bytes_buffer built;
  put_head(&built, 2, 0);
  put_tensor(&built, "same", 0, 8, 1, 0);
  put_tensor(&built, "same", 0, 8, 1, 32);
  put_zeros(&built, 32, 64);
  expect_refused(of_buffer(&built), TROIKA_FORMAT, "name occurs twice");
  bytes_free(&built);

  char name[70] = {0};
  for (size_t len = 63; len <= 66; len++) {
    memset(name, 'n', len);
    put_head(&built, 1, 0);
    put_tensor(&built, name, 0, 8, 1, 0);
    put_zeros(&built, 32, 32);
    if (len <= 64) {
      expect_good(of_buffer(&built));
    } else {
      expect_refused(of_buffer(&built), TROIKA_FORMAT, "allowed are 1 to 64");
    }
    bytes_free(&built);
  }
  char *key = calloc(65538, 1);
  assert_non_null(key);
  for (size_t len = 65534; len <= 65536; len++) {
    memset(key, 'k', len);
    put_head(&built, 0, 1);
    put_text(&built, key);
    put_u32(&built, GGUF_U32);
    put_u32(&built, 1);
    if (len <= 65535) {
      expect_good(of_buffer(&built));
    } else {
      expect_refused(of_buffer(&built), TROIKA_FORMAT, "allowed are 1 to 65535");
    }
    bytes_free(&built);
  }
  free(key);
  put_head(&built, 0, 1);
  put_text(&built, "");
  put_u32(&built, GGUF_U32);
  put_u32(&built, 1);
  expect_refused(of_buffer(&built), TROIKA_FORMAT, "key of 0 bytes");
  bytes_free(&built);
}

static void test_value_types_and_bools(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  size_t bool_at = value_of(file, "scalar.bool");
  file.data[bool_at] = 2;
  expect_refused(file, TROIKA_FORMAT, "a bool is 2");
  file.data[bool_at] = 1;
  size_t array_at = value_of(file, "array.bool") + 12;
  file.data[array_at + 3] = 255;
  expect_refused(file, TROIKA_FORMAT, "a bool is 255");
  file.data[array_at + 3] = 0;
  static const uint32_t types[] = {13, 100, 0xffffffff};
  for (size_t i = 0; i < 3; i++) {
    store_u32(file, bool_at - 4, types[i]);
    expect_refused(file, TROIKA_FORMAT, "metadata entry 9 of 18");
    store_u32(file, bool_at - 4, GGUF_BOOL);
    store_u32(file, array_at - 12, types[i]);
    expect_refused(file, TROIKA_FORMAT, "known are 0 to 12");
    store_u32(file, array_at - 12, GGUF_BOOL);
  }
  expect_good(file);
  free(file.data);
}

static void test_offsets(void **unused) {
  (void)unused;
  static const struct {
    uint64_t first, second;
    const char *words; /* NULL: good */
  } cases[] = {
      {0, 32, NULL},
      {32, 0, NULL}, /* order is free */
      {0, 64, NULL}, /* so is a gap */
      {0, 0, "overlaps tensor"},
      {32, 32, "overlaps tensor"},
      {0, 96, "32 bytes of data at offset 96, the file has 96 bytes of data"},
      {0, 1ull << 63, "tensor 2 of 2"},
      {UINT64_MAX - 31, 0, "tensor 1 of 2"},
      {0, UINT64_MAX - 63, "tensor 2 of 2"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bytes_buffer file;
    put_head(&file, 2, 0);
    put_tensor(&file, "a", 0, 8, 1, cases[i].first);
    put_tensor(&file, "b", 0, 8, 1, cases[i].second);
    put_zeros(&file, 32, 96);
    if (cases[i].words) {
      expect_refused(of_buffer(&file), TROIKA_FORMAT, cases[i].words);
    } else {
      expect_good(of_buffer(&file));
    }
    bytes_free(&file);
  }
  bytes_buffer file;
  put_head(&file, 3, 0);
  put_tensor(&file, "a", 0, 8, 4, 64);
  put_tensor(&file, "b", 0, 8, 1, 0);
  put_tensor(&file, "c", 0, 8, 1, 160);
  put_zeros(&file, 32, 256);
  expect_refused(of_buffer(&file), TROIKA_FORMAT,
                 "tensor 3 of 3"); /* not beside each other in the file */
  bytes_free(&file);
}

/* 60,000 keys that fall into one slot of a table hashed by a sum or FNV's low bits must not cost
 * minutes. */
static void test_many_keys_stay_fast(void **unused) {
  (void)unused;
  enum { KEYS = 60000 };
  bytes_buffer file;
  put_head(&file, 0, KEYS + 1);
  char key[64];
  for (int i = 0; i <= KEYS; i++) {
    /* Same length, same sum of letters: two letters move against each other. The last one is a
     * repetition. */
    int k = i == KEYS ? 0 : i;
    snprintf(key, sizeof key, "%c%c%c%c%c%c%c%c", 'a' + k % 16, 'p' - k % 16, 'a' + k / 16 % 16,
             'p' - k / 16 % 16, 'a' + k / 256 % 16, 'p' - k / 256 % 16, 'a' + k / 4096 % 16,
             'p' - k / 4096 % 16);
    put_text(&file, key);
    put_u32(&file, GGUF_U8);
    bytes_append(&file, "x", 1);
  }
  file_bytes whole = of_buffer(&file);
  gguf *opened = NULL;
  troika_error err;
  clock_t begin = clock();
  assert_int_equal(gguf_open_memory(whole.data, whole.len, &opened, &err), TROIKA_FORMAT);
  double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  assert_non_null(strstr(err.text, "metadata entry 60001 of 60001"));
  print_message("%d keys: %.1f ms\n", KEYS, seconds * 1e3);
  assert_true(seconds < 0.5);
  bytes_free(&file);
}

/* Each byte of the sample changed in several ways: whatever still opens must be readable
 * throughout. */
static void test_every_byte_damaged(void **unused) {
  (void)unused;
  file_bytes file = sample_file();
  static const uint8_t flips[] = {0x01, 0x80, 0xff, 0x20, 0x0f};
  size_t opened_count = 0, tried = 0;
  for (size_t i = 0; i < file.len; i++) {
    for (size_t k = 0; k < sizeof flips; k++) {
      uint8_t kept = file.data[i];
      file.data[i] ^= flips[k];
      gguf *opened = NULL;
      troika_error err;
      if (!gguf_open_memory(file.data, file.len, &opened, &err)) {
        walk_file(opened);
        gguf_close(&opened);
        opened_count++;
      }
      file.data[i] = kept;
      tried++;
    }
  }
  print_message("%zu of %zu damaged files open\n", opened_count, tried);
  assert_true(opened_count > 0 && opened_count < tried);
  free(file.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_sample_is_good),
      cmocka_unit_test(test_G1_dimensions_whose_product_wraps),
      cmocka_unit_test(test_G2_counts_and_lengths_of_2_to_the_63),
      cmocka_unit_test(test_G2_a_file_of_43_bytes),
      cmocka_unit_test(test_G2_nested_arrays),
      cmocka_unit_test(test_G3_alignment),
      cmocka_unit_test(test_G3_unaligned_offset),
      cmocka_unit_test(test_G4_dimensions_types_and_counts),
      cmocka_unit_test(test_G6_padding_after_the_last_tensor),
      cmocka_unit_test(test_G6_truncated_at_every_byte),
      cmocka_unit_test(test_G6_truncated_at_every_section_edge),
      cmocka_unit_test(test_magic_and_version),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_value_types_and_bools),
      cmocka_unit_test(test_offsets),
      cmocka_unit_test(test_many_keys_stay_fast),
      cmocka_unit_test(test_every_byte_damaged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
