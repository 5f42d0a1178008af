/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.h - which sessions wait: their last turn ended in tool calls and was reactive, and no
 * request of theirs is open. Children of a waiting session are urgent. A bounded table, the oldest
 * one goes first; any thread. */
#ifndef RUNTIME_SESSIONS_H
#define RUNTIME_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct runtime_sessions runtime_sessions;

runtime_sessions *runtime_sessions_create(void); /* NULL: no memory */
void runtime_sessions_destroy(runtime_sessions **s);

/* A request of it begins or ends; 0 is no session. reactive: the turn was R or I. */
void runtime_sessions_begin(runtime_sessions *s, uint64_t session);
void runtime_sessions_end(runtime_sessions *s, uint64_t session, bool reactive);
/* Whether its last turn ended in tool calls. */
void runtime_sessions_set_waits(runtime_sessions *s, uint64_t session, bool waits);
bool runtime_sessions_wait(runtime_sessions *s, uint64_t session);

#endif
