/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - reading fields with the field named in what is wrong, writing JSON text without building
 * a tree.
 *
 * Reading: jansson, strict UTF-8, no duplicate keys, at most 2,048 levels (its own limit). A field
 * that is null counts as absent, as OpenAI's schema says and as clients send. Readers leave *out
 * alone when the field is absent and answer false when it is wrong, with `failure` filled in.
 * Writing: straight into a bytes_buffer, because one chunk per token through a tree would cost more
 * than the token's own work in HTTP. */
#ifndef API_JSON_H
#define API_JSON_H

#include <jansson.h>

#include "api/failure.h"
#include "base/bytes.h"

/* The body as an object, or NULL. Owned: json_decref. */
json_t *api_json_parse(bytes_view body, api_failure *failure);

/* The field; NULL if it is absent or null. */
const json_t *api_json_field(const json_t *object, const char *name);
/* True if no value is nested deeper than `levels`. */
bool api_json_shallow(const json_t *value, unsigned levels);
/* True for the string `text` and nothing after it: a NUL hides no tail. */
bool api_json_is(const json_t *value, const char *text);
bool api_json_number(const json_t *object, const char *name, double min, double max, double *out,
                     api_failure *failure);
bool api_json_integer(const json_t *object, const char *name, int64_t min, int64_t max,
                      int64_t *out, api_failure *failure);
bool api_json_bool(const json_t *object, const char *name, bool *out, api_failure *failure);
/* Fails with "<name> must be <what>, not <type>". Always false. */
bool api_json_wrong(const char *name, const char *what, const json_t *got, api_failure *failure);

/* "text", quoted and escaped; wrong UTF-8 becomes U+FFFD. */
void api_json_put_string(bytes_buffer *out, const char *text, size_t len);
/* A finite number; what JSON cannot say becomes -9999 (as OpenAI writes an impossible token's
 * logprob). */
void api_json_put_number(bytes_buffer *out, double value);

#endif
