/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - what the subcommands share: settings, exit codes, the model, progress, signals.
 *
 * Settings come from one table (options.c), which feeds the command line, the environment, the
 * config file and every --help. Which wins: command line  >  TROIKA_<OPTION>  >  config file  >
 * default */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "troika/model.h"
#include "troika/runtime.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

typedef enum cli_command {
  CLI_RUN,
  CLI_CHAT,
  CLI_SERVE,
  CLI_BENCH,
  CLI_INSPECT,
  CLI_TOKENIZE,
  CLI_SYNTH,
  CLI_PROFILE,
  CLI_TOP,
  CLI_REPLAY,
  CLI_COMMANDS
} cli_command;

typedef struct cli_settings {
  const char *model, *model_name, *chat_template, *cpu_levels, *config;
  int64_t threads, parallel, queue_max, context, kv_size, span_rows;
  int activations, log_level; /* indices of their choices */
  bool help, verbose, log_json, json;
  /* run */
  const char *system, *stop;
  int64_t max_tokens, seed, top_k, repeat_last;
  double temperature, top_p, min_p, repeat_penalty;
  bool raw, ignore_eos;
  const char *load; /* chat */
  /* serve */
  int64_t bcap;
  double tpot_slack, tpot_target, ttft_target, age_limit, background_share;
  int overload; /* index of its choices: admit-first, degrade-first */
  const char *trace, *record;
  const char *profile; /* also of profile: "auto", "off" or a file */
  const char *host;
  const char *api_key_file, *cors_origin;
  int default_class; /* index of its choices: reactive, proactive */
  bool no_heuristics, share_cache;
  int64_t port, body_max, keepalive_s, drain_s, connections_max, request_time_s;
  /* bench */
  const char *prefill, *batch;
  int64_t decode, repetitions, warmups;
  /* tokenize */
  bool ids, decode_ids, special, no_bos, count;
  /* synth */
  const char *shape, *output;
  int mix; /* index of its choice: synth_mix */
  bool force;
  /* top */
  const char *url;
  double interval;
  bool once;

  const char *profile_path; /* what that means; NULL: none. Set by those that use it */
  bool seeded;              /* --seed was given */
  const char **arguments;   /* what is no option; borrowed from argv */
  int arguments_n;
  arena owned; /* texts that came from a file */
} cli_settings;

/* --- parse.c. False: said on stderr what is wrong. argv begins after the subcommand. */
bool cli_settings_read(cli_command command, int argc, char **argv, cli_settings *out);
void cli_settings_free(cli_settings *s);

/* --- help.c */
void cli_help(cli_command command);
void cli_help_all(void);
const char *cli_command_name(cli_command command);
/* The name that is most like it, or NULL. */
const char *cli_nearest(const char *name, const char *const *names, unsigned n);

/* --- the subcommands: exit code */
int cli_run(const cli_settings *s);
int cli_chat(const cli_settings *s);
int cli_serve(const cli_settings *s);
int cli_bench(const cli_settings *s);
int cli_inspect(const cli_settings *s);
int cli_tokenize(const cli_settings *s);
int cli_synth(const cli_settings *s);
int cli_profile(const cli_settings *s);
int cli_top(const cli_settings *s);
int cli_replay(const cli_settings *s);

/* --- open.c. Failures are said on stderr. */
typedef struct cli_engine {
  troika_model *model;
  troika_runtime *runtime;
  char path[PATH_MAX];
  char name[128]; /* short name, or the file's name without .gguf */
  double open_s;  /* both together */
} cli_engine;
/* A path, or the short name of a model in the cache folder. */
bool cli_model_path(const char *model, char *path, size_t size, char *name, size_t name_size);
bool cli_model_open(const cli_settings *s, cli_engine *out);
/* parallel: requests at once that this command needs. */
bool cli_engine_open(const cli_settings *s, uint32_t parallel, cli_engine *out);
void cli_engine_close(cli_engine *e);
/* "troika: " and the sentence; returns CLI_FAILED. */
int cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same about a file: its path first, unless the sentence has it. */
int cli_fail_file(const char *path, const char *sentence);
/* What fd still holds, appended. False: errno; EFBIG if it is more than out may take, EINTR if
 * cli_signals_seen. */
bool cli_read_fd(int fd, bytes_buffer *out);
/* The same of a file, or standard input, that has a name. False: said why. */
bool cli_read_all(int fd, const char *name, bytes_buffer *out);
/* False: errno. */
bool cli_write_fd(int fd, const char *text, size_t len);
bool cli_stdin_is_piped(void);
void cli_bytes_text(uint64_t bytes, char out[16]); /* "94.2 MB" */

/* --- profile.c: where --profile says that the measured costs are; "": nowhere. The cache's folder
 * is made, and named with a slash at its end. False: said why. */
bool cli_profile_path(const char *setting, char *out, size_t size);

/* --- serve_keys.c: the API keys of --api-key-file and $TROIKA_API_KEY, one a line and nothing
 * else; empty if neither is given: then nobody is asked for one. False: said why. */
bool cli_serve_keys(const cli_settings *s, bytes_buffer *out);

/* --- progress.c: a bar on stderr, only if that is a terminal, and only for work longer than a
 * blink. */
typedef struct cli_progress {
  const char *what;
  int64_t started_ns, drawn_ns;
  bool terminal, visible;
} cli_progress;
void cli_progress_begin(cli_progress *p, const char *what);
void cli_progress_show(void *progress, uint64_t done, uint64_t total);
void cli_progress_end(cli_progress *p);

/* --- terminal.c: text of a model as a terminal may see it. Control characters but newline and tab
 * become pictures of them, carriage returns go. Appends. */
void cli_text_for_terminal(const char *text, size_t len, bytes_buffer *out);
/* Whole characters; as they are if `out` is no terminal. Flushes. */
void cli_write_text(FILE *out, const char *text, size_t len, bool terminal);

/* --- signals.c: the first SIGINT or SIGTERM asks, the second one ends the process. */
void cli_signals_catch(void);
bool cli_signals_seen(void);

#endif
