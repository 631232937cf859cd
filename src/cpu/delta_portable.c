enum { DELTA_VECTORS = 4 };
#include "cpu/simd_portable.h"

#include "cpu/delta_body.h"

DELTA_TABLE(cpu_delta_portable, 32);
