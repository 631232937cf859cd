#include "cpu/simd_avx2.h"
#include "cpu/vec_body.h"

VEC_TABLE(cpu_vec_avx2);
