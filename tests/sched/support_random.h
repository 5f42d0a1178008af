/* SPDX-License-Identifier: Apache-2.0 */
/* support_random.h - xoshiro256**, one stream for each quantity of a workload, so that changing one
 * quantity leaves the draws of all others alone. Source: scheduling.md 10. */
#ifndef TESTS_SCHED_SUPPORT_RANDOM_H
#define TESTS_SCHED_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct sim_random {
  uint64_t s[4];
} sim_random;

/* splitmix64(seed xor hash(name)) */
void sim_random_seed(sim_random *r, uint64_t seed, const char *name);
uint64_t sim_random_next(sim_random *r);
uint32_t sim_random_below(sim_random *r, uint32_t n); /* n > 0 */
uint32_t sim_random_between(sim_random *r, uint32_t least, uint32_t most);
double sim_random_unit(sim_random *r);                     /* [0, 1) */
double sim_random_exponential(sim_random *r, double mean); /* own ln: libm differs by system */

#endif
