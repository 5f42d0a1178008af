/* SPDX-License-Identifier: Apache-2.0 */
/* chat_editor.h - lines of a chat: typed on a terminal (with libedit), or read from a pipe or file.
 * Main thread. */
#ifndef CLI_CHAT_EDITOR_H
#define CLI_CHAT_EDITOR_H

#include <stdio.h>

#include "base/bytes.h"

typedef enum chat_line {
  CHAT_LINE_TEXT,
  CHAT_LINE_END,        /* Ctrl-D on an empty line, or the end of the file */
  CHAT_LINE_CTRL_C,     /* what was typed is gone */
  CHAT_LINE_TERMINATED, /* SIGTERM */
  CHAT_LINE_TOO_LONG,   /* more than CHAT_MESSAGE_MAX, or than can be edited; it was skipped */
  CHAT_LINE_FAILED      /* errno */
} chat_line;

typedef struct chat_editor chat_editor;

/* screen: the terminal to edit on; NULL: no editing, no prompts. styled: escape sequences may be
 * used, if the terminal is known to understand them. Owned: chat_editor_destroy. NULL: no
 * memory. */
chat_editor *chat_editor_create(FILE *screen, bool styled);
void chat_editor_destroy(chat_editor **editor);
/* A line without its newline; it may hold newlines if it was pasted. *was_empty: nothing stood in
 * the line when its last key was waited for. */
chat_line chat_editor_read(chat_editor *editor, const char *prompt, bytes_buffer *out,
                           bool *was_empty);
/* The newest entry of the arrow keys' history. */
void chat_editor_remember(chat_editor *editor, const char *text, size_t len);
/* Escape sequences are used: for styles, and so that pasted lines arrive as one. */
bool chat_editor_styled(const chat_editor *editor);

#endif
