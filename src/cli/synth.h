/* SPDX-License-Identifier: Apache-2.0 */
/* synth.h - GGUF files of a known model's shape with random weights: for speed and load work at
 * sizes that no package ships. What such a model says has no meaning, and its file says so.
 *
 *   shape + mix ──► synth_tensors ──► gguf_writer ◄── synth_pool_draw: blocks out of pools
 *                   (a plain table)       ▲
 *                                 synth_vocab: 256 bytes, fillers, control tokens
 *
 * Weights: for each pair of format and deviation in the file, some 150 to 210 KB of blocks are
 * encoded once from bell-shaped numbers with the project's own encoders; each block of a tensor is
 * one of them, drawn by a hash of (seed, tensor, block number). So bytes are a function of shape,
 * mix and seed, codes and scales are distributed as in a quantised model, rows (of 3 blocks and
 * more) differ, and writing costs about one hash and one copy of 18 to 210 bytes a block. Encoding
 * every weight was rejected (8B in Q4_K: some 10 minutes), and so was drawing code bytes directly:
 * codes around -8..7 have a mean that is not zero, which grows from layer to layer.
 *
 * Sizes of activations: weights over k inputs have deviation 1 / sqrt(k), so what a norm makes 1
 * stays about 1 in k, v, gate and up. Queries are 3, so that attention picks a few positions. Each
 * layer adds the same to the residual's square, 36 in the end, nine tenths of it by the
 * feed-forward: attention averages, and where it outweighs the rest, all rows become the same and
 * the model repeats one token. Logits have deviation 4, as peaked as a real model's; a tied output
 * lifts the last token's own by 4 / 6 of that only, since so much was added to its embedding.
 *
 * Memory: the vocabulary twice (about 15 MB at 128256 tokens) and the pools. One thread. */
#ifndef CLI_SYNTH_H
#define CLI_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "gguf/writer.h"
#include "troika/status.h"

typedef struct synth_shape {
  const char *name, *label; /* label: general.size_label */
  uint32_t layers, width, heads, kv_heads, head_dim, ff, vocab, context;
  float rope_factor; /* by which Llama 3 stretches its slowest rotary frequencies */
  bool tied;         /* the output is the embedding */
} synth_shape;

/* Source of the numbers: the published configurations of these models. */
const synth_shape *synth_shapes(unsigned *count);

typedef enum synth_mix { SYNTH_Q4_0, SYNTH_Q8_0, SYNTH_Q4_K_M, SYNTH_MIXES } synth_mix;
const char *synth_mix_name(synth_mix mix); /* "Q4_K_M" */

typedef enum synth_content { SYNTH_RANDOM, SYNTH_ONES, SYNTH_ROPE_FACTORS } synth_content;

typedef struct synth_tensor {
  char name[40];
  uint32_t type, n_dims;
  uint64_t dims[2]; /* dims[0] is the contiguous one */
  synth_content content;
  float deviation; /* of SYNTH_RANDOM */
} synth_tensor;

enum { SYNTH_LAYERS_MAX = 32, SYNTH_TENSORS_MAX = SYNTH_LAYERS_MAX * 9 + 4 };

/* The file's tensors in order; how many. Which have which format: as in the published files that
 * are called so. */
unsigned synth_tensors(const synth_shape *shape, synth_mix mix,
                       synth_tensor out[SYNTH_TENSORS_MAX]);

/* What is told after each piece; false ends the writing with CANCELLED. */
typedef bool (*synth_progress)(void *context, uint64_t done, uint64_t total);

typedef struct synth_model synth_model;

/* `shape` is borrowed and must live as long. NO_MEMORY. */
troika_status synth_model_create(const synth_shape *shape, synth_mix mix, int64_t seed,
                                 synth_model **out, troika_error *err);
void synth_model_destroy(synth_model **model);
unsigned synth_model_tensors(const synth_model *m);
uint64_t synth_model_parameters(const synth_model *m); /* as models are counted: no rope factors */
uint64_t synth_model_data_bytes(const synth_model *m); /* of tensors: nearly the file's size */
/* Beside `path`, then renamed: never half a file. IO, NO_MEMORY, CANCELLED. */
troika_status synth_model_write(synth_model *m, const char *path, synth_progress progress,
                                void *context, troika_error *err);

/* --- synth_vocab.c: the tokenizer's metadata. Errors stay in the writer; false: no memory. */
bool synth_vocab_add(gguf_writer *writer, uint32_t vocab);

/* --- synth_weights.c */
typedef struct synth_pool {
  uint32_t type, bits; /* 1 << bits blocks */
  size_t block_bytes, block_elements;
  float deviation;
  uint8_t *blocks; /* owned */
} synth_pool;

/* SplitMix64's output function (Steele, Lea, Flood 2014): equal inputs, equal outputs, anywhere. */
static inline uint64_t synth_hash(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* False: no memory. */
bool synth_pool_create(uint32_t type, float deviation, uint64_t key, synth_pool *out);
void synth_pool_free(synth_pool *pool);
/* `n` blocks of the tensor that `key` stands for, from number `first` on. */
void synth_pool_draw(const synth_pool *pool, uint64_t key, uint64_t first, uint8_t *out, size_t n);

#endif
