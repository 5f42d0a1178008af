/* SPDX-License-Identifier: Apache-2.0 */
/* Which path does what. To add an endpoint: a line in `routes`, a function, a section in
 * docs/API.md. */
#include "api/api.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/job.h"
#include "api/json.h"
#include "base/clock.h"
#include "base/error.h"

enum { WORKERS = 4, KEEPALIVE_S = 10 };

typedef struct route {
  const char *method, *path;                /* a path that ends in '/' is a prefix */
  void (*answer)(api *a, http_exchange *x); /* GET: at once, on the HTTP thread */
  api_endpoint endpoint;                    /* POST: a job */
} route;

static void answer_json(http_exchange *x, unsigned status, bytes_buffer *body) {
  http_answer(x, status, "application/json", body);
}

static void answer_health(api *a, http_exchange *x) {
  bytes_buffer body;
  bool draining = atomic_load(&a->draining);
  troika_runtime_stats s;
  troika_runtime_describe(a->options.runtime, &s);
  bytes_init(&body, 1024);
  bytes_append_format(&body, "{\"status\":\"%s\",\"running\":%u,\"queued\":%u}",
                      draining ? "draining" : "ok", s.running, s.queued);
  answer_json(x, draining ? 503 : 200, &body);
}

static void put_model(const api *a, bytes_buffer *out) {
  troika_model_info m;
  troika_model_describe(a->options.model, &m);
  bytes_append_string(out, "{\"id\":");
  api_json_put_string(out, a->model_name, strlen(a->model_name));
  bytes_append_format(
      out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"troika\",\"meta\":{\"name\":",
      (long long)a->started_s);
  api_json_put_string(out, m.name, strlen(m.name));
  bytes_append_string(out, ",\"architecture\":");
  api_json_put_string(out, m.architecture, strlen(m.architecture));
  bytes_append_string(out, ",\"type\":");
  api_json_put_string(out, m.type, strlen(m.type));
  bytes_append_format(out,
                      ",\"parameters\":%llu,\"bytes\":%llu,\"vocab\":%u,\"context_max\":%u,"
                      "\"context\":%u,\"chat\":%s}}",
                      (unsigned long long)m.parameters, (unsigned long long)m.file_bytes, m.vocab,
                      m.context_max, a->context, m.has_template ? "true" : "false");
}

static void answer_models(api *a, http_exchange *x) {
  bytes_buffer body;
  bytes_init(&body, 16384);
  bytes_append_string(&body, "{\"object\":\"list\",\"data\":[");
  put_model(a, &body);
  bytes_append_string(&body, "]}");
  answer_json(x, 200, &body);
}

static void answer_model(api *a, http_exchange *x) {
  const char *id = http_path(x) + strlen("/v1/models/");
  api_failure f;
  if (strcmp(id, a->model_name)) {
    api_failure_set(&f, "model", "there is no model \"%.80s\"; this server has \"%.80s\"", id,
                    a->model_name);
    f.status = 404;
    f.type = api_failure_type_of(404);
    f.code = "model_not_found";
    api_answer_with_failure(x, &f);
    return;
  }
  bytes_buffer body;
  bytes_init(&body, 16384);
  put_model(a, &body);
  answer_json(x, 200, &body);
}

static const route routes[] = {
    {"GET", "/health", answer_health, 0},
    {"GET", "/v1/models", answer_models, 0},
    {"GET", "/v1/models/", answer_model, 0},
    {"POST", "/v1/chat/completions", NULL, API_CHAT},
    {"POST", "/v1/completions", NULL, API_COMPLETIONS},
};

static const route *find_route(const char *path) {
  for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
    size_t len = strlen(routes[i].path);
    bool prefix = routes[i].path[len - 1] == '/';
    if (prefix ? !strncmp(path, routes[i].path, len) && path[len] : !strcmp(path, routes[i].path))
      return &routes[i];
  }
  return NULL;
}

static void answer_unknown(http_exchange *x) {
  api_failure f;
  api_failure_set(
      &f, NULL,
      "there is nothing at %.80s; see /v1/chat/completions, /v1/completions, /v1/models, /health",
      http_path(x));
  f.status = 404;
  f.type = api_failure_type_of(404);
  api_answer_with_failure(x, &f);
}

static void answer_wrong_method(http_exchange *x, const route *r) {
  api_failure f;
  api_failure_set(&f, NULL, "%s takes %s, not %s", r->path, r->method, http_method(x));
  f.status = 405;
  http_answer_header(x, "Allow", r->answer ? "GET, HEAD" : "POST");
  api_answer_with_failure(x, &f);
}

static bool refuse_while_draining(api *a, http_exchange *x) {
  api_failure f;
  if (!atomic_load(&a->draining)) return false;
  api_failure_of_status(&f, TROIKA_CANCELLED, "the server is stopping");
  http_answer_header(x, "Connection", "close");
  api_answer_with_failure(x, &f);
  return true;
}

static void on_begin(void *context, http_exchange *x) {
  api *a = context;
  const route *r = find_route(http_path(x));
  const char *method = http_method(x);
  if (!r)
    answer_unknown(x);
  else if (strcmp(method, r->method) && !(r->answer && !strcmp(method, "HEAD")))
    answer_wrong_method(x, r);
  else if (r->answer)
    r->answer(a, x);
  else
    refuse_while_draining(a, x);
}

static void on_handle(void *context, http_exchange *x) {
  api *a = context;
  const route *r = find_route(http_path(x));
  if (refuse_while_draining(a, x)) return;
  if (r && api_job_create(a, x, r->endpoint)) return;
  api_failure f;
  api_failure_of_status(&f, TROIKA_NO_MEMORY, "no memory for the request");
  api_answer_with_failure(x, &f);
}

static void on_refuse(void *context, unsigned status, const char *message, bytes_buffer *out) {
  (void)context;
  api_failure f;
  api_failure_set(&f, NULL, "%s", message);
  f.status = status;
  f.type = api_failure_type_of(status);
  api_failure_write(&f, out);
}

void api_options_init(api_options *options) {
  *options = (api_options){.workers = WORKERS, .keepalive_ns = KEEPALIVE_S * INT64_C(1000000000)};
}

troika_status api_open(const api_options *options, api **out, troika_error *err) {
  api *a = calloc(1, sizeof *a);
  if (a) a->model_name = strdup(options->model_name);
  if (!a || !a->model_name) {
    free(a);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the api");
  }
  a->options = *options;
  troika_model_info m;
  troika_runtime_stats s;
  troika_model_describe(options->model, &m);
  troika_runtime_describe(options->runtime, &s);
  a->vocab = m.vocab;
  a->token_bytes_max = m.token_bytes_max;
  a->context = s.context;
  a->started_s = time(NULL);
  json_object_seed(0); /* before threads use it */
  /* Ids differ between servers and runs; they are names, no secrets. */
  a->id_salt = (uint64_t)clock_real_now(NULL) ^ (uint64_t)a->started_s << 32 ^ (uintptr_t)a;
  api_pool_options pool = {options->workers, api_job_step, api_job_finish};
  troika_status status = api_pool_open(&pool, &a->pool, err);
  if (status) {
    free(a->model_name);
    free(a);
    return status;
  }
  *out = a;
  return TROIKA_OK;
}

void api_serve(api *a, http_options *options) {
  options->begin = on_begin;
  options->handle = on_handle;
  options->refuse = on_refuse;
  options->context = a;
}

void api_drain(api *a) {
  atomic_store(&a->draining, true);
}

uint32_t api_jobs(api *a) {
  return api_pool_count(a->pool);
}

void api_close(api **owner) {
  api *a = *owner;
  if (!a) return;
  *owner = NULL;
  atomic_store(&a->draining, true);
  atomic_store(&a->closing, true);
  api_pool_post_all(a->pool);
  api_pool_wait_empty(a->pool);
  api_pool_close(&a->pool);
  free(a->model_name);
  free(a);
}
