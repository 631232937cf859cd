/* Adapters: folders written by PEFT or MLX, and sums of them for the forward.
 *
 * Invariants
 * 1. A folder is validated completely before anything of it is used: every tensor has a place in the model, the right shape and
 *    finite values, and together they change something.
 * 2. Low-rank parts are held in fp32; replaced matrices stay as the file has them, or in fp32 where the rows of a step have no
 *    form for that type.
 * 3. A set never changes once made. Equal choices give the same set, so that their rows run together. */
#ifndef LORA_ADAPTER_H
#define LORA_ADAPTER_H
#include <pthread.h>

#include "backend/backend.h"
#include "base/buf.h"
#include "quant/open.h"

/* What of a model an adapter may change, told by the model. Names are canonical. */
enum target_kind {
    TARGET_LINEAR,    /* a matrix: "layers.3.self_attn.q_proj", "lm_head" */
    TARGET_EMBEDDING, /* "embed_tokens": n_in = vocabulary, n_out = hidden */
    TARGET_EXPERTS,   /* a stack of matrices: "layers.3.mlp.switch_mlp.up_proj" */
    TARGET_GAIN,      /* vectors, by the tensor's name. A norm that PEFT's files hold as gain - 1 ("norm.weight") */
    TARGET_A_LOG,     /* used as -exp(value) */
    TARGET_VECTOR,    /* used as stored; a convolution's weights, too, with n_out channels and n_in taps */
};
struct adapter_target {
    const char *name;
    enum target_kind kind;
    int n_in, n_out, n_experts;          /* n_in 0: a plain vector */
    const struct weight *weight;         /* of a matrix and the embedding */
    const struct linear *linear;         /* of a matrix */
    const float *values; int n_values;   /* of a vector, as the forward uses it */
};
struct adapter_base {
    const struct adapter_target *targets; int n_targets;
    int embedding, head;                 /* their numbers among the targets */
    int tied;                            /* the head is the embedding */
    struct backend *backend;
};

struct adapter;
/* `base` and what it points to outlive the adapter. */
int adapter_open(struct adapter **out, const char *folder, const struct adapter_base *base, struct weft_error *e);
void adapter_close(struct adapter *a); /* no set holds it any more */
const char *adapter_name(const struct adapter *a); /* last part of the folder's name */
int adapter_rank(const struct adapter *a);         /* of its largest part */
size_t adapter_bytes(const struct adapter *a);
void adapter_report(const struct adapter *a, struct buf *out); /* lines: what matched, what was ignored */

/* One target under a set: y = ratio * (W x) + scale * B' (A x), W replaced where `linear` or `table` is given. */
struct adapter_entry {
    int rank;                 /* 0: W alone */
    const float *a;           /* [rank][n_in]; embedding: [n_in][rank]; experts: [n_experts][rank][n_in] */
    const float *b;           /* [rank][n_out]; experts: [n_experts][rank][n_out] */
    float scale;
    const float *ratio;       /* [n_out], or NULL: 1 */
    const struct linear *linear;
    const struct weight *table;
};

struct adapter_set;
struct adapter_use { const struct adapter *adapter; float weight; };
/* The sets in use, by any number of threads. */
struct adapter_sets { pthread_mutex_t lock; struct adapter_set *first; };
void adapter_sets_init(struct adapter_sets *s);
void adapter_sets_drop(struct adapter_sets *s); /* no set is held any more */
/* The sum of weighted adapters; the same one twice adds its weights, weight 0 is left out. *out NULL: nothing is left. */
int adapter_sets_get(struct adapter_sets *s, struct adapter_set **out, const struct adapter_use *uses, int n,
                     struct weft_error *e);
void adapter_set_hold(struct adapter_set *s);
void adapter_set_drop(struct adapter_set *s); /* NULL is fine */
uint64_t adapter_set_hash(const struct adapter_set *s); /* of contents and weights; 0 for NULL */
const char *adapter_set_names(const struct adapter_set *s); /* "shout=1,short=0.5"; "" for NULL */
int adapter_set_rank(const struct adapter_set *s);

/* NULL where the set changes nothing; any target may be asked for, -1 too. A NULL set changes nothing. */
const struct adapter_entry *adapter_set_entry(const struct adapter_set *s, int target);
/* What stands in for a vector of the base: `values` itself where the set has none. */
const float *adapter_set_vector(const struct adapter_set *s, const float *values);
#endif
