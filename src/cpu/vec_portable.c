#include "cpu/simd_portable.h"
#include "cpu/vec_body.h"

VEC_TABLE(cpu_vec_portable);
