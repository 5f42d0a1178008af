/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/support_json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pcre2.h>

#include "base/bytes.h"

/* ---- reading ---- */

typedef struct reader {
  const char *at, *end;
  size_t blanks;
} reader;

static json *read_value(reader *r, int depth);

static void blanks_skip(reader *r) {
  const char *from = r->at;
  while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at) r->at++;
  if ((size_t)(r->at - from) > r->blanks) r->blanks = (size_t)(r->at - from);
}

static bool take(reader *r, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
  r->at += n;
  return true;
}

static json *node(json_type type) {
  json *v = calloc(1, sizeof *v);
  assert_non_null(v);
  v->type = type;
  return v;
}

void json_free(json *v) {
  if (!v) return;
  for (size_t i = 0; i < v->n; i++) {
    json_free(v->item[i]);
    if (v->key) free(v->key[i]);
  }
  free(v->item);
  free(v->key);
  free(v->text);
  free(v);
}

static bool hex4(reader *r, unsigned *out) {
  char digits[5] = {0}, *end;
  if (r->end - r->at < 4) return false;
  memcpy(digits, r->at, 4);
  for (int i = 0; i < 4; i++)
    if (!strchr("0123456789abcdefABCDEF", digits[i])) return false;
  *out = (unsigned)strtoul(digits, &end, 16);
  r->at += 4;
  return true;
}

static size_t put_utf8(char *out, unsigned c) {
  if (c < 0x80) return out[0] = (char)c, 1;
  if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
  size_t n = c < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 63));
  out[0] = (char)((n == 3 ? 0xe0 : 0xf0) | c);
  return n;
}

static bool read_escape(reader *r, json *v) {
  static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
  char c = r->at < r->end ? *r->at++ : 0;
  const char *letter = c ? strchr(letters, c) : NULL;
  if (letter) {
    v->text[v->len++] = bytes[letter - letters];
    return true;
  }
  unsigned code, low;
  if (c != 'u' || !hex4(r, &code)) return false;
  if (code >= 0xdc00 && code < 0xe000) return false;
  if (code >= 0xd800 && code < 0xdc00) {
    if (!take(r, "\\u") || !hex4(r, &low) || low < 0xdc00 || low >= 0xe000) return false;
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  v->len += put_utf8(v->text + v->len, code);
  return true;
}

static json *read_string(reader *r) {
  if (!take(r, "\"")) return NULL;
  json *v = node(JSON_STRING);
  v->text = calloc(1, (size_t)(r->end - r->at) + 1);
  assert_non_null(v->text);
  bool ok = true;
  while (ok && r->at < r->end && *r->at != '"') {
    if (*r->at == '\\') {
      r->at++;
      ok = read_escape(r, v);
    } else {
      ok = (unsigned char)*r->at >= 0x20;
      v->text[v->len++] = *r->at++;
    }
  }
  if (ok && take(r, "\"")) return v;
  json_free(v);
  return NULL;
}

static size_t digits(reader *r) {
  const char *from = r->at;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
  return (size_t)(r->at - from);
}

static json *read_number(reader *r) {
  const char *from = r->at;
  take(r, "-");
  bool ok = take(r, "0") || digits(r) > 0;
  if (ok && take(r, ".")) ok = digits(r) > 0;
  if (ok && (take(r, "e") || take(r, "E"))) {
    if (!take(r, "+")) take(r, "-");
    ok = digits(r) > 0;
  }
  if (!ok) return NULL;
  json *v = node(JSON_NUMBER);
  v->text = strndup(from, (size_t)(r->at - from));
  v->number = strtod(v->text, NULL);
  return v;
}

static void append(json *v, json *item, char *key) {
  for (size_t i = 0; key && i < v->n; i++)
    if (strcmp(v->key[i], key) == 0) {
      json_free(v->item[i]);
      free(key);
      v->item[i] = item;
      return;
    }
  v->item = realloc(v->item, (v->n + 1) * sizeof(json *));
  if (v->type == JSON_OBJECT) {
    v->key = realloc(v->key, (v->n + 1) * sizeof(char *));
    v->key[v->n] = key;
  }
  v->item[v->n++] = item;
}

static json *read_many(reader *r, json_type type, int depth) {
  const char *close = type == JSON_ARRAY ? "]" : "}";
  json *v = node(type);
  blanks_skip(r);
  if (take(r, close)) return v;
  for (;;) {
    char *key = NULL;
    blanks_skip(r);
    if (type == JSON_OBJECT) {
      json *name = read_string(r);
      if (!name) break;
      key = name->text;
      name->text = NULL;
      json_free(name);
      blanks_skip(r);
      if (!take(r, ":")) {
        free(key);
        break;
      }
      blanks_skip(r);
    }
    json *item = read_value(r, depth + 1);
    if (!item) {
      free(key);
      break;
    }
    append(v, item, key);
    blanks_skip(r);
    if (take(r, close)) return v;
    if (!take(r, ",")) break;
  }
  json_free(v);
  return NULL;
}

static json *read_value(reader *r, int depth) {
  if (r->at == r->end || depth > 2000) return NULL;
  if (*r->at == '"') return read_string(r);
  if (take(r, "[")) return read_many(r, JSON_ARRAY, depth);
  if (take(r, "{")) return read_many(r, JSON_OBJECT, depth);
  if (take(r, "null")) return node(JSON_NULL);
  bool yes = take(r, "true");
  if (yes || take(r, "false")) {
    json *v = node(JSON_BOOLEAN);
    v->number = yes;
    return v;
  }
  return read_number(r);
}

json *json_read(const char *text, size_t len, size_t *blanks) {
  if (utf8_valid_prefix(text, len, NULL) != len) return NULL;
  reader r = {.at = text, .end = text + len};
  blanks_skip(&r);
  json *v = read_value(&r, 0);
  blanks_skip(&r);
  if (blanks) *blanks = r.blanks;
  if (v && r.at == r.end) return v;
  json_free(v);
  return NULL;
}

const json *json_get(const json *object, const char *key) {
  for (size_t i = 0; object && object->type == JSON_OBJECT && i < object->n; i++)
    if (strcmp(object->key[i], key) == 0) return object->item[i];
  return NULL;
}

/* ---- validating ---- */

static bool equal(const json *a, const json *b) {
  if (a->type != b->type) return false;
  if (a->type == JSON_STRING) return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
  if (a->type == JSON_NUMBER || a->type == JSON_BOOLEAN) return a->number == b->number;
  if (a->n != b->n) return false;
  for (size_t i = 0; i < a->n; i++) {
    const json *other = a->type == JSON_OBJECT ? json_get(b, a->key[i]) : b->item[i];
    if (!other || !equal(a->item[i], other)) return false;
  }
  return true;
}

static bool has_type(const json *v, const json *name) {
  static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
  for (size_t i = 0; name->type == JSON_ARRAY && i < name->n; i++)
    if (has_type(v, name->item[i])) return true;
  if (name->type != JSON_STRING) return false;
  if (strcmp(name->text, "integer") == 0)
    return v->type == JSON_NUMBER && floor(v->number) == v->number;
  return strcmp(name->text, names[v->type]) == 0;
}

static size_t characters(const json *v) {
  size_t n = 0;
  for (size_t i = 0; i < v->len; i++) n += ((unsigned char)v->text[i] & 0xc0) != 0x80;
  return n;
}

static bool matches(const char *pattern, const char *text, size_t len) {
  int code;
  PCRE2_SIZE place;
  pcre2_code *rx = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &place, NULL);
  if (!rx) fail_msg("pattern %s", pattern);
  pcre2_match_data *data = pcre2_match_data_create_from_pattern(rx, NULL);
  int found = pcre2_match(rx, (PCRE2_SPTR)text, len, 0, 0, data, NULL);
  pcre2_match_data_free(data);
  pcre2_code_free(rx);
  return found >= 0;
}

static const json *follow(const json *root, const char *reference) {
  const json *at = root;
  if (strcmp(reference, "#") == 0) return root;
  assert_true(strncmp(reference, "#/", 2) == 0);
  for (const char *p = reference + 2; at && *p;) {
    char token[128];
    size_t n = strcspn(p, "/");
    snprintf(token, sizeof token, "%.*s", (int)n, p);
    at = at->type == JSON_ARRAY ? at->item[strtoul(token, NULL, 10)] : json_get(at, token);
    p += n + (p[n] == '/');
  }
  assert_non_null(at);
  return at;
}

static size_t how_many_fit(const json *v, const json *list, const json *root) {
  size_t n = 0;
  for (size_t i = 0; i < list->n; i++) n += json_misfit(v, list->item[i], root)[0] == 0;
  return n;
}

static bool count_ok(const char *key, double limit, const json *v) {
  double n = (double)v->n;
  if (strstr(key, "Items") && v->type != JSON_ARRAY) return true;
  if (strstr(key, "Properties") && v->type != JSON_OBJECT) return true;
  return key[1] == 'i' ? n >= limit : n <= limit;
}

static bool length_ok(const char *key, double limit, const json *v) {
  double n = v->type == JSON_STRING ? (double)characters(v) : limit;
  return key[1] == 'i' ? n >= limit : n <= limit;
}

static bool number_ok(const char *key, double limit, const json *v) {
  if (v->type != JSON_NUMBER) return true;
  if (strcmp(key, "minimum") == 0) return v->number >= limit;
  if (strcmp(key, "maximum") == 0) return v->number <= limit;
  if (strcmp(key, "exclusiveMinimum") == 0) return v->number > limit;
  if (strcmp(key, "exclusiveMaximum") == 0) return v->number < limit;
  return fabs(v->number / limit - round(v->number / limit)) < 1e-6;
}

/* properties, patternProperties, additionalProperties: all in one pass over the members. */
static const char *members_misfit(const json *v, const json *schema, const json *root) {
  const json *named = json_get(schema, "properties");
  const json *patterned = json_get(schema, "patternProperties");
  const json *others = json_get(schema, "additionalProperties");
  for (size_t i = 0; i < v->n; i++) {
    const json *own = json_get(named, v->key[i]);
    bool known = own != NULL;
    const char *why = own ? json_misfit(v->item[i], own, root) : "";
    for (size_t p = 0; patterned && p < patterned->n && !why[0]; p++)
      if (matches(patterned->key[p], v->key[i], strlen(v->key[i]))) {
        known = true;
        why = json_misfit(v->item[i], patterned->item[p], root);
      }
    if (!known && others) why = json_misfit(v->item[i], others, root);
    if (why[0]) return why;
  }
  return "";
}

static const char *items_misfit(const json *v, const json *schema, const json *root) {
  const json *first = json_get(schema, "prefixItems"), *rest = json_get(schema, "items");
  for (size_t i = 0; i < v->n; i++) {
    const json *own = first && i < first->n ? first->item[i] : rest;
    const char *why = own ? json_misfit(v->item[i], own, root) : "";
    if (why[0]) return why;
  }
  return "";
}

static bool required_ok(const json *v, const json *list) {
  for (size_t i = 0; v->type == JSON_OBJECT && i < list->n; i++)
    if (!json_get(v, list->item[i]->text)) return false;
  return true;
}

static bool enum_ok(const json *v, const json *list) {
  for (size_t i = 0; i < list->n; i++)
    if (equal(v, list->item[i])) return true;
  return false;
}

static bool keyword_ok(const char *key, const json *is, const json *v, const json *root) {
  static const char *const ignored[] = {
      "$defs", "definitions", "title",   "properties", "patternProperties", "additionalProperties",
      "items", "prefixItems", "$schema", "format",     "description"};
  for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
    if (strcmp(key, ignored[i]) == 0) return true;
  if (strcmp(key, "type") == 0) return has_type(v, is);
  if (strcmp(key, "const") == 0) return equal(v, is);
  if (strcmp(key, "enum") == 0) return enum_ok(v, is);
  if (strcmp(key, "required") == 0) return required_ok(v, is);
  if (strcmp(key, "pattern") == 0)
    return v->type != JSON_STRING || matches(is->text, v->text, v->len);
  if (strcmp(key, "anyOf") == 0) return how_many_fit(v, is, root) > 0;
  if (strcmp(key, "allOf") == 0) return how_many_fit(v, is, root) == is->n;
  if (strcmp(key, "oneOf") == 0) return how_many_fit(v, is, root) == 1;
  if (strcmp(key, "$ref") == 0) return !json_misfit(v, follow(root, is->text), root)[0];
  if (strstr(key, "Length")) return length_ok(key, is->number, v);
  if (strstr(key, "Items") || strstr(key, "Properties")) return count_ok(key, is->number, v);
  if (strstr(key, "imum") || strcmp(key, "multipleOf") == 0) return number_ok(key, is->number, v);
  fail_msg("support_json.c does not know %s", key);
  return false;
}

const char *json_misfit(const json *v, const json *schema, const json *root) {
  if (schema->type == JSON_BOOLEAN) return schema->number != 0 ? "" : "false";
  assert_int_equal(schema->type, JSON_OBJECT);
  for (size_t i = 0; i < schema->n; i++)
    if (!keyword_ok(schema->key[i], schema->item[i], v, root)) return schema->key[i];
  if (v->type == JSON_OBJECT) return members_misfit(v, schema, root);
  return v->type == JSON_ARRAY ? items_misfit(v, schema, root) : "";
}
