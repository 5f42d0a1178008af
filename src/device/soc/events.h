/* SPDX-License-Identifier: Apache-2.0 */
/* events.h - what happens next under a virtual clock: a heap of a few known sources, each with at
 * most one event, keyed (time, sequence number) so that equal times keep their order. Pure. */
#ifndef DEVICE_SOC_EVENTS_H
#define DEVICE_SOC_EVENTS_H

#include <stdint.h>

enum { EVENTS_SOURCES = 16 };

typedef struct events { /* all zero: empty */
  uint32_t n;
  uint32_t heap[EVENTS_SOURCES];  /* sources, earliest first */
  uint32_t place[EVENTS_SOURCES]; /* in heap, plus 1; 0: has no event */
  int64_t time_ns[EVENTS_SOURCES];
  uint64_t sequence[EVENTS_SOURCES], next;
} events;

/* A source's event is at time_ns now. It goes behind others of that time, unless its time is as it
 * was. */
void events_set(events *e, uint32_t source, int64_t time_ns);
void events_clear(events *e, uint32_t source);

#endif
