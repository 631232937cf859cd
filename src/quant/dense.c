/* BF16, F16 and F32, used in place. */
#include <string.h>

#include "quant/convert.h"
#include "quant/rows.h"

/* An exponent of all ones means infinity or NaN. The first pass is one without branches, which compilers make wide. */
#define FIND_NOT_FINITE(LOAD, SIZE, MASK)                                                       \
    do {                                                                                        \
        unsigned bad = 0;                                                                       \
        for (int64_t i = 0; i < n; i++) bad |= (LOAD(p + (SIZE) * i) & (MASK)) == (MASK);       \
        for (int64_t i = 0; bad && i < n; i++)                                                  \
            if ((LOAD(p + (SIZE) * i) & (MASK)) == (MASK)) return i;                            \
    } while (0)

int64_t floats_not_finite(const uint8_t *p, enum dtype t, int64_t n) {
    if (t == DTYPE_BF16) FIND_NOT_FINITE(load_u16, 2, 0x7f80);
    else if (t == DTYPE_F16) FIND_NOT_FINITE(load_u16, 2, 0x7c00);
    else FIND_NOT_FINITE(load_u32, 4, 0x7f800000);
    return -1;
}

static int check_dense(const struct weight *w, int64_t row0, int64_t n_rows, struct weft_error *e) {
    for (int64_t r = row0; r < row0 + n_rows; r++) {
        int64_t i = floats_not_finite(w->data + (size_t)r * w->row_bytes, w->dtype, w->n_cols);
        if (i >= 0)
            return error_set(e, WEFT_ERROR_INPUT, "%s: tensor \"%s\" is not finite at row %lld, column %lld", w->file, w->name,
                             (long long)r, (long long)i);
    }
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

const struct representation repr_bf16 = {"bf16", REPR_DENSE, DTYPE_BF16, 0, check_dense, decode_bf16};
const struct representation repr_f16 = {"f16", REPR_DENSE, DTYPE_F16, 0, check_dense, decode_f16};
const struct representation repr_f32 = {"f32", REPR_DENSE, DTYPE_F32, 0, check_dense, decode_f32};
