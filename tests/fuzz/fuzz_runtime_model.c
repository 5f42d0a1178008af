/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_runtime_model.c - any bytes as a model file: each either is refused with a clean sentence or
 * becomes a graph whose numbers agree with its tensors, and a tokenizer.
 *
 *   build/fuzz/tests/fuzz_runtime_model NEW_INPUTS tests/fuzz/corpus/runtime_model
 *
 * The seeds were written by fuzz_runtime_model -seeds=tests/fuzz/corpus/runtime_model (which ends
 * there), from tests/model/tiny_model.h. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../model/tiny_model.h"
#include "base/check.h"
#include "model/model.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void write_seeds(const char *folder) {
  static const char *const names[] = {"llama", "gemma3", "llama-untied"};
  char path[1024];
  for (int i = 0; i < 3; i++) {
    tiny_model m = i & 1 ? tiny_gemma3() : tiny_llama();
    m.width = m.ff = 32;
    m.heads = 2;
    m.kv_heads = 1;
    m.vocab = m.tokens = 8;
    m.layers = 1;
    m.type = i < 2 ? QUANT_Q4_0 : QUANT_Q5_0;
    m.untied = m.rope_factors = i == 2;
    m.no_key_length = false;
    snprintf(path, sizeof path, "%s/%s.gguf", folder, names[i]);
    tiny_write_file(&m, NULL, path);
  }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  for (int i = 1; i < *argc; i++)
    if (!strncmp((*argv)[i], "-seeds=", 7)) {
      write_seeds((*argv)[i] + 7);
      exit(0);
    }
  return 0;
}

static void check_refusal(troika_status status, const troika_error *err) {
  CHECK(err->status == status && err->text[0]);
  size_t len = strlen(err->text);
  CHECK(utf8_valid_prefix(err->text, len, NULL) == len);
  for (size_t i = 0; i < len; i++)
    CHECK(err->text[i] == '\n' || ((unsigned char)err->text[i] >= ' ' && err->text[i] != 0x7f));
}

static volatile uint64_t kept; /* so that no read is optimised away */

/* What a driver trusts. */
static void check_graph(const gguf *file, const graph *g) {
  CHECK(g->n_nodes == 3 * g->layers + 2 && g->layers >= 1);
  CHECK(g->heads % g->kv_heads == 0 && g->heads / g->kv_heads <= 16);
  CHECK(g->head_dim % 32 == 0 && g->head_dim >= 32 && g->head_dim <= 256);
  CHECK(g->n_groups >= 1 && g->n_groups <= GRAPH_KV_GROUPS_MAX);
  CHECK(g->n_ropes >= 1 && g->n_ropes <= GRAPH_ROPES_MAX);
  CHECK(g->n_weights + g->n_norms == gguf_tensor_count(file));
  CHECK(g->norm_eps > 0 && g->attn_scale > 0);
  uint64_t layers = 0, sum = 0;
  for (uint32_t i = 0; i < g->n_groups; i++) {
    layers += g->groups[i].layers;
    CHECK(g->groups[i].page_bytes ==
          (size_t)g->groups[i].layers * g->kv_heads * 2 * 32 * g->head_dim * 2);
  }
  CHECK(layers == g->layers);
  for (uint32_t i = 0; i < g->n_weights; i++) {
    const graph_weight *w = &g->weights[i];
    const quant_format *f = quant_find(w->type);
    CHECK(f && w->k % f->elements == 0);
    CHECK(w->bytes == (size_t)w->n * (w->k / f->elements) * f->bytes);
    sum += w->host[0] + w->host[w->bytes - 1];
  }
  for (uint32_t i = 0; i < g->n_norms; i++)
    for (uint32_t j = 0; j < g->norms[i].n; j++) sum += g->norms[i].w[j] > 0;
  for (uint32_t i = 0; i < g->n_nodes; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == GRAPH_A)
      CHECK(n->w[0] < g->n_weights && n->w[1] < g->n_weights && n->w[2] < g->n_weights);
    if (n->kind == GRAPH_C)
      CHECK(n->w_out < g->n_weights && n->w_gate < g->n_weights && n->w_up < g->n_weights &&
            n->w_down < g->n_weights);
    if (n->kind != GRAPH_EMBED && n->kind != GRAPH_S) CHECK(n->norm < g->n_norms);
  }
  kept = sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  gguf *file = NULL;
  graph *g = NULL;
  tokenizer *t = NULL;
  troika_error err = {0};
  troika_status status = gguf_open_memory(data, len, &file, &err);
  if (status) return 0; /* fuzz_gguf's business */
  status = model_graph_create(file, &g, &err);
  if (status) {
    CHECK(!g);
    check_refusal(status, &err);
  } else {
    check_graph(file, g);
    CHECK(model_architecture_name(file)[0]);
  }
  status = tokenizer_create(file, &t, &err);
  if (status) {
    CHECK(!t);
    check_refusal(status, &err);
  } else {
    CHECK(tokenizer_vocab_size(t) > 0 && tokenizer_kind(t)[0]);
  }
  tokenizer_destroy(&t);
  model_graph_destroy(&g);
  gguf_close(&file);
  return 0;
}
