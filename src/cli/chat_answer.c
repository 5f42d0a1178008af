/* SPDX-License-Identifier: Apache-2.0 */
/* One answer: the session to tokens, the stream to the screen and into the session. */
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"
#include "cli/chat.h"
#include "cli/chat_input.h"
#include "cli/chat_signals.h"

#define POLL_NS INT64_C(30000000)

/* --- the prompt */

static const char *nothing_added(const chat *c) {
  return c->retrying ? "The answer before stays" : "The message was not added";
}

static bool too_long(chat *c, size_t tokens, bool at_least) {
  size_t earlier = chat_session_count(&c->session);
  char more[96] = "";
  if (c->context < c->model.context_max)
    snprintf(more, sizeof more, "; --context %u is the most this model can have",
             c->model.context_max);
  chat_fail(
      c,
      "the context is full: the chat with this message has %s%zu tokens, and at most %u leave "
      "room for an answer. %s. %s%s",
      at_least ? "at least " : "", tokens, c->context - 1, nothing_added(c),
      earlier > 1 ? "/undo or /clear makes room" : "A shorter message fits", more);
  return false;
}

/* Owned: free. NULL: said why. */
static int32_t *make_tokens(chat *c, size_t *n) {
  size_t len, capacity = c->context;
  troika_error err = {0};
  char *text = chat_session_text(&c->session, &len);
  int32_t *tokens = malloc(capacity * sizeof *tokens);
  bool ok = text && tokens;
  if (!ok) chat_fail(c, "out of memory");
  /* far too long: said before it is tokenized for seconds; 8 covers what JSON adds */
  size_t least = c->model.token_bytes_max ? len / 8 / c->model.token_bytes_max : 0;
  if (ok && least > c->context) ok = too_long(c, least, true);
  if (ok) {
    troika_status status = troika_model_chat(c->engine.model, text, len, "", 0,
                                             TROIKA_CHAT_GENERATE, tokens, capacity, n, &err);
    if (status == TROIKA_LIMIT || (!status && *n >= c->context))
      ok = too_long(c, *n, false);
    else if (status)
      chat_fail(c, "%s", err.text), ok = false;
  }
  free(text);
  if (ok) return tokens;
  free(tokens);
  return NULL;
}

static void fill_request(const chat *c, const int32_t *tokens, size_t n, troika_request *r) {
  const cli_settings *s = &c->settings;
  troika_request_init(r);
  r->prompt = tokens;
  r->prompt_n = (uint32_t)n;
  if (s->max_tokens >= 0) r->max_tokens = (uint32_t)s->max_tokens;
  r->temperature = (float)s->temperature;
  r->top_k = (uint32_t)s->top_k;
  r->top_p = (float)s->top_p;
  r->min_p = (float)s->min_p;
  r->repeat_penalty = (float)s->repeat_penalty;
  r->repeat_last = (uint32_t)s->repeat_last;
  r->seeded = s->seeded;
  r->seed = (uint64_t)s->seed + c->retries;
  if (s->stop && *s->stop) r->stop = &s->stop, r->stop_n = 1;
}

/* --- the answer */

/* What is typed meanwhile is kept for the next line, as it is (a Ctrl-D too), but not shown in the
 * middle of the answer. */
static bool echo_off(const chat *c, struct termios *before) {
  struct termios quiet;
  if (!c->interactive || tcgetattr(STDIN_FILENO, before)) return false;
  quiet = *before;
  quiet.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
  quiet.c_cc[VMIN] = 1;
  quiet.c_cc[VTIME] = 0;
  return !tcsetattr(STDIN_FILENO, TCSANOW, &quiet);
}

/* Shows and gathers until the END event, which still comes after Ctrl-C. False: the engine broke
 * off. */
static bool gather(chat *c, bytes_buffer *answer, troika_event *event, chat_numbers *numbers) {
  int64_t begun = clock_real_now(NULL);
  bool asked = false;
  for (;;) {
    troika_status status = troika_stream_next(c->stream, event, POLL_NS);
    if (!asked && (chat_signals_take(CHAT_CTRL_C) || chat_signals_take(CHAT_TERMINATE))) {
      asked = c->interrupted = true;
      troika_stream_cancel(c->stream);
    }
    if (status == TROIKA_TIMEOUT) continue;
    if (status) return false;
    if (!numbers->first_ns) numbers->first_ns = clock_real_now(NULL) - begun;
    if (event->text_len) {
      cli_write_text(stdout, event->text, event->text_len, c->terminal_out);
      bytes_append(answer, event->text, event->text_len);
    }
    if (event->kind == TROIKA_EVENT_END) break;
  }
  numbers->total_ns = clock_real_now(NULL) - begun;
  numbers->answers = 1;
  numbers->prompt_tokens = event->prompt_tokens;
  numbers->cached_tokens = event->cached_tokens;
  numbers->answer_tokens = event->completion_tokens;
  numbers->decode_ns = event->timings.decode_ns;
  return true;
}

static double rate(const chat_numbers *n) {
  uint64_t steps = n->answer_tokens > n->answers ? n->answer_tokens - n->answers : 0;
  return n->decode_ns > 0 ? (double)steps * 1e9 / (double)n->decode_ns : 0;
}

static void count(chat *c, const chat_numbers *n) {
  c->last = *n;
  c->all.answers += n->answers;
  c->all.prompt_tokens += n->prompt_tokens;
  c->all.cached_tokens += n->cached_tokens;
  c->all.answer_tokens += n->answer_tokens;
  c->all.decode_ns += n->decode_ns;
  c->all.total_ns += n->total_ns;
}

/* Below the answer: why it ended, where that is not plain. */
static void say_end(const chat *c, const troika_event *end) {
  uint32_t used = end->prompt_tokens + end->completion_tokens;
  if (end->finish == TROIKA_FINISH_LENGTH && used >= c->context)
    chat_note(c, "[the context is full: %u of %u tokens; /undo or /clear makes room]", used,
              c->context);
  else if (end->finish == TROIKA_FINISH_LENGTH)
    chat_note(c, "[ended after max-tokens: %u]", end->completion_tokens);
  else if (end->finish == TROIKA_FINISH_CANCELLED && end->completion_tokens)
    chat_note(c, "[stopped]");
  else if (end->completion_tokens <= 1 && end->finish == TROIKA_FINISH_STOP)
    chat_note(c, "[the model said nothing; /retry asks again]");
  if (c->settings.verbose && c->last.answers)
    chat_note(c,
              "[prompt %u tokens, %u of them cached; first token after %.2f s; answer %u tokens, "
              "%.1f tokens/s; context %u of %u]",
              end->prompt_tokens, end->cached_tokens, (double)c->last.first_ns / 1e9,
              end->completion_tokens, rate(&c->last), used, c->context);
}

static chat_outcome keep(chat *c, const bytes_buffer *answer, const troika_event *end) {
  if (end->finish == TROIKA_FINISH_ERROR) {
    chat_fail(c, "%s. %s", end->error_text, nothing_added(c));
    return CHAT_FAILED;
  }
  if (end->finish == TROIKA_FINISH_CANCELLED && answer->len == 0) {
    chat_note(c, "[stopped before the first word] %s.", nothing_added(c));
    return CHAT_SILENT;
  }
  if (answer->failed || !chat_session_add(&c->session, "assistant", answer->data, answer->len)) {
    chat_fail(c, "no memory to keep the answer");
    return CHAT_FAILED;
  }
  return CHAT_ANSWERED;
}

static chat_outcome run_request(chat *c, const troika_request *request) {
  troika_error err = {0};
  troika_event end = {0};
  chat_numbers numbers = {0};
  struct termios before;
  bytes_buffer answer;
  if (troika_stream_submit(c->stream, request, &err)) {
    chat_fail(c, "%s. %s", err.text, nothing_added(c));
    return CHAT_FAILED;
  }
  bytes_init(&answer, SIZE_MAX / 4);
  bytes_append(&answer, "", 0);
  bool quiet = echo_off(c, &before);
  bool whole = gather(c, &answer, &end, &numbers);
  if (quiet) tcsetattr(STDIN_FILENO, TCSANOW, &before);
  if (answer.len && answer.data[answer.len - 1] != '\n') putchar('\n');
  fflush(stdout);
  if (c->interactive && ferror(stdout))
    chat_fail(c, "cannot write to standard output; the chat has the answer, and /save writes it");
  chat_outcome outcome = CHAT_FAILED;
  if (!whole) {
    chat_fail(c, "the engine ended the answer");
  } else {
    outcome = keep(c, &answer, &end);
    if (outcome == CHAT_ANSWERED) count(c, &numbers);
    if (outcome == CHAT_ANSWERED) say_end(c, &end);
    if (c->interactive) fputc('\n', c->notes), fflush(c->notes);
  }
  bytes_free(&answer);
  return outcome;
}

chat_outcome chat_answer(chat *c) {
  troika_request request;
  size_t n = 0;
  c->interrupted = false;
  chat_signals_take(CHAT_CTRL_C); /* one that came before is not about this answer */
  int32_t *tokens = make_tokens(c, &n);
  if (!tokens) return CHAT_FAILED;
  fill_request(c, tokens, n, &request);
  chat_outcome outcome = run_request(c, &request);
  free(tokens);
  return outcome;
}

void chat_say(chat *c, const char *text, size_t len) {
  if (!chat_session_add(&c->session, "user", text, len)) {
    chat_fail(c, "out of memory");
    return;
  }
  c->retries = 0;
  if (chat_answer(c) != CHAT_ANSWERED) json_decref(chat_session_pop(&c->session));
}

/* --- /stats */

/* Tokens of the chat as it stands; 0 where the template refuses it. */
static size_t context_used(const chat *c) {
  size_t len, n = 0;
  int32_t none;
  if (!c->session.system && !chat_session_count(&c->session)) return 0;
  char *text = chat_session_text(&c->session, &len);
  if (text)
    troika_model_chat(c->engine.model, text, len, "", 0, TROIKA_CHAT_CLOSED, &none, 0, &n, NULL);
  free(text);
  return n;
}

void chat_stats(const chat *c) {
  troika_runtime_stats stats;
  char peak[16], kv[16], kv_used[16];
  const chat_numbers *l = &c->last, *a = &c->all;
  troika_runtime_describe(c->engine.runtime, &stats);
  cli_bytes_text(os_memory_peak(), peak);
  cli_bytes_text(stats.kv_bytes, kv);
  cli_bytes_text(stats.kv_bytes_used, kv_used);
  if (l->answers) {
    fprintf(c->notes, "last answer\n");
    fprintf(c->notes, "  prompt         %8llu tokens, %llu of them cached\n",
            (unsigned long long)l->prompt_tokens, (unsigned long long)l->cached_tokens);
    fprintf(c->notes, "  first token    %8.2f s\n", (double)l->first_ns / 1e9);
    fprintf(c->notes, "  answer         %8llu tokens, %.1f tokens/s\n",
            (unsigned long long)l->answer_tokens, rate(l));
  }
  fprintf(c->notes, "all answers\n");
  fprintf(c->notes, "  answers        %8llu in %.1f s\n", (unsigned long long)a->answers,
          (double)a->total_ns / 1e9);
  fprintf(c->notes, "  prompts        %8llu tokens, %llu of them cached\n",
          (unsigned long long)a->prompt_tokens, (unsigned long long)a->cached_tokens);
  fprintf(c->notes, "  generated      %8llu tokens, %.1f tokens/s\n",
          (unsigned long long)a->answer_tokens, rate(a));
  fprintf(c->notes, "chat\n");
  fprintf(c->notes, "  messages       %8zu\n", chat_session_count(&c->session));
  fprintf(c->notes, "  context        %8zu of %u tokens\n", context_used(c), c->context);
  fprintf(c->notes, "  memory         %8s at most; KV cache %s, %s of it in use\n", peak, kv,
          kv_used);
  fprintf(c->notes, "  engine         %s, %s, %u threads\n", c->engine.name, stats.kernels,
          stats.threads);
}
