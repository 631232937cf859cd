/* The weights of a model, as the forward wants them. Private to model/. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H
#include "base/mem.h"
#include "model/model.h"
#include "quant/open.h"

/* A projection that the plan readies; `module` is its number among model_modules, -1 for one that no adapter can target. */
struct projection { struct linear linear; struct weight weight; int module; };

struct experts {
    int n, inner;
    struct expert_weights *weights;         /* [n] */
    struct linear *gate, *up, *down;        /* [n] each */
    struct projection router;
    struct projection shared_gate_proj, shared_up, shared_down, shared_gate;
    int shared_inner;                       /* 0: no shared expert */
    int target;                             /* gate's number among what adapters may change; up and down follow */
};

struct layer {
    enum layer_kind kind;
    int index;                              /* among the layers of its kind; MTP layers follow the attention layers */
    float *input_norm, *post_norm;          /* gains [hidden] */
    struct projection q, k, v, o;           /* attention; q: per head D query rows, D gate rows */
    float *q_norm, *k_norm;                 /* gains [head_dim] */
    struct projection qkv, z, b, a, out;    /* delta */
    float *conv, *neg_exp_a_log, *dt_bias, *delta_norm; /* [C][Kc], [Hv], [Hv], [Dv] */
    struct projection gate, up, down;       /* dense MLP */
    struct experts *experts;                /* instead of it, or NULL */
};

struct mtp {
    int n_layers;
    struct layer *layers;
    struct projection fc;
    float *norm, *norm_embedding, *norm_hidden;
};

enum convention { CONVENTION_RAW, CONVENTION_FOLDED, CONVENTION_TWICE };

struct weights {
    struct arena arena;
    struct weight embed;
    struct projection head;
    float *final_norm;
    struct layer *layers;                   /* [n_layers] */
    struct mtp *mtp;                        /* NULL: no MTP head */
    int n_attention, n_delta;               /* n_attention without MTP layers */
    int n_modules, modules_room;
    struct model_module *modules;
    enum convention text_norms, mtp_layer_norms, mtp_embedding_norm, mtp_hidden_norm, mtp_norm;
};

/* Takes every tensor that the model uses from the checkpoint, decides the norm conventions and makes gains of what is stored. */
int weights_open(struct weights *w, struct checkpoint *c, const struct model_options *o, struct weft_error *e);
void weights_drop(struct weights *w);
const char *convention_name(enum convention c);

/* norms.c. The conventions of mlx.md R3 and R4, decided by values.
 * means: of every layer's input and post norm; conv_layout: 0 Hugging Face, 1 MLX, -1 unknown. */
int norms_decide_text(enum convention *out, double *means, int n, int conv_layout, const char *folder, struct weft_error *e);
enum convention norms_decide_mtp_layer(double *means, int n, enum convention text);
enum convention norms_decide_mtp_input(double mean, enum convention text);
enum convention norms_decide_mtp_final(double mean, enum convention text);
void norms_apply(enum convention c, float *gain, int n);
double norms_mean(const float *x, int n);
#endif
