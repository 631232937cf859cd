/* The forward against another implementation's numbers. */
#include "help_model.h"

#include <math.h>

#include "base/json.h"

struct golden { const char *folder, *name; int f32; };
static const struct golden goldens[] = {
    {"text-tied", "text-tied", 0}, {"vl-mtp", "vl-mtp", 0},         {"odd", "odd", 1},
    {"f16", "f16", 0},             {"moe", "moe", 0},               {"moe-split", "moe", 0},
    {"mlx-mixed", "mlx-mixed", 0}, {"mlx-prefix", "mlx-mixed", 0},  {"mlx-moe", "mlx-moe", 0},
};

static double bar_of(const json_t *notes, int n, int f32) {
    char key[16];
    snprintf(key, sizeof key, "%d", n);
    if (f32) return 1e-4;
    return json_number_value(json_object_get(json_object_get(json_object_get(json_object_get(notes, "noise"), key), "bf16"), "rel"));
}

/* Greedy steps with the golden's tokens fed: the same choice wherever the margin is beyond the noise. */
static int wrong_steps(struct runner *r, const struct safetensors *s, int n, int *judged) {
    char key[64];
    snprintf(key, sizeof key, "prompt.%d", n);
    int32_t *prompt = golden_ints(s, key, NULL);
    snprintf(key, sizeof key, "greedy.%d", n);
    size_t n_greedy;
    int32_t *greedy = golden_ints(s, key, &n_greedy);
    snprintf(key, sizeof key, "greedy.%d.margin", n);
    float *margin = golden_floats(s, key, NULL);
    snprintf(key, sizeof key, "greedy.%d.noise", n);
    float *noise = golden_floats(s, key, NULL);
    int total = n + (int)n_greedy - 1, wrong = 0;
    int32_t *tokens = mem_new((size_t)total, sizeof *tokens);
    memcpy(tokens, prompt, (size_t)n * 4), memcpy(tokens + n, greedy, (n_greedy - 1) * 4);
    float *logits = runner_logits(r, &(struct prompt){.tokens = tokens, .n = total});
    for (size_t i = 0; i < n_greedy; i++) {
        if (margin[i] <= 2 * noise[i]) continue;
        const float *row = logits + (size_t)(n - 1 + (int)i) * (size_t)r->vocab;
        int best = 0;
        for (int v = 1; v < r->vocab; v++)
            if (row[v] > row[best]) best = v;
        wrong += best != greedy[i], (*judged)++;
    }
    mem_free(prompt), mem_free(greedy), mem_free(margin), mem_free(noise), mem_free(tokens), mem_free(logits);
    return wrong;
}

static void check_prompt(struct runner *r, const struct safetensors *s, const json_t *notes, const struct golden *g, int n,
                         const char *isa) {
    char key[64];
    snprintf(key, sizeof key, "prompt.%d", n);
    int32_t *prompt = golden_ints(s, key, NULL);
    if (!prompt) return;
    snprintf(key, sizeof key, "logits.%d.f32", n);
    size_t count;
    float *want = golden_floats(s, key, &count), *taps = NULL;
    float *logits = runner_logits_taps(r, &(struct prompt){.tokens = prompt, .n = n}, &taps);
    double error = relative_error(logits, want, count), bar = bar_of(notes, n, g->f32);
    int judged = 0, wrong = wrong_steps(r, s, n, &judged);
    printf("  %-10s %-10s prompt %4d  error %.2e  bar %.2e  greedy %d of %d\n", g->folder, isa, n, error, bar, judged - wrong, judged);
    assert_true(bar > 0 && error <= bar);
    assert_int_equal(wrong, 0);
    float *want_taps = n == 17 ? golden_floats(s, "taps.17.f32", &count) : NULL;
    if (want_taps) {
        int n_layers = model_config(r->model)->n_layers;
        size_t h = (size_t)r->hidden;
        float *last = mem_new((size_t)n_layers, h * sizeof *last);
        for (int i = 0; i < n_layers; i++) memcpy(last + (size_t)i * h, taps + ((size_t)i * 17 + 16) * h, h * sizeof *last);
        assert_int_equal(count, (size_t)n_layers * h);
        assert_true(relative_error(last, want_taps, count) <= bar);
        mem_free(last), mem_free(want_taps);
    }
    mem_free(prompt), mem_free(want), mem_free(logits), mem_free(taps);
}

static void check_golden(const struct golden *g, const char *isa, int high) {
    char path[256];
    struct weft_error e = {0};
    snprintf(path, sizeof path, "checkpoints/micro/%s", g->folder);
    const char *folder = help_shared(path);
    if (!folder) skip();
    struct runner r;
    runner_open(&r, folder, isa, high ? PRECISION_HIGH : PRECISION_DEFAULT, 2);
    snprintf(path, sizeof path, "goldens/model/%s.safetensors", g->name);
    struct safetensors *s;
    if (safetensors_open(&s, help_shared(path), &e)) fail_msg("%s", e.message);
    snprintf(path, sizeof path, "goldens/model/%s.json", g->name);
    json_t *notes;
    if (json_read_file(&notes, help_shared(path), 1 << 20, &e)) fail_msg("%s", e.message);
    const int lengths[] = {1, 17, 130, 700};
    for (int i = 0; i < 4; i++) check_prompt(&r, s, notes, g, lengths[i], isa);
    json_decref(notes);
    safetensors_close(s);
    runner_close(&r);
}

static void logits_greedy_tokens_and_taps_are_as_near_to_the_reference_as_its_own_bf16_run(void **state) {
    (void)state;
    for (const char *const *isa = runner_isas(); *isa; isa++)
        for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) check_golden(&goldens[i], *isa, 1);
}

static void positions_given_by_the_caller_are_used(void **state) {
    (void)state;
    struct weft_error e = {0};
    if (!help_shared("checkpoints/micro/text-tied")) skip();
    struct runner r;
    runner_open(&r, help_shared("checkpoints/micro/text-tied"), NULL, PRECISION_DEFAULT, 2);
    struct safetensors *s;
    if (safetensors_open(&s, help_shared("goldens/model/text-tied.safetensors"), &e)) fail_msg("%s", e.message);
    int32_t *prompt = golden_ints(s, "prompt.130", NULL);
    const char *names[] = {"offset", "gap"};
    for (int i = 0; i < 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s.positions", names[i]);
        int32_t *positions = golden_ints(s, key, NULL);
        snprintf(key, sizeof key, "%s.f32", names[i]);
        size_t count;
        float *want = golden_floats(s, key, &count);
        const int cuts[] = {50, 13};
        float *x = runner_logits(&r, &(struct prompt){prompt, 130, positions, 1, cuts, 2});
        double error = relative_error(x, want, count);
        printf("  %s: error %.2e\n", names[i], error);
        assert_true(error <= 0.02638);
        mem_free(positions), mem_free(want), mem_free(x);
    }
    mem_free(prompt);
    safetensors_close(s);
    runner_close(&r);
}

static void the_mtp_head_gives_the_reference_logits(void **state) {
    (void)state;
    struct weft_error e = {0};
    if (!help_shared("checkpoints/micro/vl-mtp")) skip();
    struct safetensors *s;
    if (safetensors_open(&s, help_shared("goldens/model/vl-mtp.safetensors"), &e)) fail_msg("%s", e.message);
    for (const char *const *isa = runner_isas(); *isa; isa++) {
        struct runner r;
        runner_open(&r, help_shared("checkpoints/micro/vl-mtp"), *isa, PRECISION_DEFAULT, 2);
        const int lengths[] = {17, 130};
        for (int i = 0; i < 2; i++) {
            char key[32];
            snprintf(key, sizeof key, "prompt.%d", lengths[i]);
            int32_t *prompt = golden_ints(s, key, NULL);
            snprintf(key, sizeof key, "mtp.%d.f32", lengths[i]);
            size_t count;
            float *want = golden_floats(s, key, &count), *x = runner_mtp(&r, &(struct prompt){.tokens = prompt, .n = lengths[i]});
            double error = relative_error(x, want, count);
            printf("  %s prompt %d: error %.2e\n", *isa, lengths[i], error);
            assert_true(error <= 0.07);
            mem_free(prompt), mem_free(want), mem_free(x);
        }
        runner_close(&r);
    }
    safetensors_close(s);
}

static void image_rows_and_three_axes_give_the_reference_logits(void **state) {
    (void)state;
    struct weft_error e = {0};
    if (!help_shared("checkpoints/micro/vl-mtp")) skip();
    struct safetensors *s;
    if (safetensors_open(&s, help_shared("goldens/model/vl-mtp.safetensors"), &e)) fail_msg("%s", e.message);
    struct runner r;
    runner_open(&r, help_shared("checkpoints/micro/vl-mtp"), NULL, PRECISION_DEFAULT, 2);
    size_t n, count;
    int32_t *prompt = golden_ints(s, "image.prompt", &n), *positions = golden_ints(s, "image.positions", NULL);
    float *features = golden_floats(s, "image.features.f32", NULL), *want = golden_floats(s, "image.logits.f32", &count);
    for (size_t i = 0, row = 0; i < n; i++)
        if (prompt[i] == model_config(r.model)->image_token) prompt[i] = -1 - (int32_t)row++;
    struct sequence *q = runner_sequence(&r);
    struct group g = {.seq = q, .n_rows = (int)n, .tokens = prompt, .embeddings = features, .positions = positions, .n_axes = 3,
                      .n_logits = (int)n};
    struct batch b = {.groups = &g, .n_groups = 1};
    runner_step(&r, &b);
    double error = relative_error(b.logits, want, count);
    printf("  image prompt of %zu rows: error %.2e\n", n, error);
    assert_true(error <= 0.07);
    sequence_free(q);
    mem_free(prompt), mem_free(positions), mem_free(features), mem_free(want);
    safetensors_close(s);
    runner_close(&r);
}

/* KL(recorded || weft) of the trained model in 4 bits over the rows whose logits were recorded exactly. */
static void the_bundled_model_stays_near_its_own_recorded_logits_with_int8_inputs_and_without(void **state) {
    (void)state;
    struct weft_error e = {0};
    if (!help_shared("goldens/tiny/text.safetensors")) skip();
    struct safetensors *s;
    if (safetensors_open(&s, help_shared("goldens/tiny/text.safetensors"), &e)) fail_msg("%s", e.message);
    int32_t *tokens = golden_ints(s, "tokens", NULL);
    float *want = golden_floats(s, "logits.tiny-mlx.row0.last16.f32", NULL);
    for (const char *const *isa = runner_isas(); *isa; isa++)
        for (int high = 0; high <= 1; high++) {
            struct runner r;
            runner_open(&r, help_source("models/tiny"), *isa, high ? PRECISION_HIGH : PRECISION_DEFAULT, 2);
            float *x = runner_logits(&r, &(struct prompt){.tokens = tokens, .n = 256});
            double kl = 0;
            for (int row = 0; row < 16; row++) {
                const float *p = want + (size_t)row * (size_t)r.vocab, *q = x + (size_t)(240 + row) * (size_t)r.vocab;
                double sum_p = 0, sum_q = 0, cross = 0;
                for (int v = 0; v < r.vocab; v++) sum_p += exp(p[v]), sum_q += exp(q[v]);
                for (int v = 0; v < r.vocab; v++) cross += exp(p[v]) / sum_p * (p[v] - log(sum_p) - (q[v] - log(sum_q)));
                kl += cross / 16;
            }
            printf("  %s %s: KL %.3g\n", *isa, high ? "high" : "default", kl);
            assert_true(kl >= 0 && kl <= (high ? 2e-5 : 1.6e-4));
            mem_free(x);
            runner_close(&r);
        }
    mem_free(tokens), mem_free(want);
    safetensors_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_greedy_tokens_and_taps_are_as_near_to_the_reference_as_its_own_bf16_run),
        cmocka_unit_test(positions_given_by_the_caller_are_used),
        cmocka_unit_test(the_mtp_head_gives_the_reference_logits),
        cmocka_unit_test(the_bundled_model_stays_near_its_own_recorded_logits_with_int8_inputs_and_without),
        cmocka_unit_test(image_rows_and_three_axes_give_the_reference_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
