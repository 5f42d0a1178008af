/* SPDX-License-Identifier: Apache-2.0 */
/* response_format: what the answer must be. OpenAI's three types, and its shape of a grammar
 * ("syntax" and "definition", as in custom tools) as a fourth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "api/request.h"

enum { PATH_BYTES_MAX = 200 };

typedef struct strict_walk {
  char path[PATH_BYTES_MAX + 64];
  api_failure *failure;
} strict_walk;

static bool walk(strict_walk *w, const json_t *schema);

/* One step down, and back. Paths longer than fits stay at what fits. */
static bool walk_step(strict_walk *w, const json_t *schema, const char *step, size_t index,
                      bool numbered) {
  size_t len = strlen(w->path);
  if (len < PATH_BYTES_MAX)
    numbered ? snprintf(w->path + len, sizeof w->path - len, "[%zu]", index)
             : snprintf(w->path + len, sizeof w->path - len, ".%.50s", step);
  bool ok = walk(w, schema);
  w->path[len] = 0;
  return ok;
}

/* What of a schema holds schemas: under names, in a list, or itself. */
static bool walk_member(strict_walk *w, const char *key, const json_t *value) {
  static const char *const maps[] = {"properties", "$defs", "definitions", "patternProperties"};
  static const char *const lists[] = {"anyOf", "allOf", "oneOf", "prefixItems", "items"};
  const char *name;
  json_t *item, *map = (json_t *)(uintptr_t)value;
  size_t i, len = strlen(w->path);
  bool ok = true, is_map = false, is_list = false;
  for (i = 0; i < sizeof maps / sizeof *maps; i++) is_map = is_map || !strcmp(key, maps[i]);
  for (i = 0; i < sizeof lists / sizeof *lists; i++) is_list = is_list || !strcmp(key, lists[i]);
  if (!is_map && !is_list) return true;
  if (len < PATH_BYTES_MAX) snprintf(w->path + len, sizeof w->path - len, ".%s", key);
  if (is_map) {
    json_object_foreach(map, name, item) ok = ok && walk_step(w, item, name, 0, false);
  } else if (json_is_array(value)) {
    json_array_foreach(value, i, item) ok = ok && walk_step(w, item, "", i, true);
  } else {
    ok = walk(w, value);
  }
  w->path[len] = 0;
  return ok;
}

/* OpenAI's rule for "strict": every object says that it has no other properties. */
static bool walk(strict_walk *w, const json_t *schema) {
  const char *key;
  json_t *value, *object = (json_t *)(uintptr_t)schema;
  bool is_object = json_object_get(schema, "properties") ||
                   api_json_is(json_object_get(schema, "type"), "object");
  if (is_object && !json_is_false(json_object_get(schema, "additionalProperties")))
    return api_failure_set(w->failure, "response_format",
                           "with \"strict\" the object at %s needs \"additionalProperties\": false",
                           w->path);
  bool ok = true;
  json_object_foreach(object, key, value) ok = ok && walk_member(w, key, value);
  return ok;
}

static bool read_schema(api_request *r, const json_t *format, api_failure *f) {
  const json_t *outer = api_json_field(format, "json_schema");
  if (!json_is_object(outer))
    return api_json_wrong("response_format.json_schema", "an object", outer, f);
  const json_t *schema = api_json_field(outer, "schema"), *name = api_json_field(outer, "name");
  bool strict = false;
  if (name && !json_is_string(name))
    return api_json_wrong("response_format.json_schema.name", "a string", name, f);
  if (!json_is_object(schema))
    return api_json_wrong("response_format.json_schema.schema", "an object", schema, f);
  if (!api_json_bool(outer, "strict", &strict, f))
    return api_failure_inside(f, "response_format.json_schema");
  strict_walk w = {.path = "$", .failure = f};
  if (strict && !walk(&w, schema)) return false;
  if (!(r->grammar = json_dumps(schema, JSON_COMPACT))) return api_failure_memory(f);
  r->grammar_kind = TROIKA_GRAMMAR_JSON_SCHEMA;
  r->grammar_len = strlen(r->grammar);
  return true;
}

static bool read_grammar(api_request *r, const json_t *format, api_failure *f) {
  const json_t *syntax = api_json_field(format, "syntax"),
               *definition = api_json_field(format, "definition");
  bool regex = api_json_is(syntax, "regex");
  if (!regex && !api_json_is(syntax, "lark"))
    return api_failure_set(f, "response_format.syntax",
                           "response_format.syntax must be \"lark\" or \"regex\"");
  if (!json_is_string(definition))
    return api_json_wrong("response_format.definition", "a string", definition, f);
  size_t len = json_string_length(definition);
  if (!(r->grammar = malloc(len + 1))) return api_failure_memory(f);
  memcpy(r->grammar, json_string_value(definition), len + 1);
  r->grammar_kind = regex ? TROIKA_GRAMMAR_REGEX : TROIKA_GRAMMAR_LARK;
  r->grammar_len = len;
  return true;
}

bool api_format_read(api_request *r, api_failure *f) {
  const json_t *format = api_json_field(r->root, "response_format");
  if (!format) return true;
  if (!json_is_object(format)) return api_json_wrong("response_format", "an object", format, f);
  const json_t *type = api_json_field(format, "type");
  bool ok = true;
  r->constrained = !api_json_is(type, "text");
  if (api_json_is(type, "json_object"))
    r->grammar_kind = TROIKA_GRAMMAR_JSON_OBJECT;
  else if (api_json_is(type, "json_schema"))
    ok = read_schema(r, format, f);
  else if (api_json_is(type, "grammar"))
    ok = read_grammar(r, format, f);
  else if (r->constrained)
    ok = api_failure_set(
        f, "response_format.type",
        "response_format.type must be \"text\", \"json_object\", \"json_schema\" or \"grammar\"");
  return ok;
}
