/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - one decision of the policy as bytes, so that it can be made again. Pure.
 *
 *   header | config | devices, each with its cost table | launches | requests | memory | actions
 *
 * Each part is the structs as they lie, 8-byte aligned; the header has their sizes, so that a
 * record of another build is refused, not misread. Records follow one another in a file. */
#ifndef SCHED_RECORD_H
#define SCHED_RECORD_H

#include "sched/sched.h"

enum { SCHED_RECORD_ACTIONS_MAX = 2 * SCHED_REQUESTS_MAX };

typedef struct sched_recorded {
  sched_view view; /* points into the bytes, and to `devices` */
  sched_device devices[SCHED_DEVICES_MAX];
  sched_memory before;
  int64_t now_ns;
  const sched_action *actions; /* as they were decided then */
  uint32_t n_actions;
} sched_recorded;

/* Bytes that sched_record_write would write. */
size_t sched_record_size(const sched_view *view, size_t n_actions);
/* Returns the bytes written, or 0: they do not fit. out: 8-byte aligned. */
size_t sched_record_write(const sched_view *view, const sched_memory *before, int64_t now_ns,
                          const sched_action *actions, size_t n_actions, uint8_t *out,
                          size_t capacity);
/* What `problem` points to when the bytes end before the record does; with more of them it may be
 * whole. */
extern const char sched_record_cut[];
/* One record from untrusted bytes (8-byte aligned). Returns the bytes it took; 0: there are none
 * (`problem` is NULL), they end before its end, or it is none that sched_decide may be given
 * (`problem` says which). Whatever it accepts can be decided again. */
size_t sched_record_read(const uint8_t *bytes, size_t len, sched_recorded *out,
                         const char **problem);

#endif
