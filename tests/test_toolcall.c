/* Tool calls: both forms, values by their schema, and what is no call. */
#include "help_test.h"

#include "base/json.h"
#include "base/mem.h"
#include "text/toolcall.h"

static const char tools_text[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
                                 "\"object\", \"properties\": {"
                                 "\"s\": {\"type\": \"string\"}, \"i\": {\"type\": \"integer\"}, \"u\": {\"type\": \"uint8\"}, "
                                 "\"x\": {\"type\": \"number\"},"
                                 "\"b\": {\"type\": \"boolean\"}, \"o\": {\"type\": \"object\"}, \"a\": {\"type\": \"array\"}, "
                                 "\"e\": {\"enum\": [\"1\", \"2\"]},"
                                 "\"m\": {\"type\": [\"integer\", \"null\"]}, \"n\": {\"anyOf\": [{\"type\": \"string\"}, "
                                 "{\"type\": \"integer\"}]}}}}},"
                                 "{\"name\": \"bare\", \"input_schema\": {\"properties\": {\"i\": {\"type\": \"int\"}}}}]";

static json_t *tools;

static int set_up(void **state) {
    (void)state;
    struct weft_error e;
    return json_parse(&tools, tools_text, strlen(tools_text), "tools", &e);
}
static int tear_down(void **state) { return (void)state, json_decref(tools), 0; }

/* The calls as "name arguments" lines; "!" and the sentence where there is none. Static memory. */
static const char *read_as(const char *family, const char *text) {
    static char out[4096];
    struct weft_error e = {0};
    json_t *calls = json_array();
    int n = toolcall_parse(calls, family, text, strlen(text), tools, &e);
    assert_int_equal(n > 0 ? n : 0, json_array_size(calls));
    if (n <= 0) snprintf(out, sizeof out, "!%s", e.message);
    char *w = out;
    for (int i = 0; i < n; i++) {
        json_t *call = json_array_get(calls, (size_t)i), *f = json_object_get(call, "function");
        assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
        w += snprintf(w, (size_t)(out + sizeof out - w), "%s%s %s", i ? "\n" : "", json_string_value(json_object_get(f, "name")),
                      json_string_value(json_object_get(f, "arguments")));
    }
    json_decref(calls);
    return out;
}

static const char *coder(const char *parameters) {
    static char text[4096];
    snprintf(text, sizeof text, "\n<function=f>\n%s</function>\n", parameters);
    return read_as("qwen3_coder", text);
}

#define ONE(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void a_coder_call_gives_its_values_the_types_of_the_schema(void **state) {
    (void)state;
    assert_string_equal(coder(ONE("s", "12")), "f {\"s\": \"12\"}");
    assert_string_equal(coder(ONE("i", "12")), "f {\"i\": 12}");
    assert_string_equal(coder(ONE("i", "12.0")), "f {\"i\": 12}");
    assert_string_equal(coder(ONE("u", "255")), "f {\"u\": 255}");
    assert_string_equal(coder(ONE("x", "1.50")), "f {\"x\": 1.5}");
    assert_string_equal(coder(ONE("x", "3.0")), "f {\"x\": 3}");
    assert_string_equal(coder(ONE("b", "TRUE")), "f {\"b\": true}");
    assert_string_equal(coder(ONE("b", "no")), "f {\"b\": false}");
    assert_string_equal(coder(ONE("m", "7")), "f {\"m\": 7}");
    assert_string_equal(coder(ONE("n", "7")), "f {\"n\": \"7\"}");
    assert_string_equal(coder(ONE("e", "1")), "f {\"e\": \"1\"}");
    assert_string_equal(coder(ONE("unknown", "7")), "f {\"unknown\": \"7\"}");
    assert_string_equal(coder(ONE("s", "NULL") ONE("i", "Null")), "f {\"s\": null, \"i\": null}");
    assert_string_equal(read_as("qwen3_coder", "<function=bare><parameter=i>5</parameter></function>"), "bare {\"i\": 5}");
    assert_string_equal(read_as("qwen3_coder", "<function=other><parameter=i>5</parameter></function>"), "other {\"i\": \"5\"}");
}

static void objects_and_lists_are_json_or_python_or_text(void **state) {
    (void)state;
    assert_string_equal(coder(ONE("o", "{\"a\": [1, 2.50, null]}")), "f {\"o\": {\"a\": [1, 2.5, null]}}");
    assert_string_equal(coder(ONE("a", "[18446744073709551616]")), "f {\"a\": [18446744073709551616]}");
    assert_string_equal(coder(ONE("o", "{'a': (1, True), 'b': None}")), "f {\"o\": {\"a\": [1, true], \"b\": null}}");
    assert_string_equal(coder(ONE("a", "['it\\'s']")), "f {\"a\": [\"it's\"]}");
    assert_string_equal(coder(ONE("a", "one, two")), "f {\"a\": \"one, two\"}");
    assert_string_equal(coder(ONE("a", "[unknown]")), "f {\"a\": \"[unknown]\"}");
    assert_string_equal(coder(ONE("a", "[1, ")), "f {\"a\": \"[1, \"}");
}

static void one_newline_is_stripped_on_each_side_of_a_value(void **state) {
    (void)state;
    assert_string_equal(coder("<parameter=s>\n\n  two lines\n  here \n\n</parameter>\n"), "f {\"s\": \"\\n  two lines\\n  here "
                                                                                          "\\n\"}");
    assert_string_equal(coder("<parameter=s></parameter>\n"), "f {\"s\": \"\"}");
    assert_string_equal(coder("<parameter=s>\n</parameter>\n"), "f {\"s\": \"\"}");
    assert_string_equal(coder(ONE("s", "a <parameter=x> b </function> c")), "f {\"s\": \"a <parameter=x> b </function> c\"}");
}

static void missing_ends_are_forgiven_where_the_meaning_is_plain(void **state) {
    (void)state;
    assert_string_equal(read_as("qwen3_coder", "<function=f>\n<parameter=i>\n1\n<parameter=s>\nx\n</parameter>\n"), "f {\"i\": "
                                                                                                                    "1, \"s\": "
                                                                                                                    "\"x\"}");
    assert_string_equal(read_as("qwen3_coder", "<function=f>\n<parameter=s>\nx\n</function>"), "f {\"s\": \"x\"}");
    assert_string_equal(read_as("qwen3_coder", "<function=f>"), "f {}");
    assert_string_equal(read_as("qwen3_coder", "<function=f></function>\n<function=bare></function>"), "f {}\nbare {}");
}

static void a_json_call_keeps_order_and_every_digit(void **state) {
    (void)state;
    assert_string_equal(read_as("json", "\n{\"name\": \"f\", \"arguments\": {\"z\": 1E2, \"a\": 99999999999999999999, \"é\": "
                                        "\"\\u00e9\"}}\n"),
                        "f {\"z\": 100.0, \"a\": 99999999999999999999, \"é\": \"é\"}");
    assert_string_equal(read_as("json", "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}"), "f {\"a\": 1}");
    assert_string_equal(read_as("json", "{\"name\": \"f\"}"), "f {}");
    assert_string_equal(read_as("json", "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": null}]"), "f "
                                                                                                                           "{}"
                                                                                                                           "\ng"
                                                                                                                           " {"
                                                                                                                           "}");
}

static void what_is_no_call_is_refused_with_a_sentence(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"json", ""},
                                         {"json", "{\"name\": \"f\", \"arguments\": {"},
                                         {"json", "\"f\""},
                                         {"json", "{\"arguments\": {}}"},
                                         {"json", "{\"name\": 5, \"arguments\": {}}"},
                                         {"json", "{\"name\": \"f\", \"arguments\": [1]}"},
                                         {"json", "{\"name\": \"f\", \"arguments\": {}} x"},
                                         {"json", "[{\"name\": \"f\"}, 7]"},
                                         {"json", "\xff"},
                                         {"qwen3_coder", ""},
                                         {"qwen3_coder", "f(1)"},
                                         {"qwen3_coder", "<function=f"},
                                         {"qwen3_coder", "<function=></function>"},
                                         {"qwen3_coder", "<function=f><parameter=x</function>"},
                                         {"qwen3_coder", "<function=f><parameter=i>1.5</parameter></function>"},
                                         {"qwen3_coder", "<function=f><parameter=i>one</parameter></function>"},
                                         {"qwen3_coder", "<function=f><parameter=x>1e999</parameter></function>"},
                                         {"qwen3_coder", "<function=f></function><function=f><parameter=i>x</parameter></"
                                                         "function>"},
                                         {"pythonic", "f()"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *got = read_as(bad[i][0], bad[i][1]);
        if (got[0] != '!' || strlen(got) < 10) fail_msg("%s of %s: %s", bad[i][1], bad[i][0], got);
    }
}

static void deep_nesting_is_refused_and_not_followed(void **state) {
    (void)state;
    static char text[200100];
    strcpy(text, "<function=f><parameter=a>");
    size_t n = strlen(text);
    memset(text + n, '[', 200000);
    strcpy(text + n + 200000, "</parameter></function>");
    assert_int_equal(read_as("qwen3_coder", text)[0], '!');
}

static void no_memory_is_an_error_at_every_allocation(void **state) {
    (void)state;
    const char *text = "<function=f>" ONE("o", "{'a': 1}") ONE("i", "5") "</function>";
    json_t *calls = json_array();
    struct weft_error e = {0};
    int code = WEFT_ERROR_MEMORY, n = 0;
    for (; code == WEFT_ERROR_MEMORY && n < 1000; n++) {
        mem_fail_at(n, 1);
        code = toolcall_parse(calls, "qwen3_coder", text, strlen(text), tools, &e);
        mem_fail_at(-1, 0);
        assert_int_equal(json_array_size(calls), code > 0 ? 1 : 0);
    }
    assert_int_equal(code, 1);
    assert_true(n > 3);
    json_decref(calls);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coder_call_gives_its_values_the_types_of_the_schema),
        cmocka_unit_test(objects_and_lists_are_json_or_python_or_text),
        cmocka_unit_test(one_newline_is_stripped_on_each_side_of_a_value),
        cmocka_unit_test(missing_ends_are_forgiven_where_the_meaning_is_plain),
        cmocka_unit_test(a_json_call_keeps_order_and_every_digit),
        cmocka_unit_test(what_is_no_call_is_refused_with_a_sentence),
        cmocka_unit_test(deep_nesting_is_refused_and_not_followed),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
