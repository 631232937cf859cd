/* Activation rows, in the forms that matrix products want.
 *
 * A row of `width` values is kept as fp32 and/or rounded once, when it is made, to what its consumers multiply with:
 *   FORM_BF16  nearest-even bf16
 *   FORM_Q8    int8 codes in blocks of 32 along the row: scale = q8_scale_of(max|x|) of the block (0 when all are 0),
 *              code = rint(x / scale) computed as rint(x * (1 / scale)); `q8_sum` is scale * (sum of codes), so that an affine weight
 *              s * q + b costs one more multiply per block: s * scale * dot + b * q8_sum.
 *   FORM_Q8_REST  beside FORM_Q8: what its rounding left, as a second row of int8 codes of the same kind
 * Every form of a row depends on that row alone. A width that is no multiple of 32 has a shorter last block; the codes
 * behind it are 0 up to the padded width, and so are the bf16 values. */
#ifndef BACKEND_ROWS_H
#define BACKEND_ROWS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FORM_F32 = 1, FORM_BF16 = 2, FORM_Q8 = 4, FORM_Q8_REST = 8, Q8_BLOCK = 32 };

struct rows {
    int width, padded; /* padded: width rounded up to 64; the stride of bf16 and q8 rows; f32 rows are `width` apart */
    int forms;         /* which of these are filled */
    float *f32;        /* [n][width] */
    uint16_t *bf16;    /* [n][padded] */
    int8_t *q8;        /* [n][padded]; with FORM_Q8_REST [2 n]: the rest of row i is row rest_row + i */
    float *q8_scale;   /* [n][padded / 32] */
    float *q8_sum;     /* [n][padded / 32] */
    int rest_row;      /* n */
};
/* top / 127 with its two lowest bits cleared: products with 1.5 * 2^23 are exact, which spares kernels a conversion (DOT_MIDDLE in
 * cpu/linear_affine.h). Where such a product would not be finite the scale is infinite, for every kernel alike. */
static inline float q8_scale_of(float top) {
    float scale = top / 127.0f;
    uint32_t bits;
    if (scale > 0x1p104f) return HUGE_VALF;
    memcpy(&bits, &scale, sizeof bits);
    bits &= ~(uint32_t)3;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}
static inline int rows_pad(int width) { return (width + 63) / 64 * 64; }
#endif
