/* bpe.c - byte-level BPE: each byte is a token at first, then the merges of the file in their
 * order.
 *
 * A byte that the vocabulary lacks (SmolLM2 lacks those that no common text has) is left out, as
 * the reference does. Source: the published GPT-2 encoder; the merges and the pre-tokenizer's name
 * come from the file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/error.h"
#include "text/tokenizer_internal.h"

static uint64_t pair_slot(const tokenizer *t, uint32_t left, uint32_t right) {
  uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
  return (h ^ h >> 32) & t->pair_mask;
}

static const bpe_pair *pair_get(const tokenizer *t, uint32_t left, uint32_t right) {
  for (uint64_t i = pair_slot(t, left, right);; i = (i + 1) & t->pair_mask) {
    const bpe_pair *p = &t->pairs[i];
    if (p->rank == UINT32_MAX) return NULL;
    if (p->left == left && p->right == right) return p;
  }
}

static void pair_put(tokenizer *t, bpe_pair pair) {
  uint64_t i = pair_slot(t, pair.left, pair.right);
  while (t->pairs[i].rank != UINT32_MAX) {
    if (t->pairs[i].left == pair.left && t->pairs[i].right == pair.right) return;
    i = (i + 1) & t->pair_mask;
  }
  t->pairs[i] = pair;
}

/* "left right" in byte letters. A merge whose parts or result are no tokens can never apply and is
 * left out. */
static void merge_add(tokenizer *t, bytes_view text, uint32_t rank, char *buffer) {
  const char *space = text.len > 1 ? memchr(text.ptr + 1, ' ', text.len - 1) : NULL;
  if (!space) return;
  size_t left_len = (size_t)(space - text.ptr);
  size_t a = vocab_unmap_bytes(text.ptr, left_len, buffer);
  if (a == SIZE_MAX) return;
  size_t b = vocab_unmap_bytes(space + 1, text.len - left_len - 1, buffer + a);
  if (b == SIZE_MAX) return;
  int32_t left = vocab_find(t, buffer, a), right = vocab_find(t, buffer + a, b);
  int32_t id = vocab_find(t, buffer, a + b);
  if (left < 0 || right < 0 || id < 0) return;
  pair_put(t, (bpe_pair){(uint32_t)left, (uint32_t)right, rank, id});
}

static troika_status merges_load(tokenizer *t, const gguf *file, troika_error *err) {
  const gguf_kv *merges = gguf_find(file, "tokenizer.ggml.merges");
  if (!merges || merges->type != GGUF_ARRAY || merges->elem != GGUF_STRING ||
      merges->n >= UINT32_MAX / 4)
    return error_set(err, TROIKA_FORMAT, "tokenizer.ggml.merges is no list of texts");
  uint64_t size = 1024;
  size_t longest = 0;
  while (size < 2 * merges->n) size *= 2;
  for (uint64_t i = 0; i < merges->n; i++)
    if (gguf_string_at(merges, i).len > longest) longest = gguf_string_at(merges, i).len;
  char *buffer = malloc(longest + 1);
  t->pairs = malloc(size * sizeof *t->pairs);
  if (!buffer || !t->pairs) {
    free(buffer);
    return TROIKA_NO_MEMORY;
  }
  for (uint64_t i = 0; i < size; i++) t->pairs[i].rank = UINT32_MAX;
  t->pair_mask = size - 1;
  for (uint64_t i = 0; i < merges->n; i++)
    merge_add(t, gguf_string_at(merges, i), (uint32_t)i, buffer);
  free(buffer);
  return TROIKA_OK;
}

troika_status bpe_load(tokenizer *t, const gguf *file, bytes_view pre, troika_error *err) {
  for (int i = 0; i < 256; i++) {
    char byte = (char)i;
    t->byte_id[i] = vocab_find(t, &byte, 1);
  }
  troika_status status = pretokenizer_create(pre, &t->pre, err);
  if (status == TROIKA_OK) status = merges_load(t, file, err);
  if (status != TROIKA_OK) return status;
  t->whole_first = pretokenizer_whole_first(t->pre);
  return TROIKA_OK;
}

static bool bpe_lookup(const void *context, const char *run, const merge_symbol *left,
                       const merge_symbol *right, merge_candidate *out) {
  (void)run;
  const bpe_pair *p = pair_get(context, (uint32_t)left->id, (uint32_t)right->id);
  if (!p) return false;
  out->rank = p->rank;
  out->tie = 0;
  out->id = p->id;
  return true;
}

static troika_status bpe_piece(void *context, bytes_view piece) {
  encoder *e = context;
  const tokenizer *t = e->t;
  if (t->whole_first) {
    int32_t id = vocab_find(t, piece.ptr, piece.len);
    if (id >= 0) return encoder_push(e, id);
  }
  troika_status status = merge_reserve(&e->scratch, piece.len);
  if (status != TROIKA_OK) return status;
  merge_symbol *symbols = e->scratch.symbols;
  size_t n = 0;
  for (size_t i = 0; i < piece.len; i++) {
    int32_t id = t->byte_id[(uint8_t)piece.ptr[i]];
    if (id >= 0) symbols[n++] = (merge_symbol){.start = (uint32_t)i, .len = 1, .id = id};
  }
  e->scratch.n = n;
  status = merge_run(&e->scratch, piece.ptr, bpe_lookup, t);
  for (size_t i = 0; status == TROIKA_OK && i < e->scratch.n; i++)
    status = encoder_push(e, e->scratch.symbols[i].id);
  return status;
}

/* NFC; a text without a byte above 127 is in it. `out` is malloc'ed, or NULL where nothing changes.
 */
static troika_status compose(bytes_view run, utf8proc_uint8_t **out, bytes_view *composed) {
  size_t i = 0;
  while (i < run.len && (uint8_t)run.ptr[i] < 0x80) i++;
  *composed = run;
  if (i == run.len) return TROIKA_OK;
  utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)run.ptr, (utf8proc_ssize_t)run.len,
                                    out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (n < 0) return n == UTF8PROC_ERROR_NOMEM ? TROIKA_NO_MEMORY : TROIKA_INTERNAL;
  *composed = bytes_of((const char *)*out, (size_t)n);
  return TROIKA_OK;
}

troika_status bpe_encode(encoder *e, bytes_view run) {
  utf8proc_uint8_t *memory = NULL;
  troika_status status = TROIKA_OK;
  if (pretokenizer_composes(e->t->pre)) status = compose(run, &memory, &run);
  if (status == TROIKA_OK) status = pretokenizer_split(e->t->pre, run, bpe_piece, e, e->err);
  free(memory);
  return status;
}
