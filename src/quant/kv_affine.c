/* Rows quantized on arrival as MLX quantizes its cache: values rounded to bf16, groups along the head, the Metal rule, scales
 * and biases rounded to bf16 when stored. */
#include <math.h>
#include <string.h>

#include "quant/affine.h"
#include "quant/convert.h"
#include "quant/kv_codes.h"

static int legal(struct kv_shape s) {
    return affine_bits_ok(s.bits) && affine_group_ok(s.group) && s.dim > 0 && s.dim <= KV_MAX_DIM && s.dim % s.group == 0;
}

static size_t block_bytes(struct kv_shape s) {
    return kv_planes_of(s).bytes + (size_t)(s.dim / s.group) * KV_ROWS * 2 * sizeof(uint16_t);
}

/* Scale of (row, group); the bias lies dim / group * 64 behind it. */
static uint8_t *scale_at(uint8_t *block, struct kv_shape s, int row, int g) {
    return block + kv_planes_of(s).bytes + ((size_t)g * KV_ROWS + (size_t)row) * sizeof(uint16_t);
}
static size_t bias_behind(struct kv_shape s) { return (size_t)(s.dim / s.group) * KV_ROWS * sizeof(uint16_t); }

static void write_row(uint8_t *block, int is_v, struct kv_shape s, int row, const float *x) {
    float rounded[KV_MAX_DIM];
    uint8_t codes[KV_MAX_DIM];
    for (int d = 0; d < s.dim; d++) rounded[d] = float_from_bf16(bf16_from_float(x[d]));
    for (int g = 0; g < s.dim / s.group; g++) {
        float scale, bias;
        int finite = 1;
        for (int i = 0; i < s.group; i++) finite &= isfinite(x[g * s.group + i]) != 0;
        affine_encode_group(rounded + g * s.group, s.group, s.bits, AFFINE_METAL, codes + g * s.group, &scale, &bias);
        if (!finite) scale = bias = NAN; /* the encoder skips NaN */
        uint16_t h[2] = {bf16_from_float(scale), bf16_from_float(bias)};
        uint8_t *at = scale_at(block, s, row, g);
        memcpy(at, &h[0], 2);
        memcpy(at + bias_behind(s), &h[1], 2);
    }
    kv_codes_put(block, is_v, s, row, codes);
}

static void read_row(const uint8_t *block, int is_v, struct kv_shape s, int row, float *x) {
    uint8_t codes[KV_MAX_DIM];
    kv_codes_get(block, is_v, s, row, codes);
    for (int d = 0; d < s.dim; d++) {
        const uint8_t *at = scale_at((uint8_t *)block, s, row, d / s.group);
        x[d] = (float)codes[d] * float_from_bf16(load_u16(at)) + float_from_bf16(load_u16(at + bias_behind(s)));
    }
}

static void write_k(uint8_t *block, struct kv_shape s, int row, const float *x) { write_row(block, 0, s, row, x); }
static void write_v(uint8_t *block, struct kv_shape s, int row, const float *x) { write_row(block, 1, s, row, x); }
static void read_k(const uint8_t *block, struct kv_shape s, int row, float *x) { read_row(block, 0, s, row, x); }
static void read_v(const uint8_t *block, struct kv_shape s, int row, float *x) { read_row(block, 1, s, row, x); }

void kv_affine_export(const uint8_t *block, int is_v, struct kv_shape s, int row, uint8_t *packed, uint16_t *scales,
                      uint16_t *biases) {
    uint8_t codes[KV_MAX_DIM];
    kv_codes_get(block, is_v, s, row, codes);
    affine_pack(codes, s.dim, s.bits, packed);
    for (int g = 0; g < s.dim / s.group; g++) {
        const uint8_t *at = scale_at((uint8_t *)block, s, row, g);
        scales[g] = load_u16(at), biases[g] = load_u16(at + bias_behind(s));
    }
}

void kv_affine_import(uint8_t *block, int is_v, struct kv_shape s, int row, const uint8_t *packed, const uint16_t *scales,
                      const uint16_t *biases) {
    uint8_t codes[KV_MAX_DIM];
    affine_unpack(packed, s.bits, 0, s.dim, codes);
    kv_codes_put(block, is_v, s, row, codes);
    for (int g = 0; g < s.dim / s.group; g++) {
        uint8_t *at = scale_at(block, s, row, g);
        memcpy(at, &scales[g], 2);
        memcpy(at + bias_behind(s), &biases[g], 2);
    }
}

const struct kv_format kv_affine = {
    .name = "affine", .kind = KV_AFFINE,
    .k = {legal, block_bytes, write_k, read_k, 0},
    .v = {legal, block_bytes, write_v, read_v, 0},
};
