/* SPDX-License-Identifier: Apache-2.0 */
/* Small random models on the CPU device against a forward pass in float64 that is written here from
 * the architectures' definitions and shares no code with the engine but the decoding of weight
 * formats. Every weight type, both architectures, head sizes 32 to 256, windows shorter than the
 * text, grouped queries, odd vocabularies, tied and untied heads.
 *
 * The figure of a row is |ours - reference| / |reference| over its logits (2-norms), the worst row
 * counts. What it may be:
 *   float    1e-3. Keys and values are rounded to f16 in both; where the two roundings fall on
 *            different sides an element moves by 2^-10, and few do. fp32 itself is 1e-6.
 *   GEN      2e-3. Activations have 16 bits per 32 values with one scale: an error of 2^-16 of the
 *            largest, 1e-4 of a dot. Through some ten products a row stays below 1e-3; f16 as
 *            above.
 *   PROMPT   4e-2. Each operand of a dot is off by at most 2^-9 (bf16), 1.1e-3 rms, a dot by
 *            1.6e-3. L layers put 4 products in a row each, and attention's two: 1.6e-3 x
 *            sqrt(6 L + 1) is 7e-3 for 3 layers; softmax and small norms amplify by a few.
 * A wrong window, rotary base, scale or order of heads gives 0.1 to 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "figures.h"
#include "model/tiny_model.h"
#include "runtime/support_rig.h"

/* ---- the reference ---- */

typedef struct reference {
  const tiny_model *m;
  const gguf *file;
  uint32_t n;
  double *x, *q, *k, *v, *a, *g, *u, *y; /* [n][...] */
} reference;

static double *decoded(const gguf *file, int layer, const char *name) {
  char full[64];
  if (layer < 0)
    snprintf(full, sizeof full, "%s.weight", name);
  else
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
  const gguf_tensor *t = gguf_tensor_find(file, full);
  if (!t) abort();
  size_t n = (size_t)(t->dims[0] * t->dims[1]);
  const quant_format *f = quant_find(t->type);
  float *single = malloc(n * sizeof *single);
  double *out = malloc(n * sizeof *out);
  f->decode(t->data, single, n / f->elements);
  for (size_t i = 0; i < n; i++) out[i] = (double)single[i];
  free(single);
  return out;
}

/* out[rows][n] = in[rows][k] * w[n][k] */
static void product(const reference *r, int layer, const char *name, const double *in, uint32_t k,
                    double *out, uint32_t n) {
  double *w = decoded(r->file, layer, name);
  for (uint32_t row = 0; row < r->n; row++)
    for (uint32_t j = 0; j < n; j++) {
      double sum = 0;
      for (uint32_t i = 0; i < k; i++) sum += in[(size_t)row * k + i] * w[(size_t)j * k + i];
      out[(size_t)row * n + j] = sum;
    }
  free(w);
}

/* RMS norm of `vectors` vectors of n. */
static void normed(const reference *r, int layer, const char *name, const double *in,
                   size_t vectors, uint32_t n, double *out) {
  double *w = decoded(r->file, layer, name);
  for (size_t j = 0; j < vectors; j++) {
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += in[j * n + i] * in[j * n + i];
    double scale = 1 / sqrt(squares / n + (double)1e-5f);
    for (uint32_t i = 0; i < n; i++) out[j * n + i] = in[j * n + i] * scale * w[i];
  }
  free(w);
}

static void rotate(const reference *r, double *x, uint32_t heads, double base) {
  const tiny_model *m = r->m;
  uint32_t hd = m->head_dim;
  double *factors = m->rope_factors ? decoded(r->file, -1, "rope_freqs") : NULL;
  for (uint32_t pos = 0; pos < r->n; pos++)
    for (uint32_t h = 0; h < heads; h++)
      for (uint32_t i = 0; i < hd / 2; i++) {
        double angle = pos * pow(base, -2.0 * i / hd) / (factors ? factors[i] : 1);
        double *head = x + ((size_t)pos * heads + h) * hd;
        double *a = head + (m->gemma3 ? i : 2 * i),
               *b = head + (m->gemma3 ? i + hd / 2 : 2 * i + 1);
        double re = *a * cos(angle) - *b * sin(angle), im = *a * sin(angle) + *b * cos(angle);
        *a = re;
        *b = im;
      }
  free(factors);
}

static void round_to_half(double *x, size_t n) {
  for (size_t i = 0; i < n; i++) x[i] = (double)quant_f16_to_f32(quant_f32_to_f16((float)x[i]));
}

static void attend(const reference *r, uint32_t window) {
  const tiny_model *m = r->m;
  uint32_t hd = m->head_dim, group = m->heads / m->kv_heads;
  double *p = malloc(r->n * sizeof *p);
  for (uint32_t row = 0; row < r->n; row++)
    for (uint32_t h = 0; h < m->heads; h++) {
      uint32_t first = window && row >= window ? row - window + 1 : 0;
      const double *q = r->q + ((size_t)row * m->heads + h) * hd;
      double max = -INFINITY, sum = 0, *out = r->a + ((size_t)row * m->heads + h) * hd;
      for (uint32_t t = first; t <= row; t++) {
        const double *k = r->k + ((size_t)t * m->kv_heads + h / group) * hd;
        p[t] = 0;
        for (uint32_t d = 0; d < hd; d++) p[t] += q[d] * k[d];
        p[t] /= sqrt(hd);
        if (p[t] > max) max = p[t];
      }
      for (uint32_t d = 0; d < hd; d++) out[d] = 0;
      for (uint32_t t = first; t <= row; t++) {
        const double *v = r->v + ((size_t)t * m->kv_heads + h / group) * hd;
        double e = exp(p[t] - max);
        sum += e;
        for (uint32_t d = 0; d < hd; d++) out[d] += e * v[d];
      }
      for (uint32_t d = 0; d < hd; d++) out[d] /= sum;
    }
  free(p);
}

static double activation(bool gemma3, double g) {
  if (!gemma3) return g / (1 + exp(-g));
  return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}

static void add_output(const reference *r, int layer, const char *post_norm) {
  uint32_t width = r->m->width;
  if (r->m->gemma3) normed(r, layer, post_norm, r->y, r->n, width, r->y);
  for (size_t i = 0; i < (size_t)r->n * width; i++) r->x[i] += r->y[i];
}

static void layer_forward(const reference *r, int l) {
  const tiny_model *m = r->m;
  uint32_t n = r->n, hd = m->head_dim;
  bool window = m->gemma3 && (uint32_t)l % m->pattern != m->pattern - 1;
  double base = (double)(window ? m->rope_local : m->rope_base);
  normed(r, l, "attn_norm", r->x, n, m->width, r->y);
  product(r, l, "attn_q", r->y, m->width, r->q, m->heads * hd);
  product(r, l, "attn_k", r->y, m->width, r->k, m->kv_heads * hd);
  product(r, l, "attn_v", r->y, m->width, r->v, m->kv_heads * hd);
  if (m->gemma3) {
    normed(r, l, "attn_q_norm", r->q, (size_t)n * m->heads, hd, r->q);
    normed(r, l, "attn_k_norm", r->k, (size_t)n * m->kv_heads, hd, r->k);
  }
  rotate(r, r->q, m->heads, base);
  rotate(r, r->k, m->kv_heads, base);
  round_to_half(r->k, (size_t)n * m->kv_heads * hd);
  round_to_half(r->v, (size_t)n * m->kv_heads * hd);
  attend(r, window ? m->window : 0);
  product(r, l, "attn_output", r->a, m->heads * hd, r->y, m->width);
  add_output(r, l, "post_attention_norm");
  normed(r, l, "ffn_norm", r->x, n, m->width, r->y);
  product(r, l, "ffn_gate", r->y, m->width, r->g, m->ff);
  product(r, l, "ffn_up", r->y, m->width, r->u, m->ff);
  for (size_t i = 0; i < (size_t)n * m->ff; i++) r->g[i] = activation(m->gemma3, r->g[i]) * r->u[i];
  product(r, l, "ffn_down", r->g, m->ff, r->y, m->width);
  add_output(r, l, "post_ffw_norm");
}

/* [n][vocab], malloc'ed */
static double *reference_logits(const tiny_model *m, const gguf *file, const int32_t *tokens,
                                uint32_t n) {
  uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  size_t sizes[8] = {m->width, q, kv, kv, q, m->ff, m->ff, m->width}, all = 0;
  for (int i = 0; i < 8; i++) all += sizes[i] * n;
  double *memory = malloc(all * sizeof *memory), *at = memory;
  reference r = {m, file, n, 0, 0, 0, 0, 0, 0, 0, 0};
  double **fields[8] = {&r.x, &r.q, &r.k, &r.v, &r.a, &r.g, &r.u, &r.y};
  for (int i = 0; i < 8; i++) {
    *fields[i] = at;
    at += sizes[i] * n;
  }
  double *table = decoded(file, -1, "token_embd");
  for (uint32_t row = 0; row < n; row++)
    for (uint32_t i = 0; i < m->width; i++)
      r.x[(size_t)row * m->width + i] =
          table[(size_t)tokens[row] * m->width + i] * (m->gemma3 ? sqrt(m->width) : 1);
  free(table);
  for (uint32_t l = 0; l < m->layers; l++) layer_forward(&r, (int)l);
  normed(&r, -1, "output_norm", r.x, n, m->width, r.y);
  double *logits = malloc((size_t)n * m->vocab * sizeof *logits);
  product(&r, -1, m->untied ? "output" : "token_embd", r.y, m->width, logits, m->vocab);
  free(memory);
  return logits;
}

/* ---- ours ---- */

enum { ROWS_MOST = 160, SPAN = 37, LENGTH = 100 };

static char folder[] = "/tmp/troika-forward-XXXXXX";
static char path[64];

static double row_error(const float *ours, const double *wanted, uint32_t n) {
  double difference = 0, size = 0;
  for (uint32_t i = 0; i < n; i++) {
    double d = (double)ours[i] - wanted[i];
    difference += d * d;
    size += wanted[i] * wanted[i];
  }
  double error = sqrt(difference / size);
  return isnan(error) ? INFINITY : error;
}

/* The worst of all rows: `length` tokens in spans of `span`, all of one arithmetic. */
static double measured(rig *r, const tiny_model *m, const int32_t *tokens, uint32_t length,
                       uint32_t span, device_arith arith, const double *wanted) {
  double worst = 0;
  for (uint32_t pos = 0; pos < length;) {
    uint32_t n = length - pos < span ? length - pos : span;
    rig_feed(r, 0, 0, pos, tokens + pos, n, arith, true);
    for (uint32_t i = 0; i < n; i++) {
      double e = row_error(rig_logits(r, 0) + (size_t)i * r->logits_stride,
                           wanted + (size_t)(pos + i) * m->vocab, m->vocab);
      if (!(e <= worst)) worst = e;
    }
    pos += n;
  }
  return worst;
}

static void check(const char *label, const tiny_model *m, uint32_t length, uint32_t span) {
  static const struct {
    const char *name;
    uint32_t activations;
    device_arith arith;
    double bound;
  } sets[] = {{"float, PROMPT", KERNEL_FLOAT, DEVICE_PROMPT, 1e-3},
              {"float, GEN", KERNEL_FLOAT, DEVICE_GEN, 1e-3},
              {"default, PROMPT", KERNEL_DEFAULT, DEVICE_PROMPT, 4e-2},
              {"default, GEN", KERNEL_DEFAULT, DEVICE_GEN, 2e-3}};
  int32_t *tokens = malloc(length * sizeof *tokens);
  uint64_t state = m->seed + 77;
  for (uint32_t i = 0; i < length; i++)
    tokens[i] = (int32_t)((tiny_random(&state) + 1) / 2 * m->vocab);
  tiny_write_file(m, NULL, path);
  double *wanted = NULL;
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    rig *r = rig_open((rig_options){.model = path,
                                    .threads = 2,
                                    .activations = sets[i].activations,
                                    .slots = 1,
                                    .slot_rows = span,
                                    .sequences = 1,
                                    .context = length});
    if (!wanted) wanted = reference_logits(m, r->file, tokens, length);
    char name[160];
    snprintf(name, sizeof name, "%s, %s", label, sets[i].name);
    figure(name, "<=", sets[i].bound, measured(r, m, tokens, length, span, sets[i].arith, wanted));
    rig_close(r);
  }
  free(wanted);
  free(tokens);
  unlink(path);
}

static void every_type(void) {
  size_t n;
  const quant_format *formats = quant_list(&n);
  for (size_t i = 0; i < n; i++)
    for (int gemma3 = 0; gemma3 < 2; gemma3++) {
      tiny_model m = gemma3 ? tiny_gemma3() : tiny_llama();
      char label[64];
      m.type = formats[i].type;
      m.seed = 10 * i + (uint64_t)gemma3;
      m.untied = i & 1;
      if (formats[i].elements > 32) { /* widths that are multiples of 256 */
        m.width = m.ff = 256;
        m.head_dim = 64;
      }
      snprintf(label, sizeof label, "%s %s", gemma3 ? "gemma3" : "llama", formats[i].name);
      check(label, &m, LENGTH, SPAN);
    }
}

static void every_shape(void) {
  static const struct {
    const char *label;
    bool gemma3, untied, factors;
    uint32_t heads, kv_heads, head_dim, width, ff, vocab, window, pattern, layers;
  } shapes[] = {{"llama 6/3 heads of 32", 0, 1, 0, 6, 3, 32, 96, 160, 77, 0, 0, 2},
                {"llama 3/1 heads of 64, rope factors", 0, 0, 1, 3, 1, 64, 192, 96, 17, 0, 0, 3},
                {"llama 2/2 heads of 256", 0, 1, 0, 2, 2, 256, 64, 64, 33, 0, 0, 2},
                {"llama 16/1 heads of 32", 0, 0, 0, 16, 1, 32, 128, 64, 100, 0, 0, 1},
                {"llama 8/4 heads of 128", 0, 0, 0, 8, 4, 128, 160, 224, 300, 0, 0, 2},
                {"gemma3 4/1 heads of 256, window 33", 1, 0, 0, 4, 1, 256, 160, 320, 263, 33, 2, 4},
                {"gemma3 4/2 heads of 96, window 1", 1, 1, 0, 4, 2, 96, 64, 96, 31, 1, 3, 3},
                {"gemma3 2/1 heads of 64, window 64", 1, 0, 0, 2, 1, 64, 96, 128, 16, 64, 6, 3},
                {"gemma3 all layers see all", 1, 0, 0, 2, 2, 32, 64, 64, 15, 8, 1, 2}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    tiny_model m = shapes[i].gemma3 ? tiny_gemma3() : tiny_llama();
    m.heads = shapes[i].heads;
    m.kv_heads = shapes[i].kv_heads;
    m.head_dim = shapes[i].head_dim;
    m.width = shapes[i].width;
    m.ff = shapes[i].ff;
    m.vocab = shapes[i].vocab;
    m.untied = shapes[i].untied;
    m.rope_factors = shapes[i].factors;
    m.layers = shapes[i].layers;
    m.window = shapes[i].window;
    m.pattern = shapes[i].pattern;
    m.type = QUANT_Q4_1;
    m.seed = 1000 + i;
    check(shapes[i].label, &m, LENGTH, i % 2 ? SPAN : LENGTH);
  }
}

/* Past the bounds of a page, a split of 512 and a wave of two splits (slots of 128 rows or more
 * hold two, smaller ones eight). */
static void long_text(void) {
  tiny_model m = tiny_gemma3();
  m.heads = 2;
  m.kv_heads = 1;
  m.window = 600;
  m.context = 4096;
  check("gemma3, 1300 tokens in spans of 150, window 600", &m, 1300, 150);
  m = tiny_llama();
  m.heads = 2;
  m.kv_heads = 1;
  m.context = 8192;
  check("llama, 1300 tokens in spans of 64", &m, 1300, 64);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/tiny.gguf", folder);
  every_type();
  every_shape();
  long_text();
  rmdir(folder);
  return figures_end();
}
