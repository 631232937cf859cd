/* Private to the folder: the members of `representations`, one file each. */
#ifndef QUANT_ROWS_H
#define QUANT_ROWS_H
#include "quant/convert.h"
#include "quant/quant.h"

extern const struct representation repr_bf16, repr_f16, repr_f32, repr_affine, repr_fp8, repr_mxfp4, repr_mxfp8, repr_nvfp4;

/* The first of n values of type t (F32, F16 or BF16) that is infinite or NaN; -1 when there is none. */
int64_t floats_not_finite(const uint8_t *p, enum dtype t, int64_t n);
/* Value i of the same three types. */
static inline float load_float(const uint8_t *p, enum dtype t, int64_t i) {
    if (t == DTYPE_BF16) return float_from_bf16(load_u16(p + 2 * i));
    if (t == DTYPE_F16) return float_from_f16(load_u16(p + 2 * i));
    return load_f32(p + 4 * i);
}
#endif
