/* The primitive sets and kernel lists that detect.c binds together, one column per ISA. A primitive that an ISA has no file
 * of its own for is the next lower one's. */
#ifndef CPU_ISA_H
#define CPU_ISA_H
#include "cpu/cpu.h"

/* op primitives: vec_NAME.c, delta_NAME.c, attention_NAME.c */
extern const struct cpu_vec cpu_vec_portable, cpu_vec_avx2, cpu_vec_avx512;
extern const struct cpu_delta cpu_delta_portable, cpu_delta_avx2, cpu_delta_avx512;
extern const struct cpu_attention cpu_attention_portable, cpu_attention_avx2, cpu_attention_avx512, cpu_attention_avx512bf16;

/* linear_*_NAME.c: NULL-terminated, best first */
extern const struct linear_kernel *const cpu_kernels_portable[];
#endif
