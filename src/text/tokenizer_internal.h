/* tokenizer_internal.h - what the files of one tokenizer share; nobody outside src/text includes
 * it.
 *
 *   text ─ special_find ─┬─ control or user-defined token ───────────────────────────► ids
 *                        └─ run of plain text ─ bpe_encode or spm_encode ─ merge_run ─► ids
 *
 * The vocabulary is one run of bytes, cut by `offset`; token id t is bytes[offset[t] .. offset[t +
 * 1]). Byte-level BPE's texts are already turned back into bytes, SentencePiece's marks into
 * spaces.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_TOKENIZER_INTERNAL_H
#define TEXT_TOKENIZER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/merge.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

/* The numbers of tokenizer.ggml.token_type. */
typedef enum token_type {
  TOKEN_NORMAL = 1,
  TOKEN_UNKNOWN = 2,
  TOKEN_CONTROL = 3,
  TOKEN_USER = 4,
  TOKEN_UNUSED = 5,
  TOKEN_BYTE = 6
} token_type;

typedef enum tokenizer_family { FAMILY_BPE, FAMILY_SPM } tokenizer_family;

enum { TOKENIZER_ENDS_MAX = 32, TOKENIZER_VOCAB_MAX = 1 << 23, TOKENIZER_TEXT_MAX = 1 << 28 };

/* One merge of byte-level BPE; the table is open addressed, key 0 with rank UINT32_MAX is empty. */
typedef struct bpe_pair {
  uint32_t left, right, rank;
  int32_t id;
} bpe_pair;

struct tokenizer {
  tokenizer_family family;
  char kind[64];

  uint32_t n;
  char *bytes;
  uint32_t *offset; /* n + 1 */
  size_t piece_max; /* bytes of the longest token */
  uint8_t *type;    /* token_type */
  uint64_t *slots;  /* hash of a normal token's bytes: high half of the hash | id + 1; 0 is empty */
  uint64_t slot_mask;

  /* Tokens that are found in the text before any merge, sorted by bytes: a trie without nodes.
   * first[b] .. first[b + 1] are those that begin with byte b. */
  int32_t *special;
  uint32_t special_n, first[257];

  int32_t byte_id[256]; /* -1: the vocabulary lacks it */
  bpe_pair *pairs;      /* BPE */
  uint64_t pair_mask;
  pretokenizer *pre;
  bool whole_first; /* BPE: a piece that is a token is taken whole, whatever the merges say */
  uint32_t *rank;   /* SPM: score turned round, so that less is better */
  uint32_t before_space[16],
      before_space_n; /* SPM: characters that stand before a space inside some token */
  bool cuts_at_space; /* those are all */

  int32_t bos, eos, unknown;
  bool adds_bos, adds_prefix;
  int32_t ends[TOKENIZER_ENDS_MAX];
  unsigned ends_n;
};

/* What one call of encode carries along. */
typedef struct encoder {
  const tokenizer *t;
  tokenizer_ids *out;
  size_t most; /* ids that out may hold */
  merge_scratch scratch;
  bytes_buffer normal; /* SPM: the text without marks */
  troika_error *err;
} encoder;

static inline bytes_view vocab_text(const tokenizer *t, int32_t id) {
  return bytes_of(t->bytes + t->offset[id], t->offset[id + 1] - t->offset[id]);
}

/* vocab.c: everything but the pair table, the ranks and the pre-tokenizer. */
troika_status vocab_load(tokenizer *t, const gguf *file, troika_error *err);
void vocab_free(tokenizer *t);
int32_t vocab_find(const tokenizer *t, const char *text, size_t len); /* a normal token, or -1 */
/* vocab_bytes.c: GPT-2's letters for bytes, undone. Returns the number of bytes written to `out`
 * (at most len), or SIZE_MAX if a letter stands for no byte. */
size_t vocab_unmap_bytes(const char *text, size_t len, char *out);

/* special.c. Length of the longest special token at text[at], its id in *id; 0 if there is none.
 * With `control`, control tokens count too, but not one that covers any of the sorted byte
 * positions `literal`. */
troika_status special_build(tokenizer *t);
size_t special_match(const tokenizer *t, bytes_view text, size_t at, bool control,
                     const size_t *literal, size_t literal_n, int32_t *id);

troika_status bpe_load(tokenizer *t, const gguf *file, bytes_view pre, troika_error *err);
troika_status bpe_encode(encoder *e, bytes_view run);
troika_status spm_load(tokenizer *t, const gguf *file, troika_error *err);
/* U+2581 to spaces; returns the bytes written, at most len. */
size_t spm_unmark(const char *text, size_t len, char *out);
troika_status spm_encode(encoder *e, bytes_view run, bool prefix);

troika_status encoder_push(encoder *e, int32_t id);

/* tokenizer_encode for text whose bytes partly came from a message: no control token may cover one
 * of the `literal` byte positions (ascending). */
troika_status tokenizer_encode_literal(const tokenizer *t, bytes_view text, const size_t *literal,
                                       size_t literal_n, tokenizer_options options, size_t max,
                                       tokenizer_ids *out, troika_error *err);

#endif
