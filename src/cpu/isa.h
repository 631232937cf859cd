/* The primitive sets and kernel lists that detect.c binds together, one column per ISA. A primitive that an ISA has no file
 * of its own for is the next lower one's. */
#ifndef CPU_ISA_H
#define CPU_ISA_H
#include "cpu/attention.h"
#include "cpu/cpu.h"
#include "cpu/delta.h"
#include "cpu/vec.h"

/* linear_NAME.c: for int8 inputs, then for bf16 inputs; of each form first the kernel for few rows if there are two. */
#define CPU_AFFINE_KERNELS(isa, n)                                                                                       \
    extern const struct linear_kernel cpu_affine2_##isa[n], cpu_affine3_##isa[n], cpu_affine4_##isa[n],                  \
        cpu_affine5_##isa[n], cpu_affine6_##isa[n], cpu_affine8_##isa[n];
CPU_AFFINE_KERNELS(avx2, 4)
CPU_AFFINE_KERNELS(avxvnni, 2)
CPU_AFFINE_KERNELS(avx512, 4)
CPU_AFFINE_KERNELS(neon, 2)
extern const struct linear_kernel cpu_affine2_amx, cpu_affine3_amx, cpu_affine4_amx, cpu_affine5_amx, cpu_affine6_amx, cpu_affine8_amx;
/* linear_dense_NAME.c: few rows, then many rows where that is another kernel. */
extern const struct linear_kernel cpu_bf16_avx2[2], cpu_f32_avx2[2], cpu_f16_avx2[2], cpu_any_avx2[2];
extern const struct linear_kernel cpu_bf16_avx512[2], cpu_f16_avx512[2], cpu_bf16dot_avx512, cpu_f32_avx512, cpu_any_avx512;
extern const struct linear_kernel cpu_bf16_amx[2];
extern const struct linear_kernel cpu_bf16_neon, cpu_f32_neon, cpu_f16_neon, cpu_any_neon;
/* linear_list.c: NULL-terminated, best first */
extern const struct linear_kernel *const cpu_kernels_portable[], *const cpu_kernels_avx2[], *const cpu_kernels_avxvnni[],
    *const cpu_kernels_avx512[], *const cpu_kernels_avx512bf16[], *const cpu_kernels_amx[], *const cpu_kernels_neon[];
#endif
