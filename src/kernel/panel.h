/* panel.h - where the parts of one packed panel lie, and what its bytes mean, for the rooms' own
 * files.
 *
 * The picture is in pack.h. Offsets follow from (pack, k) alone, so nothing is stored per panel;
 * every kernel computes a view once per panel, which costs a few additions against K * 16
 * multiplications. SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PANEL_H
#define KERNEL_PANEL_H

#include "kernel/kernel.h"

/* Borrowed pointers into one panel. Which of them are set depends on the pack:
 *   F32 F16 BF16  codes = the values
 *   U4 U8         scale f16 [k/32][16]
 *   U4M           scale, minimum f16 [k/32][16]
 *   U4K           scale, minimum u8 [k/32][16]; super, super_minimum f16 [k/256][16]
 *   U8K           scale i8 [k/16][16]; super f16 [k/256][16] */
typedef struct kernel_panel {
  const uint8_t *codes, *scale, *minimum, *super, *super_minimum;
} kernel_panel;

/* Offsets of the parts from the panel's start; `total` is panel_bytes. */
typedef struct kernel_panel_parts {
  size_t scale, minimum, super, super_minimum, total;
} kernel_panel_parts;

static inline size_t kernel_round64(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

static inline kernel_panel_parts kernel_panel_layout(kernel_pack pack, uint32_t k) {
  const size_t blocks = k / 32, f16 = 2 * KERNEL_PANEL, u8 = KERNEL_PANEL;
  size_t codes = 0, scale = 0, minimum = 0, super = 0, super_minimum = 0;
  switch (pack) {
    case PACK_F32:
      codes = (size_t)k * KERNEL_PANEL * 4;
      break;
    case PACK_F16:
    case PACK_BF16:
      codes = (size_t)k * KERNEL_PANEL * 2;
      break;
    case PACK_U4:
      codes = blocks * 256, scale = blocks * f16;
      break;
    case PACK_U4M:
      codes = blocks * 256, scale = blocks * f16, minimum = blocks * f16;
      break;
    case PACK_U4K:
      codes = blocks * 256, scale = blocks * u8, minimum = blocks * u8;
      super = blocks / 8 * f16, super_minimum = blocks / 8 * f16;
      break;
    case PACK_U8:
      codes = blocks * 512, scale = blocks * f16;
      break;
    case PACK_U8K:
      codes = blocks * 512, scale = blocks * 2 * u8, super = blocks / 8 * f16;
      break;
    default:
      break;
  }
  kernel_panel_parts parts;
  parts.scale = kernel_round64(codes);
  parts.minimum = parts.scale + kernel_round64(scale);
  parts.super = parts.minimum + kernel_round64(minimum);
  parts.super_minimum = parts.super + kernel_round64(super);
  parts.total = parts.super_minimum + kernel_round64(super_minimum);
  return parts;
}

static inline kernel_panel kernel_panel_at(const kernel_weight *w, uint32_t panel) {
  const kernel_panel_parts parts = kernel_panel_layout((kernel_pack)w->pack, w->k);
  const uint8_t *base = w->data + (size_t)panel * w->panel_bytes;
  return (kernel_panel){base, base + parts.scale, base + parts.minimum, base + parts.super,
                        base + parts.super_minimum};
}

/* Column `lane`, values or codes [32 * block, 32 * block + 32): the scalar meaning of a panel. */
void kernel_panel_values(kernel_pack pack, const kernel_panel *p, uint32_t block, uint32_t lane,
                         float *out);
void kernel_panel_codes(kernel_pack pack, const kernel_panel *p, uint32_t block, uint32_t lane,
                        uint8_t *out);
/* Scale and minimum of values [16 * half_block, +16): w_d and w_m of kernel.h. */
void kernel_panel_scales(kernel_pack pack, const kernel_panel *p, uint32_t half_block,
                         uint32_t lane, float *w_d, float *w_m);

#endif
