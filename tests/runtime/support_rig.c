/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/support_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

static void need(bool ok, const char *what, const troika_error *err) {
  if (ok) return;
  fprintf(stderr, "rig: %s: %s\n", what, err ? err->text : "failed");
  exit(1);
}

void rig_model_path(const char *name, char *out, size_t size) {
  const char *models = getenv("TROIKA_MODELS"), *cache = getenv("TROIKA_CACHE"),
             *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (name[0] == '/')
    snprintf(out, size, "%s", name);
  else if (models)
    snprintf(out, size, "%s/%s", models, name);
  else if (cache)
    snprintf(out, size, "%s/models/%s", cache, name);
  else if (xdg)
    snprintf(out, size, "%s/troika/models/%s", xdg, name);
  else
    snprintf(out, size, "%s/.cache/troika/models/%s", home ? home : "", name);
}

static void on_done(void *context, const device_completion *completion) {
  rig *r = context;
  pthread_mutex_lock(&r->lock);
  r->completion = *completion;
  r->done = true;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

static void open_tables(rig *r) {
  device_tables *t = &r->tables;
  uint32_t per_sequence = (r->o.context + 31) / 32;
  r->logits_stride = (r->g->vocab + 15) / 16 * 16;
  r->rows = calloc((size_t)r->o.slots * r->o.slot_rows, sizeof *r->rows);
  r->pages = malloc((size_t)r->o.sequences * per_sequence * sizeof *r->pages);
  r->logits_bytes = (size_t)r->o.slots * r->o.slot_rows * r->logits_stride * sizeof(float);
  float *logits = os_memory(r->logits_bytes);
  need(r->rows && r->pages && logits, "memory", NULL);
  t->graph = r->g;
  t->runs = r->runs;
  t->rows = r->rows;
  t->seqs = r->seqs;
  t->n_slots = r->o.slots;
  t->context = r->o.context;
  for (uint32_t i = 0; i < r->o.slots; i++) {
    t->slot_rows[i] = t->slot_wants[i] = r->o.slot_rows;
    t->logits[i] = logits + (size_t)i * r->o.slot_rows * r->logits_stride;
  }
  for (uint32_t i = 0; i < r->o.sequences * per_sequence; i++) r->pages[i] = i;
  for (uint32_t gi = 0; gi < r->g->n_groups; gi++) {
    r->pool_bytes[gi] = (size_t)r->o.sequences * per_sequence * r->g->groups[gi].page_bytes;
    t->kv_pool[gi] = os_memory(r->pool_bytes[gi]);
    need(t->kv_pool[gi], "memory for KV", NULL);
    for (uint32_t s = 0; s < r->o.sequences; s++)
      r->seqs[s].pages[gi] = r->pages + s * per_sequence;
  }
}

rig *rig_open(rig_options o) {
  rig *r = calloc(1, sizeof *r);
  char path[4096];
  troika_error err = {0};
  need(r && o.slots <= RIG_SLOTS_MAX && o.sequences <= RIG_SEQUENCES_MAX, "options", NULL);
  r->o = o;
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  rig_model_path(o.model, path, sizeof path);
  need(!gguf_open(path, &r->file, &err), "open", &err);
  need(!model_graph_create(r->file, &r->g, &err), "graph", &err);
  open_tables(r);
  device_options options = {o.threads, (uint8_t)o.activations, o.levels, o.stop_panels};
  need(!device_factory_find("cpu")->open(&options, &r->cpu, &err), "device", &err);
  need(!r->cpu->driver->prepare(r->cpu, &r->tables, NULL, NULL, &err), "prepare", &err);
  need(!r->cpu->driver->queue_open(r->cpu, on_done, r, &r->queue, &err), "queue", &err);
  r->k = device_cpu_table(r->cpu);
  return r;
}

void rig_close(rig *r) {
  r->cpu->driver->queue_close(r->queue);
  r->cpu->driver->close(r->cpu);
  for (uint32_t i = 0; i < r->g->n_groups; i++)
    os_memory_free(r->tables.kv_pool[i], r->pool_bytes[i]);
  os_memory_free(r->tables.logits[0], r->logits_bytes);
  model_graph_destroy(&r->g);
  gguf_close(&r->file);
  free(r->rows);
  free(r->pages);
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->lock);
  free(r);
}

void rig_run(rig *r, const uint32_t *slots, const uint32_t *n, uint32_t count) {
  device_command commands[RIG_SLOTS_MAX];
  uint16_t end = (uint16_t)r->g->n_nodes;
  for (uint32_t i = 0; i < count; i++) {
    r->runs[slots[i]] = (device_run){.id = slots[i],
                                     .row0 = slots[i] * r->o.slot_rows,
                                     .rows = n[i],
                                     .slot = (uint16_t)slots[i],
                                     .node_end = end};
    commands[i] = (device_command){.run = slots[i], .node_end = end, .rows = n[i]};
  }
  for (;;) {
    device_event event;
    r->done = false;
    need(!r->cpu->driver->queue_submit(r->queue, commands, count, NULL, 0, &event), "submit", NULL);
    pthread_mutex_lock(&r->lock);
    while (!r->done) pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
    need(r->completion.event.sequence == event.sequence, "completion", NULL);
    if (r->completion.panel == UINT32_MAX) return;
    r->stops++;
    r->runs[slots[0]].panel = r->completion.panel;
  }
}

void rig_feed(rig *r, uint32_t slot, uint32_t seq, uint32_t pos, const int32_t *tokens, uint32_t n,
              device_arith arith, bool all) {
  device_row *rows = rig_rows(r, slot);
  for (uint32_t i = 0; i < n; i++)
    rows[i] = (device_row){.seq = seq,
                           .pos = pos + i,
                           .token = tokens[i],
                           .arith = (uint8_t)arith,
                           .want = all || i + 1 == n ? DEVICE_WANT_LOGITS : 0};
  rig_run(r, &slot, &n, 1);
}
