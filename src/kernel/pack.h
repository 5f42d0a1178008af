/* pack.h - the CPU's own weight layout: panels of 16 columns, made once at load.
 *
 *   weight = panel 0 | panel 1 | ..., each `panel_bytes` (a multiple of 64); n is rounded up to 16
 *   columns and the missing ones are zero.
 *
 *   codes of a panel, per block of 32 values of k:
 *     U4*  4 x 64 bytes; byte lane*4+t of vector j: low nibble k = 4j+t, high nibble k = 16+4j+t
 *     U8*  8 x 64 bytes; byte lane*4+t of vector j: code + 128 for k = 4j+t
 *   then the scales:
 *     U4   f16 d  [k/32][16]                       Q4_0: d * (c - 8)
 *     U4M  f16 d  [k/32][16], f16 m [k/32][16]     Q4_1: d * c + m
 *     U4K  u8 sc [k/32][16], u8 m [k/32][16],
 *          f16 d [k/256][16], f16 dmin [k/256][16] Q4_K
 *     U8   f16 d  [k/32][16]                       Q8_0; Q5_0 widened
 *     U8K  i8 sc [k/16][16], f16 d [k/256][16]     Q6_K widened
 *   F32, F16, BF16: [k][16] values.
 *
 * Each part begins at a multiple of 64 bytes. Why panels: a vector of 16 lanes is 16 outputs, so
 * dots need no sum across lanes, and one panel is one stream for the prefetcher. K must be a
 * multiple of 32 (256 for the K types). Bits per weight: U4 4.5, U4M 5, U4K 4.625, U8 8.5, U8K
 * 8.5625. SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PACK_H
#define KERNEL_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

typedef enum kernel_pack {
  PACK_F32,
  PACK_F16,
  PACK_BF16,
  PACK_U4,
  PACK_U4M,
  PACK_U4K,
  PACK_U8,
  PACK_U8K,
  PACK_COUNT
} kernel_pack;

typedef struct kernel_weight {
  uint8_t pack;  /* kernel_pack */
  uint32_t n, k; /* n output columns, k inputs */
  size_t panel_bytes;
  const uint8_t *data; /* 64-byte aligned; borrowed */
} kernel_weight;

/* For a GGUF tensor of `quant_type` with n rows of k values. TROIKA_UNSUPPORTED if we have no pack
 * for the type or k does not fit it. */
troika_status kernel_pack_layout(uint32_t quant_type, uint32_t n, uint32_t k, kernel_weight *out,
                                 size_t *bytes);
/* Fills panels [panel0, panel0+panels) at `out` (the start of the whole weight) from the tensor's
 * rows as they lie in the file. Disjoint panels may be filled by several threads. */
void kernel_pack_panels(const kernel_weight *layout, uint32_t quant_type, const void *rows,
                        uint32_t panel0, uint32_t panels, uint8_t *out);

#endif
