/* SPDX-License-Identifier: Apache-2.0 */
/* troika bench kv: what pages of 16, 32 and 64 tokens cost and save against contiguous KV memory,
 * by the shape of a model. What is measured, and how, stands in bench/kv_layouts.h. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "bench/kv_layouts.h"
#include "cli/bench.h"

typedef struct kv_bench {
  const cli_settings *settings;
  char path[PATH_MAX], name[128];
  uint32_t sequences[BENCH_LIST_MAX];
  unsigned n, at; /* at: which one is being measured */
  kv_layouts_result results[BENCH_LIST_MAX];
  cli_progress bar;
} kv_bench;

static bool go_on(void *context, uint32_t done, uint32_t of) {
  kv_bench *b = context;
  cli_progress_show(&b->bar, (uint64_t)b->at * of + done, (uint64_t)b->n * of);
  return !cli_signals_seen();
}

static double share(uint64_t part, uint64_t whole) {
  return whole ? 100.0 * (double)part / (double)whole : 0;
}

static double megabytes(uint64_t bytes) {
  return (double)bytes / 1e6;
}

static void print_one(const kv_layouts_result *r) {
  printf("\n%u sequence%s, %llu tokens, %.2f MB of keys and values that can be seen\n",
         r->sequences, r->sequences > 1 ? "s" : "", (unsigned long long)r->tokens,
         megabytes(r->used));
  printf("%-22s %10s %9s %12s %10s %12s %10s %10s\n", "", "wasted MB", "of used", "overhead kB",
         "copied MB", "us a token", "min", "max");
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++) {
    const kv_layout_result *l = &r->of[i];
    uint64_t wasted = kv_layout_wasted(r, i);
    printf("%-22s %10.2f %8.1f%% %12.1f %10.2f %12.1f %10.1f %10.1f\n", kv_layout_name(i),
           megabytes(wasted), share(wasted, r->used), (double)l->overhead / 1e3,
           megabytes(l->copied), l->median, l->min, l->max);
  }
}

static void print_against(const kv_layouts_result *r, kv_layout best, kv_layout other) {
  const kv_layout_result *b = &r->of[best], *o = &r->of[other];
  uint64_t mine = b->held + b->overhead, its = o->held + o->overhead;
  if (other != best)
    printf("  against %-22s %7.2f of its bytes, %5.2f of its time\n", kv_layout_name(other),
           (double)mine / (double)its, b->median / o->median);
}

/* Of the last measurement: with the most sequences, if the list ascends. */
static void print_verdict(const kv_bench *b) {
  const kv_layouts_result *r = &b->results[b->n - 1];
  kv_layout best = kv_layouts_verdict(r);
  uint64_t lost = kv_layout_wasted(r, best) + r->of[best].overhead;
  printf(
      "\nVerdict, %u at once: %s, with the smallest product of bytes and time. It loses %.2f MB,\n"
      "%.1f %% of what is used.\n",
      r->sequences, kv_layout_name(best), megabytes(lost), share(lost, r->used));
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++) print_against(r, best, i);
}

static void print_text(const kv_bench *b) {
  const cli_settings *s = b->settings;
  printf("troika %s (%s), KV layouts by the shape of %s, longest sequence %u tokens\n",
         troika_version(), bench_commit, b->name, b->results[0].context);
  printf(
      "attention of one new token a sequence, all layers, one thread, %lld runs in turn after %lld "
      "warm-ups\n",
      (long long)s->repetitions, (long long)s->warmups);
  for (unsigned i = 0; i < b->n; i++) print_one(&b->results[i]);
  print_verdict(b);
}

static void put_result(bytes_buffer *out, const kv_layouts_result *r) {
  bytes_append_format(out,
                      "{\"sequences\":%u,\"tokens\":%llu,\"used_bytes\":%llu,\"verdict\":\"%s\","
                      "\"layouts\":[",
                      r->sequences, (unsigned long long)r->tokens, (unsigned long long)r->used,
                      kv_layout_name(kv_layouts_verdict(r)));
  for (kv_layout i = 0; i < KV_LAYOUT_COUNT; i++) {
    const kv_layout_result *l = &r->of[i];
    bytes_append_format(out,
                        "%s{\"name\":\"%s\",\"wasted_bytes\":%llu,\"overhead_bytes\":%llu,"
                        "\"copied_bytes\":%llu,\"us_per_token\":{\"median\":%.3f,\"min\":%.3f,"
                        "\"max\":%.3f}}",
                        i ? "," : "", kv_layout_name(i), (unsigned long long)kv_layout_wasted(r, i),
                        (unsigned long long)l->overhead, (unsigned long long)l->copied, l->median,
                        l->min, l->max);
  }
  bytes_append_string(out, "]}");
}

static void print_json(const kv_bench *b) {
  const cli_settings *s = b->settings;
  bytes_buffer out;
  bytes_init(&out, 1024 * 1024);
  bytes_append_string(&out, "{");
  bench_put_head(&out);
  bytes_append_string(&out, ",\"model\":");
  bench_put_text(&out, NULL, b->name);
  bytes_append_format(&out,
                      ",\"context\":%u,\"repetitions\":%lld,\"warm_ups\":%lld,"
                      "\"results\":[",
                      b->results[0].context, (long long)s->repetitions, (long long)s->warmups);
  for (unsigned i = 0; i < b->n; i++) {
    if (i) bytes_append_string(&out, ",");
    put_result(&out, &b->results[i]);
  }
  bytes_append_string(&out, "]}\n");
  fwrite(out.data, 1, out.len, stdout);
  bytes_free(&out);
}

int cli_bench_kv(const cli_settings *s) {
  kv_bench b = {.settings = s};
  troika_error err = {0};
  if (s->arguments_n > 1) {
    cli_fail("bench kv takes no arguments: is \"%.60s\" meant for --model?", s->arguments[1]);
    return CLI_USAGE;
  }
  b.n = bench_read_list("--batch", s->batch, KV_LAYOUTS_SEQUENCES_MAX, b.sequences);
  if (!b.n) return CLI_USAGE;
  if (!cli_model_path(s->model, b.path, sizeof b.path, b.name, sizeof b.name)) return CLI_FAILED;
  kv_layouts_options o = {.model = b.path,
                          .context = (uint32_t)s->context,
                          .repetitions = (uint32_t)s->repetitions,
                          .warmups = (uint32_t)s->warmups,
                          .cpu_levels = s->cpu_levels,
                          .activations = s->activations,
                          .go_on = go_on,
                          .go_on_context = &b};
  cli_signals_catch();
  cli_progress_begin(&b.bar, "measuring");
  troika_status status = TROIKA_OK;
  for (b.at = 0; b.at < b.n && !status; b.at++)
    status = kv_layouts_measure(&o, b.sequences[b.at], &b.results[b.at], &err);
  cli_progress_end(&b.bar);
  if (cli_signals_seen()) return CLI_INTERRUPTED;
  if (status) return cli_fail_file(b.path, err.text);
  if (s->json)
    print_json(&b);
  else
    print_text(&b);
  return CLI_OK;
}
