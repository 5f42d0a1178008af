/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the table of all options. To add one: a field in cli_settings, a line in options.c, a
 * line in docs/CLI.md. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "cli/cli.h"

typedef enum option_type {
  OPTION_FLAG,
  OPTION_TEXT,
  OPTION_INTEGER,
  OPTION_REAL,
  OPTION_SIZE,
  OPTION_CHOICE,
  OPTION_LIST /* some of the choices, with commas between; kept as text */
} option_type;

typedef struct option {
  const char *name;  /* without dashes; also the key of the config file, and TROIKA_<NAME> */
  const char *alias; /* a second name, or NULL */
  char letter;       /* 0: none */
  option_type type;
  unsigned commands;   /* bit 1 << CLI_RUN ... */
  const char *value;   /* "N", "FILE": how help calls it */
  const char *missing; /* default, as a text; NULL: none */
  double min, max;     /* INTEGER, REAL, SIZE */
  const char *choices; /* CHOICE, LIST: "a|b|c" */
  const char *help;    /* without the default; help adds it */
  size_t offset;       /* in cli_settings */
} option;

extern const option options_table[];
extern const unsigned options_count;

const option *option_find(const char *name, size_t len);
const option *option_find_letter(char letter);
/* The known name of this command that is most like it, or NULL. */
const char *option_nearest(const char *name, cli_command command);
/* Checks and stores. text is borrowed. False: `problem` says what is allowed. */
bool option_set(const option *o, const char *text, cli_settings *s, char *problem,
                size_t problem_size);
void options_set_defaults(cli_settings *s);
bool options_set_environment(cli_settings *s, cli_command command);
/* $TROIKA_API_KEY, which is no option: a key on the command line is seen by all. May be NULL. */
const char *option_api_key(void);
/* $XDG_CONFIG_HOME/troika/config or ~/.config/troika/config; $XDG_CACHE_HOME/troika/models or
 * ~/.cache/troika/models. False: no home. */
bool option_config_path(char *out, size_t size);
bool option_models_folder(char *out, size_t size);
/* $XDG_CACHE_HOME/troika/profiles/ or ~/.cache/troika/profiles/. */
bool option_profiles_folder(char *out, size_t size);
/* $XDG_STATE_HOME/troika/history or ~/.local/state/troika/history; a file below the home folder. */
bool option_history_path(char *out, size_t size);
bool option_home_path(const char *rest, char *out, size_t size);
/* Neither NO_COLOR nor TERM=dumb: a terminal may get escape sequences, if it is a known one. */
bool option_terminal_has_styles(void);
bool option_terminal_has_cursor(void); /* TERM alone: the cursor may be moved */

#endif
