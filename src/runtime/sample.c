/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - see sample.h. The whole vocabulary is never sorted if a few candidates decide.
 *
 *   scratch  entries[vocab] u64  descending key of the logit << 32 | id, so that one integer order
 *                                is "higher logit first, then lower id"
 *            spare[vocab] u64    other side of the radix sort; afterwards the weights, as floats
 *            raw[vocab] f32      the untouched logits, if logprobs are asked for
 *            count[vocab] u32    what penalties have seen; only what is touched is ever cleared
 *            histogram[BUCKETS]
 *
 *   top-k    two histograms of 12 bits find the k-th logit to 24 bits; what is above is sorted
 *   else     the sum of all weights exp((x - max) / T) in one pass of 16 lanes (by id, in float64:
 *            the one sum that is not in descending order, since that would need the sort); then
 *            candidates within 4 T of the maximum, 8 T, ... until they hold the mass that top-p,
 *            min-p or the draw asks for
 *
 * exp is ours and without fused operations, so that every compiler and machine draws the same
 * token; libm's log is used for reported log-probabilities only. Cost: two to four passes over the
 * logits; 16 bytes a token more where a flat distribution makes it sort them all.
 * Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011. */
#include "runtime/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/check.h"

enum {
  LANES = 16,
  BUCKET_BITS = 12,
  BUCKETS = 1 << BUCKET_BITS,
  SORT_SMALL = 48,
  BIAS_FORBIDS = -100
};

typedef struct scratch_parts {
  uint64_t *entries, *spare;
  float *raw;
  uint32_t *count, *histogram;
} scratch_parts;

static size_t align64(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

size_t sample_scratch_bytes(uint32_t vocab) {
  size_t n = vocab;
  return 2 * align64(8 * n) + 2 * align64(4 * n) + 4 * (size_t)BUCKETS;
}

static scratch_parts scratch_split(void *scratch, uint32_t vocab) {
  size_t wide = align64(8 * (size_t)vocab), narrow = align64(4 * (size_t)vocab);
  char *p = scratch;
  return (scratch_parts){.entries = (uint64_t *)p,
                         .spare = (uint64_t *)(p + wide),
                         .raw = (float *)(p + 2 * wide),
                         .count = (uint32_t *)(p + 2 * wide + narrow),
                         .histogram = (uint32_t *)(p + 2 * wide + 2 * narrow)};
}

/* --- random numbers --- */

void sample_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b;
    c3 = (uint32_t)a;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* In [0, 1), 53 bits. */
static double uniform(const sample_params *params, uint32_t position) {
  uint32_t counter[4] = {position, params->choice, 0, 0}, bits[4];
  uint32_t key[2] = {(uint32_t)params->seed, (uint32_t)(params->seed >> 32)};
  sample_philox(counter, key, bits);
  return (double)(((uint64_t)bits[1] << 32 | bits[0]) >> 11) * 0x1p-53;
}

/* --- passes over all logits --- */

/* exp(x) for x <= 0 within 2 ulp; 0 below -87. No branch and no call, so that loops over it become
 * vectors. The polynomial is the Taylor series to degree 7, whose error on |r| <= ln2 / 2 is below
 * 2^-26. */
static inline float exp_negative(float x) {
  float clamped = x > -87.0f ? x : -87.0f;
  float t =
      clamped * 0x1.715476p+0f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer in the low bits */
  float n = t - 12582912.0f;
  float r = clamped - n * 0x1.62e4p-1f; /* n * LN2_HI is exact */
  r = r - n * 0x1.7f7d1cp-20f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  int32_t bits, power;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&power, &t, sizeof power);
  bits += (int32_t)((uint32_t)power << 23);
  memcpy(&p, &bits, sizeof p);
  return x > -87.0f ? p : 0.0f;
}

/* Sum of exp((x - max) / temperature). */
static double weight_sum(const float *x, uint32_t n, float max, float temperature) {
  double lane[LANES] = {0}, sum = 0;
  uint32_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    float w[LANES];
    for (int j = 0; j < LANES; j++) w[j] = exp_negative((x[i + j] - max) / temperature);
    for (int j = 0; j < LANES; j++) lane[j] += (double)w[j];
  }
  for (; i < n; i++) lane[i % LANES] += (double)exp_negative((x[i] - max) / temperature);
  for (int j = 0; j < LANES; j++) sum += lane[j];
  return sum;
}

static float plain_max(const float *x, uint32_t n) {
  float lane[LANES];
  uint32_t wrong[LANES] = {0}, any = 0, i = 0;
  for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
  for (; i + LANES <= n; i += LANES) {
    for (int j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; j < LANES; j++) wrong[j] |= x[i + j] != x[i + j];
  }
  for (; i < n; i++) {
    lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    any |= x[i] != x[i];
  }
  for (int j = 0; j < LANES; j++) {
    any |= wrong[j];
    lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
  }
  return any ? NAN : lane[0];
}

static float maximum(const sample_kernels *kernels, const float *x, uint32_t n) {
  return kernels && kernels->vec_max ? kernels->vec_max(x, n) : plain_max(x, n);
}

static uint32_t first_equal(const float *x, uint32_t n, float value) {
  uint32_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint32_t found = 0;
    for (uint32_t j = 0; j < 64; j++) found |= x[i + j] == value;
    if (found) break;
  }
  while (i < n && x[i] != value) i++;
  CHECK(i < n);
  return i;
}

/* --- candidates in order --- */

/* Ascending in this key is descending in x; adding 0 makes -0 equal to 0. */
static inline uint32_t descending_key(float x) {
  uint32_t bits;
  x += 0.0f;
  memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

static inline uint64_t entry_of(float x, uint32_t id) {
  return (uint64_t)descending_key(x) << 32 | id;
}

/* Entries come in ascending id, and every step is stable or compares whole entries. */
static void entries_sort(uint64_t *entries, uint64_t *spare, uint32_t n) {
  if (n <= SORT_SMALL) {
    for (uint32_t i = 1; i < n; i++) {
      uint64_t e = entries[i];
      uint32_t j = i;
      for (; j > 0 && entries[j - 1] > e; j--) entries[j] = entries[j - 1];
      entries[j] = e;
    }
    return;
  }
  uint64_t *from = entries, *to = spare;
  for (int shift = 32; shift < 64; shift += 8) {
    uint32_t start[256] = {0}, at = 0;
    for (uint32_t i = 0; i < n; i++) start[from[i] >> shift & 255]++;
    if (start[from[0] >> shift & 255] == n) continue; /* all alike here */
    for (int b = 0; b < 256; b++) {
      uint32_t size = start[b];
      start[b] = at;
      at += size;
    }
    for (uint32_t i = 0; i < n; i++) to[start[from[i] >> shift & 255]++] = from[i];
    uint64_t *swap = from;
    from = to;
    to = swap;
  }
  if (from != entries) memcpy(entries, from, n * sizeof *entries);
}

/* The best k of x, sorted, into entries; fewer if others are -Inf. */
static uint32_t entries_best(const scratch_parts *s, const float *x, uint32_t n, uint32_t k) {
  uint32_t *histogram = s->histogram, high = 0, low = 0, before = 0, m = 0;
  if (k > n) k = n;
  if (k == 0) return 0;
  memset(histogram, 0, BUCKETS * sizeof *histogram);
  for (uint32_t i = 0; i < n; i++) histogram[descending_key(x[i]) >> (32 - BUCKET_BITS)]++;
  while (before + histogram[high] < k) before += histogram[high++];
  memset(histogram, 0, BUCKETS * sizeof *histogram);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t key = descending_key(x[i]);
    if (key >> (32 - BUCKET_BITS) == high)
      histogram[key >> (32 - 2 * BUCKET_BITS) & (BUCKETS - 1)]++;
  }
  while (before + histogram[low] < k) before += histogram[low++];
  uint32_t last = high << BUCKET_BITS | low;
  for (uint32_t i = 0; i < n; i++)
    if (descending_key(x[i]) >> (32 - 2 * BUCKET_BITS) <= last && x[i] > -INFINITY)
      s->entries[m++] = entry_of(x[i], i);
  entries_sort(s->entries, s->spare, m);
  return m < k ? m : k;
}

/* All of x from `least` up, unsorted, by ascending id. */
static uint32_t entries_from(const scratch_parts *s, const float *x, uint32_t n, float least) {
  uint32_t m = 0;
  for (uint32_t i = 0; i < n; i++)
    if (x[i] >= least) s->entries[m++] = entry_of(x[i], i);
  return m;
}

/* --- bias and penalties --- */

static bool changes_logits(const sample_params *p) {
  return p->allowed || p->bias_n || p->repeat_penalty != 1.0f || p->frequency_penalty != 0 ||
         p->presence_penalty != 0;
}

static void apply_allowed(const uint32_t *allowed, float *logits, uint32_t vocab) {
  for (uint32_t i = 0; i < vocab; i += 32) {
    uint32_t word = allowed[i / 32], n = vocab - i < 32 ? vocab - i : 32;
    if (word == UINT32_MAX) continue;
    for (uint32_t j = 0; j < n; j++) logits[i + j] = word >> j & 1 ? logits[i + j] : -INFINITY;
  }
}

static void apply_bias(const sample_params *p, float *logits, uint32_t vocab) {
  for (uint32_t i = 0; i < p->bias_n; i++) {
    uint32_t id = (uint32_t)p->bias[i].token;
    if (id >= vocab) continue;
    logits[id] = p->bias[i].bias <= BIAS_FORBIDS ? -INFINITY : logits[id] + p->bias[i].bias;
  }
}

static void apply_repeat(const sample_params *p, const sample_history *h, uint32_t *count,
                         float *logits, uint32_t vocab) {
  uint32_t begin = h->n > p->repeat_last ? h->n - p->repeat_last : 0;
  for (uint32_t i = begin; i < h->n; i++)
    if ((uint32_t)h->tokens[i] < vocab) count[h->tokens[i]] = 0;
  for (uint32_t i = begin; i < h->n; i++) {
    uint32_t id = (uint32_t)h->tokens[i];
    if (id >= vocab || count[id]++) continue;
    logits[id] = logits[id] > 0 ? logits[id] / p->repeat_penalty : logits[id] * p->repeat_penalty;
  }
}

static void apply_counts(const sample_params *p, const sample_history *h, uint32_t *count,
                         float *logits, uint32_t vocab) {
  for (uint32_t i = h->prompt_n; i < h->n; i++)
    if ((uint32_t)h->tokens[i] < vocab) count[h->tokens[i]] = 0;
  for (uint32_t i = h->prompt_n; i < h->n; i++)
    if ((uint32_t)h->tokens[i] < vocab) count[h->tokens[i]]++;
  for (uint32_t i = h->prompt_n; i < h->n; i++) {
    uint32_t id = (uint32_t)h->tokens[i];
    if (id >= vocab || !count[id]) continue;
    logits[id] -= (float)count[id] * p->frequency_penalty + p->presence_penalty;
    count[id] = 0;
  }
}

static void apply_changes(const sample_params *p, const sample_history *h, uint32_t *count,
                          float *logits, uint32_t vocab) {
  if (p->allowed) apply_allowed(p->allowed, logits, vocab);
  apply_bias(p, logits, vocab);
  if (p->repeat_penalty != 1.0f) apply_repeat(p, h, count, logits, vocab);
  if (p->frequency_penalty != 0 || p->presence_penalty != 0)
    apply_counts(p, h, count, logits, vocab);
}

/* --- the draw --- */

/* Weights of the first n entries, in spare (which the sort no longer needs); *sum in entry order.
 */
static float *weights_of(const scratch_parts *s, const float *x, uint32_t n, float max,
                         float temperature, double *sum) {
  float *w = (float *)s->spare;
  double total = 0;
  for (uint32_t i = 0; i < n; i++) {
    w[i] = exp_negative((x[(uint32_t)s->entries[i]] - max) / temperature);
    total += (double)w[i];
  }
  *sum = total;
  return w;
}

/* How many of the sorted weights stay: up to the one with which their sum reaches `mass`, and none
 * below min_p of the best, whose weight is 1. `closed`: one of the two ended it, so more candidates
 * would change nothing. */
static uint32_t weights_kept(const float *w, uint32_t n, double mass, float min_p, bool *closed,
                             double *sum) {
  double total = 0;
  uint32_t i = 0;
  *closed = false;
  while (i < n && !*closed) {
    if (i > 0 && w[i] < min_p) {
      *closed = true;
    } else {
      total += (double)w[i++];
      *closed = total >= mass;
    }
  }
  *sum = total;
  return i;
}

static uint32_t draw(const scratch_parts *s, const float *w, uint32_t n, double mass) {
  double total = 0;
  uint32_t i = 0, last = 0;
  for (; i < n; i++) {
    total += (double)w[i];
    if (w[i] > 0) last = i;
    if (total > mass) break;
  }
  return (uint32_t)s->entries[last];
}

static uint32_t draw_top_k(const sample_params *p, const scratch_parts *s, const float *x,
                           uint32_t vocab, float max, double u) {
  uint32_t n = entries_best(s, x, vocab, p->top_k);
  double sum, kept_sum;
  bool closed;
  const float *w = weights_of(s, x, n, max, p->temperature, &sum);
  double mass = p->top_p < 1 ? (double)p->top_p * sum : INFINITY;
  uint32_t kept = weights_kept(w, n, mass, p->min_p, &closed, &kept_sum);
  return draw(s, w, kept, u * kept_sum);
}

static uint32_t draw_all(const sample_params *p, const scratch_parts *s, const float *x,
                         uint32_t vocab, float max, double u) {
  bool filtered = p->top_p < 1 || p->min_p > 0, closed = false;
  double mass = INFINITY, sum, kept_sum;
  if (p->top_p < 1 || !filtered) {
    double all = weight_sum(x, vocab, max, p->temperature);
    mass = filtered ? (double)p->top_p * all : u * all;
  }
  for (float depth = 4;; depth *= 2) {
    float least = max - depth * p->temperature;
    bool all = depth > 100 || !(least >= -FLT_MAX);      /* past 87 all weights are 0 */
    bool deep = exp_negative(-depth) < 0.99f * p->min_p; /* whatever min_p keeps is nearer */
    uint32_t n = entries_from(s, x, vocab, all ? -FLT_MAX : least);
    all = all || deep || n == vocab;
    weights_of(s, x, n, max, p->temperature, &sum);
    if (!all && sum < mass * 0.999999) continue; /* not there yet: no need to sort */
    entries_sort(s->entries, s->spare, n);
    const float *w = weights_of(s, x, n, max, p->temperature, &sum);
    uint32_t kept = weights_kept(w, n, mass, p->min_p, &closed, &kept_sum);
    if (closed || all) return draw(s, w, kept, filtered ? u * kept_sum : mass);
  }
}

/* --- all of it --- */

static void report_logprobs(const sample_params *p, const sample_kernels *kernels,
                            const scratch_parts *s, uint32_t vocab, float max, uint32_t token,
                            sample_result *out) {
  double sum = kernels && kernels->vec_sum_exp ? (double)kernels->vec_sum_exp(s->raw, vocab, max)
                                               : weight_sum(s->raw, vocab, max, 1);
  double base = (double)max + log(sum);
  uint32_t wanted = p->top_logprobs < TROIKA_TOP_MAX ? p->top_logprobs : TROIKA_TOP_MAX;
  out->logprob = (float)((double)s->raw[token] - base);
  out->top_n = entries_best(s, s->raw, vocab, wanted);
  for (uint32_t i = 0; i < out->top_n; i++) {
    uint32_t id = (uint32_t)s->entries[i];
    out->top[i] = (troika_top){(int32_t)id, (float)((double)s->raw[id] - base)};
  }
}

troika_status sample_token(const sample_params *params, const sample_history *history,
                           uint32_t position, float *logits, uint32_t vocab,
                           const sample_kernels *kernels, void *scratch, sample_result *out) {
  CHECK(vocab > 0 && vocab <= INT32_MAX && ((uintptr_t)scratch & 63) == 0);
  scratch_parts s = scratch_split(scratch, vocab);
  float max = maximum(kernels, logits, vocab), raw_max = max;
  if (!isfinite(max)) return TROIKA_NUMERIC;
  if (params->logprobs) memcpy(s.raw, logits, vocab * sizeof *logits);
  if (changes_logits(params)) {
    apply_changes(params, history, s.count, logits, vocab);
    max = maximum(kernels, logits, vocab);
    if (max == -INFINITY) return TROIKA_LIMIT;
    if (!isfinite(max)) return TROIKA_NUMERIC; /* a bias overflows */
  }
  uint32_t token;
  if (!(params->temperature >=
        FLT_MIN)) { /* greedy; a denormal would divide 0 by 0 in workers that flush them */
    token = first_equal(logits, vocab, max);
  } else {
    double u = uniform(params, position);
    bool few = params->top_k > 0 && params->top_k < vocab;
    token = few ? draw_top_k(params, &s, logits, vocab, max, u)
                : draw_all(params, &s, logits, vocab, max, u);
  }
  sample_result result = {.token = (int32_t)token};
  if (params->logprobs) report_logprobs(params, kernels, &s, vocab, raw_max, token, &result);
  *out = result;
  return TROIKA_OK;
}
