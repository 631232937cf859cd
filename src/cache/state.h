/* Private to the folder: what caches, sequences and snapshots are made of. */
#ifndef CACHE_STATE_H
#define CACHE_STATE_H
#include <stdatomic.h>

#include "base/mem.h"
#include "cache/cache.h"

enum { BLOCK_ROWS = KV_PAGE_ROWS, NO_PAGE = -1 };

/* Items of one size in one region of device memory that is touched as items come into use. Freed items keep their memory up to a
 * small reserve; beyond it, and when the budget needs it, it goes back to the system. */
struct item_pool {
    struct cache *cache;
    uint8_t *base;
    size_t item_bytes;
    int capacity, n_fresh;    /* items [0, n_fresh) were in use at some time */
    int n_used, n_idle;       /* idle: free, memory kept */
    int reserve;              /* most idle items */
    int32_t *refs;            /* [capacity]; 0: free */
    int32_t *free; int n_free;/* the idle ones on top */
};
int items_open(struct item_pool *p, struct cache *c, size_t item_bytes, size_t limit_bytes, struct weft_error *e);
void items_close(struct item_pool *p);
/* A free item with one reference, its contents undefined; NO_PAGE when neither budget nor reclaiming gives one. */
int items_take(struct item_pool *p);
void items_share(struct item_pool *p, int item);
void items_drop(struct item_pool *p, int item); /* one reference less */
static inline uint8_t *items_at(const struct item_pool *p, int item) { return p->base + (size_t)item * p->item_bytes; }

/* So many single rows wait in a log of the state slot before the state is written: reading it is half of the way. As many as kernels
 * apply on the fly; more would gain little and take memory. */
enum { WAIT_ROWS = 4 };

/* Byte offsets. A state slot holds the layers' parts, as a snapshot does, then the layers' waiting rows; a log slot the layers' rows
 * to undo, twice. */
struct log_layout { size_t k, u, conv, layer_bytes; };
struct delta_layout {
    size_t conv, layer_bytes;                     /* of a layer's part; the state is at 0 */
    struct log_layout undo, wait;
};

struct snapshot {
    struct cache *cache;
    int slot, row, refs;      /* slot: also the snapshot's index and that of its hidden row */
    int has_hidden;
    struct node *node;        /* the tree's, NULL elsewhere */
    struct snapshot *next;    /* in the node, rows ascending */
};

enum { LOW, HIGH, MTP, N_FORMS }; /* main rows below and from kv_start on; MTP rows, present only where the head ran */
struct sequence {
    struct cache *cache;
    int rows, room;
    int32_t *tokens;          /* [room] */
    int64_t *keys;            /* [room] what the tree compares: the token, or a negative hash */
    int32_t *positions;       /* [room][3] */
    int next_position;
    int mtp_rows, mtp_aligned;
    int32_t *pages[N_FORMS];  /* [block_room] page of each block, NO_PAGE where none */
    int n_blocks[N_FORMS], block_room;
    int slot, log_slot;       /* NO_PAGE until needed */
    int n_pending;            /* rows that the state does not have yet: */
    int waiting, log_half;    /* they wait in the state slot, or are what was kept of this half of the log slot */
    uint64_t adapters;
    float *hidden; int has_hidden;
    int busy, lost;
};

/* What begin did, so that commit can finish it and a failure or abort undo it. */
struct page_change { struct sequence *seq; int form, block, old; };
struct step_group { int before, n_blocks[N_FORMS], next_position, new_slot, new_log, snapshot0, fold; };
struct step {
    int open;
    int32_t *positions; int n_rows, row_room;                      /* [row_room][3] */
    struct page_change *changes; int n_changes, change_room;
    struct step_group *groups; int group_room;
    struct snapshot **snapshots; struct delta_snapshot *layers;    /* [snapshot_room], [snapshot_room * n_delta] */
    int n_snapshots, snapshot_room;
};

struct cache {
    struct cache_shape shape;
    struct cache_options options;
    struct kv_scheme low_scheme, *schemes;        /* [n_attention] */
    size_t *layer_offset[N_FORMS];                /* [n_attention] of a layer within a page */
    char *scheme_text;
    struct item_pool pages[N_FORMS], states, logs, snapshots;
    struct snapshot *snapshot_of;                 /* [snapshots.capacity] */
    float *hidden_of;                             /* [snapshots.capacity][hidden], host */
    struct delta_layout delta;
    size_t used_bytes, idle_bytes, peak_bytes;
    atomic_size_t aside_bytes;                    /* of the budget; read by threads that submit */
    uint64_t n_unique, seed;                      /* keys of rows without identity */
    int n_sequences;
    struct step step;
    /* Set by the tree: drops something that only it holds; 0 when there is nothing left. The second for a snapshot. */
    int (*reclaim)(void *arg);
    int (*reclaim_snapshot)(void *arg);
    void *reclaim_arg;
};

/* The form that a layer's rows from kv_start on have. */
static inline int layer_form(const struct cache *c, int layer) {
    return layer < c->shape.n_attention - c->shape.n_mtp ? HIGH : MTP;
}
static inline int blocks_of(int rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; }
static inline uint64_t hash_mix(uint64_t h, uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h ^= h >> 30, h *= 0xbf58476d1ce4e5b9u;
    h ^= h >> 27, h *= 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

/* Where this step's rows go to be undone or to wait, and what is pending. */
struct delta_log sequence_undo_log(const struct sequence *s, int delta_layer);
struct delta_log sequence_wait_log(const struct sequence *s, int delta_layer);
struct delta_log sequence_pending(const struct sequence *s, int delta_layer);
/* Bytes of all layers' states. */
size_t cache_state_bytes(const struct cache *c);
struct snapshot *snapshot_take(struct cache *c); /* NULL: no room */
float *snapshot_hidden(const struct snapshot *n);
void snapshot_share(struct snapshot *n);

/* Room for rows and blocks; grows by half at least. */
int sequence_grow(struct sequence *s, int n_rows, int n_blocks, struct weft_error *e);
enum slot_contents { SLOT_ZERO, SLOT_ANY };       /* of a new slot: a first row's state, or whatever it held */
int sequence_need_slot(struct sequence *s, enum slot_contents contents); /* 0 when there is one now */
/* Pages of an empty sequence whose tables have room; 0 when the budget has none. */
int sequence_need_pages(struct sequence *s, int n_rows, int n_mtp_rows);
/* The blocks that have a page of this form when there are n_rows rows (MTP rows for that form). */
void cache_form_blocks(const struct cache *c, int form, int n_rows, int *first, int *n);
void sequence_fold(struct sequence *s);           /* pending rows into state and conv */
void sequence_drop_blocks(struct sequence *s, int form, int n_blocks);
void sequence_trim(struct sequence *s);           /* blocks behind the last row */

/* The key of a row and its position, given the position a text row would have; *next becomes the one behind it. */
struct row_source { const int32_t *tokens; const int64_t *keys; const int32_t *positions; int n_axes, n_rows; };
int64_t row_key(const struct row_source *r, int i, int32_t position[3], int *next, int64_t unique);
int64_t cache_unique_key(struct cache *c);
#endif
