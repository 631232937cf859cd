/* What adapters may change of a model, and the room that a step needs for them. */
#include <string.h>

#include "model/plan.h"

struct list { struct model *m; struct adapter_target *at; int n, room; int failed; struct adapter_target nowhere; };

static struct adapter_target *add(struct list *l, enum target_kind kind, const char *name) {
    char *copy = arena_copy_text(&l->m->weights.arena, name, strlen(name));
    if (l->n == l->room && !l->failed) {
        int room = l->room ? 2 * l->room : 256;
        struct adapter_target *more = mem_resize(l->at, (size_t)room * sizeof *more);
        if (more) l->at = more, l->room = room;
        else l->failed = 1;
    }
    l->failed |= !copy;
    if (l->failed) return &l->nowhere;
    l->at[l->n] = (struct adapter_target){.name = copy, .kind = kind};
    return &l->at[l->n++];
}

static struct adapter_target *add_vector(struct list *l, enum target_kind kind, const char *prefix, const char *leaf,
                                         const float *values, int n) {
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "%s.%s", prefix, leaf);
    struct adapter_target *t = add(l, kind, name);
    t->values = values, t->n_values = n;
    return t;
}

static void add_experts(struct list *l, struct experts *x, const char *prefix) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    char name[NAME_ROOM];
    x->target = l->n;
    for (int i = 0; i < 3; i++) {
        const struct weight *w = i == 0 ? &x->weights[0].gate : i == 1 ? &x->weights[0].up : &x->weights[0].down;
        snprintf(name, sizeof name, "%s.mlp.switch_mlp.%s", prefix, names[i]);
        struct adapter_target *t = add(l, TARGET_EXPERTS, name);
        t->n_in = (int)w->n_cols, t->n_out = (int)w->n_rows, t->n_experts = x->n;
    }
}

static void add_layer(struct list *l, const struct layer *y, const char *prefix) {
    const struct config *c = &l->m->checkpoint->config;
    add_vector(l, TARGET_GAIN, prefix, "input_layernorm.weight", y->input_norm, c->hidden);
    add_vector(l, TARGET_GAIN, prefix, "post_attention_layernorm.weight", y->post_norm, c->hidden);
    if (y->kind == LAYER_FULL) {
        add_vector(l, TARGET_GAIN, prefix, "self_attn.q_norm.weight", y->q_norm, c->head_dim);
        add_vector(l, TARGET_GAIN, prefix, "self_attn.k_norm.weight", y->k_norm, c->head_dim);
    } else {
        int channels = 2 * c->linear_k_heads * c->linear_k_dim + c->linear_v_heads * c->linear_v_dim;
        add_vector(l, TARGET_VECTOR, prefix, "linear_attn.norm.weight", y->delta_norm, c->linear_v_dim);
        struct adapter_target *conv =
            add_vector(l, TARGET_VECTOR, prefix, "linear_attn.conv1d.weight", y->conv, channels * c->conv_taps);
        conv->n_out = channels, conv->n_in = c->conv_taps;
        add_vector(l, TARGET_VECTOR, prefix, "linear_attn.dt_bias", y->dt_bias, c->linear_v_heads);
        add_vector(l, TARGET_A_LOG, prefix, "linear_attn.A_log", y->neg_exp_a_log, c->linear_v_heads);
    }
    if (y->experts) add_experts(l, y->experts, prefix);
}

/* Numbers of matrices are those of model_modules; the others follow. */
static int make_targets(struct model *m, struct weft_error *e) {
    struct list l = {.m = m};
    struct weights *w = &m->weights;
    const struct config *c = &m->checkpoint->config;
    for (int i = 0; i < w->n_modules; i++) {
        const struct model_module *module = &w->modules[i];
        struct adapter_target *t = add(&l, TARGET_LINEAR, module->name);
        t->n_in = module->n_in, t->n_out = module->n_out, t->weight = module->weight, t->linear = module->linear;
    }
    int embedding = l.n;
    struct adapter_target *t = add(&l, TARGET_EMBEDDING, "embed_tokens");
    t->n_in = c->vocab, t->n_out = c->hidden, t->weight = &w->embed;
    char prefix[64];
    for (int i = 0; i < c->n_layers; i++) {
        snprintf(prefix, sizeof prefix, "layers.%d", i);
        add_layer(&l, &w->layers[i], prefix);
    }
    add_vector(&l, TARGET_GAIN, "norm", "weight", w->final_norm, c->hidden);
    if (l.failed) return mem_free(l.at), error_memory(e, "the list of what adapters may change");
    m->embed_target = embedding;
    m->adapter_base = (struct adapter_base){.targets = l.at, .n_targets = l.n, .embedding = embedding, .head = w->head.module,
                                            .tied = w->head.weight.data == w->embed.data, .backend = &m->backend};
    return 0;
}

/* Ops of a step whose every group has another set: per group at most this many more in a layer. */
enum { OPS_OF_SPAN = 36, PRODUCTS = 4, EXPERT_PRODUCTS = 2 };

static int make_ops_room(struct model *m, struct weft_error *e) {
    if (m->adapter_ops) return 0;
    int room = m->ws.ops_room + (m->checkpoint->config.n_layers + 4) * OPS_OF_SPAN * m->limits.max_groups;
    size_t bytes = (size_t)room * sizeof(struct op);
    if (!(m->adapter_ops = mem_map_pages(bytes))) return error_memory(e, "the ops of adapters");
    m->adapter_ops_bytes = bytes, m->ws.ops = m->adapter_ops, m->ws.ops_room = room;
    return 0;
}

static int make_room(struct model *m, int rank, struct weft_error *e) {
    int code = make_ops_room(m, e);
    if (code || rank <= m->adapter_rank) return code;
    size_t rows = (size_t)(m->limits.max_rows > m->options.max_logits ? m->limits.max_rows : m->options.max_logits);
    size_t slots = (size_t)m->limits.max_rows * (size_t)m->checkpoint->config.top_k;
    size_t values = PRODUCTS * rows > EXPERT_PRODUCTS * slots ? PRODUCTS * rows : EXPERT_PRODUCTS * slots;
    size_t bytes = values * (size_t)rank * sizeof(float);
    float *t = m->backend.table->memory_new(&m->backend, bytes);
    if (!t) return error_memory(e, "the rows of adapters");
    m->backend.table->memory_free(&m->backend, m->adapter_t, m->adapter_t_bytes);
    m->adapter_t = t, m->adapter_t_bytes = bytes, m->adapter_rank = rank, m->adapter_rows = (int)rows;
    return 0;
}

int model_adapter_open(struct adapter **out, struct model *m, const char *folder, struct weft_error *e) {
    struct adapter *a = NULL;
    int code = m->adapter_base.targets ? 0 : make_targets(m, e);
    if (!code) code = adapter_open(&a, folder, &m->adapter_base, e);
    /* A set holds each adapter once: the sum of the ranks bounds any of them. */
    if (!code && (code = make_room(m, m->open_ranks + adapter_rank(a), e))) adapter_close(a);
    if (code) return code;
    m->open_ranks += adapter_rank(a);
    *out = a;
    return 0;
}

void model_adapter_close(struct model *m, struct adapter *a) {
    if (!a) return;
    m->open_ranks -= adapter_rank(a);
    adapter_close(a);
}

void model_adapters_drop(struct model *m) {
    if (m->backend.table) m->backend.table->memory_free(&m->backend, m->adapter_t, m->adapter_t_bytes);
    mem_free_pages(m->adapter_ops, m->adapter_ops_bytes);
    mem_free((void *)m->adapter_base.targets);
}
