/* SPDX-License-Identifier: Apache-2.0 */
/* The trace and the recorder alone: what they write, and that a writer that hangs (a pipe nobody
 * reads) loses events or decisions, counts them, and never makes the caller wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/recorder.h"
#include "runtime/trace.h"
#include "sched/record.h"

enum { MS = 1000000 };

typedef struct place { /* a folder of its own, with a file in it */
  char folder[64], file[96];
} place;

static void make_place(place *p) {
  snprintf(p->folder, sizeof p->folder, "/tmp/troika-trace-XXXXXX");
  assert_non_null(mkdtemp(p->folder));
  snprintf(p->file, sizeof p->file, "%s/out", p->folder);
}

static void remove_place(const place *p) {
  unlink(p->file);
  rmdir(p->folder);
}

static char *read_file(const char *path, size_t *len) {
  FILE *f = fopen(path, "re");
  assert_non_null(f);
  size_t capacity = 64 << 20;
  char *bytes = aligned_alloc(8, capacity);
  assert_non_null(bytes);
  *len = fread(bytes, 1, capacity - 1, f);
  bytes[*len] = 0;
  fclose(f);
  return bytes;
}

static trace_stretch stretch(uint32_t i, int64_t from_ns) {
  return (trace_stretch){.launch = i % 8,
                         .reactive_rows = 1,
                         .background_rows = i % 3,
                         .band = (uint8_t)(i % 3),
                         .start_ns = from_ns + (int64_t)i * 10 * MS,
                         .end_ns = from_ns + (int64_t)i * 10 * MS + 9 * MS};
}

static uint32_t count(const json_t *events, const char *what, int process) {
  uint32_t n = 0;
  size_t i;
  json_t *e;
  json_array_foreach((json_t *)(uintptr_t)events, i, e) n +=
      !strcmp(json_string_value(json_object_get(e, "ph")), what) &&
      json_integer_value(json_object_get(e, "pid")) == process;
  return n;
}

static json_int_t lost_said(const json_t *events) {
  const json_t *last = json_array_get(events, json_array_size(events) - 1);
  assert_string_equal(json_string_value(json_object_get(last, "name")), "trace_end");
  return json_integer_value(json_object_get(json_object_get(last, "args"), "events_lost"));
}

/* Perfetto's colour is one of the name: it must be the class's, and nothing else. */
static void check_slice(const json_t *e, uint32_t *slices) {
  static const char *const classes[] = {"reactive", "inherited", "proactive"};
  const json_t *args = json_object_get(e, "args");
  json_int_t launch = json_integer_value(json_object_get(args, "launch"));
  bool device = json_integer_value(json_object_get(e, "pid")) == 1;
  assert_string_equal(json_string_value(json_object_get(e, "name")),
                      classes[device ? launch % 3 : 0]);
  assert_non_null(json_string_value(json_object_get(args, "phase")));
  assert_null(json_object_get(e, "cname"));
  ++*slices;
}

static void test_events(void **state) {
  (void)state;
  place p;
  runtime_trace *t = NULL;
  troika_error err;
  json_error_t problem;
  size_t len;
  make_place(&p);
  assert_int_equal(runtime_trace_open(p.file, &t, &err), TROIKA_OK);
  int64_t now = clock_real_now(NULL);
  for (uint32_t i = 0; i < 5; i++) {
    trace_stretch s = stretch(i, now);
    if (i == 4) s.prompt_rows = 256, s.request = 77, s.stopped = true;
    runtime_trace_stretch(t, &s);
  }
  trace_request r = {.id = 77,
                     .finish = "stop",
                     .submit_ns = now,
                     .start_ns = now + MS,
                     .first_ns = now + 3 * MS,
                     .last_ns = now + 6 * MS,
                     .end_ns = now + 6 * MS};
  runtime_trace_request(t, &r);
  r.submit_ns += MS; /* at the same time: another row */
  runtime_trace_request(t, &r);
  r = (trace_request){.id = 78,
                      .finish = "cancelled",
                      .submit_ns = now + 7 * MS,
                      .end_ns = now + 8 * MS}; /* never ran; on the first row again */
  runtime_trace_request(t, &r);
  runtime_trace_counter(t, "kv pages used", now, 12);
  runtime_trace_close(&t);
  assert_null(t);
  char *text = read_file(p.file, &len);
  json_t *events = json_loadb(text, len, 0, &problem);
  if (!events) fail_msg("%s at line %d", problem.text, problem.line);
  assert_int_equal(count(events, "X", 1), 5);
  assert_int_equal(count(events, "X", 2), 3 + 3 + 1);
  assert_int_equal(count(events, "C", 1), 1);
  assert_int_equal(lost_said(events), 0);
  size_t i;
  json_t *e;
  uint32_t lanes = 0, slices = 0;
  json_array_foreach(events, i, e) {
    if (json_integer_value(json_object_get(e, "pid")) == 2)
      lanes |= 1u << json_integer_value(json_object_get(e, "tid"));
    if (!strcmp(json_string_value(json_object_get(e, "ph")), "X")) check_slice(e, &slices);
  }
  assert_int_equal(lanes, 3);
  assert_int_equal(slices, 5 + 7);
  assert_non_null(strstr(text, "\"stopped\":true,\"request\":77"));
  json_decref(events);
  free(text);
  remove_place(&p);
}

typedef struct reader { /* of a pipe, into a file */
  int from;
  FILE *to;
  pthread_t thread;
} reader;

static void *read_all(void *context) {
  reader *r = context;
  static char bytes[1 << 16];
  for (ssize_t n; (n = read(r->from, bytes, sizeof bytes)) > 0;)
    assert_int_equal(fwrite(bytes, 1, (size_t)n, r->to), n);
  return NULL;
}

/* A pipe in the file's place that is open for reading, but not read. */
static void hang(const place *p, reader *r) {
  assert_int_equal(mkfifo(p->file, 0600), 0);
  r->from = open(p->file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  assert_true(r->from >= 0);
}

static void go_on(const place *p, reader *r, char *path, size_t size) {
  snprintf(path, size, "%s/copy", p->folder);
  r->to = fopen(path, "we");
  assert_non_null(r->to);
  assert_int_equal(fcntl(r->from, F_SETFL, 0), 0);
  assert_int_equal(pthread_create(&r->thread, NULL, read_all, r), 0);
}

static void finish(reader *r) {
  pthread_join(r->thread, NULL);
  fclose(r->to);
  close(r->from);
}

static void test_trace_overflows(void **state) {
  (void)state;
  enum { SENT = 60000 };
  place p;
  reader r;
  runtime_trace *t = NULL;
  troika_error err;
  char copy[128];
  size_t len;
  make_place(&p);
  hang(&p, &r);
  assert_int_equal(runtime_trace_open(p.file, &t, &err), TROIKA_OK);
  int64_t now = clock_real_now(NULL), slowest = 0;
  for (uint32_t i = 0; i < SENT; i++) {
    trace_stretch s = stretch(i, now);
    int64_t began = clock_thread_now();
    runtime_trace_stretch(t, &s);
    int64_t took = clock_thread_now() - began;
    if (took > slowest) slowest = took;
  }
  int64_t sent_ns = clock_real_now(NULL) - now;
  go_on(&p, &r, copy, sizeof copy);
  runtime_trace_close(&t);
  finish(&r);
  if (sent_ns > 2000LL * MS) fail_msg("it waited for its reader: %lld ns", (long long)sent_ns);
  char *text = read_file(copy, &len);
  json_t *events = json_loadb(text, len, 0, NULL);
  assert_non_null(events);
  json_int_t lost = lost_said(events);
  uint32_t there = count(events, "X", 1);
  if (lost < SENT / 2 || there + lost != SENT)
    fail_msg("%u there, %lld lost of %d", there, (long long)lost, SENT);
  assert_non_null(strstr(text, "\"events_lost\",\"ph\":\"C\"")); /* said before the end, too */
  json_decref(events);
  free(text);
  unlink(copy);
  remove_place(&p);
}

typedef struct scene {
  sched_config config;
  cost_table cost;
  sched_device device;
  sched_request requests[300];
  sched_view view;
  sched_memory memory;
} scene;

static void make_scene(scene *s) {
  *s = (scene){.config = {.places = 8, .queue_max = 8, .decode_rows = 8, .preempt_ns = 10 * MS}};
  cost_guess(&s->cost, 100000000, 200000000, 2);
  s->device = (sched_device){
      .cost = &s->cost, .decodes = 1, .prefills = 1, .can_stop = 1, .step = 1, .span_rows = 256};
  for (uint32_t i = 0; i < 300; i++)
    s->requests[i] = (sched_request){.id = i,
                                     .launch = SCHED_NONE,
                                     .prompt_left = 100,
                                     .output_left = 10,
                                     .expected_left = 5,
                                     .first_deadline_ns = SCHED_NEVER,
                                     .done_deadline_ns = SCHED_NEVER};
  s->view = (sched_view){.config = &s->config,
                         .requests = s->requests,
                         .n_requests = 300,
                         .devices = &s->device,
                         .n_devices = 1,
                         .pages_free = {100},
                         .pages_total = {100}};
}

/* Writes n decisions; returns the time that the slowest call took, of wall-clock time. */
static int64_t record(runtime_recorder *r, scene *s, uint32_t n) {
  int64_t slowest = 0;
  for (uint32_t i = 0; i < n; i++) {
    sched_action actions[64];
    sched_memory before = s->memory;
    int64_t wake, now = 1000LL * MS + (int64_t)i * MS;
    size_t acts = sched_decide(&s->view, &s->memory, now, actions, 64, &wake);
    int64_t began = clock_real_now(NULL);
    runtime_recorder_decision(r, &s->view, &before, now, actions, acts);
    int64_t took = clock_real_now(NULL) - began;
    if (took > slowest) slowest = took;
  }
  return slowest;
}

/* Reads a file of records; returns how many. *gaps: decisions that are not there. */
static uint32_t read_records(const char *path, uint64_t *gaps) {
  static sched_recorded d;
  const char *problem = NULL;
  size_t len, at = 0, taken;
  uint64_t next = 0;
  uint32_t n = 0;
  char *bytes = read_file(path, &len);
  *gaps = 0;
  while ((taken = sched_record_read((uint8_t *)bytes + at, len - at, &d, &problem))) {
    assert_true(d.before.decisions >= next);
    *gaps += d.before.decisions - next;
    next = d.before.decisions + 1;
    at += taken;
    n++;
  }
  if (problem) fail_msg("record %u: %s", n, problem);
  free(bytes);
  return n;
}

static void test_recorder(void **state) {
  (void)state;
  place p;
  runtime_recorder *r = NULL;
  troika_error err;
  static scene s;
  uint64_t gaps;
  struct stat file;
  make_place(&p);
  make_scene(&s);
  assert_int_equal(runtime_recorder_open(NULL, &r, &err), TROIKA_OK);
  assert_null(r);
  runtime_recorder_close(&r);
  assert_int_equal(runtime_recorder_open(p.folder, &r, &err), TROIKA_IO);
  assert_non_null(strstr(err.text, p.folder));
  assert_int_equal(runtime_recorder_open(p.file, &r, &err), TROIKA_OK);
  record(r, &s, 1);
  for (int i = 0; i < 100; i++) { /* a decision is in the file soon, though none follows */
    assert_int_equal(stat(p.file, &file), 0);
    if (file.st_size) break;
    usleep(50000);
  }
  assert_true(file.st_size > 0);
  assert_int_equal(read_records(p.file, &gaps), 1);
  record(r, &s, 499); /* 35 MB: many buffers, on a disk that keeps up, or says what it lost */
  runtime_recorder_close(&r);
  uint32_t n = read_records(p.file, &gaps);
  if (n + gaps > 500 || n < 100) fail_msg("%u there, %llu lost", n, (unsigned long long)gaps);
  remove_place(&p);
}

static void test_recorder_overflows(void **state) {
  (void)state;
  enum { SENT = 800 };
  place p;
  reader pipe;
  runtime_recorder *r = NULL;
  troika_error err;
  static scene s;
  char copy[128];
  uint64_t gaps;
  make_place(&p);
  make_scene(&s);
  hang(&p, &pipe);
  assert_int_equal(runtime_recorder_open(p.file, &r, &err), TROIKA_OK);
  int64_t slowest = record(r, &s, SENT); /* 56 MB; two buffers hold 16 */
  go_on(&p, &pipe, copy, sizeof copy);
  usleep(300000); /* the buffers are free again */
  record(r, &s, 1);
  runtime_recorder_close(&r);
  finish(&pipe);
  uint32_t n = read_records(copy, &gaps);
  if (n < 100 || gaps < 100 || n + gaps != SENT + 1)
    fail_msg("%u there, %llu lost", n, (unsigned long long)gaps);
  if (slowest > 1000LL * MS) fail_msg("it waited %lld ns", (long long)slowest);
  unlink(copy);
  remove_place(&p);
}

/* A full disk is said once and hurts nobody. */
static void test_full_disk(void **state) {
  (void)state;
  runtime_recorder *r = NULL;
  runtime_trace *t = NULL;
  troika_error err;
  static scene s;
  make_scene(&s);
  assert_int_equal(runtime_recorder_open("/dev/full", &r, &err), TROIKA_OK);
  assert_int_equal(runtime_trace_open("/dev/full", &t, &err), TROIKA_OK);
  record(r, &s, 100);
  for (uint32_t i = 0; i < 1000; i++) {
    trace_stretch e = stretch(i, 0);
    runtime_trace_stretch(t, &e);
  }
  usleep(100000);
  record(r, &s, 1);
  runtime_recorder_close(&r);
  runtime_trace_close(&t);
  assert_int_equal(runtime_trace_open("/nowhere/x", &t, &err), TROIKA_IO);
  assert_non_null(strstr(err.text, "/nowhere/x"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_events),    cmocka_unit_test(test_trace_overflows),
      cmocka_unit_test(test_recorder),  cmocka_unit_test(test_recorder_overflows),
      cmocka_unit_test(test_full_disk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
