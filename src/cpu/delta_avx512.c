enum { DELTA_VECTORS = 8 };
#include "cpu/simd_avx512.h"

#include "cpu/delta_body.h"

DELTA_TABLE(cpu_delta_avx512, 64);
