#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run.h"

struct arg_group run_model_args(struct run_options *o, struct arg *out) {
    const struct arg all[RUN_MODEL_ARGS] = {
        {"threads", 't', ARG_COUNT, &o->threads, "N", "threads; by default as many as the process may use", 1, 1024},
        {"isa", 0, ARG_TEXT, &o->isa, "NAME", "portable, avx2, avxvnni, avx512, avx512bf16, amx or neon;\nby default chosen by the CPU's model", 0, 0},
        {"precision", 0, ARG_CHOICE, &o->precision, "default|high",
         "inputs of integer weights: int8, or (high) bf16", 0, 0},
        {"context", 'c', ARG_COUNT, &o->context, "N", "most tokens of a sequence; by default what the model was\nmade for", 1, 1 << 30},
        {"norms", 0, ARG_CHOICE, &o->norms, "auto|raw|folded", "how gains are stored: as gain - 1, or as gain", 0, 0},
        {"mtp-norms", 0, ARG_CHOICE, &o->mtp_norms, "auto|raw|folded", "the same for the multi-token head", 0, 0},
    };
    memcpy(out, all, sizeof all);
    return (struct arg_group){"Model", out, RUN_MODEL_ARGS};
}

struct arg_group run_engine_args(struct run_options *o, struct arg *out) {
    const struct arg all[RUN_ENGINE_ARGS] = {
        {"memory", 0, ARG_SIZE, &o->memory_bytes, "SIZE", "budget of weights, workspace, adapters and sequences;\nby default 4/5 of what is free", 0, 0},
        {"cache-bytes", 0, ARG_SIZE, &o->cache_bytes, "SIZE", "part of it for the prefix cache's state; by default 1/4", 0, 0},
        {"prefill-chunk", 0, ARG_COUNT, &o->prefill_chunk, "N", "most prompt tokens in one step", 1, 65536},
        {"snapshot-every", 0, ARG_COUNT, &o->snapshot_every, "N", "tokens between state snapshots of a prompt (256)", 1, 1 << 30},
        {"no-prefix-cache", 0, ARG_FLAG, &o->no_prefix_cache, "", "compute every prompt from its start", 0, 0},
        {"kv-bits", 0, ARG_TEXT, &o->kv_bits, "FORM", "attention rows: 16 (bf16), 8, 6, 5, 4, 3, 2, turbo:kXvY", 0, 0},
        {"kv-group-size", 0, ARG_COUNT, &o->kv_group, "N", "values to a scale: 32, 64 or 128 (64)", 32, 128},
        {"kv-start", 0, ARG_COUNT, &o->kv_start, "N", "rows before this one stay bf16", 0, 1 << 30},
        {"kv-config", 0, ARG_TEXT, &o->kv_config, "FILE", "off, on (kv_config.json of the model), or a file", 0, 0},
        {"lora", 0, ARG_TEXTS, &o->lora, "DIR[=WEIGHT]", "an adapter, PEFT or MLX; may be repeated", 0, 0},
        {"draft", 0, ARG_TEXT, &o->draft, "KIND", "none, mtp (the model's own head), ngram (look-up in the\ntext so far), or a small model with the same vocabulary", 0, 0},
        {"draft-max", 0, ARG_COUNT, &o->draft_max, "N", "longest draft, 1 to 8 (4)", 1, WEFT_DRAFT_MAX},
        {"draft-always", 0, ARG_FLAG, &o->draft_always, "", "never shorten drafts that do not pay", 0, 0},
    };
    memcpy(out, all, sizeof all);
    return (struct arg_group){"Memory, adapters, speculation", out, 13};
}

/* ---- sampling ---- */

static const double not_given = -1e30;

void run_sampling_init(struct run_sampling *s) {
    *s = (struct run_sampling){.temperature = not_given, .top_p = not_given, .min_p = not_given, .xtc_probability = not_given,
                               .xtc_threshold = not_given, .repeat_penalty = not_given, .presence_penalty = not_given,
                               .frequency_penalty = not_given, .top_k = -1, .repeat_last = -2};
}

struct arg_group run_sampling_args(struct run_sampling *s, struct arg *out) {
    const struct arg all[] = {
        {"temperature", 0, ARG_NUMBER, &s->temperature, "X", "0: always the likeliest token", 0, 100},
        {"top-p", 0, ARG_NUMBER, &s->top_p, "X", "only the likeliest tokens that together have X", 0, 1},
        {"top-k", 0, ARG_COUNT, &s->top_k, "N", "only the N likeliest tokens; 0: all", 0, 1 << 30},
        {"min-p", 0, ARG_NUMBER, &s->min_p, "X", "only tokens at least X times as likely as the likeliest", 0, 1},
        {"xtc-probability", 0, ARG_NUMBER, &s->xtc_probability, "X", "how often the likeliest tokens are left out", 0, 1},
        {"xtc-threshold", 0, ARG_NUMBER, &s->xtc_threshold, "X", "from which probability on", 0, 0.5},
        {"repeat-penalty", 0, ARG_NUMBER, &s->repeat_penalty, "X", "logits of recent tokens are divided by it", 0, 100},
        {"presence-penalty", 0, ARG_NUMBER, &s->presence_penalty, "X", "subtracted once for recent tokens", -100, 100},
        {"frequency-penalty", 0, ARG_NUMBER, &s->frequency_penalty, "X", "subtracted each time", -100, 100},
        {"repeat-last", 0, ARG_COUNT, &s->repeat_last, "N", "how many tokens are recent (20); -1: all", -1, 1 << 30},
        {"logit-bias", 0, ARG_TEXTS, &s->logit_bias, "ID=X,...", "added to the logits of these tokens", 0, 0},
        {"seed", 0, ARG_SEED, &s->seed, "N", "of the random numbers (0)", 0, 0},
    };
    memcpy(out, all, sizeof all);
    return (struct arg_group){"Sampling (by default what the model's generation_config.json says)", out, sizeof all / sizeof *all};
}

static int read_biases(struct run_sampling *s, struct weft_sampling *out, struct weft_error *e) {
    int n = 0;
    for (int i = 0; i < s->logit_bias.n; i++)
        for (const char *p = s->logit_bias.text[i]; *p;) {
            char *end;
            long id = strtol(p, &end, 10);
            int ok = end != p && (*end == '=' || *end == ':') && id >= 0 && id <= INT32_MAX;
            const char *number = ok ? end + 1 : p;
            double add = ok ? strtod(number, &end) : 0;
            if (!ok || end == number || (*end && *end != ',') || !isfinite(add))
                return error_set(e, WEFT_ERROR_INPUT, "--logit-bias wants ID=X,..., not \"%s\"", s->logit_bias.text[i]);
            if (n == RUN_BIASES) return error_set(e, WEFT_ERROR_INPUT, "--logit-bias: at most %d tokens", RUN_BIASES);
            s->bias[n++] = (struct weft_bias){(int32_t)id, (float)add};
            p = *end ? end + 1 : end;
        }
    if (n) out->bias = s->bias, out->n_bias = n;
    return 0;
}

static void set(float *to, double given) {
    if (given != not_given) *to = (float)given;
}

int run_sampling_apply(struct run_sampling *s, struct weft_sampling *out, struct weft_error *e) {
    set(&out->temperature, s->temperature), set(&out->top_p, s->top_p), set(&out->min_p, s->min_p);
    set(&out->xtc_probability, s->xtc_probability), set(&out->xtc_threshold, s->xtc_threshold);
    set(&out->repetition_penalty, s->repeat_penalty), set(&out->presence_penalty, s->presence_penalty);
    set(&out->frequency_penalty, s->frequency_penalty);
    if (s->top_k >= 0) out->top_k = s->top_k;
    if (s->repeat_last >= -1)
        out->repetition_context = out->presence_context = out->frequency_context = s->repeat_last;
    out->seed = s->seed;
    return read_biases(s, out, e);
}

/* ---- token files ---- */

int id_lines_read(struct id_lines *out, const char *path, struct weft_error *e) {
    *out = (struct id_lines){0};
    struct buf b;
    buf_init(&b);
    int code = file_read(&b, path, (size_t)1 << 31, e);
    size_t room = 1;
    for (size_t i = 0; i < b.n && !code; i++) room += b.data[i] == '\n';
    if (!code) {
        out->ids = mem_new(room, sizeof *out->ids), out->n_ids = mem_new(room, sizeof *out->n_ids);
        if (!out->ids || !out->n_ids) code = error_memory(e, path);
    }
    int line = 0;
    for (size_t at = 0; at < b.n && !code; at++) {
        const char *start = b.data + at, *stop = memchr(start, '\n', b.n - at);
        size_t n = stop ? (size_t)(stop - start) : b.n - at;
        char name[512];
        snprintf(name, sizeof name, "%.400s, line %d", path, ++line);
        code = args_read_ids(&out->ids[out->n], &out->n_ids[out->n], start, n, name, e);
        if (!code && out->n_ids[out->n]) out->n++;
        else if (!code) mem_free(out->ids[out->n]), out->ids[out->n] = NULL;
        at += n;
    }
    if (!code && !out->n) code = error_set(e, WEFT_ERROR_INPUT, "%s: holds no token ids", path);
    buf_drop(&b);
    if (code) id_lines_drop(out);
    return code;
}

void id_lines_drop(struct id_lines *l) {
    for (int i = 0; i < l->n && l->ids; i++) mem_free(l->ids[i]);
    mem_free(l->ids), mem_free(l->n_ids);
    *l = (struct id_lines){0};
}

int ids_read(int32_t **ids, int *n, const char *path, struct weft_error *e) {
    struct id_lines lines;
    int code = id_lines_read(&lines, path, e);
    if (code) return code;
    if (lines.n > 1) code = error_set(e, WEFT_ERROR_INPUT, "%s: one sequence is wanted, not %d lines", path, lines.n);
    else *ids = lines.ids[0], *n = lines.n_ids[0], lines.ids[0] = NULL;
    id_lines_drop(&lines);
    return code;
}

const char *finish_name(int finish) {
    static const char *const names[] = {"stop", "length", "tool_calls", "error"};
    return names[finish];
}
