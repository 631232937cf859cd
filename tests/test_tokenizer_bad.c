/* tokenizer.json files that are wrong, and memory that ends. */
#include "help_test.h"

#include "base/mem.h"
#include "help_tokenizer.h"
#include "text/tokenizer.h"

static void must_refuse(const char *json, size_t n, int code, const char *part) {
    struct weft_error e = {0};
    struct tokenizer *t = (void *)1;
    int got = tokenizer_open_bytes(&t, json, n, "made.json", &e);
    if (got != code || e.code != code || t || !strstr(e.message, "made.json") || !strstr(e.message, part))
        fail_msg("%d \"%s\" instead of %d \"%s\"", got, e.message, code, part);
}

static void must_refuse_parts(struct help_tokenizer parts, int code, const char *part) {
    struct buf json = {0};
    help_write_tokenizer(&json, &parts);
    must_refuse(json.data, json.n, code, part);
    buf_drop(&json);
}

enum { BAD = WEFT_ERROR_INPUT, NOT_YET = WEFT_ERROR_SUPPORT };

static void a_broken_merge_or_vocabulary_is_refused_with_the_entry(void **state) {
    (void)state;
    static const struct { const char *vocab, *merges; const char *part; } cases[] = {
        {NULL, "[\"a b\"]", "model.merges[0]: what it makes is not in model.vocab"},
        {", \"ab\": 256", "[\"a b\", \"abc d\"]", "model.merges[1]: its first part is not in model.vocab"},
        {", \"ab\": 256", "[\"a b\", \"d abc\"]", "model.merges[1]: its second part is not in model.vocab"},
        {", \"ab\": 256", "[\"ab\"]", "model.merges[0] is not two pieces of byte letters"},
        {", \"ab\": 256", "[\"a b c\"]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[[\"a\"]]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[[\"a\", \"b\", \"c\"]]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[[\"a\", 5]]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[7]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[\"a \\ud800\"]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[\"a \\u4e2d\"]", "model.merges[0] is not two pieces"},
        {", \"ab\": 256", "[\" b\"]", "model.merges[0]: its first part"},
        {", \"ab\": 256", "[\"a b\" \"a b\"]", "model.merges is malformed after entry 0"},
        {", \"ab\": 256", "{\"a\": 1}", "model.merges is not a list"},
        {", \"ab\": 256", "null", "model.merges is not a list"},
        {", \"ab\": 97", NULL, "entry 256 has id 97, which another entry has too"},
        {", \"a\": 256", NULL, "ids 97 and 256 have the same text"},
        {", \"ab\": -1", NULL, "entry 256 has id -1, outside 0 to "},
        {", \"ab\": 4194304", NULL, "entry 256 has id 4194304, outside"},
        {", \"ab\": 90000", NULL, "entry 256 has id 90000, outside"},
        {", \"ab\": 99999999999999999999", NULL, "the id of entry 256 (\"ab\") is not an integer"},
        {", \"ab\": 1.5", NULL, "the id of entry 256 (\"ab\") is not an integer"},
        {", \"ab\": \"5\"", NULL, "the id of entry 256 (\"ab\") is not an integer"},
        {", \"ab\": null", NULL, "the id of entry 256 (\"ab\") is not an integer"},
        {", 7: 256", NULL, "entry 256 is malformed"},
        {", \"a\\x\": 256", NULL, "entry 256 is malformed"},
        {", \"\xff\": 256", NULL, "entry 256 is not UTF-8"},
        {", ", NULL, "entry 256 is malformed"},
        {", \"ab\": 256}, \"vocab\": {\"x\": 1", NULL, "stands twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        must_refuse_parts((struct help_tokenizer){.vocab = cases[i].vocab, .merges = cases[i].merges}, BAD, cases[i].part);
}

static void added_tokens_that_are_wrong_are_refused_with_the_entry(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "added_tokens is not a list"},
        {"[5]", "added_tokens[0] is not an object"},
        {"[{\"content\": \"x\"}]", "added_tokens[0]: \"id\" is missing"},
        {"[{\"id\": 300}]", "added_tokens[0]: \"content\" is not text"},
        {"[{\"id\": 300, \"content\": \"\"}]", "added_tokens[0]: \"content\" is empty"},
        {"[{\"id\": 300, \"content\": 5}]", "added_tokens[0]: \"content\" is not text"},
        {"[{\"id\": 300, \"content\": \"<x>\", \"special\": 1}]", "added_tokens[0]: \"special\" is not true or false"},
        {"[{\"id\": 97, \"content\": \"<x>\"}]", "added_tokens[0] has id 97, which another entry has too"},
        {"[{\"id\": 300, \"content\": \"a\"}]", "added_tokens[0] has id 300, but model.vocab gives it 97"},
        {"[{\"id\": 300, \"content\": \"<x>\"}, {\"id\": 300, \"content\": \"<y>\"}]",
         "added_tokens[1] has id 300, which another"},
        {"[{\"id\": 300, \"content\": \"<x>\"}, {\"id\": 301, \"content\": \"<x>\"}]",
         "added_tokens[1]: another added token has"},
        {"[{\"id\": 3000000000, \"content\": \"<x>\"}]", "added_tokens[0]: \"id\" is 3000000000, outside"},
        {"[{\"id\": -5, \"content\": \"<x>\"}]", "added_tokens[0]: \"id\" is -5, outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        must_refuse_parts((struct help_tokenizer){.added = cases[i][0]}, BAD, cases[i][1]);
}

#define SEQUENCE(x) "{\"type\": \"Sequence\", \"pretokenizers\": [" x "{\"type\": \"ByteLevel\", \"use_regex\": false}]}"
#define SPLIT(pattern, more) "{\"type\": \"Split\", \"pattern\": " pattern ", \"behavior\": " more "},"
static void what_this_version_does_not_do_is_refused_by_name(void **state) {
    (void)state;
    must_refuse_parts((struct help_tokenizer){.normalizer = "{\"type\": \"Lowercase\"}"}, NOT_YET, "normalizer \"Lowercase\"");
    must_refuse_parts((struct help_tokenizer){.normalizer = "[]"}, NOT_YET, "normalizer");
    must_refuse_parts((struct help_tokenizer){.split = "{\"type\": \"Whitespace\"}"}, NOT_YET, "pre_tokenizer \"Whitespace\"");
    must_refuse_parts((struct help_tokenizer){.split = "null"}, NOT_YET, "no ByteLevel");
    must_refuse_parts((struct help_tokenizer){.split = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"}, NOT_YET,
                      "add_prefix");
    must_refuse_parts((struct help_tokenizer){.split = SEQUENCE(SPLIT("{\"Regex\": \"a\"}", "\"Removed\""))}, NOT_YET,
                      "Isolated");
    must_refuse_parts((struct help_tokenizer){.split = SEQUENCE(SPLIT("{\"Regex\": \"(\"}", "\"Isolated\""))}, BAD,
                      "split pattern \"(\"");
    must_refuse_parts((struct help_tokenizer){.split = SEQUENCE(SPLIT("{\"Regex\": 5}", "\"Isolated\""))}, BAD,
                      "neither a Regex");
    must_refuse_parts((struct help_tokenizer){.model = ", \"type\": \"Unigram\""}, NOT_YET, "model.type \"Unigram\"");
    must_refuse_parts((struct help_tokenizer){.model = ", \"byte_fallback\": true"}, NOT_YET, "model.byte_fallback");
    must_refuse_parts((struct help_tokenizer){.model = ", \"dropout\": 0.1"}, NOT_YET, "model.dropout");
    must_refuse_parts((struct help_tokenizer){.model = ", \"ignore_merges\": 3"}, BAD, "ignore_merges");
}

static void a_file_that_is_no_tokenizer_is_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "bad JSON"},
        {"{", "bad JSON"},
        {"[]", "not a"},
        {"5", "not a"},
        {"{}", "model is not an object"},
        {"nul", "bad JSON"},
        {"{\"model\": 5}", "model is not an object"},
        {"{\"model\": {\"vocab\": ", "bad JSON"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {}}", "model.vocab is missing"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {}}}", "model.vocab is empty"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": []}}", "model.vocab is not an object"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0}}}", "model.merges is missing"},
        {"{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}",
         "no entry for the byte 0x00"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) must_refuse(cases[i][0], strlen(cases[i][0]), BAD, cases[i][1]);
    struct weft_error e = {0};
    struct tokenizer *t;
    assert_int_equal(tokenizer_open(&t, "/nowhere/tokenizer.json", &e), WEFT_ERROR_INPUT);
    assert_non_null(strstr(e.message, "/nowhere/tokenizer.json"));
}

static void every_truncation_of_a_file_is_refused(void **state) {
    (void)state;
    struct buf json = {0};
    help_write_tokenizer(&json, &(struct help_tokenizer){.vocab = ", \"ab\": 256", .merges = "[\"a b\"]",
                                                         .added = "[{\"id\": 300, \"content\": \"<x>\"}]"});
    for (size_t n = 0; n < json.n; n++) {
        char *copy = malloc(n + 1); /* of its own, so that reading beyond it is seen */
        memcpy(copy, json.data, n);
        must_refuse(copy, n, BAD, "made.json");
        free(copy);
    }
    buf_drop(&json);
}

/* Opens, encodes and decodes with the nth allocation failing; what it allocated must be freed, which the leak check of the
 * sanitizer build sees. Returns 1 when nothing failed. */
static int open_and_use(const struct buf *json, int64_t nth) {
    struct weft_error e = {0};
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct buf text = {0};
    static const char input[] =
        "abab <x> caf\x65\xCC\x81 ababababababababababababababababababababababababababababababababababababab";
    mem_fail_at(nth, 0);
    int code = tokenizer_open_bytes(&t, json->data, json->n, "made.json", &e);
    assert_true(code == 0 ? t != NULL : t == NULL);
    if (!code) code = tokenizer_encode(t, input, sizeof input - 1, TOKENIZER_ADDED_ALL, &ids, &e);
    if (code) assert_int_equal(ids.n, 0);
    if (!code) code = tokenizer_decode(t, ids.ids, ids.n, 0, &text, &e);
    mem_fail_at(-1, 0);
    if (code) assert_int_equal(code, WEFT_ERROR_MEMORY);
    else assert_true(text.n == sizeof input - 2 && ids.n > 5); /* the e and its accent have become one */
    tokenizer_close(t);
    token_list_drop(&ids), buf_drop(&text);
    return code == 0;
}

static void memory_that_ends_at_any_allocation_is_one_error_and_nothing_leaks(void **state) {
    (void)state;
    static const char *const splits[] = {
        NULL, SEQUENCE(SPLIT("{\"Regex\": \"\\\\s+\"}", "\"Isolated\"") SPLIT("{\"String\": \"a.\"}", "\"Isolated\""))};
    for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
        struct buf json = {0};
        help_write_tokenizer(&json, &(struct help_tokenizer){.vocab = ", \"ab\": 256", .merges = "[\"a b\"]", .split = splits[k],
                                                             .added = "[{\"id\": 300, \"content\": \"<x>\"}]"});
        int64_t nth = 0;
        while (!open_and_use(&json, nth)) assert_true(++nth < 20000);
        assert_true(nth > 20);
        buf_drop(&json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_merge_or_vocabulary_is_refused_with_the_entry),
        cmocka_unit_test(added_tokens_that_are_wrong_are_refused_with_the_entry),
        cmocka_unit_test(what_this_version_does_not_do_is_refused_by_name),
        cmocka_unit_test(a_file_that_is_no_tokenizer_is_refused),
        cmocka_unit_test(every_truncation_of_a_file_is_refused),
        cmocka_unit_test(memory_that_ends_at_any_allocation_is_one_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
