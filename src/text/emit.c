/* SPDX-License-Identifier: Apache-2.0 */
#include "text/emit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

typedef struct emit_pattern {
  uint16_t len, state; /* state: bytes of it that the text ends with */
  uint16_t
      failure[EMIT_STOP_BYTES_MAX]; /* of the prefix of length i + 1: its longest proper border */
  char bytes[EMIT_STOP_BYTES_MAX];
} emit_pattern;

struct emit {
  size_t n, piece_max, held_n;
  int stop;
  char *held, *text; /* text: three times as much, for every byte may become U+FFFD */
  emit_pattern patterns[];
};

enum { CHARACTER_MAX = 4 };

static void pattern_build(emit_pattern *p, bytes_view stop) {
  memcpy(p->bytes, stop.ptr, stop.len);
  p->len = (uint16_t)stop.len;
  p->failure[0] = 0;
  uint16_t border = 0;
  for (uint16_t i = 1; i < p->len; i++) {
    while (border > 0 && p->bytes[i] != p->bytes[border]) border = p->failure[border - 1];
    if (p->bytes[i] == p->bytes[border]) border++;
    p->failure[i] = border;
  }
}

/* True if the pattern is complete with this byte. */
static bool pattern_step(emit_pattern *p, char byte) {
  while (p->state > 0 && p->bytes[p->state] != byte) p->state = p->failure[p->state - 1];
  if (p->bytes[p->state] == byte) p->state++;
  return p->state == p->len;
}

troika_status emit_create(const bytes_view *stops, size_t n, size_t piece_max, emit **out,
                          troika_error *err) {
  if (n > EMIT_STOPS_MAX)
    return error_set(err, TROIKA_INVALID, "%zu stop strings, at most %d", n, EMIT_STOPS_MAX);
  for (size_t i = 0; i < n; i++) {
    if (stops[i].len == 0 || stops[i].len > EMIT_STOP_BYTES_MAX)
      return error_set(err, TROIKA_INVALID, "stop string %zu has %zu bytes, 1 to %d are allowed", i,
                       stops[i].len, EMIT_STOP_BYTES_MAX);
    if (utf8_valid_prefix(stops[i].ptr, stops[i].len, NULL) != stops[i].len)
      return error_set(err, TROIKA_INVALID, "stop string %zu is not valid UTF-8", i);
  }
  size_t held = EMIT_STOP_BYTES_MAX + CHARACTER_MAX + piece_max;
  emit *e = calloc(1, sizeof *e + n * sizeof e->patterns[0]);
  char *memory = malloc(4 * held);
  if (!e || !memory) {
    free(memory);
    free(e);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for stop strings");
  }
  e->n = n;
  e->piece_max = piece_max;
  e->held = memory;
  e->text = memory + held;
  e->stop = -1;
  for (size_t i = 0; i < n; i++) pattern_build(&e->patterns[i], stops[i]);
  *out = e;
  return TROIKA_OK;
}

void emit_destroy(emit **e) {
  if (!*e) return;
  free((*e)->held);
  free(*e);
  *e = NULL;
}

void emit_reset(emit *e) {
  e->held_n = 0;
  e->stop = -1;
  for (size_t i = 0; i < e->n; i++) e->patterns[i].state = 0;
}

int emit_stop(const emit *e) {
  return e->stop;
}

/* Bytes of a wrong sequence that one U+FFFD stands for: the longest beginning of a character, or
 * one. */
static size_t wrong_bytes(const char *text, size_t len) {
  size_t n = 1;
  bool partial = true;
  while (n < len && n < CHARACTER_MAX) {
    if (utf8_valid_prefix(text, n + 1, &partial) != 0 || !partial) break;
    n++;
  }
  return n;
}

/* Gives out held[0 .. n); an incomplete character at its end stays held unless `last`. */
static bytes_view release(emit *e, size_t n, bool last) {
  size_t at = 0, written = 0;
  while (at < n) {
    bool partial = false;
    size_t valid = utf8_valid_prefix(e->held + at, n - at, &partial);
    memcpy(e->text + written, e->held + at, valid);
    written += valid;
    at += valid;
    if (at == n || (partial && !last)) break;
    memcpy(e->text + written, "\xef\xbf\xbd", 3);
    written += 3;
    at += partial ? n - at : wrong_bytes(e->held + at, n - at);
  }
  e->held_n -= at;
  memmove(e->held, e->held + at, e->held_n);
  return bytes_of(e->text, written);
}

bool emit_push(emit *e, bytes_view piece, bytes_view *text) {
  CHECK(piece.len <= e->piece_max && e->stop < 0);
  for (size_t i = 0; i < piece.len; i++) {
    e->held[e->held_n++] = piece.ptr[i];
    size_t longest = 0;
    for (size_t k = 0; k < e->n; k++) {
      emit_pattern *p = &e->patterns[k];
      if (!pattern_step(p, piece.ptr[i]) || p->len <= longest) continue;
      longest = p->len;
      e->stop = (int)k;
    }
    if (longest == 0) continue;
    *text = release(e, e->held_n - longest, true);
    e->held_n = 0;
    return true;
  }
  size_t keep = 0;
  for (size_t k = 0; k < e->n; k++)
    if (e->patterns[k].state > keep) keep = e->patterns[k].state;
  *text = release(e, e->held_n - keep, false);
  return false;
}

bytes_view emit_flush(emit *e) {
  return release(e, e->held_n, true);
}
