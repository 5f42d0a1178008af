/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of a chat, /help to /bye: one table. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/chat.h"
#include "cli/options.h"

typedef enum command_result { GO_ON, LEAVE } command_result;

typedef struct chat_command {
  const char *name, *argument, *help;
  command_result (*run)(chat *c, bytes_view text); /* text ends with a NUL */
} chat_command;

/* --- settings that /set may change */

static const char *const settable[] = {
    "temperature", "top-p", "top-k",      "min-p", "repeat-penalty",
    "repeat-last", "seed",  "max-tokens", "temp"}; /* a second name: known, not shown */
enum { SETTABLE = sizeof settable / sizeof *settable };

static const void *setting(const chat *c, const option *o) {
  return (const char *)&c->settings + o->offset;
}

static void show_settings(const chat *c) {
  for (int i = 0; i < SETTABLE - 1; i++) {
    const option *o = option_find(settable[i], strlen(settable[i]));
    bool seed = !strcmp(settable[i], "seed");
    fprintf(c->notes, "  %-15s ", settable[i]);
    if (seed && !c->settings.seeded)
      fprintf(c->notes, "%-8s", "random");
    else if (o->type == OPTION_REAL)
      fprintf(c->notes, "%-8g", *(const double *)setting(c, o));
    else
      fprintf(c->notes, "%-8lld", (long long)*(const int64_t *)setting(c, o));
    fprintf(c->notes, "  %s\n", o->help);
  }
}

static command_result do_set(chat *c, bytes_view text) {
  char name[64], problem[256];
  const char *value = text.ptr + strcspn(text.ptr, " \t=\n");
  snprintf(name, sizeof name, "%.*s", (int)(value - text.ptr > 60 ? 60 : value - text.ptr),
           text.ptr);
  value += strspn(value, " \t=\n");
  if (!text.len) return show_settings(c), GO_ON;
  const option *o = option_find(name, strlen(name));
  bool known = false;
  for (int i = 0; i < SETTABLE; i++)
    known = known || (o && o == option_find(settable[i], strlen(settable[i])));
  if (!known) {
    const char *near = cli_nearest(name, settable, SETTABLE);
    chat_fail(c, "/set does not know \"%s\"; %s%s%s", name,
              near ? "did you mean " : "\"/set\" alone shows what it knows", near ? near : "",
              near ? "?" : "");
  } else if (!*value) {
    chat_fail(c, "/set %s needs a value", o->name);
  } else if (!strcmp(o->name, "seed") && !strcmp(value, "random")) {
    c->settings.seeded = false;
    chat_note(c, "seed is random");
  } else if (!option_set(o, value, &c->settings, problem, sizeof problem)) {
    chat_fail(c, "%s", problem);
  } else {
    chat_note(c, "%s is %s", o->alias ? o->alias : o->name, value);
  }
  return GO_ON;
}

/* --- the chat itself */

static command_result do_system(chat *c, bytes_view text) {
  if (!text.len) {
    if (c->session.system) {
      fputs("  ", c->notes);
      cli_write_text(c->notes, json_string_value(c->session.system),
                     json_string_length(c->session.system), c->interactive);
      fputs("\n", c->notes);
    } else {
      chat_note(c, "there is no system message; /system TEXT sets one");
    }
    return GO_ON;
  }
  bool quoted = text.len >= 2 && text.ptr[0] == '"' && text.ptr[text.len - 1] == '"';
  if (quoted) text = bytes_of(text.ptr + 1, text.len - 2);
  if (!chat_session_set_system(&c->session, text.len ? text.ptr : NULL, text.len))
    chat_fail(c, "out of memory");
  else
    chat_note(c, text.len ? "the system message is set, from the next message on"
                          : "the system message is removed");
  return GO_ON;
}

static command_result do_clear(chat *c, bytes_view text) {
  (void)text;
  size_t n = chat_session_count(&c->session);
  chat_session_clear(&c->session);
  chat_note(c, "%zu messages forgotten%s", n,
            c->session.system ? "; the system message stays" : "");
  return GO_ON;
}

static command_result do_undo(chat *c, bytes_view text) {
  (void)text;
  size_t n = chat_session_undo(&c->session);
  if (n)
    chat_note(c, "%zu messages dropped, %zu left", n, chat_session_count(&c->session));
  else
    chat_fail(c, "there is nothing to undo");
  return GO_ON;
}

static command_result do_retry(chat *c, bytes_view text) {
  (void)text;
  json_t *old = NULL;
  if (chat_session_last_is(&c->session, "assistant")) old = chat_session_pop(&c->session);
  if (!chat_session_last_is(&c->session, "user")) {
    chat_fail(c, "there is no message to answer again");
  } else {
    if (c->settings.temperature == 0)
      chat_note(c,
                "temperature is 0, so each try gives the same answer; /set temperature changes it");
    c->retries++;
    c->retrying = true;
    if (chat_answer(c) == CHAT_ANSWERED) json_decref(old), old = NULL;
    c->retrying = false;
  }
  if (old) chat_session_push(&c->session, old);
  return GO_ON;
}

/* --- files */

/* ~/ is the home folder, as a shell would have it. False: said why. */
static bool file_path(chat *c, const char *text, char out[PATH_MAX]) {
  bool ok = !strncmp(text, "~/", 2) ? option_home_path(text + 2, out, PATH_MAX)
                                    : (size_t)snprintf(out, PATH_MAX, "%s", text) < PATH_MAX;
  if (!ok) chat_fail(c, "the path is too long, or there is no home folder");
  return ok;
}

static command_result do_save(chat *c, bytes_view text) {
  char path[PATH_MAX];
  troika_error err = {0};
  if (text.len) {
    if (!file_path(c, text.ptr, path)) return GO_ON;
  } else if (c->file[0]) {
    snprintf(path, sizeof path, "%s", c->file);
  } else {
    time_t now = time(NULL);
    struct tm local;
    strftime(path, sizeof path, "chat-%Y%m%d-%H%M%S.json", localtime_r(&now, &local));
  }
  size_t n = chat_session_count(&c->session);
  if (!n && !c->session.system) {
    chat_fail(c, "there is nothing to save yet");
  } else if (chat_session_save(&c->session, path, c->engine.name, &err)) {
    chat_fail(c, "%s", err.text);
  } else {
    snprintf(c->file, sizeof c->file, "%s", path);
    chat_note(c, "%zu messages saved to %s", n, path);
  }
  return GO_ON;
}

bool chat_load(chat *c, const char *path, bool keep_system) {
  char model[128];
  chat_session loaded;
  troika_error err = {0};
  if (chat_session_load(path, &loaded, model, sizeof model, &err)) {
    chat_fail(c, "%s", err.text);
    return false;
  }
  if (keep_system) {
    json_decref(loaded.system);
    loaded.system = json_incref(c->session.system);
  }
  chat_session_free(&c->session);
  c->session = loaded;
  c->retries = 0;
  snprintf(c->file, sizeof c->file, "%s", path);
  chat_note(c, "%zu messages loaded from %s", chat_session_count(&c->session), path);
  if (model[0] && strcmp(model, c->engine.name) != 0)
    chat_note(c, "they were said with %s; %s goes on", model, c->engine.name);
  if (chat_session_last_is(&c->session, "user"))
    chat_note(c, "the last one has no answer yet: /retry answers it");
  return true;
}

static command_result do_load(chat *c, bytes_view text) {
  char path[PATH_MAX];
  if (!text.len)
    chat_fail(c, "/load needs a file");
  else if (file_path(c, text.ptr, path))
    chat_load(c, path, false);
  return GO_ON;
}

/* --- the table */

static command_result do_stats(chat *c, bytes_view text) {
  (void)text;
  chat_stats(c);
  return GO_ON;
}

static command_result do_bye(chat *c, bytes_view text) {
  (void)c;
  (void)text;
  return LEAVE;
}

static command_result do_help(chat *c, bytes_view text);

static const chat_command commands[] = {
    {"help", "", "this", do_help},
    {"system", "[TEXT]",
     "set the system message, from the next message on; alone: show it; \"\" "
     "removes it",
     do_system},
    {"clear", "", "forget all messages but the system message", do_clear},
    {"undo", "", "drop your last message and its answer", do_undo},
    {"retry", "", "answer your last message again, with another seed", do_retry},
    {"save", "[FILE]", "write the chat as JSON; alone: to the file of before", do_save},
    {"load", "FILE", "go on with a chat from a file", do_load},
    {"stats", "", "tokens, times and memory of the last answer and of all", do_stats},
    {"set", "[NAME VALUE]",
     "temperature, top-p, top-k, min-p, seed, max-tokens, ...; alone: show "
     "them",
     do_set},
    {"bye", "", "leave; also /exit, /quit, Ctrl-D", do_bye},
    {"exit", NULL, NULL, do_bye},
    {"quit", NULL, NULL, do_bye},
    {"?", NULL, NULL, do_help},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static command_result do_help(chat *c, bytes_view text) {
  (void)text;
  for (int i = 0; i < COMMANDS; i++) {
    if (!commands[i].help) continue;
    char left[32];
    snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].argument);
    fprintf(c->notes, "  %-19s %s\n", left, commands[i].help);
  }
  fprintf(c->notes,
          "\n"
          "  //TEXT              the message \"/TEXT\"\n"
          "  TEXT \\              goes on in the next line\n"
          "  \"\"\" TEXT \"\"\"        several lines as they are%s\n",
          c->interactive && !chat_editor_styled(c->editor) ? "; use it to paste lines" : "");
  if (!c->interactive) return GO_ON;
  if (chat_editor_styled(c->editor))
    fputs("                      pasted lines stay one message until you press Enter\n", c->notes);
  fprintf(c->notes,
          "\n"
          "  Ctrl-C              stop the answer (what was said stays), or clear the line\n"
          "  Ctrl-R, arrows      what you typed before\n");
  return GO_ON;
}

static void unknown_command(chat *c, bytes_view name) {
  const char *names[COMMANDS];
  char text[64];
  snprintf(text, sizeof text, "%.*s", (int)(name.len > 60 ? 60 : name.len), name.ptr);
  utf8_clean(text, false);
  for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
  const char *near = cli_nearest(text, names, COMMANDS);
  chat_fail(c, "there is no command /%s; %s%s%s A message that begins with a slash: //%s", text,
            near ? "did you mean /" : "\"/help\" lists all.", near ? near : "", near ? "?" : "",
            text);
}

bool chat_command_do(chat *c, bytes_view name, bytes_view text) {
  for (int i = 0; i < COMMANDS; i++) {
    if (!bytes_equal_string(name, commands[i].name)) continue;
    bytes_buffer argument; /* a text with its own end */
    bytes_init(&argument, SIZE_MAX / 4);
    bytes_append(&argument, text.ptr, text.len);
    command_result result = LEAVE;
    if (argument.failed)
      chat_fail(c, "out of memory"), result = GO_ON;
    else if (text.len && commands[i].argument && !commands[i].argument[0])
      chat_fail(c, "/%s takes nothing after it", commands[i].name), result = GO_ON;
    else
      result = commands[i].run(c, bytes_of(argument.data, argument.len));
    bytes_free(&argument);
    return result == GO_ON;
  }
  unknown_command(c, name);
  return true;
}
