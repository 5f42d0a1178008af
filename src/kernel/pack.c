/* pack.c - GGUF rows into panels of 16 columns, and panels back into values.
 *
 * Packing is one pass: each block of each of the 16 rows is cut into (codes, scale, minimum)
 * exactly as its bytes stand, nothing is rounded, so a packed weight decodes to the very bits of
 * the file's own decoder. Q5_0 and Q6_K widen to 8 bits because odd-width codes cost more
 * instructions per value than the bytes they save. Cost: reads and writes each byte once; a few
 * operations per value. Source: the block diagrams in quant/q*.c. SPDX-License-Identifier:
 * Apache-2.0 */
#include "kernel/pack.h"

#include <string.h>

#include "base/check.h"
#include "kernel/kernel.h"
#include "kernel/panel.h"
#include "quant/quant.h"

/* One block of 32 values of one column, cut out of the file's bytes; codes are unsigned. */
typedef struct cut_block {
  uint8_t codes[32];
  uint16_t scale, minimum;           /* f16: of the block, or of the 256 values around it */
  uint8_t sub_scale[2], sub_minimum; /* K types; sub_scale[1] only for U8K (halves of 16) */
} cut_block;

static uint16_t load16(const uint8_t *p) {
  return (uint16_t)(p[0] | p[1] << 8);
}
static void store16(uint8_t *p, uint16_t v) {
  p[0] = (uint8_t)v;
  p[1] = (uint8_t)(v >> 8);
}

static bool pack_of_type(uint32_t type, kernel_pack *pack, uint32_t *k_multiple) {
  *k_multiple = KERNEL_BLOCK;
  switch (type) {
    case QUANT_F32:
      *pack = PACK_F32;
      return true;
    case QUANT_F16:
      *pack = PACK_F16;
      return true;
    case QUANT_BF16:
      *pack = PACK_BF16;
      return true;
    case QUANT_Q4_0:
      *pack = PACK_U4;
      return true;
    case QUANT_Q4_1:
      *pack = PACK_U4M;
      return true;
    case QUANT_Q5_0:
    case QUANT_Q8_0:
      *pack = PACK_U8;
      return true;
    case QUANT_Q4_K:
      *pack = PACK_U4K, *k_multiple = 256;
      return true;
    case QUANT_Q6_K:
      *pack = PACK_U8K, *k_multiple = 256;
      return true;
    default:
      return false;
  }
}

troika_status kernel_pack_layout(uint32_t type, uint32_t n, uint32_t k, kernel_weight *out,
                                 size_t *bytes) {
  kernel_pack pack;
  uint32_t k_multiple;
  if (!pack_of_type(type, &pack, &k_multiple)) return TROIKA_UNSUPPORTED;
  if (n == 0 || k == 0 || k % k_multiple != 0) return TROIKA_UNSUPPORTED;
  const size_t panel_bytes = kernel_panel_layout(pack, k).total;
  const size_t panels = ((size_t)n + KERNEL_PANEL - 1) / KERNEL_PANEL;
  size_t total;
  if (__builtin_mul_overflow(panel_bytes, panels, &total)) return TROIKA_UNSUPPORTED;
  *out = (kernel_weight){(uint8_t)pack, n, k, panel_bytes, NULL};
  *bytes = total;
  return TROIKA_OK;
}

/* Nibbles of the 32-value formats: byte i holds values i (low) and 16 + i (high). */
static void cut_nibbles(const uint8_t *nibbles, uint8_t *codes) {
  for (int i = 0; i < 16; i++) {
    codes[i] = nibbles[i] & 15;
    codes[16 + i] = nibbles[i] >> 4;
  }
}

static void cut_q5_0(const uint8_t *block, uint8_t *codes) {
  uint32_t high;
  memcpy(&high, block + 2, sizeof high);
  cut_nibbles(block + 6, codes);
  /* code - 16 becomes code + 112 - 128, so that U8's one offset serves both types. */
  for (int i = 0; i < 32; i++) codes[i] = (uint8_t)((codes[i] | (high >> i & 1) << 4) + 112);
}

static void cut_q4_k(const uint8_t *block, uint32_t sub, cut_block *out) {
  const uint8_t *six = block + 4, *codes = block + 16 + sub / 2 * 32;
  if (sub < 4) {
    out->sub_scale[0] = six[sub] & 63;
    out->sub_minimum = six[sub + 4] & 63;
  } else {
    out->sub_scale[0] = (uint8_t)((six[sub + 4] & 15) | (six[sub - 4] >> 6) << 4);
    out->sub_minimum = (uint8_t)((six[sub + 4] >> 4) | (six[sub] >> 6) << 4);
  }
  for (int i = 0; i < 32; i++) out->codes[i] = codes[i] >> (4 * (sub & 1)) & 15;
}

static void cut_q6_k(const uint8_t *block, uint32_t sub, cut_block *out) {
  const uint32_t half = sub / 4, quarter = sub % 4; /* 128 values, 32 of them */
  const uint8_t *low = block + half * 64 + (quarter & 1) * 32;
  const uint8_t *high = block + 128 + half * 32;
  for (int i = 0; i < 32; i++) {
    const uint8_t nibble = low[i] >> (4 * (quarter >> 1)) & 15;
    const uint8_t top = high[i] >> (2 * quarter) & 3;
    out->codes[i] = (uint8_t)((nibble | top << 4) + 96); /* - 32 = + 96 - 128 */
  }
  memcpy(out->sub_scale, block + 192 + 2 * sub, 2);
}

/* Block `b` of 32 values of a row. */
static void cut(uint32_t type, const uint8_t *row, uint32_t b, cut_block *out) {
  const uint8_t *block;
  memset(out, 0, sizeof *out);
  switch (type) {
    case QUANT_Q4_0:
      block = row + (size_t)b * 18;
      out->scale = load16(block);
      cut_nibbles(block + 2, out->codes);
      break;
    case QUANT_Q4_1:
      block = row + (size_t)b * 20;
      out->scale = load16(block);
      out->minimum = load16(block + 2);
      cut_nibbles(block + 4, out->codes);
      break;
    case QUANT_Q5_0:
      block = row + (size_t)b * 22;
      out->scale = load16(block);
      cut_q5_0(block, out->codes);
      break;
    case QUANT_Q8_0:
      block = row + (size_t)b * 34;
      out->scale = load16(block);
      for (int i = 0; i < 32; i++) out->codes[i] = block[2 + i] ^ 0x80;
      break;
    case QUANT_Q4_K:
      block = row + (size_t)(b / 8) * 144;
      out->scale = load16(block);
      out->minimum = load16(block + 2);
      cut_q4_k(block, b % 8, out);
      break;
    case QUANT_Q6_K:
      block = row + (size_t)(b / 8) * 210;
      out->scale = load16(block + 208);
      cut_q6_k(block, b % 8, out);
      break;
    default:
      CHECK(false);
  }
}

/* Puts one cut block into column `lane` of a zeroed panel. */
static void put(kernel_pack pack, const kernel_panel_parts *parts, uint8_t *panel, uint32_t b,
                uint32_t lane, const cut_block *in) {
  const bool nibbles = pack == PACK_U4 || pack == PACK_U4M || pack == PACK_U4K;
  uint8_t *codes = panel + (size_t)b * (nibbles ? 256 : 512) + lane * 4;
  for (uint32_t i = 0; i < (nibbles ? 16u : 32u); i++) {
    uint8_t *byte = codes + i / 4 * 64 + i % 4;
    *byte = nibbles ? (uint8_t)(in->codes[i] | in->codes[16 + i] << 4) : in->codes[i];
  }
  const size_t at = (size_t)b * KERNEL_PANEL + lane,
               super_at = (size_t)(b / 8) * KERNEL_PANEL + lane;
  switch (pack) {
    case PACK_U4M:
      store16(panel + parts->minimum + 2 * at, in->minimum); /* fall through */
    case PACK_U4:
    case PACK_U8:
      store16(panel + parts->scale + 2 * at, in->scale);
      break;
    case PACK_U4K:
      panel[parts->scale + at] = in->sub_scale[0];
      panel[parts->minimum + at] = in->sub_minimum;
      store16(panel + parts->super + 2 * super_at, in->scale);
      store16(panel + parts->super_minimum + 2 * super_at, in->minimum);
      break;
    case PACK_U8K:
      panel[parts->scale + (size_t)(2 * b) * KERNEL_PANEL + lane] = in->sub_scale[0];
      panel[parts->scale + (size_t)(2 * b + 1) * KERNEL_PANEL + lane] = in->sub_scale[1];
      store16(panel + parts->super + 2 * super_at, in->scale);
      break;
    default:
      CHECK(false);
  }
}

/* Float types: a transposition. Rows need not be aligned, so values are moved as bytes. */
static void put_floats(size_t size, const uint8_t *row, uint32_t k, uint8_t *panel, uint32_t lane) {
  for (uint32_t i = 0; i < k; i++)
    memcpy(panel + ((size_t)i * KERNEL_PANEL + lane) * size, row + i * size, size);
}

void kernel_pack_panels(const kernel_weight *layout, uint32_t type, const void *rows,
                        uint32_t panel0, uint32_t panels, uint8_t *out) {
  const kernel_pack pack = (kernel_pack)layout->pack;
  const kernel_panel_parts parts = kernel_panel_layout(pack, layout->k);
  const quant_format *format = quant_find(type);
  CHECK(format != NULL);
  const size_t row_bytes = (size_t)layout->k / format->elements * format->bytes;
  for (uint32_t p = panel0; p < panel0 + panels; p++) {
    uint8_t *panel = out + (size_t)p * layout->panel_bytes;
    memset(panel, 0, layout->panel_bytes);
    for (uint32_t lane = 0; lane < KERNEL_PANEL; lane++) {
      const size_t n = (size_t)p * KERNEL_PANEL + lane;
      if (n >= layout->n) break;
      const uint8_t *row = (const uint8_t *)rows + n * row_bytes;
      if (pack == PACK_F32 || pack == PACK_F16 || pack == PACK_BF16) {
        put_floats(format->bytes, row, layout->k, panel, lane);
        continue;
      }
      for (uint32_t b = 0; b < layout->k / 32; b++) {
        cut_block block;
        cut(type, row, b, &block);
        put(pack, &parts, panel, b, lane, &block);
      }
    }
  }
}

void kernel_panel_codes(kernel_pack pack, const kernel_panel *p, uint32_t block, uint32_t lane,
                        uint8_t *out) {
  if (pack == PACK_U8 || pack == PACK_U8K) {
    const uint8_t *codes = p->codes + (size_t)block * 512 + lane * 4;
    for (int i = 0; i < 32; i++) out[i] = codes[i / 4 * 64 + i % 4];
    return;
  }
  const uint8_t *codes = p->codes + (size_t)block * 256 + lane * 4;
  for (int i = 0; i < 16; i++) {
    const uint8_t byte = codes[i / 4 * 64 + i % 4];
    out[i] = byte & 15;
    out[16 + i] = byte >> 4;
  }
}

static float load_f16(const uint8_t *base, size_t index) {
  return quant_f16_to_f32(load16(base + 2 * index));
}

void kernel_panel_scales(kernel_pack pack, const kernel_panel *p, uint32_t half_block,
                         uint32_t lane, float *w_d, float *w_m) {
  const size_t at = (size_t)(half_block / 2) * KERNEL_PANEL + lane;
  const size_t super_at = (size_t)(half_block / 16) * KERNEL_PANEL + lane;
  *w_m = 0;
  switch (pack) {
    case PACK_U4M:
      *w_m = load_f16(p->minimum, at); /* fall through */
    case PACK_U4:
    case PACK_U8:
      *w_d = load_f16(p->scale, at);
      break;
    case PACK_U4K:
      *w_d = load_f16(p->super, super_at) * (float)p->scale[at];
      *w_m = -(load_f16(p->super_minimum, super_at) * (float)p->minimum[at]);
      break;
    case PACK_U8K:
      *w_d = load_f16(p->super, super_at) *
             (float)(int8_t)p->scale[(size_t)half_block * KERNEL_PANEL + lane];
      break;
    default:
      CHECK(false);
  }
}

static void float_values(kernel_pack pack, const kernel_panel *p, uint32_t block, uint32_t lane,
                         float *out) {
  for (uint32_t i = 0; i < 32; i++) {
    const size_t at = ((size_t)block * 32 + i) * KERNEL_PANEL + lane;
    if (pack == PACK_F32)
      memcpy(&out[i], p->codes + 4 * at, 4);
    else if (pack == PACK_F16)
      out[i] = load_f16(p->codes, at);
    else
      out[i] = quant_bf16_to_f32(load16(p->codes + 2 * at));
  }
}

void kernel_panel_values(kernel_pack pack, const kernel_panel *p, uint32_t block, uint32_t lane,
                         float *out) {
  if (pack == PACK_F32 || pack == PACK_F16 || pack == PACK_BF16) {
    float_values(pack, p, block, lane, out);
    return;
  }
  uint8_t codes[32];
  kernel_panel_codes(pack, p, block, lane, codes);
  const int offset = pack == PACK_U4 ? 8 : pack == PACK_U8 || pack == PACK_U8K ? 128 : 0;
  for (uint32_t half = 0; half < 2; half++) {
    float w_d, w_m;
    kernel_panel_scales(pack, p, 2 * block + half, lane, &w_d, &w_m);
    for (uint32_t i = half * 16; i < half * 16 + 16; i++) {
      const float product = w_d * (float)(codes[i] - offset);
      out[i] = offset != 0 ? product : product + w_m;
    }
  }
}

void kernel_weight_row(const kernel_weight *w, uint32_t n, float *out) {
  const kernel_panel panel = kernel_panel_at(w, n / KERNEL_PANEL);
  for (uint32_t b = 0; b < w->k / 32; b++)
    kernel_panel_values((kernel_pack)w->pack, &panel, b, n % KERNEL_PANEL, out + (size_t)b * 32);
}
