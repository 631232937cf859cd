#include "checkpoint/config.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

enum { WIDTH_LIMIT = 1 << 24 }; /* of any row of numbers that the config implies: heads * head_dim and so on */

struct reader {
    const json_t *raw, *text;
    const char *name;
    struct weft_error *e;
};

/* One integer of the text part, straight into the struct. */
struct int_field { const char *key; size_t offset; int required; int64_t min, max; };
#define FIELD(key, member, required, min, max) {key, offsetof(struct config, member), required, min, max}

static int read_ints(const struct reader *r, struct config *c, const struct int_field *fields, int n) {
    for (int i = 0; i < n; i++) {
        const struct int_field *f = &fields[i];
        int *member = (int *)((char *)c + f->offset);
        int64_t value = *member;
        int code = json_get_int(r->text, f->key, f->required, f->min, f->max, &value, r->name, r->e);
        if (code) return code;
        *member = (int)value;
    }
    return 0;
}

static int unsupported(const struct reader *r, const char *key, const char *what) {
    return error_set(r->e, WEFT_ERROR_SUPPORT, "%s: \"%s\": %s is not supported", r->name, key, what);
}

static int read_model_type(const struct reader *r, struct config *c) {
    const char *type = NULL;
    int code = json_get_text(r->raw, "model_type", 0, &type, r->name, r->e);
    if (!code && !type) code = json_get_text(r->text, "model_type", 1, &type, r->name, r->e);
    if (code) return code;
    static const char *const known[] = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_mtp", "qwen3_5_moe_mtp"};
    int found = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(type, known[i]) == 0;
    if (!found)
        return error_set(r->e, WEFT_ERROR_SUPPORT, "%s: \"model_type\" is \"%s\"; weft runs the Qwen3.5 family (qwen3_5, qwen3_5_moe)",
                         r->name, type);
    strcpy(c->model_type, type);
    c->drafter = strstr(type, "_mtp") != NULL;
    return 0;
}

static int read_layers(const struct reader *r, struct config *c) {
    const json_t *list = json_object_get(r->text, "layer_types");
    if (list && !json_is_null(list)) {
        if (!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers)
            return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"layer_types\" is no list of %d layers, as \"num_hidden_layers\" says",
                             r->name, c->n_layers);
        for (int i = 0; i < c->n_layers; i++) {
            const char *kind = json_string_value(json_array_get(list, (size_t)i));
            if (kind && strcmp(kind, "full_attention") == 0) c->layer_kinds[i] = LAYER_FULL;
            else if (kind && strcmp(kind, "linear_attention") == 0) c->layer_kinds[i] = LAYER_LINEAR;
            else
                return error_set(r->e, kind ? WEFT_ERROR_SUPPORT : WEFT_ERROR_INPUT,
                                 "%s: \"layer_types\" of layer %d is \"%s\", not full_attention or linear_attention", r->name, i,
                                 kind ? kind : "(no text)");
        }
        return 0;
    }
    int64_t interval = 4;
    int code = json_get_int(r->text, "full_attention_interval", 0, 1, INT32_MAX, &interval, r->name, r->e);
    for (int i = 0; i < c->n_layers && !code; i++) c->layer_kinds[i] = (i + 1) % interval == 0 ? LAYER_FULL : LAYER_LINEAR;
    return code;
}

static int has_layer(const struct config *c, int kind) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer_kinds[i] == kind) return 1;
    return 0;
}

/* The rope type under either of its names; absent is the default. */
static int check_rope_type(const struct reader *r, const json_t *rope) {
    static const char *const keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const char *type = NULL;
        int code = json_get_text(rope, keys[i], 0, &type, r->name, r->e);
        if (code) return code;
        if (type && strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0)
            return error_set(r->e, WEFT_ERROR_SUPPORT, "%s: rope type \"%s\" is not supported", r->name, type);
    }
    return 0;
}

static int read_sections(const struct reader *r, struct config *c, const json_t *rope) {
    const json_t *list = json_object_get(rope, "mrope_section");
    c->mrope_sections[0] = c->rotary_dim / 2, c->mrope_interleaved = 1;
    int code = json_get_bool(rope, "mrope_interleaved", 0, &c->mrope_interleaved, r->name, r->e);
    if (code || !list || json_is_null(list)) return code;
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;
        if (!json_is_array(list) || json_array_size(list) != 3 || n < 0 || n > WIDTH_LIMIT)
            return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"mrope_section\" is no list of three counts", r->name);
        c->mrope_sections[i] = (int)n, sum += n;
    }
    if (sum == c->rotary_dim / 2) return 0;
    return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"mrope_section\" sums to %lld, but %d pairs of dimensions rotate", r->name,
                     (long long)sum, c->rotary_dim / 2);
}

/* rope_parameters (or rope_scaling) with what older files keep beside it. */
static int read_rope(const struct reader *r, struct config *c) {
    const json_t *rope = json_object_get(r->text, "rope_parameters");
    if (!rope || json_is_null(rope)) rope = json_object_get(r->text, "rope_scaling");
    if (rope && !json_is_null(rope) && !json_is_object(rope))
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"rope_parameters\" is no object", r->name);
    int code = check_rope_type(r, rope);
    double factor = 0.25;
    c->rope_theta = 0;
    if (!code) code = json_get_number(rope, "rope_theta", 0, 1, 1e15, &c->rope_theta, r->name, r->e);
    if (!code && c->rope_theta == 0) code = json_get_number(r->text, "rope_theta", 1, 1, 1e15, &c->rope_theta, r->name, r->e);
    if (!code) code = json_get_number(r->text, "partial_rotary_factor", 0, 0, 1, &factor, r->name, r->e);
    if (!code) code = json_get_number(rope, "partial_rotary_factor", 0, 0, 1, &factor, r->name, r->e);
    if (code) return code;
    c->rotary_dim = (int)(c->head_dim * factor);
    if (c->rotary_dim < 2 || c->rotary_dim % 2)
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"partial_rotary_factor\" %g of a head of %d gives no even number of dimensions",
                         r->name, factor, c->head_dim);
    return read_sections(r, c, rope);
}

/* What would change the numbers and is not done here must not pass unnoticed. Dropout does not act at inference. */
static int check_support(const struct reader *r, const struct config *c) {
    const char *act = "silu";
    int gate = 1, window = 0, own_embeddings = 0;
    int64_t step = 1;
    int code = json_get_text(r->text, "hidden_act", 0, &act, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "attn_output_gate", 0, &gate, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "use_sliding_window", 0, &window, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "mtp_use_dedicated_embeddings", 0, &own_embeddings, r->name, r->e);
    if (!code) code = json_get_int(r->text, "decoder_sparse_step", 0, 0, INT32_MAX, &step, r->name, r->e);
    if (code) return code;
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) return unsupported(r, "hidden_act", act);
    if (!gate) return unsupported(r, "attn_output_gate", "attention without its gate");
    if (window) return unsupported(r, "use_sliding_window", "a sliding window");
    if (own_embeddings) return unsupported(r, "mtp_use_dedicated_embeddings", "an MTP head with embeddings of its own");
    if (c->n_experts && step > 1) return unsupported(r, "decoder_sparse_step", "a model with experts in some layers only");
    if (c->n_experts && json_array_size(json_object_get(r->text, "mlp_only_layers")) > 0)
        return unsupported(r, "mlp_only_layers", "a model with experts in some layers only");
    return 0;
}

static int check_widths(const struct reader *r, const struct config *c) {
    const struct { const char *what; int64_t width; } widths[] = {
        {"num_attention_heads * head_dim", (int64_t)c->n_heads * c->head_dim * 2},
        {"linear_num_key_heads * linear_key_head_dim", (int64_t)c->linear_k_heads * c->linear_k_dim},
        {"linear_num_value_heads * linear_value_head_dim", (int64_t)c->linear_v_heads * c->linear_v_dim},
    };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].width > WIDTH_LIMIT)
            return error_set(r->e, WEFT_ERROR_INPUT, "%s: %s is %lld, more than %d", r->name, widths[i].what,
                             (long long)widths[i].width, WIDTH_LIMIT);
    if (c->n_kv_heads && c->n_heads % c->n_kv_heads)
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: %d attention heads are no multiple of %d key heads", r->name, c->n_heads,
                         c->n_kv_heads);
    if (c->linear_k_heads && c->linear_v_heads % c->linear_k_heads)
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: %d linear value heads are no multiple of %d key heads", r->name,
                         c->linear_v_heads, c->linear_k_heads);
    if (c->n_experts && c->top_k > c->n_experts)
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"num_experts_per_tok\" is %d of %d experts", r->name, c->top_k, c->n_experts);
    return 0;
}

/* A token id, or a list of them, added to `ids`. 0 is "not given"; negative an error. */
static int read_ends(const struct reader *r, const json_t *o, int vocab, int *ids, int *n_ids) {
    const json_t *v = json_object_get(o, "eos_token_id");
    size_t n = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    *n_ids = 0;
    if (n > CONFIG_ENDS)
        return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"eos_token_id\" lists %zu tokens, at most %d", r->name, n, CONFIG_ENDS);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t token = json_is_integer(id) ? json_integer_value(id) : -1;
        if (token < 0 || token >= vocab)
            return error_set(r->e, WEFT_ERROR_INPUT, "%s: \"eos_token_id\" is no token of a vocabulary of %d", r->name, vocab);
        ids[(*n_ids)++] = (int)token;
    }
    return 0;
}

/* A token id from the whole file or from the text part; -1 when neither has it. */
static int read_token(const struct reader *r, const char *key, int vocab, int *out) {
    int64_t id = -1;
    int code = json_get_int(r->raw, key, 0, -1, vocab - 1, &id, r->name, r->e);
    if (!code && id < 0) code = json_get_int(r->text, key, 0, -1, vocab - 1, &id, r->name, r->e);
    *out = (int)id;
    return code;
}

static int read_tokens(const struct reader *r, struct config *c) {
    int code = read_ends(r, r->raw, c->vocab, c->ends, &c->n_ends);
    if (!code && c->n_ends == 0) code = read_ends(r, r->text, c->vocab, c->ends, &c->n_ends);
    if (!code) code = read_token(r, "bos_token_id", c->vocab, &c->bos);
    if (!code) code = read_token(r, "pad_token_id", c->vocab, &c->pad);
    if (!code) code = read_token(r, "image_token_id", c->vocab, &c->image_token);
    if (!code) code = read_token(r, "video_token_id", c->vocab, &c->video_token);
    if (!code) code = read_token(r, "vision_start_token_id", c->vocab, &c->vision_start);
    if (!code) code = read_token(r, "vision_end_token_id", c->vocab, &c->vision_end);
    return code;
}

static const struct int_field shape_fields[] = {
    FIELD("hidden_size", hidden, 1, 1, 1 << 20),
    FIELD("num_hidden_layers", n_layers, 1, 1, CONFIG_LAYERS),
    FIELD("vocab_size", vocab, 1, 1, 1 << 24),
    FIELD("intermediate_size", intermediate, 0, 1, WIDTH_LIMIT),
    FIELD("num_attention_heads", n_heads, 1, 1, 1 << 16),
    FIELD("num_key_value_heads", n_kv_heads, 1, 1, 1 << 16),
    FIELD("head_dim", head_dim, 1, 2, 1 << 16),
    FIELD("num_experts", n_experts, 0, 0, 1 << 16),
    FIELD("mtp_num_hidden_layers", n_mtp_layers, 0, 0, CONFIG_LAYERS),
    FIELD("max_position_embeddings", max_positions, 0, 1, INT32_MAX),
};

static const struct int_field linear_fields[] = {
    FIELD("linear_num_key_heads", linear_k_heads, 1, 1, 1 << 16),
    FIELD("linear_num_value_heads", linear_v_heads, 1, 1, 1 << 16),
    FIELD("linear_key_head_dim", linear_k_dim, 1, 1, 1 << 16),
    FIELD("linear_value_head_dim", linear_v_dim, 1, 1, 1 << 16),
    FIELD("linear_conv_kernel_dim", conv_taps, 1, 1, 64),
};

static const struct int_field expert_fields[] = {
    FIELD("num_experts_per_tok", top_k, 1, 1, 1 << 16),
    FIELD("moe_intermediate_size", moe_intermediate, 1, 1, WIDTH_LIMIT),
    FIELD("shared_expert_intermediate_size", shared_intermediate, 0, 0, WIDTH_LIMIT),
};

#define READ_INTS(r, c, fields) read_ints(r, c, fields, (int)(sizeof fields / sizeof *fields))

static int read_flags(const struct reader *r, struct config *c) {
    c->norm_top_k = 1, c->rms_eps = 1e-6;
    int tied = 0;
    int code = json_get_number(r->text, "rms_norm_eps", 0, 0, 1, &c->rms_eps, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "attention_bias", 0, &c->attention_bias, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "norm_topk_prob", 0, &c->norm_top_k, r->name, r->e);
    if (!code) code = json_get_bool(r->raw, "tie_word_embeddings", 0, &tied, r->name, r->e);
    if (!code) code = json_get_bool(r->text, "tie_word_embeddings", 0, &c->tied, r->name, r->e);
    c->tied |= tied;
    return code;
}

int config_read(struct config *c, const json_t *raw, const char *name, struct weft_error *e) {
    *c = (struct config){.raw = raw, .text = raw};
    struct reader r = {raw, raw, name, e};
    if (!json_is_object(raw)) return error_set(e, WEFT_ERROR_INPUT, "%s: not a JSON object", name);
    const json_t *text = json_object_get(raw, "text_config"), *vision = json_object_get(raw, "vision_config");
    if (text && !json_is_null(text)) r.text = c->text = text;
    if (!json_is_object(c->text)) return error_set(e, WEFT_ERROR_INPUT, "%s: \"text_config\" is no object", name);
    if (json_is_object(vision)) c->vision = vision;
    int code = read_model_type(&r, c);
    if (!code) code = READ_INTS(&r, c, shape_fields);
    if (!code) code = read_layers(&r, c);
    if (!code && has_layer(c, LAYER_LINEAR)) code = READ_INTS(&r, c, linear_fields);
    if (!code && c->n_experts) code = READ_INTS(&r, c, expert_fields);
    if (!code && !c->n_experts && c->intermediate == 0)
        code = error_set(e, WEFT_ERROR_INPUT, "%s: \"intermediate_size\" is missing", name);
    if (!code && !c->n_experts && strstr(c->model_type, "moe"))
        code = error_set(e, WEFT_ERROR_INPUT, "%s: \"num_experts\" is missing", name);
    if (!code) code = read_flags(&r, c);
    if (!code) code = check_widths(&r, c);
    if (!code) code = read_rope(&r, c);
    if (!code) code = check_support(&r, c);
    return code ? code : read_tokens(&r, c);
}

/* A number of generation_config within its range; anything else counts as not given. */
static int generation_number(const json_t *o, const char *key, double min, double max, double *out) {
    const json_t *v = json_object_get(o, key);
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max)) return 0;
    *out = x;
    return 1;
}

void generation_config_read(struct generation_config *out, const json_t *raw, int vocab) {
    *out = (struct generation_config){.do_sample = -1};
    const json_t *sample = json_object_get(raw, "do_sample");
    if (json_is_boolean(sample)) out->do_sample = json_is_true(sample);
    double top_k = 0;
    out->has_temperature = generation_number(raw, "temperature", 0, 1000, &out->temperature);
    out->has_top_p = generation_number(raw, "top_p", 0, 1, &out->top_p);
    out->has_min_p = generation_number(raw, "min_p", 0, 1, &out->min_p);
    out->has_repetition_penalty = generation_number(raw, "repetition_penalty", 1e-6, 1e6, &out->repetition_penalty);
    out->has_presence_penalty = generation_number(raw, "presence_penalty", -1e6, 1e6, &out->presence_penalty);
    out->has_top_k = generation_number(raw, "top_k", 0, INT32_MAX, &top_k);
    out->top_k = (int)top_k;
    struct reader r = {raw, raw, "generation_config.json", NULL};
    if (read_ends(&r, raw, vocab, out->ends, &out->n_ends)) out->n_ends = 0;
}
