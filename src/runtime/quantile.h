/* SPDX-License-Identifier: Apache-2.0 */
/* quantile.h - quantiles of the last QUANTILE_WINDOW values of something that is seen now and then,
 * exact, by nearest rank: one outlier never makes a high quantile, and what has passed is forgotten
 * after as many values. Pure; all zero at start. */
#ifndef RUNTIME_QUANTILE_H
#define RUNTIME_QUANTILE_H

#include <stdint.h>

enum { QUANTILE_WINDOW = 128 };

typedef struct quantile {
  uint32_t n, at; /* values held; where the next one goes */
  int64_t values[QUANTILE_WINDOW];
} quantile;

void quantile_add(quantile *q, int64_t value);
/* The least value that is at least as large as so many thousandths of those held; 0: none is. O(n
 * log n). */
int64_t quantile_of(const quantile *q, uint32_t thousandths);

#endif
