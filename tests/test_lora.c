/* Adapters over toy models, against weights merged by hand in this file. */
#include "help_lora.h"

#include <math.h>

#include "help_small.h"

enum { N = 21 };
static const int32_t tokens[N] = {3, 17, 4, 4, 30, 11, 0, 9, 22, 5, 31, 8, 8, 13, 2, 27, 19, 6, 1, 14, 25};
static const struct prompt prompt = {.tokens = tokens, .n = N};

static const char *const layer0[] = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.in_proj_b",
                                     "linear_attn.out_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
static const char *const layer1[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                     "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};

/* What a test adapter is made of. */
struct recipe {
    const char *name;
    int mlx, dora, rank, embedding, head;
    uint64_t seed;
    double scale;      /* what the config must come to */
    const char *config;
};

static void each_linear(const struct recipe *r, void (*fn)(void *arg, const char *module), void *arg) {
    char module[128];
    for (size_t i = 0; i < sizeof layer0 / sizeof *layer0; i++) snprintf(module, sizeof module, "layers.0.%s", layer0[i]), fn(arg, module);
    for (size_t i = 0; i < sizeof layer1 / sizeof *layer1; i++) snprintf(module, sizeof module, "layers.1.%s", layer1[i]), fn(arg, module);
    if (r->head) fn(arg, "lm_head");
}

static struct toy_tensor *base_weight(struct toy *base, const char *module) {
    char name[160];
    snprintf(name, sizeof name, "%s%s.weight", strcmp(module, "lm_head") ? "model." : "", module);
    return toy_find(base, name);
}

struct making { const struct recipe *r; struct toy *base, *out; };

static void add(struct making *m, const char *module, const char *leaf, float scale, int64_t a, int64_t b) {
    char name[256];
    const char *prefix = strcmp(module, "lm_head") == 0 ? (m->r->mlx ? "language_model." : "base_model.model.")
                                                         : (m->r->mlx ? "language_model.model." : "base_model.model.model.");
    snprintf(name, sizeof name, "%s%s.%s", prefix, module, leaf);
    toy_add(m->out, name, scale, a, b, 0);
}

static void make_linear(void *arg, const char *module) {
    struct making *m = arg;
    const struct toy_tensor *w = base_weight(m->base, module);
    int64_t out = w->shape[0], in = w->shape[1], rank = m->r->rank;
    if (m->r->mlx) add(m, module, "lora_a", 0.3f, in, rank), add(m, module, "lora_b", 0.3f, rank, out);
    else add(m, module, "lora_A.weight", 0.3f, rank, in), add(m, module, "lora_B.weight", 0.3f, out, rank);
    if (!m->r->dora) return;
    add(m, module, m->r->mlx ? "m" : "lora_magnitude_vector", 1.0f, out, 0);
    struct toy_tensor *x = &m->out->t[m->out->n - 1];
    for (int64_t i = 0; i < out; i++) x->data[i] = 2.0f + x->data[i];
}

static void make(struct toy *out, const struct recipe *r, struct toy *base) {
    struct making m = {r, base, out};
    *out = (struct toy){.seed = r->seed};
    snprintf(out->config, sizeof out->config, "%s", r->config);
    each_linear(r, make_linear, &m);
    if (!r->embedding) return;
    if (r->mlx) add(&m, "embed_tokens", "lora_a", 0.3f, 32, r->rank), add(&m, "embed_tokens", "lora_b", 0.3f, r->rank, 64);
    else add(&m, "embed_tokens", "lora_embedding_A", 0.3f, r->rank, 32), add(&m, "embed_tokens", "lora_embedding_B", 0.3f, 64, r->rank);
}

/* The adapter's tensor of a module, element (i, j) of A [rank][in] or B [out][rank]. */
static float *find_part(struct toy *a, const char *module, const char *leaf) {
    for (int i = 0; i < a->n; i++) {
        char end[256];
        snprintf(end, sizeof end, ".%s.%s", module, leaf);
        size_t n = strlen(a->t[i].name), k = strlen(end);
        if (n > k && strcmp(a->t[i].name + n - k, end) == 0) return a->t[i].data;
    }
    return NULL;
}

struct merging { const struct recipe *r; struct toy *adapter, *base, *out; double weight; };

/* out += (g (W + s BA) - W), g = m / |rows| or 1 */
static void merge_linear(void *arg, const char *module) {
    struct merging *m = arg;
    int mlx = m->r->mlx, rank = m->r->rank;
    const struct toy_tensor *w = base_weight(m->base, module);
    float *to = base_weight(m->out, module)->data;
    int64_t out = w->shape[0], in = w->shape[1];
    const float *a = find_part(m->adapter, module, mlx ? "lora_a" : "lora_A.weight");
    const float *b = find_part(m->adapter, module, mlx ? "lora_b" : "lora_B.weight");
    const float *magnitude = m->r->dora ? find_part(m->adapter, module, mlx ? "m" : "lora_magnitude_vector") : NULL;
    double *row = mem_alloc((size_t)in * sizeof *row), s = m->r->scale * m->weight;
    for (int64_t o = 0; o < out; o++) {
        double square = 0;
        for (int64_t i = 0; i < in; i++) {
            double d = 0;
            for (int k = 0; k < rank; k++)
                d += (double)(mlx ? b[k * out + o] : b[o * rank + k]) * (double)(mlx ? a[i * rank + k] : a[k * in + i]);
            row[i] = (double)w->data[o * in + i] + s * d;
            square += row[i] * row[i];
        }
        double g = magnitude ? (double)magnitude[o] / sqrt(square) : 1;
        for (int64_t i = 0; i < in; i++) to[o * in + i] += (float)(g * row[i] - (double)w->data[o * in + i]);
    }
    mem_free(row);
}

static void merge_embedding(const struct merging *m) {
    int mlx = m->r->mlx, rank = m->r->rank;
    const float *a = find_part(m->adapter, "embed_tokens", mlx ? "lora_a" : "lora_embedding_A");
    const float *b = find_part(m->adapter, "embed_tokens", mlx ? "lora_b" : "lora_embedding_B");
    float *to = toy_find(m->out, "model.embed_tokens.weight")->data;
    for (int t = 0; t < 32; t++)
        for (int i = 0; i < 64; i++)
            for (int k = 0; k < rank; k++)
                to[t * 64 + i] += (float)(m->r->scale * m->weight) * (mlx ? b[k * 64 + i] : b[i * rank + k]) *
                                  (mlx ? a[t * rank + k] : a[k * 32 + t]);
}

static void merge(struct toy *out, struct toy *base, const struct recipe *r, struct toy *adapter, double weight) {
    struct merging m = {r, adapter, base, out, weight};
    each_linear(r, merge_linear, &m);
    if (r->embedding) merge_embedding(&m);
}

static const char *folder_of(const struct recipe *r, const struct toy *a) {
    return toy_write(a, r->name, r->mlx ? "adapters.safetensors" : "adapter_model.safetensors", "adapter_config.json");
}

static const struct recipe recipes[] = {
    {"peft", 0, 0, 3, 1, 1, 11, 2.0, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}"},
    {"peft-rslora", 0, 0, 4, 0, 0, 12, 3.0, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"use_rslora\":true}"},
    {"peft-dora", 0, 1, 2, 0, 1, 13, 1.5, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":3,\"use_dora\":true}"},
    {"mlx", 1, 0, 5, 1, 1, 14, 1.25, "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":5,\"scale\":1.25}}"},
    {"mlx-dora", 1, 1, 3, 0, 0, 15, 0.75, "{\"fine_tune_type\":\"dora\",\"lora_parameters\":{\"rank\":3,\"scale\":0.75}}"},
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

static struct adapter_set *get_set(struct adapter_sets *sets, const struct adapter_use *uses, int n) {
    struct weft_error e = {0};
    struct adapter_set *s = NULL;
    if (adapter_sets_get(sets, &s, uses, n, &e)) fail_msg("%s", e.message);
    assert_non_null(s);
    return s;
}

static float *logits_of_toy(const struct toy *t, const char *isa) {
    struct runner r;
    runner_open(&r, toy_write(t, "merged", "model.safetensors", "config.json"), isa, PRECISION_DEFAULT, 1);
    float *x = runner_logits(&r, &prompt);
    runner_close(&r);
    return x;
}

static void an_adapter_gives_the_logits_of_merged_weights(void **state) {
    (void)state;
    struct toy base, adapter, merged;
    toy_base(&base, 0, 0);
    for (const char *const *isa = runner_isas(); *isa; isa++) {
        struct runner r;
        struct adapter_sets sets;
        runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), *isa, PRECISION_DEFAULT, 1);
        adapter_sets_init(&sets);
        float *plain = runner_logits(&r, &prompt);
        for (int i = 0; i < N_RECIPES; i++) {
            make(&adapter, &recipes[i], &base);
            toy_copy(&merged, &base);
            merge(&merged, &base, &recipes[i], &adapter, 1);
            struct adapter *a = lora_open(&r, folder_of(&recipes[i], &adapter));
            struct adapter_set *s = get_set(&sets, &(struct adapter_use){a, 1}, 1);
            float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&merged, *isa);
            size_t n = (size_t)(N * r.vocab);
            double error = relative_error(x, want, n), change = relative_error(plain, want, n);
            if (!(error < 2e-5 && change > 0.1)) fail_msg("%s on %s: error %g, change %g", recipes[i].name, *isa, error, change);
            mem_free(x), mem_free(want), toy_drop(&adapter), toy_drop(&merged);
            adapter_set_drop(s), model_adapter_close(r.model, a);
        }
        mem_free(plain);
        adapter_sets_drop(&sets);
        runner_close(&r);
    }
    toy_drop(&base);
}

static void several_adapters_add_up_with_their_weights_in_any_order(void **state) {
    (void)state;
    static const double weights[] = {0.5, 1, -0.75, 2, 0.25};
    struct toy base, adapter, merged;
    struct runner r;
    struct adapter_sets sets;
    struct adapter_use uses[N_RECIPES], other[N_RECIPES + 1];
    toy_base(&base, 0, 0);
    toy_copy(&merged, &base);
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    for (int i = 0; i < N_RECIPES; i++) {
        make(&adapter, &recipes[i], &base);
        merge(&merged, &base, &recipes[i], &adapter, weights[i]);
        uses[i] = (struct adapter_use){lora_open(&r, folder_of(&recipes[i], &adapter)), (float)weights[i]};
        other[N_RECIPES - 1 - i] = uses[i];
        toy_drop(&adapter);
    }
    other[N_RECIPES - 1].weight = 0.125f; /* of uses[0], in two pieces */
    other[N_RECIPES] = (struct adapter_use){uses[0].adapter, 0.375f};
    struct adapter_set *s = get_set(&sets, uses, N_RECIPES), *same = get_set(&sets, other, N_RECIPES + 1);
    assert_ptr_equal(s, same);
    float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&merged, NULL);
    double error = relative_error(x, want, (size_t)(N * r.vocab));
    printf("  five adapters: error %.1e\n", error);
    assert_true(error < 2e-5);
    adapter_set_drop(same), adapter_set_drop(s);
    struct adapter_set *none = s;
    struct weft_error e = {0};
    uses[0].weight = 0;
    assert_int_equal(adapter_sets_get(&sets, &none, uses, 1, &e), 0);
    assert_null(none);
    uses[0].weight = NAN;
    assert_int_equal(adapter_sets_get(&sets, &none, uses, 1, &e), WEFT_ERROR_INPUT);
    for (int i = 0; i < N_RECIPES; i++) model_adapter_close(r.model, (struct adapter *)uses[i].adapter);
    mem_free(x), mem_free(want), toy_drop(&base), toy_drop(&merged);
    adapter_sets_drop(&sets);
    runner_close(&r);
}

/* Each of these is stored in the adapter as PEFT keeps it, and in the other model in the base's place. */
static void replaced_modules_are_bitwise_those_of_a_model_that_holds_them(void **state) {
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight",
        "model.layers.0.linear_attn.norm.weight", "model.layers.0.linear_attn.conv1d.weight", "model.layers.0.linear_attn.A_log",
        "model.layers.0.linear_attn.dt_bias", "model.layers.0.linear_attn.in_proj_qkv.weight", "model.layers.0.linear_attn.out_proj.weight",
        "model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.down_proj.weight"};
    struct toy base, other, adapter = {.seed = 21, .config = "{\"peft_type\":\"LORA\"}"};
    toy_base(&base, 0, 0);
    toy_copy(&other, &base);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[256];
        struct toy_tensor *to = toy_find(&other, names[i]);
        snprintf(name, sizeof name, "base_model.model.%s", names[i]);
        struct toy_tensor *x = toy_add(&adapter, name, 0.3f, to->shape[0], to->shape[1], to->shape[2]);
        memcpy(to->data, x->data, (size_t)toy_count(x) * sizeof(float));
    }
    struct runner r;
    struct adapter_sets sets;
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    struct adapter *a = lora_open(&r, toy_write(&adapter, "saved", "adapter_model.safetensors", "adapter_config.json"));
    struct adapter_set *s = get_set(&sets, &(struct adapter_use){a, 1}, 1), *none;
    float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&other, NULL);
    assert_memory_equal(x, want, (size_t)(N * r.vocab) * sizeof *x);
    struct weft_error e = {0};
    assert_int_equal(adapter_sets_get(&sets, &none, &(struct adapter_use){a, 0.5f}, 1, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "its weight can only be 1"));
    mem_free(x), mem_free(want), toy_drop(&base), toy_drop(&other), toy_drop(&adapter);
    adapter_set_drop(s), model_adapter_close(r.model, a), adapter_sets_drop(&sets);
    runner_close(&r);
}

static void a_tied_head_follows_the_embedding_in_mlx_and_not_in_peft(void **state) {
    (void)state;
    struct toy base, adapter, merged;
    struct runner r;
    struct adapter_sets sets;
    toy_base(&base, 1, 0);
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    struct recipe mlx = recipes[3], peft = recipes[0];
    mlx.head = peft.head = 0;
    for (int i = 0; i < 2; i++) {
        const struct recipe *recipe = i ? &peft : &mlx;
        make(&adapter, recipe, &base);
        toy_copy(&merged, &base);
        if (i) { /* the head keeps what the embedding was */
            const struct toy_tensor *was = toy_find(&base, "model.embed_tokens.weight");
            memcpy(toy_add(&merged, "lm_head.weight", 0, 32, 64, 0)->data, was->data, 32 * 64 * sizeof(float));
        }
        merge(&merged, &base, recipe, &adapter, 1);
        struct adapter *a = lora_open(&r, folder_of(recipe, &adapter));
        struct adapter_set *s = get_set(&sets, &(struct adapter_use){a, 1}, 1);
        float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&merged, NULL);
        double error = relative_error(x, want, (size_t)(N * r.vocab));
        printf("  tied, %s: error %.1e\n", recipe->name, error);
        assert_true(error < 2e-5);
        mem_free(x), mem_free(want), toy_drop(&adapter), toy_drop(&merged);
        adapter_set_drop(s), model_adapter_close(r.model, a);
    }
    toy_drop(&base);
    adapter_sets_drop(&sets);
    runner_close(&r);
}

/* Stacks of experts: lora_a [E, rank, in], lora_b [E, out, rank]; router and shared expert like any matrix. */
static void experts_have_adapters_of_their_own(void **state) {
    (void)state;
    enum { E = 4, RANK = 2 };
    static const double scale = 1.5;
    static const struct { const char *name; int out, in; } all[] = {
        {"switch_mlp.gate_proj", 32, 64}, {"switch_mlp.up_proj", 32, 64}, {"switch_mlp.down_proj", 64, 32}};
    struct toy base, merged, adapter = {.seed = 31, .config = "{\"lora_parameters\":{\"scale\":1.5}}"};
    toy_base(&base, 1, 1);
    toy_copy(&merged, &base);
    for (int i = 0; i < 3; i++) {
        char name[160];
        int out = all[i].out, in = all[i].in;
        snprintf(name, sizeof name, "model.layers.1.mlp.%s.lora_a", all[i].name);
        const float *a = toy_add(&adapter, name, 0.4f, E, RANK, in)->data;
        snprintf(name, sizeof name, "model.layers.1.mlp.%s.lora_b", all[i].name);
        const float *b = toy_add(&adapter, name, 0.4f, E, out, RANK)->data;
        snprintf(name, sizeof name, "model.layers.1.mlp.%s.weight", all[i].name);
        float *w = toy_find(&merged, name)->data;
        for (int x = 0; x < E; x++)
            for (int o = 0; o < out; o++)
                for (int k = 0; k < in; k++)
                    for (int q = 0; q < RANK; q++)
                        w[(x * out + o) * in + k] += (float)(scale * (double)b[(x * out + o) * RANK + q] * (double)a[(x * RANK + q) * in + k]);
    }
    struct runner r;
    struct adapter_sets sets;
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 2);
    adapter_sets_init(&sets);
    struct adapter *a = lora_open(&r, toy_write(&adapter, "experts", "adapters.safetensors", "adapter_config.json"));
    struct adapter_set *s = get_set(&sets, &(struct adapter_use){a, 1}, 1);
    float *x = lora_logits(&r, s, &prompt), *plain = runner_logits(&r, &prompt), *want = logits_of_toy(&merged, NULL);
    double error = relative_error(x, want, (size_t)(N * r.vocab)), change = relative_error(plain, want, (size_t)(N * r.vocab));
    printf("  experts: error %.1e, change %.2f\n", error, change);
    assert_true(error < 2e-5 && change > 0.05);
    mem_free(x), mem_free(plain), mem_free(want), toy_drop(&base), toy_drop(&merged), toy_drop(&adapter);
    adapter_set_drop(s), model_adapter_close(r.model, a), adapter_sets_drop(&sets);
    runner_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_gives_the_logits_of_merged_weights),
        cmocka_unit_test(several_adapters_add_up_with_their_weights_in_any_order),
        cmocka_unit_test(replaced_modules_are_bitwise_those_of_a_model_that_holds_them),
        cmocka_unit_test(a_tied_head_follows_the_embedding_in_mlx_and_not_in_peft),
        cmocka_unit_test(experts_have_adapters_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
