/* SPDX-License-Identifier: Apache-2.0 */
/* troika run: one prompt, one answer, as it is made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/json.h"
#include "base/clock.h"
#include "base/os.h"
#include "cli/cli.h"
#include "troika/stream.h"

enum { INPUT_MAX = 64 * 1024 * 1024, POLL_NS = 50000000 };

typedef struct answer_times {
  int64_t submitted_ns, first_ns;
  troika_event end;
} answer_times;

/* Arguments, a blank line, standard input; either may be missing. */
static bool read_prompt(const cli_settings *s, bytes_buffer *out) {
  for (int i = 0; i < s->arguments_n; i++) {
    if (i) bytes_append_string(out, " ");
    bytes_append_string(out, s->arguments[i]);
  }
  if (!cli_stdin_is_piped()) return true;
  bytes_buffer input;
  bytes_init(&input, INPUT_MAX);
  bool ok = cli_read_all(STDIN_FILENO, "standard input", &input);
  if (ok && input.len) {
    if (out->len) bytes_append_string(out, "\n\n");
    bytes_append(out, input.data, input.len);
  }
  bytes_free(&input);
  return ok;
}

static void chat_messages(const cli_settings *s, const bytes_buffer *prompt, bytes_buffer *out) {
  bytes_append_string(out, "[");
  if (s->system) {
    bytes_append_string(out, "{\"role\":\"system\",\"content\":");
    api_json_put_string(out, s->system, strlen(s->system));
    bytes_append_string(out, "},");
  }
  bytes_append_string(out, "{\"role\":\"user\",\"content\":");
  api_json_put_string(out, prompt->data, prompt->len);
  bytes_append_string(out, "}]");
}

/* Asks twice: for the number of tokens, and for them. Owned: free. */
static int32_t *make_tokens(const cli_settings *s, const troika_model *model,
                            const bytes_buffer *prompt, bool raw, size_t *n, troika_error *err) {
  bytes_buffer messages;
  bytes_init(&messages, INPUT_MAX * (size_t)8);
  if (!raw) chat_messages(s, prompt, &messages);
  int32_t *tokens = NULL;
  size_t capacity = 0;
  troika_status status = TROIKA_LIMIT;
  for (int round = 0; round < 2 && status == TROIKA_LIMIT; round++) {
    if (round) {
      capacity = *n;
      if (!(tokens = malloc((capacity + 1) * sizeof *tokens))) break;
    }
    status = raw ? troika_model_tokenize(model, prompt->data, prompt->len, true, false, tokens,
                                         capacity, n, err)
                 : troika_model_chat(model, messages.data, messages.len, "", 0,
                                     TROIKA_CHAT_GENERATE, tokens, capacity, n, err);
  }
  bytes_free(&messages);
  if (status) {
    free(tokens);
    return NULL;
  }
  return tokens ? tokens : calloc(1, sizeof *tokens); /* no tokens at all */
}

static void fill_request(const cli_settings *s, const int32_t *tokens, size_t n,
                         troika_request *r) {
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
  r->ignore_eos = s->ignore_eos;
  r->seeded = s->seeded;
  r->seed = (uint64_t)s->seed;
  if (s->stop && *s->stop) r->stop = &s->stop, r->stop_n = 1;
}

/* Prints until the end. Ctrl-C cancels; the END event still comes. */
static void print_answer(troika_stream *stream, answer_times *times) {
  troika_event event = {0};
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  char last = '\n';
  bool asked = false;
  for (;;) {
    troika_status status = troika_stream_next(stream, &event, POLL_NS);
    if (cli_signals_seen() && !asked) {
      asked = true;
      troika_stream_cancel(stream);
    }
    if (status == TROIKA_TIMEOUT) continue;
    if (status) break;
    if (!times->first_ns) times->first_ns = clock_real_now(NULL);
    if (event.text_len) {
      cli_write_text(stdout, event.text, event.text_len, terminal);
      last = event.text[event.text_len - 1];
    }
    if (event.kind == TROIKA_EVENT_END) break;
  }
  if (last != '\n') putchar('\n');
  fflush(stdout);
  times->end = event;
}

static void print_stats(const cli_engine *e, const answer_times *times) {
  const troika_event *end = &times->end;
  troika_runtime_stats stats;
  char peak[16];
  troika_runtime_describe(e->runtime, &stats);
  cli_bytes_text(os_memory_peak(), peak);
  double prefill_s = (double)end->timings.prefill_ns / 1e9,
         decode_s = (double)end->timings.decode_ns / 1e9;
  fprintf(stderr, "\n%s, %s, %u threads\n", e->name, stats.kernels, stats.threads);
  fprintf(stderr, "load               %8.3f s\n", e->open_s);
  fprintf(stderr, "first token after  %8.3f s\n",
          (double)(times->first_ns - times->submitted_ns) / 1e9);
  fprintf(stderr, "prompt             %8u tokens, %.1f tokens/s\n", end->prompt_tokens,
          prefill_s > 0 ? (end->prompt_tokens - end->cached_tokens) / prefill_s : 0.0);
  fprintf(
      stderr, "answer             %8u tokens, %.1f tokens/s\n", end->completion_tokens,
      decode_s > 0 && end->completion_tokens > 1 ? (end->completion_tokens - 1) / decode_s : 0.0);
  fprintf(stderr, "peak memory        %8s\n", peak);
}

static int answer(const cli_settings *s, cli_engine *e, const bytes_buffer *prompt, bool raw) {
  troika_error err = {0};
  troika_stream *stream = NULL;
  troika_request request;
  size_t n = 0;
  int32_t *tokens = make_tokens(s, e->model, prompt, raw, &n, &err);
  if (!tokens) return cli_fail("%s", err.text[0] ? err.text : "out of memory");
  fill_request(s, tokens, n, &request);
  answer_times times = {.submitted_ns = clock_real_now(NULL)};
  troika_status status = n ? troika_stream_open(e->runtime, NULL, &stream, &err) : TROIKA_INVALID;
  if (!n)
    snprintf(err.text, sizeof err.text,
             "the prompt is empty, and this model has no token to begin with");
  if (!status) status = troika_stream_submit(stream, &request, &err);
  free(tokens);
  int code = CLI_OK;
  if (status) {
    code = cli_fail("%s", err.text);
  } else {
    print_answer(stream, &times);
    if (times.end.finish == TROIKA_FINISH_ERROR) code = cli_fail("%s", times.end.error_text);
    if (times.end.finish == TROIKA_FINISH_CANCELLED) code = CLI_INTERRUPTED;
    if (s->verbose) print_stats(e, &times);
  }
  if (stream) troika_stream_close(&stream);
  return code;
}

int cli_run(const cli_settings *s) {
  bytes_buffer prompt;
  cli_engine e;
  int code = CLI_FAILED;
  bytes_init(&prompt, INPUT_MAX * (size_t)2);
  bytes_append(&prompt, "", 0);
  cli_signals_catch();
  if (!read_prompt(s, &prompt)) {
    code = cli_signals_seen() ? CLI_INTERRUPTED : CLI_FAILED;
  } else if (prompt.len == 0) {
    cli_fail("nothing to answer: troika run \"prompt\", or a prompt on standard input");
    code = CLI_USAGE;
  } else if (utf8_valid_prefix(prompt.data, prompt.len, NULL) < prompt.len) {
    code = cli_fail("the prompt is not valid UTF-8 at byte %zu",
                    utf8_valid_prefix(prompt.data, prompt.len, NULL));
  } else if (cli_engine_open(s, 1, &e)) {
    troika_model_info info;
    troika_model_describe(e.model, &info);
    if (!s->raw && !info.has_template)
      fprintf(
          stderr,
          "troika: %s has no chat template, so the prompt is continued as it is (as with --raw)\n",
          e.name);
    code =
        cli_signals_seen() ? CLI_INTERRUPTED : answer(s, &e, &prompt, s->raw || !info.has_template);
    cli_engine_close(&e);
  }
  bytes_free(&prompt);
  return code;
}
