/* Checkpoints with random weights in the published geometries, for benchmarks: bf16 in the Hugging Face layout, affine in MLX's.
 * Any engine that reads those layouts reads these. Values are lively but tame: every projection keeps the size of what it is fed. */
#ifndef CLI_RANDOM_MODEL_H
#define CLI_RANDOM_MODEL_H
#include <stdint.h>

#include "base/error.h"

/* As the config.json files published with Qwen3.5 say. */
struct geometry {
    const char *name;
    int hidden, n_layers, intermediate, n_heads, n_kv_heads, key_heads, value_heads, tied;
    int n_experts, top_k, moe_intermediate; /* 0: dense. The shared expert is as wide as the others */
};
/* The same in all of them. */
enum { GEOMETRY_VOCAB = 248320, GEOMETRY_HEAD_DIM = 256, GEOMETRY_LINEAR_DIM = 128, GEOMETRY_CONV = 4, GEOMETRY_INTERVAL = 4,
       GEOMETRY_CONTEXT = 262144 };
extern const struct geometry geometries[]; /* ends with a NULL name */

struct random_model { struct geometry shape; int bits, group; /* bits 0: bf16 */ };

/* 1 when `name` begins with "random:". */
int random_model_is(const char *name);
/* "random:0.8b,repr=affine4,group=64,layers=4" */
int random_model_parse(struct random_model *out, const char *name, struct weft_error *e);
/* Bytes of its tensors. */
uint64_t random_model_bytes(const struct random_model *m);
/* Writes config.json, generation_config.json and model.safetensors into a folder, which is made if need be. The same model gives
 * the same bytes. A folder that holds a model already is left alone and an error. */
int random_model_write(const struct random_model *m, const char *folder, struct weft_error *e);

/* The same into a folder of its own, on a memory file system when there is room (else under TMPDIR, or /tmp); it goes with
 * random_model_drop, at the latest when the process ends. *folder is freed by it. */
int random_model_make(char **folder, const struct random_model *m, struct weft_error *e);
void random_model_drop(char *folder);
#endif
