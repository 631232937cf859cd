#define _GNU_SOURCE
/* Which ISA this processor runs, and which it should: compiled without ISA flags. */
#include "cpu/isa.h"

static int always(void) { return 1; }

static const struct cpu_isa portable = {
    .name = "portable", .runs_here = always,
    .vec = &cpu_vec_portable, .delta = &cpu_delta_portable, .attention = &cpu_attention_portable,
    .kernels = cpu_kernels_portable,
};

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static int has_avx512(void) {
    /* The five of x86-64-v4 one by one: clang 14 does not know that name. */
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
}
static int has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

/* Tiles with int8 and bf16 products; the system grants their registers to those who ask. */
static int has_amx(void) {
    enum { GET_PERMISSION = 0x1022, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || ~d & (1u << 22 | 1u << 24 | 1u << 25)) return 0;
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, GET_PERMISSION, &granted) == 0 && granted >> TILE_DATA & 1) return 1;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static int has_avx2(void) {
    unsigned a, b, c, d; /* clang 14 has no name for F16C either */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

/* ahead, for streams of 4-bit weights: 512 on Zen 3 (.07 to .1 of read over 256 or 2048), 256 on Zen 4 (24-30 GB/s on one core; 1536: 20-24).
 * Intel with AVX-512: L1 has 16 places for lines on their way, too few for what memory gives. With lines asked for in L2 as well, one row
 * reads as fast as loads that compute nothing; into L1 alone, 1024 bytes ahead, .92 to .94 of that, and 256 bytes a twentieth less. */
static const struct cpu_isa avx2 = {
    .name = "avx2", .runs_here = has_avx2,
    .vec = &cpu_vec_avx2, .delta = &cpu_delta_avx2, .attention = &cpu_attention_avx2,
    .kernels = cpu_kernels_avx2, .ahead = {512, 0},
}, avxvnni = {
    .name = "avxvnni", .runs_here = has_avxvnni,
    .vec = &cpu_vec_avx2, .delta = &cpu_delta_avx2, .attention = &cpu_attention_avx2,
    .kernels = cpu_kernels_avxvnni, .ahead = {512, 0},
}, avx512 = {
    .name = "avx512", .runs_here = has_avx512,
    .vec = &cpu_vec_avx512, .delta = &cpu_delta_avx512, .attention = &cpu_attention_avx512,
    .kernels = cpu_kernels_avx512, .ahead = {1536, 3072},
}, avx512bf16 = {
    .name = "avx512bf16", .runs_here = has_avx512bf16,
    .vec = &cpu_vec_avx512, .delta = &cpu_delta_avx512, .attention = &cpu_attention_avx512bf16,
    .kernels = cpu_kernels_avx512bf16, .ahead = {256, 0},
}, amx = {
    .name = "amx", .runs_here = has_amx,
    .vec = &cpu_vec_avx512, .delta = &cpu_delta_avx512, .attention = &cpu_attention_avx512,
    .kernels = cpu_kernels_amx, .ahead = {1536, 3072},
};

const struct cpu_isa *const cpu_isas[] = {&amx, &avx512bf16, &avx512, &avxvnni, &avx2, &portable, NULL};

/* Where bf16 dot products beat fp32 FMA, as bench_limits found: Zen 4 (family 25, bf16 dots 2.0 times FMA), Zen 5 (family 26, 1.8
 * times). Intel's Sapphire and Emerald Rapids have them at half of FMA's speed. */
static int fast_bf16_dots(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != 0x68747541 /* Auth */) return 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    unsigned family = (a >> 8 & 15) + (a >> 20 & 255);
    return family == 25 || family == 26;
}

const struct cpu_isa *cpu_isa_choose(void) {
    if (has_amx()) return &amx; /* no model has tiles that are slower than its vectors (9 times as many int8 products, measured) */
    if (has_avx512bf16() && fast_bf16_dots()) return &avx512bf16;
    if (has_avx512()) return &avx512;
    if (has_avxvnni()) return &avxvnni;
    if (has_avx2()) return &avx2;
    return &portable;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static int has_dot_products(void) { return (getauxval(AT_HWCAP) & (1ul << 20)) != 0; } /* HWCAP_ASIMDDP */

static const struct cpu_isa neon = {
    .name = "neon", .runs_here = has_dot_products,
    .vec = &cpu_vec_neon, .delta = &cpu_delta_neon, .attention = &cpu_attention_neon,
    .kernels = cpu_kernels_neon,
};

const struct cpu_isa *const cpu_isas[] = {&neon, &portable, NULL};

const struct cpu_isa *cpu_isa_choose(void) { return has_dot_products() ? &neon : &portable; }
#else
const struct cpu_isa *const cpu_isas[] = {&portable, NULL};

const struct cpu_isa *cpu_isa_choose(void) { return &portable; }
#endif
