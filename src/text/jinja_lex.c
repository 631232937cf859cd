/* Template text to tokens, with the white space rules of trim_blocks and lstrip_blocks. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_node.h"

struct lexer {
    struct render *r;
    const char *start, *s, *end;
    int line, line_starting; /* whether what was read last ended a line, or is the start */
    struct token *tokens;
    size_t n, room;
    char brackets[256]; /* closing ones that are awaited */
    int n_brackets;
};

_Noreturn static void bad(struct lexer *x, const char *why) { x->r->line = x->line, jinja_fail(x->r, FAULT_SYNTAX, "%s", why); }

static struct token *add(struct lexer *x, enum token_kind kind, const char *bytes, size_t n) {
    if (x->n == x->room) {
        size_t room = x->room ? x->room * 2 : 64;
        struct token *t = jinja_room(x->r, room, sizeof *t);
        if (x->n) memcpy(t, x->tokens, x->n * sizeof *t);
        x->tokens = t, x->room = room;
    }
    struct token *t = &x->tokens[x->n++];
    *t = (struct token){kind, x->line, bytes, n, MISSING};
    return t;
}

/* Moves on to `to`, counting lines. */
static void advance(struct lexer *x, const char *to) {
    for (const char *p = x->s; p < to; p++) x->line += *p == '\n';
    if (to > x->s) x->line_starting = to[-1] == '\n';
    x->s = to;
}

static const char *skip_space(struct lexer *x, const char *p) {
    size_t used;
    while (p < x->end && char_is_space(text_char(p, (size_t)(x->end - p), &used))) p += used;
    return p;
}

static size_t strip_right(const char *s, size_t n) {
    size_t used;
    while (n) {
        size_t at = n;
        do at--;
        while (at && (s[at] & 0xc0) == 0x80);
        if (!char_is_space(text_char(s + at, n - at, &used))) break;
        n = at;
    }
    return n;
}

/* Text in front of a tag whose sign is '-', '+' or 0. */
static void add_data(struct lexer *x, const char *s, size_t n, char sign, int is_print) {
    if (sign == '-') n = strip_right(s, n);
    else if (sign != '+' && !is_print) {
        size_t at = n;
        while (at && s[at - 1] != '\n') at--;
        size_t used, i = at;
        while (i < n && char_is_space(text_char(s + i, n - i, &used))) i += used;
        if (i == n && (at > 0 || x->line_starting)) n = at;
    }
    if (n) add(x, TOKEN_DATA, s, n)->value = value_text_n(x->r, s, n);
}

/* "-%}" with the space behind it, "+%}", or "%}" with one newline: where it ends, or NULL. close: "%}", "}}" or "#}". */
static const char *tag_end(struct lexer *x, const char *p, const char *close) {
    size_t left = (size_t)(x->end - p);
    if (left >= 3 && p[0] == '-' && !memcmp(p + 1, close, 2)) return skip_space(x, p + 3);
    if (close[0] != '}' && left >= 3 && p[0] == '+' && !memcmp(p + 1, close, 2)) return p + 3;
    if (left < 2 || memcmp(p, close, 2)) return NULL;
    return close[0] != '}' && left >= 3 && p[2] == '\n' ? p + 3 : p + 2;
}

static char sign_at(struct lexer *x, const char *p) { return p < x->end && (*p == '-' || *p == '+') ? *p : 0; }

static void skip_comment(struct lexer *x) {
    for (const char *p = x->s; p < x->end; p++) {
        const char *to = *p == '-' || *p == '+' || *p == '#' ? tag_end(x, p, "#}") : NULL;
        if (to) { advance(x, to); return; }
    }
    bad(x, "Missing end of comment tag");
}

/* Behind "{%" and its sign: whether this is {% raw %}, and where that ends. */
static const char *raw_begin(struct lexer *x, const char *p) {
    p = skip_space(x, p);
    if (x->end - p < 3 || memcmp(p, "raw", 3)) return NULL;
    p = skip_space(x, p + 3);
    if (x->end - p >= 3 && !memcmp(p, "-%}", 3)) return skip_space(x, p + 3);
    return x->end - p >= 2 && !memcmp(p, "%}", 2) ? p + 2 : NULL;
}

static void take_raw(struct lexer *x) {
    const char *from = x->s;
    for (const char *p = from; x->end - p >= 2; p++) {
        if (p[0] != '{' || p[1] != '%') continue;
        char sign = sign_at(x, p + 2);
        const char *q = skip_space(x, p + 2 + (sign != 0));
        if (x->end - q < 6 || memcmp(q, "endraw", 6)) continue;
        const char *to = tag_end(x, skip_space(x, q + 6), "%}");
        if (!to) continue;
        add_data(x, from, (size_t)(p - from), sign, 0);
        advance(x, to);
        return;
    }
    bad(x, "Missing end of raw directive");
}

/* ---- inside a tag ---- */

static int is_digit(int c) { return c >= '0' && c <= '9'; }
static const char *digits(const char *p, const char *end) { /* single underscores only between digits */
    while (p < end && (is_digit(*p) || (*p == '_' && p + 1 < end && is_digit(p[1]) && is_digit(p[-1])))) p++;
    return p;
}

static const char *based(const char *p, const char *end, int base) {
    const char *from = p;
    for (;;) {
        const char *q = p < end && *p == '_' ? p + 1 : p;
        int c = q < end ? (unsigned char)*q : 0;
        int digit = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
        if (digit >= base) return p == from ? NULL : p;
        p = q + 1;
    }
}

/* A float or an integer at x->s; 0 if there is none. */
static int take_number(struct lexer *x) {
    const char *s = x->s, *end = x->end, *to = NULL, *p = digits(s, end);
    int is_float = 0;
    if (!is_digit(*s)) return 0;
    if (!(s > x->start && s[-1] == '.')) { /* "m.0.role" has no float */
        const char *q = p;
        if (q + 1 < end && *q == '.' && is_digit(q[1])) q = digits(q + 1, end), is_float = 1, to = q;
        if (q < end && (*q | 32) == 'e') {
            const char *e = q + 1;
            if (e < end && (*e == '+' || *e == '-')) e++;
            if (e < end && is_digit(*e)) is_float = 1, to = digits(e, end);
        }
    }
    if (!is_float) {
        int mark = s + 1 < end ? s[1] | 32 : 0, base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        to = *s == '0' && base ? based(s + 2, end, base) : NULL;
        if (!to && *s == '0') /* zeros alone: "007" is 00 and 7 */
            for (to = s + 1; to < end && (*to == '0' || (*to == '_' && to + 1 < end && to[1] == '0')); to++) {}
        else if (!to) to = p;
    }
    struct value v;
    double f;
    if (is_float) {
        if (!number_parse_float(s, (size_t)(to - s), &f)) bad(x, "a number is too long");
        v = value_float(f);
    } else if (!number_parse_int(s, (size_t)(to - s), 0, x->r, &v)) bad(x, "a number is misspelt");
    add(x, is_float ? TOKEN_FLOAT : TOKEN_INTEGER, s, (size_t)(to - s))->value = v;
    advance(x, to);
    return 1;
}

static uint32_t hex(struct lexer *x, const char **p, const char *end, int n, const char *why) {
    uint32_t c = 0;
    for (int i = 0; i < n; i++, ++*p) {
        int b = *p < end ? (unsigned char)**p : 0;
        int digit = is_digit(b) ? b - '0' : (b | 32) >= 'a' && (b | 32) <= 'f' ? (b | 32) - 'a' + 10 : -1;
        if (digit < 0) bad(x, why);
        c = c << 4 | (uint32_t)digit;
    }
    if (c > 0x10ffff) bad(x, "illegal Unicode character");
    return c;
}

/* What follows a backslash, by the rules of Python's "unicode-escape". */
static const char *unescape(struct lexer *x, struct out *o, const char *p, const char *end) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = *p ? strchr(from, *p) : NULL;
    if (at) { out_add_char(x->r, o, (unsigned char)to[at - from]); return p + 1; }
    char c = *p++;
    if (c == '\n') return p;
    if (c >= '0' && c <= '7') {
        uint32_t u = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && p < end && *p >= '0' && *p <= '7'; i++) u = u * 8 + (uint32_t)(*p++ - '0');
        out_add_char(x->r, o, u);
    } else if (c == 'x') out_add_char(x->r, o, hex(x, &p, end, 2, "truncated \\xXX escape"));
    else if (c == 'u') out_add_char(x->r, o, hex(x, &p, end, 4, "truncated \\uXXXX escape"));
    else if (c == 'U') out_add_char(x->r, o, hex(x, &p, end, 8, "truncated \\UXXXXXXXX escape"));
    else if (c == 'N') {
        const char *close = p < end && *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        if (!close) bad(x, "malformed \\N character escape");
        uint32_t u = text_named(p + 1, (size_t)(close - p - 1));
        if (!u) bad(x, "unknown Unicode character name");
        out_add_char(x->r, o, u);
        p = close + 1;
    } else if ((unsigned char)c >= 0x80) { /* such a character is an escape itself by the time Python looks */
        static const char hexes[] = "0123456789abcdef";
        size_t used;
        uint32_t u = text_char(p - 1, (size_t)(end - p + 1), &used);
        int n = u < 0x100 ? 2 : u < 0x10000 ? 4 : 8;
        out_add_char(x->r, o, '\\');
        out_add_char(x->r, o, n == 2 ? 'x' : n == 4 ? 'u' : 'U');
        while (n--) out_add_char(x->r, o, (unsigned char)hexes[u >> (4 * n) & 15]);
        return p - 1 + used;
    } else {
        out_add_char(x->r, o, '\\');
        out_add_char(x->r, o, (unsigned char)c);
    }
    return p;
}

static int take_string(struct lexer *x) {
    const char *s = x->s, *p = s + 1;
    while (p < x->end && *p != *s) p += *p == '\\' && p + 1 < x->end ? 2 : 1;
    if (p >= x->end) return 0;
    struct token *t = add(x, TOKEN_STRING, s, (size_t)(p + 1 - s));
    if (!memchr(s + 1, '\\', (size_t)(p - s - 1))) {
        t->value = value_text_n(x->r, s + 1, (size_t)(p - s - 1));
    } else {
        struct out o = {0};
        for (const char *q = s + 1; q < p;) {
            if (*q == '\\') q = unescape(x, &o, q + 1, p);
            else out_add(x->r, &o, q++, 1);
        }
        t->value = out_take(x->r, &o);
    }
    advance(x, p + 1);
    return 1;
}

static int is_name_char(uint32_t c) { return char_is_word(c) || (c >= 0x300 && c < 0x370); }

static int take_name(struct lexer *x) {
    const char *p = x->s;
    size_t used;
    while (p < x->end && is_name_char(text_char(p, (size_t)(x->end - p), &used))) p += used;
    if (p == x->s) return 0;
    add(x, TOKEN_NAME, x->s, (size_t)(p - x->s));
    advance(x, p);
    return 1;
}

static void take_operator(struct lexer *x) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *s = x->s;
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof *two && x->end - s >= 2; i++)
        if (!memcmp(s, two[i], 2)) n = 2;
    if (!n && *s && strchr("+-/*%~[](){}><=.:|,;", *s)) n = 1;
    if (!n) {
        size_t used;
        text_char(s, (size_t)(x->end - s), &used);
        x->r->line = x->line;
        jinja_fail(x->r, FAULT_SYNTAX, "unexpected char '%.*s' at %zu", (int)used, s, (size_t)(s - x->start));
    }
    const char *open = n == 1 ? strchr("([{", *s) : NULL, *close = n == 1 ? strchr(")]}", *s) : NULL;
    if (open) {
        if (x->n_brackets == sizeof x->brackets) bad(x, "brackets are nested too deeply");
        x->brackets[x->n_brackets++] = *open == '(' ? ')' : *open == '[' ? ']' : '}';
    } else if (close) {
        char said[64] = "unexpected 'x'", awaited = x->n_brackets ? x->brackets[x->n_brackets - 1] : 0;
        said[12] = *close;
        if (awaited != *close) {
            if (awaited) strcpy(said + 14, ", expected 'x'"), said[26] = awaited;
            bad(x, said);
        }
        x->n_brackets--;
    }
    add(x, TOKEN_OPERATOR, s, n);
    advance(x, s + n);
}

static void take_tag(struct lexer *x, int is_print) {
    const char *close = is_print ? "}}" : "%}";
    x->n_brackets = 0;
    while (x->s < x->end) {
        const char *to = x->n_brackets ? NULL : tag_end(x, x->s, close);
        if (to) {
            add(x, is_print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, x->s, 2);
            advance(x, to);
            return;
        }
        jinja_step(x->r, 1);
        const char *p = skip_space(x, x->s);
        if (p > x->s) { advance(x, p); continue; }
        if (take_number(x) || take_name(x)) continue;
        if ((*x->s == '"' || *x->s == '\'') && take_string(x)) continue;
        take_operator(x);
    }
}

/* One newline for each kind of line end, and none at the very end. */
static void set_source(struct lexer *x, const char *source, size_t n) {
    char *copy = jinja_room(x->r, n + 1, 1), *w = copy;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        *w++ = source[i] == '\r' ? '\n' : source[i];
    }
    if (w > copy && w[-1] == '\n') w--;
    x->start = x->s = copy, x->end = w;
}

struct token *jinja_lex(struct render *r, const char *source, size_t n) {
    struct lexer x = {.r = r, .line = 1, .line_starting = 1};
    if (!text_is_valid(source, n)) jinja_fail(r, FAULT_SYNTAX, "the template is not UTF-8");
    set_source(&x, source, n);
    while (x.s < x.end) {
        const char *p = x.s;
        while (p + 1 < x.end && !(p[0] == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#'))) {
            const char *next = memchr(p + 1, '{', (size_t)(x.end - p - 1));
            p = next ? next : x.end;
        }
        jinja_step(r, 1);
        if (p + 1 >= x.end) {
            add(&x, TOKEN_DATA, x.s, (size_t)(x.end - x.s))->value = value_text_n(r, x.s, (size_t)(x.end - x.s));
            break;
        }
        char kind = p[1], sign = sign_at(&x, p + 2);
        const char *inside = p + 2 + (sign != 0), *raw = kind == '%' ? raw_begin(&x, inside) : NULL;
        add_data(&x, x.s, (size_t)(p - x.s), sign, kind == '{');
        advance(&x, raw ? raw : inside);
        if (raw) { take_raw(&x); continue; }
        if (kind == '#') { skip_comment(&x); continue; }
        add(&x, kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN, p, 2);
        take_tag(&x, kind == '{');
    }
    add(&x, TOKEN_EOF, x.end, 0);
    return x.tokens;
}
