/* MLX affine: value = code * scale + bias, groups along K. */
#include <math.h>

#include "quant/affine.h"
#include "quant/convert.h"
#include "quant/rows.h"

static float load_scale(const uint8_t *p, enum dtype t, int64_t i) {
    if (t == DTYPE_BF16) return float_from_bf16(load_u16(p + 2 * i));
    if (t == DTYPE_F16) return float_from_f16(load_u16(p + 2 * i));
    return load_f32(p + 4 * i);
}

static int check_affine(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    const uint8_t *both[2] = {w->scales, w->biases};
    int64_t n_groups = w->n_cols / w->group;
    for (int64_t r = row0; r < row0 + n_rows; r++)
        for (int k = 0; k < 2; k++) {
            const uint8_t *p = both[k] + (size_t)r * w->scale_row_bytes;
            float sum = 0; /* 0 * x is NaN exactly when x is not finite */
            for (int64_t g = 0; g < n_groups; g++) sum += 0 * load_scale(p, w->scale_dtype, g);
            if (sum != 0)
                return error_set(e, WEFT_ERROR_INPUT, "%s: the %s of tensor \"%s\" are not finite in row %lld", w->file,
                                 k ? "biases" : "scales", w->name, (long long)r);
        }
    return 0;
}

static void decode_affine(const struct weight *w, int64_t row, float *out) {
    const uint8_t *data = w->data + (size_t)row * w->row_bytes;
    const uint8_t *scales = w->scales + (size_t)row * w->scale_row_bytes, *biases = w->biases + (size_t)row * w->scale_row_bytes;
    uint8_t codes[128];
    for (int64_t g = 0; g < w->n_cols / w->group; g++) {
        float s = load_scale(scales, w->scale_dtype, g), b = load_scale(biases, w->scale_dtype, g);
        affine_unpack(data, w->bits, g * w->group, w->group, codes);
        for (int i = 0; i < w->group; i++) out[g * w->group + i] = (float)codes[i] * s + b;
    }
}

const struct representation repr_affine = {"affine", REPR_AFFINE, DTYPE_U32, 1, check_affine, decode_affine};
