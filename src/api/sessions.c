/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table with chains of indices over a fixed array; those without an open request also stand
 * in a list, the one that was quiet longest first. */
#include "api/sessions.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

enum { BUCKETS = 8192 }; /* twice the entries: chains of one or two */
#define NONE UINT32_MAX

typedef struct entry {
  uint64_t session; /* 0: free */
  api_session now;
  uint32_t chain;        /* next of its bucket */
  uint32_t older, newer; /* in the list of quiet ones */
} entry;

struct api_sessions {
  pthread_mutex_t lock; /* guards all */
  uint32_t capacity, used;
  uint32_t oldest, newest; /* quiet */
  uint32_t buckets[BUCKETS];
  entry entries[];
};

troika_status api_sessions_open(uint32_t capacity, api_sessions **out, troika_error *err) {
  api_sessions *s = calloc(1, sizeof *s + capacity * sizeof *s->entries);
  if (!s) return error_set(err, TROIKA_NO_MEMORY, "no memory for the sessions");
  pthread_mutex_init(&s->lock, NULL);
  s->capacity = capacity;
  s->oldest = s->newest = NONE;
  for (uint32_t i = 0; i < BUCKETS; i++) s->buckets[i] = NONE;
  *out = s;
  return TROIKA_OK;
}

void api_sessions_close(api_sessions **sessions) {
  api_sessions *s = *sessions;
  *sessions = NULL;
  if (!s) return;
  pthread_mutex_destroy(&s->lock);
  free(s);
}

static uint32_t *bucket_of(api_sessions *s, uint64_t session) {
  return &s->buckets[(session * UINT64_C(0x9E3779B97F4A7C15)) >> 51]; /* 13 bits */
}

static entry *find(api_sessions *s, uint64_t session) {
  for (uint32_t i = *bucket_of(s, session); i != NONE; i = s->entries[i].chain)
    if (s->entries[i].session == session) return &s->entries[i];
  return NULL;
}

static void unlink_quiet(api_sessions *s, entry *e) {
  if (e->older == NONE)
    s->oldest = e->newer;
  else
    s->entries[e->older].newer = e->newer;
  if (e->newer == NONE)
    s->newest = e->older;
  else
    s->entries[e->newer].older = e->older;
}

static void link_newest(api_sessions *s, entry *e) {
  uint32_t i = (uint32_t)(e - s->entries);
  e->older = s->newest;
  e->newer = NONE;
  if (s->newest == NONE)
    s->oldest = i;
  else
    s->entries[s->newest].newer = i;
  s->newest = i;
}

static void forget(api_sessions *s, entry *e) {
  uint32_t *at = bucket_of(s, e->session), i = (uint32_t)(e - s->entries);
  while (*at != i) at = &s->entries[*at].chain;
  *at = e->chain;
  unlink_quiet(s, e);
}

/* The session's entry, made if need be, quiet and linked when it is new. NULL: all are busy. */
static entry *take(api_sessions *s, uint64_t session) {
  entry *e = find(s, session);
  if (e) return e;
  if (s->used < s->capacity) {
    e = &s->entries[s->used++];
  } else {
    if (s->oldest == NONE) return NULL;
    e = &s->entries[s->oldest];
    forget(s, e);
  }
  uint32_t *bucket = bucket_of(s, session);
  *e = (entry){.session = session, .chain = *bucket};
  *bucket = (uint32_t)(e - s->entries);
  link_newest(s, e);
  return e;
}

bool api_sessions_find(api_sessions *s, uint64_t session, api_session *out) {
  pthread_mutex_lock(&s->lock);
  const entry *e = session ? find(s, session) : NULL;
  if (e) *out = e->now;
  pthread_mutex_unlock(&s->lock);
  return e != NULL;
}

bool api_sessions_begin(api_sessions *s, uint64_t session, troika_class said, int64_t now_ns) {
  pthread_mutex_lock(&s->lock);
  entry *e = session ? take(s, session) : NULL;
  if (e) {
    if (e->now.open++ == 0) unlink_quiet(s, e);
    if (said != TROIKA_CLASS_DEFAULT) e->now.said = said;
    e->now.seen_ns = now_ns;
  }
  pthread_mutex_unlock(&s->lock);
  return e != NULL;
}

void api_sessions_end(api_sessions *s, uint64_t session, int64_t now_ns) {
  pthread_mutex_lock(&s->lock);
  entry *e = session ? find(s, session) : NULL;
  if (e && e->now.open) {
    e->now.seen_ns = now_ns;
    if (--e->now.open == 0) link_newest(s, e);
  }
  pthread_mutex_unlock(&s->lock);
}

void api_sessions_note(api_sessions *s, uint64_t session, troika_class said, int64_t now_ns) {
  pthread_mutex_lock(&s->lock);
  entry *e = session ? take(s, session) : NULL;
  if (e) {
    if (said != TROIKA_CLASS_DEFAULT) e->now.said = said;
    e->now.seen_ns = now_ns;
    if (!e->now.open) {
      unlink_quiet(s, e);
      link_newest(s, e);
    }
  }
  pthread_mutex_unlock(&s->lock);
}

uint32_t api_sessions_count(api_sessions *s) {
  pthread_mutex_lock(&s->lock);
  uint32_t n = s->used;
  pthread_mutex_unlock(&s->lock);
  return n;
}
