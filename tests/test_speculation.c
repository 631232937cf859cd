#include "help_engine.h"

#include "engine/draft.h"

enum { N = 5 };

static struct kept plain[N], drafted[N];
static char long_message[8192];

static void fill(struct weft_request_options *o) {
    strcpy(long_message, kept_long_message(120, "K7Q2"));
    o[0] = kept_ask("[{\"role\":\"user\",\"content\":\"What is 45 + 5?\"}]");
    o[0].chat.thinking = 1;
    o[1] = kept_ask("[{\"role\":\"user\",\"content\":\"Repeat after me: need bowl conquest need bowl conquest\"}]");
    o[2] = kept_ask(long_message);
    o[3] = kept_ask("[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]");
    o[3].sampling.temperature = 1, o[3].sampling.top_p = 0.95f, o[3].sampling.seed = 5, o[3].ignore_eos = 1;
    o[4] = kept_ask("[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]");
    o[4].sampling.repetition_penalty = 1.3f, o[4].sampling.repetition_context = -1, o[4].ignore_eos = 1;
    for (int i = 0; i < N; i++) o[i].max_tokens = 40;
}

static void run_plain(void) {
    struct weft_request_options o[N];
    if (plain[0].done) return;
    fill(o);
    struct weft_engine *x = kept_engine(NULL);
    for (int i = 0; i < N; i++) kept_run(x, &o[i], &plain[i], 1);
    weft_engine_close(x);
}

static int count(const struct kept *k, int accepted) {
    int n = 0;
    for (int i = 0; i < N; i++)
        for (int d = 0; d < WEFT_DRAFT_MAX; d++) n += accepted ? k[i].result.accepted[d] : k[i].result.drafted[d];
    return n;
}

/* Together and alone, with every length of draft given. */
static void compare(const char *draft, struct weft_model *second, int max, int always, int parallel) {
    struct weft_request_options o[N];
    run_plain();
    fill(o);
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){
        .draft = draft, .draft_model = second, .draft_max = max, .draft_always = always, .parallel = parallel});
    kept_run(x, o, drafted, N);
    for (int i = 0; i < N; i++) kept_equal(&plain[i], &drafted[i]);
    struct weft_engine_stats stats;
    weft_engine_stats(x, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    weft_engine_close(x);
}

static void the_mtp_head_changes_no_answer_and_is_often_right(void **state) {
    (void)state;
    static const int lengths[] = {1, 3, 8};
    for (int i = 0; i < 3; i++) {
        compare("mtp", NULL, lengths[i], 1, 1 + i);
        assert_true(count(drafted, 1) > 20);
        assert_true(drafted[0].result.accepted[0] * 10 > drafted[0].result.drafted[0] * 6);
    }
}

static void prompt_look_up_changes_no_answer(void **state) {
    (void)state;
    compare("ngram", NULL, 5, 1, 1);
    assert_true(drafted[1].result.accepted[0] > 0);
    compare("ngram", NULL, 8, 1, N);
}

static void a_second_model_changes_no_answer(void **state) {
    (void)state;
    struct weft_model *second;
    struct weft_error e = {0, ""};
    if (weft_model_open(&second, help_source("models/tiny"), &(struct weft_model_options){.threads = 2, .context = 4096}, &e))
        fail_msg("%s", e.message);
    compare("model", second, 3, 1, 1);
    /* it is the model itself: what it drafts greedily is always right */
    assert_int_equal(drafted[0].result.accepted[0], drafted[0].result.drafted[0]);
    assert_true(drafted[0].result.accepted[2] > 3);
    compare("model", second, 4, 1, N);
    weft_model_close(second);
}

static void drafts_that_adapt_change_no_answer(void **state) {
    (void)state;
    compare("mtp", NULL, 4, 0, 2);
    compare("ngram", NULL, 4, 0, N);
    compare("model", kept_model(), 4, 0, 2);
}

struct spoiler { int at, calls; };

static void spoil(void *arg, struct weft_request *r, int32_t *drafts, int n) {
    struct spoiler *s = arg;
    (void)r;
    s->calls++;
    if (s->at < n) drafts[s->at] = (drafts[s->at] + 1) % 12000;
}

static void a_drafter_that_is_wrong_at_any_place_leaves_no_trace(void **state) {
    (void)state;
    run_plain();
    for (int at = 0; at < 4; at++) {
        struct weft_request_options o[N];
        fill(o);
        struct spoiler s = {at, 0};
        struct weft_engine *x = kept_engine(&(struct weft_engine_options){.draft = "mtp", .draft_max = 4, .draft_always = 1});
        engine_set_draft_hook(x, spoil, &s);
        kept_run(x, o, drafted, N);
        for (int i = 0; i < N; i++) {
            kept_equal(&plain[i], &drafted[i]);
            if (i != 3) assert_true(drafted[i].result.accepted[at] <= drafted[i].result.drafted[at] / 4);
        }
        assert_true(s.calls > 20);
        weft_engine_close(x);
    }
}

static void a_drafter_that_is_always_wrong_is_hardly_asked(void **state) {
    (void)state;
    enum { LONG = 200 };
    struct spoiler s = {0, 0};
    struct weft_request_options o = kept_ask("[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]");
    o.ignore_eos = 1, o.max_tokens = LONG;
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.draft = "mtp", .draft_max = 4});
    engine_set_draft_hook(x, spoil, &s);
    kept_run(x, &o, drafted, 1);
    assert_int_equal(drafted[0].result.n_tokens, LONG);
    assert_in_range(s.calls, 1, LONG / 8);
    weft_engine_close(x);
}

static void what_cannot_draft_is_refused_by_name(void **state) {
    (void)state;
    struct weft_engine *x;
    struct weft_error e;
    assert_int_equal(weft_engine_open(&x, kept_model(), &(struct weft_engine_options){.draft = "oracle"}, &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "oracle"));
    assert_int_equal(weft_engine_open(&x, kept_model(), &(struct weft_engine_options){.draft = "model"}, &e), WEFT_ERROR_INPUT);
    assert_int_equal(weft_engine_open(&x, kept_model(), &(struct weft_engine_options){.draft = "mtp", .draft_max = 9}, &e),
                     WEFT_ERROR_INPUT);
}

static void a_cached_prompt_drafts_too(void **state) {
    (void)state;
    struct weft_request_options o[N];
    run_plain();
    fill(o);
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.draft = "mtp", .draft_max = 3, .draft_always = 1});
    kept_run(x, &o[0], drafted, 1);
    kept_run(x, &o[0], drafted, 1);
    assert_int_equal(drafted[0].result.n_cached, drafted[0].result.n_prompt);
    kept_equal(&plain[0], &drafted[0]);
    assert_true(drafted[0].result.accepted[0] * 10 > drafted[0].result.drafted[0] * 6);
    weft_engine_close(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mtp_head_changes_no_answer_and_is_often_right),
        cmocka_unit_test(prompt_look_up_changes_no_answer),
        cmocka_unit_test(a_second_model_changes_no_answer),
        cmocka_unit_test(drafts_that_adapt_change_no_answer),
        cmocka_unit_test(a_drafter_that_is_wrong_at_any_place_leaves_no_trace),
        cmocka_unit_test(a_drafter_that_is_always_wrong_is_hardly_asked),
        cmocka_unit_test(a_cached_prompt_drafts_too),
        cmocka_unit_test(what_cannot_draft_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
