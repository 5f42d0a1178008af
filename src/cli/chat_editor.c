/* SPDX-License-Identifier: Apache-2.0 */
/* The editor reads the keys itself and hands them to libedit one by one: so a signal ends the wait
 * at once, bytes that are no UTF-8 become U+FFFD whatever the locale says, and pasted text goes in
 * as one piece. */
#include "cli/chat_editor.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_history.h"
#include "cli/chat_input.h"
#include "cli/chat_signals.h"

enum { END = -1, PASTE_MAX = 1024 * 1024, LINE_KEYS_MAX = 64 * 1024 };
#define REPLACEMENT 0xFFFD

struct chat_editor {
  EditLine *el; /* NULL: no terminal */
  HistoryW *history;
  FILE *screen;
  bool styled, empty_line, interrupted, redraw;
  const wchar_t
      *keys;     /* as if typed: how signals act on the line through libedit's own redrawing */
  chat_line why; /* why the bytes ended */
  int error;
  bool cut;       /* some of the line was dropped, as too much */
  char shown[64]; /* the prompt with its style */
  unsigned char bytes[65536];
  size_t begin, end;
};

/* --- bytes */

/* Stops as the terminal's Ctrl-Z does, with the terminal as the shell wants it. */
static void suspend(chat_editor *ed) {
  el_set(ed->el, EL_PREP_TERM, 0);
  if (ed->styled) fputs("\033[?2004l", ed->screen);
  fflush(ed->screen);
  kill(getpid(), SIGSTOP);
  if (ed->styled) fputs("\033[?2004h", ed->screen);
  el_set(ed->el, EL_PREP_TERM, 1);
}

/* False: the wait is over, `why` is set. */
static bool take_signals(chat_editor *ed) {
  chat_signals_drain();
  ed->why = CHAT_LINE_TERMINATED;
  if (chat_signals_take(CHAT_TERMINATE)) return false;
  ed->why = CHAT_LINE_CTRL_C;
  if (chat_signals_take(CHAT_CTRL_C)) return false;
  bool resized = chat_signals_take(CHAT_RESIZE), suspended = chat_signals_take(CHAT_SUSPEND);
  if (ed->el && resized) el_resize(ed->el);
  if (ed->el && suspended) suspend(ed);
  ed->redraw = ed->el && (resized || suspended);
  ed->why = CHAT_LINE_TEXT;
  return !ed->redraw;
}

/* Waits for bytes and signals. False: `why` is set. */
static bool fill(chat_editor *ed) {
  for (;;) {
    struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {chat_signals_fd(), POLLIN, 0}};
    int ready = poll(fds, 2, -1);
    if (ready < 0 && errno != EINTR) return ed->why = CHAT_LINE_FAILED, ed->error = errno, false;
    if (ready <= 0) continue;
    if (fds[1].revents && !take_signals(ed)) return false;
    if (!fds[0].revents) continue;
    ssize_t n = read(STDIN_FILENO, ed->bytes, sizeof ed->bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0 && errno != EIO) return ed->why = CHAT_LINE_FAILED, ed->error = errno, false;
    if (n <= 0) return ed->why = CHAT_LINE_END, false; /* EIO: the terminal has gone */
    ed->begin = 0;
    ed->end = (size_t)n;
    return true;
  }
}

static int peek_byte(chat_editor *ed) {
  return ed->begin < ed->end || fill(ed) ? ed->bytes[ed->begin] : END;
}

static size_t character_length(int lead) {
  return lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
}

static wchar_t character_of(const char *text, size_t n) {
  if (utf8_valid_prefix(text, n, NULL) != n) return REPLACEMENT;
  if (n == 1) return text[0];
  wchar_t c = (unsigned char)text[0] & (0xFF >> (n + 1));
  for (size_t i = 1; i < n; i++) c = c << 6 | (text[i] & 0x3F);
  return c;
}

/* One character; wrong bytes are U+FFFD. False: `why` is set. */
static bool next_character(chat_editor *ed, wchar_t *out) {
  int lead = peek_byte(ed);
  if (lead == END) return false;
  char text[4] = {(char)lead};
  size_t n = 1, want = character_length(lead);
  for (ed->begin++; n < want; n++, ed->begin++) {
    int next = peek_byte(ed);
    if (next == END) return false;
    if ((next & 0xC0) != 0x80) break;
    text[n] = (char)next;
  }
  *out = n < want ? REPLACEMENT : character_of(text, n);
  return true;
}

static void put_character(bytes_buffer *out, wchar_t wide) {
  uint32_t c = (uint32_t)wide;
  if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = REPLACEMENT;
  char text[4] = {(char)c};
  size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n; n > 1 && i-- > 1; c >>= 6) text[i] = (char)(0x80 | (c & 0x3F));
  if (n > 1) text[0] = (char)((0xF00 >> n & 0xFF) | c);
  bytes_append(out, text, n);
}

/* Owned: free. NULL: no memory. */
static wchar_t *wide_text(const char *text, size_t len) {
  wchar_t *out = malloc((len + 1) * sizeof *out);
  size_t n = 0;
  for (size_t at = 0; out && at < len;) {
    size_t step = character_length((unsigned char)text[at]);
    if (step > len - at || utf8_valid_prefix(text + at, step, NULL) != step) step = 1;
    out[n++] = character_of(text + at, step);
    at += step;
  }
  if (out) out[n] = 0;
  return out;
}

/* --- libedit */

static chat_editor *editor_of(EditLine *el) {
  void *ed = NULL;
  el_get(el, EL_CLIENTDATA, &ed);
  return ed;
}

/* The wait has ended without a character: keys that do what the signal asks. False: none do. */
static bool signal_keys(chat_editor *ed) {
  if (ed->redraw)
    ed->keys = L"\036";
  else if (ed->why == CHAT_LINE_CTRL_C)
    ed->keys = L"\005^C\003"; /* to the end of the line, a mark, and leave it */
  ed->interrupted = !ed->redraw && ed->why == CHAT_LINE_CTRL_C;
  ed->redraw = false;
  return *ed->keys != 0;
}

static int on_key(EditLine *el, wchar_t *out) {
  chat_editor *ed = editor_of(el);
  const LineInfoW *line = el_wline(el);
  if (!*ed->keys) ed->empty_line = line->lastchar == line->buffer;
  for (;;) { /* past a size that nobody types, redrawing for each key would take for ever */
    if (*ed->keys || (!next_character(ed, out) && signal_keys(ed))) return *out = *ed->keys++, 1;
    if (ed->why != CHAT_LINE_TEXT) return -1;
    if (line->lastchar - line->buffer < LINE_KEYS_MAX || *out < ' ' || *out == 0x7F) return 1;
    ed->cut = true;
  }
}

static char *on_prompt(EditLine *el) {
  return editor_of(el)->shown;
}

/* Newlines as terminals send them, CR or CR LF, to LF; none at the end. */
static size_t paste_clean(wchar_t *text, size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    if (text[i] == '\n' && i && text[i - 1] == '\r') text[i] = 0;
    if (text[i]) text[kept++] = text[i] == '\r' ? L'\n' : text[i];
  }
  while (kept && text[kept - 1] == '\n') kept--;
  return kept;
}

/* What is pasted comes between ESC [ 200 ~ and ESC [ 201 ~; its newlines are text. */
static unsigned char on_paste(EditLine *el, wint_t key) {
  static const wchar_t end[] = L"\033[201~";
  chat_editor *ed = editor_of(el);
  size_t n = 0, matched = 0, match_begin = 0;
  wchar_t *text = malloc((PASTE_MAX + 1) * sizeof *text), c;
  (void)key;
  while (text && end[matched]) {
    if (!next_character(ed, &c)) {
      if (!ed->redraw) break;
      ed->redraw = false; /* the insertion redraws */
      continue;
    }
    if (c != end[matched]) matched = 0;
    if (c == end[matched] && matched++ == 0) match_begin = n;
    if (n < PASTE_MAX)
      text[n++] = c;
    else if (!matched)
      ed->cut = true;
  }
  if (text && end[matched]) signal_keys(ed); /* a signal has come in between */
  if (text) {
    n = paste_clean(text, end[matched] ? n : match_begin);
    text[n] = 0;
    if (n) el_winsertstr(el, text);
  }
  free(text);
  return CC_REFRESH;
}

/* libedit writes through the locale; one that cannot say all characters is replaced. */
static void set_locale(void) {
  setlocale(LC_CTYPE, "");
  if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

/* As shells have them, where libedit's own are different or missing. */
static void bind_keys(EditLine *el) {
  static const char *const keys[][2] = {
      {"^R", "em-inc-search-prev"},       {"^S", "em-inc-search-next"},
      {"^W", "ed-delete-prev-word"},      {"^U", "vi-kill-line-prev"},
      {"\033[3~", "ed-delete-next-char"}, {"\033[1~", "ed-move-to-beg"},
      {"\033[4~", "ed-move-to-end"},      {"\033[H", "ed-move-to-beg"},
      {"\033[F", "ed-move-to-end"},       {"\033OH", "ed-move-to-beg"},
      {"\033OF", "ed-move-to-end"},       {"\033[1;5C", "em-next-word"},
      {"\033[1;5D", "ed-prev-word"},      {"\033[A", "ed-prev-history"},
      {"\033[B", "ed-next-history"},      {"\033[C", "ed-next-char"},
      {"\033[D", "ed-prev-char"},
  };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

/* What the editor itself relies on, in both maps of keys, whatever the user has bound. */
static void bind_own_keys(EditLine *el) {
  static const char *const keys[][2] = {
      {"^C", "ed-newline"}, {"\036", "ed-redisplay"}, {"\033[200~", "troika-paste"}};
  el_wset(el, EL_ADDFN, L"troika-paste", L"Insert pasted text", on_paste);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
    el_set(el, EL_BIND, "-a", keys[i][0], keys[i][1], NULL);
  }
}

static bool open_terminal(chat_editor *ed) {
  HistEventW event;
  set_locale();
  ed->el = el_init("troika", stdin, ed->screen, ed->screen);
  ed->history = history_winit();
  if (!ed->el || !ed->history) return false;
  history_w(ed->history, &event, H_SETSIZE, CHAT_HISTORY_MAX);
  history_w(ed->history, &event, H_SETUNIQUE, 1);
  el_set(ed->el, EL_CLIENTDATA, ed);
  el_set(ed->el, EL_SIGNAL, 0);
  el_set(ed->el, EL_EDITOR, "emacs");
  el_set(ed->el, EL_PROMPT_ESC, on_prompt, '\1');
  el_wset(ed->el, EL_HIST, history_w, ed->history);
  el_wset(ed->el, EL_GETCFN, on_key);
  bind_keys(ed->el);
  el_source(ed->el, NULL); /* the user's own ~/.editrc */
  bind_own_keys(ed->el);
  return true;
}

/* The terminal database says so; of a name that it lacks it says nothing. */
static bool understands_styles(EditLine *el) {
  const char *bold = NULL;
  return !el_get(el, EL_GETTC, "md", &bold) && bold && !strncmp(bold, "\033[", 2);
}

chat_editor *chat_editor_create(FILE *screen, bool styled) {
  chat_editor *ed = calloc(1, sizeof *ed);
  if (!ed) return NULL;
  ed->screen = screen;
  ed->styled = styled;
  if (screen && !open_terminal(ed))
    chat_editor_destroy(&ed);
  else if (screen)
    ed->styled = styled && understands_styles(ed->el);
  return ed;
}

void chat_editor_destroy(chat_editor **editor) {
  chat_editor *ed = *editor;
  if (!ed) return;
  if (ed->el) el_end(ed->el);
  if (ed->history) history_wend(ed->history);
  free(ed);
  *editor = NULL;
}

static chat_line read_terminal(chat_editor *ed, bytes_buffer *out) {
  int n = 0;
  ed->why = CHAT_LINE_TEXT;
  ed->keys = L"";
  ed->empty_line = true;
  ed->cut = ed->interrupted = ed->redraw = false;
  chat_signals_catch_suspend(true);
  if (ed->styled) fputs("\033[?2004h", ed->screen);
  fflush(ed->screen);
  el_set(ed->el, EL_PREP_TERM, 1); /* before the prompt: nothing typed early is echoed twice */
  const wchar_t *line = el_wgets(ed->el, &n);
  if (!line && !ed->interrupted) fputc('\n', ed->screen);
  if (ed->styled) fputs("\033[?2004l", ed->screen);
  fflush(ed->screen);
  chat_signals_catch_suspend(false);
  if (ed->interrupted) return CHAT_LINE_CTRL_C;
  if (!line) return errno = ed->error, ed->why == CHAT_LINE_TEXT ? CHAT_LINE_END : ed->why;
  if (n && line[n - 1] == '\n') n--;
  for (int i = 0; i < n; i++) put_character(out, line[i]);
  return out->failed || ed->cut ? CHAT_LINE_TOO_LONG : CHAT_LINE_TEXT;
}

static chat_line read_plain(chat_editor *ed, bytes_buffer *out) {
  bool any = false;
  for (;;) {
    if (ed->begin == ed->end && !fill(ed)) {
      if (ed->why != CHAT_LINE_END || !any) return errno = ed->error, ed->why;
      break; /* a last line without a newline */
    }
    const unsigned char *from = ed->bytes + ed->begin;
    const unsigned char *newline = memchr(from, '\n', ed->end - ed->begin);
    size_t n = newline ? (size_t)(newline - from) : ed->end - ed->begin;
    bytes_append(out, from, n);
    any = true;
    ed->begin += n + (newline != NULL);
    if (newline) break;
  }
  if (out->failed) return CHAT_LINE_TOO_LONG;
  if (out->len && out->data[out->len - 1] == '\r') out->data[--out->len] = 0;
  return CHAT_LINE_TEXT;
}

chat_line chat_editor_read(chat_editor *ed, const char *prompt, bytes_buffer *out,
                           bool *was_empty) {
  bytes_clear(out);
  bytes_append(out, "", 0);
  /* the last style goes before the blank: libedit hangs it on the character that follows */
  snprintf(ed->shown, sizeof ed->shown, ed->styled ? "\1\033[1m\1%.3s\1\033[0m\1 " : "%s", prompt);
  chat_line result = ed->el ? read_terminal(ed, out) : read_plain(ed, out);
  *was_empty = ed->empty_line;
  return result;
}

void chat_editor_remember(chat_editor *ed, const char *text, size_t len) {
  HistEventW event;
  wchar_t *wide = ed->el ? wide_text(text, len) : NULL;
  if (wide && *wide) history_w(ed->history, &event, H_ENTER, wide);
  free(wide);
}

bool chat_editor_styled(const chat_editor *ed) {
  return ed->el && ed->styled;
}
