/* From a checkpoint's tensors to matrices: the representation is decided by shapes and dtypes, never by claims. */
#ifndef QUANT_OPEN_H
#define QUANT_OPEN_H
#include "checkpoint/folder.h"
#include "quant/quant.h"

/* The matrix of a canonical module ("layers.3.self_attn.q_proj", "lm_head"). Missing, misshapen and unsupported tensors are
 * errors that name tensor and file; a config that claims otherwise is a warning. Values are not looked at: call weight_check
 * (at open when repr->packed). Marks the tensors used. */
int weight_open(struct weight *out, struct checkpoint *c, const char *module, int64_t n_rows, int64_t n_cols,
                struct weft_error *e);
/* 1 when MODULE.weight (or MODULE itself) is there. */
int weight_exists(struct checkpoint *c, const char *module);

/* Experts of one MLP module ("layers.3.mlp"), whichever layout the file has: `experts.gate_up_proj` + `experts.down_proj` fused,
 * `experts.E.gate_proj` one by one, `switch_mlp.gate_proj` stacked. */
struct expert_weights { struct weight gate, up, down; }; /* gate, up [inner, hidden], down [hidden, inner] */
int weight_open_experts(struct expert_weights *out, int n_experts, struct checkpoint *c, const char *mlp, int64_t hidden,
                        int64_t inner, struct weft_error *e);
#endif
