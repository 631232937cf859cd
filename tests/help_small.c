#include "help_small.h"

#include <sys/stat.h>

#include "base/mem.h"
#include "help_test.h"
#include "quant/open.h"

static const char config[] =
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":64,\"num_hidden_layers\":2,\"vocab_size\":32,\"intermediate_size\":96,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,"
    "\"linear_key_head_dim\":32,\"linear_value_head_dim\":32,\"linear_conv_kernel_dim\":4,\"full_attention_interval\":2,"
    "\"tie_word_embeddings\":true,\"rope_parameters\":{\"rope_theta\":10000,\"partial_rotary_factor\":0.25}}";

int small_add(struct small *s, const char *name, enum dtype dtype, int n_dims, int64_t a, int64_t b, int64_t c) {
    int i = s->n++;
    assert_true(i < SMALL_TENSORS);
    snprintf(s->names[i], sizeof s->names[i], "%s", name);
    s->specs[i] = (struct tensor_spec){s->names[i], dtype, n_dims, {a, b, c}};
    s->fill[i] = 0x3d;
    return i;
}

static void add_matrix(struct small *s, int bits, const char *module, int64_t rows, int64_t cols) {
    char name[96];
    snprintf(name, sizeof name, "model.%s.weight", module);
    if (!bits) {
        small_add(s, name, DTYPE_BF16, 2, rows, cols, 0);
        return;
    }
    small_add(s, name, DTYPE_U32, 2, rows, cols * bits / 32, 0);
    snprintf(name, sizeof name, "model.%s.scales", module);
    small_add(s, name, DTYPE_BF16, 2, rows, cols / 32, 0);
    snprintf(name, sizeof name, "model.%s.biases", module);
    small_add(s, name, DTYPE_BF16, 2, rows, cols / 32, 0);
}

static void fill(struct small *s, int bits) {
    *s = (struct small){0};
    snprintf(s->config, sizeof s->config, "%s", config);
    add_matrix(s, bits, "embed_tokens", 32, 64);
    for (int i = 0; i < 2; i++) {
        char name[96];
        const char *const vectors[] = {"input_layernorm", "post_attention_layernorm"};
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, vectors[k]);
            small_add(s, name, DTYPE_BF16, 1, 64, 0, 0);
        }
        static const struct { const char *module; int rows, cols; } mlp[] = {
            {"mlp.gate_proj", 96, 64}, {"mlp.up_proj", 96, 64}, {"mlp.down_proj", 64, 96}};
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "layers.%d.%s", i, mlp[k].module);
            add_matrix(s, bits, name, mlp[k].rows, mlp[k].cols);
        }
    }
    add_matrix(s, bits, "layers.0.linear_attn.in_proj_qkv", 128, 64);
    add_matrix(s, bits, "layers.0.linear_attn.in_proj_z", 64, 64);
    add_matrix(s, bits, "layers.0.linear_attn.in_proj_a", 2, 64);
    add_matrix(s, bits, "layers.0.linear_attn.in_proj_b", 2, 64);
    add_matrix(s, bits, "layers.0.linear_attn.out_proj", 64, 64);
    small_add(s, "model.layers.0.linear_attn.conv1d.weight", DTYPE_BF16, 3, 128, bits ? 4 : 1, bits ? 1 : 4);
    small_add(s, "model.layers.0.linear_attn.A_log", DTYPE_F32, 1, 2, 0, 0);
    small_add(s, "model.layers.0.linear_attn.dt_bias", DTYPE_BF16, 1, 2, 0, 0);
    small_add(s, "model.layers.0.linear_attn.norm.weight", DTYPE_F32, 1, 32, 0, 0);
    add_matrix(s, bits, "layers.1.self_attn.q_proj", 128, 64);
    add_matrix(s, bits, "layers.1.self_attn.k_proj", 32, 64);
    add_matrix(s, bits, "layers.1.self_attn.v_proj", 32, 64);
    add_matrix(s, bits, "layers.1.self_attn.o_proj", 64, 64);
    small_add(s, "model.layers.1.self_attn.q_norm.weight", DTYPE_BF16, 1, 32, 0, 0);
    small_add(s, "model.layers.1.self_attn.k_norm.weight", DTYPE_BF16, 1, 32, 0, 0);
    small_add(s, "model.norm.weight", DTYPE_BF16, 1, 64, 0, 0);
}

void small_init(struct small *s) { fill(s, 0); }
void small_init_affine(struct small *s) { fill(s, 4); }

static int place(const struct small *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0) return i;
    fail_msg("no tensor %s", name);
    return 0;
}

struct tensor_spec *small_find(struct small *s, const char *name) { return &s->specs[place(s, name)]; }

void small_remove(struct small *s, const char *name) {
    int i = place(s, name), last = --s->n;
    s->specs[i] = s->specs[last], s->fill[i] = s->fill[last];
    memcpy(s->names[i], s->names[last], sizeof s->names[i]);
    s->specs[i].name = s->names[i];
}

void small_rename(struct small *s, const char *name, const char *new_name) {
    int i = place(s, name);
    snprintf(s->names[i], sizeof s->names[i], "%s", new_name);
}

void help_write_text(const char *folder, const char *file, const char *text) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

const char *small_write(const struct small *s, const char *folder, const char *file, int first, int last) {
    const char *where = help_temp(folder);
    char path[4200];
    struct weft_error e = {0};
    struct safetensors_writer *w;
    mkdir(where, 0777);
    help_write_text(where, "config.json", s->config);
    snprintf(path, sizeof path, "%s/%s", where, file);
    assert_int_equal(safetensors_open_writer(&w, path, s->specs + first, last - first, NULL, 0, &e), 0);
    for (int i = first; i < last; i++) {
        size_t n = (size_t)dtype_bytes(s->specs[i].dtype);
        for (int d = 0; d < s->specs[i].n_dims; d++) n *= (size_t)s->specs[i].shape[d];
        uint8_t *bytes = malloc(n + 1);
        memset(bytes, s->fill[i], n);
        assert_int_equal(safetensors_write(w, bytes, n, &e), 0);
        free(bytes);
    }
    assert_int_equal(safetensors_close_writer(w, 1, &e), 0);
    return where;
}

struct taker { struct checkpoint *c; struct weft_error *e; int code; };

static void take_matrix(struct taker *t, const char *module, int64_t rows, int64_t cols) {
    struct weight w;
    if (t->code) return;
    t->code = weight_open(&w, t->c, module, rows, cols, t->e);
    if (!t->code && w.repr->packed) t->code = weight_check(&w, 0, rows, t->e);
}

static void take_vector(struct taker *t, const char *name, int64_t n) {
    if (t->code) return;
    float *out = mem_alloc((size_t)n * 4);
    t->code = out ? checkpoint_read_vector(t->c, name, n, out, t->e) : error_memory(t->e, name);
    mem_free(out);
}

struct path { char text[160]; };

static struct path under(const char *head, const char *tail) {
    struct path p;
    assert_true(snprintf(p.text, sizeof p.text, "%s.%s", head, tail) < (int)sizeof p.text);
    return p;
}

static void take_mlp(struct taker *t, const char *mlp) {
    const struct config *c = &t->c->config;
    struct path shared = under(mlp, "shared_expert");
    int inner = c->n_experts ? c->shared_intermediate : c->intermediate;
    if (c->n_experts && !t->code) {
        struct expert_weights *experts = mem_new((size_t)c->n_experts, sizeof *experts);
        t->code = experts ? weight_open_experts(experts, c->n_experts, t->c, mlp, c->hidden, c->moe_intermediate, t->e)
                          : error_memory(t->e, mlp);
        mem_free(experts);
        take_matrix(t, under(mlp, "gate").text, c->n_experts, c->hidden);
        take_matrix(t, under(mlp, "shared_expert_gate").text, 1, c->hidden);
        mlp = shared.text;
    }
    take_matrix(t, under(mlp, "gate_proj").text, inner, c->hidden);
    take_matrix(t, under(mlp, "up_proj").text, inner, c->hidden);
    take_matrix(t, under(mlp, "down_proj").text, c->hidden, inner);
}

static void take_attention(struct taker *t, const char *layer) {
    const struct config *c = &t->c->config;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    take_matrix(t, under(layer, "self_attn.q_proj").text, 2 * q, c->hidden);
    take_matrix(t, under(layer, "self_attn.k_proj").text, kv, c->hidden);
    take_matrix(t, under(layer, "self_attn.v_proj").text, kv, c->hidden);
    take_matrix(t, under(layer, "self_attn.o_proj").text, c->hidden, q);
    take_vector(t, under(layer, "self_attn.q_norm.weight").text, c->head_dim);
    take_vector(t, under(layer, "self_attn.k_norm.weight").text, c->head_dim);
}

static void take_linear(struct taker *t, const char *layer) {
    const struct config *c = &t->c->config;
    int k = c->linear_k_heads * c->linear_k_dim, v = c->linear_v_heads * c->linear_v_dim, all = 2 * k + v;
    take_matrix(t, under(layer, "linear_attn.in_proj_qkv").text, all, c->hidden);
    take_matrix(t, under(layer, "linear_attn.in_proj_z").text, v, c->hidden);
    take_matrix(t, under(layer, "linear_attn.in_proj_a").text, c->linear_v_heads, c->hidden);
    take_matrix(t, under(layer, "linear_attn.in_proj_b").text, c->linear_v_heads, c->hidden);
    take_matrix(t, under(layer, "linear_attn.out_proj").text, c->hidden, v);
    take_vector(t, under(layer, "linear_attn.A_log").text, c->linear_v_heads);
    take_vector(t, under(layer, "linear_attn.dt_bias").text, c->linear_v_heads);
    take_vector(t, under(layer, "linear_attn.norm.weight").text, c->linear_v_dim);
    float *conv = t->code ? NULL : mem_alloc((size_t)(all * c->conv_taps) * 4);
    int layout;
    if (conv) t->code = checkpoint_read_conv(t->c, under(layer, "linear_attn.conv1d.weight").text, all, c->conv_taps, conv, &layout, t->e);
    else if (!t->code) t->code = error_memory(t->e, layer);
    mem_free(conv);
}

static void take_layer(struct taker *t, const char *layer, int kind) {
    take_vector(t, under(layer, "input_layernorm.weight").text, t->c->config.hidden);
    take_vector(t, under(layer, "post_attention_layernorm.weight").text, t->c->config.hidden);
    if (kind == LAYER_FULL) take_attention(t, layer);
    else take_linear(t, layer);
    take_mlp(t, under(layer, "mlp").text);
}

int help_take_all(struct checkpoint *c, struct weft_error *e) {
    struct taker t = {c, e, 0};
    int hidden = c->config.hidden;
    char layer[32];
    take_matrix(&t, "embed_tokens", c->config.vocab, hidden);
    if (!c->config.tied || weight_exists(c, "lm_head")) take_matrix(&t, "lm_head", c->config.vocab, hidden);
    take_vector(&t, "norm.weight", hidden);
    for (int i = 0; i < c->config.n_layers; i++) {
        snprintf(layer, sizeof layer, "layers.%d", i);
        take_layer(&t, layer, c->config.layer_kinds[i]);
    }
    if (weight_exists(c, "mtp.fc")) {
        take_matrix(&t, "mtp.fc", hidden, 2 * hidden);
        take_vector(&t, "mtp.norm.weight", hidden);
        take_vector(&t, "mtp.pre_fc_norm_embedding.weight", hidden);
        take_vector(&t, "mtp.pre_fc_norm_hidden.weight", hidden);
        take_layer(&t, "mtp.layers.0", LAYER_FULL);
    }
    return t.code ? t.code : checkpoint_finish(c, e);
}
