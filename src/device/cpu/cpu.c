/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cpu/internal.h"

typedef struct cpu_queue cpu_queue;

struct device_buffer { /* all host memory is ours to use: importing remembers the pointer */
  void *host;
  size_t len;
  bool owned;
};

static void cpu_describe(const device *dev, troika_device_info *out) {
  const cpu_device *d = (const cpu_device *)dev;
  const cpu_queue *q = (const cpu_queue *)d->queue;
  *out = (troika_device_info){.type = TROIKA_DEVICE_CPU,
                              .unified = true,
                              .stops_at_panels = true,
                              .memory_bytes = os_memory_available(),
                              .energy_j = (double)NAN};
  snprintf(out->name, sizeof out->name, "%s", d->name);
  snprintf(out->driver, sizeof out->driver, "cpu");
  snprintf(out->kernels, sizeof out->kernels, "%s", d->k.name);
  if (!q) return;
  uint64_t completed = atomic_load(&q->completed), submitted = atomic_load(&q->submitted);
  int64_t busy = atomic_load(&q->busy_ns), age = clock_real_now(NULL) - q->opened_ns;
  out->queue_depth = submitted > completed ? (uint32_t)(submitted - completed) : 0;
  out->utilisation = age > 0 ? (double)busy / (double)age : 0;
  out->latency_ms_mean = completed ? (double)busy / (double)completed * 1e-6 : 0;
}

static bool cpu_can_run(const device *dev, const graph *g, const graph_node *node, uint32_t rows,
                        const char **reason) {
  (void)dev;
  *reason = NULL;
  if (!rows) *reason = "no rows";
  if (node->kind == GRAPH_S && (g->head_dim % 32 || g->head_dim > 256 || cpu_group(g) > 16))
    *reason = "attention wants heads of 32 to 256 values and at most 16 queries for each KV head";
  return !*reason;
}

static troika_status cpu_prepare(device *dev, const device_tables *tables,
                                 void (*progress)(void *, uint64_t, uint64_t), void *context,
                                 troika_error *err) {
  cpu_device *d = (cpu_device *)dev;
  CHECK(!d->tables);
  d->tables = tables;
  d->g = tables->graph;
  troika_status status = cpu_weights_pack(d, progress, context, err);
  return status ? status : cpu_slots_create(d, err);
}

static uint64_t cpu_memory_used(const device *dev, uint64_t *slot_bytes) {
  const cpu_device *d = (const cpu_device *)dev;
  *slot_bytes = d->slot_bytes;
  return d->weight_bytes + d->slot_bytes + d->scratch_bytes * pool_threads(d->workers);
}

static troika_status cpu_reset(device *dev, troika_error *err) {
  (void)dev;
  (void)err;
  return TROIKA_OK; /* nothing of a CPU outlives a launch */
}

static void cpu_close(device *dev) {
  cpu_device *d = (cpu_device *)dev;
  CHECK(!d->queue);
  cpu_slots_free(d);
  cpu_weights_free(d);
  pool_close(&d->workers);
  free(d);
}

static troika_status buffer_make(void *host, size_t len, bool owned, device_buffer **out,
                                 troika_error *err) {
  device_buffer *b = host ? malloc(sizeof *b) : NULL;
  if (!b) return error_set(err, TROIKA_NO_MEMORY, "no memory for a buffer of %zu bytes", len);
  *b = (device_buffer){host, len, owned};
  *out = b;
  return TROIKA_OK;
}

static troika_status cpu_buffer_import(device *d, void *host, size_t len, device_buffer **out,
                                       troika_error *err) {
  (void)d;
  return buffer_make(host, len, false, out, err);
}

static troika_status cpu_buffer_create(device *d, size_t len, device_buffer **out,
                                       troika_error *err) {
  (void)d;
  void *host = os_memory(len);
  troika_status status = buffer_make(host, len, true, out, err);
  if (status) os_memory_free(host, len);
  return status;
}

static void *cpu_buffer_begin(device_buffer *b) {
  return b->host;
}
static void cpu_buffer_end(device_buffer *b) {
  (void)b;
}

static void cpu_buffer_destroy(device_buffer *b) {
  if (b && b->owned) os_memory_free(b->host, b->len);
  free(b);
}

/* ---- the queue ---- */

static void list_free(cpu_list *l) {
  free(l->chunks);
  free(l->want_chunks);
  free(l->blocks);
  free(l->want_rows);
}

static bool list_reserve(cpu_list *l, uint32_t rows) {
  l->chunks = malloc(rows * sizeof *l->chunks);
  l->want_chunks = malloc(rows * sizeof *l->want_chunks);
  l->blocks = malloc(rows * sizeof *l->blocks);
  l->want_rows = malloc(rows * sizeof *l->want_rows);
  return l->chunks && l->want_chunks && l->blocks && l->want_rows;
}

static troika_status cpu_queue_open(device *dev, device_done *done, void *context,
                                    device_queue **out, troika_error *err) {
  cpu_device *d = (cpu_device *)dev;
  if (d->queue) return error_set(err, TROIKA_BUSY, "the CPU has one queue, and it is open");
  cpu_queue *q = aligned_alloc(64, (sizeof *q + 63) / 64 * 64);
  if (!q) return error_set(err, TROIKA_NO_MEMORY, "no memory for a queue");
  memset(q, 0, sizeof *q);
  q->head.owner = dev;
  q->d = d;
  q->done = done;
  q->context = context;
  q->opened_ns = clock_real_now(NULL);
  uint32_t rows = 0;
  for (uint32_t i = 0; i < d->tables->n_slots; i++) rows += d->tables->slot_rows[i];
  for (uint32_t i = 0; i < POOL_JOBS_MAX; i++) {
    q->lists[i].queue = &q->head;
    if (list_reserve(&q->lists[i], rows)) continue;
    for (uint32_t j = 0; j <= i; j++) list_free(&q->lists[j]);
    free(q);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for a queue of %u rows", rows);
  }
  d->queue = *out = &q->head;
  return TROIKA_OK;
}

/* Every worker runs this for every list. */
static void list_walk(void *context, uint32_t worker) {
  cpu_list *l = context;
  cpu_queue *q = (cpu_queue *)l->queue;
  cpu_device *d = q->d;
  for (uint32_t i = 0; i < l->n_wait; i++) {
    device_queue *other = l->wait[i].queue;
    other->owner->driver->queue_wait(other, &l->wait[i], -1);
  }
  if (worker == 0) l->start_ns = clock_real_now(NULL);
  for (cpu_cursor c = l->start;;) {
    uint32_t panels = cpu_stage_panels(d, l, &c), cap = panels;
    if (l->panel_limit - l->base < cap) cap = l->panel_limit - l->base;
    while (!atomic_load_explicit(&l->stop, memory_order_relaxed)) {
      uint32_t panel = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
      if (panel >= cap) break;
      cpu_stage_run(d, l, &c, panel, worker);
    }
    cpu_cursor next = c;
    bool more = cpu_cursor_next(d, l, &next);
    if (pool_arrive(d->workers)) {
      uint32_t done = atomic_load(&l->next);
      if (done > cap) done = cap;
      l->stopped = done < panels;
      l->base += done;
      atomic_store(&l->next, 0);
      if (l->stopped || !more) {
        device_completion completion = {.event = {l->queue, l->sequence},
                                        .status = TROIKA_OK,
                                        .panel = l->stopped ? l->base : UINT32_MAX,
                                        .start_ns = l->start_ns,
                                        .end_ns = clock_real_now(NULL)};
        atomic_fetch_add(&q->busy_ns, completion.end_ns - completion.start_ns);
        atomic_store(&q->completed, l->sequence);
        atomic_fetch_add(&q->completed_signal, 1);
        if (atomic_load(&q->waiters))
          os_futex_wake((const uint32_t *)&q->completed_signal, INT32_MAX);
        q->done(q->context, &completion);
      }
      pool_release(d->workers);
    }
    if (l->stopped || !more) return;
    c = next;
  }
}

static troika_status cpu_queue_submit(device_queue *queue, const device_command *commands,
                                      unsigned n, const device_event *wait, unsigned n_wait,
                                      device_event *done) {
  cpu_queue *q = (cpu_queue *)queue;
  cpu_device *d = q->d;
  CHECK(n >= 1 && n <= DEVICE_COMMANDS_MAX && n_wait <= 4);
  if (q->submitted - atomic_load(&q->completed) >= DEVICE_LISTS_MAX) return TROIKA_BUSY;
  uint64_t sequence = atomic_fetch_add(&q->submitted, 1) + 1;
  cpu_list *l = &q->lists[sequence % POOL_JOBS_MAX];
  /* The list that lay here was completed, but a worker may still be on its way out of it. */
  pool_wait(d->workers, q->jobs[sequence % POOL_JOBS_MAX], -1);
  l->sequence = sequence;
  l->n_wait = n_wait;
  if (n_wait) memcpy(l->wait, wait, n_wait * sizeof *wait);
  cpu_list_compile(d, l, commands, n);
  uint32_t panel = d->tables->runs[commands[0].run].panel;
  cpu_list_seek(d, l, panel);
  l->base = l->start_base;
  l->panel_limit = d->test_stop_panels ? panel + d->test_stop_panels : UINT32_MAX;
  l->stopped = false;
  atomic_store(&l->next, l->start_item);
  atomic_store(&l->stop, false);
  *done = (device_event){queue, sequence};
  q->jobs[sequence % POOL_JOBS_MAX] = pool_post(d->workers, list_walk, l);
  return TROIKA_OK;
}

static troika_status cpu_queue_stop(device_queue *queue, const device_event *done) {
  cpu_queue *q = (cpu_queue *)queue;
  if (done->sequence > q->submitted) return TROIKA_INVALID;
  if (atomic_load(&q->completed) >= done->sequence) return TROIKA_OK;
  cpu_list *l = &q->lists[done->sequence % POOL_JOBS_MAX];
  if (l->sequence == done->sequence) atomic_store(&l->stop, true);
  return TROIKA_OK;
}

static troika_status cpu_queue_wait(device_queue *queue, const device_event *done,
                                    int64_t timeout_ns) {
  cpu_queue *q = (cpu_queue *)queue;
  troika_status status = TROIKA_OK;
  int64_t now = clock_real_now(NULL);
  int64_t end = timeout_ns < 0 || timeout_ns >= INT64_MAX - now ? INT64_MAX : now + timeout_ns;
  atomic_fetch_add(&q->waiters, 1);
  for (;;) {
    uint32_t seen = atomic_load(&q->completed_signal);
    if (atomic_load(&q->completed) >= done->sequence) break;
    int64_t left = end == INT64_MAX ? -1 : end - clock_real_now(NULL);
    if (end != INT64_MAX && left <= 0) {
      status = TROIKA_TIMEOUT;
      break;
    }
    os_futex_wait((const uint32_t *)&q->completed_signal, seen, left);
  }
  atomic_fetch_sub(&q->waiters, 1);
  return status;
}

static void cpu_queue_close(device_queue *queue) {
  cpu_queue *q = (cpu_queue *)queue;
  for (uint32_t i = 0; i < POOL_JOBS_MAX; i++) pool_wait(q->d->workers, q->jobs[i], -1);
  for (uint32_t i = 0; i < POOL_JOBS_MAX; i++) list_free(&q->lists[i]);
  q->d->queue = NULL;
  free(q);
}

static const device_driver cpu_driver = {
    .name = "cpu",
    .describe = cpu_describe,
    .can_run = cpu_can_run,
    .prepare = cpu_prepare,
    .memory_used = cpu_memory_used,
    .reset = cpu_reset,
    .close = cpu_close,
    .buffer_import = cpu_buffer_import,
    .buffer_create = cpu_buffer_create,
    .buffer_begin = cpu_buffer_begin,
    .buffer_end = cpu_buffer_end,
    .buffer_destroy = cpu_buffer_destroy,
    .queue_open = cpu_queue_open,
    .queue_submit = cpu_queue_submit,
    .queue_stop = cpu_queue_stop,
    .queue_wait = cpu_queue_wait,
    .queue_close = cpu_queue_close,
};

/* "model name" of /proc/cpuinfo, for people. */
static void processor_name(char *out, size_t size) {
  char line[256];
  snprintf(out, size, "CPU");
  FILE *f = fopen("/proc/cpuinfo", "re");
  if (!f) return;
  while (fgets(line, sizeof line, f)) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) || !colon) continue;
    snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    break;
  }
  fclose(f);
}

static troika_status cpu_open(const device_options *options, device **out, troika_error *err) {
  uint32_t levels = KERNEL_MASK_ALL;
  if (options->threads < 1 || options->threads > POOL_THREADS_MAX)
    return error_set(err, TROIKA_INVALID, "%u threads: wanted 1..%d", options->threads,
                     POOL_THREADS_MAX);
  if (options->levels && !kernel_mask_parse(options->levels, &levels))
    return error_set(err, TROIKA_INVALID, "'%s' names an unknown instruction set", options->levels);
  cpu_device *d = calloc(1, sizeof *d);
  if (!d) return error_set(err, TROIKA_NO_MEMORY, "no memory for a device");
  d->base.driver = &cpu_driver;
  d->test_stop_panels = options->test_stop_panels;
  char model[40];
  processor_name(model, sizeof model);
  snprintf(d->name, sizeof d->name, "%s, %u threads", model, options->threads);
  kernel_table_init(&d->k, options->activations, levels);
  troika_status status = pool_open(options->threads, &d->workers, err);
  if (status)
    free(d);
  else
    *out = &d->base;
  return status;
}

static void cpu_math(const device *d, device_math *out) {
  const kernel_table *k = device_cpu_table(d);
  *out = (device_math){k->vec_max, k->vec_sum_exp, kernel_thread_setup};
}

const kernel_table *device_cpu_table(const device *d) {
  return &((const cpu_device *)d)->k;
}

const device_factory device_factory_cpu = {
    .name = "cpu", .open = cpu_open, .slot_bytes = cpu_slot_bytes, .math = cpu_math};
