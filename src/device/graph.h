/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h - the hybrid execution graph: what a model computes, as plain data that every driver
 * reads.
 *
 *   embed | layers x { A, S, C } | head
 *
 *   A  token-wise     [x += last layer's output] norm, QKV, q/k norm, rotary embedding, KV write
 *   S  sequence-wise  attention over the sequence's KV pages
 *   C  token-wise     output projection, residual, norm, gated feed-forward (its residual is added
 *                     by the next A or the head)
 *
 * Made by model/, one file per architecture; nothing here knows an architecture's name. Weights and
 * norms are named by index into the graph's tables.
 *
 * Source: Agent.xpu's heterogeneous execution graph (arXiv 2506.24045): token-wise operators can be
 * cut by tokens and columns and have static shapes; sequence-wise ones follow the length of each
 * sequence. */
#ifndef DEVICE_GRAPH_H
#define DEVICE_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GRAPH_KV_GROUPS_MAX = 4, GRAPH_ROPES_MAX = 4 };
#define GRAPH_NONE UINT16_MAX

typedef enum graph_node_kind { GRAPH_EMBED, GRAPH_A, GRAPH_S, GRAPH_C, GRAPH_HEAD } graph_node_kind;

typedef struct graph_node {
  uint8_t kind;
  uint8_t kv_group; /* A, S: whose pages */
  uint8_t rope;     /* A: index into graph.ropes */
  uint16_t layer;
  uint16_t kv_layer; /* A, S: index of this layer inside its group */
  /* A, HEAD: the residual of the layer before is added first, through post_norm if that is not
   * GRAPH_NONE. C: between output projection and residual. */
  uint16_t add, post_norm; /* add: 0 or 1 */
  uint16_t norm;           /* A: before QKV; C: before the feed-forward; HEAD: before the head */
  uint16_t q_norm, k_norm; /* A: per head, or GRAPH_NONE */
  uint16_t w[3]; /* EMBED: table. A: q, k, v. C: see w_out, gate, up, down. HEAD: output */
  uint16_t w_out, w_gate, w_up, w_down; /* C */
  uint64_t weight_bytes;                /* read once per launch, as stored in the file */
  uint64_t ops_per_row; /* multiply-adds x 2, attention without its length-dependent part */
} graph_node;

/* `type, layout, code, scale, min`: where a weight's numbers are. GGUF layout: rows as they lie in
 * the file, all in `code`; planar: codes [N][K], scales and minima [N][K/group]; private: packed by
 * one device for columns that it alone computes. */
typedef enum graph_layout {
  GRAPH_LAYOUT_GGUF,
  GRAPH_LAYOUT_PLANAR,
  GRAPH_LAYOUT_PRIVATE
} graph_layout;
struct device_buffer;
typedef struct graph_place {
  struct device_buffer *buffer; /* NULL while only `host` is known */
  size_t offset;
} graph_place;
typedef struct graph_weight {
  uint8_t layout;
  uint32_t type;        /* GGUF tensor type */
  uint32_t n, k, group; /* n outputs, k inputs, k values share a scale by `group` */
  graph_place code, scale, min;
  const uint8_t *host; /* GGUF layout: the rows in the mapped file */
  size_t bytes;
  char name[64];
} graph_weight;

typedef struct graph_norm {
  const float *w; /* n floats, owned by the graph */
  uint32_t n;
} graph_norm;

typedef struct graph_rope {
  float base, scale;    /* angle of pair i at position p: p * scale * base^(-2i/head_dim) */
  bool adjacent;        /* pairs are (2i, 2i+1); else (i, i + head_dim/2) */
  const float *factors; /* head_dim/2 divisors of the frequency, or NULL; owned by the graph */
} graph_rope;

typedef struct graph_kv_group {
  uint32_t window; /* 0: all positions */
  uint32_t layers;
  size_t page_bytes; /* 32 tokens of all layers: layers x kv_heads x 2 x 32 x head_dim x 2 bytes */
} graph_kv_group;

typedef enum graph_glu { GRAPH_SILU, GRAPH_GELU } graph_glu;

typedef struct graph {
  uint32_t layers, width, heads, kv_heads, head_dim, ff, vocab, context;
  float norm_eps, embed_scale, attn_scale;
  bool mapped; /* weights lie in a mapped file: pages may be dropped once they are packed */
  uint8_t glu;
  graph_node *nodes; /* 3 * layers + 2 */
  uint32_t n_nodes;
  graph_weight *weights;
  uint32_t n_weights;
  graph_norm *norms;
  uint32_t n_norms;
  graph_rope ropes[GRAPH_ROPES_MAX];
  uint32_t n_ropes;
  graph_kv_group groups[GRAPH_KV_GROUPS_MAX];
  uint32_t n_groups;
} graph;

#endif
