/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h - a measured figure against what was wanted of it, one line each:
 *     ok NAME | >= 98.5 | 99.2          not ok NAME | == 0 | 3          ok NAME | <= 3 | 2.1 | 0.4
 * tools/figures.py turns such lines into a report; holds is computed there again, from the numbers.
 */
#ifndef TESTS_FIGURES_H
#define TESTS_FIGURES_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int figures_passed, figures_failed;

/* relation: ">=", "<=" or "==". */
static inline void figure(const char *name, const char *relation, double wanted, double measured) {
  bool holds = !strcmp(relation, ">=")   ? measured >= wanted
               : !strcmp(relation, "<=") ? measured <= wanted
                                         : measured == wanted;
  printf("%s %s | %s %.9g | %.9g\n", holds ? "ok" : "not ok", name, relation, wanted, measured);
  holds ? figures_passed++ : figures_failed++;
}

/* The same with how far apart the runs were: most less least, in the figure's own unit. */
static inline void figure_spread(const char *name, const char *relation, double wanted,
                                 double measured, double spread) {
  bool holds = !strcmp(relation, ">=") ? measured >= wanted : measured <= wanted;
  printf("%s %s | %s %.9g | %.9g | %.9g\n", holds ? "ok" : "not ok", name, relation, wanted,
         measured, spread);
  holds ? figures_passed++ : figures_failed++;
}

static inline int figures_end(void) {
  printf("%d passed, %d failed\n", figures_passed, figures_failed);
  return figures_failed > 0;
}

#endif
