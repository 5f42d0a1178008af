/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sessions.h"

#include <pthread.h>
#include <stdlib.h>

/* Sets of a few entries each, so that finding one and finding the oldest are both a short walk. */
enum { SETS = 256, WAYS = 8 };

typedef struct entry {
  uint64_t session; /* 0: free */
  uint64_t used;    /* a clock of accesses */
  uint32_t open;
  bool tools, reactive; /* of the last turn */
} entry;

struct runtime_sessions {
  pthread_mutex_t lock;
  uint64_t clock;
  entry entries[SETS][WAYS];
};

runtime_sessions *runtime_sessions_create(void) {
  runtime_sessions *s = calloc(1, sizeof *s);
  if (s) pthread_mutex_init(&s->lock, NULL);
  return s;
}

void runtime_sessions_destroy(runtime_sessions **s) {
  if (!*s) return;
  pthread_mutex_destroy(&(*s)->lock);
  free(*s);
  *s = NULL;
}

static entry *find(runtime_sessions *s, uint64_t session) {
  entry *set = s->entries[(session * 0x9E3779B97F4A7C15u) >> 56];
  for (int i = 0; i < WAYS; i++)
    if (set[i].session == session) return &set[i];
  return NULL;
}

/* The one used longest ago makes room; those with open requests stay as long as others can go. */
static entry *find_or_add(runtime_sessions *s, uint64_t session) {
  entry *e = find(s, session);
  if (!e) {
    entry *set = s->entries[(session * 0x9E3779B97F4A7C15u) >> 56];
    e = set;
    for (int i = 1; i < WAYS; i++) {
      bool quieter = !set[i].open == !e->open ? set[i].used < e->used : !set[i].open;
      if (quieter) e = &set[i];
    }
    *e = (entry){.session = session};
  }
  e->used = ++s->clock;
  return e;
}

void runtime_sessions_begin(runtime_sessions *s, uint64_t session) {
  if (!session) return;
  pthread_mutex_lock(&s->lock);
  entry *e = find_or_add(s, session);
  e->open++;
  e->tools = false;
  pthread_mutex_unlock(&s->lock);
}

void runtime_sessions_end(runtime_sessions *s, uint64_t session, bool reactive) {
  if (!session) return;
  pthread_mutex_lock(&s->lock);
  entry *e = find(s, session); /* may have gone in between */
  if (e) {
    e->open -= e->open > 0;
    e->reactive = reactive;
  }
  pthread_mutex_unlock(&s->lock);
}

void runtime_sessions_set_waits(runtime_sessions *s, uint64_t session, bool waits) {
  if (!session) return;
  pthread_mutex_lock(&s->lock);
  find_or_add(s, session)->tools = waits;
  pthread_mutex_unlock(&s->lock);
}

bool runtime_sessions_wait(runtime_sessions *s, uint64_t session) {
  if (!session) return false;
  pthread_mutex_lock(&s->lock);
  const entry *e = find(s, session);
  bool waits = e && e->tools && e->reactive && !e->open;
  pthread_mutex_unlock(&s->lock);
  return waits;
}
