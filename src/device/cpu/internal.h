/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - what the files of the CPU device share.
 *
 *   cpu.c      the driver's functions, and each worker's walk through a list
 *   weights.c  packing at prepare
 *   slots.c    activation slots, rotary tables
 *   list.c     a command list: its rows cut into chunks and blocks, its place in the graph
 *   stages.c   what a panel of each stage computes
 *   pool.c     the workers */
#ifndef DEVICE_CPU_INTERNAL_H
#define DEVICE_CPU_INTERNAL_H

#include <stdatomic.h>

#include "device/cpu/cpu.h"
#include "device/cpu/pool.h"
#include "kernel/kernel.h"

enum {
  CPU_CHUNK_ROWS =
      16,           /* rows of one arithmetic: what work is cut by; neighbours are joined again */
  CPU_ROW_ITEM = 4, /* rows of a panel in stages that go row by row */
  CPU_PANELS_ITEM = 2,   /* weight panels of a panel in matrix products */
  CPU_ITEM_OPS = 1 << 25 /* multiply-adds x 2 of one panel: 0.15-0.35 ms on one AVX core */
};

/* One run's activations. Written by one launch at a time; survives a stop. Rows are 64-byte
 * aligned. */
typedef struct cpu_slot {
  uint32_t rows, splits; /* splits: partial attention results held at once */
  float *x, *h, *out;    /* [rows][width]: residual stream, normed, output of the last projection */
  float *qkv;       /* [rows][(heads + 2 kv_heads) x head_dim]; attention's result replaces q */
  float *gate, *up; /* [rows][ff] */
  uint8_t *act;     /* [rows][kernel_act_bytes(widest)] packed activations */
  float *cos_sin[GRAPH_ROPES_MAX]; /* [rows][head_dim] */
  float *part;                     /* [splits][kv_heads][rows][group][part_stride] */
  float *state;                    /* [rows][heads][part_stride] */
} cpu_slot;

typedef struct cpu_rope_table { /* angles by pos = 64 * high + low, so that a row costs four
                                   multiplications a pair */
  double *high, *low;           /* [n][pairs]{cos, sin} */
} cpu_rope_table;

typedef struct cpu_device {
  device base;
  pool *workers;
  kernel_table k;
  uint32_t test_stop_panels;
  const device_tables *tables;
  const graph *g;
  kernel_weight *weights; /* [graph.n_weights] */
  uint8_t *weight_memory, *slot_memory;
  size_t weight_bytes, slot_bytes;
  cpu_slot slots[DEVICE_SLOTS_MAX];
  cpu_rope_table ropes[GRAPH_ROPES_MAX];
  uint8_t **scratch; /* one a worker */
  size_t scratch_bytes;
  uint32_t act_stride, qkv_stride, part_stride; /* bytes, floats, floats */
  device_queue *queue;                          /* the one that is open, or NULL */
  char name[64];
} cpu_device;

typedef enum cpu_stage {
  CPU_EMBED,
  CPU_NORM,
  CPU_QKV,
  CPU_ROPE, /* A */
  CPU_ATTN,
  CPU_MERGE, /* S: once a wave of splits */
  CPU_OUT,
  CPU_MIDDLE,
  CPU_GATE,
  CPU_GLU,
  CPU_DOWN, /* C */
  CPU_LAST,
  CPU_LOGITS, /* HEAD */
} cpu_stage;

typedef struct cpu_cursor { /* a stage of a list */
  uint16_t node;
  uint8_t stage;
  uint32_t wave;
} cpu_cursor;

typedef struct cpu_part { /* a command */
  const device_row *rows; /* of the command */
  cpu_slot *slot;
  uint32_t slot_row0, n; /* in the slot */
  uint32_t first;        /* in the list: rows before this part's */
  /* Wanting rows of the run in front of this part's (a command may cover a range of rows), and its
   * own; where the logits of its first one go. */
  uint32_t want0, wants;
  float *logits;
} cpu_part;

typedef struct cpu_chunk { /* rows of one part, one arithmetic */
  uint8_t part, arith;
  uint32_t row0, rows; /* in the part, or among its wanting rows */
  uint32_t first;      /* in the list */
} cpu_chunk;

typedef struct cpu_block { /* consecutive positions of one sequence */
  uint8_t part, arith;
  uint32_t row0, rows, seq, pos0;
} cpu_block;

typedef struct cpu_list {
  device_queue *queue;
  uint64_t sequence;
  uint16_t node, node_end;
  cpu_part parts[DEVICE_COMMANDS_MAX];
  uint32_t n_parts, rows, wants;
  cpu_chunk *chunks, *want_chunks; /* capacity: rows of all slots */
  uint32_t n_chunks, n_want_chunks;
  cpu_block *blocks;
  uint32_t n_blocks;
  uint32_t *want_rows; /* row in its part of each wanting row, in the list's order */
  device_event wait[4];
  uint32_t n_wait;
  cpu_cursor start;                /* where to begin: node, or after a stop */
  uint32_t start_item, start_base; /* panels of that stage done; panels of all stages before */
  uint32_t panel_limit;            /* test hook: stop there; UINT32_MAX: none */
  int64_t start_ns;                /* worker 0 began; ordered by the first barrier */
  /* Shared by the workers while the list runs. */
  _Alignas(64) _Atomic uint32_t next;
  _Alignas(64) _Atomic bool stop;
  bool stopped; /* by the last to arrive, before release */
  uint32_t base;
} cpu_list;

struct cpu_queue {
  device_queue head;
  cpu_device *d;
  device_done *done;
  void *context;
  cpu_list lists[POOL_JOBS_MAX];
  _Atomic uint64_t jobs[POOL_JOBS_MAX]; /* pool job of each list */
  _Atomic uint64_t submitted;           /* written by the runtime thread */
  _Atomic uint64_t completed;
  _Atomic uint32_t completed_signal, waiters; /* of queue_wait; the first is a futex word */
  _Atomic int64_t busy_ns;
  int64_t opened_ns;
};

troika_status cpu_weights_pack(cpu_device *d, void (*progress)(void *, uint64_t, uint64_t),
                               void *context, troika_error *err);
void cpu_weights_free(cpu_device *d);
troika_status cpu_slots_create(cpu_device *d, troika_error *err);
void cpu_slots_free(cpu_device *d);
size_t cpu_slot_bytes(const graph *g, uint32_t rows);

/* Cuts the commands into parts, chunks and blocks. Only reads tables. */
void cpu_list_compile(cpu_device *d, cpu_list *list, const device_command *commands, unsigned n);
/* Moves list->start to panel `panel` counted from the start of the node range. */
void cpu_list_seek(const cpu_device *d, cpu_list *list, uint32_t panel);
cpu_cursor cpu_cursor_first(const cpu_device *d, uint16_t node);
/* False past the list's last stage. */
bool cpu_cursor_next(const cpu_device *d, const cpu_list *list, cpu_cursor *cursor);

uint32_t cpu_stage_panels(const cpu_device *d, const cpu_list *list, const cpu_cursor *cursor);
void cpu_stage_run(cpu_device *d, cpu_list *list, const cpu_cursor *cursor, uint32_t panel,
                   uint32_t worker);

/* Splits that a block sees on this node: [first, first + count). */
uint32_t cpu_block_splits(const cpu_block *b, uint32_t window, uint32_t *first);

static inline uint32_t cpu_group(const graph *g) {
  return g->heads / g->kv_heads;
}

#endif
