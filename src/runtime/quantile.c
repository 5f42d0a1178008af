/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/quantile.h"

#include <stdlib.h>
#include <string.h>

void quantile_add(quantile *q, int64_t value) {
  q->values[q->at] = value;
  q->at = (q->at + 1) % QUANTILE_WINDOW;
  if (q->n < QUANTILE_WINDOW) q->n++;
}

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int64_t quantile_of(const quantile *q, uint32_t thousandths) {
  int64_t sorted[QUANTILE_WINDOW];
  if (!q->n) return 0;
  memcpy(sorted, q->values, q->n * sizeof *sorted);
  qsort(sorted, q->n, sizeof *sorted, by_value);
  uint32_t rank = (uint32_t)(((uint64_t)q->n * thousandths + 999) / 1000);
  return sorted[rank ? (rank <= q->n ? rank : q->n) - 1 : 0];
}
