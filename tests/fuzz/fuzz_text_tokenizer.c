/* fuzz_text_tokenizer.c - any bytes through every kind of tokenizer and through the emitter.
 * Input: one byte of choices, then text. What must hold: bytes that are no UTF-8 are refused; plain
 * text gives no control token; decoding gives the text back (SentencePiece: with U+2581 read as a
 * space); the emitter's text does not depend on the cuts. SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../text/tiny_vocab.h"
#include "base/check.h"
#include "text/emit.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const char *const kinds[] = {"gpt2", "smollm", "llama-bpe", "qwen2", NULL};
enum { KINDS = sizeof kinds / sizeof kinds[0], PIECE_MAX = 16 };

static tokenizer *made(unsigned kind) {
  static tokenizer *all[KINDS];
  if (!all[kind]) all[kind] = tiny_tokenizer(kinds[kind]);
  CHECK(all[kind]);
  return all[kind];
}

static void append_without_marks(bytes_buffer *out, bytes_view text) {
  for (size_t i = 0; i < text.len;) {
    bool mark = text.len - i >= 3 && memcmp(text.ptr + i, "\xe2\x96\x81", 3) == 0;
    bytes_append(out, mark ? " " : text.ptr + i, 1);
    i += mark ? 3 : 1;
  }
}

static void encode_and_back(const tokenizer *t, bytes_view text, tokenizer_options options,
                            bool sentencepiece, bool gives_back) {
  tokenizer_ids ids = {0};
  troika_status status = tokenizer_encode(t, text, options, 0, &ids, NULL);
  bool valid = utf8_valid_prefix(text.ptr, text.len, NULL) == text.len;
  CHECK(valid == (status == TROIKA_OK));
  CHECK(valid || status == TROIKA_FORMAT);
  bytes_buffer back, expected;
  bytes_init(&back, SIZE_MAX);
  bytes_init(&expected, SIZE_MAX);
  for (size_t i = 0; i < ids.n; i++)
    CHECK(options.parse_special || (i == 0 && options.add_bos) ||
          !tokenizer_is_control(t, ids.data[i]));
  size_t skip =
      options.add_bos && ids.n && ids.data[0] == tokenizer_bos(t) && tokenizer_adds_bos(t);
  if (valid && ids.n && gives_back && !options.parse_special) {
    tokenizer_decode(t, ids.data + skip, ids.n - skip, true, &back);
    append_without_marks(&expected, sentencepiece ? text : bytes_of("", 0));
    if (!sentencepiece) bytes_append(&expected, text.ptr, text.len);
    CHECK(bytes_equal(bytes_of(back.data, back.len), bytes_of(expected.data, expected.len)));
  }
  bytes_free(&expected);
  bytes_free(&back);
  tokenizer_ids_free(&ids);
}

static void join(emit *e, bytes_view text, size_t step, bytes_buffer *out) {
  bytes_view delta;
  for (size_t at = 0; at < text.len && emit_stop(e) < 0; at += step) {
    emit_push(e, bytes_of(text.ptr + at, text.len - at < step ? text.len - at : step), &delta);
    CHECK(utf8_valid_prefix(delta.ptr, delta.len, NULL) == delta.len);
    bytes_append(out, delta.ptr, delta.len);
  }
  delta = emit_flush(e);
  bytes_append(out, delta.ptr, delta.len);
}

static void emit_cuts(bytes_view text, size_t step) {
  /* The first bytes are also stop strings. */
  bytes_view stops[2] = {bytes_of(text.ptr, text.len < 3 ? text.len : 3), bytes_of_string("llo")};
  emit *one = NULL, *many = NULL;
  size_t n =
      text.len && utf8_valid_prefix(stops[0].ptr, stops[0].len, NULL) == stops[0].len ? 2 : 0;
  CHECK(emit_create(stops, n, PIECE_MAX, &one, NULL) == TROIKA_OK);
  CHECK(emit_create(stops, n, PIECE_MAX, &many, NULL) == TROIKA_OK);
  bytes_buffer a, b;
  bytes_init(&a, SIZE_MAX);
  bytes_init(&b, SIZE_MAX);
  join(one, text, 1, &a);
  join(many, text, step, &b);
  CHECK(emit_stop(one) == emit_stop(many));
  CHECK(bytes_equal(bytes_of(a.data, a.len), bytes_of(b.data, b.len)));
  bytes_free(&a);
  bytes_free(&b);
  emit_destroy(&one);
  emit_destroy(&many);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (len < 1) return 0;
  unsigned kind = data[0] % KINDS;
  tokenizer_options options = {
      .parse_special = data[0] & 0x20, .add_bos = data[0] & 0x40, .no_prefix = false};
  bytes_view text = bytes_of((const char *)data + 1, len - 1);
  /* qwen2 composes: the text comes back in NFC */
  encode_and_back(made(kind), text, options, kinds[kind] == NULL,
                  !kinds[kind] || strcmp(kinds[kind], "qwen2") != 0);
  emit_cuts(text, 1 + (data[0] >> 4));
  return 0;
}
