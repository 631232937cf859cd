/* The trained model's recorded answers, token for token where the reference saw a gap of at least 0.3 all along: both
 * checkpoints, both precisions, drafted and plain, many in a step. Needs the goldens beside the repository. */
#include "help_test.h"

#include <jansson.h>

enum { MOST = 128, LENGTH = 120, LONG_PROMPT = 400 };

struct question { int32_t *prompt, *want; int n_prompt, n_want, n_got, wrong; const char *id; };

static int32_t *read_ids(const json_t *list, int *n) {
    *n = (int)json_array_size(list);
    int32_t *ids = calloc((size_t)*n + 1, sizeof *ids);
    for (int i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

/* Questions with wide gaps: all short ones, of the long ones every third. */
static int read_questions(json_t *file, const char *key, struct question *out) {
    int n = 0, n_long = 0;
    json_t *list = json_object_get(file, "questions");
    for (size_t i = 0; i < json_array_size(list) && n < MOST; i++) {
        const json_t *q = json_array_get(list, i), *answer = json_object_get(q, key);
        if (json_number_value(json_object_get(answer, "margin")) < 0.3) continue;
        if (json_array_size(json_object_get(q, "prompt_ids")) > LONG_PROMPT && n_long++ % 3) continue;
        struct question *x = &out[n++];
        *x = (struct question){.id = json_string_value(json_object_get(q, "id"))};
        x->prompt = read_ids(json_object_get(q, "prompt_ids"), &x->n_prompt);
        x->want = read_ids(json_object_get(answer, "ids"), &x->n_want);
    }
    return n;
}

static int take(void *arg, const struct weft_event *event) {
    struct question *q = arg;
    if (event->kind == WEFT_EVENT_DONE) {
        const struct weft_result *r = event->result;
        q->n_got = r->n_tokens;
        q->wrong = r->finish == WEFT_FINISH_ERROR || r->n_tokens != q->n_want ||
                   memcmp(r->tokens, q->want, (size_t)q->n_want * sizeof *q->want);
    }
    return 0;
}

static void ask_all(struct weft_model *m, const char *draft, struct question *q, int n, const char *what) {
    struct weft_error e = {0, ""};
    struct weft_engine *x;
    struct weft_engine_options options = {.memory_bytes = (size_t)2 << 30, .draft = draft};
    if (weft_engine_open(&x, m, &options, &e)) fail_msg("%s", e.message);
    for (int i = 0; i < n; i++) {
        struct weft_request_options o;
        weft_request_defaults(m, &o);
        o.tokens = q[i].prompt, o.n_tokens = q[i].n_prompt, o.max_tokens = LENGTH, o.sampling.temperature = 0;
        o.on_event = take, o.arg = &q[i];
        q[i].wrong = 1;
        if (weft_submit(NULL, x, &o, &e)) fail_msg("%s: %s", q[i].id, e.message);
    }
    int more;
    while ((more = weft_engine_step(x, &e)) > 0) continue;
    if (more) fail_msg("%s", e.message);
    int n_wrong = 0;
    for (int i = 0; i < n; i++)
        if (q[i].wrong) n_wrong++, print_message("%s: %s differs\n", what, q[i].id);
    print_message("%s: %d of %d answers\n", what, n - n_wrong, n);
    assert_int_equal(n_wrong, 0);
    weft_engine_close(x);
}

static void compare(const char *folder, const char *key, int precision, const char *draft) {
    const char *checkpoint = help_shared(folder), *answers = help_shared("goldens/tiny/questions.json");
    if (!checkpoint || !answers) skip();
    json_t *file = json_load_file(answers, 0, NULL);
    struct question q[MOST];
    struct weft_model *m;
    struct weft_error e = {0, ""};
    int n = read_questions(file, key, q);
    assert_true(n > 70);
    if (weft_model_open(&m, checkpoint, &(struct weft_model_options){.threads = 2, .precision = precision, .context = 4096}, &e))
        fail_msg("%s", e.message);
    char what[128];
    snprintf(what, sizeof what, "%s, precision %d, %s", key, precision, draft ? draft : "plain");
    ask_all(m, draft, q, n, what);
    for (int i = 0; i < n; i++) free(q[i].prompt), free(q[i].want);
    weft_model_close(m);
    json_decref(file);
}

static void bf16_weights_answer_as_recorded(void **state) {
    (void)state;
    compare("checkpoints/tiny", "fp32", WEFT_PRECISION_DEFAULT, NULL);
}
static void bf16_weights_answer_as_recorded_in_high_precision(void **state) {
    (void)state;
    compare("checkpoints/tiny", "fp32", WEFT_PRECISION_HIGH, "ngram");
}
static void integer_weights_answer_as_recorded(void **state) {
    (void)state;
    compare("checkpoints/tiny-mlx", "tiny-mlx", WEFT_PRECISION_DEFAULT, "mtp");
}
static void integer_weights_answer_as_recorded_in_high_precision(void **state) {
    (void)state;
    compare("checkpoints/tiny-mlx", "tiny-mlx", WEFT_PRECISION_HIGH, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_weights_answer_as_recorded),
        cmocka_unit_test(bf16_weights_answer_as_recorded_in_high_precision),
        cmocka_unit_test(integer_weights_answer_as_recorded),
        cmocka_unit_test(integer_weights_answer_as_recorded_in_high_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
