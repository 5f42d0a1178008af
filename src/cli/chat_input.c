/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_input.h"

#include <string.h>

static const char quotes[] = "\"\"\"", system_block[] = "/system \"\"\"";
enum { QUOTES = 3 };

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bytes_view trim(bytes_view v) {
  while (v.len && is_blank(v.ptr[0])) v.ptr++, v.len--;
  while (v.len && is_blank(v.ptr[v.len - 1])) v.len--;
  return v;
}

static bool begins(bytes_view v, const char *word) {
  size_t len = strlen(word);
  return v.len >= len && !memcmp(v.ptr, word, len);
}

void chat_entry_init(chat_entry *e) {
  *e = (chat_entry){0};
  bytes_init(&e->text, CHAT_MESSAGE_MAX);
  bytes_append(&e->text, "", 0);
}

void chat_entry_free(chat_entry *e) {
  bytes_free(&e->text);
}

void chat_entry_clear(chat_entry *e) {
  bytes_buffer text = e->text;
  bytes_clear(&text);
  *e = (chat_entry){.text = text};
}

/* In a block: everything up to a line that ends in three quotes. */
static bool add_block_line(chat_entry *e, const char *line, size_t len) {
  bytes_view v = bytes_of(line, len), trimmed = trim(v);
  bool last = trimmed.len >= QUOTES && !memcmp(trimmed.ptr + trimmed.len - QUOTES, quotes, QUOTES);
  if (last) v.len = (size_t)(trimmed.ptr + trimmed.len - v.ptr) - QUOTES;
  bytes_append(&e->text, v.ptr, v.len);
  if (!last) bytes_append_string(&e->text, "\n");
  e->open = !last;
  /* quotes on a line of their own: the newline before them is not the text's */
  if (last && e->text.len && e->text.data[e->text.len - 1] == '\n') e->text.data[--e->text.len] = 0;
  return last;
}

static bool begin_block(chat_entry *e, bytes_view rest) {
  e->open = e->block = true;
  if (rest.len == 0) return false; /* the text begins in the next line */
  if (rest.ptr[0] == '\n') rest.ptr++, rest.len--;
  return add_block_line(e, rest.ptr, rest.len);
}

bool chat_entry_add(chat_entry *e, const char *line, size_t len) {
  bytes_view v = bytes_of(line, len), trimmed = trim(v);
  if (e->block) return add_block_line(e, line, len);
  if (!e->open && begins(trimmed, quotes)) {
    size_t skip = (size_t)(trimmed.ptr - v.ptr) + QUOTES;
    e->verbatim = true;
    return begin_block(e, bytes_of(v.ptr + skip, v.len - skip));
  }
  if (!e->open && begins(trimmed, system_block)) {
    size_t skip = (size_t)(trimmed.ptr - v.ptr) + strlen(system_block);
    bytes_append_string(&e->text, "/system ");
    return begin_block(e, bytes_of(v.ptr + skip, v.len - skip));
  }
  size_t slashes = 0;
  while (slashes < len && line[len - 1 - slashes] == '\\') slashes++;
  e->open = slashes % 2 != 0; /* an even number is text */
  bytes_append(&e->text, line, e->open ? len - 1 : len);
  if (e->open) bytes_append_string(&e->text, "\n");
  return !e->open;
}

void chat_entry_close(chat_entry *e) {
  if (e->open && e->text.len && e->text.data[e->text.len - 1] == '\n')
    e->text.data[--e->text.len] = 0;
  e->open = false;
}

void chat_entry_recall(const chat_entry *e, bytes_buffer *out) {
  bytes_view text = bytes_of(e->text.data, e->text.len), trimmed = trim(text);
  bool quoted = e->verbatim && (begins(trimmed, "/") || begins(trimmed, quotes) ||
                                (text.len && text.ptr[text.len - 1] == '\\'));
  if (quoted) bytes_append_string(out, quotes);
  bytes_append(out, text.ptr, text.len);
  if (quoted) bytes_append_string(out, quotes);
}

chat_kind chat_entry_kind(const chat_entry *e, bytes_view *name, bytes_view *text) {
  bytes_view v = bytes_of(e->text.data, e->text.len), trimmed = trim(v);
  *name = bytes_of("", 0);
  *text = v;
  if (trimmed.len == 0) return CHAT_NOTHING;
  if (e->verbatim || trimmed.ptr[0] != '/') return CHAT_MESSAGE;
  if (begins(trimmed, "//")) {
    text->len -= (size_t)(trimmed.ptr + 1 - v.ptr);
    text->ptr = trimmed.ptr + 1;
    return CHAT_MESSAGE;
  }
  size_t n = 1;
  while (n < trimmed.len && !is_blank(trimmed.ptr[n])) n++;
  *name = bytes_of(trimmed.ptr + 1, n - 1);
  *text = trim(bytes_of(trimmed.ptr + n, trimmed.len - n));
  return CHAT_COMMAND;
}

void chat_line_escape(const char *text, size_t len, bytes_buffer *out) {
  for (size_t i = 0; i < len; i++) {
    if (text[i] == '\\' || text[i] == '\n')
      bytes_append_string(out, text[i] == '\n' ? "\\n" : "\\\\");
    else if (text[i]) /* a NUL would end the line for the editor */
      bytes_append(out, &text[i], 1);
  }
}

void chat_line_unescape(const char *text, size_t len, bytes_buffer *out) {
  for (size_t i = 0; i < len; i++) {
    bool escaped = text[i] == '\\' && i + 1 < len && (text[i + 1] == 'n' || text[i + 1] == '\\');
    if (escaped) i++;
    bytes_append(out, escaped && text[i] == 'n' ? "\n" : &text[i], 1);
  }
}
