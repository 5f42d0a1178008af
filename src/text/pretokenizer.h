/* pretokenizer.h - cuts text into the pieces that byte-level BPE may not merge across.
 *
 * Which cut a model wants is named by `tokenizer.ggml.pre`; a wrong one gives wrong ids without any
 * error, so an unknown name is refused. Each name is a regular expression as the model's own
 * tokenizer states it (PCRE2 with JIT: 56-80 MB/s), and perhaps a first pass that sets digits
 * apart. A regular expression from outside is never compiled. Matching memory is bounded (JIT stack
 * 1 MiB, heap 16 MiB); a text that needs more is TROIKA_LIMIT.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_PRETOKENIZER_H
#define TEXT_PRETOKENIZER_H

#include <stdbool.h>

#include "base/bytes.h"
#include "troika/status.h"

typedef struct pretokenizer pretokenizer; /* immutable: any thread */

/* TROIKA_UNSUPPORTED naming the known ones. */
troika_status pretokenizer_create(bytes_view name, pretokenizer **out, troika_error *err);
void pretokenizer_destroy(pretokenizer **p);
bool pretokenizer_adds_bos(
    const pretokenizer *p); /* what such models do when their file does not say */
bool pretokenizer_whole_first(const pretokenizer *p); /* a piece that is a token needs no merges */
bool pretokenizer_composes(const pretokenizer *p);    /* the text is brought to NFC before */

/* Calls `piece` for each piece of valid UTF-8 in order; together they are the text. */
troika_status pretokenizer_split(const pretokenizer *p, bytes_view text,
                                 troika_status (*piece)(void *context, bytes_view piece),
                                 void *context, troika_error *err);

#endif
