#define _GNU_SOURCE
/* Adapters that must be refused, each with a sentence that names what is wrong, and loading when memory runs out. */
#include "help_lora.h"

#include <math.h>
#include <unistd.h>

#include "help_small.h"

/* What is done to a good adapter before it is written. `recipe` is its number in lora_recipes. */
struct fault { const char *says; int recipe; void (*spoil)(struct toy *a); const char *config; };

#define LAYER "base_model.model.model.layers.0."
#define MLX_LAYER "language_model.model.layers.0."

static struct toy_tensor *named(struct toy *a, const char *name) { return toy_find(a, name); }
static void rename_to(struct toy *a, const char *from, const char *to) {
    snprintf(named(a, from)->name, sizeof a->t[0].name, "%s", to);
}
static void remove_named(struct toy *a, const char *name) {
    struct toy_tensor *t = named(a, name);
    mem_free(t->data);
    *t = a->t[--a->n];
}

static void without_a(struct toy *a) { remove_named(a, LAYER "mlp.up_proj.lora_A.weight"); }
static void without_b(struct toy *a) { remove_named(a, LAYER "mlp.up_proj.lora_B.weight"); }
static void other_layer(struct toy *a) {
    rename_to(a, LAYER "mlp.up_proj.lora_A.weight", "base_model.model.model.layers.7.mlp.up_proj.lora_A.weight");
}
static void wrong_kind(struct toy *a) { rename_to(a, LAYER "mlp.up_proj.lora_A.weight", LAYER "self_attn.q_proj.lora_A.weight"); }
static void vision(struct toy *a) {
    rename_to(a, LAYER "mlp.up_proj.lora_A.weight", "base_model.model.model.visual.blocks.0.mlp.fc1.lora_A.weight");
}
static void bias(struct toy *a) { rename_to(a, LAYER "mlp.up_proj.lora_B.weight", LAYER "mlp.up_proj.lora_B.bias"); }
static void twice(struct toy *a) { toy_add(a, LAYER "mlp.up_proj.lora_A.default.weight", 1, 3, 64, 0); }
static void too_wide(struct toy *a) { named(a, LAYER "mlp.up_proj.lora_A.weight")->shape[1] = 60; }
static void other_rank(struct toy *a) { named(a, LAYER "mlp.up_proj.lora_B.weight")->shape[1] = 2; }
static void flat(struct toy *a) { named(a, LAYER "mlp.up_proj.lora_A.weight")->n_dims = 1; }
static void rankless(struct toy *a) {
    named(a, LAYER "mlp.up_proj.lora_A.weight")->shape[0] = named(a, LAYER "mlp.up_proj.lora_B.weight")->shape[1] = 0;
}
static void infinite(struct toy *a) { named(a, LAYER "mlp.up_proj.lora_A.weight")->data[5] = INFINITY; }
static void not_a_number(struct toy *a) { named(a, "base_model.model.lm_head.lora_B.weight")->data[7] = NAN; }
static void replaced_too(struct toy *a) { toy_add(a, LAYER "mlp.up_proj.weight", 1, 96, 64, 0); }
static void other_base(struct toy *a) { toy_add(a, LAYER "mlp.up_proj.base_layer.weight", 1, 96, 64, 0); }
static void other_shape(struct toy *a) { toy_add(a, "base_model.model.model.norm.weight", 1, 63, 0, 0); }
static void turned_conv(struct toy *a) { toy_add(a, LAYER "linear_attn.conv1d.weight", 1, 4, 128, 0); }
static void grown(struct toy *a) {
    remove_named(a, "base_model.model.lm_head.lora_A.weight"), remove_named(a, "base_model.model.lm_head.lora_B.weight"),
        toy_add(a, "base_model.model.lm_head.weight", 1, 40, 64, 0);
}
static void linear_embedding(struct toy *a) {
    rename_to(a, "base_model.model.model.embed_tokens.lora_embedding_A", "base_model.model.model.embed_tokens.lora_A.weight"),
        rename_to(a, "base_model.model.model.embed_tokens.lora_embedding_B", "base_model.model.model.embed_tokens.lora_B.weight");
}
static void embedding_elsewhere(struct toy *a) {
    rename_to(a, LAYER "mlp.up_proj.lora_A.weight", LAYER "mlp.up_proj.lora_embedding_A");
}
static void without_magnitude(struct toy *a) { remove_named(a, LAYER "mlp.up_proj.lora_magnitude_vector"); }
static void short_magnitude(struct toy *a) { named(a, LAYER "mlp.up_proj.lora_magnitude_vector")->shape[0] = 95; }
static void embedding_magnitude(struct toy *a) {
    toy_add(a, "base_model.model.model.embed_tokens.lora_magnitude_vector", 1, 64, 0, 0);
}
static void zero(struct toy *a) {
    for (int i = 0; i < a->n; i++)
        if (strstr(a->t[i].name, "_B")) memset(a->t[i].data, 0, (size_t)toy_count(&a->t[i]) * sizeof(float));
}
static void nothing(struct toy *a) { while (a->n) mem_free(a->t[--a->n].data); }
static void turned(struct toy *a) {
    struct toy_tensor *t = named(a, MLX_LAYER "mlp.up_proj.lora_a");
    int64_t rows = t->shape[0];
    t->shape[0] = t->shape[1], t->shape[1] = rows;
}

static const struct fault faults[] = {
    {"\"model.layers.0.mlp.up_proj\" has no lora_A", 0, without_a, NULL},
    {"\"model.layers.0.mlp.up_proj\" has no lora_B", 0, without_b, NULL},
    {"is for layer 7, but the model has layers 0 to 1", 0, other_layer, NULL},
    {"is for \"layers.0.self_attn.q_proj\", which the model does not have", 0, wrong_kind, NULL},
    {"is for the vision tower", 0, vision, NULL},
    {"lora_B.bias\" is no part of a LoRA that is supported", 0, bias, NULL},
    {"lora_A.weight\" have the same place", 0, twice, NULL},
    {"has the shape [3, 60]; for \"layers.0.mlp.up_proj\" it is to be [rank, 64]", 0, too_wide, NULL},
    {"lora_B.weight\" has rank 2, but", 0, other_rank, NULL},
    {"has the shape [3]; for", 0, flat, NULL},
    {"a rank of 0", 0, rankless, NULL},
    {"lora_A.weight\" is not finite at element 5", 0, infinite, NULL},
    {"lm_head.lora_B.weight\" is not finite at element 7", 0, not_a_number, NULL},
    {"and has a LoRA as well", 0, replaced_too, NULL},
    {"base_layer.weight\" is not the base's \"layers.0.mlp.up_proj\"", 0, other_base, NULL},
    {"norm.weight\" has the shape [63]; for \"norm.weight\" it is to be [64]", 0, other_shape, NULL},
    {"has the shape [4, 128]; for \"layers.0.linear_attn.conv1d.weight\" it is to be [128, 1, 4]", 0, turned_conv, NULL},
    {"has the shape [40, 64], but \"lm_head\" is [32, 64]", 0, grown, NULL},
    {"is an embedding, but its tensors are those of a linear layer", 0, linear_embedding, NULL},
    {"is for an embedding, but its module is none", 0, embedding_elsewhere, NULL},
    {"has no magnitude, though", 2, without_magnitude, NULL},
    {"has the shape [95]; for \"layers.0.mlp.up_proj\" it is to be [96]", 2, short_magnitude, NULL},
    {"DoRA on embeddings and experts is not supported", 0, embedding_magnitude, NULL},
    {"the adapter changes nothing: every lora_B is zero", 1, zero, NULL},
    {"holds no tensors", 0, nothing, NULL},
    {"has the shape [5, 64]; for \"layers.0.mlp.up_proj\" it is to be [64, rank]", 3, turned, NULL},
    {"peft_type is LOKR, only LORA is supported", 0, NULL, "{\"peft_type\":\"LOKR\"}"},
    {"\"target_parameters\" is set", 0, NULL, "{\"peft_type\":\"LORA\",\"target_parameters\":[\"mlp.experts.gate_up_proj\"]}"},
    {"\"trainable_token_indices\" is set", 0, NULL,
     "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"embed_tokens\":[1]}}"},
    {"\"lora_bias\" is set", 0, NULL, "{\"peft_type\":\"LORA\",\"lora_bias\":true}"},
    {"\"init_lora_weights\" is \"pissa_niter_16\"", 0, NULL, "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"pissa_niter_16\"}"},
    {"the pattern \"layers.(\" is no regular expression", 0, NULL, "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"layers.(\":3}}"},
    {"\"alpha_pattern\" of \"up_proj\" is no number", 0, NULL, "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"up_proj\":\"3\"}}"},
    {"\"alpha_pattern\" is no object", 0, NULL, "{\"peft_type\":\"LORA\",\"alpha_pattern\":[3]}"},
    {"a pattern does not finish on", 0, NULL, "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"(?:(?:[a-z._0-9]+)+)+[XY]\":3}}"},
    {"lora_alpha", 0, NULL, "{\"peft_type\":\"LORA\",\"lora_alpha\":-1}"},
    {"adapter_config.json: no JSON object", 0, NULL, "[1]"},
    {"adapter_config.json", 0, NULL, "{\"peft_type\":"},
    {"fine_tune_type \"prefix\" is not supported", 3, NULL, "{\"fine_tune_type\":\"prefix\"}"},
    {"lora_parameters gives no scale", 3, NULL, "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":5}}"},
    {"no adapters.safetensors", 0, NULL, "{\"fine_tune_type\":\"lora\"}"},
};

static void open_base(struct toy *base, struct runner *r) {
    toy_base(base, 0, 0);
    runner_open(r, toy_write(base, "base", "model.safetensors", "config.json"), NULL, PRECISION_DEFAULT, 1);
}

static void each_fault_is_named(void **state) {
    (void)state;
    struct toy base, a;
    struct runner r;
    open_base(&base, &r);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct fault *f = &faults[i];
        struct lora_recipe recipe = lora_recipes[f->recipe];
        char name[32];
        snprintf(name, sizeof name, "fault-%zu", i);
        recipe.name = name;
        lora_make(&a, &recipe, &base);
        if (f->spoil) f->spoil(&a);
        if (f->config) snprintf(a.config, sizeof a.config, "%s", f->config);
        struct adapter *adapter = NULL;
        struct weft_error e = {0};
        int code = model_adapter_open(&adapter, r.model, lora_write(&recipe, &a), &e);
        if (code >= 0 || adapter || !strstr(e.message, f->says)) fail_msg("\"%s\": %d \"%s\"", f->says, code, e.message);
        toy_drop(&a);
    }
    toy_drop(&base);
    runner_close(&r);
}

static void folders_without_an_adapter_say_so(void **state) {
    (void)state;
    struct toy base, a = {.seed = 3, .config = "{\"peft_type\":\"LORA\"}"};
    struct runner r;
    struct adapter *adapter = NULL;
    struct weft_error e = {0};
    open_base(&base, &r);
    assert_int_equal(model_adapter_open(&adapter, r.model, help_temp("nowhere"), &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "no such folder"));
    assert_int_equal(model_adapter_open(&adapter, r.model, help_temp("base"), &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "adapter_config.json is missing"));
    const char *folder = toy_write(&a, "pickled", "other.safetensors", "adapter_config.json");
    help_write_text(folder, "adapter_model.bin", "x");
    assert_int_equal(model_adapter_open(&adapter, r.model, folder, &e), WEFT_ERROR_SUPPORT);
    assert_non_null(strstr(e.message, "a .bin file holds Python objects"));
    toy_drop(&base);
    runner_close(&r);
}

/* A file cut anywhere is refused or, past the last tensor, whole; nothing is read behind its end. */
static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    struct toy base, a;
    struct runner r;
    char path[4200];
    open_base(&base, &r);
    lora_make(&a, &lora_recipes[2], &base);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", lora_write(&lora_recipes[2], &a));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long whole = ftell(f);
    fclose(f);
    for (long n = whole - 1; n >= 0; n -= n > 200 ? 97 : 1) {
        struct adapter *adapter = NULL;
        struct weft_error e = {0};
        assert_int_equal(truncate(path, n), 0);
        if (model_adapter_open(&adapter, r.model, help_temp(lora_recipes[2].name), &e) != WEFT_ERROR_INPUT || adapter)
            fail_msg("%ld bytes", n);
        assert_true(e.message[0] != 0);
    }
    toy_drop(&a), toy_drop(&base);
    runner_close(&r);
}

static void copies_of_the_base_and_parts_that_do_nothing_are_left_out(void **state) {
    (void)state;
    struct toy base, a;
    struct runner r;
    open_base(&base, &r);
    lora_make(&a, &lora_recipes[0], &base);
    memcpy(toy_add(&a, LAYER "mlp.up_proj.base_layer.weight", 1, 96, 64, 0)->data,
           toy_weight(&base, "layers.0.mlp.up_proj")->data, 96 * 64 * 4);
    memcpy(toy_add(&a, "base_model.model.model.norm.weight", 1, 64, 0, 0)->data, toy_find(&base, "model.norm.weight")->data,
           64 * 4);
    memset(named(&a, LAYER "mlp.gate_proj.lora_B.weight")->data, 0, 96 * 3 * 4);
    struct adapter *adapter = lora_open(&r, lora_write(&lora_recipes[0], &a));
    struct buf text;
    buf_init(&text);
    adapter_report(adapter, &text);
    assert_string_equal(
        text.data,
        "peft: PEFT, rank 3, scale 2, 0.0 MiB\n"
        "  low rank: in_proj_qkv 1 of 1, in_proj_z 1 of 1, in_proj_b 1 of 1, in_proj_a 1 of 1, out_proj 1 of 1, gate_proj 1 of "
        "2, "
        "up_proj 2 of 2, down_proj 2 of 2, q_proj 1 of 1, k_proj 1 of 1, v_proj 1 of 1, o_proj 1 of 1, lm_head 1 of 1, "
        "embed_tokens 1 of 1\n"
        "  left out, since they change nothing: 1\n"
        "  copies of the base's weights, ignored: 1\n"
        "  replacements equal to the base, ignored: 1\n");
    buf_drop(&text);
    model_adapter_close(r.model, adapter);
    toy_drop(&a), toy_drop(&base);
    runner_close(&r);
}

static int open_and_sum(struct runner *r, struct adapter_sets *sets, const char *const *folders, struct weft_error *e) {
    struct adapter *a[2] = {0};
    struct adapter_set *s = NULL;
    int code = model_adapter_open(&a[0], r->model, folders[0], e);
    if (!code) code = model_adapter_open(&a[1], r->model, folders[1], e);
    if (!code) code = adapter_sets_get(sets, &s, (const struct adapter_use[]){{a[0], 1}, {a[1], 0.5f}}, 2, e);
    adapter_set_drop(s);
    model_adapter_close(r->model, a[1]), model_adapter_close(r->model, a[0]);
    return code;
}

static void loading_survives_every_failed_allocation(void **state) {
    (void)state;
    struct toy base, a;
    char folders[2][4200];
    struct runner first;
    open_base(&base, &first);
    runner_close(&first);
    for (int i = 0; i < 2; i++) {
        lora_make(&a, &lora_recipes[2 * i], &base);
        toy_add(&a, "base_model.model.model.layers.1.self_attn.q_norm.weight", 0.1f, 32, 0, 0);
        if (i) remove_named(&a, "base_model.model.model.layers.1.self_attn.q_norm.weight");
        snprintf(a.config + strlen(a.config) - 1, 64, ",\"alpha_pattern\":{\"nothing\":1}}");
        snprintf(folders[i], sizeof folders[i], "%s", lora_write(&lora_recipes[2 * i], &a));
        toy_drop(&a);
    }
    for (int sticky = 0; sticky < 2; sticky++) {
        struct runner r; /* a fresh one: the first adapter makes room in the model */
        struct adapter_sets sets;
        runner_open(&r, help_temp("base"), NULL, PRECISION_DEFAULT, 1);
        adapter_sets_init(&sets);
        int code = WEFT_ERROR_MEMORY;
        for (int n = 0; code; n++) {
            struct weft_error e = {0};
            assert_true(n < 5000);
            mem_fail_at(n, sticky);
            code = open_and_sum(&r, &sets, (const char *const[]){folders[0], folders[1]}, &e);
            mem_fail_at(-1, 0);
            if (code && code != WEFT_ERROR_MEMORY) fail_msg("allocation %d: %s", n, e.message);
        }
        adapter_sets_drop(&sets);
        runner_close(&r);
    }
    toy_drop(&base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(folders_without_an_adapter_say_so),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(copies_of_the_base_and_parts_that_do_nothing_are_left_out),
        cmocka_unit_test(loading_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
