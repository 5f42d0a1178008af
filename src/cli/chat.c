/* SPDX-License-Identifier: Apache-2.0 */
/* troika chat: lines in, messages and commands out of them, until the end. */
#include "cli/chat.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_history.h"
#include "cli/chat_input.h"
#include "cli/chat_signals.h"
#include "cli/options.h"

typedef struct chat_loop {
  chat *c;
  chat_history history;
  chat_entry entry;
  bytes_buffer line;
  uint64_t lines;
  bytes_buffer remembered; /* the newest entry of the history */
  bool ctrl_c_before;      /* on an empty line */
} chat_loop;

void chat_note(const chat *c, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (c->styled) fputs("\033[2m", c->notes);
  vfprintf(c->notes, format, args);
  fputs(c->styled ? "\033[0m\n" : "\n", c->notes);
  fflush(c->notes);
  va_end(args);
}

void chat_fail(chat *c, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fflush(stdout);
  fputs("troika: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  c->failures++;
}

/* --- one entry */

static void remember(chat_loop *l) {
  bytes_buffer text;
  bytes_init(&text, SIZE_MAX / 4);
  chat_entry_recall(&l->entry, &text);
  bool could = l->history.usable;
  if (!bytes_equal(bytes_of(text.data, text.len),
                   bytes_of(l->remembered.data, l->remembered.len))) {
    chat_editor_remember(l->c->editor, text.data, text.len);
    chat_history_add(&l->history, text.data, text.len);
  }
  if (could && !l->history.usable)
    chat_note(l->c, "what you type is not kept for the next chat: %s", l->history.why);
  bytes_free(&l->remembered);
  l->remembered = text;
}

/* False: the chat is over. */
static bool take_entry(chat_loop *l) {
  bytes_view name, text;
  chat *c = l->c;
  chat_kind kind = chat_entry_kind(&l->entry, &name, &text);
  if (kind == CHAT_NOTHING) return true;
  if (c->interactive) remember(l);
  size_t good = utf8_valid_prefix(l->entry.text.data, l->entry.text.len, NULL);
  if (good < l->entry.text.len) {
    chat_fail(c, "line %llu is not valid UTF-8 at byte %zu: skipped", (unsigned long long)l->lines,
              good);
    return true;
  }
  if (kind == CHAT_COMMAND) return chat_command_do(c, name, text);
  chat_say(c, text.ptr, text.len);
  return true;
}

/* --- the loop */

static void take_ctrl_c(chat_loop *l, bool was_empty) {
  bool empty = was_empty && !l->entry.open;
  chat_entry_clear(&l->entry);
  if (empty && l->ctrl_c_before) chat_note(l->c, "Ctrl-D or /bye leaves the chat");
  l->ctrl_c_before = empty;
}

/* The input has ended. False: the chat is over too. */
static bool take_end(chat_loop *l) {
  if (l->entry.open && l->c->interactive) {
    chat_entry_clear(&l->entry);
    chat_note(l->c, "the unfinished message is dropped; Ctrl-D again leaves the chat");
    return true;
  }
  if (l->entry.open) {
    chat_entry_close(&l->entry);
    take_entry(l);
  }
  return false;
}

static bool take_line(chat_loop *l) {
  l->ctrl_c_before = false;
  if (!chat_entry_add(&l->entry, l->line.data, l->line.len)) return true;
  bool go_on = true;
  if (l->entry.text.failed)
    chat_fail(l->c, "the message is longer than %d bytes: skipped", CHAT_MESSAGE_MAX);
  else
    go_on = take_entry(l);
  chat_entry_clear(&l->entry);
  return go_on;
}

static int loop(chat_loop *l) {
  chat *c = l->c;
  for (;;) {
    bool was_empty = true;
    chat_line got =
        chat_editor_read(c->editor, l->entry.open ? "... " : ">>> ", &l->line, &was_empty);
    l->lines++;
    if (got == CHAT_LINE_TERMINATED) return CLI_INTERRUPTED;
    if (got == CHAT_LINE_CTRL_C && !c->interactive) return CLI_INTERRUPTED;
    if (got == CHAT_LINE_FAILED) return cli_fail("cannot read the input: %s", strerror(errno));
    if (got == CHAT_LINE_END && !take_end(l)) break;
    if (got == CHAT_LINE_CTRL_C) take_ctrl_c(l, was_empty);
    if (got == CHAT_LINE_TOO_LONG) {
      if (c->interactive)
        chat_fail(c, "the line is too long: skipped");
      else
        chat_fail(c, "line %llu is longer than %d bytes: skipped", (unsigned long long)l->lines,
                  CHAT_MESSAGE_MAX);
      chat_entry_clear(&l->entry);
    }
    if (got == CHAT_LINE_TEXT && !take_line(l)) break;
    if (chat_signals_take(CHAT_TERMINATE)) return CLI_INTERRUPTED;
    if (c->interrupted && !c->interactive) return CLI_INTERRUPTED;
  }
  return chat_signals_take(CHAT_TERMINATE) ? CLI_INTERRUPTED
         : c->failures && !c->interactive  ? CLI_FAILED
                                           : CLI_OK;
}

/* --- begin and end */

static void remember_old(void *loop, const char *text, size_t len) {
  chat_loop *l = loop;
  chat_editor_remember(l->c->editor, text, len);
  bytes_clear(&l->remembered);
  bytes_append(&l->remembered, text, len);
}

static void open_history(chat_loop *l) {
  char path[PATH_MAX];
  if (!l->c->interactive || !option_history_path(path, sizeof path)) return;
  chat_history_open(&l->history, path, remember_old, l);
  if (!l->history.usable)
    chat_note(l->c, "what you type is not kept for the next chat: %s", l->history.why);
}

static void greet(const chat *c) {
  if (!c->interactive) return;
  chat_note(c, "%s, %s, context %u tokens. /help lists the commands, Ctrl-D leaves.",
            c->engine.name, c->model.type, c->context);
}

/* The prompt of the command line is the first message. */
static bool first_message(chat_loop *l) {
  const cli_settings *s = &l->c->settings;
  if (!s->arguments_n) return true;
  for (int i = 0; i < s->arguments_n; i++) {
    if (i) bytes_append_string(&l->entry.text, " ");
    bytes_append_string(&l->entry.text, s->arguments[i]);
  }
  l->entry.verbatim = true; /* no command, whatever it begins with */
  if (l->c->interactive) {
    fputs(">>> ", l->c->notes);
    cli_write_text(l->c->notes, l->entry.text.data, l->entry.text.len, true);
    fputc('\n', l->c->notes);
    fflush(l->c->notes);
  }
  bool go_on = take_entry(l);
  chat_entry_clear(&l->entry);
  return go_on && !chat_signals_take(CHAT_TERMINATE) && (l->c->interactive || !l->c->interrupted);
}

static bool begin(chat *c) {
  troika_error err = {0};
  troika_runtime_stats stats;
  troika_model_describe(c->engine.model, &c->model);
  troika_runtime_describe(c->engine.runtime, &stats);
  c->context = stats.context;
  utf8_clean(c->engine.name, false);
  if (!c->model.has_template)
    return cli_fail(
               "%s has no chat template: give one with --chat-template FILE, or continue a "
               "text with \"troika run --raw\"",
               c->engine.name),
           false;
  if (!chat_signals_catch()) return cli_fail("cannot make a pipe: %s", strerror(errno)), false;
  if (troika_stream_open(c->engine.runtime, NULL, &c->stream, &err))
    return cli_fail("%s", err.text), false;
  if (!chat_session_init(&c->session)) return cli_fail("out of memory"), false;
  const char *system = c->settings.system;
  if (system && *system && !chat_session_set_system(&c->session, system, strlen(system)))
    return cli_fail("the system message is not valid UTF-8"), false;
  c->editor = chat_editor_create(c->interactive ? c->notes : NULL, c->styled);
  if (!c->editor) return cli_fail("out of memory"), false;
  c->styled = chat_editor_styled(c->editor);
  return true;
}

static int talk(chat *c) {
  chat_loop l = {.c = c};
  chat_entry_init(&l.entry);
  bytes_init(&l.line, CHAT_MESSAGE_MAX);
  bytes_init(&l.remembered, CHAT_MESSAGE_MAX);
  open_history(&l);
  greet(c);
  int code = CLI_FAILED;
  if (!c->settings.load || chat_load(c, c->settings.load, c->settings.system != NULL)) {
    bool go_on = first_message(&l);
    code = go_on ? loop(&l) : CLI_INTERRUPTED;
  }
  bytes_free(&l.remembered);
  bytes_free(&l.line);
  chat_entry_free(&l.entry);
  return code;
}

int cli_chat(const cli_settings *s) {
  chat c = {.settings = *s};
  bool screen = isatty(STDOUT_FILENO) == 1;
  c.terminal_out = screen;
  c.interactive = isatty(STDIN_FILENO) == 1 && (screen || isatty(STDERR_FILENO) == 1);
  c.notes = c.interactive && screen ? stdout : stderr;
  c.styled = c.interactive && option_terminal_has_styles();
  cli_signals_catch(); /* while the model is loaded, Ctrl-C ends all */
  /* a reader of the answers who leaves must not end the chat, and the terminal without echo */
  if (c.interactive) signal(SIGPIPE, SIG_IGN);
  int code = CLI_FAILED;
  if (!cli_engine_open(s, 1, &c.engine)) return CLI_FAILED;
  if (cli_signals_seen())
    code = CLI_INTERRUPTED;
  else if (begin(&c))
    code = talk(&c);
  chat_editor_destroy(&c.editor);
  chat_session_free(&c.session);
  if (c.stream) troika_stream_close(&c.stream);
  cli_engine_close(&c.engine);
  return code;
}
