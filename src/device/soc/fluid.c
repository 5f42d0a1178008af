/* SPDX-License-Identifier: Apache-2.0 */
#include "device/soc/fluid.h"

void fluid_fill(uint32_t n, const double *demand, const double *weight, double capacity,
                double *got) {
  bool full[FLUID_FLOWS] = {false};
  double left = capacity;
  for (;;) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
      if (!full[i]) sum += weight[i];
    if (sum <= 0) return;
    double level = left / sum; /* bytes per ns and weight, if nobody asked for less */
    bool more = false;
    double taken = 0;
    for (uint32_t i = 0; i < n; i++) {
      if (full[i] || demand[i] > level * weight[i]) continue;
      got[i] = demand[i];
      taken += demand[i];
      full[i] = more = true;
    }
    left = taken < left ? left - taken : 0;
    if (more) continue;
    for (uint32_t i = 0; i < n; i++)
      if (!full[i]) got[i] = level * weight[i];
    return;
  }
}

/* Smallest whole number >= x, for 0 <= x < 2^62. */
static int64_t round_up(double x) {
  int64_t whole = (int64_t)x;
  return (double)whole < x ? whole + 1 : whole;
}

static double speed(const fluid_flow *w) {
  return w->got >= w->demand ? 1.0 : w->got / w->demand;
}

static void set_end(fluid *f, fluid_flow *w) {
  double left = w->target_ns - w->done_ns;
  w->end_ns = f->now_ns + (left > 0 ? round_up(left / speed(w)) : 0);
}

static void refill(fluid *f) {
  uint32_t index[FLUID_FLOWS], n = 0;
  double demand[FLUID_FLOWS], weight[FLUID_FLOWS], got[FLUID_FLOWS] = {0};
  for (uint32_t i = 0; i < FLUID_FLOWS; i++) {
    if (!f->flows[i].running) continue;
    index[n] = i;
    demand[n] = f->flows[i].demand;
    weight[n++] = f->flows[i].weight;
  }
  fluid_fill(n, demand, weight, f->capacity[n], got);
  for (uint32_t i = 0; i < n; i++) {
    fluid_flow *w = &f->flows[index[i]];
    w->got = got[i];
    set_end(f, w);
  }
}

void fluid_advance(fluid *f, int64_t now_ns) {
  double passed = (double)(now_ns - f->now_ns);
  f->now_ns = now_ns;
  for (uint32_t i = 0; i < FLUID_FLOWS; i++) {
    fluid_flow *w = &f->flows[i];
    if (!w->running) continue;
    double step = passed * speed(w), left = w->target_ns - w->done_ns;
    if (step > left) step = left; /* the end was rounded up to a whole ns */
    w->done_ns += step;
    w->bytes += w->demand * step;
  }
}

void fluid_start(fluid *f, uint32_t flow, double total_ns, double bytes, double weight,
                 double done_ns, double target_ns) {
  f->flows[flow] = (fluid_flow){.running = true,
                                .total_ns = total_ns,
                                .done_ns = done_ns,
                                .target_ns = target_ns,
                                .demand = bytes / total_ns,
                                .weight = weight};
  refill(f);
}

void fluid_target(fluid *f, uint32_t flow, double target_ns) {
  fluid_flow *w = &f->flows[flow];
  w->target_ns = target_ns > w->done_ns ? target_ns : w->done_ns;
  set_end(f, w);
}

void fluid_end(fluid *f, uint32_t flow) {
  f->flows[flow].running = false;
  refill(f);
}
