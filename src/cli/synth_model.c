/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, the tensors of each, and the file: see synth.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "cli/synth.h"
#include "quant/quant.h"

enum { POOLS_MAX = 12, LLAMA3_TRAINED_FIRST = 8192 };
#define ROPE_BASE 500000.0f
#define NORM_EPS 1e-5f
/* Sizes that synth.h tells of. */
#define LOGIT_DEVIATION 4.0f
#define SCORE_DEVIATION 3.0f
#define RESIDUAL_SQUARE 36.0f /* after the last layer */
#define ATTENTION_SHARE 0.1f  /* of that; at most, since attention averages */
#define GLU_RMS 0.596f        /* of silu(g) u, both of deviation 1 */

static const synth_shape shapes[] = {
    /* name, label, layers, width, heads, kv_heads, head_dim, ff, vocab, context, rope, tied */
    {"tiny", "9M", 2, 768, 12, 4, 64, 1024, 1024, 2048, 8, true},
    {"llama-3.2-1b", "1B", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 32, true},
    {"llama-3.2-3b", "3B", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 32, true},
    {"llama-3.1-8b", "8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 8, false},
};

typedef struct mix_formats {
  const char *name;
  uint32_t file_type; /* general.file_type */
  uint32_t most, finer, output;
} mix_formats;

/* most: all matrices but those that have `finer` or are the output. */
static const mix_formats mixes[SYNTH_MIXES] = {
    [SYNTH_Q4_0] = {"Q4_0", 2, QUANT_Q4_0, QUANT_Q4_0, QUANT_Q6_K},
    [SYNTH_Q8_0] = {"Q8_0", 7, QUANT_Q8_0, QUANT_Q8_0, QUANT_Q8_0},
    [SYNTH_Q4_K_M] = {"Q4_K_M", 15, QUANT_Q4_K, QUANT_Q6_K, QUANT_Q6_K},
};

const synth_shape *synth_shapes(unsigned *count) {
  *count = sizeof shapes / sizeof *shapes;
  return shapes;
}

const char *synth_mix_name(synth_mix mix) {
  return mixes[mix].name;
}

/* Layers whose attn_v and ffn_down are finer in a mix with two formats: the first and the last
 * eighth, and every third between. */
static bool layer_is_fine(uint32_t layer, uint32_t layers) {
  uint32_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

typedef struct tensor_list {
  synth_tensor *out;
  unsigned n;
  int layer; /* -1: none */
} tensor_list;

static synth_tensor *list_add(tensor_list *l, const char *name) {
  synth_tensor *t = &l->out[l->n++];
  *t = (synth_tensor){.type = QUANT_F32, .n_dims = 1};
  if (l->layer < 0)
    snprintf(t->name, sizeof t->name, "%s.weight", name);
  else
    snprintf(t->name, sizeof t->name, "blk.%d.%s.weight", l->layer, name);
  return t;
}

static void add_matrix(tensor_list *l, const char *name, uint32_t type, uint32_t k, uint32_t n,
                       float deviation) {
  synth_tensor *t = list_add(l, name);
  t->type = type;
  t->n_dims = 2;
  t->dims[0] = k;
  t->dims[1] = n;
  t->deviation = deviation;
}

static void add_constant(tensor_list *l, const char *name, synth_content content, uint32_t n) {
  synth_tensor *t = list_add(l, name);
  t->dims[0] = n;
  t->content = content;
}

static void add_layer(tensor_list *l, const synth_shape *s, const mix_formats *mix) {
  const uint32_t queries = s->heads * s->head_dim, keys = s->kv_heads * s->head_dim;
  const uint32_t most = mix->most;
  const uint32_t fine = layer_is_fine((uint32_t)l->layer, s->layers) ? mix->finer : most;
  const float wide = 1 / sqrtf((float)s->width), added = RESIDUAL_SQUARE / (float)s->layers;
  const float by_attention = sqrtf(added * ATTENTION_SHARE);
  const float by_ff = sqrtf(added * (1 - ATTENTION_SHARE)) / GLU_RMS;
  add_constant(l, "attn_norm", SYNTH_ONES, s->width);
  add_matrix(l, "attn_q", most, s->width, queries, SCORE_DEVIATION * wide);
  add_matrix(l, "attn_k", most, s->width, keys, wide);
  add_matrix(l, "attn_v", fine, s->width, keys, wide);
  add_matrix(l, "attn_output", most, queries, s->width, by_attention / sqrtf((float)queries));
  add_constant(l, "ffn_norm", SYNTH_ONES, s->width);
  add_matrix(l, "ffn_gate", most, s->width, s->ff, wide);
  add_matrix(l, "ffn_up", most, s->width, s->ff, wide);
  add_matrix(l, "ffn_down", fine, s->ff, s->width, by_ff / sqrtf((float)s->ff));
}

unsigned synth_tensors(const synth_shape *s, synth_mix mix, synth_tensor out[SYNTH_TENSORS_MAX]) {
  CHECK(s->layers <= SYNTH_LAYERS_MAX);
  const mix_formats *formats = &mixes[mix];
  const float logits = LOGIT_DEVIATION / sqrtf((float)s->width);
  tensor_list l = {.out = out, .layer = -1};
  add_matrix(&l, "token_embd", s->tied ? formats->output : formats->most, s->width, s->vocab,
             s->tied ? logits : 1);
  add_constant(&l, "rope_freqs", SYNTH_ROPE_FACTORS, s->head_dim / 2);
  for (l.layer = 0; l.layer < (int)s->layers; l.layer++) add_layer(&l, s, formats);
  l.layer = -1;
  add_constant(&l, "output_norm", SYNTH_ONES, s->width);
  if (!s->tied) add_matrix(&l, "output", formats->output, s->width, s->vocab, logits);
  return l.n;
}

typedef struct tensor_source {
  struct synth_model *model;
  const synth_pool *pool;
  uint64_t key;
} tensor_source;

struct synth_model {
  const synth_shape *shape;
  gguf_writer *writer; /* owned */
  synth_tensor tensors[SYNTH_TENSORS_MAX];
  tensor_source sources[SYNTH_TENSORS_MAX];
  unsigned tensors_n, pools_n;
  synth_pool pools[POOLS_MAX]; /* owned */
  float *ones, *factors;       /* owned */
  uint64_t parameters, data_bytes, done;
  synth_progress progress;
  void *progress_context;
};

/* Divisors of the rotary frequencies: 1 for those that turn more than 4 times within the context of
 * the first training, `factor` for those that turn less than once, between them a blend of the
 * frequencies. Source: the published Llama 3.1 configuration (rope_scaling, type llama3). */
static void fill_rope_factors(const synth_shape *s, float *out) {
  const double pi = 3.14159265358979323846, low = 1, high = 4;
  for (uint32_t i = 0; i < s->head_dim / 2; i++) {
    double frequency = pow((double)ROPE_BASE, -2.0 * i / s->head_dim);
    double turns = LLAMA3_TRAINED_FIRST * frequency / (2 * pi);
    double blend = turns >= high ? 1 : turns <= low ? 0 : (turns - low) / (high - low);
    out[i] = (float)(1 / ((1 - blend) / (double)s->rope_factor + blend));
  }
}

static troika_status fill_random(void *context, uint64_t offset, void *out, size_t len,
                                 troika_error *err) {
  const tensor_source *source = context;
  struct synth_model *m = source->model;
  size_t bytes = source->pool->block_bytes;
  synth_pool_draw(source->pool, source->key, offset / bytes, out, len / bytes);
  m->done += len;
  if (!m->progress || m->progress(m->progress_context, m->done, m->data_bytes)) return TROIKA_OK;
  return error_set(err, TROIKA_CANCELLED, "interrupted");
}

/* The pool for a tensor, made if there is none yet; NULL: no memory. */
static const synth_pool *pool_get(synth_model *m, const synth_tensor *t, uint64_t seed) {
  for (unsigned i = 0; i < m->pools_n; i++)
    if (m->pools[i].type == t->type && m->pools[i].deviation == t->deviation) return &m->pools[i];
  CHECK(m->pools_n < POOLS_MAX);
  uint64_t key = synth_hash(seed + m->pools_n + 1);
  if (!synth_pool_create(t->type, t->deviation, key, &m->pools[m->pools_n])) return NULL;
  return &m->pools[m->pools_n++];
}

static bool add_tensors(synth_model *m, uint64_t seed) {
  for (unsigned i = 0; i < m->tensors_n; i++) {
    const synth_tensor *t = &m->tensors[i];
    const quant_format *format = quant_find(t->type);
    uint64_t weights = t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1);
    if (t->content != SYNTH_ROPE_FACTORS) m->parameters += weights;
    if (t->content != SYNTH_RANDOM) {
      gguf_writer_add_tensor(m->writer, t->name, t->type, t->n_dims, t->dims,
                             t->content == SYNTH_ONES ? m->ones : m->factors);
      continue;
    }
    m->data_bytes += weights / format->elements * format->bytes;
    const synth_pool *pool = pool_get(m, t, seed);
    if (!pool) return false;
    uint64_t key = synth_hash(synth_hash(seed ^ 0x5eed) + i); /* not a pool's */
    m->sources[i] = (tensor_source){.model = m, .pool = pool, .key = key};
    gguf_writer_add_tensor_fill(m->writer, t->name, t->type, t->n_dims, t->dims, fill_random,
                                &m->sources[i]);
  }
  return true;
}

static void add_keys(gguf_writer *w, const synth_shape *s, const mix_formats *mix, int64_t seed) {
  char text[96];
  snprintf(text, sizeof text, "synthetic %s", s->name);
  gguf_writer_add_string(w, "general.architecture", bytes_of_string("llama"));
  gguf_writer_add_string(w, "general.type", bytes_of_string("model"));
  gguf_writer_add_string(w, "general.name", bytes_of_string(text));
  gguf_writer_add_string(w, "general.description",
                         bytes_of_string("Random weights and a made vocabulary, for measurements "
                                         "of speed and load. What it says has no meaning."));
  gguf_writer_add_string(w, "general.size_label", bytes_of_string(s->label));
  gguf_writer_add_u32(w, "general.file_type", mix->file_type);
  gguf_writer_add_u32(w, "general.quantization_version", 2);
  gguf_writer_add_bool(w, "synthetic.random_weights", true);
  gguf_writer_add_string(w, "synthetic.shape", bytes_of_string(s->name));
  gguf_writer_add(w, "synthetic.seed", GGUF_I64, &seed);
  gguf_writer_add_u32(w, "llama.block_count", s->layers);
  gguf_writer_add_u32(w, "llama.context_length", s->context);
  gguf_writer_add_u32(w, "llama.embedding_length", s->width);
  gguf_writer_add_u32(w, "llama.feed_forward_length", s->ff);
  gguf_writer_add_u32(w, "llama.attention.head_count", s->heads);
  gguf_writer_add_u32(w, "llama.attention.head_count_kv", s->kv_heads);
  gguf_writer_add_u32(w, "llama.attention.key_length", s->head_dim);
  gguf_writer_add_u32(w, "llama.attention.value_length", s->head_dim);
  gguf_writer_add_f32(w, "llama.attention.layer_norm_rms_epsilon", NORM_EPS);
  gguf_writer_add_u32(w, "llama.rope.dimension_count", s->head_dim);
  gguf_writer_add_f32(w, "llama.rope.freq_base", ROPE_BASE);
  gguf_writer_add_u32(w, "llama.vocab_size", s->vocab);
}

troika_status synth_model_create(const synth_shape *shape, synth_mix mix, int64_t seed,
                                 synth_model **out, troika_error *err) {
  synth_model *m = calloc(1, sizeof *m);
  if (!m) return error_set(err, TROIKA_NO_MEMORY, "no memory for a model");
  m->shape = shape;
  m->writer = gguf_writer_create(32);
  m->ones = malloc(shape->width * sizeof *m->ones);
  m->factors = malloc(shape->head_dim / 2 * sizeof *m->factors);
  if (!m->writer || !m->ones || !m->factors) goto no_memory;
  for (uint32_t i = 0; i < shape->width; i++) m->ones[i] = 1;
  fill_rope_factors(shape, m->factors);
  add_keys(m->writer, shape, &mixes[mix], seed);
  m->tensors_n = synth_tensors(shape, mix, m->tensors);
  if (!synth_vocab_add(m->writer, shape->vocab) || !add_tensors(m, synth_hash((uint64_t)seed))) {
    goto no_memory;
  }
  *out = m;
  return TROIKA_OK;
no_memory:
  synth_model_destroy(&m);
  return error_set(err, TROIKA_NO_MEMORY, "no memory for a model of shape %s", shape->name);
}

void synth_model_destroy(synth_model **model) {
  synth_model *m = *model;
  if (!m) return;
  *model = NULL;
  gguf_writer_destroy(&m->writer);
  for (unsigned i = 0; i < m->pools_n; i++) synth_pool_free(&m->pools[i]);
  free(m->factors);
  free(m->ones);
  free(m);
}

unsigned synth_model_tensors(const synth_model *m) {
  return m->tensors_n;
}

uint64_t synth_model_parameters(const synth_model *m) {
  return m->parameters;
}

uint64_t synth_model_data_bytes(const synth_model *m) {
  return m->data_bytes;
}

troika_status synth_model_write(synth_model *m, const char *path, synth_progress progress,
                                void *context, troika_error *err) {
  m->done = 0;
  m->progress = progress;
  m->progress_context = context;
  return gguf_writer_write_file(m->writer, path, err);
}
