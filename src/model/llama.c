/* SPDX-License-Identifier: Apache-2.0 */
/* llama - Llama 2 and 3, SmolLM2, Mistral and others in that form.
 *
 * Pre-norm, grouped queries, SiLU-gated feed-forward, no biases. Files of this architecture hold Q
 * and K rows permuted so that rotary pairs are adjacent. Llama 3.1 and later bring per-frequency
 * divisors in the tensor rope_freqs. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/build.h"

troika_status build_llama(build *b) {
  const float base_default = 10000;
  build_sizes(b);
  float base = build_f32(b, "rope.freq_base", &base_default, 1, 1e9f);
  if (b->status) return b->status;
  graph *g = b->g;
  g->glu = GRAPH_SILU;
  const float scale_default = 1 / sqrtf((float)g->head_dim);
  g->attn_scale = build_f32(b, "attention.scale", &scale_default, 1e-6f, 1);
  uint8_t rope = build_rope(b, base, 1, true), group = build_kv_group(b, 0);
  build_embed(b, 1);
  for (uint32_t i = 0; i < g->layers; i++)
    build_layer_nodes(b, (build_layer){.layer = (int)i, .kv_group = group, .rope = rope});
  build_head(b);
  if (build_has(b, -1, "rope_freqs.weight")) {
    uint16_t factors = build_norm(b, -1, "rope_freqs.weight", g->head_dim / 2);
    if (!b->status) g->ropes[rope].factors = g->norms[factors].w;
  }
  build_all_used(b);
  return b->status;
}
