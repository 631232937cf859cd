#include "cache/node.h"

#include <string.h>

struct node *node_new(struct cache *c, int begin, int end, const int64_t *keys, int32_t *const pages[N_FORMS]) {
    int first = begin / BLOCK_ROWS, n_blocks = blocks_of(end) - first, n_keys = end - begin;
    size_t bytes = sizeof(struct node) + (size_t)n_keys * sizeof *keys + (size_t)(n_blocks * N_FORMS) * sizeof(int32_t);
    struct node *n = mem_new(1, bytes);
    if (!n) return NULL;
    n->begin = begin, n->end = end, n->first_block = first, n->n_blocks = n_blocks;
    n->keys = (int64_t *)(n + 1);
    for (int f = 0; f < N_FORMS; f++) n->pages[f] = (int32_t *)(n->keys + n_keys) + f * n_blocks;
    if (n_keys) memcpy(n->keys, keys, (size_t)n_keys * sizeof *keys);
    for (int f = 0; f < N_FORMS; f++)
        for (int i = 0; i < n_blocks; i++) {
            n->pages[f][i] = pages[f] ? pages[f][i] : NO_PAGE;
            if (n->pages[f][i] != NO_PAGE) items_share(&c->pages[f], n->pages[f][i]);
        }
    return n;
}

void node_link(struct node *parent, struct node *n) {
    n->parent = parent, n->next = parent->children, parent->children = n;
}

static void unlink_node(struct node *n) {
    struct node **at = &n->parent->children;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
}

static void drop_blocks(struct cache *c, struct node *n, int n_blocks) {
    for (; n->n_blocks > n_blocks; n->n_blocks--)
        for (int f = 0; f < N_FORMS; f++)
            if (n->pages[f][n->n_blocks - 1] != NO_PAGE) items_drop(&c->pages[f], n->pages[f][n->n_blocks - 1]);
}

void node_free(struct cache *c, struct node *n) {
    CHECK(!n->children && !n->snapshots);
    drop_blocks(c, n, 0);
    if (n->parent) unlink_node(n);
    mem_free(n);
}

void node_shorten(struct cache *c, struct node *n, int end) {
    CHECK(!n->children && end > n->begin && end <= n->end);
    if (n->mtp_rows >= end && end < n->end) n->mtp_rows = end, n->mtp_next = n->keys[end - n->begin];
    n->end = end;
    drop_blocks(c, n, blocks_of(end) - n->first_block);
}

struct node *node_split(struct cache *c, struct node *n, int row) {
    CHECK(row > n->begin && row < n->end);
    struct node *upper = node_new(c, n->begin, row, n->keys, n->pages);
    if (!upper) return NULL;
    upper->used = n->used, upper->mtp_rows = n->mtp_rows < row ? n->mtp_rows : row;
    upper->mtp_next = n->keys[row - n->begin];
    unlink_node(n), node_link(n->parent, upper), node_link(upper, n);
    n->next = NULL;
    while (n->snapshots && n->snapshots->row <= row) {
        struct snapshot *s = n->snapshots;
        node_remove_snapshot(s), node_add_snapshot(upper, s);
    }
    int skip = row / BLOCK_ROWS - n->first_block;
    for (int f = 0; f < N_FORMS; f++) {
        for (int i = 0; i < skip; i++)
            if (n->pages[f][i] != NO_PAGE) items_drop(&c->pages[f], n->pages[f][i]);
        n->pages[f] += skip;
    }
    n->keys += row - n->begin;
    n->begin = row, n->first_block += skip, n->n_blocks -= skip;
    return upper;
}

/* MTP row i goes with key i + 1, so the row before the end is usable only where that key is known. */
static int mtp_within(const struct node *n, const struct sequence *s) {
    if (s->mtp_aligned < n->end) return s->mtp_aligned;
    return s->rows > n->end ? n->end : n->end - 1;
}

void node_set_mtp(struct node *n, const struct sequence *s) {
    n->mtp_rows = mtp_within(n, s);
    if (n->mtp_rows == n->end) n->mtp_next = s->keys[n->end];
}

void node_improve(struct cache *c, struct node *n, const struct sequence *s) {
    int rows = mtp_within(n, s);
    if (rows <= n->mtp_rows || rows <= n->first_block * BLOCK_ROWS) return;
    for (int i = 0; i < n->n_blocks; i++) {
        int32_t *page = &n->pages[MTP][i], better = s->pages[MTP][n->first_block + i];
        if (better == *page) continue;
        if (better != NO_PAGE) items_share(&c->pages[MTP], better);
        if (*page != NO_PAGE) items_drop(&c->pages[MTP], *page);
        *page = better;
    }
    node_set_mtp(n, s);
}

void node_add_snapshot(struct node *n, struct snapshot *s) {
    CHECK(s->row > n->begin && s->row <= n->end && !s->node);
    struct snapshot **at = &n->snapshots;
    while (*at && (*at)->row < s->row) at = &(*at)->next;
    s->next = *at, s->node = n, *at = s;
}

void node_remove_snapshot(struct snapshot *s) {
    struct snapshot **at = &s->node->snapshots;
    while (*at != s) at = &(*at)->next;
    *at = s->next, s->node = NULL, s->next = NULL;
}

struct snapshot *node_last_snapshot(const struct node *n) {
    struct snapshot *s = n->snapshots;
    while (s && s->next) s = s->next;
    return s;
}

int node_walk(struct node *root, const int64_t *keys, int n, struct node **last) {
    int at = 0;
    *last = root;
    while (at == (*last)->end && at < n) {
        struct node *child = (*last)->children;
        while (child && child->keys[0] != keys[at]) child = child->next;
        if (!child) break;
        int most = (n < child->end ? n : child->end) - child->begin, i = 1;
        while (i < most && child->keys[i] == keys[at + i]) i++;
        at += i, *last = child;
    }
    return at;
}
