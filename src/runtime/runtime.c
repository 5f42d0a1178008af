/* SPDX-License-Identifier: Apache-2.0 */
#include "troika/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/os.h"
#include "runtime/internal.h"

enum {
  THREADS_MAX = 256,
  PARALLEL_DEFAULT = 32,
  QUEUE_DEFAULT = 256,
  SPAN_DEFAULT = 256,
  SPAN_MIN = 16,
  EXPECTED_MOST = 1024 /* of waiting requests, whose cached prefixes count as used at once */
};

static troika_status check_real(const char *name, double *value, double missing, double high,
                                troika_error *err) {
  if (*value == 0) *value = missing;
  if (*value >= 0 && *value <= high) return TROIKA_OK;
  return error_set(err, TROIKA_INVALID, "%s is %g, wanted 0 to %g", name, *value, high);
}

static troika_status check_policy(troika_runtime_options *o, troika_error *err) {
  if (o->bcap > RUNTIME_PARALLEL_MAX)
    return error_set(err, TROIKA_INVALID, "bcap is %u, wanted at most %d", o->bcap,
                     RUNTIME_PARALLEL_MAX);
  troika_status status = check_real("tpot_slack", &o->tpot_slack, 0.15, 10, err);
  if (!status) status = check_real("tpot_target_ms", &o->tpot_target_ms, 0, 1e6, err);
  if (!status) status = check_real("ttft_target_ms", &o->ttft_target_ms, 1000, 1e7, err);
  if (!status) status = check_real("age_limit_s", &o->age_limit_s, 30, 1e6, err);
  if (!status) status = check_real("background_share", &o->background_share, 0.05, 0.5, err);
  return status;
}

static uint32_t ratio(double value) {
  return (uint32_t)(value * SCHED_ONE + 0.5);
}

/* Pages kept for reactive work: what one request of usual size needs, until it is known. */
static void set_config(troika_runtime *rt, const troika_runtime_options *o) {
  enum { USUAL_TOKENS = 1024 };
  uint32_t usual = rt->context / 4 < USUAL_TOKENS ? rt->context / 4 : USUAL_TOKENS;
  rt->config = (sched_config){.places = rt->parallel,
                              .queue_max = rt->queue_max,
                              .decode_rows = rt->parallel,
                              .ride_rows = 32,
                              .preempt_ns = 10000000,
                              .slack_r = ratio(o->tpot_slack),
                              .slack_i = ratio(o->tpot_slack > 0.5 ? o->tpot_slack : 0.5),
                              .tpot_target_ns = (int64_t)(o->tpot_target_ms * 1e6),
                              .bcap = o->bcap,
                              .age_limit_ns = (int64_t)(o->age_limit_s * 1e9),
                              .background_share = ratio(o->background_share),
                              .ttft_target_ns = (int64_t)(o->ttft_target_ms * 1e6),
                              .backlog_max_ns = 600000000000,
                              .degrade_first = o->degrade_first,
                              .shorten_to = 64};
  if (rt->parallel > 1) kv_need(rt->pages, usual, rt->config.reserve);
  rt->mean_answer[0] = rt->mean_answer[1] = 128u << 16;
}

static troika_status check_options(const troika_model *model, troika_runtime_options *o,
                                   troika_error *err) {
  if (!o->threads) o->threads = os_cpus("") < THREADS_MAX ? os_cpus("") : THREADS_MAX;
  if (!o->parallel) o->parallel = PARALLEL_DEFAULT;
  if (!o->queue_max) o->queue_max = QUEUE_DEFAULT;
  if (!o->span_rows) o->span_rows = SPAN_DEFAULT;
  uint32_t context_max = model->g->context;
  if (!o->context)
    o->context = context_max < RUNTIME_CONTEXT_DEFAULT ? context_max : RUNTIME_CONTEXT_DEFAULT;
  if (o->parallel > RUNTIME_PARALLEL_MAX)
    return error_set(err, TROIKA_INVALID, "parallel is %u, wanted 1 to %d", o->parallel,
                     RUNTIME_PARALLEL_MAX);
  if (o->queue_max > RUNTIME_QUEUE_MAX)
    return error_set(err, TROIKA_INVALID, "queue_max is %u, wanted at most %d", o->queue_max,
                     RUNTIME_QUEUE_MAX);
  if (o->context > context_max)
    return error_set(err, TROIKA_INVALID, "context is %u, the model was made for %u", o->context,
                     context_max);
  if (o->span_rows < SPAN_MIN || o->span_rows > 4096)
    return error_set(err, TROIKA_INVALID, "span_rows is %u, wanted %d to 4096", o->span_rows,
                     SPAN_MIN);
  if (o->activations > TROIKA_ACTIVATIONS_INT8)
    return error_set(err, TROIKA_INVALID, "activations is %d", (int)o->activations);
  return check_policy(o, err);
}

/* Halves the span until all slots together keep their bound. */
static troika_status fit_span(troika_runtime *rt, const device_factory *cpu, uint32_t span,
                              troika_error *err) {
  size_t decode = cpu->slot_bytes(rt->g, rt->parallel) * (SLOT_COUNT - SLOT_DECODE);
  size_t bytes;
  while ((bytes = cpu->slot_bytes(rt->g, span) * SLOT_DECODE + decode) > RUNTIME_SLOT_BYTES_MAX &&
         span / 2 >= SPAN_MIN)
    span /= 2;
  if (bytes > RUNTIME_SLOT_BYTES_MAX)
    return error_set(
        err, TROIKA_LIMIT,
        "activation slots for %u requests at once take %zu bytes, at most %d: run fewer",
        rt->parallel, bytes, RUNTIME_SLOT_BYTES_MAX);
  rt->span_rows = span;
  return TROIKA_OK;
}

/* Room for every place at full context, unless memory is short. */
static uint64_t kv_bytes_default(const graph *g, uint32_t parallel, uint32_t context,
                                 uint32_t ahead) {
  uint64_t bytes = 0, half = os_memory_available() / 2;
  for (uint32_t i = 0; i < g->n_groups; i++) {
    const graph_kv_group *group = &g->groups[i];
    uint64_t pages = (context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    uint64_t few = ((uint64_t)group->window + ahead + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
    if (group->window && few < pages) pages = few;
    bytes += pages * group->page_bytes;
  }
  bytes *= parallel;
  return bytes < half ? bytes : half;
}

static troika_status create_pages(troika_runtime *rt, uint64_t bytes, troika_error *err) {
  kv_group groups[KV_GROUPS_MAX];
  const graph *g = rt->g;
  for (uint32_t i = 0; i < g->n_groups; i++)
    groups[i] = (kv_group){.kind = g->groups[i].window ? KV_WINDOW : KV_FULL,
                           .page_tokens = KV_PAGE_TOKENS,
                           .window = g->groups[i].window,
                           .layers = g->groups[i].layers,
                           .page_bytes = g->groups[i].page_bytes};
  if (!bytes) bytes = kv_bytes_default(g, rt->parallel, rt->context, rt->span_rows);
  kv_options options = {groups,        g->n_groups, rt->n_places, rt->context,
                        rt->span_rows, bytes,       EXPECTED_MOST};
  troika_status status = kv_create(&options, &rt->pages, err);
  for (uint32_t i = 0; !status && i < g->n_groups; i++)
    rt->tables.kv_pool[i] = kv_pool(rt->pages, i);
  return status;
}

static troika_status create_tables(troika_runtime *rt, troika_error *err) {
  device_tables *t = &rt->tables;
  uint32_t rows = 0, stride = (rt->g->vocab + 15) / 16 * 16;
  size_t logits = 0;
  for (uint32_t i = 0; i < SLOT_COUNT; i++) {
    bool decode = i >= SLOT_DECODE;
    t->slot_rows[i] = decode ? rt->parallel : rt->span_rows;
    t->slot_wants[i] = decode ? rt->parallel : 1;
    rows += t->slot_rows[i];
    logits += (size_t)t->slot_wants[i] * stride;
  }
  rt->rows = calloc(rows, sizeof *rt->rows);
  rt->seqs = calloc(rt->n_places, sizeof *rt->seqs);
  rt->view = calloc(3 * rt->open_max, sizeof *rt->view);
  rt->seen = calloc(3 * rt->open_max, sizeof *rt->seen);
  rt->actions_capacity = 6 * rt->open_max + 8;
  rt->actions = calloc(rt->actions_capacity, sizeof *rt->actions);
  rt->logits_bytes = logits * sizeof(float);
  rt->logits_memory = os_memory(rt->logits_bytes);
  rt->sample_scratch_bytes = sample_scratch_bytes(rt->g->vocab);
  rt->sample_scratch = os_memory(rt->sample_scratch_bytes);
  if (!rt->rows || !rt->seqs || !rt->view || !rt->seen || !rt->actions || !rt->logits_memory ||
      !rt->sample_scratch)
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the runtime's tables");
  float *at = rt->logits_memory;
  for (uint32_t i = 0; i < SLOT_COUNT; i++) {
    t->logits[i] = at;
    at += (size_t)t->slot_wants[i] * stride;
  }
  t->graph = rt->g;
  t->runs = rt->runs;
  t->rows = rt->rows;
  t->seqs = rt->seqs;
  t->n_slots = SLOT_COUNT;
  t->context = rt->context;
  return TROIKA_OK;
}

static void destroy(troika_runtime *rt) {
  if (rt->started) {
    rt->quit_letter.kind = MESSAGE_QUIT;
    mailbox_post(&rt->mail, &rt->quit_letter);
    pthread_join(rt->thread, NULL);
  }
  profile_close(rt);
  runtime_trace_close(&rt->trace);
  runtime_recorder_close(&rt->recorder);
  runtime_sessions_destroy(&rt->sessions);
  if (rt->queue) rt->cpu->driver->queue_close(rt->queue);
  if (rt->cpu) rt->cpu->driver->close(rt->cpu);
  kv_destroy(&rt->pages);
  os_memory_free(rt->logits_memory, rt->logits_bytes);
  os_memory_free(rt->sample_scratch, rt->sample_scratch_bytes);
  free(rt->actions);
  free(rt->view);
  free(rt->seen);
  free(rt->seqs);
  free(rt->rows);
  pthread_mutex_destroy(&rt->stats_lock);
  atomic_fetch_sub(&rt->model->users, 1);
  free(rt);
}

static troika_status start(troika_runtime *rt, const device_factory *factory,
                           const troika_runtime_options *o, troika_error *err) {
  device_options options = {o->threads, (uint8_t)o->activations, o->cpu_levels,
                            o->test_stop_panels};
  troika_status status = factory->open(&options, &rt->cpu, err);
  if (status) return status;
  factory->math(rt->cpu, &rt->math);
  for (uint32_t i = 0; i < rt->g->n_nodes; i++) {
    const char *reason;
    if (!rt->cpu->driver->can_run(rt->cpu, rt->g, &rt->g->nodes[i], rt->span_rows, &reason))
      return error_set(err, TROIKA_UNSUPPORTED, "layer %u cannot run on any processor here: %s",
                       rt->g->nodes[i].layer, reason);
  }
  status = rt->cpu->driver->prepare(rt->cpu, &rt->tables, o->progress, o->progress_context, err);
  if (status) return status;
  status = rt->cpu->driver->queue_open(rt->cpu, runtime_done, rt, &rt->queue, err);
  if (!status) status = profile_open(rt, o->profile, err);
  if (!status && o->trace) status = runtime_trace_open(o->trace, &rt->trace, err);
  if (!status) status = runtime_recorder_open(o->record, &rt->recorder, err);
  if (status) return status;
  if (pthread_create(&rt->thread, NULL, runtime_main, rt))
    return error_set(err, TROIKA_NO_MEMORY, "cannot start the runtime's thread");
  rt->started = true;
  return TROIKA_OK;
}

static void first_stats(troika_runtime *rt, const troika_runtime_options *o, int64_t began_ns) {
  uint64_t slots, all = rt->cpu->driver->memory_used(rt->cpu, &slots);
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.threads = o->threads;
  rt->stats.parallel = rt->parallel;
  rt->stats.queue_max = rt->queue_max;
  rt->stats.context = rt->context;
  rt->stats.span_rows = rt->span_rows;
  rt->stats.kv_bytes = kv_bytes(rt->pages);
  rt->stats.slot_bytes = slots;
  rt->stats.weight_bytes = all - slots;
  rt->stats.bcap_term = "none";
  rt->stats.preempt_bound_ms = (double)rt->shown_costs.stop_ns * 1e-6;
  rt->stats.bound_measured = rt->profile.facts.measured;
  rt->stats.load_s = (double)(clock_real_now(NULL) - began_ns) * 1e-9;
  troika_device_info info;
  rt->cpu->driver->describe(rt->cpu, &info);
  snprintf(rt->stats.kernels, sizeof rt->stats.kernels, "%s", info.kernels);
  pthread_mutex_unlock(&rt->stats_lock);
}

troika_status troika_runtime_open(troika_model *model, const troika_runtime_options *options,
                                  troika_runtime **out, troika_error *err) {
  int64_t began_ns = clock_real_now(NULL);
  troika_runtime_options o = {.size = sizeof o};
  const device_factory *factory = device_factory_find("cpu");
  if (options && options->size != sizeof *options)
    return error_set(err, TROIKA_INVALID, "troika_runtime_options.size is %u, wanted %zu",
                     options->size, sizeof *options);
  if (options) o = *options;
  troika_status status = check_options(model, &o, err);
  if (status) return status;
  troika_runtime *rt = aligned_alloc(64, (sizeof *rt + 63) / 64 * 64);
  if (!rt) return error_set(err, TROIKA_NO_MEMORY, "no memory for a runtime");
  memset(rt, 0, sizeof *rt);
  pthread_mutex_init(&rt->stats_lock, NULL);
  atomic_fetch_add(&model->users, 1);
  rt->model = model;
  rt->g = model->g;
  rt->clock = clock_real();
  rt->parallel = o.parallel;
  rt->n_places = o.parallel + 1;
  rt->queue_max = o.queue_max;
  rt->open_max = o.parallel + o.queue_max;
  rt->context = o.context;
  for (uint32_t i = 0; i < sizeof rt->completions / sizeof *rt->completions; i++)
    rt->completions[i].letter.kind = MESSAGE_COMPLETION;
  status = fit_span(rt, factory, o.span_rows, err);
  if (!status) status = create_pages(rt, o.kv_bytes, err);
  if (!status) status = create_tables(rt, err);
  if (!status && !(rt->sessions = runtime_sessions_create()))
    status = error_set(err, TROIKA_NO_MEMORY, "no memory for sessions");
  if (!status) set_config(rt, &o);
  if (!status) status = start(rt, factory, &o, err);
  if (status) {
    destroy(rt);
    return status;
  }
  first_stats(rt, &o, began_ns);
  *out = rt;
  return TROIKA_OK;
}

troika_status troika_runtime_close(troika_runtime **runtime) {
  if (!*runtime) return TROIKA_OK;
  if (atomic_load(&(*runtime)->streams)) return TROIKA_BUSY;
  destroy(*runtime);
  *runtime = NULL;
  return TROIKA_OK;
}

void troika_runtime_session_waits(troika_runtime *runtime, uint64_t session, bool waits) {
  runtime_sessions_set_waits(runtime->sessions, session, waits);
  mailbox_nudge(&runtime->mail);
}

void troika_runtime_describe(const troika_runtime *runtime, troika_runtime_stats *out) {
  troika_runtime *rt = (troika_runtime *)(uintptr_t)runtime; /* the lock is not part of its value */
  pthread_mutex_lock(&rt->stats_lock);
  *out = rt->stats;
  pthread_mutex_unlock(&rt->stats_lock);
  out->memory_peak = os_memory_peak();
}

uint32_t troika_runtime_devices(const troika_runtime *runtime, troika_device_info *out,
                                uint32_t capacity) {
  if (capacity) runtime->cpu->driver->describe(runtime->cpu, out);
  return 1;
}
