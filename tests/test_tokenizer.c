#include "help_test.h"

#include "base/json.h"
#include "base/mem.h"
#include "text/decode_stream.h"
#include "text/decode_utf8.h"
#include "text/tokenizer.h"

static struct tokenizer *open_or_die(const char *path) {
    struct weft_error e = {0};
    struct tokenizer *t = NULL;
    if (tokenizer_open(&t, path, &e)) fail_msg("%s", e.message);
    return t;
}

static json_t *read_or_die(const char *path) {
    struct weft_error e = {0};
    json_t *o = NULL;
    if (json_read_file(&o, path, 64 << 20, &e)) fail_msg("%s", e.message);
    return o;
}

/* ---- goldens ---- */

static struct token_list ids_of(const json_t *list) {
    struct token_list ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) token_list_add(&ids, (int32_t)json_integer_value(json_array_get(list, i)));
    return ids;
}

static int check_encode(struct tokenizer *t, const json_t *text, enum tokenizer_added added, const json_t *want, const char *name) {
    struct token_list ids = {0}, expected = ids_of(want);
    struct weft_error e = {0};
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), added, &ids, &e)) fail_msg("%s: %s", name, e.message);
    int same = ids.n == expected.n && (ids.n == 0 || memcmp(ids.ids, expected.ids, ids.n * sizeof *ids.ids) == 0);
    if (!same) print_error("%s, mode %d: %zu ids, expected %zu\n", name, added, ids.n, expected.n);
    token_list_drop(&ids), token_list_drop(&expected);
    return same;
}

/* One-shot and token by token; what the stream has given out is whole characters after every token. */
static int check_decode(struct tokenizer *t, const json_t *list, int skip_special, const json_t *want, const char *name) {
    struct token_list ids = ids_of(list);
    struct buf once = {0}, streamed = {0};
    struct weft_error e = {0};
    struct decode_stream s = {0};
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, skip_special, &once, &e), 0);
    int same = 1;
    for (size_t i = 0; i < ids.n; i++) {
        decode_stream_add_token(&s, t, ids.ids[i], skip_special, &streamed);
        same &= utf8_good_bytes((const uint8_t *)streamed.data, streamed.n) == streamed.n;
    }
    decode_stream_end(&s, &streamed);
    size_t n = json_string_length(want);
    same &= once.n == n && streamed.n == n && (n == 0 || memcmp(once.data, json_string_value(want), n) == 0);
    same &= n == 0 || memcmp(streamed.data, json_string_value(want), n) == 0;
    if (!same) print_error("%s, decode, skip %d: %zu and %zu bytes, expected %zu\n", name, skip_special, once.n, streamed.n, n);
    token_list_drop(&ids), buf_drop(&once), buf_drop(&streamed);
    return same;
}

static const json_t *or_else(const json_t *o, const char *key, const json_t *otherwise) {
    const json_t *v = json_object_get(o, key);
    return v ? v : otherwise;
}

/* Returns how many of the goldens differ. */
static int check_goldens(struct tokenizer *t, const json_t *texts, const json_t *golden) {
    const json_t *rows = json_object_get(golden, "texts"), *decodes = json_object_get(golden, "decodes");
    const json_t *inputs = json_object_get(texts, "texts");
    int bad = 0;
    assert_true(json_array_size(rows) == json_array_size(inputs) && json_array_size(rows) > 0);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *text = json_object_get(json_array_get(inputs, i), "text");
        const char *name = json_string_value(json_object_get(row, "name"));
        const json_t *ids = json_object_get(row, "ids"), *decoded = or_else(row, "decoded", text);
        assert_string_equal(name, json_string_value(json_object_get(json_array_get(inputs, i), "name")));
        bad += !check_encode(t, text, TOKENIZER_ADDED_ALL, ids, name);
        bad += !check_encode(t, text, TOKENIZER_ADDED_PLAIN, or_else(row, "ids_special_as_text", ids), name);
        bad += !check_encode(t, text, TOKENIZER_ADDED_NONE, or_else(row, "ids_all_as_text", ids), name);
        bad += !check_decode(t, ids, 0, decoded, name);
        bad += !check_decode(t, ids, 1, or_else(row, "decoded_skip_special", decoded), name);
    }
    for (size_t i = 0; i < json_array_size(decodes); i++) {
        const json_t *row = json_array_get(decodes, i), *text = json_object_get(row, "text");
        bad += !check_decode(t, json_object_get(row, "ids"), 0, text, "decodes");
        bad += !check_decode(t, json_object_get(row, "ids"), 1, or_else(row, "text_skip_special", text), "decodes");
    }
    return bad;
}

static void check_golden_files(const char *tokenizer, const char *texts, const char *golden) {
    struct tokenizer *t = open_or_die(tokenizer);
    json_t *a = read_or_die(texts), *b = read_or_die(golden);
    int bad = check_goldens(t, a, b);
    json_decref(a), json_decref(b);
    tokenizer_close(t);
    assert_int_equal(bad, 0);
}

static void the_bundled_vocabulary_gives_the_reference_ids_and_texts(void **state) {
    (void)state;
    check_golden_files(help_source("models/tiny/tokenizer.json"), help_source("tests/data/tokenizer_texts.json"),
                       help_source("tests/data/tokenizer_tiny.json"));
}

static void every_golden_of_the_bundled_vocabulary_holds(void **state) {
    (void)state;
    const char *texts = help_shared("goldens/tokenizer/texts.json");
    if (!texts) skip();
    check_golden_files(help_source("models/tiny/tokenizer.json"), texts, help_shared("goldens/tokenizer/tiny.json"));
}

/* The published vocabulary is 11 MB and not in the repository: WEFT_QWEN_TOKENIZER names a tokenizer.json. */
static void every_golden_of_the_published_vocabulary_holds(void **state) {
    (void)state;
    const char *texts = help_shared("goldens/tokenizer/texts.json"), *path = getenv("WEFT_QWEN_TOKENIZER");
    if (!texts || !path) skip();
    check_golden_files(path, texts, help_shared("goldens/tokenizer/qwen.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bundled_vocabulary_gives_the_reference_ids_and_texts),
        cmocka_unit_test(every_golden_of_the_bundled_vocabulary_holds),
        cmocka_unit_test(every_golden_of_the_published_vocabulary_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
