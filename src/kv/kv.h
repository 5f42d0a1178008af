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
 * the same page in several sequences and are never written again. Invariant: free + cached + owned
 * = total, in every group.
 *
 * Prefixes: a full page of tokens is published under a key that hashes the salt (whose cache it
 * is), all tokens up to its end and whether any was generated. A prefix of n tokens matches only if
 * every group still holds what position n needs: for a window, the pages covering [n - W, n). No
 * match crosses salts: a node says whose it is, and that is compared, not only hashed.
 *
 * Copy on write is by whole pages: a page is shared only when all its 32 tokens are final, and is
 * never written again; who goes on from inside one computes its rows into a page of its own. So no
 * KV is ever copied (bytes_copied of a switch, a share or a fork is 0), at the price of at most 31
 * rows computed twice.
 *
 * Eviction: pages whose last owner is gone stay cached until they are needed. Then the one with the
 * smallest price goes (evict.c; scheduling.md 6):
 *     V = w * p * c / (tau + 1 s)
 * by what the sequences that held it last claimed (kv_hint), and by what waits for it (kv_expect);
 * without hints that is least recently used. In a full group a prefix never goes before its suffix.
 *
 * Suspend and take up again: publish and close; later open, promise, kv_match_own, kv_attach, and
 * go on from what that returned. Nothing is lost but the rows of the last page that was not whole,
 * and what was evicted meanwhile. Windows keep what the last whole page's end needs for this.
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
  uint32_t expected;  /* waiting requests whose prefixes are expected at once, at most; 0: none */
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
  uint64_t evictions;  /* cached pages given to somebody else, since kv_create */
  size_t page_bytes;
} kv_pool_stats;
void kv_stats(const kv *k, uint32_t group, kv_pool_stats *out); /* O(1) */

typedef struct kv_total_stats {
  uint64_t hits, hit_pages, hit_tokens; /* attached prefixes; pages of all groups */
  uint64_t evictions;                   /* pages of all groups */
  uint32_t nodes;                       /* pages of tokens that the tree knows */
  /* What the pools cost besides their pages, in bytes. The tree is reserved for the most that there
   * can be, and touched as far as it was ever used. */
  uint64_t node_bytes, node_bytes_max, bucket_bytes, table_bytes, page_entry_bytes;
} kv_total_stats;
void kv_totals(const kv *k, kv_total_stats *out); /* O(groups) */

/* The time that pages get their age from; once per turn of the runtime's loop. A clock that goes
 * back stands still. */
void kv_clock(kv *k, int64_t now_ns);
uint8_t *kv_pool(const kv *k, uint32_t group); /* page p begins at kv_pool + p * page_bytes */
uint64_t kv_bytes(const kv *k);                /* of all pools */

/* A sequence is a number below options.sequences. Its tables stay at one address while it is open.
 */
troika_status kv_sequence_open(kv *k, uint32_t *sequence); /* BUSY if none is left */
void kv_sequence_close(kv *k, uint32_t sequence); /* pages go to the cache or become free */
/* Pages that nobody else holds: what closing it would make free or cached. O(pages held). */
void kv_sequence_holds(const kv *k, uint32_t sequence, uint32_t out[KV_GROUPS_MAX]);
const uint32_t *kv_sequence_pages(const kv *k, uint32_t sequence, uint32_t group);

/* Pages that positions [0, tokens) of a new sequence will need at most at any one time, per group,
 * into need[KV_GROUPS_MAX]. */
void kv_need(const kv *k, uint32_t tokens, uint32_t *need);
/* Promises that this sequence will get pages for `tokens` positions: takes them out of what others
 * may be promised. Called again with more it raises the promise, also while rows are in flight;
 * with fewer it changes nothing. BUSY if they are not to be had now (free + cached - promised),
 * LIMIT if never: then the promise is what it was. Given back by close. */
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
  uint64_t key;       /* of the last page; 0: nothing */
  uint32_t tokens;    /* that it covers */
  uint32_t made_from; /* which of several with these tokens: internal */
} kv_ref;
uint32_t kv_match(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, bool exact,
                  kv_ref *out);
/* The same for one that goes on after a suspension: its own tokens, of which those at
 * `generated_from` and after were generated. Takes pages only that hold what computing those rows
 * again would give, bit for bit: exact ones, then such with generated tokens from that position on
 * (its own, or of another that generated the same after the same prompt). */
uint32_t kv_match_own(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                      uint32_t generated_from, kv_ref *out);
/* Where a prompt leaves what is cached: how many of its tokens agree, one by one, with the longest
 * path under this salt, also inside the first page that differs (of the 256 newest pages that
 * follow the last equal one: with more, it may be less). *matched_pages_tokens: up to where whole
 * pages are there to be attached. For people to see; O(pages). */
uint32_t kv_diverged(const kv *k, uint64_t salt, const int32_t *tokens, uint32_t n,
                     uint32_t *matched_pages_tokens);
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

/* What this sequence's pages are worth once it is gone: given to those it then holds or has
 * published (not to what slid out of a window before), at close. The last call counts. A page that
 * several claim keeps the best of each: the highest w * p * c, the nearest next use. Claims end
 * when the page is attached again after it was only cached: who holds it then says what comes next.
 */
typedef struct kv_claim_hint {
  uint32_t w;                 /* 4: reactive or interactive work claims it; 1: other; at most 16 */
  uint32_t p;                 /* chance of reuse in 1/1000: 100 none, 500 open session, 800 hint */
  uint64_t cost_ns_per_token; /* to compute it again, at position 0; 0: 1 ms */
  uint32_t depth_ns;   /* added to that per 1,024 positions in front; 0: the same everywhere */
  int64_t next_use_ns; /* expected, by the clock of kv_clock; INT64_MAX: unknown */
} kv_claim_hint;
void kv_hint(kv *k, uint32_t sequence, const kv_claim_hint *hint); /* O(1); copied */

/* A request that waits is sure to use what is cached of its prefix. Until kv_expect_end those pages
 * are priced with tau = 0 and p = 1, by the costs of `hint` and its w (4 if above 1); the rest
 * of the hint does not count. It is the longest prefix that kv_match_own would find by now for the
 * first n (generated_from: UINT32_MAX if no token was generated); what was evicted
 * nevertheless is no more part of it, and what comes later neither. KV_NO_EXPECTATION: nothing is
 * cached, or options.expected are open. O(pages). */
#define KV_NO_EXPECTATION UINT32_MAX
uint32_t kv_expect(kv *k, uint64_t salt, const int32_t *tokens, uint32_t n, uint32_t generated_from,
                   const kv_claim_hint *hint);
/* Takes it back; does nothing for KV_NO_EXPECTATION. */
void kv_expect_end(kv *k, uint32_t expectation);

/* Walks everything and checks the invariant; for tests. false with a sentence in err. */
bool kv_check(const kv *k, troika_error *err);

#endif
