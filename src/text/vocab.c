/* vocab.c - the vocabulary of a file: texts, types, the table to find a token by its bytes, the
 * tokens with a role.
 *
 * Everything is checked here, so that encoding and decoding need not. Cost: about 25 bytes a token;
 * 262,144 tokens load in some 30 ms.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_internal.h"

/* Texts of tokens that end an answer in published models; they count only where they are control
 * tokens. */
static const char *const end_texts[] = {
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|eom|>",
    "<EOT>",
    "<turn|>",
    "<|return|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_turn|>",
    "<｜end▁of▁sentence｜>",
};
/* Keys whose token ends an answer. */
static const char *const end_keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};

/* Multiply and fold, eight bytes at a time; tokens are short. */
static uint64_t bytes_hash(const char *text, size_t len) {
  const uint64_t factor = 0x9e3779b97f4a7c15u;
  uint64_t h = len * factor, word;
  for (; len >= 8; text += 8, len -= 8) {
    memcpy(&word, text, 8);
    h = (h ^ word) * factor;
    h ^= h >> 29;
  }
  word = 0;
  memcpy(&word, text, len);
  h = (h ^ word) * factor;
  h ^= h >> 32;
  return h * factor;
}

int32_t vocab_find(const tokenizer *t, const char *text, size_t len) {
  uint64_t h = bytes_hash(text, len), tag = h & 0xffffffff00000000u;
  for (uint64_t i = (h >> 20) & t->slot_mask; t->slots[i]; i = (i + 1) & t->slot_mask) {
    if ((t->slots[i] & 0xffffffff00000000u) != tag) continue;
    int32_t id = (int32_t)((uint32_t)t->slots[i] - 1);
    bytes_view found = vocab_text(t, id);
    if (found.len == len && memcmp(found.ptr, text, len) == 0) return id;
  }
  return -1;
}

/* The first of several equal texts wins. */
static void slot_put(tokenizer *t, int32_t id) {
  bytes_view text = vocab_text(t, id);
  if (text.len == 0 || vocab_find(t, text.ptr, text.len) >= 0) return;
  uint64_t h = bytes_hash(text.ptr, text.len), i = (h >> 20) & t->slot_mask;
  while (t->slots[i]) i = (i + 1) & t->slot_mask;
  t->slots[i] = (h & 0xffffffff00000000u) | ((uint64_t)id + 1);
}

static bool array_is(const gguf_kv *kv, gguf_type elem, uint64_t n) {
  return kv && kv->type == GGUF_ARRAY && kv->elem == elem && kv->n == n;
}

/* "<0x0A>" -> 10, else -1. */
static int byte_token_value(bytes_view text) {
  if (text.len != 6 || memcmp(text.ptr, "<0x", 3) != 0 || text.ptr[5] != '>') return -1;
  int value = 0;
  for (int i = 3; i < 5; i++) {
    char c = text.ptr[i];
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static troika_status types_load(tokenizer *t, const gguf *file, troika_error *err) {
  t->type = malloc(t->n);
  if (!t->type) return TROIKA_NO_MEMORY;
  memset(t->type, TOKEN_NORMAL, t->n);
  const gguf_kv *types = gguf_find(file, "tokenizer.ggml.token_type");
  if (!types) return TROIKA_OK;
  if (types->type != GGUF_ARRAY || types->n != t->n ||
      (types->elem != GGUF_I32 && types->elem != GGUF_U32))
    return error_set(err, TROIKA_FORMAT, "tokenizer.ggml.token_type is not %u numbers", t->n);
  for (uint32_t i = 0; i < t->n; i++) {
    int64_t type = gguf_int_at(types, i);
    if (type < TOKEN_NORMAL || type > TOKEN_BYTE) type = TOKEN_UNUSED; /* 0 is "undefined" */
    t->type[i] = (uint8_t)type;
  }
  return TROIKA_OK;
}

/* Copies the texts, each in the form that its type asks for. */
static troika_status texts_load(tokenizer *t, const gguf_kv *tokens, troika_error *err) {
  size_t total = 0;
  for (uint32_t i = 0; i < t->n; i++) total += gguf_string_at(tokens, i).len;
  if (total > UINT32_MAX) return error_set(err, TROIKA_LIMIT, "vocabulary of %zu bytes", total);
  t->bytes = malloc(total + 8);
  t->offset = malloc(((size_t)t->n + 1) * sizeof *t->offset);
  if (!t->bytes || !t->offset) return TROIKA_NO_MEMORY;
  uint32_t at = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    bytes_view text = gguf_string_at(tokens, i);
    char *out = t->bytes + at;
    t->offset[i] = at;
    size_t n = SIZE_MAX;
    int value = t->type[i] == TOKEN_BYTE ? byte_token_value(text) : -1;
    if (value >= 0) {
      *out = (char)value;
      n = 1;
      t->byte_id[value] = (int32_t)i;
    } else if (t->family == FAMILY_BPE && t->type[i] == TOKEN_NORMAL) {
      n = vocab_unmap_bytes(text.ptr, text.len, out);
    } else if (t->family == FAMILY_SPM && t->type[i] != TOKEN_CONTROL) {
      n = spm_unmark(text.ptr, text.len, out);
    }
    if (n == SIZE_MAX) { /* also a normal token outside the byte letters: it can be printed, not
                            reached */
      memcpy(out, text.ptr, text.len);
      n = text.len;
      if (t->family == FAMILY_BPE && t->type[i] == TOKEN_NORMAL) t->type[i] = TOKEN_UNUSED;
    }
    at += (uint32_t)n;
    if (n > t->piece_max) t->piece_max = n;
  }
  t->offset[t->n] = at;
  return TROIKA_OK;
}

static bool is_end_text(bytes_view text) {
  for (size_t k = 0; k < sizeof end_texts / sizeof end_texts[0]; k++)
    if (bytes_equal_string(text, end_texts[k])) return true;
  return false;
}

/* Some files call their turn marks user-defined. A user could then write them, so they count as
 * control tokens: what ends an answer, and what looks like <|this|>. */
static void control_promote(tokenizer *t) {
  for (uint32_t i = 0; i < t->n; i++) {
    bytes_view text = vocab_text(t, (int32_t)i);
    bool looks = text.len > 4 && memcmp(text.ptr, "<|", 2) == 0 &&
                 memcmp(text.ptr + text.len - 2, "|>", 2) == 0;
    if (t->type[i] == TOKEN_USER && (looks || is_end_text(text))) t->type[i] = TOKEN_CONTROL;
  }
}

static troika_status slots_build(tokenizer *t) {
  uint64_t size = 1024;
  while (size < 2 * (uint64_t)t->n) size *= 2;
  t->slots = calloc(size, sizeof *t->slots);
  if (!t->slots) return TROIKA_NO_MEMORY;
  t->slot_mask = size - 1;
  for (uint32_t i = 0; i < t->n; i++) {
    if (t->type[i] == TOKEN_NORMAL) slot_put(t, (int32_t)i);
  }
  return TROIKA_OK;
}

static troika_status id_get(const tokenizer *t, const gguf *file, const char *key, int32_t *out,
                            troika_error *err) {
  uint32_t id;
  troika_status status = gguf_get_u32(file, key, &id, NULL);
  if (status == TROIKA_NOT_FOUND) return TROIKA_OK;
  if (status != TROIKA_OK || id >= t->n)
    return error_set(err, TROIKA_FORMAT, "%s is no token of a vocabulary of %u", key, t->n);
  *out = (int32_t)id;
  return TROIKA_OK;
}

static void end_add(tokenizer *t, int32_t id) {
  for (unsigned i = 0; i < t->ends_n; i++)
    if (t->ends[i] == id) return;
  if (t->ends_n < TOKENIZER_ENDS_MAX) t->ends[t->ends_n++] = id;
}

static troika_status roles_load(tokenizer *t, const gguf *file, troika_error *err) {
  t->bos = t->eos = t->unknown = -1;
  troika_status status = id_get(t, file, "tokenizer.ggml.bos_token_id", &t->bos, err);
  if (status == TROIKA_OK) status = id_get(t, file, "tokenizer.ggml.eos_token_id", &t->eos, err);
  if (status == TROIKA_OK)
    status = id_get(t, file, "tokenizer.ggml.unknown_token_id", &t->unknown, err);
  for (size_t k = 0; status == TROIKA_OK && k < sizeof end_keys / sizeof end_keys[0]; k++) {
    int32_t id = -1;
    status = id_get(t, file, end_keys[k], &id, err);
    if (id >= 0) end_add(t, id);
  }
  if (status != TROIKA_OK) return status;
  for (uint32_t i = 0; i < t->n; i++) {
    if (t->type[i] == TOKEN_CONTROL && is_end_text(vocab_text(t, (int32_t)i)))
      end_add(t, (int32_t)i);
  }
  return TROIKA_OK;
}

troika_status vocab_load(tokenizer *t, const gguf *file, troika_error *err) {
  const gguf_kv *tokens = gguf_find(file, "tokenizer.ggml.tokens");
  if (!tokens) return error_set(err, TROIKA_NOT_FOUND, "the file has no tokenizer.ggml.tokens");
  if (!array_is(tokens, GGUF_STRING, tokens->n) || tokens->n == 0)
    return error_set(err, TROIKA_FORMAT, "tokenizer.ggml.tokens is no list of texts");
  if (tokens->n > TOKENIZER_VOCAB_MAX)
    return error_set(err, TROIKA_LIMIT, "vocabulary of %llu tokens, at most %d",
                     (unsigned long long)tokens->n, TOKENIZER_VOCAB_MAX);
  t->n = (uint32_t)tokens->n;
  for (int i = 0; i < 256; i++) t->byte_id[i] = -1;
  troika_status status = types_load(t, file, err);
  if (status == TROIKA_OK) status = texts_load(t, tokens, err);
  if (status == TROIKA_OK) control_promote(t);
  if (status == TROIKA_OK) status = slots_build(t);
  if (status == TROIKA_OK) status = roles_load(t, file, err);
  if (status == TROIKA_OK) status = special_build(t);
  return status;
}

void vocab_free(tokenizer *t) {
  free(t->special);
  free(t->slots);
  free(t->offset);
  free(t->bytes);
  free(t->type);
}
