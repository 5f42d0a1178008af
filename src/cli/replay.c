/* SPDX-License-Identifier: Apache-2.0 */
/* troika replay FILE: makes every decision of a record again, with the policy of this program, and
 * says where it differs. The file is read record by record, so its length does not matter, and one
 * that still grows is replayed as far as it goes. */
#include "cli/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

/* No record is longer: SCHED_REQUESTS_MAX requests and as many actions are 20 MB. */
enum { READ_BYTES = 1 << 20, HELD_MAX = 64 << 20, ACTIONS_MAX = SCHED_RECORD_ACTIONS_MAX };

typedef struct replay {
  int fd;
  const char *name;
  uint8_t *bytes; /* [at, len) is not decided yet; at is 8-byte aligned */
  size_t at, len, capacity;
  bool over; /* of the file */
  sched_action *actions;
  sched_memory after; /* of the decision before */
  replay_report report;
} replay;

/* False: said why. */
static bool read_more(replay *r) {
  if (r->at) memmove(r->bytes, r->bytes + r->at, r->len - r->at);
  r->len -= r->at;
  r->at = 0;
  if (r->capacity - r->len < READ_BYTES) {
    size_t capacity = r->capacity ? 2 * r->capacity : 4 * READ_BYTES;
    uint8_t *grown = capacity <= HELD_MAX ? realloc(r->bytes, capacity) : NULL;
    if (!grown) return cli_fail("no memory for a record of more than %zu bytes", r->len), false;
    r->bytes = grown;
    r->capacity = capacity;
  }
  ssize_t n;
  do n = read(r->fd, r->bytes + r->len, READ_BYTES);
  while (n < 0 && errno == EINTR && !cli_signals_seen());
  if (n < 0) {
    if (!cli_signals_seen()) cli_fail("cannot read %s: %s", r->name, strerror(errno));
    return false;
  }
  r->len += (size_t)n;
  r->over = n == 0;
  return true;
}

static void describe(const sched_action *a, size_t i, size_t n, char *out, size_t size) {
  if (i >= n)
    snprintf(out, size, "none");
  else if (a[i].kind >= SCHED_LAUNCH && a[i].kind != SCHED_JOIN)
    snprintf(out, size, "%s of launch %u on device %u (request %d, rows %u%s, %.3f ms)",
             replay_action_name(a[i].kind), a[i].launch, a[i].device, (int)a[i].request, a[i].rows,
             a[i].promoted ? ", promoted" : "", (double)a[i].ns * 1e-6);
  else
    snprintf(out, size, "%s of request %d (reason %u, rows %u%s, %.3f ms)",
             replay_action_name(a[i].kind), (int)a[i].request, a[i].reason, a[i].rows,
             a[i].promoted ? ", promoted" : "", (double)a[i].ns * 1e-6);
}

static bool is_same(const sched_action *a, const sched_action *b) {
  return a->kind == b->kind && a->reason == b->reason && a->device == b->device &&
         a->promoted == b->promoted && a->request == b->request && a->rows == b->rows &&
         a->launch == b->launch && a->ns == b->ns;
}

static replay_mismatch *mismatch(replay *r, const sched_recorded *d) {
  static replay_mismatch unseen;
  uint64_t i = r->report.mismatches++;
  replay_mismatch *m = i < REPLAY_SHOWN ? &r->report.shown[i] : &unseen;
  m->decision = d->before.decisions;
  m->at_ns = d->now_ns - (r->report.decisions ? r->report.first_ns : d->now_ns);
  return m;
}

static void compare(replay *r, const sched_recorded *d, size_t n) {
  size_t i = 0;
  char then[100], now[100];
  while (i < n && i < d->n_actions && is_same(&d->actions[i], &r->actions[i])) i++;
  if (i == n && i == d->n_actions) return;
  replay_mismatch *m = mismatch(r, d);
  describe(d->actions, i, d->n_actions, then, sizeof then);
  describe(r->actions, i, n, now, sizeof now);
  snprintf(m->text, sizeof m->text, "action %zu was %s, is %s", i, then, now);
}

/* What a decision remembers is what the next one is given; numbers that are left out were lost. */
static void compare_memory(replay *r, const sched_recorded *d) {
  uint64_t wanted = r->after.decisions, found = d->before.decisions;
  if (!r->report.decisions) return;
  if (found > wanted) {
    r->report.missing += found - wanted;
    return;
  }
  if (found == wanted && !memcmp(&r->after, &d->before, sizeof r->after)) return;
  replay_mismatch *m = mismatch(r, d);
  if (found < wanted) {
    snprintf(m->text, sizeof m->text, "it comes after decision %llu",
             (unsigned long long)(wanted - 1));
    return;
  }
  size_t at = 0; /* of the first difference */
  while (((const uint8_t *)&r->after)[at] == ((const uint8_t *)&d->before)[at]) at++;
  snprintf(m->text, sizeof m->text,
           "what the policy remembers differs, from byte %zu of sched_memory (B_cap was %u, is %u; "
           "X was %.3f ms, is %.3f ms)",
           at, d->before.bcap, r->after.bcap, (double)d->before.x_ns * 1e-6,
           (double)r->after.x_ns * 1e-6);
}

static void decide_again(replay *r, const sched_recorded *d) {
  int64_t wake_ns, began_ns = clock_real_now(NULL);
  sched_memory memory = d->before;
  size_t n = sched_decide(&d->view, &memory, d->now_ns, r->actions, ACTIONS_MAX, &wake_ns);
  r->report.spent_ns += clock_real_now(NULL) - began_ns;
  compare_memory(r, d);
  compare(r, d, n);
  replay_count(&r->report, d, &memory);
  r->after = memory;
}

/* False: said why, or interrupted. *problem: why the record ends before the file; NULL: it does
 * not. */
static bool decide_all(replay *r, const char **problem) {
  sched_recorded d;
  for (;;) {
    if (cli_signals_seen()) return false;
    size_t taken = sched_record_read(r->bytes + r->at, r->len - r->at, &d, problem);
    if (taken) {
      decide_again(r, &d);
      r->at += taken;
      r->report.bytes += taken;
    } else if (*problem && *problem != sched_record_cut) {
      return true;
    } else if (r->over) {
      return true;
    } else if (!read_more(r)) {
      return false;
    }
  }
}

static int say(const replay *r, const char *problem, bool json) {
  const replay_report *p = &r->report;
  if (json)
    replay_print_json(p, r->name, problem);
  else if (p->decisions)
    replay_print(p, r->name);
  fflush(stdout);
  if (problem && p->decisions)
    return cli_fail("%s: after %llu decisions, at byte %llu: %s", r->name,
                    (unsigned long long)p->decisions, (unsigned long long)p->bytes, problem);
  if (problem) return cli_fail("%s cannot be replayed: %s", r->name, problem);
  if (!p->decisions) return cli_fail("%s holds no decisions: it is empty", r->name);
  return p->mismatches ? CLI_FAILED : CLI_OK;
}

int cli_replay(const cli_settings *s) {
  const char *problem = NULL;
  if (s->arguments_n != 1) {
    cli_fail("replay takes one file, which \"troika serve --record FILE\" writes");
    return CLI_USAGE;
  }
  replay *r = calloc(1, sizeof *r);
  if (!r) return cli_fail("no memory to replay anything");
  r->name = s->arguments[0];
  r->fd = strcmp(r->name, "-") ? open(r->name, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
  r->actions = calloc(ACTIONS_MAX, sizeof *r->actions);
  int code = CLI_FAILED;
  cli_signals_catch();
  if (r->fd < 0)
    cli_fail("cannot open %s: %s", r->name, strerror(errno));
  else if (!r->actions)
    cli_fail("no memory to replay anything");
  else if (read_more(r) && decide_all(r, &problem))
    code = say(r, problem, s->json);
  else if (cli_signals_seen())
    code = CLI_INTERRUPTED;
  if (r->fd > STDIN_FILENO) close(r->fd);
  free(r->actions);
  free(r->bytes);
  free(r);
  return code;
}
