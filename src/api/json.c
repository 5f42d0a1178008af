/* SPDX-License-Identifier: Apache-2.0 */
#include "api/json.h"

#include <math.h>
#include <string.h>

static const char *type_name(const json_t *value) {
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return "an object";
    case JSON_ARRAY:
      return "an array";
    case JSON_STRING:
      return "a string";
    case JSON_INTEGER:
      return "an integer";
    case JSON_REAL:
      return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
      return "a boolean";
    default:
      return "null";
  }
}

json_t *api_json_parse(bytes_view body, api_failure *failure) {
  size_t good = utf8_valid_prefix(body.ptr, body.len, NULL);
  json_error_t error;
  if (body.len == 0) {
    api_failure_set(failure, NULL, "the body is empty: a JSON object is expected");
    return NULL;
  }
  if (good < body.len) {
    api_failure_set(failure, NULL, "the body is not valid UTF-8 at byte %zu", good);
    return NULL;
  }
  json_t *root = json_loadb(body.ptr, body.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (!root) {
    api_failure_set(failure, NULL, "the body is not JSON: line %d, column %d: %s", error.line,
                    error.column, error.text);
    return NULL;
  }
  if (!json_is_object(root)) {
    api_failure_set(failure, NULL, "the body must be a JSON object, not %s", type_name(root));
    json_decref(root);
    return NULL;
  }
  return root;
}

const json_t *api_json_field(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return value && !json_is_null(value) ? value : NULL;
}

bool api_json_shallow(const json_t *value, unsigned levels) {
  const char *key;
  json_t *item,
      *map = (json_t *)(uintptr_t)value; /* jansson's walk takes no const; nothing is changed */
  size_t i;
  if (!json_is_object(value) && !json_is_array(value)) return true;
  if (levels == 0) return false;
  json_array_foreach(value, i, item) if (!api_json_shallow(item, levels - 1)) return false;
  json_object_foreach(map, key, item) if (!api_json_shallow(item, levels - 1)) return false;
  return true;
}

bool api_json_is(const json_t *value, const char *text) {
  return json_is_string(value) && json_string_length(value) == strlen(text) &&
         !strcmp(json_string_value(value), text);
}

bool api_json_wrong(const char *name, const char *what, const json_t *got, api_failure *failure) {
  return api_failure_set(failure, name, "%s must be %s, not %s", name, what,
                         got ? type_name(got) : "absent");
}

bool api_json_number(const json_t *object, const char *name, double min, double max, double *out,
                     api_failure *failure) {
  const json_t *value = api_json_field(object, name);
  if (!value) return true;
  if (!json_is_number(value)) return api_json_wrong(name, "a number", value, failure);
  double v = json_number_value(value);
  if (!(v >= min && v <= max))
    return api_failure_set(failure, name, "%s is %g, allowed is %g to %g", name, v, min, max);
  *out = v;
  return true;
}

bool api_json_integer(const json_t *object, const char *name, int64_t min, int64_t max,
                      int64_t *out, api_failure *failure) {
  const json_t *value = api_json_field(object, name);
  if (!value) return true;
  double real = json_real_value(value); /* 1.0 is an integer too, as JSON Schema counts */
  bool whole = json_is_real(value) && real == floor(real) && fabs(real) < 0x1p53;
  if (!json_is_integer(value) && !whole) return api_json_wrong(name, "an integer", value, failure);
  int64_t v = whole ? (int64_t)real : json_integer_value(value);
  if (v < min || v > max)
    return api_failure_set(failure, name, "%s is %lld, allowed is %lld to %lld", name, (long long)v,
                           (long long)min, (long long)max);
  *out = v;
  return true;
}

bool api_json_bool(const json_t *object, const char *name, bool *out, api_failure *failure) {
  const json_t *value = api_json_field(object, name);
  if (!value) return true;
  if (!json_is_boolean(value)) return api_json_wrong(name, "a boolean", value, failure);
  *out = json_is_true(value);
  return true;
}

static void put_escape(bytes_buffer *out, unsigned char c) {
  static const char letters[] = "btn\0fr"; /* 0x08 to 0x0d */
  if (c == '"' || c == '\\')
    bytes_append_format(out, "\\%c", c);
  else if (c >= 0x08 && c <= 0x0d && letters[c - 8])
    bytes_append_format(out, "\\%c", letters[c - 8]);
  else
    bytes_append_format(out, "\\u%04x", c);
}

void api_json_put_string(bytes_buffer *out, const char *text, size_t len) {
  bytes_append(out, "\"", 1);
  while (len) {
    size_t good = utf8_valid_prefix(text, len, NULL), from = 0;
    for (size_t i = 0; i < good; i++) {
      unsigned char c = (unsigned char)text[i];
      if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
      bytes_append(out, text + from, i - from);
      put_escape(out, c);
      from = i + 1;
    }
    bytes_append(out, text + from, good - from);
    if (good < len) { /* one U+FFFD for each wrong byte */
      bytes_append_string(out, "\xEF\xBF\xBD");
      good++;
    }
    text += good;
    len -= good;
  }
  bytes_append(out, "\"", 1);
}

void api_json_put_number(bytes_buffer *out, double value) {
  if (!isfinite(value)) value = -9999;
  bytes_append_format(out, "%.9g", value);
}
