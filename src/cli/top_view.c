/* SPDX-License-Identifier: Apache-2.0 */
/* One frame of `troika top`, for people and for programs. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/top.h"

enum { COLUMNS_MIN = 20, LINE_MAX_BYTES = 600 };

typedef struct frame {
  const top_view *v;
  bytes_buffer *out;
  uint32_t lines;
} frame;

static bool has_room(const frame *f, uint32_t lines) {
  return !f->v->rows || f->lines + lines <= f->v->rows;
}

/* As many characters as the terminal is wide; what is wider than it looks, the terminal cuts. */
static size_t cut(const char *text, size_t columns) {
  size_t i = 0;
  for (; text[i]; i++)
    if (((unsigned char)text[i] & 0xC0) != 0x80 && columns-- == 0) break;
  return i;
}

/* Whatever a server has put into it, it is one line of text that a terminal may see. It may be cut
 * inside a character. */
static void put_clean(char *text, uint32_t columns, bytes_buffer *out) {
  bytes_buffer clean;
  bytes_init(&clean, 4 * LINE_MAX_BYTES);
  utf8_clean(text, true);
  for (char *p = text; *p; p++)
    if (*p == '\n' || *p == '\t') *p = ' ';
  cli_text_for_terminal(text, strlen(text), &clean);
  if (clean.data) bytes_append(out, clean.data, cut(clean.data, columns));
  bytes_free(&clean);
}

static void put_line(frame *f, const char *style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put_line(frame *f, const char *style, const char *format, ...) {
  char text[LINE_MAX_BYTES];
  va_list values;
  bool styled = f->v->colours && *style;
  if (!has_room(f, 1)) return;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (f->lines++) bytes_append_string(f->out, "\n");
  if (styled) bytes_append_format(f->out, "\x1b[%sm", style);
  put_clean(text, f->v->columns < COLUMNS_MIN ? COLUMNS_MIN : f->v->columns, f->out);
  if (styled) bytes_append_string(f->out, "\x1b[0m");
  if (f->v->moves) bytes_append_string(f->out, "\x1b[K");
}

/* A figure, or "-". */
static const char *number(double x, int decimals, char *out, size_t size) {
  if (isfinite(x))
    snprintf(out, size, "%.*f", decimals, x);
  else
    snprintf(out, size, "-");
  return out;
}

static const char *duration(double s, char *out, size_t size) {
  if (!(s >= 0) || s > 1e9)
    snprintf(out, size, "-");
  else if (s < 60)
    snprintf(out, size, "%.1fs", s);
  else if (s < 3600)
    snprintf(out, size, "%dm%02d", (int)s / 60, (int)s % 60);
  else
    snprintf(out, size, "%dh%02d", (int)s / 3600, (int)s / 60 % 60);
  return out;
}

static double share(double part, double of) {
  return of > 0 ? 100 * part / of : NAN;
}

static void put_head(frame *f, const top_server *server, const char *problem) {
  char up[32] = "-", clock[16];
  time_t now = time(NULL);
  struct tm local;
  if (server->started_s) duration((double)(now - server->started_s), up, sizeof up);
  localtime_r(&now, &local);
  strftime(clock, sizeof clock, "%H:%M:%S", &local);
  put_line(f, "1", "troika top - %s at %s, up %s, %s", server->model, server->url, up, clock);
  if (problem) put_line(f, "1;31", "%s does not answer: %s; trying again", server->url, problem);
}

static void put_figures(frame *f, const top_figures *x) {
  static const char *const names[2] = {"reactive", "proactive"}, *const styles[2] = {"32", "33"};
  char a[32], b[32], c[32], d[32], e[32], g[32];
  put_line(f, "2", "class      running  queued  out tok/s   in tok/s   out total    in total");
  for (int k = 0; k < 2; k++)
    put_line(f, styles[k], "%-9s %8s %7s %10s %10s %11s %11s", names[k],
             number(x->running[k], 0, a, sizeof a), number(x->queued[k], 0, b, sizeof b),
             number(x->out_rate[k], 1, c, sizeof c), number(x->in_rate[k], 1, d, sizeof d),
             number(x->tokens_out[k], 0, e, sizeof e), number(x->tokens_in[k], 0, g, sizeof g));
  put_line(f, "", "B_cap %s (%s), pressure level %s (%s), preemption bound %s ms, preemptions %s/s",
           number(x->bcap, 0, a, sizeof a), *x->term ? x->term : "-",
           number(x->level, 0, b, sizeof b), number(x->pressure, 2, c, sizeof c),
           number(x->bound_s * 1e3, 2, d, sizeof d), number(x->preemption_rate, 1, e, sizeof e));
  put_line(f, "", "KV %s of %s MB (%s %%), prefix hits %s of %s (%s %%)",
           number(x->kv_used / 1e6, 1, a, sizeof a), number(x->kv_bytes / 1e6, 1, b, sizeof b),
           number(share(x->kv_used, x->kv_bytes), 0, c, sizeof c), number(x->hits, 0, d, sizeof d),
           number(x->lookups, 0, e, sizeof e), number(share(x->hits, x->lookups), 0, g, sizeof g));
}

static const char *text_of(const json_t *o, const char *name) {
  const char *text = json_string_value(json_object_get(o, name));
  return text ? text : "";
}

static double number_of(const json_t *o, const char *name) {
  const json_t *v = json_object_get(o, name);
  return json_is_number(v) ? json_number_value(v) : NAN;
}

static void put_stream(frame *f, const json_t *o) {
  const json_t *times = json_object_get(o, "timings");
  const char *class_ = text_of(o, "class"), *id = text_of(o, "id"), *dash = strchr(id, '-');
  const char *agent = text_of(o, "agent"), *session = text_of(o, "session");
  double prompt = number_of(o, "prompt_tokens"), computed = number_of(o, "computed_tokens");
  char a[32], b[32], c[32], d[32], e[32], g[32], h[32], done[32], both[64];
  number(computed < prompt ? computed : prompt, 0, done, sizeof done); /* the answer's rows count */
  snprintf(both, sizeof both, "%s/%s", done, number(prompt, 0, a, sizeof a));
  put_line(f,
           !strcmp(class_, "reactive")    ? "32"
           : !strcmp(class_, "proactive") ? "33"
                                          : "",
           "%-8.8s %-9.9s %-1.1s %-9.9s %5s %11s %6s %6s %6s %7s %7s %7s %.100s%s%.100s",
           dash ? dash + 1 : id, class_, text_of(o, "band"), text_of(o, "state"),
           number_of(o, "place") > 0 ? number(number_of(o, "place"), 0, a, sizeof a) : "-", both,
           number(number_of(o, "cached_tokens"), 0, b, sizeof b),
           number(number_of(o, "completion_tokens"), 0, c, sizeof c),
           number(number_of(o, "tokens_per_second"), 1, d, sizeof d),
           number(number_of(times, "queue_ms"), 0, e, sizeof e),
           number(number_of(times, "preempted_ms"), 0, g, sizeof g),
           duration(number_of(o, "age_ms") * 1e-3, h, sizeof h), agent,
           *agent && *session ? " " : "", session);
}

/* As they will run: by band, what runs before what waits, the queue by place, else the oldest. */
static int before(const void *x, const void *y) {
  const json_t *a = *(const json_t *const *)x, *b = *(const json_t *const *)y;
  int by_band = strcmp(text_of(a, "band"), text_of(b, "band"));
  if (by_band) return *text_of(a, "band") == 'P' ? 1 : *text_of(b, "band") == 'P' ? -1 : -by_band;
  double place_a = number_of(a, "place"), place_b = number_of(b, "place");
  if (place_a != place_b) return place_a < place_b ? -1 : 1;
  double age_a = number_of(a, "age_ms"), age_b = number_of(b, "age_ms");
  return age_a > age_b ? -1 : age_a < age_b;
}

static void put_streams(frame *f, const json_t *streams) {
  size_t n = json_array_size(streams), shown = 0;
  const json_t **sorted = n ? calloc(n, sizeof *sorted) : NULL;
  put_line(f, "", "%s", "");
  put_line(f, "7",
           "STREAM   CLASS     B STATE     PLACE      PROMPT CACHED    OUT  TOK/S QUEUEms PREEMms "
           "    AGE AGENT SESSION");
  if (!sorted) {
    if (!n) put_line(f, "2", "no request is open");
    return;
  }
  for (size_t i = 0; i < n; i++) sorted[i] = json_array_get(streams, i);
  qsort(sorted, n, sizeof *sorted, before);
  for (; shown < n && has_room(f, shown + 1 < n ? 2 : 1); shown++) put_stream(f, sorted[shown]);
  if (shown < n) put_line(f, "2", "%zu more", n - shown);
  free(sorted);
}

void top_draw(const top_view *v, const top_server *server, const top_sample *s, const char *problem,
              bytes_buffer *out) {
  frame f = {v, out, 0};
  if (v->moves) bytes_append_string(out, "\x1b[H");
  put_head(&f, server, problem);
  if (!problem) {
    put_figures(&f, &s->figures);
    put_streams(&f, s->streams);
  }
  if (v->moves)
    bytes_append_string(out, "\x1b[J");
  else
    bytes_append_string(out, "\n");
}

/* --- JSON */

static json_t *figure(double x) {
  return isfinite(x) ? json_real(x) : json_null();
}

static json_t *figures_by_class(const double x[2]) {
  return json_pack("{s:o,s:o}", "reactive", figure(x[0]), "proactive", figure(x[1]));
}

void top_put_json(const top_server *server, const top_sample *s, const char *problem,
                  bytes_buffer *out) {
  const top_figures *x = &s->figures;
  json_t *o = json_object();
  json_object_set_new(o, "time", json_integer((json_int_t)time(NULL)));
  json_object_set_new(o, "url", json_string(server->url));
  json_object_set_new(o, "model", json_string(server->model));
  if (server->started_s)
    json_object_set_new(o, "uptime_s", json_integer((json_int_t)time(NULL) - server->started_s));
  json_object_set_new(o, "problem", problem ? json_string(problem) : json_null());
  if (!problem) {
    json_object_set_new(o, "running", figures_by_class(x->running));
    json_object_set_new(o, "queued", figures_by_class(x->queued));
    json_object_set_new(o, "out_tokens_total", figures_by_class(x->tokens_out));
    json_object_set_new(o, "in_tokens_total", figures_by_class(x->tokens_in));
    json_object_set_new(o, "out_tokens_per_second", figures_by_class(x->out_rate));
    json_object_set_new(o, "in_tokens_per_second", figures_by_class(x->in_rate));
    json_object_set_new(o, "bcap", figure(x->bcap));
    json_object_set_new(o, "bcap_term", json_string(x->term));
    json_object_set_new(o, "pressure_level", figure(x->level));
    json_object_set_new(o, "pressure", figure(x->pressure));
    json_object_set_new(o, "preempt_bound_ms", figure(x->bound_s * 1e3));
    json_object_set_new(o, "preemptions_per_second", figure(x->preemption_rate));
    json_object_set_new(o, "kv_bytes", figure(x->kv_bytes));
    json_object_set_new(o, "kv_bytes_used", figure(x->kv_used));
    json_object_set_new(o, "prefix_lookups", figure(x->lookups));
    json_object_set_new(o, "prefix_hits", figure(x->hits));
    json_object_set(o, "streams", s->streams);
  }
  char *text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
  bytes_append_string(out, text ? text : "{}");
  bytes_append_string(out, "\n");
  free(text);
  json_decref(o);
}
