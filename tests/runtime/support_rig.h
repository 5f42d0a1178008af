/* SPDX-License-Identifier: Apache-2.0 */
/* support_rig.h - a model on the CPU device without the runtime: rows in, logits out, for tests
 * that look inside. Sequence s owns KV pages of its own from the start; nothing is shared or given
 * back. Failures end the test program with a sentence. */
#ifndef TESTS_RUNTIME_RIG_H
#define TESTS_RUNTIME_RIG_H

#include <pthread.h>

#include "device/cpu/cpu.h"
#include "kernel/kernel.h"
#include "model/model.h"

enum { RIG_SLOTS_MAX = 4, RIG_SEQUENCES_MAX = 16 };

typedef struct rig_options {
  const char *model; /* file name in the models folder, or a whole path */
  uint32_t threads, activations, stop_panels;
  const char *levels;        /* NULL: all */
  uint32_t slots, slot_rows; /* each slot holds so many rows, all may want logits */
  uint32_t sequences, context;
} rig_options;

typedef struct rig {
  rig_options o;
  gguf *file;
  graph *g;
  device *cpu;
  device_queue *queue;
  const kernel_table *k;
  device_tables tables;
  device_run runs[RIG_SLOTS_MAX];
  device_row *rows; /* [slots][slot_rows] */
  device_seq seqs[RIG_SEQUENCES_MAX];
  uint32_t *pages;
  size_t pool_bytes[GRAPH_KV_GROUPS_MAX], logits_bytes;
  uint32_t logits_stride, stops;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool done;
  device_completion completion;
} rig;

/* $TROIKA_MODELS, else the models folder of the user's cache; a name that begins with '/' stays. */
void rig_model_path(const char *name, char *out, size_t size);
rig *rig_open(rig_options o);
void rig_close(rig *r);
static inline device_row *rig_rows(rig *r, uint32_t slot) {
  return r->rows + slot * r->o.slot_rows;
}
static inline float *rig_logits(rig *r, uint32_t slot) {
  return r->tables.logits[slot];
}
/* Runs rows [0, n[i]) of the slots slots[i] together through the whole graph; goes on after every
 * stop. */
void rig_run(rig *r, const uint32_t *slots, const uint32_t *n, uint32_t count);
/* tokens at positions pos.. of a sequence, all of one arithmetic; logits of all rows (or only the
 * last) lie in the slot afterwards. */
void rig_feed(rig *r, uint32_t slot, uint32_t seq, uint32_t pos, const int32_t *tokens, uint32_t n,
              device_arith arith, bool all);

#endif
