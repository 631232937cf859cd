/* Filters that walk over a sequence. What Python makes lazily is made lazily here too: a generator gives its items once. */
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_filter.h"

#define FILTER(name) static struct value name(struct render *r, struct value self, const struct value *a, const struct call *c)
#define UNUSED (void)r, (void)self, (void)a, (void)c

static int given(struct value v) { return v.kind != VALUE_MISSING && v.kind != VALUE_NONE; }

static struct value list_of(struct render *r, struct list l) { return value_list(r, l.at, l.n); }

/* ---- generators ---- */

static int start(struct render *r, struct generator *g) {
    if (g->done) return 0;
    if (!g->started) {
        g->started = 1;
        if (!value_truth(r, g->over)) return g->done = 1, 0;
        walk_init(r, &g->source, g->over);
    }
    return 1;
}

static int next_mapped(struct render *r, struct generator *g, struct value *out) {
    struct value item;
    if (!start(r, g) || !walk_next(&g->source, &item)) return g->done = 1, 0;
    jinja_enter(r);
    *out = g->function ? function_call(r, g->function, item, &g->call) : value_path(r, item, g->path, g->otherwise);
    jinja_leave(r);
    return 1;
}

static int next_selected(struct render *r, struct generator *g, struct value *out) {
    while (start(r, g) && walk_next(&g->source, out)) {
        jinja_enter(r);
        struct value key = value_path(r, *out, g->path, MISSING);
        int keep = value_truth(r, g->function ? function_call(r, g->function, key, &g->call) : key);
        jinja_leave(r);
        if (keep != g->negate) return 1;
    }
    return g->done = 1, 0;
}

static int next_item(struct render *r, struct generator *g, struct value *out) {
    if (!start(r, g) || !walk_next(&g->source, out)) return g->done = 1, 0;
    return 1;
}

static struct generator *generator_new(struct render *r, struct value over) {
    struct generator *g = jinja_room(r, 1, sizeof *g);
    g->next = next_item, g->over = over, g->path = g->otherwise = MISSING;
    return g;
}

static struct value generator_value(struct generator *g) { return (struct value){.kind = VALUE_GENERATOR, .as.generator = g}; }
static struct value once(struct render *r, struct list l) { return generator_value(generator_new(r, list_of(r, l))); }

static const struct function *named(struct render *r, const struct function *(*find)(const char *, size_t), struct value name,
                                    const char *what) {
    if (!value_is_text(name)) jinja_fail(r, FAULT_TYPE, "the name of a %s must be text", what);
    const struct function *f = find(name.as.text->bytes, name.as.text->n);
    if (!f) jinja_fail(r, FAULT_RUNTIME, "No %s named '%.*s'.", what, (int)name.as.text->n, name.as.text->bytes);
    return f;
}

static struct value *named_arg(const struct call *c, const char *name) {
    for (size_t i = 0; i < c->n_named; i++)
        if (strlen(name) == c->named[i].key.as.text->n && !memcmp(name, c->named[i].key.as.text->bytes, strlen(name)))
            return &c->named[i].value;
    return NULL;
}

FILTER(f_map) {
    UNUSED;
    struct generator *g = generator_new(r, self);
    struct value *attribute = named_arg(c, "attribute"), *otherwise = named_arg(c, "default");
    g->next = next_mapped;
    if (!c->n_args && attribute) {
        if (c->n_named > 1 + (otherwise != NULL)) jinja_fail(r, FAULT_FILTER, "Unexpected keyword argument of map");
        g->path = *attribute;
        if (otherwise) g->otherwise = *otherwise;
        return generator_value(g);
    }
    if (!c->n_args) jinja_fail(r, FAULT_FILTER, "map requires a filter argument");
    g->function = named(r, filter_find, c->args[0], "filter");
    g->call = (struct call){c->args + 1, c->n_args - 1, c->named, c->n_named};
    return generator_value(g);
}

static struct value selection(struct render *r, struct value self, const struct call *c, int by_attr, int negate) {
    struct generator *g = generator_new(r, self);
    g->next = next_selected, g->negate = negate;
    if (c->n_args < (size_t)by_attr) jinja_fail(r, FAULT_FILTER, "Missing parameter for attribute name");
    if (by_attr) g->path = c->args[0];
    size_t off = (size_t)by_attr;
    if (c->n_args > off) {
        g->function = named(r, test_find, c->args[off], "test");
        g->call = (struct call){c->args + off + 1, c->n_args - off - 1, c->named, c->n_named};
    }
    return generator_value(g);
}
FILTER(f_select) { UNUSED; return selection(r, self, c, 0, 0); }
FILTER(f_reject) { UNUSED; return selection(r, self, c, 0, 1); }
FILTER(f_selectattr) { UNUSED; return selection(r, self, c, 1, 0); }
FILTER(f_rejectattr) { UNUSED; return selection(r, self, c, 1, 1); }

/* ---- one of many ---- */

FILTER(f_first) {
    UNUSED;
    struct walk w;
    struct value out;
    walk_init(r, &w, self);
    return walk_next(&w, &out) ? out : value_undefined(r, "No first item, sequence was empty.", NULL, MISSING);
}

FILTER(f_last) {
    UNUSED;
    if (self.kind == VALUE_GENERATOR) jinja_fail(r, FAULT_TYPE, "'generator' object is not reversible");
    struct list l = value_items(r, self);
    return l.n ? l.at[l.n - 1] : value_undefined(r, "No last item, sequence was empty.", NULL, MISSING);
}

static struct value extreme(struct render *r, struct value self, const struct value *a, const char *op) {
    struct list l = value_items(r, self);
    if (!l.n) return value_undefined(r, "No aggregated item, sequence was empty.", NULL, MISSING);
    struct value best = l.at[0], best_key = MISSING;
    for (size_t i = 0; i < l.n; i++) {
        struct value key = value_path(r, l.at[i], a[1], MISSING);
        if (!filter_flag(r, a[0], 0)) key = value_lower_case(r, key);
        if (i && !value_less(r, key, best_key, op)) continue;
        best = l.at[i], best_key = key;
    }
    return best;
}
FILTER(f_min) { UNUSED; return extreme(r, self, a, "<"); }
FILTER(f_max) { UNUSED; return extreme(r, self, a, ">"); }

FILTER(f_sum) {
    UNUSED;
    struct value total = a[1].kind == VALUE_MISSING ? value_int(0) : a[1];
    struct list l = value_items(r, self);
    if (value_is_text(total)) jinja_fail(r, FAULT_TYPE, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < l.n; i++) total = value_binary(r, '+', total, value_path(r, l.at[i], a[0], MISSING));
    return total;
}

FILTER(f_join) {
    UNUSED;
    struct value by = a[0].kind == VALUE_MISSING ? value_text(r, "") : value_to_text(r, a[0]);
    struct list l = value_items(r, self);
    struct out o = {0};
    int markup = r->autoescape && by.as.text->markup;
    for (size_t i = 0; i < l.n; i++) {
        struct value item = value_path(r, l.at[i], given(a[1]) ? a[1] : MISSING, MISSING);
        markup |= r->autoescape && value_is_text(item) && item.as.text->markup;
        l.at = i ? l.at : memcpy(jinja_room(r, l.n, sizeof *l.at), l.at, l.n * sizeof *l.at);
        l.at[i] = item;
    }
    for (size_t i = 0; i < l.n; i++) {
        struct value sep = markup ? text_escape(r, by) : by;
        if (i) out_add(r, &o, sep.as.text->bytes, sep.as.text->n);
        value_show(r, &o, markup ? text_escape(r, l.at[i]) : l.at[i]);
        jinja_step(r, 1);
    }
    return markup ? value_markup(r, out_take(r, &o)) : out_take(r, &o);
}

/* ---- order ---- */

/* Merges [from, middle) and [middle, to). Equal keys keep their order, also when `reverse`. */
static void merge(struct render *r, const struct value *keys, size_t *at, size_t *room, size_t from, size_t middle, size_t to,
                  int reverse) {
    size_t i = from, j = middle, k = from;
    while (i < middle && j < to) {
        int right = reverse ? value_less(r, keys[at[i]], keys[at[j]], "<") : value_less(r, keys[at[j]], keys[at[i]], "<");
        room[k++] = right ? at[j++] : at[i++];
    }
    while (i < middle) room[k++] = at[i++];
    while (j < to) room[k++] = at[j++];
    memcpy(at + from, room + from, (to - from) * sizeof *at);
}

void list_sort(struct render *r, struct value *items, const struct value *keys, size_t n, int reverse) {
    size_t *at = jinja_room(r, n, sizeof *at), *room = jinja_room(r, n, sizeof *room);
    struct value *out = jinja_room(r, n, sizeof *out);
    for (size_t i = 0; i < n; i++) at[i] = i;
    for (size_t width = 1; width < n; width *= 2)
        for (size_t from = 0; from + width < n; from += 2 * width)
            merge(r, keys, at, room, from, from + width, from + 2 * width < n ? from + 2 * width : n, reverse);
    for (size_t i = 0; i < n; i++) out[i] = items[at[i]];
    if (n) memcpy(items, out, n * sizeof *items);
}

static struct value *copied(struct render *r, struct list l) {
    struct value *at = jinja_room(r, l.n, sizeof *at);
    if (l.n) memcpy(at, l.at, l.n * sizeof *at);
    jinja_step(r, (int64_t)l.n);
    return at;
}

FILTER(f_sort) {
    UNUSED;
    struct list l = value_items(r, self);
    struct value *items = copied(r, l), *keys = jinja_room(r, l.n, sizeof *keys), paths = MISSING;
    int fold = !filter_flag(r, a[1], 0);
    if (given(a[2]) && value_is_text(a[2])) {
        struct value comma = value_text(r, ",");
        paths = function_call(r, method_find(a[2], "split", 5), a[2], &(struct call){.args = &comma, .n_args = 1});
    } else {
        paths = value_list(r, &a[2], 1);
    }
    for (size_t i = 0; i < l.n; i++) {
        struct list key = {0};
        for (size_t k = 0; k < paths.as.list->n; k++) {
            struct value v = value_path(r, l.at[i], paths.as.list->at[k], MISSING);
            list_add(r, &key, fold ? value_lower_case(r, v) : v);
        }
        keys[i] = list_of(r, key);
    }
    list_sort(r, items, keys, l.n, filter_flag(r, a[0], 0));
    return value_list(r, items, l.n);
}

FILTER(f_dictsort) {
    UNUSED;
    if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
    if (self.kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "'%s' object has no attribute 'items'", value_type(self));
    struct value by = a[1].kind == VALUE_MISSING ? value_text(r, "key") : a[1];
    int by_value = value_equal(r, by, value_text(r, "value"));
    if (!by_value && !value_equal(r, by, value_text(r, "key")))
        jinja_fail(r, FAULT_FILTER, "You can only sort by either \"key\" or \"value\"");
    const struct dict *d = self.as.dict;
    struct value *items = jinja_room(r, d->n, sizeof *items), *keys = jinja_room(r, d->n, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        items[i] = value_pair(r, d->at[i].key, d->at[i].value);
        keys[i] = by_value ? d->at[i].value : d->at[i].key;
        if (!filter_flag(r, a[0], 0)) keys[i] = value_lower_case(r, keys[i]);
    }
    list_sort(r, items, keys, d->n, filter_flag(r, a[2], 0));
    return value_list(r, items, d->n);
}

FILTER(f_groupby) {
    UNUSED;
    struct list l = value_items(r, self), groups = {0}, group = {0};
    struct value *items = copied(r, l), *keys = jinja_room(r, l.n, sizeof *keys), *at = jinja_room(r, l.n, sizeof *at);
    int fold = !filter_flag(r, a[2], 0);
    for (size_t i = 0; i < l.n; i++) {
        struct value key = value_path(r, items[i], a[0], a[1]);
        keys[i] = fold ? value_lower_case(r, key) : key, at[i] = value_int((int64_t)i);
    }
    list_sort(r, at, keys, l.n, 0);
    for (size_t i = 0; i < l.n; i++) {
        list_add(r, &group, items[at[i].as.i]);
        if (i + 1 < l.n && value_equal(r, keys[at[i].as.i], keys[at[i + 1].as.i])) continue;
        struct list *pair = jinja_room(r, 1, sizeof *pair);
        pair->at = jinja_room(r, 2, sizeof *pair->at), pair->n = 2, pair->grouped = 1;
        pair->at[0] = value_path(r, group.at[0], a[0], a[1]), pair->at[1] = list_of(r, group);
        list_add(r, &groups, (struct value){.kind = VALUE_TUPLE, .as.list = pair});
        group = (struct list){0};
    }
    return list_of(r, groups);
}

FILTER(f_unique) {
    UNUSED;
    struct list l = value_items(r, self), out = {0};
    struct dict seen = {0};
    for (size_t i = 0; i < l.n; i++) {
        struct value key = value_path(r, l.at[i], a[1], MISSING);
        if (!filter_flag(r, a[0], 0)) key = value_lower_case(r, key);
        if (dict_get(r, &seen, key)) continue;
        dict_set(r, &seen, key, NONE);
        list_add(r, &out, l.at[i]);
    }
    return once(r, out);
}

FILTER(f_reverse) {
    UNUSED;
    if (value_is_text(self)) return value_slice(r, self, NONE, NONE, value_int(-1));
    if (!value_is_iterable(self)) jinja_fail(r, FAULT_FILTER, "argument must be iterable");
    struct list l = value_items(r, self);
    struct value *at = jinja_room(r, l.n, sizeof *at);
    jinja_step(r, (int64_t)l.n);
    for (size_t i = 0; i < l.n; i++) at[i] = l.at[l.n - 1 - i];
    struct value out = value_list(r, at, l.n);
    return self.kind == VALUE_GENERATOR ? out : generator_value(generator_new(r, out));
}

/* ---- shape ---- */

FILTER(f_list) { UNUSED; return list_of(r, value_items(r, self)); }

FILTER(f_items) {
    UNUSED;
    if (self.kind == VALUE_UNDEFINED) return once(r, (struct list){0});
    if (self.kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "Can only get item pairs from a mapping.");
    struct list l = {0};
    for (size_t i = 0; i < self.as.dict->n; i++)
        list_add(r, &l, value_pair(r, self.as.dict->at[i].key, self.as.dict->at[i].value));
    return once(r, l);
}

FILTER(f_batch) {
    UNUSED;
    struct list l = value_items(r, self), rows = {0}, row = {0};
    int64_t width = value_index(r, a[0]);
    for (size_t i = 0; i < l.n; i++) {
        if (row.n && (int64_t)row.n == width) list_add(r, &rows, list_of(r, row)), row = (struct list){0};
        list_add(r, &row, l.at[i]);
    }
    if (row.n) {
        while (given(a[1]) && (int64_t)row.n < width) list_add(r, &row, a[1]);
        list_add(r, &rows, list_of(r, row));
    }
    return once(r, rows);
}

FILTER(f_slice) {
    UNUSED;
    struct list l = value_items(r, self), rows = {0};
    int64_t n = value_index(r, a[0]), length = (int64_t)l.n, at = 0;
    if (!n) jinja_fail(r, FAULT_ZERO, "integer division or modulo by zero");
    for (int64_t i = 0; i < n; i++) {
        int64_t longer = i < length % n, count = length / n + longer;
        struct list row = {0};
        for (int64_t k = 0; k < count; k++) list_add(r, &row, l.at[at++]);
        if (given(a[1]) && !longer) list_add(r, &row, a[1]);
        list_add(r, &rows, list_of(r, row));
    }
    return once(r, rows);
}

const struct function list_filters[] = {
    {"batch", "linecount fill_with?", f_batch}, {"dictsort", "case_sensitive? by? reverse?", f_dictsort}, {"first", "", f_first},
    {"groupby", "attribute default? case_sensitive?", f_groupby}, {"items", "", f_items}, {"join", "d? attribute?", f_join},
    {"last", "", f_last}, {"list", "", f_list}, {"map", NULL, f_map}, {"max", "case_sensitive? attribute?", f_max},
    {"min", "case_sensitive? attribute?", f_min}, {"reject", NULL, f_reject}, {"rejectattr", NULL, f_rejectattr},
    {"reverse", "", f_reverse}, {"select", NULL, f_select}, {"selectattr", NULL, f_selectattr},
    {"slice", "slices fill_with?", f_slice}, {"sort", "reverse? case_sensitive? attribute?", f_sort},
    {"sum", "attribute? start?", f_sum}, {"unique", "case_sensitive? attribute?", f_unique}, {NULL, NULL, NULL}};
