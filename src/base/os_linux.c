/* SPDX-License-Identifier: Apache-2.0 */
/* The Linux side of os.h. */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { HUGE_PAGE = 2 * 1024 * 1024 };

troika_status os_map_open(const char *path, os_map *out, troika_error *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would block */
  if (fd < 0)
    return error_set(err, errno == ENOENT ? TROIKA_NOT_FOUND : TROIKA_IO, "cannot open %s: %s",
                     path, strerror(errno));
  troika_status status = TROIKA_OK;
  struct stat st;
  if (fstat(fd, &st)) {
    status = error_set(err, TROIKA_IO, "cannot read %s: %s", path, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    status = error_set(err, TROIKA_FORMAT, "%s is not a regular file", path);
  } else if (st.st_size == 0) {
    status = error_set(err, TROIKA_FORMAT, "%s is empty", path);
  } else {
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
      status = error_set(err, TROIKA_IO, "cannot map %s: %s", path, strerror(errno));
    else
      *out = (os_map){p, (size_t)st.st_size};
  }
  close(fd);
  return status;
}

void os_map_close(os_map *map) {
  if (map->data) munmap((void *)(uintptr_t)map->data, map->len);
  *map = (os_map){0};
}

void os_map_drop(const os_map *map, size_t offset, size_t len) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uintptr_t begin = (uintptr_t)map->data + offset, end = begin + len;
  begin = (begin + page - 1) & ~(uintptr_t)(page - 1);
  end &= ~(uintptr_t)(page - 1);
  if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static size_t memory_length(size_t len) {
  size_t unit = len >= HUGE_PAGE ? HUGE_PAGE : 4096;
  return (len + unit - 1) & ~(unit - 1);
}

void *os_memory(size_t len) {
  if (len == 0 || len > SIZE_MAX / 2) return NULL;
  size_t bytes = memory_length(len), slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
  char *p = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  if (slack) { /* cut to a huge-page boundary on both sides */
    size_t head = -(uintptr_t)p & (HUGE_PAGE - 1);
    if (head) munmap(p, head);
    p += head;
    if (slack > head) munmap(p + bytes, slack - head);
    madvise(p, bytes, MADV_HUGEPAGE);
  }
  return p;
}

void os_memory_free(void *memory, size_t len) {
  if (memory) munmap(memory, memory_length(len));
}

uint64_t os_memory_resident(void) {
  char line[128] = "";
  FILE *f = fopen("/proc/self/statm", "re");
  if (!f) return 0;
  const char *second = fgets(line, sizeof line, f) ? strchr(line, ' ') : NULL;
  fclose(f);
  return second ? strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

uint64_t os_memory_peak(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

/* The first number in a small file, or after `key` at the start of a line; `missing` if there is
 * none ("max" and absence alike). */
static uint64_t read_number(const char *root, const char *path, const char *key, uint64_t missing) {
  char name[2 * PATH_MAX], line[256], *end;
  snprintf(name, sizeof name, "%s%s", root, path);
  FILE *f = fopen(name, "re");
  if (!f) return missing;
  uint64_t value = missing;
  size_t n = key ? strlen(key) : 0;
  while (fgets(line, sizeof line, f)) {
    if (key && strncmp(line, key, n) != 0) continue;
    unsigned long long v = strtoull(line + n, &end, 10);
    if (end != line + n) value = v;
    break;
  }
  fclose(f);
  return value;
}

/* The control group of this process under version 2, "" at the top or where there is none. */
static void own_cgroup(const char *root, char out[PATH_MAX]) {
  char name[PATH_MAX], line[PATH_MAX];
  out[0] = 0;
  snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
  FILE *f = fopen(name, "re");
  if (!f) return;
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, "0::/", 4))
      snprintf(out, PATH_MAX, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
  fclose(f);
  if (!strcmp(out, "/")) out[0] = 0;
}

/* "/a/b" to "/a", "/a" to "", and false from "". */
static bool parent_cgroup(char path[PATH_MAX]) {
  char *slash = strrchr(path, '/');
  if (slash) *slash = 0;
  return slash != NULL;
}

uint64_t os_memory_available(void) {
  uint64_t least = read_number("", "/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024) * 1024;
  char group[PATH_MAX], name[PATH_MAX + 64];
  own_cgroup("", group);
  do { /* each level up may set a limit of its own */
    snprintf(name, sizeof name, "/sys/fs/cgroup%s/memory.max", group);
    uint64_t limit = read_number("", name, NULL, UINT64_MAX);
    snprintf(name, sizeof name, "/sys/fs/cgroup%s/memory.current", group);
    uint64_t used = limit == UINT64_MAX ? 0 : read_number("", name, NULL, 0);
    uint64_t left = limit > used ? limit - used : 0;
    if (left < least) least = left;
  } while (parent_cgroup(group));
  uint64_t limit = read_number("", "/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL, UINT64_MAX);
  uint64_t used = read_number("", "/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL, 0);
  uint64_t left = limit > used ? limit - used : 0;
  return left < least ? left : least;
}

/* Processors worth of a version 2 "cpu.max" ("quota period", or "max period"); UINT_MAX if it sets
 * no limit. */
static unsigned quota_cpus(const char *name) {
  char line[128], *end;
  FILE *f = fopen(name, "re");
  if (!f) return UINT_MAX;
  unsigned most = UINT_MAX;
  if (fgets(line, sizeof line, f)) {
    unsigned long long quota = strtoull(line, &end, 10), period = strtoull(end, NULL, 10);
    if (end != line && quota && period && (quota + period - 1) / period < UINT_MAX)
      most = (unsigned)((quota + period - 1) / period);
  }
  fclose(f);
  return most;
}

unsigned os_cpus(const char *root) {
  unsigned cpus = 1;
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) cpus = (unsigned)CPU_COUNT(&set);
  char group[PATH_MAX], name[2 * PATH_MAX + 64];
  own_cgroup(root, group);
  do {
    snprintf(name, sizeof name, "%s/sys/fs/cgroup%s/cpu.max", root, group);
    unsigned most = quota_cpus(name);
    if (most < cpus) cpus = most;
  } while (parent_cgroup(group));
  snprintf(name, sizeof name, "%s/sys/fs/cgroup/cpu.max", root);
  if (access(name, F_OK)) { /* version 1; a quota of -1 is none */
    uint64_t quota = read_number(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", NULL, 0);
    uint64_t period = read_number(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", NULL, 0);
    if (quota && period && quota <= INT64_MAX && (quota + period - 1) / period < cpus)
      cpus = (unsigned)((quota + period - 1) / period);
  }
  return cpus ? cpus : 1;
}

void os_thread_pin(unsigned index, unsigned threads) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) || (unsigned)CPU_COUNT(&all) != threads) return;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all) || index--) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

void os_random(void *out, size_t len) {
  uint8_t *at = out;
  while (len) { /* never fails once the system is up, but may give less than asked */
    ssize_t n = getrandom(at, len, 0);
    if (n < 0 && errno != EINTR) { /* forbidden here: a clock has to do for a seed */
      for (size_t i = 0; i < len; i++) at[i] = (uint8_t)(clock_real_now(NULL) >> (i % 4 * 8));
      return;
    }
    if (n <= 0) continue;
    at += n;
    len -= (size_t)n;
  }
}

void os_futex_wait(const uint32_t *word, uint32_t expected, int64_t timeout_ns) {
  struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

void os_futex_wake(const uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void os_thread_name(const char *name) {
  prctl(PR_SET_NAME, name);
}

uint64_t os_socket_received(int fd) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len)) return 0;
  return info.tcpi_bytes_received;
}

uint64_t os_files_raise(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    struct rlimit most = {limit.rlim_max, limit.rlim_max};
    if (!setrlimit(RLIMIT_NOFILE, &most)) return most.rlim_cur;
  }
  return limit.rlim_cur;
}

void os_cond_init(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
}
