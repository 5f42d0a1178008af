/* SPDX-License-Identifier: Apache-2.0 */
/* support_property.h - runs of support_sim.h, random and directed, and their figures. */
#ifndef TESTS_SCHED_SUPPORT_PROPERTY_H
#define TESTS_SCHED_SUPPORT_PROPERTY_H

#include <stdint.h>

/* main of a property test: `steps` random steps, then the directed runs. Arguments: --steps N,
 * --seed S (that episode alone; --from A --to B: and prints the actions of these steps), --first S
 * (where random episodes begin). Prints a table and a
 * figure for each invariant (tests/figures.h); returns the exit code. */
int property_main(int argc, char **argv, uint64_t steps);

#endif
