/* SPDX-License-Identifier: Apache-2.0 */
/* fluid.h - launches that share memory bandwidth, as a fluid model. Pure.
 *
 * A launch alone takes t ns and moves Q bytes: its demand is d = Q / t. Launches that run together
 * share C by weighted max-min filling with caps d; each progresses at min(1, got / d) of its own
 * time, recomputed at every start and end. So a compute-bound launch beside a bandwidth-bound one
 * costs nothing until the sum of demands reaches C.
 *
 * Times are ns, rates bytes per ns (GB/s). Doubles, without contraction and without libm: the same
 * bits under any compiler. A launch that nothing slows ends exactly its solo time after its start.
 * Source: scheduling.md 8. */
#ifndef DEVICE_SOC_FLUID_H
#define DEVICE_SOC_FLUID_H

#include <stdbool.h>
#include <stdint.h>

enum { FLUID_FLOWS = 8 };
#define FLUID_NEVER INT64_MAX

typedef struct fluid_flow {
  bool running;
  double total_ns, done_ns; /* of its solo time */
  double target_ns;         /* where it is to end: total_ns, or a stop before */
  double demand, weight;
  double got; /* now; done_ns grows by min(1, got / demand) */
  double bytes;
  int64_t end_ns; /* when the target is reached if nothing starts or ends before */
} fluid_flow;

typedef struct fluid {
  double capacity[FLUID_FLOWS + 1]; /* C(k): with k launches running */
  int64_t now_ns;
  fluid_flow flows[FLUID_FLOWS];
} fluid;

/* Weighted max-min: got[i] <= demand[i], the sum <= capacity, and who got less than it asked for
 * has as much per weight as anybody. n <= FLUID_FLOWS. */
void fluid_fill(uint32_t n, const double *demand, const double *weight, double capacity,
                double *got);

/* Moves everything on to now_ns, which is no later than the first end. */
void fluid_advance(fluid *f, int64_t now_ns);
/* Starts at done_ns of a launch of total_ns > 0 and `bytes` in all, towards target_ns. */
void fluid_start(fluid *f, uint32_t flow, double total_ns, double bytes, double weight,
                 double done_ns, double target_ns);
/* A running flow is to end at another place, not before where it is. */
void fluid_target(fluid *f, uint32_t flow, double target_ns);
void fluid_end(fluid *f, uint32_t flow);

#endif
