/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.h - what is remembered of clients' sessions between their turns. Private to this room.
 *
 * A fixed table: the session that was quiet longest makes room for a new one; one with an open
 * request never does. A session that is forgotten, or finds no room because all others are busy, is
 * as one never seen. Keys (`session`) are hashes that hold the API key's scope. Any thread. */
#ifndef API_SESSIONS_H
#define API_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/stream.h"

enum { API_SESSIONS_MAX = 4096 };

typedef struct api_sessions api_sessions;

typedef struct api_session {
  troika_class said; /* its last explicit class; DEFAULT: none */
  int64_t seen_ns;   /* clock_real: when its last turn began or ended */
  uint32_t open;     /* requests */
} api_session;

/* capacity: 1 to API_SESSIONS_MAX. Errors: NO_MEMORY. */
troika_status api_sessions_open(uint32_t capacity, api_sessions **out, troika_error *err);
void api_sessions_close(api_sessions **s);

/* False: not known. Changes nothing. */
bool api_sessions_find(api_sessions *s, uint64_t session, api_session *out);
/* A turn begins. said: DEFAULT leaves what was said before. True: it must be ended, once. */
bool api_sessions_begin(api_sessions *s, uint64_t session, troika_class said, int64_t now_ns);
void api_sessions_end(api_sessions *s, uint64_t session, int64_t now_ns);
/* It was seen, or said something, without a turn. */
void api_sessions_note(api_sessions *s, uint64_t session, troika_class said, int64_t now_ns);
uint32_t api_sessions_count(api_sessions *s);

#endif
