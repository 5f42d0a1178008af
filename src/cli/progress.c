/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

enum { WIDTH = 30 };
#define BLINK_NS INT64_C(300000000)
#define FRAME_NS INT64_C(80000000)

void cli_progress_begin(cli_progress *p, const char *what) {
  *p = (cli_progress){
      .what = what, .started_ns = clock_real_now(NULL), .terminal = isatty(STDERR_FILENO) == 1};
}

void cli_progress_show(void *progress, uint64_t done, uint64_t total) {
  cli_progress *p = progress;
  if (!p->terminal || total == 0) return;
  int64_t now = clock_real_now(NULL);
  if (now - p->started_ns < BLINK_NS || now - p->drawn_ns < FRAME_NS) return;
  p->drawn_ns = now;
  p->visible = true;
  char bar[WIDTH + 1];
  int filled = (int)((double)done / (double)total * WIDTH);
  for (int i = 0; i < WIDTH; i++) bar[i] = i < filled ? '#' : '.';
  bar[WIDTH] = 0;
  fprintf(stderr, "\r%s [%s] %3.0f %%", p->what, bar, (double)done * 100 / (double)total);
  fflush(stderr);
}

void cli_progress_end(cli_progress *p) {
  /* blanks, not an escape sequence: a dumb terminal has bars too */
  if (p->visible) fprintf(stderr, "\r%*s\r", (int)strlen(p->what) + WIDTH + 12, "");
  p->visible = false;
}
