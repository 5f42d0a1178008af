/* SPDX-License-Identifier: Apache-2.0 */
/* rust_error.h - a failure of the Rust side becomes the caller's error; for template.c and
 * grammar.c. */
#ifndef TEXT_RUST_ERROR_H
#define TEXT_RUST_ERROR_H

#include "base/error.h"
#include "text/rust/troika_text_rs.h"

/* Sets `what` and the error's text, which may hold anything (error_set cleans it), frees the text,
 * and returns the status. */
static inline troika_status rs_failed(int status, const char *what, troika_rs_text *error,
                                      troika_error *err) {
  size_t n = error->len < 400 ? error->len : 400;
  error_set(err, (troika_status)status, "%s%.*s", what, (int)n, n ? error->ptr : "");
  troika_rs_text_free(error);
  return (troika_status)status;
}

#endif
