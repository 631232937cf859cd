#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "model/model.h"
#include "quant/kv.h"
#include "quant/quant.h"
#include "text/tokenizer.h"

enum { FORMS_MAX = 64 };

/* Matrices stored alike. */
struct form { const char *repr; int bits, group; int64_t matrices, parameters; uint64_t bytes; };

struct survey {
    struct model *model;
    const struct run_options *o;
    struct form forms[FORMS_MAX];
    int n_forms;
    int64_t parameters; uint64_t bytes;   /* of matrices */
    struct cache_bytes cache;
    struct model_bytes sizes;
    size_t program; /* what the process has before any weight: code, libraries, tables, tokenizer */
    int context, has_config;
    char kv_name[64];
};

static int count_weight(void *arg, const struct weight *w, const struct linear *l) {
    struct survey *s = arg;
    (void)l;
    int i = 0;
    while (i < s->n_forms &&
           (strcmp(s->forms[i].repr, w->repr->name) || s->forms[i].bits != w->bits || s->forms[i].group != w->group))
        i++;
    if (i == FORMS_MAX) return 0;
    if (i == s->n_forms) s->forms[s->n_forms++] = (struct form){.repr = w->repr->name, .bits = w->bits, .group = w->group};
    struct form *f = &s->forms[i];
    f->matrices++, f->parameters += w->n_rows * w->n_cols, f->bytes += weight_bytes(w);
    s->parameters += w->n_rows * w->n_cols, s->bytes += weight_bytes(w);
    return 0;
}

/* As --kv-config names it: "on" is the model's own file. */
static int read_kv_config(struct survey *s, struct kv_scheme *schemes, const struct cache_shape *shape, struct weft_error *e) {
    const struct config *c = model_config(s->model);
    uint8_t is_attention[CONFIG_LAYERS];
    for (int i = 0; i < c->n_layers; i++) is_attention[i] = c->layer_kinds[i] == LAYER_FULL;
    char *own = strcmp(s->o->kv_config, "on") ? NULL : file_join(model_checkpoint(s->model)->folder, "kv_config.json");
    int code = cache_read_kv_config(schemes, shape, is_attention, c->n_layers, own ? own : s->o->kv_config, e);
    mem_free(own);
    snprintf(s->kv_name, sizeof s->kv_name, "as kv_config says");
    return code;
}

static int measure_cache(struct survey *s, struct weft_error *e) {
    struct cache_shape shape;
    model_cache_shape(s->model, &shape);
    struct kv_scheme scheme, plain, *all = NULL;
    s->has_config = s->o->kv_config && strcmp(s->o->kv_config, "off");
    const char *kv = s->o->kv_bits ? s->o->kv_bits : shape.f32_rows ? "f32" : "16";
    int code = kv_scheme_parse(&scheme, kv, s->o->kv_group ? s->o->kv_group : 64, e);
    if (!code) code = kv_scheme_check(&scheme, shape.head_dim, e);
    if (code) return error_prefix(e, "--kv-bits");
    kv_scheme_name(&scheme, s->kv_name, sizeof s->kv_name);
    if (!(all = mem_new((size_t)shape.n_attention + 1, sizeof *all))) return error_memory(e, "KV schemes");
    kv_scheme_parse(&plain, shape.f32_rows ? "f32" : "16", 0, NULL);
    for (int i = 0; i < shape.n_attention; i++) all[i] = i < shape.n_attention - shape.n_mtp ? scheme : plain;
    if (s->has_config) code = read_kv_config(s, all, &shape, e);
    struct cache_options c = {.backend = model_backend(s->model), .schemes = s->o->kv_bits || s->has_config ? all : NULL,
                              .kv_start = s->o->kv_start, .max_undo_rows = WEFT_DRAFT_MAX + 1};
    if (!code) cache_sizes(&shape, &c, &s->cache);
    mem_free(all);
    return code;
}

/* Bytes of attention rows in pages for n rows of one sequence. */
static double kv_bytes(const struct survey *s, int n) {
    int low = s->o->kv_bits || s->has_config ? s->o->kv_start : 0;
    low = low < n ? low : n;
    int low_pages = (low + KV_ROWS - 1) / KV_ROWS, all = (n + KV_ROWS - 1) / KV_ROWS, shared = low / KV_ROWS;
    return (double)s->cache.low_page * low_pages + (double)s->cache.page * (all - shared);
}

static double total_bytes(const struct survey *s) {
    return (double)s->sizes.packed + (double)s->sizes.mapped + (double)s->sizes.workspace + (double)s->cache.fixed +
           (double)s->cache.state + (double)s->program + kv_bytes(s, s->context);
}

static const double mib = 1048576.0;

static void print_config(struct survey *s) {
    const struct config *c = model_config(s->model);
    int n_full = 0;
    for (int i = 0; i < c->n_layers; i++) n_full += c->layer_kinds[i] == LAYER_FULL;
    out_printf("model           %s\n", model_checkpoint(s->model)->folder);
    out_printf("type            %s, %d layers (%d delta, %d attention)%s\n", c->model_type, c->n_layers, c->n_layers - n_full, n_full,
               model_has_mtp(s->model) ? ", multi-token head" : "");
    out_printf("stream          hidden %d, vocabulary %d, eps %g, %s\n", c->hidden, c->vocab, c->rms_eps,
               c->tied ? "tied head" : "own head");
    if (c->n_experts)
        out_printf("experts         %d of %d, width %d, shared expert %d\n", c->top_k, c->n_experts, c->moe_intermediate,
                   c->shared_intermediate);
    else out_printf("MLP             %d\n", c->intermediate);
    out_printf("attention       %d query heads on %d key heads of %d, %d rotating, theta %g, context %d\n", c->n_heads, c->n_kv_heads,
               c->head_dim, c->rotary_dim, c->rope_theta, c->max_positions);
    if (c->linear_v_heads)
        out_printf("delta           %d value heads of %d on %d key heads of %d, convolution over %d\n", c->linear_v_heads,
                   c->linear_v_dim, c->linear_k_heads, c->linear_k_dim, c->conv_taps);
    out_text("end tokens     ");
    for (int i = 0; i < c->n_ends; i++) out_printf(" %d", c->ends[i]);
    out_text("\n");
    struct model_norms n;
    model_norms(s->model, &n);
    out_printf("norms           %s\n", n.text);
    if (n.mtp_layers)
        out_printf("                multi-token head: layers %s; embedding %s; hidden %s; final %s\n", n.mtp_layers, n.mtp_embedding,
                   n.mtp_hidden, n.mtp_final);
}

static void print_forms(struct survey *s) {
    out_text("\nstored as       matrices     parameters          MiB   bits a weight\n");
    for (int i = 0; i < s->n_forms; i++) {
        const struct form *f = &s->forms[i];
        char name[64];
        if (f->group) snprintf(name, sizeof name, "%s %d/%d", f->repr, f->bits, f->group);
        else snprintf(name, sizeof name, "%s", f->repr);
        out_printf("%-15s %8lld %14lld %12.1f %15.3f\n", name, (long long)f->matrices, (long long)f->parameters,
                   (double)f->bytes / mib, 8.0 * (double)f->bytes / (double)f->parameters);
    }
    out_printf("%-15s %8s %14lld %12.1f %15.3f\n", "together", "", (long long)s->parameters, (double)s->bytes / mib,
               8.0 * (double)s->bytes / (double)(s->parameters ? s->parameters : 1));
}

static void print_memory(struct survey *s) {
    out_printf("\nmemory in MiB at %d tokens, one sequence\n", s->context);
    out_printf("  packed weights  %10.1f\n  mapped weights  %10.1f   read in place, shared with other processes\n",
               (double)s->sizes.packed / mib, (double)s->sizes.mapped / mib);
    out_printf("  workspace       %10.1f   %d rows a step\n", (double)s->sizes.workspace / mib, model_limits(s->model)->max_rows);
    out_printf("  delta state     %10.1f   and %.1f for each snapshot of the prefix cache\n", (double)(s->cache.state) / mib,
               (double)s->cache.snapshot / mib);
    out_printf("  attention rows  %10.1f   %s, %.1f KiB a token\n", kv_bytes(s, s->context) / mib, s->kv_name,
               (double)s->cache.page / KV_ROWS / 1024);
    double mtp = (double)s->cache.mtp_page * ((s->context + KV_ROWS - 1) / KV_ROWS);
    out_printf("                             drafting takes %.1f more for redo logs%s", (double)s->cache.log / mib, mtp > 0 ? "" : "\n");
    if (mtp > 0) out_printf(" and, with the model's own head, %.1f for its rows\n", mtp / mib);
    out_printf("  program         %10.1f   code, tokenizer, tables\n", (double)(s->cache.fixed + s->program) / mib);
    out_printf("  together        %10.1f\n", total_bytes(s) / mib);
}

/* Skipped tensors, those with one reason and one first name together; with `all` every one. */
static void print_skipped(const struct checkpoint *c, int all) {
    int n = 0;
    for (int i = 0; i < c->n_entries; i++) n += c->entries[i].skipped != NULL;
    if (n) out_printf("\nskipped tensors (%d)\n", n);
    for (int i = 0; i < c->n_entries;) {
        const struct entry *x = &c->entries[i];
        size_t head = strcspn(x->name, ".");
        int run = 1;
        if (!x->skipped) { i++; continue; }
        while (!all && i + run < c->n_entries && c->entries[i + run].skipped && !strcmp(c->entries[i + run].skipped, x->skipped) &&
               !strncmp(c->entries[i + run].name, x->name, head + 1))
            run++;
        if (run == 1) out_printf("  %s: %s\n", x->name, x->skipped);
        else out_printf("  %.*s.* (%d): %s\n", (int)head, x->name, run, x->skipped);
        i += run;
    }
    if (c->n_skipped_files) out_text("\nskipped files\n");
    for (int i = 0; i < c->n_skipped_files; i++) out_printf("  %s\n", c->skipped_files[i]);
}

static void print_tensors(const struct checkpoint *c) {
    out_text("\ntensors\n");
    for (int i = 0; i < c->n_entries; i++) {
        const struct entry *x = &c->entries[i];
        char shape[TENSOR_SHAPE_TEXT];
        out_printf("  %-56s %-5s %-18s %s%s\n", x->name, dtype_name(x->tensor->dtype), tensor_shape_text(x->tensor, shape),
                   x->tensor->file, x->skipped ? " (skipped)" : "");
    }
}

static json_t *json_forms(const struct survey *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->n_forms; i++) {
        const struct form *f = &s->forms[i];
        json_array_append_new(list, json_pack("{s:s,s:i,s:i,s:I,s:I,s:I,s:f}", "name", f->repr, "bits", f->bits, "group", f->group,
                                              "matrices", (json_int_t)f->matrices, "parameters", (json_int_t)f->parameters, "bytes",
                                              (json_int_t)f->bytes, "bits_per_weight",
                                              8.0 * (double)f->bytes / (double)f->parameters));
    }
    return list;
}

static json_t *json_config(const struct config *c) {
    json_t *ends = json_array(), *kinds = json_array();
    for (int i = 0; i < c->n_ends; i++) json_array_append_new(ends, json_integer(c->ends[i]));
    for (int i = 0; i < c->n_layers; i++)
        json_array_append_new(kinds, json_string(c->layer_kinds[i] == LAYER_FULL ? "full_attention" : "linear_attention"));
    json_t *o = json_pack("{s:s,s:i,s:i,s:i,s:i,s:b,s:f,s:o,s:o}", "model_type", c->model_type, "hidden", c->hidden, "layers",
                          c->n_layers, "vocab", c->vocab, "intermediate", c->intermediate, "tied", c->tied, "rms_eps", c->rms_eps,
                          "ends", ends, "layer_types", kinds);
    json_t *more = json_pack("{s:i,s:i,s:i,s:i,s:f,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "heads", c->n_heads, "kv_heads",
                             c->n_kv_heads, "head_dim", c->head_dim, "rotary_dim", c->rotary_dim, "rope_theta", c->rope_theta,
                             "context", c->max_positions, "linear_key_heads", c->linear_k_heads, "linear_value_heads",
                             c->linear_v_heads, "linear_key_dim", c->linear_k_dim, "linear_value_dim", c->linear_v_dim, "conv_taps",
                             c->conv_taps, "experts", c->n_experts, "top_k", c->top_k, "moe_intermediate", c->moe_intermediate,
                             "shared_intermediate", c->shared_intermediate);
    json_object_update(o, more);
    json_decref(more);
    return o;
}

static json_t *json_tensors(const struct checkpoint *c, int skipped) {
    json_t *list = json_array();
    for (int i = 0; i < c->n_entries; i++) {
        const struct entry *x = &c->entries[i];
        if (skipped && !x->skipped) continue;
        json_t *shape = json_array(), *o;
        for (int d = 0; d < x->tensor->n_dims; d++) json_array_append_new(shape, json_integer(x->tensor->shape[d]));
        o = json_pack("{s:s,s:s,s:s,s:s,s:o,s:s}", "name", x->name, "source", x->tensor->name, "kind", name_kind_text(x->kind),
                      "dtype", dtype_name(x->tensor->dtype), "shape", shape, "file", x->tensor->file);
        if (x->skipped) json_object_set_new(o, "skipped", json_string(x->skipped));
        json_array_append_new(list, o);
    }
    return list;
}

static char *plan_text(const struct model *m) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    model_print_plan(m, f);
    fclose(f);
    return text;
}

static void print_json(struct survey *s, const char *plan, int tensors) {
    const struct checkpoint *c = model_checkpoint(s->model);
    struct model_norms n;
    model_norms(s->model, &n);
    struct backend *b = model_backend(s->model);
    json_t *files = json_array();
    for (int i = 0; i < c->n_skipped_files; i++) json_array_append_new(files, json_string(c->skipped_files[i]));
    json_t *o = json_pack("{s:s,s:o,s:s,s:s,s:o,s:I,s:I,s:f,s:{s:s,s:s?,s:s?,s:s?,s:s?},s:o,s:o}", "folder", c->folder, "config",
                          json_config(&c->config), "isa", b->table->isa(b), "arithmetic", b->table->arithmetic(b), "representations",
                          json_forms(s), "parameters", (json_int_t)s->parameters, "bytes", (json_int_t)s->bytes, "bits_per_weight",
                          8.0 * (double)s->bytes / (double)(s->parameters ? s->parameters : 1), "norms", "text", n.text,
                          "mtp_layers", n.mtp_layers, "mtp_embedding", n.mtp_embedding, "mtp_hidden", n.mtp_hidden, "mtp_final",
                          n.mtp_final, "skipped_tensors", json_tensors(c, 1), "skipped_files", files);
    json_object_set_new(o, "memory", json_pack("{s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:f,s:f}", "context", s->context, "packed_bytes",
                        (json_int_t)s->sizes.packed, "mapped_bytes", (json_int_t)s->sizes.mapped, "workspace_bytes",
                        (json_int_t)s->sizes.workspace, "state_bytes", (json_int_t)s->cache.state, "program_bytes", (json_int_t)(s->cache.fixed + s->program), "snapshot_bytes",
                        (json_int_t)s->cache.snapshot, "kv", s->kv_name, "kv_bytes_per_token", (double)s->cache.page / KV_ROWS,
                        "kv_bytes", kv_bytes(s, s->context), "total_bytes", total_bytes(s)));
    if (tensors) json_object_set_new(o, "tensors", json_tensors(c, 0));
    if (plan) json_object_set_new(o, "plan", json_string(plan));
    char *text = json_dumps(o, JSON_INDENT(1));
    out_text(text ? text : "{}"), out_text("\n");
    free(text), json_decref(o);
}

/* ---- --verify: every value of every matrix ---- */

enum { VERIFY_VALUES = 1 << 20 };
struct verify {
    const struct weight *w;
    int n, room, rows_at_once, found;
    struct weight *all;
    atomic_int next;
    _Atomic int failed;
    struct weft_error first;
};

static int collect(void *arg, const struct weight *w, const struct linear *l) {
    struct verify *v = arg;
    (void)l;
    if (v->n == v->room) {
        int room = v->room ? 2 * v->room : 256;
        void *more = mem_resize(v->all, (size_t)room * sizeof *v->all);
        if (!more) return WEFT_ERROR_MEMORY;
        v->all = more, v->room = room;
    }
    v->all[v->n++] = *w;
    return 0;
}

static void verify_rows(void *arg, int thread, int n_threads) {
    struct verify *v = arg;
    (void)thread, (void)n_threads;
    for (int row, end; pool_claim(&v->next, (int)v->w->n_rows, v->rows_at_once, &row, &end);) {
        struct weft_error e;
        if (weight_check(v->w, row, end - row, &e) && !atomic_exchange(&v->failed, 1)) v->first = e;
    }
}

/* Goes on after a fault, so that one run names every damaged matrix. */
static int verify(struct survey *s, struct weft_error *e) {
    struct verify v = {0};
    struct pool *pool = NULL;
    int code = model_visit(s->model, collect, &v);
    if (code) error_memory(e, "the list of matrices");
    else code = pool_new(&pool, s->o->threads, e);
    for (int i = 0; i < v.n && !code; i++) {
        v.w = &v.all[i], v.failed = 0;
        atomic_store(&v.next, 0);
        v.rows_at_once = (int)(VERIFY_VALUES / (v.w->n_cols + 1)) + 1;
        pool_run(pool, verify_rows, &v);
        if (v.failed) out_printf("damaged         %s\n", v.first.message), v.found++;
        progress_show(NULL, "verifying", (i + 1.0) / v.n);
    }
    progress_end();
    if (!code && v.found)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: %d of %d matrices hold values that are not finite",
                         model_checkpoint(s->model)->folder, v.found, v.n);
    else if (!code) out_printf("\nverified        every value of %d matrices is finite\n", v.n);
    pool_free(pool), mem_free(v.all);
    return code;
}

/* Measured: this process has everything but weights and sequences, once it has the tokenizer. */
static size_t program_bytes(const char *folder) {
    struct tokenizer *t = NULL;
    char *path = file_join(folder, "tokenizer.json");
    if (path && file_exists(path)) tokenizer_open(&t, path, NULL);
    size_t bytes = mem_resident_bytes();
    tokenizer_close(t);
    mem_free(path);
    return bytes;
}

struct options { int plan, verify, tensors, json; };

static int show(struct survey *s, const struct options *o, struct weft_error *e) {
    model_visit(s->model, count_weight, s);
    model_sizes(s->model, &s->sizes);
    int code = measure_cache(s, e);
    if (code) return code;
    char *plan = o->plan ? plan_text(s->model) : NULL;
    if (o->json) print_json(s, plan, o->tensors);
    else {
        print_config(s), print_forms(s), print_memory(s);
        print_skipped(model_checkpoint(s->model), o->tensors);
        if (o->tensors) print_tensors(model_checkpoint(s->model));
        if (plan) out_text("\nplan\n"), out_text(plan);
    }
    free(plan);
    return o->verify ? verify(s, e) : 0;
}

static int run(int argc, char **argv, struct weft_error *e) {
    struct options o = {0};
    struct run_options r = {0};
    const struct arg list[] = {
        {"plan", 0, ARG_FLAG, &o.plan, "", "layout and kernels of every matrix, and the arithmetic", 0, 0},
        {"tensors", 0, ARG_FLAG, &o.tensors, "", "every tensor with its dtype, shape and file", 0, 0},
        {"verify", 0, ARG_FLAG, &o.verify, "", "look at every value: those used in place are not checked when\na model is opened", 0, 0},
        {"json", 0, ARG_FLAG, &o.json, "", "one JSON object", 0, 0},
    };
    const struct arg kv[] = {
        {"kv-bits", 0, ARG_TEXT, &r.kv_bits, "FORM", "attention rows: 16 (bf16), 8, 6, 5, 4, 3, 2, turbo:kXvY", 0, 0},
        {"kv-group-size", 0, ARG_COUNT, &r.kv_group, "N", "values to a scale: 32, 64 or 128 (64)", 32, 128},
        {"kv-start", 0, ARG_COUNT, &r.kv_start, "N", "rows before this one stay bf16", 0, 1 << 30},
        {"kv-config", 0, ARG_TEXT, &r.kv_config, "FILE", "off, on (kv_config.json of the model), or a file", 0, 0},
    };
    struct arg model_args[RUN_MODEL_ARGS];
    struct args a = {
        .usage = "MODEL [--plan] [--tensors] [--verify] [--json]",
        .about = "Tells what a checkpoint holds and what running it takes: config, stored forms and bits a weight, memory at a\n"
                 "context length, how gains are stored, and what is skipped.",
        .group = {{"Options", list, sizeof list / sizeof *list}, run_model_args(&r, model_args),
                  {"Attention rows", kv, sizeof kv / sizeof *kv}},
        .n_groups = 3, .min_positional = 1, .max_positional = 1};
    int code = args_parse(&a, argc, argv, e);
    if (code) return code < 0 ? code : 0;
    struct survey s = {.o = &r};
    struct model_options m = {.isa = r.isa, .precision = (enum precision)r.precision, .n_threads = r.threads, .max_context = r.context,
                              .without_data = 1, .norms = (enum norm_override)r.norms, .mtp_norms = (enum norm_override)r.mtp_norms};
    char *folder;
    code = model_find(&folder, a.positional[0], e);
    if (!code) code = model_open(&s.model, folder, &m, e);
    mem_free(folder);
    if (code) return code;
    s.context = model_limits(s.model)->max_context;
    s.program = program_bytes(model_checkpoint(s.model)->folder);
    code = show(&s, &o, e);
    model_close(s.model);
    return code;
}

const struct command command_inspect = {"inspect", "what a checkpoint holds, and what running it takes", run};
