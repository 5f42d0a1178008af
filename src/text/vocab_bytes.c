/* vocab_bytes.c - GPT-2 wrote vocabularies as text by giving each byte a printable letter; this
 * undoes it.
 *
 * Bytes 33..126, 161..172, 174..255 are the letters of the same number; the other 68 (controls,
 * space, 127..160, 173) are U+0100, U+0101 ... in ascending order. So a space is U+0120. Source:
 * the published GPT-2 encoder.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer_internal.h"

static bool byte_is_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* -1 if the letter stands for no byte. */
static int letter_byte(uint32_t letter) {
  if (letter < 256) return byte_is_itself(letter) ? (int)letter : -1;
  uint32_t rank = letter - 256;
  if (rank < 33) return (int)rank;           /* 0..32 */
  if (rank < 33 + 34) return (int)rank + 94; /* 127..160 */
  return rank == 67 ? 173 : -1;
}

size_t vocab_unmap_bytes(const char *text, size_t len, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < len;) {
    uint8_t lead = (uint8_t)text[i];
    uint32_t letter = lead;
    size_t size = 1;
    if (lead >= 0x80) {
      /* Letters end at U+0143: two bytes always. */
      if ((lead & 0xe0) != 0xc0 || i + 1 >= len || ((uint8_t)text[i + 1] & 0xc0) != 0x80)
        return SIZE_MAX;
      letter = (uint32_t)(lead & 0x1f) << 6 | ((uint8_t)text[i + 1] & 0x3f);
      size = 2;
    }
    int byte = letter_byte(letter);
    if (byte < 0) return SIZE_MAX;
    out[n++] = (char)byte;
    i += size;
  }
  return n;
}
