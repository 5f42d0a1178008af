/* SPDX-License-Identifier: Apache-2.0 */
/* os.h - what is asked of the operating system: files, memory, threads' number, time to sleep.
 * Linux first; the rest of the house sees only these calls. Any thread unless said otherwise. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

/* A whole file, read-only, mapped. Owned: os_map_close. An empty file is TROIKA_FORMAT. */
typedef struct os_map {
  const uint8_t *data;
  size_t len;
} os_map;
troika_status os_map_open(const char *path, os_map *out, troika_error *err);
void os_map_close(os_map *map);
/* Drops the pages that lie wholly inside [offset, offset+len) from this process's memory; they can
 * be read again from the file. */
void os_map_drop(const os_map *map, size_t offset, size_t len);

/* Zeroed memory of its own, page-aligned (huge pages where the kernel has them free). Owned:
 * os_memory_free with the same len. NULL if there is none. Touches nothing. */
void *os_memory(size_t len);
void os_memory_free(void *memory, size_t len);

uint64_t os_memory_resident(void); /* of this process now, bytes */
uint64_t os_memory_peak(void);     /* highest resident set of this process so far, bytes */
uint64_t os_memory_available(
    void); /* what this process may still take: machine and cgroup limit, bytes */

/* Processors this process may use: affinity, cut by the cgroup's quota (rounded up), at least 1.
 * `root` is "" on a real machine; tests give a folder with their own /sys and /proc files. */
unsigned os_cpus(const char *root);

/* Ties the calling thread to the index-th processor that the process may use, if these are exactly
 * `threads` many; else does nothing, as the scheduler knows better. */
void os_thread_pin(unsigned index, unsigned threads);

/* What tools (ps -T, perf) call the calling thread; at most 15 bytes. */
void os_thread_name(const char *name);

/* Unpredictable bytes. */
void os_random(void *out, size_t len);

/* Waits while *word == expected, until woken or timeout_ns (negative: for ever) is over. May wake
 * early. */
void os_futex_wait(const uint32_t *word, uint32_t expected, int64_t timeout_ns);
void os_futex_wake(const uint32_t *word, int count);

/* Bytes that a TCP socket has received since it was opened; 0 where the system does not say. */
uint64_t os_socket_received(int fd);
/* Raises this process's limit of open files as far as it may; returns the limit. */
uint64_t os_files_raise(void);

/* A condition whose timed waits are on the clock of clock_real. */
void os_cond_init(pthread_cond_t *condition);

#endif
