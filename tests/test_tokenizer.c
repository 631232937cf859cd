#include "help_test.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/json.h"
#include "help_tokenizer.h"
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

static int check_encode(struct tokenizer *t, const json_t *text, enum tokenizer_added added, const json_t *want,
                        const char *name) {
    struct token_list ids = {0}, expected = ids_of(want);
    struct weft_error e = {0};
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), added, &ids, &e))
        fail_msg("%s: %s", name, e.message);
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

/* ---- made to order ---- */

static struct tokenizer *make(const struct help_tokenizer *parts) {
    struct weft_error e = {0};
    struct buf json = {0};
    struct tokenizer *t = NULL;
    help_write_tokenizer(&json, parts);
    if (tokenizer_open_bytes(&t, json.data, json.n, "made.json", &e)) fail_msg("%s", e.message);
    buf_drop(&json);
    return t;
}

/* The ids of a text, written with a space after each. */
static const char *say_ids(struct tokenizer *t, const char *text, enum tokenizer_added added) {
    static char said[512];
    struct token_list ids = {0};
    struct weft_error e = {0};
    said[0] = 0;
    if (tokenizer_encode(t, text, strlen(text), added, &ids, &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < ids.n; i++) snprintf(said + strlen(said), sizeof said - strlen(said), "%d ", ids.ids[i]);
    token_list_drop(&ids);
    return said;
}

static void the_rank_of_a_merge_is_its_place_whatever_the_ids(void **state) {
    (void)state;
    struct tokenizer *t = make(&(struct help_tokenizer){.vocab = ", \"ab\": 300, \"bc\": 299, \"abc\": 298",
                                                        .merges = "[\"b c\", \"a b\", \"a bc\"]"});
    assert_string_equal(say_ids(t, "abc", TOKENIZER_ADDED_ALL), "298 ");
    assert_string_equal(say_ids(t, "abd", TOKENIZER_ADDED_ALL), "300 100 ");
    tokenizer_close(t);
}

static void merges_may_be_texts_or_pairs(void **state) {
    (void)state;
    struct help_tokenizer parts = {.vocab = ", \"ab\": 256, \"\\u0120ab\": 257", .merges = "[\"a b\", \"\\u0120 ab\"]"};
    struct tokenizer *t = make(&parts);
    assert_string_equal(say_ids(t, "ab ab", TOKENIZER_ADDED_ALL), "256 257 ");
    tokenizer_close(t);
    parts.merges = "[[\"a\", \"b\"], [\"\u0120\", \"ab\"]]";
    t = make(&parts);
    assert_string_equal(say_ids(t, "ab ab", TOKENIZER_ADDED_ALL), "256 257 ");
    tokenizer_close(t);
}

static void a_piece_that_no_merge_makes_is_one_token_only_when_merges_are_ignored(void **state) {
    (void)state;
    struct help_tokenizer parts = {.vocab = ", \"abc\": 256"};
    struct tokenizer *t = make(&parts);
    for (int i = 0; i < 2; i++) assert_string_equal(say_ids(t, "abc", TOKENIZER_ADDED_ALL), "97 98 99 ");
    tokenizer_close(t);
    parts.model = ", \"ignore_merges\": true";
    t = make(&parts);
    assert_string_equal(say_ids(t, "abc", TOKENIZER_ADDED_ALL), "256 ");
    tokenizer_close(t);
}

static void added_tokens_match_longest_first_and_in_the_text_as_given(void **state) {
    (void)state;
    struct tokenizer *t = make(&(struct help_tokenizer){
        .added = "[{\"id\": 300, \"content\": \"<a>\", \"special\": true, \"normalized\": false},"
                 "{\"id\": 301, \"content\": \"<a><b>\", \"special\": false, \"normalized\": false}, "
                 "{\"id\": 302, \"content\": \"\u00e9\u00e9\", \"special\": false, \"normalized\": true}]"});
    assert_string_equal(say_ids(t, "<a><b><a>", TOKENIZER_ADDED_ALL), "301 300 ");
    assert_string_equal(say_ids(t, "<a><b><a>", TOKENIZER_ADDED_PLAIN), "301 60 97 62 ");
    assert_string_equal(say_ids(t, "<a>", TOKENIZER_ADDED_NONE), "60 97 62 ");
    assert_string_equal(say_ids(t, "e\xCC\x81\xC3\xA9", TOKENIZER_ADDED_ALL), "302 "); /* searched once it is normal */
    assert_int_equal(tokenizer_find(t, "<a>", 3), 300);
    assert_int_equal(tokenizer_find(t, "b", 1), 'b');
    assert_int_equal(tokenizer_find(t, "bb", 2), -1);
    assert_int_equal(tokenizer_size(t), 303);
    assert_true(tokenizer_is_special(t, 300) && tokenizer_is_added(t, 301) && !tokenizer_is_special(t, 301));
    assert_false(tokenizer_is_added(t, 97) || tokenizer_is_added(t, -1) || tokenizer_is_special(t, 1 << 30));
    size_t n;
    assert_memory_equal(tokenizer_bytes(t, 301, &n), "<a><b>", 6);
    assert_null(tokenizer_bytes(t, 299, &n));
    tokenizer_close(t);
}

static void added_tokens_take_the_space_beside_them_and_whole_words_as_they_say(void **state) {
    (void)state;
    struct tokenizer *t = make(&(struct help_tokenizer){
        .added = "[{\"id\": 300, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false},"
                 "{\"id\": 301, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false},"
                 "{\"id\": 302, \"content\": \"word\", \"single_word\": true, \"normalized\": false}]"});
    assert_string_equal(say_ids(t, "a \n<l> b", TOKENIZER_ADDED_ALL), "97 300 32 98 ");
    assert_string_equal(say_ids(t, "a <r> \xE3\x80\x80" "b", TOKENIZER_ADDED_ALL), "97 32 301 98 ");
    assert_string_equal(say_ids(t, "<r>  <l>", TOKENIZER_ADDED_ALL), "301 300 ");
    assert_string_equal(say_ids(t, "word.", TOKENIZER_ADDED_ALL), "302 46 ");
    assert_string_equal(say_ids(t, "words", TOKENIZER_ADDED_ALL), "119 111 114 100 115 ");
    assert_string_equal(say_ids(t, "\xC3\xA9word", TOKENIZER_ADDED_ALL), "195 169 119 111 114 100 ");
    tokenizer_close(t);
}

/* ---- long pieces, threads, streams ---- */

/* Merges by looking for the lowest rank from the left again and again; ids of the bundled vocabulary by content. */
static void long_pieces_merge_as_short_ones_do(void **state) {
    (void)state;
    struct tokenizer *t = make(&(struct help_tokenizer){
        .vocab = ", \"aa\": 256, \"aaaa\": 257, \"ab\": 258, \"ba\": 259, \"aba\": 260, \"bb\": 261, \"abab\": 262",
        .merges = "[\"a b\", \"a a\", \"aa aa\", \"b a\", \"ab a\", \"b b\", \"ab ab\"]"});
    /* a pair's rank by its ids; what it makes has the same number, through `made` */
    static const int left[] = {97, 97, 256, 98, 258, 98, 258}, right[] = {98, 97, 256, 97, 97, 98, 258};
    static const int made[] = {258, 256, 257, 259, 260, 261, 262};
    uint32_t seed = 1;
    for (int round = 0; round < 300; round++) {
        char text[400];
        int ids[400], n = 1 + (int)(seed >> 8) % 399, n_text = n;
        for (int i = 0; i < n; i++) seed = seed * 1664525 + 1013904223, ids[i] = text[i] = (seed >> 24) % 3 ? 'a' : 'b';
        for (;;) {
            int best = 7, at = -1;
            for (int i = 0; i + 1 < n; i++)
                for (int r = 0; r < best; r++)
                    if (ids[i] == left[r] && ids[i + 1] == right[r]) best = r, at = i;
            if (at < 0) break;
            ids[at] = made[best];
            memmove(ids + at + 1, ids + at + 2, (size_t)(--n - at - 1) * sizeof *ids);
        }
        struct token_list got = {0};
        struct weft_error e = {0};
        assert_int_equal(tokenizer_encode(t, text, (size_t)n_text, TOKENIZER_ADDED_ALL, &got, &e), 0);
        assert_int_equal(got.n, n);
        assert_memory_equal(got.ids, ids, (size_t)n * sizeof *ids);
        token_list_drop(&got);
    }
    tokenizer_close(t);
}

static void a_megabyte_without_a_break_is_encoded_in_good_time(void **state) {
    (void)state;
    struct tokenizer *t = open_or_die(help_source("models/tiny/tokenizer.json"));
    struct token_list ids = {0};
    struct weft_error e = {0};
    size_t n = 1 << 20;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + i * i / 7 % 26);
    double start = clock_ms();
    assert_int_equal(tokenizer_encode(t, text, n, TOKENIZER_ADDED_ALL, &ids, &e), 0);
    assert_true(clock_ms() - start < 10000);
    struct buf back = {0};
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, 0, &back, &e), 0);
    assert_int_equal(back.n, n);
    assert_memory_equal(back.data, text, n);
    free(text);
    buf_drop(&back), token_list_drop(&ids);
    tokenizer_close(t);
}

struct shared_use { struct tokenizer *t; const json_t *texts, *golden; int bad; };
static void *use_it(void *arg) {
    struct shared_use *u = arg;
    for (int i = 0; i < 3; i++) u->bad += check_goldens(u->t, u->texts, u->golden);
    return NULL;
}

static void many_threads_may_use_one_tokenizer(void **state) {
    (void)state;
    struct tokenizer *t = open_or_die(help_source("models/tiny/tokenizer.json"));
    json_t *texts = read_or_die(help_source("tests/data/tokenizer_texts.json"));
    json_t *golden = read_or_die(help_source("tests/data/tokenizer_tiny.json"));
    struct shared_use uses[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        uses[i] = (struct shared_use){t, texts, golden, 0};
        assert_int_equal(pthread_create(threads + i, NULL, use_it, uses + i), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(uses[i].bad, 0);
    }
    json_decref(texts), json_decref(golden);
    tokenizer_close(t);
}

static void check_stream(const char *bytes, size_t n, const char *want) {
    for (size_t first = 0; first <= n; first++)
        for (size_t second = first; second <= n; second++) {
            struct decode_stream s = {0};
            struct buf out = {0};
            decode_stream_add(&s, bytes, first, &out);
            decode_stream_add(&s, bytes + first, second - first, &out);
            decode_stream_add(&s, bytes + second, n - second, &out);
            decode_stream_end(&s, &out);
            assert_string_equal(out.data ? out.data : "", want);
            buf_drop(&out);
        }
}

#define BAD "\xEF\xBF\xBD"
static void bad_bytes_become_replacement_characters_wherever_the_stream_is_cut(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", ""}, {"plain", "plain"}, {"\xE2\x82\xAC\xF0\x9F\x98\x80", "\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"\xE2\x82", BAD}, {"\xE2\x82" "a", BAD "a"}, {"\xF0\x9F\x98\xF0\x9F\x98\x80", BAD "\xF0\x9F\x98\x80"},
        {"\x80\xBF", BAD BAD}, {"\xC0\xAF", BAD BAD}, {"\xED\xA0\x80", BAD BAD BAD}, {"\xF4\x90\x80\x80", BAD BAD BAD BAD},
        {"\xE0\x9F\xBF", BAD BAD BAD}, {"\xF5\x80", BAD BAD}, {"\xF0\x8F\xBF", BAD BAD BAD}, {"\xC3\xC3\xA9", BAD "\xC3\xA9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_stream(cases[i][0], strlen(cases[i][0]), cases[i][1]);
}

static void text_that_is_not_utf8_is_refused_and_leaves_the_list_as_it_was(void **state) {
    (void)state;
    struct tokenizer *t = make(&(struct help_tokenizer){0});
    struct token_list ids = {0};
    struct weft_error e = {0};
    token_list_add(&ids, 7);
    assert_int_equal(tokenizer_encode(t, "ab\xC3(", 4, TOKENIZER_ADDED_ALL, &ids, &e), WEFT_ERROR_INPUT);
    assert_string_equal(e.message, "the text is not UTF-8 at byte 2 (0xC3)");
    assert_int_equal(ids.n, 1);
    token_list_drop(&ids);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bundled_vocabulary_gives_the_reference_ids_and_texts),
        cmocka_unit_test(every_golden_of_the_bundled_vocabulary_holds),
        cmocka_unit_test(every_golden_of_the_published_vocabulary_holds),
        cmocka_unit_test(the_rank_of_a_merge_is_its_place_whatever_the_ids),
        cmocka_unit_test(merges_may_be_texts_or_pairs),
        cmocka_unit_test(a_piece_that_no_merge_makes_is_one_token_only_when_merges_are_ignored),
        cmocka_unit_test(added_tokens_match_longest_first_and_in_the_text_as_given),
        cmocka_unit_test(added_tokens_take_the_space_beside_them_and_whole_words_as_they_say),
        cmocka_unit_test(long_pieces_merge_as_short_ones_do),
        cmocka_unit_test(a_megabyte_without_a_break_is_encoded_in_good_time),
        cmocka_unit_test(many_threads_may_use_one_tokenizer),
        cmocka_unit_test(bad_bytes_become_replacement_characters_wherever_the_stream_is_cut),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_and_leaves_the_list_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
