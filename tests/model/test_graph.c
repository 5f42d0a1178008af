/* SPDX-License-Identifier: Apache-2.0 */
/* The graph that a file becomes: every field of small files whose right answer is plain, and both
 * real models by the facts that were read from them independently. What is refused:
 * test_bad_models.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/model.h"
#include "model/tiny_model.h"

typedef struct opened {
  uint8_t *bytes;
  gguf *file;
  graph *g;
} opened;

static opened open_tiny(const tiny_model *m) {
  opened o = {0};
  troika_error err = {0};
  size_t len;
  o.bytes = tiny_bytes(m, NULL, &len);
  if (gguf_open_memory(o.bytes, len, &o.file, &err)) fail_msg("%s", err.text);
  if (model_graph_create(o.file, &o.g, &err)) fail_msg("%s", err.text);
  return o;
}

static void close_tiny(opened *o) {
  model_graph_destroy(&o->g);
  assert_null(o->g);
  gguf_close(&o->file);
  free(o->bytes);
}

/* Weight w is that tensor, n x k, and points into the file. */
static void is_weight(const opened *o, uint16_t w, const char *name, uint32_t n, uint32_t k) {
  const gguf_tensor *t = gguf_tensor_find(o->file, name);
  assert_non_null(t);
  assert_in_range(w, 0, o->g->n_weights - 1);
  const graph_weight *weight = &o->g->weights[w];
  assert_string_equal(weight->name, name);
  assert_int_equal(weight->n, n);
  assert_int_equal(weight->k, k);
  assert_ptr_equal(weight->host, t->data);
  assert_int_equal(weight->bytes, t->bytes);
  assert_int_equal(weight->type, t->type);
  assert_int_equal(weight->layout, GRAPH_LAYOUT_GGUF);
  assert_int_equal(weight->group, quant_find(t->type)->elements);
}

static void is_norm(const opened *o, uint16_t norm, const char *name, uint32_t n) {
  const gguf_tensor *t = gguf_tensor_find(o->file, name);
  assert_non_null(t);
  assert_in_range(norm, 0, o->g->n_norms - 1);
  assert_int_equal(o->g->norms[norm].n, n);
  for (uint32_t i = 0; i < n; i++) {
    float value;
    quant_find(t->type)->decode(t->data + i * sizeof(float), &value, 1);
    assert_float_equal(o->g->norms[norm].w[i], value, 0);
  }
}

static uint64_t bytes_of_tensors(const opened *o, int layer, const char *const *names, uint32_t n) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, names[i]);
    sum += gguf_tensor_find(o->file, full)->bytes;
  }
  return sum;
}

static const char *layer_name(int layer, const char *name) {
  static char full[4][64];
  static unsigned next;
  char *out = full[next++ % 4];
  snprintf(out, 64, "blk.%d.%s.weight", layer, name);
  return out;
}

static void check_weights(const opened *o, const tiny_model *m, int l) {
  static const char *const qkv[] = {"attn_q", "attn_k", "attn_v"};
  static const char *const rest[] = {"attn_output", "ffn_gate", "ffn_up", "ffn_down"};
  uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  const graph_node *a = &o->g->nodes[1 + 3 * l], *c = a + 2;
  is_weight(o, a->w[0], layer_name(l, "attn_q"), q, m->width);
  is_weight(o, a->w[1], layer_name(l, "attn_k"), kv, m->width);
  is_weight(o, a->w[2], layer_name(l, "attn_v"), kv, m->width);
  is_weight(o, c->w_out, layer_name(l, "attn_output"), m->width, q);
  is_weight(o, c->w_gate, layer_name(l, "ffn_gate"), m->ff, m->width);
  is_weight(o, c->w_up, layer_name(l, "ffn_up"), m->ff, m->width);
  is_weight(o, c->w_down, layer_name(l, "ffn_down"), m->width, m->ff);
  is_norm(o, a->norm, layer_name(l, "attn_norm"), m->width);
  is_norm(o, c->norm, layer_name(l, "ffn_norm"), m->width);
  assert_int_equal(a->weight_bytes, bytes_of_tensors(o, l, qkv, 3));
  assert_int_equal(c->weight_bytes, bytes_of_tensors(o, l, rest, 4));
  assert_int_equal(a->ops_per_row, 2ull * (q + 2 * kv) * m->width);
  assert_int_equal(c->ops_per_row, 2ull * m->width * (q + 3 * m->ff));
  assert_int_equal(a[1].weight_bytes, 0);
}

/* embed | A S C ... | head, the residual of a layer added by what follows it. */
static void check_order(const opened *o, const tiny_model *m) {
  const graph *g = o->g;
  assert_int_equal(g->n_nodes, 3 * m->layers + 2);
  assert_int_equal(g->nodes[0].kind, GRAPH_EMBED);
  is_weight(o, g->nodes[0].w[0], "token_embd.weight", m->vocab, m->width);
  uint32_t of_group[2] = {0, 0};
  for (uint32_t l = 0; l < m->layers; l++) {
    const graph_node *a = &g->nodes[1 + 3 * l], *s = a + 1, *c = a + 2;
    bool window = m->gemma3 && l % m->pattern != m->pattern - 1;
    uint32_t group = m->gemma3 && window != (g->groups[0].window != 0);
    assert_int_equal(a->kind, GRAPH_A);
    assert_int_equal(s->kind, GRAPH_S);
    assert_int_equal(c->kind, GRAPH_C);
    assert_true(a->layer == l && s->layer == l && c->layer == l);
    assert_true(a->kv_group == group && s->kv_group == group);
    assert_true(a->kv_layer == of_group[group] && s->kv_layer == of_group[group]);
    of_group[group]++;
    assert_int_equal(a->add, l > 0);
    assert_int_equal(c->add, 0);
    if (m->gemma3) {
      is_norm(o, c->post_norm, layer_name((int)l, "post_attention_norm"), m->width);
      is_norm(o, a->q_norm, layer_name((int)l, "attn_q_norm"), m->head_dim);
      is_norm(o, a->k_norm, layer_name((int)l, "attn_k_norm"), m->head_dim);
      if (l) is_norm(o, a->post_norm, layer_name((int)l - 1, "post_ffw_norm"), m->width);
    } else {
      assert_true(c->post_norm == GRAPH_NONE && a->q_norm == GRAPH_NONE);
      assert_true(a->k_norm == GRAPH_NONE);
    }
    if (!m->gemma3 || !l) assert_int_equal(a->post_norm, GRAPH_NONE);
    float base = window ? m->rope_local : m->rope_base;
    assert_float_equal(g->ropes[a->rope].base, base, 0);
    check_weights(o, m, (int)l);
  }
  for (uint32_t i = 0; i < g->n_groups; i++) {
    assert_int_equal(g->groups[i].layers, of_group[i]);
    assert_int_equal(g->groups[i].page_bytes,
                     (size_t)of_group[i] * m->kv_heads * 2 * 32 * m->head_dim * 2);
  }
}

static void check_head(const opened *o, const tiny_model *m) {
  const graph_node *head = &o->g->nodes[3 * m->layers + 1];
  assert_int_equal(head->kind, GRAPH_HEAD);
  assert_int_equal(head->add, 1);
  if (m->gemma3)
    is_norm(o, head->post_norm, layer_name((int)m->layers - 1, "post_ffw_norm"), m->width);
  else
    assert_int_equal(head->post_norm, GRAPH_NONE);
  is_norm(o, head->norm, "output_norm.weight", m->width);
  is_weight(o, head->w[0], m->untied ? "output.weight" : "token_embd.weight", m->vocab, m->width);
  assert_int_equal(head->w[0] == o->g->nodes[0].w[0], !m->untied);
  assert_int_equal(head->ops_per_row, 2ull * m->vocab * m->width);
  assert_int_equal(head->weight_bytes, o->g->weights[head->w[0]].bytes);
  assert_int_equal(o->g->n_weights, 7 * m->layers + 1 + m->untied);
}

static void check_model(const tiny_model *m) {
  opened o = open_tiny(m);
  const graph *g = o.g;
  assert_true(g->layers == m->layers && g->width == m->width && g->heads == m->heads);
  assert_true(g->kv_heads == m->kv_heads && g->head_dim == m->head_dim && g->ff == m->ff);
  assert_true(g->vocab == m->vocab && g->context == m->context);
  assert_float_equal(g->norm_eps, 1e-5f, 0);
  assert_float_equal(g->attn_scale, 1 / sqrt(m->head_dim), 1e-7);
  assert_float_equal(g->embed_scale, m->gemma3 ? sqrt(m->width) : 1, 1e-6);
  assert_int_equal(g->glu, m->gemma3 ? GRAPH_GELU : GRAPH_SILU);
  assert_int_equal(g->n_groups, m->gemma3 ? 2 : 1);
  for (uint32_t i = 0; i < g->n_ropes; i++) assert_int_equal(g->ropes[i].adjacent, !m->gemma3);
  check_order(&o, m);
  check_head(&o, m);
  assert_string_equal(model_architecture_name(o.file), m->gemma3 ? "gemma3" : "llama");
  close_tiny(&o);
}

/* K types need widths that are multiples of 256. */
static void widen(tiny_model *m) {
  m->width = m->ff = 256;
  m->head_dim = 64;
}

static void llama_of_every_type(void **state) {
  (void)state;
  size_t n;
  const quant_format *formats = quant_list(&n);
  for (size_t i = 0; i < n; i++) {
    tiny_model m = tiny_llama();
    m.type = formats[i].type;
    if (formats[i].elements > 32) widen(&m);
    m.untied = i & 1;
    check_model(&m);
  }
}

static void gemma3_of_every_type(void **state) {
  (void)state;
  size_t n;
  const quant_format *formats = quant_list(&n);
  for (size_t i = 0; i < n; i++) {
    tiny_model m = tiny_gemma3();
    m.type = formats[i].type;
    if (formats[i].elements > 32) widen(&m);
    m.untied = i & 1;
    check_model(&m);
  }
}

static void heads_of_any_shape(void **state) {
  (void)state;
  static const uint32_t shapes[][3] = {
      {1, 1, 32}, {8, 8, 32}, {16, 1, 64}, {6, 3, 96}, {4, 1, 256}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int gemma3 = 0; gemma3 < 2; gemma3++) {
      tiny_model m = gemma3 ? tiny_gemma3() : tiny_llama();
      m.heads = shapes[i][0];
      m.kv_heads = shapes[i][1];
      m.head_dim = shapes[i][2];
      check_model(&m);
    }
}

static void head_size_from_width_if_the_file_is_silent(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  m.no_key_length = true;
  m.width = m.heads * m.head_dim;
  check_model(&m);
}

static void window_layers_by_pattern(void **state) {
  (void)state;
  tiny_model m = tiny_gemma3();
  m.layers = 7;
  for (m.pattern = 2; m.pattern < 8; m.pattern++) check_model(&m);
}

static void rope_defaults_and_factors(void **state) {
  (void)state;
  tiny_model m = tiny_llama();
  m.rope_base = 0;
  m.rope_factors = true;
  opened o = open_tiny(&m);
  assert_int_equal(o.g->n_ropes, 1);
  assert_float_equal(o.g->ropes[0].base, 10000, 0);
  assert_non_null(o.g->ropes[0].factors);
  const float *in_file =
      (const float *)(const void *)gguf_tensor_find(o.file, "rope_freqs.weight")->data;
  for (uint32_t i = 0; i < m.head_dim / 2; i++)
    assert_float_equal(o.g->ropes[0].factors[i], in_file[i], 0);
  close_tiny(&o);
  m = tiny_gemma3();
  m.rope_base = m.rope_local = 0;
  o = open_tiny(&m);
  assert_float_equal(o.g->ropes[o.g->nodes[1].rope].base, 1e4f, 0);
  assert_float_equal(o.g->ropes[o.g->nodes[4].rope].base, 1e6f, 0);
  close_tiny(&o);
}

/* ---- the real models ---- */

static gguf *open_real(const char *name, graph **g) {
  char path[4096];
  const char *models = getenv("TROIKA_MODELS"), *cache = getenv("TROIKA_CACHE"),
             *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (models)
    snprintf(path, sizeof path, "%s/%s", models, name);
  else if (cache || xdg)
    snprintf(path, sizeof path, "%s%s/models/%s", cache ? cache : xdg, cache ? "" : "/troika",
             name);
  else
    snprintf(path, sizeof path, "%s/.cache/troika/models/%s", home ? home : "", name);
  gguf *file = NULL;
  troika_error err = {0};
  if (gguf_open(path, &file, &err)) fail_msg("%s (make it with tools/fetch.py)", err.text);
  if (model_graph_create(file, g, &err)) fail_msg("%s", err.text);
  return file;
}

static void smollm2(void **state) {
  (void)state;
  graph *g = NULL;
  gguf *file = open_real("SmolLM2-135M-Instruct.Q4_1.gguf", &g);
  assert_int_equal(gguf_size(file), 98362432);
  assert_true(g->layers == 30 && g->width == 576 && g->ff == 1536 && g->heads == 9);
  assert_true(g->kv_heads == 3 && g->head_dim == 64 && g->vocab == 49152 && g->context == 8192);
  assert_int_equal(g->n_weights, 30 * 7 + 1);
  assert_int_equal(g->nodes[91].w[0], g->nodes[0].w[0]); /* tied */
  assert_int_equal(g->weights[g->nodes[0].w[0]].type, QUANT_Q8_0);
  uint32_t q4_1 = 0;
  for (uint32_t i = 0; i < g->n_weights; i++) q4_1 += g->weights[i].type == QUANT_Q4_1;
  assert_int_equal(q4_1, 210);
  assert_int_equal(g->n_groups, 1);
  assert_true(g->groups[0].window == 0 && g->groups[0].layers == 30);
  assert_int_equal(g->groups[0].page_bytes, 30 * 3 * 2 * 32 * 64 * 2);
  assert_int_equal(g->n_ropes, 1);
  assert_float_equal(g->ropes[0].base, 1e5f, 0);
  model_graph_destroy(&g);
  gguf_close(&file);
}

static void gemma_270m(void **state) {
  (void)state;
  graph *g = NULL;
  gguf *file = open_real("gemma-3-270m-q4_k_m.gguf", &g);
  assert_int_equal(gguf_size(file), 253113024);
  assert_true(g->layers == 18 && g->width == 640 && g->heads == 4 && g->kv_heads == 1);
  assert_true(g->head_dim == 256 && g->vocab == 262144 && g->context == 32768);
  assert_int_equal(g->n_weights, 18 * 7 + 1);
  assert_int_equal(g->nodes[55].w[0], g->nodes[0].w[0]); /* tied */
  assert_int_equal(g->n_groups, 2);
  assert_true(g->groups[0].window == 512 && g->groups[0].layers == 15);
  assert_true(g->groups[1].window == 0 && g->groups[1].layers == 3);
  assert_int_equal(g->groups[0].page_bytes, 15 * 2 * 32 * 256 * 2);
  assert_int_equal(g->groups[1].page_bytes, 3 * 2 * 32 * 256 * 2);
  for (uint32_t l = 0; l < 18; l++) /* every sixth sees all */
    assert_int_equal(g->nodes[1 + 3 * l].kv_group, l % 6 == 5);
  assert_float_equal(g->embed_scale, sqrt(640), 1e-5);
  assert_float_equal(g->attn_scale, 1.0 / 16, 0);
  model_graph_destroy(&g);
  gguf_close(&file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(llama_of_every_type),
      cmocka_unit_test(gemma3_of_every_type),
      cmocka_unit_test(heads_of_any_shape),
      cmocka_unit_test(head_size_from_width_if_the_file_is_silent),
      cmocka_unit_test(window_layers_by_pattern),
      cmocka_unit_test(rope_defaults_and_factors),
      cmocka_unit_test(smollm2),
      cmocka_unit_test(gemma_270m),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
