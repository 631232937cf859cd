#define _GNU_SOURCE
#include "cli/random_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "cli/cli.h"
#include "quant/affine.h"
#include "quant/convert.h"

/* hidden, layers, MLP, heads, KV heads, delta key and value heads, tied | experts, top k, expert width */
const struct geometry geometries[] = {
    {"0.8b", 1024, 24, 3584, 8, 2, 16, 16, 1, 0, 0, 0},
    {"2b", 2048, 24, 6144, 8, 2, 16, 16, 1, 0, 0, 0},
    {"4b", 2560, 32, 9216, 16, 4, 16, 32, 1, 0, 0, 0},
    {"9b", 4096, 32, 12288, 16, 4, 16, 32, 0, 0, 0, 0},
    {"27b", 5120, 64, 17408, 24, 4, 16, 48, 0, 0, 0, 0},
    {"35b-a3b", 2048, 40, 0, 16, 2, 16, 32, 0, 256, 8, 512},
    {0},
};

enum fill { FILL_WEIGHT, FILL_CODES, FILL_SCALES, FILL_BIASES, FILL_GAIN, FILL_PLAIN_GAIN, FILL_CONV, FILL_DT_BIAS, FILL_A_LOG };

/* What is to be written: specs and, beside each, how its values are made. */
struct plan {
    const struct random_model *m;
    struct arena names;
    struct tensor_spec *specs;
    struct { enum fill fill; int bits; int64_t n_in; uint64_t seed; } *how;
    int n, room, failed;
    json_t *overrides; /* of the config's quantization: module path to {bits, group_size} */
};

int random_model_is(const char *name) { return !strncmp(name, "random:", 7); }

static int take_setting(struct random_model *m, const char *text, size_t n, struct weft_error *e) {
    char key[32];
    const char *equals = memchr(text, '=', n);
    size_t n_key = equals ? (size_t)(equals - text) : n, n_value = equals ? n - n_key - 1 : 0;
    char value[32] = "";
    if (n_key >= sizeof key || n_value >= sizeof value) n_key = 0, n_value = 0;
    memcpy(key, text, n_key), key[n_key] = 0;
    if (equals) memcpy(value, equals + 1, n_value), value[n_value] = 0;
    char *end;
    long number = strtol(value, &end, 10);
    int is_number = *value && !*end;
    if (!strcmp(key, "repr")) {
        if (!strcmp(value, "bf16")) { m->bits = 0; return 0; }
        long bits = strncmp(value, "affine", 6) ? 0 : strtol(value + 6, &end, 10);
        if (bits && !*end && affine_bits_ok((int)bits)) { m->bits = (int)bits; return 0; }
        return error_set(e, WEFT_ERROR_INPUT, "repr is one of bf16, affine2, affine3, affine4, affine5, affine6, affine8, not \"%s\"",
                         value);
    }
    if (!strcmp(key, "group")) {
        if (is_number && affine_group_ok((int)number)) { m->group = (int)number; return 0; }
        return error_set(e, WEFT_ERROR_INPUT, "group is one of 32, 64, 128, not \"%s\"", value);
    }
    if (!strcmp(key, "layers")) {
        if (is_number && number >= 1 && number <= m->shape.n_layers) { m->shape.n_layers = (int)number; return 0; }
        return error_set(e, WEFT_ERROR_INPUT, "layers lies between 1 and %d, not \"%s\"", m->shape.n_layers, value);
    }
    return error_set(e, WEFT_ERROR_INPUT, "random models have the settings repr, group and layers, not \"%.*s\"", (int)n, text);
}

int random_model_parse(struct random_model *out, const char *name, struct weft_error *e) {
    const char *p = name + strlen("random:");
    size_t n = strcspn(p, ",");
    int at = 0;
    while (geometries[at].name && (strlen(geometries[at].name) != n || strncasecmp(geometries[at].name, p, n))) at++;
    if (!geometries[at].name)
        return error_set(e, WEFT_ERROR_INPUT, "%s: the sizes are 0.8b, 2b, 4b, 9b, 27b, 35b-a3b", name);
    *out = (struct random_model){geometries[at], 4, 64};
    for (p += n; *p == ','; p += n) {
        n = strcspn(++p, ",");
        int r = take_setting(out, p, n, e);
        if (r < 0) return error_prefix(e, "%s", name);
    }
    return 0;
}

static void add(struct plan *p, const char *name, enum fill fill, enum dtype dtype, int n_dims, const int64_t *shape, int bits,
                int64_t n_in, uint64_t seed) {
    if (p->n == p->room) {
        int room = p->room ? p->room * 2 : 256;
        void *specs = mem_resize(p->specs, (size_t)room * sizeof *p->specs);
        if (specs) p->specs = specs;
        void *how = mem_resize(p->how, (size_t)room * sizeof *p->how);
        if (how) p->how = how;
        if (!specs || !how) { p->failed = 1; return; }
        p->room = room;
    }
    struct tensor_spec *s = &p->specs[p->n];
    *s = (struct tensor_spec){arena_copy_text(&p->names, name, strlen(name)), dtype, n_dims, {0}};
    memcpy(s->shape, shape, (size_t)n_dims * sizeof *shape);
    p->how[p->n].fill = fill, p->how[p->n].bits = bits, p->how[p->n].n_in = n_in, p->how[p->n].seed = seed;
    p->n++;
    p->failed |= !s->name;
}

static void add_vector(struct plan *p, const char *name, enum fill fill, enum dtype dtype, int64_t n) {
    add(p, name, fill, dtype, 1, &n, 0, 0, (uint64_t)p->n);
}

/* A matrix, or n_experts of them stacked. `fixed_bits`: MLX keeps routers at 8 bits in groups of 64. `leaf` is ".weight", or
 * nothing for fused experts. */
static void add_matrix(struct plan *p, const char *module, const char *leaf, int n_experts, int64_t n_out, int64_t n_in,
                       int fixed_bits) {
    const struct random_model *m = p->m;
    int bits = m->bits ? (fixed_bits ? fixed_bits : m->bits) : 0, group = fixed_bits ? 64 : m->group;
    int64_t shape[3] = {n_experts, n_out, n_in};
    const int64_t *s = n_experts ? shape : shape + 1;
    int n_dims = n_experts ? 3 : 2;
    uint64_t seed = (uint64_t)p->n;
    char name[256];
    snprintf(name, sizeof name, "%s%s", module, leaf);
    if (!bits) {
        add(p, name, FILL_WEIGHT, DTYPE_BF16, n_dims, s, 0, n_in, seed);
        return;
    }
    shape[2] = n_in * bits / 32;
    add(p, name, FILL_CODES, DTYPE_U32, n_dims, s, bits, n_in, seed);
    shape[2] = n_in / group;
    snprintf(name, sizeof name, "%s.scales", module);
    add(p, name, FILL_SCALES, DTYPE_BF16, n_dims, s, bits, n_in, seed + 1);
    snprintf(name, sizeof name, "%s.biases", module);
    add(p, name, FILL_BIASES, DTYPE_BF16, n_dims, s, bits, n_in, seed + 1); /* the scales' seed: they belong together */
    if (fixed_bits)
        p->failed |= json_object_set_new(p->overrides, module, json_pack("{s:i,s:i}", "group_size", group, "bits", bits)) != 0;
}

static void add_mlp(struct plan *p, const char *layer) {
    const struct geometry *g = &p->m->shape;
    char at[160], name[200];
    snprintf(at, sizeof at, "%smlp.%s", layer, g->n_experts ? "shared_expert." : "");
    int64_t inner = g->n_experts ? g->moe_intermediate : g->intermediate;
    static const char *const proj[3] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", at, proj[i]);
        add_matrix(p, name, ".weight", 0, i == 2 ? g->hidden : inner, i == 2 ? inner : g->hidden, 0);
    }
    if (!g->n_experts) return;
    snprintf(name, sizeof name, "%smlp.gate", layer);
    add_matrix(p, name, ".weight", 0, g->n_experts, g->hidden, 8);
    snprintf(name, sizeof name, "%smlp.shared_expert_gate", layer);
    add_matrix(p, name, ".weight", 0, 1, g->hidden, 8);
    if (p->m->bits) {
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%smlp.switch_mlp.%s", layer, proj[i]);
            add_matrix(p, name, ".weight", g->n_experts, i == 2 ? g->hidden : inner, i == 2 ? inner : g->hidden, 0);
        }
    } else {
        snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", layer);
        add_matrix(p, name, "", g->n_experts, 2 * inner, g->hidden, 0);
        snprintf(name, sizeof name, "%smlp.experts.down_proj", layer);
        add_matrix(p, name, "", g->n_experts, g->hidden, inner, 0);
    }
}

static void add_attention(struct plan *p, const char *layer) {
    const struct geometry *g = &p->m->shape;
    char name[200];
    struct { const char *name; int64_t out, in; } proj[] = {
        {"q_proj", (int64_t)g->n_heads * 2 * GEOMETRY_HEAD_DIM, g->hidden},
        {"k_proj", (int64_t)g->n_kv_heads * GEOMETRY_HEAD_DIM, g->hidden},
        {"v_proj", (int64_t)g->n_kv_heads * GEOMETRY_HEAD_DIM, g->hidden},
        {"o_proj", g->hidden, (int64_t)g->n_heads * GEOMETRY_HEAD_DIM},
    };
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%sself_attn.%s", layer, proj[i].name);
        add_matrix(p, name, ".weight", 0, proj[i].out, proj[i].in, 0);
    }
    snprintf(name, sizeof name, "%sself_attn.q_norm.weight", layer);
    add_vector(p, name, FILL_GAIN, DTYPE_BF16, GEOMETRY_HEAD_DIM);
    snprintf(name, sizeof name, "%sself_attn.k_norm.weight", layer);
    add_vector(p, name, FILL_GAIN, DTYPE_BF16, GEOMETRY_HEAD_DIM);
}

static void add_delta(struct plan *p, const char *layer) {
    const struct geometry *g = &p->m->shape;
    int64_t key = (int64_t)g->key_heads * GEOMETRY_LINEAR_DIM, value = (int64_t)g->value_heads * GEOMETRY_LINEAR_DIM;
    int64_t channels = 2 * key + value, conv[3] = {channels, 1, GEOMETRY_CONV};
    if (p->m->bits) conv[1] = GEOMETRY_CONV, conv[2] = 1;
    char name[200];
    struct { const char *name; int64_t out, in; } proj[] = {
        {"in_proj_qkv", channels, g->hidden}, {"in_proj_z", value, g->hidden}, {"in_proj_b", g->value_heads, g->hidden},
        {"in_proj_a", g->value_heads, g->hidden}, {"out_proj", g->hidden, value},
    };
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%slinear_attn.%s", layer, proj[i].name);
        add_matrix(p, name, ".weight", 0, proj[i].out, proj[i].in, 0);
    }
    snprintf(name, sizeof name, "%slinear_attn.conv1d.weight", layer);
    add(p, name, FILL_CONV, DTYPE_BF16, 3, conv, 0, 0, (uint64_t)p->n);
    snprintf(name, sizeof name, "%slinear_attn.norm.weight", layer);
    add_vector(p, name, FILL_PLAIN_GAIN, DTYPE_BF16, GEOMETRY_LINEAR_DIM);
    snprintf(name, sizeof name, "%slinear_attn.A_log", layer);
    add_vector(p, name, FILL_A_LOG, DTYPE_F32, g->value_heads);
    snprintf(name, sizeof name, "%slinear_attn.dt_bias", layer);
    add_vector(p, name, FILL_DT_BIAS, DTYPE_BF16, g->value_heads);
}

static void plan_drop(struct plan *p) {
    arena_drop(&p->names);
    mem_free(p->specs), mem_free(p->how);
    json_decref(p->overrides);
}

static int plan_make(struct plan *p, const struct random_model *m, struct weft_error *e) {
    *p = (struct plan){.m = m, .overrides = json_object()};
    arena_init(&p->names);
    p->failed = !p->overrides;
    const char *text = m->bits ? "language_model.model." : "model.";
    char name[200], layer[100];
    snprintf(name, sizeof name, "%sembed_tokens", text);
    add_matrix(p, name, ".weight", 0, GEOMETRY_VOCAB, m->shape.hidden, 0);
    for (int i = 0; i < m->shape.n_layers; i++) {
        snprintf(layer, sizeof layer, "%slayers.%d.", text, i);
        snprintf(name, sizeof name, "%sinput_layernorm.weight", layer);
        add_vector(p, name, FILL_GAIN, DTYPE_BF16, m->shape.hidden);
        if ((i + 1) % GEOMETRY_INTERVAL) add_delta(p, layer);
        else add_attention(p, layer);
        snprintf(name, sizeof name, "%spost_attention_layernorm.weight", layer);
        add_vector(p, name, FILL_GAIN, DTYPE_BF16, m->shape.hidden);
        add_mlp(p, layer);
    }
    snprintf(name, sizeof name, "%snorm.weight", text);
    add_vector(p, name, FILL_GAIN, DTYPE_BF16, m->shape.hidden);
    if (!m->shape.tied)
        add_matrix(p, m->bits ? "language_model.lm_head" : "lm_head", ".weight", 0, GEOMETRY_VOCAB, m->shape.hidden, 0);
    if (!p->failed) return 0;
    plan_drop(p);
    return error_memory(e, "the table of tensors");
}

static uint64_t spec_elements(const struct tensor_spec *s) {
    uint64_t n = 1;
    for (int d = 0; d < s->n_dims; d++) n *= (uint64_t)s->shape[d];
    return n;
}

static uint64_t plan_bytes(const struct plan *p) {
    uint64_t n = 0;
    for (int i = 0; i < p->n; i++) n += spec_elements(&p->specs[i]) * (uint64_t)dtype_bytes(p->specs[i].dtype);
    return n;
}

uint64_t random_model_bytes(const struct random_model *m) {
    struct plan p;
    if (plan_make(&p, m, NULL) < 0) return 0;
    uint64_t n = plan_bytes(&p);
    plan_drop(&p);
    return n;
}

/* A number for each place of each tensor, so that the same model always has the same bytes. */
static uint64_t hash(uint64_t seed, uint64_t at) {
    uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + at * 0xd1342543de82ef95u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static double unit(uint64_t seed, uint64_t at) { return (double)(hash(seed, at) >> 11) * 0x1p-53; }

static double value_at(enum fill fill, int bits, int64_t n_in, uint64_t seed, uint64_t at, int folded) {
    double u = unit(seed, at);
    /* Codes are uniform over 2^bits values: their deviation is that many steps / sqrt(12); weights shall have 1 / sqrt(n_in). */
    double step = sqrt(12.0) / ((1 << bits) - 1) / sqrt((double)(n_in ? n_in : 1)) * (0.75 + 0.5 * u);
    if (hash(seed, at) & 1) step = -step;
    switch (fill) {
    case FILL_SCALES: return step;
    case FILL_BIASES: return -(double)float_from_bf16(bf16_from_float((float)step)) * ((1 << bits) - 1) / 2;
    case FILL_GAIN: return (folded ? 1 : 0) + 0.2 * (u - 0.5);
    case FILL_PLAIN_GAIN: return 1 + 0.2 * (u - 0.5);
    case FILL_CONV: return u - 0.5;
    case FILL_A_LOG: return log(0.5 + 15.5 * u);
    case FILL_DT_BIAS: {
        double dt = exp(log(1e-3) + u * (log(0.1) - log(1e-3)));
        return dt + log(-expm1(-dt)); /* softplus gives dt */
    }
    case FILL_WEIGHT: case FILL_CODES: break;
    }
    return 0;
}

enum { PIECE = 1 << 20, TABLE = 4096 };

/* Fills `out` with the bytes of tensor i from `at` (a multiple of 8) on. */
static void fill_piece(const struct plan *p, int i, const uint16_t *table, uint64_t at, size_t n, uint8_t *out) {
    enum fill fill = p->how[i].fill;
    uint64_t seed = p->how[i].seed;
    if (fill == FILL_CODES || fill == FILL_WEIGHT) {
        for (size_t k = 0; k < n; k += 8) {
            uint64_t bits = hash(seed, (at + k) / 8);
            if (fill == FILL_WEIGHT)
                bits = (uint64_t)table[bits & 4095] | (uint64_t)table[bits >> 16 & 4095] << 16 |
                       (uint64_t)table[bits >> 32 & 4095] << 32 | (uint64_t)table[bits >> 48 & 4095] << 48;
            memcpy(out + k, &bits, n - k < 8 ? n - k : 8);
        }
        return;
    }
    int width = dtype_bytes(p->specs[i].dtype);
    for (size_t k = 0; k < n; k += (size_t)width) {
        float v = (float)value_at(fill, p->how[i].bits, p->how[i].n_in, seed, (at + k) / (uint64_t)width, p->m->bits > 0);
        uint16_t narrow = bf16_from_float(v);
        if (width == 4) memcpy(out + k, &v, 4);
        else memcpy(out + k, &narrow, 2);
    }
}

static int write_tensors(const struct plan *p, struct safetensors_writer *w, struct weft_error *e) {
    uint8_t *piece = mem_alloc(PIECE);
    uint16_t table[TABLE];
    double total = (double)plan_bytes(p), done = 0;
    int r = piece ? 0 : error_memory(e, "a piece of a tensor");
    for (int i = 0; i < p->n && r == 0; i++) {
        double reach = sqrt(3.0 / (double)(p->how[i].n_in ? p->how[i].n_in : 1)); /* uniform, of deviation 1 / sqrt(n_in) */
        for (int k = 0; k < TABLE; k++) table[k] = bf16_from_float((float)(reach * ((2 * k + 1) / (double)TABLE - 1)));
        uint64_t n = spec_elements(&p->specs[i]) * (uint64_t)dtype_bytes(p->specs[i].dtype);
        for (uint64_t at = 0; at < n && r == 0; at += PIECE) {
            size_t take = n - at < PIECE ? (size_t)(n - at) : PIECE;
            fill_piece(p, i, table, at, take, piece);
            r = safetensors_write(w, piece, take, e);
            progress_show(NULL, "making random weights", (done += (double)take) / total);
        }
    }
    mem_free(piece);
    progress_end();
    return r;
}

static json_t *text_config(const struct random_model *m) {
    const struct geometry *g = &m->shape;
    json_t *kinds = json_array();
    for (int i = 0; i < g->n_layers; i++)
        json_array_append_new(kinds, json_string((i + 1) % GEOMETRY_INTERVAL ? "linear_attention" : "full_attention"));
    json_t *o = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:f,s:b}", "model_type",
                          g->n_experts ? "qwen3_5_moe_text" : "qwen3_5_text", "vocab_size", GEOMETRY_VOCAB, "hidden_size", g->hidden,
                          "num_hidden_layers", g->n_layers, "num_attention_heads", g->n_heads, "num_key_value_heads",
                          g->n_kv_heads, "hidden_act", "silu", "max_position_embeddings", GEOMETRY_CONTEXT, "rms_norm_eps", 1e-6,
                          "tie_word_embeddings", g->tied);
    json_t *more = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b,s:b,s:s,s:s,s:n,s:i,s:n,s:i,s:o}", "head_dim", GEOMETRY_HEAD_DIM,
                             "linear_conv_kernel_dim", GEOMETRY_CONV, "linear_key_head_dim", GEOMETRY_LINEAR_DIM,
                             "linear_value_head_dim", GEOMETRY_LINEAR_DIM, "linear_num_key_heads", g->key_heads,
                             "linear_num_value_heads", g->value_heads, "full_attention_interval", GEOMETRY_INTERVAL,
                             "attention_bias", 0, "attn_output_gate", 1, "dtype", "bfloat16", "mamba_ssm_dtype", "float32",
                             "bos_token_id", "eos_token_id", 248044, "pad_token_id", "mtp_num_hidden_layers", 0, "layer_types",
                             kinds);
    json_t *rope = json_pack("{s:s,s:i,s:f,s:[i,i,i],s:b}", "rope_type", "default", "rope_theta", 10000000,
                             "partial_rotary_factor", 0.25, "mrope_section", 11, 11, 10, "mrope_interleaved", 1);
    json_t *mlp = g->n_experts ? json_pack("{s:i,s:i,s:i,s:i,s:b,s:[]}", "num_experts", g->n_experts, "num_experts_per_tok", g->top_k,
                                           "moe_intermediate_size", g->moe_intermediate, "shared_expert_intermediate_size",
                                           g->moe_intermediate, "norm_topk_prob", 1, "mlp_only_layers")
                               : json_pack("{s:i}", "intermediate_size", g->intermediate);
    json_object_update(o, more), json_object_update(o, mlp);
    json_object_set(o, "rope_parameters", rope);
    json_decref(more), json_decref(mlp), json_decref(rope);
    return o;
}

/* bf16: the text model alone, as transformers' causal class saves it. Affine: as mlx-lm converts. */
static json_t *whole_config(const struct plan *p) {
    const struct random_model *m = p->m;
    json_t *text = text_config(m);
    if (!m->bits) {
        json_object_set_new(text, "architectures",
                            json_pack("[s]", m->shape.n_experts ? "Qwen3_5MoeForCausalLM" : "Qwen3_5ForCausalLM"));
        return text;
    }
    json_t *q = json_pack("{s:i,s:i,s:s}", "group_size", m->group, "bits", m->bits, "mode", "affine");
    json_object_update(q, p->overrides);
    return json_pack("{s:[s],s:s,s:b,s:[i,i],s:o,s:O,s:o}", "architectures",
                     m->shape.n_experts ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration", "model_type",
                     m->shape.n_experts ? "qwen3_5_moe" : "qwen3_5", "tie_word_embeddings", m->shape.tied, "eos_token_id", 248046,
                     248044, "text_config", text, "quantization", q, "quantization_config", q);
}

static int write_json(const char *folder, const char *name, json_t *o, struct weft_error *e) {
    char *path = file_join(folder, name), *text = o ? json_dumps(o, JSON_INDENT(4)) : NULL;
    struct file_writer w;
    int r = path && text ? file_open_writer(&w, path, e) : error_memory(e, name);
    if (r == 0) {
        r = file_write(&w, text, strlen(text), e);
        int closed = file_close_writer(&w, r == 0, e);
        if (r == 0) r = closed;
    }
    mem_free(path), free(text), json_decref(o);
    return r;
}

int random_model_write(const struct random_model *m, const char *folder, struct weft_error *e) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return error_set(e, WEFT_ERROR_INPUT, "%s: %s", folder, strerror(errno));
    char *config = file_join(folder, "config.json"), *weights = file_join(folder, "model.safetensors");
    struct plan p;
    struct safetensors_writer *w = NULL;
    static const struct text_pair mlx = {"format", "mlx"};
    int r = config && weights ? 0 : error_memory(e, folder), planned = 0;
    if (r == 0 && file_exists(config)) r = error_set(e, WEFT_ERROR_INPUT, "%s: there is a model already", folder);
    if (r == 0) r = plan_make(&p, m, e), planned = r == 0;
    if (r == 0) r = safetensors_open_writer(&w, weights, p.specs, p.n, &mlx, m->bits ? 1 : 0, e);
    if (r == 0) {
        r = write_tensors(&p, w, e);
        int closed = safetensors_close_writer(w, r == 0, e);
        if (r == 0) r = closed;
    }
    if (r == 0)
        r = write_json(folder, "generation_config.json", json_pack("{s:[i,i],s:b}", "eos_token_id", 248046, 248044, "do_sample", 0), e);
    if (r == 0) r = write_json(folder, "config.json", whole_config(&p), e); /* last: a folder without it is no model */
    if (planned) plan_drop(&p);
    mem_free(config), mem_free(weights);
    return r;
}

static char *made; /* the one folder that random_model_make left, for the end of the process */

void random_model_drop(char *folder) {
    if (!folder) return;
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
    for (int i = 0; i < 3; i++) {
        char *path = file_join(folder, files[i]);
        if (path) unlink(path);
        mem_free(path);
    }
    rmdir(folder);
    if (made == folder) made = NULL;
    mem_free(folder);
}

static void drop_made(void) { random_model_drop(made); }

/* Room for the file and, beside it in memory, for the packed copy that integer weights get. */
static int fits_in_memory(uint64_t bytes) {
    struct statvfs s;
    if (statvfs("/dev/shm", &s) != 0) return 0;
    unsigned long long free_bytes = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &free_bytes) == 1) break;
    if (f) fclose(f);
    return (uint64_t)s.f_bavail * s.f_frsize > bytes && free_bytes * 1024 > bytes * 2 + bytes / 4;
}

int random_model_make(char **folder, const struct random_model *m, struct weft_error *e) {
    const char *temp = getenv("TMPDIR");
    char path[512];
    if (fits_in_memory(random_model_bytes(m))) temp = "/dev/shm";
    snprintf(path, sizeof path, "%s/weft-random-XXXXXX", temp && *temp ? temp : "/tmp");
    if (!mkdtemp(path)) return error_set(e, WEFT_ERROR_INPUT, "%s: %s", path, strerror(errno));
    *folder = mem_copy_text(path, strlen(path));
    if (!*folder) return error_memory(e, path);
    if (!made) atexit(drop_made);
    made = *folder;
    int r = random_model_write(m, path, e);
    if (r < 0) random_model_drop(*folder), *folder = NULL;
    return r;
}
