#include "help_model.h"

#include <math.h>

void runner_open(struct runner *r, const char *folder, const char *isa, enum precision precision, int n_threads) {
    struct weft_error e = {0};
    struct model_options o = {.isa = isa, .precision = precision, .n_threads = n_threads, .max_rows = 2600, .max_logits = 2600,
                              .max_context = 8192};
    *r = (struct runner){0};
    if (model_open(&r->model, folder, &o, &e)) fail_msg("%s", e.message);
    struct cache_shape shape;
    model_cache_shape(r->model, &shape);
    struct cache_options c = {.backend = model_backend(r->model), .memory_bytes = (size_t)2 << 30, .max_undo_rows = 16};
    if (cache_new(&r->cache, &shape, &c, &e)) fail_msg("%s", e.message);
    r->vocab = model_config(r->model)->vocab, r->hidden = model_config(r->model)->hidden;
}

void runner_close(struct runner *r) {
    cache_free(r->cache);
    model_close(r->model);
}

struct sequence *runner_sequence(struct runner *r) {
    struct weft_error e = {0};
    struct sequence *s;
    if (sequence_new(&s, r->cache, &e)) fail_msg("%s", e.message);
    return s;
}

void runner_step(struct runner *r, struct batch *b) {
    struct weft_error e = {0};
    if (cache_begin(r->cache, b, &e) || model_forward(r->model, r->cache, b, &e)) fail_msg("%s", e.message);
    cache_commit(r->cache, b, NULL);
}

float *runner_logits_taps(struct runner *r, const struct prompt *p, float **taps) {
    int n_layers = model_config(r->model)->n_layers, all[CONFIG_LAYERS];
    size_t vocab = (size_t)r->vocab, h = (size_t)r->hidden, n = (size_t)p->n;
    for (int i = 0; i < n_layers; i++) all[i] = i;
    float *out = mem_new(n, vocab * sizeof *out);
    if (taps) *taps = mem_new((size_t)n_layers * n, h * sizeof **taps);
    struct sequence *s = runner_sequence(r);
    int32_t *positions = mem_new(3 * n, sizeof *positions);
    for (int at = 0, c = 0; at < p->n; c++) {
        int rows = p->n_cuts ? p->cuts[c < p->n_cuts ? c : p->n_cuts - 1] : p->n;
        if (rows > p->n - at) rows = p->n - at;
        for (int a = 0; p->positions && a < p->n_axes; a++)
            memcpy(positions + a * rows, p->positions + a * p->n + at, (size_t)rows * sizeof *positions);
        struct group g = {.seq = s, .n_rows = rows, .tokens = p->tokens + at, .n_logits = rows,
                          .positions = p->positions ? positions : NULL, .n_axes = p->n_axes, .want_taps = taps != NULL};
        struct batch b = {.groups = &g, .n_groups = 1, .taps = taps ? all : NULL, .n_taps = taps ? n_layers : 0};
        runner_step(r, &b);
        memcpy(out + (size_t)at * vocab, b.logits, (size_t)rows * vocab * sizeof *out);
        for (int i = 0; taps && i < n_layers; i++)
            memcpy(*taps + ((size_t)i * n + (size_t)at) * h, b.tap_rows[i], (size_t)rows * h * sizeof **taps);
        at += rows;
    }
    mem_free(positions);
    sequence_free(s);
    return out;
}

float *runner_logits(struct runner *r, const struct prompt *p) { return runner_logits_taps(r, p, NULL); }

float *runner_mtp(struct runner *r, const struct prompt *p) {
    struct sequence *s = runner_sequence(r);
    int n = p->n - 1;
    struct group g = {.seq = s, .n_rows = p->n, .tokens = p->tokens, .want_hidden = 1};
    struct batch b = {.groups = &g, .n_groups = 1};
    runner_step(r, &b);
    float *hidden = mem_new((size_t)n, (size_t)r->hidden * sizeof *hidden);
    memcpy(hidden, b.hidden, (size_t)n * (size_t)r->hidden * sizeof *hidden);
    g = (struct group){.seq = s, .n_rows = n, .tokens = p->tokens + 1, .hidden_in = hidden, .n_logits = n};
    b = (struct batch){.groups = &g, .n_groups = 1, .mtp = 1};
    runner_step(r, &b);
    float *out = mem_new((size_t)n, (size_t)r->vocab * sizeof *out);
    memcpy(out, b.logits, (size_t)n * (size_t)r->vocab * sizeof *out);
    mem_free(hidden);
    sequence_free(s);
    return out;
}

const char *const *runner_isas(void) {
    static const char *names[16];
    int n = 0;
    struct pool *pool;
    struct weft_error e;
    if (pool_new(&pool, 1, &e)) return names;
    for (int i = 0; backend_cpu.isa_names[i]; i++) {
        struct backend b;
        struct backend_options o = {.pool = pool, .isa = backend_cpu.isa_names[i]};
        if (backend_cpu.open(&b, &o, &e)) continue;
        backend_cpu.close(&b);
        names[n++] = backend_cpu.isa_names[i];
    }
    pool_free(pool);
    names[n] = NULL;
    return names;
}

double relative_error(const float *x, const float *want, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - want[i];
        off += d * d, all += (double)want[i] * want[i];
    }
    return sqrt(off / all);
}

float *golden_floats(const struct safetensors *s, const char *name, size_t *n) {
    const struct tensor *t = safetensors_find(s, name);
    if (!t) return NULL;
    size_t count = (size_t)tensor_elements(t);
    float *out = mem_new(count, sizeof *out);
    tensor_to_floats(t, 0, (int64_t)count, out);
    if (n) *n = count;
    return out;
}

int32_t *golden_ints(const struct safetensors *s, const char *name, size_t *n) {
    const struct tensor *t = safetensors_find(s, name);
    if (!t) return NULL;
    int32_t *out = mem_new(1, t->n_bytes);
    memcpy(out, t->data, t->n_bytes);
    if (n) *n = (size_t)tensor_elements(t);
    return out;
}
