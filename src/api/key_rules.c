/* SPDX-License-Identifier: Apache-2.0 */
/* "KEY class=proactive max=4 name=nightly": what a line of the key file says. Kept strict: a rule
 * that nobody saw being dropped would let a client do what it shall not. */
#include <stdio.h>
#include <string.h>

#include "api/access.h"
#include "base/error.h"

#define WORDS \
  "class=reactive, class=proactive, cap=proactive, reactive-max=N, max=N, may-react, name=NAME"

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

static bool begins(bytes_view word, const char *head, bytes_view *rest) {
  size_t n = strlen(head);
  if (word.len < n || memcmp(word.ptr, head, n) != 0) return false;
  *rest = bytes_of(word.ptr + n, word.len - n);
  return true;
}

static troika_status read_count(const char *name, bytes_view text, uint32_t *out,
                                troika_error *err) {
  uint32_t v = 0;
  bool ok = text.len >= 1 && text.len <= 5;
  for (size_t i = 0; ok && i < text.len; i++) {
    ok = text.ptr[i] >= '0' && text.ptr[i] <= '9';
    v = v * 10 + (uint32_t)(text.ptr[i] - '0');
  }
  if (!ok || v < 1 || v > API_KEY_OPEN_MAX)
    return error_set(err, TROIKA_INVALID, "%s= takes a whole number from 1 to %d", name,
                     API_KEY_OPEN_MAX);
  *out = v;
  return TROIKA_OK;
}

static troika_status read_name(bytes_view text, api_key_rules *out, troika_error *err) {
  bool ok = text.len >= 1 && text.len <= API_KEY_NAME_MAX;
  for (size_t i = 0; ok && i < text.len; i++) {
    char c = text.ptr[i];
    ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
  }
  if (!ok)
    return error_set(err, TROIKA_INVALID,
                     "name= takes 1 to %d letters, digits, dots, hyphens and underscores",
                     API_KEY_NAME_MAX);
  memcpy(out->name, text.ptr, text.len);
  return TROIKA_OK;
}

static troika_status read_class(bytes_view text, troika_class *out, troika_error *err) {
  if (bytes_equal_string(text, "reactive")) return *out = TROIKA_REACTIVE, TROIKA_OK;
  if (bytes_equal_string(text, "proactive")) return *out = TROIKA_PROACTIVE, TROIKA_OK;
  return error_set(err, TROIKA_INVALID, "class= takes reactive or proactive");
}

static troika_status read_word(bytes_view word, char blank, unsigned *seen, api_key_rules *out,
                               troika_error *err) {
  static const char *const heads[] = {
      "class=", "cap=", "reactive-max=", "max=", "name=", "may-react"};
  bytes_view rest = bytes_of(NULL, 0);
  unsigned which = 0;
  while (which < 6 && !begins(word, heads[which], &rest)) which++;
  if (which == 6 || (which == 5 && rest.len)) /* the word may be a part of the key: never shown */
    return error_set(err, TROIKA_INVALID,
                     "behind the blank (0x%02X) stands a word that is none of " WORDS,
                     (unsigned)blank);
  if (*seen & 1u << which) return error_set(err, TROIKA_INVALID, "%s is there twice", heads[which]);
  *seen |= 1u << which;
  switch (which) {
    case 0:
      return read_class(rest, &out->class_, err);
    case 1:
      out->capped = true;
      if (bytes_equal_string(rest, "proactive")) return TROIKA_OK;
      return error_set(err, TROIKA_INVALID, "cap= takes proactive");
    case 2:
      return read_count("reactive-max", rest, &out->reactive_max, err);
    case 3:
      return read_count("max", rest, &out->max, err);
    case 4:
      return read_name(rest, out, err);
    default:
      out->may_react = true;
      return TROIKA_OK;
  }
}

troika_status api_key_line(bytes_view line, bytes_view *key, api_key_rules *out,
                           troika_error *err) {
  size_t at = 0;
  unsigned seen = 0;
  *out = (api_key_rules){0};
  while (at < line.len && !is_blank(line.ptr[at])) at++;
  *key = bytes_of(line.ptr, at);
  while (at < line.len) {
    char blank = line.ptr[at];
    while (at < line.len && is_blank(line.ptr[at])) at++;
    size_t from = at;
    while (at < line.len && !is_blank(line.ptr[at])) at++;
    if (at == from) break;
    troika_status status = read_word(bytes_of(line.ptr + from, at - from), blank, &seen, out, err);
    if (status) return status;
  }
  if (out->capped && (out->class_ == TROIKA_REACTIVE || out->reactive_max || out->may_react))
    return error_set(err, TROIKA_INVALID,
                     "cap=proactive goes with none of class=reactive, reactive-max=, may-react");
  return TROIKA_OK;
}
