/* support_text.h - what the tests of src/text share: the set-up's files, and tokenizers made from
 * them. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_TEXT_H
#define TESTS_SUPPORT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"
#include "text/tokenizer.h"

/* A file below the cache folder (TROIKA_CACHE, else ~/.cache/troika). Fails the test, with the
 * command that makes the file, if it is not there. The text is static. */
const char *support_path(const char *name);
/* malloc'ed, with a NUL after it. */
char *support_read(const char *path, size_t *len);

typedef enum support_model {
  SUPPORT_SMOLLM2,
  SUPPORT_GEMMA3,
  SUPPORT_LLAMA2,
  SUPPORT_MODELS
} support_model;
/* Made once, kept to the end of the program. */
const tokenizer *support_tokenizer(support_model which);
const gguf *support_file(support_model which);

/* Fails with both lists printed if they differ. */
void support_ids_equal(const char *what, const int32_t *got, size_t got_n, const int32_t *expected,
                       size_t expected_n);
/* Encodes and compares. */
void support_encodes(const tokenizer *t, const char *text, tokenizer_options options,
                     const int32_t *expected, size_t n);
double support_seconds(void);
double support_cpu_seconds(void); /* of this thread */

#endif
