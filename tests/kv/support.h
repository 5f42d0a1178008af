/* SPDX-License-Identifier: Apache-2.0 */
/* support.h - random life for the KV room, beside a model that knows what every position must hold.
 */
#ifndef TESTS_KV_SUPPORT_H
#define TESTS_KV_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kv/kv.h"

typedef struct property_config {
  const char *name;
  kv_group groups[KV_GROUPS_MAX];
  uint32_t n_groups, sequences, context, ahead;
  uint32_t contexts; /* sequences of full context that the bytes are for */
} property_config;

extern const property_config property_configs[];
extern const int property_configs_n;

typedef struct property_counts {
  uint64_t attached_tokens, generated_attached, evicting, refused, released, promises, busy;
  uint64_t raised, hints, suspended, resumed, expected;
  uint64_t resumed_whole;     /* with all of its whole pages */
  uint64_t resumed_generated; /* with pages that hold generated tokens */
} property_counts;

/* Fails the test with seed and step in the message. */
property_counts property_run(const property_config *config, uint64_t seed, uint32_t steps,
                             uint32_t check_every);

kv *kv_open_for_test(const property_config *config);
void kv_assert_sound(const kv *k, const char *where);

#endif
