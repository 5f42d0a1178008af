/* SPDX-License-Identifier: Apache-2.0 */
/* What a model says is not trusted with the terminal: an escape sequence could rewrite the screen,
 * the window's title, or what is pasted next. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

void cli_text_for_terminal(const char *text, size_t len, bytes_buffer *out) {
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == '\r') continue;
    if (c < 0x20 && c != '\n' && c != '\t') { /* U+2400 and up are pictures of these: ESC is ␛ */
      bytes_append_format(out, "\xE2\x90%c", 0x80 + c);
    } else if (c == 0x7F) {
      bytes_append_string(out, "\xE2\x90\xA1");
    } else if (c == 0xC2 && i + 1 < len && (unsigned char)text[i + 1] < 0xA0) {
      bytes_append_string(out, "\xEF\xBF\xBD"); /* U+0080 to U+009F: the 8-bit form of ESC [ */
      i++;
    } else {
      bytes_append(out, &text[i], 1);
    }
  }
}

void cli_write_text(FILE *out, const char *text, size_t len, bool terminal) {
  if (!terminal) {
    fwrite(text, 1, len, out);
  } else {
    bytes_buffer shown;
    bytes_init(&shown, SIZE_MAX / 4);
    cli_text_for_terminal(text, len, &shown);
    if (shown.len) fwrite(shown.data, 1, shown.len, out);
    bytes_free(&shown);
  }
  fflush(out);
}
