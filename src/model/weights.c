#include "model/weights.h"

#include <math.h>
#include <string.h>

#include "base/log.h"

struct loader {
    struct weights *w;
    struct checkpoint *c;
    const struct config *config;
    struct weft_error *e;
    char name[NAME_ROOM];
    int conv_layout;
};

static const char *name_of(struct loader *l, const char *prefix, const char *leaf) {
    snprintf(l->name, sizeof l->name, "%s.%s", prefix, leaf);
    return l->name;
}

static int add_module(struct loader *l, const char *name, const struct projection *p) {
    struct weights *w = l->w;
    if (w->n_modules == w->modules_room) {
        int room = w->modules_room ? 2 * w->modules_room : 256;
        struct model_module *more = mem_resize(w->modules, (size_t)room * sizeof *more);
        if (!more) return error_memory(l->e, "the list of modules");
        w->modules = more, w->modules_room = room;
    }
    const char *copy = arena_copy_text(&w->arena, name, strlen(name));
    if (!copy) return error_memory(l->e, "the list of modules");
    w->modules[w->n_modules] = (struct model_module){copy, (int)p->weight.n_cols, (int)p->weight.n_rows, &p->weight, &p->linear};
    return w->n_modules++;
}

static int take(struct loader *l, struct projection *p, const char *prefix, const char *leaf, int64_t n_out, int64_t n_in) {
    const char *name = name_of(l, prefix, leaf);
    int code = weight_open(&p->weight, l->c, name, n_out, n_in, l->e);
    if (code) return code;
    p->module = add_module(l, name, p);
    return p->module < 0 ? p->module : 0;
}

static int vector(struct loader *l, float **out, const char *prefix, const char *leaf, int n) {
    *out = arena_new(&l->w->arena, (size_t)n, sizeof **out);
    if (!*out) return error_memory(l->e, "the weights");
    return checkpoint_read_vector(l->c, name_of(l, prefix, leaf), n, *out, l->e);
}

static int take_attention(struct loader *l, struct layer *y, const char *prefix) {
    const struct config *c = l->config;
    int h = c->hidden, d = c->head_dim, code;
    (void)((code = take(l, &y->q, prefix, "self_attn.q_proj", (int64_t)c->n_heads * 2 * d, h)) ||
        (code = take(l, &y->k, prefix, "self_attn.k_proj", (int64_t)c->n_kv_heads * d, h)) ||
        (code = take(l, &y->v, prefix, "self_attn.v_proj", (int64_t)c->n_kv_heads * d, h)) ||
        (code = take(l, &y->o, prefix, "self_attn.o_proj", h, (int64_t)c->n_heads * d)) ||
        (code = vector(l, &y->q_norm, prefix, "self_attn.q_norm.weight", d)) ||
        (code = vector(l, &y->k_norm, prefix, "self_attn.k_norm.weight", d)));
    return code;
}

static int take_delta(struct loader *l, struct layer *y, const char *prefix) {
    const struct config *c = l->config;
    int h = c->hidden, hv = c->linear_v_heads, value = hv * c->linear_v_dim, layout = -1, code;
    int channels = 2 * c->linear_k_heads * c->linear_k_dim + value;
    (void)((code = take(l, &y->qkv, prefix, "linear_attn.in_proj_qkv", channels, h)) ||
        (code = take(l, &y->z, prefix, "linear_attn.in_proj_z", value, h)) ||
        (code = take(l, &y->b, prefix, "linear_attn.in_proj_b", hv, h)) ||
        (code = take(l, &y->a, prefix, "linear_attn.in_proj_a", hv, h)) ||
        (code = take(l, &y->out, prefix, "linear_attn.out_proj", h, value)) ||
        (code = vector(l, &y->neg_exp_a_log, prefix, "linear_attn.A_log", hv)) ||
        (code = vector(l, &y->dt_bias, prefix, "linear_attn.dt_bias", hv)) ||
        (code = vector(l, &y->delta_norm, prefix, "linear_attn.norm.weight", c->linear_v_dim)));
    if (code) return code;
    for (int i = 0; i < hv; i++) y->neg_exp_a_log[i] = -expf(y->neg_exp_a_log[i]);
    y->conv = arena_new(&l->w->arena, (size_t)channels * (size_t)c->conv_taps, sizeof *y->conv);
    if (!y->conv) return error_memory(l->e, "the weights");
    code = checkpoint_read_conv(l->c, name_of(l, prefix, "linear_attn.conv1d.weight"), channels, c->conv_taps, y->conv, &layout,
                                l->e);
    if (!code && layout >= 0) l->conv_layout = layout;
    return code;
}

static int take_experts(struct loader *l, struct layer *y, const char *prefix) {
    const struct config *c = l->config;
    struct arena *a = &l->w->arena;
    struct experts *x = y->experts = arena_new(a, 1, sizeof *x);
    if (!x) return error_memory(l->e, "the weights");
    x->n = c->n_experts, x->inner = c->moe_intermediate;
    size_t n = (size_t)x->n;
    x->weights = arena_new(a, n, sizeof *x->weights);
    x->gate = arena_new(a, n, sizeof *x->gate), x->up = arena_new(a, n, sizeof *x->up), x->down = arena_new(a, n, sizeof *x->down);
    if (!x->weights || !x->gate || !x->up || !x->down) return error_memory(l->e, "the weights");
    char mlp[NAME_ROOM];
    snprintf(mlp, sizeof mlp, "%s.mlp", prefix);
    int h = c->hidden, code = take(l, &x->router, prefix, "mlp.gate", x->n, h);
    if (!code) code = weight_open_experts(x->weights, x->n, l->c, mlp, h, x->inner, l->e);
    if (code || !(x->shared_inner = c->shared_intermediate)) return code;
    (void)((code = take(l, &x->shared_gate_proj, prefix, "mlp.shared_expert.gate_proj", x->shared_inner, h)) ||
        (code = take(l, &x->shared_up, prefix, "mlp.shared_expert.up_proj", x->shared_inner, h)) ||
        (code = take(l, &x->shared_down, prefix, "mlp.shared_expert.down_proj", h, x->shared_inner)) ||
        (code = take(l, &x->shared_gate, prefix, "mlp.shared_expert_gate", 1, h)));
    return code;
}

static int take_layer(struct loader *l, struct layer *y, const char *prefix) {
    const struct config *c = l->config;
    int code = vector(l, &y->input_norm, prefix, "input_layernorm.weight", c->hidden);
    if (!code) code = vector(l, &y->post_norm, prefix, "post_attention_layernorm.weight", c->hidden);
    if (!code) code = y->kind == LAYER_FULL ? take_attention(l, y, prefix) : take_delta(l, y, prefix);
    if (code) return code;
    char dense[NAME_ROOM];
    snprintf(dense, sizeof dense, "%s.mlp.gate_proj", prefix);
    if (c->n_experts > 0 && !weight_exists(l->c, dense)) return take_experts(l, y, prefix);
    if (c->intermediate <= 0)
        return error_set(l->e, WEFT_ERROR_INPUT, "%s: config.json gives no intermediate_size for %s.mlp", l->c->folder, prefix);
    (void)((code = take(l, &y->gate, prefix, "mlp.gate_proj", c->intermediate, c->hidden)) ||
        (code = take(l, &y->up, prefix, "mlp.up_proj", c->intermediate, c->hidden)) ||
        (code = take(l, &y->down, prefix, "mlp.down_proj", c->hidden, c->intermediate)));
    return code;
}

static int take_mtp(struct loader *l) {
    const struct config *c = l->config;
    struct weights *w = l->w;
    struct mtp *m = arena_new(&w->arena, 1, sizeof *m);
    if (!m) return error_memory(l->e, "the MTP head");
    char prefix[64];
    for (;; m->n_layers++) {
        snprintf(prefix, sizeof prefix, "mtp.layers.%d.", m->n_layers);
        if (m->n_layers == CONFIG_LAYERS || !checkpoint_has_prefix(l->c, prefix)) break;
    }
    if (m->n_layers == 0) return error_set(l->e, WEFT_ERROR_INPUT, "%s: mtp.fc is there, but no mtp.layers.0", l->c->folder);
    if (!(m->layers = arena_new(&w->arena, (size_t)m->n_layers, sizeof *m->layers))) return error_memory(l->e, "the MTP head");
    int code = take(l, &m->fc, "mtp", "fc", c->hidden, 2 * (int64_t)c->hidden);
    for (int i = 0; i < m->n_layers && !code; i++) {
        snprintf(prefix, sizeof prefix, "mtp.layers.%d", i);
        m->layers[i].kind = LAYER_FULL, m->layers[i].index = w->n_attention + i;
        code = take_layer(l, &m->layers[i], prefix);
    }
    if (!code) code = vector(l, &m->norm, "mtp", "norm.weight", c->hidden);
    if (!code) code = vector(l, &m->norm_embedding, "mtp", "pre_fc_norm_embedding.weight", c->hidden);
    if (!code) code = vector(l, &m->norm_hidden, "mtp", "pre_fc_norm_hidden.weight", c->hidden);
    if (!code) w->mtp = m;
    return code;
}

static int take_head(struct loader *l) {
    const struct config *c = l->config;
    struct weights *w = l->w;
    if (!weight_exists(l->c, "lm_head")) {
        if (!c->tied)
            return error_set(l->e, WEFT_ERROR_INPUT, "%s: lm_head.weight is missing and config.json does not tie the embeddings",
                             l->c->folder);
        w->head.weight = w->embed;
        w->head.module = add_module(l, "lm_head", &w->head);
        return w->head.module < 0 ? w->head.module : 0;
    }
    int code = weight_open(&w->head.weight, l->c, "lm_head", c->vocab, c->hidden, l->e);
    if (code) return code;
    const struct weight *a = &w->head.weight, *b = &w->embed;
    if (c->tied && (a->repr != b->repr || a->row_bytes != b->row_bytes || memcmp(a->data, b->data, a->row_bytes * (size_t)a->n_rows)))
        log_write(LOG_WARNING, "%s: config.json ties the embeddings, but lm_head.weight differs from them; it is used", l->c->folder);
    w->head.module = add_module(l, "lm_head", &w->head);
    return w->head.module < 0 ? w->head.module : 0;
}

/* Gains of one layer, all under one decision; the gated norm is never shifted. */
static void shift_layer(struct layer *y, enum convention v, const struct config *c) {
    norms_apply(v, y->input_norm, c->hidden), norms_apply(v, y->post_norm, c->hidden);
    if (y->kind == LAYER_FULL) norms_apply(v, y->q_norm, c->head_dim), norms_apply(v, y->k_norm, c->head_dim);
}

static int layer_means(const struct layer *layers, int n, int width, double *means) {
    for (int i = 0; i < n; i++) {
        means[2 * i] = norms_mean(layers[i].input_norm, width);
        means[2 * i + 1] = norms_mean(layers[i].post_norm, width);
    }
    return 2 * n;
}

static enum convention overridden(enum norm_override o, enum convention found) {
    return o == NORM_AUTO ? found : o == NORM_RAW ? CONVENTION_RAW : CONVENTION_FOLDED;
}

static int decide_norms(struct loader *l, const struct model_options *o) {
    struct weights *w = l->w;
    const struct config *c = l->config;
    int h = c->hidden, most = c->n_layers > CONFIG_LAYERS ? c->n_layers : CONFIG_LAYERS;
    double *means = arena_new(&w->arena, 2 * (size_t)most, sizeof *means);
    if (!means) return error_memory(l->e, "the norms");
    int code = norms_decide_text(&w->text_norms, means, layer_means(w->layers, c->n_layers, h, means), l->conv_layout, l->c->folder,
                                 l->e);
    if (code) return code;
    w->text_norms = overridden(o->norms, w->text_norms);
    for (int i = 0; i < c->n_layers; i++) shift_layer(&w->layers[i], w->text_norms, c);
    norms_apply(w->text_norms, w->final_norm, h);
    struct mtp *m = w->mtp;
    if (!m) return 0;
    w->mtp_layer_norms = norms_decide_mtp_layer(means, layer_means(m->layers, m->n_layers, h, means), w->text_norms);
    w->mtp_embedding_norm = norms_decide_mtp_input(norms_mean(m->norm_embedding, h), w->text_norms);
    w->mtp_hidden_norm = norms_decide_mtp_input(norms_mean(m->norm_hidden, h), w->text_norms);
    w->mtp_norm = norms_decide_mtp_final(norms_mean(m->norm, h), w->text_norms);
    enum convention *all[] = {&w->mtp_layer_norms, &w->mtp_embedding_norm, &w->mtp_hidden_norm, &w->mtp_norm};
    for (int i = 0; i < 4; i++) *all[i] = overridden(o->mtp_norms, *all[i]);
    for (int i = 0; i < m->n_layers; i++) shift_layer(&m->layers[i], w->mtp_layer_norms, c);
    norms_apply(w->mtp_embedding_norm, m->norm_embedding, h);
    norms_apply(w->mtp_hidden_norm, m->norm_hidden, h);
    norms_apply(w->mtp_norm, m->norm, h);
    return 0;
}

int weights_open(struct weights *w, struct checkpoint *c, const struct model_options *o, struct weft_error *e) {
    *w = (struct weights){0};
    arena_init(&w->arena);
    struct loader l = {.w = w, .c = c, .config = &c->config, .e = e, .conv_layout = -1};
    const struct config *g = &c->config;
    if (g->drafter) return error_set(e, WEFT_ERROR_SUPPORT, "%s: holds an MTP head alone, not a model", c->folder);
    if (g->attention_bias)
        return error_set(e, WEFT_ERROR_SUPPORT, "%s: config.json: attention_bias true is not supported", c->folder);
    int code = weight_open(&w->embed, c, "embed_tokens", g->vocab, g->hidden, e);
    if (!code && !(w->layers = arena_new(&w->arena, (size_t)g->n_layers, sizeof *w->layers))) code = error_memory(e, "the layers");
    for (int i = 0; i < g->n_layers && !code; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "layers.%d", i);
        struct layer *y = &w->layers[i];
        y->kind = g->layer_kinds[i];
        y->index = y->kind == LAYER_FULL ? w->n_attention++ : w->n_delta++;
        code = take_layer(&l, y, prefix);
    }
    if (!code) code = vector(&l, &w->final_norm, "norm", "weight", g->hidden);
    if (!code) code = take_head(&l);
    if (!code && !o->without_mtp && weight_exists(c, "mtp.fc")) code = take_mtp(&l);
    if (!code) checkpoint_skip(c, "mtp.", "the MTP head is not used");
    if (!code) checkpoint_skip(c, "visual.", "the vision tower is not used");
    if (!code) code = decide_norms(&l, o);
    if (!code) code = checkpoint_finish(c, e);
    return code;
}

void weights_drop(struct weights *w) {
    mem_free(w->modules);
    arena_drop(&w->arena);
    *w = (struct weights){0};
}
