/* Adapters against another implementation's numbers, over checkpoints beside the repository. */
#include "help_lora.h"

#include <math.h>

#include "base/json.h"
#include "help_small.h"

static struct safetensors *open_file(const char *path) {
    struct weft_error e = {0};
    struct safetensors *s;
    if (safetensors_open(&s, path, &e)) fail_msg("%s", e.message);
    return s;
}

static json_t *read_json(const char *path) {
    struct weft_error e = {0};
    json_t *o;
    if (json_read_file(&o, path, 16 << 20, &e)) fail_msg("%s", e.message);
    return o;
}

/* The number under these keys, of which the last may be NULL. */
static double number_at(const json_t *o, const char *a, const char *b, const char *c, const char *d) {
    o = json_object_get(json_object_get(json_object_get(o, a), b), c);
    if (d) o = json_object_get(o, d);
    assert_true(json_is_number(o));
    return json_number_value(o);
}

/* The checkpoint with every float widened to F32, which runs in fp32 throughout. */
static const char *widened(const char *folder, const char *name) {
    static struct tensor_spec specs[1024];
    static const struct tensor *from[1024];
    struct safetensors *shards[8];
    struct weft_error e = {0};
    struct safetensors_writer *w;
    char path[4200];
    int n = 0, n_shards = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "rb");
    int whole = f != NULL;
    if (f) fclose(f);
    for (int i = 1; i <= (whole ? 1 : 3); i++) {
        if (!whole) snprintf(path, sizeof path, "%s/model-%05d-of-00003.safetensors", folder, i);
        struct safetensors *s = shards[n_shards++] = open_file(path);
        for (int k = 0; k < safetensors_count(s); k++, n++) {
            const struct tensor *t = from[n] = safetensors_at(s, k);
            specs[n] = (struct tensor_spec){t->name, DTYPE_F32, t->n_dims, {0}};
            memcpy(specs[n].shape, t->shape, sizeof specs[n].shape);
        }
    }
    static char where[4100];
    struct toy empty = {0};
    snprintf(where, sizeof where, "%s", toy_write(&empty, name, "unused.safetensors", "unused.json"));
    snprintf(path, sizeof path, "%s/model.safetensors", where);
    if (safetensors_open_writer(&w, path, specs, n, NULL, 0, &e)) fail_msg("%s", e.message);
    for (int i = 0; i < n; i++) {
        int64_t count = tensor_elements(from[i]);
        float *x = mem_alloc((size_t)count * sizeof *x);
        tensor_to_floats(from[i], 0, count, x);
        assert_int_equal(safetensors_write(w, x, (size_t)count * sizeof *x, &e), 0);
        mem_free(x);
    }
    if (safetensors_close_writer(w, 1, &e)) fail_msg("%s", e.message);
    for (int i = 0; i < n_shards; i++) safetensors_close(shards[i]);
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = read_json(path);
    char *text = json_dumps(config, 0);
    help_write_text(where, "config.json", text);
    free(text), json_decref(config);
    return where;
}

static struct adapter_set *one(struct adapter_sets *sets, const struct adapter *a, float weight) {
    struct weft_error e = {0};
    struct adapter_set *s;
    if (adapter_sets_get(sets, &s, &(struct adapter_use){a, weight}, 1, &e)) fail_msg("%s", e.message);
    return s;
}

static const char *const micro[] = {
    "all-linear", "regex-targets", "patterns", "rslora", "rslora-patterns", "dora", "layers-1-3", "saved-norms", "vl-lists",
    "vl-saved-embeddings", "vl-embedding-lora", "spelled-default", "vl-causal-names"};

static void check_micro(struct runner *r, const char *name, int f32) {
    char path[256];
    struct adapter_sets sets;
    snprintf(path, sizeof path, "goldens/lora/%s.json", name);
    json_t *notes = read_json(help_shared(path));
    const char *golden = json_string_value(json_object_get(notes, "golden"));
    assert_non_null(golden);
    snprintf(path, sizeof path, "goldens/lora/%s", golden);
    struct safetensors *s = open_file(help_shared(path));
    strcpy(strrchr(path, '.'), ".json"); /* another spelling's noise is that of the first */
    json_decref(notes);
    notes = read_json(help_shared(path));
    snprintf(path, sizeof path, "checkpoints/micro-lora/%s", name);
    struct adapter *a = lora_open(r, help_shared(path));
    adapter_sets_init(&sets);
    struct adapter_set *set = one(&sets, a, 1);
    const char *const lengths[] = {"17", "130"};
    for (int i = 0; i < 2; i++) {
        char key[64];
        size_t n, count;
        snprintf(key, sizeof key, "prompt.%s", lengths[i]);
        int32_t *tokens = golden_ints(s, key, &n);
        snprintf(key, sizeof key, "logits.%s.f32", lengths[i]);
        float *want = golden_floats(s, key, &count), *x = lora_logits(r, set, &(struct prompt){.tokens = tokens, .n = (int)n});
        snprintf(key, sizeof key, "rows.%s", lengths[i]);
        size_t n_rows = n, width = (size_t)r->vocab * sizeof *x;
        int32_t *rows = golden_ints(s, key, &n_rows);
        for (size_t k = 0; rows && k < n_rows; k++)
            memmove(x + k * (size_t)r->vocab, x + (size_t)rows[k] * (size_t)r->vocab, width);
        assert_int_equal(count, n_rows * (size_t)r->vocab);
        double error = relative_error(x, want, count), bar = f32 ? 2e-5 : number_at(notes, lengths[i], "bf16", "rel", NULL);
        printf("  %-20s prompt %3s  error %.2e  bar %.2e\n", name, lengths[i], error, bar);
        if (!(error <= bar)) fail_msg("%s: error %g above %g", name, error, bar);
        mem_free(tokens), mem_free(want), mem_free(x), mem_free(rows);
    }
    adapter_set_drop(set), model_adapter_close(r->model, a), adapter_sets_drop(&sets);
    json_decref(notes), safetensors_close(s);
}

static void micro_adapters_give_the_reference_logits(void **state) {
    (void)state;
    if (!help_shared("goldens/lora/dora.json")) skip();
    for (int vl = 0; vl < 2; vl++)
        for (int f32 = 0; f32 < 2; f32++) {
            const char *folder = help_shared(vl ? "checkpoints/micro/vl-mtp" : "checkpoints/micro/text-tied");
            struct runner r;
            runner_open(&r, f32 ? widened(folder, vl ? "vl-f32" : "text-f32") : folder, NULL, PRECISION_DEFAULT, 1);
            for (size_t i = 0; i < sizeof micro / sizeof *micro; i++)
                if ((strncmp(micro[i], "vl-", 3) == 0) == vl) check_micro(&r, micro[i], f32);
            runner_close(&r);
        }
}

static void bad_adapters_are_refused_with_what_is_wrong(void **state) {
    (void)state;
    static const struct { const char *name, *says; } bad[] = {
        {"bad-layer", "is for layer 9, but the model has layers 0 to 3"},
        {"bad-missing-b", "\"model.layers.1.mlp.up_proj\" has no lora_B"},
        {"bad-nan", "layers.0.mlp.up_proj.lora_B.weight\" is not finite"},
        {"bad-other-model", "has the shape [2, 96]; for \"layers.0.mlp.up_proj\" it is to be [rank, 128]"},
        {"bad-peft-type", "peft_type is LOHA"},
        {"bad-rank", "layers.0.mlp.up_proj.lora_B.weight\" has rank 3, but"},
        {"bad-shape", "has the shape [2, 136]; for \"layers.3.self_attn.q_proj\" it is to be [rank, 128]"},
        {"bad-truncated", "truncated"},
        {"bad-unknown-target", "is for \"layers.2.linear_attn.in_proj_w\", which the model does not have"},
        {"zero-b", "changes nothing: every lora_B is zero"}};
    struct runner r;
    if (!help_shared("checkpoints/micro-lora/bad-rank")) skip();
    runner_open(&r, help_shared("checkpoints/micro/text-tied"), NULL, PRECISION_DEFAULT, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        struct adapter *a = NULL;
        struct weft_error e = {0};
        snprintf(path, sizeof path, "checkpoints/micro-lora/%s", bad[i].name);
        int code = model_adapter_open(&a, r.model, help_shared(path), &e);
        if (code >= 0 || a || !strstr(e.message, bad[i].says)) fail_msg("%s: %d \"%s\"", bad[i].name, code, e.message);
    }
    runner_close(&r);
}

/* ---- the trained ones ---- */

enum { SHOUT, SHORT, MLX, N_ADAPTERS, BASE = 0, N_VARIANTS = 5 };
static const char *const variants[N_VARIANTS] = {"base", "shout", "short", "stacked", "shout@0.5"};

struct trained { struct runner r; struct adapter_sets sets; struct adapter *a[N_ADAPTERS]; struct adapter_set *set[N_VARIANTS]; };

static void open_trained(struct trained *t, const char *folder, enum precision precision) {
    static const char *const paths[N_ADAPTERS] = {"checkpoints/tiny-lora/shout", "checkpoints/tiny-lora/short",
                                                  "checkpoints/tiny-lora/shout-mlx"};
    struct weft_error e = {0};
    runner_open(&t->r, folder, NULL, precision, 2);
    adapter_sets_init(&t->sets);
    for (int i = 0; i < N_ADAPTERS; i++) t->a[i] = lora_open(&t->r, help_shared(paths[i]));
    const struct adapter_use both[2] = {{t->a[SHOUT], 1}, {t->a[SHORT], 1}};
    t->set[0] = NULL, t->set[1] = one(&t->sets, t->a[SHOUT], 1), t->set[2] = one(&t->sets, t->a[SHORT], 1);
    if (adapter_sets_get(&t->sets, &t->set[3], both, 2, &e)) fail_msg("%s", e.message);
    t->set[4] = one(&t->sets, t->a[SHOUT], 0.5f);
}

static void close_trained(struct trained *t) {
    for (int i = 0; i < N_VARIANTS; i++) adapter_set_drop(t->set[i]);
    for (int i = 0; i < N_ADAPTERS; i++) model_adapter_close(t->r.model, t->a[i]);
    adapter_sets_drop(&t->sets);
    runner_close(&t->r);
}

/* Relative error over the stored rows and, at every position, the stored columns. */
static double variant_error(struct trained *t, const struct adapter_set *set, const struct safetensors *s, const char *variant,
                            const char *length) {
    char key[64];
    size_t n, n_rows, n_cols, count, vocab = (size_t)t->r.vocab;
    snprintf(key, sizeof key, "prompt.%s", length);
    int32_t *tokens = golden_ints(s, key, &n);
    float *x = lora_logits(&t->r, set, &(struct prompt){.tokens = tokens, .n = (int)n});
    snprintf(key, sizeof key, "rows.%s", length);
    int32_t *rows = golden_ints(s, key, &n_rows), *cols = golden_ints(s, "cols", &n_cols);
    snprintf(key, sizeof key, "%s.logits.%s.f32", variant, length);
    float *whole = golden_floats(s, key, &count), *have = mem_new(n * n_cols + n_rows * vocab, sizeof *have);
    for (size_t i = 0; i < n_rows; i++) memcpy(have + i * vocab, x + (size_t)rows[i] * vocab, vocab * sizeof *x);
    double error = relative_error(have, whole, count);
    mem_free(whole);
    snprintf(key, sizeof key, "%s.cols.%s.f32", variant, length);
    float *some = golden_floats(s, key, &count);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < n_cols; c++) have[i * n_cols + c] = x[i * vocab + (size_t)cols[c]];
    error = fmax(error, relative_error(have, some, count));
    mem_free(tokens), mem_free(x), mem_free(rows), mem_free(cols), mem_free(some), mem_free(have);
    return error;
}

static void trained_adapters_alone_stacked_and_at_half_weight_give_the_reference_logits(void **state) {
    (void)state;
    static const char *const lengths[] = {"17", "130"};
    if (!help_shared("goldens/lora/tiny.json")) skip();
    json_t *notes = read_json(help_shared("goldens/lora/tiny.json")),
           *mlx = read_json(help_shared("goldens/lora/shout-mlx.json"));
    struct safetensors *s = open_file(help_shared("goldens/lora/tiny.safetensors"));
    for (int quantized = 0; quantized < 2; quantized++) {
        struct trained t;
        open_trained(&t, help_shared(quantized ? "checkpoints/tiny-mlx" : "checkpoints/tiny"), PRECISION_HIGH);
        for (int i = 0; i < 2; i++) {
            for (int v = 0; v < N_VARIANTS && !quantized; v++) {
                double error = variant_error(&t, t.set[v], s, variants[v], lengths[i]);
                double bar = number_at(notes, variants[v], lengths[i], "bf16", "rel");
                printf("  tiny, %-10s prompt %3s  error %.2e  bar %.2e\n", variants[v], lengths[i], error, bar);
                assert_true(bar > 0 && error <= bar);
            }
            struct adapter_set *set = one(&t.sets, t.a[MLX], 1);
            double error = variant_error(&t, set, s, "shout", lengths[i]);
            const json_t *quantized_notes = json_object_get(json_object_get(mlx, "mlx_lm_in_fp32"), "tiny-mlx");
            /* the recorded one is over all positions, and most of it the base's quantization (without the adapter: 0.6, 0.4) */
            double bar = quantized ? 1.5 * number_at(quantized_notes, lengths[i], "to_peft", "rel", NULL)
                                   : number_at(notes, "shout", lengths[i], "bf16", "rel");
            printf("  %s, shout-mlx prompt %3s  error %.2e  bar %.2e\n", quantized ? "tiny-mlx" : "tiny", lengths[i], error, bar);
            assert_true(error <= bar);
            adapter_set_drop(set);
        }
        close_trained(&t);
    }
    json_decref(notes), json_decref(mlx), safetensors_close(s);
}

struct answer { int32_t tokens[256]; double margin[64]; int n_prompt, n; };

static struct answer read_answer(const json_t *entry, const char *variant) {
    struct answer a = {0};
    const json_t *prompt = json_object_get(entry, "prompt"), *v = json_object_get(entry, variant),
                 *ids = json_object_get(v, "ids");
    a.n_prompt = (int)json_array_size(prompt), a.n = (int)json_array_size(ids);
    assert_true(a.n > 0 && a.n <= 64 && a.n_prompt + a.n <= 256);
    for (int i = 0; i < a.n_prompt; i++) a.tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, (size_t)i));
    for (int i = 0; i < a.n; i++) {
        a.tokens[a.n_prompt + i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        a.margin[i] = json_number_value(json_array_get(json_object_get(v, "margin"), (size_t)i));
    }
    return a;
}

/* All variants of a question in one step, the answers fed: the same choice wherever the margin is beyond twice the noise. */
static void greedy_answers_of_every_variant_agree_in_mixed_steps(void **state) {
    (void)state;
    enum { FEW = 12 };
    if (!help_shared("goldens/lora/tiny-answers.json")) skip();
    json_t *entries = read_json(help_shared("goldens/lora/tiny-answers.json")),
           *notes = read_json(help_shared("goldens/lora/tiny.json"));
    struct trained t;
    open_trained(&t, help_shared("checkpoints/tiny"), PRECISION_DEFAULT);
    int judged = 0, wrong = 0, all = 0;
    for (size_t q = 0; q < FEW; q++) {
        struct answer a[N_VARIANTS];
        struct group g[N_VARIANTS];
        for (int v = 0; v < N_VARIANTS; v++) {
            a[v] = read_answer(json_array_get(entries, q), variants[v]);
            g[v] = (struct group){.seq = runner_sequence(&t.r), .n_rows = a[v].n_prompt + a[v].n - 1, .tokens = a[v].tokens,
                                  .n_logits = a[v].n, .adapters = t.set[v]};
        }
        struct batch b = {.groups = g, .n_groups = N_VARIANTS};
        runner_step(&t.r, &b);
        const float *row = b.logits;
        for (int v = 0; v < N_VARIANTS; v++) {
            double noise = number_at(notes, variants[v], "130", "bf16", "max_abs");
            for (int i = 0; i < a[v].n; i++, row += t.r.vocab, all++) {
                if (a[v].margin[i] <= 2 * noise) continue;
                int best = 0;
                for (int k = 1; k < t.r.vocab; k++)
                    if (row[k] > row[best]) best = k;
                judged++, wrong += best != a[v].tokens[a[v].n_prompt + i];
            }
            sequence_free(g[v].seq);
        }
    }
    printf("  %d of %d tokens judged, %d wrong\n", judged, all, wrong);
    assert_true(judged > all / 2);
    assert_int_equal(wrong, 0);
    close_trained(&t);
    json_decref(entries), json_decref(notes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_adapters_give_the_reference_logits),
        cmocka_unit_test(bad_adapters_are_refused_with_what_is_wrong),
        cmocka_unit_test(trained_adapters_alone_stacked_and_at_half_weight_give_the_reference_logits),
        cmocka_unit_test(greedy_answers_of_every_variant_agree_in_mixed_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
