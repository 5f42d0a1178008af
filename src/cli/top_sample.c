/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/top.h"

static const char *const classes[2] = {"reactive", "proactive"};

/* The line that begins with `name`, behind it; NULL: there is none. */
static const char *find_line(const char *text, const char *name) {
  size_t n = strlen(name);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (!strncmp(line, name, n)) return line + n;
  }
  return NULL;
}

static double value_of(const char *text, const char *name) {
  char start[100], *end;
  snprintf(start, sizeof start, "troika_%s ", name);
  const char *at = find_line(text, start);
  double v = at ? strtod(at, &end) : NAN;
  return at && end != at && isfinite(v) ? v : NAN;
}

static void by_class(const char *text, const char *name, double out[2]) {
  char whole[100];
  for (int k = 0; k < 2; k++) {
    snprintf(whole, sizeof whole, "%s{class=\"%s\"}", name, classes[k]);
    out[k] = value_of(text, whole);
  }
}

/* troika_bcap{term="slack"} 3 */
static void read_bcap(const char *text, top_figures *out) {
  const char *at = find_line(text, "troika_bcap{term=\"");
  size_t n = at ? strcspn(at, "\"\n") : 0;
  out->bcap = NAN;
  if (!at || strncmp(at + n, "\"} ", 3) != 0) return;
  snprintf(out->term, sizeof out->term, "%.*s", (int)(n < sizeof out->term ? n : 0), at);
  out->bcap = strtod(at + n + 3, NULL);
}

bool top_read_metrics(const char *text, top_figures *out) {
  *out = (top_figures){0};
  if (!find_line(text, "troika_build_info{")) return false;
  by_class(text, "class_requests_running", out->running);
  by_class(text, "class_requests_queued", out->queued);
  by_class(text, "class_generated_tokens_total", out->tokens_out);
  by_class(text, "class_prompt_tokens_computed_total", out->tokens_in);
  for (int k = 0; k < 2; k++) out->out_rate[k] = out->in_rate[k] = NAN;
  read_bcap(text, out);
  out->level = value_of(text, "pressure_level");
  out->pressure = value_of(text, "pressure");
  out->bound_s = value_of(text, "preempt_bound_seconds");
  out->preemptions = value_of(text, "preemptions_total");
  out->preemption_rate = NAN;
  out->kv_bytes = value_of(text, "kv_bytes");
  out->kv_used = value_of(text, "kv_bytes_used");
  out->lookups = value_of(text, "prefix_lookups_total");
  out->hits = value_of(text, "prefix_hits_total");
  return true;
}

bool top_read_streams(json_t *list, top_sample *out) {
  json_t *data = json_object_get(list, "data"), *one;
  size_t i;
  out->streams = json_is_array(data) ? json_incref(data) : NULL;
  out->made = json_object();
  json_decref(list);
  if (!out->streams || !out->made) return false;
  json_array_foreach(out->streams, i, one) {
    const char *id = json_string_value(json_object_get(one, "id"));
    if (!id) return false;
    json_object_set(out->made, id, json_object_get(one, "completion_tokens"));
    json_object_set_new(one, "tokens_per_second", json_null());
  }
  return true;
}

void top_read_model(const json_t *models, top_server *out) {
  const json_t *first = json_array_get(json_object_get(models, "data"), 0);
  const char *id = json_string_value(json_object_get(first, "id"));
  if (id) snprintf(out->model, sizeof out->model, "%s", id);
  utf8_clean(out->model, false); /* it may have been cut inside a character */
  out->started_s = json_integer_value(json_object_get(first, "created"));
}

/* NAN as well if the counter has gone back: the server was started anew. */
static double rate(double before, double now, double seconds) {
  return now >= before && seconds > 0 ? (now - before) / seconds : NAN;
}

void top_compare(const top_sample *before, top_sample *now) {
  const top_figures *a = &before->figures;
  top_figures *b = &now->figures;
  double seconds = before->at_ns ? (double)(now->at_ns - before->at_ns) * 1e-9 : 0;
  json_t *one;
  size_t i;
  if (!before->at_ns) return;
  for (int k = 0; k < 2; k++) {
    b->out_rate[k] = rate(a->tokens_out[k], b->tokens_out[k], seconds);
    b->in_rate[k] = rate(a->tokens_in[k], b->tokens_in[k], seconds);
  }
  b->preemption_rate = rate(a->preemptions, b->preemptions, seconds);
  json_array_foreach(now->streams, i, one) {
    const char *id = json_string_value(json_object_get(one, "id"));
    const json_t *made = json_object_get(one, "completion_tokens");
    double were = json_number_value(json_object_get(before->made, id)); /* 0: it is new */
    double per_second = rate(were, json_number_value(made), seconds);
    if (isfinite(per_second))
      json_object_set_new(one, "tokens_per_second", json_real(round(per_second * 100) / 100));
  }
}

void top_sample_free(top_sample *s) {
  json_decref(s->streams);
  json_decref(s->made);
  *s = (top_sample){0};
}
