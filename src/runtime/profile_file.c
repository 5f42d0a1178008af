/* SPDX-License-Identifier: Apache-2.0 */
/* The cost table as JSON: a file that another start reads, and what people see. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/sha256.h"
#include "runtime/internal.h"

enum { VERSION = 2, FILE_MAX = 64 * 1024 };

/* ---- whose it is ---- */

static void add_number(sha256 *h, uint64_t n) {
  char text[32];
  int len = snprintf(text, sizeof text, "%llu ", (unsigned long long)n);
  sha256_add(h, text, (size_t)len);
}

static void add_model(sha256 *h, const graph *g) {
  const uint64_t shape[] = {g->layers, g->width, g->heads,     g->kv_heads, g->head_dim,
                            g->ff,     g->vocab, g->n_weights, g->n_groups, g->n_nodes};
  for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) add_number(h, shape[i]);
  for (uint32_t i = 0; i < g->n_weights; i++) {
    add_number(h, g->weights[i].type);
    add_number(h, g->weights[i].n);
    add_number(h, g->weights[i].k);
  }
  for (uint32_t i = 0; i < g->n_groups; i++) {
    add_number(h, g->groups[i].window);
    add_number(h, g->groups[i].page_bytes);
  }
}

/* All that the times depend on: processor, kernels, threads (in the name), the model's shape and
 * weight formats, and the settings that say which loads there are. */
bool profile_identify(troika_runtime *rt, const char *path) {
  profile_state *s = &rt->profile;
  troika_device_info info;
  sha256 h;
  rt->cpu->driver->describe(rt->cpu, &info);
  sha256_begin(&h);
  sha256_add(&h, info.driver, strlen(info.driver));
  sha256_add(&h, info.name, strlen(info.name));
  sha256_add(&h, info.kernels, strlen(info.kernels));
  add_number(&h, VERSION);
  add_number(&h, os_cpus(""));
  add_model(&h, rt->g);
  add_number(&h, rt->span_rows);
  sha256_end(&h, s->key);
  s->wants_rows = rt->parallel < PROFILE_ROWS_MAX ? rt->parallel : PROFILE_ROWS_MAX;
  s->wants_depth = profile_deepest(rt->g, rt->span_rows, rt->context);
  if (!path || !*path) return true;
  size_t len = strlen(path), size = len + sizeof s->key + 8;
  s->path = malloc(size);
  if (!s->path) return false;
  bool folder = path[len - 1] == '/';
  snprintf(s->path, size, folder ? "%s%.32s.json" : "%s", path, s->key);
  return true;
}

void profile_guess(const troika_runtime *rt, cost_table *out) {
  uint64_t bytes = 0, ops = 0;
  for (uint32_t i = 0; i < rt->g->n_nodes; i++) {
    const graph_node *node = &rt->g->nodes[i];
    if (node->kind != GRAPH_EMBED) bytes += node->weight_bytes; /* of that a launch reads rows */
    ops += node->ops_per_row;
  }
  uint32_t threads = rt->stats.threads ? rt->stats.threads : os_cpus("");
  cost_guess(out, bytes, ops, threads);
}

/* ---- JSON ---- */

static json_t *numbers(const int64_t *values, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(values[i]));
  return list;
}

static json_t *bits(uint16_t set) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < COST_POINTS; i++)
    json_array_append_new(list, json_boolean(set >> i & 1));
  return list;
}

static json_t *ratios(const uint32_t *values, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++) json_array_append_new(list, json_real(values[i] / 65536.0));
  return list;
}

static void put(json_t *o, const char *name, int64_t value) {
  json_object_set_new(o, name, json_integer(value));
}

/* NULL: no memory. */
static json_t *describe(const troika_runtime *rt, const cost_table *t, const profile_facts *f,
                        bool file) {
  troika_device_info info;
  int64_t rows[COST_POINTS];
  json_t *o = json_object();
  for (uint32_t i = 0; i < COST_POINTS; i++) rows[i] = cost_rows[i];
  rt->cpu->driver->describe(rt->cpu, &info);
  put(o, "version", VERSION);
  json_object_set_new(o, "key", json_string(rt->profile.key));
  json_object_set_new(o, "device", json_string(info.name));
  json_object_set_new(o, "kernels", json_string(info.kernels));
  json_object_set_new(o, "model", json_string(rt->model->name));
  json_object_set_new(o, "measured", json_boolean(f->measured));
  json_object_set_new(o, "when", json_string(f->when));
  put(o, "parallel", rt->parallel);
  put(o, "depth", rt->profile.wants_depth);
  put(o, "span_rows", rt->span_rows);
  json_object_set_new(o, "rows", numbers(rows, COST_POINTS));
  json_object_set_new(o, "gen_ns", numbers(t->gen, COST_POINTS));
  json_object_set_new(o, "prompt_ns", numbers(t->prompt, COST_POINTS));
  json_object_set_new(o, "gen_measured", bits(f->gen_points));
  json_object_set_new(o, "prompt_measured", bits(f->prompt_points));
  put(o, "gen_kv_ns_per_mib", t->gen_kv_ns_per_mib);
  put(o, "prompt_kv_ns_per_mib", t->prompt_kv_ns_per_mib);
  put(o, "kv_bytes_per_token", (int64_t)profile_kv_bytes(rt->g, 0));
  json_object_set_new(o, "shared_ns", numbers(t->shared_ns, 2));
  put(o, "launch_ns", t->launch_ns);
  put(o, "stop_ns", t->stop_ns);
  put(o, "stop_p95_ns", f->stop_p95_ns);
  put(o, "stops", f->stops);
  json_object_set_new(o, "processor_share", json_real(f->share / 1000.0));
  put(o, "weight_bytes", (int64_t)t->weight_bytes);
  put(o, "bandwidth", (int64_t)t->bandwidth);
  json_object_set_new(o, "error_median", json_real(f->error_median / 65536.0));
  json_object_set_new(o, "error_p90", json_real(f->error_p90 / 65536.0));
  if (file) return o;
  json_object_set_new(o, "error_q", json_real(t->error_q / 65536.0));
  json_object_set_new(o, "gen_fix", ratios(t->gen_fix, COST_POINTS));
  json_object_set_new(o, "prompt_fix", ratios(t->prompt_fix, COST_POINTS));
  return o;
}

size_t troika_runtime_costs(const troika_runtime *runtime, char *out, size_t capacity) {
  troika_runtime *rt = (troika_runtime *)(uintptr_t)runtime; /* the lock is not part of its value */
  pthread_mutex_lock(&rt->stats_lock);
  cost_table t = rt->shown_costs;
  profile_facts facts = rt->profile.facts;
  pthread_mutex_unlock(&rt->stats_lock);
  json_t *o = describe(rt, &t, &facts, false);
  char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
  size_t len = text ? strlen(text) : 0;
  if (len < capacity) memcpy(out, text ? text : "", len + 1);
  free(text);
  json_decref(o);
  return len;
}

/* ---- the file ---- */

static bool get_number(const json_t *o, const char *name, int64_t *out) {
  const json_t *v = json_object_get(o, name);
  if (!json_is_integer(v)) return false;
  *out = json_integer_value(v);
  return true;
}

static bool get_numbers(const json_t *o, const char *name, int64_t *out, size_t n) {
  const json_t *list = json_object_get(o, name);
  if (!json_is_array(list) || json_array_size(list) != n) return false;
  for (size_t i = 0; i < n; i++) {
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v)) return false;
    out[i] = json_integer_value(v);
  }
  return true;
}

static bool get_bits(const json_t *o, const char *name, uint16_t *out) {
  const json_t *list = json_object_get(o, name);
  if (!json_is_array(list) || json_array_size(list) != COST_POINTS) return false;
  *out = 0;
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    const json_t *v = json_array_get(list, i);
    if (!json_is_boolean(v)) return false;
    if (json_is_true(v)) *out |= (uint16_t)(1u << i);
  }
  return true;
}

static bool get_ratio(const json_t *o, const char *name, uint32_t *out) {
  const json_t *v = json_object_get(o, name);
  double x = json_is_number(v) ? json_number_value(v) : -1;
  if (!(x >= 0 && x <= 16)) return false;
  *out = (uint32_t)(x * 65536.0);
  return true;
}

/* NULL, or why the file is not ours. One for more requests at once, or longer ones, has all that
 * fewer and shorter ones need. */
static const char *read_table(const json_t *o, const profile_state *s, cost_table *t,
                              profile_facts *f) {
  int64_t rows[COST_POINTS], version, parallel, depth, stops, weight_bytes, bandwidth;
  uint32_t share;
  const char *text = json_string_value(json_object_get(o, "key")),
             *when = json_string_value(json_object_get(o, "when"));
  if (!get_number(o, "version", &version) || version != VERSION || !text)
    return "it is no profile of this version";
  if (strcmp(text, s->key)) return "it was measured for another machine, model or setting";
  if (!get_number(o, "parallel", &parallel) || !get_number(o, "depth", &depth))
    return "it is damaged";
  if (parallel < s->wants_rows) return "it was measured for fewer requests at once";
  if (depth < s->wants_depth) return "it was measured for shorter requests";
  if (!get_numbers(o, "rows", rows, COST_POINTS) || !when || strlen(when) >= sizeof f->when)
    return "it is damaged";
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    if (rows[i] != cost_rows[i]) return "its rows are others";
    t->gen_fix[i] = t->prompt_fix[i] = COST_ONE;
  }
  if (!get_numbers(o, "gen_ns", t->gen, COST_POINTS) ||
      !get_numbers(o, "prompt_ns", t->prompt, COST_POINTS) ||
      !get_bits(o, "gen_measured", &f->gen_points) ||
      !get_bits(o, "prompt_measured", &f->prompt_points) ||
      !get_number(o, "gen_kv_ns_per_mib", &t->gen_kv_ns_per_mib) ||
      !get_number(o, "prompt_kv_ns_per_mib", &t->prompt_kv_ns_per_mib) ||
      !get_numbers(o, "shared_ns", t->shared_ns, 2) || !get_number(o, "launch_ns", &t->launch_ns) ||
      !get_number(o, "stop_ns", &t->stop_ns) || !get_number(o, "stop_p95_ns", &f->stop_p95_ns) ||
      !get_number(o, "stops", &stops) || !get_number(o, "weight_bytes", &weight_bytes) ||
      !get_number(o, "bandwidth", &bandwidth) || !get_ratio(o, "error_median", &f->error_median) ||
      !get_ratio(o, "error_p90", &f->error_p90) || !get_ratio(o, "processor_share", &share) ||
      !json_is_true(json_object_get(o, "measured")))
    return "it is damaged";
  t->weight_bytes = (uint64_t)weight_bytes;
  t->bandwidth = (uint64_t)bandwidth;
  t->error_q = f->error_p90;
  f->stops = (uint32_t)stops;
  f->share = (uint32_t)(((uint64_t)share * 1000 + COST_ONE / 2) / COST_ONE);
  f->measured = true;
  snprintf(f->when, sizeof f->when, "%s", when);
  if (weight_bytes < 0 || bandwidth < 0 || stops < 0 || stops > PROFILE_STOPS ||
      f->stop_p95_ns < 0 || f->stop_p95_ns > t->stop_ns || !cost_valid(t))
    return "its numbers cannot be true";
  return NULL;
}

/* The whole file, at most FILE_MAX; -1: errno. A pipe is not waited for. */
static ssize_t read_file(const char *path, char *out) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t len = 0, n;
  while (len < FILE_MAX && (n = read(fd, out + len, (size_t)(FILE_MAX - len))) != 0) {
    if (n > 0) len += n;
    if (n >= 0 || errno == EINTR) continue;
    len = -1;
    break;
  }
  int problem = errno;
  close(fd);
  errno = problem;
  return len;
}

bool profile_read(const profile_state *s, cost_table *t, profile_facts *facts) {
  char *text = malloc(FILE_MAX);
  const char *why = "it is no JSON";
  *t = (cost_table){0};
  *facts = (profile_facts){0};
  ssize_t len = text ? read_file(s->path, text) : -1;
  if (len < 0) {
    if (errno != ENOENT)
      log_line(LOG_WARN, "%s cannot be read (%s): launches are measured again", s->path,
               strerror(errno));
    free(text);
    return false;
  }
  json_t *o = json_loadb(text, (size_t)len, JSON_REJECT_DUPLICATES, NULL);
  free(text);
  if (o) why = read_table(o, s, t, facts);
  json_decref(o);
  if (why) {
    log_line(LOG_WARN, "%s is not used, %s: launches are measured again", s->path, why);
    return false;
  }
  log_line(LOG_DEBUG, "%s: launches were measured %s", s->path, facts->when);
  return true;
}

bool profile_load(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  cost_table t;
  profile_facts facts;
  if (!profile_read(s, &t, &facts)) return false;
  rt->costs = t;
  pthread_mutex_lock(&rt->stats_lock);
  rt->shown_costs = t;
  s->facts = facts;
  pthread_mutex_unlock(&rt->stats_lock);
  return true;
}

/* Beside it, then renamed over it: a reader finds the old one or the new one. */
bool profile_save(troika_runtime *rt) {
  profile_state *s = &rt->profile;
  size_t size = strlen(s->path) + 32;
  char *part = malloc(size);
  json_t *o = describe(rt, &rt->costs, &s->facts, true);
  char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
  bool ok = part && text;
  errno = ENOMEM;
  if (ok) {
    snprintf(part, size, "%s.%ld.part", s->path, (long)getpid());
    FILE *f = fopen(part, "we");
    ok = f && fputs(text, f) >= 0 && fputc('\n', f) == '\n';
    int problem = errno;
    if (f && fclose(f)) ok = false, problem = errno;
    if (ok && rename(part, s->path)) ok = false, problem = errno;
    errno = problem;
    if (!ok && f) unlink(part);
    errno = problem;
  }
  if (!ok) log_line(LOG_WARN, "%s could not be written: %s", s->path, strerror(errno));
  free(text);
  free(part);
  json_decref(o);
  return ok;
}
