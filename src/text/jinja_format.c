/* 'a %s' % values, and 'a {}'.format(values). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja.h"

/* What a conversion asks for, in either language. precision -1: not given. */
struct spec { uint32_t fill; char align, sign, type; int alternate, zero, comma; int64_t width, precision; };

static void pad(struct render *r, struct out *o, struct value text, const struct spec *s, char align) {
    int64_t n = text.as.text->n_chars, more = s->width > n ? s->width - n : 0;
    int64_t left = align == '>' ? more : align == '^' ? more / 2 : 0;
    out_fill(r, o, s->fill, left);
    out_add(r, o, text.as.text->bytes, text.as.text->n);
    out_fill(r, o, s->fill, more - left);
}

/* A number's digits with sign, grouping and padding. `digits` has no sign. */
static void put_number(struct render *r, struct out *o, const char *digits, int minus, const char *prefix, const struct spec *s) {
    struct out body = {0}, head = {0};
    if (minus || s->sign == '+' || s->sign == ' ') out_add_char(r, &head, minus ? '-' : (uint32_t)s->sign);
    if (s->alternate) out_add_text(r, &head, prefix);
    size_t whole = strspn(digits, "0123456789abcdefABCDEF"), n = strlen(digits);
    if (strpbrk(digits, "in")) whole = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->comma && i && i < whole && (whole - i) % 3 == 0) out_add_char(r, &body, (uint32_t)s->comma);
        out_add_char(r, &body, (unsigned char)digits[i]);
    }
    int64_t have = (int64_t)(head.n + body.n);
    if ((s->zero && !s->align) || s->align == '=') {
        out_fill(r, &head, s->zero && !s->align ? '0' : s->fill, s->width - have);
        out_add(r, &head, body.bytes, body.n);
        out_add(r, o, head.bytes, head.n);
        return;
    }
    out_add(r, &head, body.bytes, body.n);
    pad(r, o, out_take(r, &head), s, s->align ? s->align : '>');
}

static void put_whole(struct render *r, struct out *o, struct value v, const struct spec *s) {
    char digits[80];
    if (v.kind == VALUE_BIG) {
        if (s->type != 'd') jinja_fail(r, FAULT_SUPPORT, "an integer beyond 64 bits cannot be computed with");
        int minus = v.as.text->bytes[0] == '-';
        put_number(r, o, v.as.text->bytes + minus, minus, "", s);
        return;
    }
    uint64_t u = v.as.i < 0 ? 0 - (uint64_t)v.as.i : (uint64_t)v.as.i;
    if (s->type == 'x') snprintf(digits, sizeof digits, "%llx", (unsigned long long)u);
    else if (s->type == 'X') snprintf(digits, sizeof digits, "%llX", (unsigned long long)u);
    else if (s->type == 'o') snprintf(digits, sizeof digits, "%llo", (unsigned long long)u);
    else if (s->type == 'b') {
        char *w = digits + 64;
        *w = 0;
        do *--w = (char)('0' + (u & 1)), u >>= 1;
        while (u);
        memmove(digits, w, strlen(w) + 1);
    } else snprintf(digits, sizeof digits, "%llu", (unsigned long long)u);
    const char *prefix = s->type == 'x' ? "0x" : s->type == 'X' ? "0X" : s->type == 'o' ? "0o" : s->type == 'b' ? "0b" : "";
    put_number(r, o, digits, v.as.i < 0, prefix, s);
}

static void put_float(struct render *r, struct out *o, double f, const struct spec *s) {
    char digits[700], how[16];
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (s->precision > 300) jinja_fail(r, FAULT_SUPPORT, "a precision of more than 300 digits is not supported");
    if (s->type == '%') f *= 100;
    int minus = signbit(f) && !isnan(f);
    if (isnan(f) || isinf(f)) strcpy(digits, isnan(f) ? "nan" : "inf");
    else {
        snprintf(how, sizeof how, "%%%s.*%c", s->alternate ? "#" : "", s->type == '%' ? 'f' : s->type);
        snprintf(digits, sizeof digits - 2, how, s->type == 'g' && !precision ? 1 : precision, fabs(f));
    }
    if (s->type == '%') strcat(digits, "%");
    struct spec plain = *s;
    plain.alternate = 0;
    put_number(r, o, digits, minus, "", &plain);
}

/* ---- % ---- */

struct percent { struct value args; const struct list *list; size_t at; int used_mapping; };

static struct value next_arg(struct render *r, struct percent *p) {
    if (p->list) {
        if (p->at >= p->list->n) jinja_fail(r, FAULT_TYPE, "not enough arguments for format string");
        return p->list->at[p->at++];
    }
    if (p->at++) jinja_fail(r, FAULT_TYPE, "not enough arguments for format string");
    return p->args;
}

static int64_t take_count(struct render *r, struct percent *p, const char **s, const char *end) {
    if (*s < end && **s == '*') {
        ++*s;
        struct value v = next_arg(r, p);
        if (!value_is_whole(v)) jinja_fail(r, FAULT_TYPE, "* wants int");
        return v.as.i;
    }
    int64_t n = 0;
    for (; *s < end && **s >= '0' && **s <= '9'; ++*s)
        if (n < INT64_MAX / 100) n = n * 10 + (**s - '0');
    return n;
}

static struct value repr_of(struct render *r, struct value v) {
    struct out o = {0};
    value_repr(r, &o, v);
    return out_take(r, &o);
}

static struct value cut(struct render *r, struct value text, int64_t precision) {
    if (precision < 0 || precision >= text.as.text->n_chars) return text;
    return value_text_n(r, text.as.text->bytes, text_offset(text.as.text, precision));
}

static void put_percent(struct render *r, struct out *o, struct value v, struct spec *s) {
    struct value text;
    switch (s->type) {
    case 's': case 'r': case 'a':
        text = s->type == 's' ? value_to_text(r, v) : repr_of(r, v);
        pad(r, o, cut(r, text, s->precision), s, s->align ? s->align : '>');
        return;
    case 'c': {
        if (!value_is_text(v) || v.as.text->n_chars != 1) {
            if (!value_is_whole(v) || v.as.i < 0 || v.as.i > 0x10ffff) jinja_fail(r, FAULT_TYPE, "%%c requires int or char");
            struct out one = {0};
            out_add_char(r, &one, (uint32_t)v.as.i);
            v = out_take(r, &one);
        }
        pad(r, o, v, s, s->align ? s->align : '>');
        return;
    }
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o':
        if (!value_is_number(v) || (v.kind == VALUE_FLOAT && strchr("xXo", s->type)))
            jinja_fail(r, FAULT_TYPE, "%%%c format: a real number is required, not %s", s->type, value_type(v));
        if (v.kind == VALUE_FLOAT) {
            if (!(fabs(v.as.f) < 9e18)) jinja_fail(r, FAULT_OVERFLOW, "cannot convert float to integer");
            v = value_int((int64_t)v.as.f);
        }
        if (s->type == 'i' || s->type == 'u') s->type = 'd';
        put_whole(r, o, v, s);
        return;
    case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
        put_float(r, o, value_to_double(r, v), s);
        return;
    default: jinja_fail(r, FAULT_VALUE, "unsupported format character");
    }
}

struct value format_percent(struct render *r, struct value format, struct value args) {
    const char *s = format.as.text->bytes, *end = s + format.as.text->n;
    struct percent p = {.args = args, .list = args.kind == VALUE_TUPLE ? args.as.list : NULL};
    struct out o = {0};
    while (s < end) {
        const char *stop = memchr(s, '%', (size_t)(end - s));
        out_add(r, &o, s, (size_t)((stop ? stop : end) - s));
        if (!stop) break;
        s = stop + 1;
        struct spec spec = {.fill = ' ', .precision = -1};
        struct value v = MISSING;
        if (s < end && *s == '(') {
            const char *close = memchr(s, ')', (size_t)(end - s));
            if (!close) jinja_fail(r, FAULT_VALUE, "incomplete format key");
            if (args.kind != VALUE_DICT) jinja_fail(r, FAULT_TYPE, "format requires a mapping");
            struct value key = value_text_n(r, s + 1, (size_t)(close - s - 1)), *found = dict_get(r, args.as.dict, key);
            if (!found) jinja_fail(r, FAULT_KEY, "'%.*s'", (int)key.as.text->n, key.as.text->bytes);
            v = *found, s = close + 1, p.used_mapping = 1;
        }
        for (; s < end && strchr("-+ #0", *s); s++) {
            if (*s == '-') spec.align = '<';
            else if (*s == '0') spec.zero = 1;
            else if (*s == '#') spec.alternate = 1;
            else if (spec.sign != '+') spec.sign = *s;
        }
        spec.width = take_count(r, &p, &s, end);
        if (spec.width < 0) spec.width = -spec.width, spec.align = '<';
        if (s < end && *s == '.') s++, spec.precision = take_count(r, &p, &s, end);
        while (s < end && strchr("hlL", *s)) s++;
        if (s == end) jinja_fail(r, FAULT_VALUE, "incomplete format");
        spec.type = *s++;
        if (spec.type == '%') { out_add_char(r, &o, '%'); continue; }
        put_percent(r, &o, v.kind == VALUE_MISSING ? next_arg(r, &p) : v, &spec);
    }
    /* What can be subscripted passes for a mapping, none of whose names need be used. */
    int mapping = args.kind == VALUE_UNDEFINED || (args.kind >= VALUE_BYTES && args.kind <= VALUE_RANGE && !p.list);
    int all = p.list ? p.at >= p.list->n : p.at > 0 || mapping;
    if (!all && !p.used_mapping) jinja_fail(r, FAULT_TYPE, "not all arguments converted during string formatting");
    struct value out = out_take(r, &o);
    return format.as.text->markup ? value_markup(r, out) : out;
}

/* ---- format() ---- */

struct braces { const struct call *call; const struct value *mapping; int64_t next; };

static void parse_spec(struct render *r, const char *s, const char *end, struct spec *out) {
    *out = (struct spec){.fill = ' ', .precision = -1};
    size_t used = 1;
    uint32_t first = s < end ? text_char(s, (size_t)(end - s), &used) : 0;
    if (s + used < end && strchr("<>=^", s[used])) out->fill = first, out->align = s[used], s += used + 1;
    else if (s < end && strchr("<>=^", *s)) out->align = *s++;
    if (s < end && strchr("+- ", *s)) out->sign = *s++;
    if (s < end && *s == '#') out->alternate = 1, s++;
    if (s < end && *s == '0') {
        s++;
        if (!out->align) out->align = '=', out->fill = '0', out->zero = 1;
    }
    for (; s < end && *s >= '0' && *s <= '9'; s++)
        if (out->width < INT64_MAX / 100) out->width = out->width * 10 + (*s - '0');
    if (s < end && (*s == ',' || *s == '_')) out->comma = *s++;
    if (s < end && *s == '.')
        for (out->precision = 0, s++; s < end && *s >= '0' && *s <= '9'; s++)
            if (out->precision < INT64_MAX / 100) out->precision = out->precision * 10 + (*s - '0');
    if (s < end) out->type = *s++;
    if (s < end) jinja_fail(r, FAULT_VALUE, "Invalid format specifier");
}

static void put_spec(struct render *r, struct out *o, struct value v, const char *s, const char *end) {
    if (s == end) { value_show(r, o, v); return; }
    struct spec spec;
    parse_spec(r, s, end, &spec);
    if (value_is_text(v)) {
        if ((spec.type && spec.type != 's') || (spec.align == '=' && !spec.zero) || spec.sign || spec.comma)
            jinja_fail(r, FAULT_VALUE, "Unknown format code for object of type 'str'");
        pad(r, o, cut(r, v, spec.precision), &spec, spec.align && spec.align != '=' ? spec.align : '<');
        return;
    }
    if (!value_is_number(v)) jinja_fail(r, FAULT_TYPE, "unsupported format string passed to %s.__format__", value_type(v));
    if (v.kind != VALUE_FLOAT && (!spec.type || strchr("dnxXob", spec.type))) {
        if (!spec.type || spec.type == 'n') spec.type = 'd';
        put_whole(r, o, v, &spec);
        return;
    }
    if (v.kind != VALUE_FLOAT && spec.type == 'c') {
        spec.type = 0;
        put_percent(
            r, o, v,
            &(struct spec){.fill = spec.fill, .align = spec.align ? spec.align : '<', .width = spec.width, .type = 'c'});
        return;
    }
    if (!spec.type && spec.precision < 0) {
        char digits[NUMBER_ROOM];
        number_show(v.as.f, digits);
        put_number(r, o, digits + (digits[0] == '-'), digits[0] == '-', "", &spec);
        return;
    }
    if (!spec.type) jinja_fail(r, FAULT_SUPPORT, "a precision without a type is not supported");
    if (!strchr("eEfFgGn%", spec.type))
        jinja_fail(r, FAULT_VALUE, "Unknown format code '%c' for object of type 'float'", spec.type);
    if (spec.type == 'n') spec.type = 'g';
    put_float(r, o, value_to_double(r, v), &spec);
}

static struct value field_root(struct render *r, struct braces *b, const char *s, size_t n) {
    struct value index = value_int(0);
    if (!n || text_all(s, n, char_is_decimal)) {
        if ((n && b->next > 0) || (!n && b->next < 0))
            jinja_fail(r, FAULT_VALUE, n ? "cannot switch from automatic field numbering to manual field specification"
                                       : "cannot switch from manual field specification to automatic field numbering");
        if (n) number_parse_int(s, n, 10, r, &index), b->next = -1;
        else index = value_int(b->next++);
        if (!b->call || index.kind != VALUE_INT || (uint64_t)index.as.i >= b->call->n_args)
            jinja_fail(r, FAULT_KEY, "Replacement index out of range for positional args tuple");
        return b->call->args[index.as.i];
    }
    struct value key = value_text_n(r, s, n);
    if (b->mapping) {
        struct value *found = dict_get(r, b->mapping->as.dict, key);
        if (found) return *found;
    }
    for (size_t i = 0; b->call && i < b->call->n_named; i++)
        if (value_equal(r, b->call->named[i].key, key)) return b->call->named[i].value;
    jinja_fail(r, FAULT_KEY, "'%.*s'", (int)n, s);
}

/* "name.attr[key]": everything up to '!' or ':'. */
static struct value field_value(struct render *r, struct braces *b, const char *s, const char *end) {
    const char *at = s;
    while (at < end && *at != '.' && *at != '[') at++;
    struct value v = field_root(r, b, s, (size_t)(at - s));
    while (at < end) {
        char open = *at++;
        const char *from = at;
        while (at < end && (open == '[' ? *at != ']' : *at != '.' && *at != '[')) at++;
        struct value part = value_text_n(r, from, (size_t)(at - from));
        if (open == '[') {
            if (at == end) jinja_fail(r, FAULT_VALUE, "expected '}' before end of string");
            if (text_all(from, (size_t)(at - from), char_is_decimal)) number_parse_int(from, (size_t)(at - from), 10, r, &part);
            at++;
        }
        v = open == '[' ? value_item(r, v, part) : value_attr(r, v, part);
    }
    return v;
}

static void put_field(struct render *r, struct braces *b, struct out *o, const char *s, const char *end) {
    const char *name_end = s;
    int brackets = 0;
    for (; name_end < end && (brackets || (*name_end != '!' && *name_end != ':')); name_end++)
        brackets += *name_end == '[' ? 1 : *name_end == ']' && brackets ? -1 : 0;
    struct value v = field_value(r, b, s, name_end);
    const char *spec = name_end;
    if (spec < end && *spec == '!') {
        if (spec + 1 >= end || !strchr("sra", spec[1]) || (spec + 2 < end && spec[2] != ':'))
            jinja_fail(r, FAULT_VALUE, "unknown conversion in a format field");
        v = spec[1] == 's' ? value_to_text(r, v) : repr_of(r, v);
        spec += 2;
    }
    if (spec < end) spec++;
    struct out inner = {0};
    if (memchr(spec, '{', (size_t)(end - spec))) {
        const char *open = memchr(spec, '{', (size_t)(end - spec)), *close = memchr(open, '}', (size_t)(end - open));
        if (!close) jinja_fail(r, FAULT_VALUE, "expected '}' before end of string");
        out_add(r, &inner, spec, (size_t)(open - spec));
        jinja_enter(r);
        put_field(r, b, &inner, open + 1, close);
        jinja_leave(r);
        out_add(r, &inner, close + 1, (size_t)(end - close - 1));
        spec = inner.bytes ? inner.bytes : "", end = spec + inner.n;
    }
    put_spec(r, o, v, spec, end);
}

struct value format_braces(struct render *r, struct value format, const struct call *c, const struct value *mapping) {
    const char *s = format.as.text->bytes, *end = s + format.as.text->n;
    struct braces b = {c, mapping, 0};
    struct out o = {0};
    while (s < end) {
        if (*s != '{' && *s != '}') { out_add(r, &o, s++, 1); continue; }
        if (s + 1 < end && s[1] == *s) { out_add(r, &o, s, 1), s += 2; continue; }
        if (*s == '}') jinja_fail(r, FAULT_VALUE, "Single '}' encountered in format string");
        const char *close = s + 1;
        int depth = 1;
        for (; close < end && depth; close++) depth += *close == '{' ? 1 : *close == '}' ? -1 : 0;
        if (depth) jinja_fail(r, FAULT_VALUE, "expected '}' before end of string");
        put_field(r, &b, &o, s + 1, close - 1);
        s = close;
    }
    struct value out = out_take(r, &o);
    return format.as.text->markup ? value_markup(r, out) : out;
}
