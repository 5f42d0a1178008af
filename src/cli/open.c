/* SPDX-License-Identifier: Apache-2.0 */
/* From a model's name to an engine that runs, with what is wrong said in one sentence. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options.h"

/* Files that tools/fetch.py puts into the cache folder. */
static const struct {
  const char *name, *file;
} known_models[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf"},
};
enum { KNOWN = sizeof known_models / sizeof *known_models, TEMPLATE_MAX = 64 * 1024 };

int cli_fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("troika: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  return CLI_FAILED;
}

int cli_fail_file(const char *path, const char *sentence) {
  return strstr(sentence, path) ? cli_fail("%s", sentence) : cli_fail("%s: %s", path, sentence);
}

bool cli_read_fd(int fd, bytes_buffer *out) {
  char block[65536];
  for (;;) {
    ssize_t n = read(fd, block, sizeof block);
    if (n < 0 && errno == EINTR && !cli_signals_seen()) continue;
    if (n <= 0) return n == 0;
    troika_status status = bytes_reserve(out, (size_t)n);
    if (status) return errno = status == TROIKA_LIMIT ? EFBIG : ENOMEM, false;
    bytes_append(out, block, (size_t)n);
  }
}

bool cli_read_all(int fd, const char *name, bytes_buffer *out) {
  if (cli_read_fd(fd, out)) return true;
  if (errno == EFBIG)
    cli_fail("%s is larger than %zu bytes", name, out->max);
  else if (errno != EINTR) /* interrupted: nothing to be said */
    cli_fail("cannot read %s: %s", name, strerror(errno));
  return false;
}

bool cli_write_fd(int fd, const char *text, size_t len) {
  for (size_t done = 0; done < len;) {
    ssize_t n = write(fd, text + done, len - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += (size_t)n;
  }
  return true;
}

/* A terminal is not read (nobody waits for a prompt there); a closed input or /dev/null holds
 * nothing. */
bool cli_stdin_is_piped(void) {
  struct stat st;
  return !fstat(STDIN_FILENO, &st) &&
         (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

void cli_bytes_text(uint64_t bytes, char out[16]) {
  double v = (double)bytes;
  if (v >= 1e9)
    snprintf(out, 16, "%.2f GB", v / 1e9);
  else if (v >= 1e6)
    snprintf(out, 16, "%.1f MB", v / 1e6);
  else
    snprintf(out, 16, "%.1f kB", v / 1e3);
}

static void file_stem(const char *path, char *name, size_t size) {
  const char *slash = strrchr(path, '/');
  snprintf(name, size, "%s", slash ? slash + 1 : path);
  size_t len = strlen(name);
  if (len > 5 && !strcmp(name + len - 5, ".gguf")) name[len - 5] = 0;
}

bool cli_model_path(const char *model, char *path, size_t size, char *name, size_t name_size) {
  struct stat st;
  if (strchr(model, '/') || !stat(model, &st)) {
    if (snprintf(path, size, "%s", model) >= (int)size)
      return cli_fail("the model's path is too long"), false;
    file_stem(path, name, name_size);
    return true;
  }
  char folder[PATH_MAX];
  for (int i = 0; i < KNOWN; i++) {
    if (strcmp(model, known_models[i].name)) continue;
    if (!option_models_folder(folder, sizeof folder) ||
        snprintf(path, size, "%s/%s", folder, known_models[i].file) >= (int)size)
      return cli_fail("there is no cache folder: set HOME or XDG_CACHE_HOME"), false;
    if (stat(path, &st))
      return cli_fail(
                 "model %s is not here yet (%s): \"make run\" fetches smollm2, \"python3 "
                 "tools/fetch.py %s\" this one",
                 model, path, model),
             false;
    snprintf(name, name_size, "%s", model);
    return true;
  }
  return cli_fail("there is no file \"%.200s\", and it is not a known name (smollm2, gemma3)",
                  model),
         false;
}

static bool read_template(const char *file, bytes_buffer *out) {
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return cli_fail("cannot open %s: %s", file, strerror(errno)), false;
  bool ok = cli_read_all(fd, file, out);
  close(fd);
  return ok;
}

bool cli_model_open(const cli_settings *s, cli_engine *out) {
  *out = (cli_engine){0};
  troika_error err = {0};
  bytes_buffer source;
  bytes_init(&source, TEMPLATE_MAX);
  troika_model_options options = {.size = sizeof options};
  bool ok = cli_model_path(s->model, out->path, sizeof out->path, out->name, sizeof out->name) &&
            (!s->chat_template || read_template(s->chat_template, &source));
  if (ok && s->chat_template) options.chat_template = source.data ? source.data : "";
  int64_t t = clock_real_now(NULL);
  if (ok && troika_model_open(out->path, &options, &out->model, &err)) {
    bool ours = s->chat_template && !strncmp(err.text, "chat template: ", 15);
    cli_fail_file(ours ? s->chat_template : out->path, err.text);
    ok = false;
  }
  out->open_s = (double)(clock_real_now(NULL) - t) / 1e9;
  bytes_free(&source);
  return ok;
}

bool cli_engine_open(const cli_settings *s, uint32_t parallel, cli_engine *out) {
  if (!cli_model_open(s, out)) return false;
  cli_progress bar;
  troika_error err = {0};
  cli_progress_begin(&bar, "loading");
  troika_runtime_options options = {.size = sizeof options,
                                    .threads = (uint32_t)s->threads,
                                    .parallel = parallel,
                                    .queue_max = (uint32_t)s->queue_max,
                                    .context = (uint32_t)s->context,
                                    .kv_bytes = (uint64_t)s->kv_size,
                                    .activations = (troika_activations)s->activations,
                                    .cpu_levels = s->cpu_levels,
                                    .span_rows = (uint32_t)s->span_rows,
                                    .bcap = (uint32_t)s->bcap,
                                    .tpot_slack = s->tpot_slack,
                                    .tpot_target_ms = s->tpot_target,
                                    .ttft_target_ms = s->ttft_target,
                                    .age_limit_s = s->age_limit,
                                    .background_share = s->background_share,
                                    .degrade_first = s->overload == 1,
                                    .profile = s->profile_path,
                                    .trace = s->trace,
                                    .record = s->record,
                                    .progress = cli_progress_show,
                                    .progress_context = &bar};
  int64_t t = clock_real_now(NULL);
  troika_status status = troika_runtime_open(out->model, &options, &out->runtime, &err);
  cli_progress_end(&bar);
  out->open_s += (double)(clock_real_now(NULL) - t) / 1e9;
  if (!status) return true;
  cli_fail("%s", err.text);
  cli_engine_close(out);
  return false;
}

void cli_engine_close(cli_engine *e) {
  if (e->runtime) troika_runtime_close(&e->runtime);
  if (e->model) troika_model_close(&e->model);
}
