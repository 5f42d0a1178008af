/* SPDX-License-Identifier: Apache-2.0 */
/* Answers do not depend on the schedule: the logits of one sequence, bit for bit, alone and in
 * company, on one thread and two, in spans of any length, stopped and resumed after every panel, on
 * every instruction-set level. Where a sanitizer makes the real models slow, small ones with random
 * weights take their place.
 *
 * ctest: slow */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "figures.h"
#include "model/tiny_model.h"
#include "runtime/support_rig.h"

enum { STEPS = 6, OTHERS_MAX = 8, ROWS = 160, CONTEXT = 1024 };

typedef struct variant {
  const char *name;
  uint32_t threads;
  const char *levels; /* NULL: all */
  uint32_t stop_panels, span, others, activations;
  bool other_prefill; /* another prompt shares each launch */
} variant;

typedef struct answer { /* a hash of each step's logits, and the tokens chosen */
  uint64_t hash[STEPS + 1];
  int32_t token[STEPS + 1];
  uint32_t stops;
} answer;

static uint64_t hash_of(const float *x, uint32_t n) {
  uint64_t h = 1469598103934665603u;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    h = (h ^ bits) * 1099511628211u;
  }
  return h;
}

static int32_t best_of(const float *x, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (x[i] > x[best]) best = i;
  return (int32_t)best;
}

static int32_t prompt_token(uint32_t sequence, uint32_t i) { /* any text will do */
  return (int32_t)((i * 2654435761u + sequence * 40503u) >> 7) % 20000 + 300;
}

static int32_t token_of(const rig *r, uint32_t sequence, uint32_t i) { /* small models too */
  return prompt_token(sequence, i) % (int32_t)r->g->vocab;
}

static void note(answer *a, uint32_t step, const rig *r, const float *logits) {
  a->hash[step] = hash_of(logits, r->g->vocab);
  a->token[step] = best_of(logits, r->g->vocab);
}

/* Sequence 0 is the one that is watched; 1..others decode beside it; sequence others + 1 is a
 * prompt under way. Slot 0: prompts of the watched one, slot 1: decode rows, slot 2: the other
 * prompt. */
static answer run(const char *model, const variant *v, uint32_t prompt_n) {
  answer a = {0};
  rig *r = rig_open((rig_options){.model = model,
                                  .threads = v->threads,
                                  .levels = v->levels,
                                  .stop_panels = v->stop_panels,
                                  .activations = v->activations,
                                  .slots = 3,
                                  .slot_rows = ROWS,
                                  .sequences = OTHERS_MAX + 2,
                                  .context = CONTEXT});
  int32_t tokens[ROWS], other_token[OTHERS_MAX + 1];
  uint32_t other_pos[OTHERS_MAX + 1], extra_pos = 0;
  for (uint32_t s = 1; s <= v->others; s++) { /* the others get prompts of other lengths first */
    uint32_t n = 5 + 9 * s;
    for (uint32_t i = 0; i < n; i++) tokens[i] = token_of(r, s, i);
    rig_feed(r, 0, s, 0, tokens, n, DEVICE_PROMPT, false);
    other_token[s] = best_of(rig_logits(r, 0), r->g->vocab);
    other_pos[s] = n;
  }
  for (uint32_t pos = 0; pos < prompt_n;) {
    uint32_t n = prompt_n - pos < v->span ? prompt_n - pos : v->span;
    for (uint32_t i = 0; i < n; i++) tokens[i] = token_of(r, 0, pos + i);
    rig_feed(r, 0, 0, pos, tokens, n, DEVICE_PROMPT, false);
    pos += n;
  }
  note(&a, 0, r, rig_logits(r, 0));
  for (uint32_t step = 1; step <= STEPS; step++) {
    device_row *rows = rig_rows(r, 1), *extra = rig_rows(r, 2);
    uint32_t place = (step * 5) % (v->others + 1), n = 0, other = 1; /* its row moves about */
    for (; n <= v->others; n++) {
      bool watched = n == place;
      uint32_t s = watched ? 0 : other++;
      rows[n] = (device_row){.seq = s,
                             .arith = DEVICE_GEN,
                             .want = DEVICE_WANT_LOGITS,
                             .pos = watched ? prompt_n + step - 1 : other_pos[s]++,
                             .token = watched ? a.token[step - 1] : other_token[s]};
    }
    uint32_t slots[2] = {1, 2}, rows_n[2] = {n, 17};
    for (uint32_t i = 0; i < rows_n[1]; i++, extra_pos++)
      extra[i] = (device_row){.seq = OTHERS_MAX + 1,
                              .pos = extra_pos,
                              .arith = DEVICE_PROMPT,
                              .token = token_of(r, 99, extra_pos)};
    rig_run(r, slots, rows_n, v->other_prefill ? 2 : 1);
    note(&a, step, r, rig_logits(r, 1) + (size_t)place * r->logits_stride);
  }
  a.stops = r->stops;
  rig_close(r);
  return a;
}

/* Steps whose logits differ in any bit; a run that was to be stopped and was not counts as
 * different too. */
static void compare(const char *model, const variant *v, const answer *a, const answer *base) {
  char name[160];
  const char *slash = strrchr(model, '/');
  int differ = v->stop_panels && a->stops <= 20;
  for (uint32_t i = 0; i <= STEPS; i++) differ += a->hash[i] != base->hash[i];
  int n = snprintf(name, sizeof name, "%.7s, %s: steps that differ", slash ? slash + 1 : model,
                   v->name);
  if (v->stop_panels) snprintf(name + n, sizeof name - (size_t)n, " after %u stops", a->stops);
  figure(name, "==", 0, differ);
}

static void check(const char *model, uint32_t prompt_n, bool all) {
  const uint32_t cpu = kernel_cpu_levels();
  const variant base = {"alone", 2, NULL, 0, ROWS, 0, KERNEL_DEFAULT, false};
  const variant list[] = {
      {"one thread", 1, NULL, 0, ROWS, 0, KERNEL_DEFAULT, false},
      {"three threads on any cores", 3, NULL, 0, ROWS, 0, KERNEL_DEFAULT, false},
      {"spans of 7", 2, NULL, 0, 7, 0, KERNEL_DEFAULT, false},
      {"spans of 64, beside a prompt", 2, NULL, 0, 64, 0, KERNEL_DEFAULT, true},
      {"with 1 other", 2, NULL, 0, ROWS, 1, KERNEL_DEFAULT, false},
      {"with 3 others and a prompt", 2, NULL, 0, ROWS, 3, KERNEL_DEFAULT, true},
      {"with 8 others and a prompt, 1 thread", 1, NULL, 0, ROWS, 8, KERNEL_DEFAULT, true},
      {"stopped after every 97th panel, with 3 others and a prompt", 2, NULL, 97, ROWS, 3,
       KERNEL_DEFAULT, true}};
  answer alone = run(model, &base, prompt_n);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    answer a = run(model, &list[i], prompt_n);
    compare(model, &list[i], &a, &alone);
  }
  if (!all) return;
  /* Short from here on: a stop after every panel, and the scalar level. */
  const uint32_t few = 12;
  answer shorter = run(model, &base, few);
  const variant panels = {
      "stopped and resumed after every panel", 2, NULL, 1, ROWS, 0, KERNEL_DEFAULT, false};
  const variant panels_in_company = {"stopped after every panel, with 3 others and a prompt",
                                     2,
                                     NULL,
                                     1,
                                     ROWS,
                                     3,
                                     KERNEL_DEFAULT,
                                     true};
  answer a = run(model, &panels, few);
  compare(model, &panels, &a, &shorter);
  a = run(model, &panels_in_company, few);
  compare(model, &panels_in_company, &a, &shorter);
  /* Scalar, then each level with all below it. */
  static const char *const levels[] = {
      "scalar", "avx2", "avx2,avxvnni", "avx2,avxvnni,avx512", "avx2,avxvnni,avx512,avx512vnni",
      "all"};
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    uint32_t mask = 0;
    if (!kernel_mask_parse(levels[i], &mask)) abort();
    if (i + 1 < sizeof levels / sizeof *levels && (mask & ~cpu)) {
      printf("not on this processor: %s\n", levels[i]);
      continue;
    }
    const variant level = {levels[i], 2, levels[i], 0, ROWS, 0, KERNEL_DEFAULT, false};
    a = run(model, &level, few);
    compare(model, &level, &a, &shorter);
  }
  for (uint32_t set = KERNEL_FLOAT; set <= KERNEL_INT8; set++) {
    variant v = base;
    v.activations = set;
    answer set_alone = run(model, &v, few);
    v.name = set == KERNEL_FLOAT ? "float set, 3 others, a prompt, spans of 5"
                                 : "int8 set, 3 others, a prompt, spans of 5";
    v.others = 3;
    v.other_prefill = true;
    v.span = 5;
    a = run(model, &v, few);
    compare(model, &v, &a, &set_alone);
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void check_small(void) {
  char folder[] = "/tmp/troika-bits-XXXXXX", path[64];
  if (!mkdtemp(folder)) abort();
  for (int gemma3 = 0; gemma3 < 2; gemma3++) {
    tiny_model m = gemma3 ? tiny_gemma3() : tiny_llama();
    m.layers = 6;
    m.context = CONTEXT;
    snprintf(path, sizeof path, "%s/%s", folder, gemma3 ? "gemma3" : "llama");
    tiny_write_file(&m, NULL, path);
    check(path, 140, true);
    unlink(path);
  }
  rmdir(folder);
}
#endif

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  check_small();
#else
  check("SmolLM2-135M-Instruct.Q4_1.gguf", 140, true);
  check("gemma-3-270m-q4_k_m.gguf", 600, false); /* past the window of 512 */
#endif
  return figures_end();
}
