/* support_json.h - a strict reader of JSON and a small validator of JSON schemas, written apart
 * from what they judge. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_JSON_H
#define TESTS_SUPPORT_JSON_H

#include <stdbool.h>
#include <stddef.h>

typedef enum json_type {
  JSON_NULL,
  JSON_BOOLEAN,
  JSON_NUMBER,
  JSON_STRING,
  JSON_ARRAY,
  JSON_OBJECT
} json_type;

typedef struct json {
  json_type type;
  double number; /* also 0 or 1 of a boolean */
  char *text;    /* a string's bytes, with a NUL after them */
  size_t len;
  struct json **item; /* of arrays and objects */
  char **key;         /* of objects; later ones of the same name replace earlier ones */
  size_t n;
} json;

/* NULL if the text is not exactly one value, by the letter. *blanks, if not NULL: the longest run
 * of blanks between the parts of the value. */
json *json_read(const char *text, size_t len, size_t *blanks);
void json_free(json *v);
const json *json_get(const json *object, const char *key);

/* "" if the value fits, else the keyword that it breaks. Knows what the schemas of the tests use;
 * fails the test for a keyword that it does not know. */
const char *json_misfit(const json *value, const json *schema, const json *root);

#endif
