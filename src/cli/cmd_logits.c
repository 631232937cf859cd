#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "engine/score.h"

enum { TAPS_MAX = 1024, STEP_ROWS = 512, STEP_ROWS_MAX = 4096 };

struct options {
    const char *tokens, *tokens_file, *text_file, *embeddings, *out, *chunks, *positions, *taps, *session, *session_save;
    int mtp;
};

/* What goes in, and who owns it. */
struct source {
    struct score_input in;
    struct safetensors *file;
    int32_t *tokens, *chunks, *positions, *taps;
    float *embeddings;
};

static void source_drop(struct source *s) {
    safetensors_close(s->file);
    mem_free(s->tokens), mem_free(s->chunks), mem_free(s->positions), mem_free(s->taps), mem_free(s->embeddings);
}

/* The one matrix of the file, or the one called "embeddings": [n][hidden] in a float type. */
static int read_embeddings(struct source *s, const char *path, int hidden, struct weft_error *e) {
    int code = safetensors_open(&s->file, path, e);
    if (code) return code;
    const struct tensor *t = safetensors_find(s->file, "embeddings");
    if (!t && safetensors_count(s->file) == 1) t = safetensors_at(s->file, 0);
    if (!t) return error_set(e, WEFT_ERROR_INPUT, "%s: no tensor \"embeddings\"", path);
    char shape[TENSOR_SHAPE_TEXT];
    if (!dtype_is_float(t->dtype) || t->n_dims != 2 || t->shape[1] != hidden || t->shape[0] < 1 || t->shape[0] > INT_MAX)
        return error_set(e, WEFT_ERROR_INPUT, "%s: %s is %s %s, wanted are rows of %d floats", path, t->name, dtype_name(t->dtype),
                         tensor_shape_text(t, shape), hidden);
    int n = (int)t->shape[0];
    s->embeddings = mem_new((size_t)n * (size_t)hidden, sizeof *s->embeddings);
    s->tokens = mem_new((size_t)n, sizeof *s->tokens);
    if (!s->embeddings || !s->tokens) return error_memory(e, path);
    tensor_to_floats(t, 0, tensor_elements(t), s->embeddings);
    for (int i = 0; i < n; i++) s->tokens[i] = -1 - i;
    s->in.embeddings = s->embeddings, s->in.n_embeddings = n, s->in.n_tokens = n;
    return 0;
}

static int read_positions(struct source *s, const char *path, struct weft_error *e) {
    struct id_lines lines;
    int code = id_lines_read(&lines, path, e);
    if (code) return code;
    int n = s->in.n_tokens;
    if (lines.n != 1 && lines.n != 3)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: one row or three rows of positions are wanted, not %d", path, lines.n);
    for (int i = 0; i < lines.n && !code; i++)
        if (lines.n_ids[i] != n)
            code = error_set(e, WEFT_ERROR_INPUT, "%s: row %d has %d positions for %d tokens", path, i + 1, lines.n_ids[i], n);
    if (!code && !(s->positions = mem_new((size_t)(lines.n * n), sizeof *s->positions))) code = error_memory(e, path);
    for (int i = 0; i < lines.n && !code; i++) memcpy(s->positions + i * n, lines.ids[i], (size_t)n * sizeof **lines.ids);
    s->in.positions = s->positions, s->in.n_axes = lines.n;
    id_lines_drop(&lines);
    return code;
}

static int read_source(struct source *s, struct run *r, const struct options *o, struct weft_error *e) {
    int code, given = (o->tokens != NULL) + (o->tokens_file != NULL) + (o->text_file != NULL) + (o->embeddings != NULL);
    if (given != 1)
        return error_set(e, WEFT_ERROR_INPUT, "give one of --tokens, --tokens-file, --text-file, --embeddings");
    if (o->embeddings) code = read_embeddings(s, o->embeddings, r->info.hidden, e);
    else if (o->tokens) code = args_read_ids(&s->tokens, &s->in.n_tokens, o->tokens, strlen(o->tokens), "--tokens", e);
    else if (o->tokens_file) code = ids_read(&s->tokens, &s->in.n_tokens, o->tokens_file, e);
    else code = ids_of_text(&s->tokens, &s->in.n_tokens, r->model, o->text_file, e);
    if (code) return code;
    s->in.tokens = s->tokens;
    if (s->in.n_tokens == 0) return error_set(e, WEFT_ERROR_INPUT, "there are no tokens to run");
    if (o->positions && (code = read_positions(s, o->positions, e))) return code;
    if (o->taps && !code) {
        code = args_read_ids(&s->taps, &s->in.n_taps, o->taps, strlen(o->taps), "--taps", e);
        for (int i = 0; i < s->in.n_taps && !code; i++)
            if (s->taps[i] < 0 || s->taps[i] >= r->info.layers || (i && s->taps[i] <= s->taps[i - 1]))
                code = error_set(e, WEFT_ERROR_INPUT, "--taps: layers 0 to %d in ascending order", r->info.layers - 1);
        s->in.taps = s->taps;
        if (!code && s->in.n_taps > TAPS_MAX) code = error_set(e, WEFT_ERROR_INPUT, "--taps: at most %d layers", TAPS_MAX);
    }
    s->in.adapters = r->uses, s->in.n_adapters = r->n_uses;
    s->in.session = o->session, s->in.session_save = o->session_save;
    return code;
}

/* --chunks, or the one size that --prefill-chunk gives; a step is made as large as the largest, within reason. */
static int read_chunks(struct source *s, const struct options *o, struct run_options *ro, struct weft_error *e) {
    int code = 0;
    if (o->chunks) code = args_read_ids(&s->chunks, &s->in.n_chunks, o->chunks, strlen(o->chunks), "--chunks", e);
    if (!code && !o->chunks && ro->prefill_chunk) {
        if (!(s->chunks = mem_new(1, sizeof *s->chunks))) return error_memory(e, "--prefill-chunk");
        s->chunks[0] = ro->prefill_chunk, s->in.n_chunks = 1;
    }
    for (int i = 0; i < s->in.n_chunks && !code; i++) {
        if (s->chunks[i] < 1) code = error_set(e, WEFT_ERROR_INPUT, "--chunks: a chunk has at least one row");
        if (s->chunks[i] > STEP_ROWS_MAX) s->chunks[i] = STEP_ROWS_MAX; /* a chunk above that is run as several */
        if (s->chunks[i] > STEP_ROWS && s->chunks[i] > ro->step_rows) ro->step_rows = s->chunks[i];
    }
    s->in.chunks = s->chunks;
    return code;
}

struct sink {
    struct safetensors_writer *w;
    const struct source *s;
    int vocab, hidden, total;
    float *taps; /* [n_taps][n_tokens][hidden] */
};

static int take_rows(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct sink *k = arg;
    size_t h = (size_t)k->hidden, n = (size_t)k->s->in.n_tokens;
    if (rows->taps)
        for (int t = 0; t < k->s->in.n_taps; t++)
            memcpy(k->taps + ((size_t)t * n + (size_t)rows->row0) * h, rows->taps[t], (size_t)rows->n_rows * h * sizeof *k->taps);
    if (!rows->logits) return 0;
    progress_show(NULL, "running", (double)(rows->row0 + rows->n_rows) / k->total);
    return safetensors_write(k->w, rows->logits, (size_t)rows->n_rows * (size_t)k->vocab * sizeof(float), e);
}

static int write_all(struct run *r, const struct source *s, const struct options *o, struct weft_error *e) {
    int n = s->in.n_tokens, n_specs = 0, with_mtp = o->mtp && n > 1;
    struct tensor_spec *specs = mem_new((size_t)s->in.n_taps + 2, sizeof *specs);
    char (*names)[16] = mem_new((size_t)s->in.n_taps + 1, sizeof *names);
    struct sink k = {.s = s, .vocab = r->info.vocab, .hidden = r->info.hidden, .total = n};
    size_t tap_values = (size_t)s->in.n_taps * (size_t)n * (size_t)k.hidden;
    k.taps = mem_new(tap_values, sizeof *k.taps);
    int code = specs && names && k.taps ? 0 : error_memory(e, o->out);
    if (!code) {
        specs[n_specs++] = (struct tensor_spec){"logits", DTYPE_F32, 2, {n, k.vocab}};
        for (int i = 0; i < s->in.n_taps; i++) {
            snprintf(names[i], sizeof names[i], "tap.%d", s->taps[i]);
            specs[n_specs++] = (struct tensor_spec){names[i], DTYPE_F32, 2, {n, k.hidden}};
        }
        if (with_mtp) specs[n_specs++] = (struct tensor_spec){"mtp", DTYPE_F32, 2, {n - 1, k.vocab}};
        code = safetensors_open_writer(&k.w, o->out, specs, n_specs, NULL, 0, e);
    }
    if (!code) {
        code = score_run(r->engine, &s->in, take_rows, &k, e);
        if (!code) code = safetensors_write(k.w, k.taps, tap_values * sizeof *k.taps, e);
        struct score_input in = s->in;
        in.taps = NULL, in.n_taps = 0;
        if (!code && with_mtp) code = score_mtp(r->engine, &in, take_rows, &k, e);
        int closed = safetensors_close_writer(k.w, !code, e);
        if (!code) code = closed;
    }
    progress_end();
    mem_free(specs), mem_free(names), mem_free(k.taps);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {0};
    struct run_options ro = {0};
    const struct arg list[] = {
        {"tokens", 0, ARG_TEXT, &o.tokens, "\"1,2,3\"", "token ids", 0, 0},
        {"tokens-file", 0, ARG_TEXT, &o.tokens_file, "F", "token ids separated by commas", 0, 0},
        {"text-file", 0, ARG_TEXT, &o.text_file, "F", "a text, special tokens in it stay text; - for standard input", 0, 0},
        {"embeddings", 0, ARG_TEXT, &o.embeddings, "F", "rows given as embeddings: a safetensors file with \"embeddings\"\n[n, hidden]", 0, 0},
        {"out", 'o', ARG_TEXT, &o.out, "F", "the safetensors file to write", 0, 0},
        {"chunks", 0, ARG_TEXT, &o.chunks, "A,B,...", "sizes the prompt is cut into, the last repeated as needed", 0, 0},
        {"positions", 0, ARG_TEXT, &o.positions, "F", "a position for every token: one row, or three (time, height,\nwidth)", 0, 0},
        {"taps", 0, ARG_TEXT, &o.taps, "A,B,...", "layers whose residual output is written as tap.N", 0, 0},
        {"mtp", 0, ARG_FLAG, &o.mtp, "", "the multi-token head, teacher-forced, as mtp", 0, 0},
        {"session", 0, ARG_TEXT, &o.session, "F", "the tokens follow those of a saved session", 0, 0},
        {"session-save", 0, ARG_TEXT, &o.session_save, "F", "save it after the last token", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS];
    struct args a = {
        .usage = "MODEL (--tokens \"1,2,3\" | --tokens-file F | --text-file F | --embeddings F) --out F.safetensors",
        .about = "Runs a prompt and writes what the model makes of every token: logits [tokens, vocabulary], fp32.",
        .group = {{"Options", list, sizeof list / sizeof *list}, run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 3, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    if (o.mtp && o.session) return error_set(e, WEFT_ERROR_INPUT, "--mtp begins with the first token: it does not go with --session");
    if (!o.out) return error_set(e, WEFT_ERROR_INPUT, "--out is missing: the safetensors file to write");
    struct run r;
    struct source s = {0};
    code = read_chunks(&s, &o, &ro, e);
    if (!code) code = run_open(&r, a.positional[0], &ro, e);
    if (code) return source_drop(&s), code;
    code = read_source(&s, &r, &o, e);
    if (!code && o.mtp && !r.info.has_mtp)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: there is no multi-token head for --mtp", r.info.folder);
    if (!code) code = write_all(&r, &s, &o, e);
    source_drop(&s);
    run_close(&r);
    return code;
}

const struct command command_logits = {"logits", "the logits of every token of a prompt, as a safetensors file", run};
