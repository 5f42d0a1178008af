/* SPDX-License-Identifier: Apache-2.0 */
/* What a record of decisions shows, as text and as JSON. The time of the record is cut into at most
 * REPLAY_SLOTS equal stretches; as it goes on, two become one. */
#include <string.h>

#include "api/json.h"
#include "cli/replay.h"

static const char *const action_names[] = {
    [SCHED_ADMIT] = "admit",   [SCHED_REFUSE] = "refuse",   [SCHED_SHORTEN] = "shorten",
    [SCHED_EXPIRE] = "expire", [SCHED_SUSPEND] = "suspend", [SCHED_LAUNCH] = "launch",
    [SCHED_JOIN] = "join",     [SCHED_RESUME] = "resume",   [SCHED_DROP] = "drop",
    [SCHED_STOP] = "stop"};
static const char *const term_names[REPLAY_TERMS] = {
    [SCHED_TERM_NONE] = "none", [SCHED_TERM_SLACK] = "slack",   [SCHED_TERM_TARGET] = "target",
    [SCHED_TERM_FILL] = "fill", [SCHED_TERM_MEMORY] = "memory", [SCHED_TERM_FIXED] = "fixed"};
static const char *const band_names[] = {"R", "I", "P"};

const char *replay_action_name(uint8_t kind) {
  return kind <= SCHED_STOP ? action_names[kind] : "?";
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

static void add_slot(replay_slot *to, const replay_slot *from) {
  to->decisions += from->decisions;
  to->launches += from->launches;
  to->stops += from->stops;
  to->level = larger(to->level, from->level);
  for (int i = 0; i < REPLAY_TERMS; i++) to->terms[i] += from->terms[i];
  for (int b = 0; b < SCHED_BANDS; b++) {
    to->running[b] = larger(to->running[b], from->running[b]);
    to->queued[b] = larger(to->queued[b], from->queued[b]);
  }
  if (!from->bcap_seen) return;
  if (!to->bcap_seen || from->bcap_least < to->bcap_least) to->bcap_least = from->bcap_least;
  to->bcap_most = larger(to->bcap_most, from->bcap_most);
  to->bcap_seen = true;
}

/* A time before the record's begin, or far behind its end, is none that a clock gives. */
static replay_slot *slot_of(replay_report *r, int64_t now_ns) {
  int64_t since = now_ns > r->first_ns ? now_ns - r->first_ns : 0;
  if (!r->slot_ns) r->slot_ns = 1000000000;
  while (since / r->slot_ns >= REPLAY_SLOTS) {
    for (int i = 0; i < REPLAY_SLOTS / 2; i++) {
      replay_slot both = r->slots[2 * i];
      add_slot(&both, &r->slots[2 * i + 1]);
      r->slots[i] = both;
    }
    memset(&r->slots[REPLAY_SLOTS / 2], 0, sizeof r->slots / 2);
    r->slot_ns *= 2;
  }
  return &r->slots[since / r->slot_ns];
}

static void count_requests(replay_report *r, const sched_recorded *d, replay_slot *s) {
  for (uint32_t i = 0; i < d->view.n_requests; i++) {
    const sched_request *q = &d->view.requests[i];
    sched_band band = sched_band_of(q);
    if (q->lift < band) band = (sched_band)q->lift;
    if (!q->judged) r->requests[band]++;
    if (q->state == SCHED_QUEUED)
      s->queued[band]++;
    else if (q->state != SCHED_ENDED)
      s->running[band]++;
  }
}

void replay_count(replay_report *r, const sched_recorded *d, const sched_memory *after) {
  replay_slot now = {.decisions = 1, .level = after->level};
  bool joined = false;
  if (!r->decisions) r->first_ns = d->now_ns;
  r->last_ns = d->now_ns;
  r->decisions++;
  for (uint32_t i = 0; i < d->n_actions; i++) {
    const sched_action *a = &d->actions[i];
    r->actions[a->kind]++;
    if (a->kind == SCHED_LAUNCH) r->rows_prompt += a->rows;
    r->rows_decode += a->kind == SCHED_JOIN;
    r->iterations += a->kind == SCHED_JOIN && d->actions[i ? i - 1 : 0].kind == SCHED_LAUNCH;
    joined = joined || a->kind == SCHED_JOIN;
    now.launches += a->kind == SCHED_LAUNCH;
    now.stops += a->kind == SCHED_STOP;
  }
  count_requests(r, d, &now);
  if (joined && after->term && after->term < REPLAY_TERMS) {
    now.bcap_seen = true;
    now.bcap_least = now.bcap_most = after->bcap;
    now.terms[after->term] = 1;
  }
  add_slot(slot_of(r, d->now_ns), &now);
}

static const char *main_term(const replay_slot *s) {
  int most = 0;
  for (int i = 1; i < REPLAY_TERMS; i++)
    if (s->terms[i] > s->terms[most]) most = i;
  return s->bcap_seen ? term_names[most] : "-";
}

static double seconds(int64_t ns) {
  return (double)ns * 1e-9;
}

static double rate(const replay_report *r) {
  return r->spent_ns > 0 ? (double)r->decisions / seconds(r->spent_ns) : 0;
}

static void print_slots(const replay_report *r) {
  printf(
      "\n   seconds  decisions  launches     stops       B_cap  bound by  level  running R/I/P"
      "  queued R/I/P\n");
  for (int i = 0; i < REPLAY_SLOTS; i++) {
    const replay_slot *s = &r->slots[i];
    char bcap[24] = "-", running[40], queued[40];
    if (!s->decisions) continue;
    if (s->bcap_seen && s->bcap_least == s->bcap_most)
      snprintf(bcap, sizeof bcap, "%u", s->bcap_most);
    else if (s->bcap_seen)
      snprintf(bcap, sizeof bcap, "%u-%u", s->bcap_least, s->bcap_most);
    snprintf(running, sizeof running, "%u/%u/%u", s->running[0], s->running[1], s->running[2]);
    snprintf(queued, sizeof queued, "%u/%u/%u", s->queued[0], s->queued[1], s->queued[2]);
    printf("%10.0f %10llu %9llu %9llu %11s  %8s  %5u %14s %13s\n", seconds(r->slot_ns * i),
           (unsigned long long)s->decisions, (unsigned long long)s->launches,
           (unsigned long long)s->stops, bcap, main_term(s), s->level, running, queued);
  }
}

void replay_print(const replay_report *r, const char *file) {
  printf("%s: %llu decisions in %.1f s, %.1f MB; made again at %.0f a second\n\n", file,
         (unsigned long long)r->decisions, seconds(r->last_ns - r->first_ns),
         (double)r->bytes / 1e6, rate(r));
  printf("requests  R %llu, I %llu, P %llu\nactions   ", (unsigned long long)r->requests[0],
         (unsigned long long)r->requests[1], (unsigned long long)r->requests[2]);
  for (int k = 0, any = 0; k <= SCHED_STOP; k++) {
    if (!r->actions[k]) continue;
    printf("%s%s %llu", any++ ? ", " : "", action_names[k], (unsigned long long)r->actions[k]);
  }
  printf("\nrows      %llu of prompts, %llu in %llu iterations (%.2f each)\n",
         (unsigned long long)r->rows_prompt, (unsigned long long)r->rows_decode,
         (unsigned long long)r->iterations,
         r->iterations ? (double)r->rows_decode / (double)r->iterations : 0);
  if (r->missing)
    printf("missing   %llu decisions, which the recorder had no room for\n",
           (unsigned long long)r->missing);
  print_slots(r);
  printf("\nmismatches: %llu\n", (unsigned long long)r->mismatches);
  for (uint64_t i = 0; i < r->mismatches && i < REPLAY_SHOWN; i++)
    printf("  decision %llu, %.6f s: %s\n", (unsigned long long)r->shown[i].decision,
           seconds(r->shown[i].at_ns), r->shown[i].text);
}

static void put_slot(const replay_report *r, int i, bytes_buffer *out) {
  const replay_slot *s = &r->slots[i];
  bytes_append_format(out,
                      "{\"begin_s\":%.3f,\"decisions\":%llu,\"launches\":%llu,\"stops\":%llu,"
                      "\"level_max\":%u,\"bcap_min\":",
                      seconds(r->slot_ns * i), (unsigned long long)s->decisions,
                      (unsigned long long)s->launches, (unsigned long long)s->stops, s->level);
  if (s->bcap_seen)
    bytes_append_format(out, "%u,\"bcap_max\":%u,\"bcap_term\":\"%s\"", s->bcap_least, s->bcap_most,
                        main_term(s));
  else
    bytes_append_string(out, "null,\"bcap_max\":null,\"bcap_term\":null");
  for (int q = 0; q < 2; q++) {
    const uint32_t *n = q ? s->queued : s->running;
    bytes_append_format(out, ",\"%s_max\":{\"R\":%u,\"I\":%u,\"P\":%u}", q ? "queued" : "running",
                        n[0], n[1], n[2]);
  }
  bytes_append_string(out, "}");
}

static void put_mismatches(const replay_report *r, bytes_buffer *out) {
  bytes_append_string(out, ",\"first_mismatches\":[");
  for (uint64_t i = 0; i < r->mismatches && i < REPLAY_SHOWN; i++) {
    const replay_mismatch *m = &r->shown[i];
    bytes_append_format(out, "%s{\"decision\":%llu,\"at_s\":%.9f,\"difference\":", i ? "," : "",
                        (unsigned long long)m->decision, seconds(m->at_ns));
    api_json_put_string(out, m->text, strlen(m->text));
    bytes_append_string(out, "}");
  }
}

void replay_print_json(const replay_report *r, const char *file, const char *problem) {
  bytes_buffer out;
  bytes_init(&out, 1 << 20);
  bytes_append_string(&out, "{\"file\":");
  api_json_put_string(&out, file, strlen(file));
  bytes_append_format(&out,
                      ",\"bytes\":%llu,\"decisions\":%llu,\"mismatches\":%llu,\"missing\":%llu,"
                      "\"span_s\":%.6f,\"replay_s\":%.6f,\"decisions_per_second\":%.1f,\"whole\":%s"
                      ",\"problem\":",
                      (unsigned long long)r->bytes, (unsigned long long)r->decisions,
                      (unsigned long long)r->mismatches, (unsigned long long)r->missing,
                      seconds(r->last_ns - r->first_ns), seconds(r->spent_ns), rate(r),
                      problem ? "false" : "true");
  if (problem)
    api_json_put_string(&out, problem, strlen(problem));
  else
    bytes_append_string(&out, "null");
  bytes_append_string(&out, ",\"requests\":{");
  for (int b = 0; b < SCHED_BANDS; b++)
    bytes_append_format(&out, "%s\"%s\":%llu", b ? "," : "", band_names[b],
                        (unsigned long long)r->requests[b]);
  bytes_append_string(&out, "},\"actions\":{");
  for (int k = 0; k <= SCHED_STOP; k++)
    bytes_append_format(&out, "%s\"%s\":%llu", k ? "," : "", action_names[k],
                        (unsigned long long)r->actions[k]);
  bytes_append_format(&out, "},\"rows\":{\"prompt\":%llu,\"decode\":%llu,\"iterations\":%llu}",
                      (unsigned long long)r->rows_prompt, (unsigned long long)r->rows_decode,
                      (unsigned long long)r->iterations);
  put_mismatches(r, &out);
  bytes_append_string(&out, "],\"timeline\":[");
  for (int i = 0, any = 0; i < REPLAY_SLOTS; i++) {
    if (!r->slots[i].decisions) continue;
    if (any++) bytes_append_string(&out, ",");
    put_slot(r, i, &out);
  }
  bytes_append_string(&out, "]}");
  printf("%s\n", out.data ? out.data : "");
  bytes_free(&out);
}
