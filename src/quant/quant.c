/* quant.c - the table of weight formats.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "quant/quant.h"

#include "quant/formats.h"

static const quant_format formats[] = {
#define QUANT_ENTRY(name, number, elements, bytes) \
  {#name, number, elements, bytes, quant_##name##_decode, quant_##name##_encode},
    QUANT_LIST(QUANT_ENTRY)
#undef QUANT_ENTRY
};

const quant_format *quant_list(size_t *count) {
  *count = sizeof formats / sizeof *formats;
  return formats;
}

const quant_format *quant_find(uint32_t type) {
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    if (formats[i].type == type) return &formats[i];
  }
  return NULL;
}
