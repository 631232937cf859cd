/* Tests ("is ...") and the functions that every template finds. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_filter.h"

#define FUNCTION(name) static struct value name(struct render *r, struct value self, const struct value *a, const struct call *c)
#define UNUSED (void)r, (void)self, (void)a, (void)c
#define TEST(name, condition) FUNCTION(name) { UNUSED; return value_bool(condition); }

TEST(t_boolean, self.kind == VALUE_BOOL)
TEST(t_callable, value_is_callable(self))
TEST(t_defined, self.kind != VALUE_UNDEFINED)
TEST(t_undefined, self.kind == VALUE_UNDEFINED)
TEST(t_eq, value_equal(r, self, a[0]))
TEST(t_ne, !value_equal(r, self, a[0]))
TEST(t_lt, value_less(r, self, a[0], "<"))
TEST(t_le, value_less(r, self, a[0], "<="))
TEST(t_gt, value_less(r, self, a[0], ">"))
TEST(t_ge, value_less(r, self, a[0], ">="))
TEST(t_escaped, value_is_text(self) && self.as.text->markup)
TEST(t_true, self.kind == VALUE_BOOL && self.as.i)
TEST(t_false, self.kind == VALUE_BOOL && !self.as.i)
TEST(t_float, self.kind == VALUE_FLOAT)
TEST(t_integer, self.kind == VALUE_INT || self.kind == VALUE_BIG)
TEST(t_number, value_is_number(self))
TEST(t_in, value_contains(r, a[0], self))
TEST(t_iterable, value_is_iterable(self))
TEST(t_mapping, self.kind == VALUE_DICT)
TEST(t_none, self.kind == VALUE_NONE)
TEST(t_string, value_is_text(self))
TEST(t_sameas, value_same(self, a[0]))
TEST(t_sequence, value_is_iterable(self) && self.kind != VALUE_VIEW && self.kind != VALUE_GENERATOR)
TEST(t_filter, value_is_text(self) && filter_find(self.as.text->bytes, self.as.text->n))
TEST(t_test, value_is_text(self) && test_find(self.as.text->bytes, self.as.text->n))

static int remainder_is(struct render *r, struct value v, struct value by, int64_t what) {
    return value_equal(r, value_binary(r, '%', v, by), value_int(what));
}
TEST(t_odd, remainder_is(r, self, value_int(2), 1))
TEST(t_even, remainder_is(r, self, value_int(2), 0))
TEST(t_divisibleby, remainder_is(r, self, a[0], 0))

static int cased(struct render *r, struct value v, int upper) {
    const struct text *t = value_to_text(r, v).as.text;
    return text_is_cased(t->bytes, t->n, upper);
}
TEST(t_lower, cased(r, self, 0))
TEST(t_upper, cased(r, self, 1))

static const struct function tests[] = {
    {"boolean", "", t_boolean}, {"callable", "", t_callable}, {"defined", "", t_defined}, {"divisibleby", "num", t_divisibleby},
    {"eq", "other", t_eq}, {"==", "other", t_eq}, {"equalto", "other", t_eq}, {"escaped", "", t_escaped}, {"even", "", t_even},
    {"false", "", t_false}, {"filter", "", t_filter}, {"float", "", t_float}, {"ge", "other", t_ge}, {">=", "other", t_ge},
    {"gt", "other", t_gt}, {">", "other", t_gt}, {"greaterthan", "other", t_gt}, {"in", "seq", t_in}, {"integer", "", t_integer},
    {"iterable", "", t_iterable}, {"le", "other", t_le}, {"<=", "other", t_le}, {"lower", "", t_lower}, {"lt", "other", t_lt},
    {"<", "other", t_lt}, {"lessthan", "other", t_lt}, {"mapping", "", t_mapping}, {"ne", "other", t_ne}, {"!=", "other", t_ne},
    {"none", "", t_none}, {"number", "", t_number}, {"odd", "", t_odd}, {"sameas", "other", t_sameas},
    {"sequence", "", t_sequence}, {"string", "", t_string}, {"test", "", t_test}, {"true", "", t_true},
    {"undefined", "", t_undefined}, {"upper", "", t_upper}, {NULL, NULL, NULL}};

const struct function *test_find(const char *name, size_t n) { return function_find(tests, name, n); }

/* ---- functions ---- */

FUNCTION(g_range) {
    UNUSED;
    int64_t start = 0, stop = value_index(r, a[0]), step = 1;
    if (a[1].kind != VALUE_MISSING) start = stop, stop = value_index(r, a[1]);
    if (a[2].kind != VALUE_MISSING) step = value_index(r, a[2]);
    if (!step) jinja_fail(r, FAULT_VALUE, "range() arg 3 must not be zero");
    struct range *g = jinja_room(r, 1, sizeof *g);
    uint64_t span = step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                             : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span ? (span - 1) / by + 1 : 0;
    if (n > 100000) jinja_fail(r, FAULT_OVERFLOW, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    *g = (struct range){start, stop, step, (int64_t)n};
    return (struct value){.kind = VALUE_RANGE, .as.range = g};
}

/* dict(mapping or pairs, names...), also for namespace(): `into` is told of every name. */
static void gather(struct render *r, const struct call *c, struct dict *d, struct space *s) {
    if (c->n_args > 1) jinja_fail(r, FAULT_TYPE, "dict expected at most 1 argument, got %zu", c->n_args);
    struct value from = c->n_args ? c->args[0] : MISSING;
    if (from.kind == VALUE_DICT) {
        for (size_t i = 0; i < from.as.dict->n; i++) dict_set(r, d, from.as.dict->at[i].key, from.as.dict->at[i].value);
    } else if (from.kind != VALUE_MISSING) {
        struct list l = value_items(r, from);
        for (size_t i = 0; i < l.n; i++) {
            struct list pair = value_items(r, l.at[i]);
            if (pair.n != 2)
                jinja_fail(r, FAULT_VALUE, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair.n);
            dict_set(r, d, pair.at[0], pair.at[1]);
        }
    }
    for (size_t i = 0; i < c->n_named; i++) dict_set(r, d, c->named[i].key, c->named[i].value);
    for (size_t i = 0; s && i < d->n; i++) space_set(r, s, d->at[i].key, d->at[i].value);
}

FUNCTION(g_dict) {
    UNUSED;
    struct dict d = {0};
    gather(r, c, &d, NULL);
    return value_dict(r, &d);
}

FUNCTION(g_namespace) {
    UNUSED;
    struct dict d = {0};
    struct space *s = jinja_room(r, 1, sizeof *s);
    gather(r, c, &d, s);
    return (struct value){.kind = VALUE_NAMESPACE, .as.space = s};
}

FUNCTION(g_cycler) {
    UNUSED;
    if (!c->n_args) jinja_fail(r, FAULT_RUNTIME, "at least one item has to be provided");
    if (c->n_named) jinja_fail(r, FAULT_TYPE, "cycler() got an unexpected keyword argument");
    struct cycler *y = jinja_room(r, 1, sizeof *y);
    y->items = (struct list){.at = c->args, .n = c->n_args};
    return (struct value){.kind = VALUE_CYCLER, .as.cycler = y};
}

FUNCTION(g_joiner) {
    UNUSED;
    struct cycler *y = jinja_room(r, 1, sizeof *y);
    y->items.at = jinja_room(r, 1, sizeof *y->items.at), y->items.n = 1;
    y->items.at[0] = a[0].kind == VALUE_MISSING ? value_text(r, ", ") : a[0];
    return (struct value){.kind = VALUE_JOINER, .as.cycler = y};
}

FUNCTION(g_raise) {
    UNUSED;
    const struct text *t = value_to_text(r, a[0]).as.text;
    jinja_fail(r, FAULT_RAISED, "%.*s", (int)(t->n < 65536 ? t->n : 65536), t->bytes);
}

FUNCTION(g_strftime) {
    UNUSED;
    if (!value_is_text(a[0])) jinja_fail(r, FAULT_TYPE, "strftime_now wants text, not %s", value_type(a[0]));
    const struct text *t = a[0].as.text;
    struct out format = {0};
    for (size_t i = 0; i < t->n; i++) { /* the directives that are Python's and not the C library's */
        char c1 = t->bytes[i], c2 = i + 1 < t->n ? t->bytes[i + 1] : 0, micros[16];
        if (!c1) jinja_fail(r, FAULT_VALUE, "embedded null character");
        if (c1 != '%' || !c2) { out_add(r, &format, &c1, 1); continue; }
        i++;
        if (c2 == 'f') {
            snprintf(micros, sizeof micros, "%06d", r->now_us);
            out_add_text(r, &format, micros);
        } else if (c2 != 'z' && c2 != 'Z') {
            out_add(r, &format, t->bytes + i - 1, 2);
        }
    }
    if (!format.n) return value_text(r, "");
    out_add(r, &format, "|", 2); /* the bar tells an empty result from one that did not fit; its zero ends the format */
    for (size_t room = format.n * 4 + 256;; room *= 4) {
        char *text = jinja_room(r, room, 1);
        size_t n = strftime(text, room, format.bytes, &r->now);
        if (n) return value_text_n(r, text, n - 1);
    }
}

FUNCTION(g_lipsum) {
    UNUSED;
    jinja_fail(r, FAULT_SUPPORT, "lipsum is not supported");
}

static const struct function globals[] = {{"range", "/start stop? step?", g_range},
                                          {"dict", NULL, g_dict},
                                          {"namespace", NULL, g_namespace},
                                          {"cycler", NULL, g_cycler},
                                          {"joiner", "sep?", g_joiner},
                                          {"raise_exception", "message", g_raise},
                                          {"strftime_now", "/format", g_strftime},
                                          {"lipsum", NULL, g_lipsum},
                                          {NULL, NULL, NULL}};

const struct function *global_find(const char *name, size_t n) { return function_find(globals, name, n); }
