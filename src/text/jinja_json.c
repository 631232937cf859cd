/* JSON text to values, as Python's json.loads reads it: integers of any length, floats that overflow to inf, the names NaN and
 * Infinity, of a repeated key the last value at the first place. Strings without escapes borrow from the text. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

struct reader { struct render *r; const char *start, *s, *end, *name; };

_Noreturn static void bad(struct reader *d, const char *why) {
    int line = 1;
    for (const char *p = d->start; p < d->s; p++) line += *p == '\n';
    jinja_fail(d->r, FAULT_VALUE, "%s: bad JSON at line %d: %s", d->name, line, why);
}

static void skip_space(struct reader *d) {
    while (d->s < d->end && (*d->s == ' ' || *d->s == '\n' || *d->s == '\r' || *d->s == '\t')) d->s++;
}

static int take_word(struct reader *d, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(d->end - d->s) < n || memcmp(d->s, word, n)) return 0;
    d->s += n;
    return 1;
}

static uint32_t four_digits(struct reader *d) {
    uint32_t c = 0;
    if (d->end - d->s < 4) bad(d, "a \\u escape is cut short");
    for (int i = 0; i < 4; i++) {
        int b = (unsigned char)*d->s++, digit = b >= '0' && b <= '9'                 ? b - '0'
                                                : (b | 32) >= 'a' && (b | 32) <= 'f' ? (b | 32) - 'a' + 10
                                                                                     : -1;
        if (digit < 0) bad(d, "a \\u escape wants four hexadecimal digits");
        c = c << 4 | (uint32_t)digit;
    }
    return c;
}

static void take_escape(struct reader *d, struct out *o) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (d->s >= d->end) bad(d, "a string has no end");
    char c = *d->s++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) { out_add_char(d->r, o, (unsigned char)to[at - from]); return; }
    if (c != 'u') bad(d, "unknown escape in a string");
    uint32_t u = four_digits(d);
    if (u >= 0xd800 && u < 0xdc00 && d->end - d->s >= 6 && d->s[0] == '\\' && d->s[1] == 'u') {
        const char *back = d->s;
        d->s += 2;
        uint32_t low = four_digits(d);
        if (low >= 0xdc00 && low < 0xe000) u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
        else d->s = back;
    }
    out_add_char(d->r, o, u);
}

static struct value take_string(struct reader *d) {
    const char *from = ++d->s;
    struct out o = {0};
    int escaped = 0;
    for (;; d->s++) {
        const char *plain = d->s;
        while (d->s < d->end && *d->s != '"' && *d->s != '\\' && (unsigned char)*d->s >= 32) d->s++;
        if (escaped) out_add(d->r, &o, plain, (size_t)(d->s - plain));
        if (d->s >= d->end) bad(d, "a string has no end");
        if (*d->s == '"') break;
        if (*d->s != '\\') bad(d, "a control character in a string");
        if (!escaped) out_add(d->r, &o, from, (size_t)(d->s - from)), escaped = 1;
        d->s++;
        take_escape(d, &o);
        d->s--;
    }
    struct value out = escaped ? out_take(d->r, &o) : value_text_n(d->r, from, (size_t)(d->s - from));
    d->s++;
    return out;
}

static size_t digits(struct reader *d) {
    const char *from = d->s;
    while (d->s < d->end && *d->s >= '0' && *d->s <= '9') d->s++;
    return (size_t)(d->s - from);
}

static struct value take_number(struct reader *d) {
    const char *from = d->s;
    struct value out;
    if (*d->s == '-') d->s++;
    if (take_word(d, "Infinity")) return value_float(*from == '-' ? -__builtin_inf() : __builtin_inf());
    const char *whole = d->s;
    size_t n = digits(d);
    if (!n || (n > 1 && *whole == '0')) bad(d, "a number is misspelt");
    int is_float = 0;
    if (d->s < d->end && *d->s == '.') {
        d->s++, is_float = 1;
        if (!digits(d)) bad(d, "a number is misspelt");
    }
    if (d->s < d->end && (*d->s == 'e' || *d->s == 'E')) {
        d->s++, is_float = 1;
        if (d->s < d->end && (*d->s == '+' || *d->s == '-')) d->s++;
        if (!digits(d)) bad(d, "a number is misspelt");
    }
    if (!is_float) {
        if (!number_parse_int(from, (size_t)(d->s - from), 10, d->r, &out)) bad(d, "a number is misspelt");
        return out;
    }
    char *copy = jinja_room(d->r, (size_t)(d->s - from) + 1, 1);
    memcpy(copy, from, (size_t)(d->s - from));
    return value_float(strtod(copy, NULL));
}

static struct value take_value(struct reader *d);

static struct value take_list(struct reader *d) {
    struct list l = {0};
    d->s++;
    skip_space(d);
    if (take_word(d, "]")) return value_list(d->r, NULL, 0);
    for (;;) {
        list_add(d->r, &l, take_value(d));
        if (take_word(d, "]")) return value_list(d->r, l.at, l.n);
        if (!take_word(d, ",")) bad(d, "a list wants a comma or its end");
    }
}

static struct value take_dict(struct reader *d) {
    struct dict o = {0};
    d->s++;
    skip_space(d);
    if (take_word(d, "}")) return value_dict(d->r, &o);
    for (;;) {
        skip_space(d);
        if (d->s >= d->end || *d->s != '"') bad(d, "an object wants a name in quotes");
        struct value key = take_string(d);
        skip_space(d);
        if (!take_word(d, ":")) bad(d, "an object wants a colon behind a name");
        dict_set(d->r, &o, key, take_value(d));
        if (take_word(d, "}")) return value_dict(d->r, &o);
        if (!take_word(d, ",")) bad(d, "an object wants a comma or its end");
    }
}

static struct value take_value(struct reader *d) {
    struct value out;
    jinja_enter(d->r);
    skip_space(d);
    if (d->s >= d->end) bad(d, "a value is missing");
    if (*d->s == '{') out = take_dict(d);
    else if (*d->s == '[') out = take_list(d);
    else if (*d->s == '"') out = take_string(d);
    else if (*d->s == '-' || (*d->s >= '0' && *d->s <= '9')) out = take_number(d);
    else if (take_word(d, "true")) out = value_bool(1);
    else if (take_word(d, "false")) out = value_bool(0);
    else if (take_word(d, "null")) out = NONE;
    else if (take_word(d, "NaN")) out = value_float(__builtin_nan(""));
    else if (take_word(d, "Infinity")) out = value_float(__builtin_inf());
    else bad(d, "a value is misspelt");
    skip_space(d);
    jinja_leave(d->r);
    return out;
}

struct value json_to_value(struct render *r, const char *text, size_t n, const char *name) {
    struct reader d = {r, text, text, text + n, name};
    if (!text_is_valid(text, n)) jinja_fail(r, FAULT_VALUE, "%s: not UTF-8", name);
    struct value out = take_value(&d);
    if (d.s != d.end) bad(&d, "something follows the value");
    return out;
}

int json_try_value(struct render *r, const char *text, size_t n, struct value *out) {
    jmp_buf here, *outer = r->leave;
    int depth = r->left.depth;
    r->leave = &here;
    if (!setjmp(here)) {
        *out = json_to_value(r, text, n, "JSON");
        r->leave = outer;
        return 1;
    }
    r->leave = outer;
    if (r->fault != FAULT_VALUE) longjmp(*outer, 1); /* memory and limits stay faults */
    r->fault = FAULT_NONE, r->left.depth = depth;
    return 0;
}
