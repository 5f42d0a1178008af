/* SPDX-License-Identifier: Apache-2.0 */
#include "api/calls.h"

#include <string.h>

static bool holds(const char *text, size_t len, const char *what) {
  size_t n = strlen(what);
  for (size_t i = 0; i + n <= len; i++)
    if (!memcmp(text + i, what, n)) return true;
  return false;
}

/* Each at most API_CALLS_TAIL + 1 bytes. */
static const char *const markers[] = {"<tool_call>", "[TOOL_CALLS]", "<|python_tag|>",
                                      "<function="};

static void look(api_calls *c, const char *text, size_t len) {
  for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
    c->seen = c->seen || holds(text, len, markers[i]);
}

void api_calls_add(api_calls *c, const char *text, size_t len) {
  char seam[2 * API_CALLS_TAIL];
  if (!c->wanted || c->seen || !len) return;
  for (size_t i = 0; i < len && c->head_n < API_CALLS_HEAD; i++)
    if (text[i] != ' ' && text[i] != '\n' && text[i] != '\t' && text[i] != '\r')
      c->head[c->head_n++] = text[i];
  look(c, text, len);
  size_t first = len < API_CALLS_TAIL ? len : API_CALLS_TAIL;
  memcpy(seam, c->tail, c->tail_n);
  memcpy(seam + c->tail_n, text, first);
  look(c, seam, c->tail_n + first);
  if (len >= API_CALLS_TAIL) {
    memcpy(c->tail, text + len - API_CALLS_TAIL, API_CALLS_TAIL);
    c->tail_n = API_CALLS_TAIL;
    return;
  }
  size_t all = c->tail_n + len, keep = all < API_CALLS_TAIL ? all : API_CALLS_TAIL;
  memcpy(c->tail, seam + all - keep, keep);
  c->tail_n = (unsigned char)keep;
}

bool api_calls_seen(const api_calls *c) {
  static const char *const begins[] = {"{\"name\":", "[{\"name\":", "{\"type\":\"function\""};
  if (!c->wanted) return false;
  for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
    size_t n = strlen(begins[i]);
    if (c->head_n >= n && !memcmp(c->head, begins[i], n)) return true;
  }
  return c->seen;
}
