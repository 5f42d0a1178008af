/* SPDX-License-Identifier: Apache-2.0 */
/* build.h - what architecture files share: reading sizes, finding tensors of the right shape,
 * laying out nodes.
 *
 * A builder fails once and stays failed: every call after the first error does nothing, so an
 * architecture reads as a list of what it wants and checks `status` at the end. */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "model/model.h"

enum { BUILD_LAYERS_MAX = 512 };

typedef struct build {
  const gguf *file;
  const char *arch;
  graph *g;
  uint32_t weights_capacity, norms_capacity;
  uint16_t pending_norm; /* post-norm of the output that the next node must add */
  bool pending;
  bool *used; /* [tensors of the file]: a node reads it; model_graph_create frees it */
  troika_status status;
  troika_error *err;
} build;

typedef troika_status build_architecture(build *b);

/* One line per architecture. */
#define MODEL_ARCHITECTURES(X) X(gemma3) X(llama)
#define BUILD_DECLARE(name) build_architecture build_##name;
MODEL_ARCHITECTURES(BUILD_DECLARE)
#undef BUILD_DECLARE

/* `suffix` after "<arch>.": "embedding_length". fallback: a pointer to a default, or NULL if the
 * key must be there. min..max is checked. */
uint32_t build_u32(build *b, const char *suffix, const uint32_t *fallback, uint32_t min,
                   uint32_t max);
float build_f32(build *b, const char *suffix, const float *fallback, float min, float max);
/* Reads layers, width, heads, kv_heads, head_dim, ff, vocab, context, eps into the graph and makes
 * its tables. */
void build_sizes(build *b);
/* "blk.3.attn_q.weight" with layer 3; layer -1: name as it is. Shape n x k. */
uint16_t build_weight(build *b, int layer, const char *name, uint32_t n, uint32_t k);
uint16_t build_norm(build *b, int layer, const char *name, uint32_t n);
bool build_has(const build *b, int layer, const char *name);
/* Both find an equal one first. */
uint8_t build_rope(build *b, float base, float scale, bool adjacent);
uint8_t build_kv_group(build *b, uint32_t window);

void build_embed(build *b, float scale);
/* The three nodes of a layer; post norms and q/k norms where the file of the architecture says so.
 */
typedef struct build_layer {
  int layer;
  uint8_t kv_group, rope;
  bool qk_norm;
  const char *attn_post_norm, *ff_post_norm; /* NULL: none */
} build_layer;
void build_layer_nodes(build *b, build_layer layer);
void build_head(build *b);
/* Tensors that no node reads are an error: a model that we would compute wrongly. */
void build_all_used(build *b);

#endif
