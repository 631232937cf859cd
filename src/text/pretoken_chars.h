/* What the split patterns and the normalization ask of a character, one byte per code point, made once from utf8proc's data. */
#ifndef TEXT_PRETOKEN_CHARS_H
#define TEXT_PRETOKEN_CHARS_H
#include <stdint.h>

enum {
    CHAR_LETTER = 1,   /* \p{L} */
    CHAR_MARK = 2,     /* \p{M} */
    CHAR_NUMBER = 4,   /* \p{N} */
    CHAR_SPACE = 8,    /* \s: Unicode's White_Space */
    CHAR_NEWLINE = 16, /* CR and LF */
    CHAR_JOINS = 32,   /* may change under NFC: quick check not "yes", or it may stand in the wrong order (a combining class) */
    CHAR_WORD = 64,    /* \w */
};

enum { CHARS_LOW = 0x40000, CHARS_TAGS = 0xE0000, CHARS_TABLE = CHARS_LOW + 0x1000 };

/* The table; the first call makes it (about 5 ms). */
const uint8_t *chars_table(void);

/* Planes 4 to 13 are unassigned, 15 and 16 private: of the upper planes only the first block of 14 has characters. */
static inline unsigned chars_class(const uint8_t *table, uint32_t c) {
    if (c < CHARS_LOW) return table[c];
    return c - CHARS_TAGS < 0x1000 ? table[CHARS_LOW + (c - CHARS_TAGS)] : 0;
}
#endif
