/* SPDX-License-Identifier: Apache-2.0 */
/* troika COMMAND ...: finds the command, reads its settings, runs it. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"

static int run_command(cli_command command, const cli_settings *s) {
  switch (command) {
    case CLI_RUN:
      return cli_run(s);
    case CLI_SERVE:
      return cli_serve(s);
    case CLI_BENCH:
      return cli_bench(s);
    case CLI_INSPECT:
      return cli_inspect(s);
    case CLI_TOKENIZE:
      return cli_tokenize(s);
    default:
      return CLI_USAGE;
  }
}

static int find_command(const char *name) {
  for (int i = 0; i < CLI_COMMANDS; i++)
    if (!strcmp(name, cli_command_name((cli_command)i))) return i;
  return -1;
}

static int help(int argc, char **argv) {
  int command = argc > 2 ? find_command(argv[2]) : -1;
  if (command >= 0)
    cli_help((cli_command)command);
  else
    cli_help_all();
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
    printf("troika %s\n", troika_version());
    return end(CLI_OK);
  }
  int command = find_command(name);
  if (command < 0) {
    if (*name)
      fprintf(stderr,
              "troika: there is no command \"%.60s\": run, serve, bench, inspect, tokenize, help, "
              "version\n",
              name);
    else
      fprintf(stderr,
              "troika: which command? run, serve, bench, inspect, tokenize, help, version\n");
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
