/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's four shapes of a prompt: a text, texts, tokens, arrays of tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "api/json.h"
#include "api/request.h"

bool api_tokens_read(const json_t *array, const char *field, uint32_t vocab, api_prompt *out,
                     api_failure *f) {
  size_t n = json_array_size(array), i;
  const json_t *value;
  if (n == 0) return api_failure_set(f, field, "%s is an empty array", field);
  if (n > UINT32_MAX || !(out->tokens = malloc(n * sizeof *out->tokens)))
    return api_failure_memory(f);
  json_array_foreach(array, i, value) {
    json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;
    if (token < 0 || token >= vocab)
      return api_failure_set(f, field, "%s[%zu] is not a token number below %u", field, i, vocab);
    out->tokens[i] = (int32_t)token;
  }
  out->tokens_n = (uint32_t)n;
  return true;
}

static bool read_one(const json_t *prompt, const char *field, uint32_t vocab, api_prompt *out,
                     api_failure *f) {
  if (json_is_array(prompt)) return api_tokens_read(prompt, field, vocab, out, f);
  if (!json_is_string(prompt))
    return api_json_wrong(field, "a string or an array of tokens", prompt, f);
  out->text = bytes_of(json_string_value(prompt), json_string_length(prompt));
  return true;
}

bool api_prompts_read(api_request *r, const char *field, uint32_t vocab, api_failure *f) {
  const json_t *prompt = api_json_field(r->root, field);
  size_t n = json_array_size(prompt);
  bool many = n && !json_is_integer(json_array_get(prompt, 0));
  if (many && n * r->n > API_CHOICES_MAX)
    return api_failure_set(f, field, "%zu prompts with n %u: at most %d answers to one request", n,
                           r->n, API_CHOICES_MAX);
  if (!many) n = 1;
  if (!(r->prompts = calloc(n, sizeof *r->prompts))) return api_failure_memory(f);
  for (; r->prompts_n < n; r->prompts_n++) {
    char name[64];
    snprintf(name, sizeof name, many ? "%.32s[%u]" : "%.32s", field, r->prompts_n);
    const json_t *one = many ? json_array_get(prompt, r->prompts_n) : prompt;
    if (!read_one(one, name, vocab, &r->prompts[r->prompts_n], f)) {
      r->prompts_n++; /* its tokens may be there */
      return false;
    }
  }
  return api_json_bool(r->root, "parse_special", &r->parse_special, f);
}
