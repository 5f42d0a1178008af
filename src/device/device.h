/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - the driver interface: three objects, sixteen functions, every processor behind it.
 *
 *   device   what it is and what it can run; prepared once with the graph, weights and slots, so
 *            that a command is only numbers
 *   buffer   host memory that it works on (imported), or its own (allocated, copied)
 *   queue    command lists, in order; each waits on events and signals one
 *
 * Threads: whoever opens the device calls prepare, the open and close functions; the runtime thread
 * submits and stops; describe may come from any thread. Completions come back by a callback on a
 * driver's thread, straight into the runtime's mailbox. Rows, runs and sequences lie in tables that
 * the runtime owns (device_tables) and does not change while a command that names them is in
 * flight.
 * Buffers and reset serve drivers with memory or faults of their own; the CPU's are trivial. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "device/graph.h"
#include "troika/device.h"
#include "troika/status.h"

typedef struct device device;
typedef struct device_buffer device_buffer;
typedef struct device_queue device_queue;

enum { DEVICE_COMMANDS_MAX = 4, DEVICE_LISTS_MAX = 3, DEVICE_SLOTS_MAX = 8 };

/* PROMPT: a token that the client sent; GEN: one that the model produced. Fixed by what the row is,
 * never by its company. */
typedef enum device_arith { DEVICE_PROMPT, DEVICE_GEN } device_arith;
enum { DEVICE_WANT_LOGITS = 1, DEVICE_WANT_HIDDEN = 2 };

typedef struct device_row {
  uint32_t seq, pos;
  int32_t token;
  uint8_t arith, want;
} device_row;

/* A run: rows that walk the graph together in one activation slot. `panel`: where a stopped launch
 * goes on. */
typedef struct device_run {
  uint32_t id, row0, rows, panel;
  uint16_t slot, node, node_end;
  uint8_t class_, state;
} device_run;

/* rows and columns are ranges, so that whole, weight-centric, activation-centric and hybrid splits
 * are one command. cols 0: all. */
typedef struct device_command {
  uint32_t run;
  uint16_t node, node_end;
  uint32_t row0, rows, col0, cols;
} device_command;

typedef struct device_event {
  device_queue *queue;
  uint64_t sequence; /* 1, 2, ... per queue; 0: none */
} device_event;

typedef struct device_seq {
  const uint32_t *pages[GRAPH_KV_GROUPS_MAX]; /* page numbers by position / 32 */
} device_seq;

/* Plain tables in host memory, owned by the runtime, at one address from prepare to close. */
typedef struct device_tables {
  const graph *graph;
  const device_run *runs;
  const device_row *rows;
  const device_seq *seqs;
  uint8_t *kv_pool[GRAPH_KV_GROUPS_MAX];
  uint32_t n_slots, slot_rows[DEVICE_SLOTS_MAX]; /* rows that each slot must hold */
  uint32_t slot_wants[DEVICE_SLOTS_MAX];         /* rows of it that may want logits */
  uint32_t context;                              /* positions of a sequence, at most */
  /* [wants][vocab rounded up to 16], in order of the run's wanting rows; written by the head */
  float *logits[DEVICE_SLOTS_MAX];
} device_tables;

typedef struct device_completion {
  device_event event;
  troika_status status;
  uint32_t panel; /* panels done since the start of the node range; UINT32_MAX: all of it */
  int64_t start_ns, end_ns;
} device_completion;
typedef void device_done(void *context, const device_completion *completion);

typedef struct device_driver {
  const char *name;
  void (*describe)(const device *d, troika_device_info *out);
  /* false with a reason where this device cannot run the node with that many rows */
  bool (*can_run)(const device *d, const graph *g, const graph_node *node, uint32_t rows,
                  const char **reason);
  /* Once: packs or uploads weights, reserves slots. progress may be NULL. */
  troika_status (*prepare)(device *d, const device_tables *tables,
                           void (*progress)(void *, uint64_t, uint64_t), void *context,
                           troika_error *err);
  /* weights and all; of these, activation slots */
  uint64_t (*memory_used)(const device *d, uint64_t *slot_bytes);
  troika_status (*reset)(device *d, troika_error *err); /* after a fault; queues must be empty */
  void (*close)(device *d);                             /* queues and buffers first */

  troika_status (*buffer_import)(device *d, void *host, size_t len, device_buffer **out,
                                 troika_error *err);
  troika_status (*buffer_create)(device *d, size_t len, device_buffer **out, troika_error *err);
  /* host access; no-ops where memory is coherent */
  void *(*buffer_begin)(device_buffer *b);
  void (*buffer_end)(device_buffer *b);
  void (*buffer_destroy)(device_buffer *b);

  troika_status (*queue_open)(device *d, device_done *done, void *context, device_queue **out,
                              troika_error *err);
  /* All commands of a list cover the same node range and run together, panel by panel. BUSY past
   * DEVICE_LISTS_MAX unfinished. */
  troika_status (*queue_submit)(device_queue *q, const device_command *commands, unsigned n,
                                const device_event *wait, unsigned n_wait, device_event *done);
  /* Asks the list to stop (CPU: within 1 ms; elsewhere: what has not started). Its completion tells
   * how far it came. */
  troika_status (*queue_stop)(device_queue *q, const device_event *done);
  /* for tests and close */
  troika_status (*queue_wait)(device_queue *q, const device_event *done, int64_t timeout_ns);
  void (*queue_close)(device_queue *q); /* waits for what runs */
} device_driver;

struct device {
  const device_driver *driver;
};

/* Every driver's queue begins with this, so that one queue can wait on another's event. */
struct device_queue {
  device *owner;
};

#endif
