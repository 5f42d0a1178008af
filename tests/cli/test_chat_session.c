/* SPDX-License-Identifier: Apache-2.0 */
/* Chats in memory and as files, and the history file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants the first four above first */
#include <cmocka.h>

#include "cli/chat_history.h"
#include "cli/chat_session.h"

static char folder[64];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/troika-chat-XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static const char *path_of(const char *name) {
  static char path[2][128];
  static int turn;
  turn = !turn;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

static void write_file(const char *path, const char *text, size_t len) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, len, file), len);
  assert_int_equal(fclose(file), 0);
}

static unsigned mode_of(const char *path) {
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  return st.st_mode & 0777;
}

static void add(chat_session *s, const char *role, const char *text) {
  assert_true(chat_session_add(s, role, text, strlen(text)));
}

static void assert_text(const chat_session *s, const char *want) {
  size_t len;
  char *text = chat_session_text(s, &len);
  assert_string_equal(text, want);
  assert_int_equal(len, strlen(want));
  free(text);
}

static void test_messages(void **state) {
  (void)state;
  chat_session s;
  assert_true(chat_session_init(&s));
  assert_int_equal(chat_session_undo(&s), 0);
  assert_null(chat_session_pop(&s));
  assert_text(&s, "[]");
  add(&s, "user", "a");
  add(&s, "assistant", "b\n\"\033");
  add(&s, "user", "c");
  assert_true(chat_session_set_system(&s, "S", 1));
  assert_text(&s,
              "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"a\"},"
              "{\"role\":\"assistant\",\"content\":\"b\\n\\\"\\u001B\"},"
              "{\"role\":\"user\",\"content\":\"c\"}]");
  assert_true(chat_session_last_is(&s, "user"));
  assert_int_equal(chat_session_last(&s, "assistant").len, 4);
  assert_int_equal(chat_session_undo(&s), 1);
  assert_int_equal(chat_session_undo(&s), 2);
  assert_int_equal(chat_session_count(&s), 0);
  assert_true(chat_session_add(&s, "user", "a\0b", 3));
  assert_false(chat_session_add(&s, "user", "\xFF", 1)); /* not UTF-8 */
  assert_int_equal(chat_session_count(&s), 1);
  json_t *last = chat_session_pop(&s);
  assert_non_null(last);
  assert_true(chat_session_push(&s, last) && chat_session_count(&s) == 1);
  chat_session_clear(&s);
  assert_text(&s, "[{\"role\":\"system\",\"content\":\"S\"}]");
  assert_true(chat_session_set_system(&s, NULL, 0));
  assert_text(&s, "[]");
  chat_session_free(&s);
}

static void test_round_trip(void **state) {
  (void)state;
  chat_session s, back;
  char model[32] = "";
  troika_error err = {0};
  const char *path = path_of("chat.json");
  assert_true(chat_session_init(&s));
  assert_true(chat_session_set_system(&s, "Be brief.", 9));
  add(&s, "user", "\xF0\x9F\x98\x80 /a\n");
  add(&s, "assistant", "");
  assert_true(chat_session_add(&s, "user", "a\0b", 3));
  for (int i = 0; i < 2; i++) /* a chat may be written over */
    assert_int_equal(chat_session_save(&s, path, "smollm2", &err), TROIKA_OK);
  assert_int_equal(mode_of(path), 0600);
  assert_int_equal(chat_session_load(path, &back, model, sizeof model, &err), TROIKA_OK);
  assert_string_equal(model, "smollm2");
  assert_true(json_equal(s.messages, back.messages) && json_equal(s.system, back.system));
  chat_session_free(&back);
  /* a link stays a link */
  const char *link_path = path_of("link.json");
  assert_int_equal(symlink("chat.json", link_path), 0);
  chat_session_clear(&s);
  assert_int_equal(chat_session_save(&s, link_path, "m", &err), TROIKA_OK);
  struct stat st;
  assert_true(!lstat(link_path, &st) && S_ISLNK(st.st_mode));
  assert_int_equal(chat_session_load(path_of("chat.json"), &back, model, sizeof model, &err), 0);
  assert_int_equal(chat_session_count(&back), 0);
  chat_session_free(&back);
  chat_session_free(&s);
}

static void test_save_refuses(void **state) {
  (void)state;
  chat_session s;
  troika_error err = {0};
  assert_true(chat_session_init(&s));
  add(&s, "user", "a");
  const char *notes = path_of("notes.txt");
  write_file(notes, "dear diary", 10);
  assert_int_equal(chat_session_save(&s, notes, "m", &err), TROIKA_INVALID);
  assert_non_null(strstr(err.text, "not overwritten"));
  char text[16] = "";
  FILE *file = fopen(notes, "r");
  assert_int_equal(fread(text, 1, sizeof text, file), 10);
  fclose(file);
  assert_memory_equal(text, "dear diary", 10);
  assert_int_equal(chat_session_save(&s, folder, "m", &err), TROIKA_INVALID);
  assert_int_equal(chat_session_save(&s, path_of("none/chat.json"), "m", &err), TROIKA_IO);
  assert_non_null(strstr(err.text, "No such file"));
  chat_session_free(&s);
}

static void test_bad_files(void **state) {
  (void)state;
  static const struct {
    const char *text, *words;
  } cases[] = {
      {"", "is empty"},
      {"{\"messages\": [\n  {\"role\" \"user\"}]}", "line 2, column"},
      {"{\"messages\": 3}", "messages is not an array"},
      {"{\"model\": \"x\"}", "expected {\"messages\": [...]}"},
      {"7", "not JSON"},
      {"\"text\"", "not JSON"},
      {"[1]", "messages[0] must be an object"},
      {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"king\",\"content\":\"a\"}]",
       "messages[1].role is \"king\""},
      {"[{\"role\":\"user\"}]", "messages[0].content is missing"},
      {"[{\"role\":\"user\",\"content\":7}]", "messages[0].content must be"},
      {"[{\"role\":\"user\",\"content\":\"\xFF\"}]", "not JSON"},
      {"{\"messages\":[],\"messages\":[]}", "not JSON"},
  };
  const char *path = path_of("bad.json");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    chat_session s;
    char model[8];
    troika_error err = {0};
    write_file(path, cases[i].text, strlen(cases[i].text));
    assert_int_equal(chat_session_load(path, &s, model, sizeof model, &err), TROIKA_FORMAT);
    assert_non_null(strstr(err.text, path));
    if (!strstr(err.text, cases[i].words)) fail_msg("%s: %s", cases[i].text, err.text);
    assert_null(s.messages);
    assert_null(s.system);
  }
}

static void test_good_shapes(void **state) {
  (void)state;
  chat_session s;
  char model[8];
  troika_error err = {0};
  const char *path = path_of("shapes.json");
  static const char bare[] =
      "[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"S\"}]},"
      "{\"role\":\"user\",\"content\":\"a\"}]";
  write_file(path, bare, strlen(bare));
  assert_int_equal(chat_session_load(path, &s, model, sizeof model, &err), TROIKA_OK);
  assert_string_equal(json_string_value(s.system), "S");
  assert_int_equal(chat_session_count(&s), 1);
  assert_string_equal(model, "");
  chat_session_free(&s);
  write_file(path, "[]", 2);
  assert_int_equal(chat_session_load(path, &s, model, sizeof model, &err), TROIKA_OK);
  chat_session_free(&s);
}

static void test_sizes(void **state) {
  (void)state;
  chat_session s;
  char model[8];
  troika_error err = {0};
  const char *path = path_of("large.json");
  write_file(path, "[]", 2);
  assert_int_equal(truncate(path, CHAT_FILE_MAX + 1), 0);
  assert_int_equal(chat_session_load(path, &s, model, sizeof model, &err), TROIKA_LIMIT);
  assert_non_null(strstr(err.text, "16777217 bytes"));
  assert_int_equal(chat_session_load(folder, &s, model, sizeof model, &err), TROIKA_FORMAT);
  const char *pipe_path = path_of("pipe");
  assert_int_equal(mkfifo(pipe_path, 0600), 0); /* nobody writes: must not wait */
  assert_int_equal(chat_session_load(pipe_path, &s, model, sizeof model, &err), TROIKA_FORMAT);
  assert_int_equal(chat_session_load(path_of("none"), &s, model, sizeof model, &err),
                   TROIKA_NOT_FOUND);
}

/* --- history */

typedef struct seen {
  unsigned n;
  char first[32], last[64];
} seen;

static void see(void *context, const char *text, size_t len) {
  seen *s = context;
  if (!s->n++) snprintf(s->first, sizeof s->first, "%.*s", (int)len, text);
  snprintf(s->last, sizeof s->last, "%.*s", (int)len, text);
}

static void test_history(void **state) {
  (void)state;
  chat_history h;
  seen s = {0};
  const char *path = path_of("state/troika/history");
  chat_history_open(&h, path, see, &s);
  assert_true(h.usable);
  assert_int_equal(s.n, 0);
  assert_int_equal(mode_of(path), 0600);
  assert_int_equal(mode_of(path_of("state")), 0700);
  chat_history_add(&h, "a\\n\nb", 6);
  chat_history_add(&h, "", 0);
  static char big[CHAT_HISTORY_ENTRY_MAX + 1];
  memset(big, 'x', sizeof big);
  chat_history_add(&h, big, sizeof big);
  chat_history_open(&h, path, see, &s);
  assert_int_equal(s.n, 1);
  assert_string_equal(s.last, "a\\n\nb");
  for (int i = 0; i < 2 * CHAT_HISTORY_MAX; i++) {
    char line[32];
    chat_history_add(&h, line, (size_t)snprintf(line, sizeof line, "line %d", i));
  }
  s = (seen){0};
  chat_history_open(&h, path, see, &s);
  assert_int_equal(s.n, CHAT_HISTORY_MAX);
  assert_string_equal(s.first, "line 1000");
  assert_string_equal(s.last, "line 1999");
}

static void test_history_as_found(void **state) {
  (void)state;
  chat_history h;
  seen s = {0};
  const char *path = path_of("history");
  write_file(path, "one\n\ntwo\nthr", 12); /* cut in the middle */
  assert_int_equal(chmod(path, 0644), 0);
  chat_history_open(&h, path, see, &s);
  assert_int_equal(mode_of(path), 0600);
  assert_int_equal(s.n, 3);
  assert_string_equal(s.last, "thr");
  chat_history_add(&h, "four", 4);
  s = (seen){0};
  chat_history_open(&h, path, see, &s);
  assert_int_equal(s.n, 4);
  assert_string_equal(s.last, "four");
  chat_history_open(&h, "/dev/null", see, &s); /* switched off */
  assert_true(h.usable);
  chat_history_add(&h, "x", 1);
  assert_true(h.usable);
  chat_history_open(&h, path_of("history/below"), see, &s); /* a file is no folder */
  assert_false(h.usable);
  assert_non_null(strstr(h.why, "Not a directory"));
  chat_history_add(&h, "x", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages),     cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_save_refuses), cmocka_unit_test(test_bad_files),
      cmocka_unit_test(test_good_shapes),  cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_history),      cmocka_unit_test(test_history_as_found),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
