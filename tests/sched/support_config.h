/* SPDX-License-Identifier: Apache-2.0 */
/* support_config.h - the configuration that tests of the policy begin with: scheduling.md's
 * numbers. */
#ifndef TESTS_SCHED_SUPPORT_CONFIG_H
#define TESTS_SCHED_SUPPORT_CONFIG_H

#include "sched/sched.h"

static inline sched_config support_config(uint32_t places) {
  return (sched_config){.places = places,
                        .queue_max = 256,
                        .decode_rows = 32,
                        .ride_rows = 64,
                        .preempt_ns = 10000000,
                        .slack_r = SCHED_ONE * 15 / 100,
                        .slack_i = SCHED_ONE / 2,
                        .age_limit_ns = 30000000000,
                        .background_share = SCHED_ONE / 20,
                        .ttft_target_ns = 1000000000,
                        .backlog_max_ns = 600000000000,
                        .shorten_to = 64};
}

#endif
