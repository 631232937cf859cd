/* v.name, v[key] and v[a:b:c], by the sandbox's rules: what begins with an underscore or would change a value is withheld. */
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_loop.h"

static int text_is(struct value name, const char *what) {
    return name.as.text->n == strlen(what) && !memcmp(name.as.text->bytes, what, name.as.text->n);
}

static int starts_with(struct value name, const char *what) {
    size_t n = strlen(what);
    return name.as.text->n >= n && !memcmp(name.as.text->bytes, what, n);
}

/* Methods that change what they are called on. */
static int changes(struct value v, struct value name) {
    static const char *lists[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort", NULL};
    static const char *dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char **names = v.kind == VALUE_LIST ? lists : v.kind == VALUE_DICT ? dicts : NULL;
    for (; names && *names; names++)
        if (text_is(name, *names)) return 1;
    return 0;
}

static struct value bound(struct render *r, struct value self, const struct function *f) {
    struct method *m = jinja_room(r, 1, sizeof *m);
    *m = (struct method){self, f};
    return (struct value){.kind = VALUE_METHOD, .as.method = m};
}

static struct value number_attr(struct value v, struct value name) {
    int whole = value_is_whole(v);
    if (text_is(name, "real") || (whole && text_is(name, "numerator"))) return whole ? value_int(v.as.i) : v;
    if (text_is(name, "imag")) return whole ? value_int(0) : value_float(0);
    if (whole && text_is(name, "denominator")) return value_int(1);
    return MISSING;
}

static struct value cycler_attr(struct value v, struct value name) {
    if (text_is(name, "current")) return v.as.cycler->items.at[v.as.cycler->at];
    if (text_is(name, "pos")) return value_int((int64_t)v.as.cycler->at);
    if (text_is(name, "items")) return (struct value){.kind = VALUE_TUPLE, .as.list = &v.as.cycler->items};
    return MISSING;
}

static struct value range_attr(struct value v, struct value name) {
    if (text_is(name, "start")) return value_int(v.as.range->start);
    if (text_is(name, "stop")) return value_int(v.as.range->stop);
    return text_is(name, "step") ? value_int(v.as.range->step) : MISSING;
}

/* What Python's getattr would give, MISSING where it would not. */
static struct value own_attr(struct render *r, struct value v, struct value name) {
    struct value out = MISSING;
    if (v.kind == VALUE_NAMESPACE) {
        struct value *found = dict_get(r, &v.as.space->names, name);
        if (found) return *found;
    }
    if (starts_with(name, "__") && name.as.text->n > 4) {
        char *text = jinja_room(r, name.as.text->n + 1, 1);
        memcpy(text, name.as.text->bytes, name.as.text->n);
        return value_unsafe(r, v, text);
    }
    if (changes(v, name)) {
        char *text = jinja_room(r, name.as.text->n + 1, 1);
        memcpy(text, name.as.text->bytes, name.as.text->n);
        return value_unsafe(r, v, text);
    }
    if (v.kind == VALUE_LOOP) out = loop_attr(r, v.as.loop, name);
    else if (v.kind == VALUE_MACRO) out = macro_attr(r, v.as.macro, name);
    else if (v.kind == VALUE_SELF) out = self_attr(r, name);
    else if (v.kind == VALUE_INT || v.kind == VALUE_BOOL || v.kind == VALUE_FLOAT) out = number_attr(v, name);
    else if (v.kind == VALUE_CYCLER) out = cycler_attr(v, name);
    else if (v.kind == VALUE_RANGE) out = range_attr(v, name);
    else if (v.kind == VALUE_TUPLE && v.as.list->grouped && text_is(name, "grouper")) return v.as.list->at[0];
    else if (v.kind == VALUE_TUPLE && v.as.list->grouped && text_is(name, "list")) return v.as.list->at[1];
    if (out.kind != VALUE_MISSING) return out;
    const struct function *f = method_find(v, name.as.text->bytes, name.as.text->n);
    return f ? bound(r, v, f) : MISSING;
}

/* v[key] without slices; MISSING where Python would raise a TypeError or LookupError. */
static struct value own_item(struct render *r, struct value v, struct value key) {
    if (v.kind == VALUE_DICT) {
        if (key.kind == VALUE_LIST || key.kind == VALUE_DICT) return MISSING;
        struct value *found = dict_get(r, v.as.dict, key);
        return found ? *found : MISSING;
    }
    if (!value_is_whole(key)) return MISSING;
    if (v.kind != VALUE_STRING && v.kind != VALUE_BYTES && v.kind != VALUE_LIST && v.kind != VALUE_TUPLE && v.kind != VALUE_RANGE)
        return MISSING;
    int64_t n = value_length(r, v), i = key.as.i < 0 ? key.as.i + n : key.as.i;
    if (i < 0 || i >= n) return MISSING;
    if (v.kind == VALUE_RANGE) return value_int(v.as.range->start + i * v.as.range->step);
    if (v.kind == VALUE_BYTES) return value_int((unsigned char)v.as.text->bytes[i]);
    if (v.kind != VALUE_STRING) return v.as.list->at[i];
    size_t at = text_offset(v.as.text, i), used;
    jinja_step(r, i / 64);
    text_char(v.as.text->bytes + at, v.as.text->n - at, &used);
    struct value out = value_text_n(r, v.as.text->bytes + at, used);
    return v.as.text->markup ? value_markup(r, out) : out;
}

struct value value_attr(struct render *r, struct value v, struct value name) {
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    struct value out = own_attr(r, v, name);
    if (out.kind == VALUE_MISSING) out = own_item(r, v, name);
    return out.kind == VALUE_MISSING ? value_undefined(r, NULL, value_type(v), name) : out;
}

struct value value_item(struct render *r, struct value v, struct value key) {
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    struct value out = own_item(r, v, key);
    if (out.kind == VALUE_MISSING && value_is_text(key)) out = own_attr(r, v, key);
    return out.kind == VALUE_MISSING ? value_undefined(r, NULL, value_type(v), key) : out;
}

struct value value_path(struct render *r, struct value v, struct value path, struct value otherwise) {
    int has_other = otherwise.kind != VALUE_MISSING && otherwise.kind != VALUE_NONE;
    if (path.kind == VALUE_NONE || path.kind == VALUE_MISSING) return v;
    if (!value_is_text(path)) {
        v = value_item(r, v, path);
        return has_other && v.kind == VALUE_UNDEFINED ? otherwise : v;
    }
    const char *s = path.as.text->bytes, *end = s + path.as.text->n;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        size_t n = (size_t)((dot ? dot : end) - s);
        struct value part = value_text_n(r, s, n);
        if (text_all(s, n, char_is_digit)) number_parse_int(s, n, 10, r, &part);
        v = value_item(r, v, part);
        if (has_other && v.kind == VALUE_UNDEFINED) v = otherwise;
        if (!dot) return v;
        s = dot + 1;
    }
}

/* Python's slice.indices. */
static int64_t bound_of(struct render *r, struct value v, int64_t n, int64_t step, int64_t otherwise) {
    if (v.kind == VALUE_NONE) return otherwise;
    if (!value_is_whole(v) && v.kind != VALUE_BIG)
        jinja_fail(r, FAULT_TYPE, "slice indices must be integers or None or have an __index__ method");
    int64_t i = value_index(r, v);
    if (i < 0) return i + n < 0 ? (step < 0 ? -1 : 0) : i + n;
    return i < n ? i : step < 0 ? n - 1 : n;
}

struct value value_slice(struct render *r, struct value v, struct value start, struct value stop, struct value step) {
    if (v.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, v);
    if (v.kind != VALUE_STRING && v.kind != VALUE_LIST && v.kind != VALUE_TUPLE && v.kind != VALUE_RANGE && v.kind != VALUE_BYTES)
        jinja_fail(r, FAULT_TYPE, "'%s' object is not subscriptable", value_type(v));
    int64_t n = value_length(r, v), by = 1;
    if (step.kind != VALUE_NONE) by = bound_of(r, step, 0, 1, 1), by = value_index(r, step);
    if (!by) jinja_fail(r, FAULT_VALUE, "slice step cannot be zero");
    if (by > INT64_MAX / 4) by = INT64_MAX / 4;
    if (by < -INT64_MAX / 4) by = -INT64_MAX / 4;
    int64_t from = bound_of(r, start, n, by, by < 0 ? n - 1 : 0), to = bound_of(r, stop, n, by, by < 0 ? -1 : n);
    int64_t count = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0) : (from > to ? (from - to - 1) / -by + 1 : 0);
    if (v.kind == VALUE_RANGE) {
        struct range *g = jinja_room(r, 1, sizeof *g);
        const struct range *old = v.as.range;
        *g = (struct range){old->start + from * old->step, old->start + to * old->step, old->step * by, count};
        return (struct value){.kind = VALUE_RANGE, .as.range = g};
    }
    if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) {
        struct value *at = count ? v.as.list->at + from : NULL; /* an empty list has no place to count from */
        if (by != 1) {
            at = jinja_room(r, (size_t)count, sizeof *at);
            jinja_step(r, count / 4);
            for (int64_t i = 0; i < count; i++) at[i] = v.as.list->at[from + i * by];
        }
        return (v.kind == VALUE_LIST ? value_list : value_tuple)(r, at, (size_t)count);
    }
    const struct text *t = v.as.text;
    jinja_step(r, n / 64);
    if (by == 1 || count == 0) {
        size_t first = v.kind == VALUE_BYTES ? (size_t)from : text_offset(t, from);
        size_t last = count == 0 ? first : v.kind == VALUE_BYTES ? (size_t)to : text_offset(t, to);
        struct value out = value_text_n(r, t->bytes + first, last - first);
        out.kind = v.kind;
        return t->markup ? value_markup(r, out) : out;
    }
    struct list chars = value_items(r, v);
    struct out o = {0};
    for (int64_t i = 0; i < count; i++) {
        struct value c = chars.at[from + i * by];
        if (v.kind == VALUE_BYTES) jinja_fail(r, FAULT_SUPPORT, "bytes cannot be cut with a step");
        out_add(r, &o, c.as.text->bytes, c.as.text->n);
    }
    return t->markup ? value_markup(r, out_take(r, &o)) : out_take(r, &o);
}

void space_set(struct render *r, struct space *s, struct value name, struct value v) {
    if (value_is_text(name) && name.as.text->n && name.as.text->bytes[0] == '_')
        jinja_fail(r, FAULT_SECURITY, "a namespace may not hold the name '%.*s'", (int)name.as.text->n, name.as.text->bytes);
    dict_set(r, &s->names, name, v);
}
