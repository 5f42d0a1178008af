/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a bench: what was measured, on what. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "api/json.h"
#include "base/os.h"
#include "base/sha256.h"
#include "cli/bench.h"

typedef struct machine {
  char cpu[128], system[128], mask[1024];
  unsigned usable; /* by affinity and quota */
} machine;

/* What follows "key...: " in the first such line of a file. */
static void read_line(const char *path, const char *key, char *out, size_t size) {
  char line[1280];
  snprintf(out, size, "unknown");
  FILE *f = fopen(path, "re");
  if (!f) return;
  while (fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, key, strlen(key)) || !colon) continue;
    char *value = colon + 1 + strspn(colon + 1, " \t");
    value[strcspn(value, "\n")] = 0;
    snprintf(out, size, "%s", value);
    break;
  }
  fclose(f);
}

static void read_machine(machine *m) {
  struct utsname u;
  *m = (machine){.usable = os_cpus("")};
  read_line("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu);
  read_line("/proc/self/status", "Cpus_allowed_list", m->mask, sizeof m->mask);
  if (!uname(&u))
    snprintf(m->system, sizeof m->system, "%.20s %.60s %.20s", u.sysname, u.release, u.machine);
}

static bool hash_model(const char *path, char hex[65]) {
  os_map map;
  sha256 h;
  if (os_map_open(path, &map, NULL)) return false;
  sha256_begin(&h);
  for (size_t at = 0; at < map.len;
       at += 1 << 24) { /* in parts, whose pages are given back: the peak is already told */
    size_t n = map.len - at < 1 << 24 ? map.len - at : 1 << 24;
    sha256_add(&h, map.data + at, n);
    os_map_drop(&map, at, n);
  }
  sha256_end(&h, hex);
  os_map_close(&map);
  return true;
}

void bench_print(const bench_record *r) {
  machine m;
  troika_runtime_stats s;
  troika_model_info info;
  char peak[16], bytes[16], kv[16];
  read_machine(&m);
  troika_runtime_describe(r->engine->runtime, &s);
  troika_model_describe(r->engine->model, &info);
  cli_bytes_text(os_memory_peak(), peak);
  cli_bytes_text(info.file_bytes, bytes);
  cli_bytes_text(s.kv_bytes, kv);
  printf("troika %s (%s), %s, %s %s, kernels %s\n", troika_version(), bench_commit, r->engine->name,
         info.type, bytes, s.kernels);
  printf("%s, processors %s, %u threads\n\n", m.cpu, m.mask, s.threads);
  printf("%-16s %12s %12s %12s   tokens/s of %lld runs after %lld warm-ups\n", "", "median", "min",
         "max", (long long)r->settings->repetitions, (long long)r->settings->warmups);
  for (unsigned i = 0; i < r->results_n; i++)
    printf("%-16s %12.1f %12.1f %12.1f\n", r->results[i].name, r->results[i].median,
           r->results[i].min, r->results[i].max);
  printf(
      "\nload             %9.3f s\npeak memory      %11s (KV pool of %s reserved, pages count once "
      "used)\n",
      r->engine->open_s, peak, kv);
}

void bench_put_text(bytes_buffer *out, const char *key, const char *text) {
  if (key) bytes_append_format(out, "\"%s\":", key);
  api_json_put_string(out, text, strlen(text));
}

static void put_command(bytes_buffer *out, const cli_settings *s) {
  static const char *const activations[] = {"default", "float", "int8"};
  char text[512];
  snprintf(text, sizeof text,
           "troika bench --model %.120s --activations %s --cpu-levels %.60s --threads %lld "
           "--context %lld --prefill %.60s "
           "--decode %lld --batch %.60s --repetitions %lld --warm-ups %lld",
           s->model, activations[s->activations], s->cpu_levels, (long long)s->threads,
           (long long)s->context, s->prefill, (long long)s->decode, s->batch,
           (long long)s->repetitions, (long long)s->warmups);
  bench_put_text(out, "command", text);
}

static void put_model(bytes_buffer *out, const bench_record *r) {
  troika_model_info info;
  char hex[65] = "";
  troika_model_describe(r->engine->model, &info);
  bytes_append_string(out, ",\"model\":{");
  bench_put_text(out, "name", r->engine->name);
  bytes_append_string(out, ",");
  bench_put_text(out, "type", info.type);
  bytes_append_format(out, ",\"parameters\":%llu,\"bytes\":%llu,\"sha256\":",
                      (unsigned long long)info.parameters, (unsigned long long)info.file_bytes);
  if (hash_model(r->engine->path, hex))
    bytes_append_format(out, "\"%s\"}", hex);
  else
    bytes_append_string(out, "null}");
}

void bench_put_head(bytes_buffer *out) {
  machine m;
  char when[32];
  time_t now = time(NULL);
  struct tm utc;
  read_machine(&m);
  strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  bench_put_text(out, "time", when);
  bytes_append_string(out, ",");
  bench_put_text(out, "version", troika_version());
  bytes_append_string(out, ",");
  bench_put_text(out, "commit", bench_commit);
  bytes_append_string(out, ",\"machine\":{");
  bench_put_text(out, "cpu", m.cpu);
  bytes_append_string(out, ",");
  bench_put_text(out, "system", m.system);
  bytes_append_string(out, ",");
  bench_put_text(out, "mask", m.mask);
  bytes_append_format(out, ",\"usable\":%u}", m.usable);
}

void bench_print_json(const bench_record *r) {
  troika_runtime_stats s;
  bytes_buffer out;
  uint64_t peak = os_memory_peak();
  bytes_init(&out, 1024 * 1024);
  troika_runtime_describe(r->engine->runtime, &s);
  bytes_append_string(&out, "{");
  bench_put_head(&out);
  put_model(&out, r);
  bytes_append_string(&out, ",");
  bench_put_text(&out, "kernels", s.kernels);
  bytes_append_format(&out, ",\"threads\":%u,\"context\":%u,\"kv_bytes\":%llu,", s.threads,
                      s.context, (unsigned long long)s.kv_bytes);
  put_command(&out, r->settings);
  bytes_append_format(&out, ",\"load_s\":%.4f,\"memory_peak_bytes\":%llu,\"results\":[",
                      r->engine->open_s, (unsigned long long)peak);
  for (unsigned i = 0; i < r->results_n; i++) {
    const bench_result *b = &r->results[i];
    bytes_append_format(&out,
                        "%s{\"kind\":\"%s\",\"n\":%u,\"repetitions\":%u,\"tokens_per_second\":{"
                        "\"median\":%.3f,\"min\":%.3f,"
                        "\"max\":%.3f}}",
                        i ? "," : "", b->kind, b->n, b->repetitions, b->median, b->min, b->max);
  }
  bytes_append_string(&out, "]}\n");
  fwrite(out.data, 1, out.len, stdout);
  bytes_free(&out);
}
