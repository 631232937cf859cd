#include "cli/run.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"

int run_open_model(struct run *r, const char *model, const struct run_options *o, struct weft_error *e) {
    *r = (struct run){0};
    double start = clock_ms();
    struct weft_model_options m = {
        .isa = o->isa, .precision = o->precision, .threads = o->threads, .context = o->context, .norms = o->norms,
        .mtp_norms = o->mtp_norms, .parallel = o->parallel,
        .step_rows = o->step_rows ? o->step_rows : o->prefill_chunk > 512 ? o->prefill_chunk : 0, .step_logits = o->step_logits,
        .without_mtp = o->without_mtp, .progress = progress_show,
    };
    char *folder;
    int code = model_find(&folder, model, e);
    if (!code) code = weft_model_open(&r->model, folder, &m, e);
    mem_free(folder);
    progress_end();
    if (code) return code;
    weft_model_info(r->model, &r->info);
    r->load_ms = clock_ms() - start;
    return 0;
}

static int open_draft_model(struct run *r, const struct run_options *o, struct weft_engine_options *x, struct weft_error *e) {
    static const char *const kinds[] = {"none", "mtp", "ngram"};
    x->draft = o->draft;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!o->draft || !strcmp(o->draft, kinds[i])) return 0;
    struct weft_model_options m = {.isa = o->isa, .precision = o->precision, .threads = o->threads, .context = o->context,
                                   .parallel = o->parallel, .progress = progress_show, .without_mtp = 1};
    char *folder;
    int code = model_find(&folder, o->draft, e);
    if (!code) code = weft_model_open(&r->draft_model, folder, &m, e);
    mem_free(folder);
    progress_end();
    x->draft = "model", x->draft_model = r->draft_model;
    return code < 0 ? error_prefix(e, "--draft %s", o->draft) : 0;
}

int run_open_engine(struct run *r, const struct run_options *o, struct weft_error *e) {
    double start = clock_ms();
    struct weft_engine_options x = {
        .memory_bytes = o->memory_bytes, .cache_bytes = o->cache_bytes, .parallel = o->parallel, .prefill_chunk = o->prefill_chunk,
        .kv = o->kv_bits, .kv_group = o->kv_group, .kv_start = o->kv_start, .kv_config = o->kv_config,
        .snapshot_every = o->snapshot_every, .without_prefix_cache = o->no_prefix_cache, .draft_max = o->draft_max,
        .draft_always = o->draft_always,
    };
    int code = open_draft_model(r, o, &x, e);
    if (!code) code = weft_engine_open(&r->engine, r->model, &x, e);
    for (int i = 0; i < o->lora.n && !code; i++) {
        struct weft_adapter_use uses[RUN_ADAPTERS];
        int n;
        code = run_adapters(r, o->lora.text[i], uses, &n, e);
        if (!code && r->n_uses + n > RUN_ADAPTERS)
            code = error_set(e, WEFT_ERROR_INPUT, "--lora: at most %d adapters", RUN_ADAPTERS);
        for (int k = 0; k < n && !code; k++) r->uses[r->n_uses++] = uses[k];
    }
    r->load_ms += clock_ms() - start;
    return code;
}

int run_open(struct run *r, const char *model, const struct run_options *o, struct weft_error *e) {
    int code = run_open_model(r, model, o, e);
    if (!code) code = run_open_engine(r, o, e);
    if (code) run_close(r);
    return code;
}

void run_close(struct run *r) {
    for (int i = 0; i < r->n_adapters; i++) weft_adapter_close(r->adapters[i]), mem_free(r->adapter_folders[i]);
    if (r->engine) weft_engine_close(r->engine);
    weft_model_close(r->draft_model);
    weft_model_close(r->model);
    *r = (struct run){0};
}

/* The loaded adapter of that folder; loads it when it is new. NULL with a sentence. */
static struct weft_adapter *find_adapter(struct run *r, const char *folder, struct weft_error *e) {
    for (int i = 0; i < r->n_adapters; i++)
        if (!strcmp(r->adapter_folders[i], folder)) return r->adapters[i];
    if (r->n_adapters == RUN_ADAPTERS) {
        error_set(e, WEFT_ERROR_INPUT, "%s: more than %d adapters", folder, RUN_ADAPTERS);
        return NULL;
    }
    char *copy = mem_copy_text(folder, strlen(folder));
    char *report = NULL;
    struct weft_adapter *a = NULL;
    if (!copy) error_memory(e, folder);
    else if (weft_adapter_open(&a, r->engine, folder, &report, e) < 0) mem_free(copy), a = NULL;
    else fputs(report, stderr);
    weft_free(report);
    if (a) r->adapters[r->n_adapters] = a, r->adapter_folders[r->n_adapters++] = copy;
    return a;
}

int run_adapters(struct run *r, const char *text, struct weft_adapter_use *uses, int *n, struct weft_error *e) {
    *n = 0;
    if (file_is_folder(text)) { /* whatever signs its name holds */
        struct weft_adapter *a = find_adapter(r, text, e);
        if (!a) return e && e->code < 0 ? e->code : WEFT_ERROR_INPUT;
        uses[(*n)++] = (struct weft_adapter_use){a, 1};
        return 0;
    }
    for (const char *p = text; *p; p += *p == '+') {
        char folder[1024];
        size_t length = strcspn(p, "+"), name = length;
        double weight = 1;
        for (size_t i = 0; i < length; i++) {
            if (p[i] != '=') continue;
            char *end;
            weight = strtod(p + i + 1, &end);
            if (end != p + length || end == p + i + 1 || !isfinite(weight))
                return error_set(e, WEFT_ERROR_INPUT, "adapter \"%.*s\": the weight is not a number", (int)length, p);
            name = i;
        }
        if (!name || name >= sizeof folder) return error_set(e, WEFT_ERROR_INPUT, "adapter \"%.200s\": not DIR[=WEIGHT]", text);
        if (*n == RUN_ADAPTERS) return error_set(e, WEFT_ERROR_INPUT, "at most %d adapters at once", RUN_ADAPTERS);
        memcpy(folder, p, name), folder[name] = 0;
        struct weft_adapter *a = find_adapter(r, folder, e);
        if (!a) return e && e->code < 0 ? e->code : WEFT_ERROR_INPUT;
        uses[(*n)++] = (struct weft_adapter_use){a, (float)weight};
        p += length;
    }
    return 0;
}

/* ---- what goes in and comes out ---- */

int ids_of_text(int32_t **ids, int *n, struct weft_model *m, const char *path, struct weft_error *e) {
    struct buf text;
    buf_init(&text);
    size_t count = 0;
    int code = file_read(&text, path, (size_t)1 << 30, e);
    if (!code) code = weft_tokenize(m, text.data ? text.data : "", text.n, WEFT_ADDED_PLAIN, ids, &count, e);
    buf_drop(&text);
    if (!code && count > INT_MAX) code = error_set(e, WEFT_ERROR_INPUT, "%s: too long", path);
    *n = code ? 0 : (int)count;
    return code;
}

void result_add(json_t *o, const struct weft_result *r) {
    json_t *tokens = json_array(), *drafted = json_array(), *accepted = json_array();
    int depth = WEFT_DRAFT_MAX;
    while (depth > 0 && !r->drafted[depth - 1]) depth--;
    for (int i = 0; i < r->n_tokens; i++) json_array_append_new(tokens, json_integer(r->tokens[i]));
    for (int i = 0; i < depth; i++) {
        json_array_append_new(drafted, json_integer(r->drafted[i]));
        json_array_append_new(accepted, json_integer(r->accepted[i]));
    }
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "finish_reason", json_string(finish_name(r->finish)));
    json_object_set_new(o, "cached_tokens", json_integer(r->n_cached));
    json_object_set_new(o, "drafted", drafted), json_object_set_new(o, "accepted", accepted);
}
