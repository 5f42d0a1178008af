/* SPDX-License-Identifier: Apache-2.0 */
/* Lines to messages and commands; what the history keeps gives the same entry again; what a model
 * says reaches a terminal without control characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "cli/chat_input.h"
#include "cli/cli.h"

typedef struct entry_case {
  const char *lines[5]; /* NULL ends; the last one must complete the entry */
  chat_kind kind;
  const char *name, *text;
} entry_case;

static const entry_case cases[] = {
    {{"Hello"}, CHAT_MESSAGE, "", "Hello"},
    {{"  two  blanks "}, CHAT_MESSAGE, "", "  two  blanks "},
    {{""}, CHAT_NOTHING, "", ""},
    {{" \t"}, CHAT_NOTHING, "", " \t"},
    {{"one \\", "two"}, CHAT_MESSAGE, "", "one \ntwo"},
    {{"\\", "\\", "x"}, CHAT_MESSAGE, "", "\n\nx"},
    {{"C:\\\\"}, CHAT_MESSAGE, "", "C:\\\\"},
    {{"three\\\\\\", "."}, CHAT_MESSAGE, "", "three\\\\\n."},
    {{"\"\"\"one line\"\"\""}, CHAT_MESSAGE, "", "one line"},
    {{"\"\"\"", "a", "b", "\"\"\""}, CHAT_MESSAGE, "", "a\nb"},
    {{"  \"\"\" a", "  b\"\"\"  "}, CHAT_MESSAGE, "", " a\n  b"},
    {{"\"\"\"a\\", "/help", "\"\"\""}, CHAT_MESSAGE, "", "a\\\n/help"},
    {{"\"\"\"/help\"\"\""}, CHAT_MESSAGE, "", "/help"},
    {{"\"\"\"", "", "", "\"\"\""}, CHAT_NOTHING, "", "\n"},
    {{"\"\"\"\"\"\""}, CHAT_NOTHING, "", ""},
    {{"\"\"\"a\nb\"\"\""}, CHAT_MESSAGE, "", "a\nb"}, /* as one pasted line */
    {{"say \"\"\"", NULL}, CHAT_MESSAGE, "", "say \"\"\""},
    {{"/help"}, CHAT_COMMAND, "help", ""},
    {{"  /system  Be brief. "}, CHAT_COMMAND, "system", "Be brief."},
    {{"/system a \\", "b"}, CHAT_COMMAND, "system", "a \nb"},
    {{"/system \"\"\"", "/a", "b", "\"\"\""}, CHAT_COMMAND, "system", "/a\nb"},
    {{"/system \"\"\"a\"\"\""}, CHAT_COMMAND, "system", "a"},
    {{"/"}, CHAT_COMMAND, "", ""},
    {{"//etc/passwd"}, CHAT_MESSAGE, "", "/etc/passwd"},
    {{" //a "}, CHAT_MESSAGE, "", "/a "},
    {{"///"}, CHAT_MESSAGE, "", "//"},
};

static void assert_view(bytes_view got, const char *want) {
  assert_int_equal(got.len, strlen(want));
  assert_memory_equal(got.ptr, want, got.len);
}

static void add_lines(chat_entry *e, const char *const *lines) {
  for (int i = 0; lines[i]; i++) {
    bool done = chat_entry_add(e, lines[i], strlen(lines[i]));
    assert_int_equal(done, lines[i + 1] == NULL);
    assert_int_equal(e->open, lines[i + 1] != NULL);
  }
}

static void test_entries(void **state) {
  (void)state;
  chat_entry e;
  chat_entry_init(&e);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const entry_case *c = &cases[i];
    bytes_view name, text;
    chat_entry_clear(&e);
    add_lines(&e, c->lines);
    assert_int_equal(chat_entry_kind(&e, &name, &text), c->kind);
    assert_view(name, c->name);
    assert_view(text, c->text);
  }
  chat_entry_free(&e);
}

static void test_recall(void **state) {
  (void)state;
  bytes_buffer line, file, back;
  chat_entry e, again;
  bytes_init(&line, 4096);
  bytes_init(&file, 4096);
  bytes_init(&back, 4096);
  chat_entry_init(&e);
  chat_entry_init(&again);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bytes_view name, text;
    if (cases[i].kind == CHAT_NOTHING) continue;
    chat_entry_clear(&e);
    chat_entry_clear(&again);
    bytes_clear(&line);
    bytes_clear(&file);
    bytes_clear(&back);
    add_lines(&e, cases[i].lines);
    chat_entry_recall(&e, &line);
    chat_line_escape(line.data, line.len, &file);
    assert_null(memchr(file.data, '\n', file.len));
    chat_line_unescape(file.data, file.len, &back);
    assert_true(bytes_equal(bytes_of(line.data, line.len), bytes_of(back.data, back.len)));
    assert_true(chat_entry_add(&again, back.data, back.len));
    assert_int_equal(chat_entry_kind(&again, &name, &text), cases[i].kind);
    assert_view(name, cases[i].name);
    assert_view(text, cases[i].text);
  }
  chat_entry_free(&e);
  chat_entry_free(&again);
  bytes_free(&line);
  bytes_free(&file);
  bytes_free(&back);
}

static void test_end_and_limit(void **state) {
  (void)state;
  chat_entry e;
  bytes_view name, text;
  chat_entry_init(&e);
  assert_false(chat_entry_add(&e, "\"\"\"a", 4)); /* the file ends inside */
  chat_entry_close(&e);
  assert_int_equal(chat_entry_kind(&e, &name, &text), CHAT_MESSAGE);
  assert_view(text, "a");
  chat_entry_clear(&e);
  assert_true(chat_entry_add(&e, "a\0b", 3)); /* a NUL is a character like others */
  assert_int_equal(chat_entry_kind(&e, &name, &text), CHAT_MESSAGE);
  assert_int_equal(text.len, 3);
  static char big[CHAT_MESSAGE_MAX / 2 + 10];
  memset(big, 'x', sizeof big);
  chat_entry_clear(&e);
  assert_false(chat_entry_add(&e, "\"\"\"", 3));
  assert_false(chat_entry_add(&e, big, sizeof big));
  assert_false(e.text.failed);
  chat_entry_add(&e, big, sizeof big);
  assert_true(e.text.failed);
  chat_entry_clear(&e);
  assert_true(chat_entry_add(&e, "x", 1) && !e.text.failed);
  chat_entry_free(&e);
}

static void test_terminal(void **state) {
  (void)state;
  static const char *const texts[][2] = {
      {"plain\ttext\n", "plain\ttext\n"},
      {"na\xC3\xAFve \xE6\x97\xA5 \xF0\x9F\x98\x80", "na\xC3\xAFve \xE6\x97\xA5 \xF0\x9F\x98\x80"},
      {"\033[2J\a", "\xE2\x90\x9B[2J\xE2\x90\x87"},
      {"a\r\nb\x7F", "a\nb\xE2\x90\xA1"},
      {"\xC2\x9B"
       "31m",
       "\xEF\xBF\xBD"
       "31m"},
      {"\xC2\xA0\xC2\x80", "\xC2\xA0\xEF\xBF\xBD"},
  };
  bytes_buffer out;
  bytes_init(&out, 4096);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    bytes_clear(&out);
    cli_text_for_terminal(texts[i][0], strlen(texts[i][0]), &out);
    assert_string_equal(out.data, texts[i][1]);
  }
  for (int c = 0; c < 256; c++) { /* no control character gets through */
    char one = (char)c;
    bytes_clear(&out);
    bytes_append(&out, "", 0);
    cli_text_for_terminal(&one, 1, &out);
    for (size_t j = 0; j < out.len; j++)
      assert_true((unsigned char)out.data[j] >= 0x20 || c == '\n' || c == '\t');
  }
  bytes_free(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_entries),
      cmocka_unit_test(test_recall),
      cmocka_unit_test(test_end_and_limit),
      cmocka_unit_test(test_terminal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
