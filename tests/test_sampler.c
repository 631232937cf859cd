#include "help_test.h"

#include <math.h>

#include "base/mem.h"
#include "engine/random.h"
#include "engine/sampler.h"

enum { SMALL = 23, LARGE = 50000 };

static struct weft_sampling plain(void) {
    return (struct weft_sampling){.temperature = 1, .top_p = 1, .xtc_threshold = 0.1f, .seed = 7};
}

static float noise(uint64_t i) { return (float)(random_uniform(99, i, RANDOM_DRAW) - 0.5); }

static struct sampler *make(int vocab, struct pool *pool) {
    struct sampler *s;
    assert_int_equal(sampler_new(&s, vocab, pool, NULL), 0);
    return s;
}

static int32_t pick(struct sampler *s, const float *logits, const struct weft_sampling *o, uint64_t position) {
    struct sampler_output out;
    struct sampler_input in = {.logits = logits, .o = o, .position = position, .n_top = -1};
    assert_int_equal(sampler_pick(s, &in, &out, NULL), 0);
    return out.token;
}

static void the_generator_is_philox(void **state) {
    (void)state;
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        random_philox(known[i], known[i] + 4, out);
        assert_memory_equal(out, known[i] + 6, sizeof out);
    }
}

static void temperature_zero_is_the_largest_and_the_lowest_id_on_ties(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    float x[SMALL] = {0};
    struct weft_sampling o = plain();
    o.temperature = 0;
    assert_int_equal(pick(s, x, &o, 3), 0);
    x[9] = x[17] = 2;
    assert_int_equal(pick(s, x, &o, 3), 9);
    assert_int_equal(sampler_argmax(x, SMALL), 9);
    sampler_free(s);
}

static void logits_that_are_not_finite_are_an_error(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (int at = 0; at < SMALL; at++)
            for (int greedy = 0; greedy < 2; greedy++) {
                float x[SMALL] = {0};
                x[at] = bad[b];
                struct weft_sampling o = plain();
                o.temperature = greedy ? 0 : 1;
                struct sampler_output out;
                struct weft_error e;
                struct sampler_input in = {.logits = x, .o = &o, .n_top = -1};
                assert_int_equal(sampler_pick(s, &in, &out, &e), WEFT_ERROR_NUMERIC);
                assert_int_equal(sampler_argmax(x, SMALL), -1);
            }
    sampler_free(s);
}

/* A large vocabulary is searched in blocks, by several threads. */
static void the_largest_of_many_blocks_is_found_wherever_it_lies(void **state) {
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_new(&pool, 3, NULL), 0);
    struct sampler *s[] = {make(LARGE, NULL), make(LARGE, pool)};
    float *x = malloc(LARGE * sizeof *x);
    struct weft_sampling o = plain();
    o.temperature = 0;
    const int places[] = {0, 1, 2047, 2048, 20479, 49151, 49152, LARGE - 1};
    for (int i = 0; i < LARGE; i++) x[i] = noise((uint64_t)i);
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (int threads = 0; threads < 2; threads++) {
            const int at = places[p];
            const float before = x[at], last = x[LARGE - 1];
            x[at] = 2;
            assert_int_equal(pick(s[threads], x, &o, p), at);
            x[LARGE - 1] = 2; /* as large, and later */
            assert_int_equal(pick(s[threads], x, &o, p), at);
            x[at] = NAN;
            struct sampler_output out;
            struct weft_error e;
            struct sampler_input in = {.logits = x, .o = &o, .n_top = -1};
            assert_int_equal(sampler_pick(s[threads], &in, &out, &e), WEFT_ERROR_NUMERIC);
            x[LARGE - 1] = last, x[at] = before;
        }
    free(x);
    sampler_free(s[0]), sampler_free(s[1]);
    pool_free(pool);
}

/* Logprobs of everything after bias and penalties. */
static void logprobs_of(struct sampler *s, const float *x, const struct weft_sampling *o, const int32_t *context, int n,
                        double *out) {
    struct weft_logprob top[SMALL];
    struct sampler_output got;
    struct sampler_input in = {.logits = x, .o = o, .context = context, .n_context = n, .n_top = SMALL, .top = top};
    assert_int_equal(sampler_pick(s, &in, &got, NULL), 0);
    assert_int_equal(got.n_top, SMALL);
    for (int i = 0; i < SMALL; i++) {
        out[top[i].token] = (double)top[i].logprob;
        if (i)
            assert_true(top[i].logprob < top[i - 1].logprob ||
                        (top[i].logprob == top[i - 1].logprob && top[i].token > top[i - 1].token));
    }
    assert_float_equal(got.logprob, out[got.token], 1e-6);
}

static void bias_and_penalties_come_in_order_over_their_own_contexts(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    float x[SMALL];
    for (int i = 0; i < SMALL; i++) x[i] = 4 * noise((uint64_t)i);
    int32_t context[] = {1, 2, 3, 3, -4, 5, 5, 5, 2};
    struct weft_bias bias[] = {{5, 1.5f}, {6, -2}, {5, 0.25f}};
    struct weft_sampling o = plain();
    o.temperature = 0;
    o.bias = bias, o.n_bias = 3;
    o.repetition_penalty = 1.3f, o.repetition_context = 4;  /* 5 and 2 */
    o.presence_penalty = 0.4f, o.presence_context = -1;     /* 1 2 3 5 */
    o.frequency_penalty = 0.2f, o.frequency_context = 7;    /* 3 3 5 5 5 2 */
    double want[SMALL], sum = 0, got[SMALL];
    for (int i = 0; i < SMALL; i++) want[i] = (double)x[i];
    want[5] += 1.75, want[6] -= 2;
    const int repeated[] = {5, 2};
    for (int i = 0; i < 2; i++) want[repeated[i]] = want[repeated[i]] < 0 ? want[repeated[i]] * 1.3f : want[repeated[i]] / 1.3f;
    want[1] -= 0.4f, want[2] -= 0.4f, want[3] -= 0.4f, want[5] -= 0.4f;
    want[3] -= 2 * 0.2f, want[5] -= 3 * 0.2f, want[2] -= 0.2f;
    for (int i = 0; i < SMALL; i++) sum += exp(want[i]);
    logprobs_of(s, x, &o, context, 9, got);
    for (int i = 0; i < SMALL; i++) assert_float_equal(got[i], want[i] - log(sum), 2e-6);
    sampler_free(s);
}

/* ---- filters against a full sort ---- */

struct pair { double x; int32_t id; };
static int by_rank(const void *a, const void *b) {
    const struct pair *p = a, *q = b;
    return p->x != q->x ? (p->x > q->x ? -1 : 1) : (p->id > q->id) - (p->id < q->id);
}

/* What may be drawn, by the words of weft.h. */
static void allowed(const float *x, int n, const struct weft_sampling *o, int xtc, const int32_t *keep, int n_keep, uint8_t *ok) {
    struct pair *sorted = calloc((size_t)n, sizeof *sorted);
    double lse = 0, max = -1e30, ascending = 0;
    for (int i = 0; i < n; i++) sorted[i] = (struct pair){x[i], i}, max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++) lse += exp(x[i] - max);
    lse = max + log(lse);
    qsort(sorted, (size_t)n, sizeof *sorted, by_rank);
    for (int i = 0; i < n; i++) ok[i] = 1;
    for (int i = n; i-- > 0;) {
        ascending += exp(sorted[i].x - lse);
        if (o->top_p > 0 && o->top_p < 1 && ascending <= 1 - o->top_p) ok[sorted[i].id] = 0;
        if (o->min_p > 0 && sorted[i].x < max + log(o->min_p) && i >= (o->min_keep > 1 ? o->min_keep : 1)) ok[sorted[i].id] = 0;
    }
    double least = 1e30;
    for (int i = 0; xtc && i < n; i++)
        if (ok[i] && exp(x[i] - lse) > o->xtc_threshold && x[i] < least) least = x[i];
    for (int i = 0; xtc && i < n; i++) {
        int kept = x[i] <= least;
        for (int k = 0; k < n_keep; k++) kept |= keep[k] == i;
        if (!kept) ok[i] = 0;
    }
    int left = o->top_k > 0 ? o->top_k : n;
    for (int i = 0; i < n; i++)
        if (ok[sorted[i].id] && left-- <= 0) ok[sorted[i].id] = 0;
    free(sorted);
}

static void every_filter_leaves_what_a_full_sort_leaves(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    const int32_t keep[] = {3, 8};
    int n_seen = 0;
    for (uint64_t trial = 0; trial < 400; trial++) {
        float x[SMALL];
        float spread = trial % 3 == 0 ? 3 : trial % 3 == 1 ? 12 : 40;
        for (int i = 0; i < SMALL; i++) x[i] = roundf(8 * spread * noise(trial * 100 + (uint64_t)i)) / 8; /* ties happen */
        struct weft_sampling o = plain();
        if (trial & 1) o.top_p = 0.6f + 0.3f * (float)(trial % 7) / 7;
        if (trial & 2) o.min_p = 0.05f, o.min_keep = (int)(trial % 5);
        if (trial & 4) o.top_k = 1 + (int)(trial % 9);
        if (trial & 8) o.xtc_probability = 1, o.xtc_threshold = 0.1f;
        uint8_t ok[SMALL], drawn[SMALL] = {0};
        allowed(x, SMALL, &o, o.xtc_probability > 0, keep, 2, ok);
        for (uint64_t position = 0; position < 300; position++) {
            struct sampler_output out;
            struct sampler_input in = {.logits = x, .o = &o, .position = position, .keep = keep, .n_keep = 2, .n_top = -1};
            assert_int_equal(sampler_pick(s, &in, &out, NULL), 0);
            assert_true(ok[out.token]);
            drawn[out.token] = 1;
        }
        /* what has a fair chance was drawn: nothing allowed is cut away */
        double total = 0, max = -1e30;
        for (int i = 0; i < SMALL; i++)
            if (ok[i] && x[i] > max) max = x[i];
        for (int i = 0; i < SMALL; i++) total += ok[i] ? exp(x[i] - max) : 0;
        for (int i = 0; i < SMALL; i++)
            if (ok[i] && exp(x[i] - max) / total > 0.1) assert_true(drawn[i]), n_seen++;
    }
    assert_true(n_seen > 400);
    sampler_free(s);
}

static void draws_follow_the_tempered_distribution(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    float x[SMALL];
    for (int i = 0; i < SMALL; i++) x[i] = 5 * noise((uint64_t)i);
    for (int filtered = 0; filtered < 2; filtered++) {
        struct weft_sampling o = plain();
        o.temperature = 0.7f;
        if (filtered) o.top_k = SMALL - 1;
        int n[SMALL] = {0}, draws = 40000, worst = 0;
        for (int i = 0; i < draws; i++) n[pick(s, x, &o, (uint64_t)i)]++;
        double total = 0;
        for (int i = 0; i < SMALL; i++) total += exp(x[i] / 0.7), worst = x[i] < x[worst] ? i : worst;
        if (filtered) total -= exp(x[worst] / 0.7), assert_int_equal(n[worst], 0);
        for (int i = 0; i < SMALL; i++) {
            if (filtered && i == worst) continue;
            double p = exp(x[i] / 0.7) / total, sigma = sqrt(draws * p * (1 - p));
            assert_true(fabs(n[i] - draws * p) < 5 * sigma + 1);
        }
    }
    sampler_free(s);
}

static void a_large_vocabulary_is_cut_exactly_where_the_sums_say(void **state) {
    (void)state;
    struct sampler *s = make(LARGE, NULL);
    float *x = malloc(LARGE * sizeof *x);
    uint8_t *ok = malloc(LARGE);
    for (int flat = 0; flat < 2; flat++) {
        for (int i = 0; i < LARGE; i++) x[i] = (flat ? 2 : 25) * noise((uint64_t)i);
        for (int f = 0; f < 4; f++) {
            struct weft_sampling o = plain();
            if (f == 0) o.top_p = 0.9f;
            if (f == 1) o.top_k = 1000;
            if (f == 2) o.min_p = 0.3f;
            if (f == 3) o.top_p = 0.95f, o.top_k = 20;
            allowed(x, LARGE, &o, 0, NULL, 0, ok);
            for (uint64_t position = 0; position < 40; position++) assert_true(ok[pick(s, x, &o, position)]);
        }
    }
    free(x), free(ok);
    sampler_free(s);
}

static void as_many_as_the_vocabulary_or_more_is_no_limit(void **state) {
    (void)state;
    struct sampler *s = make(SMALL, NULL);
    float x[SMALL];
    for (int i = 0; i < SMALL; i++) x[i] = 3 * noise((uint64_t)i);
    struct weft_sampling o = plain(), all = plain();
    for (uint64_t p = 0; p < 200; p++) {
        all.top_k = SMALL + (int)p;
        assert_int_equal(sampling_check(&all, SMALL, NULL), 0);
        assert_int_equal(pick(s, x, &o, p), pick(s, x, &all, p));
    }
    sampler_free(s);
}

static void seed_and_position_alone_decide_and_threads_do_not_show(void **state) {
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_new(&pool, 3, NULL), 0);
    struct sampler *one = make(LARGE, NULL), *many = make(LARGE, pool);
    float *x = malloc(LARGE * sizeof *x);
    for (int i = 0; i < LARGE; i++) x[i] = 20 * noise((uint64_t)i);
    int differs = 0;
    for (uint64_t p = 0; p < 60; p++) {
        struct weft_sampling o = plain();
        o.top_p = p & 1 ? 0.9f : 1;
        int32_t first = pick(one, x, &o, p);
        assert_int_equal(pick(many, x, &o, p), first);
        assert_int_equal(pick(one, x, &o, p), first);
        o.seed++;
        differs += pick(one, x, &o, p) != first;
    }
    assert_true(differs > 20);
    free(x);
    sampler_free(one), sampler_free(many);
    pool_free(pool);
}

static void picking_allocates_nothing(void **state) {
    (void)state;
    struct sampler *s = make(LARGE, NULL);
    float *x = malloc(LARGE * sizeof *x);
    for (int i = 0; i < LARGE; i++) x[i] = 20 * noise((uint64_t)i);
    struct weft_logprob top[20];
    int32_t context[30] = {5, 5, 6};
    struct weft_sampling o = plain();
    o.top_p = 0.9f, o.min_p = 0.01f, o.top_k = 50, o.xtc_probability = 0.5f, o.repetition_penalty = 1.1f;
    uint64_t before = mem_count();
    for (uint64_t p = 0; p < 20; p++) {
        struct sampler_output out;
        struct sampler_input in = {
            .logits = x, .o = &o, .context = context, .n_context = 30, .position = p, .n_top = 20, .top = top};
        assert_int_equal(sampler_pick(s, &in, &out, NULL), 0);
    }
    assert_int_equal(mem_count(), before);
    free(x);
    sampler_free(s);
}

static void values_out_of_range_are_refused_with_their_name(void **state) {
    (void)state;
    struct weft_bias bias = {SMALL, 1};
    struct { struct weft_sampling o; const char *name; } cases[] = {
        {{.temperature = -1}, "temperature"},     {{.temperature = NAN}, "temperature"}, {{.top_p = 1.5f}, "top_p"},
        {{.min_p = -0.1f}, "min_p"},              {{.xtc_threshold = 0.6f}, "xtc_threshold"},
        {{.xtc_probability = 2}, "xtc_probability"}, {{.repetition_penalty = -1}, "repetition_penalty"},
        {{.presence_penalty = INFINITY}, "presence_penalty"}, {{.frequency_penalty = NAN}, "frequency_penalty"},
        {{.bias = &bias, .n_bias = 1}, "logit_bias"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weft_error e;
        assert_int_equal(sampling_check(&cases[i].o, SMALL, &e), WEFT_ERROR_INPUT);
        assert_non_null(strstr(e.message, cases[i].name));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_generator_is_philox),
        cmocka_unit_test(temperature_zero_is_the_largest_and_the_lowest_id_on_ties),
        cmocka_unit_test(logits_that_are_not_finite_are_an_error),
        cmocka_unit_test(the_largest_of_many_blocks_is_found_wherever_it_lies),
        cmocka_unit_test(bias_and_penalties_come_in_order_over_their_own_contexts),
        cmocka_unit_test(every_filter_leaves_what_a_full_sort_leaves),
        cmocka_unit_test(draws_follow_the_tempered_distribution),
        cmocka_unit_test(a_large_vocabulary_is_cut_exactly_where_the_sums_say),
        cmocka_unit_test(as_many_as_the_vocabulary_or_more_is_no_limit),
        cmocka_unit_test(seed_and_position_alone_decide_and_threads_do_not_show),
        cmocka_unit_test(picking_allocates_nothing),
        cmocka_unit_test(values_out_of_range_are_refused_with_their_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
