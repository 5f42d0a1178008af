/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring what launches cost: the table that follows from made-up times, measuring on a small
 * model, its file whole and broken, and requests that come in between.
 *
 * ctest: tsan */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "model/tiny_model.h"
#include "runtime/internal.h"
#include "runtime/support_engine.h"

enum { TEXT_MAX = 64 * 1024 };

static char folder[] = "/tmp/troika-profile-XXXXXX";
static char model_path[64], window_path[64], file_path[64];
static char costs[TEXT_MAX];

/* Launches that are long enough to be interrupted; too long under ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
#define LARGE window_path
enum { ROUNDS_MIN = 0, LASTS = 0 };
#else
#define LARGE SMOLLM2
enum { ROUNDS_MIN = 5, LASTS = 1 };
#endif

/* ---- by numbers ---- */

static graph one_group(void) {
  return (graph){.n_groups = 1, .groups = {{.page_bytes = 32 * 1024}}};
}

/* A device of which all is known: 7 us a GEN row and 40, 3 us a PROMPT row and 50; a MiB of KV 800
 * and 90 us; one launch for both saves 9 us for one row, 4 more for eight. */
static int64_t made_up(const graph *g, const profile_point *p) {
  cost_load load = profile_load_of(g, p);
  int64_t ns = 0;
  if (p->gen_rows) ns += 40000 + 7000 * p->gen_rows + (int64_t)(load.gen_kv * 800000 >> 20);
  if (p->prompt_rows) ns += 50000 + 3000 * p->prompt_rows + (int64_t)(load.prompt_kv * 90000 >> 20);
  if (p->gen_rows && p->prompt_rows) ns -= p->gen_rows >= 8 ? 13000 : 9000;
  return ns;
}

static void feed(const graph *g, profile_point *p, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    static const int64_t noise[] = {900000, 0, 30000, 0, 70000, 0, 500000, 0};
    p->ns[p->n++] = made_up(g, p) + noise[i % 8];
  }
}

static void a_known_device_gives_its_table(void **state) {
  (void)state;
  static profile_state s;
  const graph g = one_group();
  profile_facts facts = {0};
  cost_guess(&s.table, 1000000, 1000000, 2);
  profile_plan(&s, &g, 32, 256, 8192);
  assert_true(s.n_points > 30 && s.n_checks == 15);
  for (uint32_t i = 0; i < s.n_points; i++) feed(&g, &s.points[i], PROFILE_ROUNDS);
  for (uint32_t i = 0; i < s.n_checks; i++) feed(&g, &s.checks[i], 2);
  for (uint32_t i = 0; i < PROFILE_GAPS; i++) s.gaps[s.n_gaps++] = 10000 + 1000 * i;
  for (uint32_t i = 0; i < 100; i++) s.stops[s.n_stops++] = 1000 * (100 - (int64_t)i);
  assert_true(profile_build(&s, &g, &facts));
  const cost_table *t = &s.table;
  for (uint32_t i = 0; i < COST_POINTS; i++) { /* beyond 32 rows by the last slope */
    assert_in_range(t->gen[i], 40000 + 7000 * cost_rows[i] - 20, 40000 + 7000 * cost_rows[i] + 20);
    assert_in_range(t->prompt[i], 50000 + 3000 * cost_rows[i] - 20,
                    50000 + 3000 * cost_rows[i] + 20);
  }
  assert_int_equal(facts.gen_points, (1 << 10) - 1);
  assert_int_equal(facts.prompt_points, (1 << 14) - 1);
  assert_in_range(t->gen_kv_ns_per_mib, 799900, 800100);
  assert_in_range(t->prompt_kv_ns_per_mib, 89990, 90010);
  assert_in_range(t->shared_ns[0], 8990, 9010);
  assert_in_range(t->shared_ns[1], 12990, 13010);
  assert_int_equal(t->launch_ns, 13000);
  assert_int_equal(t->stop_ns, 100000);
  assert_int_equal(facts.stop_p95_ns, 95000);
  profile_errors(&s, &g, &facts); /* half of the observations are right, half far off */
  assert_true(facts.error_median > 0 && facts.error_median <= facts.error_p90);
  assert_int_equal(t->errors_n, 30);
  assert_int_equal(t->error_q, facts.error_p90);
}

static void one_late_stop_does_not_move_the_bound(void **state) {
  (void)state;
  quantile q = {0};
  const int64_t table = 900000, most = 10000000;
  assert_int_equal(quantile_of(&q, 950), 0);
  for (int i = 1; i <= 100; i++) {
    quantile_add(&q, 1000 * (i * 37 % 101)); /* each of 1 to 100 once */
    assert_int_equal(profile_stop_bound(&q, table, most), table);
  }
  assert_int_equal(quantile_of(&q, 950), 95000);
  assert_int_equal(quantile_of(&q, 900), 90000);
  assert_int_equal(quantile_of(&q, 1), 1000);
  assert_int_equal(quantile_of(&q, 1000), 100000);
  q = (quantile){0};
  for (int i = 0; i < 31; i++) quantile_add(&q, 3000000);
  assert_int_equal(profile_stop_bound(&q, table, most), table); /* too few to prove it */
  quantile_add(&q, 3000000);
  assert_int_equal(profile_stop_bound(&q, table, most), 3000000);
  assert_int_equal(profile_stop_bound(&q, 4000000, most), 4000000);
  for (int i = 0; i < 128; i++) quantile_add(&q, 500000);
  assert_int_equal(profile_stop_bound(&q, table, most), table); /* it falls back */
  for (int i = 0; i < 6; i++) quantile_add(&q, 80000000);
  assert_int_equal(profile_stop_bound(&q, table, most), table); /* outliers */
  quantile_add(&q, 80000000);
  assert_int_equal(quantile_of(&q, 950), 80000000); /* more than a twentieth are none */
  assert_int_equal(profile_stop_bound(&q, table, most), most);
  assert_int_equal(profile_stop_bound(&q, 12000000, most), 12000000);
}

static void what_was_not_measured_is_drawn_and_marked(void **state) {
  (void)state;
  static profile_state s;
  const graph g = one_group();
  profile_facts facts = {0};
  cost_guess(&s.table, 1000000, 1000000, 2);
  int64_t guessed = s.table.gen[13] * 1000 / s.table.gen[0];
  profile_plan(&s, &g, 32, 256, 8192);
  assert_false(profile_build(&s, &g, &facts)); /* nothing at all */
  cost_guess(&s.table, 1000000, 1000000, 2);
  for (uint32_t i = 0; i < s.n_points; i++) {
    profile_point *p = &s.points[i];
    if (p->depth || (p->gen_rows && p->prompt_rows)) continue;
    if (p->gen_rows == 1 || p->prompt_rows == 2 || p->prompt_rows == 16) feed(&g, p, 1);
  }
  assert_true(profile_build(&s, &g, &facts));
  assert_int_equal(facts.gen_points, 1);
  assert_int_equal(facts.prompt_points, 1 << 1 | 1 << 7);
  assert_in_range(s.table.gen[13] * 1000 / s.table.gen[0], guessed - 2, guessed + 2);
  int64_t rise = (s.table.prompt[7] - s.table.prompt[1]) / 14;
  assert_in_range(s.table.prompt[5] - s.table.prompt[1], rise * 6 - 20, rise * 6 + 20);
  assert_in_range(s.table.prompt[13] - s.table.prompt[7], rise * 240 - 300, rise * 240 + 300);
  assert_true(s.table.prompt[0] <= s.table.prompt[1]);
  assert_int_equal(s.table.shared_ns[0], 0);
}

static void plans_fit_what_there_is(void **state) {
  (void)state;
  static profile_state s;
  const graph g = one_group();
  static const uint32_t sizes[] = {1, 2, 7, 16, 33, 64, 256, 4096};
  for (int i = 0; i < 512; i++) {
    uint32_t parallel = sizes[i % 8], span = sizes[i / 8 % 8], context = sizes[i / 64];
    profile_plan(&s, &g, parallel, span, context);
    assert_true(s.n_points >= 1 && s.points[0].gen_rows == 1);
    for (uint32_t j = 0; j < s.n_points + s.n_checks; j++) {
      const profile_point *p = j < s.n_points ? &s.points[j] : &s.checks[j - s.n_points];
      assert_true(p->gen_rows <= parallel && p->gen_rows <= 64 && p->prompt_rows <= span);
      assert_true(p->depth + p->prompt_rows <= context);
    }
  }
}

static void a_window_bounds_what_a_row_reads(void **state) {
  (void)state;
  const graph g = {.n_groups = 2,
                   .groups = {{.page_bytes = 32 * 100}, {.window = 24, .page_bytes = 32 * 10}}};
  assert_int_equal(profile_kv_bytes(&g, 0), 110);
  assert_int_equal(profile_kv_bytes(&g, 23), 24 * 110);
  assert_int_equal(profile_kv_bytes(&g, 99), 100 * 100 + 24 * 10);
  const profile_point p = {.gen_rows = 3, .prompt_rows = 2, .depth = 40};
  cost_load load = profile_load_of(&g, &p);
  assert_int_equal(load.gen_kv, 3 * (41 * 100 + 240));
  assert_int_equal(load.prompt_kv, 41 * 100 + 240 + 42 * 100 + 240);
}

/* ---- on a small model ---- */

static engine open_small(const char *model, const char *profile, uint32_t parallel,
                         uint32_t span_rows) {
  troika_runtime_options o = {.size = sizeof o,
                              .threads = 2,
                              .parallel = parallel,
                              .span_rows = span_rows,
                              .profile = profile};
  return engine_open(model, &o);
}

static json_t *costs_of(const engine *e) {
  size_t len = troika_runtime_costs(e->runtime, costs, sizeof costs);
  assert_true(len > 0 && len < sizeof costs && strlen(costs) == len);
  assert_int_equal(troika_runtime_costs(e->runtime, NULL, 0), len);
  json_t *o = json_loads(costs, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(o);
  return o;
}

static bool is_measured(const engine *e) {
  json_t *o = costs_of(e);
  bool measured = json_is_true(json_object_get(o, "measured"));
  json_decref(o);
  return measured;
}

static void on_progress(void *context, uint64_t done, uint64_t total) {
  uint64_t *most = context;
  assert_true(done <= total || !total);
  if (done > *most) *most = done;
}

static void measure(const engine *e) {
  troika_error err = {0};
  uint64_t most = 0;
  troika_status status = troika_runtime_profile(e->runtime, on_progress, &most, &err);
  if (status) fail_msg("profile: %s", err.text);
  assert_true(most > 100);
  assert_true(is_measured(e));
}

static char *read_text(const char *path, size_t *len) {
  static char text[TEXT_MAX];
  FILE *f = fopen(path, "re");
  if (!f) return NULL;
  *len = fread(text, 1, sizeof text - 1, f);
  text[*len] = 0;
  fclose(f);
  return text;
}

static void write_text(const char *path, const char *text, size_t len) {
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, len, f), len);
  fclose(f);
}

static void measured_once_and_read_by_the_next(void **state) {
  (void)state;
  unlink(file_path);
  engine e = open_small(model_path, file_path, 8, 64);
  troika_runtime_stats before, after;
  troika_runtime_describe(e.runtime, &before);
  assert_false(is_measured(&e));
  measure(&e);
  troika_runtime_describe(e.runtime, &after);
  assert_int_equal(before.kv_bytes_used, after.kv_bytes_used);
  json_t *first = costs_of(&e);
  assert_int_equal(json_integer_value(json_object_get(first, "stops")) > 0, 1);
  /* 8 rows are the sixth point; spans of 64 the twelfth. */
  for (size_t i = 0; i < COST_POINTS; i++) {
    assert_int_equal(json_is_true(json_array_get(json_object_get(first, "gen_measured"), i)),
                     i < 6);
    assert_int_equal(json_is_true(json_array_get(json_object_get(first, "prompt_measured"), i)),
                     i < 12);
  }
  engine_close(&e);
  e = open_small(model_path, file_path, 8, 64);
  assert_true(is_measured(&e));
  json_t *second = costs_of(&e);
  static const char *const same[] = {"gen_ns",  "prompt_ns", "shared_ns",
                                     "stop_ns", "launch_ns", "gen_kv_ns_per_mib",
                                     "key",     "when",      "bandwidth"};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++)
    assert_true(json_equal(json_object_get(first, same[i]), json_object_get(second, same[i])));
  json_decref(first);
  json_decref(second);
  engine_close(&e);
  e = open_small(model_path, file_path, 8, 32); /* other loads: another table */
  assert_false(is_measured(&e));
  engine_close(&e);
  for (uint32_t parallel = 4; parallel <= 16; parallel *= 4) { /* fewer at once are in it */
    e = open_small(model_path, file_path, parallel, 64);
    assert_int_equal(is_measured(&e), parallel < 8);
    engine_close(&e);
  }
}

static void windows_and_small_engines_are_measured_too(void **state) {
  (void)state;
  static const uint32_t parallel[] = {1, 2, 64}, spans[] = {16, 256, 64};
  for (int i = 0; i < 3; i++) {
    engine e = open_small(i % 2 ? model_path : window_path, NULL, parallel[i], spans[i]);
    measure(&e);
    engine_close(&e);
  }
}

static void a_folder_gets_a_file_by_its_key(void **state) {
  (void)state;
  char path[128], wanted[256];
  snprintf(path, sizeof path, "%s/", folder);
  engine e = open_small(model_path, path, 2, 16);
  measure(&e);
  json_t *o = costs_of(&e);
  snprintf(wanted, sizeof wanted, "%s%.32s.json", path,
           json_string_value(json_object_get(o, "key")));
  json_decref(o);
  engine_close(&e);
  assert_int_equal(access(wanted, R_OK), 0);
  e = open_small(model_path, path, 2, 16);
  assert_true(is_measured(&e));
  engine_close(&e);
  unlink(wanted);
}

static void a_file_that_cannot_be_written_is_said(void **state) {
  (void)state;
  troika_error err = {0};
  engine e = open_small(model_path, "/nowhere/at/all.json", 2, 16);
  assert_int_equal(troika_runtime_profile(e.runtime, NULL, NULL, &err), TROIKA_IO);
  assert_true(is_measured(&e)); /* and used nevertheless */
  engine_close(&e);
}

/* Every table that is accepted is valid; all else leaves a guess. Nothing crashes. */
static void broken_files_are_refused(void **state) {
  (void)state;
  size_t len = 0;
  engine e = open_small(model_path, file_path, 8, 64);
  if (!is_measured(&e)) measure(&e);
  char *whole = read_text(file_path, &len);
  assert_non_null(whole);
  static char text[TEXT_MAX];
  const profile_state *p = &e.runtime->profile; /* path and key are constant */
  cost_table t;
  profile_facts facts;
  uint64_t random = 88172645463325252u;
  uint32_t accepted = 0, refused = 0;
  for (int i = 0; i < 3000; i++) {
    size_t n = len;
    memcpy(text, whole, len);
    if (i < 200) {
      n = len * (size_t)i / 200;
    } else {
      for (int j = 0; j <= i % 3; j++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        text[random % len] = "0123456789-.,[]{}\"ae\n\0\xff "[random / len % 24];
      }
    }
    write_text(file_path, text, n);
    bool ok = profile_read(p, &t, &facts);
    assert_true(!ok || cost_valid(&t));
    accepted += ok, refused += !ok;
  }
  assert_true(refused > 1500);
  assert_true(accepted > 0); /* some changes hurt nothing: the model's name, a digit */
  static const char *const wrong[] = {
      "", "null", "[]", "{}", "{\"version\":1}", "\xff\xfe", "{\"version\":99999999999999999999}"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    write_text(file_path, wrong[i], strlen(wrong[i]));
    assert_false(profile_read(p, &t, &facts));
  }
  memset(text, '[', sizeof text);
  write_text(file_path, text, sizeof text);
  assert_false(profile_read(p, &t, &facts));
  static const char *const fields[] = {"gen_ns", "prompt_ns", "shared_ns"};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    json_t *o = json_loads(whole, 0, NULL);
    json_array_set_new(json_object_get(o, fields[i]), 1, json_integer(INT64_MAX));
    json_dump_file(o, file_path, 0);
    assert_false(profile_read(p, &t, &facts));
    json_array_set_new(json_object_get(o, fields[i]), 1, json_integer(-1));
    json_dump_file(o, file_path, 0);
    assert_false(profile_read(p, &t, &facts));
    json_decref(o);
  }
  unlink(file_path);
  assert_false(profile_read(p, &t, &facts));
  engine_close(&e);
}

/* A launch that stops by itself never ends: measuring gives up instead of trying for ever. */
static void stops_that_nobody_asked_for_end_it(void **state) {
  (void)state;
  troika_runtime_options o = {.size = sizeof o, .parallel = 2, .test_stop_panels = 1};
  troika_error err = {0};
  engine e = engine_open(model_path, &o);
  assert_int_equal(troika_runtime_profile(e.runtime, NULL, NULL, &err), TROIKA_UNSUPPORTED);
  assert_false(is_measured(&e));
  engine_close(&e);
}

/* ---- beside requests ---- */

static troika_request ask(const int32_t *tokens, uint32_t n, uint32_t max) {
  troika_request q;
  troika_request_init(&q);
  q.prompt = tokens;
  q.prompt_n = n;
  q.max_tokens = max;
  q.temperature = 0;
  q.ignore_eos = true;
  return q;
}

static void open_requests_make_it_busy(void **state) {
  (void)state;
  static const int32_t tokens[] = {1, 2, 3};
  engine e = open_small(model_path, NULL, 2, 16);
  troika_stream *s = engine_stream(&e);
  troika_request q = ask(tokens, 3, 250);
  troika_error err = {0};
  static engine_answer answer;
  int busy = 0;
  for (int i = 0; i < 50 && !busy; i++) { /* it may be over before we look */
    assert_int_equal(troika_stream_submit(s, &q, &err), TROIKA_OK);
    busy = troika_runtime_profile(e.runtime, NULL, NULL, &err) == TROIKA_BUSY;
    engine_read(s, &answer);
    assert_int_equal(answer.n, 250);
  }
  assert_true(busy);
  troika_stream_close(&s);
  engine_close(&e);
}

typedef struct caller {
  troika_runtime *runtime;
  troika_status status;
  _Atomic bool begun, over;
} caller;

static void on_begun(void *context, uint64_t done, uint64_t total) {
  (void)total;
  if (done) atomic_store((_Atomic bool *)context, true);
}

static void *call_profile(void *context) {
  caller *c = context;
  troika_error err = {0};
  c->status = troika_runtime_profile(c->runtime, on_begun, &c->begun, &err);
  atomic_store(&c->over, true);
  return NULL;
}

/* All places at once, again and again, at all times of a measurement: each request is answered as
 * ever, and measuring goes on after them. */
static void requests_stop_it_and_lose_nothing(void **state) {
  (void)state;
  engine e = engine_open(
      LARGE,
      &(troika_runtime_options){
          .size = sizeof(troika_runtime_options), .parallel = 8, .span_rows = 32, .context = 256});
  static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  troika_request q = ask(tokens, 11, 6);
  troika_stream *streams[8];
  static engine_answer wanted, answer;
  troika_error err = {0};
  engine_ask(&e, &q, &wanted);
  for (int i = 0; i < 8; i++) streams[i] = engine_stream(&e);
  caller c = {.runtime = e.runtime};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, call_profile, &c), 0);
  uint32_t rounds = 0;
  while (!atomic_load(&c.begun) && !atomic_load(&c.over)) usleep(1000);
  for (; rounds < 40 && !atomic_load(&c.over); rounds++) {
    usleep(1000 * (rounds * 37 % 101));
    for (int i = 0; i < 8; i++)
      assert_int_equal(troika_stream_submit(streams[i], &q, &err), TROIKA_OK);
    for (int i = 0; i < 8; i++) {
      engine_read(streams[i], &answer);
      assert_int_equal(answer.n, wanted.n);
      assert_memory_equal(answer.tokens, wanted.tokens, wanted.n * sizeof *wanted.tokens);
    }
  }
  assert_true(rounds > ROUNDS_MIN);
  pthread_join(thread, NULL);
  assert_int_equal(c.status, TROIKA_OK);
  assert_true(is_measured(&e));
  for (int i = 0; i < 8; i++) troika_stream_close(&streams[i]);
  engine_close(&e);
}

/* With a file named, and once a token was made, by itself after 2 s of silence; never before. */
static void an_idle_engine_measures_by_itself(void **state) {
  (void)state;
  static const int32_t tokens[] = {1, 2, 3};
  unlink(file_path);
  engine e = open_small(model_path, file_path, 4, 32);
  usleep(2500000);
  assert_false(is_measured(&e));
  troika_request q = ask(tokens, 3, 5);
  static engine_answer answer;
  engine_ask(&e, &q, &answer);
  usleep(1000000);
  assert_false(is_measured(&e));
  int64_t end = clock_real_now(NULL) + INT64_C(60000000000);
  while (!is_measured(&e) && clock_real_now(NULL) < end) usleep(100000);
  assert_true(is_measured(&e));
  usleep(200000); /* the file comes after the table */
  json_t *o = costs_of(&e);
  bool quiet = json_real_value(json_object_get(o, "processor_share")) >= PROFILE_QUIET / 1000.0;
  json_decref(o);
  engine_close(&e);
  assert_int_equal(access(file_path, R_OK) == 0, quiet); /* else the next try is a minute away */
}

/* In the middle of it: nothing hangs, nothing leaks. */
static void an_engine_may_close_while_it_measures(void **state) {
  (void)state;
  static const int32_t tokens[] = {1, 2, 3};
  unlink(file_path);
  troika_runtime_options o = {
      .size = sizeof o, .parallel = 4, .context = 256, .profile = file_path};
  engine e = engine_open(LARGE, &o);
  troika_request q = ask(tokens, 3, 2);
  static engine_answer answer;
  engine_ask(&e, &q, &answer);
  usleep(2600000);
  engine_close(&e);
  if (LASTS) assert_int_not_equal(access(file_path, R_OK), 0);
}

static int make_files(void **state) {
  (void)state;
  log_setup(LOG_ERROR, false); /* thousands of files are refused */
  if (!mkdtemp(folder)) return -1;
  snprintf(model_path, sizeof model_path, "%s/llama.gguf", folder);
  snprintf(window_path, sizeof window_path, "%s/gemma3.gguf", folder);
  snprintf(file_path, sizeof file_path, "%s/profile.json", folder);
  tiny_model m = tiny_llama(), w = tiny_gemma3();
  m.tokens = m.vocab;
  w.tokens = w.vocab;
  tiny_write_file(&m, NULL, model_path);
  tiny_write_file(&w, NULL, window_path);
  return 0;
}

static int remove_files(void **state) {
  (void)state;
  unlink(model_path);
  unlink(window_path);
  unlink(file_path);
  return rmdir(folder); /* no part of a file is left */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_known_device_gives_its_table),
      cmocka_unit_test(one_late_stop_does_not_move_the_bound),
      cmocka_unit_test(what_was_not_measured_is_drawn_and_marked),
      cmocka_unit_test(plans_fit_what_there_is),
      cmocka_unit_test(a_window_bounds_what_a_row_reads),
      cmocka_unit_test(measured_once_and_read_by_the_next),
      cmocka_unit_test(windows_and_small_engines_are_measured_too),
      cmocka_unit_test(a_folder_gets_a_file_by_its_key),
      cmocka_unit_test(a_file_that_cannot_be_written_is_said),
      cmocka_unit_test(broken_files_are_refused),
      cmocka_unit_test(stops_that_nobody_asked_for_end_it),
      cmocka_unit_test(open_requests_make_it_busy),
      cmocka_unit_test(requests_stop_it_and_lose_nothing),
      cmocka_unit_test(an_idle_engine_measures_by_itself),
      cmocka_unit_test(an_engine_may_close_while_it_measures),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
