/* SPDX-License-Identifier: Apache-2.0 */
/* chat_input.h - lines as they are typed, to messages and commands. Pure but for memory.
 *
 *     one \            a line that ends in a backslash goes on in the next
 *     """ ... """      several lines as they are, nothing in them is a command
 *     /name argument   a command
 *     //text           the message "/text"
 *
 * A line may hold newlines itself (pasted, or recalled from the history). */
#ifndef CLI_CHAT_INPUT_H
#define CLI_CHAT_INPUT_H

#include "base/bytes.h"

enum { CHAT_MESSAGE_MAX = 16 * 1024 * 1024 };

typedef struct chat_entry {
  bytes_buffer text; /* the message, or the command's line */
  bool open;         /* more lines must follow */
  bool block;        /* begun by three quotes */
  bool verbatim;     /* came from a block: no command */
} chat_entry;

void chat_entry_init(chat_entry *e);
void chat_entry_free(chat_entry *e);
void chat_entry_clear(chat_entry *e);
/* True: the entry is whole. e->text.failed: it has become too large. */
bool chat_entry_add(chat_entry *e, const char *line, size_t len);
/* The input has ended: what there is, is the entry. */
void chat_entry_close(chat_entry *e);
/* The entry as one line for the history that gives the same entry again. Appends. */
void chat_entry_recall(const chat_entry *e, bytes_buffer *out);

typedef enum chat_kind { CHAT_NOTHING, CHAT_MESSAGE, CHAT_COMMAND } chat_kind;
/* MESSAGE: *text. COMMAND: *name without the slash, *text what follows, trimmed. Borrowed. */
chat_kind chat_entry_kind(const chat_entry *e, bytes_view *name, bytes_view *text);

/* `\` and newline as two characters each, and back: a history file has one entry a line. */
void chat_line_escape(const char *text, size_t len, bytes_buffer *out);
void chat_line_unescape(const char *text, size_t len, bytes_buffer *out);

#endif
