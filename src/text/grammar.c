/* SPDX-License-Identifier: Apache-2.0 */
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/rust/troika_text_rs.h"
#include "text/rust_error.h"
#include "text/tokenizer_internal.h"

struct grammar_vocab {
  const troika_rs_vocab *rs;
  uint32_t words;
};

struct grammar {
  troika_rs_grammar *rs;
  uint32_t words;
  char failure[256];
};

static troika_rs_token_kind token_kind(const tokenizer *t, uint32_t id) {
  if (tokenizer_is_end(t, (int32_t)id)) return TROIKA_RS_TOKEN_END;
  switch (t->type[id]) {
    case TOKEN_NORMAL:
    case TOKEN_USER:
    case TOKEN_BYTE:
      return TROIKA_RS_TOKEN_TEXT;
    default:
      return TROIKA_RS_TOKEN_NEVER;
  }
}

troika_status grammar_vocab_create(const tokenizer *t, grammar_vocab **out, troika_error *err) {
  uint32_t n = tokenizer_vocab_size(t);
  grammar_vocab *v = calloc(1, sizeof *v);
  uint8_t *kind = malloc((size_t)n + 1);
  if (!v || !kind) {
    free(kind);
    free(v);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for a grammar's vocabulary");
  }
  for (uint32_t i = 0; i < n; i++) kind[i] = (uint8_t)token_kind(t, i);
  v->words = (n + 31) / 32;
  troika_rs_text error = {0};
  int status = troika_rs_vocab_create(
      &(troika_rs_vocab_source){.bytes = t->bytes, .offset = t->offset, .kind = kind, .n = n},
      &v->rs, &error);
  free(kind);
  if (status != TROIKA_OK) {
    free(v);
    return rs_failed(status, "", &error, err);
  }
  *out = v;
  return TROIKA_OK;
}

void grammar_vocab_destroy(grammar_vocab **v) {
  if (!*v) return;
  troika_rs_vocab_destroy((*v)->rs);
  free(*v);
  *v = NULL;
}

uint32_t grammar_mask_words(const grammar_vocab *v) {
  return v->words;
}

troika_status grammar_create(const grammar_vocab *v, grammar_kind kind, bytes_view source,
                             grammar **out, troika_error *err) {
  if (source.len > GRAMMAR_SOURCE_MAX)
    return error_set(err, TROIKA_LIMIT, "grammar of %zu bytes, at most %d", source.len,
                     GRAMMAR_SOURCE_MAX);
  grammar *g = calloc(1, sizeof *g);
  if (!g) return error_set(err, TROIKA_NO_MEMORY, "no memory for a grammar");
  g->words = v->words;
  troika_rs_text error = {0};
  int status = troika_rs_grammar_create(v->rs, (uint32_t)kind,
                                        (troika_rs_bytes){source.ptr, source.len}, &g->rs, &error);
  if (status != TROIKA_OK) {
    free(g);
    return rs_failed(status, "", &error, err);
  }
  *out = g;
  return TROIKA_OK;
}

troika_status grammar_clone(const grammar *g, grammar **out, troika_error *err) {
  grammar *copy = malloc(sizeof *copy);
  if (!copy) return error_set(err, TROIKA_NO_MEMORY, "no memory for a grammar");
  *copy = *g;
  troika_rs_text error = {0};
  int status = troika_rs_grammar_clone(g->rs, &copy->rs, &error);
  if (status != TROIKA_OK) {
    free(copy);
    return rs_failed(status, "", &error, err);
  }
  *out = copy;
  return TROIKA_OK;
}

void grammar_destroy(grammar **g) {
  if (!*g) return;
  troika_rs_grammar_destroy((*g)->rs);
  free(*g);
  *g = NULL;
}

static troika_status stepped(grammar *g, int status) {
  troika_rs_bytes text = troika_rs_grammar_failure(g->rs);
  if (text.len && !g->failure[0]) {
    size_t n = text.len < sizeof g->failure ? text.len : sizeof g->failure - 1;
    memcpy(g->failure, text.ptr, n);
    utf8_clean(g->failure, false);
  }
  return (troika_status)status;
}

troika_status grammar_mask(grammar *g, uint32_t *bits) {
  return stepped(g, troika_rs_grammar_mask(g->rs, bits));
}

troika_status grammar_accept(grammar *g, int32_t token) {
  return stepped(g, troika_rs_grammar_accept(g->rs, (uint32_t)token));
}

const char *grammar_failure(const grammar *g) {
  return g->failure;
}

bool grammar_is_complete(grammar *g) {
  bool complete = troika_rs_grammar_is_complete(g->rs);
  stepped(g, 0);
  return complete;
}

bool grammar_is_over(grammar *g) {
  return troika_rs_grammar_is_over(g->rs);
}
