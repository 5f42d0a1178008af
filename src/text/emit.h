/* emit.h - from the bytes of tokens, one at a time, to the text that a client may see.
 *
 *   given out already | held: ...an incomplete character, the beginning of a stop string...| next
 * piece
 *
 * A pure state machine: the text given out, all deltas joined, is a function of the bytes pushed
 * and the stop strings, however the bytes were cut into pieces. Given out is only whole, valid
 * UTF-8; held back is only the tail that is a proper prefix of some stop string, or an incomplete
 * character. The stop that is complete first ends the text; of several that end at the same byte
 * the longest; what stands before it is given out. Stop strings are compared with the bytes as the
 * model made them. Bytes that are no UTF-8 become U+FFFD, one for each longest piece that could
 * have begun a character (Unicode's recommendation, as Python's errors="replace"); so does an
 * incomplete tail at the end.
 *
 * One step of Knuth, Morris and Pratt per stop string and byte. No allocation after create. Not
 * thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_EMIT_H
#define TEXT_EMIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "troika/status.h"

enum { EMIT_STOPS_MAX = 16, EMIT_STOP_BYTES_MAX = 256 };

typedef struct emit emit;

/* Stops are copied. piece_max: the longest piece that will be pushed (tokenizer_piece_max).
 * TROIKA_INVALID for too many, empty, too long or not UTF-8. Owned: emit_destroy. */
troika_status emit_create(const bytes_view *stops, size_t n, size_t piece_max, emit **out,
                          troika_error *err);
void emit_destroy(emit **e);
void emit_reset(emit *e); /* as just created */

/* Takes a piece of at most piece_max bytes. *text: what may be given out now, perhaps nothing;
 * borrowed until the next call. True: a stop string is complete, *text is the rest before it, later
 * pushes are an error of the caller. */
bool emit_push(emit *e, bytes_view piece, bytes_view *text);
/* The end of generation without a stop: what was held back. Borrowed until the next call. */
bytes_view emit_flush(emit *e);
/* The place in `stops` of the one that matched, or -1. */
int emit_stop(const emit *e);

#endif
