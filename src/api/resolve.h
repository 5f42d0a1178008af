/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.h - who waits for a request: class, session, parent, agent, step, deadlines, hints, read
 * from what clients already send. Private to this room. docs/API.md has the order for users.
 *
 *   HTTP thread, in handle:  api_signals_take      headers and key, copied: the exchange's views
 *                                                  end with `handle`
 *   API thread:              api_request_parse     body fields into api_request.hints
 *                            api_resolve           class, session, ...; counts nothing
 *                            api_key_begin         counts; may cap, may refuse with 429
 *                            api_resolved_apply    into the engine's request
 *                            api_key_end           once for each begin, on every path
 *
 * What clients send is never trusted. Texts of api_resolved are printable ASCII without quotes and
 * backslashes: fit for a header, a log line or JSON as they are. */
#ifndef API_RESOLVE_H
#define API_RESOLVE_H

#include "api/access.h"
#include "api/request.h"
#include "api/sessions.h"
#include "http/http.h"
#include "troika/stream.h"

enum {
  API_DEADLINE_MS_MAX = 24 * 60 * 60 * 1000, /* of what a client may ask for */
  API_SIGNAL_BYTES_MAX = 512                 /* of a value; what follows does not count */
};

/* What the server was told; a member of struct api. Constant; what it points to is borrowed. */
typedef struct api_resolver {
  api_access *access;
  api_sessions *sessions;
  troika_class default_class; /* of --default-class; DEFAULT is REACTIVE */
  bool no_heuristics, share_cache;
} api_resolver;

/* The headers that say something. Add a line here, and use it in resolve.c. */
#define API_SIGNAL_LIST(X)                               \
  X(TROIKA_CLASS, "x-troika-class")                      \
  X(TROIKA_DEADLINE, "x-troika-deadline-ms")             \
  X(TROIKA_FIRST_DEADLINE, "x-troika-first-deadline-ms") \
  X(TROIKA_LATEST, "x-troika-latest")                    \
  X(TROIKA_SHORTEN, "x-troika-shorten")                  \
  X(APP, "x-app")                                        \
  X(SUBAGENT, "x-openai-subagent")                       \
  X(MEMGEN, "x-openai-memgen-request")                   \
  X(CLAUDE_SESSION, "x-claude-code-session-id")          \
  X(CLAUDE_AGENT, "x-claude-code-agent-id")              \
  X(CLAUDE_PARENT, "x-claude-code-parent-agent-id")      \
  X(SESSION_ID, "session-id")                            \
  X(SESSION_ID_LOW, "session_id")                        \
  X(X_SESSION_ID, "x-session-id")                        \
  X(SESSION_AFFINITY, "x-session-affinity")              \
  X(OPENCODE_SESSION, "x-opencode-session")              \
  X(OPENWEBUI_CHAT, "x-openwebui-chat-id")               \
  X(LITELLM_SESSION, "x-litellm-session-id")             \
  X(THREAD_ID, "thread-id")                              \
  X(DYNAMO_SESSION, "x-dynamo-session-id")               \
  X(AMP_THREAD, "x-amp-thread-id")                       \
  X(OLLA_SESSION, "x-olla-session-id")                   \
  X(AFFINITY, "x-affinity")                              \
  X(GROK_CONVERSATION, "x-grok-conv-id")                 \
  X(PARENT_SESSION, "x-parent-session-id")               \
  X(CODEX_PARENT, "x-codex-parent-thread-id")            \
  X(DYNAMO_PARENT, "x-dynamo-parent-session-id")         \
  X(DYNAMO_FINAL, "x-dynamo-session-final")              \
  X(READ_TIMEOUT, "x-stainless-read-timeout")            \
  X(RETRY_COUNT, "x-stainless-retry-count")              \
  X(TRACEPARENT, "traceparent")                          \
  X(USER_AGENT, "user-agent")

#define API_SIGNAL_NAME(name, header) API_SIGNAL_##name,
typedef enum api_signal { API_SIGNAL_LIST(API_SIGNAL_NAME) API_SIGNALS } api_signal;
#undef API_SIGNAL_NAME

/* A request's headers (the first of several of a name; an empty one counts as absent) and its key.
 * Owns its text; zeroed it says nothing. */
typedef struct api_signals {
  const api_key *key;  /* never NULL once taken */
  bool background;     /* the path begins with /bg */
  int64_t received_ns; /* clock_real; deadlines count from it. 0: from now */
  bytes_buffer text;
  struct {
    uint32_t at, len;
  } values[API_SIGNALS];
} api_signals;

/* HTTP thread, inside `handle`. False: no memory. */
bool api_signals_take(const api_resolver *r, http_exchange *x, api_signals *out);
/* The same for one value; for tests, too. Before take: bytes_init(&s->text, ...). */
void api_signals_set(api_signals *s, api_signal which, bytes_view value);
void api_signals_free(api_signals *s);
bytes_view api_signal_of(const api_signals *s, api_signal which); /* {NULL, 0}: absent */
const char *api_signal_name(api_signal which);                    /* "x-troika-class" */

/* "/bg/v1/chat/completions" is "/v1/chat/completions" of the background: the path behind "/bg". */
const char *api_path_route(const char *path, bool *background);

typedef struct api_resolved {
  troika_class class_;    /* REACTIVE, PROACTIVE, or INHERITED of a child; never DEFAULT */
  troika_class said;      /* what the client said in so many words, for later turns of its session;
                             DEFAULT: nothing */
  const char *decided_by; /* "x-troika-class", "service_tier", "key", "default", ...: a constant */
  const char *tier;       /* service_tier really used: "priority", "default" or "flex" */
  bool capped;            /* the key's cap made it proactive */
  bool child, may_react;
  uint64_t session, parent; /* hashes with the key's scope; 0: none */
  uint64_t client;          /* hash of key and User-Agent; 0: no User-Agent */
  char stream[65];          /* the session as the client named it, cut; "": none */
  char above[65];           /* the parent, in the same way */
  char agent[65], step[33]; /* "": not known */
  int64_t first_deadline_ns, done_deadline_ns; /* from now; 0: none */
  int64_t first_deadline_ms, deadline_ms;      /* the same from its arrival */
  bool deadline_hinted;     /* done is x-stainless-read-timeout and a second: no reason to refuse */
  uint32_t expected_tokens; /* 0: not known */
  int64_t next_use_ms, steps_to_execution; /* -1: not known */
  bool speculative_prefill, session_final; /* as Dynamo's clients say it */
  int64_t priority;                        /* as sent, to be echoed; has_priority */
  bool has_priority;
  bool latest_only;     /* x-troika-latest: a newer request of the stream replaces a queued one; has
                           a session */
  bool shortenable;     /* x-troika-shorten */
  uint32_t retry_count; /* x-stainless-retry-count */
  uint64_t scope;       /* whose cached prefixes: the key's, or 0 for all with share_cache */
  char digest[65]; /* sha256 in hexadecimal of path, key's scope and body: a retry has the same */
} api_resolved;

/* path, body: of the exchange. False: `failure` says which header or field is wrong. API thread. */
bool api_resolve(const api_resolver *resolver, const api_signals *s, const char *path,
                 bytes_view body, const api_request *r, api_resolved *out, api_failure *failure);

/* What is known of it beside its class, as members of an object, each with a comma before it; what
 * is not known is left out. But for the session, its agent and its step: these are put_names'. */
void api_resolved_put(const api_resolved *resolved, bytes_buffer *out);
/* `,"session":"..","agent":"..","step":".."`, without those that are not known. */
void api_resolved_put_names(const api_resolved *resolved, bytes_buffer *out);

/* identity.c, a part of it: session, parent, client, their names, agent, step. Any request is
 * somebody's: nothing can be wrong. */
void api_resolve_identity(const api_signals *s, const api_request *r, api_resolved *out);
/* A text of a client as the header above promises it, cut to size - 1 bytes. */
void api_clean_text(bytes_view text, char *out, size_t size);
/* heuristic.c, a part of it: a helper's call that no person reads; see there. */
bool api_resolve_side_call(const api_resolver *resolver, const api_signals *s, const api_request *r,
                           const api_resolved *who, int64_t now_ns);

/* What the engine shall know of it, into r->engine. After api_key_begin, which may cap. */
void api_resolved_apply(const api_resolved *resolved, troika_request *engine);

/* A request that is counted as open, of its key and of its session. Zeroed: none. Change and end
 * may come from different threads. */
typedef struct api_key_hold {
  const api_resolver *resolver;
  uint64_t session; /* 0: not counted there */
  api_key_count count;
} api_key_hold;

/* answers: choices of the request (n times prompts), each of which counts. Beyond the key's
 * reactive-max the class becomes PROACTIVE (resolved: class_, tier, capped); beyond its max:
 * false, 429. Any thread. */
bool api_key_begin(const api_resolver *resolver, const api_signals *s, api_resolved *resolved,
                   uint32_t answers, api_key_hold *out, api_failure *failure);
/* The same request in another class (PATCH): false if the key does not let it be reactive, or if it
 * has ended; then nothing is changed. The caller tells the engine. Takes no lock but the key's and
 * the session table's. Its session has then said this class. */
bool api_key_change(api_key_hold *hold, troika_class class_);
/* Once for each begin that was true; else does nothing. */
void api_key_end(api_key_hold *hold);

#endif
