/* special.c - finds control and user-defined tokens in text: leftmost, then longest.
 *
 * The tokens stand sorted by bytes. Walking the text, the range of those that begin with what was
 * read so far is narrowed byte by byte with two binary searches: a trie that needs no nodes, and
 * whose cost stops at the first byte that fits none. A text of n bytes costs at most n * (longest
 * token) * log(tokens).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

typedef struct sort_entry {
  const char *ptr;
  uint32_t len;
  int32_t id;
} sort_entry;

static int entry_compare(const void *a, const void *b) {
  const sort_entry *x = a, *y = b;
  int order = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
  if (order) return order;
  if (x->len != y->len) return x->len < y->len ? -1 : 1;
  return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_special(const tokenizer *t, uint32_t id) {
  return (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_USER) &&
         t->offset[id + 1] > t->offset[id];
}

troika_status special_build(tokenizer *t) {
  size_t n = 0;
  for (uint32_t i = 0; i < t->n; i++) n += is_special(t, i);
  sort_entry *entries = malloc((n + 1) * sizeof *entries);
  t->special = malloc((n + 1) * sizeof *t->special);
  if (!entries || !t->special) {
    free(entries);
    return TROIKA_NO_MEMORY;
  }
  n = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    bytes_view text = vocab_text(t, (int32_t)i);
    if (is_special(t, i)) entries[n++] = (sort_entry){text.ptr, (uint32_t)text.len, (int32_t)i};
  }
  qsort(entries, n, sizeof *entries, entry_compare);
  t->special_n = (uint32_t)n;
  uint32_t at = 0;
  for (unsigned b = 0; b < 256; b++) {
    t->first[b] = at;
    while (at < n && (uint8_t)entries[at].ptr[0] == b) at++;
  }
  t->first[256] = at;
  for (size_t i = 0; i < n; i++) t->special[i] = entries[i].id;
  free(entries);
  return TROIKA_OK;
}

/* First in [low, high) whose byte at `depth` is >= byte; all of them are longer than depth, or end
 * there (and sort first). */
static uint32_t narrow(const tokenizer *t, uint32_t low, uint32_t high, size_t depth,
                       unsigned byte) {
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    bytes_view text = vocab_text(t, t->special[middle]);
    if (text.len <= depth || (uint8_t)text.ptr[depth] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static bool covers_literal(const size_t *literal, size_t n, size_t from, size_t to) {
  size_t low = 0, high = n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (literal[middle] < from)
      low = middle + 1;
    else
      high = middle;
  }
  return low < n && literal[low] < to;
}

size_t special_match(const tokenizer *t, bytes_view text, size_t at, bool control,
                     const size_t *literal, size_t literal_n, int32_t *id) {
  unsigned byte = (uint8_t)text.ptr[at];
  uint32_t low = t->first[byte], high = t->first[byte + 1];
  size_t best = 0;
  for (size_t depth = 1; low < high; depth++) {
    /* Those that end here come first; of equal texts any that is allowed. */
    for (uint32_t i = low; i < high && vocab_text(t, t->special[i]).len == depth; i++) {
      bool user = t->type[t->special[i]] == TOKEN_USER;
      if (user || (control && !covers_literal(literal, literal_n, at, at + depth))) {
        best = depth;
        *id = t->special[i];
        break;
      }
    }
    if (at + depth >= text.len) break;
    byte = (uint8_t)text.ptr[at + depth];
    low = narrow(t, low, high, depth, byte);
    high = narrow(t, low, high, depth, byte + 1);
  }
  return best;
}
