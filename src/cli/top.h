/* SPDX-License-Identifier: Apache-2.0 */
/* top.h - `troika top`: what a server said at a moment, and how it is shown. Private to this room.
 *
 * Nothing that the server says is trusted: it is bounded in length, and its text goes through
 * cli_text_for_terminal. */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

enum { TOP_TEXT_MAX = 64 };

/* NAN: the server has no such figure, or there is nothing yet to compare with. Classes: reactive,
 * proactive. */
typedef struct top_figures {
  double running[2], queued[2];
  double tokens_out[2], tokens_in[2]; /* totals */
  double out_rate[2], in_rate[2];     /* per second, against the sample before */
  double bcap, level, pressure, bound_s, preemptions, preemption_rate;
  double kv_bytes, kv_used, lookups, hits;
  char term[TOP_TEXT_MAX];
} top_figures;

typedef struct top_sample {
  int64_t at_ns;   /* clock_real; 0: none */
  json_t *streams; /* array, owned; each object has "tokens_per_second" added: a number or null */
  json_t *made;    /* id -> tokens of answer, owned */
  top_figures figures;
} top_sample;

typedef struct top_server { /* what stays the same */
  const char *url;
  char model[TOP_TEXT_MAX];
  int64_t started_s; /* 0: not known */
} top_server;

/* --- top_sample.c */
/* /metrics' text. False: it is none of troika's. */
bool top_read_metrics(const char *text, top_figures *out);
/* /v1/streams, parsed: takes over `list`. False: it is none. */
bool top_read_streams(json_t *list, top_sample *out);
void top_read_model(const json_t *models, top_server *out);
/* Rates of `now` against the sample before. */
void top_compare(const top_sample *before, top_sample *now);
void top_sample_free(top_sample *s);

/* --- top_view.c */
typedef struct top_view {
  uint32_t columns, rows; /* of the terminal; rows 0: as many as there are */
  bool colours, moves;    /* moves: the frame is drawn over the one before */
} top_view;
/* problem: why the server does not answer at the moment, or NULL. */
void top_draw(const top_view *v, const top_server *server, const top_sample *s, const char *problem,
              bytes_buffer *out);
void top_put_json(const top_server *server, const top_sample *s, const char *problem,
                  bytes_buffer *out);

#endif
