/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TEXT_DECODE_UTF8_H
#define TEXT_DECODE_UTF8_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What stands at p, of which n > 0 bytes are there:
 *   k > 0   a character of k bytes
 *   0       the beginning of a character whose rest lies beyond n
 *   -k < 0  k bytes that are no character: the longest beginning of a good sequence, or one byte that begins none */
static inline int utf8_step(const uint8_t *p, size_t n) {
    uint8_t a = p[0];
    if (a < 0x80) return 1;
    if (a < 0xC2 || a > 0xF4) return -1;
    int length = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    /* The second byte's range is what keeps overlong forms, surrogates and too high values out. */
    uint8_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80, high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    if (n < 2) return 0;
    if (p[1] < low || p[1] > high) return -1;
    for (int i = 2; i < length; i++) {
        if ((size_t)i >= n) return 0;
        if ((p[i] & 0xC0) != 0x80) return -i;
    }
    return length;
}

/* The character at p in text known to be good; *n gets its length. */
static inline uint32_t utf8_get(const uint8_t *p, unsigned *n) {
    uint32_t a = p[0];
    if (a < 0x80) return *n = 1, a;
    if (a < 0xE0) return *n = 2, (a & 31) << 6 | (p[1] & 63);
    if (a < 0xF0) return *n = 3, (a & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
    return *n = 4, (a & 7) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 | (p[3] & 63);
}

/* Writes c, at most 4 bytes; returns how many. */
static inline unsigned utf8_put(uint8_t *p, uint32_t c) {
    if (c < 0x80) return p[0] = (uint8_t)c, 1;
    if (c < 0x800) return p[0] = (uint8_t)(0xC0 | c >> 6), p[1] = (uint8_t)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return p[0] = (uint8_t)(0xE0 | c >> 12), p[1] = (uint8_t)(0x80 | (c >> 6 & 63)), p[2] = (uint8_t)(0x80 | (c & 63)), 3;
    p[0] = (uint8_t)(0xF0 | c >> 18), p[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    return p[2] = (uint8_t)(0x80 | (c >> 6 & 63)), p[3] = (uint8_t)(0x80 | (c & 63)), 4;
}

/* How many bytes from p on are ASCII, counted in eights: a floor, not exact. */
static inline size_t utf8_skip_ascii(const uint8_t *p, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, p + i, 8);
        if (eight & 0x8080808080808080u) break;
    }
    return i;
}

/* Length of the well-formed beginning of the text; n when all of it is. */
size_t utf8_good_bytes(const uint8_t *p, size_t n);
#endif
