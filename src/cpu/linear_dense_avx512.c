/* Dense products by fp32 FMA: f32, f16, bf16, and any representation through its decoding. */
#include "cpu/linear_dense_avx512.h"

#include "cpu/isa.h"

static size_t one_column(int n_rows, int n_in) { return (void)n_rows, (size_t)n_in * sizeof(float); }
static size_t decoded_panel_bytes(int n_rows, int n_in) {
    return (void)n_rows, sizeof(struct dense_panel) + COLUMNS * (size_t)n_in * sizeof(float);
}

DENSE_KERNELS(f32, "f32", DENSE_F32, FORM_F32, "avx512 fp32")
DENSE_KERNELS(f16, "f16", DENSE_F16, FORM_F32, "avx512 fp32")
DENSE_KERNELS(bf16, "bf16", DENSE_BF16, FORM_BF16, "avx512 bf16 by fp32")
DENSE_KERNELS(any, NULL, DENSE_ANY, FORM_F32, "avx512 fp32")
