/* fuzz_text_grammar.c - grammars from outside, and the tokens that they allow.
 * Input: a byte whose low bits are the kind (0 JSON object, 1 schema, 2 regular expression, 3
 * Lark) and whose bit 2 chooses SentencePiece; the source. What must hold: no crash, an error has a
 * reason, every token of a mask is accepted, ends are allowed exactly where the text is complete,
 * no control token ever, and each text is UTF-8. SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../text/tiny_vocab.h"
#include "base/check.h"
#include "text/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { STEPS = 48, WORDS_MAX = 32 };

static tokenizer *tokenizers[2];
static grammar_vocab *vocabularies[2];

static void make_vocabularies(void) {
  for (int i = 0; i < 2 && !vocabularies[i]; i++) {
    tokenizers[i] = tiny_tokenizer(i ? NULL : "gpt2");
    CHECK(tokenizers[i]);
    CHECK(grammar_vocab_create(tokenizers[i], &vocabularies[i], NULL) == TROIKA_OK);
    CHECK(grammar_mask_words(vocabularies[i]) <= WORDS_MAX);
  }
}

/* One of the tokens in the mask, by `choice`; checks the mask. */
static int32_t choose(const tokenizer *t, grammar *g, const uint32_t *bits, uint32_t choice) {
  bool complete = grammar_is_complete(g);
  int32_t allowed[1024];
  uint32_t n = 0;
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    bool set = bits[i / 32] >> (i % 32) & 1, end = tokenizer_is_end(t, (int32_t)i);
    CHECK(!end || set == complete);
    CHECK(!set || end || !tokenizer_is_control(t, (int32_t)i));
    if (set) allowed[n++] = (int32_t)i;
  }
  CHECK(n > 0);
  return allowed[choice % n];
}

static void walk(const tokenizer *t, grammar *g, uint32_t seed) {
  uint32_t bits[WORDS_MAX];
  bytes_buffer text;
  bytes_init(&text, 1 << 16);
  for (int i = 0; i < STEPS; i++) {
    troika_status status = grammar_mask(g, bits);
    if (status != TROIKA_OK) {
      CHECK(status == TROIKA_LIMIT && grammar_failure(g)[0]);
      break;
    }
    seed = seed * 1664525 + 1013904223;
    int32_t token = choose(t, g, bits, seed >> 8);
    status = grammar_accept(g, token);
    CHECK(status == TROIKA_OK || (status == TROIKA_LIMIT && grammar_failure(g)[0]));
    if (status != TROIKA_OK) break;
    if (tokenizer_is_end(t, token)) {
      CHECK(grammar_is_over(g) && grammar_is_complete(g));
      CHECK(utf8_valid_prefix(text.data ? text.data : "", text.len, NULL) == text.len);
      break;
    }
    bytes_view piece = tokenizer_piece(t, token, false);
    bytes_append(&text, piece.ptr, piece.len);
    bool partial = false;
    CHECK(utf8_valid_prefix(text.data, text.len, &partial) == text.len || partial);
  }
  bytes_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  make_vocabularies();
  if (len == 0) return 0;
  int spm = data[0] >> 2 & 1;
  bytes_view source = bytes_of((const char *)data + 1, len - 1);
  grammar *g = NULL, *copy = NULL;
  troika_error err = {0};
  troika_status status =
      grammar_create(vocabularies[spm], (grammar_kind)(data[0] & 3), source, &g, &err);
  if (status != TROIKA_OK) {
    CHECK(err.text[0] && status != TROIKA_INTERNAL);
    return 0;
  }
  uint32_t seed = 1;
  for (size_t i = 0; i < len; i++) seed = seed * 31 + data[i];
  CHECK(grammar_clone(g, &copy, NULL) == TROIKA_OK);
  walk(tokenizers[spm], g, seed);
  grammar_destroy(&g);
  walk(tokenizers[spm], copy, seed ^ 0x5bd1e995);
  grammar_destroy(&copy);
  return 0;
}
