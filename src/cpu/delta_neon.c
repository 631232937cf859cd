enum { DELTA_VECTORS = 4 };
#include "cpu/simd_neon.h"

#include "cpu/delta_body.h"

DELTA_TABLE(cpu_delta_neon, 32);
