/* grammar.h - answers that keep to a form: a JSON object, a JSON schema, a regular expression, a
 * grammar in Lark's notation. Which tokens may come next, step by step, by llguidance in the Rust
 * static library beside this file.
 *
 *   tokenizer ─► grammar_vocab (once a model) ─┐
 *   client's source ───────────────────────────┴► grammar ─► mask, accept, mask, accept, end
 *
 * It fails closed: a source that cannot be enforced to the letter is refused with the keyword and
 * its place ("schema at $.properties.foo.not: ..."), never accepted in part. Nothing is fetched: a
 * $ref must lead into the schema itself.
 *
 * JSON, both kinds: keys come in the order of `properties` (required and optional ones alike), then
 * others, if additionalProperties allows (the default). Between the parts of a value stands at most
 * one newline and 20 blanks (GRAMMAR_BLANKS_MAX), so that a weak model cannot fall into blanks; no
 * blanks before the value, none after it.
 *   Enforced: type, enum, const, properties, patternProperties, additionalProperties (true, false
 *   or a schema), required, minProperties and maxProperties where properties are not named, items,
 *   prefixItems, minItems, maxItems, minLength, maxLength, pattern, minimum, maximum,
 *   exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, allOf, oneOf where its branches cannot
 *   overlap, $ref, $defs, definitions, true and false as schemas, and format: date-time, time, date,
 *   duration, email, hostname, ipv4, ipv6, uuid, uri.
 *   Ignored, since they forbid nothing: title, description, default, examples, deprecated, readOnly,
 *   writeOnly, $comment, $schema, $id, $anchor, contentMediaType and the like, x-*, and names
 *   that no draft knows.
 *   Refused: every other keyword of any draft (not, if, dependentRequired, uniqueItems, contains,
 *   propertyNames, ...), a format that is not above, a pattern with look-around, back references
 *   or \b.
 *   `pattern` is searched for (as JSON Schema has it) unless it is anchored.
 * Regular expression: Rust's regex syntax without look-around, back references, \b and inner
 * anchors; it matches the whole answer, so `^` and `$` at its ends change nothing.
 * Lark: llguidance's dialect: rules (lower case), terminals (upper case), `start` first to be
 * used, strings "..." with i flag, regular expressions /.../ with flags, | ( ) ? * + {m,n} ~m..n,
 * & and ~ on terminals, %ignore, %json {...}, %regex {...}, %lark {...}, %import common.X of a fixed
 * list, %llguidance {...} options; no special tokens <|x|>, no @grammar references.
 *
 * Threads: a vocabulary is immutable, any thread. A grammar belongs to one thread at a time; it may
 * be made on one and used on another. create starts and joins a thread with a 64 MiB stack: call it
 * from a client's thread. mask and accept are for the runtime thread: bounded steps, flat stack,
 * some allocation inside llguidance.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEXT_GRAMMAR_H
#define TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "text/tokenizer.h"
#include "troika/status.h"

enum {
  GRAMMAR_SOURCE_MAX = 128 << 10, /* bytes */
  GRAMMAR_NESTING_MAX = 100,      /* brackets within brackets: of JSON, of ( [ { in the others */
  GRAMMAR_BLANKS_MAX = 20
};

typedef struct grammar_vocab grammar_vocab;
typedef struct grammar grammar;

/* The trie of all tokens: 0.25 s and 25 MB for 49,000, so made at the first use. Copies what it
 * needs of the tokenizer, which may be destroyed before it. Owned: grammar_vocab_destroy, which may
 * come before its grammars'. TROIKA_UNSUPPORTED: no token ends an answer. */
troika_status grammar_vocab_create(const tokenizer *t, grammar_vocab **out, troika_error *err);
void grammar_vocab_destroy(grammar_vocab **v);

typedef enum grammar_kind {
  GRAMMAR_JSON_OBJECT, /* any JSON object; source is ignored */
  GRAMMAR_JSON_SCHEMA, /* source: the schema as JSON */
  GRAMMAR_REGEX,
  GRAMMAR_LARK
} grammar_kind;

/* Milliseconds; at most about two seconds for a hostile source, and a bounded amount of memory.
 * TROIKA_INVALID: the source is wrong; TROIKA_UNSUPPORTED: right, but not enforceable; TROIKA_LIMIT:
 * too long, too deep, or too much work. Always with the reason and its place. Owned:
 * grammar_destroy. */
troika_status grammar_create(const grammar_vocab *v, grammar_kind kind, bytes_view source,
                             grammar **out, troika_error *err);
/* A second one in the same state: n choices of one request parse the source once. */
troika_status grammar_clone(const grammar *g, grammar **out, troika_error *err);
void grammar_destroy(grammar **g);

/* Writes grammar_mask_words(v) words: bit i % 32 of word i / 32 is set if token i may come next.
 * A token that ends an answer is set, as all such tokens are, if and only if the text so far is
 * complete; no other control token ever. At least one bit is set. The same tokens after the same
 * source always give the same mask. Any failure (TROIKA_LIMIT: the step would take too long;
 * TROIKA_INTERNAL) is for good: the answer must end with an error; `bits` is then all zero. */
troika_status grammar_mask(grammar *g, uint32_t *bits);
uint32_t grammar_mask_words(const grammar_vocab *v);
/* A token that the mask of this state allows; an end token ends the text. TROIKA_INVALID for
 * another one (the state is unchanged); else as grammar_mask. */
troika_status grammar_accept(grammar *g, int32_t token);
/* Why mask or accept failed: a sentence, "" before that. Borrowed from g. */
const char *grammar_failure(const grammar *g);

/* The text so far is one that the grammar describes. */
bool grammar_is_complete(grammar *g);
/* It is complete and nothing may follow but an end token, or an end token has come: the engine can
 * stop without asking the model. */
bool grammar_is_over(grammar *g);

#endif
