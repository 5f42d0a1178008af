/* SPDX-License-Identifier: Apache-2.0 */
#include "text/support_grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { STEPS_MAX = 3000 };

static grammar_vocab *made[SUPPORT_MODELS];

static void release(void) {
  for (int i = 0; i < SUPPORT_MODELS; i++) grammar_vocab_destroy(&made[i]);
}

const grammar_vocab *support_vocab(support_model which) {
  static bool registered;
  if (!registered) registered = atexit(release) == 0;
  troika_error err = {0};
  if (!made[which] &&
      grammar_vocab_create(support_tokenizer(which), &made[which], &err) != TROIKA_OK)
    fail_msg("vocabulary: %s", err.text);
  return made[which];
}

grammar *support_grammar(support_model which, grammar_kind kind, const char *source) {
  troika_error err = {0};
  grammar *g = NULL;
  if (grammar_create(support_vocab(which), kind, bytes_of_string(source), &g, &err) != TROIKA_OK)
    fail_msg("%s: %s", source, err.text);
  return g;
}

void support_refused(grammar_kind kind, const char *source, troika_status status,
                     const char *word) {
  const grammar_vocab *v = support_vocab(SUPPORT_SMOLLM2);
  troika_error err = {0};
  grammar *g = NULL;
  clock_t began = clock(); /* of all threads: another does the work */
  troika_status got = grammar_create(v, kind, bytes_of_string(source), &g, &err);
  double took = (double)(clock() - began) / CLOCKS_PER_SEC;
  if (got != status || !strstr(err.text, word) || took > 2)
    fail_msg("%.200s\n  status %d, expected %d; in %.2f s; \"%s\" should hold \"%s\"", source,
             (int)got, (int)status, took, err.text, word);
  assert_null(g);
}

static uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static bool bit(const uint32_t *bits, uint32_t i) {
  return bits[i / 32] >> (i % 32) & 1;
}

static uint32_t *mask_of(const grammar_vocab *v, grammar *g) {
  uint32_t *bits = malloc(grammar_mask_words(v) * sizeof *bits);
  assert_non_null(bits);
  troika_status status = grammar_mask(g, bits);
  if (status != TROIKA_OK) fail_msg("mask: %d %s", (int)status, grammar_failure(g));
  return bits;
}

/* A token of the mask that the text goes on with, or -1: any one of them. */
static int32_t token_for(const tokenizer *t, const uint32_t *bits, bytes_view rest,
                         uint64_t *random) {
  int32_t found = -1;
  uint64_t seen = 0;
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    if (!bit(bits, i)) continue;
    bytes_view piece = tokenizer_piece(t, (int32_t)i, false);
    if (piece.len == 0 || piece.len > rest.len || memcmp(piece.ptr, rest.ptr, piece.len) != 0)
      continue;
    if (next_random(random) % ++seen == 0) found = (int32_t)i;
  }
  return found;
}

/* Also a token that is not in the mask must be refused without harm. */
static void refuse_one(const tokenizer *t, grammar *g, const uint32_t *bits, uint64_t *random) {
  for (int tries = 0; tries < 50; tries++) {
    uint32_t i = (uint32_t)(next_random(random) % tokenizer_vocab_size(t));
    if (bit(bits, i)) continue;
    assert_int_equal(grammar_accept(g, (int32_t)i), TROIKA_INVALID);
    return;
  }
}

bool support_takes(support_model which, grammar_kind kind, const char *source, const char *text) {
  const tokenizer *t = support_tokenizer(which);
  grammar *g = support_grammar(which, kind, source);
  bytes_view rest = bytes_of_string(text);
  uint64_t random = 88172645463325252u + rest.len;
  bool going = true;
  while (going && rest.len) {
    uint32_t *bits = mask_of(support_vocab(which), g);
    int32_t token = token_for(t, bits, rest, &random);
    going = token >= 0;
    if (going) {
      refuse_one(t, g, bits, &random);
      assert_int_equal(grammar_accept(g, token), TROIKA_OK);
      size_t len = tokenizer_piece(t, token, false).len;
      rest = bytes_of(rest.ptr + len, rest.len - len);
    }
    free(bits);
  }
  bool complete = going && grammar_is_complete(g);
  if (going)
    assert_int_equal(grammar_accept(g, tokenizer_eos(t)), complete ? TROIKA_OK : TROIKA_INVALID);
  grammar_destroy(&g);
  return complete;
}

void support_takes_all(grammar_kind kind, const char *source, const char *const *texts) {
  for (; *texts; texts++)
    if (!support_takes(SUPPORT_SMOLLM2, kind, source, *texts))
      fail_msg("%s\n  must allow %s", source, *texts);
}

void support_takes_none(grammar_kind kind, const char *source, const char *const *texts) {
  for (; *texts; texts++)
    if (support_takes(SUPPORT_SMOLLM2, kind, source, *texts))
      fail_msg("%s\n  must not allow %s", source, *texts);
}

/* ---- random texts ---- */

static void check_mask(const tokenizer *t, grammar *g, const uint32_t *bits) {
  bool complete = grammar_is_complete(g), any = false;
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    bool set = bit(bits, i), end = tokenizer_is_end(t, (int32_t)i);
    any |= set;
    if (end) assert_int_equal(set, complete);
    if (set && !end) {
      assert_false(tokenizer_is_control(t, (int32_t)i));
      assert_true(tokenizer_piece(t, (int32_t)i, false).len > 0);
    }
  }
  assert_true(any);
}

/* Token number `nth` of those in the mask; with `brief` only of those of one plain character. */
static int32_t token_at(const tokenizer *t, const uint32_t *bits, bool brief, const char *of,
                        uint64_t *random) {
  int32_t found = -1;
  uint64_t seen = 0;
  for (uint32_t i = 0; i < tokenizer_vocab_size(t); i++) {
    if (!bit(bits, i) || tokenizer_is_end(t, (int32_t)i)) continue;
    bytes_view piece = tokenizer_piece(t, (int32_t)i, false);
    if (brief && (piece.len != 1 || piece.ptr[0] <= ' ' || piece.ptr[0] == '\\')) continue;
    if (of && !strchr(of, piece.ptr[0])) continue;
    if (next_random(random) % ++seen == 0) found = (int32_t)i;
  }
  return found;
}

static int32_t token_towards_end(const tokenizer *t, const uint32_t *bits, uint64_t *random) {
  if (bit(bits, (uint32_t)tokenizer_eos(t))) return tokenizer_eos(t);
  int32_t token = -1;
  if (next_random(random) % 4) token = token_at(t, bits, true, "\"}]", random);
  if (token < 0) token = token_at(t, bits, true, NULL, random);
  return token < 0 ? token_at(t, bits, false, NULL, random) : token;
}

void support_walk_run(support_model which, grammar *g, size_t free_steps, uint64_t seed,
                      support_walk *out) {
  const tokenizer *t = support_tokenizer(which);
  uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
  *out = (support_walk){0};
  bytes_init(&out->text, 1 << 20);
  for (int32_t token = -1; out->steps < STEPS_MAX; out->steps++) {
    double began = support_cpu_seconds();
    uint32_t *bits = mask_of(support_vocab(which), g);
    double took = support_cpu_seconds() - began;
    out->mask_s += took;
    if (took > out->mask_max_s) out->mask_max_s = took;
    check_mask(t, g, bits);
    token = out->steps < free_steps ? token_at(t, bits, false, NULL, &random) : -1;
    if (token < 0) token = token_towards_end(t, bits, &random);
    free(bits);
    assert_int_equal(grammar_accept(g, token), TROIKA_OK);
    out->ended = tokenizer_is_end(t, token);
    if (out->ended) return;
    bytes_view piece = tokenizer_piece(t, token, false);
    bytes_append(&out->text, piece.ptr, piece.len);
  }
}
