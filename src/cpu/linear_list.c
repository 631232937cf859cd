/* The kernels of each ISA, best first: what a plan chooses from and what tests and benchmarks walk. */
#include "cpu/isa.h"

#define PAIR(k) &(k)[0], &(k)[1]
/* int8 inputs before bf16 inputs: the latter are for --precision high. */
#define AFFINE(isa, at)                                                                                        \
    PAIR(cpu_affine2_##isa + at), PAIR(cpu_affine3_##isa + at), PAIR(cpu_affine4_##isa + at), PAIR(cpu_affine5_##isa + at), \
        PAIR(cpu_affine6_##isa + at), PAIR(cpu_affine8_##isa + at)

#if defined(__x86_64__)
const struct linear_kernel *const cpu_kernels_avx512[] = {
    AFFINE(avx512, 0), AFFINE(avx512, 2), PAIR(cpu_bf16_avx512), PAIR(cpu_f32_avx512), PAIR(cpu_f16_avx512), PAIR(cpu_any_avx512), NULL,
};
const struct linear_kernel *const cpu_kernels_avx512bf16[] = {
    AFFINE(avx512, 0), AFFINE(avx512, 2), PAIR(cpu_bf16dot_avx512), PAIR(cpu_f32_avx512), PAIR(cpu_f16_avx512), PAIR(cpu_any_avx512), NULL,
};
#endif
