/* fuzz_gguf.c - libFuzzer target: any bytes either are refused with a clean text or can be read
 * throughout.
 *
 *   build/fuzz/tests/fuzz_gguf NEW_INPUTS tests/fuzz/corpus/gguf
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>

#include "gguf/walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static volatile uint64_t kept; /* so that no read is optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  gguf *file = NULL;
  troika_error err = {0};
  troika_status status = gguf_open_memory(data, len, &file, &err);
  if (status) {
    if (file || err.status != status || !err.text[0]) abort();
    for (const char *p = err.text; *p; p++) {
      if (*p < ' ' || *p > '~') abort();
    }
    return 0;
  }
  kept = walk_file(file);
  gguf_close(&file);
  return 0;
}
