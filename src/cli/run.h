/* What the commands that run a model share: their options, and opening model, adapters and engine from them. */
#ifndef CLI_RUN_H
#define CLI_RUN_H
#include "base/json.h"
#include "cli/args.h"
#include "weft.h"

enum { RUN_ADAPTERS = 8, RUN_MODEL_ARGS = 6, RUN_ENGINE_ARGS = 14 };

struct run_options {
    int threads, precision, context, norms, mtp_norms;
    const char *isa;
    size_t memory_bytes, cache_bytes;
    const char *kv_bits, *kv_config, *draft;
    int kv_group, kv_start, prefill_chunk, snapshot_every, no_prefix_cache, draft_max, draft_always;
    struct arg_texts lora;
    /* set by the command, not by options */
    int parallel, step_rows, step_logits, without_mtp;
};
/* Rows of the tables for args.group: `out` has room for RUN_MODEL_ARGS and RUN_ENGINE_ARGS. */
struct arg_group run_model_args(struct run_options *o, struct arg *out);
struct arg_group run_engine_args(struct run_options *o, struct arg *out);

struct run {
    struct weft_model *model, *draft_model;
    struct weft_engine *engine;
    struct weft_adapter *adapters[RUN_ADAPTERS];
    char *adapter_folders[RUN_ADAPTERS];
    int n_adapters;
    struct weft_adapter_use uses[RUN_ADAPTERS]; int n_uses; /* what --lora asks for */
    struct weft_model_info info;
    double load_ms;
};
/* The model alone, then what needs memory for sequences. */
int run_open_model(struct run *r, const char *model, const struct run_options *o, struct weft_error *e);
int run_open_engine(struct run *r, const struct run_options *o, struct weft_error *e);
int run_open(struct run *r, const char *model, const struct run_options *o, struct weft_error *e);
void run_close(struct run *r);

/* "DIR[=weight]", joined by "+", to uses; adapters that are not there yet are loaded. uses has room for RUN_ADAPTERS. */
int run_adapters(struct run *r, const char *text, struct weft_adapter_use *uses, int *n, struct weft_error *e);

/* Options that say how tokens are drawn. */
enum { RUN_SAMPLING_ARGS = 14, RUN_BIASES = 256 };
struct run_sampling {
    double temperature, top_p, min_p, xtc_probability, xtc_threshold, repeat_penalty, presence_penalty, frequency_penalty;
    int top_k, repeat_last;
    uint64_t seed;
    struct arg_texts logit_bias;
    struct weft_bias bias[RUN_BIASES];
};
void run_sampling_init(struct run_sampling *s); /* nothing given */
struct arg_group run_sampling_args(struct run_sampling *s, struct arg *out);
/* What was given replaces what the model's generation_config says. `s` outlives `out`. */
int run_sampling_apply(struct run_sampling *s, struct weft_sampling *out, struct weft_error *e);

/* Token ids: one sequence a line. */
struct id_lines { int n; int32_t **ids; int *n_ids; };
int id_lines_read(struct id_lines *out, const char *path, struct weft_error *e);
void id_lines_drop(struct id_lines *l);
/* The one sequence of a file (mem_free), and the tokens of a text file (weft_free): special tokens in it stay text. */
int ids_read(int32_t **ids, int *n, const char *path, struct weft_error *e);
int ids_of_text(int32_t **ids, int *n, struct weft_model *m, const char *path, struct weft_error *e);

/* "tokens", "finish_reason", "cached_tokens", "drafted" and "accepted" of an answer; the latter two are equally long. */
void result_add(json_t *o, const struct weft_result *r);
const char *finish_name(int finish); /* "stop", "length", "tool_calls", "error" */
#endif
