/* SPDX-License-Identifier: Apache-2.0 */
/* chat_history.h - what was typed, kept across chats in a file of one entry a line.
 *
 * Not the line editor's own file format: it is written only at the end (a chat that is killed would
 * forget all), escapes every blank, and two chats would overwrite each other. Here each entry is
 * appended as it is typed; past CHAT_HISTORY_MAX lines the file is written anew without the oldest.
 * Mode 0600. One thread. */
#ifndef CLI_CHAT_HISTORY_H
#define CLI_CHAT_HISTORY_H

#include <limits.h>
#include <stdbool.h>

#include "base/bytes.h"

enum { CHAT_HISTORY_MAX = 1000, CHAT_HISTORY_ENTRY_MAX = 16 * 1024 };

typedef struct chat_history {
  char path[PATH_MAX];
  unsigned lines;
  bool usable; /* false: there is no file, and `why` says why */
  char why[256];
} chat_history;

/* Opens or creates path with its folders, shortens it, and gives each entry, oldest first. */
void chat_history_open(chat_history *h, const char *path,
                       void (*each)(void *context, const char *text, size_t len), void *context);
/* Appends one entry; one that is longer than CHAT_HISTORY_ENTRY_MAX is not kept. */
void chat_history_add(chat_history *h, const char *text, size_t len);

#endif
