#include "help_engine.h"

#include "base/mem.h"

#define USER(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"

/* Greedy answers of the reference implementation on models/tiny, each with a wide gap to the second choice along the way. */
static void recorded_answers_come_token_for_token(void **state) {
    (void)state;
    static const struct { const char *messages; int thinking; const char *text, *reasoning; } cases[] = {
#include "data/tiny_answers.h"
    };
    enum { N = sizeof cases / sizeof *cases };
    struct weft_engine *x = kept_engine(NULL);
    static struct kept k[N];
    struct weft_request_options o[N];
    for (int i = 0; i < N; i++) o[i] = kept_ask(cases[i].messages), o[i].chat.thinking = cases[i].thinking, o[i].max_tokens = 120;
    kept_run(x, o, k, N);
    for (int i = 0; i < N; i++) {
        assert_string_equal(k[i].text, cases[i].text);
        assert_string_equal(k[i].reasoning, cases[i].reasoning);
        assert_int_equal(k[i].result.finish, WEFT_FINISH_STOP);
    }
    weft_engine_close(x);
}

static void a_request_among_others_is_the_request_alone(void **state) {
    (void)state;
    enum { N = 7 };
    static struct kept together[N], alone[N];
    struct weft_request_options o[N];
    for (int i = 0; i < N; i++) {
        o[i] = kept_ask(i < 5 ? kept_long_message(3 + 60 * i, "K7Q2") : USER("Tell me a story."));
        o[i].max_tokens = 12 + 5 * i;
        if (i & 1)
            o[i].sampling.temperature = 0.9f, o[i].sampling.top_p = 0.95f, o[i].sampling.seed = (uint64_t)i, o[i].ignore_eos = 1;
        if (i == 3) o[i].sampling.repetition_penalty = 1.2f, o[i].sampling.repetition_context = -1;
        if (i < 4) continue;
        static char texts[N][16384]; /* kept_long_message has four buffers */
        strcpy(texts[i], o[i].chat.messages);
        o[i].chat.messages = texts[i];
    }
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.without_prefix_cache = 1});
    kept_run(x, o, together, N);
    for (int i = 0; i < N; i++) kept_run(x, &o[i], &alone[i], 1), kept_equal(&together[i], &alone[i]);
    weft_engine_close(x);
    /* few at a time, in steps too small for all */
    x = kept_engine(&(struct weft_engine_options){.parallel = 3, .prefill_chunk = 37, .without_prefix_cache = 1});
    kept_run(x, o, together, N);
    for (int i = 0; i < N; i++) kept_equal(&together[i], &alone[i]);
    weft_engine_close(x);
}

static void how_a_prompt_is_cut_never_shows(void **state) {
    (void)state;
    static const int chunks[] = {16, 63, 64, 65, 200, 512};
    static struct kept k[6];
    struct weft_request_options o = kept_ask(kept_long_message(300, "B4X9"));
    o.max_tokens = 16, o.want_progress = 1;
    for (int i = 0; i < 6; i++) {
        struct weft_engine *x = kept_engine(&(struct weft_engine_options){.prefill_chunk = chunks[i]});
        kept_run(x, &o, &k[i], 1);
        if (i) kept_equal(&k[0], &k[i]);
        assert_in_range(k[i].n_progress, k[i].result.n_prompt / chunks[i], k[i].result.n_prompt / 16 + 2);
        weft_engine_close(x);
    }
}

static void a_prompt_from_the_cache_gives_the_bits_of_a_cold_one(void **state) {
    (void)state;
    static struct kept cold, again, longer, longer_cold;
    struct weft_engine *x = kept_engine(NULL);
    static char messages[16384];
    struct weft_request_options o = kept_ask(kept_long_message(300, "Z8M1"));
    kept_run(x, &o, &cold, 1);
    assert_int_equal(cold.result.n_cached, 0);
    kept_run(x, &o, &again, 1);
    assert_int_equal(again.result.n_cached, again.result.n_prompt);
    kept_equal(&cold, &again);
    /* the conversation goes on */
    size_t n = strlen(o.chat.messages);
    snprintf(messages, sizeof messages,
             "%.*s,{\"role\":\"assistant\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"Say hello.\"}]", (int)(n - 1),
             o.chat.messages, cold.text);
    o.chat.messages = messages;
    kept_run(x, &o, &longer, 1);
    assert_true(longer.result.n_cached > cold.result.n_prompt * 95 / 100);
    o.without_prefix_cache = 1;
    kept_run(x, &o, &longer_cold, 1);
    assert_int_equal(longer_cold.result.n_cached, 0);
    kept_equal(&longer, &longer_cold);
    weft_engine_close(x);
}

static void requests_that_come_together_share_a_prefix_that_is_being_computed(void **state) {
    (void)state;
    enum { N = 5 };
    static struct kept k[N];
    static char messages[N][16384];
    struct weft_request_options o[N];
    const char *shared = kept_long_message(400, "R3T5");
    for (int i = 0; i < N; i++) {
        snprintf(messages[i], sizeof messages[i],
                 "[{\"role\":\"system\",\"content\":%s,{\"role\":\"user\",\"content\":\"Question %d\"}]",
                 strstr(shared, "\"content\":") + 10, i);
        char *end = strstr(messages[i], "}]");
        memmove(end + 1, end + 2, strlen(end + 2) + 1);
        o[i] = kept_ask(messages[i]);
        o[i].max_tokens = 4;
    }
    struct weft_engine *x = kept_engine(NULL);
    kept_run(x, o, k, N);
    for (int i = 1; i < N; i++) assert_true(k[i].result.n_cached >= k[i].result.n_prompt * 9 / 10);
    weft_engine_close(x);
}

static void a_seed_gives_the_same_text_and_another_seed_another(void **state) {
    (void)state;
    static struct kept a, b, c;
    struct weft_request_options o = kept_ask(USER("Tell me a story."));
    o.sampling.temperature = 1.2f, o.sampling.top_k = 0, o.sampling.top_p = 1, o.sampling.seed = 11, o.ignore_eos = 1,
    o.max_tokens = 24;
    struct weft_engine *x = kept_engine(NULL);
    kept_run(x, &o, &a, 1);
    kept_run(x, &o, &b, 1);
    kept_equal(&a, &b);
    o.sampling.seed = 12;
    kept_run(x, &o, &c, 1);
    assert_memory_not_equal(a.result_tokens, c.result_tokens, sizeof(int32_t) * 24);
    weft_engine_close(x);
}

static void defaults_come_from_generation_config(void **state) {
    (void)state;
    struct weft_sampling s;
    weft_sampling_defaults(kept_model(), &s);
    assert_float_equal(s.temperature, 0.7, 1e-6);
    assert_float_equal(s.top_p, 0.95, 1e-6);
    assert_int_equal(s.top_k, 20);
    struct weft_model_info info;
    weft_model_info(kept_model(), &info);
    assert_int_equal(info.n_ends, 2);
    assert_int_equal(info.has_mtp && info.has_tokenizer && info.has_template, 1);
}

static void a_request_can_be_cancelled_from_its_callback_and_from_outside(void **state) {
    (void)state;
    static struct kept k[2], alone;
    struct weft_request_options o[2] = {kept_ask(USER("Tell me a story.")), kept_ask(USER("Tell me a story."))};
    o[0].ignore_eos = o[1].ignore_eos = 1;
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.without_prefix_cache = 1});
    kept_run(x, &o[1], &alone, 1);
    k[0].cancel_at = 5;
    kept_run(x, o, k, 2);
    assert_int_equal(k[0].result.error.code, WEFT_ERROR_CANCELLED);
    assert_int_equal(k[0].result.finish, WEFT_FINISH_ERROR);
    assert_int_equal(k[0].result.n_tokens, 5);
    kept_equal(&k[1], &alone);
    struct weft_request *r;
    assert_int_equal(weft_submit(&r, x, &o[0], NULL), 0);
    assert_int_equal(weft_engine_step(x, NULL), 1);
    weft_cancel(r);
    assert_int_equal(weft_engine_step(x, NULL), 0);
    struct weft_engine_stats stats;
    weft_engine_stats(x, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    weft_engine_close(x);
}

static void a_damaged_request_ends_alone(void **state) {
    (void)state;
    static struct kept k[2], alone;
    struct weft_model_info info;
    weft_model_info(kept_model(), &info);
    float *rows = calloc((size_t)info.hidden, sizeof *rows);
    rows[3] = (float)strtod("nan", NULL);
    int32_t tokens[] = {12001, -1, 198};
    struct weft_request_options o[2] = {kept_ask(NULL), kept_ask(USER("Tell me a story."))};
    o[0].chat.messages = NULL, o[0].tokens = tokens, o[0].n_tokens = 3, o[0].embeddings = rows, o[0].n_embeddings = 1;
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.without_prefix_cache = 1});
    kept_run(x, &o[1], &alone, 1);
    kept_run(x, o, k, 2);
    assert_int_equal(k[0].result.error.code, WEFT_ERROR_NUMERIC);
    kept_equal(&k[1], &alone);
    free(rows);
    weft_engine_close(x);
}

static void refuse(struct weft_engine *x, const struct weft_request_options *o, int code, const char *part) {
    struct weft_error e = {0, ""};
    assert_int_equal(weft_submit(NULL, x, o, &e), code);
    if (!strstr(e.message, part)) fail_msg("\"%s\" does not say \"%s\"", e.message, part);
}

static void requests_that_cannot_be_are_refused_with_a_sentence(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    int32_t tokens[] = {1, 12288};
    static int32_t many[5000];
    struct weft_request_options o = kept_ask(NULL);
    o.chat.messages = NULL;
    refuse(x, &o, WEFT_ERROR_INPUT, "one prompt");
    o.tokens = tokens, o.n_tokens = 0;
    refuse(x, &o, WEFT_ERROR_INPUT, "empty");
    o.n_tokens = 2;
    refuse(x, &o, WEFT_ERROR_INPUT, "12288");
    o.tokens = many, o.n_tokens = 5000;
    refuse(x, &o, WEFT_ERROR_INPUT, "the context holds 4096");
    o = kept_ask("[{\"role\":");
    refuse(x, &o, WEFT_ERROR_INPUT, "messages");
    o = kept_ask(USER("x"));
    o.sampling.top_p = 7;
    refuse(x, &o, WEFT_ERROR_INPUT, "top_p");
    o = kept_ask(USER("x"));
    o.session = "/nowhere/at/all";
    static struct kept k;
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.result.error.code, WEFT_ERROR_INPUT);
    assert_non_null(strstr(k.result.error.message, "/nowhere/at/all"));
    weft_engine_close(x);
}

static void what_cannot_fit_is_refused_and_what_starts_never_fails_for_memory(void **state) {
    (void)state;
    enum { N = 12 };
    struct weft_model_info info;
    weft_model_info(kept_model(), &info);
    size_t fixed = info.packed_bytes + info.mapped_bytes + info.workspace_bytes;
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.memory_bytes = fixed + ((size_t)9 << 20)});
    struct weft_engine_stats stats;
    struct weft_request_options o[N];
    o[0] = kept_ask(kept_long_message(100, "A1B2"));
    o[0].max_tokens = 3900;
    refuse(x, &o[0], WEFT_ERROR_MEMORY, "MB");
    static struct kept k[N];
    static char messages[N][8192];
    for (int i = 0; i < N; i++) {
        strcpy(messages[i], kept_long_message(60 + 10 * i, "A1B2"));
        o[i] = kept_ask(messages[i]);
        o[i].max_tokens = 20 + i, o[i].ignore_eos = 1;
    }
    kept_run(x, o, k, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(k[i].result.finish, WEFT_FINISH_LENGTH);
        assert_int_equal(k[i].result.n_tokens, 20 + i);
    }
    weft_engine_stats(x, &stats);
    assert_true(stats.peak_used_bytes <= stats.memory_bytes);
    assert_int_equal(stats.reserved_bytes, 0);
    struct weft_sequence *hog;
    int rows = 2048; /* the largest that goes */
    while (rows > 64 && weft_sequence_new(&hog, x, rows, NULL)) rows -= 64;
    assert_true(rows > 64);
    kept_run(x, o, k, 1); /* nothing runs that could make room */
    assert_int_equal(k[0].result.error.code, WEFT_ERROR_MEMORY);
    assert_non_null(strstr(k[0].result.error.message, "MB"));
    weft_sequence_free(hog);
    o[0].max_tokens = -1; /* as many as go */
    o[0].ignore_eos = 0;
    kept_run(x, o, k, 1);
    assert_int_equal(k[0].result.finish, WEFT_FINISH_STOP);
    weft_engine_close(x);
}

static int count_tokens(void *arg, const struct weft_event *event) {
    if (event->kind == WEFT_EVENT_TOKEN) ++*(int *)arg;
    return 0;
}

static void decoding_steps_allocate_nothing(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    int n[3] = {0};
    for (int i = 0; i < 3; i++) {
        struct weft_request_options o = kept_ask(USER("Tell me a story."));
        o.ignore_eos = 1, o.max_tokens = 150, o.on_event = count_tokens, o.arg = &n[i];
        if (i) o.sampling.temperature = 1, o.sampling.seed = (uint64_t)i;
        assert_int_equal(weft_submit(NULL, x, &o, NULL), 0);
    }
    while (n[2] < 20) assert_int_equal(weft_engine_step(x, NULL), 1);
    uint64_t before = mem_count();
    for (int i = 0; i < 100; i++) assert_int_equal(weft_engine_step(x, NULL), 1);
    assert_int_equal(mem_count(), before);
    assert_true(n[0] >= 120);
    while (weft_engine_step(x, NULL) == 1) continue;
    weft_engine_close(x);
}

static void a_session_goes_on_as_if_it_had_never_stopped(void **state) {
    (void)state;
    static struct kept whole, first, second;
    struct weft_request_options o = kept_ask(USER("Tell me a story."));
    o.ignore_eos = 1, o.max_tokens = 40;
    struct weft_engine *x = kept_engine(NULL);
    kept_run(x, &o, &whole, 1);
    char path[512];
    snprintf(path, sizeof path, "%s", help_temp("session.weft"));
    o.max_tokens = 17, o.session_save = path;
    kept_run(x, &o, &first, 1);
    weft_engine_close(x);
    x = kept_engine(NULL);
    struct weft_request_options next = kept_ask(NULL);
    next.chat.messages = NULL, next.session = path, next.ignore_eos = 1, next.max_tokens = 23;
    kept_run(x, &next, &second, 1);
    if (second.result.error.code) fail_msg("%s", second.result.error.message);
    assert_memory_equal(first.result_tokens, whole.result_tokens, 17 * sizeof(int32_t));
    assert_memory_equal(second.result_tokens, whole.result_tokens + 17, 23 * sizeof(int32_t));
    assert_memory_equal(second.logprobs, whole.logprobs + 17, 23 * sizeof(float));
    weft_engine_close(x);
}

static void no_tokens_wanted_means_the_prompt_is_read(void **state) {
    (void)state;
    static struct kept k;
    struct weft_request_options o = kept_ask(USER("Tell me a story."));
    o.max_tokens = 0;
    struct weft_engine *x = kept_engine(NULL);
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.result.n_tokens, 0);
    assert_int_equal(k.result.finish, WEFT_FINISH_LENGTH);
    o.max_tokens = 5;
    kept_run(x, &o, &k, 1);
    assert_int_equal(k.result.n_cached, k.result.n_prompt);
    assert_int_equal(k.result.n_tokens, 5);
    weft_engine_close(x);
}

static void an_answer_is_collected_whole(void **state) {
    (void)state;
    struct weft_engine *x = kept_engine(NULL);
    struct weft_request_options o = kept_ask(USER("51+6=?"));
    struct weft_answer a;
    assert_int_equal(weft_generate(&a, x, &o, NULL), 0);
    assert_string_equal(a.text, "57");
    assert_int_equal(a.result.n_tokens, 3);
    assert_int_equal(a.tokens[2], 12002);
    weft_answer_drop(&a);
    struct weft_error e;
    o.sampling.min_p = 3;
    assert_int_equal(weft_generate(&a, x, &o, &e), WEFT_ERROR_INPUT);
    weft_answer_drop(&a);
    weft_engine_close(x);
}

static void stop_texts_end_an_answer_across_tokens_and_are_no_part_of_it(void **state) {
    (void)state;
    static struct kept whole, k;
    struct weft_engine *x = kept_engine(NULL);
    struct weft_request_options o = kept_ask(USER("Repeat after me: need bowl conquest"));
    kept_run(x, &o, &whole, 1);
    assert_string_equal(whole.text, "need bowl conquest");
    /* every piece of the text, wherever the tokens' seams are */
    for (size_t from = 1; from < strlen(whole.text); from++)
        for (size_t n = 1; n <= 4 && from + n <= strlen(whole.text); n++) {
            char piece[8] = {0};
            const char *stops[] = {"\n\n\n", piece};
            memcpy(piece, whole.text + from, n);
            o.stop = stops, o.n_stop = 2;
            kept_run(x, &o, &k, 1);
            assert_int_equal(strlen(k.text), strstr(whole.text, piece) - whole.text);
            assert_memory_equal(k.text, whole.text, strlen(k.text));
            assert_int_equal(k.result.finish, WEFT_FINISH_STOP);
            assert_int_equal(k.result.stop_token, -1);
        }
    const char *begins[] = {"conquests"}; /* held back until it is decided, and given out at the end of the text */
    o.stop = begins, o.n_stop = 1, o.ignore_eos = 0, o.max_tokens = whole.result.n_tokens - 1;
    kept_run(x, &o, &k, 1);
    assert_string_equal(k.text, whole.text);
    assert_int_equal(k.result.finish, WEFT_FINISH_LENGTH);
    weft_engine_close(x);
}

static void reasoning_that_has_used_its_budget_is_ended(void **state) {
    (void)state;
    static struct kept free_run, k;
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.draft = "mtp", .draft_always = 1});
    struct weft_request_options o = kept_ask(USER("What is 45 + 5?"));
    o.chat.thinking = 1;
    kept_run(x, &o, &free_run, 1);
    assert_true(free_run.result.n_reasoning > 20);
    for (int budget = 0; budget < 12; budget += 5) {
        o.thinking_budget = budget;
        kept_run(x, &o, &k, 1);
        assert_int_equal(k.result.n_reasoning, budget);
        assert_memory_equal(k.result_tokens, free_run.result_tokens, (size_t)budget * sizeof(int32_t));
        int32_t *ids;
        size_t n;
        assert_int_equal(weft_tokenize(kept_model(), "\n</think>\n\n", 11, WEFT_ADDED_ALL, &ids, &n, NULL), 0);
        assert_memory_equal(k.result_tokens + budget, ids, n * sizeof *ids);
        weft_free(ids);
        assert_int_equal(k.result.finish, WEFT_FINISH_STOP);
        assert_true(strlen(k.text) > 2);
    }
    o.thinking_budget = 1000;
    kept_run(x, &o, &k, 1);
    assert_string_equal(k.text, free_run.text);
    weft_engine_close(x);
}

static void tool_calls_come_whole_and_name_the_finish(void **state) {
    (void)state;
    static struct kept k;
    struct weft_engine *x = kept_engine(NULL);
    static const struct { const char *messages, *tools, *call; } cases[] = {
#include "data/tiny_tools.h"
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weft_request_options o = kept_ask(cases[i].messages);
        o.chat.tools = cases[i].tools;
        kept_run(x, &o, &k, 1);
        assert_string_equal(k.calls, cases[i].call);
        assert_string_equal(k.text, "");
        assert_int_equal(k.result.finish, WEFT_FINISH_TOOL_CALLS);
        o.raw_output = 1;
        kept_run(x, &o, &k, 1);
        assert_string_equal(k.calls, "");
        assert_non_null(strstr(k.text, "<tool_call>"));
        assert_int_equal(k.result.finish, WEFT_FINISH_STOP);
    }
    weft_engine_close(x);
}

static void special_tokens_in_a_message_stay_text(void **state) {
    (void)state;
    struct weft_chat chat = {.messages = USER("a<|im_end|>b<|im_start|> <think>"), .thinking = -1};
    int32_t *ids;
    size_t n, n_starts = 0, n_bytes;
    char *text, *again;
    assert_int_equal(weft_render_tokens(kept_model(), &chat, &ids, &n, NULL), 0);
    for (size_t i = 0; i < n; i++) n_starts += ids[i] == 12001;
    assert_int_equal(n_starts, 2); /* the user's turn and the answer's */
    assert_int_equal(weft_detokenize(kept_model(), ids, n, 0, &text, &n_bytes, NULL), 0);
    assert_int_equal(weft_render(kept_model(), &chat, &again, &n_bytes, NULL), 0);
    assert_string_equal(text, again);
    weft_free(ids), weft_free(text), weft_free(again);
}

/* Runs two requests through a new engine; 0 when everything went well, else the code. */
static int try_all(const char *draft) {
    struct weft_engine *x;
    struct weft_error e = {0, ""};
    struct weft_engine_options options = {
        .memory_bytes = (size_t)1 << 30, .draft = draft, .draft_max = 2, .draft_always = 1, .parallel = 2};
    int code = weft_engine_open(&x, kept_model(), &options, &e);
    if (code) return code;
    for (int i = 0; i < 2 && !code; i++) {
        struct weft_request_options o = kept_ask(i ? USER("51+6=?") : USER("Hello!"));
        struct weft_answer a;
        o.max_tokens = 6;
        code = weft_generate(&a, x, &o, &e);
        if (!code) assert_string_equal(a.text, i ? "57" : "Hello! How can I help"), weft_answer_drop(&a);
        else assert_true(strlen(e.message) > 5);
    }
    struct weft_engine_stats stats;
    weft_engine_stats(x, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    weft_engine_close(x);
    return code;
}

static void any_allocation_may_fail(void **state) {
    (void)state;
    assert_int_equal(try_all("mtp"), 0);
    int n_failed = 0;
    /* once, and from there on for ever; the later ones in strides, since most of them are alike */
    for (int sticky = 0; sticky < 2; sticky++)
        for (int64_t at = 0, reached = 1; reached; at += at < 40 ? 1 : 23) {
            uint64_t before = mem_count();
            mem_fail_at(at, sticky);
            int code = try_all("mtp");
            mem_fail_at(-1, 0);
            reached = (int64_t)(mem_count() - before) > at;
            if (code) assert_true(reached && (code == WEFT_ERROR_MEMORY || code == WEFT_ERROR_INPUT)), n_failed++;
        }
    assert_true(n_failed > 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_answers_come_token_for_token),
        cmocka_unit_test(a_request_among_others_is_the_request_alone),
        cmocka_unit_test(how_a_prompt_is_cut_never_shows),
        cmocka_unit_test(a_prompt_from_the_cache_gives_the_bits_of_a_cold_one),
        cmocka_unit_test(requests_that_come_together_share_a_prefix_that_is_being_computed),
        cmocka_unit_test(a_seed_gives_the_same_text_and_another_seed_another),
        cmocka_unit_test(defaults_come_from_generation_config),
        cmocka_unit_test(a_request_can_be_cancelled_from_its_callback_and_from_outside),
        cmocka_unit_test(a_damaged_request_ends_alone),
        cmocka_unit_test(requests_that_cannot_be_are_refused_with_a_sentence),
        cmocka_unit_test(what_cannot_fit_is_refused_and_what_starts_never_fails_for_memory),
        cmocka_unit_test(decoding_steps_allocate_nothing),
        cmocka_unit_test(a_session_goes_on_as_if_it_had_never_stopped),
        cmocka_unit_test(no_tokens_wanted_means_the_prompt_is_read),
        cmocka_unit_test(an_answer_is_collected_whole),
        cmocka_unit_test(stop_texts_end_an_answer_across_tokens_and_are_no_part_of_it),
        cmocka_unit_test(reasoning_that_has_used_its_budget_is_ended),
        cmocka_unit_test(tool_calls_come_whole_and_name_the_finish),
        cmocka_unit_test(special_tokens_in_a_message_stay_text),
        cmocka_unit_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
