/* SPDX-License-Identifier: Apache-2.0 */
/* kv_layouts.h - does paging pay here? KV memory in pages of 16, 32 and 64 tokens against one run
 * of memory a sequence: bytes that hold nothing, bytes of tables and tree, time of attention.
 *
 *   sequences   of a mix of lengths as agents have them (kv_layouts_length), the first n of eight
 *   wasted      bytes that are taken and hold no position that a row may still see
 *   overhead    page tables, entries of pages, the prefix tree with its hash buckets; of a
 *               contiguous layout an address and a size. Pages of 32 are counted by the kv room
 *               itself, which holds and publishes these sequences; the others by the sizes of the
 *               same structures
 *   time        attention of one GEN row a sequence over all layers and heads, a decode step's
 *               work, by the kernels that the engine uses: one thread, its CPU time (so that a
 *               neighbour does not count). Per token: divided by the sequences
 *
 * The kernels work on blocks of 32 tokens. Two of them lie in a page of 64, all of one layer and
 * head side by side in a contiguous run. A page of 16 holds half a block: two are gathered into one
 * before the kernel reads it, and that time counts; a kernel made for 16 could save part of it.
 * Pages are taken in random order, as from a pool that was in use for hours.
 *
 * Contiguous is shown twice: reserved for the longest sequence (`context`), and grown by doubling,
 * whose copying is told in bytes. Windows are rings of window + span there. Both read memory the
 * same way, so they share one time.
 *
 * Every layout computes the same: unequal bits are an error. */
#ifndef BENCH_KV_LAYOUTS_H
#define BENCH_KV_LAYOUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/status.h"

enum { KV_LAYOUTS_SEQUENCES_MAX = 64, KV_LAYOUTS_RUNS_MAX = 1000 };

typedef enum kv_layout {
  KV_LAYOUT_RESERVED, /* contiguous, for `context` positions */
  KV_LAYOUT_DOUBLED,  /* contiguous, grown by doubling from 32 positions */
  KV_LAYOUT_16,
  KV_LAYOUT_32,
  KV_LAYOUT_64,
  KV_LAYOUT_COUNT
} kv_layout;

typedef struct kv_layouts_options {
  const char *model; /* path of a GGUF file: only its shape is used; borrowed */
  uint32_t context;  /* longest sequence; 0: the model's, at most 8192 */
  uint32_t repetitions, warmups;
  const char *cpu_levels;
  int activations;
  bool (*go_on)(void *context, uint32_t done, uint32_t of); /* between measurements; false: stop */
  void *go_on_context;
} kv_layouts_options;

typedef struct kv_layout_result {
  uint64_t held;           /* bytes taken for keys and values */
  uint64_t overhead;       /* bytes of tables and tree */
  uint64_t copied;         /* bytes moved in growing to these lengths */
  double median, min, max; /* microseconds a token */
} kv_layout_result;

typedef struct kv_layouts_result {
  uint32_t sequences, context;
  uint64_t tokens; /* of all sequences */
  uint64_t used;   /* bytes that hold positions which rows may still see */
  kv_layout_result of[KV_LAYOUT_COUNT];
} kv_layouts_result;

/* Positions of sequence i of the mix, for the longest of `context`. */
uint32_t kv_layouts_length(uint32_t i, uint32_t context);
const char *kv_layout_name(kv_layout layout);
uint64_t kv_layout_wasted(const kv_layouts_result *r, kv_layout layout);

/* Fills *out for `sequences` at once. CANCELLED: go_on said so. LIMIT with the numbers if the
 * longest sequences do not fit into half of the free memory. */
troika_status kv_layouts_measure(const kv_layouts_options *o, uint32_t sequences,
                                 kv_layouts_result *out, troika_error *err);
/* The layout with the smallest (held + overhead) * time: the most tokens a second that fit into a
 * given memory. */
kv_layout kv_layouts_verdict(const kv_layouts_result *r);

#endif
