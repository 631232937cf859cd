#include <string.h>

#include "cache/state.h"

struct snapshot *snapshot_take(struct cache *c) {
    struct item_pool *p = &c->snapshots;
    while (p->n_used >= p->capacity)
        if (p->capacity == 0 || !c->reclaim_snapshot || !c->reclaim_snapshot(c->reclaim_arg)) return NULL;
    int slot = items_take(p);
    if (slot == NO_PAGE) return NULL;
    struct snapshot *n = &c->snapshot_of[slot];
    *n = (struct snapshot){.cache = c, .slot = slot, .refs = 1};
    return n;
}

void snapshot_share(struct snapshot *n) { n->refs++; }

void snapshot_free(struct snapshot *n) {
    if (!n) return;
    CHECK(n->refs > 0);
    if (--n->refs == 0) items_drop(&n->cache->snapshots, n->slot);
}

int snapshot_row(const struct snapshot *n) { return n->row; }

float *snapshot_hidden(const struct snapshot *n) {
    return n->cache->hidden_of + (size_t)n->slot * (size_t)n->cache->shape.hidden;
}

void snapshot_set_hidden(struct snapshot *n, const float *hidden) {
    memcpy(snapshot_hidden(n), hidden, (size_t)n->cache->shape.hidden * sizeof *hidden);
    n->has_hidden = 1;
}

int sequence_snapshot(struct snapshot **out, struct sequence *s, struct weft_error *e) {
    struct cache *c = s->cache;
    *out = NULL;
    CHECK(!s->busy && s->rows > 0 && !s->lost);
    struct snapshot *n = snapshot_take(c);
    if (!n) return error_set(e, WEFT_ERROR_MEMORY, "the cache's memory has no room for a snapshot");
    sequence_fold(s);
    struct backend *b = c->options.backend;
    if (s->slot != NO_PAGE)
        b->table->copy(b, items_at(&c->snapshots, n->slot), items_at(&c->states, s->slot), cache_state_bytes(c));
    n->row = s->rows;
    if (s->has_hidden) snapshot_set_hidden(n, s->hidden);
    *out = n;
    return 0;
}
