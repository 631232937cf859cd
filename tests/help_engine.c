#include "help_engine.h"

static struct weft_model *model;
static void close_model(void) { weft_model_close(model); }

struct weft_model *kept_model(void) {
    struct weft_error e = {0, ""};
    struct weft_model_options o = {.threads = 2, .context = 4096};
    if (!model) {
        if (weft_model_open(&model, help_source("models/tiny"), &o, &e)) fail_msg("%s", e.message);
        atexit(close_model);
    }
    return model;
}

struct weft_engine *kept_engine(const struct weft_engine_options *o) {
    struct weft_engine *x;
    struct weft_error e = {0, ""};
    struct weft_engine_options own = o ? *o : (struct weft_engine_options){0};
    if (!own.memory_bytes) own.memory_bytes = (size_t)1 << 30;
    if (weft_engine_open(&x, kept_model(), &own, &e)) fail_msg("%s", e.message);
    return x;
}

struct weft_request_options kept_ask(const char *messages) {
    struct weft_request_options o;
    weft_request_defaults(kept_model(), &o);
    o.chat = (struct weft_chat){.messages = messages, .thinking = -1};
    o.sampling.temperature = 0;
    o.max_tokens = 60, o.logprobs = 2, o.want_tokens = 1;
    return o;
}

static void append(char *to, const char *text, size_t n) {
    size_t have = strlen(to);
    assert_true(have + n < KEPT_BYTES);
    memcpy(to + have, text, n);
    to[have + n] = 0;
}

static int take(void *arg, const struct weft_event *event) {
    struct kept *k = arg;
    assert_int_equal(k->done, 0);
    if (event->kind == WEFT_EVENT_TEXT) append(k->text, event->text, event->n_bytes);
    if (event->kind == WEFT_EVENT_REASONING) append(k->reasoning, event->text, event->n_bytes);
    if (event->kind == WEFT_EVENT_PROGRESS) k->n_progress++;
    if (event->kind == WEFT_EVENT_TOOL_CALL)
        append(k->calls, event->name, strlen(event->name)), append(k->calls, event->arguments, strlen(event->arguments));
    if (event->kind == WEFT_EVENT_TOKEN) {
        assert_true(k->n < KEPT_TOKENS);
        k->tokens[k->n] = event->token, k->logprobs[k->n] = event->logprob;
        for (int i = 0; i < 2 && i < event->n_top; i++) k->top[k->n][i] = event->top[i];
        k->n++;
        return k->cancel_at > 0 && k->n == k->cancel_at;
    }
    if (event->kind == WEFT_EVENT_DONE) {
        k->result = *event->result, k->done = 1;
        assert_true(k->result.n_tokens <= KEPT_TOKENS);
        if (k->result.n_tokens) memcpy(k->result_tokens, event->result->tokens, (size_t)k->result.n_tokens * sizeof(int32_t));
        k->result.tokens = k->result_tokens;
    }
    return 0;
}

void kept_run(struct weft_engine *x, const struct weft_request_options *o, struct kept *out, int n) {
    struct weft_error e = {0, ""};
    for (int i = 0; i < n; i++) {
        struct weft_request_options own = o[i];
        int cancel_at = out[i].cancel_at;
        out[i] = (struct kept){.cancel_at = cancel_at};
        own.on_event = take, own.arg = &out[i];
        if (weft_submit(NULL, x, &own, &e)) fail_msg("%s", e.message);
    }
    int more = 1, steps = 0;
    while (more > 0 && steps++ < 20000) more = weft_engine_step(x, &e);
    if (more) fail_msg("%s", more < 0 ? e.message : "no end");
    for (int i = 0; i < n; i++) assert_int_equal(out[i].done, 1);
}

void kept_equal(const struct kept *a, const struct kept *b) {
    assert_int_equal(a->result.n_tokens, b->result.n_tokens);
    assert_memory_equal(a->result_tokens, b->result_tokens, (size_t)a->result.n_tokens * sizeof(int32_t));
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof(float));
    assert_memory_equal(a->top, b->top, (size_t)a->n * sizeof a->top[0]);
    assert_string_equal(a->text, b->text);
    assert_string_equal(a->reasoning, b->reasoning);
    assert_string_equal(a->calls, b->calls);
    assert_int_equal(a->result.finish, b->result.finish);
    assert_int_equal(a->result.stop_token, b->result.stop_token);
}

const char *kept_long_message(int n_words, const char *code) {
    static char out[4][65536];
    static int turn;
    static const char *const words[] = {"the",   "river", "was",   "slow",    "and", "old",  "stones", "lay",  "under", "green",
                                        "water", "while", "birds", "crossed", "a",   "pale", "sky",    "over", "quiet", "fields"};
    char *to = out[turn++ & 3];
    size_t n = (size_t)sprintf(to, "[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < n_words; i++) {
        if (i == n_words / 2) n += (size_t)sprintf(to + n, "The code is %s. ", code);
        n += (size_t)sprintf(to + n, "%s%s", words[(i * 7 + i / 11) % 20], i % 13 == 12 ? ". " : " ");
    }
    sprintf(to + n, "What is the code?\"}]");
    return to;
}
