/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/support_sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sched/support_internal.h"

enum { PRINT_MOST = 40, WAKES_MOST = 20000 };

static sim the_sim; /* large; one run at a time */
sim_totals sim_last;

/* ---- saying what is wrong ---- */

static void dump(const sim *s) {
  printf("  t=%.3f ms  X=%.3f ms  level %u  promoted prefill %u row %u  free %u/%u places %u/%u\n",
         (double)s->clock.now_ns * 1e-6, (double)s->memory.x_ns * 1e-6, s->memory.level,
         s->memory.promoted_prefill, s->memory.promoted_row, s->free[0], s->p->pages[0],
         s->places_used, s->p->config.places);
  printf("  %u devices, rows cost %.3f of the table, %u and %u faults planned%s%s%s\n",
         s->p->n_devices, (double)s->p->truth[0] / COST_ONE, s->p->n_faults[0], s->p->n_faults[1],
         s->p->window ? ", window" : "", s->p->grows ? ", pages grow" : "",
         s->p->observe ? ", observed" : "");
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++) {
    const sim_launch *l = &s->launches[i];
    if (!l->used) continue;
    printf(
        "  launch %u on %u: state %u slots %02x prompt %d x %u, %u rows, began %.3f, done %.3f of "
        "%.3f ms\n",
        l->v.id, l->v.device, l->v.state, l->v.slots, (int)l->v.prompt_request, l->v.prompt_rows,
        l->v.decode_rows, (double)l->v.start_ns * 1e-6, (double)l->v.done_ns * 1e-6,
        (double)l->v.total_ns * 1e-6);
  }
  for (uint32_t i = 0; i < s->n_active && i < 24; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    printf(
        "  %u: %c %s%s%s prompt %u out %u launch %d need %u holds %u wait %.3f blocked %.3f ms\n",
        j->r.id, "RIP" [sim_band(j)],
        (const char *[]) { "queued", "prefill", "decode", "ended" }[j->r.state],
        j->r.held ? " held" : "", j->r.cancelled ? " cancelled" : "", j->r.prompt_left,
        j->r.output_left, (int)j->r.launch, j->r.need[0], j->r.holds[0],
        (double)(s->clock.now_ns - j->r.waiting_ns) * 1e-6, (double)j->r.blocked_ns * 1e-6);
  }
}

void sim_violation(sim *s, int invariant, bool fatal, const char *format, ...) {
  sim_tally *t = &s->report->of[invariant];
  t->violations++;
  s->broken |= fatal;
  if (s->report->printed >= PRINT_MOST || t->violations > 4) return;
  s->report->printed++;
  va_list args;
  va_start(args, format);
  printf("seed %llu step %llu: invariant %d: ", (unsigned long long)s->p->seed,
         (unsigned long long)s->step, invariant);
  vprintf(format, args);
  va_end(args);
  printf("\n");
  dump(s);
  fflush(stdout);
}

void sim_checked(sim *s, int invariant, double measured) {
  sim_tally *t = &s->report->of[invariant];
  t->checks++;
  if (measured <= t->worst) return;
  t->worst = measured;
  t->worst_seed = s->p->seed;
  t->worst_step = s->step;
}

static void trace(const sim *s) {
  static const char *const names[] = {"admit",  "refuse", "shorten", "expire", "suspend",
                                      "launch", "join",   "resume",  "drop",   "stop"};
  printf("step %llu at %.3f ms, X %.3f, credit %.3f ms, S %.3f ms, level %u:",
         (unsigned long long)s->step, (double)s->clock.now_ns * 1e-6, (double)s->memory.x_ns * 1e-6,
         (double)s->memory.credit_ns * 1e-6, (double)s->memory.pass1_ns * 1e-6, s->memory.level);
  for (size_t i = 0; i < s->n_actions; i++) {
    const sched_action *a = &s->actions[i];
    printf(" %s%s", names[a->kind], a->promoted ? "!" : "");
    if (a->kind >= SCHED_LAUNCH && a->kind != SCHED_JOIN)
      printf(" L%u on %u", a->launch, a->device);
    if (a->request != SCHED_NONE) printf(" %u", a->request);
    if (a->rows) printf(" x %u", a->rows);
  }
  printf("\n");
}

#define LEGAL(condition, ...)                         \
  do {                                                \
    if (!(condition)) {                               \
      sim_violation(s, INV_LEGAL, true, __VA_ARGS__); \
      return;                                         \
    }                                                 \
  } while (0)

/* ---- what a request is ---- */

uint32_t sim_index(const sim *s, const sim_job *j) {
  return (uint32_t)(j - s->jobs);
}

sched_band sim_band(const sim_job *j) {
  sched_band band = SCHED_BAND_P;
  if (j->r.class_ == SCHED_REACTIVE)
    band = j->r.child && !j->r.may_react ? SCHED_BAND_I : SCHED_BAND_R;
  else if (j->r.class_ == SCHED_INHERITED && j->r.parent_waits)
    band = SCHED_BAND_I;
  return (sched_band)j->r.lift < band ? (sched_band)j->r.lift : band;
}

bool sim_runnable(const sim *s, const sim_job *j) {
  int64_t now = s->clock.now_ns;
  return (j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE) && j->r.launch == SCHED_NONE &&
         !j->r.held && !j->r.cancelled && now < j->r.done_deadline_ns &&
         (j->r.emitted || now < j->r.first_deadline_ns);
}

uint64_t sim_row_kv(const sim_plan *p, uint32_t pos) {
  uint64_t each = (p->kv_token_bytes - 8) * (pos + 1);
  if (p->window && pos + 1 > p->window) each = (p->kv_token_bytes - 8) * p->window;
  return each + 8 * (uint64_t)(pos + 1);
}

static int32_t token_at(const sim_job *j, uint32_t pos) {
  const sim_spec *p = j->spec;
  if (pos >= p->prompt) return j->out[pos - p->prompt];
  bool shared = p->prefix != SCHED_NONE && pos < p->prefix_len;
  uint64_t who = shared ? 1000000 + p->prefix : p->content;
  return (int32_t)(soc_state(who * 65536 + pos, 7) % SIM_VOCAB);
}

static void pages_of(const sim *s, uint32_t tokens, uint32_t need[SCHED_GROUPS]) {
  memset(need, 0, SCHED_GROUPS * sizeof *need);
  need[0] = (tokens + SOC_PAGE_TOKENS - 1) / SOC_PAGE_TOKENS;
  if (!s->p->window) return;
  uint32_t most = (s->p->window + SIM_SPAN_MAX) / SOC_PAGE_TOKENS + 2;
  need[1] = need[0] < most ? need[0] : most;
}

static uint32_t groups(const sim *s) {
  return s->p->window ? 2 : 1;
}

/* Tokens that its pages must hold before its next rows have run. */
static uint32_t tokens_next(const sim_job *j) {
  return j->decoding ? j->computed + 1 : j->known;
}

static void refresh(sim *s, sim_job *j) {
  sched_request *r = &j->r;
  uint32_t most = j->spec->prompt + j->limit, next[SCHED_GROUPS];
  bool in = r->state == SCHED_PREFILL || r->state == SCHED_DECODE;
  r->class_ = j->class_;
  r->parent_waits = j->spec->parent != SCHED_NONE && s->session_waits[j->spec->parent] &&
                    !s->session_open[j->spec->parent];
  pages_of(s, most, r->most);
  pages_of(s, s->p->grows ? tokens_next(j) : most, next);
  for (uint32_t g = 0; g < SCHED_GROUPS; g++) {
    r->need[g] = !in ? next[g] : next[g] > j->promised[g] ? next[g] - j->promised[g] : 0;
    r->holds[g] = in ? j->promised[g] : 0;
  }
  if (!in) j->decoding = false;
  uint32_t goal = s->p->tail ? j->known - 1 : j->known;
  r->prompt_left = j->decoding ? 0 : goal > j->computed ? goal - j->computed : 0;
  if (!in) {
    uint32_t from = j->cached < goal ? j->cached : goal;
    r->prompt_left = goal - from;
  }
  r->output_left = j->limit - (j->known - j->spec->prompt);
  uint32_t spent = j->known - j->spec->prompt;
  r->expected_left = j->spec->expected > spent ? j->spec->expected - spent : 1;
  if (r->expected_left > r->output_left) r->expected_left = r->output_left;
  r->kv_bytes = sim_row_kv(s->p, j->computed);
  r->recompute_ns = cost_prefill(&s->cost[s->p->n_devices - 1], j->known, 0);
  r->done_deadline_ns = j->spec->done_deadline_ns;
  r->first_deadline_ns = j->spec->first_deadline_ns;
}

/* Who waits for a prefix that another computes, and in which band that one therefore runs. */
static void refresh_shared(sim *s) {
  for (uint32_t i = 0; i < s->n_active; i++) {
    sim_job *j = &s->jobs[s->active[i]];
    int64_t now = s->clock.now_ns;
    bool was = j->r.held, waits = false;
    j->r.lift = SCHED_BAND_P;
    if (now >= j->spec->attach_ns && now < j->spec->detach_ns) j->r.lift = j->spec->attach_band;
    if (j->spec->prefix != SCHED_NONE && j->r.state == SCHED_QUEUED && !j->cached) {
      const sim_prefix *x = &s->prefixes[j->spec->prefix];
      waits = x->owner != SCHED_NONE && x->owner != sim_index(s, j) && !x->cached;
    }
    j->r.held = waits || j->suspended;
    if (was && !j->r.held) j->r.waiting_ns = now;
  }
  for (uint32_t i = 0; i < s->n_active; i++) {
    const sim_job *j = &s->jobs[s->active[i]];
    if (!j->r.held || j->suspended || j->r.cancelled) continue;
    sim_job *owner = &s->jobs[s->prefixes[j->spec->prefix].owner];
    sched_band band = sim_band(j);
    if (band < owner->r.lift) owner->r.lift = (uint8_t)band;
  }
}

/* ---- pages, places, ends ---- */

static void leave(sim *s, sim_job *j) { /* place and pages */
  if (j->r.state != SCHED_PREFILL && j->r.state != SCHED_DECODE) return;
  for (uint32_t g = 0; g < SCHED_GROUPS; g++) {
    s->free[g] += j->promised[g];
    j->promised[g] = 0;
  }
  s->place_taken[j->place] = false;
  s->places_used--;
  for (uint32_t i = 0; i < SIM_PREFIXES; i++)
    if (s->prefixes[i].owner == sim_index(s, j)) s->prefixes[i].owner = SCHED_NONE;
}

static void end_job(sim *s, sim_job *j, uint8_t how, uint8_t reason) {
  if (j->ended || j->r.launch != SCHED_NONE) {
    sim_violation(s, INV_END, true, "request %u ends %s", j->r.id,
                  j->ended ? "twice" : "in a launch");
    return;
  }
  sim_checked(s, INV_END, 0);
  sched_band band = sim_band(j);
  leave(s, j);
  j->ended = true;
  j->r.state = SCHED_ENDED;
  j->result.end = how;
  j->result.reason = reason;
  j->result.end_ns = s->clock.now_ns;
  j->result.tokens = j->known - j->spec->prompt;
  j->result.hash = j->expect;
  j->result.blocked_ns = j->r.blocked_ns;
  uint32_t session = j->spec->session;
  s->session_open[session]--;
  s->session_waits[session] = how == SIM_DONE && j->spec->tool_end && band != SCHED_BAND_P;
  s->ended++;
  for (uint32_t i = 0; i < s->n_active; i++)
    if (s->active[i] == sim_index(s, j)) s->active[i] = s->active[--s->n_active];
}

static void emit(sim *s, sim_job *j, int32_t token) {
  int32_t want = soc_state_token(j->expect, SIM_VOCAB);
  if (token != want) {
    sim_violation(s, INV_TOKENS, true, "request %u got %d as its token %u, a lone run has %d",
                  j->r.id, token, j->known - j->spec->prompt, want);
    return;
  }
  sim_checked(s, INV_TOKENS, 0);
  sim_check_token(s, j);
  j->out[j->known++ - j->spec->prompt] = token;
  j->expect = soc_state(j->expect, token);
  if (!j->result.first_ns) j->result.first_ns = s->clock.now_ns;
  j->r.emitted = 1;
  j->r.emit_ns = s->clock.now_ns;
  j->decoding = true;
  j->r.state = SCHED_DECODE;
  if (sim_band(j) == SCHED_BAND_P) s->background_tokens++;
  if (j->known == j->spec->prompt + j->limit) end_job(s, j, SIM_DONE, 0);
}

/* ---- launches ---- */

static sim_launch *launch_of(sim *s, uint32_t id) {
  return id < SCHED_LAUNCHES_MAX && s->launches[id].used ? &s->launches[id] : NULL;
}

static void free_job(sim *s, sim_job *j) {
  j->r.launch = SCHED_NONE;
  j->r.waiting_ns = s->clock.now_ns;
}

static void free_rows(sim *s, sim_launch *l) {
  if (l->prompt_job != SCHED_NONE) free_job(s, &s->jobs[l->prompt_job]);
  for (uint32_t i = 0; i < l->n_decodes; i++) free_job(s, &s->jobs[l->decodes[i]]);
  l->used = false;
}

static void prefix_done(sim *s, sim_job *j) {
  if (j->spec->prefix == SCHED_NONE || j->computed < j->spec->prefix_len) return;
  sim_prefix *x = &s->prefixes[j->spec->prefix];
  if (x->owner == sim_index(s, j)) x->owner = SCHED_NONE;
  if (x->cached) return;
  x->cached = j->spec->prefix_len;
  x->state = 0;
  for (uint32_t i = 0; i < x->cached; i++) x->state = soc_state(x->state, token_at(j, i));
}

static void finish_launch(sim *s, sim_launch *l) {
  const device *d = s->devices[l->v.device];
  sim_check_launch_end(s, l);
  if (s->p->observe) cost_observe(&s->cost[l->v.device], &l->load, l->device_ns);
  free_rows(s, l);
  if (l->prompt_job != SCHED_NONE) {
    sim_job *j = &s->jobs[l->prompt_job];
    j->computed += l->v.prompt_rows;
    prefix_done(s, j);
    if (s->p->tail && j->computed == j->known - 1) {
      j->decoding = true;
      j->r.state = SCHED_DECODE;
    } else if (j->computed == j->known && !j->r.cancelled) {
      emit(s, j, soc_token(d, l->prompt_slot, 0));
    }
  }
  if (l->n_decodes)
    for (uint32_t i = 0; i < s->n_active; i++) s->jobs[s->active[i]].r.in_last = 0;
  for (uint32_t i = 0; i < l->n_decodes && !s->broken; i++) {
    sim_job *j = &s->jobs[l->decodes[i]];
    bool reactive = i < l->n_rows[3]; /* these came first */
    int32_t token = soc_token(d, reactive ? 3 : 4, reactive ? i : i - l->n_rows[3]);
    j->computed++;
    j->r.in_last = 1;
    if (!j->r.cancelled) emit(s, j, token);
  }
}

static void completed(void *context, const device_completion *c) {
  sim *s = context;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX && !s->broken; i++) {
    sim_launch *l = &s->launches[i];
    if (!l->used || l->v.state == SCHED_STOPPED || l->event.queue != c->event.queue ||
        l->event.sequence != c->event.sequence)
      continue;
    l->device_ns += c->end_ns - c->start_ns;
    l->v.done_ns += c->end_ns - c->start_ns;
    if (c->status) { /* moves no cursor; is placed again */
      sim_checked(s, INV_FAULTS, 0);
      s->period_clean = false;
      for (uint32_t k = 0; k < s->n_active; k++) s->jobs[s->active[k]].gap_clean = false;
      free_rows(s, l);
    } else if (c->panel == UINT32_MAX) {
      finish_launch(s, l);
    } else {
      l->v.state = SCHED_STOPPED;
      for (uint32_t r = 0; r < SIM_SLOTS; r++)
        if (l->n_rows[r]) s->runs[l->v.device][r].panel = c->panel;
    }
    return;
  }
  if (!s->broken) sim_violation(s, INV_LEGAL, true, "a completion of no launch");
}

static void submit(sim *s, sim_launch *l) {
  uint32_t d = l->v.device;
  troika_status status = s->devices[d]->driver->queue_submit(s->queues[d], l->commands,
                                                             l->n_commands, NULL, 0, &l->event);
  LEGAL(status == TROIKA_OK, "device %u refuses launch %u: %s", d, l->v.id,
        troika_status_text(status));
  l->v.state = SCHED_RUNNING;
  l->v.start_ns = s->clock.now_ns;
}

static bool device_busy(const sim *s, uint32_t d) {
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && s->launches[i].v.device == d &&
        s->launches[i].v.state != SCHED_STOPPED)
      return true;
  return false;
}

static bool take_pages(sim *s, sim_job *j) {
  for (uint32_t g = 0; g < SCHED_GROUPS; g++)
    if (j->r.need[g] > s->free[g]) return false;
  for (uint32_t g = 0; g < SCHED_GROUPS; g++) {
    s->free[g] -= j->r.need[g];
    j->promised[g] += j->r.need[g];
    j->r.need[g] = 0;
  }
  return true;
}

static void add_rows(sim *s, sim_launch *l, sim_job *j, uint32_t slot, uint32_t n, uint8_t arith) {
  uint32_t d = l->v.device;
  device_row *rows = &s->rows[d][slot * SIM_SLOT_ROWS + l->n_rows[slot]];
  for (uint32_t i = 0; i < n; i++) {
    uint32_t pos = j->computed + i;
    bool want = arith == DEVICE_GEN || pos + 1 == j->known;
    rows[i] = (device_row){.seq = j->place,
                           .pos = pos,
                           .token = token_at(j, pos),
                           .arith = arith,
                           .want = want ? DEVICE_WANT_LOGITS : 0};
  }
  if (!l->n_rows[slot]) {
    s->runs[d][slot] = (device_run){
        .id = slot, .row0 = slot * SIM_SLOT_ROWS, .slot = (uint16_t)slot, .node_end = 1};
    l->v.slots |= (uint8_t)(1u << slot);
  }
  l->n_rows[slot] += n;
  /* A rest is padded to the step by rows that compute the last one once more. */
  for (; arith == DEVICE_PROMPT && l->n_rows[slot] % s->device_views[d].step; l->n_rows[slot]++) {
    rows[l->n_rows[slot]] = rows[n - 1];
    rows[l->n_rows[slot]].want = 0;
  }
  s->runs[d][slot].rows = l->n_rows[slot];
  j->r.launch = l->v.id;
  if (!j->result.first_launch_ns) j->result.first_launch_ns = s->clock.now_ns;
}

static uint8_t slots_held(const sim *s, const sim_launch *but) {
  uint8_t slots = 0;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used && &s->launches[i] != but && s->launches[i].v.device == but->v.device)
      slots |= s->launches[i].v.slots;
  return slots;
}

static void join(sim *s, sim_launch *l, const sched_action *a) {
  sim_job *j = sim_job_of(s, a->request);
  LEGAL(j && j->r.state == SCHED_DECODE && j->r.launch == SCHED_NONE && !j->r.held &&
            !j->r.cancelled && !j->admitted_now,
        "request %u cannot join launch %u", a->request, l->v.id);
  LEGAL(take_pages(s, j), "request %u joins without pages", a->request);
  uint32_t slot = sim_band(j) == SCHED_BAND_P ? 4 : 3;
  LEGAL(l->n_rows[slot] < s->p->config.decode_rows, "more rows than a launch and band may have");
  LEGAL(!a->promoted || slot == 4, "a reactive row is promoted");
  add_rows(s, l, j, slot, 1, DEVICE_GEN);
  l->decodes[l->n_decodes++] = sim_index(s, j);
  l->v.decode_rows++;
  l->promoted_rows += a->promoted;
}

static void act_launch(sim *s, size_t at) {
  const sched_action *a = &s->actions[at];
  const sched_device *d = &s->device_views[a->device];
  LEGAL(a->device < s->p->n_devices && !d->lost, "launch on device %u", a->device);
  LEGAL(a->launch < SCHED_LAUNCHES_MAX && !s->launches[a->launch].used, "launch %u is taken",
        a->launch);
  LEGAL(!device_busy(s, a->device), "device %u is busy", a->device);
  sim_launch *l = &s->launches[a->launch];
  *l = (sim_launch){.used = true, .prompt_job = SCHED_NONE};
  l->v = (sched_launch_view){.id = a->launch,
                             .device = a->device,
                             .promoted = a->promoted,
                             .prompt_request = SCHED_NONE,
                             .total_ns = a->ns};
  if (a->rows) {
    sim_job *j = sim_job_of(s, a->request);
    LEGAL(d->prefills && j && j->r.state == SCHED_PREFILL && j->r.launch == SCHED_NONE &&
              !j->r.held && !j->r.cancelled && !j->admitted_now && a->rows <= j->r.prompt_left,
          "a span of %u rows of request %u", a->rows, a->request);
    LEGAL(a->rows <= d->span_rows && (a->rows % d->step == 0 || a->rows == j->r.prompt_left),
          "a span of %u rows", a->rows);
    LEGAL(take_pages(s, j), "request %u walks without pages", a->request);
    bool p = sim_band(j) == SCHED_BAND_P;
    LEGAL(p || !a->promoted, "a reactive span is promoted");
    l->prompt_slot = !p ? 0 : a->promoted ? 2 : 1;
    l->prompt_job = sim_index(s, j);
    l->v.prompt_request = a->request;
    l->v.prompt_rows = a->rows;
    l->promoted_span = a->promoted;
    add_rows(s, l, j, l->prompt_slot, a->rows, DEVICE_PROMPT);
  } else {
    LEGAL(a->request == SCHED_NONE, "a span of no rows");
  }
  /* Tokens lie in the order of the rows of a slot: reactive rows first. */
  for (int reactive = 1; reactive >= 0 && !s->broken; reactive--)
    for (size_t i = at + 1; i < s->n_actions && s->actions[i].kind == SCHED_JOIN; i++) {
      const sim_job *j = sim_job_of(s, s->actions[i].request);
      LEGAL(j, "request %u is not there", s->actions[i].request);
      if ((sim_band(j) != SCHED_BAND_P) == reactive) join(s, l, &s->actions[i]);
      if (s->broken) return;
    }
  LEGAL(l->v.slots, "a launch of nothing");
  LEGAL(!l->n_decodes || d->decodes, "device %u does not decode", a->device);
  LEGAL(!(l->v.slots & slots_held(s, l)), "slots %02x: %02x are held", l->v.slots,
        slots_held(s, l));
  for (uint32_t slot = 0; slot < SIM_SLOTS; slot++)
    if (l->n_rows[slot])
      l->commands[l->n_commands++] =
          (device_command){.run = slot, .node_end = 1, .rows = l->n_rows[slot]};
  submit(s, l);
  s->report->launches++;
  if (!s->broken) sim_check_launch(s, l);
}

static void admit(sim *s, sim_job *j) {
  LEGAL(j->r.state == SCHED_QUEUED && !j->r.held && !j->r.cancelled, "request %u is admitted",
        j->r.id);
  /* One place is beyond those that all can have. */
  uint32_t beyond = s->memory.aged || s->aged_before;
  LEGAL(s->places_used < s->p->config.places + beyond, "request %u is admitted without a place",
        j->r.id);
  LEGAL(s->memory.aged != j->r.id + 1 || sim_band(j) == SCHED_BAND_P, "request %u has aged",
        j->r.id);
  LEGAL(take_pages(s, j), "request %u is admitted without pages", j->r.id);
  s->places_used++;
  for (j->place = 0; s->place_taken[j->place]; j->place++) {
  }
  s->place_taken[j->place] = true;
  j->admitted_now = true;
  if (!j->result.admitted_ns) j->result.admitted_ns = s->clock.now_ns;
  uint32_t goal = s->p->tail ? j->known - 1 : j->known;
  j->computed = 0;
  uint64_t state = 0;
  if (j->cached && j->cached < j->known) {
    j->computed = j->cached;
    state = j->cached_state;
  } else if (j->spec->prefix != SCHED_NONE) {
    sim_prefix *x = &s->prefixes[j->spec->prefix];
    if (x->cached && x->cached < goal) {
      j->computed = x->cached;
      state = x->state;
    } else if (x->owner == SCHED_NONE && !x->cached) {
      x->owner = sim_index(s, j);
    }
  }
  j->cached = 0;
  if (j->computed) s->kv[(size_t)j->place * SIM_CONTEXT + j->computed - 1] = state;
  j->decoding = j->computed == goal;
  j->r.state = j->decoding ? SCHED_DECODE : SCHED_PREFILL;
}

static void suspend(sim *s, sim_job *j) {
  LEGAL(
      j && (j->r.state == SCHED_PREFILL || j->r.state == SCHED_DECODE) && j->r.launch == SCHED_NONE,
      "a suspension");
  leave(s, j);
  j->r.state = SCHED_QUEUED;
  j->decoding = false;
  j->cached = 0;
  if (sim_random_below(&s->noise, 4) < s->p->cut_last) {
    j->cached = j->computed / SOC_PAGE_TOKENS * SOC_PAGE_TOKENS;
    j->cached_state = 0;
    for (uint32_t i = 0; i < j->cached; i++)
      j->cached_state = soc_state(j->cached_state, token_at(j, i));
  }
  j->gap_clean = false;
}

static void refuse(sim *s, sim_job *j, const sched_action *a) {
  /* Tests at arrival are over for who was admitted once; the queue's limit is not. */
  LEGAL(j->r.state == SCHED_QUEUED &&
            (!j->result.admitted_ns || (a->reason == SCHED_REASON_QUEUE && !j->r.emitted)),
        "request %u is refused late, for reason %u", j->r.id, a->reason);
  LEGAL(a->reason != SCHED_REASON_NONE, "a refusal without a reason");
  end_job(s, j, SIM_REFUSED, a->reason);
}

static void expire(sim *s, sim_job *j, const sched_action *a) {
  int64_t now = s->clock.now_ns;
  bool late = now >= j->r.done_deadline_ns || (!j->r.emitted && now >= j->r.first_deadline_ns);
  LEGAL(j->r.launch == SCHED_NONE && (j->r.cancelled || late), "request %u expires", j->r.id);
  if (j->r.cancelled) sim_check_cancel(s, j);
  end_job(s, j, SIM_EXPIRED, a->reason);
}

static void act_on_launch(sim *s, const sched_action *a) {
  sim_launch *l = launch_of(s, a->launch);
  LEGAL(l, "action %u on launch %u, which is not there", a->kind, a->launch);
  if (a->kind == SCHED_STOP) {
    LEGAL(l->v.state == SCHED_RUNNING && s->device_views[l->v.device].can_stop,
          "launch %u is stopped", a->launch);
    l->v.state = SCHED_STOPPING;
    device_queue *q = s->queues[l->v.device];
    s->devices[l->v.device]->driver->queue_stop(q, &l->event);
    return;
  }
  LEGAL(l->v.state == SCHED_STOPPED, "launch %u is resumed or dropped", a->launch);
  if (a->kind == SCHED_DROP) {
    free_rows(s, l);
    return;
  }
  LEGAL(!device_busy(s, l->v.device), "launch %u goes on beside another", a->launch);
  submit(s, l);
}

static void act(sim *s) {
  for (size_t i = 0; i < s->n_actions && !s->broken; i++) {
    const sched_action *a = &s->actions[i];
    sim_job *j = NULL;
    if (a->kind <= SCHED_SUSPEND || a->kind == SCHED_JOIN) {
      j = sim_job_of(s, a->request);
      LEGAL(j, "action %u for request %u, which is not there", a->kind, a->request);
    }
    sim_checked(s, INV_LEGAL, 0);
    switch (a->kind) {
      case SCHED_ADMIT:
        admit(s, j);
        break;
      case SCHED_REFUSE:
        refuse(s, j, a);
        break;
      case SCHED_SHORTEN:
        LEGAL(j->r.state == SCHED_QUEUED && !j->result.admitted_ns && j->r.shortenable && a->rows,
              "request %u is shortened", j->r.id);
        if (a->rows < j->limit) j->limit = a->rows;
        refresh(s, j);
        break;
      case SCHED_EXPIRE:
        expire(s, j, a);
        break;
      case SCHED_SUSPEND:
        suspend(s, j);
        break;
      case SCHED_LAUNCH:
        act_launch(s, i);
        break;
      case SCHED_JOIN:
        LEGAL(i && (s->actions[i - 1].kind == SCHED_JOIN || s->actions[i - 1].kind == SCHED_LAUNCH),
              "a row joins nothing");
        break;
      default:
        act_on_launch(s, a);
    }
  }
}

/* ---- the loop ---- */

/* What the plan has for a request that is due by now; the time of what comes next. */
static int64_t job_events(sim *s, sim_job *j) {
  const sim_spec *p = j->spec;
  int64_t now = s->clock.now_ns, next = SCHED_NEVER;
  const struct {
    int64_t at;
    bool *done;
  } events[4] = {{p->cancel_ns, &j->done_cancel},
                 {p->suspend_ns, &j->done_suspend},
                 {p->resume_ns, &j->done_resume},
                 {p->reclass_ns, &j->done_reclass}};
  for (int i = 0; i < 4; i++) {
    if (*events[i].done) continue;
    if (events[i].at > now) {
      if (events[i].at < next) next = events[i].at;
      continue;
    }
    *events[i].done = true;
    if (i == 0) {
      j->r.cancelled = 1;
      j->cancelled_at_ns = now;
    }
    if (i == 1) j->suspended = true;
    if (i == 2) j->suspended = false;
    if (i == 3) j->class_ = p->reclass;
  }
  if (p->attach_ns > now && p->attach_ns < next) next = p->attach_ns;
  if (p->detach_ns > now && p->detach_ns < next) next = p->detach_ns;
  return next;
}

static void arrive(sim *s, uint32_t index) {
  sim_job *j = &s->jobs[index];
  const sim_spec *p = &s->p->specs[index];
  *j = (sim_job){.spec = p,
                 .arrived = true,
                 .known = p->prompt,
                 .limit = p->output,
                 .class_ = p->class_,
                 .place = SIM_PLACES_MAX};
  j->r = (sched_request){.id = index ^ s->id_xor,
                         .state = SCHED_QUEUED,
                         .child = p->child,
                         .may_react = p->may_react,
                         .lift = SCHED_BAND_P,
                         .shortenable = p->shortenable,
                         .launch = SCHED_NONE,
                         .arrival_ns = p->arrival_ns,
                         .waiting_ns = p->arrival_ns};
  for (uint32_t i = 0; i < p->prompt; i++) j->expect = soc_state(j->expect, token_at(j, i));
  s->session_open[p->session]++;
  s->session_waits[p->session] = false;
  s->active[s->n_active++] = index;
}

static void build_view(sim *s) {
  for (uint32_t i = 0; i < s->p->n_devices; i++)
    s->device_views[i].lost =
        s->clock.now_ns >= s->p->lost_ns[i] && s->clock.now_ns < s->p->back_ns[i];
  refresh_shared(s);
  for (uint32_t i = 0; i < s->n_active; i++) {
    sim_job *j = &s->jobs[s->active[i]];
    refresh(s, j);
    j->admitted_now = false;
  }
  refresh_shared(s); /* bands may have changed */
  uint32_t turn = s->n_active ? sim_random_below(&s->shuffle, s->n_active) : 0, n = 0;
  for (uint32_t i = 0; i < s->n_active; i++)
    s->requests[i] = s->jobs[s->active[(i + turn) % s->n_active]].r;
  for (uint32_t i = 0; i < SCHED_LAUNCHES_MAX; i++)
    if (s->launches[i].used) s->launch_views[n++] = s->launches[i].v;
  s->view = (sched_view){.config = &s->p->config,
                         .requests = s->requests,
                         .n_requests = s->n_active,
                         .launches = s->launch_views,
                         .n_launches = n,
                         .devices = s->device_views,
                         .n_devices = s->p->n_devices,
                         .bandwidth = s->p->n_devices > 1 ? s->p->capacity[1] : 0,
                         .kv_token_bytes = s->p->kv_token_bytes};
  for (uint32_t g = 0; g < groups(s); g++) {
    s->view.pages_free[g] = s->free[g];
    s->view.pages_total[g] = s->p->pages[g];
  }
}

static void decide(sim *s) {
  for (s->wakes = 0; !s->broken; s->wakes++) {
    build_view(s);
    s->step++;
    sched_memory before = s->memory;
    s->aged_before = before.aged;
    size_t room = sim_random_below(&s->noise, 64) ? SIM_ACTIONS : 1 + SIM_DECODES_MAX * 2;
    s->n_actions =
        sched_decide(&s->view, &s->memory, s->clock.now_ns, s->actions, room, &s->wake_ns);
    if (s->n_actions > room) sim_violation(s, INV_LEGAL, true, "more actions than there is room");
    if (s->broken) return;
    sim_check_decision(s, &before, room);
    if (s->step >= s->report->trace_from && s->step < s->report->trace_to) trace(s);
    for (uint32_t i = 0; i < s->n_active; i++) s->jobs[s->active[i]].r.judged = 1;
    act(s);
    if (s->wake_ns > s->clock.now_ns) break;
    if (!s->n_actions || s->wakes > WAKES_MOST)
      sim_violation(s, INV_LEGAL, true, "wants to be woken at once, and does nothing");
  }
  for (uint32_t i = 0; i < s->n_active; i++) refresh(s, &s->jobs[s->active[i]]);
  if (!s->broken) sim_check_step(s);
}

static int64_t next_time(sim *s) {
  int64_t next = s->wake_ns, at = soc_next(s->soc);
  if (at < next) next = at;
  if (s->arrived < s->p->n_specs && s->p->specs[s->arrived].arrival_ns < next)
    next = s->p->specs[s->arrived].arrival_ns;
  for (uint32_t i = 0; i < s->p->n_devices; i++) {
    if (s->p->lost_ns[i] > s->clock.now_ns && s->p->lost_ns[i] < next) next = s->p->lost_ns[i];
    if (s->p->back_ns[i] > s->clock.now_ns && s->p->back_ns[i] < next) next = s->p->back_ns[i];
  }
  for (uint32_t i = 0; i < s->n_active; i++) {
    at = job_events(s, &s->jobs[s->active[i]]);
    if (at < next) next = at;
  }
  return next;
}

static void open_devices(sim *s) {
  const sim_plan *p = s->p;
  soc_device_options options[SCHED_DEVICES_MAX];
  for (uint32_t i = 0; i < p->n_devices; i++)
    options[i] = (soc_device_options){.name = p->n_devices == 1 ? "cpu"
                                              : i               ? "gpu"
                                                                : "npu",
                                      .cost = &p->cost[i],
                                      .truth = p->truth[i],
                                      .type = TROIKA_DEVICE_CPU,
                                      .decodes = p->devices[i].decodes,
                                      .prefills = p->devices[i].prefills,
                                      .stops = p->devices[i].can_stop,
                                      .panel_ns = p->panel_ns[i],
                                      .cut_ns = p->config.preempt_ns,
                                      .step = p->devices[i].step,
                                      .faults = p->faults[i],
                                      .n_faults = p->n_faults[i]};
  soc_options o = {.clock = &s->clock, .devices = options, .n_devices = p->n_devices};
  memcpy(o.capacity, p->capacity, sizeof o.capacity);
  troika_error err;
  if (soc_create(&o, &s->soc, &err)) {
    sim_violation(s, INV_LEGAL, true, "no devices: %s", err.text);
    return;
  }
  s->g = (graph){.vocab = SIM_VOCAB, .nodes = &s->node, .n_nodes = 1, .n_groups = 2};
  s->g.groups[0] = (graph_kv_group){.page_bytes = SOC_PAGE_TOKENS * sizeof(uint64_t)};
  s->g.groups[1] = (graph_kv_group){.window = p->window,
                                    .page_bytes = (p->kv_token_bytes - 8) * SOC_PAGE_TOKENS};
  for (uint32_t i = 0; i <= SIM_PLACES_MAX; i++) {
    for (uint32_t k = 0; k < SIM_PAGES_EACH; k++) s->page_numbers[i][k] = i * SIM_PAGES_EACH + k;
    s->seqs[i].pages[0] = s->page_numbers[i];
  }
  for (uint32_t i = 0; i < p->n_devices; i++) {
    s->tables[i] = (device_tables){.graph = &s->g,
                                   .runs = s->runs[i],
                                   .rows = s->rows[i],
                                   .seqs = s->seqs,
                                   .n_slots = SIM_SLOTS,
                                   .context = SIM_CONTEXT};
    s->tables[i].kv_pool[0] = (uint8_t *)s->kv;
    for (uint32_t k = 0; k < SIM_SLOTS; k++) {
      s->tables[i].slot_rows[k] = k < 3 ? SIM_SPAN_MAX : SIM_DECODES_MAX;
      s->tables[i].slot_wants[k] = k < 3 ? 1 : SIM_DECODES_MAX;
    }
    device *d = s->devices[i] = soc_device(s->soc, i);
    if (d->driver->prepare(d, &s->tables[i], NULL, NULL, &err) ||
        d->driver->queue_open(d, completed, s, &s->queues[i], &err))
      sim_violation(s, INV_LEGAL, true, "no device: %s", err.text);
    s->cost[i] = p->cost[i];
    s->device_views[i] = p->devices[i];
    s->device_views[i].cost = &s->cost[i];
  }
}

static void close_devices(sim *s) {
  for (uint32_t i = 0; s->soc && i < s->p->n_devices; i++)
    if (s->queues[i]) s->devices[i]->driver->queue_close(s->queues[i]);
  soc_destroy(&s->soc);
}

static void move_on(sim *s) {
  int64_t next = next_time(s);
  if (next == SCHED_NEVER) {
    sim_violation(s, INV_END, true, "%u requests are left and nothing will ever happen",
                  s->n_active);
    return;
  }
  if (next < s->clock.now_ns) next = s->clock.now_ns;
  sim_check_passage(s, next);
  soc_advance(s->soc, next);
  while (s->arrived < s->p->n_specs && s->p->specs[s->arrived].arrival_ns <= next)
    arrive(s, s->arrived++);
  for (uint32_t i = 0; i < s->n_active; i++) job_events(s, &s->jobs[s->active[i]]);
}

uint64_t sim_run(const sim_plan *p, sim_report *report, uint64_t max_steps, sim_result *results) {
  sim *s = &the_sim;
  memset(s, 0, sizeof *s);
  s->p = p;
  s->report = report;
  s->wake_ns = SCHED_NEVER;
  for (uint32_t i = 0; i < SCHED_DEVICES_MAX; i++) s->waiting_since_ns[i] = -1;
  sim_random_seed(&s->shuffle, p->seed, "shuffle");
  sim_random_seed(&s->noise, p->seed, "noise");
  s->id_xor = (uint32_t)(p->seed * 37 % SIM_SPECS_MAX);
  memcpy(s->free, p->pages, sizeof s->free);
  for (uint32_t i = 0; i < SIM_PREFIXES; i++) s->prefixes[i].owner = SCHED_NONE;
  open_devices(s);
  while (!s->broken && s->ended < p->n_specs && s->step < max_steps) {
    move_on(s);
    if (!s->broken) decide(s);
  }
  if (!s->broken && s->ended == p->n_specs) sim_check_end(s);
  for (uint32_t i = 0; results && i < p->n_specs; i++) results[i] = s->jobs[i].result;
  report->steps += s->step;
  report->episodes++;
  report->requests += s->ended;
  sim_last = (sim_totals){.end_ns = s->clock.now_ns,
                          .x_spent_ns = s->memory.x_spent_ns,
                          .x_earned_ns = s->memory.x_earned_ns,
                          .reactive_ns = s->reactive_ns,
                          .promoted_ns = s->promoted_ns,
                          .longest_wait_ns = s->longest_wait_ns,
                          .steps = s->step,
                          .background_tokens = s->background_tokens};
  s->broken = true; /* what is still in flight ends without a word */
  close_devices(s);
  return s->step;
}
