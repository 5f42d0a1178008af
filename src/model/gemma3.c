/* SPDX-License-Identifier: Apache-2.0 */
/* gemma3 - Gemma 3 text models.
 *
 * Norms before and after attention and feed-forward, norms on each head of Q and K, GELU-gated
 * feed-forward, embedding scaled by sqrt(width). Five layers of a sliding window, then one that
 * sees all; window layers have their own rotary base. Rotary pairs are halves. Head size is its own
 * number, so Q may be wider than the model. Norm weights in the file have the +1 of the reference
 * already in them. Source: the configuration of the released models and the reference
 * implementation in transformers. */
#include <math.h>

#include "model/build.h"

troika_status build_gemma3(build *b) {
  const float base_default = 1e6f, local_default = 1e4f;
  const uint32_t pattern_default = 6;
  build_sizes(b);
  float base = build_f32(b, "rope.freq_base", &base_default, 1, 1e9f);
  float local = build_f32(b, "rope.local.freq_base", &local_default, 1, 1e9f);
  uint32_t window = build_u32(b, "attention.sliding_window", NULL, 1, 1 << 24);
  uint32_t pattern =
      build_u32(b, "attention.sliding_window_pattern", &pattern_default, 1, BUILD_LAYERS_MAX);
  if (b->status) return b->status;
  graph *g = b->g;
  g->glu = GRAPH_GELU;
  /* The reference scales by query_pre_attn_scalar: the head size, but width / heads in the 27B
   * model (62 layers). */
  const float scalar = g->layers == 62 ? (float)g->width / (float)g->heads : (float)g->head_dim;
  const float scale_default = 1 / sqrtf(scalar);
  g->attn_scale = build_f32(b, "attention.scale", &scale_default, 1e-6f, 1);
  uint8_t rope_all = build_rope(b, base, 1, false), rope_window = build_rope(b, local, 1, false);
  build_embed(b, sqrtf((float)g->width));
  for (uint32_t i = 0; i < g->layers; i++) {
    bool sees_all = i % pattern == pattern - 1;
    build_layer_nodes(b, (build_layer){.layer = (int)i,
                                       .kv_group = build_kv_group(b, sees_all ? 0 : window),
                                       .rope = sees_all ? rope_all : rope_window,
                                       .qk_norm = true,
                                       .attn_post_norm = "post_attention_norm.weight",
                                       .ff_post_norm = "post_ffw_norm.weight"});
  }
  build_head(b);
  build_all_used(b);
  return b->status;
}
