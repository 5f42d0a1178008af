/* SPDX-License-Identifier: Apache-2.0 */
/* troika synth: a model file of a known shape with random weights. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "api/json.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/synth.h"

enum { SHAPES_MAX = 16 };

/* NULL: said what is wrong. */
static const synth_shape *find_shape(const char *name) {
  unsigned n;
  const synth_shape *shapes = synth_shapes(&n);
  const char *names[SHAPES_MAX] = {0};
  bytes_buffer all;
  bytes_init(&all, 4096);
  for (unsigned i = 0; i < n && i < SHAPES_MAX; i++) {
    if (name && !strcmp(name, shapes[i].name)) {
      bytes_free(&all);
      return &shapes[i];
    }
    names[i] = shapes[i].name;
    bytes_append_format(&all, "%s%s", i ? ", " : "", shapes[i].name);
  }
  const char *near = name ? cli_nearest(name, names, n) : NULL;
  if (!name)
    cli_fail("synth needs a shape: --shape %s", all.data);
  else if (near)
    cli_fail("there is no shape \"%.60s\"; did you mean %s?", name, near);
  else
    cli_fail("there is no shape \"%.60s\"; there are %s", name, all.data);
  bytes_free(&all);
  return NULL;
}

/* Nothing that is there is lost: a file only with --force, and never a folder or a device. */
static bool may_write(const char *path, bool force) {
  struct stat st;
  if (lstat(path, &st)) return true; /* if for another reason, making the file will say it */
  if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
    return cli_fail("%s is no file: give a name for a new one", path), false;
  if (!force) return cli_fail("%s is there already; --force overwrites it", path), false;
  return true;
}

/* Better said before than after some gigabytes. What the system does not tell is tried. */
static bool has_room(const char *path, uint64_t bytes) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t len = slash ? (size_t)(slash - path) + 1 : 1; /* with the slash: "/" is itself */
  if (len >= sizeof folder) return true;
  memcpy(folder, slash ? path : ".", len);
  folder[len] = 0;
  struct statvfs fs;
  if (statvfs(folder, &fs) || fs.f_blocks == 0) return true;
  uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
  if (room > bytes) return true;
  char need[16], have[16];
  cli_bytes_text(bytes, need);
  cli_bytes_text(room, have);
  return cli_fail("%s needs %s; its disk has %s left", path, need, have), false;
}

static bool go_on(void *bar, uint64_t done, uint64_t total) {
  cli_progress_show(bar, done, total);
  return !cli_signals_seen();
}

static void report(const cli_settings *s, const synth_shape *shape, const synth_model *m,
                   double seconds) {
  struct stat st = {0};
  if (stat(s->output, &st)) st.st_size = 0;
  const char *mix = synth_mix_name((synth_mix)s->mix);
  uint64_t bytes = (uint64_t)st.st_size, parameters = synth_model_parameters(m);
  if (s->json) {
    bytes_buffer file;
    bytes_init(&file, 1 << 20);
    api_json_put_string(&file, s->output, strlen(s->output));
    printf(
        "{\"file\":%s,\"shape\":\"%s\",\"type\":\"%s\",\"seed\":%lld,\"bytes\":%llu,"
        "\"tensors\":%u,\"parameters\":%llu,\"vocab\":%u,\"seconds\":%.3f}\n",
        file.data, shape->name, mix, (long long)s->seed, (unsigned long long)bytes,
        synth_model_tensors(m), (unsigned long long)parameters, shape->vocab, seconds);
    bytes_free(&file);
    return;
  }
  char size[16];
  cli_bytes_text(bytes, size);
  printf(
      "%s: %s as %s, seed %lld, %u tensors, %.2f million parameters, %s in %.1f s\n"
      "Its weights are random: what it says has no meaning.\n",
      s->output, shape->name, mix, (long long)s->seed, synth_model_tensors(m),
      (double)parameters / 1e6, size, seconds);
}

static int write_model(const cli_settings *s, const synth_shape *shape) {
  synth_model *m = NULL;
  troika_error err = {0};
  int code = CLI_FAILED;
  int64_t started = clock_real_now(NULL);
  if (synth_model_create(shape, (synth_mix)s->mix, s->seed, &m, &err))
    return cli_fail("%s", err.text);
  if (has_room(s->output, synth_model_data_bytes(m))) {
    cli_progress bar;
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is then an error, and the half file goes */
    cli_signals_catch();
    cli_progress_begin(&bar, "writing");
    troika_status status = synth_model_write(m, s->output, go_on, &bar, &err);
    cli_progress_end(&bar);
    if (status == TROIKA_CANCELLED) {
      cli_fail("interrupted; nothing was kept");
      code = CLI_INTERRUPTED;
    } else if (status) {
      cli_fail_file(s->output, err.text);
    } else {
      report(s, shape, m, (double)(clock_real_now(NULL) - started) / 1e9);
      code = CLI_OK;
    }
  }
  synth_model_destroy(&m);
  return code;
}

int cli_synth(const cli_settings *s) {
  cli_settings with_seed = *s;
  if (s->arguments_n) {
    cli_fail("synth takes no arguments: is \"%.60s\" meant for --output?", s->arguments[0]);
    return CLI_USAGE;
  }
  const synth_shape *shape = find_shape(s->shape);
  if (!shape) return CLI_USAGE;
  if (!s->output || !*s->output) {
    cli_fail("synth needs a file to write: --output FILE");
    return CLI_USAGE;
  }
  if (!may_write(s->output, s->force)) return CLI_FAILED;
  if (!s->seeded) with_seed.seed = 1;
  return write_model(&with_seed, shape);
}
