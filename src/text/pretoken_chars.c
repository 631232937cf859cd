#include "text/pretoken_chars.h"

#include <pthread.h>
#include <utf8proc.h>

static uint8_t table[CHARS_TABLE];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned place(uint32_t c) { return c < CHARS_LOW ? c : c - CHARS_TAGS + CHARS_LOW; }
static uint32_t code_point(unsigned i) { return i < CHARS_LOW ? i : i - CHARS_LOW + CHARS_TAGS; }

static int is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static int is_circled_letter(uint32_t c) {
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

static unsigned classify(uint32_t c) {
    unsigned k = is_space(c) ? CHAR_SPACE : 0;
    if (c == '\r' || c == '\n') k |= CHAR_NEWLINE;
    if (c == 0x200C || c == 0x200D || is_circled_letter(c)) k |= CHAR_WORD;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    if (p->combining_class) k |= CHAR_JOINS;
    switch (p->category) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return k | CHAR_LETTER | CHAR_WORD;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
        return k | CHAR_MARK | CHAR_WORD;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL:
        return k | CHAR_NUMBER | CHAR_WORD;
    case UTF8PROC_CATEGORY_NO:
        return k | CHAR_NUMBER;
    case UTF8PROC_CATEGORY_PC:
        return k | CHAR_WORD;
    default:
        return k;
    }
}

/* Marks what composition may take as its second part, and what NFC never leaves as it is. utf8proc has no quick check of its
 * own, but a character with a canonical decomposition tells both: either NFC gives it back, and then the last of its parts
 * joins what stands before it, or it does not, and then the character itself never stays. */
static void mark_joins(uint32_t c) {
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    if (p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0) return;
    utf8proc_int32_t parts[32];
    int last_class = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last_class);
    if (n < 1 || n > 32) return;
    uint32_t last = (uint32_t)parts[n - 1];
    n = utf8proc_normalize_utf32(parts, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n == 1 && parts[0] == (utf8proc_int32_t)c) table[place(last)] |= CHAR_JOINS;
    else table[place(c)] |= CHAR_JOINS;
}

static void make(void) {
    for (unsigned i = 0; i < CHARS_TABLE; i++) table[i] = (uint8_t)classify(code_point(i));
    for (uint32_t c = 0; c < CHARS_LOW; c++)
        if (c < 0xAC00 || c > 0xD7A3) mark_joins(c);
    /* Hangul syllables are made by arithmetic: a vowel joins a lead, a tail joins a syllable. */
    for (uint32_t c = 0x1161; c <= 0x1175; c++) table[c] |= CHAR_JOINS;
    for (uint32_t c = 0x11A8; c <= 0x11C2; c++) table[c] |= CHAR_JOINS;
}

const uint8_t *chars_table(void) {
    pthread_once(&once, make);
    return table;
}
