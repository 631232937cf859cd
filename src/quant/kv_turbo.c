/* TurboQuant, design "k8v3": keys as they are with scale and zero per 32 values; values rotated by a signed Walsh-Hadamard
 * transform, then nearest of the Lloyd-Max centers of a Gaussian, scaled by the root mean square of 32 values. */
#include <math.h>
#include <string.h>

#include "quant/convert.h"
#include "quant/kv_codes.h"

enum { BLOCK = 32 };

/* Upper halves of the exact centers of N(0, 1); the lower halves mirror them. */
static const float centers_2[] = {
    0.45278003f, 1.5104176f,
};
static const float centers_3[] = {
    0.24509418f, 0.75600528f, 1.3439093f, 2.1519457f,
};
static const float centers_4[] = {
    0.12839503f, 0.3880483f, 0.65675912f, 0.94234046f, 1.2562312f, 1.6180464f, 2.0690172f, 2.7325896f,
};
static const float centers_5[] = {
    0.06588966f, 0.19805183f, 0.33137831f, 0.46669952f, 0.60493362f, 0.7471357f, 0.89456512f, 1.0487833f, 1.2118044f,
    1.3863403f, 1.5762281f, 1.7872332f, 2.0287284f, 2.3177394f, 2.6911196f, 3.2607325f,
};
static const float centers_8[] = {
    0.0084461932f, 0.025339383f, 0.042234984f, 0.059134604f, 0.076039856f, 0.092952355f, 0.10987372f, 0.12680558f,
    0.14374957f, 0.16070732f, 0.1776805f, 0.19467075f, 0.21167976f, 0.2287092f, 0.24576078f, 0.26283622f, 0.27993724f,
    0.29706559f, 0.31422304f, 0.33141138f, 0.34863242f, 0.365888f, 0.38317996f, 0.40051021f, 0.41788064f, 0.43529321f,
    0.45274988f, 0.47025266f, 0.4878036f, 0.50540476f, 0.52305828f, 0.5407663f, 0.55853102f, 0.5763547f, 0.59423962f,
    0.61218813f, 0.63020261f, 0.64828553f, 0.66643939f, 0.68466676f, 0.70297027f, 0.72135262f, 0.73981659f, 0.75836501f,
    0.77700081f, 0.79572701f, 0.81454668f, 0.83346301f, 0.85247928f, 0.87159887f, 0.89082527f, 0.91016206f, 0.92961296f,
    0.94918181f, 0.96887258f, 0.98868937f, 1.0086364f, 1.0287182f, 1.0489392f, 1.0693042f, 1.0898181f, 1.110486f, 1.1313133f,
    1.1523054f, 1.1734682f, 1.1948076f, 1.21633f, 1.2380418f, 1.2599499f, 1.2820615f, 1.304384f, 1.3269253f, 1.3496937f,
    1.3726976f, 1.3959463f, 1.4194493f, 1.4432166f, 1.4672587f, 1.491587f, 1.5162131f, 1.5411497f, 1.5664098f, 1.5920076f,
    1.6179578f, 1.6442765f, 1.6709804f, 1.6980875f, 1.725617f, 1.7535894f, 1.7820269f, 1.8109531f, 1.8403933f, 1.8703751f,
    1.9009281f, 1.9320842f, 1.9638784f, 1.9963485f, 2.0295357f, 2.0634852f, 2.0982465f, 2.1338741f, 2.1704282f, 2.2079755f,
    2.2465899f, 2.2863545f, 2.3273619f, 2.3697171f, 2.4135387f, 2.4589621f, 2.5061426f, 2.5552594f, 2.6065215f, 2.660174f,
    2.7165076f, 2.7758707f, 2.8386858f, 2.9054729f, 2.9768821f, 3.053742f, 3.1371325f, 3.2285002f, 3.3298485f, 3.4440717f,
    3.575588f, 3.7316663f, 3.9256378f, 4.1865954f, 4.6035356f,
};

/* Signs of the rotation, bit i of the row in bit i % 8 of byte i / 8, set = -1: MLX's randint(0, 2) from key 42. */
static const uint8_t signs_64[] = {0x8e, 0x54, 0x69, 0xb7, 0x02, 0x48, 0xde, 0x62};
static const uint8_t signs_128[] = {
    0x0d, 0xdf, 0x39, 0x6a, 0x50, 0x02, 0x9c, 0x6a, 0xd5, 0x37, 0x83, 0x4a, 0xde, 0x59, 0x60, 0x14,
};
static const uint8_t signs_256[] = {
    0x12, 0x30, 0xe6, 0x62, 0x11, 0x4a, 0xcd, 0x10, 0x6f, 0x14, 0x6d, 0xa9, 0xc9, 0x5e, 0x9c, 0xd3,
    0x9b, 0xf2, 0x2f, 0x3a, 0x73, 0x5d, 0x27, 0xb2, 0x6b, 0xd9, 0x30, 0x57, 0x57, 0xc3, 0x8b, 0xfe,
};
static const uint8_t signs_512[] = {
    0xbd, 0x4b, 0x36, 0x70, 0x0d, 0xe3, 0xfb, 0x62, 0x63, 0xe4, 0x39, 0xd4, 0x61, 0xd2, 0xca, 0x5c,
    0x8f, 0x7c, 0x47, 0x9b, 0x43, 0x12, 0xdd, 0xe9, 0x30, 0xde, 0x2a, 0x54, 0xba, 0xca, 0xba, 0x77,
    0x84, 0x3e, 0x87, 0x11, 0x18, 0x15, 0x4c, 0x9a, 0xc5, 0xa3, 0x04, 0x32, 0x1f, 0x72, 0x81, 0x5d,
    0x52, 0x14, 0x82, 0x8a, 0xc2, 0x9b, 0xa7, 0x8e, 0xef, 0x4b, 0x0e, 0x52, 0x6d, 0x9d, 0x6b, 0x29,
};

static int dim_ok(int dim) { return dim == 64 || dim == 128 || dim == 256 || dim == 512; }
static int k_legal(struct kv_shape s) { return dim_ok(s.dim) && (s.bits == 8 || s.bits == 5 || s.bits == 4 || s.bits == 2); }
static int v_legal(struct kv_shape s) {
    return dim_ok(s.dim) && (s.bits == 8 || s.bits == 5 || s.bits == 4 || s.bits == 3 || s.bits == 2);
}

static size_t scales_bytes(struct kv_shape s) { return (size_t)(s.dim / BLOCK) * KV_ROWS * sizeof(uint16_t); }
static size_t k_block_bytes(struct kv_shape s) { return kv_planes_of(s).bytes + 2 * scales_bytes(s); }
static size_t v_block_bytes(struct kv_shape s) { return kv_planes_of(s).bytes + scales_bytes(s); }

/* Scale of (row, block of 32); the zero of a key lies scales_bytes behind it. */
static size_t scale_at(struct kv_shape s, int row, int b) {
    return kv_planes_of(s).bytes + ((size_t)b * KV_ROWS + (size_t)row) * sizeof(uint16_t);
}
static void put_f16(uint8_t *at, float v) {
    uint16_t h = f16_from_float(isfinite(v) ? fmaxf(-65504.0f, fminf(v, 65504.0f)) : NAN);
    memcpy(at, &h, 2);
}
static float get_f16(const uint8_t *at) { return float_from_f16(load_u16(at)); }
static float clip(float v, float low, float high) { return fmaxf(low, fminf(v, high)); } /* NaN becomes high */

/* Codes from 0 of one block of keys; signed ones are raised by `raise`. */
static void encode_keys(const float *x, int bits, uint8_t *codes, float *scale, float *zero) {
    int is_signed = bits == 8;
    float most = is_signed ? 127.0f : (float)((1 << bits) - 1), least = is_signed ? -most : 0.0f, raise = is_signed ? most : 0.0f;
    float low = x[0], high = x[0], largest = 0.0f;
    int finite = 1;
    for (int i = 0; i < BLOCK; i++) {
        finite &= isfinite(x[i]) != 0;
        low = fminf(low, x[i]), high = fmaxf(high, x[i]);
        largest = fmaxf(largest, fabsf(x[i]));
    }
    float s = (high - low) / (is_signed ? 2.0f * most : most), step = s + 1e-8f;
    float z = rintf((is_signed ? (high + low) / 2.0f : low) / step);
    if (fabsf(z) > 65504.0f) { /* a nearly constant block: its zero would leave F16; take a symmetric code instead */
        s = largest / most, step = s;
        z = is_signed || high > 0.0f ? 0.0f : -most;
    }
    for (int i = 0; i < BLOCK; i++) codes[i] = (uint8_t)(clip(rintf(x[i] / step - z), least, most) + raise);
    *scale = finite ? s : NAN, *zero = z;
}

static void write_k(uint8_t *block, struct kv_shape s, int row, const float *x) {
    uint8_t codes[KV_MAX_DIM];
    for (int b = 0; b < s.dim / BLOCK; b++) {
        float scale, zero;
        encode_keys(x + b * BLOCK, s.bits, codes + b * BLOCK, &scale, &zero);
        put_f16(block + scale_at(s, row, b), scale);
        put_f16(block + scale_at(s, row, b) + scales_bytes(s), zero);
    }
    kv_codes_put(block, 0, s, row, codes);
}

static void read_k(const uint8_t *block, struct kv_shape s, int row, float *x) {
    uint8_t codes[KV_MAX_DIM];
    kv_codes_get(block, 0, s, row, codes);
    for (int d = 0; d < s.dim; d++) {
        size_t at = scale_at(s, row, d / BLOCK);
        x[d] = ((float)(codes[d] - (s.bits == 8 ? 127 : 0)) + get_f16(block + at + scales_bytes(s))) * get_f16(block + at);
    }
}

static const struct { const float *upper; int half; } center_lists[9] = {
    [2] = {centers_2, 2}, [3] = {centers_3, 4}, [4] = {centers_4, 8}, [5] = {centers_5, 16}, [8] = {centers_8, 128}};

/* Center number i of 2 * half, ascending. */
static float center(const float *upper, int half, int i) { return i < half ? -upper[half - 1 - i] : upper[i - half]; }

void kv_turbo_centers(int bits, float *out) {
    int half = center_lists[bits].half;
    for (int i = 0; i < 2 * half; i++) out[i] = center(center_lists[bits].upper, half, i);
}

/* How many boundaries (midpoints of the centers) lie strictly below t. */
static uint8_t nearest(const float *upper, int half, float t) {
    int from = 0, to = 2 * half - 1; /* boundary j lies between centers j and j + 1 */
    while (from < to) {
        int j = (from + to) / 2;
        if ((center(upper, half, j) + center(upper, half, j + 1)) * 0.5f < t) from = j + 1;
        else to = j;
    }
    return (uint8_t)from;
}

static void write_v(uint8_t *block, struct kv_shape s, int row, const float *x) {
    float y[KV_MAX_DIM];
    uint8_t codes[KV_MAX_DIM];
    const float *upper = center_lists[s.bits].upper;
    int half = center_lists[s.bits].half;
    memcpy(y, x, (size_t)s.dim * sizeof *y);
    kv_rotate(y, s.dim);
    for (int b = 0; b < s.dim / BLOCK; b++) {
        float squares = 0.0f;
        for (int i = 0; i < BLOCK; i++) squares += y[b * BLOCK + i] * y[b * BLOCK + i];
        float scale = sqrtf(squares / BLOCK);
        for (int i = 0; i < BLOCK; i++)
            codes[b * BLOCK + i] = nearest(upper, half, y[b * BLOCK + i] / (scale + 1e-8f));
        put_f16(block + scale_at(s, row, b), scale);
    }
    kv_codes_put(block, 1, s, row, codes);
}

static void read_v(const uint8_t *block, struct kv_shape s, int row, float *x) {
    uint8_t codes[KV_MAX_DIM];
    kv_codes_get(block, 1, s, row, codes);
    const float *upper = center_lists[s.bits].upper;
    int half = center_lists[s.bits].half;
    for (int d = 0; d < s.dim; d++) x[d] = center(upper, half, codes[d]) * get_f16(block + scale_at(s, row, d / BLOCK));
    kv_rotate_back(x, s.dim);
}

static void flip_signs(float *x, int dim) {
    const uint8_t *signs = dim == 64 ? signs_64 : dim == 128 ? signs_128 : dim == 256 ? signs_256 : signs_512;
    for (int d = 0; d < dim; d++)
        if (signs[d / 8] >> (d % 8) & 1) x[d] = -x[d];
}

static void hadamard(float *x, int dim) {
    for (int half = 1; half < dim; half *= 2)
        for (int i = 0; i < dim; i += 2 * half)
            for (int j = i; j < i + half; j++) {
                float a = x[j], b = x[j + half];
                x[j] = a + b, x[j + half] = a - b;
            }
    float root = sqrtf((float)dim);
    for (int d = 0; d < dim; d++) x[d] /= root;
}

void kv_rotate(float *x, int dim) {
    flip_signs(x, dim);
    hadamard(x, dim);
}

void kv_rotate_back(float *x, int dim) {
    hadamard(x, dim);
    flip_signs(x, dim);
}

const struct kv_format kv_turbo = {
    .name = "turbo", .kind = KV_TURBO,
    .k = {k_legal, k_block_bytes, write_k, read_k, 0},
    .v = {v_legal, v_block_bytes, write_v, read_v, 1},
};
