#include "cpu/simd_avx512.h"
#include "cpu/vec_body.h"

VEC_TABLE(cpu_vec_avx512);
