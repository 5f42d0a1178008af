/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h - whether an answer that had tools to choose from ended in tool calls, told from its text
 * as it comes: after that its client runs tools, and the agents that it starts meanwhile are as
 * urgent as itself. A hint for the order of work, no parser. Pure; 40 bytes. */
#ifndef API_CALLS_H
#define API_CALLS_H

#include <stdbool.h>
#include <stddef.h>

enum { API_CALLS_TAIL = 15, API_CALLS_HEAD = 24 };

typedef struct api_calls {
  bool wanted, seen; /* wanted: the request has tools; set by the owner */
  unsigned char tail_n, head_n;
  char tail[API_CALLS_TAIL]; /* the end of the text so far: a marker may span pieces */
  char head[API_CALLS_HEAD]; /* its begin, without blanks */
} api_calls;

void api_calls_add(api_calls *c, const char *text, size_t len);
/* At the end: a marker that templates teach ("<tool_call>" ...), or a JSON object that begins with
 * the name of a function. */
bool api_calls_seen(const api_calls *c);

#endif
