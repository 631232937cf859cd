/* Adapters in steps with others: what a row gives depends on its own sequence and its own adapters alone. */
#include "help_lora.h"

#include <math.h>

#include "engine/inside.h"
#include "help_engine.h"
#include "help_small.h"

enum { LENGTH = 24, MOST_SETS = 8 };

/* What stands in for whole modules, of every kind, in bf16. */
static void make_saved(struct toy *a) {
    static const struct { const char *name; int64_t rows, cols; } all[] = {
        {"model.embed_tokens.weight", 32, 64}, {"lm_head.weight", 32, 64}, {"model.norm.weight", 64, 0},
        {"model.layers.1.self_attn.q_norm.weight", 32, 0}, {"model.layers.0.linear_attn.norm.weight", 32, 0},
        {"model.layers.0.linear_attn.dt_bias", 2, 0}, {"model.layers.0.input_layernorm.weight", 64, 0},
        {"model.layers.0.linear_attn.in_proj_z.weight", 64, 64}, {"model.layers.1.mlp.down_proj.weight", 64, 96}};
    *a = (struct toy){.seed = 41, .config = "{\"peft_type\":\"LORA\"}"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[160];
        snprintf(name, sizeof name, "base_model.model.%s", all[i].name);
        toy_add(a, name, 0.3f, all[i].rows, all[i].cols, 0)->dtype = DTYPE_BF16;
    }
}

struct stage {
    struct runner r;
    struct adapter_sets sets;
    struct adapter *adapters[4];
    struct adapter_set *set[MOST_SETS]; int n_sets;   /* set[0]: the base */
    float *alone[MOST_SETS];                          /* logits of its tokens, whole */
    int32_t tokens[MOST_SETS][LENGTH];
};

static void fill_alone(struct stage *s) {
    for (int i = 0; i < s->n_sets; i++) {
        for (int k = 0; k < LENGTH; k++) s->tokens[i][k] = (7 * i + 5 * k + k * k) % 32;
        s->alone[i] = lora_logits(&s->r, s->set[i], &(struct prompt){.tokens = s->tokens[i], .n = LENGTH});
        for (int k = 0; k < LENGTH * s->r.vocab; k++) assert_true(isfinite(s->alone[i][k]));
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(s->alone[i], s->alone[j], (size_t)(LENGTH * s->r.vocab) * sizeof(float));
    }
}

static void open_stage(struct stage *s, const char *isa, int n_threads) {
    struct toy base, a;
    *s = (struct stage){0};
    toy_base(&base, 0, 0);
    runner_open(&s->r, toy_write(&base, "base", "model.safetensors", "config.json"), isa, PRECISION_DEFAULT, n_threads);
    adapter_sets_init(&s->sets);
    static const int chosen[] = {0, 2, 3};
    for (int i = 0; i < 3; i++) {
        lora_make(&a, &lora_recipes[chosen[i]], &base);
        s->adapters[i] = lora_open(&s->r, lora_write(&lora_recipes[chosen[i]], &a));
        toy_drop(&a);
    }
    make_saved(&a);
    s->adapters[3] = lora_open(&s->r, toy_write(&a, "saved", "adapter_model.safetensors", "adapter_config.json"));
    toy_drop(&a), toy_drop(&base);
    const struct adapter_use u[4] = {{s->adapters[0], 1}, {s->adapters[1], 1}, {s->adapters[2], 0.5f}, {s->adapters[3], 1}};
    s->set[0] = NULL;
    for (int i = 0; i < 4; i++) s->set[1 + i] = lora_set(&s->sets, &u[i], 1);
    s->set[5] = lora_set(&s->sets, u, 3);
    s->set[6] = lora_set(&s->sets, (const struct adapter_use[]){u[0], u[3]}, 2);
    s->n_sets = 7;
}

static void close_stage(struct stage *s) {
    for (int i = 0; i < s->n_sets; i++) adapter_set_drop(s->set[i]), mem_free(s->alone[i]);
    for (int i = 0; i < 4; i++) model_adapter_close(s->r.model, s->adapters[i]);
    adapter_sets_drop(&s->sets);
    runner_close(&s->r);
}

/* Every sequence runs in the steps of all, cut at its own places; order[] tells who stands where. */
static void run_mixed(struct stage *s, const int *order, int n) {
    int at[MOST_SETS] = {0};
    struct sequence *seq[MOST_SETS];
    for (int i = 0; i < n; i++) seq[i] = runner_sequence(&s->r);
    for (int round = 0;; round++) {
        struct group g[MOST_SETS];
        int of[MOST_SETS], n_groups = 0;
        for (int i = 0; i < n; i++) {
            int rows = round == 0 ? 3 + 2 * i : round == 1 && i % 2 ? 4 : 1; /* prompts, then prompts beside single rows */
            if (rows > LENGTH - at[i]) rows = LENGTH - at[i];
            if (!rows) continue;
            of[n_groups] = i;
            g[n_groups++] = (struct group){.seq = seq[i],
                                           .n_rows = rows,
                                           .tokens = s->tokens[order[i]] + at[i],
                                           .n_logits = i == 2 && rows > 1 ? 1 : rows,
                                           .adapters = s->set[order[i]]};
        }
        if (!n_groups) break;
        struct batch b = {.groups = g, .n_groups = n_groups};
        runner_step(&s->r, &b);
        const float *row = b.logits;
        for (int k = 0; k < n_groups; k++) {
            int i = of[k], first = at[i] + g[k].n_rows - g[k].n_logits;
            size_t values = (size_t)(g[k].n_logits * s->r.vocab);
            if (memcmp(row, s->alone[order[i]] + first * s->r.vocab, values * sizeof *row))
                fail_msg("round %d, set %d", round, order[i]);
            row += values, at[i] += g[k].n_rows;
        }
    }
    for (int i = 0; i < n; i++) sequence_free(seq[i]);
}

static void base_and_adapter_rows_in_one_step_are_bitwise_those_of_each_alone(void **state) {
    (void)state;
    for (const char *const *isa = runner_isas(); *isa; isa++) {
        struct stage s;
        open_stage(&s, *isa, 2);
        fill_alone(&s);
        run_mixed(&s, (const int[]){0, 1, 2, 3, 4, 5, 6}, 7);
        run_mixed(&s, (const int[]){6, 0, 4, 0, 5, 2, 2}, 7);
        run_mixed(&s, (const int[]){1, 1, 0, 3, 6, 6}, 6);
        close_stage(&s);
    }
}

static void chunks_and_threads_do_not_show_under_adapters(void **state) {
    (void)state;
    static const int cuts[][3] = {{1, 1, 1}, {5, 1, 7}, {23, 1, 1}, {2, 19, 3}};
    struct stage s, one;
    open_stage(&s, NULL, 2), open_stage(&one, NULL, 1);
    fill_alone(&s), fill_alone(&one);
    size_t bytes = (size_t)(LENGTH * s.r.vocab) * sizeof(float);
    for (int i = 0; i < s.n_sets; i++) {
        assert_memory_equal(s.alone[i], one.alone[i], bytes);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            float *x =
                lora_logits(&s.r, s.set[i], &(struct prompt){.tokens = s.tokens[i], .n = LENGTH, .cuts = cuts[c], .n_cuts = 3});
            assert_memory_equal(x, s.alone[i], bytes);
            mem_free(x);
        }
    }
    close_stage(&s), close_stage(&one);
}

static void hidden_rows_and_the_head_apart_give_the_same_logits(void **state) {
    (void)state;
    struct stage s;
    struct weft_error e = {0};
    open_stage(&s, NULL, 2);
    fill_alone(&s);
    for (int i = 0; i < s.n_sets; i++) {
        struct group g = {
            .seq = runner_sequence(&s.r), .n_rows = LENGTH, .tokens = s.tokens[i], .want_hidden = 1, .adapters = s.set[i]};
        struct batch b = {.groups = &g, .n_groups = 1};
        runner_step(&s.r, &b);
        size_t values = (size_t)(LENGTH * s.r.hidden), bytes = (size_t)(LENGTH * s.r.vocab) * sizeof(float);
        float *hidden = mem_alloc(values * sizeof *hidden), *x = mem_alloc(bytes);
        memcpy(hidden, b.hidden, values * sizeof *hidden);
        if (model_head(s.r.model, s.set[i], hidden, LENGTH, x, &e)) fail_msg("%s", e.message);
        assert_memory_equal(x, s.alone[i], bytes);
        mem_free(hidden), mem_free(x), sequence_free(g.seq);
    }
    close_stage(&s);
}

/* ---- the bundled model, quantized, through the engine ---- */

/* Rank 2 on most projections of models/tiny, a gain, a gated norm and one matrix replaced. */
static const char *write_for_tiny(void) {
    struct runner r;
    const struct model_module *modules;
    struct toy a = {.seed = 51, .config = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4}"};
    runner_open(&r, help_source("models/tiny"), NULL, PRECISION_DEFAULT, 1);
    int n = model_modules(r.model, &modules);
    for (int i = 0; i < n && a.n + 4 < TOY_TENSORS; i++) {
        char name[256];
        if (strncmp(modules[i].name, "mtp", 3) == 0 || (strncmp(modules[i].name, "layers", 6) == 0 && i % 3 == 0)) continue;
        const char *prefix = strcmp(modules[i].name, "lm_head") ? "base_model.model.model." : "base_model.model.";
        snprintf(name, sizeof name, "%s%s.lora_A.weight", prefix, modules[i].name);
        toy_add(&a, name, 0.03f, 2, modules[i].n_in, 0);
        snprintf(name, sizeof name, "%s%s.lora_B.weight", prefix, modules[i].name);
        toy_add(&a, name, 0.03f, modules[i].n_out, 2, 0);
    }
    toy_add(&a, "base_model.model.model.layers.2.input_layernorm.weight", 0.1f, r.hidden, 0, 0);
    const struct weight *w = modules[0].weight;
    char name[256];
    snprintf(name, sizeof name, "base_model.model.model.%s.weight", modules[0].name);
    toy_add(&a, name, 0.05f, w->n_rows, w->n_cols, 0)->dtype = DTYPE_BF16;
    runner_close(&r);
    const char *folder = toy_write(&a, "for-tiny", "adapter_model.safetensors", "adapter_config.json");
    toy_drop(&a);
    return folder;
}

static void requests_with_and_without_an_adapter_share_steps_and_never_rows(void **state) {
    (void)state;
    static const char *const ask = "[{\"role\":\"user\",\"content\":\"Repeat after me: desert stone glass\"}]";
    struct weft_error e = {0};
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.parallel = 4});
    struct weft_request_options o[3];
    static struct kept plain, with, mixed[3], again[2];
    for (int i = 0; i < 3; i++) o[i] = kept_ask(ask), o[i].max_tokens = 24, o[i].without_prefix_cache = 1;
    kept_run(x, o, &plain, 1); /* before any adapter is loaded */
    struct weft_adapter *a;
    char *report;
    if (weft_adapter_open(&a, x, write_for_tiny(), &report, &e)) fail_msg("%s", e.message);
    assert_non_null(strstr(report, "PEFT, rank 2, scale 2"));
    assert_non_null(strstr(report, "replaced: in_proj_qkv 1 of 6, input_layernorm 1 of 8"));
    weft_free(report);
    const struct weft_adapter_use full = {a, 1}, halves[2] = {{a, 0.25f}, {a, 0.75f}};
    o[1].adapters = &full, o[1].n_adapters = 1;
    kept_run(x, &o[1], &with, 1);
    assert_memory_not_equal(with.logprobs, plain.logprobs, sizeof(float) * 4);
    o[2].adapters = halves, o[2].n_adapters = 2;
    kept_run(x, o, mixed, 3);
    kept_equal(&mixed[0], &plain), kept_equal(&mixed[1], &with), kept_equal(&mixed[2], &with);
    for (int i = 0; i < 2; i++) o[i].without_prefix_cache = 0;
    kept_run(x, o, again, 2);
    kept_equal(&again[0], &plain), kept_equal(&again[1], &with);
    assert_int_equal(again[0].result.n_cached, 0), assert_int_equal(again[1].result.n_cached, 0);
    kept_run(x, o, again, 2); /* whole prompts from the cache: the head runs on a row that is kept */
    kept_equal(&again[0], &plain), kept_equal(&again[1], &with);
    assert_int_equal(again[1].result.n_cached, again[1].result.n_prompt);
    weft_adapter_close(a);
    weft_engine_close(x);
}

static size_t budget_of(const struct weft_engine *x) {
    struct weft_engine_stats stats;
    weft_engine_stats(x, &stats);
    return stats.memory_bytes;
}

/* An engine whose budget leaves `bytes` for sequences and adapters. */
static struct weft_engine *small_engine(size_t bytes) {
    struct weft_model_info info;
    weft_model_info(kept_model(), &info);
    bytes += info.packed_bytes + info.mapped_bytes + info.workspace_bytes;
    return kept_engine(&(struct weft_engine_options){.memory_bytes = bytes});
}

static void the_memory_budget_counts_adapters(void **state) {
    (void)state;
    enum { ROWS = 3000 };
    static const int32_t prompt[4] = {40, 41, 42, 43};
    struct weft_error e = {0};
    struct weft_adapter *a, *b;
    const char *folder = write_for_tiny();
    struct weft_engine *x = small_engine((size_t)64 << 20);
    size_t all = budget_of(x);
    if (weft_adapter_open(&a, x, folder, NULL, &e)) fail_msg("%s", e.message);
    size_t first = all - budget_of(x);
    if (weft_adapter_open(&b, x, folder, NULL, &e)) fail_msg("%s", e.message);
    weft_adapter_close(b);
    weft_adapter_close(a);
    size_t least = budget_of(x); /* what steps need for adapters stays with the model */
    char *report;
    double mib;
    if (weft_adapter_open(&a, x, folder, &report, &e)) fail_msg("%s", e.message);
    size_t own = least - budget_of(x);
    assert_int_equal(sscanf(report, "for-tiny: PEFT, rank 2, scale 2, %lf MiB", &mib), 1);
    assert_true(mib > 0 && fabs((double)own / 1048576 - mib) <= 0.051);
    assert_true(least < all && first >= own);
    weft_free(report);
    weft_adapter_close(a);
    assert_int_equal(budget_of(x), least);
    size_t bytes = engine_request_bytes(x, ROWS);
    assert_true(own < bytes);
    weft_engine_close(x);

    x = small_engine(bytes); /* one such request, to the byte */
    struct weft_request_options o = kept_ask("");
    o.chat.messages = NULL, o.tokens = prompt, o.n_tokens = 4, o.max_tokens = ROWS - 4, o.ignore_eos = 1;
    static struct kept k = {.cancel_at = 8};
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.n, 8);
    if (weft_submit(NULL, x, &o, &e)) fail_msg("%s", e.message); /* waits when the adapter comes: refused, not left waiting */
    if (weft_adapter_open(&a, x, folder, NULL, &e)) fail_msg("%s", e.message);
    int more = 1, steps = 0;
    while (more > 0 && steps++ < 10) more = weft_engine_step(x, &e);
    assert_int_equal(more, 0);
    assert_int_equal(weft_submit(NULL, x, &o, &e), WEFT_ERROR_MEMORY);
    assert_non_null(strstr(e.message, "the memory budget leaves"));
    o.max_tokens = -1, o.adapters = &(struct weft_adapter_use){a, 1}, o.n_adapters = 1; /* as many as fit */
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.n, 8);
    weft_adapter_close(a);
    o.max_tokens = ROWS - 4, o.n_adapters = 0;
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.n, 8);
    weft_engine_close(x);
}

static void an_adapter_without_room_beside_sequences_is_refused_with_the_numbers(void **state) {
    (void)state;
    enum { ROWS = 3000 };
    struct weft_error e = {0};
    struct weft_adapter *a;
    struct weft_sequence *s;
    const char *folder = write_for_tiny();
    struct weft_engine *x = small_engine((size_t)64 << 20);
    size_t sequence = engine_sequence_bytes(x, ROWS);
    weft_engine_close(x);
    x = small_engine(sequence);
    if (weft_sequence_new(&s, x, ROWS, &e)) fail_msg("%s", e.message);
    assert_int_equal(weft_adapter_open(&a, x, folder, NULL, &e), WEFT_ERROR_MEMORY);
    assert_non_null(strstr(e.message, "the adapter needs"));
    assert_non_null(strstr(e.message, ", 0.0 MB of the memory budget are free"));
    assert_int_equal(budget_of(x), sequence);
    weft_sequence_free(s);
    if (weft_adapter_open(&a, x, folder, NULL, &e)) fail_msg("%s", e.message);
    weft_adapter_close(a);
    weft_engine_close(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_and_adapter_rows_in_one_step_are_bitwise_those_of_each_alone),
        cmocka_unit_test(chunks_and_threads_do_not_show_under_adapters),
        cmocka_unit_test(hidden_rows_and_the_head_apart_give_the_same_logits),
        cmocka_unit_test(requests_with_and_without_an_adapter_share_steps_and_never_rows),
        cmocka_unit_test(the_memory_budget_counts_adapters),
        cmocka_unit_test(an_adapter_without_room_beside_sequences_is_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
