/* kernel.h - CPU microkernels behind one table, chosen at run time.
 *
 * No threads, no allocation, no I/O: the caller gives scratch and splits the work. Every function
 * is defined to the bit by its scalar reference (<family>_ref.c) and every instruction-set level
 * equals it in bits; the definitions stand below. A kernel set ("activations") fixes the
 * arithmetic, a level only the speed. FTZ and DAZ must be on in the calling thread
 * (kernel_thread_setup); references are compared under the same setting.
 *
 * Weights are packed once into panels of 16 output columns (pack.h). Lane = column, so no sum ever
 * crosses lanes and no result depends on how many rows, panels or threads take part.
 *
 * y[row][n] = sum over k of x[row][k] * w[n][k], K cut in blocks of 32 in ascending order:
 *
 * PROMPT  a = bf16(x), b = bf16(value of w): round to nearest even, denormals to zero. Per block
 *             e = fma chain over even k from +0,  o = fma chain over odd k from +0
 *             acc = acc + (e + o)
 *         from +0: the order of one TDPBF16PS of 16 pairs.
 * GEN     integer weights: an activation block has 16 bits per value,
 *             amax = max |x|,  q = rint(x * (32512 / amax)),  d = amax / 32512
 *         (amax 0: d = 0; any x not finite: d = NaN and q = 0). q is a 16-bit integer, or two int8
 *         planes with q = 256 * hi + lo where a unit wants bytes: S = sum of c*q and A = sum of q
 *         are exact int32 either way. f() is int32 -> float:
 *             U4, U8    acc = fma(f(S) * w_d, d, acc)                  c = code - 8, code - 128
 *             U4M, U4K  acc = fma(fma(f(A), w_m, f(S) * w_d), d, acc)  c = code
 *                       U4K: w_d = dd * sc, w_m = -(dmin * m), each rounded
 *             U8K       as U8 for each half of 16 in turn, w_d = dd * sc
 *         weights that are floats (F32, F16, BF16): as FLOAT.
 * FLOAT   y = fma chain over all k ascending, from +0, of x and the value of w in fp32.
 * INT8    as GEN with one plane: q = rint(x * (127 / amax)), d = amax / 127.
 *
 * The value of w is what quant decodes, every step rounded to fp32: U4 d*(c-8), U4M d*c + m,
 * U4K (d*sc)*c - (dmin*m), U8K (d*sc)*c.
 *
 * Kernel sets: `default` = PROMPT and GEN; `float` = FLOAT for both; `int8` = INT8 for both (FLOAT
 * where weights are floats).
 *
 * Sums over a vector (norm, softmax): 16 lanes, lane l takes i = l mod 16 ascending, then the tree
 * v[i]+v[i+8], +4, +2, +1.
 *
 * Source: design of the two arithmetics in docs/ARCHITECTURE.md, "Answers do not depend on the
 * schedule". SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_KERNEL_H
#define KERNEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/pack.h"

enum {
  KERNEL_PANEL = 16,   /* columns of a panel */
  KERNEL_BLOCK = 32,   /* values of k that share one activation scale */
  KERNEL_PAGE = 32,    /* tokens of a KV page */
  KERNEL_SPLIT = 512,  /* positions of an attention split; splits begin at its multiples */
  KERNEL_ROWS_MAX = 32 /* rows of one attention call */
};

/* Instruction-set levels, lowest first; a bit each in the mask. X(NAME, text) */
#define KERNEL_LEVEL_LIST(X)                        \
  X(AVX2, "avx2")       /* AVX2, FMA, F16C */       \
  X(AVXVNNI, "avxvnni") /* + AVX-VNNI */            \
  X(AVX512, "avx512")   /* AVX-512 F, BW, VL, DQ */ \
  X(AVX512VNNI, "avx512vnni")                       \
  X(AVX512BF16, "avx512bf16")
enum kernel_level_bit {
#define KERNEL_LEVEL_ENUM(name, text) KERNEL_BIT_##name,
  KERNEL_LEVEL_LIST(KERNEL_LEVEL_ENUM)
#undef KERNEL_LEVEL_ENUM
      KERNEL_BIT_COUNT
};
#define KERNEL_MASK_ALL ((1u << KERNEL_BIT_COUNT) - 1)
uint32_t kernel_cpu_levels(void); /* what this processor and its operating system offer */
/* "avx2,avx512", "all", "scalar" -> mask, with the levels that each stands on; false if a word is
 * unknown. */
bool kernel_mask_parse(const char *text, uint32_t *mask);

typedef enum kernel_activations {
  KERNEL_DEFAULT,
  KERNEL_FLOAT,
  KERNEL_INT8,
  KERNEL_ACTIVATIONS_COUNT
} kernel_activations;
typedef enum kernel_arith {
  KERNEL_PROMPT,
  KERNEL_GEN
} kernel_arith; /* what a row is, never how many there are */

/* A packed activation row takes kernel_act_bytes(k) (a multiple of 64) whatever the arithmetic; its
 * form is the set's own. */
static inline size_t kernel_act_bytes(uint32_t k) {
  return (size_t)k * 4;
}

typedef struct kernel_mm {
  const kernel_weight *weight;
  uint32_t panel0, panels; /* panels panel0 .. panel0+panels of the weight */
  const uint8_t *x;        /* packed rows, 64-byte aligned */
  size_t x_stride;         /* bytes from row to row */
  uint32_t rows;           /* >= 1 */
  float
      *y; /* y[row * y_stride + column], column counted from the weight's column 0; whole panels are
            written, also the padding columns of the last one; 64-byte aligned, no overlap with x */
  size_t y_stride; /* floats */
  void *scratch;   /* kernel_scratch_bytes(k), 64-byte aligned, own to the thread */
} kernel_mm;

/* One KV head, consecutive rows of one sequence, positions [t0, t1) of one split. The window and
 * causality decide what is visible: row i stands at pos0 + i and sees t <= pos0 + i, and t > pos0 +
 * i - window if window is not 0. A page holds, for this layer and head at `head_offset`: K as f16
 * [32][head_dim], then V as f16 [head_dim][32]. */
typedef struct kernel_attn {
  const float *q;  /* q[row * q_stride + g * head_dim + d]: the `group` query heads of this KV head,
                      rotary embedding applied */
  size_t q_stride; /* floats */
  uint32_t rows;   /* 1..KERNEL_ROWS_MAX for PROMPT, 1 for GEN */
  uint32_t group, head_dim; /* head_dim a multiple of 32, at most 256; group at most 16 */
  uint32_t pos0, window;
  uint32_t t0, t1; /* t0 a multiple of KERNEL_PAGE; t1 - t0 <= KERNEL_SPLIT; within one split; t1 <=
                      pos0 + rows */
  const uint8_t *pool;   /* page p begins at pool + p * page_bytes */
  const uint32_t *pages; /* pages[t / 32] for t in [t0, t1); others are not read */
  size_t page_bytes, head_offset;
  float scale; /* scores are multiplied by it after the dot product */
  float *part; /* out: part[(row * group + g) * part_stride]: acc[head_dim], then m, then l */
  size_t part_stride; /* floats, a multiple of 16, >= head_dim + 2 */
  void *scratch;      /* kernel_attn_scratch_bytes(group, head_dim), 64-byte aligned */
} kernel_attn;
/* What one split gives, per (row, head), with s[t] = scale * dot(q, k[t]); hidden t: s = -inf, p =
 * 0.
 *
 * GEN     dot in 16 lanes over d by fma, and the tree. m = max s (-1e30 if all are hidden),
 *         p = exp(s - m), l = sum of p in 16 lanes over t (t mod 16) and the tree,
 *         acc[d] = sum of p[t] * v[t][d] by fma in 16 lanes over t and the tree. K, V in fp32.
 * PROMPT  operands bf16. dot over d in the PROMPT order (blocks of 32). Pages in turn:
 *         m' = max(m, max s), c = exp(m - m'), p = exp(s - m'),
 *         l = l * c + (sum of p over the page, t ascending, one chain),
 *         acc[d] = acc[d] * c + (e + o), e and o the fma chains over even and odd t of
 *         bf16(p[t]) * bf16(v[t][d]). m starts at -1e30, l and acc at 0. Pages hidden from every
 *         row are not visited: visiting one changes nothing.
 *
 * Splits are merged in ascending order by attn_merge, so any of them may be computed first. */

typedef struct kernel_table {
  char name[48]; /* "default avx512vnni" */
  kernel_activations activations;
  uint32_t levels; /* mask it was made for, cut to what the processor has */

  /* one row of k floats (k a multiple of 32) -> kernel_act_bytes(k) */
  void (*act[2])(const float *x, uint32_t k,
                 void *packed);                     /* by kernel_arith, for integer weights */
  void (*mm[2][PACK_COUNT])(const kernel_mm *args); /* by kernel_arith and pack */
  bool act_float[2][PACK_COUNT]; /* true: mm takes plain fp32 rows for this pack instead of act's
                                    form */

  void (*attn[2])(const kernel_attn *args);
  /* into = merge(into, part): M = max(m0, m1), a = exp(m0 - M), b = exp(m1 - M), l = fma(l0, a, l1
   * * b), acc likewise */
  void (*attn_merge)(float *into, const float *part, uint32_t head_dim);
  void (*attn_finish)(const float *state, uint32_t head_dim, float *y); /* y = acc / l */

  /* y = (x * r) * w, r = 1 / sqrt(sum(x*x by fma) / n + eps); n a multiple of 16; y may be x */
  void (*rms_norm)(const float *x, const float *w, uint32_t n, float eps, float *y);
  /* cos_sin[2*i], cos_sin[2*i+1] for pair i of n/2. adjacent: (x[2i], x[2i+1]); else (x[i],
   * x[i+n/2]). x0' = fma(x0, c, -(x1 * s)), x1' = fma(x0, s, x1 * c). n a multiple of 32. In place.
   */
  void (*rope)(float *x, const float *cos_sin, uint32_t n, bool adjacent);
  void (*add)(float *x, const float *y, uint32_t n); /* x += y */
  void (*silu_mul)(const float *gate, const float *up, uint32_t n,
                   float *y); /* g / (1 + exp(-g)) * u; y may be gate */
  void (*gelu_mul)(const float *gate, const float *up, uint32_t n,
                   float *y); /* tanh form: z = 0.7978845608f * fma(0.044715f * g * g, g, g), g / (1
                                 + exp(-2z)) * u */
  /* one token of one head: K row (f16) and V column (f16, stride 32) at token slot `slot` of the
   * page head at `head`. Values beyond the f16 range saturate at 65504; NaN stays. */
  void (*kv_write)(uint8_t *head, uint32_t slot, uint32_t head_dim, const float *k, const float *v);

  float (*vec_max)(const float *x, uint32_t n); /* NaN if any element is NaN; n >= 1, any */
  float (*vec_sum_exp)(const float *x, uint32_t n,
                       float max); /* sum of exp(x - max), 16 lanes; any n */
} kernel_table;

/* The best kernels within `mask` and the processor's own levels. Fills *out (about 400 bytes, plain
 * data). */
void kernel_table_init(kernel_table *out, kernel_activations activations, uint32_t mask);

size_t kernel_scratch_bytes(uint32_t k); /* for mm */
size_t kernel_attn_scratch_bytes(uint32_t group, uint32_t head_dim);
/* Column n of a packed weight as k fp32 values (embedding lookup). */
void kernel_weight_row(const kernel_weight *w, uint32_t n, float *out);
void kernel_thread_setup(void); /* FTZ and DAZ on; once in each thread that runs kernels */
float kernel_exp(float x); /* the scalar exp that all of the above use; at most 2 ulp from exact */

#endif
