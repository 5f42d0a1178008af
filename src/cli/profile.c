/* SPDX-License-Identifier: Apache-2.0 */
/* troika profile: measures what launches cost on this machine with this model, shows it, and keeps
 * it for `serve`. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "cli/options.h"
#include "plan/cost.h"

enum { COSTS_MAX = 64 * 1024, EXAMPLE_TOKENS = 500 };
#define EXAMPLE_SLACK 0.15
#define QUIET 0.75 /* as runtime/profile.h has it */

bool cli_profile_path(const char *setting, char *out, size_t size) {
  if (!strcmp(setting, "off")) return *out = 0, true;
  if (strcmp(setting, "auto")) {
    if (snprintf(out, size, "%s", setting) < (int)size) return true;
    return cli_fail("the profile's path is too long"), false;
  }
  if (!option_profiles_folder(out, size)) return *out = 0, true; /* no home: nothing is kept */
  for (char *p = out + 1; *p; p++) {
    if (*p != '/') continue;
    *p = 0;
    bool made = !mkdir(out, 0777) || errno == EEXIST;
    int problem = errno;
    *p = '/';
    if (made) continue;
    fprintf(stderr, "troika: %s cannot be made (%s): no profile is kept\n", out, strerror(problem));
    return *out = 0, true;
  }
  return true;
}

static int64_t number_of(const json_t *o, const char *name) {
  return json_integer_value(json_object_get(o, name));
}

static int64_t number_at(const json_t *o, const char *name, size_t i) {
  return json_integer_value(json_array_get(json_object_get(o, name), i));
}

static bool was_measured(const json_t *o, const char *name, size_t i) {
  return json_is_true(json_array_get(json_object_get(o, name), i));
}

static void read_costs(const json_t *o, cost_table *t) {
  *t = (cost_table){.launch_ns = number_of(o, "launch_ns"),
                    .gen_kv_ns_per_mib = number_of(o, "gen_kv_ns_per_mib"),
                    .prompt_kv_ns_per_mib = number_of(o, "prompt_kv_ns_per_mib")};
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    t->gen[i] = number_at(o, "gen_ns", i);
    t->prompt[i] = number_at(o, "prompt_ns", i);
    t->gen_fix[i] = t->prompt_fix[i] = COST_ONE;
  }
}

static void print_rows(const json_t *o, const cost_table *t) {
  printf("%8s %12s %14s %14s %12s\n", "rows", "GEN ms", "tokens/s", "PROMPT ms", "tokens/s");
  for (uint32_t i = 0; i < COST_POINTS; i++) {
    uint32_t rows = cost_rows[i];
    bool gen = was_measured(o, "gen_measured", i), prompt = was_measured(o, "prompt_measured", i);
    int64_t gen_ns = t->gen[i] + t->launch_ns, prompt_ns = t->prompt[i] + t->launch_ns;
    printf("%8u %12.2f%s %12.1f  %13.2f%s %11.1f\n", rows, (double)gen_ns / 1e6, gen ? " " : "~",
           rows * 1e9 / (double)gen_ns, (double)prompt_ns / 1e6, prompt ? " " : "~",
           rows * 1e9 / (double)prompt_ns);
  }
  printf("%8s of one launch, its %.0f us of hand-over included; ~ drawn, not measured\n", "",
         (double)t->launch_ns / 1e3);
}

/* Background rows of the same length that fit beside one answer of EXAMPLE_TOKENS. */
static uint32_t example_bcap(const cost_table *t, uint64_t kv_bytes, uint32_t parallel) {
  int64_t alone = cost_decode(t, 1, kv_bytes),
          most = alone + (int64_t)(EXAMPLE_SLACK * (double)alone);
  uint32_t rows = 1, best = 1;
  for (; rows <= parallel; rows++)
    if (cost_decode(t, rows, rows * kv_bytes) <= most) best = rows;
  return best;
}

static void print_rest(const json_t *o, const cost_table *t) {
  double mib = (double)number_of(o, "kv_bytes_per_token") / 1048576;
  uint64_t kv_bytes = (uint64_t)number_of(o, "kv_bytes_per_token") * EXAMPLE_TOKENS;
  printf(
      "\nKV                %.1f ns per position and GEN row, %.1f per PROMPT row (%.2f ms and %.3f "
      "ms at 1,000)\n",
      mib * (double)t->gen_kv_ns_per_mib, mib * (double)t->prompt_kv_ns_per_mib,
      mib * (double)t->gen_kv_ns_per_mib / 1e3, mib * (double)t->prompt_kv_ns_per_mib / 1e3);
  printf(
      "shared            %.2f ms less for 1 GEN and 64 PROMPT rows in one launch, %.2f for 8 and "
      "64\n",
      (double)number_at(o, "shared_ns", 0) / 1e6, (double)number_at(o, "shared_ns", 1) / 1e6);
  printf("weights           %.1f MB at %.1f GB/s\n", (double)number_of(o, "weight_bytes") / 1e6,
         (double)number_of(o, "bandwidth") / 1e9);
  printf("stop              %.2f ms P95, %.2f ms longest of %lld: the preemption bound\n",
         (double)number_of(o, "stop_p95_ns") / 1e6, (double)number_of(o, "stop_ns") / 1e6,
         (long long)number_of(o, "stops"));
  printf("B_cap             %u rows: one answer and background at %d tokens each, slack %.2f\n",
         example_bcap(t, kv_bytes, (uint32_t)number_of(o, "parallel")), EXAMPLE_TOKENS,
         EXAMPLE_SLACK);
  printf("prediction error  %.1f %% median, %.1f %% P90, of loads that were not measured\n",
         json_real_value(json_object_get(o, "error_median")) * 100,
         json_real_value(json_object_get(o, "error_p90")) * 100);
  double share = json_real_value(json_object_get(o, "processor_share"));
  printf("processors        %.0f %% ours meanwhile%s\n", share * 100,
         share < QUIET ? ": measure again when the machine does nothing else" : "");
}

static int print_costs(const cli_settings *s, const cli_engine *e, double seconds) {
  char *text = malloc(COSTS_MAX);
  size_t len = text ? troika_runtime_costs(e->runtime, text, COSTS_MAX) : 0;
  json_t *o = text && len && len < COSTS_MAX ? json_loads(text, 0, NULL) : NULL;
  cost_table t;
  int code = CLI_OK;
  if (!o) {
    code = cli_fail("no memory for the table");
  } else if (s->json) {
    printf("%s\n", text);
  } else {
    read_costs(o, &t);
    printf("%s, %s, kernels %s, measured in %.1f s\n\n", e->name,
           json_string_value(json_object_get(o, "device")),
           json_string_value(json_object_get(o, "kernels")), seconds);
    print_rows(o, &t);
    print_rest(o, &t);
  }
  json_decref(o);
  free(text);
  return code;
}

int cli_profile(const cli_settings *s) {
  char path[PATH_MAX];
  cli_engine e;
  cli_progress bar;
  troika_error err = {0};
  cli_settings with = *s;
  if (s->arguments_n) {
    cli_fail("profile takes no arguments: is \"%.60s\" meant for --model?", s->arguments[0]);
    return CLI_USAGE;
  }
  if (!cli_profile_path(s->profile, path, sizeof path)) return CLI_FAILED;
  with.profile_path = *path ? path : NULL;
  if (!cli_engine_open(&with, (uint32_t)s->parallel, &e)) return CLI_FAILED;
  cli_progress_begin(&bar, "measuring");
  int64_t began_ns = clock_real_now(NULL);
  troika_status status = troika_runtime_profile(e.runtime, cli_progress_show, &bar, &err);
  cli_progress_end(&bar);
  double seconds = (double)(clock_real_now(NULL) - began_ns) * 1e-9;
  int code = status && status != TROIKA_IO ? cli_fail("%s", err.text) : CLI_OK;
  if (!code) code = print_costs(s, &e, seconds);
  if (status == TROIKA_IO) code = cli_fail("%s", err.text); /* measured and shown, but not kept */
  cli_engine_close(&e);
  return code;
}
