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

static const struct jinja_limits limits = {.steps = 10000000, .bytes = 256 << 20, .depth = 800};
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
    static const struct { const char *name; enum jinja_fault fault; } kinds[] = {{"syntax", FAULT_SYNTAX},
        {"undefined", FAULT_UNDEFINED}, {"security", FAULT_SECURITY}, {"type", FAULT_TYPE}, {"value", FAULT_VALUE},
        {"overflow", FAULT_OVERFLOW}, {"zero", FAULT_ZERO}, {"key", FAULT_KEY}, {"runtime", FAULT_RUNTIME}, {"filter", FAULT_FILTER},
        {"raised", FAULT_RAISED}, {"attribute", FAULT_TYPE}};
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
        if (!fault || seconds > 1) print_error("%s: fault %d after %.2f s: %.80s\n", json_string_value(json_object_get(c, "what")), (int)fault, seconds, got);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recorded_construct_comes_out_as_recorded),
        cmocka_unit_test(every_recorded_monster_ends_within_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
