/* test_check.c - every kernel at every level this processor has, against its reference.
 *
 *   test_kernel_check [--seed N] [--seconds S] [--filter TEXT] [--bench]
 *
 * Without options it runs all checks for about 15 s: the first round of each family walks all its
 * branches, the rest is random until the time is over. A failure prints the case; the seed makes it
 * again. --bench times the families instead. Last line: "N passed, N failed".
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"
#include "support.h"

typedef struct family {
  const char *name, *tolerance, *against;
  void (*check)(check_run *, double);
  void (*bench)(check_run *);
} family;

static const family families[] = {
#define FAMILY_ENTRY(family, tolerance, check, bench, against) \
  {#family, tolerance, against, check, bench},
    CHECK_FAMILY_LIST(FAMILY_ENTRY)
#undef FAMILY_ENTRY
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* Each level with all below it, and says which the processor lacks. */
static void find_levels(check_run *run) {
  static const char *const names[] = {
#define LEVEL_NAME(name, text) text,
      KERNEL_LEVEL_LIST(LEVEL_NAME)
#undef LEVEL_NAME
  };
  const uint32_t have = kernel_cpu_levels();
  run->levels[run->level_count++] = 0;
  printf("levels: scalar");
  for (uint32_t bit = 0; bit < KERNEL_BIT_COUNT; bit++) {
    if (!(have & 1u << bit)) continue;
    printf(" %s", names[bit]);
    run->levels[run->level_count++] = (2u << bit) - 1;
  }
  for (uint32_t bit = 0; bit < KERNEL_BIT_COUNT; bit++)
    if (!(have & 1u << bit)) printf("; NOT AVAILABLE, not tested: %s", names[bit]);
  printf("\n");
}

int main(int argc, char **argv) {
  check_run run = {.random = (uint64_t)(bench_now() * 1e9), .seconds = 15};
  bool bench = false;
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--bench") == 0) {
      bench = true;
      continue;
    }
    if (strcmp(argv[i], "--seed") == 0)
      run.random = strtoull(value, NULL, 0);
    else if (strcmp(argv[i], "--seconds") == 0)
      run.seconds = strtod(value, NULL);
    else if (strcmp(argv[i], "--filter") == 0)
      run.filter = value;
    else
      return fprintf(stderr, "options: --seed N --seconds S --filter TEXT --bench\n"), 2;
    i++;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("seed %llu\n", (unsigned long long)run.random);
  kernel_thread_setup();
  find_levels(&run);
  for (int i = 0; i < FAMILIES; i++) {
    const family *f = &families[i];
    if (!check_wanted(&run, f->name)) continue;
    if (bench) {
      if (f->bench != NULL) f->bench(&run);
      continue;
    }
    const double begin = bench_now();
    const unsigned passed = run.passed, failed = run.failed;
    f->check(&run, run.seconds / FAMILIES);
    printf("%-12s %6u passed %4u failed  %5.1f s  (%s against %s)\n", f->name, run.passed - passed,
           run.failed - failed, bench_now() - begin, f->tolerance, f->against);
  }
  printf("%u passed, %u failed\n", run.passed, run.failed);
  return run.failed != 0 || (!bench && run.passed == 0);
}
