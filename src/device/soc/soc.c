/* SPDX-License-Identifier: Apache-2.0 */
#include "device/soc/soc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "device/soc/events.h"
#include "device/soc/fluid.h"

typedef struct soc_list {
  uint64_t sequence;
  device_command commands[DEVICE_COMMANDS_MAX];
  unsigned n, n_wait;
  device_event wait[4];
  int64_t total_ns, done_ns, target_ns; /* of its solo time; done: by earlier stretches */
  double bytes;
  bool running, fails;
  int64_t start_ns;
} soc_list;

typedef struct soc_device_state soc_device_state;
typedef struct soc_queue {
  device_queue head;
  soc_device_state *d;
  device_done *done;
  void *context;
  soc_list lists[DEVICE_LISTS_MAX]; /* sequence s lies at s % DEVICE_LISTS_MAX */
  uint64_t submitted, completed;
} soc_queue;

struct soc_device_state {
  device base;
  soc *owner;
  uint32_t index;
  soc_device_options options;
  cost_table cost;
  const device_tables *tables;
  soc_queue *queue;
  int32_t *tokens[DEVICE_SLOTS_MAX];
  int64_t busy_ns;
  uint64_t faults, lists;
};

struct device_buffer {
  void *host;
  bool owned;
};

struct soc {
  soc_options options;
  uint32_t n;
  soc_device_state devices[SOC_DEVICES_MAX];
  fluid flows; /* one a device: it runs one list at a time */
  events next;
  uint64_t noise;
  bool inside; /* soc_advance: completions may submit, not advance */
};

/* ---- tokens ---- */

static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

uint64_t soc_state(uint64_t before, int32_t token) {
  return mix(before * 3 + 0x9E3779B97F4A7C15u * ((uint64_t)(uint32_t)token + 1));
}

int32_t soc_state_token(uint64_t state, uint32_t vocab) {
  return (int32_t)((state >> 16) % vocab);
}

int32_t soc_token_after(const int32_t *tokens, uint32_t n, uint32_t vocab) {
  uint64_t state = 0;
  for (uint32_t i = 0; i < n; i++) state = soc_state(state, tokens[i]);
  return soc_state_token(state, vocab);
}

static uint8_t *state_at(const device_tables *t, uint32_t seq, uint32_t pos) {
  uint32_t page = t->seqs[seq].pages[0][pos / SOC_PAGE_TOKENS];
  return t->kv_pool[0] + page * t->graph->groups[0].page_bytes +
         pos % SOC_PAGE_TOKENS * sizeof(uint64_t);
}

static const device_row *command_rows(const device_tables *t, const device_command *c) {
  return &t->rows[t->runs[c->run].row0 + c->row0];
}

static void give_token(soc_device_state *d, uint32_t slot, uint32_t want, int32_t token) {
  const device_tables *t = d->tables;
  d->tokens[slot][want] = token;
  if (!t->logits[slot]) return;
  size_t stride = (t->graph->vocab + 15) / 16 * 16;
  float *logits = t->logits[slot] + want * stride;
  memset(logits, 0, stride * sizeof *logits);
  logits[token] = 1.0f;
}

/* The whole list was run: every row's number, in order, and a token where one is wanted. */
static void run_rows(soc_device_state *d, const soc_list *l) {
  const device_tables *t = d->tables;
  for (unsigned i = 0; i < l->n; i++) {
    const device_row *rows = command_rows(t, &l->commands[i]);
    uint32_t want = 0, slot = t->runs[l->commands[i].run].slot;
    for (uint32_t r = 0; r < l->commands[i].rows; r++) {
      uint64_t state = 0;
      if (rows[r].pos) memcpy(&state, state_at(t, rows[r].seq, rows[r].pos - 1), sizeof state);
      state = soc_state(state, rows[r].token);
      memcpy(state_at(t, rows[r].seq, rows[r].pos), &state, sizeof state);
      if (!(rows[r].want & DEVICE_WANT_LOGITS)) continue;
      CHECK(want < t->slot_wants[slot]);
      give_token(d, slot, want++, soc_state_token(state, t->graph->vocab));
    }
  }
}

static void spoil_rows(soc_device_state *d, const soc_list *l) {
  for (unsigned i = 0; i < l->n; i++) {
    const device_row *rows = command_rows(d->tables, &l->commands[i]);
    for (uint32_t r = 0; r < l->commands[i].rows; r++) {
      uint64_t noise = mix(++d->owner->noise);
      memcpy(state_at(d->tables, rows[r].seq, rows[r].pos), &noise, sizeof noise);
    }
  }
}

/* ---- lists ---- */

/* Bytes of KV that a row reads: all positions up to its own, or those that a window shows. */
static uint64_t row_kv(const graph *g, uint32_t pos) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < g->n_groups; i++) {
    uint32_t window = g->groups[i].window, seen = pos + 1;
    if (window && seen > window) seen = window;
    bytes += g->groups[i].page_bytes / SOC_PAGE_TOKENS * seen;
  }
  return bytes;
}

static troika_status list_load(const soc_device_state *d, const soc_list *l, cost_load *load) {
  const device_tables *t = d->tables;
  *load = (cost_load){0};
  for (unsigned i = 0; i < l->n; i++) {
    const device_command *c = &l->commands[i];
    const device_row *rows = command_rows(t, c);
    uint32_t prompts = 0;
    if (c->node || c->node_end != t->graph->n_nodes || c->cols || !c->rows) return TROIKA_INVALID;
    if (c->row0 + c->rows > t->slot_rows[t->runs[c->run].slot]) return TROIKA_INVALID;
    for (uint32_t r = 0; r < c->rows; r++) {
      uint64_t kv = row_kv(t->graph, rows[r].pos);
      if (rows[r].arith == DEVICE_PROMPT) {
        prompts++;
        load->prompt_kv += kv;
      } else {
        load->gen_rows++;
        load->gen_kv += kv;
      }
    }
    if (prompts % d->options.step) return TROIKA_UNSUPPORTED;
    load->prompt_rows += prompts;
  }
  if ((load->gen_rows && !d->options.decodes) || (load->prompt_rows && !d->options.prefills))
    return TROIKA_UNSUPPORTED;
  return TROIKA_OK;
}

static troika_status list_compile(soc_device_state *d, soc_list *l) {
  cost_load load;
  troika_status status = list_load(d, l, &load);
  if (status) return status;
  int64_t panel_ns = d->options.panel_ns;
  l->total_ns = (int64_t)(((__int128)cost_time(&d->cost, &load) * d->options.truth) >> 16);
  if (l->total_ns < 1) l->total_ns = 1;
  l->done_ns = d->tables->runs[l->commands[0].run].panel * panel_ns;
  if (l->done_ns >= l->total_ns) return TROIKA_INVALID;
  /* As the policy sees it, but no device asks for more than it reaches alone. */
  uint64_t demand = cost_demand(&d->cost, &load);
  if (d->cost.bandwidth && demand > d->cost.bandwidth) demand = d->cost.bandwidth;
  l->bytes = (double)demand * 1e-9 * (double)l->total_ns;
  l->target_ns = l->total_ns;
  if (!d->options.stops && d->options.cut_ns) {
    int64_t panels = d->options.cut_ns / panel_ns;
    int64_t end = l->done_ns + (panels ? panels : 1) * panel_ns;
    if (end < l->total_ns) l->target_ns = end;
  }
  return TROIKA_OK;
}

static void fault_plan(soc_device_state *d, soc_list *l) {
  uint64_t number = d->lists++;
  l->fails = false;
  for (uint32_t i = 0; i < d->options.n_faults; i++) l->fails |= d->options.faults[i] == number;
  if (!l->fails) return;
  l->target_ns = l->done_ns + (l->target_ns - l->done_ns) / 2;
}

static void schedule(soc *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    if (s->flows.flows[i].running)
      events_set(&s->next, i, s->flows.flows[i].end_ns);
    else
      events_clear(&s->next, i);
  }
}

static bool event_passed(const device_event *e) {
  return !e->sequence || ((const soc_queue *)e->queue)->completed >= e->sequence;
}

/* The head of each idle device's queue, if what it waits for has happened. */
static void start_lists(soc *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    soc_queue *q = s->devices[i].queue;
    if (!q || q->completed == q->submitted) continue;
    soc_list *l = &q->lists[(q->completed + 1) % DEVICE_LISTS_MAX];
    bool ready = !l->running;
    for (unsigned w = 0; w < l->n_wait; w++) ready = ready && event_passed(&l->wait[w]);
    if (!ready) continue;
    l->running = true;
    l->start_ns = s->options.clock->now_ns;
    fluid_start(&s->flows, i, (double)l->total_ns, l->bytes,
                (double)s->devices[i].options.weight / COST_ONE, (double)l->done_ns,
                (double)l->target_ns);
  }
  schedule(s);
}

static void end_list(soc *s, soc_device_state *d) {
  soc_queue *q = d->queue;
  soc_list *l = &q->lists[(q->completed + 1) % DEVICE_LISTS_MAX];
  device_completion c = {.event = {&q->head, l->sequence},
                         .status = l->fails ? TROIKA_DEVICE_LOST : TROIKA_OK,
                         .panel = UINT32_MAX,
                         .start_ns = l->start_ns,
                         .end_ns = s->options.clock->now_ns};
  if (l->fails || l->target_ns < l->total_ns) {
    c.panel = (uint32_t)(l->target_ns / d->options.panel_ns);
    spoil_rows(d, l);
  } else {
    run_rows(d, l);
  }
  d->faults += l->fails;
  d->busy_ns += c.end_ns - c.start_ns;
  l->running = false;
  q->completed = l->sequence;
  fluid_end(&s->flows, d->index);
  start_lists(s);
  q->done(q->context, &c);
}

int64_t soc_next(const soc *s) {
  return s->next.n ? s->next.time_ns[s->next.heap[0]] : SOC_NEVER;
}

void soc_advance(soc *s, int64_t to_ns) {
  CHECK(!s->inside && to_ns >= s->options.clock->now_ns);
  s->inside = true;
  while (soc_next(s) <= to_ns) {
    uint32_t index = s->next.heap[0];
    fluid_advance(&s->flows, soc_next(s));
    s->options.clock->now_ns = s->flows.now_ns;
    end_list(s, &s->devices[index]);
  }
  fluid_advance(&s->flows, to_ns);
  s->options.clock->now_ns = to_ns;
  s->inside = false;
}

int32_t soc_token(const device *dev, uint32_t slot, uint32_t want) {
  return ((const soc_device_state *)dev)->tokens[slot][want];
}

/* ---- the driver ---- */

static void soc_describe(const device *dev, troika_device_info *out) {
  const soc_device_state *d = (const soc_device_state *)dev;
  int64_t now = d->owner->options.clock->now_ns;
  *out = (troika_device_info){.type = d->options.type,
                              .unified = true,
                              .stops_at_panels = d->options.stops,
                              .memory_bytes = UINT64_MAX,
                              .energy_j = (double)NAN,
                              .faults = d->faults};
  snprintf(out->name, sizeof out->name, "virtual %s", d->options.name);
  snprintf(out->driver, sizeof out->driver, "soc");
  snprintf(out->kernels, sizeof out->kernels, "none: a cost table");
  out->utilisation = now > 0 ? (double)d->busy_ns / (double)now : 0;
  if (!d->queue) return;
  out->queue_depth = (uint32_t)(d->queue->submitted - d->queue->completed);
  if (d->queue->completed)
    out->latency_ms_mean = (double)d->busy_ns / (double)d->queue->completed * 1e-6;
}

static bool soc_can_run(const device *dev, const graph *g, const graph_node *node, uint32_t rows,
                        const char **reason) {
  const soc_device_state *d = (const soc_device_state *)dev;
  (void)g;
  *reason = NULL;
  if (!rows)
    *reason = "no rows";
  else if (rows % d->options.step)
    *reason = "static shapes: rows must be a multiple of the step";
  else if (node->kind == GRAPH_HEAD && !d->options.decodes && !d->options.prefills)
    *reason = "takes no rows";
  return !*reason;
}

static troika_status soc_prepare(device *dev, const device_tables *tables,
                                 void (*progress)(void *, uint64_t, uint64_t), void *context,
                                 troika_error *err) {
  soc_device_state *d = (soc_device_state *)dev;
  CHECK(!d->tables);
  (void)progress;
  (void)context;
  if (!tables->graph->n_groups ||
      tables->graph->groups[0].page_bytes < SOC_PAGE_TOKENS * sizeof(uint64_t))
    return error_set(err, TROIKA_INVALID, "a page of the first KV group must have %zu bytes",
                     SOC_PAGE_TOKENS * sizeof(uint64_t));
  for (uint32_t i = 0; i < tables->n_slots; i++) {
    d->tokens[i] = calloc(tables->slot_wants[i] + 1, sizeof *d->tokens[i]);
    if (d->tokens[i]) continue;
    for (uint32_t j = 0; j < i; j++) {
      free(d->tokens[j]);
      d->tokens[j] = NULL;
    }
    return error_set(err, TROIKA_NO_MEMORY, "no memory for tokens");
  }
  d->tables = tables;
  return TROIKA_OK;
}

static uint64_t soc_memory_used(const device *dev, uint64_t *slot_bytes) {
  const soc_device_state *d = (const soc_device_state *)dev;
  *slot_bytes = 0;
  for (uint32_t i = 0; d->tables && i < d->tables->n_slots; i++)
    *slot_bytes += (d->tables->slot_wants[i] + 1) * sizeof *d->tokens[i];
  return sizeof *d + *slot_bytes;
}

static troika_status soc_reset(device *dev, troika_error *err) {
  const soc_device_state *d = (const soc_device_state *)dev;
  if (d->queue && d->queue->completed != d->queue->submitted)
    return error_set(err, TROIKA_BUSY, "lists are in flight");
  return TROIKA_OK; /* nothing of a fault stays */
}

static void soc_close(device *dev) {
  soc_device_state *d = (soc_device_state *)dev;
  CHECK(!d->queue);
  for (uint32_t i = 0; i < DEVICE_SLOTS_MAX; i++) {
    free(d->tokens[i]);
    d->tokens[i] = NULL;
  }
  d->tables = NULL;
}

static troika_status buffer_make(void *host, bool owned, device_buffer **out, troika_error *err) {
  device_buffer *b = host ? malloc(sizeof *b) : NULL;
  if (!b) return error_set(err, TROIKA_NO_MEMORY, "no memory for a buffer");
  *b = (device_buffer){host, owned};
  *out = b;
  return TROIKA_OK;
}

static troika_status soc_buffer_import(device *d, void *host, size_t len, device_buffer **out,
                                       troika_error *err) {
  (void)d;
  (void)len;
  return buffer_make(host, false, out, err);
}

static troika_status soc_buffer_create(device *d, size_t len, device_buffer **out,
                                       troika_error *err) {
  (void)d;
  void *host = calloc(1, len ? len : 1);
  troika_status status = buffer_make(host, true, out, err);
  if (status) free(host);
  return status;
}

static void *soc_buffer_begin(device_buffer *b) {
  return b->host;
}
static void soc_buffer_end(device_buffer *b) {
  (void)b;
}

static void soc_buffer_destroy(device_buffer *b) {
  if (b && b->owned) free(b->host);
  free(b);
}

static troika_status soc_queue_open(device *dev, device_done *done, void *context,
                                    device_queue **out, troika_error *err) {
  soc_device_state *d = (soc_device_state *)dev;
  if (!d->tables) return error_set(err, TROIKA_INVALID, "the device is not prepared");
  if (d->queue) return error_set(err, TROIKA_BUSY, "the device has one queue, and it is open");
  soc_queue *q = calloc(1, sizeof *q);
  if (!q) return error_set(err, TROIKA_NO_MEMORY, "no memory for a queue");
  *q = (soc_queue){.head = {dev}, .d = d, .done = done, .context = context};
  d->queue = q;
  *out = &q->head;
  return TROIKA_OK;
}

static troika_status soc_queue_submit(device_queue *queue, const device_command *commands,
                                      unsigned n, const device_event *wait, unsigned n_wait,
                                      device_event *done) {
  soc_queue *q = (soc_queue *)queue;
  CHECK(n >= 1 && n <= DEVICE_COMMANDS_MAX && n_wait <= 4);
  if (q->submitted - q->completed >= DEVICE_LISTS_MAX) return TROIKA_BUSY;
  for (unsigned i = 0; i < n_wait; i++) /* events of other drivers are not ours to wait for */
    if (wait[i].sequence && wait[i].queue->owner->driver != queue->owner->driver)
      return TROIKA_UNSUPPORTED;
  soc_list l = {.sequence = q->submitted + 1, .n = n, .n_wait = n_wait};
  memcpy(l.commands, commands, n * sizeof *commands);
  if (n_wait) memcpy(l.wait, wait, n_wait * sizeof *wait);
  troika_status status = list_compile(q->d, &l);
  if (status) return status;
  fault_plan(q->d, &l);
  q->submitted = l.sequence;
  q->lists[l.sequence % DEVICE_LISTS_MAX] = l;
  *done = (device_event){queue, l.sequence};
  start_lists(q->d->owner);
  return TROIKA_OK;
}

static troika_status soc_queue_stop(device_queue *queue, const device_event *done) {
  soc_queue *q = (soc_queue *)queue;
  if (done->sequence > q->submitted) return TROIKA_INVALID;
  if (done->sequence <= q->completed) return TROIKA_OK;
  soc_list *l = &q->lists[done->sequence % DEVICE_LISTS_MAX];
  soc_device_state *d = q->d;
  if (!l->running) { /* comes back where it is, as soon as it would have started */
    l->target_ns = l->done_ns;
    l->fails = false;
    return TROIKA_OK;
  }
  if (!d->options.stops) return TROIKA_OK;
  soc *s = d->owner;
  int64_t panel_ns = d->options.panel_ns;
  double at = s->flows.flows[d->index].done_ns;
  int64_t panel = (int64_t)(at / (double)panel_ns), end = panel * panel_ns;
  if ((double)end < at) end += panel_ns; /* within a panel: it is finished first */
  if (end >= l->target_ns) return TROIKA_OK;
  l->target_ns = end;
  l->fails = false; /* it would have, later */
  fluid_target(&s->flows, d->index, (double)end);
  schedule(s);
  return TROIKA_OK;
}

static troika_status soc_queue_wait(device_queue *queue, const device_event *done,
                                    int64_t timeout_ns) {
  soc_queue *q = (soc_queue *)queue;
  soc *s = q->d->owner;
  int64_t now = s->options.clock->now_ns;
  int64_t end = timeout_ns < 0 || timeout_ns >= SOC_NEVER - now ? SOC_NEVER : now + timeout_ns;
  while (q->completed < done->sequence) {
    int64_t next = soc_next(s);
    if (next > end || next == SOC_NEVER) {
      if (end != SOC_NEVER) soc_advance(s, end);
      return TROIKA_TIMEOUT;
    }
    soc_advance(s, next);
  }
  return TROIKA_OK;
}

static void soc_queue_close(device_queue *queue) {
  soc_queue *q = (soc_queue *)queue;
  device_event last = {queue, q->submitted};
  soc_queue_wait(queue, &last, -1);
  CHECK(q->completed == q->submitted);
  q->d->queue = NULL;
  free(q);
}

static const device_driver soc_driver = {
    .name = "soc",
    .describe = soc_describe,
    .can_run = soc_can_run,
    .prepare = soc_prepare,
    .memory_used = soc_memory_used,
    .reset = soc_reset,
    .close = soc_close,
    .buffer_import = soc_buffer_import,
    .buffer_create = soc_buffer_create,
    .buffer_begin = soc_buffer_begin,
    .buffer_end = soc_buffer_end,
    .buffer_destroy = soc_buffer_destroy,
    .queue_open = soc_queue_open,
    .queue_submit = soc_queue_submit,
    .queue_stop = soc_queue_stop,
    .queue_wait = soc_queue_wait,
    .queue_close = soc_queue_close,
};

/* ---- the chip ---- */

static troika_status options_check(const soc_options *o, troika_error *err) {
  if (!o->clock || !o->n_devices || o->n_devices > SOC_DEVICES_MAX)
    return error_set(err, TROIKA_INVALID, "%u devices: wanted 1..%d and a clock", o->n_devices,
                     SOC_DEVICES_MAX);
  for (uint32_t i = 0; i < o->n_devices; i++) {
    const soc_device_options *d = &o->devices[i];
    if (!d->cost || !cost_valid(d->cost))
      return error_set(err, TROIKA_INVALID, "device %u has no valid cost table", i);
    if (d->panel_ns <= 0 || !d->step || d->cut_ns < 0)
      return error_set(err, TROIKA_INVALID, "device %u: wanted a panel and a step above 0", i);
    if (!o->capacity[i]) return error_set(err, TROIKA_INVALID, "no capacity for %u devices", i + 1);
  }
  return TROIKA_OK;
}

troika_status soc_create(const soc_options *o, soc **out, troika_error *err) {
  troika_status status = options_check(o, err);
  if (status) return status;
  soc *s = calloc(1, sizeof *s);
  if (!s) return error_set(err, TROIKA_NO_MEMORY, "no memory for a virtual chip");
  s->options = *o;
  s->n = o->n_devices;
  s->flows.now_ns = o->clock->now_ns;
  for (uint32_t i = 0; i < s->n; i++) {
    soc_device_state *d = &s->devices[i];
    *d = (soc_device_state){.base = {&soc_driver},
                            .owner = s,
                            .index = i,
                            .options = o->devices[i],
                            .cost = *o->devices[i].cost};
    if (!d->options.truth) d->options.truth = COST_ONE;
    if (!d->options.weight) d->options.weight = COST_ONE;
    s->flows.capacity[i + 1] = (double)o->capacity[i] * 1e-9;
  }
  *out = s;
  return TROIKA_OK;
}

void soc_destroy(soc **s) {
  if (!*s) return;
  for (uint32_t i = 0; i < (*s)->n; i++)
    if ((*s)->devices[i].tables) soc_close(&(*s)->devices[i].base);
  free(*s);
  *s = NULL;
}

device *soc_device(soc *s, uint32_t index) {
  return index < s->n ? &s->devices[index].base : NULL;
}
