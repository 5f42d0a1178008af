/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/record.h"

#include <string.h>

static const uint8_t magic[8] = {'t', 'r', 'o', 'i', 'k', 'a', 'S', 1};

typedef struct header {
  uint8_t magic[8];
  uint64_t bytes;    /* of the whole record */
  uint32_t sizes[7]; /* config, device, cost table, launch, request, memory, action */
  uint32_t n_devices, n_launches, n_requests, n_actions, power;
  uint32_t pages_free[SCHED_GROUPS], pages_total[SCHED_GROUPS];
  uint64_t bandwidth, kv_token_bytes;
  int64_t now_ns;
} header;

static const uint32_t part_sizes[7] = {
    sizeof(sched_config),  sizeof(sched_device), sizeof(cost_table),  sizeof(sched_launch_view),
    sizeof(sched_request), sizeof(sched_memory), sizeof(sched_action)};

static uint64_t aligned(uint64_t bytes) {
  return (bytes + 7) & ~(uint64_t)7;
}

static uint64_t size_of(uint64_t devices, uint64_t launches, uint64_t requests, uint64_t actions) {
  return aligned(sizeof(header)) + aligned(sizeof(sched_config)) +
         aligned(devices * sizeof(sched_device)) + aligned(devices * sizeof(cost_table)) +
         aligned(launches * sizeof(sched_launch_view)) + aligned(requests * sizeof(sched_request)) +
         aligned(sizeof(sched_memory)) + aligned(actions * sizeof(sched_action));
}

size_t sched_record_size(const sched_view *view, size_t n_actions) {
  return (size_t)size_of(view->n_devices, view->n_launches, view->n_requests, n_actions);
}

static uint8_t *put(uint8_t *at, const void *from, size_t bytes) {
  if (bytes) memcpy(at, from, bytes);
  for (size_t i = bytes; i < aligned(bytes); i++) at[i] = 0;
  return at + aligned(bytes);
}

size_t sched_record_write(const sched_view *v, const sched_memory *before, int64_t now_ns,
                          const sched_action *actions, size_t n_actions, uint8_t *out,
                          size_t capacity) {
  size_t bytes = sched_record_size(v, n_actions);
  if (bytes > capacity) return 0;
  header h = {.bytes = bytes,
              .n_devices = v->n_devices,
              .n_launches = v->n_launches,
              .n_requests = v->n_requests,
              .n_actions = (uint32_t)n_actions,
              .power = v->power,
              .bandwidth = v->bandwidth,
              .kv_token_bytes = v->kv_token_bytes,
              .now_ns = now_ns};
  memcpy(h.magic, magic, sizeof magic);
  memcpy(h.sizes, part_sizes, sizeof part_sizes);
  memcpy(h.pages_free, v->pages_free, sizeof h.pages_free);
  memcpy(h.pages_total, v->pages_total, sizeof h.pages_total);
  out = put(out, &h, sizeof h);
  out = put(out, v->config, sizeof *v->config);
  out = put(out, v->devices, v->n_devices * sizeof *v->devices);
  for (uint32_t i = 0; i < v->n_devices; i++) {
    memcpy(out, v->devices[i].cost, sizeof(cost_table));
    out += sizeof(cost_table);
  }
  while ((uintptr_t)out & 7) *out++ = 0;
  out = put(out, v->launches, v->n_launches * sizeof *v->launches);
  out = put(out, v->requests, v->n_requests * sizeof *v->requests);
  out = put(out, before, sizeof *before);
  put(out, actions, n_actions * sizeof *actions);
  return bytes;
}

const char sched_record_cut[] = "it is cut off";

static const char *check_header(const header *h, size_t len) {
  if (memcmp(h->magic, magic, sizeof magic)) return "it is no record of decisions";
  if (memcmp(h->sizes, part_sizes, sizeof part_sizes)) return "it was made by another build";
  if (h->n_devices < 1 || h->n_devices > SCHED_DEVICES_MAX ||
      h->n_launches > SCHED_LAUNCHES_MAX + 1 || h->n_requests > SCHED_REQUESTS_MAX ||
      h->n_actions > SCHED_RECORD_ACTIONS_MAX)
    return "its counts are out of range";
  if (h->bytes != size_of(h->n_devices, h->n_launches, h->n_requests, h->n_actions))
    return "its size does not fit its counts";
  return h->bytes > len ? sched_record_cut : NULL;
}

/* Nine years, and for what is multiplied half a year: int64_t holds what the policy computes. */
#define TIME_MAX ((int64_t)1 << 58)
#define SPAN_MAX ((int64_t)1 << 54)
enum { ROWS_MOST = 65536, RUNNING_MOST = 4096 };

static bool are_times(const int64_t *times, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (times[i] > TIME_MAX || times[i] < -TIME_MAX) return false;
  return true;
}

static bool request_valid(const sched_request *r) {
  int64_t times[] = {r->arrival_ns, r->waiting_ns, r->emit_ns, r->blocked_ns, r->recompute_ns};
  return r->state <= SCHED_ENDED && r->class_ <= SCHED_INHERITED && r->lift <= SCHED_BAND_P &&
         are_times(times, sizeof times / sizeof *times) && r->first_deadline_ns >= 0 &&
         r->done_deadline_ns >= 0;
}

static bool are_spans(const int64_t *times, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (times[i] > SPAN_MAX || times[i] < -SPAN_MAX) return false;
  return true;
}

static bool launch_valid(const sched_launch_view *l, uint32_t n_devices) {
  int64_t spans[] = {l->done_ns, l->total_ns};
  return l->id < SCHED_LAUNCHES_MAX && l->device < n_devices && l->state <= SCHED_STOPPED &&
         are_times(&l->start_ns, 1) && are_spans(spans, sizeof spans / sizeof *spans);
}

static bool config_valid(const sched_config *c) {
  int64_t spans[] = {c->preempt_ns, c->tpot_target_ns, c->age_limit_ns, c->ttft_target_ns,
                     c->backlog_max_ns};
  uint32_t most = 16 * SCHED_ONE;
  return are_spans(spans, sizeof spans / sizeof *spans) && c->slack_r <= most &&
         c->slack_i <= most && c->background_share <= SCHED_ONE && c->ride_rows <= ROWS_MOST;
}

static bool memory_valid(const sched_memory *m) {
  int64_t times[] = {m->then_ns, m->above_ns, m->below_ns};
  int64_t spans[] = {m->x_ns,       m->x_floor_ns, m->credit_ns,  m->pass1_ns,
                     m->backlog_ns, m->x_spent_ns, m->x_earned_ns};
  for (int i = 0; i < 2; i++) {
    const sched_pace *p = &m->pace[i];
    int64_t pace[] = {p->time_ns, p->work_ns, p->span_ns, p->done_ns, p->rows, p->tokens};
    if (!are_spans(pace, sizeof pace / sizeof *pace)) return false;
  }
  return are_times(times, sizeof times / sizeof *times) &&
         are_spans(spans, sizeof spans / sizeof *spans) &&
         are_times(m->until_ns, SCHED_LAUNCHES_MAX);
}

/* sched_decide trusts its caller: what would make it trip is refused here. */
static const char *check_parts(const sched_recorded *r) {
  const sched_view *v = &r->view;
  if (!are_times(&r->now_ns, 1) || !config_valid(v->config) || !memory_valid(&r->before))
    return "its times are out of range";
  for (uint32_t i = 0; i < v->n_devices; i++)
    if (!cost_valid(v->devices[i].cost) || v->devices[i].span_rows > ROWS_MOST)
      return "it has a cost table that is none";
  for (uint32_t i = 0; i < v->n_launches; i++)
    if (!launch_valid(&v->launches[i], v->n_devices)) return "it has a launch that is none";
  uint32_t running = 0;
  for (uint32_t i = 0; i < v->n_requests; i++) {
    if (!request_valid(&v->requests[i])) return "it has a request that is none";
    running += v->requests[i].state == SCHED_PREFILL || v->requests[i].state == SCHED_DECODE;
  }
  if (running > RUNNING_MOST) return "more requests run than any runtime lets";
  for (uint32_t i = 0; i < r->n_actions; i++)
    if (r->actions[i].kind > SCHED_STOP) return "it has an action that is none";
  return NULL;
}

size_t sched_record_read(const uint8_t *bytes, size_t len, sched_recorded *out,
                         const char **problem) {
  header h;
  *problem = NULL;
  if (!len) return 0;
  if (len < aligned(sizeof h)) {
    bool ours = !memcmp(bytes, magic, len < sizeof magic ? len : sizeof magic);
    *problem = ours ? sched_record_cut : "it is no record of decisions";
    return 0;
  }
  memcpy(&h, bytes, sizeof h);
  if ((*problem = check_header(&h, len))) return 0;
  const uint8_t *at = bytes + aligned(sizeof h);
  *out = (sched_recorded){.now_ns = h.now_ns, .n_actions = h.n_actions};
  sched_view *v = &out->view;
  v->config = (const void *)at;
  at += aligned(sizeof(sched_config));
  memcpy(out->devices, at, h.n_devices * sizeof(sched_device));
  at += aligned(h.n_devices * sizeof(sched_device));
  for (uint32_t i = 0; i < h.n_devices; i++)
    out->devices[i].cost = (const cost_table *)(const void *)(at + i * sizeof(cost_table));
  at += aligned(h.n_devices * sizeof(cost_table));
  v->devices = out->devices;
  v->n_devices = h.n_devices;
  v->launches = (const void *)at;
  v->n_launches = h.n_launches;
  at += aligned(h.n_launches * sizeof(sched_launch_view));
  v->requests = (const void *)at;
  v->n_requests = h.n_requests;
  at += aligned(h.n_requests * sizeof(sched_request));
  memcpy(&out->before, at, sizeof out->before);
  at += aligned(sizeof(sched_memory));
  out->actions = (const void *)at;
  v->bandwidth = h.bandwidth;
  v->kv_token_bytes = h.kv_token_bytes;
  v->power = h.power;
  memcpy(v->pages_free, h.pages_free, sizeof v->pages_free);
  memcpy(v->pages_total, h.pages_total, sizeof v->pages_total);
  return (*problem = check_parts(out)) ? 0 : (size_t)h.bytes;
}
