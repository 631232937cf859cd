#include "cpu/simd_neon.h"
#include "cpu/vec_body.h"

VEC_TABLE(cpu_vec_neon);
