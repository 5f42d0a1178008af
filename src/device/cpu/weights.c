/* SPDX-License-Identifier: Apache-2.0 */
/* Packing: every weight from the mapped file into panels, once, by all workers; the file's pages
 * are dropped behind them, so that peak memory is the packed weights and a few slices. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cpu/internal.h"

enum { SLICE_BYTES = 4 << 20 };

typedef struct packing {
  cpu_device *d;
  uint32_t *slice_weight, *slice_panel; /* of each slice: which weight, first panel */
  uint32_t n_slices;
  _Atomic uint32_t next;
  _Atomic uint64_t done; /* bytes of the file */
} packing;

static uint32_t slice_panels(const graph_weight *w) {
  uint64_t panel = (uint64_t)w->bytes * KERNEL_PANEL / w->n;
  uint64_t n = panel ? SLICE_BYTES / panel : 1;
  return n ? (uint32_t)n : 1;
}

static uint32_t panels_of(const graph_weight *w) {
  return (w->n + KERNEL_PANEL - 1) / KERNEL_PANEL;
}

static void pack_job(void *context, uint32_t worker) {
  packing *p = context;
  (void)worker;
  for (uint32_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n_slices;) {
    uint32_t index = p->slice_weight[i], panel0 = p->slice_panel[i];
    const graph_weight *w = &p->d->g->weights[index];
    kernel_weight *k = &p->d->weights[index];
    uint32_t panels = panels_of(w) - panel0, most = slice_panels(w);
    if (panels > most) panels = most;
    kernel_pack_panels(k, w->type, w->host, panel0, panels, (uint8_t *)(uintptr_t)k->data);
    uint64_t row = w->bytes / w->n, row0 = (uint64_t)panel0 * KERNEL_PANEL,
             rows = (uint64_t)panels * KERNEL_PANEL;
    if (row0 + rows > w->n) rows = w->n - row0;
    if (p->d->g->mapped) os_map_drop(&(os_map){w->host, w->bytes}, row0 * row, rows * row);
    atomic_fetch_add(&p->done, rows * row);
  }
}

static troika_status lay_out(cpu_device *d, uint64_t *file_bytes, uint32_t *slices,
                             troika_error *err) {
  const graph *g = d->g;
  size_t total = 0;
  for (uint32_t i = 0; i < g->n_weights; i++) {
    const graph_weight *w = &g->weights[i];
    size_t bytes;
    if (kernel_pack_layout(w->type, w->n, w->k, &d->weights[i], &bytes))
      return error_set(err, TROIKA_UNSUPPORTED,
                       "tensor %s (%u x %u) has a type or width that the CPU cannot pack", w->name,
                       w->n, w->k);
    d->weights[i].data = (const uint8_t *)(uintptr_t)total; /* an offset for now */
    total += (bytes + 63) / 64 * 64;
    *file_bytes += w->bytes;
    *slices += (panels_of(w) + slice_panels(w) - 1) / slice_panels(w);
  }
  d->weight_memory = os_memory(total);
  d->weight_bytes = total;
  if (!d->weight_memory)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for %zu bytes of packed weights", total);
  for (uint32_t i = 0; i < g->n_weights; i++)
    d->weights[i].data = d->weight_memory + (uintptr_t)d->weights[i].data;
  return TROIKA_OK;
}

troika_status cpu_weights_pack(cpu_device *d, void (*progress)(void *, uint64_t, uint64_t),
                               void *context, troika_error *err) {
  const graph *g = d->g;
  packing p = {.d = d};
  uint64_t file_bytes = 0;
  uint32_t slices = 0;
  d->weights = calloc(g->n_weights, sizeof *d->weights);
  troika_status status = d->weights ? lay_out(d, &file_bytes, &slices, err)
                                    : error_set(err, TROIKA_NO_MEMORY, "no memory for weights");
  if (status) return status;
  CHECK(slices > 0); /* a graph has an embedding */
  p.slice_weight = calloc(slices * 2, sizeof *p.slice_weight);
  if (!p.slice_weight) return error_set(err, TROIKA_NO_MEMORY, "no memory for weights");
  p.slice_panel = p.slice_weight + slices;
  for (uint32_t i = 0; i < g->n_weights; i++)
    for (uint32_t at = 0; at < panels_of(&g->weights[i]); at += slice_panels(&g->weights[i])) {
      p.slice_weight[p.n_slices] = i;
      p.slice_panel[p.n_slices++] = at;
    }
  CHECK(p.n_slices == slices);
  uint64_t job = pool_post(d->workers, pack_job, &p);
  if (progress) {
    const int64_t step_ns = 50 * 1000 * 1000;
    while (!pool_wait(d->workers, job, step_ns))
      progress(context, atomic_load(&p.done), file_bytes);
    progress(context, file_bytes, file_bytes);
  } else {
    pool_wait(d->workers, job, -1);
  }
  free(p.slice_weight);
  return TROIKA_OK;
}

void cpu_weights_free(cpu_device *d) {
  os_memory_free(d->weight_memory, d->weight_bytes);
  free(d->weights);
  d->weight_memory = NULL;
  d->weights = NULL;
}
