#include "text/tokenizer_scan.h"

#include <string.h>

#include "text/decode_utf8.h"

int scan_next_char(struct scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) s->p++;
    return s->p < s->end ? (unsigned char)*s->p : -1;
}

int scan_take(struct scan *s, char c) {
    if (scan_next_char(s) != (unsigned char)c) return 0;
    return s->p++, 1;
}

int scan_int(struct scan *s, int64_t *out) {
    int minus = scan_take(s, '-');
    const char *first = s->p;
    int64_t x = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9' && s->p - first < 18) x = x * 10 + (*s->p++ - '0');
    ptrdiff_t digits = s->p - first;
    if (digits == 0 || (digits > 1 && *first == '0')) return 0;
    if (s->p < s->end && ((*s->p >= '0' && *s->p <= '9') || *s->p == '.' || *s->p == 'e' || *s->p == 'E')) return 0;
    *out = minus ? -x : x;
    return 1;
}

/* Four hexadecimal digits at p. */
static int64_t hex4(const char *p, const char *end) {
    if (end - p < 4) return -1;
    int64_t x = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i] | 32; /* a letter in lower case; digits have that bit */
        if (!(p[i] >= '0' && p[i] <= '9') && !(c >= 'a' && c <= 'f')) return -1;
        x = x << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return x;
}

/* What follows a backslash; returns the bytes written, 0 for no escape. */
static unsigned escape(struct scan *s, uint8_t *out) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s->p >= s->end) return 0;
    char c = *s->p++;
    if (c != 'u') {
        const char *at = c ? strchr(letters, c) : NULL;
        return at ? out[0] = (uint8_t)values[at - letters], 1 : 0;
    }
    int64_t code = hex4(s->p, s->end);
    if (code < 0 || (code >= 0xDC00 && code <= 0xDFFF)) return 0;
    s->p += 4;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u') return 0;
        int64_t low = hex4(s->p + 2, s->end);
        if (low < 0xDC00 || low > 0xDFFF) return 0;
        s->p += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    return utf8_put(out, (uint32_t)code);
}

int64_t scan_string(struct scan *s, uint8_t *out) {
    if (!scan_take(s, '"')) return -1;
    int64_t n = 0;
    while (s->p < s->end) {
        uint8_t c = (uint8_t)*s->p++;
        if (c == '"') return n;
        if (c < 0x20) return -1;
        if (c != '\\') {
            out[n++] = c;
            continue;
        }
        unsigned more = escape(s, out + n);
        if (!more) return -1;
        n += more;
    }
    return -1;
}

/* Passes a string without reading it. */
static int skip_string(struct scan *s) {
    if (!scan_take(s, '"')) return -1;
    while (s->p < s->end) {
        char c = *s->p++;
        if (c == '"') return 0;
        if (c == '\\') s->p++;
    }
    return -1;
}

/* Passes any value: brackets are counted, not matched, since what is passed here is parsed elsewhere or refused. */
static int skip_value(struct scan *s, struct scan_range *range) {
    int64_t depth = 0;
    int c = scan_next_char(s);
    range->begin = s->p;
    do {
        if (c < 0) return -1;
        if (c == '"') {
            if (skip_string(s)) return -1;
        } else {
            s->p++;
            if (c == '{' || c == '[') depth++;
            if (c == '}' || c == ']') depth--;
            if (depth < 0) return -1;
            if (depth == 0 && c != '}' && c != ']') /* a number or a word */
                while (s->p < s->end && strchr(",}] \t\r\n", *s->p) == NULL) s->p++;
        }
        range->end = s->p;
        if (depth > 0) c = scan_next_char(s);
    } while (depth > 0);
    return s->p > s->end ? -1 : 0;
}

static int is_key(struct scan_range key, const char *text) {
    size_t n = strlen(text);
    return (size_t)(key.end - key.begin) == n + 2 && memcmp(key.begin + 1, text, n) == 0;
}

/* Passes an object; the values of the keys in `names` go to `found`. */
static int find_values(struct scan *s, const char *const *names, struct scan_range *const *found, int n) {
    if (!scan_take(s, '{')) return -1;
    if (scan_take(s, '}')) return 0;
    do {
        struct scan_range key = {0}, value = {0};
        scan_next_char(s);
        key.begin = s->p;
        if (skip_string(s)) return -1;
        key.end = s->p;
        if (!scan_take(s, ':') || skip_value(s, &value)) return -1;
        for (int i = 0; i < n; i++) {
            if (!is_key(key, names[i])) continue;
            if (found[i]->begin) return -2;
            *found[i] = value;
        }
    } while (scan_take(s, ','));
    return scan_take(s, '}') ? 0 : -1;
}

int scan_find_parts(const char *text, size_t n, struct scan_range *vocab, struct scan_range *merges) {
    struct scan s = {text, text + n};
    struct scan_range model = {0};
    *vocab = *merges = (struct scan_range){0};
    int code = find_values(&s, (const char *const[]){"model"}, (struct scan_range *const[]){&model}, 1);
    if (code || !model.begin) return code;
    struct scan inner = {model.begin, model.end};
    if (scan_next_char(&inner) != '{') return 0;
    return find_values(&inner, (const char *const[]){"vocab", "merges"}, (struct scan_range *const[]){vocab, merges}, 2);
}
