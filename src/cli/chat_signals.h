/* SPDX-License-Identifier: Apache-2.0 */
/* chat_signals.h - signals of a chat, where Ctrl-C never ends the process.
 *
 * Handlers set a flag and write into a pipe, so that whoever waits for input sees both in one poll
 * and nothing is lost between looking and waiting; which thread a signal hits does not matter. Main
 * thread. */
#ifndef CLI_CHAT_SIGNALS_H
#define CLI_CHAT_SIGNALS_H

#include <stdbool.h>

typedef enum chat_signal { CHAT_CTRL_C, CHAT_TERMINATE, CHAT_RESIZE, CHAT_SUSPEND } chat_signal;

/* Ctrl-C, SIGTERM, window changes. A second SIGTERM ends the process. False: errno. */
bool chat_signals_catch(void);
/* Ctrl-Z too, while the terminal's modes are the editor's. */
void chat_signals_catch_suspend(bool on);
/* Readable when a signal has come; chat_signals_drain empties it. */
int chat_signals_fd(void);
void chat_signals_drain(void);
/* Whether it has come since the last call. TERMINATE stays true. */
bool chat_signals_take(chat_signal which);

#endif
