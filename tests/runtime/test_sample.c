/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c against a naive sampler in float64: sort everything, filter, normalise. Each draw must
 * be the token that the naive cumulative distribution has at the same random number, and the counts
 * of many draws must fit it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/sample.h"

enum { VOCAB_BIG = 262144 };

static uint64_t random_state;

static uint64_t random_next(void) { /* splitmix64 */
  uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static double random_unit(void) {
  return (double)(random_next() >> 11) * 0x1p-53;
}

static float random_normal(float scale) {
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += random_unit();
  return (float)(sum - 6) * scale;
}

static sample_params params_default(void) {
  return (sample_params){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last = 64};
}

static const sample_history history_empty;

static void *scratch_of(uint32_t vocab) {
  void *p = aligned_alloc(64, (sample_scratch_bytes(vocab) + 63) / 64 * 64);
  assert_non_null(p);
  return p;
}

/* --- the naive sampler --- */

typedef struct naive_token {
  double logit, p;
  uint32_t id;
} naive_token;

static int naive_order(const void *a, const void *b) {
  const naive_token *x = a, *y = b;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id < y->id ? -1 : 1;
}

/* Sorted tokens with their probabilities; returns how many are left. */
static uint32_t naive_distribution(const sample_params *p, const float *logits, uint32_t vocab,
                                   naive_token *t) {
  uint32_t n = 0, kept = 0;
  double sum = 0, total = 0;
  for (uint32_t i = 0; i < vocab; i++)
    if (logits[i] > -INFINITY) t[n++] = (naive_token){(double)logits[i], 0, i};
  qsort(t, n, sizeof *t, naive_order);
  if (p->top_k && p->top_k < n) n = p->top_k;
  for (uint32_t i = 0; i < n; i++)
    sum += t[i].p = exp((t[i].logit - t[0].logit) / (double)p->temperature);
  for (uint32_t i = 0; i < n; i++) t[i].p /= sum;
  while (kept < n && t[kept].p >= (double)p->min_p * t[0].p) {
    total += t[kept++].p;
    if (p->top_p < 1 && total >= (double)p->top_p) break;
  }
  for (uint32_t i = 0; i < kept; i++) t[i].p /= total;
  return kept;
}

static double uniform_of(const sample_params *p, uint32_t position) {
  uint32_t counter[4] = {position, p->choice, 0, 0}, out[4];
  uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
  sample_philox(counter, key, out);
  return ldexp((double)(((uint64_t)out[1] << 32 | out[0]) >> 11), -53);
}

/* --- Philox --- */

static void philox_vectors(void **state) {
  (void)state; /* Random123's kat_vectors, "philox4x32 10" */
  static const uint32_t cases[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
       0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    sample_philox(cases[i], cases[i] + 4, out);
    assert_memory_equal(out, cases[i] + 6, sizeof out);
  }
}

/* --- greedy, wrong numbers --- */

static int32_t pick(const sample_params *p, const float *logits, uint32_t vocab, uint32_t position,
                    void *scratch) {
  float *copy = malloc(vocab * sizeof *copy);
  sample_result result = {.token = -7};
  memcpy(copy, logits, vocab * sizeof *copy);
  assert_int_equal(sample_token(p, &history_empty, position, copy, vocab, NULL, scratch, &result),
                   0);
  free(copy);
  assert_in_range(result.token, 0, vocab - 1);
  return result.token;
}

static void greedy_is_the_first_best(void **state) {
  (void)state;
  sample_params p = params_default();
  p.temperature = 0;
  static const uint32_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 1000, 49152};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint32_t n = sizes[s];
    void *scratch = scratch_of(n);
    float *x = malloc(n * sizeof *x);
    for (int round = 0; round < 50; round++) {
      for (uint32_t i = 0; i < n; i++)
        x[i] = -floorf((float)random_unit() * 40) / 4; /* many ties */
      uint32_t best = 0;
      for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
      assert_int_equal(pick(&p, x, n, 0, scratch), best);
    }
    free(x);
    free(scratch);
  }
  float zeros[3] = {-1, -0.0f, 0.0f}; /* equal: the lower id, also where the bits differ */
  void *scratch = scratch_of(3);
  assert_int_equal(pick(&p, zeros, 3, 0, scratch), 1);
  p = params_default();
  p.top_k = 1;
  for (uint32_t i = 0; i < 20; i++) assert_int_equal(pick(&p, zeros, 3, i, scratch), 1);
  free(scratch);
}

static void wrong_numbers_are_refused(void **state) {
  (void)state;
  void *scratch = scratch_of(100);
  for (int what = 0; what < 4; what++)
    for (uint32_t at = 0; at < 100; at++)
      for (int greedy = 0; greedy < 2; greedy++) {
        float x[100];
        sample_params p = params_default();
        sample_result result, before;
        memset(&result, 0x5a, sizeof result);
        before = result;
        p.temperature = greedy ? 0 : 1;
        for (int i = 0; i < 100; i++) x[i] = what == 2 ? -INFINITY : random_normal(3);
        if (what == 0) x[at] = NAN;
        if (what == 1) x[at] = INFINITY;
        if (what == 3) x[at] = -INFINITY; /* one of them is allowed */
        troika_status status = sample_token(&p, &history_empty, at, x, 100, NULL, scratch, &result);
        assert_int_equal(status, what == 3 ? TROIKA_OK : TROIKA_NUMERIC);
        if (what == 3)
          assert_int_not_equal(result.token, at);
        else
          assert_memory_equal(&result, &before, sizeof result);
      }
  free(scratch);
}

/* --- draws --- */

static const sample_params combos[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.3f, .top_p = 1},
    {.temperature = 2.5f, .top_p = 1},
    {.temperature = 1, .top_p = 0.9f},
    {.temperature = 0.7f, .top_p = 0.5f},
    {.temperature = 3, .top_p = 0.99f},
    {.temperature = 1, .top_p = 1, .top_k = 5},
    {.temperature = 1.5f, .top_p = 1, .top_k = 40},
    {.temperature = 1, .top_p = 0.8f, .top_k = 20},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f},
    {.temperature = 2, .top_p = 0.95f, .min_p = 0.02f},
    {.temperature = 1.2f, .top_p = 0.9f, .min_p = 0.1f, .top_k = 10},
    {.temperature = 1e-3f, .top_p = 0.9f},
    {.temperature = 1e30f, .top_p = 1},
    {.temperature = 1, .top_p = 1e-9f},
    {.temperature = 1, .top_p = 1, .min_p = 1},
    {.temperature = 2, .top_p = 1, .min_p = 0.01f},
    {.temperature = 1.5f, .top_p = 0.999f, .min_p = 0.0005f},
};
enum { COMBOS = sizeof combos / sizeof *combos };

static void fill_logits(float *x, uint32_t n, int shape) {
  for (uint32_t i = 0; i < n; i++) {
    if (shape == 0) x[i] = random_normal(3);
    if (shape == 1) x[i] = floorf(random_normal(2)); /* ties */
    if (shape == 2) x[i] = random_normal(1) - 20;
    if (shape == 3) x[i] = random_unit() < 0.3 ? -INFINITY : random_normal(4);
    if (shape == 4) x[i] = 1.5f; /* all alike */
    if (shape == 5) x[i] = random_normal(8);
  }
  if (shape == 2) x[n / 2] = 30; /* far above */
  if (shape == 3) x[0] = 1;
}

/* The naive cumulative sum just before and at the token that was drawn must enclose u. Whether the
 * last token is kept may hang on the last bit of a sum: its share is tolerated. */
static void assert_draw(const sample_params *p, const naive_token *t, uint32_t kept, double u,
                        int32_t token, const char *what) {
  double below = 0,
         slack = 1e-5 + (kept > 1000 ? 1.0 / kept : 0); /* the last has 1 / kept at most */
  for (uint32_t i = 0; i < kept; i++) {
    if (t[i].id == (uint32_t)token) {
      if (u < below - slack || u > below + t[i].p + slack)
        fail_msg(
            "%s: u %.9f drew token %d at %.9f + %.9f (temperature %g top_p %g min_p %g top_k %u)",
            what, u, token, below, t[i].p, (double)p->temperature, (double)p->top_p,
            (double)p->min_p, p->top_k);
      return;
    }
    below += t[i].p;
  }
  fail_msg("%s: token %d is not among the %u kept (temperature %g top_p %g min_p %g top_k %u)",
           what, token, kept, (double)p->temperature, (double)p->top_p, (double)p->min_p, p->top_k);
}

static void draws_equal_the_naive_ones(void **state) {
  (void)state;
  static const uint32_t sizes[] = {1, 3, 50, 1000, 32000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint32_t n = sizes[s], draws = n > 1000 ? 20 : 200;
    void *scratch = scratch_of(n);
    float *x = malloc(n * sizeof *x);
    naive_token *t = malloc(n * sizeof *t);
    for (int shape = 0; shape < 6; shape++)
      for (int c = 0; c < COMBOS; c++) {
        sample_params p = combos[c];
        char what[64];
        p.repeat_penalty = 1;
        p.seed = random_next();
        snprintf(what, sizeof what, "vocab %u shape %d seed %llu", n, shape,
                 (unsigned long long)p.seed);
        fill_logits(x, n, shape);
        uint32_t kept = naive_distribution(&p, x, n, t);
        for (uint32_t d = 0; d < draws; d++) {
          p.choice = d & 3;
          assert_draw(&p, t, kept, uniform_of(&p, d), pick(&p, x, n, d, scratch), what);
        }
      }
    free(t);
    free(x);
    free(scratch);
  }
}

/* Chi-square: bins of at least 8 expected draws. df + 5 sqrt(2 df) + 8 is beyond the 1e-6 quantile.
 */
static void counts_fit_the_probabilities(void **state) {
  (void)state;
  enum { N = 60, DRAWS = 40000 };
  void *scratch = scratch_of(N);
  for (int c = 0; c < 12; c++) {
    float x[N];
    naive_token t[N];
    uint32_t count[N] = {0};
    sample_params p = combos[c];
    p.repeat_penalty = 1;
    p.seed = 0x8000000000000001u + (uint64_t)c; /* past 2^53 */
    fill_logits(x, N, 0);
    uint32_t kept = naive_distribution(&p, x, N, t), drawn = 0;
    for (uint32_t d = 0; d < DRAWS; d++) count[pick(&p, x, N, d, scratch)]++;
    double chi = 0, expected = 0, seen = 0;
    int bins = 0;
    for (uint32_t i = 0; i < kept; i++) {
      drawn += count[t[i].id];
      expected += t[i].p * DRAWS;
      seen += count[t[i].id];
      if (expected < 8 && i + 1 < kept) continue;
      chi += (seen - expected) * (seen - expected) / expected;
      bins++;
      expected = seen = 0;
    }
    assert_int_equal(drawn, DRAWS); /* nothing outside the kept ones */
    double df = bins > 1 ? bins - 1 : 1;
    if (chi > df + 5 * sqrt(2 * df) + 8)
      fail_msg("combo %d: chi-square %g with %g degrees", c, chi, df);
  }
  free(scratch);
}

static void seed_choice_and_position_matter(void **state) {
  (void)state;
  enum { N = 500 };
  float x[N];
  void *scratch = scratch_of(N);
  sample_params p = params_default();
  fill_logits(x, N, 2);
  x[N / 2] = -20;
  static const uint64_t seeds[] = {0,     1,        1ull << 32, 1ull << 53, (1ull << 53) + 1,
                                   ~0ull, ~0ull - 1};
  enum { SEEDS = sizeof seeds / sizeof *seeds };
  int32_t drawn[SEEDS][2][64];
  for (int s = 0; s < SEEDS; s++)
    for (uint32_t choice = 0; choice < 2; choice++)
      for (uint32_t position = 0; position < 64; position++) {
        p.seed = seeds[s];
        p.choice = choice;
        drawn[s][choice][position] = pick(&p, x, N, position, scratch);
        assert_int_equal(drawn[s][choice][position], pick(&p, x, N, position, scratch));
      }
  for (int a = 0; a < SEEDS * 2; a++)
    for (int b = 0; b < a; b++)
      assert_memory_not_equal(drawn[a / 2][a % 2], drawn[b / 2][b % 2], sizeof drawn[0][0]);
  free(scratch);
}

/* --- bias, penalties, logprobs --- */

static void naive_changes(const sample_params *p, const sample_history *h, double *x, uint32_t n) {
  for (uint32_t i = 0; i < p->bias_n; i++)
    if (p->bias[i].token >= 0 && (uint32_t)p->bias[i].token < n)
      x[p->bias[i].token] = p->bias[i].bias <= -100 ? -(double)INFINITY
                                                    : x[p->bias[i].token] + (double)p->bias[i].bias;
  for (uint32_t id = 0; id < n; id++) {
    uint32_t recent = 0, answered = 0;
    for (uint32_t i = 0; i < h->n; i++) {
      if (h->tokens[i] != (int32_t)id) continue;
      recent += i + p->repeat_last >= h->n;
      answered += i >= h->prompt_n;
    }
    if (recent)
      x[id] = x[id] > 0 ? x[id] / (double)p->repeat_penalty : x[id] * (double)p->repeat_penalty;
    if (answered) x[id] -= answered * (double)p->frequency_penalty + (double)p->presence_penalty;
  }
}

static void changes_and_logprobs_equal_the_naive_ones(void **state) {
  (void)state;
  enum { N = 200, HISTORY = 150 };
  void *scratch = scratch_of(N);
  for (int round = 0; round < 400; round++) {
    float x[N], raw[N];
    double changed[N], sum = 0;
    int32_t tokens[HISTORY];
    troika_token_bias bias[10];
    sample_result result;
    sample_params p = params_default();
    sample_history h = {tokens, (uint32_t)(random_next() % (HISTORY + 1)), 0};
    h.prompt_n = (uint32_t)(random_next() % (h.n + 1));
    for (int i = 0; i < HISTORY; i++)
      tokens[i] = (int32_t)(random_next() % (N + 3)) - 1; /* some outside */
    for (int i = 0; i < 10; i++)
      bias[i] = (troika_token_bias){(int32_t)(random_next() % (N + 3)) - 1,
                                    random_unit() < 0.3 ? -100 : random_normal(4)};
    p.bias = bias;
    p.bias_n = (uint32_t)(random_next() % 11);
    p.temperature = round % 2 ? 0 : 0.8f;
    p.seed = (uint64_t)round;
    if (random_next() & 1) p.repeat_penalty = 1 + (float)random_unit();
    if (random_next() & 1) p.frequency_penalty = random_normal(0.5f);
    if (random_next() & 1) p.presence_penalty = random_normal(0.5f);
    p.repeat_last = (uint32_t)(random_next() % 200);
    p.logprobs = true;
    p.top_logprobs = (uint32_t)(random_next() % (TROIKA_TOP_MAX + 1));
    fill_logits(x, N, round % 4 == 2 ? 1 : round % 4);
    memcpy(raw, x, sizeof x);
    for (int i = 0; i < N; i++) changed[i] = (double)x[i];
    naive_changes(&p, &h, changed, N);
    assert_int_equal(sample_token(&p, &h, 3, x, N, NULL, scratch, &result), 0);
    for (int i = 0; i < N; i++)
      if (!((double)x[i] == changed[i] ||
            fabs((double)x[i] - changed[i]) <= 1e-5 * (1 + fabs(changed[i]))))
        fail_msg("round %d: logit %d is %g, expected %g", round, i, (double)x[i], changed[i]);
    naive_token t[N];
    if (p.temperature > 0) {
      uint32_t kept = naive_distribution(&p, x, N, t);
      assert_draw(&p, t, kept, uniform_of(&p, 3), result.token, "changed");
    } else {
      for (int i = 0; i < N; i++) assert_false(x[i] > x[result.token]);
    }
    sample_params plain = params_default();
    uint32_t n = naive_distribution(&plain, raw, N, t);
    for (uint32_t i = 0; i < n; i++) sum += exp(t[i].logit);
    assert_true(fabs((double)result.logprob - ((double)raw[result.token] - log(sum))) < 1e-5);
    assert_int_equal(result.top_n, p.top_logprobs < n ? p.top_logprobs : n);
    for (uint32_t i = 0; i < result.top_n; i++) {
      assert_int_equal(result.top[i].token, t[i].id);
      assert_true(fabs((double)result.top[i].logprob - (t[i].logit - log(sum))) < 1e-5);
    }
  }
  free(scratch);
}

static void few_tokens_have_few_best(void **state) {
  (void)state;
  float x[3] = {1, -INFINITY, 2};
  void *scratch = scratch_of(3);
  sample_result result;
  sample_params p = params_default();
  p.logprobs = true;
  p.top_logprobs = TROIKA_TOP_MAX;
  assert_int_equal(sample_token(&p, &history_empty, 0, x, 3, NULL, scratch, &result), 0);
  assert_int_equal(result.top_n, 2); /* -Inf is no log-probability to report */
  assert_int_equal(result.top[0].token, 2);
  assert_int_equal(result.top[1].token, 0);
  free(scratch);
}

static void forbidding_all_is_refused(void **state) {
  (void)state;
  float x[2] = {1, 2};
  void *scratch = scratch_of(2);
  troika_token_bias bias[2] = {{0, -100}, {1, -1e9f}};
  sample_params p = params_default();
  sample_result result;
  p.bias = bias;
  p.bias_n = 1;
  for (uint32_t i = 0; i < 50; i++) {
    x[0] = 30;
    assert_int_equal(sample_token(&p, &history_empty, i, x, 2, NULL, scratch, &result), 0);
    assert_int_equal(result.token, 1);
  }
  p.bias_n = 2;
  assert_int_equal(sample_token(&p, &history_empty, 0, x, 2, NULL, scratch, &result), TROIKA_LIMIT);
  free(scratch);
}

/* Only what the mask allows is drawn, hot, cold and filtered; log-probabilities know nothing of it.
 */
static void a_mask_allows_some(void **state) {
  (void)state;
  enum { N = 70 };
  float x[N];
  uint32_t allowed[3] = {0, 1u << 8, 1u << 3}; /* 40 and 67 */
  void *scratch = scratch_of(N);
  sample_params p = params_default();
  sample_result result;
  unsigned seen[N] = {0};
  p.allowed = allowed;
  p.logprobs = true;
  for (uint32_t i = 0; i < 300; i++) {
    for (int j = 0; j < N; j++) x[j] = j == 5 ? 9 : (float)(j % 7) / 7;
    p.temperature = i % 3 ? 1 : 0;
    p.top_k = i % 5 ? 0 : 3;
    assert_int_equal(sample_token(&p, &history_empty, i, x, N, NULL, scratch, &result), TROIKA_OK);
    assert_true(result.token == 40 || result.token == 67);
    assert_true(result.logprob < -5); /* token 5 has nearly all of the model's own mass */
    seen[result.token]++;
  }
  assert_true(seen[40] && seen[67]);
  allowed[1] = allowed[2] = 0;
  for (int j = 0; j < N; j++) x[j] = 1;
  assert_int_equal(sample_token(&p, &history_empty, 0, x, N, NULL, scratch, &result), TROIKA_LIMIT);
  free(scratch);
}

static float test_max_calls_n, test_sum_calls_n;
static float test_max(const float *x, uint32_t n) {
  float max = -INFINITY;
  test_max_calls_n++;
  for (uint32_t i = 0; i < n; i++) {
    if (x[i] != x[i]) return NAN;
    if (x[i] > max) max = x[i];
  }
  return max;
}
static float test_sum(const float *x, uint32_t n, float max) {
  double sum = 0;
  test_sum_calls_n++;
  for (uint32_t i = 0; i < n; i++) sum += exp((double)(x[i] - max));
  return (float)sum;
}

/* Fast kernels must not change what is drawn: they only find the maximum and the logprob's sum. */
static void kernels_change_no_token(void **state) {
  (void)state;
  enum { N = 3000 };
  static const sample_kernels kernels = {test_max, test_sum};
  float x[N];
  void *scratch = scratch_of(N);
  for (int c = 0; c < COMBOS; c++) {
    sample_params p = combos[c];
    sample_result result;
    p.repeat_penalty = 1;
    p.logprobs = true;
    fill_logits(x, N, 0);
    int32_t expected = pick(&p, x, N, (uint32_t)c, scratch);
    assert_int_equal(
        sample_token(&p, &history_empty, (uint32_t)c, x, N, &kernels, scratch, &result), 0);
    assert_int_equal(result.token, expected);
  }
  assert_true(test_max_calls_n >= COMBOS && test_sum_calls_n == COMBOS);
  x[5] = NAN;
  sample_params p = params_default();
  sample_result result;
  assert_int_equal(sample_token(&p, &history_empty, 0, x, N, &kernels, scratch, &result),
                   TROIKA_NUMERIC);
  free(scratch);
}

/* Printed, not judged: the machine is shared. */
static void big_vocabulary(void **state) {
  (void)state;
  float *x = malloc(VOCAB_BIG * sizeof *x);
  naive_token *t = malloc(VOCAB_BIG * sizeof *t);
  void *scratch = scratch_of(VOCAB_BIG);
  for (int shape = 0; shape < 6; shape += 2) {
    fill_logits(x, VOCAB_BIG, shape);
    for (int c = -1; c < COMBOS; c++) {
      enum { ROUNDS = 10 };
      sample_params p = c < 0 ? params_default() : combos[c];
      if (c < 0) p.temperature = 0;
      p.repeat_penalty = 1;
      p.seed = 5;
      int64_t best = INT64_MAX;
      uint32_t kept = c < 0 ? 0 : naive_distribution(&p, x, VOCAB_BIG, t);
      for (uint32_t i = 0; i < ROUNDS; i++) {
        sample_result result;
        int64_t begin = clock_real_now(NULL);
        assert_int_equal(sample_token(&p, &history_empty, i, x, VOCAB_BIG, NULL, scratch, &result),
                         0);
        int64_t time = clock_real_now(NULL) - begin;
        if (time < best) best = time;
        if (c >= 0) assert_draw(&p, t, kept, uniform_of(&p, i), result.token, "big");
      }
      print_message("shape %d temperature %g top_k %u top_p %g min_p %g: %lld us\n", shape,
                    (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p,
                    (long long)best / 1000);
    }
  }
  free(scratch);
  free(t);
  free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_vectors),
      cmocka_unit_test(greedy_is_the_first_best),
      cmocka_unit_test(wrong_numbers_are_refused),
      cmocka_unit_test(draws_equal_the_naive_ones),
      cmocka_unit_test(counts_fit_the_probabilities),
      cmocka_unit_test(seed_choice_and_position_matter),
      cmocka_unit_test(changes_and_logprobs_equal_the_naive_ones),
      cmocka_unit_test(few_tokens_have_few_best),
      cmocka_unit_test(forbidding_all_is_refused),
      cmocka_unit_test(a_mask_allows_some),
      cmocka_unit_test(kernels_change_no_token),
      cmocka_unit_test(big_vocabulary),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
