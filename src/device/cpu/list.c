/* SPDX-License-Identifier: Apache-2.0 */
/* A command list on its way through the graph: where it is, and how its rows fall into chunks (for
 * matrix products) and blocks (for attention). All of it follows from the rows alone, so that a
 * panel number means the same before and after a stop. */
#include <string.h>

#include "base/check.h"
#include "device/cpu/internal.h"

static void add_chunk(cpu_chunk *chunks, uint32_t *n, uint32_t part, uint32_t arith, uint32_t row,
                      uint32_t first) {
  cpu_chunk *last = *n ? &chunks[*n - 1] : NULL;
  if (last && last->part == part && last->arith == arith && last->row0 + last->rows == row &&
      last->rows < CPU_CHUNK_ROWS) {
    last->rows++;
    return;
  }
  chunks[(*n)++] = (cpu_chunk){(uint8_t)part, (uint8_t)arith, row, 1, first};
}

/* Attention takes many PROMPT rows at once, GEN rows one by one. */
static void add_block(cpu_list *l, uint32_t part, uint32_t row, const device_row *r) {
  cpu_block *last = l->n_blocks ? &l->blocks[l->n_blocks - 1] : NULL;
  if (last && last->part == part && r->arith == DEVICE_PROMPT && last->arith == DEVICE_PROMPT &&
      last->seq == r->seq && last->pos0 + last->rows == r->pos && last->rows < KERNEL_ROWS_MAX) {
    last->rows++;
    return;
  }
  l->blocks[l->n_blocks++] = (cpu_block){(uint8_t)part, r->arith, row, 1, r->seq, r->pos};
}

void cpu_list_compile(cpu_device *d, cpu_list *l, const device_command *commands, unsigned n) {
  const device_tables *t = d->tables;
  l->n_parts = n;
  l->rows = l->wants = l->n_chunks = l->n_want_chunks = l->n_blocks = 0;
  l->node = commands[0].node;
  l->node_end = commands[0].node_end;
  for (unsigned i = 0; i < n; i++) {
    const device_command *c = &commands[i];
    const device_run *run = &t->runs[c->run];
    CHECK(c->node == l->node && c->node_end == l->node_end && c->cols == 0);
    CHECK(run->slot < t->n_slots && c->row0 + c->rows <= d->slots[run->slot].rows);
    cpu_part *p = &l->parts[i];
    *p = (cpu_part){.rows = &t->rows[run->row0 + c->row0],
                    .slot = &d->slots[run->slot],
                    .slot_row0 = c->row0,
                    .n = c->rows,
                    .first = l->rows};
    for (uint32_t r = 0; r < c->row0; r++)
      p->want0 += (t->rows[run->row0 + r].want & DEVICE_WANT_LOGITS) != 0;
    p->logits = t->logits[run->slot] + (size_t)p->want0 * ((d->g->vocab + 15) / 16 * 16);
    for (uint32_t r = 0; r < c->rows; r++) {
      const device_row *row = &p->rows[r];
      add_chunk(l->chunks, &l->n_chunks, i, row->arith, r, l->rows + r);
      add_block(l, i, r, row);
      if (!(row->want & DEVICE_WANT_LOGITS)) continue;
      l->want_rows[l->wants] = r;
      add_chunk(l->want_chunks, &l->n_want_chunks, i, row->arith, p->wants++, l->wants++);
    }
    l->rows += c->rows;
    CHECK(p->want0 + p->wants <= t->slot_wants[run->slot]);
  }
}

static const cpu_stage first_stage[] = {[GRAPH_EMBED] = CPU_EMBED,
                                        [GRAPH_A] = CPU_NORM,
                                        [GRAPH_S] = CPU_ATTN,
                                        [GRAPH_C] = CPU_OUT,
                                        [GRAPH_HEAD] = CPU_LAST};
static const cpu_stage last_stage[] = {[GRAPH_EMBED] = CPU_EMBED,
                                       [GRAPH_A] = CPU_ROPE,
                                       [GRAPH_S] = CPU_MERGE,
                                       [GRAPH_C] = CPU_DOWN,
                                       [GRAPH_HEAD] = CPU_LOGITS};

cpu_cursor cpu_cursor_first(const cpu_device *d, uint16_t node) {
  return (cpu_cursor){node, (uint8_t)first_stage[d->g->nodes[node].kind], 0};
}

uint32_t cpu_block_splits(const cpu_block *b, uint32_t window, uint32_t *first) {
  uint32_t seen_from = window && b->pos0 >= window ? b->pos0 - window + 1 : 0;
  *first = seen_from / KERNEL_SPLIT;
  return (b->pos0 + b->rows - 1) / KERNEL_SPLIT - *first + 1;
}

/* Waves of splits that the longest block takes on this node. */
static uint32_t waves(const cpu_device *d, const cpu_list *l, uint16_t node) {
  uint32_t window = d->g->groups[d->g->nodes[node].kv_group].window, most = 1, first;
  for (uint32_t i = 0; i < l->n_blocks; i++) {
    const cpu_block *b = &l->blocks[i];
    uint32_t splits = l->parts[b->part].slot->splits;
    uint32_t n = (cpu_block_splits(b, window, &first) + splits - 1) / splits;
    if (n > most) most = n;
  }
  return most;
}

bool cpu_cursor_next(const cpu_device *d, const cpu_list *l, cpu_cursor *c) {
  if (c->stage == CPU_MERGE && c->wave + 1 < waves(d, l, c->node)) {
    c->stage = CPU_ATTN;
    c->wave++;
    return true;
  }
  if (c->stage != last_stage[d->g->nodes[c->node].kind]) {
    c->stage++;
    return true;
  }
  if (c->node + 1 >= l->node_end) return false;
  *c = cpu_cursor_first(d, c->node + 1);
  return true;
}

void cpu_list_seek(const cpu_device *d, cpu_list *l, uint32_t panel) {
  l->start = cpu_cursor_first(d, l->node);
  l->start_base = 0;
  for (;;) {
    uint32_t n = cpu_stage_panels(d, l, &l->start);
    if (panel < l->start_base + n) break;
    cpu_cursor next = l->start;
    bool more = cpu_cursor_next(d, l, &next);
    CHECK(more || panel == l->start_base + n);
    if (!more) break; /* all done: the last stage has nothing left to claim */
    l->start_base += n;
    l->start = next;
  }
  l->start_item = panel - l->start_base;
}
