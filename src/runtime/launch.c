/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into launches, completions into tokens. Runtime thread. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/internal.h"

static device_row *slot_rows(troika_runtime *rt, uint16_t slot) {
  device_row *rows = rt->rows;
  for (uint16_t i = 0; i < slot; i++) rows += rt->tables.slot_rows[i];
  return rows;
}

static void extend(troika_runtime *rt, const request *r, uint32_t begin, uint32_t end) {
  troika_status status = kv_sequence_extend(rt->pages, r->seq, begin, end);
  CHECK(status == TROIKA_OK); /* promised at admission */
}

static void add_run(troika_runtime *rt, launch *l, uint16_t slot, uint32_t rows) {
  rt->runs[slot] = (device_run){.id = slot,
                                .row0 = (uint32_t)(slot_rows(rt, slot) - rt->rows),
                                .rows = rows,
                                .slot = slot,
                                .node_end = (uint16_t)rt->g->n_nodes};
  l->commands[l->n_commands++] =
      (device_command){.run = slot, .node_end = (uint16_t)rt->g->n_nodes, .rows = rows};
}

static void add_prefill(troika_runtime *rt, launch *l, request *r, uint32_t n) {
  device_row *rows = slot_rows(rt, SLOT_PREFILL);
  extend(rt, r, r->computed, r->computed + n);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t pos = r->computed + i;
    bool last = pos + 1 == r->prompt_n && r->max_new;
    rows[i] = (device_row){.seq = r->seq,
                           .pos = pos,
                           .token = r->tokens[pos],
                           .arith = DEVICE_PROMPT,
                           .want = last ? DEVICE_WANT_LOGITS : 0};
  }
  r->in_flight = true;
  r->flying = n;
  l->prefill = r->place;
  add_run(rt, l, SLOT_PREFILL, n);
}

static void add_decode(troika_runtime *rt, launch *l, request *r) {
  uint32_t pos = r->n - 1;
  extend(rt, r, pos, pos + 1);
  slot_rows(rt, SLOT_DECODE)[l->n_decodes] = (device_row){.seq = r->seq,
                                                          .pos = pos,
                                                          .token = r->tokens[pos],
                                                          .arith = DEVICE_GEN,
                                                          .want = DEVICE_WANT_LOGITS};
  r->in_flight = true;
  r->flying = 1;
  l->decodes[l->n_decodes++] = r->place;
}

static void submit(troika_runtime *rt) {
  launch *l = &rt->flight;
  troika_status status =
      rt->cpu->driver->queue_submit(rt->queue, l->commands, l->n_commands, NULL, 0, &l->event);
  CHECK(status == TROIKA_OK); /* one launch at a time: there is room */
}

void launch_begin(troika_runtime *rt, const sched_action *actions, size_t n) {
  launch *l = &rt->flight;
  CHECK(!l->active);
  int64_t now = clock_now(rt->clock);
  *l = (launch){.active = true, .prefill = UINT32_MAX, .start_ns = now};
  for (size_t i = 1; i < n; i++) add_decode(rt, l, request_by_id(rt, actions[i].request));
  if (l->n_decodes) add_run(rt, l, SLOT_DECODE, l->n_decodes);
  if (actions[0].rows) {
    request *r = request_by_id(rt, actions[0].request);
    add_prefill(rt, l, r, actions[0].rows);
    if (!r->start_ns) r->start_ns = now;
  }
  pthread_mutex_lock(&rt->stats_lock);
  rt->stats.launches++;
  pthread_mutex_unlock(&rt->stats_lock);
  submit(rt);
}

static void add_record(troika_runtime *rt, request *r, const sample_result *result) {
  troika_stream *s = r->stream;
  pthread_mutex_lock(&s->lock);
  r->records[s->written] = (record){result->token, result->logprob, result->top_n};
  if (result->top_n)
    memcpy(r->tops + (size_t)s->written * r->params.top_logprobs, result->top,
           result->top_n * sizeof *result->top);
  s->written++;
  pthread_mutex_unlock(&s->lock);
  stream_has_news(rt, s);
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
    char text[256];
    if (status == TROIKA_NUMERIC)
      snprintf(text, sizeof text, "the model gave no finite logits at position %u", r->n - 1);
    else
      snprintf(text, sizeof text, "the answer cannot go on at position %u: %s", r->n - 1,
               constrain_failure(r));
    request_end(rt, r, TROIKA_FINISH_ERROR, status, text);
    return;
  }
  if (!r->first_ns) r->first_ns = now;
  r->last_ns = now;
  r->state = REQUEST_DECODE;
  release_followers(rt, r);
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
  r->in_flight = false;
  r->computed += r->flying;
  r->flying = 0;
  kv_publish(rt->pages, r->seq, 0, r->tokens, r->computed,
             r->prompt_n); /* before a window lets go of pages */
  kv_sequence_keep_from(rt->pages, r->seq, r->computed);
  if (atomic_load(&r->stream->cancelled) || r->computed < r->prompt_n) return;
  if (!r->max_new)
    request_end(rt, r, TROIKA_FINISH_LENGTH, TROIKA_OK, "");
  else
    take_token(rt, r, logits);
}

static bool all_cancelled(const troika_runtime *rt, const launch *l) {
  if (l->prefill != UINT32_MAX && !atomic_load(&rt->places[l->prefill]->stream->cancelled))
    return false;
  for (uint32_t i = 0; i < l->n_decodes; i++)
    if (!atomic_load(&rt->places[l->decodes[i]]->stream->cancelled)) return false;
  return true;
}

/* The rows of a launch that will not go on: nothing was emitted, their KV slots will be written
 * again. */
static void drop(troika_runtime *rt, const launch *l) {
  if (l->prefill != UINT32_MAX) rt->places[l->prefill]->in_flight = false;
  for (uint32_t i = 0; i < l->n_decodes; i++) rt->places[l->decodes[i]]->in_flight = false;
}

void launch_complete(troika_runtime *rt, const device_completion *completion) {
  launch *l = &rt->flight, done = *l;
  if (completion->panel != UINT32_MAX) {
    pthread_mutex_lock(&rt->stats_lock);
    rt->stats.stops++;
    pthread_mutex_unlock(&rt->stats_lock);
    if (l->stopping && all_cancelled(rt, l)) {
      l->active = false;
      drop(rt, &done);
      return;
    }
    rt->runs[l->commands[0].run].panel = completion->panel;
    l->stopping = false;
    submit(rt);
    return;
  }
  l->active = false;
  uint32_t stride = (rt->g->vocab + 15) / 16 * 16;
  for (uint32_t i = 0; i < done.n_decodes; i++)
    finish_rows(rt, rt->places[done.decodes[i]],
                rt->tables.logits[SLOT_DECODE] + (size_t)i * stride);
  if (done.prefill != UINT32_MAX) {
    request *r = rt->places[done.prefill];
    pthread_mutex_lock(&rt->stats_lock);
    rt->stats.prompt_tokens += r->flying;
    pthread_mutex_unlock(&rt->stats_lock);
    finish_rows(rt, r, rt->tables.logits[SLOT_PREFILL]);
  }
}
