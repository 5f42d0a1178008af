/* SPDX-License-Identifier: Apache-2.0 */
/* grammar.h - answers that keep to a form: a JSON object, a JSON schema, a regular expression, a
 * grammar in Lark's notation. Says which tokens may come next, step by step, by llguidance in the
 * Rust static library beside this file.
 *
 *   tokenizer ─► grammar_vocab (once a model) ─┐
 *   client's source ───────────────────────────┴► grammar ─► mask, accept, mask, accept, end
 *
 * It fails closed: a source that cannot be enforced to the letter is refused with the keyword and
 * its place ("keyword "not" at $.items is not supported"), never accepted in part. A schema is
 * rewritten before llguidance sees it, so that nothing of it is passed over there
 * (src/text/rust/src/schema.rs). Nothing is fetched: a $ref must lead into the schema itself.
 *
 * JSON, both kinds. Named keys come in the order of `properties`, then other required ones, then
 * others if additionalProperties allows them (the default). Between two parts of a value stand at
 * most one newline and then GRAMMAR_BLANKS_MAX spaces, so that a weak model cannot fall into
 * blanks; none before the value and none after it. Strings use the short escapes only, never \u, so
 * that each key has one spelling; a key that is not named may still come twice.
 *   Enforced: type, enum, const, properties, patternProperties, additionalProperties, required,
 *   items (also a list, with additionalItems), prefixItems, minItems, maxItems, minLength,
 *   maxLength, pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum (also draft 4's),
 *   multipleOf (4 digits), anyOf, allOf, oneOf if its branches exclude each other by type, constant
 *   or a required property of constants, $ref to #, #/pointer, #anchor; format: date, time,
 *   date-time, duration, email, hostname, ipv4, ipv6, uuid, uri, int8 to uint64; minProperties and
 *   maxProperties as far as llguidance counts.
 *   Ignored, for they forbid no value: title, description, default, examples, deprecated, readOnly,
 *   writeOnly, $comment, $schema, content*, x-*, float, double, password as formats, and names that
 *   no draft knows.
 *   Refused: every other keyword of any draft (not, if, dependentRequired, uniqueItems, contains,
 *   ...), other formats, patterns with look-around, back references or \b, numbers that a double
 *   does not hold, a schema that no finite text fits.
 *   `pattern` is ECMAScript's, searched for anywhere unless it is anchored.
 * Regular expression: the syntax of Rust's regex crate without look-around, back references, \b and
 * anchors within. It matches the whole answer, so `^` and `$` at its ends change nothing.
 * Lark: llguidance's dialect, at most 64 KiB and 1,000 definitions. Rules (lower case, `start` is
 * the answer), terminals (upper case), "text", "text"i, "a".."z", /regex/ with flags i m s u x,
 * | ( ) [ ] ? * + {m,n}; in terminals & and & ~; %ignore, %import common.NAME, %regex; comments.
 * Refused: special tokens <|x|>, @grammar, %json, %lark, %llguidance, attributes of rules, ::.
 *
 * Threads: a vocabulary is immutable, any thread. A grammar belongs to one thread at a time; it may
 * be made on one and used on another. create starts and joins a thread with a 64 MiB stack: call it
 * from a client's thread. mask and accept are for the runtime thread: some ms at most, but for
 * sources so ambiguous that a step is ended after GRAMMAR_STEP_MS of processor time (a thread of
 * the process looks after that); 256 KiB of stack are plenty; they allocate inside llguidance. */
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
  GRAMMAR_BLANKS_MAX = 20,
  GRAMMAR_HELD_MAX_MB = 10,  /* what one grammar may hold when it is made */
  GRAMMAR_GROWN_MAX_MB = 32, /* and in the course of an answer, its tables growing by use */
  GRAMMAR_STEP_MS = 200      /* processor time of one mask or accept */
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

/* Milliseconds; less than two seconds of processor time for a hostile source, and at most 150 MB
 * while it is read. What is made holds at most GRAMMAR_HELD_MAX_MB, a usual schema 0.1 to
 * 1; more in an answer where characters are counted: 14 to 30 for a text of maxLength 10,000.
 * TROIKA_INVALID: the source is wrong, or no text fits it; TROIKA_FORMAT: not UTF-8;
 * TROIKA_UNSUPPORTED: right, but not enforceable; TROIKA_LIMIT: too long, too deep, or too much
 * work. Always with the reason, and the place if it has one. Owned: grammar_destroy. */
troika_status grammar_create(const grammar_vocab *v, grammar_kind kind, bytes_view source,
                             grammar **out, troika_error *err);
/* A second one in the same state, for n choices of one request: the source is not parsed again, the
 * tables are copied (0.1 ms, 5 ms for the largest). Both then answer the same tokens alike, and are
 * independent: each may be used, cloned and destroyed on a thread of its own. During the call g
 * belongs to the caller: clone before the original is given to another thread, such as on the
 * client's thread, right after create. */
troika_status grammar_clone(const grammar *g, grammar **out, troika_error *err);
void grammar_destroy(grammar **g);

/* Writes grammar_mask_words(v) words: bit i % 32 of word i / 32 is set if token i may come next.
 * A token that ends an answer is set, as all such tokens are, if and only if the text so far is
 * complete; no other control token ever. At least one bit is set. The same tokens after the same
 * source always give the same mask. Any failure (TROIKA_LIMIT: the step would take too long, or
 * the grammar would hold too much; TROIKA_INTERNAL) is for good: the answer must end with an error;
 * `bits` is then all zero. */
troika_status grammar_mask(grammar *g, uint32_t *bits);
uint32_t grammar_mask_words(const grammar_vocab *v);
/* A token that the mask of this state allows; an end token ends the text. TROIKA_INVALID for
 * another one, and after the end (the state is unchanged); else as grammar_mask. */
troika_status grammar_accept(grammar *g, int32_t token);
/* Why mask or accept failed: a sentence, "" before that. Borrowed from g. */
const char *grammar_failure(const grammar *g);

/* The text so far is one that the grammar describes. The mask says so too, by its end tokens: this
 * is how tests hold the two against each other. */
bool grammar_is_complete(grammar *g);
/* It is complete and nothing may follow but an end token, or an end token has come: the engine can
 * stop without asking the model. */
bool grammar_is_over(grammar *g);

#endif
