/* BF16, F16 and F32, used in place. */
#include <math.h>
#include <string.h>

#include "quant/convert.h"
#include "quant/rows.h"

static int not_finite(const struct weight *w, int64_t row, int64_t column, struct weft_error *e) {
    return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is not finite at row %lld, column %lld", w->file, w->name, (long long)row,
                     (long long)column);
}

/* An exponent of all ones, `mask` its place, means infinity or NaN. The or over a row is one pass without branches. */
static int check_16(const struct weight *w, int64_t row0, int64_t n_rows, unsigned mask, struct weft_error *e) {
    for (int64_t r = row0; r < row0 + n_rows; r++) {
        const uint8_t *p = w->data + (size_t)r * w->row_bytes;
        unsigned bad = 0;
        for (int64_t i = 0; i < w->n_cols; i++) bad |= (load_u16(p + 2 * i) & mask) == mask;
        for (int64_t i = 0; bad && i < w->n_cols; i++)
            if ((load_u16(p + 2 * i) & mask) == mask) return not_finite(w, r, i, e);
    }
    return 0;
}

static int check_bf16(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    return check_16(w, row0, n_rows, 0x7f80, e);
}
static int check_f16(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    return check_16(w, row0, n_rows, 0x7c00, e);
}
static int check_f32(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    for (int64_t r = row0; r < row0 + n_rows; r++)
        for (int64_t i = 0; i < w->n_cols; i++)
            if (!isfinite(load_f32(w->data + (size_t)r * w->row_bytes + 4 * i))) return not_finite(w, r, i, e);
    return 0;
}

static void decode_bf16(const struct weight *w, int64_t row, float *out) {
    const uint8_t *p = w->data + (size_t)row * w->row_bytes;
    for (int64_t i = 0; i < w->n_cols; i++) out[i] = float_from_bf16(load_u16(p + 2 * i));
}
static void decode_f16(const struct weight *w, int64_t row, float *out) {
    const uint8_t *p = w->data + (size_t)row * w->row_bytes;
    for (int64_t i = 0; i < w->n_cols; i++) out[i] = float_from_f16(load_u16(p + 2 * i));
}
static void decode_f32(const struct weight *w, int64_t row, float *out) {
    memcpy(out, w->data + (size_t)row * w->row_bytes, (size_t)w->n_cols * 4);
}

const struct representation repr_bf16 = {"bf16", REPR_DENSE, DTYPE_BF16, 0, check_bf16, decode_bf16};
const struct representation repr_f16 = {"f16", REPR_DENSE, DTYPE_F16, 0, check_f16, decode_f16};
const struct representation repr_f32 = {"f32", REPR_DENSE, DTYPE_F32, 0, check_f32, decode_f32};
