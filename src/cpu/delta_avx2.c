enum { DELTA_VECTORS = 4 };
#include "cpu/simd_avx2.h"

#include "cpu/delta_body.h"

DELTA_TABLE(cpu_delta_avx2, 32);
