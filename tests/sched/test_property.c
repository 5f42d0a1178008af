/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: slow
 * The invariants of scheduling.md 12 on a million random steps of the policy: one CPU that stops
 * between panels, and a pair of processors with tables of their own. See support_sim.h.
 *   --seed S   runs that episode alone, as a failure names it */
#include "sched/support_property.h"

int main(int argc, char **argv) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return property_main(argc, argv, 200000);
#else
  return property_main(argc, argv, 1000000);
#endif
}
