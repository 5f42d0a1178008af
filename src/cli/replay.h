/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - what `troika replay` found in a record of decisions, and its text. Private to this
 * room. */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "sched/record.h"

enum { REPLAY_SLOTS = 24, REPLAY_SHOWN = 5, REPLAY_TERMS = SCHED_TERM_FIXED + 1 };

typedef struct replay_slot { /* a stretch of the record's time */
  uint64_t decisions, launches, stops;
  uint32_t terms[REPLAY_TERMS]; /* decisions by what bound the batch */
  uint32_t bcap_least, bcap_most, level, running[SCHED_BANDS], queued[SCHED_BANDS]; /* most */
  bool bcap_seen;
} replay_slot;

typedef struct replay_mismatch {
  uint64_t decision;
  int64_t at_ns; /* since the record's begin */
  char text[240];
} replay_mismatch;

typedef struct replay_report {
  uint64_t decisions, bytes, mismatches, missing, memory_mismatches;
  uint64_t actions[SCHED_STOP + 1], requests[SCHED_BANDS];
  uint64_t rows_prompt, rows_decode, iterations;
  int64_t first_ns, last_ns;
  int64_t spent_ns, slot_ns; /* deciding it all again; of a slot */
  replay_slot slots[REPLAY_SLOTS];
  replay_mismatch shown[REPLAY_SHOWN];
} replay_report;

const char *replay_action_name(uint8_t kind);
/* Counts one decision; `after` is the memory that deciding it again has left. */
void replay_count(replay_report *r, const sched_recorded *d, const sched_memory *after);

/* problem: why the record ends here; NULL: it is whole. */
void replay_print(const replay_report *r, const char *file);
void replay_print_json(const replay_report *r, const char *file, const char *problem);

#endif
