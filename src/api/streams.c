/* SPDX-License-Identifier: Apache-2.0 */
#include "api/streams.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/answer.h"
#include "api/json.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/os.h"

struct api_stream {
  api_stream *next, *before; /* among the live ones; ended: next only */
  /* Fixed by enter. */
  char id[API_STREAM_ID_BYTES], request_id[48];
  api_resolved who;      /* but for what PATCH changes */
  uint32_t key, n, each; /* key: its id */
  bool streaming;
  int64_t arrived_ns, created_s;
  void (*news)(void *job);
  void *job;
  /* Guarded by the lock. */
  troika_stream **streams; /* n, borrowed from the job; NULL: not with the engine yet */
  uint32_t set;
  api_key_hold hold;
  bool patched, suspended, attached, ended;
  api_drop drop;
  api_stream_end how;
  unsigned status;
  int64_t ended_ns;
  troika_stream_info last; /* once ended */
};

struct api_streams {
  pthread_mutex_t lock; /* guards all below */
  api_stream *live;     /* newest first */
  api_stream *ended, **ended_last;
  uint32_t ended_n;
  char *model_name;
};

const char *api_band_name(troika_band band) {
  return band == TROIKA_BAND_R ? "R" : band == TROIKA_BAND_I ? "I" : "P";
}

const char *api_class_name(troika_class class_) {
  return class_ == TROIKA_PROACTIVE ? "proactive" : "reactive";
}

bool api_stream_decided(const troika_stream_info *x) {
  return x->class_ != TROIKA_CLASS_DEFAULT && (x->state != TROIKA_STREAM_QUEUED || x->place);
}

/* As far as can be said before the engine has it. */
static troika_band band_of(const api_resolved *who) {
  if (who->class_ != TROIKA_REACTIVE) return TROIKA_BAND_P;
  return who->child && !who->may_react ? TROIKA_BAND_I : TROIKA_BAND_R;
}

troika_status api_streams_open(const char *model_name, api_streams **out, troika_error *err) {
  api_streams *s = calloc(1, sizeof *s);
  if (s) s->model_name = strdup(model_name);
  if (!s || !s->model_name) {
    free(s);
    return error_set(err, TROIKA_NO_MEMORY, "no memory for the streams' names");
  }
  pthread_mutex_init(&s->lock, NULL);
  s->ended_last = &s->ended;
  *out = s;
  return TROIKA_OK;
}

static void free_entry(api_stream *e) {
  free(e->streams);
  free(e);
}

static void forget_oldest(api_streams *s) {
  api_stream *e = s->ended;
  s->ended = e->next;
  if (!s->ended) s->ended_last = &s->ended;
  s->ended_n--;
  free_entry(e);
}

void api_streams_close(api_streams **owner) {
  api_streams *s = *owner;
  *owner = NULL;
  if (!s) return;
  while (s->ended) forget_oldest(s);
  pthread_mutex_destroy(&s->lock);
  free(s->model_name);
  free(s);
}

/* --- under the lock */

/* The answers of one request as one: the most advanced state, the most urgent band, sums. */
static bool join_info(const api_stream *e, uint32_t i, troika_stream_info *sum) {
  static const unsigned char rank[] = {[TROIKA_STREAM_IDLE] = 0,
                                       [TROIKA_STREAM_QUEUED] = 1,
                                       [TROIKA_STREAM_SUSPENDED] = 2,
                                       [TROIKA_STREAM_PREFILL] = 3,
                                       [TROIKA_STREAM_DECODE] = 4};
  troika_stream_info x;
  troika_stream_describe(e->streams[i], &x);
  if (i == 0) {
    *sum = x;
    return api_stream_decided(&x);
  }
  if (rank[x.state] > rank[sum->state]) sum->state = x.state;
  if (x.band < sum->band) sum->band = x.band;
  if (x.place && (!sum->place || x.place < sum->place)) sum->place = x.place;
  if (i % e->each == 0) { /* a prompt counts once */
    sum->prompt_tokens += x.prompt_tokens;
    sum->cached_tokens += x.cached_tokens;
  }
  sum->computed_tokens += x.computed_tokens;
  sum->completion_tokens += x.completion_tokens;
  sum->preemptions += x.preemptions;
  sum->promoted = sum->promoted || x.promoted;
  if (x.timings.decode_ns > sum->timings.decode_ns) sum->timings.decode_ns = x.timings.decode_ns;
  return api_stream_decided(&x);
}

/* What the engine has not looked at yet, or has been changed since, is as it was asked for. */
static void guess(const api_resolved *who, troika_stream_info *out) {
  out->band = band_of(who);
  out->class_ = who->class_;
}

static void settle_class(troika_stream_info *x, bool by_band) {
  if (by_band || x->class_ == TROIKA_INHERITED)
    x->class_ = x->band == TROIKA_BAND_P ? TROIKA_PROACTIVE : TROIKA_REACTIVE;
}

void api_stream_guess(const api_resolved *who, api_stream_now *out) {
  *out = (api_stream_now){.decided_by = who->decided_by, .tier = who->tier};
  guess(who, &out->info);
  settle_class(&out->info, false);
}

/* True: the engine has looked at all answers. */
static bool look(const api_stream *e, troika_stream_info *out) {
  bool decided = e->set > 0;
  if (e->ended) {
    *out = e->last;
    return true;
  }
  *out = (troika_stream_info){.state = TROIKA_STREAM_IDLE};
  for (uint32_t i = 0; i < e->n && e->streams[i]; i++) decided = join_info(e, i, out) && decided;
  if (!decided || (e->patched && !e->attached)) guess(&e->who, out);
  settle_class(out, decided && e->attached); /* it runs as the more urgent of the two */
  return decided;
}

static void drop(api_stream *e, api_drop why) {
  if (e->drop) return;
  e->drop = why;
  for (uint32_t i = 0; i < e->n; i++)
    if (e->streams[i]) troika_stream_cancel(e->streams[i]);
  e->news(e->job);
}

/* None of its answers has been launched. */
static bool only_waits(const api_stream *e) {
  for (uint32_t i = 0; i < e->n; i++) {
    troika_stream_info info;
    if (!e->streams[i]) continue;
    troika_stream_describe(e->streams[i], &info);
    if (info.state != TROIKA_STREAM_QUEUED || info.timings.first_launch_ns) return false;
  }
  return true;
}

/* Of a session's latest-only requests the one that arrived last waits, and no other. */
static void supersede(api_streams *s, api_stream *e) {
  if (!e->who.latest_only || !e->who.session) return;
  for (api_stream *o = s->live; o; o = o->next) {
    if (o == e || o->key != e->key || o->who.session != e->who.session || !o->who.latest_only ||
        o->drop)
      continue;
    if (o->arrived_ns > e->arrived_ns) {
      e->drop = API_DROP_SUPERSEDED;
      return;
    }
    if (only_waits(o)) drop(o, API_DROP_SUPERSEDED);
  }
}

static void add_ended(api_streams *s, api_stream *e) {
  e->next = NULL;
  *s->ended_last = e;
  s->ended_last = &e->next;
  if (++s->ended_n > API_STREAMS_ENDED) forget_oldest(s);
}

static api_stream *find_in(api_stream *first, uint32_t key, const char *id) {
  for (api_stream *e = first; e; e = e->next)
    if (e->key == key && !strcmp(e->id, id)) return e;
  return NULL;
}

static api_stream *find(api_streams *s, const api_key *key, const char *id, api_failure *failure) {
  api_stream *e = find_in(s->live, key->id, id);
  if (!e) e = find_in(s->ended, key->id, id);
  if (e) return e;
  api_failure_set(failure, "id", "there is no stream \"%.64s\"; the last %d that ended are kept",
                  id, API_STREAMS_ENDED);
  failure->status = 404;
  failure->type = api_failure_type_of(404);
  failure->code = "stream_not_found";
  return NULL;
}

/* --- for the job */

static void make_id(char out[API_STREAM_ID_BYTES]) {
  uint64_t bits[2];
  os_random(bits, sizeof bits);
  snprintf(out, API_STREAM_ID_BYTES, "stream-%016llx%016llx", (unsigned long long)bits[0],
           (unsigned long long)bits[1]);
}

api_stream *api_streams_enter(api_streams *s, const api_stream_facts *facts) {
  api_stream *e = calloc(1, sizeof *e);
  if (e) e->streams = calloc(facts->n, sizeof(troika_stream *));
  if (!e || !e->streams) {
    free(e);
    return NULL;
  }
  make_id(e->id);
  snprintf(e->request_id, sizeof e->request_id, "%s", facts->request_id);
  e->who = *facts->who;
  e->hold = *facts->hold;
  e->key = facts->key;
  e->n = facts->n;
  e->each = facts->each;
  e->streaming = facts->streaming;
  e->arrived_ns = facts->arrived_ns;
  e->created_s = time(NULL);
  e->news = facts->news;
  e->job = facts->job;
  pthread_mutex_lock(&s->lock);
  supersede(s, e);
  e->next = s->live;
  if (s->live) s->live->before = e;
  s->live = e;
  pthread_mutex_unlock(&s->lock);
  return e;
}

const char *api_stream_id(const api_stream *e) {
  return e->id;
}

void api_stream_set(api_streams *s, api_stream *e, uint32_t i, troika_stream *stream,
                    bool attached) {
  pthread_mutex_lock(&s->lock);
  e->streams[i] = stream;
  e->set++;
  e->attached = e->attached || attached;
  if (e->patched) troika_stream_set_class(stream, e->who.class_);
  if (e->suspended) troika_stream_suspend(stream);
  if (e->drop) troika_stream_cancel(stream);
  pthread_mutex_unlock(&s->lock);
}

bool api_stream_attach(api_streams *s, const api_stream *e, uint32_t i, troika_stream *stream,
                       troika_request *request) {
  troika_error err;
  bool done = false;
  pthread_mutex_lock(&s->lock);
  for (api_stream *o = s->live; o && !done; o = o->next) {
    if (o == e || o->key != e->key || o->drop || o->n != e->n || !o->streams[i] ||
        strcmp(o->who.digest, e->who.digest) != 0)
      continue;
    /* The lock keeps o's stream open; whether its request still runs, the engine knows. */
    request->attach = o->streams[i];
    done = !troika_stream_submit(stream, request, &err);
  }
  pthread_mutex_unlock(&s->lock);
  return done;
}

api_drop api_stream_dropped(api_streams *s, const api_stream *e) {
  pthread_mutex_lock(&s->lock);
  api_drop why = e->drop;
  pthread_mutex_unlock(&s->lock);
  return why;
}

void api_stream_look(api_streams *s, const api_stream *e, api_stream_now *out) {
  pthread_mutex_lock(&s->lock);
  out->decided = look(e, &out->info);
  out->attached = e->attached;
  out->decided_by = e->who.decided_by;
  out->tier = e->who.tier;
  pthread_mutex_unlock(&s->lock);
}

void api_stream_end_as(api_streams *s, api_stream *e, api_stream_end how, unsigned status) {
  pthread_mutex_lock(&s->lock);
  api_key_end(&e->hold);
  look(e, &e->last);
  e->last.state = TROIKA_STREAM_IDLE;
  e->last.place = 0;
  e->ended = true;
  e->how = how;
  e->status = status;
  e->ended_ns = clock_real_now(NULL);
  e->job = NULL;
  free(e->streams);
  e->streams = NULL;
  if (e->before)
    e->before->next = e->next;
  else
    s->live = e->next;
  if (e->next) e->next->before = e->before;
  add_ended(s, e);
  pthread_mutex_unlock(&s->lock);
}

/* --- for /v1/streams */

/* PATCH counts at once, what the engine says of it a moment later. */
static const char *state_name(const api_stream *e, const troika_stream_info *info) {
  static const char *const ends[] = {"done", "cancelled", "refused", "failed"};
  static const char *const states[] = {[TROIKA_STREAM_IDLE] = "ending",
                                       [TROIKA_STREAM_QUEUED] = "queued",
                                       [TROIKA_STREAM_PREFILL] = "prefill",
                                       [TROIKA_STREAM_DECODE] = "decode"};
  if (e->ended) return ends[e->how];
  if (e->drop) return "ending";
  if (!e->set) return "preparing";
  if (e->suspended) return "suspended";
  if (info->state != TROIKA_STREAM_SUSPENDED) return states[info->state];
  return info->completion_tokens ? "decode" : info->computed_tokens ? "prefill" : "queued";
}

static void put_text(const char *name, const char *text, bytes_buffer *out) {
  bytes_append_format(out, ",\"%s\":", name);
  if (*text)
    api_json_put_string(out, text, strlen(text));
  else
    bytes_append_string(out, "null");
}

static void put_flag(const char *name, bool value, bytes_buffer *out) {
  bytes_append_format(out, ",\"%s\":%s", name, value ? "true" : "false");
}

static void put_stream(const api_streams *s, const api_stream *e, bytes_buffer *out) {
  troika_stream_info x;
  look(e, &x);
  int64_t until = e->ended ? e->ended_ns : clock_real_now(NULL);
  bytes_append_format(out, "{\"id\":\"%s\",\"object\":\"stream\",\"request_id\":\"%s\"", e->id,
                      e->request_id);
  put_text("model", s->model_name, out);
  bytes_append_format(out, ",\"class\":\"%s\",\"band\":\"%s\",\"state\":\"%s\",\"place\":%u",
                      api_class_name(x.class_), api_band_name(x.band), state_name(e, &x), x.place);
  put_text("decided_by", e->who.decided_by, out);
  put_text("service_tier", e->who.tier, out);
  put_text("session", e->who.stream, out);
  put_text("agent", e->who.agent, out);
  put_text("step", e->who.step, out);
  api_resolved_put(&e->who, out);
  put_flag("capped", e->who.capped, out);
  put_flag("latest_only", e->who.latest_only, out);
  put_flag("attached", e->attached, out);
  put_flag("streaming", e->streaming, out);
  put_flag("promoted", x.promoted, out);
  bytes_append_format(out,
                      ",\"answers\":%u,\"created\":%lld,\"age_ms\":%.3f,\"prompt_tokens\":%u,"
                      "\"cached_tokens\":%u,\"computed_tokens\":%u,\"completion_tokens\":%u,"
                      "\"diverged_at\":%u,\"preemptions\":%u,\"timings\":{",
                      e->n, (long long)e->created_s, (double)(until - e->arrived_ns) / 1e6,
                      x.prompt_tokens, x.cached_tokens, x.computed_tokens, x.completion_tokens,
                      x.diverged_at, x.preemptions);
  api_answer_put_times(&x.timings, out);
  if (e->ended)
    bytes_append_format(out, "},\"status\":%u}", e->status);
  else
    bytes_append_string(out, "},\"status\":null}");
}

void api_streams_list(api_streams *s, const api_key *key, bytes_buffer *out) {
  bool first = true;
  bytes_append_string(out, "{\"object\":\"list\",\"data\":[");
  pthread_mutex_lock(&s->lock);
  for (api_stream *e = s->live; e; e = e->next) {
    if (e->key != key->id) continue;
    if (!first) bytes_append_string(out, ",");
    first = false;
    put_stream(s, e, out);
  }
  pthread_mutex_unlock(&s->lock);
  bytes_append_string(out, "]}");
}

bool api_streams_show(api_streams *s, const api_key *key, const char *id, bytes_buffer *out,
                      api_failure *failure) {
  pthread_mutex_lock(&s->lock);
  api_stream *e = find(s, key, id, failure);
  if (e) put_stream(s, e, out);
  pthread_mutex_unlock(&s->lock);
  return e != NULL;
}

typedef struct patch {
  troika_class class_; /* DEFAULT: as it is */
  int suspend;         /* -1: as it is */
} patch;

static bool read_patch(const json_t *root, patch *p, api_failure *f) {
  const json_t *class_ = api_json_field(root, "class"), *state = api_json_field(root, "state");
  *p = (patch){.class_ = TROIKA_CLASS_DEFAULT, .suspend = -1};
  if (!class_ && !state) return api_failure_set(f, "class", "class, state or both must be given");
  if (api_json_is(class_, "reactive"))
    p->class_ = TROIKA_REACTIVE;
  else if (api_json_is(class_, "proactive"))
    p->class_ = TROIKA_PROACTIVE;
  else if (class_)
    return api_failure_set(f, "class", "class must be \"reactive\" or \"proactive\"");
  if (api_json_is(state, "suspended"))
    p->suspend = 1;
  else if (api_json_is(state, "running"))
    p->suspend = 0;
  else if (state)
    return api_failure_set(f, "state", "state must be \"suspended\" or \"running\"");
  return true;
}

/* Under the lock, of a live one. */
static bool apply_patch(api_stream *e, const patch *p, api_failure *failure) {
  if (p->class_ && !api_key_change(&e->hold, p->class_)) {
    api_failure_set(failure, "class", "the API key lets no more of its requests be reactive");
    failure->status = 403;
    failure->type = api_failure_type_of(403);
    failure->code = "class_capped";
    return false;
  }
  if (p->class_) {
    e->patched = true;
    e->who.class_ = p->class_;
    e->who.decided_by = "PATCH";
    e->who.tier = p->class_ == TROIKA_REACTIVE ? "priority" : "flex";
  }
  if (p->suspend >= 0) e->suspended = p->suspend;
  for (uint32_t i = 0; i < e->n; i++) {
    if (!e->streams[i]) continue;
    if (p->class_) troika_stream_set_class(e->streams[i], p->class_);
    if (p->suspend == 1) troika_stream_suspend(e->streams[i]);
    if (p->suspend == 0) troika_stream_resume(e->streams[i]);
  }
  return true;
}

static bool over(const api_stream *e, api_failure *failure) {
  if (!e->ended && !e->drop) return false;
  api_failure_conflict(failure, "stream_ended", "the stream has ended");
  return true;
}

bool api_streams_patch(api_streams *s, const api_key *key, const char *id, bytes_view body,
                       bytes_buffer *out, api_failure *failure) {
  patch p;
  json_t *root = api_json_parse(body, failure);
  if (!root) return false;
  bool ok = read_patch(root, &p, failure);
  json_decref(root);
  if (!ok) return false;
  pthread_mutex_lock(&s->lock);
  api_stream *e = find(s, key, id, failure);
  ok = e && !over(e, failure) && apply_patch(e, &p, failure);
  if (ok) put_stream(s, e, out);
  pthread_mutex_unlock(&s->lock);
  return ok;
}

bool api_streams_cancel(api_streams *s, const api_key *key, const char *id, bytes_buffer *out,
                        api_failure *failure) {
  pthread_mutex_lock(&s->lock);
  api_stream *e = find(s, key, id, failure);
  bool ok = e && !over(e, failure);
  if (ok) {
    drop(e, API_DROP_CANCELLED);
    put_stream(s, e, out);
  }
  pthread_mutex_unlock(&s->lock);
  return ok;
}
