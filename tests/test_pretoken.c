/* The split patterns and the normalization, each fast path against the library it stands for. */
#include "help_test.h"

#include <utf8proc.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/decode_utf8.h"
#include "text/pretoken.h"
#include "text/pretoken_chars.h"
#include "text/tokenizer_nfc.h"

static uint64_t seed = 88172645463325252u;
static uint32_t roll(uint32_t below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)((seed >> 20) % below);
}

static struct pretoken *pattern_or_die(const char *pattern, enum pretoken_path path) {
    struct weft_error e = {0};
    struct pretoken *p = NULL;
    if (pretoken_new(&p, &pattern, 1, path, "test", &e)) fail_msg("%s", e.message);
    return p;
}

static void must_agree(const struct pretoken *a, const struct pretoken *b, const uint8_t *text, size_t n) {
    static struct pieces x, y;
    struct weft_error e = {0};
    if (pretoken_split(a, &x, text, n, &e) || pretoken_split(b, &y, text, n, &e)) fail_msg("%s", e.message);
    size_t i = 0;
    while (i < x.n && i < y.n && x.ends[i] == y.ends[i]) i++;
    if (i < x.n || i < y.n)
        fail_msg("pieces differ at byte %u of \"%.*s\"", i ? x.ends[i - 1] : 0, (int)n, (const char *)text);
    if (n) assert_int_equal(x.ends[x.n - 1], n);
}

/* Assigned in the Unicode version of PCRE2 as well as in utf8proc's: only there can the two agree. */
static uint8_t *known_to_both(void) {
    uint8_t *known = calloc(0x110000, 1);
    struct pretoken *assigned = pattern_or_die("\\P{Cn}", PRETOKEN_REGEX);
    struct weft_error e = {0};
    struct pieces pieces = {0};
    size_t n_known = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        if (utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_CN) continue;
        uint8_t text[9] = {0};
        unsigned n = utf8_put(text, c); /* then U+0378, which is not assigned, so that there are two pieces or one */
        memcpy(text + n, "\xCD\xB8", 2);
        assert_int_equal(pretoken_split(assigned, &pieces, text, n + 2, &e), 0);
        known[c] = pieces.n == 2, n_known += known[c];
    }
    assert_in_range(n_known, 280000, 400000);
    pieces_drop(&pieces);
    pretoken_free(assigned);
    return known;
}

static uint32_t any_character(const uint8_t *known) {
    static const uint16_t telling[] = {' ',    ' ',    '\n',   '\r',   '\t',   '\'',   '\'',   's',   'S',  'r',
                                       'E',    'l',    'L',    'v',    'm',    't',    'd',    0x17F, 0x85, 0xA0,
                                       0x2028, 0x3000, 0x180E, 0x1C,   0x200B, 0xFEFF, '.',    '-',   '<',  '1',
                                       '9',    0x0301, 0x0930, 0x093F, 0x4E2D, 0x2460, 0x0660, 0x00B2};
    for (;;) {
        uint32_t kind = roll(8), c = kind < 4   ? telling[roll(sizeof telling / sizeof *telling)]
                                     : kind < 6 ? roll(0x80)
                                     : kind < 7 ? roll(0x3400)
                                                : roll(0x110000);
        if (known[c]) return c;
    }
}

static void the_matchers_by_hand_cut_random_text_as_their_patterns_do(void **state) {
    (void)state;
    static const char *const patterns[] = {PRETOKEN_QWEN35, PRETOKEN_QWEN2};
    uint8_t *known = known_to_both();
    for (int k = 0; k < 2; k++) {
        struct pretoken *fast = pattern_or_die(patterns[k], PRETOKEN_FASTEST),
                        *slow = pattern_or_die(patterns[k], PRETOKEN_REGEX);
        for (int i = 0; i < 60000; i++) {
            uint8_t text[256];
            size_t n = 0;
            for (uint32_t left = 1 + roll(24); left; left--) n += utf8_put(text + n, any_character(known));
            must_agree(fast, slow, text, n);
        }
        pretoken_free(fast), pretoken_free(slow);
    }
    free(known);
}

static void the_matchers_by_hand_cut_each_character_as_their_patterns_do(void **state) {
    (void)state;
    static const char *const patterns[] = {PRETOKEN_QWEN35, PRETOKEN_QWEN2};
    static const char *const around[][2] = {{"a", "b"}, {" ", "b"}, {" ", " "}, {"'", "."}, {".", "\n"}};
    uint8_t *known = known_to_both();
    for (int k = 0; k < 2; k++) {
        struct pretoken *fast = pattern_or_die(patterns[k], PRETOKEN_FASTEST),
                        *slow = pattern_or_die(patterns[k], PRETOKEN_REGEX);
        for (uint32_t c = 0; c < 0x40000; c++) {
            if (!known[c] || (c >= 0x3400 && c < 0xA000 && c % 64) || (c >= 0xAC00 && c < 0xD800 && c % 64)) continue;
            if (c >= 0x17000 && c % 64) continue;
            for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
                uint8_t text[16];
                size_t n = strlen(around[i][0]);
                memcpy(text, around[i][0], n);
                n += utf8_put(text + n, c);
                memcpy(text + n, around[i][1], strlen(around[i][1]));
                must_agree(fast, slow, text, n + strlen(around[i][1]));
            }
        }
        pretoken_free(fast), pretoken_free(slow);
    }
    free(known);
}

static void the_matchers_by_hand_cut_the_goldens_texts_as_their_patterns_do(void **state) {
    (void)state;
    const char *path = help_shared("goldens/tokenizer/texts.json");
    json_t *texts = NULL;
    struct weft_error e = {0};
    assert_int_equal(json_read_file(&texts, path ? path : help_source("tests/data/tokenizer_texts.json"), 1 << 24, &e), 0);
    struct pretoken *fast = pattern_or_die(PRETOKEN_QWEN35, PRETOKEN_FASTEST),
                    *slow = pattern_or_die(PRETOKEN_QWEN35, PRETOKEN_REGEX);
    const json_t *list = json_object_get(texts, "texts");
    assert_true(json_array_size(list) > 50);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_object_get(json_array_get(list, i), "text");
        must_agree(fast, slow, (const uint8_t *)json_string_value(text), json_string_length(text));
    }
    pretoken_free(fast), pretoken_free(slow);
    json_decref(texts);
}

static void check_pieces(const char *const *patterns, int n, const char *text, const char *want) {
    struct weft_error e = {0};
    struct pretoken *p = NULL;
    struct pieces s = {0};
    char got[256] = "";
    if (pretoken_new(&p, patterns, n, PRETOKEN_FASTEST, "test", &e)) fail_msg("%s", e.message);
    if (pretoken_split(p, &s, (const uint8_t *)text, strlen(text), &e)) fail_msg("%s", e.message);
    for (size_t i = 0; i < s.n; i++) {
        unsigned begin = i ? s.ends[i - 1] : 0;
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i ? "|" : "", (int)(s.ends[i] - begin), text + begin);
    }
    pieces_drop(&s);
    pretoken_free(p);
    assert_string_equal(got, want);
}

static void other_patterns_cut_one_after_the_other_and_keep_what_they_do_not_match(void **state) {
    (void)state;
    check_pieces((const char *const[]){"\\d{1,3}"}, 1, "ab12345cd", "ab|123|45|cd");
    check_pieces((const char *const[]){"\\d+", "[a-c]"}, 2, "abx12 yb", "a|b|x|12| y|b");
    check_pieces((const char *const[]){PRETOKEN_GPT2}, 1, "I'm 12  x", "I|'m| 12| | x");
    check_pieces((const char *const[]){"z*"}, 1, "azzb", "a|zz|b"); /* an empty match cuts nothing */
    check_pieces(NULL, 0, "a b", "a b");
    check_pieces((const char *const[]){"[^\\s]+"}, 1, "a\u180Eb\xC2\x85.", "a\u180Eb|\xC2\x85|.");
}

static void a_pattern_that_is_no_pattern_is_refused_and_one_that_runs_away_is_stopped(void **state) {
    (void)state;
    static const char *const bad[] = {"(", "[a", "\\p{Nonsense}", "\\C", "(?<=a*)b"};
    struct weft_error e;
    struct pretoken *p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct weft_error){0};
        assert_int_equal(pretoken_new(&p, bad + i, 1, PRETOKEN_FASTEST, "file.json", &e), WEFT_ERROR_INPUT);
        assert_non_null(strstr(e.message, "file.json: split pattern"));
    }
    p = pattern_or_die("(a|aa)+$", PRETOKEN_FASTEST);
    struct pieces s = {0};
    char text[64];
    memset(text, 'a', 63), text[63] = 'b';
    assert_int_equal(pretoken_split(p, &s, (const uint8_t *)text, 64, &e), WEFT_ERROR_INPUT);
    pieces_drop(&s);
    pretoken_free(p);
}

/* ---- normalization ---- */

static void must_normalize(struct nfc *w, const uint8_t *text, size_t n) {
    utf8proc_uint8_t *want;
    utf8proc_ssize_t n_want = utf8proc_map(text, (utf8proc_ssize_t)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    size_t n_got;
    const uint8_t *got = nfc_run(w, chars_table(), text, n, &n_got);
    assert_non_null(got);
    if (n_got != (size_t)n_want || memcmp(got, want, n_got) != 0) {
        for (size_t i = 0; i < n; i++) print_error("%02x ", text[i]);
        fail_msg("%zu bytes normalize to %zu bytes, not to the right %td", n, n_got, (ptrdiff_t)n_want);
    }
    free(want);
}

static void normalization_by_runs_gives_what_normalizing_the_whole_gives(void **state) {
    (void)state;
    struct nfc w = {0};
    static uint32_t joining[40000];
    uint32_t n_joining = 0;
    for (uint32_t c = 0; c < CHARS_LOW; c++)
        if ((c < 0xD800 || c > 0xDFFF) && (chars_class(chars_table(), c) & CHAR_JOINS)) joining[n_joining++] = c;
    assert_in_range(n_joining, 1500, 4000);
    for (int i = 0; i < 100000; i++) {
        uint8_t text[256];
        size_t n = 0;
        for (uint32_t left = 1 + roll(10); left; left--) {
            uint32_t kind = roll(8), c = kind < 4   ? joining[roll(n_joining)]
                                         : kind < 5 ? roll(0x3000)
                                         : kind < 6 ? 0xAC00 + roll(11172)
                                         : kind < 7 ? 0x1100 + roll(0x100)
                                                    : roll(0x30000);
            /* utf8proc 2.8 loses U+11A7 behind a syllable (it is no tail); in runs the two never meet. */
            if ((c < 0xD800 || c > 0xDFFF) && c != 0x11A7) n += utf8_put(text + n, c);
        }
        must_normalize(&w, text, n);
    }
    nfc_drop(&w);
}

static void every_character_alone_and_between_letters_normalizes_rightly(void **state) {
    (void)state;
    struct nfc w = {0};
    for (uint32_t c = 0; c < 0x110000; c++) {
        if ((c >= 0xD800 && c <= 0xDFFF) || (c > 0x30000 && c < 0xE0000) || c > 0xE1000) continue;
        uint8_t text[16] = "e";
        must_normalize(&w, text, 1 + utf8_put(text + 1, c));
        must_normalize(&w, text + 1, utf8_put(text + 1, c));
    }
    nfc_drop(&w);
}

static void a_vowel_that_is_no_tail_stays_behind_a_syllable(void **state) {
    (void)state;
    struct nfc w = {0};
    static const uint8_t text[] = "e\xCC\x81\xEA\xB0\x80\xE1\x86\xA7"; /* e, acute, U+AC00, U+11A7 */
    size_t n;
    const uint8_t *got = nfc_run(&w, chars_table(), text, sizeof text - 1, &n);
    assert_int_equal(n, 8);
    assert_memory_equal(got, "\xC3\xA9\xEA\xB0\x80\xE1\x86\xA7", 8);
    nfc_drop(&w);
}

static void a_megabyte_of_marks_in_the_wrong_order_normalizes_in_good_time(void **state) {
    (void)state;
    struct nfc w = {0};
    size_t n = 1 << 20, n_out;
    uint8_t *text = malloc(n);
    for (size_t i = 0; i < n; i += 2) memcpy(text + i, i < n / 2 ? "\xCC\x81" : "\xCC\xA3", 2); /* class 230, then 220 */
    double start = clock_ms();
    assert_non_null(nfc_run(&w, chars_table(), text, n, &n_out));
    assert_true(clock_ms() - start < 5000);
    assert_int_equal(n_out, n);
    assert_memory_equal(w.text.data, "\xCC\xA3\xCC\xA3", 4);
    free(text);
    nfc_drop(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_matchers_by_hand_cut_random_text_as_their_patterns_do),
        cmocka_unit_test(the_matchers_by_hand_cut_each_character_as_their_patterns_do),
        cmocka_unit_test(the_matchers_by_hand_cut_the_goldens_texts_as_their_patterns_do),
        cmocka_unit_test(other_patterns_cut_one_after_the_other_and_keep_what_they_do_not_match),
        cmocka_unit_test(a_pattern_that_is_no_pattern_is_refused_and_one_that_runs_away_is_stopped),
        cmocka_unit_test(normalization_by_runs_gives_what_normalizing_the_whole_gives),
        cmocka_unit_test(every_character_alone_and_between_letters_normalizes_rightly),
        cmocka_unit_test(a_vowel_that_is_no_tail_stays_behind_a_syllable),
        cmocka_unit_test(a_megabyte_of_marks_in_the_wrong_order_normalizes_in_good_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
