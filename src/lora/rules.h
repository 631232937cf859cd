/* adapter_config.json: which maker's, and the scales that it gives. Private to lora/. */
#ifndef LORA_RULES_H
#define LORA_RULES_H
#include "base/error.h"

enum adapter_format { FORMAT_PEFT, FORMAT_MLX };

struct rule;
struct rules {
    enum adapter_format format;
    char *tensors;                        /* path of the file with the tensors */
    char *config;                         /* path of adapter_config.json */
    double alpha, rank;                   /* PEFT's defaults */
    int root_rank;                        /* rslora: alpha / sqrt(rank) */
    struct rule *alphas, *ranks; int n_alphas, n_ranks; /* alpha_pattern, rank_pattern */
    int tie;                              /* ensure_weight_tying: what is done to the embedding is done to a tied head */
    int dora;                             /* a magnitude must come with every part */
    double scale; int has_scale;          /* MLX: the multiplier itself */
    int full;                             /* MLX: plain replaced parameters */
};
int rules_read(struct rules *r, const char *folder, struct weft_error *e);
void rules_drop(struct rules *r);
/* The multiplier of a part of rank `rank`; `module` is its path as the file has it, without PEFT's prefix. */
int rules_scale(const struct rules *r, const char *module, int rank, double *out, struct weft_error *e);
#endif
