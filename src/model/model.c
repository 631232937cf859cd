#include "model/model.h"

#include <string.h>

#include "model/plan.h"

/* FNV-1a: names, shapes and dtypes whole, data sampled so that opening does not read every page. */
static uint64_t hash(uint64_t h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_model(const struct checkpoint *c) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < c->n_entries; i++) {
        const struct tensor *t = c->entries[i].tensor;
        h = hash(h, c->entries[i].name, strlen(c->entries[i].name) + 1);
        h = hash(h, &t->dtype, sizeof t->dtype);
        h = hash(h, t->shape, (size_t)t->n_dims * sizeof *t->shape);
        size_t piece = t->n_bytes < 256 ? t->n_bytes : 256;
        h = hash(h, t->data, piece), h = hash(h, t->data + (t->n_bytes - piece) / 2, piece);
        h = hash(h, t->data + t->n_bytes - piece, piece);
    }
    return h;
}

int model_open(struct model **out, const char *folder, const struct model_options *o, struct weft_error *e) {
    static const struct model_options defaults;
    if (!o) o = &defaults;
    struct model *m = mem_new(1, sizeof *m);
    if (!m) return error_memory(e, folder);
    m->options = *o;
    const struct backend_table *table = backend_find(o->backend ? o->backend : "cpu");
    int code = table ? 0 : error_set(e, WEFT_ERROR_INPUT, "there is no backend \"%s\"", o->backend);
    if (!code) code = checkpoint_open(&m->checkpoint, folder, e);
    if (!code) code = pool_new(&m->pool, o->n_threads, e);
    struct backend_options b = {m->pool, o->isa, o->precision};
    if (!code) code = table->open(&m->backend, &b, e);
    if (!code) code = weights_open(&m->weights, m->checkpoint, o, e);
    if (!code) m->fingerprint = hash_model(m->checkpoint);
    if (!code) code = plan_new(m, e);
    if (code) return model_close(m), code;
    snprintf(m->isa, sizeof m->isa, "%s", table->isa(&m->backend));
    m->options.isa = m->isa, m->options.n_threads = pool_threads(m->pool), m->options.backend = table->name;
    *out = m;
    return 0;
}

void model_close(struct model *m) {
    if (!m) return;
    model_adapters_drop(m);
    plan_drop(m);
    weights_drop(&m->weights);
    if (m->backend.device) m->backend.table->close(&m->backend);
    pool_free(m->pool);
    checkpoint_close(m->checkpoint);
    mem_free(m);
}

const struct config *model_config(const struct model *m) { return &m->checkpoint->config; }
struct checkpoint *model_checkpoint(struct model *m) { return m->checkpoint; }
struct backend *model_backend(struct model *m) { return &m->backend; }
int model_has_mtp(const struct model *m) { return m->weights.mtp != NULL; }
const struct model_options *model_limits(const struct model *m) { return &m->options; }
uint64_t model_fingerprint(const struct model *m) { return m->fingerprint; }

void model_cache_shape(const struct model *m, struct cache_shape *out) {
    const struct config *c = &m->checkpoint->config;
    int n_mtp = m->weights.mtp ? m->weights.mtp->n_layers : 0;
    *out = (struct cache_shape){
        .n_attention = m->weights.n_attention + n_mtp, .n_mtp = n_mtp, .n_delta = m->weights.n_delta,
        .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
        .delta = {c->linear_k_heads, c->linear_v_heads, c->linear_k_dim, c->linear_v_dim, c->conv_taps},
        .hidden = c->hidden, .f32_rows = m->weights.embed.dtype == DTYPE_F32};
}

void model_sizes(const struct model *m, struct model_bytes *out) {
    *out = (struct model_bytes){m->packed_bytes, m->mapped_bytes,
                                m->ws.bytes + m->backend.table->reserved_bytes(&m->backend, &m->limits) + m->adapter_t_bytes +
                                    m->adapter_ops_bytes};
}

int model_modules(const struct model *m, const struct model_module **out) {
    *out = m->weights.modules;
    return m->weights.n_modules;
}

void model_norms(const struct model *m, struct model_norms *out) {
    const struct weights *w = &m->weights;
    *out = (struct model_norms){.text = convention_name(w->text_norms)};
    if (!w->mtp) return;
    out->mtp_layers = convention_name(w->mtp_layer_norms), out->mtp_embedding = convention_name(w->mtp_embedding_norm);
    out->mtp_hidden = convention_name(w->mtp_hidden_norm), out->mtp_final = convention_name(w->mtp_norm);
}

struct visiting { model_visit_fn *fn; void *arg; };

static int visit_weight(void *arg, struct linear *l, const struct weight *w, const char *name) {
    const struct visiting *v = arg;
    (void)name;
    return v->fn(v->arg, w, l);
}

int model_visit(const struct model *m, model_visit_fn *fn, void *arg) {
    struct visiting v = {fn, arg};
    int code = plan_visit((struct model *)m, visit_weight, &v);
    const struct weight *embed = &m->weights.embed;
    return code || m->weights.head.weight.data == embed->data ? code : fn(arg, embed, NULL);
}

/* ---- the plan, printed ---- */

struct printing { FILE *f; int n; };

static int print_linear(void *arg, struct linear *l, const struct weight *w, const char *name) {
    struct printing *p = arg;
    (void)name;
    fprintf(p->f, "%-60s %6lld x %-6lld %-7s", w->name, (long long)w->n_rows, (long long)w->n_cols, w->repr->name);
    if (w->group) fprintf(p->f, " %d bit, group %d", w->bits, w->group);
    fprintf(p->f, "  %s", l->kernel[0]->layout ? l->kernel[0]->layout->name : "in place");
    for (int i = 0; i < N_ROW_CLASSES; i++)
        if (i == 0 || l->kernel[i] != l->kernel[i - 1]) fprintf(p->f, "  %s", l->kernel[i]->name);
    fprintf(p->f, "  [%s%s]\n", l->kernel[0]->arithmetic, l->with_rest ? ", input in two int8 parts" : "");
    p->n++;
    return 0;
}

void model_print_plan(const struct model *m, FILE *f) {
    const struct weights *w = &m->weights;
    struct model_bytes bytes;
    model_sizes(m, &bytes);
    fprintf(f, "device          %s, isa %s, %d threads\n", m->backend.table->name, m->isa, m->options.n_threads);
    fprintf(f, "arithmetic      %s\n", m->backend.table->arithmetic(&m->backend));
    fprintf(f, "norms           text %s\n", convention_name(w->text_norms));
    if (w->mtp)
        fprintf(f, "                mtp layers %s; embedding %s; hidden %s; final %s\n", convention_name(w->mtp_layer_norms),
                convention_name(w->mtp_embedding_norm), convention_name(w->mtp_hidden_norm), convention_name(w->mtp_norm));
    fprintf(f, "memory          %.1f MiB packed, %.1f MiB read in place, %.1f MiB workspace for %d rows a step\n",
            (double)bytes.packed / 1048576, (double)bytes.mapped / 1048576, (double)bytes.workspace / 1048576, m->options.max_rows);
    fprintf(f, "row classes     1-%d", row_class_limit[0]);
    for (int i = 1; i < N_ROW_CLASSES - 1; i++) fprintf(f, ", %d-%d", row_class_limit[i - 1] + 1, row_class_limit[i]);
    fprintf(f, ", more\n\n");
    struct printing p = {f, 0};
    plan_visit((struct model *)m, print_linear, &p);
    fprintf(f, "%d matrices\n", p.n);
}
