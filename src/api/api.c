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
#include "api/page.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

enum {
  WORKERS = 4,
  KEEPALIVE_S = 10,
  PATCH_BYTES_MAX = 4096,
  STREAMS_BYTES_MAX = 16 * 1024 * 1024
};

typedef struct route {
  const char *method, *path;                    /* a path that ends in "/NAME" is a prefix */
  unsigned (*answer)(api *a, http_exchange *x); /* at once, on the HTTP thread; its status */
  api_endpoint endpoint;                        /* POST: a job */
  bool open;                                    /* needs no key */
  bool body;                                    /* `answer` waits for the body, which is small */
  bool background;                              /* also below /bg: the same for the background */
} route;

static unsigned answer_with(http_exchange *x, unsigned status, const char *type,
                            bytes_buffer *body) {
  if (body->failed) { /* half of it would be no answer */
    api_failure f;
    bytes_free(body);
    api_failure_memory(&f);
    api_answer_with_failure(x, &f);
    return f.status;
  }
  http_answer(x, status, type, body);
  return status;
}

static unsigned answer_json(http_exchange *x, unsigned status, bytes_buffer *body) {
  return answer_with(x, status, "application/json", body);
}

static unsigned answer_health(api *a, http_exchange *x) {
  bytes_buffer body;
  bool draining = atomic_load(&a->draining);
  troika_runtime_stats s;
  troika_runtime_describe(a->options.runtime, &s);
  bytes_init(&body, 1024);
  bytes_append_format(&body, "{\"status\":\"%s\",\"running\":%u,\"queued\":%u}",
                      draining ? "draining" : "ok", s.running, s.queued);
  return answer_json(x, draining ? 503 : 200, &body);
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

static unsigned answer_metrics(api *a, http_exchange *x) {
  bytes_buffer body;
  bytes_init(&body, 1024 * 1024);
  http_server *server = atomic_load(&a->server);
  api_metrics_write(&a->metrics, a->options.runtime, server ? http_server_connections(server) : 0,
                    &body);
  return answer_with(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

/* The page, and the description of this interface: constant files. */
static unsigned answer_file(api *a, http_exchange *x) {
  (void)a;
  const api_page *page = api_page_find(http_path(x));
  bool unchanged = api_page_unchanged(page, http_header(x, "If-None-Match"));
  bytes_buffer body;
  bytes_init(&body, page->content.len + 1);
  if (!unchanged) bytes_append(&body, page->content.ptr, page->content.len);
  http_answer_header(x, "ETag", page->etag);
  http_answer_header(x, "Cache-Control", API_PAGE_CACHE);
  http_answer_header(x, "Content-Security-Policy", API_PAGE_POLICY_LOAD "; " API_PAGE_POLICY_FRAME);
  http_answer_header(x, "X-Content-Type-Options", API_PAGE_SNIFF);
  return answer_with(x, unchanged ? 304 : 200, page->content_type, &body);
}

static unsigned answer_models(api *a, http_exchange *x) {
  bytes_buffer body;
  bytes_init(&body, 16384);
  bytes_append_string(&body, "{\"object\":\"list\",\"data\":[");
  put_model(a, &body);
  bytes_append_string(&body, "]}");
  return answer_json(x, 200, &body);
}

static unsigned answer_model(api *a, http_exchange *x) {
  bool background;
  const char *id = api_path_route(http_path(x), &background) + strlen("/v1/models/");
  api_failure f;
  if (strcmp(id, a->model_name)) {
    api_failure_set(&f, "model", "there is no model \"%.80s\"; this server has \"%.80s\"", id,
                    a->model_name);
    f.status = 404;
    f.type = api_failure_type_of(404);
    f.code = "model_not_found";
    api_answer_with_failure(x, &f);
    return f.status;
  }
  bytes_buffer body;
  bytes_init(&body, 16384);
  put_model(a, &body);
  return answer_json(x, 200, &body);
}

/* What a registry of streams did, as an answer. */
static unsigned answer_stream(http_exchange *x, bool ok, bytes_buffer *body, const api_failure *f) {
  if (ok) return answer_json(x, 200, body);
  bytes_free(body);
  api_answer_with_failure(x, f);
  return f->status;
}

static unsigned change_stream(api *a, http_exchange *x) {
  const char *method = http_method(x), *id = http_path(x) + strlen("/v1/streams/");
  bytes_buffer body;
  api_failure f = {0};
  bool ok;
  const api_key *key = api_access_key(a->access, x, &f);
  bytes_init(&body, 16384);
  if (!key) {
    ok = false;
  } else if (!strcmp(method, "DELETE")) {
    ok = api_streams_cancel(a->streams, key, id, &body, &f);
  } else if (strcmp(method, "PATCH") != 0) {
    ok = api_streams_show(a->streams, key, id, &body, &f);
  } else if (http_body(x).len > PATCH_BYTES_MAX) { /* it is read on this thread */
    ok = api_failure_set(&f, NULL, "the body has %zu bytes, at most %d are taken here",
                         http_body(x).len, PATCH_BYTES_MAX);
    f.status = 413;
  } else {
    ok = api_streams_patch(a->streams, key, id, http_body(x), &body, &f);
  }
  return answer_stream(x, ok, &body, &f);
}

static unsigned answer_streams(api *a, http_exchange *x) {
  bytes_buffer body;
  api_failure f = {0};
  const api_key *key = api_access_key(a->access, x, &f);
  bytes_init(&body, STREAMS_BYTES_MAX);
  if (key) api_streams_list(a->streams, key, &body);
  return answer_stream(x, key != NULL, &body, &f);
}

static const route routes[] = {
    {"GET", "/health", .answer = answer_health, .open = true},
    {"GET", "/metrics", .answer = answer_metrics},
    {"GET", "/v1/models", .answer = answer_models, .background = true},
    {"GET", "/v1/models/NAME", .answer = answer_model, .background = true},
    {"POST", "/v1/chat/completions", .endpoint = API_CHAT, .background = true},
    {"POST", "/v1/completions", .endpoint = API_COMPLETIONS, .background = true},
    {"GET", "/v1/streams", .answer = answer_streams},
    {"GET", "/v1/streams/NAME", .answer = change_stream},
    {"PATCH", "/v1/streams/NAME", .answer = change_stream, .body = true},
    {"DELETE", "/v1/streams/NAME", .answer = change_stream},
    {"POST", "/tokenize", .endpoint = API_TOKENIZE},
    {"POST", "/detokenize", .endpoint = API_DETOKENIZE},
};
static const route file_route = {"GET", "/", .answer = answer_file, .open = true};
enum { ROUTES = sizeof routes / sizeof *routes };

static bool path_fits(const route *r, const char *whole_path) {
  bool background;
  const char *path = api_path_route(whole_path, &background), *name = strstr(r->path, "NAME");
  size_t len = name ? (size_t)(name - r->path) : strlen(r->path);
  if (background && !r->background) return false;
  return name ? !strncmp(path, r->path, len) && path[len] : !strcmp(path, r->path);
}

static bool method_fits(const route *r, const char *method) {
  return !strcmp(method, r->method) || (!strcmp(r->method, "GET") && !strcmp(method, "HEAD"));
}

/* Of several methods of one path, that of the request; else any of them. */
static const route *find_route(http_exchange *x) {
  const route *found = NULL;
  for (size_t i = 0; i < ROUTES; i++) {
    if (!path_fits(&routes[i], http_path(x))) continue;
    if (!found || method_fits(&routes[i], http_method(x))) found = &routes[i];
  }
  if (found) return found;
  return api_page_find(http_path(x)) ? &file_route : NULL;
}

static void list_paths(char *text, size_t capacity) {
  size_t len = 0;
  for (int background = 0; background < 2; background++)
    for (size_t i = 0; i < ROUTES && len < capacity; i++) {
      const route *r = &routes[i];
      if ((background && !r->background) || (i && !strcmp(r->path, r[-1].path))) continue;
      len += (size_t)snprintf(text + len, capacity - len, "%s%s%s", len ? ", " : "",
                              background ? "/bg" : "", r->path);
    }
}

static void answer_unknown(http_exchange *x, api_failure *f) {
  char text[640] = "";
  list_paths(text, sizeof text);
  api_failure_set(f, NULL, "there is nothing at %.60s; there are /, /openapi.json, %s",
                  http_path(x), text);
  f->status = 404;
  f->type = api_failure_type_of(404);
}

/* 405: what the path does take. */
static void refuse_method(http_exchange *x, const route *r, api_failure *f) {
  char allow[64] = "";
  size_t len = 0;
  for (size_t i = 0; i < ROUTES; i++)
    if (!strcmp(routes[i].path, r->path))
      len += (size_t)snprintf(allow + len, sizeof allow - len, "%s%s", len ? ", " : "",
                              strcmp(routes[i].method, "GET") ? routes[i].method : "GET, HEAD");
  if (r == &file_route) snprintf(allow, sizeof allow, "GET, HEAD");
  api_failure_set(f, NULL, "%s takes %s, not %s", r->path, allow, http_method(x));
  f->status = 405;
  len = strlen(allow);
  snprintf(allow + len, sizeof allow - len, ", OPTIONS");
  http_answer_header(x, "Allow", allow);
}

/* What speaks against the request, before its body. False: `f` says it. */
static bool may_ask(api *a, http_exchange *x, const route *r, api_failure *f) {
  const char *method = http_method(x);
  if (!api_access_origin(a->access, x, f)) return false;
  if (!r) {
    answer_unknown(x, f);
    return false;
  }
  if (!strcmp(method, "OPTIONS")) return true; /* a browser asks first, and without the key */
  if (!method_fits(r, method)) {
    refuse_method(x, r, f);
    return false;
  }
  if (!r->open && !api_access_key(a->access, x, f)) return false;
  if (r->answer || !atomic_load(&a->draining)) return true;
  api_failure_of_status(f, TROIKA_CANCELLED, "the server is stopping");
  http_answer_header(x, "Connection", "close");
  return false;
}

static void refuse(api *a, http_exchange *x, const api_failure *f) {
  api_metrics_answered(&a->metrics, API_ENDPOINTS, f->status);
  if (log_wants(LOG_INFO)) {
    char members[1000], path[128];
    bytes_buffer quoted;
    bytes_init(&quoted, 6 * sizeof path + 4); /* a byte is six at most */
    snprintf(path, sizeof path, "%s", http_path(x));
    api_json_put_string(&quoted, path, strlen(path));
    snprintf(members, sizeof members, "\"method\":\"%s\",\"path\":%s,\"status\":%u", http_method(x),
             quoted.failed ? "\"\"" : quoted.data, f->status);
    log_with(LOG_INFO, members, "%s %.120s %u", http_method(x), http_path(x), f->status);
    bytes_free(&quoted);
  }
  api_answer_with_failure(x, f);
}

static void on_begin(void *context, http_exchange *x) {
  api *a = context;
  const route *r = find_route(x);
  api_failure f = {0};
  bytes_buffer nothing;
  if (!may_ask(a, x, r, &f)) {
    refuse(a, x, &f);
  } else if (!strcmp(http_method(x), "OPTIONS")) {
    bytes_init(&nothing, 1);
    api_access_preflight(x);
    api_metrics_answered(&a->metrics, API_ENDPOINTS, 204);
    http_answer(x, 204, NULL, &nothing);
  } else if (r->answer && !r->body) {
    api_metrics_answered(&a->metrics, API_ENDPOINTS, r->answer(a, x));
  }
}

static void on_handle(void *context, http_exchange *x) {
  api *a = context;
  const route *r = find_route(x);
  api_failure f;
  if (r && r->answer) {
    api_metrics_answered(&a->metrics, API_ENDPOINTS, r->answer(a, x));
    return;
  }
  if (r && api_job_create(a, x, r->endpoint)) return;
  api_failure_memory(&f);
  refuse(a, x, &f);
}

static void on_refuse(void *context, unsigned status, const char *message, bytes_buffer *out) {
  api *a = context;
  api_failure f;
  api_failure_set(&f, NULL, "%s", message);
  f.status = status;
  f.type = api_failure_type_of(status == 501 ? 400 : status);
  api_metrics_answered(&a->metrics, API_ENDPOINTS, status);
  api_failure_write(&f, out);
}

void api_options_init(api_options *options) {
  *options = (api_options){.workers = WORKERS, .keepalive_ns = KEEPALIVE_S * INT64_C(1000000000)};
}

static void read_facts(api *a) {
  troika_model_info m;
  troika_runtime_stats s;
  troika_model_describe(a->options.model, &m);
  troika_runtime_describe(a->options.runtime, &s);
  a->vocab = m.vocab;
  a->token_bytes_max = m.token_bytes_max;
  a->context = s.context;
  a->bos = m.bos;
  a->at_once = s.parallel + s.queue_max;
  a->started_s = time(NULL);
  /* Ids differ between servers and runs; they are names, no secrets. */
  a->id_salt = (uint64_t)clock_real_now(NULL) ^ (uint64_t)a->started_s << 32 ^ (uintptr_t)a;
}

static troika_status open_parts(api *a, const api_options *options, troika_error *err) {
  troika_status status = api_access_open(options->keys, options->origins, &a->access, err);
  if (!status) status = api_sessions_open(API_SESSIONS_MAX, &a->sessions, err);
  if (!status) status = api_streams_open(a->model_name, &a->streams, err);
  a->resolver = (api_resolver){.access = a->access,
                               .sessions = a->sessions,
                               .default_class = options->default_class,
                               .no_heuristics = options->no_heuristics,
                               .share_cache = options->share_cache};
  api_pool_options pool = {.workers = options->workers,
                           .step = api_job_step,
                           .finish = api_job_finish,
                           .gather = http_wakes_hold,
                           .release = http_wakes_release};
  if (!status) status = api_pool_open(&pool, &a->pool, err);
  return status;
}

static void close_parts(api *a) {
  api_streams_close(&a->streams);
  api_sessions_close(&a->sessions);
  api_access_close(&a->access);
  free(a->model_name);
  free(a);
}

troika_status api_open(const api_options *options, api **out, troika_error *err) {
  api *a = calloc(1, sizeof *a);
  if (a) a->model_name = strdup(options->model_name);
  if (!a || !a->model_name) {
    free(a);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the api");
  }
  a->options = *options;
  a->options.model_name = a->options.keys = a->options.origins = NULL; /* the caller's */
  read_facts(a);
  json_object_seed(0); /* before threads use it */
  troika_status status = open_parts(a, options, err);
  if (status) {
    close_parts(a);
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

void api_attach(api *a, http_server *server) {
  atomic_store(&a->server, server);
}

void api_drain(api *a) {
  atomic_store(&a->draining, true);
}

void api_stop(api *a) {
  atomic_store(&a->draining, true);
  atomic_store(&a->closing, true);
  api_pool_post_all(a->pool);
}

uint32_t api_jobs(api *a) {
  return api_pool_count(a->pool);
}

void api_close(api **owner) {
  api *a = *owner;
  if (!a) return;
  *owner = NULL;
  api_stop(a);
  api_pool_wait_empty(a->pool);
  api_pool_close(&a->pool);
  close_parts(a);
}
