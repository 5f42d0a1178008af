/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into launches, completions into tokens. Runtime thread. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "runtime/internal.h"

device_row *launch_slot_rows(troika_runtime *rt, uint32_t slot) {
  device_row *rows = rt->rows;
  for (uint32_t i = 0; i < slot; i++) rows += rt->tables.slot_rows[i];
  return rows;
}

void launch_set_run(troika_runtime *rt, uint32_t slot, uint32_t rows, device_command *out) {
  uint16_t nodes = (uint16_t)rt->g->n_nodes;
  rt->runs[slot] = (device_run){.id = slot,
                                .row0 = (uint32_t)(launch_slot_rows(rt, slot) - rt->rows),
                                .rows = rows,
                                .slot = (uint16_t)slot,
                                .node_end = nodes};
  *out = (device_command){.run = slot, .node_end = nodes, .rows = rows};
}

static void extend(troika_runtime *rt, const request *r, uint32_t begin, uint32_t end) {
  troika_status status = kv_sequence_extend(rt->pages, r->seq, begin, end);
  CHECK(status == TROIKA_OK); /* promised */
}

/* Also generated tokens whose pages were taken: they keep their arithmetic. */
static void add_prefill(troika_runtime *rt, launch *l, request *r, const sched_action *a) {
  uint32_t target = request_target(r), n = target - r->computed;
  if (n > a->rows) n = a->rows;
  l->prefill_slot = r->band != SCHED_BAND_P ? SLOT_PREFILL
                    : a->promoted           ? SLOT_PREFILL_PROMOTED
                                            : SLOT_PREFILL_P;
  device_row *rows = launch_slot_rows(rt, l->prefill_slot);
  extend(rt, r, r->computed, r->computed + n);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t pos = r->computed + i;
    bool last = pos + 1 == r->prompt_n && r->n == r->prompt_n && r->max_new;
    bool sent = pos < r->prompt_n;
    rows[i] = (device_row){.seq = r->seq,
                           .pos = pos,
                           .token = r->tokens[pos],
                           .arith = sent ? DEVICE_PROMPT : DEVICE_GEN,
                           .want = last ? DEVICE_WANT_LOGITS : 0};
    if (sent) {
      l->load.prompt_rows++;
      l->load.prompt_kv += request_kv_bytes(rt, pos);
    } else {
      l->load.gen_rows++;
      l->load.gen_kv += request_kv_bytes(rt, pos);
    }
  }
  r->launch = l;
  r->flying = n;
  l->prefill = r;
  l->slots |= (uint8_t)(1u << l->prefill_slot);
  if (r->band < l->band) l->band = r->band;
  launch_set_run(rt, l->prefill_slot, n, &l->commands[l->n_commands++]);
}

static void add_decode(troika_runtime *rt, launch *l, request *r) {
  uint32_t pos = r->n - 1, part = r->band == SCHED_BAND_P,
           slot = part ? SLOT_DECODE_P : SLOT_DECODE;
  if (!request_grow(rt, r)) return; /* no page after all: it is asked again the next time */
  extend(rt, r, pos, pos + 1);
  launch_slot_rows(rt, slot)[l->n_decodes[part]] = (device_row){.seq = r->seq,
                                                                .pos = pos,
                                                                .token = r->tokens[pos],
                                                                .arith = DEVICE_GEN,
                                                                .want = DEVICE_WANT_LOGITS};
  r->launch = l;
  r->flying = 1;
  l->decodes[part][l->n_decodes[part]++] = r;
  l->load.gen_rows++;
  l->load.gen_kv += request_kv_bytes(rt, pos);
  if (r->band < l->band) l->band = r->band;
}

static void submit(troika_runtime *rt, launch *l) {
  CHECK(!rt->flight);
  l->state = SCHED_RUNNING;
  l->start_ns = clock_now(rt->clock);
  rt->flight = l;
  troika_status status =
      rt->cpu->driver->queue_submit(rt->queue, l->commands, l->n_commands, NULL, 0, &l->event);
  CHECK(status == TROIKA_OK); /* one launch at a time: there is room */
}

static void note_start(request *r, int64_t now) {
  if (!r->start_ns) r->start_ns = now;
}

static void for_each_row_owner(launch *l, int64_t now, void (*visit)(request *, int64_t)) {
  if (l->prefill) visit(l->prefill, now);
  for (int part = 0; part < 2; part++)
    for (uint32_t i = 0; i < l->n_decodes[part]; i++) visit(l->decodes[part][i], now);
}

static void clear_last(troika_runtime *rt) {
  for (uint32_t i = 0; i < rt->n_places; i++)
    if (rt->places[i]) rt->places[i]->in_last = false;
}

void launch_begin(troika_runtime *rt, const sched_action *actions, size_t n) {
  CHECK(actions[0].launch < SCHED_LAUNCHES_MAX);
  launch *l = &rt->launches[actions[0].launch];
  CHECK(!l->active);
  *l = (launch){.active = true,
                .promoted = actions[0].promoted,
                .band = SCHED_BAND_P,
                .total_ns = actions[0].ns};
  for (size_t i = 1; i < n; i++) add_decode(rt, l, request_by_id(rt, actions[i].request));
  for (int part = 0; part < 2; part++) {
    uint32_t slot = part ? SLOT_DECODE_P : SLOT_DECODE;
    if (!l->n_decodes[part]) continue;
    l->slots |= (uint8_t)(1u << slot);
    launch_set_run(rt, slot, l->n_decodes[part], &l->commands[l->n_commands++]);
  }
  if (actions[0].rows) add_prefill(rt, l, request_by_id(rt, actions[0].request), &actions[0]);
  if (!l->n_commands) {
    l->active = false;
    return;
  }
  if (n > 1) clear_last(rt);
  for (int part = 0; part < 2; part++)
    for (uint32_t i = 0; i < l->n_decodes[part]; i++) l->decodes[part][i]->in_last = true;
  for_each_row_owner(l, clock_now(rt->clock), note_start);
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.launches++;
  pthread_mutex_unlock(&rt->stats_lock);
  submit(rt, l);
}

void launch_resume(troika_runtime *rt, launch *l, bool promoted) {
  CHECK(l->active && l->state == SCHED_STOPPED);
  l->promoted = promoted;
  submit(rt, l);
}

void launch_stop(troika_runtime *rt, launch *l) {
  CHECK(l->active && l == rt->flight);
  if (l->state == SCHED_STOPPING) return;
  l->state = SCHED_STOPPING;
  l->stop_asked_ns = clock_now(rt->clock);
  rt->cpu->driver->queue_stop(rt->queue, &l->event);
}

static void let_go(request *r, int64_t now) {
  r->launch = NULL;
  r->flying = 0;
  r->waiting_ns = now;
}

/* Nothing was emitted, and the KV slots of its rows will be written again. */
void launch_drop(troika_runtime *rt, launch *l) {
  CHECK(l->active && l->state == SCHED_STOPPED);
  for_each_row_owner(l, clock_now(rt->clock), let_go);
  l->active = false;
}

static void add_record(troika_runtime *rt, request *r, const sample_result *result) {
  r->records[r->made] = (record){result->token, result->logprob, result->top_n};
  if (result->top_n)
    memcpy(r->tops + (size_t)r->made * r->params.top_logprobs, result->top,
           result->top_n * sizeof *result->top);
  r->made++;
  rt->made[r->band == SCHED_BAND_P]++;
  for (troika_stream *s = r->readers; s; s = s->reader_next) {
    pthread_mutex_lock(&s->lock);
    s->written = r->made;
    pthread_mutex_unlock(&s->lock);
    stream_has_news(rt, s);
  }
}

static void fail(troika_runtime *rt, request *r, troika_status status) {
  char text[256];
  if (status == TROIKA_NUMERIC)
    snprintf(text, sizeof text, "the model gave no finite logits at position %u", r->n - 1);
  else
    snprintf(text, sizeof text, "the answer cannot go on at position %u: %s", r->n - 1,
             constrain_failure(r));
  request_end(rt, r, TROIKA_FINISH_ERROR, status, text);
}

static void take_token(troika_runtime *rt, request *r, float *logits) {
  const tokenizer *t = rt->model->t;
  const sample_kernels kernels = {rt->math.vec_max, rt->math.vec_sum_exp};
  const sample_history history = {r->tokens, r->n, r->prompt_n};
  sample_result result;
  bool over = false;
  constrain_prepare(r);
  troika_status status = sample_token(&r->params, &history, r->n, logits, rt->g->vocab, &kernels,
                                      rt->sample_scratch, &result);
  int64_t now = clock_now(rt->clock);
  if (!status && r->form) status = constrain_take(r, result.token, &over);
  if (status) {
    fail(rt, r, status);
    return;
  }
  if (!r->first_ns)
    r->first_ns = now;
  else if (now - r->last_ns > r->spent.gap_ns)
    r->spent.gap_ns = now - r->last_ns;
  r->last_ns = now;
  r->state = REQUEST_DECODE;
  if (!r->ignore_eos && tokenizer_is_end(t, result.token)) {
    request_end(rt, r, TROIKA_FINISH_STOP, TROIKA_OK, "");
    return;
  }
  r->tokens[r->n++] = result.token;
  bytes_view unused;
  bool stop = emit_push(r->stops, tokenizer_piece(t, result.token, false), &unused);
  add_record(rt, r, &result);
  if (stop || over)
    request_end(rt, r, TROIKA_FINISH_STOP, TROIKA_OK, "");
  else if (r->n == r->prompt_n + r->max_new)
    request_end(rt, r, TROIKA_FINISH_LENGTH, TROIKA_OK, "");
}

static void finish_rows(troika_runtime *rt, request *r, float *logits) {
  r->computed += r->flying;
  let_go(r, clock_now(rt->clock));
  kv_publish(rt->pages, r->seq, r->scope, r->tokens, r->computed,
             r->prompt_n); /* before a window lets go of pages */
  kv_sequence_keep_from(rt->pages, r->seq, r->computed);
  request_release_followers(rt, r);
  if (request_cancelled(r)) { /* now: a retry that attached later would find its token not drawn */
    request_end(rt, r, TROIKA_FINISH_CANCELLED, TROIKA_OK, "");
    return;
  }
  if (r->computed < r->prompt_n) return;
  if (!r->max_new) {
    request_end(rt, r, TROIKA_FINISH_LENGTH, TROIKA_OK, "");
  } else if (r->computed == r->n) {
    take_token(rt, r, logits);
  } else if (r->computed == r->n - 1) {
    r->state = REQUEST_DECODE; /* its pages were taken, and are there again */
  }
}

static void finish_launch(troika_runtime *rt, launch *l) {
  l->active = false;
  uint32_t stride = (rt->g->vocab + 15) / 16 * 16;
  for (int part = 0; part < 2; part++)
    for (uint32_t i = 0; i < l->n_decodes[part]; i++)
      finish_rows(rt, l->decodes[part][i],
                  rt->tables.logits[part ? SLOT_DECODE_P : SLOT_DECODE] + (size_t)i * stride);
  if (!l->prefill) return;
  request *r = l->prefill;
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.prompt_tokens += r->flying;
  rt->stats.prompt_tokens_by[r->band == SCHED_BAND_P] += r->flying;
  pthread_mutex_unlock(&rt->stats_lock);
  finish_rows(rt, r, rt->tables.logits[l->prefill_slot]);
}

static void count_preemption(request *r, int64_t now) {
  (void)now;
  r->preemptions++;
}

/* A launch that ended before it could stop says nothing of how long a stop takes. */
static void count_stop(troika_runtime *rt, const launch *l, int64_t now) {
  bool asked = l->state == SCHED_STOPPING, raised = rt->costs.stop_ns > rt->profile.stop_ns;
  int64_t ns = now - l->stop_asked_ns;
  if (asked) {
    quantile_add(&rt->stops, ns);
    rt->costs.stop_ns = profile_stop_bound(&rt->stops, rt->profile.stop_ns, rt->config.preempt_ns);
  }
  if (!raised && rt->costs.stop_ns > rt->profile.stop_ns)
    log_line(LOG_INFO,
             "launches stop later than the cost table says: the preemption bound is %.2f ms now",
             (double)rt->costs.stop_ns * 1e-6);
  pthread_mutex_lock(&rt->stats_lock);
  troika_runtime_stats *s = &rt->stats;
  s->stops++;
  s->preemptions += asked;
  s->stop_p95_ms = (double)quantile_of(&rt->stops, 950) * 1e-6;
  if (asked && (double)ns * 1e-6 > s->stop_max_ms) s->stop_max_ms = (double)ns * 1e-6;
  pthread_mutex_unlock(&rt->stats_lock);
}

void launch_complete(troika_runtime *rt, const device_completion *c) {
  launch *l = rt->flight;
  CHECK(l && l->event.sequence == c->event.sequence);
  bool stopped = c->panel != UINT32_MAX;
  int64_t now = clock_now(rt->clock);
  rt->flight = NULL;
  account_stretch(rt, l, c->start_ns, c->end_ns);
  l->done_ns += c->end_ns - c->start_ns;
  if (!stopped) {
    cost_observe(&rt->costs, &l->load, l->done_ns);
    finish_launch(rt, l);
    return;
  }
  count_stop(rt, l, now);
  if (l->state == SCHED_STOPPING) for_each_row_owner(l, 0, count_preemption);
  rt->runs[l->commands[0].run].panel = c->panel;
  l->state = SCHED_STOPPED;
}
