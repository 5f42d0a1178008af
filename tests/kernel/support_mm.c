/* support_mm.c - checks of pack and of the matrix kernels.
 *
 * One case: random weights as GGUF bytes, packed; random rows; for each level its own act and mm,
 * on a twin of the reference's output. Shapes reach every tile: rows 1..40, K odd and even
 * multiples of 32, N beside multiples of 16, panel ranges that begin anywhere.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "support.h"

static const uint32_t types[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0, QUANT_Q4_1,
                                 QUANT_Q4_K, QUANT_Q5_0, QUANT_Q8_0, QUANT_Q6_K};
enum { TYPES = sizeof types / sizeof types[0] };
static const char *const arith_text[] = {"PROMPT", "GEN"};
static const char *const set_text[] = {"default", "float", "int8"};

typedef struct packed {
  kernel_weight weight;
  uint8_t *rows; /* GGUF bytes */
  size_t row_bytes;
  guard_buffer data;
} packed;

static packed packed_open(check_run *run, input_kind kind, uint32_t type, uint32_t n, uint32_t k) {
  const quant_format *format = quant_find(type);
  packed p = {.row_bytes = (size_t)k / format->elements * format->bytes};
  size_t bytes = 0;
  p.rows = malloc(p.row_bytes * n);
  if (p.rows == NULL || kernel_pack_layout(type, n, k, &p.weight, &bytes) != TROIKA_OK) exit(2);
  random_weights(run, kind, type, n, k, p.rows);
  p.data = guard_open(run, bytes);
  /* In two parts, the second first: panels are independent. */
  const uint32_t panels = (n + 15) / 16, cut = random_below(run, panels + 1);
  kernel_pack_panels(&p.weight, type, p.rows, cut, panels - cut, p.data.data);
  kernel_pack_panels(&p.weight, type, p.rows, 0, cut, p.data.data);
  p.weight.data = p.data.data;
  guard_read_only(&p.data);
  return p;
}

static void packed_close(check_run *run, packed *p) {
  guard_close(run, &p->data, "packed weight");
  free(p->rows);
}

static uint32_t random_k(check_run *run, uint32_t type, uint32_t most) {
  const uint32_t step = type == QUANT_Q4_K || type == QUANT_Q6_K ? 256 : 32;
  static const uint32_t usual[] = {32, 64, 96, 256, 288, 512, 576, 768, 1056, 2048, 4096};
  uint32_t k = random_below(run, 3) ? usual[random_below(run, 11)] : 32 + random_below(run, 2000);
  if (k > most) k = most;
  k = (k + step - 1) / step * step;
  return k;
}

void check_mask(check_run *run, double seconds) {
  (void)seconds;
  static const struct {
    const char *text;
    bool ok;
    uint32_t mask;
  } cases[] = {{"all", true, KERNEL_MASK_ALL},
               {"scalar", true, 0},
               {"avx2", true, 1u << KERNEL_BIT_AVX2},
               {"avx2,avx512", true, 1u << KERNEL_BIT_AVX2 | 1u << KERNEL_BIT_AVX512},
               {"avxvnni", true, 1u << KERNEL_BIT_AVX2 | 1u << KERNEL_BIT_AVXVNNI},
               {"avx512vnni,scalar", true, /* with the levels that it stands on */
                1u << KERNEL_BIT_AVX2 | 1u << KERNEL_BIT_AVX512 | 1u << KERNEL_BIT_AVX512VNNI},
               {"avx512bf16", true, KERNEL_MASK_ALL & ~(1u << KERNEL_BIT_AVXVNNI)},
               {"", false, 0},
               {"avx2,", false, 0},
               {",avx2", false, 0},
               {"avx", false, 0},
               {"AVX2", false, 0},
               {"avx2 ", false, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint32_t mask = 12345;
    const bool ok = kernel_mask_parse(cases[i].text, &mask);
    check_report(run, ok == cases[i].ok && mask == (ok ? cases[i].mask : 12345), "mask", "\"%s\"",
                 cases[i].text);
  }
  /* Any mask gives a whole table whose levels the processor has and which names the highest. */
  for (uint32_t mask = 0; mask <= KERNEL_MASK_ALL; mask++) {
    for (int set = 0; set < KERNEL_ACTIVATIONS_COUNT; set++) {
      kernel_table t;
      char name[64];
      kernel_table_init(&t, (kernel_activations)set, mask);
      snprintf(name, sizeof name, "%s %s", set_text[set], level_text(t.levels));
      bool whole = t.attn[0] && t.attn[1] && t.attn_merge && t.attn_finish && t.rms_norm &&
                   t.rope && t.add && t.silu_mul && t.gelu_mul && t.kv_write && t.vec_max &&
                   t.vec_sum_exp;
      for (int a = 0; a < 2; a++)
        for (int p = 0; p < PACK_COUNT; p++) whole = whole && t.act[a] && t.mm[a][p];
      check_report(
          run, whole && strcmp(name, t.name) == 0 && !(t.levels & ~(mask & kernel_cpu_levels())),
          "mask", "table of mask %#x, \"%s\"", mask, t.name);
    }
  }
}

void check_pack(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  kernel_weight layout;
  size_t bytes;
  check_report(run, kernel_pack_layout(QUANT_F32, 1, 33, &layout, &bytes) == TROIKA_UNSUPPORTED,
               "pack", "k 33 accepted");
  check_report(run, kernel_pack_layout(QUANT_Q4_K, 1, 288, &layout, &bytes) == TROIKA_UNSUPPORTED,
               "pack", "Q4_K k 288 accepted");
  check_report(run, kernel_pack_layout(9999, 1, 256, &layout, &bytes) == TROIKA_UNSUPPORTED, "pack",
               "type 9999 accepted");
  check_report(run, kernel_pack_layout(QUANT_F32, 0, 32, &layout, &bytes) == TROIKA_UNSUPPORTED,
               "pack", "n 0 accepted");
  for (unsigned round = 0; round < 6 || bench_now() < end; round++) {
    const uint32_t type = types[round % TYPES];
    const uint32_t n = 1 + random_below(run, 50), k = random_k(run, type, 1100);
    packed p = packed_open(run, (input_kind)(round % 3), type, n, k);
    const quant_format *format = quant_find(type);
    float *want = malloc(k * sizeof(float)), *got = malloc(k * sizeof(float));
    if (want == NULL || got == NULL) exit(2);
    size_t at = k;
    uint32_t row = 0;
    for (; row < n && at == k; row++) {
      format->decode(p.rows + row * p.row_bytes, want, k / format->elements);
      kernel_weight_row(&p.weight, row, got);
      at = floats_differ(want, got, k);
    }
    check_report(run, at == k, "pack", "%s n %u k %u row %u value %zu: %a, decoder says %a",
                 format->name, n, k, row - 1, at, (double)got[at % k], (double)want[at % k]);
    free(want);
    free(got);
    packed_close(run, &p);
  }
}

typedef struct mm_case {
  kernel_activations set;
  kernel_arith arith;
  uint32_t type, n, k, rows, panel0, panels;
  const float *x; /* rows of k */
  const kernel_weight *weight;
  size_t y_stride, y_floats;
} mm_case;

/* act and mm of one level into y. Every buffer is guarded. */
static void mm_run(check_run *run, const mm_case *c, uint32_t mask, float *y) {
  kernel_table t;
  kernel_table_init(&t, c->set, mask);
  const size_t stride = kernel_act_bytes(c->k) + 64 * (size_t)(c->rows % 3);
  guard_buffer x = guard_open(run, stride * (c->rows - 1) + kernel_act_bytes(c->k));
  guard_buffer scratch = guard_open(run, kernel_scratch_bytes(c->k));
  guard_buffer row = guard_open(run, c->k * sizeof(float));
  for (uint32_t r = 0; r < c->rows; r++) {
    if (t.act_float[c->arith][c->weight->pack]) {
      memcpy(x.data + r * stride, c->x + (size_t)r * c->k, c->k * sizeof(float));
      continue;
    }
    memcpy(row.data, c->x + (size_t)r * c->k, c->k * sizeof(float));
    t.act[c->arith]((const float *)(const void *)row.data, c->k, x.data + r * stride);
  }
  guard_read_only(&x);
  const kernel_mm args = {.weight = c->weight,
                          .panel0 = c->panel0,
                          .panels = c->panels,
                          .x = x.data,
                          .x_stride = stride,
                          .rows = c->rows,
                          .y = y,
                          .y_stride = c->y_stride,
                          .scratch = scratch.data};
  t.mm[c->arith][c->weight->pack](&args);
  guard_close(run, &x, "mm x");
  guard_close(run, &scratch, "mm scratch");
  guard_close(run, &row, "act x");
}

static void mm_check_case(check_run *run, const mm_case *c, input_kind kind) {
  guard_buffer want = guard_open(run, c->y_floats * sizeof(float));
  float *want_y = (float *)(void *)want.data;
  for (size_t i = 0; i < c->y_floats; i++) want_y[i] = 12345.0f; /* what no kernel may touch */
  mm_run(run, c, run->levels[0], want_y);
  for (unsigned level = 1; level < run->level_count; level++) {
    guard_buffer got = guard_open(run, c->y_floats * sizeof(float));
    float *y = (float *)(void *)got.data;
    for (size_t i = 0; i < c->y_floats; i++) y[i] = 12345.0f;
    mm_run(run, c, run->levels[level], y);
    const size_t at = floats_differ(want_y, y, c->y_floats), i = at % c->y_floats;
    check_report(run, at == c->y_floats, "mm",
                 "%s %s %s %s: n %u k %u rows %u panels %u+%u input %d: y[%zu][%zu] = %a, want %a",
                 level_text(run->levels[level]), set_text[c->set], arith_text[c->arith],
                 quant_find(c->type)->name, c->n, c->k, c->rows, c->panel0, c->panels, (int)kind,
                 i / c->y_stride, i % c->y_stride, (double)y[i], (double)want_y[i]);
    guard_close(run, &got, "mm y");
  }
  guard_close(run, &want, "mm y of reference");
}

void check_mm(check_run *run, double seconds) {
  const double end = bench_now() + seconds * 2; /* most of the code is here */
  for (unsigned round = 0; round < TYPES * 6 * 2 || bench_now() < end; round++) {
    const input_kind kind = (input_kind)(round / (TYPES * 6) % 3);
    mm_case c = {.type = types[round % TYPES],
                 .set = (kernel_activations)(round / TYPES % 3),
                 .arith = (kernel_arith)(round / TYPES / 3 % 2)};
    c.rows = random_below(run, 3) ? 1 + random_below(run, 12) : 1 + random_below(run, 40);
    c.k = random_k(run, c.type, c.rows > 12 ? 600 : 4096);
    const uint32_t most = 1 + 800000 / (c.rows * c.k);
    c.n = 1 + random_below(run, most < 80 ? most : 80);
    packed p = packed_open(run, kind, c.type, c.n, c.k);
    c.weight = &p.weight;
    const uint32_t panels = (c.n + 15) / 16;
    c.panel0 = random_below(run, panels);
    c.panels = 1 + random_below(run, panels - c.panel0);
    c.y_stride = 16 * (size_t)(panels + random_below(run, 3));
    c.y_floats = c.y_stride * (c.rows - 1) + 16 * (size_t)panels;
    float *x = malloc((size_t)c.rows * c.k * sizeof(float));
    if (x == NULL) exit(2);
    random_floats(run, kind, x, (size_t)c.rows * c.k);
    c.x = x;
    mm_check_case(run, &c, kind);
    free(x);
    packed_close(run, &p);
  }
}

/* What separates the scalar reference from exact arithmetic, at most, for one block of 32. With
 * magnitudes m = |x| |w|: FLOAT rounds once per fma; PROMPT also rounds both operands to 8 bits;
 * GEN and INT8 move each x by half a step of its block. 2^-20 stands for the roundings of fp32,
 * with room. */
static double block_bound(bool values, bool prompt, double top, const float *x, const float *w) {
  double sum = 0, amax = 0, weights = 0;
  for (int i = 0; i < 32; i++) {
    sum += fabs((double)x[i] * (double)w[i]);
    weights += fabs((double)w[i]);
    amax = fmax(amax, fabs((double)x[i]));
  }
  double bound = sum * 0x1p-20;
  if (prompt) bound += sum * (0x1p-8 * 1.01);
  if (!values && !prompt) bound += 0.501 * amax / top * weights + 0x1p-20 * amax * weights;
  return bound;
}

void check_mm_oracle(check_run *run, double seconds) {
  const double end = bench_now() + seconds;
  for (unsigned round = 0; round < TYPES * 6 || bench_now() < end; round++) {
    mm_case c = {.type = types[round % TYPES],
                 .set = (kernel_activations)(round / TYPES % 3),
                 .arith = (kernel_arith)(round / TYPES / 3 % 2),
                 .rows = 2,
                 .n = 16,
                 .panels = 1};
    c.k = random_k(run, c.type, 1024);
    packed p = packed_open(run, INPUT_TAME, c.type, c.n, c.k);
    c.weight = &p.weight, c.y_stride = 16, c.y_floats = 32;
    float *x = malloc(2 * c.k * sizeof(float)), *w = malloc(c.k * sizeof(float)), y[32];
    if (x == NULL || w == NULL) exit(2);
    random_floats(run, INPUT_TAME, x, 2 * (size_t)c.k);
    c.x = x;
    mm_run(run, &c, 0, y);
    const bool prompt = c.set == KERNEL_DEFAULT && c.arith == KERNEL_PROMPT;
    const bool values = c.set == KERNEL_FLOAT || (p.weight.pack < PACK_U4 && !prompt);
    const double top = c.set == KERNEL_INT8 ? 127 : 32512;
    double worst = 0;
    for (uint32_t n = 0; n < 16; n++) {
      kernel_weight_row(&p.weight, n, w);
      for (uint32_t row = 0; row < 2; row++) {
        double exact = 0, bound = 0;
        for (uint32_t b = 0; b < c.k; b += 32) {
          for (uint32_t i = b; i < b + 32; i++) exact += (double)x[row * c.k + i] * (double)w[i];
          bound += block_bound(values, prompt, top, x + row * c.k + b, w + b);
        }
        worst = fmax(worst, fabs((double)y[row * 16 + n] - exact) / fmax(bound, 1e-30));
      }
    }
    check_report(run, worst <= 1, "mm_oracle", "%s %s %s k %u: error is %g of its bound",
                 set_text[c.set], arith_text[c.arith], quant_find(c.type)->name, c.k, worst);
    free(x);
    free(w);
    packed_close(run, &p);
  }
}
