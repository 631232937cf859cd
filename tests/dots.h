/* Dot products of bytes (AVX-VNNI) in plain C, for processors without: included before anything else, it takes the place of the
 * instruction that src/cpu/linear_avxvnni.c calls. */
#ifndef DOTS_H
#define DOTS_H
#if defined(__AVX2__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Each 32-bit lane of *sum += four unsigned bytes of codes by four signed ones of x. */
static inline void dots_add(__m256i *sum, __m256i codes, __m256i x) {
    int32_t s[8];
    uint8_t a[32];
    int8_t b[32];
    memcpy(s, sum, 32), memcpy(a, &codes, 32), memcpy(b, &x, 32);
    for (int i = 0; i < 32; i++) s[i / 4] += a[i] * b[i];
    memcpy(sum, s, 32);
}
#define DOT_BYTES dots_add
#endif
#endif
