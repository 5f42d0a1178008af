/* mm_ahead.h - asking for the bytes of a panel before they are needed.
 *
 * A panel is two to five streams (codes, scales, minima, ...) that begin anew every panel, and each
 * beginning costs the hardware's prefetcher a memory latency or two, which is a third of a panel's
 * time. So: codes are asked for MM_AHEAD bytes ahead, across the end of the panel into the next;
 * the small parts a whole panel ahead. Past the last panel the addresses may be anyone's: a
 * prefetch cannot fault. SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_X86_MM_AHEAD_H
#define KERNEL_X86_MM_AHEAD_H

#include <xmmintrin.h>

#include "kernel/panel.h"

/* Measured on Zen 5, Q4_0, one row: 2048 0.74 of the read bandwidth, 4096 0.83, 6144 0.89, 8192
 * 0.87. */
#ifndef MM_AHEAD
#define MM_AHEAD 6144
#endif

typedef struct mm_ahead {
  size_t codes_end, codes_jump; /* bytes of codes; what lies between them and the next panel's */
  size_t distance;              /* MM_AHEAD, at most two panels of codes */
  size_t panel;                 /* from a panel to the one that this thread takes next */
  size_t small;                 /* the same, as often as MM_AHEAD asks for */
} mm_ahead;

/* `step` panels are walked side by side. */
static inline mm_ahead mm_ahead_of(const kernel_mm *args, uint32_t step) {
  const kernel_weight *w = args->weight;
  const kernel_panel_parts parts = kernel_panel_layout((kernel_pack)w->pack, w->k);
  const size_t panel = step * w->panel_bytes, most = 2 * parts.scale;
  return (mm_ahead){.codes_end = parts.scale,
                    .codes_jump = panel - parts.scale,
                    .distance = most < MM_AHEAD ? most : MM_AHEAD,
                    .panel = panel,
                    .small = panel * (parts.scale < MM_AHEAD ? 2 : 1)};
}

#define MM_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

/* For block b of `bytes` bytes of codes. */
static inline __attribute__((always_inline)) void mm_ahead_ask(const mm_ahead *a, kernel_pack pack,
                                                               const kernel_panel *p, size_t b,
                                                               size_t bytes) {
  size_t at = b * bytes + a->distance;
  if (at >= a->codes_end) at += a->codes_jump;
  if (at >= a->codes_end + a->panel) at += a->codes_jump;
  for (size_t line = 0; line < bytes; line += 64) MM_PREFETCH(p->codes + at + line);
  if (pack < PACK_U4) return;
  MM_PREFETCH(p->scale + a->small + b * (pack == PACK_U4K ? 16 : 32));
  if (pack == PACK_U4M) MM_PREFETCH(p->minimum + a->small + b * 32);
  if (pack == PACK_U4K) MM_PREFETCH(p->minimum + a->small + b * 16);
  if ((pack == PACK_U4K || pack == PACK_U8K) && b % 8 == 0)
    MM_PREFETCH(p->super + a->small + b / 8 * 32);
  if (pack == PACK_U4K && b % 8 == 0) MM_PREFETCH(p->super_minimum + a->small + b / 8 * 32);
}

#endif
