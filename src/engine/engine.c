/* The engine: its memory, its loop. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/draft.h"
#include "engine/inside.h"

enum {
    MAX_PAIRS = 1 << 24, /* a prompt chunk's rows times its context: 512 rows up to 32k, 64 rows at 256k */
    MAX_UNDO_ROWS = WEFT_DRAFT_MAX + 1, /* of one group: the redo logs of every sequence are that long */
};

struct model *engine_model(const struct weft_engine *x) { return x->model; }
struct weft_model *engine_handle(const struct weft_engine *x) { return x->handle; }
struct cache *engine_cache(const struct weft_engine *x) { return x->cache; }

static int check_options(struct weft_engine *x, struct weft_error *e) {
    struct weft_engine_options *o = &x->o;
    const struct model_options *limits = model_limits(x->model);
    if (o->parallel < 0 || o->prefill_chunk < 0 || o->kv_start < 0 || o->snapshot_every < 0)
        return error_set(e, WEFT_ERROR_INPUT, "engine options: a count is negative");
    if (o->draft_max < 0 || o->draft_max > WEFT_DRAFT_MAX)
        return error_set(e, WEFT_ERROR_INPUT, "draft_max is %d, it must be 1 to %d", o->draft_max, WEFT_DRAFT_MAX);
    if (!o->parallel || o->parallel > limits->max_groups) o->parallel = limits->max_groups;
    if (!o->prefill_chunk || o->prefill_chunk > limits->max_rows) o->prefill_chunk = limits->max_rows;
    if (!o->draft_max) o->draft_max = 4;
    if (!o->snapshot_every) o->snapshot_every = 256;
    if (!o->kv_group) o->kv_group = 64;
    x->limits = (struct schedule_limits){limits->max_rows, limits->max_groups, limits->max_logits, o->prefill_chunk, MAX_PAIRS};
    x->context = limits->max_context;
    x->max_undo_rows = limits->max_rows < MAX_UNDO_ROWS ? limits->max_rows : MAX_UNDO_ROWS;
    return 0;
}

/* The schemes of all attention layers; rows of the MTP head, the last ones, stay as they are computed. */
static int read_schemes(const struct weft_engine *x, const struct cache_shape *shape, struct kv_scheme *schemes, int *any,
                        struct weft_error *e) {
    const struct weft_engine_options *o = &x->o;
    const struct config *c = model_config(x->model);
    *any = 0;
    if (o->kv_config && strcmp(o->kv_config, "off") != 0) {
        char *own = NULL;
        const char *path = o->kv_config;
        if (strcmp(path, "on") == 0 && !(path = own = file_join(x->handle->folder, "kv_config.json")))
            return error_memory(e, "a file name");
        *any = 1;
        int code = cache_read_kv_config(schemes, shape, x->is_attention, c->n_layers, path, e);
        mem_free(own);
        return code;
    }
    if (!o->kv || strcmp(o->kv, "16") == 0) return 0;
    struct kv_scheme all, plain;
    int code = kv_scheme_parse(&all, o->kv, o->kv_group, e);
    if (!code) code = kv_scheme_check(&all, shape->head_dim, e);
    if (!code) code = kv_scheme_parse(&plain, shape->f32_rows ? "f32" : "16", o->kv_group, e);
    for (int i = 0; !code && i < shape->n_attention; i++) schemes[i] = i < shape->n_attention - shape->n_mtp ? all : plain;
    *any = 1;
    return code;
}

static int open_cache(struct weft_engine *x, struct weft_error *e) {
    struct cache_shape shape;
    struct model_bytes bytes;
    model_cache_shape(x->model, &shape);
    model_sizes(x->model, &bytes);
    const struct config *c = model_config(x->model);
    x->is_attention = mem_new((size_t)c->n_layers, 1);
    struct kv_scheme *schemes = mem_new((size_t)shape.n_attention + 1, sizeof *schemes);
    int any = 0, code = x->is_attention && schemes ? 0 : error_memory(e, "the engine");
    for (int i = 0; !code && i < c->n_layers; i++) x->is_attention[i] = c->layer_kinds[i] == LAYER_FULL;
    if (!code) code = read_schemes(x, &shape, schemes, &any, e);
    x->workspace_bytes = bytes.workspace;
    size_t fixed = bytes.packed + bytes.mapped + bytes.workspace, memory = x->o.memory_bytes;
    if (!code && memory && memory <= fixed)
        code = error_set(e, WEFT_ERROR_MEMORY, "weights and workspace take %.1f MB, the memory budget is %.1f MB",
                         (double)fixed / 1e6, (double)memory / 1e6);
    size_t budget = memory ? memory - fixed : memory_free_bytes() / 5 * 4;
    if (x->o.draft_model) budget -= budget / 5; /* the drafter's own sequences */
    struct cache_options options = {
        .backend = model_backend(x->model), .schemes = any ? schemes : NULL, .kv_start = x->o.kv_start, .memory_bytes = budget,
        .snapshot_bytes = x->o.cache_bytes ? x->o.cache_bytes : (memory ? memory : budget) / 4,
        .max_undo_rows = x->max_undo_rows, .max_context_rows = x->context + WEFT_DRAFT_MAX + 1};
    if (options.snapshot_bytes > budget) options.snapshot_bytes = budget;
    if (!code) code = cache_new(&x->cache, &shape, &options, e);
    mem_free(schemes);
    if (!code && !x->o.without_prefix_cache) code = tree_new(&x->tree, x->cache, e);
    return code;
}

static int find_tokens(struct weft_engine *x, struct weft_error *e) {
    const struct weft_model *m = x->handle;
    x->keep_tokens = mem_new((size_t)m->n_ends + 1, sizeof *x->keep_tokens);
    if (!x->keep_tokens) return error_memory(e, "the engine");
    for (int i = 0; i < m->n_ends; i++) x->keep_tokens[x->n_keep_tokens++] = m->ends[i];
    if (m->newline >= 0) x->keep_tokens[x->n_keep_tokens++] = m->newline;
    x->rule = (struct snapshot_rule){m->ends, m->n_ends, m->newline, x->o.snapshot_every};
    static const char end[] = "\n</think>\n\n";
    if (!m->tokenizer || tokenizer_find(m->tokenizer, "</think>", 8) < 0) return 0;
    return tokenizer_encode(m->tokenizer, end, sizeof end - 1, TOKENIZER_ADDED_ALL, &x->forced_end, e);
}

static int reserve(struct weft_engine *x, struct weft_error *e) {
    size_t n = (size_t)x->o.parallel, groups = (size_t)x->limits.max_groups;
    x->running = mem_new(n, sizeof *x->running);
    x->drafting = mem_new(n, sizeof *x->drafting);
    x->items = mem_new(n, sizeof *x->items);
    x->parts = mem_new(groups, sizeof *x->parts);
    x->groups = mem_new(groups, sizeof *x->groups);
    x->keeps = mem_new(groups, sizeof *x->keeps);
    x->positions = mem_new(3 * (size_t)x->limits.max_rows, sizeof *x->positions);
    x->cached_logits = mem_new((size_t)x->vocab, sizeof *x->cached_logits);
    x->tap_rows = mem_new(groups * MOST_TAPS, sizeof *x->tap_rows);
    if (!x->running || !x->drafting || !x->items || !x->parts || !x->groups || !x->keeps || !x->positions || !x->cached_logits ||
        !x->tap_rows)
        return error_memory(e, "the engine");
    return sampler_new(&x->sampler, x->vocab, model_backend(x->model)->pool, e);
}

int weft_engine_open(struct weft_engine **out, struct weft_model *m, const struct weft_engine_options *o, struct weft_error *e) {
    struct weft_engine *x = mem_new(1, sizeof *x);
    if (!x) return error_memory(e, "the engine");
    if (o) x->o = *o;
    x->handle = m, x->model = m->model;
    x->vocab = model_config(m->model)->vocab, x->hidden = model_config(m->model)->hidden;
    pthread_mutex_init(&x->lock, NULL);
    adapter_sets_init(&x->adapter_sets);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&x->wake, &clock);
    pthread_condattr_destroy(&clock);
    x->waiting_tail = &x->waiting;
    int code = check_options(x, e);
    if (!code) code = open_cache(x, e);
    if (!code) code = find_tokens(x, e);
    if (!code) code = reserve(x, e);
    if (!code) code = draft_open(x, e);
    if (code) weft_engine_close(x);
    else *out = x;
    return code;
}

/* Everything that waits or runs ends with `e`. */
static void end_all(struct weft_engine *x, const struct weft_error *e) {
    for (int i = 0; i < x->n_running; i++) request_finish(x->running[i], e->code, e);
    x->n_running = 0;
    pthread_mutex_lock(&x->lock);
    struct weft_request *list = x->waiting;
    x->waiting = NULL, x->waiting_tail = &x->waiting, x->n_waiting = 0;
    pthread_mutex_unlock(&x->lock);
    for (struct weft_request *next; list; list = next) next = list->next, request_finish(list, e->code, e);
}

void weft_engine_close(struct weft_engine *x) {
    if (!x) return;
    struct weft_error e;
    error_set(&e, WEFT_ERROR_CANCELLED, "the engine was closed");
    end_all(x, &e);
    draft_close(x);
    tree_free(x->tree);
    cache_free(x->cache);
    sampler_free(x->sampler);
    token_list_drop(&x->forced_end);
    mem_free(x->running), mem_free(x->drafting), mem_free(x->items), mem_free(x->parts), mem_free(x->groups), mem_free(x->keeps);
    mem_free(x->positions), mem_free(x->cached_logits), mem_free(x->keep_tokens), mem_free(x->is_attention);
    mem_free(x->tap_rows);
    adapter_sets_drop(&x->adapter_sets);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->wake);
    mem_free(x);
}

int weft_submit(struct weft_request **out, struct weft_engine *x, const struct weft_request_options *o, struct weft_error *e) {
    struct weft_request *r;
    int code = request_new(&r, x, o, e);
    if (code) return code;
    if (out) *out = r;
    r->submitted_ms = clock_ms();
    pthread_mutex_lock(&x->lock);
    *x->waiting_tail = r, x->waiting_tail = &r->next;
    x->n_waiting++;
    pthread_cond_broadcast(&x->wake);
    pthread_mutex_unlock(&x->lock);
    return 0;
}

void weft_cancel(struct weft_request *r) {
    if (r) atomic_store(&r->cancelled, 1);
}

static int n_waiting(struct weft_engine *x) {
    pthread_mutex_lock(&x->lock);
    int n = x->n_waiting;
    pthread_mutex_unlock(&x->lock);
    return n;
}

int weft_engine_step(struct weft_engine *x, struct weft_error *e) {
    if (x->stepping || x->open)
        return error_set(e, WEFT_ERROR_INPUT, x->open ? "a step waits for weft_commit" : "a callback may not step the engine");
    struct weft_error own = {0, ""};
    x->stepping = 1;
    engine_admit(x);
    int code = engine_step_running(x, &own);
    if (code) end_all(x, &own);
    x->stepping = 0;
    if (code) return error_set(e, code, "%s", own.message);
    return x->n_running > 0 || n_waiting(x) > 0;
}

int weft_engine_wait(struct weft_engine *x, int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000, until.tv_nsec += timeout_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&x->lock);
    int late = 0;
    while (!x->n_waiting && !late) {
        if (timeout_ms < 0) pthread_cond_wait(&x->wake, &x->lock);
        else late = pthread_cond_timedwait(&x->wake, &x->lock, &until) == ETIMEDOUT;
    }
    int work = x->n_waiting > 0;
    pthread_mutex_unlock(&x->lock);
    return work;
}

void weft_engine_stats(const struct weft_engine *x, struct weft_engine_stats *out) {
    *out = x->stats;
    out->memory_bytes = cache_memory_bytes(x->cache);
    out->used_bytes = cache_used_bytes(x->cache);
    out->peak_used_bytes = cache_peak_bytes(x->cache);
    out->reserved_bytes = x->reserved_bytes;
    out->resident_peak_bytes = mem_peak_bytes();
    out->running = x->n_running;
    out->waiting = x->n_waiting;
}
