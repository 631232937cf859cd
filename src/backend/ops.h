/* The ops of a step and their arguments. All float pointers are device memory. n_rows counts packed rows.
 * Formulas: the torch definitions in transformers' modeling_qwen3_5.py, of which the operator goldens are samples. */
#ifndef BACKEND_OPS_H
#define BACKEND_OPS_H
#include <stdint.h>

#include "backend/linear.h"
#include "backend/rows.h"

struct kv_format; /* quant/kv.h */

enum {
    KV_PAGE_ROWS = 64,     /* rows of a page, which is a key block of attention */
    KV_SEGMENT_PAGES = 16, /* key blocks whose partial results are merged before segments are */
    MAX_PARTS = 6,
};

/* out row i = row tokens[i] of the embedding matrix; where tokens[i] < 0, row `-1 - tokens[i]` of `given`. */
struct op_embed { const struct weight *table; const int32_t *tokens; int n_rows; const float *given; float *out; int width; };

/* out = gain * x / sqrt(mean(x^2) + eps), fp32, the mean summed in fixed blocks; gain has any "+1" already in it.
 * Rows `row_stride` floats apart in x. Several heads in a row: n_rows counts (row, head) pairs laid out as rows. */
struct op_norm { const float *x; int64_t x_stride; const float *gain; float eps; int n_rows, row0; struct rows out; };

/* The parts share input and rows: q, k and v; gate and up; qkv, z, b and a. */
struct op_linear {
    struct rows x;
    int x0, n_rows;
    int n_parts;
    struct { const struct linear *w; float *y; int64_t y_stride; int accumulate; } part[MAX_PARTS];
};

/* Fills the given forms of rows [row0, row0 + n_rows) from x.f32. */
struct op_convert { struct rows x; int row0, n_rows; };

/* One sequence's share of the delta rule in one layer. Memory belongs to the cache. */
struct delta_log {        /* rows that were run but not folded into the state; fp32 */
    float *decay;         /* [max][Hv]      exp(g) */
    float *k;             /* [max][Hk*Dk]   normalised keys */
    float *u;             /* [max][Hv*Dv]   beta (v - S'k) */
    float *conv_in;       /* [max][C]       inputs of the convolution */
};
struct delta_snapshot { int row; float *state, *conv; }; /* state after the first `row` rows (1..n_rows) of the group */
struct delta_group {
    int row0, n_rows;
    float *state;         /* [Hv][Dk][Dv], read and, as `fold` says, written */
    float *conv;          /* [Kc-1][C], oldest first */
    struct delta_log pending; int n_pending; /* rows of steps before that state and conv do not have yet */
    /* FOLD_ALL: state and conv end behind this step's last row. FOLD_PENDING: behind the pending rows, and the step's go to `log`.
     * FOLD_NOTHING: both are only read, and the step's rows go to `log`. */
    enum { FOLD_ALL, FOLD_PENDING, FOLD_NOTHING } fold;
    struct delta_log log;
    struct delta_snapshot *snapshots; int n_snapshots;
};
struct delta_shape { int key_heads, value_heads, key_dim, value_dim, conv_kernel; };
/* Floats of a row: its keys (as many queries), its values, and C, what the convolution takes: queries, keys, values. */
static inline int delta_keys(const struct delta_shape *s) { return s->key_heads * s->key_dim; }
static inline int delta_values(const struct delta_shape *s) { return s->value_heads * s->value_dim; }
static inline int delta_channels(const struct delta_shape *s) { return 2 * delta_keys(s) + delta_values(s); }

/* Convolution and what the rule needs of it. Per row: x = silu(conv(qkv)), q and k divided by sqrt(sum of squares + 1e-6) per
 * head, q then by sqrt(Dk); decay = exp(-exp(A_log) softplus(a + dt_bias)); beta = sigmoid(b). */
struct op_delta_prepare {
    struct delta_shape shape;
    const float *qkv;     /* [n][C], C = 2*Hk*Dk + Hv*Dv */
    const float *a, *b;   /* [n][Hv] */
    const float *conv_weight; /* [C][Kc], fp32 */
    const float *conv_bias;   /* [C] or NULL */
    const float *neg_exp_a_log, *dt_bias; /* [Hv]; the first is -exp(A_log) */
    float *mixed;         /* out [n][C]: q, k normalised; v */
    float *decay, *beta;  /* out [n][Hv] */
    const struct delta_group *groups; int n_groups, n_rows;
};

/* The recurrence. Per value head h (key head h / (Hv/Hk)), row by row:
 *   S = decay S; u = beta (v - S'k); out = S'q + (q'k) u; S = S + k u'
 * sums over the key index in one fixed order, whether a row is in S or pending. Then conv state, logs and snapshots as delta_group
 * says; snapshots are not for FOLD_NOTHING. n_rows = 0 in every group folds pending rows only. */
struct op_delta {
    struct delta_shape shape;
    const float *qkv;     /* [n][C] inputs of the convolution, for conv state and log */
    const float *mixed, *decay, *beta; /* as above */
    float *out;           /* [n][Hv*Dv] */
    const struct delta_group *groups; int n_groups;
};

/* out = gain * x / sqrt(mean(x^2) + eps) * silu(gate), per head of Dv values. */
struct op_gated_norm { const float *x, *gate, *gain; float eps; int n_rows, n_heads, dim; struct rows out; };

/* One attention layer's rows in pages. A page holds KV_PAGE_ROWS rows: per kv head its K block, then its V block.
 * Rows below kv_start of the sequence are in `low` pages, the others in `high` pages; with kv_start 0 `low` is unused. */
struct kv_store {
    const struct kv_format *k, *v;
    int k_bits, v_bits, group;       /* parameters of the format where it has any */
    uint8_t *base;                   /* page p, kv head h: base + p * page_stride + h * head_stride; V k_bytes behind K */
    int64_t page_stride, head_stride, k_bytes;
};
struct kv_layer { struct kv_store low, high; int kv_start; };
struct attention_group {
    int row0, n_rows;
    int n_before;                    /* rows of the sequence that precede the group's first */
    const int32_t *low_pages, *high_pages; /* page of each block of 64 rows of the sequence */
};
struct attention_shape { int n_heads, n_kv_heads, head_dim, rotary_dim; };

/* Per row: q and k heads RMS-normalised (gain, eps) and rotated; k and v stored. Row of q_gate: per head D query then D gate
 * values. The rotary angle of pair i (elements i and i + rotary_dim/2) is the fp32 product position[axis_of_pair[i]] *
 * inv_freq[i]. */
struct op_attention_prepare {
    struct attention_shape shape;
    const float *q_gate, *k, *v;     /* [n][Hq*2D], [n][Hkv*D], [n][Hkv*D] */
    const float *q_gain, *k_gain; float eps;
    const float *inv_freq; const uint8_t *axis_of_pair;
    const float *positions;          /* [3][n], as fp32 */
    float *q;                        /* out [n][Hq*D], times 1/sqrt(D) */
    struct kv_layer kv;
    const struct attention_group *groups; int n_groups, n_rows;
};

/* out = softmax(q K') V over rows 0..own of the sequence, times sigmoid(gate). Each key block of 64 rows gives a partial result
 * with its own maximum and sum; partial results are merged in ascending order within segments of KV_SEGMENT_PAGES blocks, and
 * segments in ascending order: an order that depends on row numbers alone. */
struct op_attention {
    struct attention_shape shape;
    const float *q, *q_gate;
    struct kv_layer kv;
    const struct attention_group *groups; int n_groups, n_rows;
    struct rows out;                 /* [n][Hq*D] */
};

/* out = silu(gate) * up */
struct op_silu_mul { const float *gate, *up; int64_t stride; int n_rows; struct rows out; };

/* Router: softmax over n_experts, the top_k largest (ties to the lowest index), divided by their sum when `renormalise`.
 * Then slots: for each expert in ascending order the (row, rank) pairs that chose it, rows ascending. */
struct op_moe_route {
    const float *logits; int n_rows, n_experts, top_k, renormalise;
    int32_t *expert;                 /* out [n][top_k] */
    float *weight;                   /* out [n][top_k] */
    int32_t *slot;                   /* out [n][top_k]: place of that pair among the slots */
    int32_t *slot_row;               /* out [n*top_k]: its row */
    int32_t *begin;                  /* out [n_experts + 1] */
};
/* For every slot s of expert e: y[p][s] = x[row] W[p][e]'; row = slot_row[s], or s itself when slot_row is NULL. */
struct op_moe_linear {
    struct rows x; const int32_t *slot_row, *begin; int n_experts, n_slots;
    int n_parts;
    struct { const struct linear *w; /* [n_experts] */ float *y; int64_t y_stride; } part[2];
};
/* out[row] += sum over ranks, ascending, of weight * y[slot]; then + sigmoid(shared_gate[row]) * shared[row] if given. */
struct op_moe_combine {
    const float *y; const int32_t *slot; const float *weight; int n_rows, top_k, width;
    const float *shared, *shared_gate; /* [n][width], [n][1]; NULL without a shared expert */
    float *out;
};

/* to[i] = from[index[i]]; index NULL: from row from0 + i. */
struct op_copy { const float *from; int64_t from_stride; const int32_t *index; int from0, n_rows, width; float *to; int64_t to_stride; };

/* Low-rank adapter on rows [row0, row0 + n_rows): t = x A' (r values per row, fp32), then y = ratio * y + scale * t B', where y
 * holds what is adapted and `ratio` [n_out] may be NULL (1). Then, with `add_to`, add_to += y. */
struct op_adapter {
    const float *x; int64_t x_stride; int row0, n_rows, n_in, n_out, rank;
    const float *a;                  /* [rank][n_in] */
    const float *b;                  /* [rank][n_out] */
    float scale; const float *ratio;
    float *t;                        /* scratch [n_rows][rank] */
    float *y; int64_t y_stride;
    float *add_to; int64_t add_stride;
};

/* The same over experts: for every slot s of expert e whose row is in [row0, row0 + n_rows), y[s] += scale * (x A_e') B_e' with
 * x the slot's row, or the slot's own with `by_slot`. */
struct op_moe_adapter {
    const float *x; int64_t x_stride; int by_slot;
    const int32_t *slot_row, *begin; int n_experts, n_slots, row0, n_rows, n_in, n_out, rank;
    const float *a, *b;              /* [n_experts][rank][n_in], [n_experts][rank][n_out] */
    float scale;
    float *t;                        /* scratch [n_slots][rank] */
    float *y; int64_t y_stride;
};

enum op_kind {
    OP_EMBED, OP_NORM, OP_LINEAR, OP_CONVERT, OP_DELTA_PREPARE, OP_DELTA, OP_GATED_NORM, OP_ATTENTION_PREPARE, OP_ATTENTION,
    OP_ATTENTION_MERGE, /* same arguments as the OP_ATTENTION before it */
    OP_SILU_MUL, OP_MOE_ROUTE, OP_MOE_LINEAR, OP_MOE_COMBINE, OP_COPY,
    OP_ADAPTER_DOWN, OP_ADAPTER_UP, /* t = x A'; the rest. Same arguments */
    OP_MOE_ADAPTER,
    N_OP_KINDS
};

struct op {
    enum op_kind kind;
    int wait; /* everything before is complete first */
    union {
        struct op_embed embed; struct op_norm norm; struct op_linear linear; struct op_convert convert;
        struct op_delta_prepare delta_prepare; struct op_delta delta; struct op_gated_norm gated_norm;
        struct op_attention_prepare attention_prepare; struct op_attention attention; struct op_silu_mul silu_mul;
        struct op_moe_route moe_route; struct op_moe_linear moe_linear; struct op_moe_combine moe_combine;
        struct op_copy copy; struct op_adapter adapter; struct op_moe_adapter moe_adapter;
    };
};
#endif
