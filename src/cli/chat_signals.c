/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { SIGNALS = 4 };
static atomic_int seen[SIGNALS]; /* lock-free, so a handler may write it, in any thread */
static int ends[2] = {-1, -1};

static void on_signal(int number) {
  int error = errno;
  if (number == SIGTERM) signal(SIGTERM, SIG_DFL);
  chat_signal which = number == SIGINT     ? CHAT_CTRL_C
                      : number == SIGTERM  ? CHAT_TERMINATE
                      : number == SIGWINCH ? CHAT_RESIZE
                                           : CHAT_SUSPEND;
  atomic_store(&seen[which], 1);
  ssize_t n = write(ends[1], "", 1); /* full: then it is readable anyway */
  (void)n;
  errno = error;
}

static void catch_one(int number, void (*handler)(int)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART; /* waiting is done by poll, which is never restarted */
  sigaction(number, &action, NULL);
}

bool chat_signals_catch(void) {
  if (ends[0] < 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return false;
  catch_one(SIGINT, on_signal);
  catch_one(SIGTERM, on_signal);
  catch_one(SIGWINCH, on_signal);
  return true;
}

void chat_signals_catch_suspend(bool on) {
  catch_one(SIGTSTP, on ? on_signal : SIG_DFL);
}

int chat_signals_fd(void) {
  return ends[0];
}

void chat_signals_drain(void) {
  char bytes[64];
  while (read(ends[0], bytes, sizeof bytes) > 0) {
  }
}

bool chat_signals_take(chat_signal which) {
  return which == CHAT_TERMINATE ? atomic_load(&seen[which]) : atomic_exchange(&seen[which], 0);
}
