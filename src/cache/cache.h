/* Sequences' memory: attention rows in pages, convolution and delta state, transactions.
 * (tree.h: prefix tree and snapshots; session.h: on disk.)
 *
 * Invariants
 * 1. A page belongs to one sequence or is shared and then never written; writing to a shared one copies it first.
 * 2. State after commit(keep) is bit-identical to having stepped the kept rows alone. Folding is lazy: kept rows of an undo
 *    group wait in the redo log until the next step reads the state.
 * 3. A row's stored form never changes once it is committed.
 * 4. One thread at a time uses a cache. */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H
#include "backend/backend.h"
#include "cache/batch.h"

struct kv_scheme { const struct kv_format *k, *v; int k_bits, v_bits, group; };

/* What the model tells of itself. Attention layers are numbered among themselves in layer order, MTP layers last; delta layers
 * among themselves. */
struct cache_shape {
    int n_attention, n_mtp;     /* n_attention counts the MTP layers too */
    int n_delta;
    int n_kv_heads, head_dim;
    struct delta_shape delta;
    int hidden;
    int f32_rows;               /* an F32 checkpoint keeps attention rows in fp32 */
};

struct cache_options {
    struct backend *backend;
    const struct kv_scheme *schemes; /* [n_attention], of rows from kv_start on; NULL: bf16 (or f32) everywhere */
    int kv_start;
    size_t memory_bytes;        /* budget of everything in here: pages, states, logs, snapshots */
    size_t snapshot_bytes;      /* part of it that the prefix tree's snapshots may take */
    int max_undo_rows;          /* largest undo group */
};

struct cache;
int cache_new(struct cache **out, const struct cache_shape *shape, const struct cache_options *o, struct weft_error *e);
void cache_free(struct cache *c);

int sequence_new(struct sequence **out, struct cache *c, struct weft_error *e);
void sequence_free(struct sequence *s);
/* A copy that shares pages. */
int sequence_fork(struct sequence **out, const struct sequence *from, struct weft_error *e);
int sequence_rows(const struct sequence *s);
int sequence_mtp_rows(const struct sequence *s);
const int32_t *sequence_tokens(const struct sequence *s);     /* [rows] */
const int32_t *sequence_positions(const struct sequence *s);  /* [rows][3] */

/* WEFT_ERROR_MEMORY: nothing changed. Positions of every row are then known (batch_positions). */
int cache_begin(struct cache *c, struct batch *b, struct weft_error *e);
/* keep[g] rows of group g are accepted: 0..n_rows for undo groups, n_rows or 0 for others. NULL keeps all. */
void cache_commit(struct cache *c, struct batch *b, const int *keep);
void cache_abort(struct cache *c, struct batch *b);

/* Between begin and commit, for the model. */
void cache_kv_layer(const struct cache *c, int attention_layer, struct kv_layer *out);
void cache_attention_group(const struct cache *c, const struct batch *b, int g, struct attention_group *out);
void cache_delta_group(const struct cache *c, const struct batch *b, int g, int delta_layer, struct delta_group *out);
const int32_t *cache_positions(const struct cache *c);        /* [n_rows of the batch][3] */

/* Bytes: one page over all attention layers (low and high forms), one sequence's state and logs, one snapshot. */
struct cache_bytes { size_t page, low_page, state, log, snapshot, fixed; };
void cache_sizes(const struct cache_shape *shape, const struct cache_options *o, struct cache_bytes *out);
size_t cache_used_bytes(const struct cache *c);
#endif
