/* SPDX-License-Identifier: Apache-2.0 */
/* troika serve: model, runtime, api and http put together, and taken apart in the right order.
 *
 *   up:    model → runtime → api → http
 *   down:  a signal: no new connections, 503 to new requests
 *          running requests end; at most --drain seconds, or until a second signal
 *          http (marks the rest gone) → api (waits for its jobs) → runtime → model */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"

enum { POLL_MS = 50 };

/* Signals are taken by sigtimedwait, so they are blocked before the first thread starts. */
static void block_signals(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGINT);
  sigaddset(set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, set, NULL);
  signal(SIGPIPE, SIG_IGN);
}

static void print_ready(const cli_settings *s, const cli_engine *e, const char *name,
                        uint16_t port) {
  troika_model_info m;
  troika_runtime_stats r;
  char bytes[16], kv[16], host[128];
  troika_model_describe(e->model, &m);
  troika_runtime_describe(e->runtime, &r);
  cli_bytes_text(m.file_bytes, bytes);
  cli_bytes_text(r.kv_bytes, kv);
  bool any = !strcmp(s->host, "0.0.0.0") || !strcmp(s->host, "::");
  snprintf(host, sizeof host, strchr(s->host, ':') && !any ? "[%s]" : "%s",
           any ? "127.0.0.1" : s->host);
  printf(
      "troika %s serves %s (%s, %s; %s, %u threads, %u at once, context %u, KV %s; ready in %.2f "
      "s) at http://%s:%u\n",
      troika_version(), name, m.type, bytes, r.kernels, r.threads, r.parallel, r.context, kv,
      e->open_s, host, port);
  if (m.has_template)
    printf(
        "curl http://%s:%u/v1/chat/completions -H 'Content-Type: application/json' "
        "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Why is the sky "
        "blue?\"}],\"max_tokens\":128}'\n",
        host, port);
  else
    printf(
        "curl http://%s:%u/v1/completions -H 'Content-Type: application/json' "
        "-d '{\"prompt\":\"Once upon a time\",\"max_tokens\":64}'\n",
        host, port);
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
  if (!cli_engine_open(s, (uint32_t)s->parallel, &e)) return CLI_FAILED;
  api_options options;
  api_options_init(&options);
  options.model = e.model;
  options.runtime = e.runtime;
  options.model_name = s->model_name ? s->model_name : e.name;
  options.keepalive_ns = s->keepalive_s * INT64_C(1000000000);
  http_options web;
  http_options_init(&web);
  web.host = s->host;
  web.port = (uint16_t)s->port;
  web.body_max = (size_t)s->body_max;
  troika_status status = api_open(&options, &a, &err);
  if (!status) {
    api_serve(a, &web);
    status = http_server_open(&web, &http, &err);
  }
  int code = CLI_OK;
  if (status) {
    code = cli_fail("%s", err.text);
  } else {
    print_ready(s, &e, options.model_name, http_server_port(http));
    wait_signal(&set, -1);
    drain(s, &set, http, a);
  }
  http_server_close(&http);
  api_close(&a);
  cli_engine_close(&e);
  return code;
}
