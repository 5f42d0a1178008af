/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/support_random.h"

static uint64_t splitmix(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

void sim_random_seed(sim_random *r, uint64_t seed, const char *name) {
  uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
  for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001B3u;
  uint64_t state = seed ^ hash;
  for (int i = 0; i < 4; i++) r->s[i] = splitmix(&state);
}

static uint64_t rotl(uint64_t x, int k) {
  return x << k | x >> (64 - k);
}

uint64_t sim_random_next(sim_random *r) {
  uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotl(s[3], 45);
  return result;
}

uint32_t sim_random_below(sim_random *r, uint32_t n) {
  return (uint32_t)((sim_random_next(r) >> 32) * n >> 32);
}

uint32_t sim_random_between(sim_random *r, uint32_t least, uint32_t most) {
  return least + sim_random_below(r, most - least + 1);
}

double sim_random_unit(sim_random *r) {
  return (double)(sim_random_next(r) >> 11) * 0x1p-53;
}

/* ln x for x in (0, 1]: x = m * 2^e with m in [sqrt(1/2), sqrt 2), ln m by the series of atanh. */
static double ln(double x) {
  int e = 0;
  while (x < 0.70710678118654752) x *= 2, e--;
  double y = (x - 1) / (x + 1), y2 = y * y, sum = 0, power = y;
  for (int k = 1; k < 24; k += 2, power *= y2) sum += power / k;
  return 2 * sum + e * 0.69314718055994531;
}

double sim_random_exponential(sim_random *r, double mean) {
  return -mean * ln(1 - sim_random_unit(r));
}
