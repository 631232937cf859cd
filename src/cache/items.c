#include "cache/state.h"

enum { RESERVE_BYTES = 16 << 20 };

int items_open(struct item_pool *p, struct cache *c, size_t item_bytes, size_t limit_bytes, struct weft_error *e) {
    enum { MOST_ITEMS = 1 << 28, FREE_ITEMS = 1 << 16 };
    *p = (struct item_pool){.cache = c, .item_bytes = item_bytes};
    size_t n = item_bytes ? limit_bytes / item_bytes : FREE_ITEMS;
    p->capacity = n < MOST_ITEMS ? (int)n : MOST_ITEMS;
    p->reserve = item_bytes ? (int)(RESERVE_BYTES / item_bytes) : p->capacity;
    if (p->reserve < 1) p->reserve = 1;
    if (p->capacity == 0) return 0;
    /* Address space; what is not used costs nothing. */
    p->refs = mem_map_pages((size_t)p->capacity * sizeof *p->refs);
    p->free = mem_map_pages((size_t)p->capacity * sizeof *p->free);
    if (item_bytes) p->base = c->options.backend->table->memory_new(c->options.backend, (size_t)p->capacity * item_bytes);
    if (p->refs && p->free && (p->base || !item_bytes)) return 0;
    items_close(p);
    return error_memory(e, "the cache's regions");
}

void items_close(struct item_pool *p) {
    if (!p->cache) return;
    struct backend *b = p->cache->options.backend;
    if (p->base) b->table->memory_free(b, p->base, (size_t)p->capacity * p->item_bytes);
    mem_free_pages(p->refs, (size_t)p->capacity * sizeof *p->refs);
    mem_free_pages(p->free, (size_t)p->capacity * sizeof *p->free);
    *p = (struct item_pool){0};
}

static void release_idle(struct item_pool *p, int item) {
    struct backend *b = p->cache->options.backend;
    if (p->item_bytes) b->table->memory_release(b, items_at(p, item), p->item_bytes);
    p->n_idle--, p->cache->idle_bytes -= p->item_bytes;
}

/* Gives back the memory of every idle item of every pool. Rare: the budget is about to be exceeded. */
static void release_all(struct cache *c) {
    struct item_pool *pools[] = {&c->pages[LOW], &c->pages[HIGH], &c->pages[MTP], &c->states, &c->logs, &c->snapshots};
    for (int i = 0; i < 6; i++)
        while (pools[i]->n_idle > 0) release_idle(pools[i], pools[i]->free[pools[i]->n_free - pools[i]->n_idle]);
}

int cache_set_aside(struct cache *c, size_t bytes) {
    size_t all = cache_memory_bytes(c);
    if (bytes > all) return 0;
    while (c->used_bytes > all - bytes)
        if (!c->reclaim || !c->reclaim(c->reclaim_arg)) return 0;
    if (c->used_bytes + c->idle_bytes > all - bytes) release_all(c);
    atomic_fetch_add(&c->aside_bytes, bytes);
    return 1;
}

void cache_give_back(struct cache *c, size_t bytes) {
    CHECK(bytes <= atomic_load(&c->aside_bytes));
    atomic_fetch_sub(&c->aside_bytes, bytes);
}

int items_take(struct item_pool *p) {
    struct cache *c = p->cache;
    if (!c || p->capacity == 0) return NO_PAGE;
    while (c->used_bytes + p->item_bytes > cache_memory_bytes(c) || p->n_used >= p->capacity)
        if (!c->reclaim || !c->reclaim(c->reclaim_arg)) return NO_PAGE;
    int item;
    if (p->n_free > 0) {
        item = p->free[--p->n_free];
        if (p->n_idle > 0) p->n_idle--, c->idle_bytes -= p->item_bytes;
    } else item = p->n_fresh++;
    CHECK(p->refs[item] == 0);
    p->refs[item] = 1, p->n_used++;
    c->used_bytes += p->item_bytes;
    if (c->used_bytes > c->peak_bytes) c->peak_bytes = c->used_bytes;
    if (c->used_bytes + c->idle_bytes > cache_memory_bytes(c)) release_all(c);
    return item;
}

void items_share(struct item_pool *p, int item) {
    CHECK(item >= 0 && item < p->n_fresh && p->refs[item] > 0);
    p->refs[item]++;
}

void items_drop(struct item_pool *p, int item) {
    CHECK(item >= 0 && item < p->n_fresh && p->refs[item] > 0);
    if (--p->refs[item] > 0) return;
    struct cache *c = p->cache;
    p->n_used--, c->used_bytes -= p->item_bytes;
    p->free[p->n_free++] = item;
    p->n_idle++, c->idle_bytes += p->item_bytes;
    if (p->n_idle <= p->reserve) return;
    /* The one that has been free for longest lies lowest among the idle ones. */
    release_idle(p, p->free[p->n_free - p->n_idle]);
}
