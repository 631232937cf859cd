/* Values: making them, and what Python's operators ask of them. */
#include <math.h>
#include <string.h>

#include "text/jinja.h"

struct value value_text_n(struct render *r, const char *bytes, size_t n) {
    struct text *t = jinja_room(r, 1, sizeof *t);
    jinja_step(r, (int64_t)n / 256);
    *t = (struct text){n ? bytes : "", n, text_count(bytes, n), 0, NULL};
    return (struct value){.kind = VALUE_STRING, .as.text = t};
}

struct value value_text(struct render *r, const char *text) { return value_text_n(r, text, strlen(text)); }

struct value value_markup(struct render *r, struct value text) {
    struct text *t = jinja_room(r, 1, sizeof *t);
    *t = *text.as.text;
    t->markup = 1;
    return (struct value){.kind = VALUE_STRING, .as.text = t};
}

/* Room for `used + more` elements. A text or list that is built up by concatenation goes on where it ends if nobody else has
 * gone on from there, so that building costs what is built and not its square. */
static void *grow_room(struct render *r, const void *at, size_t n, size_t more, size_t size, struct grow **grow) {
    if (*grow && (*grow)->used == n && (*grow)->room - n >= more) return (*grow)->used += more, (void *)(uintptr_t)at;
    size_t room = n + more > 16 ? (n + more) * 2 : n + more;
    char *fresh = jinja_room(r, room, size);
    if (n) memcpy(fresh, at, n * size);
    jinja_step(r, (int64_t)(n * size) / 64);
    *grow = jinja_room(r, 1, sizeof **grow);
    **grow = (struct grow){n + more, room};
    return fresh;
}

struct value value_concat(struct render *r, struct value a, struct value b) {
    const struct text *x = a.as.text, *y = b.as.text;
    if (!x->n && !x->markup) return b;
    if (!y->n) return a;
    struct text *t = jinja_room(r, 1, sizeof *t);
    *t = *x;
    char *bytes = grow_room(r, x->bytes, x->n, y->n, 1, &t->grow);
    memcpy(bytes + x->n, y->bytes, y->n);
    jinja_step(r, (int64_t)y->n / 64);
    t->bytes = bytes, t->n += y->n, t->n_chars += y->n_chars;
    return (struct value){.kind = VALUE_STRING, .as.text = t};
}

static struct value sequence(struct render *r, enum value_kind kind, struct list what) {
    struct list *l = jinja_room(r, 1, sizeof *l);
    *l = what;
    return (struct value){.kind = kind, .as.list = l};
}

static struct list borrow(const struct value *at, size_t n) { return (struct list){.at = (struct value *)(uintptr_t)at, .n = n}; }
struct value value_list(struct render *r, const struct value *at, size_t n) { return sequence(r, VALUE_LIST, borrow(at, n)); }
struct value value_tuple(struct render *r, const struct value *at, size_t n) { return sequence(r, VALUE_TUPLE, borrow(at, n)); }

struct value value_pair(struct render *r, struct value a, struct value b) {
    struct value *at = jinja_room(r, 2, sizeof *at);
    at[0] = a, at[1] = b;
    return value_tuple(r, at, 2);
}

struct value value_list_concat(struct render *r, struct value a, struct value b) {
    struct list l = *a.as.list;
    const struct list *more = b.as.list;
    if (more->n) {
        l.at = grow_room(r, l.at, l.n, more->n, sizeof *l.at, &l.grow);
        memcpy(l.at + l.n, more->at, more->n * sizeof *l.at);
        l.n += more->n;
    }
    return sequence(r, a.kind, l);
}

void list_add(struct render *r, struct list *l, struct value v) {
    jinja_step(r, 1);
    l->at = grow_room(r, l->at, l->n, 1, sizeof *l->at, &l->grow);
    l->at[l->n++] = v;
}

struct value value_undefined(struct render *r, const char *said, const char *of, struct value name) {
    struct undefined *u = jinja_room(r, 1, sizeof *u);
    *u = (struct undefined){said, of, name, 0};
    return (struct value){.kind = VALUE_UNDEFINED, .as.undefined = u};
}

struct value value_unsafe(struct render *r, struct value of, const char *name) {
    struct out o = {0};
    out_add_text(r, &o, "access to attribute '");
    out_add_text(r, &o, name);
    out_add_text(r, &o, "' of '");
    out_add_text(r, &o, value_type(of));
    out_add(r, &o, "' object is unsafe.", 20);
    struct undefined *u = jinja_room(r, 1, sizeof *u);
    *u = (struct undefined){o.bytes, NULL, MISSING, 1};
    return (struct value){.kind = VALUE_UNDEFINED, .as.undefined = u};
}

void jinja_fail_undefined(struct render *r, struct value v) {
    const struct undefined *u = v.as.undefined;
    if (u->said) jinja_fail(r, u->security ? FAULT_SECURITY : FAULT_UNDEFINED, "%s", u->said);
    struct out o = {0};
    if (!u->of) {
        value_repr(r, &o, u->name);
        jinja_fail(r, FAULT_UNDEFINED, "%.*s is undefined", (int)o.n, o.bytes);
    }
    const char *object = strcmp(u->of, "NoneType") ? " object" : "", *of = *object ? u->of : "None";
    value_repr(r, &o, u->name);
    if (value_is_text(u->name)) jinja_fail(r, FAULT_UNDEFINED, "'%s%s' has no attribute %.*s", of, object, (int)o.n, o.bytes);
    jinja_fail(r, FAULT_UNDEFINED, "%s%s has no element %.*s", of, object, (int)o.n, o.bytes);
}

struct value value_function(const struct function *f) { return (struct value){.kind = VALUE_FUNCTION, .as.function = f}; }

/* ---- objects ---- */

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * 0x9e3779b97f4a7c15u ^ (h >> 29); }

uint64_t value_hash(struct render *r, struct value v) {
    uint64_t h = 1469598103934665603u;
    switch (v.kind) {
    case VALUE_STRING: case VALUE_BYTES: case VALUE_BIG:
        jinja_step(r, (int64_t)v.as.text->n / 64);
        for (size_t i = 0; i < v.as.text->n; i++) h = (h ^ (unsigned char)v.as.text->bytes[i]) * 1099511628211u;
        return h ^ h >> 31;
    case VALUE_BOOL: case VALUE_INT: return mix(7, (uint64_t)v.as.i);
    case VALUE_FLOAT:
        if (v.as.f == floor(v.as.f) && fabs(v.as.f) < 9e18) return mix(7, (uint64_t)(int64_t)v.as.f);
        memcpy(&h, &v.as.f, sizeof h);
        return mix(11, h);
    case VALUE_NONE: return 13;
    case VALUE_UNDEFINED: return 17;
    case VALUE_TUPLE:
        jinja_enter(r);
        for (size_t i = 0; i < v.as.list->n; i++) h = mix(h, value_hash(r, v.as.list->at[i]));
        jinja_leave(r);
        return h;
    case VALUE_LIST: case VALUE_DICT: jinja_fail(r, FAULT_TYPE, "unhashable type: '%s'", value_type(v));
    default: return mix(19, (uint64_t)(uintptr_t)v.as.dict);
    }
}

static struct pair *find(struct render *r, const struct dict *d, struct value key, uint64_t hash) {
    if (!d->n_slots) {
        for (size_t i = 0; i < d->n; i++)
            if (d->at[i].hash == hash && value_equal(r, d->at[i].key, key)) return &d->at[i];
        return NULL;
    }
    for (size_t i = hash & (d->n_slots - 1); d->slots[i]; i = (i + 1) & (d->n_slots - 1)) {
        struct pair *p = &d->at[d->slots[i] - 1];
        if (p->hash == hash && value_equal(r, p->key, key)) return p;
    }
    return NULL;
}

static void enter_slot(struct dict *d, size_t at) {
    size_t i = d->at[at].hash & (d->n_slots - 1);
    while (d->slots[i]) i = (i + 1) & (d->n_slots - 1);
    d->slots[i] = (uint32_t)at + 1;
}

void dict_set(struct render *r, struct dict *d, struct value key, struct value v) {
    uint64_t hash = value_hash(r, key);
    struct pair *old = find(r, d, key, hash);
    if (old) { old->value = v; return; }
    jinja_step(r, 1);
    if (d->n == d->room) {
        size_t room = d->room ? d->room * 2 : 4;
        struct pair *at = jinja_room(r, room, sizeof *at);
        if (d->n) memcpy(at, d->at, d->n * sizeof *at);
        d->at = at, d->room = room;
        if (room > 8) {
            d->n_slots = room * 2;
            d->slots = jinja_room(r, d->n_slots, sizeof *d->slots);
            for (size_t i = 0; i < d->n; i++) enter_slot(d, i);
        }
    }
    d->at[d->n] = (struct pair){key, v, hash};
    d->n++;
    if (d->n_slots) enter_slot(d, d->n - 1);
}

struct value *dict_get(struct render *r, const struct dict *d, struct value key) {
    struct pair *p = find(r, d, key, value_hash(r, key));
    return p ? &p->value : NULL;
}

struct value *dict_get_text(struct render *r, const struct dict *d, const char *key) {
    struct text t = {key, strlen(key), 0, 0, NULL};
    return dict_get(r, d, (struct value){.kind = VALUE_STRING, .as.text = &t});
}

struct value value_dict(struct render *r, const struct dict *d) {
    struct dict *copy = jinja_room(r, 1, sizeof *copy);
    *copy = *d;
    return (struct value){.kind = VALUE_DICT, .as.dict = copy};
}

/* ---- questions ---- */

const char *value_type(struct value v) {
    static const char *names[] = {[VALUE_MISSING] = "missing", [VALUE_UNDEFINED] = "Undefined", [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool", [VALUE_INT] = "int", [VALUE_BIG] = "int", [VALUE_FLOAT] = "float", [VALUE_STRING] = "str",
        [VALUE_BYTES] = "bytes", [VALUE_LIST] = "list", [VALUE_TUPLE] = "tuple", [VALUE_DICT] = "dict", [VALUE_RANGE] = "range",
        [VALUE_GENERATOR] = "generator", [VALUE_NAMESPACE] = "Namespace", [VALUE_MACRO] = "Macro", [VALUE_LOOP] = "LoopContext",
        [VALUE_FUNCTION] = "function", [VALUE_METHOD] = "builtin_function_or_method", [VALUE_CYCLER] = "Cycler",
        [VALUE_JOINER] = "Joiner", [VALUE_SELF] = "TemplateReference"};
    if (v.kind == VALUE_VIEW) return v.as.view->name;
    return v.kind == VALUE_STRING && v.as.text->markup ? "Markup" : names[v.kind];
}

int value_truth(struct render *r, struct value v) {
    switch (v.kind) {
    case VALUE_MISSING: case VALUE_UNDEFINED: case VALUE_NONE: return 0;
    case VALUE_BOOL: case VALUE_INT: return v.as.i != 0;
    case VALUE_FLOAT: return v.as.f != 0;
    case VALUE_STRING: case VALUE_BYTES: case VALUE_LIST: case VALUE_TUPLE: case VALUE_DICT: case VALUE_RANGE: case VALUE_VIEW:
        return value_length(r, v) != 0;
    default: return 1;
    }
}

static int lists_equal(struct render *r, const struct list *a, const struct list *b) {
    if (a->n != b->n) return 0;
    jinja_enter(r);
    size_t i = 0;
    while (i < a->n && value_equal(r, a->at[i], b->at[i])) i++;
    jinja_leave(r);
    return i == a->n;
}

static int dicts_equal(struct render *r, const struct dict *a, const struct dict *b) {
    if (a->n != b->n) return 0;
    jinja_enter(r);
    size_t i = 0;
    for (; i < a->n; i++) {
        struct pair *p = find(r, b, a->at[i].key, a->at[i].hash);
        if (!p || !value_equal(r, a->at[i].value, p->value)) break;
    }
    jinja_leave(r);
    return i == a->n;
}

int value_same(struct value a, struct value b) {
    if (a.kind != b.kind) return 0;
    if (a.kind == VALUE_NONE) return 1;
    if (value_is_whole(a)) return a.as.i == b.as.i;
    return a.kind == VALUE_FLOAT ? a.as.f == b.as.f : a.as.dict == b.as.dict;
}

int value_equal(struct render *r, struct value a, struct value b) {
    jinja_step(r, 1);
    if (value_is_number(a) && value_is_number(b)) return number_compare(a, b) == 0;
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case VALUE_STRING: case VALUE_BYTES:
        if (a.as.text->n != b.as.text->n) return 0;
        jinja_step(r, (int64_t)a.as.text->n / 256);
        return !memcmp(a.as.text->bytes, b.as.text->bytes, a.as.text->n);
    case VALUE_NONE: case VALUE_UNDEFINED: return 1;
    case VALUE_LIST: case VALUE_TUPLE: return lists_equal(r, a.as.list, b.as.list);
    case VALUE_DICT: return dicts_equal(r, a.as.dict, b.as.dict);
    case VALUE_RANGE: {
        const struct range *x = a.as.range, *y = b.as.range;
        return x->n == y->n && (!x->n || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    default: return value_same(a, b);
    }
}

static int text_compare(const struct text *a, const struct text *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->bytes, b->bytes, n) : 0; /* bytes of UTF-8 sort as code points do */
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

int value_less(struct render *r, struct value a, struct value b, const char *op) {
    int or_equal = op[1] == '=', turned = op[0] == '>';
    jinja_step(r, 1);
    if (value_is_number(a) && value_is_number(b)) {
        int c = number_compare(a, b);
        return c != 2 && (turned ? c > 0 || (or_equal && c == 0) : c < 0 || (or_equal && c == 0));
    }
    if (value_is_text(a) && value_is_text(b)) {
        jinja_step(r, (int64_t)a.as.text->n / 256);
        int c = text_compare(a.as.text, b.as.text);
        return turned ? c > 0 || (or_equal && c == 0) : c < 0 || (or_equal && c == 0);
    }
    if (a.kind == b.kind && (a.kind == VALUE_LIST || a.kind == VALUE_TUPLE)) {
        const struct list *x = a.as.list, *y = b.as.list;
        size_t i = 0, n = x->n < y->n ? x->n : y->n;
        jinja_enter(r);
        while (i < n && value_equal(r, x->at[i], y->at[i])) i++;
        int c = i < n ? value_less(r, x->at[i], y->at[i], op)
                      : number_compare(value_int((int64_t)x->n), value_int((int64_t)y->n)) * (turned ? -1 : 1) < or_equal;
        jinja_leave(r);
        return c;
    }
    if (a.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, a);
    if (b.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, b);
    jinja_fail(r, FAULT_TYPE, "'%s' not supported between instances of '%s' and '%s'", op, value_type(a), value_type(b));
}

int value_contains(struct render *r, struct value v, struct value item) {
    if (value_is_text(v)) {
        if (!value_is_text(item))
            jinja_fail(r, FAULT_TYPE, "'in <string>' requires string as left operand, not %s", value_type(item));
        jinja_step(r, (int64_t)v.as.text->n / 64);
        return text_find(v.as.text->bytes, v.as.text->n, item.as.text->bytes, item.as.text->n) != NULL;
    }
    if (v.kind == VALUE_DICT) return dict_get(r, v.as.dict, item) != NULL;
    if (!value_is_iterable(v)) jinja_fail(r, FAULT_TYPE, "argument of type '%s' is not iterable", value_type(v));
    struct walk w;
    struct value each;
    walk_init(r, &w, v);
    while (walk_next(&w, &each))
        if (value_equal(r, each, item)) return 1;
    return 0;
}

int64_t value_length(struct render *r, struct value v) {
    switch (v.kind) {
    case VALUE_UNDEFINED: return 0;
    case VALUE_STRING: return v.as.text->n_chars;
    case VALUE_BYTES: return (int64_t)v.as.text->n;
    case VALUE_LIST: case VALUE_TUPLE: return (int64_t)v.as.list->n;
    case VALUE_DICT: return (int64_t)v.as.dict->n;
    case VALUE_RANGE: return v.as.range->n;
    case VALUE_VIEW: return (int64_t)v.as.view->items->n;
    case VALUE_LOOP: return value_attr(r, v, value_text(r, "length")).as.i;
    default: jinja_fail(r, FAULT_TYPE, "object of type '%s' has no len()", value_type(v));
    }
}

int value_is_iterable(struct value v) {
    return v.kind == VALUE_UNDEFINED || (v.kind >= VALUE_STRING && v.kind <= VALUE_GENERATOR);
}

int value_is_callable(struct value v) {
    return v.kind == VALUE_MACRO || v.kind == VALUE_FUNCTION || v.kind == VALUE_METHOD || v.kind == VALUE_JOINER ||
           v.kind == VALUE_LOOP || v.kind == VALUE_UNDEFINED;
}

void walk_init(struct render *r, struct walk *w, struct value v) {
    if (!value_is_iterable(v)) jinja_fail(r, FAULT_TYPE, "'%s' object is not iterable", value_type(v));
    *w = (struct walk){r, v, 0};
}

int walk_next(struct walk *w, struct value *out) {
    struct value v = w->over;
    jinja_step(w->r, 1);
    switch (v.kind) {
    case VALUE_STRING: {
        size_t used, left = v.as.text->n - w->at;
        if (!left) return 0;
        text_char(v.as.text->bytes + w->at, left, &used);
        *out = value_text_n(w->r, v.as.text->bytes + w->at, used);
        w->at += used;
        return 1;
    }
    case VALUE_BYTES:
        if (w->at >= v.as.text->n) return 0;
        *out = value_int((unsigned char)v.as.text->bytes[w->at++]);
        return 1;
    case VALUE_LIST: case VALUE_TUPLE: case VALUE_VIEW: {
        const struct list *l = v.kind == VALUE_VIEW ? v.as.view->items : v.as.list;
        if (w->at >= l->n) return 0;
        *out = l->at[w->at++];
        return 1;
    }
    case VALUE_DICT:
        if (w->at >= v.as.dict->n) return 0;
        *out = v.as.dict->at[w->at++].key;
        return 1;
    case VALUE_RANGE:
        if ((int64_t)w->at >= v.as.range->n) return 0;
        *out = value_int(v.as.range->start + (int64_t)w->at++ * v.as.range->step);
        return 1;
    case VALUE_GENERATOR: return v.as.generator->next(w->r, v.as.generator, out);
    default: return 0;
    }
}

struct list value_items(struct render *r, struct value v) {
    if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) return *v.as.list;
    if (v.kind == VALUE_VIEW) return *v.as.view->items;
    struct list out = {0};
    struct walk w;
    struct value each;
    walk_init(r, &w, v);
    while (walk_next(&w, &each)) list_add(r, &out, each);
    return out;
}
