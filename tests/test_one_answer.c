/* The same bits, however a prompt is cut, packed or shared among threads; on every ISA that runs here. */
#include "help_model.h"

/* The bundled model is large for the slower ISAs: there it gets short prompts, and the micro models beside the repository the
 * long ones. */
enum { LONG = 540 };
static int is_large(const struct runner *r) { return r->hidden > 128; }
static int is_slow(const struct runner *r, const char *isa) { return is_large(r) && strcmp(isa, "portable") == 0; }

static int32_t *some_tokens(int n, int vocab, uint64_t seed) {
    int32_t *out = mem_new((size_t)n, sizeof *out);
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (int32_t)((seed >> 33) % (uint64_t)(vocab - 8));
    }
    return out;
}

struct candidate { const char *folder; enum precision precision; };
static const struct candidate bundled[] = {{"tiny", PRECISION_DEFAULT}, {"tiny", PRECISION_HIGH}};
static const struct candidate micros[] = {{"text-tied", PRECISION_DEFAULT}, {"odd", PRECISION_DEFAULT}, {"f16", PRECISION_DEFAULT},
                                          {"moe", PRECISION_DEFAULT}, {"mlx-mixed", PRECISION_DEFAULT}, {"mlx-mixed", PRECISION_HIGH},
                                          {"mlx-moe", PRECISION_DEFAULT}};

typedef void check_fn(struct runner *r, const char *isa);

static void on_each(check_fn *fn, const struct candidate *c, size_t n, int shared, int n_threads) {
    for (const char *const *isa = runner_isas(); *isa; isa++)
        for (size_t i = 0; i < n; i++) {
            char path[256];
            snprintf(path, sizeof path, shared ? "checkpoints/micro/%s" : "models/%s", c[i].folder);
            const char *folder = shared ? help_shared(path) : help_source(path);
            if (!folder) continue;
            struct runner r;
            runner_open(&r, folder, *isa, c[i].precision, n_threads);
            fn(&r, *isa);
            runner_close(&r);
        }
}
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void same_for_cuts(struct runner *r, const int32_t *tokens, int n, const int *cuts, int n_cuts, const float *whole) {
    float *x = runner_logits(r, &(struct prompt){tokens, n, NULL, 0, cuts, n_cuts});
    if (memcmp(x, whole, (size_t)n * (size_t)r->vocab * sizeof *x)) fail_msg("cut at %d of %d rows: other bits", cuts[0], n);
    mem_free(x);
}

static void cut_everywhere(struct runner *r, const char *isa) {
    int n = is_slow(r, isa) ? 8 : is_large(r) ? 18 : 40;
    int32_t *tokens = some_tokens(n, r->vocab, 1);
    float *whole = runner_logits(r, &(struct prompt){.tokens = tokens, .n = n});
    for (int at = 1; at < n; at++) same_for_cuts(r, tokens, n, (int[]){at, n}, 2, whole);
    mem_free(tokens), mem_free(whole);
}

static void a_prompt_cut_at_any_position_gives_the_same_logits(void **state) {
    (void)state;
    on_each(cut_everywhere, bundled, COUNT(bundled), 0, 1);
    on_each(cut_everywhere, micros, COUNT(micros), 1, 1);
}

static void cut_long(struct runner *r, const char *isa) {
    int n = is_slow(r, isa) ? 24 : is_large(r) ? 140 : LONG;
    int32_t *tokens = some_tokens(n, r->vocab, 2);
    float *whole = runner_logits(r, &(struct prompt){.tokens = tokens, .n = n});
    const int cuts[] = {1, 63, 64, 65, 512};
    for (size_t i = 0; i < COUNT(cuts); i++) same_for_cuts(r, tokens, n, &cuts[i], 1, whole);
    mem_free(tokens), mem_free(whole);
}

static void a_long_prompt_in_chunks_or_single_steps_gives_the_same_logits(void **state) {
    (void)state;
    on_each(cut_long, bundled, COUNT(bundled), 0, 1);
    on_each(cut_long, micros, COUNT(micros), 1, 1);
}

static void one_two_and_three_threads_give_the_same_logits(void **state) {
    (void)state;
    for (const char *const *isa = runner_isas(); *isa; isa++) {
        int n = strcmp(*isa, "portable") ? 150 : 30;
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            struct runner r;
            runner_open(&r, help_source("models/tiny"), *isa, PRECISION_DEFAULT, threads);
            int32_t *tokens = some_tokens(n, r.vocab, 3);
            float *x = runner_logits(&r, &(struct prompt){tokens, n, NULL, 0, (int[]){n - 5, 1}, 2});
            if (first) assert_memory_equal(x, first, (size_t)n * (size_t)r.vocab * sizeof *x);
            if (first) mem_free(x);
            else first = x;
            mem_free(tokens);
            runner_close(&r);
        }
        mem_free(first);
    }
}

/* 17, 512 and 1993 prompt rows and three decode rows of sequences of other depths, all in one step. */
static void pack(struct runner *r, const char *isa) {
    int slow = is_slow(r, isa), large = is_large(r);
    const int lengths[] = {slow ? 5 : 17, slow ? 9 : large ? 70 : 512, slow ? 20 : large ? 260 : 1993};
    const int depths[] = {3, slow ? 4 : 64, slow ? 9 : 129};
    size_t row = (size_t)r->vocab * sizeof(float);
    struct group groups[6] = {{0}};
    int32_t *tokens[6];
    float *alone[6];
    for (int g = 0; g < 6; g++) {
        int n = g < 3 ? lengths[g] : depths[g - 3];
        tokens[g] = some_tokens(n + 1, r->vocab, 10 + (uint64_t)g);
        float *x = runner_logits(r, &(struct prompt){tokens[g], g < 3 ? n : n + 1, NULL, 0, (int[]){100}, 1});
        alone[g] = mem_new(1, row);
        memcpy(alone[g], x + (size_t)(g < 3 ? n - 1 : n) * (size_t)r->vocab, row);
        mem_free(x);
        struct sequence *s = runner_sequence(r);
        groups[g] = (struct group){.seq = s, .n_rows = n, .tokens = tokens[g], .n_logits = 1};
        if (g < 3) continue;
        runner_step(r, &(struct batch){.groups = &groups[g], .n_groups = 1});
        groups[g] = (struct group){.seq = s, .n_rows = 1, .tokens = tokens[g] + n, .n_logits = 1};
    }
    struct group mixed[6] = {groups[3], groups[0], groups[4], groups[2], groups[1], groups[5]};
    const int of[6] = {3, 0, 4, 2, 1, 5};
    struct batch b = {.groups = mixed, .n_groups = 6};
    runner_step(r, &b);
    for (int g = 0; g < 6; g++) {
        if (memcmp((char *)b.logits + (size_t)g * row, alone[of[g]], row)) fail_msg("group %d of the mixed step: other bits", g);
        sequence_free(mixed[g].seq);
    }
    for (int g = 0; g < 6; g++) mem_free(tokens[g]), mem_free(alone[g]);
}

static void packed_with_others_gives_the_logits_of_running_alone(void **state) {
    (void)state;
    on_each(pack, bundled, COUNT(bundled), 0, 2);
    on_each(pack, micros, COUNT(micros), 1, 1);
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    struct runner r;
    runner_open(&r, help_source("models/tiny"), NULL, PRECISION_DEFAULT, 2);
    int32_t *tokens = some_tokens(200, r.vocab, 5);
    struct sequence *s = runner_sequence(&r);
    struct weft_error e;
    assert_int_equal(sequence_reserve(s, 256, &e), 0);
    struct group g = {.seq = s, .n_rows = 100, .tokens = tokens, .n_logits = 1};
    struct batch b = {.groups = &g, .n_groups = 1};
    runner_step(&r, &b);
    uint64_t before = mem_count();
    for (int i = 100; i < 200; i++) {
        g = (struct group){.seq = s, .n_rows = 1, .tokens = tokens + i, .n_logits = 1};
        runner_step(&r, &b);
    }
    assert_int_equal(mem_count(), before);
    sequence_free(s);
    mem_free(tokens);
    runner_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_cut_at_any_position_gives_the_same_logits),
        cmocka_unit_test(a_long_prompt_in_chunks_or_single_steps_gives_the_same_logits),
        cmocka_unit_test(one_two_and_three_threads_give_the_same_logits),
        cmocka_unit_test(packed_with_others_gives_the_logits_of_running_alone),
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
