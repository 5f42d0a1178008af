/* SPDX-License-Identifier: Apache-2.0 */
/* Two million random steps. Another seed and number of steps: test_kv_property SEED STEPS. */
#include <stdlib.h>

#include "kv/support.h"

static uint64_t seed = 20261129;
static uint32_t steps = 400000;

static void random_life(void **state) {
  (void)state;
  for (int i = 0; i < property_configs_n; i++) {
    const property_config *c = &property_configs[i];
    property_counts n = property_run(c, seed + (uint64_t)i, steps, 512);
    print_message(
        "%s, seed %llu, %u steps: attached %llu tokens, %llu times generated ones, evicted in %llu "
        "steps, "
        "promised %llu, raised %llu, busy %llu, out of memory %llu, window moved %llu, suspended "
        "%llu, taken up again %llu, with all pages %llu, with generated ones %llu\n",
        c->name, (unsigned long long)seed + (unsigned long long)i, steps,
        (unsigned long long)n.attached_tokens, (unsigned long long)n.generated_attached,
        (unsigned long long)n.evicting, (unsigned long long)n.promises,
        (unsigned long long)n.raised, (unsigned long long)n.busy, (unsigned long long)n.refused,
        (unsigned long long)n.released, (unsigned long long)n.suspended,
        (unsigned long long)n.resumed, (unsigned long long)n.resumed_whole,
        (unsigned long long)n.resumed_generated);
    /* A test that never meets what it is about proves nothing. */
    assert_true(n.attached_tokens > 1000 && n.generated_attached > 0 && n.evicting > 100 &&
                n.promises > 100 && n.busy > 100 && n.refused > 0 && n.raised > 100 &&
                n.hints > 1000 && n.expected > 1000 && n.suspended > 1000 && n.resumed > 1000 &&
                n.resumed_whole > 100 && n.resumed_generated > 100);
    assert_true(c->groups[0].kind == KV_FULL && c->n_groups == 1 ? n.released == 0
                                                                 : n.released > 100);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_life)};
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  if (argc > 2) steps = (uint32_t)strtoul(argv[2], NULL, 0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
