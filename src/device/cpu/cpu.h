/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h - the CPU as a device: a pool of workers that walk the graph together, panel by panel.
 *
 * A launch is a whole iteration or span. Its nodes are cut into stages (norm, QKV, rotary
 * embedding, ...), a stage into panels of at most about 0.5 ms. Workers take panels from a counter;
 * a spin barrier stands between stages (0.3 us; a hop through the runtime costs 10-24 us, which for
 * a small model would be a fifth of its decode). Between panels they look at the stop flag, so a
 * stop takes under a millisecond, keeps the panel count and copies nothing. Commands of one list
 * share each weight panel while it is in cache. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/registry.h"

struct kernel_table;
/* For tests that look inside: the kernels chosen. Borrowed from the device. */
const struct kernel_table *device_cpu_table(const device *d);

#endif
