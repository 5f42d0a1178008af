/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.h - the flight recorder: every decision of the policy, what it saw and what it said, in
 * a file, so that a run can be replayed (`troika replay`) and a surprise explained. sched/record.h
 * has the format. Runtime thread only. */
#ifndef RUNTIME_RECORDER_H
#define RUNTIME_RECORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "sched/sched.h"
#include "troika/status.h"

typedef struct runtime_recorder runtime_recorder;

/* path NULL: none, and *out stays NULL. Errors: the path and why. */
troika_status runtime_recorder_open(const char *path, runtime_recorder **out, troika_error *err);
void runtime_recorder_close(runtime_recorder **r);
/* `before`: the memory that sched_decide was given. Waits for no file, allocates nothing:
 * what the writer's thread does not keep up with is lost, and said at close. */
void runtime_recorder_decision(runtime_recorder *r, const sched_view *view,
                               const sched_memory *before, int64_t now_ns,
                               const sched_action *actions, size_t n);

#endif
