/* troika/runtime.h - the engine: one model on this machine's processors, serving many streams.
 *
 *   model  ->  runtime  ->  stream  ->  events
 *   (file)     (threads,    (a client's  (tokens, end)
 *               KV pages)    requests)
 *
 * A runtime owns one scheduling thread, the processors' worker threads, the packed weights and the
 * KV pages. Lifetimes form a tree: streams are closed before their runtime, the runtime before its
 * model; out of order is TROIKA_BUSY, not a crash.
 *
 * Copyright 2026 the troika authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef TROIKA_RUNTIME_H
#define TROIKA_RUNTIME_H

#include "troika/device.h"
#include "troika/model.h"
#include "troika/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct troika_runtime troika_runtime;

/* The arithmetic of activations in the CPU's matrix products; each is a kernel set of its own with
 * its own (bit-stable) answers. */
typedef enum troika_activations {
  TROIKA_ACTIVATIONS_DEFAULT, /* prompt bf16, generated tokens 16 bits per block of 32: KL <= 0.002
                                 nats of float */
  TROIKA_ACTIVATIONS_FLOAT,   /* fp32 throughout: slowest, the reference */
  TROIKA_ACTIVATIONS_INT8     /* 8 bits per block of 32: fastest, less exact */
} troika_activations;

/* Zero or NULL takes the default in brackets. */
typedef struct troika_runtime_options {
  uint32_t size;     /* sizeof(troika_runtime_options) */
  uint32_t threads;  /* workers, at most 256 [processors it may use, by affinity and quota] */
  uint32_t parallel; /* requests that run at once [32], at most 64 */
  uint32_t
      queue_max;     /* [256, at most 16384] Requests that may wait for a place. If background fills
                         the queue, reactive ones still get in, and the newest of it is BUSY. */
  uint32_t context;  /* most tokens of one request, prompt and answer [the model's, at most 8192] */
  uint64_t kv_bytes; /* KV pool [parallel x context, at most half of the free memory] */
  troika_activations activations;
  const char
      *cpu_levels; /* which instruction sets may be used: "all", "scalar", "avx2,avx512" [all] */
  uint32_t
      span_rows; /* prompt rows of a span, 16 to 4096; fewer if slots would exceed 64 MiB [256] */
  /* The policy: scheduling.md. */
  uint32_t bcap; /* rows of a batch that holds a reactive one, at most [adaptive]; the paper's: 3 */
  double tpot_slack;       /* by which the background may stretch a reactive iteration [0.15] */
  double tpot_target_ms;   /* absolute time per token that it must keep [none] */
  double ttft_target_ms;   /* of pressure [1000] */
  double age_limit_s;      /* after which one waiting request is promoted [30] */
  double background_share; /* of the time, that promoted work may cost [0.05] */
  bool degrade_first; /* under pressure shorten what allows it before refusing background [false] */
  const char *profile; /* file of the measured cost table, or with a slash at its end a folder where
                          it has its own name; written when one has been measured, which an idle
                          engine does by itself; read if it fits this machine and model [none:
                          guessed, corrected as it runs] */
  const char *trace;   /* file: a timeline that Perfetto opens [none] */
  const char *record;  /* file: every decision, for `troika replay` [none] */
  uint32_t test_stop_panels; /* test hook: stop and resume every launch after this many panels [0:
                                never] */
  /* Called while weights are packed, on the calling thread: done of total bytes. */
  void (*progress)(void *context, uint64_t done, uint64_t total);
  void *progress_context; /* borrowed during the call */
} troika_runtime_options;

/* Packs the weights (the long part: about 1 s per GB), reserves KV pages and activation slots,
 * starts the threads. `model` is borrowed until close. options may be NULL. Errors: INVALID,
 * UNSUPPORTED (a weight's shape or type), NO_MEMORY, LIMIT (the numbers in the text). */
TROIKA_API troika_status troika_runtime_open(troika_model *model,
                                             const troika_runtime_options *options,
                                             troika_runtime **out, troika_error *err);
/* Ends the threads and frees everything; NULLs *runtime. BUSY while a stream is open (nothing
 * changed). */
TROIKA_API troika_status troika_runtime_close(troika_runtime **runtime);

/* A snapshot; any thread, never waits for the engine. */
typedef struct troika_runtime_stats {
  uint32_t threads, parallel, queue_max, context, span_rows;
  uint32_t running, queued;             /* requests now */
  uint64_t requests, cancelled, failed; /* since start: ended in all, of these cancelled, failed */
  uint64_t prompt_tokens, cached_tokens, generated_tokens; /* computed, found in the cache, made */
  uint64_t launches, stops; /* handed to devices; stopped before their end */
  uint64_t kv_bytes, kv_bytes_used, slot_bytes, weight_bytes, memory_peak;
  double load_s; /* time troika_runtime_open took */
  /* By class: reactive, proactive. */
  uint32_t running_by[2], queued_by[2];
  uint64_t prompt_tokens_by[2], generated_tokens_by[2];
  double launch_s_by[2]; /* device time of launches that hold a row of that class; one with both
                            counts as reactive */
  uint64_t preemptions;  /* launches stopped for a more urgent one */
  uint64_t suspensions;  /* requests whose pages were taken */
  uint64_t dropped;      /* stopped iterations given up */
  uint64_t piggybacked;  /* rows of the background in reactive iterations */
  uint64_t promotions, refused;
  uint64_t prefix_hits, prefix_lookups; /* requests */
  uint64_t kv_evictions;                /* pages */
  uint64_t bytes_copied;                /* by switches between requests: 0 */
  uint32_t bcap; /* rows of the last iteration with a reactive one that the budget allowed */
  const char *bcap_term; /* what bound it: "slack", "target", "fill", "memory", "fixed", "none" */
  uint32_t level;        /* of pressure, 0 to 6 */
  double pressure, backlog_s, x_ms;
  /* What a stop of a launch is held to take at most: the longest that was measured for the cost
   * table, or a guess; stop_p95_ms, at most 10, while that is longer after 32 stops or more. */
  double preempt_bound_ms;
  bool bound_measured; /* else it is a guess */
  /* Of launches stopped for more urgent work, from asking to seeing it stopped: the 95th percentile
   * of the last 128, and the longest of all; 0: none yet. `preemptions` counts them. */
  double stop_p95_ms, stop_max_ms;
  double model_error; /* 90th percentile of |observed - predicted| / predicted */
  char kernels[48];   /* "default avx512vnni" */
} troika_runtime_stats;
/* Whether the last turn of this session ended in tool calls: then its children inherit its urgency
 * while it has no open request. Any thread. */
TROIKA_API void troika_runtime_session_waits(troika_runtime *runtime, uint64_t session, bool waits);
/* Measures the cost table on this machine and model (10 to 30 s, while no request is open: BUSY),
 * uses it from then on, and writes it to options.profile if that is set. */
TROIKA_API troika_status troika_runtime_profile(troika_runtime *runtime,
                                                void (*progress)(void *context, uint64_t done,
                                                                 uint64_t total),
                                                void *progress_context, troika_error *err);
/* The table as JSON, into out (0-terminated if it fits); returns the length it has. */
TROIKA_API size_t troika_runtime_costs(const troika_runtime *runtime, char *out, size_t capacity);
TROIKA_API void troika_runtime_describe(const troika_runtime *runtime, troika_runtime_stats *out);
TROIKA_API uint32_t troika_runtime_devices(const troika_runtime *runtime, troika_device_info *out,
                                           uint32_t capacity);

#ifdef __cplusplus
}
#endif
#endif
