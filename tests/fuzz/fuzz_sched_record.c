/* fuzz_sched_record.c - libFuzzer target: any bytes are either refused as a record of decisions,
 * with a reason, or can be decided again, twice alike.
 *
 *   build/fuzz/tests/fuzz_sched_record NEW_INPUTS tests/fuzz/corpus/sched_record
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sched/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { ACTIONS = 300, LEN_MAX = 1 << 20 };

static size_t decide(const sched_recorded *r, sched_memory *memory, sched_action *out) {
  int64_t wake_ns;
  *memory = r->before;
  size_t n = sched_decide(&r->view, memory, r->now_ns, out, ACTIONS, &wake_ns);
  if (n > ACTIONS) abort();
  for (size_t i = 0; i < n; i++)
    if (out[i].kind > SCHED_STOP) abort();
  return n;
}

static void fill(sched_request *q, uint32_t i, uint8_t with) {
  *q = (sched_request){.id = i,
                       .state = with & 3,
                       .class_ = (uint8_t)(with >> 2) % 3,
                       .lift = SCHED_BAND_P,
                       .launch = with & 64 ? i % 4 : SCHED_NONE,
                       .arrival_ns = 1000000 * (int64_t)i,
                       .first_deadline_ns = SCHED_NEVER,
                       .done_deadline_ns = SCHED_NEVER,
                       .prompt_left = (with & 3) == SCHED_DECODE ? 0 : 100,
                       .output_left = 50,
                       .expected_left = 20,
                       .kv_bytes = 1000000,
                       .need = {(with & 3) == SCHED_QUEUED},
                       .most = {10},
                       .holds = {(with & 3) == SCHED_QUEUED ? 0 : 5}};
}

/* A good record: a byte says how many devices and launches it has, a byte each what its requests
 * are; then triples of bytes: where another byte stands. So what is behind the checks is reached
 * however structs are laid out today. Returns its length. */
static size_t make(const uint8_t *data, size_t len, uint8_t *out, size_t capacity) {
  static cost_table cost;
  static sched_request requests[64];
  sched_config config = {.places = 16,
                         .queue_max = 64,
                         .decode_rows = 16,
                         .ride_rows = 16,
                         .preempt_ns = 10000000,
                         .slack_r = 9830,
                         .slack_i = 32768,
                         .age_limit_ns = 1000000000,
                         .background_share = 3276,
                         .ttft_target_ns = 1000000000,
                         .backlog_max_ns = 600000000000,
                         .shorten_to = 64};
  sched_device devices[3];
  sched_launch_view launches[4];
  sched_memory before = {.decisions = 1};
  uint8_t shape = len ? data[0] : 0;
  uint32_t n = len > 1 ? data[1] % 64 : 0;
  if (len < 2 + n) n = 0;
  cost_guess(&cost, 100000000, 200000000, 2);
  for (uint32_t i = 0; i < n; i++) fill(&requests[i], i, data[2 + i]);
  sched_view v = {.config = &config,
                  .requests = requests,
                  .n_requests = n,
                  .devices = devices,
                  .n_devices = 1 + shape % 3,
                  .launches = launches,
                  .n_launches = shape / 3 % 5,
                  .kv_token_bytes = 40000,
                  .pages_free = {100},
                  .pages_total = {200}};
  for (uint32_t i = 0; i < v.n_devices; i++)
    devices[i] = (sched_device){.cost = &cost,
                                .decodes = i != 1,
                                .prefills = 1,
                                .can_stop = !i,
                                .step = i == 1 ? 32 : 1,
                                .span_rows = 256};
  for (uint32_t i = 0; i < v.n_launches; i++)
    launches[i] = (sched_launch_view){.id = i,
                                      .device = (uint8_t)(i % v.n_devices),
                                      .state = i < v.n_devices ? SCHED_RUNNING : SCHED_STOPPED,
                                      .prompt_request = i,
                                      .prompt_rows = 64,
                                      .total_ns = 20000000};
  size_t bytes = sched_record_write(&v, &before, 900000000, NULL, 0, out, capacity);
  for (size_t i = 2 + n; bytes && i + 3 <= len; i += 3)
    out[(data[i] | (size_t)data[i + 1] << 8) % bytes] = data[i + 2];
  return bytes;
}

static void replay(const uint8_t *bytes, size_t len) {
  static sched_recorded r;
  static sched_action first[ACTIONS], second[ACTIONS];
  static sched_memory memory, again;
  for (size_t at = 0; at < len;) {
    const char *problem = "unset";
    size_t taken = sched_record_read(bytes + at, len - at, &r, &problem);
    if (!taken) {
      if (!problem || !*problem) abort();
      return;
    }
    if (taken > len - at || taken % 8 || problem) abort();
    size_t n = decide(&r, &memory, first);
    if (decide(&r, &again, second) != n || memcmp(&memory, &again, sizeof memory) != 0 ||
        memcmp(first, second, n * sizeof *first) != 0)
      abort();
    at += taken;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  static _Alignas(8) uint8_t made[1 << 16];
  if (len > LEN_MAX) return 0;
  if (len && data[0] & 128) {
    replay(made, make(data + 1, len - 1, made, sizeof made));
    return 0;
  }
  uint8_t *bytes = malloc(len ? len : 1); /* of this length, and aligned */
  if (!bytes) return 0;
  if (len) memcpy(bytes, data, len);
  replay(bytes, len);
  free(bytes);
  return 0;
}
