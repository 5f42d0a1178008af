/* tiny_vocab.h - two small vocabularies made in memory, for the fuzzers and for tests of bad files.
 * Byte-level BPE: all bytes, five merges, three control tokens. SentencePiece: letters, bytes,
 * merges by score, three control tokens, a user-defined run of spaces, a dummy space.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TINY_VOCAB_H
#define TESTS_TINY_VOCAB_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "text/tokenizer.h"

enum { TINY_MAX = 640 };

typedef struct tiny_vocab {
  char texts[TINY_MAX][16];
  bytes_view tokens[TINY_MAX];
  int32_t types[TINY_MAX];
  float scores[TINY_MAX];
  size_t n;
} tiny_vocab;

static inline void tiny_add(tiny_vocab *v, const char *text, int32_t type, float score) {
  snprintf(v->texts[v->n], sizeof v->texts[0], "%s", text);
  v->tokens[v->n] = bytes_of_string(v->texts[v->n]);
  v->types[v->n] = type;
  v->scores[v->n++] = score;
}

/* GPT-2's letter for a byte, the other way round from src/text/vocab_bytes.c: by counting. */
static inline void tiny_letter(unsigned byte, char *out) {
  unsigned next = 256, letter = byte;
  for (unsigned b = 0; b <= byte; b++) {
    int itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    letter = itself ? b : next++;
  }
  if (letter < 128)
    snprintf(out, 8, "%c", (char)letter);
  else
    snprintf(out, 8, "%c%c", (char)(0xc0 | letter >> 6), (char)(0x80 | (letter & 63)));
}

static inline tiny_vocab *tiny_texts(bool bpe) {
  tiny_vocab *v = calloc(1, sizeof *v);
  char text[16];
  for (unsigned b = 0; v && b < 256; b++) {
    if (bpe)
      tiny_letter(b, text);
    else
      snprintf(text, sizeof text, "<0x%02X>", b);
    tiny_add(v, text, bpe ? 1 : 6, 0);
  }
  static const char *const more[] = {"he", "ll", "llo", "hello", "aa", "aaaa"};
  for (size_t i = 0; v && i < sizeof more / sizeof more[0]; i++) tiny_add(v, more[i], 1, -(float)i);
  for (char c = 'a'; v && !bpe && c <= 'z'; c++) {
    snprintf(text, sizeof text, "%c", c);
    tiny_add(v, text, 1, -1e9f);
  }
  if (v && !bpe) {
    tiny_add(v, "▁", 1, -1e9f);
    tiny_add(v, "▁a", 1, -7);
    tiny_add(v, "▁▁▁", 4, 0);
  }
  if (!v) return NULL;
  tiny_add(v, "<|im_start|>", 3, 0);
  tiny_add(v, "<|im_end|>", 3, 0);
  tiny_add(v, "<s>", 3, 0);
  return v;
}

/* pre: a pre-tokenizer's name, or NULL for SentencePiece. NULL if anything fails. */
static inline tokenizer *tiny_tokenizer(const char *pre) {
  static const char *const merges[] = {"h e", "l l", "ll o", "he llo", "a a", "aa aa"};
  bytes_view views[sizeof merges / sizeof merges[0]];
  for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++)
    views[i] = bytes_of_string(merges[i]);
  tiny_vocab *v = tiny_texts(pre != NULL);
  gguf_writer *w = gguf_writer_create(32);
  char *bytes = NULL;
  size_t len = 0;
  gguf *file = NULL;
  tokenizer *t = NULL;
  FILE *out = open_memstream(&bytes, &len);
  if (v && w && out) {
    gguf_writer_add_string(w, "tokenizer.ggml.model", bytes_of_string(pre ? "gpt2" : "llama"));
    if (pre) gguf_writer_add_string(w, "tokenizer.ggml.pre", bytes_of_string(pre));
    gguf_writer_add_strings(w, "tokenizer.ggml.tokens", v->tokens, v->n);
    gguf_writer_add_array(w, "tokenizer.ggml.token_type", GGUF_I32, v->types, v->n);
    gguf_writer_add_array(w, "tokenizer.ggml.scores", GGUF_F32, v->scores, v->n);
    gguf_writer_add_strings(w, "tokenizer.ggml.merges", views, sizeof merges / sizeof merges[0]);
    gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)v->n - 1);
    gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)v->n - 2);
    troika_status status = gguf_writer_write(w, out, NULL);
    fclose(out);
    if (status == TROIKA_OK && gguf_open_memory(bytes, len, &file, NULL) == TROIKA_OK)
      tokenizer_create(file, &t, NULL);
  }
  if (file) gguf_close(&file);
  gguf_writer_destroy(&w);
  free(bytes);
  free(v);
  return t;
}

#endif
