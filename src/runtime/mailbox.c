/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/mailbox.h"

#include "base/os.h"

void mailbox_nudge(mailbox *m) {
  atomic_fetch_add(&m->signal, 1);
  if (atomic_load(&m->sleeping)) os_futex_wake((const uint32_t *)&m->signal, 1);
}

void mailbox_post(mailbox *m, message *letter) {
  message *head = atomic_load_explicit(&m->head, memory_order_relaxed);
  do letter->next = head;
  while (!atomic_compare_exchange_weak_explicit(&m->head, &head, letter, memory_order_release,
                                                memory_order_relaxed));
  mailbox_nudge(m);
}

message *mailbox_take(mailbox *m) {
  message *newest = atomic_exchange_explicit(&m->head, NULL, memory_order_acquire), *oldest = NULL;
  while (newest) {
    message *next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  return oldest;
}

void mailbox_sleep(mailbox *m, uint32_t seen, int64_t timeout_ns) {
  atomic_store(&m->sleeping, 1);
  if (atomic_load(&m->signal) == seen)
    os_futex_wait((const uint32_t *)&m->signal, seen, timeout_ns);
  atomic_store(&m->sleeping, 0);
}
