/* E4M3 with one scale (`weight_scale_inv`, a multiplier in spite of its name) to each block of 128 x 128. */
#include <math.h>

#include "quant/convert.h"
#include "quant/rows.h"

enum { BLOCK = 128 };

static float block_scale(const struct weight *w, int64_t row, int64_t block) {
    return load_float(w->scales + (size_t)((w->block_row0 + row) / BLOCK) * w->scale_row_bytes, w->scale_dtype, block);
}

static int check_fp8(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    for (int64_t r = row0; r < row0 + n_rows; r++) {
        const uint8_t *p = w->data + (size_t)r * w->row_bytes;
        int bad = 0;
        for (int64_t i = 0; i < w->n_cols; i++) bad |= (p[i] & 0x7f) == 0x7f;
        if (bad) return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" has a NaN in row %lld", w->file, w->name, (long long)r);
        for (int64_t b = 0; b * BLOCK < w->n_cols; b++)
            if (!isfinite(block_scale(w, r, b)))
                return error_set(e, WEFT_ERROR_INPUT, "%s: the weight_scale_inv of tensor \"%s\" is not finite at row %lld", w->file,
                                 w->name, (long long)r);
    }
    return 0;
}

static void decode_fp8(const struct weight *w, int64_t row, float *out) {
    const uint8_t *p = w->data + (size_t)row * w->row_bytes;
    for (int64_t i = 0; i < w->n_cols;) {
        float s = block_scale(w, row, i / BLOCK);
        for (int64_t end = i + BLOCK < w->n_cols ? i + BLOCK : w->n_cols; i < end; i++) out[i] = float_from_e4m3(p[i]) * s;
    }
}

const struct representation repr_fp8 = {"fp8", REPR_FP8, DTYPE_F8_E4M3, 1, check_fp8, decode_fp8};
