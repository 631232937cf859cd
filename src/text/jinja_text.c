/* Unicode as Python's str knows it: characters, classes, case, white space, lines. */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja.h"
#include "text/jinja_tables.h"

uint32_t text_char(const char *s, size_t n, size_t *used) {
    const unsigned char *b = (const unsigned char *)s;
    if (b[0] < 0x80 || n < 2) return *used = 1, b[0];
    if (b[0] < 0xe0) return *used = 2, (uint32_t)(b[0] & 31) << 6 | (b[1] & 63);
    if (b[0] < 0xf0 && n > 2) return *used = 3, (uint32_t)(b[0] & 15) << 12 | (uint32_t)(b[1] & 63) << 6 | (b[2] & 63);
    if (n > 3)
        return *used = 4, (uint32_t)(b[0] & 7) << 18 | (uint32_t)(b[1] & 63) << 12 | (uint32_t)(b[2] & 63) << 6 | (b[3] & 63);
    return *used = 1, b[0];
}

size_t text_put(char *s, uint32_t c) {
    if (c < 0x80) return s[0] = (char)c, 1;
    if (c < 0x800) return s[0] = (char)(0xc0 | c >> 6), s[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) return s[0] = (char)(0xe0 | c >> 12), s[1] = (char)(0x80 | (c >> 6 & 63)), s[2] = (char)(0x80 | (c & 63)), 3;
    s[0] = (char)(0xf0 | c >> 18), s[1] = (char)(0x80 | (c >> 12 & 63)), s[2] = (char)(0x80 | (c >> 6 & 63));
    return s[3] = (char)(0x80 | (c & 63)), 4;
}

int64_t text_count(const char *s, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += (s[i] & 0xc0) != 0x80;
    return count;
}

int text_is_valid(const char *s, size_t n) {
    const unsigned char *b = (const unsigned char *)s;
    for (size_t i = 0; i < n;) {
        if (b[i] < 0x80) { i++; continue; }
        size_t more = b[i] >= 0xf0 ? 3 : b[i] >= 0xe0 ? 2 : 1;
        if (b[i] < 0xc2 || b[i] > 0xf4 || n - i <= more) return 0;
        for (size_t k = 1; k <= more; k++)
            if ((b[i + k] & 0xc0) != 0x80) return 0;
        if (b[i] == 0xe0 && b[i + 1] < 0xa0) return 0;
        if (b[i] == 0xed && b[i + 1] > 0x9f) return 0;
        if (b[i] == 0xf0 && b[i + 1] < 0x90) return 0;
        if (b[i] == 0xf4 && b[i + 1] > 0x8f) return 0;
        i += more + 1;
    }
    return 1;
}

const char *text_find(const char *s, size_t n, const char *what, size_t m) { return m ? memmem(s, n, what, m) : s; }

size_t text_offset(const struct text *t, int64_t at_char) {
    if (at_char >= t->n_chars) return t->n;
    if (t->n_chars == (int64_t)t->n) return (size_t)at_char;
    size_t i = 0;
    for (; at_char > 0; at_char--)
        for (i++; i < t->n && (t->bytes[i] & 0xc0) == 0x80;) i++;
    return i;
}

int char_is_space(uint32_t c) {
    if (c < 128) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

int char_is_printable(uint32_t c) {
    if (c < 127) return c >= 32;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: case UTF8PROC_CATEGORY_ZS: return 0;
    default: return 1;
    }
}

static int in_ranges(const struct char_range *at, size_t n, uint32_t c) {
    for (size_t i = 0; i < n; i++)
        if (c >= at[i].first && c <= at[i].last) return 1;
    return 0;
}

int char_is_alpha(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

int char_is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

int char_is_digit(uint32_t c) {
    return char_is_decimal(c) || in_ranges(digit_ranges, sizeof digit_ranges / sizeof *digit_ranges, c);
}

int char_is_numeric(uint32_t c) {
    utf8proc_category_t k = category(c);
    return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) ||
           in_ranges(numeric_ranges, sizeof numeric_ranges / sizeof *numeric_ranges, c);
}

int char_is_alnum(uint32_t c) { return char_is_alpha(c) || char_is_numeric(c); }

int char_is_word(uint32_t c) {
    if (c < 128) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    return char_is_alnum(c);
}

int text_all(const char *s, size_t n, int (*is)(uint32_t)) {
    size_t used;
    for (size_t i = 0; i < n; i += used)
        if (!is(text_char(s + i, n - i, &used))) return 0;
    return n > 0;
}

enum side { SIDE_NONE, SIDE_LOWER, SIDE_UPPER, SIDE_TITLE };

static enum side side_of(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_LL: return SIDE_LOWER;
    case UTF8PROC_CATEGORY_LU: return SIDE_UPPER;
    case UTF8PROC_CATEGORY_LT: return SIDE_TITLE;
    default: return SIDE_NONE;
    }
}

int text_is_cased(const char *s, size_t n, int upper) {
    int seen = 0;
    size_t used;
    for (size_t i = 0; i < n; i += used) {
        enum side side = side_of(text_char(s + i, n - i, &used));
        if (side == SIDE_TITLE || side == (upper ? SIDE_LOWER : SIDE_UPPER)) return 0;
        seen |= side != SIDE_NONE;
    }
    return seen;
}

static const char *special(const struct special_case *table, size_t n, uint32_t c) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid].c == c) return table[mid].becomes;
        if (table[mid].c < c) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

static void put_upper(struct render *r, struct out *o, uint32_t c, int title) {
    const char *more = c < 128 ? NULL
                       : title ? special(special_title, sizeof special_title / sizeof *special_title, c)
                               : special(special_upper, sizeof special_upper / sizeof *special_upper, c);
    if (more) out_add_text(r, o, more);
    else if (title) out_add_char(r, o, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
    else out_add_char(r, o, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

/* Sigma at the end of a word has a form of its own: behind a cased letter and not before one. */
static int sigma_is_final(const char *s, size_t n, size_t at, size_t used) {
    size_t step, i = at;
    enum side before = SIDE_NONE, after = SIDE_NONE;
    while (i > 0) {
        do i--;
        while (i > 0 && (s[i] & 0xc0) == 0x80);
        uint32_t c = text_char(s + i, n - i, &step);
        utf8proc_category_t k = category(c);
        if (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_LM || c == '\'' || c == '.' || c == ':' || c == 0x2019) continue;
        before = side_of(c);
        break;
    }
    for (i = at + used; i < n; i += step) {
        uint32_t c = text_char(s + i, n - i, &step);
        utf8proc_category_t k = category(c);
        if (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_LM || c == '\'' || c == '.' || c == ':' || c == 0x2019) continue;
        after = side_of(c);
        break;
    }
    return before != SIDE_NONE && after == SIDE_NONE;
}

static void put_lower(struct render *r, struct out *o, const char *s, size_t n, size_t at, uint32_t c, size_t used) {
    if (c == 0x130) out_add_text(r, o, "i\xcc\x87");
    else if (c == 0x3a3) out_add_char(r, o, sigma_is_final(s, n, at, used) ? 0x3c2 : 0x3c3);
    else out_add_char(r, o, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static void put_fold(struct render *r, struct out *o, uint32_t c) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, folded, 8, UTF8PROC_CASEFOLD, &boundary);
    if (n <= 0 || n > 8) out_add_char(r, o, c);
    else
        for (utf8proc_ssize_t i = 0; i < n; i++) out_add_char(r, o, (uint32_t)folded[i]);
}

struct value text_case(struct render *r, struct value v, enum text_case how) {
    const char *s = v.as.text->bytes;
    size_t n = v.as.text->n, used;
    struct out o = {0};
    int inside = 0;
    for (size_t i = 0; i < n; i += used) {
        uint32_t c = text_char(s + i, n - i, &used);
        enum side side = side_of(c);
        int up = how == CASE_UPPER || (how == CASE_SWAP && side == SIDE_LOWER);
        if (up) put_upper(r, &o, c, 0);
        else if (how == CASE_SWAP && side != SIDE_UPPER) out_add_char(r, &o, c);
        else if (how == CASE_FOLD) put_fold(r, &o, c);
        else if ((how == CASE_TITLE && !inside) || (how == CASE_CAPITAL && i == 0)) put_upper(r, &o, c, 1);
        else put_lower(r, &o, s, n, i, c, used);
        inside = side != SIDE_NONE;
    }
    struct value out = out_take(r, &o);
    return v.as.text->markup ? value_markup(r, out) : out;
}

struct value value_lower_case(struct render *r, struct value v) { return value_is_text(v) ? text_case(r, v, CASE_LOWER) : v; }

uint32_t text_named(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof char_names / sizeof *char_names; i++)
        if (strlen(char_names[i].name) == n && !strncmp(char_names[i].name, name, n)) return char_names[i].c;
    return 0;
}

/* Whether c is one of `chars`, or white space when that is NULL. */
static int to_strip(struct render *r, uint32_t c, const struct text *chars) {
    if (!chars) return char_is_space(c);
    jinja_step(r, 1 + (int64_t)chars->n / 16);
    size_t used;
    for (size_t i = 0; i < chars->n; i += used)
        if (text_char(chars->bytes + i, chars->n - i, &used) == c) return 1;
    return 0;
}

struct value text_strip(struct render *r, struct value v, struct value chars, int sides) {
    const struct text *set = value_is_text(chars) ? chars.as.text : NULL;
    if (!set && chars.kind != VALUE_NONE && chars.kind != VALUE_MISSING)
        jinja_fail(r, FAULT_TYPE, "strip arg must be None or str");
    const char *s = v.as.text->bytes;
    size_t first = 0, end = v.as.text->n, used;
    if (sides & 1)
        for (; first < end && to_strip(r, text_char(s + first, end - first, &used), set);) first += used;
    while (sides & 2 && end > first) {
        size_t at = end;
        do at--;
        while (at > first && (s[at] & 0xc0) == 0x80);
        if (!to_strip(r, text_char(s + at, end - at, &used), set)) break;
        end = at;
    }
    struct value out = value_text_n(r, s + first, end - first);
    return v.as.text->markup ? value_markup(r, out) : out;
}

static int ends_line(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct value text_lines(struct render *r, struct value v, int keep_ends) {
    const char *s = v.as.text->bytes;
    size_t n = v.as.text->n, used, start = 0;
    struct list lines = {0};
    for (size_t i = 0; i < n;) {
        uint32_t c = text_char(s + i, n - i, &used);
        if (!ends_line(c)) { i += used; continue; }
        size_t end = i;
        i += used;
        if (c == '\r' && i < n && s[i] == '\n') i++;
        list_add(r, &lines, value_text_n(r, s + start, (keep_ends ? i : end) - start));
        start = i;
    }
    if (start < n) list_add(r, &lines, value_text_n(r, s + start, n - start));
    return value_list(r, lines.at, lines.n);
}
