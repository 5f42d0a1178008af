/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h - a timeline of the engine in a file that Perfetto opens: a row per device with its
 * launches, a row per request with its phases. A slice is named by its class alone, which makes its
 * colour the class's; its phase is in its arguments. The runtime thread puts events into a bounded
 * ring and never waits: what does not fit is counted and said in the file; a thread of its own
 * writes. Times: nanoseconds of the runtime's clock. */
#ifndef RUNTIME_TRACE_H
#define RUNTIME_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/status.h"

typedef struct runtime_trace runtime_trace;

/* Creates or empties the file and starts the thread. Errors: the path and why. */
troika_status runtime_trace_open(const char *path, runtime_trace **out, troika_error *err);
/* Writes what is left; the file is whole JSON afterwards, and readable before. NULL: nothing. */
void runtime_trace_close(runtime_trace **t);

typedef struct trace_stretch { /* a launch on a device, from a start or resume to its end or stop */
  uint32_t launch, prompt_rows, reactive_rows, background_rows; /* rows: of its decode rows */
  uint32_t request;                                             /* of the prompt rows */
  uint8_t device, band; /* band: sched_band, the most urgent one */
  bool promoted, stopped;
  int64_t start_ns, end_ns;
} trace_stretch;

typedef struct trace_request { /* at its end */
  uint32_t id, prompt_tokens, cached_tokens, completion_tokens;
  uint8_t band;
  const char *finish;                                     /* a constant */
  int64_t submit_ns, start_ns, first_ns, last_ns, end_ns; /* 0: never came to it */
} trace_request;

/* Runtime thread only. */
void runtime_trace_stretch(runtime_trace *t, const trace_stretch *s);
void runtime_trace_request(runtime_trace *t, const trace_request *r);
/* A value over time: "running reactive", "kv pages used", ... name is a constant. */
void runtime_trace_counter(runtime_trace *t, const char *name, int64_t now_ns, int64_t value);

#endif
