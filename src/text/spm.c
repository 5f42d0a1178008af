/* spm.c - SentencePiece BPE: characters are merged by the score of what they become; what is no
 * token falls back to bytes.
 *
 * SentencePiece writes a space as the mark U+2581, so a mark in the text is the same as a space.
 * Here both are a space, in the vocabulary and in the text. Where the file asks for it, one space
 * is put before the text and before what follows a special token. Of two neighbours that would
 * become the same token, the one with the longer left part goes first, then the leftmost: the order
 * of the merges in the published Gemma tokenizer. (Merging by score alone leaves it open.)
 *
 * A whole text is one run, but where no token has a space after the character before it, no merge
 * can cross that place, so the text is cut there: exact, and words are short.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_internal.h"

static const char mark[] = "\xe2\x96\x81";
enum { MARK_BYTES = 3, SPACES = 64 };

static size_t character_bytes(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

static bool is_mark(const char *text, size_t left) {
  return left >= MARK_BYTES && memcmp(text, mark, MARK_BYTES) == 0;
}

size_t spm_unmark(const char *text, size_t len, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < len;) {
    bool here = is_mark(text + i, len - i);
    out[n++] = here ? ' ' : text[i];
    i += here ? MARK_BYTES : 1;
  }
  return n;
}

/* Float order as unsigned order, turned round: the best score is the least number. UINT32_MAX means
 * "no merge". */
static uint32_t score_rank(float score) {
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return bits ? ~bits : UINT32_MAX - 1;
}

/* The bytes of the character that ends before text[end], as one number. */
static uint32_t character_before(const char *text, size_t end) {
  size_t from = end - 1;
  while (from > 0 && end - from < 4 && ((uint8_t)text[from] & 0xc0) == 0x80) from--;
  uint32_t character = 0;
  for (size_t i = from; i < end; i++) character = character << 8 | (uint8_t)text[i];
  return character;
}

static bool before_space_has(const tokenizer *t, uint32_t character) {
  for (uint32_t i = 0; i < t->before_space_n; i++)
    if (t->before_space[i] == character) return true;
  return false;
}

/* Which characters stand before a space inside a token; few (Gemma: one). Too many: the text is
 * left whole. */
static void before_space_collect(tokenizer *t) {
  const uint32_t max = sizeof t->before_space / sizeof t->before_space[0];
  for (uint32_t id = 0; id < t->n; id++) {
    bytes_view text = vocab_text(t, (int32_t)id);
    if (t->type[id] != TOKEN_NORMAL || text.len < 2) continue;
    for (size_t i = 1; i < text.len; i++) {
      if (text.ptr[i] != ' ' || text.ptr[i - 1] == ' ') continue;
      uint32_t character = character_before(text.ptr, i);
      if (before_space_has(t, character)) continue;
      if (t->before_space_n == max) return;
      t->before_space[t->before_space_n++] = character;
    }
  }
  t->cuts_at_space = true;
}

troika_status spm_load(tokenizer *t, const gguf *file, troika_error *err) {
  const gguf_kv *scores = gguf_find(file, "tokenizer.ggml.scores");
  if (!scores || scores->type != GGUF_ARRAY || scores->elem != GGUF_F32 || scores->n != t->n)
    return error_set(err, TROIKA_FORMAT, "tokenizer.ggml.scores is not %u numbers", t->n);
  t->rank = malloc(t->n * sizeof *t->rank);
  if (!t->rank) return TROIKA_NO_MEMORY;
  for (uint32_t i = 0; i < t->n; i++) t->rank[i] = score_rank(gguf_f32_at(scores, i));
  before_space_collect(t);
  return TROIKA_OK;
}

static bool spm_lookup(const void *context, const char *run, const merge_symbol *left,
                       const merge_symbol *right, merge_candidate *out) {
  const tokenizer *t = context;
  int32_t id = vocab_find(t, run + left->start, left->len + right->len);
  if (id < 0) return false;
  out->rank = t->rank[id];
  out->tie = UINT32_MAX - left->len;
  out->id = id;
  return true;
}

/* One character that is no token: its bytes. Without byte tokens the unknown token stands for it.
 */
static troika_status push_bytes(encoder *e, const char *text, size_t len) {
  troika_status status = TROIKA_OK;
  for (size_t i = 0; status == TROIKA_OK && i < len; i++) {
    int32_t id = e->t->byte_id[(uint8_t)text[i]];
    if (id < 0) return e->t->unknown < 0 ? TROIKA_OK : encoder_push(e, e->t->unknown);
    status = encoder_push(e, id);
  }
  return status;
}

static troika_status encode_part(encoder *e, bytes_view part) {
  if (part.len == 0) return TROIKA_OK;
  troika_status status = merge_reserve(&e->scratch, part.len);
  if (status != TROIKA_OK) return status;
  merge_symbol *symbols = e->scratch.symbols;
  size_t n = 0;
  for (size_t i = 0; i < part.len;) {
    size_t len = character_bytes((uint8_t)part.ptr[i]);
    symbols[n++] = (merge_symbol){
        .start = (uint32_t)i, .len = (uint32_t)len, .id = vocab_find(e->t, part.ptr + i, len)};
    i += len;
  }
  e->scratch.n = n;
  status = merge_run(&e->scratch, part.ptr, spm_lookup, e->t);
  for (size_t i = 0; status == TROIKA_OK && i < e->scratch.n; i++) {
    merge_symbol s = e->scratch.symbols[i];
    status = s.id >= 0 ? encoder_push(e, s.id) : push_bytes(e, part.ptr + s.start, s.len);
  }
  return status;
}

/* No marks are left in `text`. User-defined tokens that begin with a space (runs of spaces) are
 * whole. */
static troika_status encode_spaced(encoder *e, bytes_view text) {
  const tokenizer *t = e->t;
  size_t from = 0;
  for (size_t i = 0; i < text.len;) {
    const char *space = memchr(text.ptr + i, ' ', text.len - i);
    if (!space) break;
    i = (size_t)(space - text.ptr);
    int32_t id = -1;
    size_t len = special_match(t, text, i, false, NULL, 0, &id);
    bool cut = len > 0 || (t->cuts_at_space && i > from && text.ptr[i - 1] != ' ' &&
                           !before_space_has(t, character_before(text.ptr, i)));
    if (cut) {
      troika_status status = encode_part(e, bytes_of(text.ptr + from, i - from));
      if (status == TROIKA_OK && len > 0) status = encoder_push(e, id);
      if (status != TROIKA_OK) return status;
      from = i + len;
    }
    i += len ? len : 1;
  }
  return encode_part(e, bytes_of(text.ptr + from, text.len - from));
}

/* Marks that the text itself holds, two or more: where the vocabulary has a token for such a run,
 * the reference finds it before it turns spaces into marks. Returns the bytes taken from text[at],
 * 0 for none. */
static size_t mark_run(const tokenizer *t, bytes_view text, size_t at, int32_t *id) {
  static const char spaces[SPACES + 1] =
      "                                                                ";
  size_t n = 0;
  while (n < SPACES && is_mark(text.ptr + at + n * MARK_BYTES, text.len - at - n * MARK_BYTES)) n++;
  return n < 2 ? 0 : MARK_BYTES * special_match(t, bytes_of(spaces, n), 0, false, NULL, 0, id);
}

static troika_status flush(encoder *e) {
  if (e->normal.failed) return TROIKA_NO_MEMORY;
  if (e->normal.len == 0) return TROIKA_OK;
  troika_status status = encode_spaced(e, bytes_of(e->normal.data, e->normal.len));
  bytes_clear(&e->normal);
  return status;
}

troika_status spm_encode(encoder *e, bytes_view run, bool prefix) {
  troika_status status = TROIKA_OK;
  bytes_clear(&e->normal);
  if (prefix) bytes_append(&e->normal, " ", 1);
  for (size_t i = 0; status == TROIKA_OK && i < run.len;) {
    const char *lead = memchr(run.ptr + i, mark[0], run.len - i);
    size_t plain = lead ? (size_t)(lead - run.ptr) - i : run.len - i;
    bytes_append(&e->normal, run.ptr + i, plain);
    i += plain;
    if (!lead) break;
    int32_t id = -1;
    size_t taken = mark_run(e->t, run, i, &id);
    if (taken) {
      status = flush(e);
      if (status == TROIKA_OK) status = encoder_push(e, id);
      i += taken;
    } else if (is_mark(run.ptr + i, run.len - i)) {
      bytes_append(&e->normal, " ", 1);
      i += MARK_BYTES;
    } else {
      bytes_append(&e->normal, run.ptr + i, 1);
      i++;
    }
  }
  return status == TROIKA_OK ? flush(e) : status;
}
