/* SPDX-License-Identifier: Apache-2.0 */
/* The assertion file: the only place under src/ that ends the process. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *file, int line, const char *function, const char *condition) {
  fprintf(stderr, "troika: internal error at %s:%d in %s: %s\n", file, line, function, condition);
  abort();
}
