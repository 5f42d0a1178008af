/* SPDX-License-Identifier: Apache-2.0 */
/* What each stage of a node is cut into, and what one panel of it computes. Panels of a stage touch
 * disjoint outputs, so they run in any order and on any worker; a barrier stands between stages. No
 * panel's arithmetic depends on which other rows are in the list. */
#include <string.h>

#include "base/check.h"
#include "device/cpu/internal.h"

static uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

/* ---- matrix products: (panels of a weight) x (rows in groups) ---- */

/* The weights whose panels a stage walks one after the other; gate and up are walked side by side.
 */
static uint32_t stage_weights(const graph_node *node, uint8_t stage, uint16_t out[3]) {
  switch (stage) {
    case CPU_QKV:
      memcpy(out, node->w, sizeof node->w);
      return 3;
    case CPU_OUT:
      out[0] = node->w_out;
      return 1;
    case CPU_GATE:
      out[0] = node->w_gate;
      out[1] = node->w_up;
      return 2;
    case CPU_DOWN:
      out[0] = node->w_down;
      return 1;
    default:
      out[0] = node->w[0];
      return 1;
  }
}

static uint32_t weight_items(const cpu_device *d, uint16_t w) {
  return ceil_div(d->weights[w].n, KERNEL_PANEL * CPU_PANELS_ITEM);
}

/* Rows that one panel takes: as many chunks as keep it under its bound of work. */
static uint32_t group_rows(const cpu_device *d, uint8_t stage, uint16_t w) {
  uint32_t columns = KERNEL_PANEL * CPU_PANELS_ITEM * (stage == CPU_GATE ? 2 : 1);
  uint32_t rows = CPU_ITEM_OPS / (2 * columns) / d->weights[w].k;
  return rows < CPU_CHUNK_ROWS ? CPU_CHUNK_ROWS : rows / CPU_CHUNK_ROWS * CPU_CHUNK_ROWS;
}

static uint32_t matmul_panels(const cpu_device *d, const graph_node *node, uint8_t stage,
                              uint32_t rows) {
  uint16_t w[3];
  uint32_t n = stage_weights(node, stage, w), items = 0;
  for (uint32_t i = 0; i < n && !(stage == CPU_GATE && i); i++) items += weight_items(d, w[i]);
  return items * ceil_div(rows, group_rows(d, stage, w[0]));
}

static const float *plain_rows(const cpu_device *d, const cpu_slot *s, uint8_t stage,
                               size_t *stride) {
  switch (stage) {
    case CPU_OUT:
      *stride = d->qkv_stride;
      return s->qkv;
    case CPU_DOWN:
      *stride = d->g->ff;
      return s->gate;
    default:
      *stride = d->g->width;
      return s->h;
  }
}

static float *result_rows(const cpu_device *d, const cpu_part *p, uint8_t stage, uint32_t which,
                          size_t *stride) {
  const graph *g = d->g;
  cpu_slot *s = p->slot;
  switch (stage) {
    case CPU_QKV:
      *stride = d->qkv_stride;
      return s->qkv + (which ? g->heads + (which - 1) * g->kv_heads : 0) * g->head_dim;
    case CPU_GATE:
      *stride = g->ff;
      return which ? s->up : s->gate;
    case CPU_LOGITS:
      *stride = (g->vocab + 15) / 16 * 16;
      return p->logits;
    default:
      *stride = g->width;
      return s->out;
  }
}

/* One weight's panels for consecutive rows of one part and one arithmetic. */
static void matmul(cpu_device *d, const cpu_part *p, uint8_t stage, uint16_t weight, uint32_t which,
                   uint32_t panel0, const cpu_chunk *c, uint32_t rows, uint32_t worker) {
  const kernel_weight *w = &d->weights[weight];
  cpu_slot *s = p->slot;
  size_t y_row0 = c->row0 + (stage == CPU_LOGITS ? 0 : p->slot_row0), plain_stride, y_stride;
  size_t row0 = c->row0 + (stage == CPU_LOGITS ? p->want0 : p->slot_row0);
  uint32_t panels = ceil_div(w->n, KERNEL_PANEL) - panel0;
  kernel_mm args = {.weight = w, .panel0 = panel0, .rows = rows, .scratch = d->scratch[worker]};
  args.panels = panels < CPU_PANELS_ITEM ? panels : CPU_PANELS_ITEM;
  const float *plain = plain_rows(d, s, stage, &plain_stride);
  if (d->k.act_float[c->arith][w->pack]) {
    args.x = (const uint8_t *)(plain + row0 * plain_stride);
    args.x_stride = plain_stride * sizeof(float);
  } else {
    args.x = s->act + row0 * d->act_stride;
    args.x_stride = d->act_stride;
  }
  args.y = result_rows(d, p, stage, which, &y_stride) + y_row0 * y_stride;
  args.y_stride = y_stride;
  d->k.mm[c->arith][w->pack](&args);
}

static void run_matmul(cpu_device *d, const cpu_list *l, const graph_node *node, uint8_t stage,
                       uint32_t item, uint32_t worker) {
  bool head = stage == CPU_LOGITS;
  const cpu_chunk *chunks = head ? l->want_chunks : l->chunks;
  uint32_t n_chunks = head ? l->n_want_chunks : l->n_chunks, rows = head ? l->wants : l->rows;
  uint16_t w[3];
  uint32_t n = stage_weights(node, stage, w), which = 0;
  uint32_t per_group = group_rows(d, stage, w[0]), groups = ceil_div(rows, per_group);
  uint32_t begin = item % groups * per_group, end = begin + per_group;
  item /= groups;
  while (stage != CPU_GATE && which + 1 < n && item >= weight_items(d, w[which]))
    item -= weight_items(d, w[which++]);
  for (uint32_t i = 0; i < n_chunks;) {
    const cpu_chunk *c = &chunks[i];
    uint32_t run = c->rows;
    if (c->first < begin || c->first >= end) {
      i++;
      continue;
    }
    /* Chunks that follow on in the same part and arithmetic are taken at once: the weight is
     * unpacked once. */
    for (i++; i < n_chunks; i++) {
      const cpu_chunk *more = &chunks[i];
      if (more->part != c->part || more->arith != c->arith || more->row0 != c->row0 + run ||
          more->first >= end)
        break;
      run += more->rows;
    }
    const cpu_part *p = &l->parts[c->part];
    matmul(d, p, stage, w[which], which, item * CPU_PANELS_ITEM, c, run, worker);
    if (stage == CPU_GATE) matmul(d, p, stage, w[1], 1, item * CPU_PANELS_ITEM, c, run, worker);
  }
}

/* ---- stages that go row by row ---- */

/* Some weight of the next product wants the packed form. */
static bool wants_act(const cpu_device *d, const graph_node *node, uint8_t stage, uint8_t arith) {
  uint16_t w[3];
  uint32_t n = stage_weights(node, stage, w);
  for (uint32_t i = 0; i < n; i++)
    if (!d->k.act_float[arith][d->weights[w[i]].pack]) return true;
  return false;
}

static void pack_row(const cpu_device *d, const graph_node *node, uint8_t next, uint8_t arith,
                     const float *row, uint32_t k, cpu_slot *s, uint32_t slot_row) {
  if (wants_act(d, node, next, arith))
    d->k.act[arith](row, k, s->act + (size_t)slot_row * d->act_stride);
}

static void embed_row(cpu_device *d, const graph_node *node, const device_row *r, cpu_slot *s,
                      uint32_t row) {
  const graph *g = d->g;
  float *x = s->x + (size_t)row * g->width;
  kernel_weight_row(&d->weights[node->w[0]], (uint32_t)r->token, x);
  if (g->embed_scale != 1)
    for (uint32_t i = 0; i < g->width; i++) x[i] *= g->embed_scale;
  uint32_t pairs = g->head_dim / 2;
  for (uint32_t i = 0; i < g->n_ropes; i++) {
    const double *high = d->ropes[i].high + (size_t)(r->pos / 64) * pairs * 2;
    const double *low = d->ropes[i].low + (size_t)(r->pos % 64) * pairs * 2;
    float *out = s->cos_sin[i] + (size_t)row * g->head_dim;
    for (uint32_t j = 0; j < pairs * 2; j += 2) {
      out[j] = (float)(high[j] * low[j] - high[j + 1] * low[j + 1]);
      out[j + 1] = (float)(high[j + 1] * low[j] + high[j] * low[j + 1]);
    }
  }
}

/* x += [post_norm](out) */
static void add_residual(cpu_device *d, const graph_node *node, cpu_slot *s, uint32_t row) {
  const graph *g = d->g;
  float *out = s->out + (size_t)row * g->width;
  if (node->post_norm != GRAPH_NONE)
    d->k.rms_norm(out, g->norms[node->post_norm].w, g->width, g->norm_eps, out);
  d->k.add(s->x + (size_t)row * g->width, out, g->width);
}

static void norm_row(cpu_device *d, const graph_node *node, uint8_t next, uint8_t arith,
                     cpu_slot *s, uint32_t row, uint32_t to) {
  const graph *g = d->g;
  float *h = s->h + (size_t)to * g->width;
  d->k.rms_norm(s->x + (size_t)row * g->width, g->norms[node->norm].w, g->width, g->norm_eps, h);
  pack_row(d, node, next, arith, h, g->width, s, to);
}

static void rope_row(cpu_device *d, const graph_node *node, const device_row *r, cpu_slot *s,
                     uint32_t row) {
  const graph *g = d->g;
  const device_tables *t = d->tables;
  float *q = s->qkv + (size_t)row * d->qkv_stride, *k = q + g->heads * g->head_dim;
  const float *v = k + g->kv_heads * g->head_dim;
  const float *cos_sin = s->cos_sin[node->rope] + (size_t)row * g->head_dim;
  bool adjacent = g->ropes[node->rope].adjacent;
  for (uint32_t i = 0; i < g->heads + g->kv_heads; i++) {
    float *head = q + i * g->head_dim;
    uint16_t norm = i < g->heads ? node->q_norm : node->k_norm;
    if (norm != GRAPH_NONE) d->k.rms_norm(head, g->norms[norm].w, g->head_dim, g->norm_eps, head);
    d->k.rope(head, cos_sin, g->head_dim, adjacent);
  }
  uint32_t page = t->seqs[r->seq].pages[node->kv_group][r->pos / KERNEL_PAGE];
  size_t head_bytes = (size_t)2 * KERNEL_PAGE * g->head_dim * sizeof(uint16_t);
  uint8_t *head = t->kv_pool[node->kv_group] + (size_t)page * g->groups[node->kv_group].page_bytes +
                  (size_t)node->kv_layer * g->kv_heads * head_bytes;
  for (uint32_t i = 0; i < g->kv_heads; i++, head += head_bytes)
    d->k.kv_write(head, r->pos % KERNEL_PAGE, g->head_dim, k + i * g->head_dim,
                  v + i * g->head_dim);
}

static void glu_row(cpu_device *d, const graph_node *node, uint8_t arith, cpu_slot *s,
                    uint32_t row) {
  const graph *g = d->g;
  float *gate = s->gate + (size_t)row * g->ff;
  const float *up = s->up + (size_t)row * g->ff;
  if (g->glu == GRAPH_SILU)
    d->k.silu_mul(gate, up, g->ff, gate);
  else
    d->k.gelu_mul(gate, up, g->ff, gate);
  pack_row(d, node, CPU_DOWN, arith, gate, g->ff, s, row);
}

static void run_row(cpu_device *d, const cpu_part *p, const graph_node *node, uint8_t stage,
                    uint32_t r) {
  cpu_slot *s = p->slot;
  const device_row *row = &p->rows[r];
  uint32_t at = p->slot_row0 + r;
  switch (stage) {
    case CPU_EMBED:
      embed_row(d, node, row, s, at);
      break;
    case CPU_NORM:
      if (node->add) add_residual(d, node, s, at);
      norm_row(d, node, CPU_QKV, row->arith, s, at, at);
      break;
    case CPU_ROPE:
      rope_row(d, node, row, s, at);
      break;
    case CPU_MIDDLE:
      add_residual(d, node, s, at);
      norm_row(d, node, CPU_GATE, row->arith, s, at, at);
      break;
    default:
      glu_row(d, node, row->arith, s, at);
  }
}

static void run_rows(cpu_device *d, const cpu_list *l, const graph_node *node, uint8_t stage,
                     uint32_t item) {
  uint32_t begin = item * CPU_ROW_ITEM, end = begin + CPU_ROW_ITEM;
  for (uint32_t i = 0; i < l->n_parts; i++) {
    const cpu_part *p = &l->parts[i];
    for (uint32_t r = begin > p->first ? begin - p->first : 0; r < p->n && p->first + r < end; r++)
      run_row(d, p, node, stage, r);
  }
}

/* The head works on wanting rows only; their normed form moves to the front of the slot. */
static void run_last(cpu_device *d, const cpu_list *l, const graph_node *node, uint32_t item) {
  const cpu_part *p = l->parts;
  uint32_t want = item;
  while (want >= p->wants) want -= (p++)->wants;
  uint32_t r = l->want_rows[item], row = p->slot_row0 + r;
  if (node->add) add_residual(d, node, p->slot, row);
  norm_row(d, node, CPU_LOGITS, p->rows[r].arith, p->slot, row, p->want0 + want);
}

/* ---- attention: (block of rows) x (KV head) x (split of 512 positions), in waves ---- */

/* Splits of this block in this wave: [*first, *first + count) counted from position 0. */
static uint32_t wave_splits(const cpu_list *l, const cpu_block *b, uint32_t window, uint32_t wave,
                            uint32_t *first) {
  uint32_t n = cpu_block_splits(b, window, first), most = l->parts[b->part].slot->splits;
  if (wave * most >= n) return 0;
  *first += wave * most;
  n -= wave * most;
  return n < most ? n : most;
}

static uint32_t attention_panels(const cpu_device *d, const cpu_list *l, const cpu_cursor *c) {
  uint32_t window = d->g->groups[d->g->nodes[c->node].kv_group].window, n = 0, first;
  for (uint32_t i = 0; i < l->n_blocks; i++)
    n += wave_splits(l, &l->blocks[i], window, c->wave, &first);
  return n * d->g->kv_heads;
}

static float *part_of(const cpu_device *d, const cpu_slot *s, uint32_t split, uint32_t kv_head,
                      uint32_t row) {
  const graph *g = d->g;
  return s->part +
         (((size_t)split * g->kv_heads + kv_head) * s->rows + row) * cpu_group(g) * d->part_stride;
}

static void run_attention(cpu_device *d, const cpu_list *l, const cpu_cursor *c, uint32_t item,
                          uint32_t worker) {
  const graph *g = d->g;
  const graph_node *node = &g->nodes[c->node];
  const graph_kv_group *group = &g->groups[node->kv_group];
  uint32_t kv_head = item % g->kv_heads, first = 0;
  item /= g->kv_heads;
  const cpu_block *b = l->blocks;
  for (uint32_t n; item >= (n = wave_splits(l, b, group->window, c->wave, &first)); b++) item -= n;
  const cpu_part *p = &l->parts[b->part];
  uint32_t row = p->slot_row0 + b->row0, split = first + item;
  uint32_t from = group->window && b->pos0 >= group->window ? b->pos0 - group->window + 1 : 0;
  from = from / KERNEL_PAGE * KERNEL_PAGE;
  uint32_t t0 = split * KERNEL_SPLIT, t1 = t0 + KERNEL_SPLIT, last = b->pos0 + b->rows;
  size_t head_bytes = (size_t)2 * KERNEL_PAGE * g->head_dim * sizeof(uint16_t);
  kernel_attn args = {
      .q = p->slot->qkv + (size_t)row * d->qkv_stride + kv_head * cpu_group(g) * g->head_dim,
      .q_stride = d->qkv_stride,
      .rows = b->rows,
      .group = cpu_group(g),
      .head_dim = g->head_dim,
      .pos0 = b->pos0,
      .window = group->window,
      .t0 = t0 > from ? t0 : from,
      .t1 = t1 < last ? t1 : last,
      .pool = d->tables->kv_pool[node->kv_group],
      .pages = d->tables->seqs[b->seq].pages[node->kv_group],
      .page_bytes = group->page_bytes,
      .head_offset = ((size_t)node->kv_layer * g->kv_heads + kv_head) * head_bytes,
      .scale = g->attn_scale,
      .part = part_of(d, p->slot, item, kv_head, row),
      .part_stride = d->part_stride,
      .scratch = d->scratch[worker]};
  d->k.attn[b->arith](&args);
}

static void run_merge(cpu_device *d, const cpu_list *l, const cpu_cursor *c, uint32_t block) {
  const graph *g = d->g;
  const cpu_block *b = &l->blocks[block];
  const cpu_part *p = &l->parts[b->part];
  cpu_slot *s = p->slot;
  uint32_t window = g->groups[g->nodes[c->node].kv_group].window, first;
  uint32_t n = wave_splits(l, b, window, c->wave, &first), group = cpu_group(g);
  if (!n) return;
  bool last = (c->wave + 1) * s->splits >= cpu_block_splits(b, window, &first);
  size_t bytes = (g->head_dim + 2) * sizeof(float);
  for (uint32_t r = 0; r < b->rows; r++) {
    uint32_t row = p->slot_row0 + b->row0 + r;
    float *q = s->qkv + (size_t)row * d->qkv_stride;
    for (uint32_t h = 0; h < g->heads; h++) {
      float *state = s->state + ((size_t)row * g->heads + h) * d->part_stride;
      for (uint32_t i = 0; i < n; i++) {
        const float *part = part_of(d, s, i, h / group, row) + (h % group) * d->part_stride;
        if (c->wave == 0 && i == 0)
          memcpy(state, part, bytes);
        else
          d->k.attn_merge(state, part, g->head_dim);
      }
      if (last) d->k.attn_finish(state, g->head_dim, q + h * g->head_dim);
    }
    /* The next node is the C of this layer: its first product reads attention's result. */
    if (last)
      pack_row(d, &g->nodes[c->node + 1], CPU_OUT, b->arith, q, g->heads * g->head_dim, s, row);
  }
}

uint32_t cpu_stage_panels(const cpu_device *d, const cpu_list *l, const cpu_cursor *c) {
  const graph_node *node = &d->g->nodes[c->node];
  switch (c->stage) {
    case CPU_EMBED:
    case CPU_NORM:
    case CPU_ROPE:
    case CPU_MIDDLE:
    case CPU_GLU:
      return ceil_div(l->rows, CPU_ROW_ITEM);
    case CPU_ATTN:
      return attention_panels(d, l, c);
    case CPU_MERGE:
      return l->n_blocks;
    case CPU_LAST:
      return l->wants;
    case CPU_LOGITS:
      return matmul_panels(d, node, c->stage, l->wants);
    default:
      return matmul_panels(d, node, c->stage, l->rows);
  }
}

void cpu_stage_run(cpu_device *d, cpu_list *l, const cpu_cursor *c, uint32_t panel,
                   uint32_t worker) {
  const graph_node *node = &d->g->nodes[c->node];
  switch (c->stage) {
    case CPU_EMBED:
    case CPU_NORM:
    case CPU_ROPE:
    case CPU_MIDDLE:
    case CPU_GLU:
      run_rows(d, l, node, c->stage, panel);
      break;
    case CPU_ATTN:
      run_attention(d, l, c, panel, worker);
      break;
    case CPU_MERGE:
      run_merge(d, l, c, panel);
      break;
    case CPU_LAST:
      run_last(d, l, node, panel);
      break;
    default:
      run_matmul(d, l, node, c->stage, panel, worker);
  }
}
