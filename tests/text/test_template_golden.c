/* test_template_golden.c - chat templates equal to jinja2's in the reference library's setting
 * (tools/template_golden.py): ours from tests/text/templates, and published ones that the set-up
 * reads from pinned packages. Every template meets every conversation; where jinja2 raises, we
 * refuse, with raise_exception's words. `make templates` shows the figures.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "text/support_text.h"
#include "text/template.h"

/* Known to differ, each for a reason that src/text/template.h gives: "TEMPLATE" or
 * "TEMPLATE/CONVERSATION". One that agrees after all is an error. */
typedef struct known_difference {
  const char *name, *why;
} known_difference;
static const known_difference known[] = {
    {"llama-cpp-deepseek-r1/tools", "map(...) is a generator there, which has no JSON form"},
    {"llama-cpp-deepseek-r1/two_calls", "map(...) is a generator there, which has no JSON form"},
};
enum { KNOWN_N = sizeof known / sizeof known[0] };

/* The message shapes that templates get wrong, by the beginnings of the conversations' names. */
static const struct {
  const char *name, *beginnings[3];
} shapes[] = {
    {"system", {"system", "developer_as_system", "prefill"}},
    {"developer", {"developer"}},
    {"multi-part", {"parts", "prefill_parts"}},
    {"null", {"null", "tools"}},
};
enum { SHAPES_N = sizeof shapes / sizeof shapes[0] };

typedef struct tally {
  size_t templates, equal_templates, cases, refused, differ, known_cases, prefill, shape[SHAPES_N];
  size_t per_template; /* cases of the first one, which all must have */
  bool known_seen[KNOWN_N];
} tally;

typedef struct golden_case {
  char name[128], end[16], status[16];
  long long now;
  size_t messages, tools, output;
} golden_case;

static chat_end end_of(const char *name) {
  if (!strcmp(name, "continue")) return CHAT_CONTINUE;
  return !strcmp(name, "generate") ? CHAT_GENERATE : CHAT_CLOSED;
}

static void show(const golden_case *c, troika_status status, const troika_error *err,
                 const bytes_buffer *out, bytes_view expected) {
  size_t at = 0;
  while (at < out->len && at < expected.len && out->data[at] == expected.ptr[at]) at++;
  size_t from = at > 30 ? at - 30 : 0;
  printf(
      "%s %s: status %d (%s), expected %s\n  differs at %zu\n  got      '%.70s'\n"
      "  expected '%.*s'\n",
      c->name, c->end, (int)status, err->text, c->status, at,
      out->data ? out->data + (from < out->len ? from : out->len) : "",
      (int)(expected.len - from > 70 ? 70 : expected.len - from), expected.ptr + from);
}

static bool case_equals(const chat_template *t, const golden_case *c, const char *texts,
                        bool expected_to) {
  bytes_buffer out;
  bytes_init(&out, 1 << 24);
  troika_error err = {0};
  troika_status status = chat_template_render(
      t, bytes_of(texts, c->messages), bytes_of(texts + c->messages, c->tools),
      (chat_render_options){.end = end_of(c->end), .now_unix_s = c->now}, &out, &err);
  bytes_view expected = bytes_of(texts + c->messages + c->tools, c->output);
  bool equal;
  if (strcmp(c->status, "ok") == 0)
    equal = status == TROIKA_OK && bytes_equal(bytes_of(out.data, out.len), expected);
  else if (strcmp(c->status, "raised") == 0)
    equal = status == TROIKA_INVALID && bytes_equal(bytes_of_string(err.text), expected);
  else
    equal = status == TROIKA_INVALID;
  if (!equal && expected_to) show(c, status, &err, &out, expected);
  bytes_free(&out);
  return equal;
}

/* The index in `known`, else KNOWN_N. */
static size_t known_find(const char *case_name) {
  for (size_t i = 0; i < KNOWN_N; i++) {
    size_t n = strlen(known[i].name);
    if (!strncmp(case_name, known[i].name, n) && (!case_name[n] || case_name[n] == '/')) return i;
  }
  return KNOWN_N;
}

static void count_shapes(tally *sum, const golden_case *c) {
  const char *conversation = strchr(c->name, '/');
  if (!conversation) return;
  for (size_t s = 0; s < SHAPES_N; s++)
    for (size_t b = 0; b < 3 && shapes[s].beginnings[b]; b++) {
      const char *begin = shapes[s].beginnings[b];
      if (!strncmp(conversation + 1, begin, strlen(begin))) {
        sum->shape[s]++;
        break;
      }
    }
  sum->prefill += !strcmp(c->end, "continue");
}

static void template_ends(tally *sum, size_t cases, size_t differ) {
  if (!sum->templates) return;
  if (!sum->per_template) sum->per_template = cases;
  sum->equal_templates += cases == sum->per_template && !differ;
}

/* The line at `at` into `line`, and the place behind it: sscanf would measure the whole file at
 * every call. */
static char *line_take(char *at, const char *end, char *line, size_t size) {
  char *newline = memchr(at, '\n', (size_t)(end - at));
  size_t n = newline ? (size_t)(newline - at) : (size_t)(end - at);
  size_t kept = n < size - 1 ? n : size - 1;
  memcpy(line, at, kept);
  line[kept] = 0;
  return newline ? newline + 1 : at + n;
}

/* One case into the tally; true if it differs. */
static bool count_case(tally *sum, const chat_template *t, const golden_case *c,
                       const char *texts) {
  size_t expected = known_find(c->name);
  bool equal = t && case_equals(t, c, texts, expected == KNOWN_N);
  if (expected < KNOWN_N) {
    sum->known_cases += !equal;
    sum->known_seen[expected] |= !equal;
  } else {
    sum->differ += !equal;
  }
  sum->cases++;
  sum->refused += strcmp(c->status, "ok") != 0;
  count_shapes(sum, c);
  return !equal;
}

/* A golden file. False if a record cannot be read. */
static bool compare(const char *path, tally *sum) {
  size_t len, cases = 0, differ = 0;
  bool broken = false;
  char *data = support_read(path, &len), *at = data;
  chat_template *t = NULL;
  while (at < data + len) {
    golden_case c = {0};
    size_t source;
    char line[256], *record = at;
    at = line_take(at, data + len, line, sizeof line);
    if (sscanf(line, "template %127s %zu", c.name, &source) == 2) {
      template_ends(sum, cases, differ);
      cases = differ = 0;
      sum->templates++;
      if (t) chat_template_destroy(&t);
      troika_error err = {0};
      if (chat_template_create_source(bytes_of(at, source), "<s>", "</s>", &t, &err) != TROIKA_OK)
        printf("%s: %s\n", c.name, err.text);
      at += source + 1;
      continue;
    }
    if (sscanf(line, "case %127s %15s %lld %zu %zu %zu %15s", c.name, c.end, &c.now, &c.messages,
               &c.tools, &c.output, c.status) != 7) {
      printf("%s: bad record at byte %zu\n", path, (size_t)(record - data));
      broken = true;
      break;
    }
    differ += count_case(sum, t, &c, at);
    cases++;
    at += c.messages + c.tools + c.output + 1;
  }
  template_ends(sum, cases, differ);
  bool whole = at == data + len && !broken;
  if (t) chat_template_destroy(&t);
  free(data);
  return whole;
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  tally ours = {0}, published = {0};
  bool ours_read = compare(TEST_DATA "/text/template_golden.txt", &ours);
  bool published_read = compare(support_path("test-data/template-golden.txt"), &published);
  figure("golden files read", "==", 2, ours_read + published_read);
  figure("own templates wholly equal", ">=", 13, (double)ours.equal_templates);
  figure("own templates: cases that differ", "==", 0, (double)ours.differ);
  figure("published templates", ">=", 20, (double)published.templates);
  figure("published templates wholly equal", ">=", 20, (double)published.equal_templates);
  figure("cases compared", ">=", 1000, (double)published.cases);
  figure("cases that jinja2 and we refuse", ">=", 100, (double)published.refused);
  figure("cases that differ", "==", 0, (double)published.differ);
  size_t stale = 0;
  for (size_t i = 0; i < KNOWN_N; i++) {
    printf("known to differ: %s: %s\n", known[i].name, known[i].why);
    stale += !published.known_seen[i];
  }
  figure("cases known to differ, with a reason", "<=", 30, (double)published.known_cases);
  figure("reasons without a difference", "==", 0, (double)stale);
  for (size_t s = 0; s < SHAPES_N; s++) {
    char name[64];
    snprintf(name, sizeof name, "cases of shape %s", shapes[s].name);
    figure(name, ">=", 20, (double)published.shape[s]);
  }
  figure("cases of shape prefill", ">=", 20, (double)published.prefill);
  return figures_end();
}
