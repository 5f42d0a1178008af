/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of a request when it is answered: usage, headers, log line, figures. */
#include <stdio.h>
#include <string.h>

#include "api/job.h"
#include "base/clock.h"
#include "base/log.h"

/* Mean time between its tokens; 0: fewer than two. */
static int64_t per_token(const troika_event *e) {
  int64_t span = e->timings.last_token_ns - e->timings.first_token_ns;
  return e->completion_tokens > 1 && span > 0 ? span / (e->completion_tokens - 1) : 0;
}

api_usage api_job_usage(const api_job *job) {
  api_usage u = {.preprocess_ns = job->answer.preprocess_ns, .io_ns = job->io_ns};
  if (job->stalled_ns) u.io_ns += clock_real_now(NULL) - job->stalled_ns;
  for (uint32_t i = 0; i < job->choices_n; i++) {
    const api_choice *c = &job->choices[i];
    const troika_event *e = &c->end;
    if (!c->ended) continue;
    u.completion_tokens += e->completion_tokens;
    if (i == 0) u.timings = e->timings;
    if (e->timings.decode_ns > u.timings.decode_ns) u.timings.decode_ns = e->timings.decode_ns;
    if (per_token(e) > u.per_token_ns) u.per_token_ns = per_token(e);
    if (i % job->request.n) continue; /* a prompt counts once */
    u.prompt_tokens += e->prompt_tokens;
    u.cached_tokens += e->cached_tokens;
  }
  if (job->first_ns) u.first_token_ns = job->first_ns - http_received_ns(job->x);
  return u;
}

void api_job_look(api_job *job) {
  if (job->entry) api_stream_look(job->owner->streams, job->entry, &job->now);
}

api_about api_job_about(api_job *job, const api_choice *choice, const troika_event *end) {
  troika_stream_info info;
  api_job_look(job);
  if (choice)
    troika_stream_describe(choice->stream, &info);
  else
    info = job->now.info;
  api_about about = {.class_ = job->now.info.class_,
                     .band = job->now.info.band,
                     .diverged_at = info.diverged_at,
                     .preemptions = info.preemptions,
                     .promoted = info.promoted,
                     .attached = job->now.attached,
                     .capped = job->who.capped,
                     .has_priority = job->who.has_priority,
                     .priority = job->who.priority,
                     .stream_id = job->stream_id,
                     .decided_by = job->now.decided_by,
                     .who = &job->who};
  if (end) {
    about.cached_tokens = end->cached_tokens;
    about.queue_ns = end->timings.queue_ns;
  }
  return about;
}

void api_job_headers(api_job *job, bool whole) {
  char text[32];
  http_exchange *x = job->x;
  if (!job->resolved) return;
  if (!job->told) { /* a stream that found no memory has */
    http_answer_header(x, "x-troika-class", api_class_name(job->now.info.class_));
    http_answer_header(x, "x-troika-band", api_band_name(job->now.info.band));
    http_answer_header(x, "x-troika-decided-by", job->now.decided_by);
    if (*job->stream_id) http_answer_header(x, "x-troika-stream", job->stream_id);
  }
  job->told = true;
  if (!whole) return;
  api_usage usage = api_job_usage(job);
  snprintf(text, sizeof text, "%.3f", (double)usage.timings.queue_ns / 1e6);
  http_answer_header(x, "x-troika-queue-ms", text);
  snprintf(text, sizeof text, "%llu", (unsigned long long)usage.cached_tokens);
  http_answer_header(x, "x-troika-cached-tokens", text);
}

/* The names that its client gave: text that is clean, and quoted. "": there are none, or they do
 * not fit, since a line that is cut off is none any more. */
static void put_names(const api_job *job, bool json, char *out, size_t capacity) {
  const char *const names[] = {"session", "agent", "step"};
  const char *const values[] = {job->who.stream, job->who.agent, job->who.step};
  bytes_buffer text;
  *out = 0;
  if (!job->resolved) return;
  bytes_init(&text, 1024);
  if (json)
    api_resolved_put_names(&job->who, &text);
  else
    for (int i = 0; i < 3; i++)
      if (*values[i]) bytes_append_format(&text, " %s \"%s\"", names[i], values[i]);
  if (!text.failed && text.len < capacity) {
    memcpy(out, text.data ? text.data : "", text.len);
    out[text.len] = 0;
  }
  bytes_free(&text);
}

/* Who waited for it, as members of the line; "" for what is no completion. */
static void put_who(const api_job *job, bool json, char *out, size_t capacity) {
  const char *key =
      job->signals.key && job->signals.key->rules.name[0] ? job->signals.key->rules.name : "-";
  *out = 0;
  if (!job->resolved) return;
  snprintf(
      out, capacity,
      json ? ",\"class\":\"%s\",\"band\":\"%s\",\"decided_by\":\"%s\",\"troika_stream\":\"%s\","
             "\"key\":\"%s\",\"preemptions\":%u"
           : " class %s band %s by %s %s key %s preemptions %u",
      api_class_name(job->now.info.class_), api_band_name(job->now.info.band), job->now.decided_by,
      *job->stream_id ? job->stream_id : "-", key, job->now.info.preemptions);
}

static void log_job(const api_job *job, const api_usage *u, unsigned status, int64_t total_ns) {
  char members[1000], who[320], names[256], outcome[16] = "gone";
  if (!log_wants(LOG_INFO)) return;
  if (status != API_STATUS_GONE) snprintf(outcome, sizeof outcome, "%u", status);
  put_who(job, true, who, sizeof who);
  int n = snprintf(
      members, sizeof members,
      "\"id\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%u,\"stream\":%s,"
      "\"choices\":%u,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"completion_tokens\":%llu,"
      "\"preprocess_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,"
      "\"preempted_ms\":%.3f,\"blocked_ms\":%.3f,\"io_ms\":%.3f,\"first_token_ms\":%.3f,"
      "\"total_ms\":%.3f%s",
      job->answer.id, http_method(job->x), http_path(job->x), status,
      job->request.stream ? "true" : "false", job->choices_n, (unsigned long long)u->prompt_tokens,
      (unsigned long long)u->cached_tokens, (unsigned long long)u->completion_tokens,
      api_ms(u->preprocess_ns), api_ms(u->timings.queue_ns), api_ms(u->timings.prefill_ns),
      api_ms(u->timings.decode_ns), api_ms(u->timings.preempted_ns), api_ms(u->timings.blocked_ns),
      api_ms(u->io_ns), api_ms(u->first_token_ns), api_ms(total_ns), who);
  if (n > 0 && (size_t)n < sizeof members)
    put_names(job, true, members + n, sizeof members - (size_t)n);
  put_who(job, false, who, sizeof who);
  put_names(job, false, names, sizeof names);
  log_with(LOG_INFO, members,
           "%s %s %s%s prompt %llu cached %llu generated %llu preprocess %.1f queue %.1f prefill "
           "%.1f decode %.1f preempted %.1f total %.1f ms%s%s %s",
           http_method(job->x), http_path(job->x), outcome, job->request.stream ? " stream" : "",
           (unsigned long long)u->prompt_tokens, (unsigned long long)u->cached_tokens,
           (unsigned long long)u->completion_tokens, api_ms(u->preprocess_ns),
           api_ms(u->timings.queue_ns), api_ms(u->timings.prefill_ns), api_ms(u->timings.decode_ns),
           api_ms(u->timings.preempted_ns), api_ms(total_ns), who, names, job->answer.id);
}

static api_stream_end end_of(const api_job *job, unsigned status) {
  if (status == API_STATUS_GONE || status == 409) return API_END_CANCELLED;
  if (status < 400 && !job->failed) return API_END_DONE;
  return status < 500 ? API_END_REFUSED : API_END_FAILED;
}

/* The turn is over; if it ended in tool calls, its children are as urgent as it was. */
static void end_turn(api_job *job, unsigned status) {
  bool waits = false;
  if (!job->entry) return;
  for (uint32_t i = 0; i < job->choices_n && status == 200; i++)
    waits = waits || (job->choices[i].ended && job->choices[i].end.finish == TROIKA_FINISH_STOP &&
                      api_calls_seen(&job->choices[i].calls));
  if (job->who.session)
    troika_runtime_session_waits(job->owner->options.runtime, job->who.session, waits);
  api_stream_end_as(job->owner->streams, job->entry, end_of(job, status), status);
  job->entry = NULL;
}

void api_job_record(api_job *job) {
  if (job->recorded) return;
  job->recorded = true;
  api_job_look(job);
  bool all_ended = job->choices_n && job->ended == job->choices_n;
  unsigned status = job->left || !job->status ? API_STATUS_GONE : job->status;
  int64_t total_ns = clock_real_now(NULL) - http_received_ns(job->x);
  api_usage usage = api_job_usage(job);
  api_metrics *m = &job->owner->metrics;
  if (all_ended && !job->failed && !job->left)
    api_metrics_finished(m, job->now.info.class_, &usage, total_ns);
  if (!usage.prompt_tokens) usage.prompt_tokens = job->prompt_tokens;
  api_metrics_answered(m, job->endpoint, status);
  log_job(job, &usage, status, total_ns);
  end_turn(job, status);
}
