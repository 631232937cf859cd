#include "cache/tree.h"

#include <string.h>

#include "cache/node.h"

/* An exact repeat needs the snapshot with the hidden row: losing it costs a little more than the rows say. */
enum { HIDDEN_BONUS_ROWS = 64 };

static struct node *root_of(const struct tree *t, uint64_t adapters) {
    struct node *r = t->roots;
    while (r && r->adapters != adapters) r = r->next;
    return r;
}

/* Restores invariant 3 after a snapshot or a child went: what no snapshot needs goes. Roots stay. */
static void trim(struct tree *t, struct node *n) {
    while (n->parent && !n->children) {
        struct snapshot *last = node_last_snapshot(n);
        if (last) {
            node_shorten(t->cache, n, last->row);
            return;
        }
        struct node *parent = n->parent;
        node_free(t->cache, n);
        t->stats.n_nodes--;
        n = parent;
    }
}

static void drop_snapshot(struct tree *t, struct snapshot *s) {
    struct node *n = s->node;
    node_remove_snapshot(s);
    snapshot_free(s);
    t->stats.n_snapshots--;
    trim(t, n);
}

/* The next leaf after n in the order of a walk over everything, the first one for NULL. */
static struct node *next_leaf(const struct tree *t, struct node *n) {
    if (!n) n = t->roots;
    else {
        while (n && !n->next) n = n->parent;
        if (n) n = n->next;
    }
    while (n && n->children) n = n->children;
    return n;
}

/* The deepest snapshot of the branch that was not used for longest, and the rows that only it needs. */
static int evict(void *arg) {
    struct tree *t = arg;
    struct node *oldest = NULL;
    for (struct node *n = next_leaf(t, NULL); n; n = next_leaf(t, n))
        if (n->parent && (!oldest || n->used < oldest->used)) oldest = n;
    if (!oldest) return 0;
    drop_snapshot(t, node_last_snapshot(oldest));
    return 1;
}

/* Rows to be computed again if this snapshot were not there. */
static int rows_saved(const struct snapshot *s) {
    int before = 0;
    for (const struct snapshot *o = s->node->snapshots; o != s; o = o->next) before = o->row;
    for (const struct node *n = s->node->parent; n && !before; n = n->parent) {
        const struct snapshot *last = node_last_snapshot(n);
        if (last) before = last->row;
    }
    return s->row - before + (s->has_hidden ? HIDDEN_BONUS_ROWS : 0);
}

/* One snapshot less: the one that saves least for its age; of equal ones that of the lowest row. */
static int thin(void *arg) {
    struct tree *t = arg;
    struct cache *c = t->cache;
    struct snapshot *worst = NULL;
    double least = 0;
    for (int i = 0; i < c->snapshots.n_fresh; i++) {
        struct snapshot *s = &c->snapshot_of[i];
        if (c->snapshots.refs[i] == 0 || !s->node) continue;
        double value = rows_saved(s) / (double)(t->now - s->node->used + 1);
        if (worst && (value > least || (value == least && s->row >= worst->row))) continue;
        worst = s, least = value;
    }
    if (!worst) return 0;
    drop_snapshot(t, worst);
    return 1;
}

int tree_new(struct tree **out, struct cache *c, struct weft_error *e) {
    CHECK(!c->reclaim);
    struct tree *t = *out = mem_new(1, sizeof *t);
    if (!t) return error_memory(e, "the prefix tree");
    t->cache = c;
    c->reclaim = evict, c->reclaim_snapshot = thin, c->reclaim_arg = t;
    return 0;
}

void tree_clear(struct tree *t) {
    while (evict(t)) continue;
}

void tree_free(struct tree *t) {
    if (!t) return;
    tree_clear(t);
    for (struct node *r = t->roots, *next; r; r = next) next = r->next, node_free(t->cache, r);
    t->cache->reclaim = t->cache->reclaim_snapshot = NULL;
    mem_free(t);
}

static void touch(struct tree *t, struct node *n) {
    for (t->now++; n; n = n->parent) n->used = t->now;
}

/* The node of s's branch that holds its rows up to `end`, made where there is none. NULL: no memory. */
static struct node *grow_branch(struct tree *t, const struct sequence *s, int end) {
    struct cache *c = t->cache;
    struct node *root = root_of(t, s->adapters), *n;
    if (!root) {
        if (!(root = node_new(c, 0, 0, NULL, (int32_t *[N_FORMS]){NULL}))) return NULL;
        root->adapters = s->adapters, root->next = t->roots, t->roots = root;
    }
    int at = node_walk(root, s->keys, end, &n);
    if (at < end && at < n->end) {
        if (!(n = node_split(c, n, at))) return NULL;
        t->stats.n_nodes++;
    }
    for (struct node *up = n; up; up = up->parent)
        if (up->end <= at) node_improve(c, up, s);
    if (at == end) return n;
    int first = at / BLOCK_ROWS;
    int32_t *pages[N_FORMS];
    for (int f = 0; f < N_FORMS; f++) pages[f] = s->pages[f] + first;
    struct node *child = node_new(c, at, end, s->keys + at, pages);
    if (!child) return NULL;
    node_set_mtp(child, s);
    node_link(n, child);
    t->stats.n_nodes++;
    return child;
}

/* The snapshot becomes the tree's; where there is one already it serves at most to complete that. */
static void attach(struct tree *t, struct node *deepest, struct snapshot *s) {
    struct node *n = deepest;
    while (s->row <= n->begin) n = n->parent;
    for (struct snapshot *have = n->snapshots; have; have = have->next)
        if (have->row == s->row) {
            if (s->has_hidden && !have->has_hidden) snapshot_set_hidden(have, snapshot_hidden(s));
            snapshot_free(s);
            return;
        }
    node_add_snapshot(n, s);
    t->stats.n_snapshots++;
}

int tree_store(struct tree *t, struct sequence *s, struct snapshot **snapshots, int n, struct weft_error *e) {
    int end = 0;
    CHECK(!s->busy);
    for (int i = 0; i < n; i++)
        if (snapshots[i] && snapshots[i]->row > end) end = snapshots[i]->row;
    CHECK(end <= s->rows);
    if (end == 0) return 0;
    struct node *deepest = grow_branch(t, s, end);
    if (deepest) touch(t, deepest);
    for (int i = 0; i < n; i++) {
        if (!snapshots[i]) continue;
        if (deepest) attach(t, deepest, snapshots[i]);
        else snapshot_free(snapshots[i]);
    }
    return deepest ? 0 : error_memory(e, "the prefix tree");
}

int tree_store_end(struct tree *t, struct sequence *s, struct weft_error *e) {
    struct snapshot *n;
    int code = sequence_snapshot(&n, s, e);
    return code ? code : tree_store(t, s, &n, 1, e);
}

/* The deepest snapshot that a prompt of these n rows may use. */
static struct snapshot *deepest_usable(struct node *root, const int64_t *keys, int n) {
    struct node *last;
    int at = node_walk(root, keys, n, &last);
    for (; last; last = last->parent) {
        struct snapshot *best = NULL;
        for (struct snapshot *s = last->snapshots; s && s->row <= at; s = s->next)
            if (s->row < n || s->has_hidden) best = s;
        if (best) return best;
    }
    return NULL;
}

/* Keys, tokens and positions of the prompt; any of the latter two may be left out. Returns the next position. */
static int fill_rows(struct cache *c, const struct prompt_rows *p, int n, int64_t *keys, int32_t *positions) {
    struct row_source from = {p->tokens, p->keys, p->positions, p->n_axes, p->n_rows};
    int next = 0;
    int32_t position[3];
    for (int i = 0; i < n; i++) {
        int64_t unique = p->tokens[i] < 0 && !p->keys ? cache_unique_key(c) : 0;
        int64_t key = row_key(&from, i, position, &next, unique);
        if (keys) keys[i] = key;
        if (positions) memcpy(positions + 3 * (size_t)i, position, sizeof position);
    }
    return next;
}

int tree_find(const struct tree *t, uint64_t adapters, const struct prompt_rows *p) {
    struct node *root = root_of(t, adapters);
    int64_t *keys = root ? mem_alloc((size_t)p->n_rows * sizeof *keys) : NULL;
    if (!keys) return 0;
    fill_rows(t->cache, p, p->n_rows, keys, NULL);
    const struct snapshot *s = deepest_usable(root, keys, p->n_rows);
    mem_free(keys);
    return s ? s->row : 0;
}

/* Pages of the branch that ends in n, up to `rows` and `mtp_rows`: of a block that several nodes hold, the deepest node's. */
static void share_pages(struct cache *c, struct sequence *s, const struct node *n, int rows, int mtp_rows) {
    for (int f = 0; f < N_FORMS; f++) s->n_blocks[f] = blocks_of(f == MTP ? mtp_rows : rows);
    for (int below = blocks_of(rows); n; n = n->parent) {
        for (int b = n->first_block; b < below && b < n->first_block + n->n_blocks; b++)
            for (int f = 0; f < N_FORMS; f++) {
                if (b >= s->n_blocks[f]) continue;
                s->pages[f][b] = n->pages[f][b - n->first_block];
                if (s->pages[f][b] != NO_PAGE) items_share(&c->pages[f], s->pages[f][b]);
            }
        if (n->first_block < below) below = n->first_block;
    }
}

/* How many leading MTP rows the pages that share_pages takes hold. A node's count holds from its first block on; what lies
 * before is its parents' matter. */
static int mtp_rows_of(const struct node *n, int rows) {
    int valid = rows - 1, below = rows; /* row rows - 1 goes with the token behind */
    for (const struct node *child = NULL; n; child = n, n = n->parent) {
        int first = n->first_block * BLOCK_ROWS, own = n->mtp_rows;
        if (child && own == n->end && n->mtp_next != child->keys[0]) own--;
        if (own < below && own < valid) valid = own > first ? own : first;
        below = first;
    }
    return valid;
}

int tree_restore(struct tree *t, struct sequence *s, const struct prompt_rows *p, struct weft_error *e) {
    struct cache *c = t->cache;
    CHECK(s->rows == 0 && s->mtp_rows == 0 && !s->busy);
    struct node *root = root_of(t, s->adapters);
    int code = root ? sequence_grow(s, p->n_rows, blocks_of(p->n_rows), e) : 0;
    if (code) return code;
    if (root) fill_rows(c, p, p->n_rows, s->keys, s->positions);
    struct snapshot *from = root ? deepest_usable(root, s->keys, p->n_rows) : NULL;
    if (!from) {
        t->stats.n_misses++;
        return 0;
    }
    /* What is shared stays, whatever is dropped to make room for the state. */
    int rows = from->row, mtp = mtp_rows_of(from->node, rows);
    touch(t, from->node);
    share_pages(c, s, from->node, rows, mtp);
    snapshot_share(from);
    if (sequence_need_slot(s, SLOT_ANY)) {
        sequence_trim(s);
        snapshot_free(from);
        return error_set(e, WEFT_ERROR_MEMORY, "the cache's memory has no room for a sequence's state");
    }
    struct backend *b = c->options.backend;
    b->table->copy(b, items_at(&c->states, s->slot), items_at(&c->snapshots, from->slot), cache_state_bytes(c));
    sequence_set_hidden(s, from->has_hidden ? snapshot_hidden(from) : NULL);
    snapshot_free(from);
    memcpy(s->tokens, p->tokens, (size_t)rows * sizeof *s->tokens);
    s->next_position = fill_rows(c, p, rows, NULL, NULL);
    s->rows = rows, s->mtp_rows = s->mtp_aligned = mtp;
    t->stats.n_hits++, t->stats.rows_hit += rows;
    return rows;
}

void tree_get_stats(const struct tree *t, struct tree_stats *out) {
    *out = t->stats;
    size_t one = t->cache->snapshots.item_bytes + (size_t)t->cache->shape.hidden * sizeof(float);
    out->snapshot_bytes = (size_t)t->stats.n_snapshots * one;
}
