/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's queue: a stop takes effect at once and loses nothing, lists finish in order, what is
 * asked at the wrong time is answered and not suffered. Prints figures: how long a stop takes, over
 * random moments of a prefill of 128 rows. Wanted is under 1 ms on a quiet machine. Where others
 * have the cores, a worker in the middle of its panel waits for them, so what is judged strictly is
 * the processor time that our threads use up after a stop, and of the time that passes only the
 * median, generously. ThreadSanitizer gets a small model.
 *
 * ctest: serial */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"
#include "figures.h"
#include "model/tiny_model.h"
#include "runtime/support_rig.h"

#if defined(__SANITIZE_THREAD__)
enum { SMALL = 1, STOPS = 60, BOUND_MS = 2000, CPU_MS = 200 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL = 0, STOPS = 20, BOUND_MS = 2000, CPU_MS = 200 };
#else
enum { SMALL = 0, STOPS = 200, BOUND_MS = 50, CPU_MS = 2 };
#endif
enum { ROWS = 128, SLOTS = 4 };

static char folder[] = "/tmp/troika-queue-XXXXXX";
static char small_path[64];

/* ---- a queue with its own note of completions ---- */

typedef struct desk {
  rig *r;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  device_completion done[512];
  int64_t cpu_ns[512]; /* processor time of all threads at that moment */
  uint32_t n;
} desk;

static int64_t cpu_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void on_done(void *context, const device_completion *completion) {
  desk *d = context;
  pthread_mutex_lock(&d->lock);
  if (d->n < 512) {
    d->cpu_ns[d->n] = cpu_now();
    d->done[d->n++] = *completion;
  }
  pthread_cond_broadcast(&d->changed);
  pthread_mutex_unlock(&d->lock);
}

static device_completion wait_for(desk *d, uint32_t n) { /* the n-th completion, from 1 */
  pthread_mutex_lock(&d->lock);
  while (d->n < n) pthread_cond_wait(&d->changed, &d->lock);
  device_completion c = d->done[n - 1];
  pthread_mutex_unlock(&d->lock);
  return c;
}

static desk *desk_open(bool small) {
  desk *d = calloc(1, sizeof *d);
  if (!d) abort();
  pthread_mutex_init(&d->lock, NULL);
  pthread_cond_init(&d->changed, NULL);
  d->r = rig_open((rig_options){.model = small ? small_path : "SmolLM2-135M-Instruct.Q4_1.gguf",
                                .threads = 2,
                                .slots = SLOTS,
                                .slot_rows = ROWS,
                                .sequences = SLOTS,
                                .context = 256});
  const device_driver *driver = d->r->cpu->driver;
  device_queue *second = NULL;
  troika_error err;
  figure("a second queue is refused as busy", "==", TROIKA_BUSY,
         driver->queue_open(d->r->cpu, on_done, d, &second, &err));
  driver->queue_close(d->r->queue);
  if (driver->queue_open(d->r->cpu, on_done, d, &d->r->queue, &err)) abort();
  for (uint32_t s = 0; s < SLOTS; s++) {
    device_row *rows = rig_rows(d->r, s);
    for (uint32_t i = 0; i < ROWS; i++)
      rows[i] = (device_row){.seq = s,
                             .pos = i,
                             .token = (int32_t)((i * 37 + s * 11) % 48),
                             .arith = DEVICE_PROMPT,
                             .want = i % 3 == 0 || i + 1 == ROWS ? DEVICE_WANT_LOGITS : 0};
    d->r->runs[s] = (device_run){.id = s,
                                 .row0 = s * ROWS,
                                 .rows = ROWS,
                                 .slot = (uint16_t)s,
                                 .node_end = (uint16_t)d->r->g->n_nodes};
  }
  return d;
}

static void desk_close(desk *d) {
  rig_close(d->r);
  pthread_cond_destroy(&d->changed);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

static troika_status submit(desk *d, uint32_t slot, uint32_t row0, uint32_t rows,
                            const device_event *wait, device_event *event) {
  device_command c = {
      .run = slot, .node_end = (uint16_t)d->r->g->n_nodes, .row0 = row0, .rows = rows};
  return d->r->cpu->driver->queue_submit(d->r->queue, &c, 1, wait, wait != NULL, event);
}

static void need_submit(desk *d, uint32_t slot, device_event *event) {
  if (submit(d, slot, 0, ROWS, NULL, event)) abort();
}

static void stop(desk *d, const device_event *event, troika_status wanted) {
  if (d->r->cpu->driver->queue_stop(d->r->queue, event) != wanted) {
    printf("queue_stop did not answer %d\n", (int)wanted);
    abort();
  }
}

static uint64_t hash_logits(const desk *d, uint32_t slot) {
  const float *x = rig_logits(d->r, slot);
  uint64_t h = 1469598103934665603u;
  uint32_t wants = (ROWS + 2) / 3 + (ROWS % 3 != 1);
  for (uint32_t w = 0; w < wants; w++)
    for (uint32_t i = 0; i < d->r->g->vocab; i++) {
      uint32_t bits;
      memcpy(&bits, x + (size_t)w * d->r->logits_stride + i, 4);
      h = (h ^ bits) * 1099511628211u;
    }
  return h;
}

static void clear_logits(desk *d, uint32_t slot) {
  memset(rig_logits(d->r, slot), 0, (size_t)ROWS * d->r->logits_stride * sizeof(float));
}

/* ---- how long a stop takes ---- */

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Runs slot 0 twice: the first time is cold. */
static double launch_ns(desk *d) {
  device_event event;
  device_completion c = {0};
  uint32_t seen = d->n;
  for (int i = 0; i < 2; i++) {
    need_submit(d, 0, &event);
    c = wait_for(d, ++seen);
  }
  figure("an unstopped launch ran to its end", "==", UINT32_MAX, c.panel);
  return (double)(c.end_ns - c.start_ns);
}

/* Each launch is stopped once at a random moment; every tenth then goes on to its end, the others
 * begin anew. */
static void time_stops(desk *d) {
  static double ms[STOPS], cpu_ms[STOPS];
  uint32_t n = 0, seen = d->n, backwards = 0;
  uint64_t state = 42;
  device_event event;
  double length = launch_ns(d);
  uint64_t wanted = hash_logits(d, 0);
  uint32_t late = 0, differ = 0;
  seen = d->n;
  while (n < STOPS && late < 20 * STOPS) {
    d->r->runs[0].panel = 0;
    clear_logits(d, 0);
    need_submit(d, 0, &event);
    int64_t moment = clock_real_now(NULL) + (int64_t)((tiny_random(&state) + 1) / 2 * length);
    struct timespec short_while = {0, 50000};
    while (clock_real_now(NULL) < moment) nanosleep(&short_while, NULL);
    int64_t asked = clock_real_now(NULL), cpu_asked = cpu_now();
    stop(d, &event, TROIKA_OK);
    if (n % 2) stop(d, &event, TROIKA_OK); /* twice is as once */
    device_completion c = wait_for(d, ++seen);
    backwards += c.end_ns < c.start_ns;
    int64_t cpu_done = d->cpu_ns[seen - 1];
    if (seen > 400) seen = d->n = 0; /* nothing is in flight: the notes may begin anew */
    if (c.panel == UINT32_MAX) {     /* it was faster */
      late++;
      continue;
    }
    cpu_ms[n] = (double)(cpu_done - cpu_asked) * 1e-6;
    ms[n++] = (double)(c.end_ns - asked) * 1e-6;
    if (n % 10) continue;
    d->r->runs[0].panel = c.panel;
    need_submit(d, 0, &event);
    c = wait_for(d, ++seen);
    backwards += c.panel != UINT32_MAX;
    differ += hash_logits(d, 0) != wanted;
  }
  qsort(ms, n, sizeof *ms, by_size);
  qsort(cpu_ms, n, sizeof *cpu_ms, by_size);
  printf("a launch takes %.1f ms; %u stops, %u came too late\n", length * 1e-6, n, late);
  if (!n) abort();
  uint32_t fast = 0;
  while (fast < n && ms[fast] < 1) fast++;
  printf("stops within 1 ms: %.1f %%, 95th percentile %.3f ms\n", 100.0 * fast / n,
         ms[n * 95 / 100]);
  figure("stops measured", ">=", STOPS, n);
  figure("from stop to completion, median, ms", "<=", BOUND_MS, ms[n / 2]);
  figure("from stop to completion, longest, ms", "<=", 10000, ms[n - 1]);
  figure("processor time of 2 threads after a stop, median, ms", "<=", CPU_MS, cpu_ms[n / 2]);
  figure("processor time of 2 threads after a stop, longest, ms", "<=", BOUND_MS, cpu_ms[n - 1]);
  figure("completions that end before they start, or stop by themselves", "==", 0, backwards);
  figure("launches whose logits differ after a stop and going on", "==", 0, differ);
  d->r->runs[0].panel = 0;
}

/* One launch, stopped again and again: the panel number never falls. */
static void panels_go_up(desk *d) {
  uint32_t seen = d->n, before = 0, falls = 0, stops = 0;
  device_event event;
  double length = launch_ns(d);
  uint64_t wanted = hash_logits(d, 0);
  clear_logits(d, 0);
  seen = d->n;
  for (uint32_t i = 0;; i++) { /* in some twenty pieces, now and then stopped at once */
    int64_t moment = clock_real_now(NULL) + (i % 4 ? (int64_t)(length / 20) : 0);
    need_submit(d, 0, &event);
    while (clock_real_now(NULL) < moment) {
    }
    if (i < 300) stop(d, &event, TROIKA_OK);
    device_completion c = wait_for(d, ++seen);
    if (c.panel == UINT32_MAX) break;
    falls += c.panel < before;
    d->r->runs[0].panel = before = c.panel;
    stops++;
    if (seen > 400) seen = d->n = 0;
  }
  d->r->runs[0].panel = 0;
  printf("stopped %u times on the way, last at panel %u\n", stops, before);
  figure("panel numbers that fell", "==", 0, falls);
  figure("stops on the way", ">=", 3, stops);
  figure("logits after many stops: equal", "==", 1, hash_logits(d, 0) == wanted);
}

/* ---- order, limits, waiting ---- */

/* A foreign device whose event comes when the test says so. */
typedef struct gate {
  device_queue queue;
  device owner;
  device_driver driver;
  _Atomic uint32_t open; /* futex word */
} gate;

static troika_status gate_wait(device_queue *q, const device_event *done, int64_t timeout_ns) {
  gate *g = (gate *)q;
  (void)done;
  (void)timeout_ns;
  while (!g->open) os_futex_wait((const uint32_t *)&g->open, 0, -1);
  return TROIKA_OK;
}

static void three_in_flight(desk *d) {
  static gate g;
  g.open = 0;
  g.driver.queue_wait = gate_wait;
  g.owner.driver = &g.driver;
  g.queue.owner = &g.owner;
  const device_driver *driver = d->r->cpu->driver;
  const device_event gate_event = {&g.queue, 1};
  device_event events[DEVICE_LISTS_MAX], more;
  troika_device_info info;
  uint32_t first = d->n;
  for (uint32_t i = 0; i < DEVICE_LISTS_MAX; i++)
    if (submit(d, i, 0, ROWS, i ? &events[i - 1] : &gate_event, &events[i])) abort();
  driver->describe(d->r->cpu, &info);
  figure("queue depth with three in flight", "==", DEVICE_LISTS_MAX, info.queue_depth);
  figure("a fourth list is refused as busy", "==", TROIKA_BUSY, submit(d, 3, 0, ROWS, NULL, &more));
  int64_t began = clock_real_now(NULL);
  figure("waiting ends by its timeout", "==", TROIKA_TIMEOUT,
         driver->queue_wait(d->r->queue, &events[2], 5 * 1000 * 1000));
  figure("and not before, ms", ">=", 5, (double)(clock_real_now(NULL) - began) * 1e-6);
  stop(d, &events[1], TROIKA_OK); /* one that has not begun */
  more = events[2];
  more.sequence++;
  stop(d, &more, TROIKA_INVALID); /* one that nobody submitted */
  figure("nothing was completed behind the gate", "==", first, d->n);
  g.open = 1;
  os_futex_wake((const uint32_t *)&g.open, INT32_MAX);
  figure("waiting for the last", "==", TROIKA_OK, driver->queue_wait(d->r->queue, &events[2], -1));
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < DEVICE_LISTS_MAX; i++) {
    device_completion c = wait_for(d, first + i + 1);
    wrong += c.event.sequence != events[i].sequence || c.event.queue != d->r->queue;
    wrong += c.status != TROIKA_OK || (c.panel == UINT32_MAX) != (i != 1);
    if (i == 1) wrong += c.panel != 0; /* stopped before its first panel */
  }
  figure("completions out of order or of the wrong kind", "==", 0, wrong);
  for (uint32_t i = 0; i < DEVICE_LISTS_MAX; i++) stop(d, &events[i], TROIKA_OK); /* finished */
  need_submit(d, 0, &more);
  figure("and the next list runs whole", "==", UINT32_MAX,
         wait_for(d, first + DEVICE_LISTS_MAX + 1).panel);
}

static void statistics(desk *d) {
  const device_driver *driver = d->r->cpu->driver;
  troika_device_info info;
  device_event event;
  uint32_t seen = d->n;
  int64_t began = clock_real_now(NULL);
  for (uint32_t i = 0; i < 3; i++) need_submit(d, i, &event);
  for (uint32_t i = 0; i < 3; i++) wait_for(d, ++seen);
  driver->queue_wait(d->r->queue, &event, -1);
  double passed = (double)(clock_real_now(NULL) - began) * 1e-6, sum = 0;
  for (uint32_t i = 1; i <= 3; i++) {
    device_completion c = wait_for(d, seen - 3 + i);
    sum += (double)(c.end_ns - c.start_ns) * 1e-6;
  }
  driver->describe(d->r->cpu, &info);
  uint64_t slots, memory = driver->memory_used(d->r->cpu, &slots);
  figure("three launches together, their own times against all of it", "<=", 1, sum / passed);
  figure("queue depth at rest", "==", 0, info.queue_depth);
  figure("utilisation", "<=", 1, info.utilisation);
  figure("utilisation is something", ">=", 1e-6, info.utilisation);
  figure("mean latency is something, ms", ">=", 1e-6, info.latency_ms_mean);
  figure("mean latency, of the longest run", "<=", 1, info.latency_ms_mean / passed);
  figure("memory: weights and slots", ">=", 1, memory > slots && slots > 0);
  printf("%s, %s: utilisation %.3f, mean latency %.2f ms\n", info.name, info.kernels,
         info.utilisation, info.latency_ms_mean);
}

/* A command may cover a range of a run's rows: the same logits, in the same places. */
static void ranges_of_rows(desk *d) {
  static const uint32_t cuts[] = {0, 1, 40, 41, ROWS};
  uint32_t seen = d->n;
  device_event event;
  need_submit(d, 1, &event);
  wait_for(d, ++seen);
  uint64_t wanted = hash_logits(d, 1);
  clear_logits(d, 1);
  for (uint32_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
    if (submit(d, 1, cuts[i], cuts[i + 1] - cuts[i], NULL, &event)) abort();
    wait_for(d, ++seen);
  }
  figure("ranges of rows give what the whole gives", "==", 1, hash_logits(d, 1) == wanted);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!mkdtemp(folder)) return 1;
  snprintf(small_path, sizeof small_path, "%s/tiny.gguf", folder);
  tiny_model m = tiny_gemma3();
  m.layers = 6;
  tiny_write_file(&m, NULL, small_path);
  desk *d = desk_open(SMALL);
  time_stops(d);
  panels_go_up(d);
  desk_close(d);
  d = desk_open(true);
  three_in_flight(d);
  statistics(d);
  ranges_of_rows(d);
  desk_close(d);
  unlink(small_path);
  rmdir(folder);
  return figures_end();
}
