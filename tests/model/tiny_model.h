/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_model.h - small model files with random weights, whole or with one thing wrong, for tests of
 * the graph, of the device and for the fuzzer's seeds. Header only, so that every room's tests can
 * have it. */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "gguf/writer.h"
#include "quant/quant.h"

typedef struct tiny_model {
  bool gemma3; /* else llama */
  uint32_t layers, width, heads, kv_heads, head_dim, ff, vocab, context;
  uint32_t window, pattern; /* gemma3 */
  uint32_t type;            /* of every matrix; norms are F32 */
  bool untied, rope_factors;
  bool no_key_length; /* the file leaves head_dim to width / heads */
  float rope_base, rope_local;
  uint32_t tokens; /* of a byte-level tokenizer in the file; 0: none */
  uint64_t seed;
} tiny_model;

/* One change to a file that would be right without it. NULL or 0: not this one. */
typedef struct tiny_change {
  const char *omit; /* a key without its architecture ("block_count"), or a tensor */
  const char *key;  /* this key becomes value, or what is set of `real` and `text` */
  uint32_t value;
  float real;
  const char *text;
  const char *tensor;       /* this tensor gets other dimensions or another type */
  uint32_t dims[3], n_dims; /* n_dims 0: as they were */
  bool retype;
  uint32_t type;
  const char *extra; /* a tensor more, of `width` F32 values */
  const char *arch;  /* another name in general.architecture */
} tiny_change;

enum { TINY_TENSORS_MAX = 128 };

typedef struct tiny_builder {
  const tiny_model *m;
  const tiny_change *change;
  gguf_writer *w;
  void *data[TINY_TENSORS_MAX];
  uint32_t n;
  uint64_t state;
} tiny_builder;

static inline double tiny_random(uint64_t *state) { /* splitmix64, in -1..1 */
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-52 - 1;
}

static inline bool tiny_omits(const tiny_builder *b, const char *name) {
  return b->change->omit && !strcmp(b->change->omit, name);
}

static inline void tiny_full_key(const tiny_builder *b, const char *key, char out[128]) {
  snprintf(out, 128, "%s.%s", b->m->gemma3 ? "gemma3" : "llama", key);
}

static inline bool tiny_key(tiny_builder *b, const char *key, char full[128]) {
  const tiny_change *c = b->change;
  tiny_full_key(b, key, full);
  return !tiny_omits(b, key) && !(c->key && !strcmp(c->key, key));
}

static inline void tiny_u32(tiny_builder *b, const char *key, uint32_t value) {
  char full[128];
  if (tiny_key(b, key, full)) gguf_writer_add_u32(b->w, full, value);
}

static inline void tiny_f32(tiny_builder *b, const char *key, float value) {
  char full[128];
  if (tiny_key(b, key, full)) gguf_writer_add_f32(b->w, full, value);
}

/* n rows of k values around `middle`; n 0: a vector. */
static inline void tiny_tensor(tiny_builder *b, uint32_t n, uint32_t k, uint32_t type,
                               double middle, double spread, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
static inline void tiny_tensor(tiny_builder *b, uint32_t n, uint32_t k, uint32_t type,
                               double middle, double spread, const char *format, ...) {
  const tiny_change *c = b->change;
  char name[64];
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  uint64_t dims[4] = {k, n ? n : 1, 1, 1};
  uint32_t n_dims = n ? 2 : 1;
  if (tiny_omits(b, name)) return;
  if (c->tensor && !strcmp(c->tensor, name)) {
    if (c->n_dims) n_dims = c->n_dims;
    for (uint32_t i = 0; i < c->n_dims; i++) dims[i] = c->dims[i];
    if (c->retype) type = c->type;
  }
  const quant_format *f = quant_find(type);
  size_t values = (size_t)(dims[0] * dims[1] * dims[2]);
  float *x = malloc(values * sizeof *x);
  void *data = calloc(values, sizeof(float)); /* the largest type's bytes */
  if (!x || !data || b->n == TINY_TENSORS_MAX) abort();
  for (size_t i = 0; i < values; i++) x[i] = (float)(middle + spread * tiny_random(&b->state));
  if (f) f->encode(x, data, values / f->elements);
  free(x);
  b->data[b->n++] = data;
  gguf_writer_add_tensor(b->w, name, type, n_dims, dims, data);
}

static inline void tiny_matrix(tiny_builder *b, uint32_t n, uint32_t k, int layer,
                               const char *name) {
  double spread = sqrt(3.0 / k); /* outputs as large as inputs */
  if (layer < 0)
    tiny_tensor(b, n, k, b->m->type, 0, spread, "%s.weight", name);
  else
    tiny_tensor(b, n, k, b->m->type, 0, spread, "blk.%d.%s.weight", layer, name);
}

static inline void tiny_norm(tiny_builder *b, uint32_t n, int layer, const char *name) {
  tiny_tensor(b, 0, n, QUANT_F32, 1, 0.3, "blk.%d.%s.weight", layer, name);
}

static inline void tiny_keys(tiny_builder *b) {
  const tiny_model *m = b->m;
  const tiny_change *c = b->change;
  const char *arch = c->arch ? c->arch : m->gemma3 ? "gemma3" : "llama";
  if (!tiny_omits(b, "general.architecture"))
    gguf_writer_add_string(b->w, "general.architecture", bytes_of_string(arch));
  tiny_u32(b, "block_count", m->layers);
  tiny_u32(b, "embedding_length", m->width);
  tiny_u32(b, "attention.head_count", m->heads);
  tiny_u32(b, "attention.head_count_kv", m->kv_heads);
  tiny_u32(b, "feed_forward_length", m->ff);
  tiny_u32(b, "context_length", m->context);
  tiny_f32(b, "attention.layer_norm_rms_epsilon", 1e-5f);
  if (!m->no_key_length) {
    tiny_u32(b, "attention.key_length", m->head_dim);
    tiny_u32(b, "attention.value_length", m->head_dim);
  }
  if (m->rope_base > 0) tiny_f32(b, "rope.freq_base", m->rope_base);
  if (m->gemma3) {
    if (m->rope_local > 0) tiny_f32(b, "rope.local.freq_base", m->rope_local);
    tiny_u32(b, "attention.sliding_window", m->window);
    if (m->pattern) tiny_u32(b, "attention.sliding_window_pattern", m->pattern);
  }
  if (!c->key) return;
  char full[128];
  tiny_full_key(b, c->key, full);
  if (c->text)
    gguf_writer_add_string(b->w, full, bytes_of_string(c->text));
  else if (c->real != 0)
    gguf_writer_add_f32(b->w, full, c->real);
  else
    gguf_writer_add_u32(b->w, full, c->value);
}

/* Byte-level; the tokens are "a", "b", ..., "ba", ..., the last one ends an answer. */
static inline void tiny_tokenizer_keys(tiny_builder *b) {
  uint32_t n = b->m->tokens;
  if (!n) return;
  char(*texts)[8] = calloc(n, sizeof *texts);
  bytes_view *views = calloc(n, sizeof *views), merge = bytes_of_string("b a");
  if (!texts || !views) abort();
  for (uint32_t i = 0; i < n; i++) {
    char *at = texts[i];
    for (uint32_t v = i, first = 1; v || first; v /= 26, first = 0) *at++ = (char)('a' + v % 26);
    views[i] = bytes_of_string(texts[i]);
  }
  gguf_writer_add_string(b->w, "tokenizer.ggml.model", bytes_of_string("gpt2"));
  gguf_writer_add_string(b->w, "tokenizer.ggml.pre", bytes_of_string("smollm"));
  gguf_writer_add_strings(b->w, "tokenizer.ggml.tokens", views, n);
  gguf_writer_add_strings(b->w, "tokenizer.ggml.merges", &merge, 1);
  gguf_writer_add_u32(b->w, "tokenizer.ggml.eos_token_id", n - 1);
  free(views);
  free(texts);
}

static inline void tiny_tensors(tiny_builder *b) {
  const tiny_model *m = b->m;
  uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  tiny_matrix(b, m->vocab, m->width, -1, "token_embd");
  for (int l = 0; l < (int)m->layers; l++) {
    tiny_norm(b, m->width, l, "attn_norm");
    tiny_matrix(b, q, m->width, l, "attn_q");
    tiny_matrix(b, kv, m->width, l, "attn_k");
    tiny_matrix(b, kv, m->width, l, "attn_v");
    tiny_matrix(b, m->width, q, l, "attn_output");
    tiny_norm(b, m->width, l, "ffn_norm");
    tiny_matrix(b, m->ff, m->width, l, "ffn_gate");
    tiny_matrix(b, m->ff, m->width, l, "ffn_up");
    tiny_matrix(b, m->width, m->ff, l, "ffn_down");
    if (!m->gemma3) continue;
    tiny_norm(b, m->head_dim, l, "attn_q_norm");
    tiny_norm(b, m->head_dim, l, "attn_k_norm");
    tiny_norm(b, m->width, l, "post_attention_norm");
    tiny_norm(b, m->width, l, "post_ffw_norm");
  }
  tiny_tensor(b, 0, m->width, QUANT_F32, 1, 0.3, "output_norm.weight");
  if (m->untied) tiny_matrix(b, m->vocab, m->width, -1, "output");
  if (m->rope_factors) tiny_tensor(b, 0, m->head_dim / 2, QUANT_F32, 3, 2, "rope_freqs.weight");
  if (b->change->extra) tiny_tensor(b, 0, m->width, QUANT_F32, 0, 1, "%s", b->change->extra);
}

/* change may be NULL. Ends the program if the writer finds the file wrong: that is the test's own
 * mistake. */
static inline void tiny_write(const tiny_model *m, const tiny_change *change, FILE *out) {
  static const tiny_change none;
  troika_error err = {0};
  tiny_builder b = {.m = m, .change = change ? change : &none, .state = m->seed};
  b.w = gguf_writer_create(32);
  if (!b.w) abort();
  tiny_keys(&b);
  tiny_tokenizer_keys(&b);
  tiny_tensors(&b);
  if (gguf_writer_write(b.w, out, &err) || fflush(out)) {
    fprintf(stderr, "tiny model: %s\n", err.text);
    exit(1);
  }
  gguf_writer_destroy(&b.w);
  for (uint32_t i = 0; i < b.n; i++) free(b.data[i]);
}

static inline void tiny_write_file(const tiny_model *m, const tiny_change *change,
                                   const char *path) {
  FILE *out = fopen(path, "wb");
  if (!out) abort();
  tiny_write(m, change, out);
  fclose(out);
}

/* malloc'ed */
static inline uint8_t *tiny_bytes(const tiny_model *m, const tiny_change *change, size_t *len) {
  char *bytes = NULL;
  FILE *out = open_memstream(&bytes, len);
  if (!out) abort();
  tiny_write(m, change, out);
  fclose(out);
  return (uint8_t *)bytes;
}

static inline tiny_model tiny_llama(void) {
  return (tiny_model){.layers = 2,
                      .width = 64,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 32,
                      .ff = 96,
                      .vocab = 50,
                      .context = 256,
                      .type = QUANT_Q8_0,
                      .rope_base = 5000,
                      .seed = 1};
}

static inline tiny_model tiny_gemma3(void) {
  tiny_model m = tiny_llama();
  m.gemma3 = true;
  m.layers = 3;
  m.window = 24;
  m.pattern = 2;
  m.rope_local = 700;
  return m;
}

#endif
