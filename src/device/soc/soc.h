/* SPDX-License-Identifier: Apache-2.0 */
/* soc.h - a virtual system on a chip: up to four processors with tables of their own that share
 * memory bandwidth (fluid.h), under a virtual clock. For tests of the policy and for simulation:
 * nothing is computed but what a launch costs and which token comes out.
 *
 * Time passes in soc_advance only, and queue_wait and queue_close, which are made of it; there
 * completions are called back, each with the clock at its own time. Events at the same time come in
 * the order in which they were scheduled. Single-threaded.
 *
 * A launch takes what its device's cost table says of its rows, times `truth`. It is cut into
 * panels of panel_ns of that time: a device that `stops` takes a stop at the next one; another runs
 * at most cut_ns at a time and then comes back by itself, to be submitted again with its panel.
 *
 * Tokens: position p of a sequence holds a number made of that of p - 1 and of its token, in the
 * page that the sequence's table names; the token that follows is made of it. So a token is that of
 * a lone run only if every position before was computed, in order, in pages that nobody else wrote
 * meanwhile. What a stopped or failed launch leaves in its rows' positions is noise. */
#ifndef DEVICE_SOC_SOC_H
#define DEVICE_SOC_SOC_H

#include "base/clock.h"
#include "device/device.h"
#include "plan/cost.h"

enum { SOC_DEVICES_MAX = 4, SOC_PAGE_TOKENS = 32 };
#define SOC_NEVER INT64_MAX

typedef struct soc_device_options {
  const char *name;       /* borrowed */
  const cost_table *cost; /* what its launches really cost: copied */
  uint32_t truth;         /* times this, 16.16; 0: 1 */
  uint8_t type;           /* troika_device_type */
  bool decodes, prefills; /* takes GEN, PROMPT rows */
  bool stops;
  int64_t panel_ns;       /* > 0 */
  int64_t cut_ns;         /* of a device that does not stop; at least a panel, whatever it says */
  uint32_t step;          /* static shapes: PROMPT rows of a command are a multiple; 1: any */
  uint32_t weight;        /* in sharing bandwidth, 16.16; 0: 1 */
  const uint32_t *faults; /* numbers of submitted lists, from 0, that fail halfway; ascending,
                             borrowed */
  uint32_t n_faults;
} soc_device_options;

typedef struct soc_options {
  clock_virtual *clock; /* borrowed; only the soc moves it */
  const soc_device_options *devices;
  uint32_t n_devices;
  uint64_t capacity[SOC_DEVICES_MAX]; /* C(k): bytes per second with k + 1 devices busy */
} soc_options;

typedef struct soc soc;

/* INVALID names what is wrong. */
troika_status soc_create(const soc_options *options, soc **out, troika_error *err);
void soc_destroy(soc **s); /* queues closed first; the devices go with it, close does nothing */
device *soc_device(soc *s, uint32_t index);

/* Time of the next event; SOC_NEVER if nothing runs. */
int64_t soc_next(const soc *s);
/* Runs every event up to to_ns; the clock stands there afterwards. */
void soc_advance(soc *s, int64_t to_ns);

/* The token that row `want` (of those that want logits) of the slot's last whole launch got. Where
 * device_tables.logits has a table for the slot, it also holds a one at that token. */
int32_t soc_token(const device *d, uint32_t slot, uint32_t want);
/* The token after tokens[0, n) of a lone run. */
int32_t soc_token_after(const int32_t *tokens, uint32_t n, uint32_t vocab);
/* The same, step by step: the state after one more token (0 before the first), and its token. */
uint64_t soc_state(uint64_t before, int32_t token);
int32_t soc_state_token(uint64_t state, uint32_t vocab);

#endif
