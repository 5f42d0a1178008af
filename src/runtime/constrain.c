/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that keep to a grammar. A grammar is compiled once, on the client's thread, and copied
 * into each request; its mask for the next token is made on the runtime thread while the launch
 * that computes the logits runs, so it costs the answer nothing as long as it is the faster of the
 * two. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/internal.h"

struct troika_grammar {
  grammar *fresh; /* never stepped: copies are */
  uint32_t mask_words;
};

/* What the steps of one grammar may take of the runtime thread, whose time is everybody's. Usual
 * ones take 0.03 to 0.15 ms a token; those of an ambiguous grammar grow with the answer, without
 * end. */
enum { STEPS_NS_ONCE = 100000000, STEPS_NS_TOKEN = 1000000 };

static bool takes_too_long(const request *r) {
  return r->form_ns > STEPS_NS_ONCE + (int64_t)(r->n - r->prompt_n) * STEPS_NS_TOKEN;
}

/* The trie of all tokens takes 0.25 s and 25 MB: made when the first grammar is asked for. */
static troika_status words_of(troika_model *m, const grammar_vocab **out, troika_error *err) {
  troika_status status = TROIKA_OK;
  pthread_mutex_lock(&m->grammar_lock);
  if (!m->grammar_words) status = grammar_vocab_create(m->t, &m->grammar_words, err);
  *out = m->grammar_words;
  pthread_mutex_unlock(&m->grammar_lock);
  return status;
}

troika_status troika_grammar_create(troika_model *model, troika_grammar_kind kind,
                                    const char *source, size_t len, troika_grammar **out,
                                    troika_error *err) {
  static const grammar_kind kinds[] = {[TROIKA_GRAMMAR_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
                                       [TROIKA_GRAMMAR_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
                                       [TROIKA_GRAMMAR_REGEX] = GRAMMAR_REGEX,
                                       [TROIKA_GRAMMAR_LARK] = GRAMMAR_LARK};
  const grammar_vocab *words;
  if ((unsigned)kind >= sizeof kinds / sizeof *kinds)
    return error_set(err, TROIKA_INVALID, "grammar kind %d: not one of four", (int)kind);
  troika_grammar *g = calloc(1, sizeof *g);
  if (!g) return error_set(err, TROIKA_NO_MEMORY, "no memory for a grammar");
  troika_status status = words_of(model, &words, err);
  bytes_view text = kind == TROIKA_GRAMMAR_JSON_OBJECT ? bytes_of("", 0) : bytes_of(source, len);
  if (!status) status = grammar_create(words, kinds[kind], text, &g->fresh, err);
  if (status) {
    free(g);
    return status;
  }
  g->mask_words = grammar_mask_words(words);
  *out = g;
  return TROIKA_OK;
}

void troika_grammar_destroy(troika_grammar **owner) {
  if (!*owner) return;
  grammar_destroy(&(*owner)->fresh);
  free(*owner);
  *owner = NULL;
}

troika_status constrain_create(const troika_model *m, const troika_request *q, request *r,
                               troika_error *err) {
  if (!q->grammar) return TROIKA_OK;
  uint32_t need = (m->g->vocab + 31) / 32, words = q->grammar->mask_words;
  if (!(r->allowed = calloc(words > need ? words : need, sizeof *r->allowed)))
    return error_set(err, TROIKA_NO_MEMORY, "no memory for a grammar");
  return grammar_clone(q->grammar->fresh, &r->form, err);
}

void constrain_prepare(request *r) {
  if (!r->form || r->allowed_known) return;
  /* A failure leaves a mask of nothing, and constrain_take or the draw says why. */
  r->allowed_known = true;
  int64_t begun = clock_thread_now();
  troika_status status = grammar_mask(r->form, r->allowed);
  (void)status;
  r->form_ns += clock_thread_now() - begun;
}

troika_status constrain_take(request *r, int32_t token, bool *over) {
  int64_t begun = clock_thread_now();
  troika_status status = grammar_accept(r->form, token);
  r->allowed_known = false;
  *over = !status && grammar_is_over(r->form);
  r->form_ns += clock_thread_now() - begun;
  return !status && !*over && takes_too_long(r) ? TROIKA_LIMIT : status;
}

const char *constrain_failure(const request *r) {
  if (!r->form) return "logit_bias forbids all that are left";
  if (*grammar_failure(r->form)) return grammar_failure(r->form);
  return takes_too_long(r)
             ? "the grammar's steps take too long (an ambiguous one's grow without end)"
             : "logit_bias forbids all that the grammar allows";
}
