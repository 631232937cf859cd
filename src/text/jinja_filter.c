/* Filters that work on one value; those on lists are in jinja_filter_list.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_filter.h"

#define FILTER(name) static struct value name(struct render *r, struct value self, const struct value *a, const struct call *c)
#define UNUSED (void)r, (void)self, (void)a, (void)c

/* A method of strings on whatever is given, as text. */
static struct value as_text(struct render *r, struct value v, const char *method, struct value *args, size_t n) {
    struct value text = value_to_text(r, v);
    struct call call = {.args = args, .n_args = n};
    return function_call(r, method_find(text, method, strlen(method)), text, &call);
}

FILTER(f_upper) { UNUSED; return as_text(r, self, "upper", NULL, 0); }
FILTER(f_lower) { UNUSED; return as_text(r, self, "lower", NULL, 0); }
FILTER(f_capitalize) { UNUSED; return as_text(r, self, "capitalize", NULL, 0); }
FILTER(f_trim) { UNUSED; return text_strip(r, value_to_text(r, self), a[0], 3); }

FILTER(f_center) {
    UNUSED;
    struct value width = a[0].kind == VALUE_MISSING ? value_int(80) : a[0];
    return as_text(r, self, "center", &width, 1);
}

FILTER(f_title) {
    UNUSED;
    struct value text = value_to_text(r, self);
    const struct text *t = text.as.text;
    struct out o = {0};
    size_t used;
    for (size_t i = 0, start = 0; i < t->n; i = start) {
        size_t end = i;
        int gap = -1;
        for (; end < t->n; end += used) { /* runs of word parts and of what is between them, in turn */
            uint32_t ch = text_char(t->bytes + end, t->n - end, &used);
            int is_gap = char_is_space(ch) || (ch < 128 && ch && strchr("-({[<", (int)ch));
            if (gap >= 0 && is_gap != gap) break;
            gap = is_gap;
        }
        text_char(t->bytes + i, t->n - i, &used);
        struct value head = text_case(r, value_text_n(r, t->bytes + i, used), CASE_UPPER);
        struct value tail = text_case(r, value_text_n(r, t->bytes + i + used, end - i - used), CASE_LOWER);
        out_add(r, &o, head.as.text->bytes, head.as.text->n);
        out_add(r, &o, tail.as.text->bytes, tail.as.text->n);
        start = end;
    }
    return out_take(r, &o);
}

FILTER(f_replace) {
    UNUSED;
    struct value text = value_to_text(r, self), args[3] = {value_to_text(r, a[0]), value_to_text(r, a[1]), a[2]};
    if (r->autoescape) {
        int escape = args[0].as.text->markup || (args[1].as.text->markup && !text.as.text->markup);
        if (escape) text = text_escape(r, text);
        if (text.as.text->markup) args[0] = text_escape(r, args[0]), args[1] = text_escape(r, args[1]);
    } else if (text.as.text->markup) {
        text = value_text_n(r, text.as.text->bytes, text.as.text->n);
    }
    return as_text(r, text, "replace", args, a[2].kind == VALUE_MISSING || a[2].kind == VALUE_NONE ? 2 : 3);
}

FILTER(f_string) { UNUSED; return value_to_text(r, self); }
FILTER(f_escape) { UNUSED; return text_escape(r, self); }
FILTER(f_safe) { UNUSED; return value_markup(r, value_to_text(r, self)); }
FILTER(f_forceescape) {
    UNUSED;
    struct value text = value_to_text(r, self);
    return text_escape(r, value_text_n(r, text.as.text->bytes, text.as.text->n));
}

FILTER(f_striptags) {
    UNUSED;
    struct value text = value_to_text(r, self);
    const char *s = text.as.text->bytes, *end = s + text.as.text->n, *at;
    struct out bare = {0}, o = {0};
    while ((at = text_find(s, (size_t)(end - s), "<!--", 4))) { /* comments first, then tags, as markupsafe does */
        const char *close = text_find(at, (size_t)(end - at), "-->", 3);
        if (!close) break;
        out_add(r, &bare, s, (size_t)(at - s));
        s = close + 3;
    }
    out_add(r, &bare, s, (size_t)(end - s));
    s = bare.bytes ? bare.bytes : "", end = s + bare.n;
    while ((at = memchr(s, '<', (size_t)(end - s)))) {
        const char *close = memchr(at, '>', (size_t)(end - at));
        if (!close) break;
        out_add(r, &o, s, (size_t)(at - s));
        s = close + 1;
    }
    out_add(r, &o, s, (size_t)(end - s));
    struct value words = as_text(r, out_take(r, &o), "split", NULL, 0), space = value_text(r, " "),
                 joined = as_text(r, space, "join", &words, 1);
    static const char *const codes[][2] = {{"&lt;", "<"},  {"&gt;", ">"},    {"&#34;", "\""},
                                           {"&#39;", "'"}, {"&quot;", "\""}, {"&amp;", "&"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct value pair[2] = {value_text(r, codes[i][0]), value_text(r, codes[i][1])};
        joined = as_text(r, joined, "replace", pair, 2);
    }
    return joined;
}

FILTER(f_default) {
    UNUSED;
    int none = self.kind == VALUE_UNDEFINED || (filter_flag(r, a[1], 0) && !value_truth(r, self));
    return !none ? self : a[0].kind == VALUE_MISSING ? value_text(r, "") : a[0];
}

FILTER(f_attr) {
    UNUSED;
    struct value name = value_to_text(r, a[0]), out;
    if (self.kind == VALUE_DICT) { /* attributes only, never keys */
        const struct function *f = method_find(self, name.as.text->bytes, name.as.text->n);
        if (!f) return value_undefined(r, NULL, value_type(self), name);
    }
    out = value_attr(r, self, name);
    return out;
}

FILTER(f_length) { UNUSED; return value_int(value_length(r, self)); }

FILTER(f_abs) {
    UNUSED;
    if (self.kind == VALUE_FLOAT) return value_float(fabs(self.as.f));
    if (!value_is_number(self)) {
        if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
        jinja_fail(r, FAULT_TYPE, "bad operand type for abs(): '%s'", value_type(self));
    }
    return self.kind != VALUE_BIG && self.as.i >= 0 ? value_int(self.as.i) : value_negate(r, self, 1);
}

static int to_float(struct render *r, struct value v, double *out) {
    if (value_is_text(v)) return number_parse_float(v.as.text->bytes, v.as.text->n, out);
    if (!value_is_number(v)) return 0;
    *out = value_to_double(r, v);
    return 1;
}

static struct value whole_part(struct render *r, double f) {
    if (fabs(f) >= 9.2233720368547748e18) jinja_fail(r, FAULT_SUPPORT, "an integer beyond 64 bits cannot be computed with");
    return value_int((int64_t)f);
}

FILTER(f_int) {
    UNUSED;
    struct value out, otherwise = a[0].kind == VALUE_MISSING ? value_int(0) : a[0];
    int64_t base = a[1].kind == VALUE_MISSING ? 10 : value_index(r, a[1]);
    double f;
    if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
    if (value_is_text(self) && base >= 0 && base <= 36 &&
        number_parse_int(self.as.text->bytes, self.as.text->n, (int)base, r, &out))
        return out;
    if (value_is_whole(self)) return value_int(self.as.i);
    if (self.kind == VALUE_BIG) return self;
    if (self.kind == VALUE_FLOAT && isinf(self.as.f)) jinja_fail(r, FAULT_OVERFLOW, "cannot convert float infinity to integer");
    if (!to_float(r, self, &f) || !isfinite(f)) return otherwise;
    return whole_part(r, f);
}

FILTER(f_float) {
    UNUSED;
    double f;
    if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
    if (to_float(r, self, &f)) return value_float(f);
    return a[0].kind == VALUE_MISSING ? value_float(0) : a[0];
}

FILTER(f_round) {
    UNUSED;
    int64_t digits = a[0].kind == VALUE_MISSING ? 0 : value_index(r, a[0]);
    struct value method = a[1].kind == VALUE_MISSING ? value_text(r, "common") : a[1];
    if (value_equal(r, method, value_text(r, "common"))) {
        if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
        if (!value_is_number(self)) jinja_fail(r, FAULT_TYPE, "type %s doesn't define __round__ method", value_type(self));
        return number_round(r, self, digits);
    }
    int up = value_equal(r, method, value_text(r, "ceil"));
    if (!up && !value_equal(r, method, value_text(r, "floor")))
        jinja_fail(r, FAULT_FILTER, "method must be common, ceil or floor");
    if (digits > 300 || digits < -300) jinja_fail(r, FAULT_SUPPORT, "round to so many digits is not supported");
    if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
    double unit = pow(10, (double)digits), scaled = value_to_double(r, self) * unit;
    if (!isfinite(scaled)) jinja_fail(r, FAULT_OVERFLOW, "cannot convert float infinity to integer");
    return value_float((up ? ceil(scaled) : floor(scaled)) / unit);
}

FILTER(f_indent) {
    UNUSED;
    int first = filter_flag(r, a[1], 0), blank = filter_flag(r, a[2], 0);
    if (self.kind == VALUE_UNDEFINED) jinja_fail_undefined(r, self);
    if (!value_is_text(self)) jinja_fail(r, FAULT_TYPE, "indent wants text, not %s", value_type(self));
    struct out by = {0}, o = {0};
    if (a[0].kind != VALUE_MISSING && value_is_text(a[0])) out_add(r, &by, a[0].as.text->bytes, a[0].as.text->n);
    else out_fill(r, &by, ' ', a[0].kind == VALUE_MISSING ? 4 : value_index(r, a[0]));
    const struct list *lines = text_lines(r, value_concat(r, self, value_text(r, "\n")), 0).as.list;
    for (size_t i = 0; i < lines->n; i++) {
        const struct text *line = lines->at[i].as.text;
        if (i) out_add(r, &o, "\n", 1);
        if (i ? blank || line->n : first) out_add(r, &o, by.bytes, by.n);
        out_add(r, &o, line->bytes, line->n);
    }
    struct value out = out_take(r, &o);
    return self.as.text->markup ? value_markup(r, out) : out;
}

FILTER(f_truncate) {
    UNUSED;
    struct value end = a[2].kind == VALUE_MISSING ? value_text(r, "...") : value_to_text(r, a[2]);
    int64_t length = a[0].kind == VALUE_MISSING ? 255 : value_index(r, a[0]), leeway = 5, n = value_length(r, self);
    if (a[3].kind != VALUE_MISSING && a[3].kind != VALUE_NONE) leeway = value_index(r, a[3]);
    if (length < end.as.text->n_chars || leeway < 0)
        jinja_fail(r, FAULT_VALUE, "truncate wants a length of at least that of its end");
    if (n <= length || n - length <= leeway) return self;
    if (!value_is_text(self)) jinja_fail(r, FAULT_TYPE, "truncate wants text, not %s", value_type(self));
    struct value head = value_slice(r, self, NONE, value_int(length - end.as.text->n_chars), NONE);
    if (!filter_flag(r, a[1], 0)) {
        struct value args[2] = {value_text(r, " "), value_int(1)};
        head = as_text(r, head, "rsplit", args, 2).as.list->at[0];
    }
    return value_concat(r, head, end);
}

FILTER(f_wordcount) {
    UNUSED;
    const struct text *t = value_to_text(r, self).as.text;
    int64_t n = 0;
    int inside = 0;
    size_t used;
    for (size_t i = 0; i < t->n; i += used) {
        int word = char_is_word(text_char(t->bytes + i, t->n - i, &used));
        n += word && !inside;
        inside = word;
    }
    return value_int(n);
}

FILTER(f_format) {
    UNUSED;
    if (c->n_args && c->n_named) jinja_fail(r, FAULT_FILTER, "can't handle positional and keyword arguments at the same time");
    struct value text = value_to_text(r, self);
    if (!c->n_named) return format_percent(r, text, value_tuple(r, c->args, c->n_args));
    struct dict d = {0};
    for (size_t i = 0; i < c->n_named; i++) dict_set(r, &d, c->named[i].key, c->named[i].value);
    return format_percent(r, text, value_dict(r, &d));
}

FILTER(f_filesizeformat) {
    UNUSED;
    double bytes;
    if (!to_float(r, self, &bytes)) jinja_fail(r, FAULT_VALUE, "filesizeformat wants a number");
    int binary = filter_flag(r, a[0], 0);
    double base = binary ? 1024 : 1000, unit = base;
    char text[420];
    if (bytes == 1) return value_text(r, "1 Byte");
    if (bytes < base) snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes));
    else {
        const char *p = "kMGTPEZY";
        for (unit *= base; bytes >= unit && p[1]; p++) unit *= base;
        snprintf(text, sizeof text, "%.1f %c%sB", base * bytes / unit, binary && *p == 'k' ? 'K' : *p, binary ? "i" : "");
    }
    struct out o = {0};
    out_add_text(r, &o, text);
    return out_take(r, &o);
}

static void quote(struct render *r, struct out *o, struct value v, int query) {
    const struct text *t = value_to_text(r, v).as.text;
    for (size_t i = 0; i < t->n; i++) {
        unsigned char b = (unsigned char)t->bytes[i];
        char code[4];
        if ((b < 128 && char_is_word(b)) || (b && strchr("-.~", b)) || (!query && b == '/')) snprintf(code, sizeof code, "%c", b);
        else if (query && b == ' ') snprintf(code, sizeof code, "+");
        else snprintf(code, sizeof code, "%%%02X", b);
        out_add_text(r, o, code);
    }
}

FILTER(f_urlencode) {
    UNUSED;
    struct out o = {0};
    if (value_is_text(self) || !value_is_iterable(self)) {
        quote(r, &o, self, 0);
        return out_take(r, &o);
    }
    struct list l = self.kind == VALUE_DICT
                        ? value_items(r, value_call(r, value_attr(r, self, value_text(r, "items")), &(struct call){0}))
                        : value_items(r, self);
    for (size_t i = 0; i < l.n; i++) {
        struct list pair = value_items(r, l.at[i]);
        if (pair.n != 2) jinja_fail(r, FAULT_VALUE, "urlencode wants pairs");
        if (i) out_add_char(r, &o, '&');
        quote(r, &o, pair.at[0], 1);
        out_add_char(r, &o, '=');
        quote(r, &o, pair.at[1], 1);
    }
    return out_take(r, &o);
}

/* Objects by sorted key, as pprint has them; what does not fit one line of its 80 columns is refused. */
static struct value in_key_order(struct render *r, struct value v) {
    if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE) {
        struct value *at = jinja_room(r, v.as.list->n, sizeof *at);
        jinja_enter(r);
        for (size_t i = 0; i < v.as.list->n; i++) at[i] = in_key_order(r, v.as.list->at[i]);
        jinja_leave(r);
        return (v.kind == VALUE_LIST ? value_list : value_tuple)(r, at, v.as.list->n);
    }
    if (v.kind != VALUE_DICT) return v;
    size_t n = v.as.dict->n;
    struct value *at = jinja_room(r, n, sizeof *at), *keys = jinja_room(r, n, sizeof *keys);
    for (size_t i = 0; i < n; i++) at[i] = value_int((int64_t)i), keys[i] = v.as.dict->at[i].key;
    list_sort(r, at, keys, n, 0);
    struct dict d = {0};
    jinja_enter(r);
    for (size_t i = 0; i < n; i++) {
        const struct pair *p = &v.as.dict->at[at[i].as.i];
        dict_set(r, &d, p->key, in_key_order(r, p->value));
    }
    jinja_leave(r);
    return value_dict(r, &d);
}

FILTER(f_pprint) {
    UNUSED;
    struct out o = {0};
    value_repr(r, &o, in_key_order(r, self));
    if (o.n > 80) jinja_fail(r, FAULT_SUPPORT, "pprint is supported up to one line");
    return out_take(r, &o);
}

FILTER(f_xmlattr) {
    UNUSED;
    if (self.kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "'%s' object has no attribute 'items'", value_type(self));
    struct out o = {0};
    for (size_t i = 0; i < self.as.dict->n; i++) {
        const struct pair *p = &self.as.dict->at[i];
        if (p->value.kind == VALUE_NONE || p->value.kind == VALUE_UNDEFINED) continue;
        struct value key = text_escape(r, p->key), v = text_escape(r, p->value);
        for (size_t k = 0; k < key.as.text->n; k++)
            if (strchr(" \t\n\r\f\v/>=", key.as.text->bytes[k]))
                jinja_fail(r, FAULT_VALUE, "Invalid character in attribute name");
        if (o.n || filter_flag(r, a[0], 1)) out_add_char(r, &o, ' ');
        out_add(r, &o, key.as.text->bytes, key.as.text->n);
        out_add(r, &o, "=\"", 2);
        out_add(r, &o, v.as.text->bytes, v.as.text->n);
        out_add_char(r, &o, '"');
    }
    return r->autoescape ? value_markup(r, out_take(r, &o)) : out_take(r, &o);
}

FILTER(f_tojson) {
    UNUSED;
    struct json_style style = {.ascii = filter_flag(r, a[0], 0), .sort = filter_flag(r, a[3], 0)};
    style.indented = a[1].kind != VALUE_MISSING && a[1].kind != VALUE_NONE;
    if (style.indented) {
        struct out by = {0};
        if (value_is_text(a[1])) out_add(r, &by, a[1].as.text->bytes, a[1].as.text->n);
        else out_fill(r, &by, ' ', value_index(r, a[1]));
        style.indent = out_take(r, &by);
    }
    style.item = value_text(r, style.indented ? "," : ", "), style.key = value_text(r, ": ");
    if (a[2].kind != VALUE_MISSING && a[2].kind != VALUE_NONE) {
        struct list pair = value_items(r, a[2]);
        if (pair.n != 2) jinja_fail(r, FAULT_VALUE, "separators wants two texts");
        style.item = pair.at[0], style.key = pair.at[1];
        if (!value_is_text(style.item) || !value_is_text(style.key)) jinja_fail(r, FAULT_TYPE, "separators wants two texts");
    }
    struct out o = {0};
    value_json(r, &o, self, &style, 0);
    return out_take(r, &o);
}

FILTER(f_refused) {
    UNUSED;
    jinja_fail(r, FAULT_SUPPORT, "the filters random, urlize and wordwrap are not supported");
}

static const struct function filters[] = {{"abs", "", f_abs},
                                          {"attr", "name", f_attr},
                                          {"capitalize", "", f_capitalize},
                                          {"center", "width?", f_center},
                                          {"count", "", f_length},
                                          {"d", "default_value? boolean?", f_default},
                                          {"default", "default_value? boolean?", f_default},
                                          {"e", "", f_escape},
                                          {"escape", "", f_escape},
                                          {"filesizeformat", "binary?", f_filesizeformat},
                                          {"float", "default?", f_float},
                                          {"forceescape", "", f_forceescape},
                                          {"format", NULL, f_format},
                                          {"indent", "width? first? blank?", f_indent},
                                          {"int", "default? base?", f_int},
                                          {"length", "", f_length},
                                          {"lower", "", f_lower},
                                          {"pprint", "", f_pprint},
                                          {"random", "", f_refused},
                                          {"replace", "old new count?", f_replace},
                                          {"round", "precision? method?", f_round},
                                          {"safe", "", f_safe},
                                          {"string", "", f_string},
                                          {"striptags", "", f_striptags},
                                          {"title", "", f_title},
                                          {"tojson", "ensure_ascii? indent? separators? sort_keys?", f_tojson},
                                          {"trim", "chars?", f_trim},
                                          {"truncate", "length? killwords? end? leeway?", f_truncate},
                                          {"upper", "", f_upper},
                                          {"urlencode", "", f_urlencode},
                                          {"urlize", NULL, f_refused},
                                          {"wordcount", "", f_wordcount},
                                          {"wordwrap", NULL, f_refused},
                                          {"xmlattr", "autospace?", f_xmlattr},
                                          {NULL, NULL, NULL}};

const struct function *function_find(const struct function *table, const char *name, size_t n) {
    for (; table->name; table++)
        if (strlen(table->name) == n && !memcmp(table->name, name, n)) return table;
    return NULL;
}

const struct function *filter_find(const char *name, size_t n) {
    const struct function *f = function_find(filters, name, n);
    return f ? f : function_find(list_filters, name, n);
}
