/* SPDX-License-Identifier: Apache-2.0 */
/* kv.h - KV memory: pages of 32 tokens, in groups, one pool a group for all sequences.
 *
 *   group     layers that keep the same positions: all of them (KV_FULL), or the last `window`
 *             (KV_WINDOW)
 *   page      32 tokens of every layer of one group:
 *             [layer][KV head]{ K f16 [32][d] | V f16 [d][32] }
 *   sequence  one table of page numbers a group: page of position p is pages[p / 32]; KV_NO_PAGE
 *             where none is held
 *
 * A position range is reserved before it is written. A window group gives pages back as soon as no
 * row at or after `keep_from` can see them. Pages are counted by reference: shared prefixes hold
 * the same page in several sequences and are never written again.
 * Invariant: free + cached + owned = total, in every group.
 *
 * Prefixes: a full page of tokens is published under a key that hashes the salt (whose cache it
 * is), all tokens up to its end and whether any was generated. A prefix of n tokens matches only if
 * every group still holds what position n needs: for a window, the pages covering [n - W, n). Pages
 * whose last owner is gone stay cached until they are needed, least recently used first (price V of
 * scheduling.md 6 without hints). A sequence lets go of its last page first, so that in a full
 * group a suffix goes before its prefix.
 *
 * Single-threaded: owned by the runtime thread. Allocates at kv_create only. */
#ifndef KV_KV_H
#define KV_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "troika/status.h"

enum { KV_PAGE_TOKENS = 32, KV_GROUPS_MAX = 4 };
#define KV_NO_PAGE UINT32_MAX

typedef enum kv_kind { KV_FULL, KV_WINDOW } kv_kind;

typedef struct kv_group {
  uint8_t kind;         /* kv_kind */
  uint16_t page_tokens; /* KV_PAGE_TOKENS */
  uint32_t window;      /* positions that stay visible; KV_FULL: 0 */
  uint32_t layers;
  size_t page_bytes; /* of one page, all layers of the group; a multiple of 64 */
} kv_group;

typedef struct kv_options {
  const kv_group *groups; /* copied */
  uint32_t n_groups;
  uint32_t sequences; /* open at once, at most */
  uint32_t context;   /* positions of one sequence, at most */
  uint32_t ahead;     /* rows that may be written before the window moves (span rows) */
  uint64_t bytes;     /* of all pools together: a bound */
} kv_options;

/* How the bytes are split: so that `sequences` sequences of one length t have their pages in every
 * group at once, for the longest t <= context that the bytes allow; and every group has what one
 * sequence of `context` needs. Bytes beyond sequences x context make all groups larger by the same
 * ratio: room for cached prefixes. */

typedef struct kv kv;

/* Reserves the pools (zeroed memory that is not touched until used). LIMIT with the numbers if not
 * even one sequence of `context` fits. */
troika_status kv_create(const kv_options *options, kv **out, troika_error *err);
void kv_destroy(kv **k);

typedef struct kv_pool_stats {
  uint32_t total, free, cached, owned; /* pages; a shared page counts once */
  uint32_t promisable; /* that kv_sequence_promise could still give to a new sequence: what the
                          scheduler calls free */
  size_t page_bytes;
} kv_pool_stats;
void kv_stats(const kv *k, uint32_t group, kv_pool_stats *out);
uint8_t *kv_pool(const kv *k, uint32_t group); /* page p begins at kv_pool + p * page_bytes */
uint64_t kv_bytes(const kv *k);                /* of all pools */

/* A sequence is a number below options.sequences. Its tables stay at one address while it is open.
 */
troika_status kv_sequence_open(kv *k, uint32_t *sequence); /* BUSY if none is left */
void kv_sequence_close(kv *k, uint32_t sequence); /* pages go to the cache or become free */
const uint32_t *kv_sequence_pages(const kv *k, uint32_t sequence, uint32_t group);

/* Pages that positions [0, tokens) of a new sequence will need at most at any one time, per group,
 * into need[KV_GROUPS_MAX]. */
void kv_need(const kv *k, uint32_t tokens, uint32_t *need);
/* Promises that this sequence will get pages for `tokens` positions: takes them out of what others
 * may be promised. BUSY if they are not to be had now (free + cached - promised), LIMIT if never.
 * Given back by close. */
troika_status kv_sequence_promise(kv *k, uint32_t sequence, uint32_t tokens);
/* Makes [begin, end) writable: takes pages, evicting cached ones if none is free. keep_from <=
 * begin <= what was extended or attached so far; no page in it may be published. After a promise it
 * cannot fail as long as end is within the promised tokens and, if there are windows, within
 * keep_from + ahead. NO_MEMORY (more than promised, and not to be had) changes nothing. */
troika_status kv_sequence_extend(kv *k, uint32_t sequence, uint32_t begin, uint32_t end);
/* No row before position `from` will read any more: window groups let go of what none can see. */
void kv_sequence_keep_from(kv *k, uint32_t sequence, uint32_t from);

/* Longest cached prefix of tokens[0..n), in whole pages, at most n - 1 tokens (one row must be
 * computed to give logits). `exact`: no page that holds generated tokens. Fills *out for kv_attach;
 * 0 if nothing matches. */
typedef struct kv_ref {
  uint64_t key;    /* of the last page; 0: nothing */
  uint32_t tokens; /* that it covers */
} kv_ref;
uint32_t kv_match(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, bool exact,
                  kv_ref *out);
/* Puts the pages of a match into an empty sequence, shared; keep_from is then the tokens attached,
 * which it returns. 0, and nothing is changed: the match is no longer there, or (without a promise
 * before) others were promised so much that its cached pages cannot be taken. */
uint32_t kv_attach(kv *k, uint32_t sequence, uint64_t salt, const int32_t *tokens,
                   const kv_ref *ref);
/* The first `tokens` positions of the sequence are written and final: publish their whole pages.
 * generated_from: position of the first generated token (n if none). Cheap when nothing new is
 * whole. Pages after attached ones that hold generated tokens count as such. A page whose tokens
 * are already published by another sequence stays private. */
void kv_publish(kv *k, uint32_t sequence, uint64_t salt, const int32_t *tokens, uint32_t n,
                uint32_t generated_from);

/* Walks everything and checks the invariant; for tests. false with a sentence in err. */
bool kv_check(const kv *k, troika_error *err);

#endif
