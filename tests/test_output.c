/* Output taken apart: states, markers, stop strings, and that cutting the text into pieces changes nothing. */
#include "help_test.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/output.h"

struct trace { struct buf text; int last; int refuse_after; };

/* Writes events as "T:..." "R:..." "C:...", adjacent ones of a kind as one. */
static int note(void *arg, enum output_kind kind, const char *bytes, size_t n) {
    struct trace *t = arg;
    assert_int_equal(bytes[n], 0);
    assert_true(n > 0);
    if (kind == OUTPUT_TOOL_CALL || t->last != (int)kind) buf_printf(&t->text, "%s%c:", t->text.n ? "|" : "", "TRC"[kind]);
    buf_add(&t->text, bytes, n);
    t->last = (int)kind;
    return t->refuse_after > 0 && --t->refuse_after == 0;
}

struct how { const char *prompt, *family; const char *stops[4]; int plain, cut; };

/* The events of `text` cut at the places that `cuts` gives (bit i: behind byte i), in t->text. */
static int play(struct trace *t, const struct how *how, const char *text, uint64_t cuts) {
    struct weft_error e = {0};
    struct output *o;
    size_t n_stops = 0, n = strlen(text), from = 0;
    while (n_stops < 4 && how->stops[n_stops]) n_stops++;
    struct output_options options = {
        how->prompt, how->prompt ? strlen(how->prompt) : 0, how->family, NULL, how->plain, how->stops, n_stops, note, t};
    *t = (struct trace){.last = -1};
    buf_init(&t->text);
    assert_int_equal(output_new(&o, &options, &e), 0);
    int code = 0;
    for (size_t i = 0; i < n && !code; i++) {
        if (i + 1 < n && !(cuts >> (i & 63) & 1)) continue;
        char *piece = mem_copy_text(text + from, i + 1 - from); /* so that a sanitizer sees a look beyond */
        code = output_feed(o, piece, i + 1 - from, &e);
        mem_free(piece);
        from = i + 1;
    }
    assert_true(code >= 0);
    assert_int_equal(output_end(o, how->cut, &e), 0);
    if (t->text.n == 0) buf_add(&t->text, "", 0);
    int calls = output_n_calls(o);
    output_free(o);
    return calls;
}

static void expect(const struct how *how, const char *text, const char *want) {
    struct trace whole, bytes;
    play(&whole, how, text, 0);
    assert_string_equal(whole.text.data, want);
    play(&bytes, how, text, ~(uint64_t)0);
    assert_string_equal(bytes.text.data, want);
    buf_drop(&whole.text), buf_drop(&bytes.text);
}

#define CALL(x) "<tool_call>\n{\"name\": \"f\", \"arguments\": {" x "}}\n</tool_call>"
#define CALLED(x) "C:{\"function\": {\"name\": \"f\", \"arguments\": \"{" x "}\"}, \"type\": \"function\"}"

static void reasoning_answer_and_calls_are_told_apart(void **state) {
    (void)state;
    struct how how = {.prompt = "<think>\n", .family = "json"};
    expect(&how, "a b\n</think>\n\nhello", "R:a b\n|T:\n\nhello");
    expect(&how, "a</think>" CALL("\\\"x\\\": 1"), "R:a");
    expect(&how, "a</think>x" CALL("") "\n" CALL(""), "R:a|T:x|" CALLED("") "|T:\n|" CALLED(""));
    expect(&how, "a <tool_call> b", "R:a <tool_call> b");
    how.prompt = "<think>\n</think>\n";
    expect(&how, "hello", "T:hello");
    expect(&how, "<think>why</think>so", "R:why|T:so");
    expect(&how, "x</think>y</tool_call>z", "T:xyz");
    how.prompt = NULL;
    expect(&how, "a<think>b", "T:a|R:b");
}

static void the_prompt_tells_where_the_model_begins(void **state) {
    (void)state;
    struct how how = {.prompt = "</think> <think>"};
    expect(&how, "x", "R:x");
    how.prompt = "<think> </think>";
    expect(&how, "x", "T:x");
    how.prompt = "no mark";
    expect(&how, "x", "T:x");
    how.prompt = "<think", how.plain = 0;
    expect(&how, "x", "T:x");
    how.prompt = "<think>", how.plain = 1;
    expect(&how, "x<think>", "T:x<think>");
}

static void held_text_is_flushed_when_cut_and_dropped_when_ended(void **state) {
    (void)state;
    struct how cut = {.family = "json", .stops = {"END"}, .cut = 1}, ended = {.family = "json", .stops = {"END"}};
    expect(&cut, "a <thi", "T:a <thi");
    expect(&ended, "a <thi", "T:a ");
    expect(&cut, "a EN", "T:a EN");
    expect(&ended, "a EN", "T:a ");
    expect(&cut, "a END b", "T:a ");
    expect(&cut, "a<tool_call>\n{\"name\"", "T:a<tool_call>\n{\"name\"");
    expect(&ended, "a" "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "T:a|" CALLED(""));
}

static void the_earliest_stop_string_wins_and_is_not_shown(void **state) {
    (void)state;
    struct how how = {.stops = {"abcd", "bc", "\n\n"}};
    expect(&how, "x abcd bc", "T:x ");
    expect(&how, "x abc", "T:x ");
    how.cut = 1;
    expect(&how, "x abc", "T:x a");
    expect(&how, "x\ny\n\nz", "T:x\ny");
    struct how same = {.stops = {"stop", "st"}};
    expect(&same, "a stop", "T:a ");
    struct how overlap = {.stops = {"aab"}};
    expect(&overlap, "aaab", "T:a");
    struct how inside = {.stops = {"abc", "b"}, .cut = 1};
    expect(&inside, "ab", "T:a");
    struct how think = {.prompt = "<think>", .stops = {"X"}};
    expect(&think, "aXb</think>c", "R:a");
    struct how marker = {.prompt = "<think>", .stops = {"</think>"}};
    expect(&marker, "a</think>b", "R:a");
    struct how umlaut = {.stops = {"é"}};
    expect(&umlaut, "caf\xc3\xa9 au lait", "T:caf");
}

static void tool_marks_are_text_where_no_family_is_known(void **state) {
    (void)state;
    struct how how = {0};
    expect(&how, "a<tool_call>b</tool_call>c", "T:a<tool_call>b</tool_call>c");
    how.family = "unheard of";
    expect(&how, "a<tool_call>b</tool_call>c", "T:a<tool_call>b</tool_call>c");
}

static int n_lines;
static void count_line(void *arg, int level, const char *line) {
    (void)arg, (void)level, n_lines += strstr(line, "tool call") != NULL;
}

static void a_misspelt_call_is_dropped_with_a_line_in_the_log(void **state) {
    (void)state;
    struct how how = {.family = "json"};
    struct trace t;
    log_set_sink(count_line, NULL);
    n_lines = 0;
    assert_int_equal(play(&t, &how, "a<tool_call>{oops</tool_call>b" CALL("") "c", 0), 1);
    log_set_sink(NULL, NULL);
    assert_string_equal(t.text.data, "T:ab|" CALLED("") "|T:c");
    assert_int_equal(n_lines, 1);
    buf_drop(&t.text);
}

static void a_caller_may_end_it_at_any_event(void **state) {
    (void)state;
    struct trace t = {.last = -1, .refuse_after = 1};
    struct weft_error e = {0};
    struct output_options options = {.on_event = note, .arg = &t};
    struct output *o;
    buf_init(&t.text);
    assert_int_equal(output_new(&o, &options, &e), 0);
    assert_int_equal(output_feed(o, "abc", 3, &e), WEFT_ERROR_CANCELLED);
    output_free(o);
    buf_drop(&t.text);
}

static uint64_t next_random(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x;
}

/* Texts made of what matters, whole and in fragments. */
static void random_text(char *out, size_t room, uint64_t *x) {
    static const char *const parts[] = {
        "<think>",     "</think>", "<tool_call>", "</tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        "<",           "</",       "<tool",       "_call>",       "think>",
        "STOP",        "ST",       "OP",          "STO",          "a",
        " ",           "\n",       "é",           "日本",         "<function=f>",
        "</function>", "aab",      "aa"};
    size_t n = 0;
    for (int i = (int)(next_random(x) % 12); i >= 0; i--) {
        const char *p = parts[next_random(x) % (sizeof parts / sizeof *parts)];
        if (n + strlen(p) + 1 > room) break;
        strcpy(out + n, p);
        n += strlen(p);
    }
}

static void any_cutting_of_a_text_gives_the_same_events(void **state) {
    (void)state;
    uint64_t x = 88172645463325252u;
    char text[512];
    int busy = 0;
    for (int i = 0; i < 4000; i++) {
        struct how how = {.prompt = next_random(&x) & 1 ? "<think>" : NULL, .cut = next_random(&x) & 1};
        how.family = next_random(&x) % 3 == 0 ? NULL : next_random(&x) & 1 ? "json" : "qwen3_coder";
        if (next_random(&x) & 1)
            how.stops[0] = "STOP", how.stops[1] = "aab", how.stops[2] = next_random(&x) & 1 ? "<thi" : "ST</";
        text[0] = 0;
        random_text(text, sizeof text, &x);
        struct trace whole, cut;
        play(&whole, &how, text, 0);
        busy += strchr(whole.text.data, '|') != NULL;
        for (int k = 0; k < 6; k++) {
            play(&cut, &how, text, k ? next_random(&x) & next_random(&x) : ~(uint64_t)0);
            if (strcmp(whole.text.data, cut.text.data)) fail_msg("%s: %s and %s", text, whole.text.data, cut.text.data);
            buf_drop(&cut.text);
        }
        buf_drop(&whole.text);
    }
    assert_true(busy > 300); /* the texts do change states */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_answer_and_calls_are_told_apart),
        cmocka_unit_test(the_prompt_tells_where_the_model_begins),
        cmocka_unit_test(held_text_is_flushed_when_cut_and_dropped_when_ended),
        cmocka_unit_test(the_earliest_stop_string_wins_and_is_not_shown),
        cmocka_unit_test(tool_marks_are_text_where_no_family_is_known),
        cmocka_unit_test(a_misspelt_call_is_dropped_with_a_line_in_the_log),
        cmocka_unit_test(a_caller_may_end_it_at_any_event),
        cmocka_unit_test(any_cutting_of_a_text_gives_the_same_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
