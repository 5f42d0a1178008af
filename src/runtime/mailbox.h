/* SPDX-License-Identifier: Apache-2.0 */
/* mailbox.h - messages to the runtime thread: many senders, one reader, no lock, no allocation.
 * A message is embedded in what it is about and belongs to the mailbox from post until take. */
#ifndef RUNTIME_MAILBOX_H
#define RUNTIME_MAILBOX_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct message {
  struct message *next;
  uint8_t kind;
} message;

typedef struct mailbox {
  _Atomic(message *) head; /* newest first */
  _Atomic uint32_t signal; /* futex word */
  _Atomic uint32_t sleeping;
} mailbox;

void mailbox_post(mailbox *m, message *letter);
void mailbox_nudge(mailbox *m); /* wakes the reader without a message */
/* All messages, oldest first; NULL if there is none. Reader only. */
message *mailbox_take(mailbox *m);
/* Sleeps until a post or nudge after `seen` was read from signal, or timeout_ns (negative: for
 * ever). */
void mailbox_sleep(mailbox *m, uint32_t seen, int64_t timeout_ns);
static inline uint32_t mailbox_signal(mailbox *m) {
  return atomic_load(&m->signal);
}

#endif
