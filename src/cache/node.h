/* Private to the tree: its nodes. A node holds rows [begin, end) of one branch.
 *
 * Invariants
 * 1. The root of a set of adapters is empty (end = 0); any other node has rows.
 * 2. No two children of a node begin with the same key.
 * 3. A node without children ends at a snapshot.
 * 4. A block that reaches over the begin of a node has a page in both: the node's own holds the rows before it as well. */
#ifndef CACHE_NODE_H
#define CACHE_NODE_H
#include "cache/state.h"
#include "cache/tree.h"

struct node {
    struct node *parent, *children, *next;
    uint64_t adapters;           /* of a root */
    int begin, end;
    int64_t *keys;               /* [end - begin] */
    int32_t *pages[N_FORMS];     /* of blocks from first_block on; NO_PAGE where the form has none */
    int first_block, n_blocks;
    int mtp_rows;                /* MTP rows in these pages are right below this row */
    int64_t mtp_next;            /* the key behind the last row that the last MTP row was made with, when mtp_rows = end */
    struct snapshot *snapshots;  /* rows ascending, in (begin, end] */
    uint64_t used;               /* when a store or restore last passed through */
};

struct tree {
    struct cache *cache;
    struct node *roots;
    uint64_t now;
    struct tree_stats stats;
};

/* A node of rows [begin, end) that holds the given keys and shares pages[form][i], the page of block begin / BLOCK_ROWS + i. */
struct node *node_new(struct cache *c, int begin, int end, const int64_t *keys, int32_t *const pages[N_FORMS]);
void node_link(struct node *parent, struct node *n);
/* Without children; drops its pages. Snapshots must be gone. */
void node_free(struct cache *c, struct node *n);
/* Cuts a node in two at a row inside it; returns the upper part, or NULL when there is no memory. */
struct node *node_split(struct cache *c, struct node *n, int row);
void node_shorten(struct cache *c, struct node *n, int end);
/* Sets the MTP rows of a node whose pages are s's. */
void node_set_mtp(struct node *n, const struct sequence *s);
/* Takes over the MTP pages of a sequence whose MTP rows reach further. */
void node_improve(struct cache *c, struct node *n, const struct sequence *s);
void node_add_snapshot(struct node *n, struct snapshot *s);
void node_remove_snapshot(struct snapshot *s); /* does not free it */
struct snapshot *node_last_snapshot(const struct node *n);

/* How far keys[n] agree with the branches under `root`. *last: the node in which the agreement ends. */
int node_walk(struct node *root, const int64_t *keys, int n, struct node **last);
#endif
