/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_session.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/request.h"
#include "base/error.h"
#include "cli/cli.h"

bool chat_session_init(chat_session *s) {
  *s = (chat_session){.messages = json_array()};
  return s->messages != NULL;
}

void chat_session_free(chat_session *s) {
  json_decref(s->messages);
  json_decref(s->system);
  *s = (chat_session){0};
}

size_t chat_session_count(const chat_session *s) {
  return json_array_size(s->messages);
}

bool chat_session_set_system(chat_session *s, const char *text, size_t len) {
  json_t *value = text ? json_stringn(text, len) : NULL;
  if (text && !value) return false;
  json_decref(s->system);
  s->system = value;
  return true;
}

bool chat_session_add(chat_session *s, const char *role, const char *text, size_t len) {
  json_t *message = json_pack("{s:s, s:o*}", "role", role, "content", json_stringn(text, len));
  if (message && !json_object_get(message, "content")) {
    json_decref(message);
    return false;
  }
  return message && !json_array_append_new(s->messages, message);
}

static const json_t *message_at(const chat_session *s, size_t i) {
  return json_array_get(s->messages, i);
}

static bool role_is(const json_t *message, const char *role) {
  const char *text = json_string_value(json_object_get(message, "role"));
  return text && !strcmp(text, role);
}

bool chat_session_last_is(const chat_session *s, const char *role) {
  size_t n = chat_session_count(s);
  return n && role_is(message_at(s, n - 1), role);
}

bytes_view chat_session_last(const chat_session *s, const char *role) {
  for (size_t i = chat_session_count(s); i-- > 0;) {
    const json_t *content = json_object_get(message_at(s, i), "content");
    if (role_is(message_at(s, i), role) && json_is_string(content))
      return bytes_of(json_string_value(content), json_string_length(content));
  }
  return bytes_of("", 0);
}

json_t *chat_session_pop(chat_session *s) {
  size_t n = chat_session_count(s);
  if (!n) return NULL;
  json_t *message = json_incref(json_array_get(s->messages, n - 1));
  json_array_remove(s->messages, n - 1);
  return message;
}

bool chat_session_push(chat_session *s, json_t *message) {
  return !json_array_append_new(s->messages, message);
}

size_t chat_session_undo(chat_session *s) {
  size_t n = chat_session_count(s), from = n;
  for (size_t i = n; i-- > 0;) {
    from = i;
    if (role_is(message_at(s, i), "user")) break;
  }
  for (size_t i = n; i-- > from;) json_array_remove(s->messages, i);
  return n - from;
}

void chat_session_clear(chat_session *s) {
  json_array_clear(s->messages);
}

/* A new array, the system message first. */
static json_t *whole_array(const chat_session *s) {
  json_t *all = json_array();
  if (!all) return NULL;
  bool ok = !s->system || !json_array_append_new(
                              all, json_pack("{s:s, s:O}", "role", "system", "content", s->system));
  if (ok && !json_array_extend(all, s->messages)) return all;
  json_decref(all);
  return NULL;
}

char *chat_session_text(const chat_session *s, size_t *len) {
  json_t *all = whole_array(s);
  char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
  json_decref(all);
  *len = text ? strlen(text) : 0; /* a NUL in a message is \u0000 here */
  return text;
}

/* A FIFO would wait for ever, a device may have no end: only regular files. */
static troika_status read_file(const char *path, bytes_buffer *out, troika_error *err) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat st;
  if (fd < 0)
    return error_set(err, errno == ENOENT ? TROIKA_NOT_FOUND : TROIKA_IO, "cannot open %s: %s",
                     path, strerror(errno));
  troika_status status = TROIKA_OK;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode))
    status = error_set(err, TROIKA_FORMAT, "%s is not a regular file", path);
  else if (st.st_size > CHAT_FILE_MAX)
    status = error_set(err, TROIKA_LIMIT, "%s has %lld bytes; a chat has at most %d", path,
                       (long long)st.st_size, CHAT_FILE_MAX);
  else if (!cli_read_fd(fd, out))
    status = error_set(err, errno == EFBIG ? TROIKA_LIMIT : TROIKA_IO, "cannot read %s: %s", path,
                       strerror(errno));
  close(fd);
  return status;
}

static troika_status parse_file(const char *path, const bytes_buffer *text, json_t **out,
                                troika_error *err) {
  json_error_t where;
  json_t *root = json_loadb(text->data, text->len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
  if (!text->len) return error_set(err, TROIKA_FORMAT, "%s is empty, not a chat", path);
  if (!root)
    return error_set(err, TROIKA_FORMAT, "%s is not JSON: line %d, column %d: %s", path, where.line,
                     where.column, where.text);
  json_t *messages = json_is_array(root) ? root : json_object_get(root, "messages");
  if (json_is_array(messages)) {
    *out = root;
    return TROIKA_OK;
  }
  json_decref(root);
  return error_set(err, TROIKA_FORMAT,
                   messages ? "%s: messages is not an array"
                            : "%s is not a chat: expected {\"messages\": [...]} or [...]",
                   path);
}

/* Takes the system message, which can only be the first, out of the array. */
static troika_status take_messages(const char *path, json_t *messages, chat_session *out,
                                   troika_error *err) {
  size_t n = json_array_size(messages);
  api_failure failure = {0};
  bool continues;
  if (n > CHAT_MESSAGES_MAX)
    return error_set(err, TROIKA_LIMIT, "%s has %zu messages; a chat has at most %d", path, n,
                     CHAT_MESSAGES_MAX);
  if (n && !api_messages_normalise(messages, &continues, &failure))
    return error_set(err, TROIKA_FORMAT, "%s: %s", path, failure.message);
  if (n && role_is(json_array_get(messages, 0), "system")) {
    out->system = json_incref(json_object_get(json_array_get(messages, 0), "content"));
    json_array_remove(messages, 0);
  }
  out->messages = json_incref(messages);
  return TROIKA_OK;
}

troika_status chat_session_load(const char *path, chat_session *out, char *model, size_t model_size,
                                troika_error *err) {
  bytes_buffer text;
  json_t *root = NULL;
  bytes_init(&text, CHAT_FILE_MAX);
  bytes_append(&text, "", 0);
  *out = (chat_session){0};
  troika_status status = read_file(path, &text, err);
  if (!status) status = parse_file(path, &text, &root, err);
  if (!status) {
    json_t *messages = json_is_array(root) ? root : json_object_get(root, "messages");
    const char *name = json_string_value(json_object_get(root, "model"));
    snprintf(model, model_size, "%s", name ? name : "");
    utf8_clean(model, false);
    status = take_messages(path, messages, out, err);
  }
  json_decref(root);
  bytes_free(&text);
  return status;
}

/* What may be written over: nothing there, or a chat. */
static troika_status check_target(const char *path, troika_error *err) {
  chat_session old;
  char model[8];
  troika_error why = {0};
  troika_status status = chat_session_load(path, &old, model, sizeof model, &why);
  if (!status) {
    chat_session_free(&old);
    return TROIKA_OK;
  }
  if (status == TROIKA_NOT_FOUND) return TROIKA_OK;
  return error_set(err, TROIKA_INVALID, "%s is there and is no chat: not overwritten (%s)", path,
                   why.text);
}

static troika_status write_beside(const char *path, const char *text, size_t len,
                                  troika_error *err) {
  char real[PATH_MAX], beside[PATH_MAX];
  if (!realpath(path, real)) { /* a new file; else a link stays a link to the new text */
    if (strlen(path) >= sizeof real) return error_set(err, TROIKA_LIMIT, "the path is too long");
    memcpy(real, path, strlen(path) + 1);
  }
  if (snprintf(beside, sizeof beside, "%s.XXXXXX", real) >= (int)sizeof beside)
    return error_set(err, TROIKA_LIMIT, "the path is too long");
  int fd = mkostemp(beside, O_CLOEXEC); /* mode 0600 */
  if (fd < 0) return error_set(err, TROIKA_IO, "cannot write %s: %s", path, strerror(errno));
  bool ok = cli_write_fd(fd, text, len) && !fsync(fd);
  int why = errno;
  if (close(fd) && ok) ok = false, why = errno;
  if (ok && rename(beside, real)) ok = false, why = errno;
  if (ok) return TROIKA_OK;
  unlink(beside);
  return error_set(err, TROIKA_IO, "cannot write %s: %s", path, strerror(why));
}

troika_status chat_session_save(const chat_session *s, const char *path, const char *model,
                                troika_error *err) {
  troika_status status = check_target(path, err);
  if (status) return status;
  json_t *all = whole_array(s);
  json_t *root = all ? json_pack("{s:s, s:o}", "model", model, "messages", all) : NULL;
  char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
  json_decref(root);
  size_t len = text ? strlen(text) : 0;
  if (!text)
    status = error_set(err, TROIKA_NO_MEMORY, "no memory to write the chat");
  else if (len + 1 > CHAT_FILE_MAX)
    status = error_set(err, TROIKA_LIMIT, "the chat has %zu bytes; a file has at most %d", len + 1,
                       CHAT_FILE_MAX);
  if (!status) {
    text[len] = '\n'; /* in place of the NUL: the length goes along */
    status = write_beside(path, text, len + 1, err);
  }
  free(text);
  return status;
}
