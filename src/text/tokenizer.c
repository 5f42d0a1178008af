/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_internal.h"

static troika_status family_get(tokenizer *t, const gguf *file, bytes_view *pre,
                                troika_error *err) {
  bytes_view model;
  troika_status status = gguf_get_string(file, "tokenizer.ggml.model", &model, err);
  if (status == TROIKA_NOT_FOUND)
    return error_set(err, TROIKA_NOT_FOUND, "the file has no tokenizer.ggml.model");
  if (status != TROIKA_OK) return status;
  bool bpe = bytes_equal_string(model, "gpt2");
  if (!bpe && !bytes_equal_string(model, "llama"))
    return error_set(err, TROIKA_UNSUPPORTED, "tokenizer '%.*s' is not known; known: gpt2, llama",
                     (int)(model.len > 64 ? 64 : model.len), model.ptr);
  t->family = bpe ? FAMILY_BPE : FAMILY_SPM;
  *pre = bytes_of_string("default");
  status = gguf_get_string(file, "tokenizer.ggml.pre", pre, err);
  return status == TROIKA_NOT_FOUND ? TROIKA_OK : status;
}

static troika_status flag_get(const gguf *file, const char *key, bool *out, troika_error *err) {
  troika_status status = gguf_get_bool(file, key, out, err);
  return status == TROIKA_NOT_FOUND ? TROIKA_OK : status;
}

troika_status tokenizer_create(const gguf *file, tokenizer **out, troika_error *err) {
  tokenizer *t = calloc(1, sizeof *t);
  if (!t) return error_set(err, TROIKA_NO_MEMORY, "no memory for the tokenizer");
  bytes_view pre;
  troika_status status = family_get(t, file, &pre, err);
  if (status == TROIKA_OK) status = vocab_load(t, file, err);
  if (status == TROIKA_OK && t->family == FAMILY_BPE) {
    status = bpe_load(t, file, pre, err);
    snprintf(t->kind, sizeof t->kind, "gpt2/%.*s", (int)(pre.len > 48 ? 48 : pre.len), pre.ptr);
    t->adds_bos = status == TROIKA_OK && pretokenizer_adds_bos(t->pre);
  } else if (status == TROIKA_OK) {
    status = spm_load(t, file, err);
    snprintf(t->kind, sizeof t->kind, "llama");
    t->adds_bos = t->adds_prefix = true; /* what such models do when their file does not say */
    if (status == TROIKA_OK)
      status = flag_get(file, "tokenizer.ggml.add_space_prefix", &t->adds_prefix, err);
  }
  if (status == TROIKA_OK)
    status = flag_get(file, "tokenizer.ggml.add_bos_token", &t->adds_bos, err);
  if (status != TROIKA_OK) {
    if (status == TROIKA_NO_MEMORY) error_set(err, status, "no memory for the vocabulary");
    tokenizer_destroy(&t);
    return status;
  }
  if (t->bos < 0) t->adds_bos = false;
  *out = t;
  return TROIKA_OK;
}

void tokenizer_destroy(tokenizer **t) {
  if (!*t) return;
  pretokenizer_destroy(&(*t)->pre);
  free((*t)->pairs);
  free((*t)->rank);
  vocab_free(*t);
  free(*t);
  *t = NULL;
}

uint32_t tokenizer_vocab_size(const tokenizer *t) {
  return t->n;
}
int32_t tokenizer_bos(const tokenizer *t) {
  return t->bos;
}
int32_t tokenizer_eos(const tokenizer *t) {
  return t->eos;
}
bool tokenizer_adds_bos(const tokenizer *t) {
  return t->adds_bos;
}
bool tokenizer_strips_prefix(const tokenizer *t) {
  return t->adds_prefix;
}
const char *tokenizer_kind(const tokenizer *t) {
  return t->kind;
}

bool tokenizer_is_end(const tokenizer *t, int32_t token) {
  for (unsigned i = 0; i < t->ends_n; i++)
    if (t->ends[i] == token) return true;
  return false;
}

static bool in_vocabulary(const tokenizer *t, int32_t token) {
  return token >= 0 && (uint32_t)token < t->n;
}

bool tokenizer_is_control(const tokenizer *t, int32_t token) {
  return in_vocabulary(t, token) && t->type[token] == TOKEN_CONTROL;
}

bytes_view tokenizer_piece(const tokenizer *t, int32_t token, bool special) {
  if (!in_vocabulary(t, token)) return bytes_of("", 0);
  bool hidden = t->type[token] == TOKEN_CONTROL || t->type[token] == TOKEN_UNKNOWN;
  return hidden && !special ? bytes_of("", 0) : vocab_text(t, token);
}

size_t tokenizer_piece_max(const tokenizer *t) {
  return t->piece_max;
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special,
                      bytes_buffer *out) {
  bool first = t->adds_prefix;
  for (size_t i = 0; i < n; i++) {
    bytes_view piece = tokenizer_piece(t, ids[i], special);
    if (piece.len == 0) continue;
    if (first && !tokenizer_is_control(t, ids[i])) {
      first = false;
      if (piece.ptr[0] == ' ') piece = bytes_of(piece.ptr + 1, piece.len - 1);
    }
    bytes_append(out, piece.ptr, piece.len);
  }
}

void tokenizer_ids_free(tokenizer_ids *ids) {
  free(ids->data);
  *ids = (tokenizer_ids){0};
}

static troika_status ids_push(tokenizer_ids *ids, int32_t id) {
  if (ids->n == ids->capacity) {
    size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
    int32_t *data = realloc(ids->data, capacity * sizeof *data);
    if (!data) return TROIKA_NO_MEMORY;
    ids->data = data;
    ids->capacity = capacity;
  }
  ids->data[ids->n++] = id;
  return TROIKA_OK;
}

troika_status encoder_push(encoder *e, int32_t id) {
  if (e->out->n >= e->most) return TROIKA_LIMIT;
  return ids_push(e->out, id);
}

static troika_status encode_run(encoder *e, bytes_view run, bool prefix) {
  if (run.len == 0) return TROIKA_OK;
  return e->t->family == FAMILY_BPE ? bpe_encode(e, run) : spm_encode(e, run, prefix);
}

/* Cuts the text at special tokens and encodes what lies between. */
static troika_status encode_text(encoder *e, bytes_view text, tokenizer_options options,
                                 const size_t *literal, size_t literal_n) {
  const tokenizer *t = e->t;
  bool prefix = t->adds_prefix && !options.no_prefix;
  size_t from = 0;
  for (size_t at = 0; at < text.len;) {
    unsigned byte = (uint8_t)text.ptr[at];
    /* SentencePiece's runs of spaces are found later, when marks and spaces are one. */
    bool none = t->first[byte] == t->first[byte + 1] || (t->family == FAMILY_SPM && byte == ' ');
    int32_t id = -1;
    size_t len =
        none ? 0 : special_match(t, text, at, options.parse_special, literal, literal_n, &id);
    if (len == 0) {
      at++;
      continue;
    }
    troika_status status = encode_run(e, bytes_of(text.ptr + from, at - from), prefix);
    if (status == TROIKA_OK) status = encoder_push(e, id);
    if (status != TROIKA_OK) return status;
    at += len;
    from = at;
    prefix = t->adds_prefix;
  }
  return encode_run(e, bytes_of(text.ptr + from, text.len - from), prefix);
}

troika_status tokenizer_encode_literal(const tokenizer *t, bytes_view text, const size_t *literal,
                                       size_t literal_n, tokenizer_options options, size_t max,
                                       tokenizer_ids *out, troika_error *err) {
  if (text.len > TOKENIZER_TEXT_MAX)
    return error_set(err, TROIKA_LIMIT, "text of %zu bytes, at most %d", text.len,
                     TOKENIZER_TEXT_MAX);
  size_t valid = text.len ? utf8_valid_prefix(text.ptr, text.len, NULL) : 0;
  if (valid != text.len)
    return error_set(err, TROIKA_FORMAT, "text is not valid UTF-8 at byte %zu", valid);
  size_t start = out->n;
  bool bos = options.add_bos && t->adds_bos;
  encoder e = {.t = t, .out = out, .most = max ? start + max : SIZE_MAX, .err = err};
  bytes_init(&e.normal, SIZE_MAX);
  troika_status status = bos ? encoder_push(&e, t->bos) : TROIKA_OK;
  if (bos) e.most += e.most != SIZE_MAX; /* the text may begin with a BOS that is taken out again */
  if (status == TROIKA_OK && text.len) status = encode_text(&e, text, options, literal, literal_n);
  if (status == TROIKA_OK && bos && out->n > start + 1 && out->data[start + 1] == t->bos) {
    out->n--;
    memmove(out->data + start, out->data + start + 1, (out->n - start) * sizeof *out->data);
  }
  bool over = max && (out->n - start > max || (status == TROIKA_LIMIT && out->n >= e.most));
  if (status == TROIKA_OK && over) status = TROIKA_LIMIT;
  if (status == TROIKA_LIMIT && over)
    error_set(err, status, "text of %zu bytes has more than %zu tokens", text.len, max);
  if (status == TROIKA_NO_MEMORY)
    error_set(err, status, "no memory to tokenize %zu bytes", text.len);
  if (status != TROIKA_OK) out->n = start;
  bytes_free(&e.normal);
  merge_free(&e.scratch);
  return status;
}

troika_status tokenizer_encode(const tokenizer *t, bytes_view text, tokenizer_options options,
                               size_t max, tokenizer_ids *out, troika_error *err) {
  return tokenizer_encode_literal(t, text, NULL, 0, options, max, out, err);
}
