/* SPDX-License-Identifier: Apache-2.0 */
/* registry.h - the one list of drivers. Nobody includes a concrete driver: what a driver offers
 * before a device is open stands in its factory, and a line in DEVICE_DRIVERS makes it known. */
#ifndef DEVICE_REGISTRY_H
#define DEVICE_REGISTRY_H

#include <string.h>

#include "device/device.h"

typedef struct device_options {
  uint32_t threads;    /* of a CPU; >= 1 */
  uint8_t activations; /* troika_activations */
  const char
      *levels; /* instruction sets that may be used, as text; NULL: all. Borrowed during open */
  uint32_t test_stop_panels; /* stop every launch after so many panels; 0: never */
} device_options;

/* What the host computes beside a device: sampling. Same bits at every instruction-set level. */
typedef struct device_math {
  float (*vec_max)(const float *x, uint32_t n);                /* NaN if any is NaN; n >= 1 */
  float (*vec_sum_exp)(const float *x, uint32_t n, float max); /* sum of exp(x - max) */
  void (*thread_setup)(void); /* once in each thread that calls the others */
} device_math;

typedef struct device_factory {
  const char *name;
  troika_status (*open)(const device_options *options, device **out, troika_error *err);
  size_t (*slot_bytes)(const graph *g, uint32_t rows); /* of an activation slot of so many rows */
  void (*math)(const device *d, device_math *out); /* NULL for a driver that is not the host's */
} device_factory;

#define DEVICE_DRIVERS(X) X(cpu)

#define DEVICE_DECLARE(name) extern const device_factory device_factory_##name;
DEVICE_DRIVERS(DEVICE_DECLARE)
#undef DEVICE_DECLARE

/* NULL if there is no such driver. */
static inline const device_factory *device_factory_find(const char *name) {
#define DEVICE_ENTRY(driver) &device_factory_##driver,
  static const device_factory *const list[] = {DEVICE_DRIVERS(DEVICE_ENTRY)};
#undef DEVICE_ENTRY
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if (!strcmp(list[i]->name, name)) return list[i];
  return NULL;
}

#endif
