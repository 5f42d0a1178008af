/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cpu/internal.h"

enum { ROPE_LOW = 64, SPLITS_FEW_ROWS = 8, SPLITS_MANY_ROWS = 2, MANY_ROWS = 128 };

/* Lays out one slot at `at` (NULL: only counts) and returns its bytes. */
static size_t slot_layout(const cpu_device *d, cpu_slot *s, uint8_t *at) {
  const graph *g = d->g;
  size_t used = 0, rows = s->rows;
#define TAKE(field, type, count)                             \
  do {                                                       \
    s->field = at ? (type *)(void *)(at + used) : NULL;      \
    used += ((size_t)(count) * sizeof(type) + 63) / 64 * 64; \
  } while (0)
  TAKE(x, float, rows * g->width);
  TAKE(h, float, rows * g->width);
  TAKE(out, float, rows * g->width);
  TAKE(qkv, float, rows * d->qkv_stride);
  TAKE(gate, float, rows * g->ff);
  TAKE(up, float, rows * g->ff);
  TAKE(act, uint8_t, rows * d->act_stride);
  for (uint32_t i = 0; i < g->n_ropes; i++) TAKE(cos_sin[i], float, rows * g->head_dim);
  TAKE(part, float, (size_t)s->splits *rows * g->heads * d->part_stride);
  TAKE(state, float, rows * g->heads * d->part_stride);
#undef TAKE
  return used;
}

/* cos and sin of n multiples of `step` positions. Double, so that a product of two is exact to the
 * last bit of a float. */
static double *rope_angles(const graph *g, const graph_rope *r, uint32_t n, uint32_t step) {
  uint32_t pairs = g->head_dim / 2;
  double *t = malloc((size_t)n * pairs * 2 * sizeof *t);
  for (uint32_t i = 0; t && i < pairs; i++) {
    double f = pow(r->base, -2.0 * i / g->head_dim) * r->scale;
    if (r->factors) f /= r->factors[i];
    for (uint32_t p = 0; p < n; p++) {
      double angle = (double)p * step * f;
      t[((size_t)p * pairs + i) * 2] = cos(angle);
      t[((size_t)p * pairs + i) * 2 + 1] = sin(angle);
    }
  }
  return t;
}

static void set_strides(cpu_device *d) {
  const graph *g = d->g;
  uint32_t widest = g->width;
  if (g->ff > widest) widest = g->ff;
  if (g->heads * g->head_dim > widest) widest = g->heads * g->head_dim;
  d->act_stride = (uint32_t)kernel_act_bytes(widest);
  d->qkv_stride = (g->heads + 2 * g->kv_heads) * g->head_dim;
  d->part_stride = (g->head_dim + 2 + 15) / 16 * 16;
}

static cpu_slot slot_of_rows(uint32_t rows) {
  return (cpu_slot){.rows = rows, .splits = rows >= MANY_ROWS ? SPLITS_MANY_ROWS : SPLITS_FEW_ROWS};
}

size_t cpu_slot_bytes(const graph *g, uint32_t rows) {
  cpu_device d = {.g = g};
  cpu_slot s = slot_of_rows(rows);
  set_strides(&d);
  return slot_layout(&d, &s, NULL);
}

troika_status cpu_slots_create(cpu_device *d, troika_error *err) {
  const graph *g = d->g;
  const device_tables *t = d->tables;
  set_strides(d);
  size_t bytes = 0;
  for (uint32_t i = 0; i < t->n_slots; i++) {
    d->slots[i] = slot_of_rows(t->slot_rows[i]);
    bytes += slot_layout(d, &d->slots[i], NULL);
  }
  d->slot_memory = os_memory(bytes);
  d->slot_bytes = bytes;
  if (!d->slot_memory)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %zu bytes of activation slots", bytes);
  uint8_t *at = d->slot_memory;
  for (uint32_t i = 0; i < t->n_slots; i++) at += slot_layout(d, &d->slots[i], at);

  for (uint32_t i = 0; i < g->n_ropes; i++) {
    d->ropes[i].low = rope_angles(g, &g->ropes[i], ROPE_LOW, 1);
    d->ropes[i].high = rope_angles(g, &g->ropes[i], t->context / ROPE_LOW + 1, ROPE_LOW);
    if (!d->ropes[i].low || !d->ropes[i].high)
      return error_set(err, TROIKA_NO_MEMORY, "no memory for rotary tables of %u positions",
                       t->context);
  }

  size_t mm = 0, attn = kernel_attn_scratch_bytes(cpu_group(g), g->head_dim);
  for (uint32_t i = 0; i < g->n_weights; i++) {
    size_t need = kernel_scratch_bytes(g->weights[i].k);
    if (need > mm) mm = need;
  }
  d->scratch_bytes = mm > attn ? mm : attn;
  d->scratch = calloc(pool_threads(d->workers), sizeof *d->scratch);
  for (uint32_t i = 0; d->scratch && i < pool_threads(d->workers); i++)
    if (!(d->scratch[i] = os_memory(d->scratch_bytes)))
      return error_set(err, TROIKA_NO_MEMORY, "no memory for %zu bytes of scratch",
                       d->scratch_bytes);
  return d->scratch ? TROIKA_OK : error_set(err, TROIKA_NO_MEMORY, "no memory for scratch");
}

void cpu_slots_free(cpu_device *d) {
  os_memory_free(d->slot_memory, d->slot_bytes);
  d->slot_memory = NULL;
  for (uint32_t i = 0; i < GRAPH_ROPES_MAX; i++) {
    free(d->ropes[i].low);
    free(d->ropes[i].high);
    d->ropes[i] = (cpu_rope_table){0};
  }
  for (uint32_t i = 0; d->scratch && i < pool_threads(d->workers); i++)
    os_memory_free(d->scratch[i], d->scratch_bytes);
  free(d->scratch);
  d->scratch = NULL;
}
