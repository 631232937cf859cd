#include "cpu/attention.h"
#include "cpu/simd_neon.h"
#include "cpu/simd_math.h"

enum { MM_Q = 5, MM_V = 4 }; /* registers: MM_Q * MM_V sums, MM_V vectors of B, one of A */
#include "cpu/attention_mm.h"
#include "cpu/attention_pairs_float.h"
#include "cpu/attention_codes_float.h"
#include "cpu/attention_body.h"

ATTENTION_TABLE(cpu_attention_neon);
