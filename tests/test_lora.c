/* Adapters over toy models, against weights merged by hand in this file. */
#include "help_lora.h"

#include <math.h>

#include "help_small.h"

enum { N = 21 };
static const int32_t tokens[N] = {3, 17, 4, 4, 30, 11, 0, 9, 22, 5, 31, 8, 8, 13, 2, 27, 19, 6, 1, 14, 25};
static const struct prompt prompt = {.tokens = tokens, .n = N};

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

struct merging { const struct lora_recipe *r; struct toy *adapter, *base, *out; double weight; };

/* out += (g (W + s BA) - W), g = m / |rows| or 1 */
static void merge_linear(void *arg, const char *module) {
    struct merging *m = arg;
    int mlx = m->r->mlx, rank = m->r->rank;
    const struct toy_tensor *w = toy_weight(m->base, module);
    float *to = toy_weight(m->out, module)->data;
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

static void merge(struct toy *out, struct toy *base, const struct lora_recipe *r, struct toy *adapter, double weight) {
    struct merging m = {r, adapter, base, out, weight};
    lora_each_linear(r, merge_linear, &m);
    if (r->embedding) merge_embedding(&m);
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
        for (int i = 0; i < LORA_RECIPES; i++) {
            lora_make(&adapter, &lora_recipes[i], &base);
            toy_copy(&merged, &base);
            merge(&merged, &base, &lora_recipes[i], &adapter, 1);
            struct adapter *a = lora_open(&r, lora_write(&lora_recipes[i], &adapter));
            struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1);
            float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&merged, *isa);
            size_t n = (size_t)(N * r.vocab);
            double error = relative_error(x, want, n), change = relative_error(plain, want, n);
            if (!(error < 2e-5 && change > 0.1))
                fail_msg("%s on %s: error %g, change %g", lora_recipes[i].name, *isa, error, change);
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
    struct adapter_use uses[LORA_RECIPES], other[LORA_RECIPES + 1];
    toy_base(&base, 0, 0);
    toy_copy(&merged, &base);
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    for (int i = 0; i < LORA_RECIPES; i++) {
        lora_make(&adapter, &lora_recipes[i], &base);
        merge(&merged, &base, &lora_recipes[i], &adapter, weights[i]);
        uses[i] = (struct adapter_use){lora_open(&r, lora_write(&lora_recipes[i], &adapter)), (float)weights[i]};
        other[LORA_RECIPES - 1 - i] = uses[i];
        toy_drop(&adapter);
    }
    other[LORA_RECIPES - 1].weight = 0.125f; /* of uses[0], in two pieces */
    other[LORA_RECIPES] = (struct adapter_use){uses[0].adapter, 0.375f};
    struct adapter_set *s = lora_set(&sets, uses, LORA_RECIPES), *same = lora_set(&sets, other, LORA_RECIPES + 1);
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
    for (int i = 0; i < LORA_RECIPES; i++) model_adapter_close(r.model, (struct adapter *)uses[i].adapter);
    mem_free(x), mem_free(want), toy_drop(&base), toy_drop(&merged);
    adapter_sets_drop(&sets);
    runner_close(&r);
}

/* Each of these is stored in the adapter as PEFT keeps it, and in the other model in the base's place. */
static void replaced_modules_are_bitwise_those_of_a_model_that_holds_them(void **state) {
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight", "model.layers.1.self_attn.q_norm.weight",
        "model.layers.1.self_attn.k_norm.weight", "model.layers.0.linear_attn.norm.weight",
        "model.layers.0.linear_attn.conv1d.weight", "model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.dt_bias",
        "model.layers.0.linear_attn.in_proj_qkv.weight", "model.layers.0.linear_attn.out_proj.weight",
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
    struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1), *none;
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
    struct lora_recipe mlx = lora_recipes[3], peft = lora_recipes[0];
    mlx.head = peft.head = 0;
    for (int i = 0; i < 2; i++) {
        const struct lora_recipe *recipe = i ? &peft : &mlx;
        lora_make(&adapter, recipe, &base);
        toy_copy(&merged, &base);
        if (i) { /* the head keeps what the embedding was */
            const struct toy_tensor *was = toy_find(&base, "model.embed_tokens.weight");
            memcpy(toy_add(&merged, "lm_head.weight", 0, 32, 64, 0)->data, was->data, 32 * 64 * sizeof(float));
        }
        merge(&merged, &base, recipe, &adapter, 1);
        struct adapter *a = lora_open(&r, lora_write(recipe, &adapter));
        struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1);
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
                        w[(x * out + o) * in + k] +=
                            (float)(scale * (double)b[(x * out + o) * RANK + q] * (double)a[(x * RANK + q) * in + k]);
    }
    struct runner r;
    struct adapter_sets sets;
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 2);
    adapter_sets_init(&sets);
    struct adapter *a = lora_open(&r, toy_write(&adapter, "experts", "adapters.safetensors", "adapter_config.json"));
    struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1);
    float *x = lora_logits(&r, s, &prompt), *plain = runner_logits(&r, &prompt), *want = logits_of_toy(&merged, NULL);
    double error = relative_error(x, want, (size_t)(N * r.vocab)), change = relative_error(plain, want, (size_t)(N * r.vocab));
    printf("  experts: error %.1e, change %.2f\n", error, change);
    assert_true(error < 2e-5 && change > 0.05);
    /* rows without it stand before and behind, among the slots of the same experts */
    struct group g[3];
    for (int i = 0; i < 3; i++)
        g[i] = (struct group){.seq = runner_sequence(&r), .n_rows = N, .tokens = tokens, .n_logits = N,
                              .adapters = i == 1 ? s : NULL};
    struct batch b = {.groups = g, .n_groups = 3};
    runner_step(&r, &b);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(b.logits + i * N * r.vocab, i == 1 ? x : plain, (size_t)(N * r.vocab) * sizeof *x);
        sequence_free(g[i].seq);
    }
    mem_free(x), mem_free(plain), mem_free(want), toy_drop(&base), toy_drop(&merged), toy_drop(&adapter);
    adapter_set_drop(s), model_adapter_close(r.model, a), adapter_sets_drop(&sets);
    runner_close(&r);
}

/* MLX keeps gains with the 1 in them, and a tied head is the embedding. */
static void a_full_fine_tune_is_bitwise_a_model_that_holds_it(void **state) {
    (void)state;
    struct toy base, other, adapter = {.seed = 23, .config = "{\"fine_tune_type\":\"full\",\"lora_parameters\":null}"};
    toy_base(&base, 1, 0);
    toy_copy(&other, &base);
    static const struct { const char *name; int64_t a, b, c; } all[] = {
        {"model.embed_tokens.weight", 32, 64, 0}, {"model.layers.1.self_attn.q_proj.weight", 128, 64, 0},
        {"model.layers.0.linear_attn.conv1d.weight", 128, 4, 1}, {"model.layers.0.linear_attn.A_log", 2, 0, 0},
        {"model.layers.0.input_layernorm.weight", 64, 0, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[256];
        snprintf(name, sizeof name, "language_model.%s", all[i].name);
        struct toy_tensor *x = toy_add(&adapter, name, 0.3f, all[i].a, all[i].b, all[i].c), *to = toy_find(&other, all[i].name);
        int gain = strstr(name, "layernorm") != NULL;
        for (int64_t k = 0; k < toy_count(x); k++) {
            float v = floorf(x->data[k] * 256) / 256; /* so that 1 + v is exact */
            to->data[k] = v, x->data[k] = gain ? 1 + v : v;
        }
    }
    struct runner r;
    struct adapter_sets sets;
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    struct adapter *a = lora_open(&r, toy_write(&adapter, "full", "adapters.safetensors", "adapter_config.json"));
    struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1);
    float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&other, NULL);
    assert_memory_equal(x, want, (size_t)(N * r.vocab) * sizeof *x);
    mem_free(x), mem_free(want), toy_drop(&base), toy_drop(&other), toy_drop(&adapter);
    adapter_set_drop(s), model_adapter_close(r.model, a), adapter_sets_drop(&sets);
    runner_close(&r);
}

/* Scales that are not the config's plain one: the same tensors, read as another recipe says. */
static void patterns_and_a_trainers_record_give_the_scale(void **state) {
    (void)state;
    static const struct { int recipe; double scale; const char *config, *record; } all[] = {
        {1, 5,
         "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"alpha_pattern\":{\"nothing\":1,"
         "\"layers\\\\.[01]\\\\.(mlp|self_attn)\\\\.[a-z]+_proj\":20,"
         "\"linear_attn.(in_proj_[a-z]+|out_proj)\":20,\"out_proj\":7}}",
         NULL},
        {3, 0.5, "{\"lora_parameters\":{\"rank\":5,\"scale\":20.0}}", "{\"lora_parameters\":{\"scale\":0.5,\"rs_lora\":true}}"}};
    struct toy base, adapter, merged;
    struct runner r;
    struct adapter_sets sets;
    toy_base(&base, 0, 0);
    runner_open(&r, toy_write(&base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
    adapter_sets_init(&sets);
    for (int i = 0; i < 2; i++) {
        struct lora_recipe recipe = lora_recipes[all[i].recipe];
        recipe.name = i ? "record" : "patterns", recipe.scale = all[i].scale, recipe.config = all[i].config;
        lora_make(&adapter, &recipe, &base);
        toy_copy(&merged, &base);
        merge(&merged, &base, &recipe, &adapter, 1);
        if (all[i].record) help_write_text(lora_write(&recipe, &adapter), "optiq_lora_config.json", all[i].record);
        struct adapter *a = lora_open(&r, lora_write(&recipe, &adapter));
        struct adapter_set *s = lora_set(&sets, &(struct adapter_use){a, 1}, 1);
        float *x = lora_logits(&r, s, &prompt), *want = logits_of_toy(&merged, NULL);
        double error = relative_error(x, want, (size_t)(N * r.vocab));
        printf("  %s: error %.1e\n", recipe.name, error);
        assert_true(error < 2e-5);
        mem_free(x), mem_free(want), toy_drop(&adapter), toy_drop(&merged);
        adapter_set_drop(s), model_adapter_close(r.model, a);
    }
    toy_drop(&base);
    adapter_sets_drop(&sets);
    runner_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_gives_the_logits_of_merged_weights),
        cmocka_unit_test(several_adapters_add_up_with_their_weights_in_any_order),
        cmocka_unit_test(replaced_modules_are_bitwise_those_of_a_model_that_holds_them),
        cmocka_unit_test(a_full_fine_tune_is_bitwise_a_model_that_holds_it),
        cmocka_unit_test(patterns_and_a_trainers_record_give_the_scale),
        cmocka_unit_test(a_tied_head_follows_the_embedding_in_mlx_and_not_in_peft),
        cmocka_unit_test(experts_have_adapters_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
