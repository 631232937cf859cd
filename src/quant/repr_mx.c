/* MLX's mxfp4, mxfp8 and nvfp4: value = element * scale, no bias; group and width are fixed by the mode. */
#include <math.h>

#include "quant/convert.h"
#include "quant/rows.h"

/* MLX's decoder has no NaN: 0x7f goes on from 0x7e. */
static float mlx_e4m3(uint8_t h) { return (h & 0x7f) == 0x7f ? copysignf(480, h & 0x80 ? -1 : 1) : float_from_e4m3(h); }

static float element(const struct weight *w, const uint8_t *row, int64_t i) {
    if (w->bits == 8) return mlx_e4m3(row[i]);
    return float_from_e2m1((uint8_t)(row[i / 2] >> i % 2 * 4));
}

static float scale(const struct weight *w, int64_t row, int64_t g) {
    uint8_t byte = w->scales[(size_t)row * w->scale_row_bytes + (size_t)g];
    return w->group == 16 ? mlx_e4m3(byte) : float_from_e8m0(byte);
}

static int check_mx(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    for (int64_t r = row0; r < row0 + n_rows; r++)
        for (int64_t g = 0; g < w->n_cols / w->group; g++)
            if (!isfinite(scale(w, r, g)))
                return error_set(e, WEFT_ERROR_INPUT, "%s: the scales of tensor \"%s\" are not finite in row %lld", w->file, w->name,
                                 (long long)r);
    return 0;
}

static void decode_mx(const struct weight *w, int64_t row, float *out) {
    const uint8_t *p = w->data + (size_t)row * w->row_bytes;
    for (int64_t i = 0; i < w->n_cols; i++) out[i] = element(w, p, i) * scale(w, row, i / w->group);
}

const struct representation repr_mxfp4 = {"mxfp4", REPR_MX, DTYPE_U32, 1, check_mx, decode_mx};
const struct representation repr_mxfp8 = {"mxfp8", REPR_MX, DTYPE_U32, 1, check_mx, decode_mx};
const struct representation repr_nvfp4 = {"nvfp4", REPR_MX, DTYPE_U32, 1, check_mx, decode_mx};
