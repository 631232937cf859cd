#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "../bench/limits.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/random_model.h"
#include "cli/run.h"
#include "engine/engine.h"
#include "quant/quant.h"

enum { LIST_MAX = 16, BATCH_MAX = 64, REPEATS_MAX = 50 };

struct options { const char *pp, *tg, *depth, *batch, *write; int repeat, json; };
struct numbers { int n; int32_t *x; };

struct row { const char *test; int n, depth, batch; double tok_per_s, fraction; };

struct bench {
    struct run *r;
    double limit[N_LIMITS];
    double weight_bytes, expert_bytes;    /* read by a step of one row, without experts; of all experts */
    double peak_s_per_row, expert_s_per_row; /* linear work of one row at the peak in use: all but the head, experts chosen */
    double head_s;
    double experts_chosen;                /* fraction that one row reads */
    double state_bytes, kv_bytes_per_row; /* of one sequence: read and written once, read */
    struct row *rows; int n_rows;
    int repeat;
};

/* ---- what a step has to read and to compute ---- */

static int is_expert(const struct weight *w) { return strstr(w->name, ".experts") || strstr(w->name, "switch_mlp"); }

static double peak(const struct bench *b, const struct linear *l) {
    int form = l->kernel[N_ROW_CLASSES - 1]->form;
    double fma = b->limit[FMA], bf16 = strcmp(b->r->info.isa, "avx512bf16") ? 0 : b->limit[BF16_DOT];
    if (form == FORM_Q8 && b->limit[INT8_DOT] > 0) return b->limit[INT8_DOT] * 1e9;
    if (form == FORM_BF16 && bf16 > fma) return bf16 * 1e9;
    return fma * 1e9;
}

static int count_weight(void *arg, const struct weight *w, const struct linear *l) {
    struct bench *b = arg;
    if (!l) return 0; /* an embedding that is only looked up */
    double seconds = 2.0 * (double)w->n_rows * (double)w->n_cols / peak(b, l);
    if (is_expert(w)) {
        b->expert_bytes += (double)weight_bytes(w), b->expert_s_per_row += seconds * b->experts_chosen;
        return 0;
    }
    b->weight_bytes += (double)weight_bytes(w);
    if (w->n_rows == b->r->info.vocab) b->head_s += seconds;
    else b->peak_s_per_row += seconds;
    return 0;
}

static void count_work(struct bench *b) {
    struct model *m = engine_model(b->r->engine);
    const struct config *c = model_config(m);
    struct cache_shape shape;
    model_cache_shape(m, &shape);
    b->experts_chosen = c->n_experts ? (double)c->top_k / c->n_experts : 0;
    model_visit(m, count_weight, b);
    const struct delta_shape *d = &shape.delta;
    b->state_bytes = 2.0 * 4 * shape.n_delta *
                     ((double)delta_values(d) * d->key_dim + (double)delta_channels(d) * (d->conv_kernel > 0 ? d->conv_kernel - 1 : 0));
    const struct cache *cache = engine_cache(b->r->engine);
    enum { PAGES = 1024 };
    b->kv_bytes_per_row = (double)(cache_request_bytes(cache, KV_PAGE_ROWS * (PAGES + 1), 0) -
                                   cache_request_bytes(cache, KV_PAGE_ROWS, 0)) / (KV_PAGE_ROWS * PAGES);
}

/* The least time of a decode step of `batch` sequences at that depth, by memory alone. */
static double decode_floor_s(const struct bench *b, double depth, int batch) {
    double experts = b->expert_bytes * (1 - pow(1 - b->experts_chosen, batch)); /* that any row of the batch reads, if choices are even */
    return (b->weight_bytes + experts + batch * (b->state_bytes + b->kv_bytes_per_row * depth)) / (b->limit[READ_FOUR] * 1e9);
}
static double prompt_floor_s(const struct bench *b, int n, int batch) {
    return (double)n * batch * (b->peak_s_per_row + b->expert_s_per_row) + batch * b->head_s;
}

/* ---- steps ---- */

struct batch_state { struct weft_sequence *s[BATCH_MAX]; int32_t next[BATCH_MAX]; int n; };

static int32_t some_token(const struct bench *b, int sequence, int row) {
    uint32_t x = (uint32_t)(sequence * 7919 + row) * 2654435761u;
    return (int32_t)((x ^ x >> 15) % (uint32_t)b->r->info.vocab);
}

/* Every sequence reads n rows, packed as steps allow; the last row's logits are asked for. */
static int read_rows(struct bench *b, struct batch_state *x, int n, struct weft_error *e) {
    int room = b->r->info.step_rows, each = room / x->n > 0 ? room / x->n : 1, code = 0;
    int32_t *tokens = mem_new((size_t)each * (size_t)x->n, sizeof *tokens);
    if (!tokens) return error_memory(e, "tokens");
    for (int at = 0; at < n && !code; at += each) {
        struct weft_group g[BATCH_MAX] = {{0}};
        int take = n - at < each ? n - at : each;
        for (int i = 0; i < x->n; i++) {
            int32_t *t = tokens + (size_t)i * (size_t)each;
            int before = weft_sequence_rows(x->s[i]);
            for (int k = 0; k < take; k++) t[k] = some_token(b, i, before + k);
            g[i] = (struct weft_group){.sequence = x->s[i], .n_rows = take, .tokens = t, .n_logits = at + take == n};
        }
        code = weft_step(b->r->engine, g, x->n, NULL, e);
    }
    mem_free(tokens);
    return code;
}

static int decode_rows(struct bench *b, struct batch_state *x, int n, struct weft_error *e) {
    struct weft_sampling greedy;
    weft_sampling_defaults(b->r->model, &greedy);
    greedy.temperature = 0, greedy.repetition_penalty = 0, greedy.presence_penalty = greedy.frequency_penalty = 0;
    int code = 0;
    for (int i = 0; i < x->n; i++) x->next[i] = some_token(b, i, weft_sequence_rows(x->s[i]));
    for (int at = 0; at < n && !code; at++) {
        struct weft_group g[BATCH_MAX] = {{0}};
        for (int i = 0; i < x->n; i++)
            g[i] = (struct weft_group){.sequence = x->s[i], .n_rows = 1, .tokens = &x->next[i], .n_logits = 1};
        code = weft_step(b->r->engine, g, x->n, NULL, e);
        for (int i = 0; i < x->n && !code; i++) code = weft_sample(x->s[i], g[i].logits, &greedy, &x->next[i], e);
    }
    return code;
}

static void free_sequences(struct batch_state *x) {
    for (int i = 0; i < x->n; i++) weft_sequence_free(x->s[i]);
    x->n = 0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One row of the table: the median of `repeat` runs from the same depth, one unmeasured run before. */
static int measure(struct bench *b, int is_pp, int n, int depth, int batch, struct weft_error *e) {
    struct batch_state base = {0};
    double seconds[REPEATS_MAX];
    int code = 0;
    for (int i = 0; i < batch && !code; i++) {
        code = weft_sequence_new(&base.s[base.n], b->r->engine, depth + 2 * n + 64, e);
        if (!code) base.n++;
    }
    if (!code && depth) code = read_rows(b, &base, depth, e);
    for (int run = 0; run <= b->repeat && !code; run++) {
        struct batch_state now = {0};
        for (int i = 0; i < batch && !code; i++) {
            code = weft_sequence_fork(&now.s[i], base.s[i], e);
            if (!code) now.n++;
        }
        double start = clock_ms();
        if (!code) code = is_pp ? read_rows(b, &now, n, e) : decode_rows(b, &now, n, e);
        if (run) seconds[run - 1] = (clock_ms() - start) / 1000;
        free_sequences(&now);
        char what[96];
        snprintf(what, sizeof what, "%s %d at depth %d, batch %d:", is_pp ? "pp" : "tg", n, depth, batch);
        progress_show(NULL, what, (run + 1.0) / (b->repeat + 1));
    }
    free_sequences(&base);
    if (code) return code;
    qsort(seconds, (size_t)b->repeat, sizeof *seconds, ascending);
    double s = b->repeat % 2 ? seconds[b->repeat / 2] : (seconds[b->repeat / 2 - 1] + seconds[b->repeat / 2]) / 2;
    double floor_s = is_pp ? prompt_floor_s(b, n, batch) : n * decode_floor_s(b, depth + n / 2.0, batch);
    b->rows[b->n_rows++] = (struct row){is_pp ? "pp" : "tg", n, depth, batch, (double)n * batch / s, floor_s / s};
    return 0;
}

/* ---- the machine ---- */

static void cpu_name(char *out, size_t n) {
    snprintf(out, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, n, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
}

static int probe_limits(struct bench *b, struct weft_error *e) {
    struct pool *pool;
    int code = pool_new(&pool, b->r->info.threads, e);
    if (code) return code;
    code = limits_measure(pool, b->limit);
    pool_free(pool);
    return code ? error_memory(e, "the probe of the memory's speed") : 0;
}

static json_t *json_machine(const struct bench *b, const char *cpu) {
    const struct weft_model_info *i = &b->r->info;
    return json_pack("{s:s,s:i,s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:s}", "cpu", cpu, "threads", i->threads, "isa", i->isa, "arithmetic",
                     i->arithmetic, "read_gb_per_s", b->limit[READ_PLAIN], "read_four_gb_per_s", b->limit[READ_FOUR],
                     "fma_gflop_per_s", b->limit[FMA], "bf16_dot_gflop_per_s", b->limit[BF16_DOT], "int8_dot_gop_per_s",
                     b->limit[INT8_DOT], "version", weft_version());
}

static void report(const struct bench *b, int json) {
    char cpu[128];
    cpu_name(cpu, sizeof cpu);
    if (json) {
        json_t *rows = json_array();
        for (int i = 0; i < b->n_rows; i++) {
            const struct row *x = &b->rows[i];
            json_array_append_new(rows, json_pack("{s:s,s:i,s:i,s:i,s:f,s:f}", "test", x->test, "n", x->n, "depth", x->depth, "batch",
                                                  x->batch, "tok_per_s", x->tok_per_s, "fraction", x->fraction));
        }
        json_t *o = json_pack("{s:o,s:f,s:I,s:I,s:o}", "machine", json_machine(b, cpu), "load_ms", b->r->load_ms, "packed_bytes",
                              (json_int_t)b->r->info.packed_bytes, "mapped_bytes", (json_int_t)b->r->info.mapped_bytes, "rows", rows);
        char *text = json_dumps(o, JSON_INDENT(1));
        out_text(text ? text : "{}"), out_text("\n");
        free(text), json_decref(o);
        return;
    }
    out_printf("%s, %d threads, %s\n", cpu, b->r->info.threads, b->r->info.arithmetic);
    for (int i = 0; i < N_LIMITS; i++) out_printf("%s%s %.0f %s", i ? ", " : "", limit_name[i], b->limit[i], limit_unit[i]);
    out_printf("\nload %.2f s, packed %.0f MiB, in place %.0f MiB\n\n", b->r->load_ms / 1000, (double)b->r->info.packed_bytes / 1048576,
               (double)b->r->info.mapped_bytes / 1048576);
    out_text("test        n   depth  batch      tok/s   fraction\n");
    for (int i = 0; i < b->n_rows; i++) {
        const struct row *x = &b->rows[i];
        out_printf("%-4s %8d %7d %6d %10.2f   %.3f of the %s\n", x->test, x->n, x->depth, x->batch, x->tok_per_s, x->fraction,
                   x->test[0] == 'p' ? "dot peak" : "read bandwidth");
    }
}

/* ---- options ---- */

static int read_numbers(struct numbers *out, const char *text, const char *name, int min, int max, struct weft_error *e) {
    *out = (struct numbers){0};
    if (!text) return 0;
    int code = args_read_ids(&out->x, &out->n, text, strlen(text), name, e);
    if (code) return code;
    if (out->n == 0 || out->n > LIST_MAX) return error_set(e, WEFT_ERROR_INPUT, "%s wants 1 to %d numbers", name, LIST_MAX);
    for (int i = 0; i < out->n; i++)
        if (out->x[i] < min || out->x[i] > max)
            return error_set(e, WEFT_ERROR_INPUT, "%s lies between %d and %d, not %d", name, min, max, out->x[i]);
    return 0;
}

static int largest(const struct numbers *l) {
    int m = 0;
    for (int i = 0; i < l->n; i++) m = l->x[i] > m ? l->x[i] : m;
    return m;
}

struct tests { struct numbers pp, tg, depth, batch; };

static int read_tests(struct tests *t, const struct options *o, struct weft_error *e) {
    int code = read_numbers(&t->pp, o->pp, "--pp", 1, 1 << 20, e);
    if (!code) code = read_numbers(&t->tg, o->tg, "--tg", 1, 1 << 20, e);
    if (!code) code = read_numbers(&t->depth, o->depth ? o->depth : "0", "--depth", 0, 1 << 24, e);
    if (!code) code = read_numbers(&t->batch, o->batch ? o->batch : "1", "--batch", 1, BATCH_MAX, e);
    return code;
}

static int run_tests(struct bench *b, const struct tests *t, struct weft_error *e) {
    int code = 0;
    b->rows = mem_new((size_t)((t->pp.n + t->tg.n) * t->depth.n * t->batch.n) + 1, sizeof *b->rows);
    if (!b->rows) return error_memory(e, "the table");
    for (int test = 0; test < t->pp.n + t->tg.n; test++)
        for (int d = 0; d < t->depth.n; d++)
            for (int k = 0; k < t->batch.n && !code; k++) {
                int is_pp = test < t->pp.n;
                code = measure(b, is_pp, is_pp ? t->pp.x[test] : t->tg.x[test - t->pp.n], t->depth.x[d], t->batch.x[k], e);
            }
    progress_end();
    return code;
}

static int bench_model(const char *model, const struct options *o, struct run_options *ro, const struct tests *t, struct weft_error *e) {
    int longest = largest(&t->pp) > largest(&t->tg) ? largest(&t->pp) : largest(&t->tg), rows = largest(&t->depth) + 2 * longest + 64;
    if (!ro->context) ro->context = rows;
    ro->parallel = largest(&t->batch), ro->step_logits = ro->parallel > 64 ? ro->parallel : 0, ro->step_rows = ro->prefill_chunk;
    ro->without_mtp = 1, ro->no_prefix_cache = 1;
    struct run r;
    int code = run_open(&r, model, ro, e);
    if (code) return code;
    struct bench b = {.r = &r, .repeat = o->repeat};
    code = probe_limits(&b, e);
    if (!code) count_work(&b), code = run_tests(&b, t, e);
    if (!code) report(&b, o->json);
    mem_free(b.rows);
    run_close(&r);
    return code;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {.repeat = 3};
    struct run_options ro = {0};
    const struct arg list[] = {
        {"pp", 0, ARG_TEXT, &o.pp, "N,...", "read a prompt of N tokens", 0, 0},
        {"tg", 0, ARG_TEXT, &o.tg, "N,...", "generate N tokens, one step each", 0, 0},
        {"depth", 0, ARG_TEXT, &o.depth, "N,...", "tokens that are there before (0)", 0, 0},
        {"batch", 0, ARG_TEXT, &o.batch, "N,...", "sequences at once (1)", 0, 0},
        {"repeat", 0, ARG_COUNT, &o.repeat, "N", "runs of which the median counts (3)", 1, REPEATS_MAX},
        {"write", 0, ARG_TEXT, &o.write, "DIR", "write the random model as a checkpoint; no test is run unless\nnamed", 0, 0},
        {"json", 0, ARG_FLAG, &o.json, "", "{\"machine\": ..., \"rows\": [...]}", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS], engine_args[RUN_ENGINE_ARGS];
    struct args a = {
        .usage = "(MODEL | random:SIZE[,repr=R][,group=N][,layers=N]) [--pp N] [--tg N] [--depth N] [--batch N]",
        .about = "Measures tokens a second, and the fraction of what the machine allows: of the read bandwidth for generation\n"
                 "(weights once, state once read and once written, attention rows once), of the dot peak in use for prompts (linear\n"
                 "work only). Without --pp and --tg: --pp 512 --tg 64. random:SIZE is a model with random weights in a published\n"
                 "geometry: 0.8b, 2b, 4b, 9b, 27b, 35b-a3b; R is bf16 or affine2 to affine8 (affine4), in groups of N (64).",
        .group = {{"Tests", list, sizeof list / sizeof *list}, run_model_args(&ro, model_args), run_engine_args(&ro, engine_args)},
        .n_groups = 3, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    const char *model = a.positional[0];
    int is_random = random_model_is(model);
    if (o.write && !is_random) return error_set(e, WEFT_ERROR_INPUT, "--write goes with a random model");
    if (!o.pp && !o.tg && !o.write) o.pp = "512", o.tg = "64";
    struct random_model random;
    struct tests t = {{0}, {0}, {0}, {0}};
    char *made = NULL;
    code = read_tests(&t, &o, e);
    if (!code && is_random) code = random_model_parse(&random, model, e);
    if (!code && o.write) code = random_model_write(&random, o.write, e), model = o.write;
    else if (!code && is_random) code = random_model_make(&made, &random, e), model = made;
    if (!code && (o.pp || o.tg)) code = bench_model(model, &o, &ro, &t, e);
    random_model_drop(made);
    mem_free(t.pp.x), mem_free(t.tg.x), mem_free(t.depth.x), mem_free(t.batch.x);
    return code;
}

const struct command command_bench = {"bench", "how fast a model runs here, and what the machine would allow", run};
