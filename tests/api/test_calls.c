/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in an answer's text, however it is cut into pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/calls.h"

static bool seen(const char *text, size_t piece, bool wanted) {
  api_calls c = {.wanted = wanted};
  size_t len = strlen(text);
  for (size_t i = 0; i < len; i += piece)
    api_calls_add(&c, text + i, len - i < piece ? len - i : piece);
  return api_calls_seen(&c);
}

static void calls_are_seen_in_any_pieces(void **state) {
  (void)state;
  static const char *const calls[] = {"<tool_call>{\"name\":\"f\"}</tool_call>",
                                      "I will look it up.\n[TOOL_CALLS] [{}]",
                                      "Let me see. <|python_tag|>f()",
                                      "<function=f>{}</function>",
                                      " \n{ \"name\" : \"f\", \"arguments\": {}}",
                                      "[{\"name\": \"f\"}]"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    for (size_t piece = 1; piece < 60; piece++) {
      assert_true(seen(calls[i], piece, true));
      assert_false(seen(calls[i], piece, false)); /* no tools, no calls */
    }
}

static void other_texts_are_none(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "The name is {\"name\":\"f\"}.",
                                      "{\"colour\":\"red\",\"name\":1}",
                                      "tool_call> <tool call> <tool_cal l>",
                                      "[TOOL_CALL]",
                                      "function=f"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (size_t piece = 1; piece < 40; piece++) assert_false(seen(texts[i], piece, true));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(calls_are_seen_in_any_pieces),
                                     cmocka_unit_test(other_texts_are_none)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
