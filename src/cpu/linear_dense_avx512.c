/* Dense products by fp32 FMA: f32, f16, bf16, and any representation through its decoding. */
#include "cpu/linear_dense_avx512.h"

#include "cpu/isa.h"

static size_t decoded_bytes(int n_rows, int n_in) { return (void)n_rows, 16 * (size_t)n_in * sizeof(float); }

DENSE_RUN(f32, stream, DENSE_F32)
DENSE_RUN(any, stream, DENSE_ANY)
DENSE_RUN(f16, stream, DENSE_F16)
DENSE_RUN(f16, panel, DENSE_F16)
DENSE_RUN(bf16, stream, DENSE_BF16)
DENSE_RUN(bf16, panel, DENSE_BF16)

const struct linear_kernel cpu_f32_avx512 = DENSE_STREAM(f32, "f32", FORM_F32, "avx512 fp32", INT_MAX, FEW_ROWS, NULL);
const struct linear_kernel cpu_any_avx512 = DENSE_STREAM(any, NULL, FORM_F32, "avx512 fp32", INT_MAX, 0, decoded_bytes);
const struct linear_kernel cpu_f16_avx512[2] = {
    DENSE_STREAM(f16, "f16", FORM_F32, "avx512 fp32", FEW_ROWS, FEW_ROWS, NULL), DENSE_PANEL(f16, "f16", FORM_F32, "avx512 fp32"),
};
const struct linear_kernel cpu_bf16_avx512[2] = {
    DENSE_STREAM(bf16, "bf16", FORM_BF16, "avx512 bf16 by fp32", FEW_ROWS, FEW_ROWS, NULL),
    DENSE_PANEL(bf16, "bf16", FORM_BF16, "avx512 bf16 by fp32"),
};
