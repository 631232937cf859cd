/* Exact conversions between float and its 16-bit relatives; to the narrower types round to nearest even. Loads take any address. */
#ifndef BASE_CONVERT_H
#define BASE_CONVERT_H
#include <stdint.h>
#include <string.h>

static inline uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline float load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
static inline float float_from_bits(uint32_t b) { float v; memcpy(&v, &b, 4); return v; }
static inline uint32_t float_bits(float v) { uint32_t b; memcpy(&b, &v, 4); return b; }

static inline float float_from_bf16(uint16_t h) { return float_from_bits((uint32_t)h << 16); }

static inline uint16_t bf16_from_float(float v) {
    uint32_t b = float_bits(v);
    if ((b & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static inline float float_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return float_from_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
    float v = (float)rest * 0x1p-24f; /* zero and subnormals: exact */
    return float_from_bits(sign | float_bits(v));
}

static inline uint16_t f16_from_float(float v) {
    uint32_t b = float_bits(v), sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (rest < 0x38800000) {                                  /* below 2^-14: the adder rounds to multiples of 2^-24 */
        float up = float_from_bits(rest) + 0.5f;              /* ulp of [0.5, 1) is 2^-24 */
        return (uint16_t)(sign | (float_bits(up) - 0x3f000000));
    }
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - ((127 - 15) << 23)) >> 13);
}
#endif
