/* MLX affine: value = code * scale + bias, groups along K. */
#include "quant/affine.h"
#include "quant/rows.h"

static int check_affine(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    const uint8_t *both[2] = {w->scales, w->biases};
    int64_t n_groups = w->n_cols / w->group;
    for (int64_t r = row0; r < row0 + n_rows; r++)
        for (int k = 0; k < 2; k++) {
            if (floats_not_finite(both[k] + (size_t)r * w->scale_row_bytes, w->scale_dtype, n_groups) >= 0)
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
        float s = load_float(scales, w->scale_dtype, g), b = load_float(biases, w->scale_dtype, g);
        affine_unpack(data, w->bits, g * w->group, w->group, codes);
        for (int i = 0; i < w->group; i++) out[g * w->group + i] = (float)codes[i] * s + b;
    }
}

const struct representation repr_affine = {"affine", REPR_AFFINE, DTYPE_U32, 1, check_affine, decode_affine};
