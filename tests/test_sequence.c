#include "help_engine.h"

#include <math.h>

#include "engine/score.h"

enum { ROWS = 90 };

static struct weft_model_info info;
static int32_t tokens[ROWS];

static int prepare(void **state) {
    (void)state;
    weft_model_info(kept_model(), &info);
    for (int i = 0; i < ROWS; i++) tokens[i] = (i * 131 + i * i) % 11000;
    return 0;
}

static struct weft_sequence *sequence(struct weft_engine *x, int rows) {
    struct weft_sequence *s;
    struct weft_error e = {0, ""};
    if (weft_sequence_new(&s, x, rows, &e)) fail_msg("%s", e.message);
    return s;
}

static void step(struct weft_engine *x, struct weft_group *g, int n, const struct weft_step_options *o) {
    struct weft_error e = {0, ""};
    if (weft_step(x, g, n, o, &e)) fail_msg("%s", e.message);
}

/* Logits of every row, run one row at a time: what everything else is compared with. [ROWS][vocab] */
static float *row_by_row(struct weft_engine *x) {
    size_t vocab = (size_t)info.vocab;
    float *out = malloc(ROWS * vocab * sizeof *out);
    struct weft_sequence *s = sequence(x, ROWS);
    for (int i = 0; i < ROWS; i++) {
        struct weft_group g = {.sequence = s, .n_rows = 1, .tokens = tokens + i, .n_logits = 1};
        step(x, &g, 1, NULL);
        memcpy(out + (size_t)i * vocab, g.logits, vocab * sizeof *out);
    }
    assert_int_equal(weft_sequence_rows(s), ROWS);
    assert_memory_equal(weft_sequence_tokens(s), tokens, sizeof tokens);
    weft_sequence_free(s);
    return out;
}

static void same_row(const float *all, int row, const float *logits) {
    assert_memory_equal(all + (size_t)row * (size_t)info.vocab, logits, (size_t)info.vocab * sizeof *logits);
}

static void known_spans_are_appended_in_one_step_with_logits_where_asked(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    float *all = row_by_row(x);
    struct weft_sequence *s = sequence(x, ROWS);
    struct weft_group g = {.sequence = s, .n_rows = 40, .tokens = tokens};
    step(x, &g, 1, NULL);
    assert_null(g.logits);
    g = (struct weft_group){.sequence = s, .n_rows = 30, .tokens = tokens + 40, .n_logits = 3};
    step(x, &g, 1, NULL);
    for (int i = 0; i < 3; i++) same_row(all, 67 + i, g.logits + (size_t)i * (size_t)info.vocab);
    weft_sequence_free(s);
    free(all);
    weft_engine_close(x);
}

static void rows_that_are_undone_never_happened(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    float *all = row_by_row(x);
    for (int keep = 0; keep <= 6; keep++) {
        struct weft_sequence *s = sequence(x, ROWS);
        struct weft_group g = {.sequence = s, .n_rows = 20, .tokens = tokens, .n_logits = 1};
        step(x, &g, 1, NULL);
        int32_t window[6] = {tokens[20], tokens[21], tokens[22], tokens[23], tokens[24], tokens[25]};
        for (int i = keep; i < 6; i++) window[i] = 7; /* wrong guesses */
        g = (struct weft_group){.sequence = s, .n_rows = 6, .tokens = window, .n_logits = 6, .undo = 1};
        step(x, &g, 1, NULL);
        for (int i = 0; i < keep; i++) same_row(all, 20 + i, g.logits + (size_t)i * (size_t)info.vocab);
        assert_int_equal(weft_step(x, &g, 1, NULL, NULL), WEFT_ERROR_INPUT); /* it waits for the commit */
        int none = 7;
        assert_int_equal(weft_commit(x, &none, NULL), WEFT_ERROR_INPUT);
        assert_int_equal(weft_commit(x, &keep, NULL), 0);
        assert_int_equal(weft_sequence_rows(s), 20 + keep);
        g = (struct weft_group){.sequence = s, .n_rows = 10, .tokens = tokens + 20 + keep, .n_logits = 1};
        step(x, &g, 1, NULL);
        same_row(all, 29 + keep, g.logits);
        weft_sequence_free(s);
    }
    free(all);
    weft_engine_close(x);
}

static void embedding_rows_of_tokens_are_the_tokens(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    float *all = row_by_row(x), *rows = malloc(ROWS * (size_t)info.hidden * sizeof *rows);
    int32_t mixed[ROWS];
    assert_int_equal(weft_embed(x, tokens, ROWS, rows, NULL), 0);
    for (int i = 0; i < ROWS; i++) mixed[i] = i % 3 ? -1 - i : tokens[i];
    struct weft_sequence *s = sequence(x, ROWS);
    struct weft_group g = {
        .sequence = s, .n_rows = ROWS, .tokens = mixed, .embeddings = rows, .n_embeddings = ROWS, .n_logits = 2};
    step(x, &g, 1, NULL);
    same_row(all, ROWS - 2, g.logits);
    same_row(all, ROWS - 1, g.logits + info.vocab);
    weft_sequence_free(s);
    free(all), free(rows);
    weft_engine_close(x);
}

static void taps_and_hidden_rows_do_not_depend_on_the_step(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    const int layers[] = {0, 3, info.layers - 1};
    size_t width = (size_t)info.hidden * sizeof(float);
    struct weft_step_options o = {.taps = layers, .n_taps = 3};
    float *taps = malloc(3 * 12 * width), *hidden = malloc(12 * width), *logits = malloc((size_t)info.vocab * sizeof *logits);
    struct weft_sequence *s = sequence(x, 12), *other = sequence(x, 12);
    for (int i = 0; i < 12; i++) {
        struct weft_group g = {.sequence = s, .n_rows = 1, .tokens = tokens + i, .want_hidden = 1, .want_taps = 1, .n_logits = 1};
        step(x, &g, 1, &o);
        for (int t = 0; t < 3; t++) memcpy(taps + (size_t)(t * 12 + i) * (size_t)info.hidden, g.taps[t], width);
        memcpy(hidden + (size_t)i * (size_t)info.hidden, g.hidden, width);
        memcpy(logits, g.logits, (size_t)info.vocab * sizeof *logits);
    }
    struct weft_sequence *first = sequence(x, 12);
    struct weft_group both[2] = {
        {.sequence = first, .n_rows = 9, .tokens = tokens + 30, .want_taps = 1},
        {.sequence = other, .n_rows = 12, .tokens = tokens, .want_hidden = 1, .want_taps = 1, .n_logits = 1}};
    step(x, both, 2, &o);
    for (int t = 0; t < 3; t++) assert_memory_equal(both[1].taps[t], taps + (size_t)t * 12 * (size_t)info.hidden, 12 * width);
    assert_memory_equal(both[1].hidden, hidden, 12 * width);
    assert_memory_equal(both[1].logits, logits, (size_t)info.vocab * sizeof *logits);
    weft_sequence_free(s), weft_sequence_free(other), weft_sequence_free(first);
    free(taps), free(hidden), free(logits);
    weft_engine_close(x);
}

static void the_head_gives_the_logits_of_a_step(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    struct weft_sequence *s = sequence(x, 20);
    struct weft_group g = {.sequence = s, .n_rows = 20, .tokens = tokens, .n_logits = 2, .want_hidden = 1};
    step(x, &g, 1, NULL);
    size_t n = 2 * (size_t)info.vocab;
    float *logits = malloc(n * sizeof *logits), *again = malloc(n * sizeof *again);
    memcpy(logits, g.logits, n * sizeof *logits);
    assert_int_equal(weft_head(x, g.hidden + 18 * (size_t)info.hidden, 2, again, NULL), 0);
    assert_memory_equal(logits, again, n * sizeof *logits);
    free(logits), free(again);
    weft_sequence_free(s);
    weft_engine_close(x);
}

static void forks_and_restored_sequences_go_on_like_the_first(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    float *all = row_by_row(x);
    char path[512];
    struct weft_sequence *s = sequence(x, ROWS), *fork, *restored;
    struct weft_group g = {.sequence = s, .n_rows = 70, .tokens = tokens};
    step(x, &g, 1, NULL);
    snprintf(path, sizeof path, "%s", help_temp("sequence.weft"));
    assert_int_equal(weft_sequence_fork(&fork, s, NULL), 0);
    assert_int_equal(weft_sequence_save(s, path, NULL), 0);
    assert_int_equal(weft_sequence_restore(&restored, x, path, ROWS, NULL), 0);
    int32_t other[4] = {1, 2, 3, 4};
    g = (struct weft_group){.sequence = s, .n_rows = 4, .tokens = other};
    step(x, &g, 1, NULL);
    struct weft_group both[2] = {{.sequence = fork, .n_rows = 20, .tokens = tokens + 70, .n_logits = 1},
                                 {.sequence = restored, .n_rows = 20, .tokens = tokens + 70, .n_logits = 1}};
    step(x, both, 2, NULL);
    same_row(all, ROWS - 1, both[0].logits);
    same_row(all, ROWS - 1, both[1].logits);
    struct weft_error e;
    struct weft_sequence *none;
    assert_int_equal(weft_sequence_restore(&none, x, path, 30, &e), WEFT_ERROR_INPUT);
    weft_sequence_free(s), weft_sequence_free(fork), weft_sequence_free(restored);
    free(all);
    weft_engine_close(x);
}

static void sampling_by_hand_is_what_a_request_does(void **state) {
    (void)state;
    static struct kept k;
    struct weft_engine *x = kept_engine(NULL);
    struct weft_request_options o = kept_ask(NULL);
    o.chat.messages = NULL, o.tokens = tokens, o.n_tokens = 20, o.max_tokens = 12, o.ignore_eos = 1;
    o.sampling.temperature = 1, o.sampling.seed = 3, o.sampling.repetition_penalty = 1.1f;
    kept_run(x, &o, &k, 1);
    struct weft_sequence *s = sequence(x, 40);
    struct weft_group g = {.sequence = s, .n_rows = 20, .tokens = tokens, .n_logits = 1};
    for (int i = 0; i < 12; i++) {
        int32_t token;
        step(x, &g, 1, NULL);
        assert_int_equal(weft_sample(s, g.logits, &o.sampling, &token, NULL), 0);
        assert_int_equal(token, k.tokens[i]);
        g = (struct weft_group){.sequence = s, .n_rows = 1, .tokens = &k.tokens[i], .n_logits = 1};
    }
    weft_sequence_free(s);
    weft_engine_close(x);
}

static void bad_steps_are_refused_before_anything_runs(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    struct weft_sequence *s = sequence(x, 10), *none;
    struct weft_error e;
    int32_t bad[2] = {1, 12288}, row[1] = {-1};
    int taps[2] = {3, 3};
    const struct weft_group cases[] = {
        {.sequence = NULL, .n_rows = 1, .tokens = tokens},
        {.sequence = s, .n_rows = 0, .tokens = tokens},
        {.sequence = s, .n_rows = 11, .tokens = tokens},
        {.sequence = s, .n_rows = 2, .tokens = bad},
        {.sequence = s, .n_rows = 1, .tokens = row},
        {.sequence = s, .n_rows = 3, .tokens = tokens, .n_logits = 4},
        {.sequence = s, .n_rows = 10, .tokens = tokens, .undo = 1},
        {.sequence = s, .n_rows = 3, .tokens = tokens, .positions = tokens, .n_axes = 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weft_group g = cases[i];
        assert_int_equal(weft_step(x, &g, 1, NULL, &e), WEFT_ERROR_INPUT);
        assert_true(strlen(e.message) > 10);
    }
    struct weft_group twice[2] = {{.sequence = s, .n_rows = 1, .tokens = tokens}, {.sequence = s, .n_rows = 1, .tokens = tokens}};
    assert_int_equal(weft_step(x, twice, 2, NULL, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_step(x, twice, 1, &(struct weft_step_options){.taps = taps, .n_taps = 2}, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_step(x, twice, 1, &(struct weft_step_options){.mtp = 1}, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_commit(x, NULL, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_sequence_new(&none, x, 5000, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_sequence_rows(s), 0);
    weft_sequence_free(s);
    struct weft_engine_stats stats;
    weft_engine_stats(x, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    weft_engine_close(x);
}

/* ---- scoring ---- */

struct taken { float *rows; int next; };

static int take(void *arg, const struct score_rows *rows, struct weft_error *e) {
    struct taken *t = arg;
    (void)e;
    if (!rows->logits) return 0;
    assert_int_equal(rows->row0, t->next);
    memcpy(t->rows + (size_t)rows->row0 * (size_t)info.vocab, rows->logits,
           (size_t)rows->n_rows * (size_t)info.vocab * sizeof(float));
    t->next += rows->n_rows;
    return 0;
}

static void scores_do_not_depend_on_the_chunks(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    float *all = row_by_row(x), *got = malloc(ROWS * (size_t)info.vocab * sizeof *got);
    static const int cuts[4][3] = {{1, 63, 64}, {90, 90, 90}, {65, 7, 1}, {64, 13, 13}};
    for (int i = 0; i < 4; i++) {
        struct taken t = {got, 0};
        struct score_input in = {.tokens = tokens, .n_tokens = ROWS, .chunks = cuts[i], .n_chunks = 3};
        assert_int_equal(score_run(x, &in, take, &t, NULL), 0);
        assert_int_equal(t.next, ROWS);
        assert_memory_equal(all, got, ROWS * (size_t)info.vocab * sizeof *got);
    }
    double nll[ROWS];
    struct score_input in = {.tokens = tokens, .n_tokens = ROWS};
    assert_int_equal(score_nll(x, &in, nll, NULL), 0);
    for (int i = 0; i + 1 < ROWS; i++) {
        double sum = 0;
        for (int v = 0; v < info.vocab; v++) sum += exp((double)all[(size_t)i * (size_t)info.vocab + (size_t)v]);
        assert_float_equal(nll[i], log(sum) - (double)all[(size_t)i * (size_t)info.vocab + (size_t)tokens[i + 1]], 1e-5);
    }
    free(all), free(got);
    weft_engine_close(x);
}

static void the_mtp_head_scores_the_same_however_it_is_cut(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    size_t bytes = ROWS * (size_t)info.vocab * sizeof(float);
    float *whole = calloc(1, bytes), *cut = calloc(1, bytes);
    struct taken a = {whole, 0}, b = {cut, 0};
    const int chunks[] = {7, 1, 30};
    struct score_input in = {.tokens = tokens, .n_tokens = ROWS};
    assert_int_equal(score_mtp(x, &in, take, &a, NULL), 0);
    in.chunks = chunks, in.n_chunks = 3;
    assert_int_equal(score_mtp(x, &in, take, &b, NULL), 0);
    assert_int_equal(a.next, ROWS - 1);
    assert_memory_equal(whole, cut, bytes);
    /* depth 1 of the chains is that head's choice */
    struct score_agreement agreement = {{0}, {0}, {0}, {0}};
    assert_int_equal(score_mtp_agreement(x, &in, 3, &agreement, NULL), 0);
    for (int d = 0; d < 3; d++) assert_int_equal(agreement.rows[d], ROWS - 2 - d);
    assert_int_equal(agreement.kept_rows[0], ROWS - 2);
    assert_int_equal(agreement.agree[0], agreement.kept_agree[0]);
    free(whole), free(cut);
    weft_engine_close(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_spans_are_appended_in_one_step_with_logits_where_asked),
        cmocka_unit_test(rows_that_are_undone_never_happened),
        cmocka_unit_test(embedding_rows_of_tokens_are_the_tokens),
        cmocka_unit_test(taps_and_hidden_rows_do_not_depend_on_the_step),
        cmocka_unit_test(the_head_gives_the_logits_of_a_step),
        cmocka_unit_test(forks_and_restored_sequences_go_on_like_the_first),
        cmocka_unit_test(sampling_by_hand_is_what_a_request_does),
        cmocka_unit_test(bad_steps_are_refused_before_anything_runs),
        cmocka_unit_test(scores_do_not_depend_on_the_chunks),
        cmocka_unit_test(the_mtp_head_scores_the_same_however_it_is_cut),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
