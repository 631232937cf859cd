/* bf16 weights by bf16 dot products, where the processor is fast at them. */
#include "cpu/linear_dense_avx512.h"

#include "cpu/isa.h"

DENSE_RUN(bf16dot, stream, DENSE_DOT)
const struct linear_kernel cpu_bf16dot_avx512 = DENSE_STREAM(bf16dot, "bf16", FORM_BF16, "avx512bf16 dots", INT_MAX, FEW_ROWS, NULL);
