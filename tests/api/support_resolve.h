/* SPDX-License-Identifier: Apache-2.0 */
/* support_resolve.h - a request's way through api_resolve and api_key_begin without a server. */
#ifndef TESTS_API_SUPPORT_RESOLVE_H
#define TESTS_API_SUPPORT_RESOLVE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/resolve.h"

enum { VOCAB = 1000, R = TROIKA_REACTIVE, P = TROIKA_PROACTIVE, I = TROIKA_INHERITED };
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT_PATH "/v1/chat/completions"

typedef struct server {
  api_access *access;
  api_sessions *sessions;
  api_resolver resolver;
} server;

void server_open(server *s, const char *key_lines);
void server_close(server *s);

/* "name: value\nname: value", as a client sends them; `authorization` too. */
void signals_read(const server *s, const char *headers, const char *path, api_signals *out);

/* The whole way but for the engine; members: what stands in the body besides a user's message.
 * hold: NULL counts nothing. */
bool ask_full(server *s, const char *path, const char *headers, const char *members,
              api_resolved *out, api_key_hold *hold, api_failure *f);
/* A turn that begins and ends; it must be taken. */
void ask(server *s, const char *headers, const char *members, api_resolved *out);

#endif
