/* support.c - see support.h. SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "quant/quant.h"

enum { CANARY = 0xa5, LOUD_MAX = 20 };

uint32_t random_u32(check_run *run) { /* splitmix64 */
  uint64_t z = run->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)((z ^ z >> 31) >> 32);
}

uint32_t random_below(check_run *run, uint32_t below) {
  return (uint32_t)((uint64_t)random_u32(run) * below >> 32);
}

float random_unit(check_run *run) {
  return (float)((int32_t)random_u32(run) >> 8) * 0x1p-23f;
}

float random_normal(check_run *run) {
  float sum = 0;
  for (int i = 0; i < 3; i++) sum += random_unit(run);
  return sum;
}

static float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* One block of 32 in one of the wild manners. */
static void wild_block(check_run *run, float *out, size_t n) {
  const uint32_t manner = random_below(run, 12);
  const float scale = ldexpf(1, (int)random_below(run, 60) - 30);
  for (size_t i = 0; i < n; i++) {
    switch (manner) {
      case 0:
        out[i] = 0;
        break;
      case 1:
        out[i] = -0.0f;
        break;
      case 2:
        out[i] = random_unit(run) * 1e30f;
        break;
      case 3:
        out[i] = random_unit(run) * 3e38f;
        break;
      case 4:
        out[i] = float_of_bits(random_u32(run) & 0x807fffffu);
        break; /* denormals */
      case 5:
        out[i] = random_unit(run) * 1e-37f;
        break;
      case 6:
        out[i] = random_unit(run) * 5e-34f;
        break; /* about where a scale would be denormal */
      case 7:
        out[i] = random_u32(run) & 1 ? scale : -scale;
        break;
      case 8:
        out[i] = i == n / 2 ? scale : random_unit(run) * scale * 1e-6f;
        break;
      case 9:
        out[i] = (float)((int32_t)random_below(run, 65025) - 32512) * 0.5f;
        break; /* ties */
      default:
        out[i] = random_normal(run) * scale;
    }
  }
}

void random_floats(check_run *run, input_kind kind, float *out, size_t n) {
  for (size_t i = 0; i < n; i += 32) {
    const size_t count = n - i < 32 ? n - i : 32;
    if (kind != INPUT_TAME && random_below(run, 3) == 0) {
      wild_block(run, out + i, count);
    } else {
      const float scale = kind == INPUT_TAME ? 1 : ldexpf(1, (int)random_below(run, 12) - 6);
      for (size_t j = 0; j < count; j++) out[i + j] = random_normal(run) * scale;
    }
    if (kind == INPUT_HOSTILE && random_below(run, 8) == 0) {
      /* Inf, or a NaN of which half have nothing in the bits that bf16 keeps. */
      const uint32_t sign = random_u32(run) & 0x80000000u;
      const uint32_t payload = random_u32(run) & (random_u32(run) & 1 ? 0x7fffffu : 0xffffu);
      const uint32_t bits = random_u32(run) & 1 ? 0x7f800000u : 0x7f800000u | payload;
      out[i + random_below(run, (uint32_t)count)] = float_of_bits(sign | bits);
    }
  }
}

static uint16_t random_f16(check_run *run, input_kind kind) {
  const uint32_t manner = kind == INPUT_TAME ? 99 : random_below(run, kind == INPUT_WILD ? 12 : 14);
  const uint16_t bits = (uint16_t)random_u32(run);
  switch (manner) {
    case 0:
      return 0;
    case 1:
      return 0x8000;
    case 2:
      return bits & 0x83ff; /* denormal */
    case 3:
      return (uint16_t)((bits & 0x83ff) | 0x7800); /* near 65504 */
    case 4:
    case 5:
      return (bits & 0x7c00) == 0x7c00 ? (uint16_t)(bits ^ 0x4000) : bits; /* any number */
    case 12:
      return random_below(run, 8) ? 0x2000 : 0x7c00;
    case 13:
      return random_below(run, 8) ? 0x2000 : 0x7fff;
    default:
      return quant_f32_to_f16(random_normal(run) * 0.02f);
  }
}

static void put16(uint8_t *p, uint16_t v) {
  memcpy(p, &v, 2);
}

static void random_float_row(check_run *run, input_kind kind, uint32_t type, uint32_t k,
                             uint8_t *out) {
  for (uint32_t i = 0; i < k; i += 32) {
    float block[32];
    random_floats(run, kind, block, 32);
    for (uint32_t j = 0; j < 32; j++) {
      if (type == QUANT_F32) {
        memcpy(out + (size_t)(i + j) * 4, &block[j], 4);
      } else if (type == QUANT_BF16) {
        put16(out + (size_t)(i + j) * 2, quant_f32_to_bf16(block[j]));
      } else {
        put16(out + (size_t)(i + j) * 2,
              kind == INPUT_TAME ? quant_f32_to_f16(block[j]) : random_f16(run, kind));
      }
    }
  }
}

void random_weights(check_run *run, input_kind kind, uint32_t type, uint32_t rows, uint32_t k,
                    uint8_t *out) {
  const quant_format *format = quant_find(type);
  const size_t blocks = k / format->elements;
  for (uint32_t row = 0; row < rows; row++) {
    if (type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16) {
      random_float_row(run, kind, type, k, out);
      out += (size_t)k * format->bytes;
      continue;
    }
    for (size_t b = 0; b < blocks; b++, out += format->bytes) {
      const uint32_t same = random_below(run, 10) == 0 ? random_u32(run) : 0;
      for (uint32_t i = 0; i < format->bytes; i++)
        out[i] = (uint8_t)(same ? same : random_u32(run));
      const uint32_t at = type == QUANT_Q6_K ? 208 : 0; /* where the f16 scale stands */
      put16(out + at, random_f16(run, kind));
      if (type == QUANT_Q4_1 || type == QUANT_Q4_K) put16(out + 2, random_f16(run, kind));
    }
  }
}

guard_buffer guard_open(check_run *run, size_t len) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  guard_buffer g = {.len = len, .accessible = (len + 64 + page - 1) / page * page};
  uint8_t *all = mmap(NULL, g.accessible + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED || mprotect(all + page, g.accessible, PROT_READ | PROT_WRITE) != 0) {
    perror("guard_open");
    exit(2);
  }
  g.pages = all + page;
  g.lead = random_u32(run) & 1 ? 0 : (g.accessible - len) & ~(size_t)63;
  g.data = g.pages + g.lead;
  memset(g.pages, CANARY, g.accessible);
  return g;
}

void guard_read_only(guard_buffer *g) {
  if (mprotect(g->pages, g->accessible, PROT_READ) != 0) perror("guard_read_only");
}

void guard_close(check_run *run, guard_buffer *g, const char *what) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t i = 0; i < g->accessible; i++) {
    if (i == g->lead) i += g->len;
    if (i < g->accessible && g->pages[i] != CANARY) {
      check_report(run, false, what, "wrote outside its buffer at %zd", (ssize_t)(i - g->lead));
      break;
    }
  }
  munmap(g->pages - page, g->accessible + 2 * page);
}

size_t floats_differ(const float *a, const float *b, size_t n) {
  if (memcmp(a, b, n * sizeof *a) == 0) return n;
  for (size_t i = 0; i < n; i++) {
    uint32_t x, y;
    memcpy(&x, a + i, 4);
    memcpy(&y, b + i, 4);
    const bool nan_x = (x & 0x7fffffffu) > 0x7f800000u, nan_y = (y & 0x7fffffffu) > 0x7f800000u;
    if (x != y && !(nan_x && nan_y)) return i;
  }
  return n;
}

void check_report(check_run *run, bool ok, const char *name, const char *detail, ...) {
  if (ok) {
    run->passed++;
    return;
  }
  if (run->failed++ >= LOUD_MAX) return;
  va_list args;
  va_start(args, detail);
  printf("FAILED %s: ", name);
  vprintf(detail, args);
  printf("\n");
  va_end(args);
}

bool check_wanted(const check_run *run, const char *name) {
  if (run->filter == NULL || strstr(name, run->filter) != NULL) return true;
  const size_t len = strlen(name); /* a family is wanted for its cases: "mm GEN" wants mm */
  return strncmp(run->filter, name, len) == 0 && run->filter[len] == ' ';
}

const char *level_text(uint32_t mask) {
  const char *text = "scalar";
#define LEVEL_TEXT(name, word) \
  if (mask & 1u << KERNEL_BIT_##name) text = word;
  KERNEL_LEVEL_LIST(LEVEL_TEXT)
#undef LEVEL_TEXT
  return text;
}

double bench_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(double *values, unsigned n) {
  qsort(values, n, sizeof *values, by_size);
  return values[n / 2];
}

static double thread_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bench_time bench_run(void (*call)(void *), void *context, double least, unsigned repeats) {
  double times[64];
  unsigned count = 1;
  if (repeats > 64) repeats = 64;
  for (unsigned r = 0; r < repeats;) {
    const double begin = thread_time();
    for (unsigned i = 0; i < count; i++) call(context);
    const double spent = thread_time() - begin;
    if (spent < least && count < 1u << 24) {
      count = spent * 16 < least ? count * 16 : (unsigned)(count * least / spent) + 1;
      continue;
    }
    times[r++] = spent / count;
  }
  const double median = bench_median(times, repeats);
  return (bench_time){times[0], median};
}
