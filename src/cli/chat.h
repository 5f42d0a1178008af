/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - what the parts of `troika chat` share: the loop (chat.c), its commands
 * (chat_commands.c) and one answer (chat_answer.c). Main thread. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include <limits.h>
#include <stdio.h>

#include "cli/chat_editor.h"
#include "cli/chat_session.h"
#include "cli/cli.h"
#include "troika/stream.h"

typedef struct chat_numbers { /* of one answer, or the sum of all */
  uint64_t answers, prompt_tokens, cached_tokens, answer_tokens;
  int64_t first_ns; /* submit to the first token; not summed */
  int64_t decode_ns, total_ns;
} chat_numbers;

typedef struct chat {
  cli_settings settings; /* /set changes them; texts are the caller's */
  cli_engine engine;
  troika_stream *stream;
  troika_model_info model;
  uint32_t context;
  chat_session session;
  chat_editor *editor;
  bool interactive;    /* someone types; else lines come from a pipe or file */
  bool terminal_out;   /* standard output is a terminal */
  bool styled;         /* escape sequences may be used for notes */
  FILE *notes;         /* what is no answer */
  char file[PATH_MAX]; /* loaded or saved last; "" is none */
  uint64_t retries;    /* of the last message: each has a seed of its own */
  bool retrying;       /* an old answer stays if there is no new one */
  bool interrupted;    /* Ctrl-C came during an answer */
  unsigned failures;
  chat_numbers last, all;
} chat;

/* --- chat.c. A line of notes, dim on a terminal. */
void chat_note(const chat *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An error; counts. */
void chat_fail(chat *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- chat_answer.c */
typedef enum chat_outcome {
  CHAT_ANSWERED, /* the answer is in the session, whole or stopped by Ctrl-C */
  CHAT_SILENT,   /* stopped before the first word: nothing was added */
  CHAT_FAILED    /* said why: nothing was added */
} chat_outcome;
/* Answers the session's last message. */
chat_outcome chat_answer(chat *c);
void chat_stats(const chat *c);
/* A message of the user, and its answer. */
void chat_say(chat *c, const char *text, size_t len);

/* --- chat_commands.c */
/* False: the chat is over. name has no slash; text is what follows it. */
bool chat_command_do(chat *c, bytes_view name, bytes_view text);
/* Says what failed. keep_system: the present system message wins over the file's. */
bool chat_load(chat *c, const char *path, bool keep_system);

#endif
