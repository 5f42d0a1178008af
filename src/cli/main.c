/* SPDX-License-Identifier: Apache-2.0 */
/* troika COMMAND ...: finds the command, reads its settings, runs it. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/bench.h"
#include "cli/cli.h"

static int run_command(cli_command command, const cli_settings *s) {
  switch (command) {
    case CLI_RUN:
      return cli_run(s);
    case CLI_CHAT:
      return cli_chat(s);
    case CLI_SERVE:
      return cli_serve(s);
    case CLI_BENCH:
      return cli_bench(s);
    case CLI_INSPECT:
      return cli_inspect(s);
    case CLI_TOKENIZE:
      return cli_tokenize(s);
    case CLI_PROFILE:
      return cli_profile(s);
    case CLI_TOP:
      return cli_top(s);
    case CLI_REPLAY:
      return cli_replay(s);
    case CLI_SYNTH:
      return cli_synth(s);
    default:
      return CLI_USAGE;
  }
}

static int find_command(const char *name) {
  for (int i = 0; i < CLI_COMMANDS; i++)
    if (!strcmp(name, cli_command_name((cli_command)i))) return i;
  return -1;
}

static int unknown_command(const char *name) {
  const char *names[CLI_COMMANDS + 2] = {"help", "version"};
  for (int i = 0; i < CLI_COMMANDS; i++) names[2 + i] = cli_command_name((cli_command)i);
  const char *near = cli_nearest(name, names, CLI_COMMANDS + 2);
  if (near)
    fprintf(stderr, "troika: there is no command \"%.60s\"; did you mean %s?\n", name, near);
  else
    fprintf(stderr, "troika: there is no command \"%.60s\"; \"troika help\" lists all\n", name);
  return CLI_USAGE;
}

static int help(int argc, char **argv) {
  const char *name = argc > 2 ? argv[2] : "help";
  int command = find_command(name);
  if (command >= 0)
    cli_help((cli_command)command);
  else if (!strcmp(name, "help") || !strcmp(name, "version") || name[0] == '-')
    cli_help_all();
  else
    return unknown_command(name);
  return CLI_OK;
}

/* What was to be written is written, or the command has failed (a full disk). */
static int end(int code) {
  if (fflush(stdout) || ferror(stdout))
    return code ? code : cli_fail("cannot write to standard output");
  return code;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
    return end(help(argc, argv));
  if (!strcmp(name, "version") || !strcmp(name, "--version")) {
    printf("troika %s (%s)\n", troika_version(), bench_commit);
    return end(CLI_OK);
  }
  int command = find_command(name);
  if (command < 0) {
    if (*name) return unknown_command(name);
    fprintf(stderr,
            "troika: which command? run, chat, serve, top, replay, bench, inspect, tokenize, "
            "synth, profile, help, version\n");
    return CLI_USAGE;
  }
  log_setup(LOG_WARN, false); /* serve says more */
  cli_settings settings;
  int code = CLI_USAGE;
  if (cli_settings_read((cli_command)command, argc - 2, argv + 2, &settings)) {
    if (settings.help) {
      cli_help((cli_command)command);
      code = CLI_OK;
    } else {
      code = run_command((cli_command)command, &settings);
    }
  }
  cli_settings_free(&settings);
  return end(code);
}
