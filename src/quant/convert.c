#include "quant/convert.h"

#include <math.h>

uint8_t e4m3_from_float(float v) {
    uint32_t b = float_bits(v), sign = b >> 24 & 0x80, rest = b & 0x7fffffff;
    if (rest >= 0x43e00000) return (uint8_t)(sign | 0x7e); /* 448 and above, NaN */
    if (rest < 0x3c800000)                                 /* below 2^-6: multiples of 2^-9, the step of [2^14, 2^15) */
        return (uint8_t)(sign | (float_bits(float_from_bits(rest) + 0x1p14f) - 0x46800000));
    rest += 0x7ffff + (rest >> 20 & 1);
    return (uint8_t)(sign | ((rest >> 20) - ((127 - 7) << 3)));
}

static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
float float_from_e2m1(uint8_t code) { return e2m1[code & 15]; }
