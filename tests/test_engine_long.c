/* Many requests of all kinds through an engine that is short of everything: each gets what it gets alone. */
#include "help_engine.h"

enum { TEXTS = 5, WAYS = 3, LENGTH = 24, REQUESTS = 60 };

static char texts[TEXTS][8192];
static struct kept alone[TEXTS][WAYS];

static struct weft_request_options ask(int text, int way) {
    struct weft_request_options o = kept_ask(texts[text]);
    o.ignore_eos = 1, o.max_tokens = LENGTH;
    if (way == 1) o.sampling.temperature = 1, o.sampling.seed = (uint64_t)text, o.sampling.top_p = 0.9f;
    if (way == 2) o.sampling.repetition_penalty = 1.2f, o.sampling.repetition_context = -1;
    return o;
}

static int prepare(void **state) {
    (void)state;
    const char *base = kept_long_message(90, "K7Q2");
    size_t n = strlen(base) - strlen("\"}]");
    for (int i = 0; i < TEXTS; i++) /* the same beginning, then their own ends of different lengths */
        sprintf(texts[i], "%.*s %.*s\"}]", (int)n, base, 30 * i,
                "And one more thing: how slow was the river, how old were the stones, who crossed the pale sky over the quiet "
                "fields?");
    strcpy(texts[TEXTS - 1], "[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]");
    struct weft_engine *x = kept_engine(&(struct weft_engine_options){.without_prefix_cache = 1});
    for (int t = 0; t < TEXTS; t++)
        for (int w = 0; w < WAYS; w++) {
            struct weft_request_options o = ask(t, w);
            kept_run(x, &o, &alone[t][w], 1);
        }
    weft_engine_close(x);
    return 0;
}

struct job { int text, way, max_tokens, cancel_at, n, done; struct crowd *crowd; };
struct crowd { struct weft_engine *x; struct job jobs[REQUESTS]; int next; unsigned seed; };

static unsigned draw(struct crowd *c, unsigned n) { return (c->seed = c->seed * 1664525u + 1013904223u) / 65536 % n; }

static void submit_next(struct crowd *c);

static int on_event(void *arg, const struct weft_event *event) {
    struct job *j = arg;
    const struct kept *want = &alone[j->text][j->way];
    if (event->kind == WEFT_EVENT_TOKEN) {
        assert_true(j->n < j->max_tokens);
        assert_int_equal(event->token, want->tokens[j->n]);
        assert_memory_equal(&event->logprob, &want->logprobs[j->n], sizeof(float));
        return ++j->n == j->cancel_at;
    }
    if (event->kind == WEFT_EVENT_DONE) {
        const struct weft_result *r = event->result;
        if (r->error.code && r->error.code != WEFT_ERROR_CANCELLED) fail_msg("%s", r->error.message);
        assert_int_equal(r->error.code, j->cancel_at && j->cancel_at <= j->max_tokens ? WEFT_ERROR_CANCELLED : 0);
        assert_int_equal(r->n_tokens, r->error.code ? j->cancel_at : j->max_tokens);
        j->done = 1;
        submit_next(j->crowd);
    }
    return 0;
}

static void submit_next(struct crowd *c) {
    if (c->next == REQUESTS) return;
    struct job *j = &c->jobs[c->next++];
    struct weft_error e = {0, ""};
    *j = (struct job){.text = (int)draw(c, TEXTS), .way = (int)draw(c, WAYS), .max_tokens = 1 + (int)draw(c, LENGTH), .crowd = c};
    if (draw(c, 5) == 0) j->cancel_at = 1 + (int)draw(c, 12);
    struct weft_request_options o = ask(j->text, j->way);
    o.max_tokens = j->max_tokens, o.on_event = on_event, o.arg = j;
    o.without_prefix_cache = draw(c, 4) == 0, o.without_draft = draw(c, 4) == 0;
    if (weft_submit(NULL, c->x, &o, &e)) fail_msg("%s", e.message);
}

static void run_crowd(const char *draft, const char *second, size_t sequences_bytes, int parallel, int chunk, unsigned seed) {
    struct weft_model_info info;
    struct weft_model *small = NULL;
    weft_model_info(kept_model(), &info);
    if (second)
        assert_int_equal(
            weft_model_open(&small, help_source(second), &(struct weft_model_options){.threads = 2, .context = 4096}, NULL), 0);
    size_t fixed = info.packed_bytes + info.mapped_bytes + info.workspace_bytes;
    struct crowd c = {.seed = seed};
    c.x = kept_engine(&(struct weft_engine_options){.memory_bytes = fixed + sequences_bytes,
                                                    .cache_bytes = sequences_bytes / 3,
                                                    .parallel = parallel,
                                                    .prefill_chunk = chunk,
                                                    .draft = draft,
                                                    .draft_model = small,
                                                    .draft_max = 5,
                                                    .draft_always = seed & 1,
                                                    .snapshot_every = 64});
    for (int i = 0; i < 20; i++) submit_next(&c);
    int more = 1;
    struct weft_error e = {0, ""};
    for (int steps = 0; more > 0 && steps < 20000; steps++) more = weft_engine_step(c.x, &e);
    if (more) fail_msg("%s", more < 0 ? e.message : "no end");
    for (int i = 0; i < REQUESTS; i++) assert_int_equal(c.jobs[i].done, 1);
    struct weft_engine_stats stats;
    weft_engine_stats(c.x, &stats);
    assert_int_equal(stats.reserved_bytes, 0);
    assert_true(stats.peak_used_bytes <= stats.memory_bytes);
    if (sequences_bytes >> 20 > 50) assert_true(stats.cached_tokens > 0); /* less holds no snapshots for long */
    weft_engine_close(c.x);
    weft_model_close(small);
}

static void short_of_memory(void **state) { (void)state; run_crowd("mtp", NULL, (size_t)9 << 20, 6, 50, 3); }
static void short_of_room_in_a_step(void **state) { (void)state; run_crowd("ngram", NULL, (size_t)200 << 20, 16, 16, 4); }
static void with_room_for_all(void **state) { (void)state; run_crowd("mtp", NULL, (size_t)800 << 20, 32, 512, 6); }
static void with_a_second_model(void **state) { (void)state; run_crowd("model", "models/tiny", (size_t)60 << 20, 5, 100, 5); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_of_memory),
        cmocka_unit_test(short_of_room_in_a_step),
        cmocka_unit_test(with_room_for_all),
        cmocka_unit_test(with_a_second_model),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
