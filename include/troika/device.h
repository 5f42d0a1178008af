/* troika/device.h - the processors that a runtime uses, as a caller sees them.
 *
 * Copyright 2026 the troika authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef TROIKA_DEVICE_H
#define TROIKA_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "troika/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum troika_device_type {
  TROIKA_DEVICE_CPU,
  TROIKA_DEVICE_GPU,
  TROIKA_DEVICE_NPU
} troika_device_type;

typedef struct troika_device_info {
  troika_device_type type;
  char name[64];          /* "AMD EPYC, 2 threads" */
  char driver[32];        /* "cpu" */
  char kernels[48];       /* "default avx512vnni": kernel set and instruction set */
  uint64_t memory_bytes;  /* that it can reach */
  bool unified;           /* works on the host's memory without a copy */
  bool stops_at_panels;   /* a running launch can be stopped within a millisecond */
  double utilisation;     /* busy share of the time since start, 0..1 */
  uint32_t queue_depth;   /* launches submitted and not finished */
  double latency_ms_mean; /* of a launch */
  double energy_j;        /* since start; NAN where it cannot be read */
  uint64_t faults;
} troika_device_info;

#ifdef __cplusplus
}
#endif
#endif
