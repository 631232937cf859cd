/* Chat templates: the language, the messages, and what ends a template that does not end. */
#include "help_test.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/jinja.h"
#include "text/template.h"

static const struct jinja_limits limits = JINJA_PROMPT_LIMITS;
static const struct tm noon = {.tm_year = 126, .tm_mon = 10, .tm_mday = 29, .tm_hour = 12, .tm_wday = 0, .tm_yday = 332};

struct source { const char *text; size_t n; };

static void take_context(struct render *r, void *arg, struct dict *context) {
    const struct source *s = arg;
    struct value v = json_to_value(r, s->text, s->n, "context");
    assert_int_equal(v.kind, VALUE_DICT);
    *context = *v.as.dict;
}

/* Compiles and renders; the text or the error's sentence is in *out (mem_free). */
static enum jinja_fault try(const char *template, size_t n, struct source context, char **out) {
    struct weft_error e = {0};
    enum jinja_fault fault;
    struct jinja *t = jinja_new(template, n, &fault, &e);
    *out = NULL;
    if (!t) {
        *out = mem_copy_text(e.message, strlen(e.message));
        return fault;
    }
    struct render r;
    struct value text = {0};
    jinja_run_init(&r, &limits);
    r.now = noon;
    fault = jinja_render(t, &r, take_context, &context, &text);
    if (fault) *out = mem_copy_text(r.message, strlen(r.message));
    else *out = mem_copy_text(text.as.text->bytes, text.as.text->n);
    jinja_run_drop(&r);
    jinja_free(t);
    return fault;
}

static enum jinja_fault kind_of(const char *name) {
    static const struct { const char *name; enum jinja_fault fault;
    } kinds[] = {
        {"syntax", FAULT_SYNTAX},   {"undefined", FAULT_UNDEFINED}, {"security", FAULT_SECURITY}, {"type", FAULT_TYPE},
        {"value", FAULT_VALUE},     {"overflow", FAULT_OVERFLOW},   {"zero", FAULT_ZERO},         {"key", FAULT_KEY},
        {"runtime", FAULT_RUNTIME}, {"filter", FAULT_FILTER},       {"raised", FAULT_RAISED},     {"attribute", FAULT_TYPE}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, name)) return kinds[i].fault;
    fail_msg("unknown kind %s", name);
    return FAULT_NONE;
}

/* 1 if the construct comes out as it is recorded. */
static int check(const json_t *c, struct source context) {
    const char *id = json_string_value(json_object_get(c, "id")), *error = json_string_value(json_object_get(c, "error"));
    const json_t *template = json_object_get(c, "template"), *expect = json_object_get(c, "expect");
    char *got;
    enum jinja_fault fault = try(json_string_value(template), json_string_length(template), context, &got);
    int ok;
    if (error) {
        ok = fault == kind_of(error);
        if (ok && fault == FAULT_RAISED) ok = !strcmp(got, json_string_value(json_object_get(c, "message")));
    } else {
        ok = !fault && got && !strcmp(got, json_string_value(expect));
        if (json_is_true(json_object_get(c, "optional")) && fault) ok = 1;
    }
    if (!ok) print_error("%s: want %s, got (%d) %s\n", id, error ? error : json_string_value(expect), (int)fault, got);
    mem_free(got);
    return ok;
}

static void every_recorded_construct_comes_out_as_recorded(void **state) {
    (void)state;
    const char *path = help_shared("goldens/template/constructs.json");
    if (!path) skip();
    json_t *all;
    struct weft_error e;
    assert_int_equal(json_read_file(&all, path, 1 << 26, &e), 0);
    char *context = json_dumps(json_object_get(all, "context"), 0);
    struct source source = {context, strlen(context)};
    int bad = 0, n = 0;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(all, "constructs"), i, c) bad += !check(c, source), n++;
    assert_int_equal(bad, 0);
    assert_true(n > 400);
    free(context);
    json_decref(all);
}

static void every_recorded_monster_ends_within_a_second(void **state) {
    (void)state;
    const char *path = help_shared("goldens/template/constructs.json");
    if (!path) skip();
    json_t *all;
    struct weft_error e;
    assert_int_equal(json_read_file(&all, path, 1 << 26, &e), 0);
    char *context = json_dumps(json_object_get(all, "context"), 0);
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(all, "limits"), i, c) {
        const json_t *template = json_object_get(c, "template");
        char *got;
        clock_t start = clock();
        enum jinja_fault fault = try(json_string_value(template), json_string_length(template),
                                     (struct source){context, strlen(context)}, &got);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (!fault || seconds > 1)
            print_error("%s: fault %d after %.2f s: %.80s\n", json_string_value(json_object_get(c, "what")), (int)fault,
                        seconds, got);
        assert_int_not_equal(fault, FAULT_NONE);
        assert_int_not_equal(fault, FAULT_MEMORY);
#ifndef __SANITIZE_ADDRESS__
        assert_true(seconds < 1);
#endif
        mem_free(got);
    }
    free(context);
    json_decref(all);
}


/* ---- templates and messages ---- */

/* The prompt, or "!" and the sentence. Static memory. */
static const char *render(struct template *t, const struct template_input *in) {
    static char said[8192];
    struct weft_error e = {0};
    struct buf out;
    char *raised;
    buf_init(&out);
    int code = template_render(t, in, &out, &raised, &e);
    if (code) snprintf(said, sizeof said, "!%s", raised ? raised : e.message);
    else snprintf(said, sizeof said, "%.*s", (int)out.n, out.data ? out.data : "");
    assert_true(code <= 0);
    mem_free(raised);
    buf_drop(&out);
    return said;
}

static struct template *template_of(const char *text) {
    struct template *t;
    struct weft_error e = {0};
    if (template_new(&t, text, strlen(text), "test", &e)) fail_msg("%s", e.message);
    return t;
}

/* A template's prompt for messages in JSON. */
static const char *prompt_of(const char *text, const char *messages, int exact) {
    struct template *t = template_of(text);
    json_t *list = json_loads(messages, 0, NULL);
    assert_non_null(list);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list, in.exact = exact;
    const char *out = render(t, &in);
    json_decref(list);
    template_close(t);
    return out;
}

static void the_language_is_jinja(void **state) {
    (void)state;
    static const char context[] = "{\"n\": 7, \"s\": \"Hello\", \"l\": [3, 1, 2], \"d\": {\"b\": 2, \"a\": 1}, \"big\": "
                                  "99999999999999999999, \"nil\": null}";
    static const struct { const char *template, *want; enum jinja_fault fault;
    } cases[] = {
        {"a\n  {%- if n > 5 %}\n b\n{% endif %}\n c\n", "a b\n c", 0},
        {"{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}", "1:3,2:2", 0},
        {"{% set q = namespace(a=0) %}{% for x in l %}{% set q.a = q.a + x %}{% set y = x %}{% endfor %}{{ q.a }}{{ y is "
         "defined }}",
         "6False", 0},
        {"{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3) }}", "11()12(3,)", 0},
        {"{{ d|tojson }}{{ [1.0, 1e16, 1e-5, big, true, none]|tojson }}",
         "{\"b\": 2, \"a\": 1}[1.0, 1e+16, 1e-05, 99999999999999999999, true, null]", 0},
        {"{{ 's' ~ l[::-1] ~ s[1:-1] }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 3 ** 2 }}", "s[2, 1, 3]ell-4264", 0},
        {"{{ 5.684341886080802e-14 }} {{ 5e-324 }} {{ 1e23 }} {{ 9007199254740993.0 }} {{ 0.1 + 0.2 }}",
         "5.684341886080802e-14 5e-324 1e+23 9007199254740992.0 0.30000000000000004", 0},
        {"{% for x in l %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %}", "12", 0},
        {"{% set found = namespace(x=false) %}{% for x in l if not found.x %}{% set found.x = true %}{{ x }}{% endfor %}", "3",
         0},
        {"{{ 'a,b'.split(',') | map('upper') | join('-') }}{{ 'x' is in s }}{{ s.upper().lower() == s|lower }}", "A-BFalseTrue",
         0},
        {"{{ s[l[1:][0]] }}{{ d[s[4:5] ~ 'x'] }}{{ l[l[2:][0]:] }}|{{ d['xa'[1:]] }}", "e[2]|1", 0},
        {"{{ missing }}{{ d.zz }}{{ l[9] }}|{{ nil }}", "|None", 0},
        {"{{ strftime_now('%Y-%m-%d %f%z') }}", "2026-11-29 000000", 0},
        {"{{ raise_exception('no: ' ~ n) }}", "no: 7", FAULT_RAISED},
        {"{{ missing.x }}", "'missing' is undefined", FAULT_UNDEFINED},
        {"{{ l.append(4) }}", "access to attribute 'append' of 'list' object is unsafe.", FAULT_SECURITY},
        {"{{ 9223372036854775807 + 1 }}", "an integer beyond 64 bits cannot be computed with", FAULT_SUPPORT},
        {"{% if n %}", "line 1 of the template: Unexpected end of template: 'elif' is missing.", FAULT_SYNTAX},
        {"{{ l[1:, 0] }}", "line 1 of the template: expected subscript expression", FAULT_SYNTAX},
        {"\n{{ n n }}", "line 2 of the template: expected token 'end of print statement', got 'n'", FAULT_SYNTAX},
        {"\xff", "line 0 of the template: the template is not UTF-8", FAULT_SYNTAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got;
        enum jinja_fault fault =
            try(cases[i].template, strlen(cases[i].template), (struct source){context, sizeof context - 1}, &got);
        if (fault != cases[i].fault || strcmp(got, cases[i].want))
            fail_msg("%s: want %s, got (%d) %s", cases[i].template, cases[i].want, (int)fault, got);
        mem_free(got);
    }
}

static void messages_reach_the_template_as_transformers_gives_them(void **state) {
    (void)state;
    const char *show = "{% for m in messages %}{{ m }}{% endfor %}{{ tools }}{{ documents }}{{ add_generation_prompt }}";
    assert_string_equal(prompt_of(show, "[{\"role\": \"user\", \"content\": null, \"x\": 1}]", 1), "{'role': 'user', 'x': "
                                                                                                   "1}NoneNoneFalse");
    assert_string_equal(prompt_of(show, "[{\"role\": \"assistant\", \"reasoning\": \"why\"}]", 1),
                        "{'thinking': 'why', 'role': 'assistant', 'reasoning': 'why', 'reasoning_content': 'why'}NoneNoneFalse");
    assert_string_equal(prompt_of(show, "[]", 1), "!there is no message");
    assert_string_equal(prompt_of(show, "[5]", 1), "!a message is not an object");
}

static void thinking_is_on_off_or_left_to_the_template(void **state) {
    (void)state;
    struct template *t = template_of("{{ enable_thinking is defined }}{{ enable_thinking }}{{ add_generation_prompt }}");
    json_t *list = json_loads("[{\"role\": \"user\"}]", 0, NULL);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list;
    assert_string_equal(render(t, &in), "FalseFalse");
    in.thinking = 1, in.add_generation_prompt = 1;
    assert_string_equal(render(t, &in), "TrueTrueTrue");
    in.thinking = 0, in.add_generation_prompt = 0;
    assert_string_equal(render(t, &in), "TrueFalseFalse");
    json_decref(list);
    template_close(t);
}

static void the_last_message_can_be_left_open(void **state) {
    (void)state;
    static const char *const text = "{% for m in messages %}<{{ m.content }}>{% endfor %}", *const trims = "{% for m in "
                                                                                                           "messages %}<{{ "
                                                                                                           "m.content | trim "
                                                                                                           "}}>{% endfor %}";
    json_t *list =
        json_loads("[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b  \"}]", 0, NULL);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list, in.continue_final = 1;
    struct template *t = template_of(text);
    assert_string_equal(render(t, &in), "<a><b  ");
    template_close(t), t = template_of(trims);
    assert_string_equal(render(t, &in), "<a><b");
    template_close(t), t = template_of("nothing");
    assert_string_equal(render(t, &in), "!continue_final_message: the template does not show the last message's text");
    template_close(t);
    json_decref(list);
}

#define CALL(arguments)                                                                                                        \
    "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]"

static void tool_arguments_come_as_text_or_object_whatever_the_template_wants(void **state) {
    (void)state;
    const char *items = "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}";
    const char *text = "{{ messages[0].tool_calls[0].function.arguments + '.' }}";
    const char *encoded = CALL("\"{\\\"a\\\": 1, \\\"b\\\": \\\"x\\\"}\""), *object = CALL("{\"a\": 1, \"b\": \"x\"}");
    assert_string_equal(prompt_of(items, object, 0), "a=1;b=x;");
    assert_string_equal(prompt_of(items, encoded, 0), "a=1;b=x;");
    assert_string_equal(prompt_of(text, object, 0), "{\"a\": 1, \"b\": \"x\"}.");
    assert_string_equal(prompt_of(text, encoded, 0), "{\"a\": 1, \"b\": \"x\"}.");
    assert_string_equal(prompt_of(text, CALL("\"{oops\""), 0), "{oops.");
    assert_int_equal(prompt_of(items, encoded, 1)[0], '!'); /* exact: as it was given */
    assert_int_equal(prompt_of(text, object, 1)[0], '!');
}

static void null_content_and_late_system_messages_are_repaired_where_the_template_refuses(void **state) {
    (void)state;
    const char *strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System "
                         "message must be first') }}"
                         "{% endif %}[{{ m['role'] + ':' + m['content'] }}]{% endfor %}";
    const char *late = "[{\"role\": \"system\", \"content\": \"one\"}, {\"role\": \"user\", \"content\": \"u\"},"
                       "{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"two\"}]}, {\"role\": "
                       "\"assistant\", \"content\": null}]";
    assert_string_equal(prompt_of(strict, late, 0), "[system:one\n\ntwo][user:u][assistant:]");
    assert_string_equal(prompt_of(strict, late, 1), "!System message must be first");
    const char *tolerant = "{% for m in messages %}[{{ m.role }}:{{ m.content if m.content is string }}]{% endfor %}";
    assert_string_equal(prompt_of(tolerant, late, 0), "[system:one][user:u][system:][assistant:]");
    assert_string_equal(prompt_of("{{ raise_exception('never') }}", late, 0), "!never");
}

static void what_a_template_raises_is_handed_on_whole(void **state) {
    (void)state;
    const char *said = prompt_of("{{ raise_exception('Ünicode \"q\"\nsecond line ' ~ 'x' * 600) }}", "[{\"role\": \"user\"}]", 1);
    const char *head = "!Ünicode \"q\"\nsecond line ";
    assert_memory_equal(said, head, strlen(head));
    assert_int_equal(strspn(said + strlen(head), "x"), 600);
    assert_int_equal(strlen(said), strlen(head) + 600);
}

static void a_template_without_end_gives_one_sentence(void **state) {
    (void)state;
    static const char *const monsters[] = {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
                                           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                                           "{{ 'x' * 10 ** 15 }}",
                                           "{{ [0] * 10 ** 15 }}",
                                           "{{ '%999999999999d' % 1 }}",
                                           "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% "
                                           "endfor %}",
                                           "{% set n = namespace(l=[]) %}{% for i in range(5000) %}{% set n.l = [n.l] %}{% "
                                           "endfor %}{{ n.l }}",
                                           "{% for i in range(9999) %}{% for j in range(9999) %}{{ "
                                           "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'|length "
                                           "}}{% endfor %}{% endfor %}"};
    for (size_t i = 0; i < sizeof monsters / sizeof *monsters; i++) {
        const char *said = prompt_of(monsters[i], "[{\"role\": \"user\"}]", 1);
        if (said[0] != '!' || !strstr(said, "the template")) fail_msg("%s: %s", monsters[i], said);
    }
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void a_folders_template_is_its_own_file_or_in_its_tokenizer_config(void **state) {
    (void)state;
    char config[4096], own[4096], folder[4096];
    snprintf(config, sizeof config, "%s", help_temp("tokenizer_config.json"));
    snprintf(own, sizeof own, "%s", help_temp("chat_template.jinja"));
    snprintf(folder, sizeof folder, "%s", config);
    *strrchr(folder, '/') = 0;
    struct template *t;
    struct weft_error e = {0};
    json_t *list = json_loads("[{\"role\": \"user\"}]", 0, NULL), *tools = json_loads("[{\"name\": \"f\"}]", 0, NULL);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list;

    assert_true(template_open(&t, folder, &e) < 0 && t == NULL && strstr(e.message, "no chat template"));
    write_file(config, "{\"chat_template\": \"one{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}\", \"bos_token\": "
                       "\"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"pad_token\": null}");
    assert_int_equal(template_open(&t, folder, &e), 0);
    assert_string_equal(render(t, &in), "one<s></s>False");
    assert_null(template_tool_family(t));
    template_close(t);
    write_file(config, "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, {\"name\": \"tool_use\", "
                       "\"template\": \"<tool_call>{{ tools|length }}\"}]}");
    assert_int_equal(template_open(&t, folder, &e), 0);
    assert_string_equal(render(t, &in), "plain");
    in.tools = tools;
    assert_string_equal(render(t, &in), "<tool_call>1");
    assert_string_equal(template_tool_family(t), "json");
    template_close(t);
    write_file(own, "own{{ '<tool_call>\\n<function=' }}{{ bos_token is defined }}");
    assert_int_equal(template_open(&t, folder, &e), 0);
    assert_string_equal(render(t, &in), "own<tool_call>\n<function=False");
    assert_string_equal(template_tool_family(t), "qwen3_coder");
    template_close(t);
    write_file(own, "{% if %}");
    assert_true(template_open(&t, folder, &e) < 0 && strstr(e.message, "chat_template.jinja: line 1"));
    write_file(config, "{");
    assert_true(template_open(&t, folder, &e) < 0 && strstr(e.message, "tokenizer_config.json"));
    json_decref(list), json_decref(tools);
}

static void every_recorded_prompt_of_the_bundled_template_is_equal(void **state) {
    (void)state;
    const char *recorded = help_shared("goldens/template/tiny.json"), *given = help_shared("goldens/template/dialogues.json");
    if (!recorded || !given) skip();
    json_t *want, *all, *d;
    struct weft_error e;
    struct template *t;
    assert_int_equal(json_read_file(&want, recorded, 1 << 26, &e), 0);
    assert_int_equal(json_read_file(&all, given, 1 << 26, &e), 0);
    if (template_open(&t, help_source("models/tiny"), &e)) fail_msg("%s", e.message);
    json_t *list = json_object_get(all, "dialogues"), *renders = json_object_get(want, "renders");
    json_array_extend(list, json_object_get(all, "as_text"));
    size_t i;
    int n = 0;
    json_array_foreach(list, i, d) {
        const char *id = json_string_value(json_object_get(d, "id")), *text = json_string_value(json_object_get(d, "text"));
        char *dump = text ? NULL : json_dumps(d, 0);
        struct template_input in = TEMPLATE_INPUT;
        in.dialogue = text ? text : dump, in.n_dialogue = strlen(in.dialogue), in.exact = 1;
        size_t k = 0;
        while (k < json_array_size(renders) && strcmp(json_string_value(json_object_get(json_array_get(renders, k), "id")), id))
            k++;
        assert_true(k < json_array_size(renders));
        json_t *r = json_array_get(renders, k);
        const json_t *prompt = json_object_get(r, "prompt");
        const char *kind = json_string_value(json_object_get(r, "kind"));
        struct buf out;
        char *raised;
        buf_init(&out);
        int code = template_render(t, &in, &out, &raised, &e);
        if (prompt ? code || out.n != json_string_length(prompt) || memcmp(out.data, json_string_value(prompt), out.n) : !code)
            fail_msg("%s: got (%d) %s", id, code, code ? e.message : out.data);
        if (kind && !strcmp(kind, "raised")) assert_string_equal(raised, json_string_value(json_object_get(r, "error")));
        mem_free(raised);
        buf_drop(&out);
        free(dump);
        n++;
    }
    assert_true(n > 80);
    template_close(t);
    json_decref(want), json_decref(all);
}

static void *render_often(void *arg) {
    json_t *list = json_loads("[{\"role\": \"user\", \"content\": \"hi\"}]", 0, NULL);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list;
    intptr_t bad = 0;
    for (int i = 0; i < 200; i++) {
        struct buf out;
        buf_init(&out);
        bad += template_render(arg, &in, &out, NULL, NULL) || out.n != 11 || memcmp(out.data, "ab-ab.hi.6!", 11);
        buf_drop(&out);
    }
    json_decref(list);
    return (void *)bad;
}

static void one_template_serves_many_threads(void **state) {
    (void)state;
    struct template *t = template_of("{% set a = 'a' 'b' %}{{ a ~ '-' ~ a }}{{ '.' ~ messages[0].content ~ '.' }}{{ [1, 2, 3] "
                                     "| sum }}{{ '!' }}");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        assert_int_equal(pthread_join(threads[i], &bad), 0);
        assert_null(bad);
    }
    template_close(t);
}

static void no_memory_is_an_error_at_every_allocation(void **state) {
    (void)state;
    json_t *list = json_loads(CALL("\"{\\\"a\\\": 1}\""), 0, NULL);
    struct template_input in = TEMPLATE_INPUT;
    in.messages = list;
    const char *text = "{% for m in messages %}{{ m | tojson }}{{ 'x' * 70000 }}{% endfor %}";
    int code = WEFT_ERROR_MEMORY, n = 0;
    for (; code == WEFT_ERROR_MEMORY && n < 200; n++) {
        struct template *t = NULL;
        struct weft_error e = {0};
        struct buf out;
        buf_init(&out);
        mem_fail_at(n, 1);
        code = template_new(&t, text, strlen(text), "test", &e);
        if (!code) code = template_render(t, &in, &out, NULL, &e);
        mem_fail_at(-1, 0);
        assert_true(code ? e.message[0] != 0 : out.n > 70000);
        template_close(t);
        buf_drop(&out);
    }
    assert_int_equal(code, 0);
    assert_true(n > 6);
    json_decref(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recorded_construct_comes_out_as_recorded),
        cmocka_unit_test(every_recorded_monster_ends_within_a_second),
        cmocka_unit_test(every_recorded_prompt_of_the_bundled_template_is_equal),
        cmocka_unit_test(the_language_is_jinja),
        cmocka_unit_test(messages_reach_the_template_as_transformers_gives_them),
        cmocka_unit_test(thinking_is_on_off_or_left_to_the_template),
        cmocka_unit_test(the_last_message_can_be_left_open),
        cmocka_unit_test(tool_arguments_come_as_text_or_object_whatever_the_template_wants),
        cmocka_unit_test(null_content_and_late_system_messages_are_repaired_where_the_template_refuses),
        cmocka_unit_test(what_a_template_raises_is_handed_on_whole),
        cmocka_unit_test(a_template_without_end_gives_one_sentence),
        cmocka_unit_test(a_folders_template_is_its_own_file_or_in_its_tokenizer_config),
        cmocka_unit_test(one_template_serves_many_threads),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
