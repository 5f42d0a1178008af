/* SPDX-License-Identifier: Apache-2.0 */
/* Our logits against transformers' (float32, same dequantised weights), read from
 * tests/golden/oracle: top-1 agreement, KL divergence, largest difference; for prompt rows and
 * generated rows of the shipped kernels, and for the float set. Layout of the files:
 * tools/oracle/golden_file.py.
 *
 * ctest: slow */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "figures.h"
#include "runtime/support_rig.h"

typedef struct golden_head {
  char magic[8];
  uint32_t version, head_bytes;
  uint8_t sha256[32];
  uint64_t model_bytes;
  char architecture[16];
  uint32_t vocab, counts[3];
  uint64_t offsets[6];
  uint8_t zero[8];
  char command[128], made_with[176];
} golden_head;
_Static_assert(sizeof(golden_head) == 448, "as golden_file.py lays it out");
typedef struct golden_chunk {
  char name[24];
  uint32_t first, n;
} golden_chunk;

/* Under a sanitizer, which takes minutes: the second chunk of one model. Release does it all. */
#if defined(__SANITIZE_ADDRESS__)
enum { FIRST_CHUNK = 1, LAST_CHUNK = 2 };
#else
enum { FIRST_CHUNK = 0, LAST_CHUNK = 1000 };
#endif

enum { SPAN = 128, BEST = 64 };

typedef struct golden {
  os_map map;
  const golden_head *head;
  const golden_chunk *chunks;
  const uint32_t *tokens, *ids;
  const double *log_sum, *log_sum_rest;
  const float *logits;
} golden;

static golden golden_open(const char *name) {
  char path[4096];
  golden g;
  troika_error err;
  snprintf(path, sizeof path, "%s/golden/oracle/%s", TEST_DATA, name);
  if (os_map_open(path, &g.map, &err)) {
    fprintf(stderr, "%s\nmake it with: UPDATE=1 make oracle\n", err.text);
    exit(1);
  }
  const uint8_t *p = g.map.data;
  g.head = (const void *)p;
  if (memcmp(g.head->magic, "TRKLOGIT", 8) || g.head->version != 1 || g.head->counts[2] != BEST) {
    fprintf(stderr, "%s is no golden logits file of version 1\n", path);
    exit(1);
  }
  g.chunks = (const void *)(p + g.head->offsets[0]);
  g.tokens = (const void *)(p + g.head->offsets[1]);
  g.log_sum = (const void *)(p + g.head->offsets[2]);
  g.log_sum_rest = (const void *)(p + g.head->offsets[3]);
  g.ids = (const void *)(p + g.head->offsets[4]);
  g.logits = (const void *)(p + g.head->offsets[5]);
  return g;
}

typedef struct figures {
  double kl, kl_max, worst;
  uint32_t n, top1, clear, clear_top1;
} figures;

/* One position: see golden_file.py, "Divergence of ours from the reference". */
static void compare(figures *f, const golden *g, uint32_t at, const float *ours, uint32_t vocab) {
  const uint32_t *ids = g->ids + (size_t)at * BEST;
  const float *best = g->logits + (size_t)at * BEST;
  double max = ours[0], rest = 0, sum = 0, kl = 0;
  uint32_t argmax = 0;
  for (uint32_t i = 1; i < vocab; i++)
    if ((double)ours[i] > max) max = (double)ours[argmax = i];
  static uint8_t *is_best;
  if (!is_best) is_best = calloc(1 << 20, 1);
  for (int i = 0; i < BEST; i++) is_best[ids[i]] = 1;
  for (uint32_t i = 0; i < vocab; i++) {
    double e = exp((double)ours[i] - max);
    sum += e;
    if (!is_best[i]) rest += e;
  }
  for (int i = 0; i < BEST; i++) is_best[ids[i]] = 0;
  double log_sum = max + log(sum);
  for (int i = 0; i < BEST; i++) {
    double log_p = (double)best[i] - g->log_sum[at], log_q = (double)ours[ids[i]] - log_sum;
    double difference = fabs((double)ours[ids[i]] - (double)best[i]);
    kl += exp(log_p) * (log_p - log_q);
    if (!(difference <= f->worst)) f->worst = difference;
  }
  double log_p = g->log_sum_rest[at] - g->log_sum[at];
  kl += exp(log_p) * (log_p - log(rest / sum));
  f->kl += kl;
  if (!(kl <= f->kl_max)) f->kl_max = kl;
  f->n++;
  f->top1 += argmax == ids[0];
  if ((double)best[0] - (double)best[1] > 0.15) {
    f->clear++;
    f->clear_top1 += argmax == ids[0];
  }
}

static figures measure(rig *r, const golden *g, device_arith arith) {
  figures f = {0};
  for (uint32_t c = FIRST_CHUNK; c < g->head->counts[0] && c < LAST_CHUNK; c++) {
    const golden_chunk *chunk = &g->chunks[c];
    for (uint32_t pos = 0; pos < chunk->n; pos += SPAN) {
      uint32_t n = chunk->n - pos < SPAN ? chunk->n - pos : SPAN, at = chunk->first + pos;
      rig_feed(r, 0, 0, pos, (const int32_t *)g->tokens + at, n, arith, true);
      for (uint32_t i = 0; i < n; i++)
        compare(&f, g, at + i, rig_logits(r, 0) + (size_t)i * r->logits_stride, r->g->vocab);
    }
  }
  return f;
}

static void judge(const char *model, const char *set, const char *rows, const figures *f, double kl,
                  double worst) {
  char name[160];
  snprintf(name, sizeof name, "%s, %s, %s: mean KL64, nats", model, set, rows);
  figure(name, "<=", kl, f->kl / f->n);
  snprintf(name, sizeof name, "%s, %s, %s: top-1 equal, %%", model, set, rows);
  figure(name, ">=", 98.5, 100.0 * f->top1 / f->n);
  snprintf(name, sizeof name, "%s, %s, %s: top-1 equal where clear, %%", model, set, rows);
  figure(name, ">=", 99.9, 100.0 * f->clear_top1 / f->clear);
  if (worst <= 0) return;
  snprintf(name, sizeof name, "%s, %s, %s: largest logit difference", model, set, rows);
  figure(name, "<=", worst, f->worst);
}

static void check_model(const char *label, const char *file, const char *golden_name) {
  golden g = golden_open(golden_name);
  char name[160];
  rig_options o = {.model = file,
                   .threads = os_cpus(""),
                   .slots = 1,
                   .slot_rows = SPAN,
                   .sequences = 1,
                   .context = 2048};
  printf("%s: %u positions, reference %.60s\n", label, g.head->counts[1], g.head->made_with);
  /* KL64 is 0.86 of the whole KL (README beside the golden files): 0.002 is 0.0017, 1e-5 is 8.5e-6.
   */
  rig *r = rig_open(o);
  figures f = measure(r, &g, DEVICE_PROMPT);
  judge(label, "default", "PROMPT", &f, 0.0017, 0);
  f = measure(r, &g, DEVICE_GEN);
  judge(label, "default", "GEN", &f, 0.0017, 0);
  rig_close(r);
  o.activations = KERNEL_FLOAT;
  r = rig_open(o);
  f = measure(r, &g, DEVICE_PROMPT);
  /* Keys and values are stored as F16, which alone moves single logits by some hundredths; a wrong
   * window, rotary base or scale moves them more. */
  judge(label, "float", "PROMPT", &f, 8.5e-6, 0.06);
  rig_close(r);
  o.activations = KERNEL_INT8; /* outside the promise of 0.002; its cost is printed all the same */
  r = rig_open(o);
  f = measure(r, &g, DEVICE_PROMPT);
  snprintf(name, sizeof name, "%s, int8, PROMPT: mean KL64, nats", label);
  figure(name, "<=", 0.01, f.kl / f.n);
  rig_close(r);
  os_map_close(&g.map);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  check_model("SmolLM2-135M", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m.logits");
#if !defined(__SANITIZE_ADDRESS__)
  check_model("Gemma-3-270M", "gemma-3-270m-q4_k_m.gguf", "gemma-3-270m.logits");
#endif
  return figures_end();
}
