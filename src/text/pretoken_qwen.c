#include "text/pretoken_qwen.h"

#include "text/decode_utf8.h"
#include "text/pretoken_chars.h"

/* Class of the character at p, its length in *length. */
static inline unsigned class_at(const uint8_t *table, const uint8_t *p, unsigned *length) {
    if (*p < 0x80) return *length = 1, table[*p];
    return chars_class(table, utf8_get(p, length));
}

/* End of the run of characters with a class in `mask` from i on. */
static inline size_t run_of(const uint8_t *table, unsigned mask, const uint8_t *p, size_t n, size_t i) {
    unsigned length;
    while (i < n && (class_at(table, p + i, &length) & mask)) i += length;
    return i;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) behind the quote: its length without the quote, 0 for no match. U+017F is an s in any case. */
static unsigned contraction(const uint8_t *p, size_t n) {
    if (n < 1) return 0;
    unsigned a = p[0] | 32u, b = n > 1 ? p[1] | 32u : 0;
    switch (a) {
    case 's': case 't': case 'm': case 'd':
        return 1;
    case 'r': case 'v':
        return b == 'e' ? 2 : 0;
    case 'l':
        return b == 'l' ? 2 : 0;
    default:
        return n > 1 && p[0] == 0xC5 && p[1] == 0xBF ? 2 : 0;
    }
}

/* White space at `at`: \s*[\r\n]+ | \s+(?!\S) | \s+ */
static size_t space_end(const uint8_t *table, const uint8_t *p, size_t n, size_t at) {
    size_t i = at, last = at, newline = 0; /* where the last character begins; the end of the last CR or LF */
    unsigned length, class;
    while (i < n && ((class = class_at(table, p + i, &length)) & CHAR_SPACE)) {
        last = i, i += length;
        if (class & CHAR_NEWLINE) newline = i;
    }
    if (newline) return newline;
    /* The last of several is left to the word that follows. */
    return i == n || last == at ? i : last;
}

size_t pretoken_qwen_next(const uint8_t *table, unsigned word, const uint8_t *p, size_t n, size_t at) {
    unsigned length, next_length, next = 0;
    unsigned class = class_at(table, p + at, &length);
    size_t i = at + length;
    if (class & word) return run_of(table, word, p, n, i);
    if (class & CHAR_NUMBER) return i;
    if (p[at] == '\'') {
        unsigned more = contraction(p + i, n - i);
        if (more) return i + more;
    }
    if (i < n) next = class_at(table, p + i, &next_length);
    if (!(class & CHAR_NEWLINE) && (next & word)) return run_of(table, word, p, n, i + next_length);
    unsigned covered = word | CHAR_NUMBER | CHAR_SPACE;
    if (class & CHAR_SPACE) {
        if (p[at] != ' ' || i >= n || (next & covered)) return space_end(table, p, n, at);
        i += next_length;
    }
    /* [^\s\p{L}\p{M}\p{N}]+[\r\n]* with its first character behind us */
    while (i < n && !(class_at(table, p + i, &length) & covered)) i += length;
    while (i < n && (p[i] == '\r' || p[i] == '\n')) i++;
    return i;
}
