/* SPDX-License-Identifier: Apache-2.0 */
#include "model/build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "quant/quant.h"

static void fail(build *b, troika_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(build *b, troika_status status, const char *format, ...) {
  if (b->status) return;
  char text[TROIKA_ERROR_TEXT_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  b->status = error_set(b->err, status, "%s", text);
}

static void key_name(const build *b, const char *suffix, char key[128]) {
  snprintf(key, 128, "%s.%s", b->arch, suffix);
}

uint32_t build_u32(build *b, const char *suffix, const uint32_t *fallback, uint32_t min,
                   uint32_t max) {
  char key[128];
  uint32_t value = fallback ? *fallback : 0;
  if (b->status) return value;
  key_name(b, suffix, key);
  troika_status status = gguf_get_u32(b->file, key, &value, b->err);
  if (status == TROIKA_NOT_FOUND) {
    if (!fallback) fail(b, TROIKA_FORMAT, "the file has no %s", key);
  } else if (status) {
    b->status = status;
  }
  /* The fallback too: it may come from other keys of the file. */
  if (!b->status && (value < min || value > max))
    fail(b, TROIKA_FORMAT, "%s is %u, outside %u..%u", key, value, min, max);
  return value;
}

float build_f32(build *b, const char *suffix, const float *fallback, float min, float max) {
  char key[128];
  float value = fallback ? *fallback : 0;
  if (b->status) return value;
  key_name(b, suffix, key);
  troika_status status = gguf_get_f32(b->file, key, &value, b->err);
  if (status == TROIKA_NOT_FOUND) {
    if (!fallback) fail(b, TROIKA_FORMAT, "the file has no %s", key);
  } else if (status) {
    b->status = status;
  }
  if (!b->status && !(value >= min && value <= max))
    fail(b, TROIKA_FORMAT, "%s is %g, outside %g..%g", key, (double)value, (double)min,
         (double)max);
  return value;
}

/* Scaled rotary embeddings would be computed wrongly, so a file that asks for them is refused. A
 * factor without a type means linear scaling. */
static void refuse_rope_scaling(build *b) {
  static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear"};
  const float one = 1;
  char key[128];
  bytes_view type;
  if (b->status) return;
  key_name(b, "rope.scaling.type", key);
  troika_status status = gguf_get_string(b->file, key, &type, b->err);
  if (status == TROIKA_OK && !bytes_equal_string(type, "none"))
    fail(b, TROIKA_UNSUPPORTED, "%s is '%.*s'; only 'none' is supported", key,
         (int)(type.len < 64 ? type.len : 64), type.ptr);
  else if (status != TROIKA_NOT_FOUND)
    b->status = status;
  for (size_t i = 0; status && i < sizeof factors / sizeof *factors; i++) {
    float factor = build_f32(b, factors[i], &one, -INFINITY, INFINITY);
    if (factor != 1 && factor != 0) /* 0 is written for "none" */
      fail(b, TROIKA_UNSUPPORTED, "%s.%s is %g; scaled rotary embeddings are not supported",
           b->arch, factors[i], (double)factor);
  }
}

void build_sizes(build *b) {
  graph *g = b->g;
  g->layers = build_u32(b, "block_count", NULL, 1, BUILD_LAYERS_MAX);
  g->width = build_u32(b, "embedding_length", NULL, 32, 1 << 16);
  g->heads = build_u32(b, "attention.head_count", NULL, 1, 1024);
  g->kv_heads = build_u32(b, "attention.head_count_kv", &g->heads, 1, 1024);
  g->ff = build_u32(b, "feed_forward_length", NULL, 32, 1 << 20);
  g->context = build_u32(b, "context_length", NULL, 1, 1 << 24);
  g->norm_eps = build_f32(b, "attention.layer_norm_rms_epsilon", NULL, 1e-12f, 1e-2f);
  uint32_t head_dim = g->heads ? g->width / g->heads : 0;
  g->head_dim = build_u32(b, "attention.key_length", &head_dim, 32, 256);
  uint32_t value_dim = build_u32(b, "attention.value_length", &g->head_dim, 32, 256);
  uint32_t rotated = build_u32(b, "rope.dimension_count", &g->head_dim, 1, 1 << 16);
  refuse_rope_scaling(b);
  if (b->status) return;
  if (g->heads % g->kv_heads || g->heads / g->kv_heads > 16)
    return fail(b, TROIKA_UNSUPPORTED, "%u query heads over %u KV heads", g->heads, g->kv_heads);
  if (value_dim != g->head_dim || rotated != g->head_dim || g->head_dim % 32)
    return fail(b, TROIKA_UNSUPPORTED, "head sizes: key %u, value %u, rotated %u", g->head_dim,
                value_dim, rotated);
  if (g->width % 32 || g->ff % 32)
    return fail(b, TROIKA_UNSUPPORTED, "width %u or feed-forward %u is no multiple of 32", g->width,
                g->ff);
  const gguf_tensor *table = gguf_tensor_find(b->file, "token_embd.weight");
  if (!table) return fail(b, TROIKA_FORMAT, "the file has no tensor token_embd.weight");
  if (table->dims[1] < 1 || table->dims[1] > 1 << 21)
    return fail(b, TROIKA_FORMAT, "token_embd.weight has %llu rows",
                (unsigned long long)table->dims[1]);
  g->vocab = (uint32_t)table->dims[1];
  b->weights_capacity = g->layers * 7 + 2;
  b->norms_capacity = g->layers * 6 + 1;
  g->nodes = calloc(g->layers * 3 + 2, sizeof *g->nodes);
  g->weights = calloc(b->weights_capacity, sizeof *g->weights);
  g->norms = calloc(b->norms_capacity, sizeof *g->norms);
  b->used = calloc(gguf_tensor_count(b->file), sizeof *b->used);
  if (!g->nodes || !g->weights || !g->norms || !b->used)
    fail(b, TROIKA_NO_MEMORY, "no memory for the graph");
}

static void tensor_name(int layer, const char *name, char out[128]) {
  if (layer < 0)
    snprintf(out, 128, "%s", name);
  else
    snprintf(out, 128, "blk.%d.%s", layer, name);
}

bool build_has(const build *b, int layer, const char *name) {
  char full[128];
  tensor_name(layer, name, full);
  return gguf_tensor_find(b->file, full) != NULL;
}

/* A tensor of exactly n rows of k (k alone when n is 0), or NULL with the reason set. */
static const gguf_tensor *find(build *b, int layer, const char *name, uint32_t n, uint32_t k) {
  char full[128];
  tensor_name(layer, name, full);
  if (b->status) return NULL;
  const gguf_tensor *t = gguf_tensor_find(b->file, full);
  if (!t) {
    fail(b, TROIKA_FORMAT, "the file has no tensor %s", full);
    return NULL;
  }
  uint64_t rows = n ? n : 1;
  if (t->dims[0] != k || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
    fail(b, TROIKA_FORMAT, "tensor %s is %llu x %llu x %llu, wanted %llu x %u", full,
         (unsigned long long)t->dims[1], (unsigned long long)t->dims[0],
         (unsigned long long)t->dims[2] * t->dims[3], (unsigned long long)rows, k);
    return NULL;
  }
  b->used[t - gguf_tensor_at(b->file, 0)] = true;
  return t;
}

uint16_t build_weight(build *b, int layer, const char *name, uint32_t n, uint32_t k) {
  const gguf_tensor *t = find(b, layer, name, n, k);
  graph *g = b->g;
  if (!t) return GRAPH_NONE;
  const quant_format *format = quant_find(t->type);
  if (!format) {
    const char *type = gguf_type_name(t->type);
    fail(b, TROIKA_UNSUPPORTED, "tensor %.*s has type %s, which this build cannot compute with",
         (int)t->name.len, t->name.ptr, type ? type : "unknown");
    return GRAPH_NONE;
  }
  for (uint32_t i = 0; i < g->n_weights; i++) /* a tied head is the embedding's own weight */
    if (g->weights[i].host == t->data) return (uint16_t)i;
  graph_weight *w = &g->weights[g->n_weights];
  *w = (graph_weight){.layout = GRAPH_LAYOUT_GGUF,
                      .type = t->type,
                      .n = n,
                      .k = k,
                      .group = format->elements,
                      .host = t->data,
                      .bytes = t->bytes};
  snprintf(w->name, sizeof w->name, "%.*s", (int)t->name.len, t->name.ptr);
  return (uint16_t)g->n_weights++;
}

uint16_t build_norm(build *b, int layer, const char *name, uint32_t n) {
  const gguf_tensor *t = find(b, layer, name, 0, n);
  graph *g = b->g;
  if (!t) return GRAPH_NONE;
  const quant_format *format = quant_find(t->type);
  if (!format || format->elements != 1) {
    fail(b, TROIKA_UNSUPPORTED, "tensor %.*s is quantised; a norm must be F32, F16 or BF16",
         (int)t->name.len, t->name.ptr);
    return GRAPH_NONE;
  }
  float *w = malloc(n * sizeof *w);
  if (!w) {
    fail(b, TROIKA_NO_MEMORY, "no memory for a norm of %u", n);
    return GRAPH_NONE;
  }
  format->decode(t->data, w, n);
  g->norms[g->n_norms] = (graph_norm){w, n};
  return (uint16_t)g->n_norms++;
}

uint8_t build_rope(build *b, float base, float scale, bool adjacent) {
  graph *g = b->g;
  for (uint32_t i = 0; i < g->n_ropes; i++)
    if (g->ropes[i].base == base && g->ropes[i].scale == scale && g->ropes[i].adjacent == adjacent)
      return (uint8_t)i;
  CHECK(g->n_ropes < GRAPH_ROPES_MAX);
  g->ropes[g->n_ropes] = (graph_rope){.base = base, .scale = scale, .adjacent = adjacent};
  return (uint8_t)g->n_ropes++;
}

uint8_t build_kv_group(build *b, uint32_t window) {
  graph *g = b->g;
  for (uint32_t i = 0; i < g->n_groups; i++)
    if (g->groups[i].window == window) return (uint8_t)i;
  CHECK(g->n_groups < GRAPH_KV_GROUPS_MAX);
  g->groups[g->n_groups] = (graph_kv_group){.window = window};
  return (uint8_t)g->n_groups++;
}

static graph_node *add_node(build *b, graph_node_kind kind) {
  graph_node *node = &b->g->nodes[b->g->n_nodes++];
  *node = (graph_node){.kind = (uint8_t)kind,
                       .post_norm = GRAPH_NONE,
                       .norm = GRAPH_NONE,
                       .q_norm = GRAPH_NONE,
                       .k_norm = GRAPH_NONE};
  return node;
}

static void add_cost(build *b, graph_node *node, uint16_t weight) {
  if (b->status) return;
  const graph_weight *w = &b->g->weights[weight];
  node->weight_bytes += w->bytes;
  node->ops_per_row += 2ull * w->n * w->k;
}

void build_embed(build *b, float scale) {
  if (b->status) return;
  graph *g = b->g;
  g->embed_scale = scale;
  graph_node *node = add_node(b, GRAPH_EMBED);
  node->w[0] = build_weight(b, -1, "token_embd.weight", g->vocab, g->width);
}

static void take_pending(build *b, graph_node *node) {
  node->add = b->pending;
  node->post_norm = b->pending ? b->pending_norm : GRAPH_NONE;
  b->pending = false;
}

void build_layer_nodes(build *b, build_layer l) {
  if (b->status) return;
  graph *g = b->g;
  uint32_t q = g->heads * g->head_dim, kv = g->kv_heads * g->head_dim;
  graph_kv_group *group = &g->groups[l.kv_group];
  uint16_t kv_layer = (uint16_t)group->layers++;

  graph_node *a = add_node(b, GRAPH_A);
  a->layer = (uint16_t)l.layer;
  a->kv_group = l.kv_group;
  a->kv_layer = kv_layer;
  a->rope = l.rope;
  take_pending(b, a);
  a->norm = build_norm(b, l.layer, "attn_norm.weight", g->width);
  a->w[0] = build_weight(b, l.layer, "attn_q.weight", q, g->width);
  a->w[1] = build_weight(b, l.layer, "attn_k.weight", kv, g->width);
  a->w[2] = build_weight(b, l.layer, "attn_v.weight", kv, g->width);
  if (l.qk_norm) {
    a->q_norm = build_norm(b, l.layer, "attn_q_norm.weight", g->head_dim);
    a->k_norm = build_norm(b, l.layer, "attn_k_norm.weight", g->head_dim);
  }
  for (int i = 0; i < 3; i++) add_cost(b, a, a->w[i]);

  graph_node *s = add_node(b, GRAPH_S);
  s->layer = (uint16_t)l.layer;
  s->kv_group = l.kv_group;
  s->kv_layer = kv_layer;

  graph_node *c = add_node(b, GRAPH_C);
  c->layer = (uint16_t)l.layer;
  c->w_out = build_weight(b, l.layer, "attn_output.weight", g->width, q);
  if (l.attn_post_norm) c->post_norm = build_norm(b, l.layer, l.attn_post_norm, g->width);
  c->norm = build_norm(b, l.layer, "ffn_norm.weight", g->width);
  c->w_gate = build_weight(b, l.layer, "ffn_gate.weight", g->ff, g->width);
  c->w_up = build_weight(b, l.layer, "ffn_up.weight", g->ff, g->width);
  c->w_down = build_weight(b, l.layer, "ffn_down.weight", g->width, g->ff);
  add_cost(b, c, c->w_out);
  add_cost(b, c, c->w_gate);
  add_cost(b, c, c->w_up);
  add_cost(b, c, c->w_down);
  b->pending = true;
  b->pending_norm = l.ff_post_norm ? build_norm(b, l.layer, l.ff_post_norm, g->width) : GRAPH_NONE;
}

void build_head(build *b) {
  if (b->status) return;
  graph *g = b->g;
  graph_node *node = add_node(b, GRAPH_HEAD);
  take_pending(b, node);
  node->norm = build_norm(b, -1, "output_norm.weight", g->width);
  bool own = build_has(b, -1, "output.weight");
  node->w[0] = build_weight(b, -1, own ? "output.weight" : "token_embd.weight", g->vocab, g->width);
  add_cost(b, node, node->w[0]);
  for (uint32_t i = 0; i < g->n_groups; i++)
    g->groups[i].page_bytes =
        (size_t)g->groups[i].layers * g->kv_heads * 2 * 32 * g->head_dim * sizeof(uint16_t);
}

void build_all_used(build *b) {
  if (b->status) return;
  for (size_t i = 0; i < gguf_tensor_count(b->file); i++) {
    const gguf_tensor *t = gguf_tensor_at(b->file, i);
    if (b->used[i]) continue; /* else: biases, experts, rope factors */
    return fail(b, TROIKA_UNSUPPORTED,
                "tensor %.*s is not part of the architecture '%s' as this build knows it",
                (int)t->name.len, t->name.ptr, b->arch);
  }
}
