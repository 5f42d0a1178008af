/* support_grammar.h - what the tests of src/text/grammar.h share: vocabularies, texts fed to a
 * grammar, random texts drawn from one. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_GRAMMAR_H
#define TESTS_SUPPORT_GRAMMAR_H

#include "text/grammar.h"
#include "text/support_text.h"

/* Made once, kept to the end of the program. */
const grammar_vocab *support_vocab(support_model which);

grammar *support_grammar(support_model which, grammar_kind kind, const char *source);
/* The source is refused with this status, within two seconds of processor time, and the reason
 * holds `word`. */
void support_refused(grammar_kind kind, const char *source, troika_status status, const char *word);

/* Whether the grammar describes exactly this text: it is fed token by token, cut into tokens by
 * chance. Checks on the way that accept and the mask are of one opinion. */
bool support_takes(support_model which, grammar_kind kind, const char *source, const char *text);
void support_takes_all(grammar_kind kind, const char *source, const char *const *texts);
void support_takes_none(grammar_kind kind, const char *source, const char *const *texts);

typedef struct support_walk {
  bytes_buffer text;
  bool ended; /* with an end token, else `steps_max` were not enough */
  size_t steps;
  double mask_s, mask_max_s; /* time of this thread in masks */
} support_walk;

/* Draws `free_steps` tokens evenly from the mask, then goes for the end. Every mask is checked. */
void support_walk_run(support_model which, grammar *g, size_t free_steps, uint64_t seed,
                      support_walk *out);

#endif
