/* config.json and generation_config.json as validated structs. Every dimension comes from here, none from published sizes. */
#ifndef CHECKPOINT_CONFIG_H
#define CHECKPOINT_CONFIG_H
#include <jansson.h>
#include <stdint.h>

#include "base/error.h"

enum { CONFIG_LAYERS = 1024, CONFIG_ENDS = 32 };
enum layer_kind { LAYER_LINEAR, LAYER_FULL };

struct config {
    /* the residual stream */
    int hidden, n_layers, vocab, intermediate; /* intermediate: 0 in a model of experts without dense layers */
    uint8_t layer_kinds[CONFIG_LAYERS];        /* enum layer_kind */
    double rms_eps;
    int tied;                                  /* the embedding is the head, when there is no head tensor */
    /* full attention */
    int n_heads, n_kv_heads, head_dim, rotary_dim; /* rotary_dim even, <= head_dim: the leading dims of a head that rotate */
    int attention_bias;                        /* q, k, v and o have a bias */
    double rope_theta;
    int mrope_sections[3], mrope_interleaved;  /* sum = rotary_dim / 2; sections {rotary_dim / 2, 0, 0} when not given */
    /* gated DeltaNet; all zero in a model without such layers */
    int linear_k_heads, linear_v_heads, linear_k_dim, linear_v_dim, conv_taps;
    /* mixture of experts; n_experts = 0: dense */
    int n_experts, top_k, moe_intermediate, shared_intermediate, norm_top_k; /* shared_intermediate 0: no shared expert */
    int n_mtp_layers;                          /* as the config says; tensors decide */
    int max_positions;                         /* 0 when not given */
    int bos, pad, n_ends, ends[CONFIG_ENDS];   /* token ids, -1 / none when not given; generation_config's win where given */
    int image_token, video_token, vision_start, vision_end; /* -1 when not given */
    int drafter;                               /* the folder holds an MTP head alone */
    char model_type[64];
    const json_t *raw, *text, *vision;         /* borrowed: whole file, text part, vision_config or NULL */
};

/* From parsed JSON that outlives `out`. `name` (the path) begins every sentence. */
int config_read(struct config *out, const json_t *raw, const char *name, struct weft_error *e);

/* Defaults for sampling. A field that the file does not give keeps `has_* = 0`; values out of range count as not given. */
struct generation_config {
    int do_sample;                             /* -1 when not given */
    int has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty, has_presence_penalty;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty;
    int top_k;
    int n_ends, ends[CONFIG_ENDS];
};
/* NULL and malformed JSON give the empty defaults. */
void generation_config_read(struct generation_config *out, const json_t *raw, int vocab);

/* What config.json claims about a module's quantization; shapes decide, this only cross-checks. */
struct quantization_claim { int quantized; char mode[16]; int bits, group; }; /* bits, group 0 when null */
#endif
