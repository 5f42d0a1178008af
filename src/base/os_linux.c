/* SPDX-License-Identifier: Apache-2.0 */
/* The Linux side of os.h. */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

enum { HUGE_PAGE = 2 * 1024 * 1024 };

troika_status os_map_open(const char *path, os_map *out, troika_error *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
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

uint64_t os_memory_peak(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

/* The first number in a small file, or `missing` ("max" and absence alike). */
static uint64_t read_number(const char *root, const char *path, const char *key, uint64_t missing) {
  char name[PATH_MAX], line[256];
  snprintf(name, sizeof name, "%s%s", root, path);
  FILE *f = fopen(name, "re");
  if (!f) return missing;
  uint64_t value = missing;
  while (fgets(line, sizeof line, f)) {
    size_t n = key ? strlen(key) : 0;
    unsigned long long v;
    if (key && strncmp(line, key, n)) continue;
    if (sscanf(line + n, " %llu", &v) == 1) value = v;
    break;
  }
  fclose(f);
  return value;
}

uint64_t os_memory_available(void) {
  uint64_t available = read_number("", "/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024) * 1024;
  uint64_t limit = read_number("", "/sys/fs/cgroup/memory.max", NULL, UINT64_MAX);
  if (limit == UINT64_MAX)
    limit = read_number("", "/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL, UINT64_MAX);
  uint64_t used =
      limit == UINT64_MAX ? 0 : read_number("", "/sys/fs/cgroup/memory.current", NULL, 0);
  uint64_t left = limit > used ? limit - used : 0;
  return available < left ? available : left;
}

unsigned os_cpus(const char *root) {
  unsigned cpus = 1;
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) cpus = (unsigned)CPU_COUNT(&set);
  char name[PATH_MAX];
  unsigned long long quota = 0, period = 0;
  snprintf(name, sizeof name, "%s/sys/fs/cgroup/cpu.max", root);
  FILE *f = fopen(name, "re");
  if (f) { /* version 2: "quota period", or "max period" */
    if (fscanf(f, "%llu %llu", &quota, &period) != 2) quota = period = 0;
    fclose(f);
  } else { /* version 1; a quota of -1 is none */
    uint64_t q = read_number(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", NULL, 0);
    period = read_number(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", NULL, 0);
    quota = q > INT64_MAX ? 0 : q;
  }
  if (quota && period) {
    unsigned long long most = (quota + period - 1) / period;
    if (most < cpus) cpus = (unsigned)most;
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
