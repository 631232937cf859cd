/* bf16 weights by bf16 dot products, where the processor is fast at them. */
#include "cpu/linear_dense_avx512.h"

#include "cpu/isa.h"

#define one_column NULL
#define decoded_panel_bytes dense_panel_bytes
DENSE_KERNELS(bf16dot, "bf16", DENSE_DOT, FORM_BF16, "avx512bf16 dots")
