/* SPDX-License-Identifier: Apache-2.0 */
/* A ring from the runtime thread to a writer thread: one writes, one reads, no lock between. The
 * format is the JSON array of trace events, whose closing bracket readers do not need, so the file
 * can be opened while it grows. Source: the Trace Event Format that Perfetto reads. */
#include "runtime/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "sched/sched.h"

enum { RING = 1 << 14, LANES = 1024, WRITE_EVERY_NS = 50000000 };

typedef enum event_kind { EVENT_STRETCH, EVENT_REQUEST, EVENT_COUNTER } event_kind;

typedef struct event {
  event_kind kind;
  union {
    trace_stretch stretch;
    trace_request request;
    struct {
      const char *name;
      int64_t now_ns, value;
    } counter;
  } of;
} event;

struct runtime_trace {
  FILE *file;
  pthread_t thread;
  atomic_uint written, read; /* events since the start, wrapping */
  atomic_ullong lost;
  atomic_bool ending;
  int64_t origin_ns; /* time 0 of the file */
  /* The writer's. */
  int64_t lanes[LANES];         /* end of the last request on each row */
  unsigned long long lost_said; /* events, as the file has them */
  bool broken;                  /* a write has failed */
  event ring[RING];
};

/* What a slice is called: Perfetto colours slices by their name alone (it does not read `cname`);
 * a name that said the phase as well would give each phase a colour of its own. */
static const char *const class_names[] = {"reactive", "inherited", "proactive"};

static double us(const runtime_trace *t, int64_t ns) {
  return (double)(ns - t->origin_ns) * 1e-3;
}

static const char *class_name(uint8_t band) {
  return class_names[band < SCHED_BANDS ? band : SCHED_BAND_P];
}

static void write_stretch(runtime_trace *t, const trace_stretch *s) {
  const char *phase = !s->prompt_rows                          ? "decode"
                      : s->reactive_rows || s->background_rows ? "decode + prefill"
                                                               : "prefill";
  fprintf(t->file,
          "{\"name\":\"%s\",\"cat\":\"launch\",\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"ts\":%.3f,"
          "\"dur\":%.3f,\"args\":{\"phase\":\"%s\",\"launch\":%u,\"prompt_rows\":%u,"
          "\"reactive_rows\":%u,\"background_rows\":%u,\"promoted\":%s,\"stopped\":%s",
          class_name(s->band), s->device, us(t, s->start_ns),
          (double)(s->end_ns - s->start_ns) * 1e-3, phase, s->launch, s->prompt_rows,
          s->reactive_rows, s->background_rows, s->promoted ? "true" : "false",
          s->stopped ? "true" : "false");
  if (s->prompt_rows) fprintf(t->file, ",\"request\":%u", s->request);
  fprintf(t->file, "}},\n");
}

static unsigned lane_of(runtime_trace *t, const trace_request *r) {
  for (unsigned i = 0; i < LANES - 1; i++) {
    if (t->lanes[i] > r->submit_ns) continue;
    t->lanes[i] = r->end_ns;
    return i;
  }
  return LANES - 1;
}

static void write_phase(runtime_trace *t, const trace_request *r, unsigned lane, const char *phase,
                        int64_t from_ns, int64_t to_ns) {
  if (!from_ns || to_ns < from_ns) return;
  fprintf(t->file,
          "{\"name\":\"%s\",\"cat\":\"request\",\"ph\":\"X\",\"pid\":2,\"tid\":%u,\"ts\":%.3f,"
          "\"dur\":%.3f,\"args\":{\"phase\":\"%s\",\"request\":%u,\"prompt_tokens\":%u,"
          "\"cached_tokens\":%u,\"completion_tokens\":%u,\"finish\":\"%s\"}},\n",
          class_name(r->band), lane, us(t, from_ns), (double)(to_ns - from_ns) * 1e-3, phase, r->id,
          r->prompt_tokens, r->cached_tokens, r->completion_tokens, r->finish);
}

static void write_request(runtime_trace *t, const trace_request *r) {
  unsigned lane = lane_of(t, r);
  write_phase(t, r, lane, "queue", r->submit_ns, r->start_ns ? r->start_ns : r->end_ns);
  write_phase(t, r, lane, "prefill", r->start_ns, r->first_ns ? r->first_ns : r->end_ns);
  write_phase(t, r, lane, "decode", r->first_ns, r->end_ns);
}

static void write_event(runtime_trace *t, const event *e) {
  if (e->kind == EVENT_STRETCH)
    write_stretch(t, &e->of.stretch);
  else if (e->kind == EVENT_REQUEST)
    write_request(t, &e->of.request);
  else
    fprintf(t->file,
            "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"args\":{\"value\":%lld}},\n",
            e->of.counter.name, us(t, e->of.counter.now_ns), (long long)e->of.counter.value);
}

static void check_written(runtime_trace *t, int failed) {
  if (t->broken || (!failed && !ferror(t->file))) return;
  log_line(LOG_WARN, "the trace is not whole, it cannot be written: %s", strerror(errno));
  t->broken = true;
}

static void write_new(runtime_trace *t) {
  unsigned read = atomic_load_explicit(&t->read, memory_order_relaxed);
  unsigned end = atomic_load_explicit(&t->written, memory_order_acquire);
  for (; read != end; read++) {
    write_event(t, &t->ring[read % RING]);
    atomic_store_explicit(&t->read, read + 1, memory_order_release);
  }
  unsigned long long lost = atomic_load(&t->lost);
  if (lost != t->lost_said) {
    fprintf(t->file,
            "{\"name\":\"events_lost\",\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,"
            "\"args\":{\"value\":%llu}},\n",
            us(t, clock_real_now(NULL)), lost);
    t->lost_said = lost;
  }
  check_written(t, fflush(t->file));
}

static void *write_all(void *trace) {
  runtime_trace *t = trace;
  os_thread_name("trace");
  while (!atomic_load(&t->ending)) {
    write_new(t);
    nanosleep(&(struct timespec){0, WRITE_EVERY_NS}, NULL);
  }
  write_new(t);
  return NULL;
}

troika_status runtime_trace_open(const char *path, runtime_trace **out, troika_error *err) {
  runtime_trace *t = calloc(1, sizeof *t);
  if (!t) return error_set(err, TROIKA_NO_MEMORY, "no memory for a trace");
  t->file = fopen(path, "we");
  if (!t->file) {
    error_set(err, TROIKA_IO, "%s: %s", path, strerror(errno));
    free(t);
    return TROIKA_IO;
  }
  t->origin_ns = clock_real_now(NULL);
  fputs("[\n", t->file);
  fputs(
      "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"devices\"}},\n"
      "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"cpu\"}},\n"
      "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":2,\"args\":{\"name\":\"requests\"}},\n",
      t->file);
  if (pthread_create(&t->thread, NULL, write_all, t)) {
    fclose(t->file);
    free(t);
    return error_set(err, TROIKA_NO_MEMORY, "cannot start the trace's thread");
  }
  *out = t;
  return TROIKA_OK;
}

void runtime_trace_close(runtime_trace **trace) {
  runtime_trace *t = *trace;
  if (!t) return;
  atomic_store(&t->ending, true);
  pthread_join(t->thread, NULL);
  fprintf(t->file,
          "{\"name\":\"trace_end\",\"ph\":\"M\",\"pid\":1,\"args\":{\"events_lost\":%llu}}\n]\n",
          (unsigned long long)atomic_load(&t->lost));
  bool failed = ferror(t->file);
  failed = fclose(t->file) || failed;
  if (failed && !t->broken) log_line(LOG_WARN, "the trace is not whole: %s", strerror(errno));
  free(t);
  *trace = NULL;
}

/* The next free event, or NULL: the writer does not keep up. */
static event *claim(runtime_trace *t, event_kind kind) {
  unsigned at = atomic_load_explicit(&t->written, memory_order_relaxed);
  if (at - atomic_load_explicit(&t->read, memory_order_acquire) == RING) {
    atomic_fetch_add(&t->lost, 1);
    return NULL;
  }
  t->ring[at % RING].kind = kind;
  return &t->ring[at % RING];
}

static void commit(runtime_trace *t) {
  atomic_store_explicit(&t->written, atomic_load_explicit(&t->written, memory_order_relaxed) + 1,
                        memory_order_release);
}

void runtime_trace_stretch(runtime_trace *t, const trace_stretch *s) {
  event *e = claim(t, EVENT_STRETCH);
  if (!e) return;
  e->of.stretch = *s;
  commit(t);
}

void runtime_trace_request(runtime_trace *t, const trace_request *r) {
  event *e = claim(t, EVENT_REQUEST);
  if (!e) return;
  e->of.request = *r;
  commit(t);
}

void runtime_trace_counter(runtime_trace *t, const char *name, int64_t now_ns, int64_t value) {
  event *e = claim(t, EVENT_COUNTER);
  if (!e) return;
  e->of.counter.name = name;
  e->of.counter.now_ns = now_ns;
  e->of.counter.value = value;
  commit(t);
}
