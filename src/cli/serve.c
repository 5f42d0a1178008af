/* SPDX-License-Identifier: Apache-2.0 */
/* troika serve: model, runtime, api and http put together, and taken apart in the right order.
 *
 *   up:    model → runtime → api → http
 *   down:  a signal: no new connections, 503 to new requests
 *          running requests end; at most --drain seconds, or until a second signal
 *          the rest is cancelled and says so → http → api → runtime → model */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/os.h"
#include "cli/cli.h"

enum {
  POLL_MS = 50,
  LAST_WORDS_MS = 1000, /* for the cancelled to be told so */
  FILES_OWN = 64        /* descriptors that are no connections */
};

/* Signals are taken by sigtimedwait, so they are blocked before the first thread starts. */
static void block_signals(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGINT);
  sigaddset(set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, set, NULL);
  signal(SIGPIPE, SIG_IGN);
}

static void print_ready(const cli_settings *s, const cli_engine *e, const char *name, uint16_t port,
                        bool keyed) {
  troika_model_info m;
  troika_runtime_stats r;
  char bytes[16], kv[16], bound[48] = "", host[128];
  troika_model_describe(e->model, &m);
  troika_runtime_describe(e->runtime, &r);
  cli_bytes_text(m.file_bytes, bytes);
  cli_bytes_text(r.kv_bytes, kv);
  if (r.bound_measured)
    snprintf(bound, sizeof bound, "; a launch stops within %.2f ms", r.preempt_bound_ms);
  const char *key = keyed ? " -H 'Authorization: Bearer KEY'" : "";
  bool any = !strcmp(s->host, "0.0.0.0") || !strcmp(s->host, "::");
  snprintf(host, sizeof host, strchr(s->host, ':') && !any ? "[%s]" : "%s",
           any ? "127.0.0.1" : s->host);
  printf(
      "troika %s serves %s (%s, %s; %s, %u threads, %u at once, context %u, KV %s%s; ready in %.2f "
      "s) at http://%s:%u\n",
      troika_version(), name, m.type, bytes, r.kernels, r.threads, r.parallel, r.context, kv, bound,
      e->open_s, host, port);
  if (m.has_template)
    printf(
        "curl http://%s:%u/v1/chat/completions%s -H 'Content-Type: application/json' "
        "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Why is the sky "
        "blue?\"}],\"max_tokens\":128}'\n",
        host, port, key);
  else
    printf(
        "curl http://%s:%u/v1/completions%s -H 'Content-Type: application/json' "
        "-d '{\"prompt\":\"Once upon a time\",\"max_tokens\":64}'\n",
        host, port, key);
  fflush(stdout);
}

/* True: a signal came within the time (negative: for ever). */
static bool wait_signal(const sigset_t *set, int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  for (;;) {
    int number = ms < 0 ? sigwaitinfo(set, NULL) : sigtimedwait(set, NULL, &t);
    if (number > 0) return true;
    if (errno != EINTR) return false;
  }
}

static void drain(const cli_settings *s, const sigset_t *set, http_server *http, api *a) {
  int64_t end = clock_real_now(NULL) + s->drain_s * INT64_C(1000000000);
  api_drain(a);
  http_server_quiesce(http);
  uint32_t jobs = api_jobs(a);
  if (jobs)
    log_line(LOG_INFO, "stopping: %u requests may end within %lld s; a second signal ends them",
             jobs, (long long)s->drain_s);
  while (clock_real_now(NULL) < end && (api_jobs(a) || http_server_exchanges(http)))
    if (wait_signal(set, POLL_MS)) break;
  end = clock_real_now(NULL) + LAST_WORDS_MS * INT64_C(1000000);
  api_stop(a);
  while (clock_real_now(NULL) < end && (api_jobs(a) || http_server_exchanges(http)))
    wait_signal(set, POLL_MS);
}

/* Each connection takes two descriptors, its own and its watcher's. */
static void check_files(const cli_settings *s) {
  uint64_t limit = os_files_raise(), wanted = 2 * (uint64_t)s->connections_max + FILES_OWN;
  if (limit && limit < wanted)
    log_line(LOG_WARN, "%lld connections may need %llu open files, and this process may have %llu",
             (long long)s->connections_max, (unsigned long long)wanted, (unsigned long long)limit);
}

int cli_serve(const cli_settings *s) {
  sigset_t set;
  cli_engine e;
  api *a = NULL;
  http_server *http = NULL;
  troika_error err = {0};
  if (s->arguments_n) {
    cli_fail("serve takes no arguments: is \"%.60s\" meant for --model?", s->arguments[0]);
    return CLI_USAGE;
  }
  log_setup((log_level)s->log_level, s->log_json);
  block_signals(&set);
  bytes_buffer keys;
  bytes_init(&keys, SIZE_MAX / 4);
  bool ok = cli_serve_keys(s, &keys);
  char profile[PATH_MAX];
  cli_settings with = *s;
  if (ok) ok = cli_profile_path(s->profile, profile, sizeof profile);
  with.profile_path = ok && *profile ? profile : NULL;
  if (ok) check_files(s);
  if (!ok || !cli_engine_open(&with, (uint32_t)s->parallel, &e)) {
    bytes_free(&keys);
    return CLI_FAILED;
  }
  api_options options;
  api_options_init(&options);
  options.keys = keys.data;
  options.origins = s->cors_origin;
  options.default_class = s->default_class ? TROIKA_PROACTIVE : TROIKA_REACTIVE;
  options.no_heuristics = s->no_heuristics;
  options.share_cache = s->share_cache;
  options.model = e.model;
  options.runtime = e.runtime;
  options.model_name = s->model_name ? s->model_name : e.name;
  options.keepalive_ns = s->keepalive_s * INT64_C(1000000000);
  http_options web;
  http_options_init(&web);
  web.host = s->host;
  web.port = (uint16_t)s->port;
  web.body_max = (size_t)s->body_max;
  web.connections_max = (uint32_t)s->connections_max;
  web.request_time_s = (uint32_t)s->request_time_s;
  troika_status status = api_open(&options, &a, &err);
  if (!status) {
    api_serve(a, &web);
    status = http_server_open(&web, &http, &err);
  }
  bool keyed = keys.len > 0;
  bytes_free(&keys);
  int code = CLI_OK;
  if (status) {
    code = cli_fail("%s", err.text);
  } else {
    api_attach(a, http);
    print_ready(s, &e, options.model_name, http_server_port(http), keyed);
    wait_signal(&set, -1);
    drain(s, &set, http, a);
  }
  http_server_close(&http);
  api_close(&a);
  cli_engine_close(&e);
  return code;
}
