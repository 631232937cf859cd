/* Sequences' memory: attention rows in pages, convolution and delta state, transactions.
 * (tree.h: prefix tree and snapshots; session.h: on disk.)
 *
 * Invariants
 * 1. A page belongs to one sequence or is shared and then never written; writing to a shared one copies it first.
 * 2. State after commit(keep) is bit-identical to having stepped the kept rows alone. Folding is lazy: kept rows of an undo
 *    group, and rows that came alone, wait in a redo log until a later step writes the state.
 * 3. A row's stored form never changes once it is committed.
 * 4. One thread at a time uses a cache. */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H
#include "backend/backend.h"
#include "cache/batch.h"
#include "quant/kv.h"

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
    const struct kv_scheme *schemes; /* [n_attention], of rows from kv_start on; NULL: bf16 (or f32) everywhere; copied */
    int kv_start;
    size_t memory_bytes;        /* budget of everything in here: pages, states, logs, snapshots */
    size_t snapshot_bytes;      /* part of it that snapshots may take */
    int max_undo_rows;          /* largest undo group */
    int max_context_rows;       /* of one sequence, provisional rows included; 0: no limit but memory */
};

/* A kv_config.json: [{"layer_idx": 3, "bits": 8, "group_size": 64}, ...]. layer_idx counts all layers; those not listed, and MTP
 * layers, keep bf16. is_attention [n_layers]; schemes out [n_attention]. */
int cache_read_kv_config(struct kv_scheme *schemes, const struct cache_shape *shape, const uint8_t *is_attention, int n_layers,
                         const char *path, struct weft_error *e);

struct cache;
int cache_new(struct cache **out, const struct cache_shape *shape, const struct cache_options *o, struct weft_error *e);
void cache_free(struct cache *c);

/* So that the first undo group does not wait for memory to be cleared. */
void cache_warm_undo(struct cache *c);

int sequence_new(struct sequence **out, struct cache *c, struct weft_error *e);
void sequence_free(struct sequence *s);
/* Room for that many rows on the host side, so that steps up to there allocate nothing. */
int sequence_reserve(struct sequence *s, int n_rows, struct weft_error *e);
/* Adapters, by a hash of names, weights and contents (0: none): sequences with different ones share nothing. While empty. */
void sequence_set_adapters(struct sequence *s, uint64_t hash);
uint64_t sequence_adapters(const struct sequence *s);
/* A copy that shares pages. */
int sequence_fork(struct sequence **out, const struct sequence *from, struct weft_error *e);
int sequence_rows(const struct sequence *s);
/* Rows of the MTP head have a count of their own. A row that was left out (drafting was off for a while) leaves a gap that is
 * closed up: the next MTP row goes behind the last one whatever its position, so after a gap give positions. */
int sequence_mtp_rows(const struct sequence *s);
/* How many leading MTP rows stand for the main row of the same number (no gap among them). */
int sequence_mtp_aligned(const struct sequence *s);
/* Forgets MTP rows from n on. */
void sequence_cut_mtp(struct sequence *s, int n);
/* The position that the next text row gets. */
int sequence_next_position(const struct sequence *s);
const int32_t *sequence_tokens(const struct sequence *s);     /* [rows] */
const int32_t *sequence_positions(const struct sequence *s);  /* [rows][3] */

/* The hidden row (after the final norm) of the last row, where known: set by tree_restore and session_load, and by the caller;
 * forgotten by the next cache_begin. Goes into snapshots and sessions. [hidden] */
const float *sequence_hidden(const struct sequence *s);
void sequence_set_hidden(struct sequence *s, const float *hidden);

/* A copy of convolution and delta state after some row. Snapshots made in a step come from group.snapshots. */
int sequence_snapshot(struct snapshot **out, struct sequence *s, struct weft_error *e); /* of the last row; folds first */
void snapshot_set_hidden(struct snapshot *n, const float *hidden);  /* of the snapshot's row */
int snapshot_row(const struct snapshot *n);
void snapshot_free(struct snapshot *n);                             /* NULL is fine */

/* WEFT_ERROR_MEMORY: nothing changed. Positions of every row are then known (batch_positions). */
int cache_begin(struct cache *c, struct batch *b, struct weft_error *e);
/* keep[g] rows of group g are accepted: 0..n_rows for undo groups, n_rows or 0 for others. NULL keeps all. Keeping 0 rows of a
 * group without undo loses that sequence's state: it can only be freed then. */
void cache_commit(struct cache *c, struct batch *b, const int *keep);
/* Nothing ran (model_forward refused): everything is as before begin. */
void cache_abort(struct cache *c, struct batch *b);

/* Between begin and commit, for the model. */
void cache_kv_layer(const struct cache *c, int attention_layer, struct kv_layer *out);
void cache_attention_group(const struct cache *c, const struct batch *b, int g, struct attention_group *out);
void cache_delta_group(const struct cache *c, const struct batch *b, int g, int delta_layer, struct delta_group *out);
const int32_t *cache_positions(const struct cache *c);        /* [n_rows of the batch][3] */

/* Bytes: one page over all main attention layers (high and low form), one over the MTP layers, one sequence's state and logs, one
 * snapshot. */
struct cache_bytes { size_t page, low_page, mtp_page, state, log, snapshot, fixed; };
void cache_sizes(const struct cache_shape *shape, const struct cache_options *o, struct cache_bytes *out);
size_t cache_used_bytes(const struct cache *c);
size_t cache_peak_bytes(const struct cache *c);    /* the most that was in use since cache_new */
size_t cache_memory_bytes(const struct cache *c);  /* the budget, less what is set aside */
/* Part of the budget for something that lies elsewhere; what only the tree holds makes room. 0: there is not so much. */
int cache_set_aside(struct cache *c, size_t bytes);
void cache_give_back(struct cache *c, size_t bytes);
/* What a sequence of n_rows rows in all takes when nothing is shared; `undo`: with redo logs and MTP rows. A request whose bytes, with those
 * of the requests already running, are within the budget never fails for memory: what the tree holds makes room. */
size_t cache_request_bytes(const struct cache *c, int n_rows, int undo);
/* The schemes in words, the same for equal ones: "bf16", "affine8 group 64 from row 0", ... Part of a session's fingerprint. */
const char *cache_scheme_text(const struct cache *c);
#endif
