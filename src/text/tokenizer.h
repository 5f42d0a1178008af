/* tokenizer.h - text to tokens and back, as the model's own reference tokenizer does it.
 *
 * Two kinds, chosen by `tokenizer.ggml.model` of the file: byte-level BPE ("gpt2", with a
 * pre-tokenizer named by `tokenizer.ggml.pre`) and SentencePiece ("llama", with byte fall-back). An
 * unknown kind or pre-tokenizer is TROIKA_UNSUPPORTED with the name and the list of known ones.
 * Immutable after create: any thread. Time is near-linear in the text and the stack flat, whatever
 * the text. Memory: about 60 bytes a vocabulary entry.
 *
 * Control tokens (BOS, EOS, <|im_start|> ...) are recognised only where the caller says so
 * (`parse_special`); plain text is always literal, so that a user cannot write one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "gguf/gguf.h"
#include "troika/status.h"

typedef struct tokenizer tokenizer;

/* Copies what it needs: `file` may be closed afterwards. Owned: tokenizer_destroy. */
troika_status tokenizer_create(const gguf *file, tokenizer **out, troika_error *err);
void tokenizer_destroy(tokenizer **t);

uint32_t tokenizer_vocab_size(const tokenizer *t);
/* -1 where the model has none. */
int32_t tokenizer_bos(const tokenizer *t);
int32_t tokenizer_eos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t); /* the file says that a raw prompt begins with BOS */
/* True for every token that ends an answer: EOS, end-of-turn, end-of-message. */
bool tokenizer_is_end(const tokenizer *t, int32_t token);
bool tokenizer_is_control(const tokenizer *t, int32_t token);
const char *tokenizer_kind(const tokenizer *t); /* "gpt2/smollm", "llama" */

typedef struct tokenizer_options {
  bool parse_special; /* control tokens in the text become themselves; only for text that a template
                         made */
  bool add_bos; /* put BOS first if the model wants one and the text does not already begin with it
                 */
  bool no_prefix; /* SentencePiece: the text continues earlier text, no dummy space before it */
} tokenizer_options;

/* Appends to *out (malloc'ed array, owned by the caller, may start as {0}). Not valid UTF-8:
 * TROIKA_FORMAT with the byte's offset. More than `max` tokens (0: no limit): TROIKA_LIMIT. */
typedef struct tokenizer_ids {
  int32_t *data;
  size_t n, capacity;
} tokenizer_ids;
troika_status tokenizer_encode(const tokenizer *t, bytes_view text, tokenizer_options options,
                               size_t max, tokenizer_ids *out, troika_error *err);
void tokenizer_ids_free(tokenizer_ids *ids);

/* The bytes a token stands for: borrowed from the tokenizer, may be part of a UTF-8 character.
 * Control tokens give "" unless `special`. An id outside the vocabulary gives "". SentencePiece:
 * the space mark is already a space; the single dummy space at the very start of a decoded text is
 * the caller's to strip (tokenizer_strips_prefix). */
bytes_view tokenizer_piece(const tokenizer *t, int32_t token, bool special);
bool tokenizer_strips_prefix(const tokenizer *t);
size_t tokenizer_piece_max(const tokenizer *t); /* bytes of the longest piece */
/* Whole-array decode, appended to `out`; the dummy space at the start is stripped. */
void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special,
                      bytes_buffer *out);

#endif
