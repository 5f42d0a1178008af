/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Unicode's White_Space. Not \s: PCRE2 counts U+180E among it, the references do not. */
#define WS "\\x09-\\x0d\\x{85}\\p{Z}"
#define NOT_WS "[^" WS "]"

#define GPT2                                                                                 \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?!" NOT_WS \
  ")|[" WS "]+"
#define LLAMA3(digits)                                                            \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WS \
  "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?!" NOT_WS ")|[" WS "]+"

typedef struct pretokenizer_rule {
  const char *name;
  const char *pattern;
  bool digits_apart; /* each digit is a piece of its own, found before the pattern looks */
  bool adds_bos, whole_first, composes;
} pretokenizer_rule;

static const pretokenizer_rule rules[] = {
    {"gpt2", GPT2, false, false, false, false},
    {"gpt-2", GPT2, false, false, false, false},
    {"default", GPT2, false, false, false, false},
    {"smollm", GPT2, true, false, false, false},
    {"llama-bpe", LLAMA3("\\p{N}{1,3}"), false, true, true, false},
    {"llama3", LLAMA3("\\p{N}{1,3}"), false, true, true, false},
    {"qwen2", LLAMA3("\\p{N}"), false, false, false, true},
};
enum {
  RULES = sizeof rules / sizeof rules[0],
  JIT_STACK_START = 32 << 10,
  JIT_STACK_MAX = 1 << 20
};

struct pretokenizer {
  const pretokenizer_rule *rule;
  pcre2_code *pattern, *digit;
};

static troika_status pattern_compile(const char *text, pcre2_code **out, troika_error *err) {
  int code;
  PCRE2_SIZE at;
  pcre2_code *pattern = pcre2_compile(
      (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
  if (!pattern)
    return error_set(err, TROIKA_INTERNAL, "pre-tokenizer pattern: error %d at %zu", code, at);
  /* Without JIT (a hardened kernel may forbid it) matching is slower and still right. */
  pcre2_jit_compile(pattern, PCRE2_JIT_COMPLETE);
  *out = pattern;
  return TROIKA_OK;
}

troika_status pretokenizer_create(bytes_view name, pretokenizer **out, troika_error *err) {
  const pretokenizer_rule *rule = NULL;
  for (size_t i = 0; i < RULES; i++)
    if (bytes_equal_string(name, rules[i].name)) rule = &rules[i];
  if (!rule) {
    bytes_buffer known;
    bytes_init(&known, 1024);
    for (size_t i = 0; i < RULES; i++)
      bytes_append_format(&known, "%s%s", i ? ", " : "", rules[i].name);
    troika_status status =
        error_set(err, TROIKA_UNSUPPORTED, "pre-tokenizer '%.*s' is not known; known: %s",
                  (int)(name.len > 64 ? 64 : name.len), name.ptr, known.data ? known.data : "");
    bytes_free(&known);
    return status;
  }
  pretokenizer *p = calloc(1, sizeof *p);
  if (!p) return TROIKA_NO_MEMORY;
  p->rule = rule;
  troika_status status = pattern_compile(rule->pattern, &p->pattern, err);
  if (status == TROIKA_OK && rule->digits_apart) status = pattern_compile("\\p{N}", &p->digit, err);
  if (status != TROIKA_OK)
    pretokenizer_destroy(&p);
  else
    *out = p;
  return status;
}

void pretokenizer_destroy(pretokenizer **p) {
  if (!*p) return;
  pcre2_code_free((*p)->digit);
  pcre2_code_free((*p)->pattern);
  free(*p);
  *p = NULL;
}

bool pretokenizer_adds_bos(const pretokenizer *p) {
  return p->rule->adds_bos;
}
bool pretokenizer_whole_first(const pretokenizer *p) {
  return p->rule->whole_first;
}
bool pretokenizer_composes(const pretokenizer *p) {
  return p->rule->composes;
}

/* One call's matching state: PCRE2's is not to be shared between threads. */
typedef struct splitter {
  const pretokenizer *p;
  pcre2_match_data *found;
  pcre2_match_context *limits;
  pcre2_jit_stack *stack;
  troika_status (*piece)(void *context, bytes_view piece);
  void *context;
  troika_error *err;
} splitter;

/* First match at or after `at`: its bounds in *from, *to; false if there is none. */
static troika_status find(splitter *s, const pcre2_code *pattern, bytes_view text, size_t at,
                          bool *is, size_t *from, size_t *to) {
  int n = pcre2_match(pattern, (PCRE2_SPTR)text.ptr, text.len, at, PCRE2_NO_UTF_CHECK, s->found,
                      s->limits);
  *is = n > 0;
  if (n == PCRE2_ERROR_NOMATCH) return TROIKA_OK;
  if (n <= 0)
    return error_set(s->err, TROIKA_LIMIT, "pre-tokenizer gave up at byte %zu (PCRE2 error %d)", at,
                     n);
  const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(s->found);
  *from = bounds[0];
  *to = bounds[1];
  return TROIKA_OK;
}

/* `text` ends where the pattern may not look further. */
static troika_status split_part(splitter *s, bytes_view text) {
  size_t at = 0;
  while (at < text.len) {
    bool is;
    size_t from = text.len, to = text.len;
    troika_status status = find(s, s->p->pattern, text, at, &is, &from, &to);
    if (status == TROIKA_OK && from > at) /* what no alternative takes stays one piece */
      status = s->piece(s->context, bytes_of(text.ptr + at, from - at));
    if (status == TROIKA_OK && to > from)
      status = s->piece(s->context, bytes_of(text.ptr + from, to - from));
    if (status != TROIKA_OK) return status;
    at = to > at ? to : text.len;
  }
  return TROIKA_OK;
}

static troika_status split_digits(splitter *s, bytes_view text) {
  size_t at = 0;
  while (at < text.len) {
    bool is;
    size_t from = text.len, to = text.len;
    troika_status status = find(s, s->p->digit, text, at, &is, &from, &to);
    if (status == TROIKA_OK && from > at)
      status = split_part(s, bytes_of(text.ptr + at, from - at));
    if (status == TROIKA_OK && is) status = split_part(s, bytes_of(text.ptr + from, to - from));
    if (status != TROIKA_OK) return status;
    at = to;
  }
  return TROIKA_OK;
}

troika_status pretokenizer_split(const pretokenizer *p, bytes_view text,
                                 troika_status (*piece)(void *context, bytes_view piece),
                                 void *context, troika_error *err) {
  splitter s = {.p = p, .piece = piece, .context = context, .err = err};
  troika_status status = TROIKA_NO_MEMORY;
  s.found = pcre2_match_data_create(1, NULL);
  if (!s.found) goto out;
  s.limits = pcre2_match_context_create(NULL);
  if (!s.limits) goto out;
  s.stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
  if (!s.stack) goto out;
  pcre2_jit_stack_assign(s.limits, NULL, s.stack);
  pcre2_set_heap_limit(s.limits, 16 << 10);
  status = p->digit ? split_digits(&s, text) : split_part(&s, text);
out:
  pcre2_jit_stack_free(s.stack);
  pcre2_match_context_free(s.limits);
  pcre2_match_data_free(s.found);
  return status;
}
