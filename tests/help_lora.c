#include "help_lora.h"

#include <sys/stat.h>

#include "base/convert.h"
#include "help_small.h"

int64_t toy_count(const struct toy_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

static float toy_random(struct toy *t) {
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(t->seed >> 40) / (1 << 23) - 1.0);
}

struct toy_tensor *toy_add(struct toy *t, const char *name, float scale, int64_t a, int64_t b, int64_t c) {
    assert_true(t->n < TOY_TENSORS);
    struct toy_tensor *x = &t->t[t->n++];
    *x = (struct toy_tensor){.n_dims = c ? 3 : b ? 2 : 1, .shape = {a, b, c}, .dtype = DTYPE_F32};
    snprintf(x->name, sizeof x->name, "%s", name);
    int64_t n = toy_count(x);
    x->data = mem_new((size_t)n, sizeof *x->data);
    for (int64_t i = 0; i < n; i++) x->data[i] = scale * toy_random(t);
    return x;
}

struct toy_tensor *toy_find(struct toy *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->t[i].name, name) == 0) return &t->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void add_experts(struct toy *t, int layer) {
    static const struct { const char *name; int a, b, c; } all[] = {
        {"gate", 4, 64, 0}, {"shared_expert_gate", 1, 64, 0}, {"shared_expert.gate_proj", 32, 64, 0},
        {"shared_expert.up_proj", 32, 64, 0}, {"shared_expert.down_proj", 64, 32, 0}, {"switch_mlp.gate_proj", 4, 32, 64},
        {"switch_mlp.up_proj", 4, 32, 64}, {"switch_mlp.down_proj", 4, 64, 32}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", layer, all[i].name);
        toy_add(t, name, 0.3f, all[i].a, all[i].b, all[i].c);
    }
}

void toy_base(struct toy *t, int tied, int experts) {
    static struct small s;
    *t = (struct toy){.seed = 7};
    small_init(&s);
    for (int i = 0; i < s.n; i++) {
        const struct tensor_spec *x = &s.specs[i];
        if (experts && strstr(x->name, ".mlp.")) continue;
        int64_t dims[3] = {0};
        for (int d = 0; d < x->n_dims; d++) dims[d] = x->shape[d];
        toy_add(t, x->name, x->n_dims == 2 ? 0.3f : x->n_dims == 3 ? 0.5f : 0.1f, dims[0], dims[1], dims[2]);
    }
    for (int i = 0; i < 2 && experts; i++) add_experts(t, i);
    if (!tied) toy_add(t, "lm_head.weight", 0.3f, 32, 64, 0);
    char *tie = strstr(s.config, "\"tie_word_embeddings\":true");
    assert_non_null(tie);
    snprintf(t->config, sizeof t->config, "%.*s%s%s", (int)(tie - s.config), s.config,
             tied ? "\"tie_word_embeddings\":true" : "\"tie_word_embeddings\":false",
             tie + strlen("\"tie_word_embeddings\":true"));
    if (!experts) return;
    char was[sizeof t->config];
    memcpy(was, t->config, sizeof was);
    const char *type = strstr(was, "qwen3_5_text\"");
    assert_non_null(type);
    int n = snprintf(t->config, sizeof t->config, "%.*s%s%s", (int)(type - was), was,
                     "qwen3_5_moe_text\",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
                     "\"shared_expert_intermediate_size\":32,\"norm_topk_prob\":true", type + strlen("qwen3_5_text\""));
    assert_true(n < (int)sizeof t->config);
}

void toy_copy(struct toy *to, const struct toy *from) {
    *to = *from;
    for (int i = 0; i < to->n; i++) {
        size_t bytes = (size_t)toy_count(&to->t[i]) * sizeof(float);
        to->t[i].data = mem_alloc(bytes);
        memcpy(to->t[i].data, from->t[i].data, bytes);
    }
}

void toy_drop(struct toy *t) {
    for (int i = 0; i < t->n; i++) mem_free(t->t[i].data);
    t->n = 0;
}

const char *toy_write(const struct toy *t, const char *folder, const char *file, const char *config_name) {
    struct tensor_spec specs[TOY_TENSORS];
    struct safetensors_writer *w;
    struct weft_error e = {0};
    char path[4200];
    const char *where = help_temp(folder);
    mkdir(where, 0777);
    help_write_text(where, config_name, t->config);
    for (int i = 0; i < t->n; i++) {
        specs[i] = (struct tensor_spec){t->t[i].name, t->t[i].dtype, t->t[i].n_dims, {0}};
        for (int d = 0; d < t->t[i].n_dims; d++) specs[i].shape[d] = t->t[i].shape[d];
    }
    snprintf(path, sizeof path, "%s/%s", where, file);
    if (safetensors_open_writer(&w, path, specs, t->n, NULL, 0, &e)) fail_msg("%s", e.message);
    for (int i = 0; i < t->n; i++)
        for (int64_t k = 0; k < toy_count(&t->t[i]); k++) {
            uint16_t half = (uint16_t)(float_bits(t->t[i].data[k]) >> 16);
            int code =
                t->t[i].dtype == DTYPE_BF16 ? safetensors_write(w, &half, 2, &e) : safetensors_write(w, &t->t[i].data[k], 4, &e);
            assert_int_equal(code, 0);
        }
    if (safetensors_close_writer(w, 1, &e)) fail_msg("%s", e.message);
    return where;
}

float *lora_logits(struct runner *r, const struct adapter_set *set, const struct prompt *p) {
    float *out = mem_new((size_t)p->n, (size_t)r->vocab * sizeof *out);
    struct sequence *s = runner_sequence(r);
    for (int at = 0, c = 0; at < p->n; c++) {
        int rows = p->n_cuts ? p->cuts[c < p->n_cuts ? c : p->n_cuts - 1] : p->n;
        if (rows > p->n - at) rows = p->n - at;
        struct group g = {.seq = s, .n_rows = rows, .tokens = p->tokens + at, .n_logits = rows, .adapters = set};
        struct batch b = {.groups = &g, .n_groups = 1};
        runner_step(r, &b);
        memcpy(out + (size_t)at * (size_t)r->vocab, b.logits, (size_t)rows * (size_t)r->vocab * sizeof *out);
        at += rows;
    }
    sequence_free(s);
    return out;
}

struct adapter *lora_open(struct runner *r, const char *folder) {
    struct weft_error e = {0};
    struct adapter *a = NULL;
    if (model_adapter_open(&a, r->model, folder, &e)) fail_msg("%s", e.message);
    return a;
}

static const char *const layer0[] = {
    "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.in_proj_b",
    "linear_attn.out_proj",    "mlp.gate_proj",         "mlp.up_proj",           "mlp.down_proj"};
static const char *const layer1[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};

void lora_each_linear(const struct lora_recipe *r, void (*fn)(void *arg, const char *module), void *arg) {
    char module[128];
    for (size_t i = 0; i < sizeof layer0 / sizeof *layer0; i++)
        snprintf(module, sizeof module, "layers.0.%s", layer0[i]), fn(arg, module);
    for (size_t i = 0; i < sizeof layer1 / sizeof *layer1; i++)
        snprintf(module, sizeof module, "layers.1.%s", layer1[i]), fn(arg, module);
    if (r->head) fn(arg, "lm_head");
}

struct toy_tensor *toy_weight(struct toy *base, const char *module) {
    char name[160];
    snprintf(name, sizeof name, "%s%s.weight", strcmp(module, "lm_head") ? "model." : "", module);
    return toy_find(base, name);
}

struct making { const struct lora_recipe *r; struct toy *base, *out; };

static void add(struct making *m, const char *module, const char *leaf, float scale, int64_t a, int64_t b) {
    char name[256];
    const char *prefix = strcmp(module, "lm_head") == 0 ? (m->r->mlx ? "language_model." : "base_model.model.")
                                                         : (m->r->mlx ? "language_model.model." : "base_model.model.model.");
    snprintf(name, sizeof name, "%s%s.%s", prefix, module, leaf);
    toy_add(m->out, name, scale, a, b, 0);
}

static void make_linear(void *arg, const char *module) {
    struct making *m = arg;
    const struct toy_tensor *w = toy_weight(m->base, module);
    int64_t out = w->shape[0], in = w->shape[1], rank = m->r->rank;
    if (m->r->mlx) add(m, module, "lora_a", 0.3f, in, rank), add(m, module, "lora_b", 0.3f, rank, out);
    else add(m, module, "lora_A.weight", 0.3f, rank, in), add(m, module, "lora_B.weight", 0.3f, out, rank);
    if (!m->r->dora) return;
    add(m, module, m->r->mlx ? "m" : "lora_magnitude_vector", 1.0f, out, 0);
    struct toy_tensor *x = &m->out->t[m->out->n - 1];
    for (int64_t i = 0; i < out; i++) x->data[i] = 2.0f + x->data[i];
}

void lora_make(struct toy *out, const struct lora_recipe *r, struct toy *base) {
    struct making m = {r, base, out};
    *out = (struct toy){.seed = r->seed};
    snprintf(out->config, sizeof out->config, "%s", r->config);
    lora_each_linear(r, make_linear, &m);
    if (!r->embedding) return;
    add(&m, "embed_tokens", r->mlx ? "lora_a" : "lora_embedding_A", 0.3f, r->mlx ? 32 : r->rank, r->mlx ? r->rank : 32);
    add(&m, "embed_tokens", r->mlx ? "lora_b" : "lora_embedding_B", 0.3f, r->mlx ? r->rank : 64, r->mlx ? 64 : r->rank);
}

const char *lora_write(const struct lora_recipe *r, const struct toy *a) {
    return toy_write(a, r->name, r->mlx ? "adapters.safetensors" : "adapter_model.safetensors", "adapter_config.json");
}

const struct lora_recipe lora_recipes[LORA_RECIPES] = {
    {"peft", 0, 0, 3, 1, 1, 11, 2.0, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}"},
    {"peft-rslora", 0, 0, 4, 0, 0, 12, 3.0, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"use_rslora\":true}"},
    {"peft-dora", 0, 1, 2, 0, 1, 13, 1.5, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":3,\"use_dora\":true}"},
    {"mlx", 1, 0, 5, 1, 1, 14, 1.25, "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":5,\"scale\":1.25}}"},
    {"mlx-dora", 1, 1, 3, 0, 0, 15, 0.75, "{\"fine_tune_type\":\"dora\",\"lora_parameters\":{\"rank\":3,\"scale\":0.75}}"},
};

struct adapter_set *lora_set(struct adapter_sets *sets, const struct adapter_use *uses, int n) {
    struct weft_error e = {0};
    struct adapter_set *s = NULL;
    if (adapter_sets_get(sets, &s, uses, n, &e)) fail_msg("%s", e.message);
    assert_non_null(s);
    return s;
}
