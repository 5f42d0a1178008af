/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the config file, the environment and the command line, in this order. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/options.h"

enum { CONFIG_MAX = 1024 * 1024 };

static bool complain(cli_command command, const char *problem) {
  fprintf(stderr, "troika %s: %s\n", cli_command_name(command), problem);
  return false;
}

static bool unknown(cli_command command, const char *dashes, const char *name) {
  char problem[256];
  const char *near = option_nearest(name, command);
  if (near)
    snprintf(problem, sizeof problem, "unknown option %s%.60s; did you mean --%s?", dashes, name,
             near);
  else
    snprintf(problem, sizeof problem, "unknown option %s%.60s; \"troika %s --help\" lists all",
             dashes, name, cli_command_name(command));
  return complain(command, problem);
}

static char *trim(char *text) {
  while (*text == ' ' || *text == '\t') text++;
  for (size_t n = strlen(text); n && strchr(" \t\r", text[n - 1]); n--) text[n - 1] = 0;
  return text;
}

/* One line: empty, "# comment", or "key = value" with optional quotes around the value. Keys of
 * other commands are checked too. */
static bool config_line(const char *file, unsigned number, char *line, cli_command command,
                        cli_settings *s) {
  char problem[256];
  char *key = trim(line), *value = strchr(key, '=');
  if (!*key || *key == '#') return true;
  if (!value) {
    fprintf(stderr, "troika: %s, line %u: expected \"key = value\"\n", file, number);
    return false;
  }
  *value++ = 0;
  key = trim(key);
  value = trim(value);
  size_t len = strlen(value);
  if (len >= 2 && (*value == '"' || *value == '\'') && value[len - 1] == *value) {
    value[len - 1] = 0;
    value++;
  }
  const option *o = option_find(key, strlen(key));
  if (o &&
      (o->offset == offsetof(cli_settings, help) || o->offset == offsetof(cli_settings, config))) {
    fprintf(stderr, "troika: %s, line %u: %s is an option of the command line only\n", file, number,
            o->name);
    return false;
  }
  if (!o) {
    const char *near = NULL;
    for (int c = 0; c < CLI_COMMANDS && !near; c++) near = option_nearest(key, (cli_command)c);
    fprintf(stderr, "troika: %s, line %u: unknown setting \"%.60s\"%s%s\n", file, number, key,
            near ? "; did you mean " : "", near ? near : "");
    return false;
  }
  cli_settings elsewhere = {0};
  if (option_set(o, value, o->commands & 1u << command ? s : &elsewhere, problem, sizeof problem))
    return true;
  fprintf(stderr, "troika: %s, line %u: %s\n", file, number, problem);
  return false;
}

static bool config_read(const char *path, bool must_exist, cli_command command, cli_settings *s) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 && !must_exist && (errno == ENOENT || errno == ENOTDIR || errno == EACCES))
    return true;
  if (fd < 0) {
    fprintf(stderr, "troika: cannot open %s: %s\n", path, strerror(errno));
    return false;
  }
  bytes_buffer text;
  bytes_init(&text, CONFIG_MAX);
  bool ok = cli_read_all(fd, path, &text);
  close(fd);
  if (ok && text.len && memchr(text.data, 0, text.len)) /* what follows it would be lost unsaid */
    ok = (cli_fail("%s is not a text file: it holds a NUL byte", path), false);
  char *copy = ok ? arena_copy_string(&s->owned, text.data ? text.data : "", text.len) : NULL;
  bytes_free(&text);
  if (!copy) return false;
  unsigned number = 1;
  for (char *line = copy; ok && line; number++) {
    char *end = strchr(line, '\n');
    if (end) *end++ = 0;
    ok = config_line(path, number, line, command, s);
    line = end;
  }
  return ok;
}

/* The value of --config, before anything else is looked at. */
static const char *config_argument(int argc, char **argv) {
  for (int i = 0; i < argc && strcmp(argv[i], "--"); i++) {
    if (!strncmp(argv[i], "--config=", 9)) return argv[i] + 9;
    if (!strcmp(argv[i], "--config") && i + 1 < argc) return argv[i + 1];
  }
  return NULL;
}

static bool set_option(const option *o, const char *text, cli_command command, cli_settings *s) {
  char problem[300] = "--";
  return option_set(o, text, s, problem + 2, sizeof problem - 2) || complain(command, problem);
}

/* --name, --name=value, --name value, --no-name for flags, -x, -x value, -xvalue. Moves *i past
 * what it took. */
static bool take_option(int argc, char **argv, int *i, cli_command command, cli_settings *s) {
  const char *word = argv[*i], *value = NULL, *name = word + 2;
  const option *o;
  char problem[128];
  bool no = false;
  if (word[1] == '-') {
    size_t len = strcspn(name, "=");
    if (name[len]) value = name + len + 1;
    o = option_find(name, len);
    if (!o && !strncmp(name, "no-", 3)) {
      o = option_find(name + 3, len - 3);
      no = o && o->type == OPTION_FLAG && !value;
      if (!no) o = NULL;
    }
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(len > 60 ? 60 : len), name);
    if (!o || !(o->commands & 1u << command)) return unknown(command, "--", text);
  } else {
    o = option_find_letter(word[1]);
    if (!o || !(o->commands & 1u << command)) return unknown(command, "", word);
    if (word[2] && o->type != OPTION_FLAG) value = word + 2 + (word[2] == '=');
    if (word[2] && o->type == OPTION_FLAG) return unknown(command, "", word);
  }
  if (o->type == OPTION_FLAG)
    return set_option(o, value ? value : no ? "false" : "true", command, s);
  if (!value && *i + 1 < argc) value = argv[++*i];
  if (!value) {
    snprintf(problem, sizeof problem, "--%s needs a value: %s", o->name, o->value);
    return complain(command, problem);
  }
  return set_option(o, value, command, s);
}

bool cli_settings_read(cli_command command, int argc, char **argv, cli_settings *out) {
  cli_settings *s = out;
  char path[PATH_MAX];
  options_set_defaults(s);
  s->arguments = calloc((size_t)argc + 1, sizeof *s->arguments);
  if (!s->arguments) return complain(command, "out of memory");
  const char *config = config_argument(argc, argv);
  if (config) {
    if (!config_read(config, true, command, s)) return false;
  } else if (option_config_path(path, sizeof path) && !config_read(path, false, command, s)) {
    return false;
  }
  if (!options_set_environment(s, command)) return false;
  bool only_arguments = false;
  for (int i = 0; i < argc; i++) {
    if (only_arguments || argv[i][0] != '-' || !argv[i][1])
      s->arguments[s->arguments_n++] = argv[i];
    else if (!strcmp(argv[i], "--"))
      only_arguments = true;
    else if (!take_option(argc, argv, &i, command, s))
      return false;
  }
  return true;
}

void cli_settings_free(cli_settings *s) {
  free(s->arguments);
  arena_free(&s->owned);
}
