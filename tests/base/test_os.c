/* SPDX-License-Identifier: Apache-2.0 */
/* os.h and clock.h. os_cpus gets a folder with /sys files of its own, in both versions of cgroups.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"

static char root[PATH_MAX];

static int root_make(void **state) {
  (void)state;
  const char *base = getenv("TMPDIR");
  snprintf(root, sizeof root, "%s/troika_os_XXXXXX", base ? base : P_tmpdir);
  return mkdtemp(root) ? 0 : -1;
}

/* Below root; folders are made as needed. NULL text: the file goes. */
static void put(const char *path, const char *text) {
  char name[PATH_MAX + 64];
  snprintf(name, sizeof name, "%s%s", root, path);
  if (!text) {
    unlink(name);
    return;
  }
  for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
    *p = 0;
    assert_true(!mkdir(name, 0700) || errno == EEXIST);
  }
  FILE *f = fopen(name, "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
  fclose(f);
}

static int root_remove(void **state) {
  (void)state;
  static const char *const paths[] = {"/file",
                                      "/empty",
                                      "/sys/fs/cgroup/cpu.max",
                                      "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                                      "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
                                      "/sys/fs/cgroup/a/cpu.max",
                                      "/proc/self/cgroup"};
  static const char *const folders[] = {"/sys/fs/cgroup/cpu",
                                        "/sys/fs/cgroup/a",
                                        "/sys/fs/cgroup",
                                        "/sys/fs",
                                        "/sys",
                                        "/proc/self",
                                        "/proc",
                                        ""};
  char name[PATH_MAX + 64];
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) put(paths[i], NULL);
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    snprintf(name, sizeof name, "%s%s", root, folders[i]);
    rmdir(name);
  }
  return access(root, F_OK) ? 0 : -1;
}

static unsigned affinity(void) {
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  return (unsigned)CPU_COUNT(&set);
}

static unsigned at_most(unsigned a, unsigned b) {
  return a < b ? a : b;
}

static void cpus_follow_quota_and_affinity(void **state) {
  (void)state;
  unsigned all = affinity();
  assert_int_equal(os_cpus(root), all); /* no files at all */
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  assert_int_equal(os_cpus(root), all);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  assert_int_equal(os_cpus(root), at_most(all, 2));
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  assert_int_equal(os_cpus(root), 1);
  static const struct {
    const char *text;
    unsigned most;
  } cases[] = {{"max 100000\n", UINT_MAX},
               {"100000 100000\n", 1},
               {"100001 100000\n", 2},
               {"1000 100000\n", 1},
               {"200000 100000\n", 2},
               {"9900000 100000\n", 99},
               {"", UINT_MAX},
               {"rubbish\n", UINT_MAX},
               {"0 100000\n", UINT_MAX},
               {"100000 0\n", UINT_MAX}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    put("/sys/fs/cgroup/cpu.max", cases[i].text); /* version 2 goes before version 1 */
    if (os_cpus(root) != at_most(all, cases[i].most))
      fail_msg("\"%s\": %u of %u", cases[i].text, os_cpus(root), all);
  }
  put("/sys/fs/cgroup/cpu.max", "max 100000\n");
  put("/proc/self/cgroup",
      "1:cpu:/x\n0::/a/b\n"); /* a service's own group, and its parent's limit */
  put("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  assert_int_equal(os_cpus(root), 1);
  put("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  assert_int_equal(os_cpus(root), all);
  cpu_set_t before, one;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(os_cpus(root), 1);
  assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
  assert_in_range(os_cpus(""), 1, all);
}

static void files_are_mapped(void **state) {
  (void)state;
  char name[PATH_MAX + 64];
  os_map map = {0};
  troika_error err;
  static char text[20000];
  for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = (char)('a' + i % 26);
  put("/file", text);
  put("/empty", "");
  snprintf(name, sizeof name, "%s/file", root);
  assert_int_equal(os_map_open(name, &map, &err), TROIKA_OK);
  assert_int_equal(map.len, sizeof text - 1);
  assert_memory_equal(map.data, text, map.len);
  static const size_t ranges[][2] = {{0, 20000}, {1, 5000}, {4096, 4096}, {5000, 10}, {19998, 1}};
  for (int i = 0; i < 5; i++) {
    os_map_drop(&map, ranges[i][0], ranges[i][1]);
    assert_memory_equal(map.data, text, map.len); /* it comes back from the file */
  }
  os_map_close(&map);
  assert_null(map.data);
  os_map_close(&map);
  snprintf(name, sizeof name, "%s/empty", root);
  assert_int_equal(os_map_open(name, &map, &err), TROIKA_FORMAT);
  snprintf(name, sizeof name, "%s/none", root);
  assert_int_equal(os_map_open(name, &map, &err), TROIKA_NOT_FOUND);
  assert_non_null(strstr(err.text, "none"));
  assert_int_equal(os_map_open(root, &map, &err), TROIKA_FORMAT);
  assert_null(map.data); /* a failing call leaves it as it was */
}

static void memory_is_zeroed_and_aligned(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 4096, 4097, 1 << 20, 2 << 20, (2 << 20) + 1, 9 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    unsigned char *p = os_memory(sizes[i]);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (sizes[i] >= 2 << 20 ? 2 << 20 : 4096), 0);
    for (size_t j = 0; j < sizes[i]; j += 509) assert_int_equal(p[j], 0);
    p[0] = p[sizes[i] - 1] = 1;
    os_memory_free(p, sizes[i]);
  }
  assert_null(os_memory(0));
  assert_null(os_memory(SIZE_MAX));
  assert_null(os_memory(SIZE_MAX / 4)); /* more than there are addresses */
  os_memory_free(NULL, 100);
  assert_true(os_memory_peak() > 1 << 20);
  assert_true(os_memory_available() > 1 << 20);
}

static uint32_t word;

static void *waker(void *unused) {
  (void)unused;
  usleep(20000);
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  os_futex_wake(&word, INT_MAX);
  return NULL;
}

static void futex_wakes_and_times_out(void **state) {
  (void)state;
  pthread_t thread;
  word = 0;
  os_futex_wait(&word, 5, -1); /* not the expected value: at once */
  int64_t begin = clock_now(clock_real());
  os_futex_wait(&word, 0, 30000000);
  int64_t time = clock_now(clock_real()) - begin;
  assert_true(time >= 1000000); /* a signal may end it early, not this early */
  assert_int_equal(pthread_create(&thread, NULL, waker, NULL), 0);
  int waits = 0;
  for (; __atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0; waits++) os_futex_wait(&word, 0, -1);
  pthread_join(thread, NULL);
  assert_true(waits < 100); /* it slept, it did not spin */
}

static void clocks_go_forward(void **state) {
  (void)state;
  clock_source real = clock_real();
  int64_t last = clock_now(real);
  for (int i = 0; i < 1000; i++) {
    int64_t now = clock_now(real);
    assert_true(now >= last);
    last = now;
  }
  clock_virtual v = {42};
  clock_source c = clock_of_virtual(&v);
  assert_int_equal(clock_now(c), 42);
  v.now_ns += 8;
  assert_int_equal(clock_now(c), 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cpus_follow_quota_and_affinity),
      cmocka_unit_test(files_are_mapped),
      cmocka_unit_test(memory_is_zeroed_and_aligned),
      cmocka_unit_test(futex_wakes_and_times_out),
      cmocka_unit_test(clocks_go_forward),
  };
  return cmocka_run_group_tests(tests, root_make, root_remove);
}
