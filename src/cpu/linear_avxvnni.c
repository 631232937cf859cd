/* Affine products of int8 inputs for processors with dot products of bytes in registers of 256 bits and no AVX-512: Intel's cores for
 * laptops and desktops since 2021. The rest of their list is that of AVX2. */
#include "cpu/isa.h"
#define WITH_DOT_BYTES
#include "cpu/linear_affine_avx2.h"

#define KERNELS(BITS) \
    FUNCTIONS_Q8(BITS) \
    const struct linear_kernel cpu_affine##BITS##_avxvnni[2] = {KERNELS_Q8(BITS)};
AFFINE_BITS(KERNELS)
