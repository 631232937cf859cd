/* What a model is once it is open. Private to model/. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H
#include "model/weights.h"

/* Buffers of a step, for limits.max_rows packed rows (R). H hidden, C channels of the convolution, all fp32 unless said. */
struct workspace {
    float *residual;                 /* [R][H] */
    struct rows x;                   /* [R][H] normed rows, in the forms that projections want */
    float *wide;                     /* [R][wide]: qkv z b a | q_gate k v | gate up */
    int wide_width;
    float *mixed;                    /* [R][mixed]: q k v after the convolution | q after its norm */
    int mixed_width;
    float *decay, *beta;             /* [R][Hv] */
    float *delta_out;                /* [R][Hv*Dv] */
    struct rows mix;                 /* [R][Hv*Dv or Hq*D]: what out_proj and o_proj read */
    struct rows inner;               /* [R][I] silu(gate) * up */
    float *positions;                /* [3][R] */
    int32_t *tokens;                 /* [R] */
    float *given;                    /* [R][H] embedding or hidden rows from the caller */
    int32_t *logit_row, *hidden_row, *tap_row; /* packed rows that feed them */
    float *picked;                   /* [R][H] gathered rows */
    struct rows final;               /* [L][H] input of the head; L = max_logits */
    float *logits;                   /* [L][vocab] */
    float *hidden;                   /* [R][H] */
    float *pair;                     /* [R][2H] MTP: normed embedding and hidden rows */
    struct rows fc;                  /* [R][2H] */
    /* experts: S = R * top_k slots */
    float *router_logits, *expert_weight; /* [R][E], [R][k] */
    int32_t *expert, *slot, *slot_row, *begin;
    float *expert_gate, *expert_up, *expert_out; /* [S][inner] twice, [S][H] */
    struct rows expert_inner;        /* [S][inner] */
    float *shared_out, *shared_gate; /* [R][H], [R][1] */
    /* per step descriptions */
    struct attention_group *attention_groups; /* [max_groups] */
    struct delta_group *delta_groups;         /* [n_delta][max_groups] */
    struct op *ops; int n_ops, ops_room;
    struct span *spans;              /* [3][max_groups] */
    uint8_t *memory; size_t bytes;   /* all of the above but the rope tables */
};

struct model {
    struct checkpoint *checkpoint;
    struct pool *pool;
    struct backend backend;
    struct model_options options;
    struct weights weights;
    uint8_t *packed; size_t packed_bytes, mapped_bytes;
    struct workspace ws;
    struct step_limits limits;
    float *inv_freq;                 /* [rotary_dim / 2] */
    uint8_t *axis_of_pair;           /* [rotary_dim / 2] */
    uint64_t fingerprint;
    float **taps; int n_taps, taps_room; /* [n][R][H], made when first asked for */
    char isa[32];
    /* adapters.c; all zero until the first adapter is opened */
    struct adapter_base adapter_base;
    int embed_target;                /* the embedding's number among the targets */
    int open_ranks, adapter_rank;    /* of all open adapters, and what there is room for */
    float *adapter_t; size_t adapter_t_bytes; int adapter_rows; /* [4][adapter_rows][adapter_rank], or as many for experts' slots */
    struct op *adapter_ops; size_t adapter_ops_bytes;
};

/* Chooses layout and kernels for every projection, checks what is packed, packs, and makes the workspace. */
int plan_new(struct model *m, struct weft_error *e);
void plan_drop(struct model *m);
void model_adapters_drop(struct model *m);
/* Calls fn on every linear of the model. */
typedef int plan_visit_fn(void *arg, struct linear *l, const struct weight *w, const char *name);
int plan_visit(struct model *m, plan_visit_fn *fn, void *arg);
/* The FORM_ bits that these linears read together. */
int plan_forms(const struct projection *const *p, int n);
#endif
