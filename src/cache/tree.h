/* The prefix tree: rows that may serve again, by what they hold (tokens, media, positions, adapters), and snapshots of the
 * recurrent state at some of them.
 *
 * Invariants
 * 1. A node's pages are shared by reference with the sequences that wrote or use them and never written.
 * 2. Rows are kept as far as some snapshot needs them: behind the last snapshot of a branch there are none.
 * 3. Restoring gives the bits that computing would give.
 * 4. Whatever only the tree holds makes room when a step needs memory. */
#ifndef CACHE_TREE_H
#define CACHE_TREE_H
#include "cache/cache.h"

struct tree;
int tree_new(struct tree **out, struct cache *c, struct weft_error *e); /* one tree a cache */
void tree_free(struct tree *t);

/* Keeps s's rows up to the deepest of the snapshots; takes the snapshots (NULLs among them are skipped), also on failure.
 * Snapshots must be of rows of s. Call it after the MTP rows of those rows are committed where there are any (later ones would
 * copy pages) and before the next cache_begin (so that what snapshots hold can make room). */
int tree_store(struct tree *t, struct sequence *s, struct snapshot **snapshots, int n, struct weft_error *e);
/* Snapshot of the last row (with sequence_hidden where set), then tree_store: for the end of an answer. */
int tree_store_end(struct tree *t, struct sequence *s, struct weft_error *e);

/* Rows as they would be given to groups, from row 0 on. */
struct prompt_rows { const int32_t *tokens; int n_rows; const int64_t *keys; const int32_t *positions; int n_axes; };
/* How many rows tree_restore would give: at most n_rows - 1, or n_rows when the hidden row of the last one is known. */
int tree_find(const struct tree *t, uint64_t adapters, const struct prompt_rows *p);
/* Fills the empty sequence s from the deepest usable snapshot and returns the number of its rows (0: none is usable) or a
 * WEFT_ERROR_. With n_rows rows, sequence_hidden(s) is the last one's. */
int tree_restore(struct tree *t, struct sequence *s, const struct prompt_rows *p, struct weft_error *e);

/* Where to take snapshots. */
struct snapshot_rule {
    const int32_t *ends; int n_ends;  /* end-of-turn tokens */
    int32_t newline;                  /* the token of "\n", -1: none */
    int every;                        /* multiples of it; 0: none */
};
/* For rows [row0, row0 + n_rows) of tokens[n_tokens]: row counts relative to row0 (1..n_rows), ascending, at message ends,
 * multiples of `every`, and at n_tokens itself (the end of the prompt). Rows from n_tokens on (an answer's) get multiples only.
 * Writes the last `max` of them at most, returns how many. */
int snapshot_rows(const struct snapshot_rule *r, const int32_t *tokens, int n_tokens, int row0, int n_rows, int *out, int max);

struct tree_stats { int n_nodes, n_snapshots; size_t snapshot_bytes; int64_t n_hits, n_misses, rows_hit; };
void tree_get_stats(const struct tree *t, struct tree_stats *out);
/* Drops everything. */
void tree_clear(struct tree *t);
#endif
