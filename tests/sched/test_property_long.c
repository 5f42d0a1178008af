/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: long
 * As test_property.c, ten million steps, from other seeds. */
#include "sched/support_property.h"

int main(int argc, char **argv) {
  char *all[16] = {argv[0], "--first", "1000001"};
  int n = 3;
  for (int i = 1; i < argc && n < 16; i++) all[n++] = argv[i];
  return property_main(n, all, 10000000);
}
