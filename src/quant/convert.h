/* The conversions of base/convert.h, and the 8-bit floats that weights are stored in. */
#ifndef QUANT_CONVERT_H
#define QUANT_CONVERT_H
#include "base/convert.h"

/* E4M3 as weights store it (S.1111.111 is NaN, largest 448). */
static inline float float_from_e4m3(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80) << 24, rest = h & 0x7f;
    if (rest == 0x7f) return float_from_bits(sign | 0x7fc00000);
    if (rest >= 8) return float_from_bits(sign | ((rest << 20) + ((127 - 7) << 23)));
    float v = (float)rest * 0x1p-9f;
    return float_from_bits(sign | float_bits(v));
}
uint8_t e4m3_from_float(float v); /* |v| >= 448, infinities and NaN saturate to 448 with the sign */
float float_from_e2m1(uint8_t code); /* 4 bits: 0 .5 1 1.5 2 3 4 6, then the same negative */
/* 2^(h - 127); 255 is infinite, an error in weights. */
static inline float float_from_e8m0(uint8_t h) { return float_from_bits(h ? (uint32_t)h << 23 : 0x400000); }
#endif
