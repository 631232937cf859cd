/* The kernels of each ISA, best first: what a plan chooses from and what tests and benchmarks walk. */
#include "cpu/isa.h"

#define PAIR(k) &(k)[0], &(k)[1]
#define SWAPPED(k) &(k)[1], &(k)[0]
#define AFFINE(isa, at, EACH)                                                                                              \
    EACH(cpu_affine2_##isa + at), EACH(cpu_affine3_##isa + at), EACH(cpu_affine4_##isa + at), EACH(cpu_affine5_##isa + at), \
        EACH(cpu_affine6_##isa + at), EACH(cpu_affine8_##isa + at)

/* int8 inputs before bf16 inputs: the latter are for --precision high. */
#if defined(__x86_64__)
#define AVX2_BF16_AND_DENSE \
    AFFINE(avx2, 2, PAIR), PAIR(cpu_bf16_avx2), PAIR(cpu_f32_avx2), PAIR(cpu_f16_avx2), PAIR(cpu_any_avx2)
const struct linear_kernel *const cpu_kernels_avx2[] = {
    AFFINE(avx2, 0, SWAPPED), AVX2_BF16_AND_DENSE, NULL,
};
const struct linear_kernel *const cpu_kernels_avxvnni[] = {
    AFFINE(avxvnni, 0, SWAPPED), AVX2_BF16_AND_DENSE, NULL,
};
/* From 7 rows on panels: unpacking costs Intel's two vector ports what AMD's other two ports do beside the dots. */
const struct linear_kernel *const cpu_kernels_avx512[] = {
    AFFINE(avx512, 0, SWAPPED), AFFINE(avx512, 2, PAIR), PAIR(cpu_bf16_avx512),
    &cpu_f32_avx512, PAIR(cpu_f16_avx512), &cpu_any_avx512, NULL,
};
/* Tiles from 7 rows on: of the class 5-8 that kernel hands the lower half to the one for few rows itself. */
#define WITH_AMX(bits) &cpu_affine##bits##_amx, &cpu_affine##bits##_avx512[0]
const struct linear_kernel *const cpu_kernels_amx[] = {
    WITH_AMX(2), WITH_AMX(3), WITH_AMX(4), WITH_AMX(5), WITH_AMX(6), WITH_AMX(8), AFFINE(avx512, 2, PAIR), PAIR(cpu_bf16_amx),
    &cpu_f32_avx512, PAIR(cpu_f16_avx512), &cpu_any_avx512, NULL,
};
/* AMD: registers up to 32 rows. */
const struct linear_kernel *const cpu_kernels_avx512bf16[] = {
    AFFINE(avx512, 0, PAIR), AFFINE(avx512, 2, PAIR), &cpu_bf16dot_avx512,
    &cpu_f32_avx512, PAIR(cpu_f16_avx512), &cpu_any_avx512, NULL,
};
#endif
#if defined(__aarch64__)
const struct linear_kernel *const cpu_kernels_neon[] = {
    AFFINE(neon, 0, ), AFFINE(neon, 1, ), &cpu_bf16_neon, &cpu_f32_neon, &cpu_f16_neon, &cpu_any_neon, NULL,
};
#endif
