/* SPDX-License-Identifier: Apache-2.0 */
/* chat_session.h - what has been said in a chat, and chats as files.
 *
 * A file is {"model": "smollm2", "messages": [{"role", "content"}, ...]}, the messages in OpenAI's
 * shape with the system message first; a bare array of messages is read too. The system message
 * lives apart from the others here, since /system and /clear treat it apart. One thread. */
#ifndef CLI_CHAT_SESSION_H
#define CLI_CHAT_SESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"

enum { CHAT_FILE_MAX = 16 * 1024 * 1024, CHAT_MESSAGES_MAX = 100000 };

typedef struct chat_session {
  json_t *messages; /* array of {"role", "content", ...} without the system message; owned */
  json_t *system;   /* string, or NULL; owned */
} chat_session;

/* All that return bool: false is no memory (system also: text that is not UTF-8). */
bool chat_session_init(chat_session *s);
void chat_session_free(chat_session *s);
size_t chat_session_count(const chat_session *s); /* messages, without the system's */
/* NULL removes it. */
bool chat_session_set_system(chat_session *s, const char *text, size_t len);
/* role: "user" or "assistant"; text is copied. */
bool chat_session_add(chat_session *s, const char *role, const char *text, size_t len);
bool chat_session_last_is(const chat_session *s, const char *role);
/* Content of the last message of this role; "" if there is none. Borrowed. */
bytes_view chat_session_last(const chat_session *s, const char *role);
/* Drops the last message. Owned by the caller (json_decref); NULL if there is none. */
json_t *chat_session_pop(chat_session *s);
/* Puts a popped message back; takes it over. */
bool chat_session_push(chat_session *s, json_t *message);
/* Drops the last message of the user and all after it; how many. */
size_t chat_session_undo(chat_session *s);
void chat_session_clear(chat_session *s); /* keeps the system message */
/* The array that troika_model_chat takes. Owned: free. */
char *chat_session_text(const chat_session *s, size_t *len);

/* Reads into *out, which must be empty (not initialised); model: the name in the file, "" if it has
 * none. Errors: NOT_FOUND, IO, LIMIT (size), FORMAT with line or message number; *out stays empty.
 */
troika_status chat_session_load(const char *path, chat_session *out, char *model, size_t model_size,
                                troika_error *err);
/* Whole or not at all, for the user's eyes alone: written beside, then renamed. An existing file is
 * replaced only if it is a chat. */
troika_status chat_session_save(const chat_session *s, const char *path, const char *model,
                                troika_error *err);

#endif
