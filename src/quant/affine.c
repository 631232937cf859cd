#include "quant/affine.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "quant/convert.h"

/* Eight codes are `bits` bytes whatever the width. */
static inline void unpack_eight(const uint8_t *p, int bits, uint8_t *codes) {
    uint64_t v = 0;
    for (int i = 0; i < bits; i++) v |= (uint64_t)p[i] << 8 * i;
    unsigned mask = (1u << bits) - 1;
    for (int i = 0; i < 8; i++) codes[i] = (uint8_t)(v >> i * bits & mask);
}

/* One loop a width, so that the compiler sees the shifts. */
#define UNPACK(BITS) \
    case BITS: for (int64_t i = 0; i < n; i += 8) unpack_eight(row + i / 8 * (BITS), BITS, codes + i); break

void affine_unpack(const uint8_t *row, int bits, int64_t first, int64_t n, uint8_t *codes) {
    CHECK(first % 8 == 0 && n % 8 == 0);
    row += first / 8 * bits;
    switch (bits) {
        UNPACK(2);
        UNPACK(3);
        UNPACK(4);
        UNPACK(5);
        UNPACK(6);
        case 8: memcpy(codes, row, (size_t)n); break;
        default: CHECK(!"a width that is not stored");
    }
}

void affine_pack(const uint8_t *codes, int64_t n, int bits, uint8_t *row) {
    CHECK(n % 32 == 0 && affine_bits_ok(bits));
    for (int64_t i = 0; i < n; i += 8, row += bits) {
        uint64_t v = 0;
        for (int k = 0; k < 8; k++) v |= (uint64_t)codes[i + k] << k * bits;
        for (int k = 0; k < bits; k++) row[k] = (uint8_t)(v >> 8 * k);
    }
}

/* The larger end of the range is anchored: it is the bias and has code 0. The scale is then stretched so that 0 is hit exactly. */
void affine_encode_group(const float *x, int n, int bits, enum affine_path path, uint8_t *codes, float *scale, float *bias) {
    const float top = (float)((1 << bits) - 1), eps = 1e-7f;
    float hi = path == AFFINE_CPU ? -INFINITY : 0, lo = INFINITY;
    for (int i = 0; i < n; i++) hi = x[i] > hi ? x[i] : hi, lo = x[i] < lo ? x[i] : lo; /* NaN, signalling too, is passed over */
    float s = (hi - lo) / top;
    if (path == AFFINE_CPU) s = s < eps ? eps : s; /* a NaN stays */
    else s = s > eps ? s : eps;
    int low = fabsf(lo) > fabsf(hi);
    float edge = low ? lo : hi, b = edge;
    if (!low) s = -s;
    float q0 = path == AFFINE_CPU ? rintf(edge / s) : roundf(edge / s);
    if (q0 == 0) b = 0;
    else s = edge / q0;
    for (int i = 0; i < n; i++) {
        float q = (x[i] - b) / s;
        q = path == AFFINE_CPU ? rintf(q) : roundf(q);
        if (isnan(q)) q = path == AFFINE_CPU ? 0 : top;
        codes[i] = (uint8_t)(q < 0 ? 0 : q > top ? top : q);
    }
    *scale = s, *bias = b;
}

static void store(float v, enum dtype t, uint8_t *out) {
    if (t == DTYPE_F32) {
        memcpy(out, &v, 4);
    } else {
        uint16_t h = t == DTYPE_BF16 ? bf16_from_float(v) : f16_from_float(v);
        memcpy(out, &h, 2);
    }
}

void affine_encode_row(const float *x, int64_t n, int bits, int group, enum affine_path path, enum dtype t, uint8_t *row,
                       uint8_t *scales, uint8_t *biases) {
    CHECK(dtype_is_float(t) && affine_bits_ok(bits) && affine_group_ok(group) && n % group == 0);
    uint8_t codes[128];
    int step = dtype_bytes(t);
    for (int64_t g = 0; g < n / group; g++) {
        float scale, bias;
        affine_encode_group(x + g * group, group, bits, path, codes, &scale, &bias);
        affine_pack(codes, group, bits, row + g * group * bits / 8);
        store(scale, t, scales + g * step);
        store(bias, t, biases + g * step);
    }
}
