/* SPDX-License-Identifier: Apache-2.0 */
#include "device/soc/events.h"

#include <stdbool.h>

static bool before(const events *e, uint32_t a, uint32_t b) {
  if (e->time_ns[a] != e->time_ns[b]) return e->time_ns[a] < e->time_ns[b];
  return e->sequence[a] < e->sequence[b];
}

static void put(events *e, uint32_t at, uint32_t source) {
  e->heap[at] = source;
  e->place[source] = at + 1;
}

static void settle(events *e, uint32_t at) {
  uint32_t source = e->heap[at];
  while (at && before(e, source, e->heap[(at - 1) / 2])) {
    put(e, at, e->heap[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  for (uint32_t child; (child = 2 * at + 1) < e->n; at = child) {
    if (child + 1 < e->n && before(e, e->heap[child + 1], e->heap[child])) child++;
    if (!before(e, e->heap[child], source)) break;
    put(e, at, e->heap[child]);
  }
  put(e, at, source);
}

void events_set(events *e, uint32_t source, int64_t time_ns) {
  if (e->place[source] && e->time_ns[source] == time_ns) return;
  e->time_ns[source] = time_ns;
  e->sequence[source] = e->next++;
  if (!e->place[source]) put(e, e->n++, source);
  settle(e, e->place[source] - 1);
}

void events_clear(events *e, uint32_t source) {
  if (!e->place[source]) return;
  uint32_t at = e->place[source] - 1;
  e->place[source] = 0;
  if (at == --e->n) return;
  put(e, at, e->heap[e->n]);
  settle(e, at);
}
