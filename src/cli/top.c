/* SPDX-License-Identifier: Apache-2.0 */
/* troika top: asks a server for /metrics and /v1/streams again and again, and shows them. */
#include "cli/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options.h"
#include "http/get.h"

enum { ANSWER_MAX = 32 * 1024 * 1024, COLUMNS = 200 /* where there is no terminal */ };
#define TIMEOUT_NS 5000000000LL

typedef struct top {
  const cli_settings *s;
  http_peer *peer;
  http_get_options get;
  top_server server;
  top_sample now;
  bool failing;      /* the server does not answer at the moment */
  char problem[600]; /* why */
  /* the terminal */
  top_view view;
  bool live, raw;
  struct termios before;
} top;

static void on_resize(int number) {
  (void)number; /* it is enough that poll is interrupted */
}

static bool problem(top *t, const char *text) {
  snprintf(t->problem, sizeof t->problem, "%s", text);
  return false;
}

/* Appends the body. False: t->problem. */
static bool ask(top *t, const char *path, bytes_buffer *out) {
  unsigned status = 0;
  troika_error err = {0};
  if (http_get(t->peer, path, &t->get, &status, out, &err)) return problem(t, err.text);
  if (status == 401)
    return problem(t, t->get.key ? "it does not know this API key"
                                 : "it asks for an API key: TROIKA_API_KEY or --api-key-file");
  snprintf(t->problem, sizeof t->problem,
           "%s is answered with %u: it is no troika server, or an "
           "old one",
           path, status);
  return status == 200;
}

static bool ask_json(top *t, const char *path, json_t **out) {
  bytes_buffer body;
  json_error_t err;
  bytes_init(&body, ANSWER_MAX);
  bool ok = ask(t, path, &body);
  *out = ok ? json_loadb(body.data ? body.data : "", body.len, JSON_REJECT_DUPLICATES, &err) : NULL;
  bytes_free(&body);
  if (ok && !*out) return problem(t, "it is no troika server: its answer is no JSON");
  return ok;
}

static bool ask_metrics(top *t, top_figures *out) {
  bytes_buffer body;
  bytes_init(&body, ANSWER_MAX);
  bool ok = ask(t, "/metrics", &body);
  if (ok && !top_read_metrics(body.data ? body.data : "", out))
    ok = problem(t, "it is no troika server: its /metrics has no troika_build_info");
  bytes_free(&body);
  return ok;
}

/* One sample more. False: t->problem, and there is none. */
static bool look(top *t) {
  top_sample now = {0};
  json_t *streams = NULL, *models = NULL;
  bool ok = ask_metrics(t, &now.figures) && ask_json(t, "/v1/streams", &streams);
  now.at_ns = clock_real_now(NULL);
  if (ok && !top_read_streams(streams, &now))
    ok = problem(t, "it is no troika server: its /v1/streams is no list of streams");
  if (ok && (t->failing || !*t->server.model)) { /* it may be another one than before */
    ok = ask_json(t, "/v1/models", &models);
    if (ok) top_read_model(models, &t->server);
    json_decref(models);
  }
  if (ok) top_compare(&t->now, &now);
  top_sample_free(&t->now);
  t->failing = !ok;
  if (ok)
    t->now = now;
  else
    top_sample_free(&now);
  return ok;
}

/* --- the terminal */

static void enter(top *t) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_resize;
  sigaction(SIGWINCH, &action, NULL);
  t->raw = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &t->before);
  if (t->raw) { /* keys come at once, and are not shown; Ctrl-C stays a signal */
    struct termios keys = t->before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keys.c_cc[VSUSP] = _POSIX_VDISABLE; /* a shell would be left with a screen like this */
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  /* The other screen, without a cursor, lines cut at its edge. */
  if (t->view.moves) cli_write_fd(STDOUT_FILENO, "\x1b[?1049h\x1b[?25l\x1b[?7l", 19);
}

static void leave(top *t) {
  if (t->live && t->view.moves) cli_write_fd(STDOUT_FILENO, "\x1b[?7h\x1b[?25h\x1b[?1049l", 19);
  if (t->raw) tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static void measure(top *t) {
  struct winsize size;
  t->view.columns = COLUMNS;
  t->view.rows = 0;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_col) return;
  t->view.columns = size.ws_col;
  if (t->live && t->view.moves) t->view.rows = size.ws_row;
}

/* False: it cannot be written. */
static bool show(top *t) {
  bytes_buffer out;
  bytes_init(&out, 2 * ANSWER_MAX);
  measure(t);
  const char *why = t->failing ? t->problem : NULL;
  if (t->s->json)
    top_put_json(&t->server, &t->now, why, &out);
  else
    top_draw(&t->view, &t->server, &t->now, why, &out);
  bool ok = !out.failed && cli_write_fd(STDOUT_FILENO, out.data, out.len);
  if (!ok) cli_fail("cannot write to standard output: %s", strerror(out.failed ? ENOMEM : errno));
  bytes_free(&out);
  return ok;
}

/* Until the next look is due, or a signal: the frame is drawn again then, as the window may have
 * another size. False: to be ended. */
static bool rest(top *t, int64_t until_ns) {
  while (!cli_signals_seen()) {
    int64_t left = until_ns - clock_real_now(NULL);
    if (left <= 0) return true;
    struct pollfd keys = {t->raw ? STDIN_FILENO : -1, POLLIN, 0};
    int n = poll(&keys, 1, left > 1000000000000 ? 1000000 : (int)(left / 1000000) + 1);
    if (n < 0 && (errno != EINTR || (!cli_signals_seen() && t->live && !show(t)))) return false;
    char key[64];
    ssize_t got = n > 0 ? read(STDIN_FILENO, key, sizeof key) : -1;
    if (got > 0 && (memchr(key, 'q', (size_t)got) || memchr(key, 'Q', (size_t)got))) return false;
    if (n > 0 && got <= 0) t->raw = t->raw && (tcsetattr(STDIN_FILENO, TCSANOW, &t->before), false);
  }
  return false;
}

static int watch(top *t) {
  int64_t interval_ns = (int64_t)(t->s->interval * 1e9);
  int64_t next_ns = clock_real_now(NULL) + interval_ns;
  bool goes_on = t->live || t->s->json, once = t->s->once || !goes_on;
  if (!look(t)) {
    if (cli_signals_seen()) return CLI_INTERRUPTED;
    return cli_fail("%s does not show its streams: %s", t->server.url, t->problem);
  }
  if (t->live) enter(t);
  if (!once && !show(t)) return CLI_FAILED;
  while (rest(t, next_ns)) {
    next_ns = clock_real_now(NULL) + interval_ns;
    bool ok = look(t);
    if (cli_signals_seen()) break;
    if (once && !ok) return cli_fail("%s does not show its streams: %s", t->server.url, t->problem);
    if (!show(t)) return CLI_FAILED;
    if (once) return CLI_OK;
  }
  return cli_signals_seen() && !t->live ? CLI_INTERRUPTED : CLI_OK;
}

/* The first key of --api-key-file, else TROIKA_API_KEY, without its rules. */
static bool find_key(const cli_settings *s, bytes_buffer *keys, const char **out) {
  if (!cli_serve_keys(s, keys)) return false;
  if (!keys->len) return true;
  keys->data[strcspn(keys->data, " \t\n")] = 0;
  *out = keys->data;
  return true;
}

int cli_top(const cli_settings *s) {
  top t = {.s = s, .get = {.timeout_ns = TIMEOUT_NS, .stop = cli_signals_seen}};
  troika_error err = {0};
  bytes_buffer keys;
  if (s->arguments_n) {
    cli_fail("top takes no arguments: is \"%.60s\" meant for --url?", s->arguments[0]);
    return CLI_USAGE;
  }
  troika_status status = http_peer_open(s->url, &t.peer, &err);
  if (status) {
    cli_fail("%s", err.text);
    return status == TROIKA_INVALID ? CLI_USAGE : CLI_FAILED;
  }
  bytes_init(&keys, 1 << 20);
  int code = CLI_FAILED;
  if (find_key(s, &keys, &t.get.key)) {
    bool terminal = isatty(STDOUT_FILENO);
    t.server.url = http_peer_url(t.peer);
    t.live = terminal && !s->once && !s->json;
    t.view.colours = terminal && option_terminal_has_styles();
    t.view.moves = t.live && option_terminal_has_cursor();
    cli_signals_catch();
    code = watch(&t);
    leave(&t);
  }
  top_sample_free(&t.now);
  http_peer_close(&t.peer);
  bytes_free(&keys);
  return code;
}
