/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static volatile sig_atomic_t seen;

static void on_signal(int number) {
  seen = 1;
  signal(number, SIG_DFL); /* the next one ends the process */
}

void cli_signals_catch(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal; /* without SA_RESTART: a read from the terminal ends with EINTR */
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

bool cli_signals_seen(void) {
  return seen != 0;
}
