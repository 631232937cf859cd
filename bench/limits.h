/* The limits of a machine: reading memory, fp32 FMA, bf16 and int8 dot products, with every thread of a pool at once. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16"), noinline))
#define AVX2 __attribute__((target("avx2,fma"), noinline))
#endif

enum { MEMORY_BYTES = 1 << 29, ROUNDS = 5 };

struct probe {
    int limit;
    int (*runs_here)(void);
    double (*work)(int thread, int n_threads); /* returns operations or bytes, in units of 1e9 */
};
static uint8_t *memory;
static volatile float sink;

#if defined(__x86_64__)
static int has_avx512(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
static int has_vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static int has_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

/* Chains of one instruction with both inputs in registers: latency 5 on two ports wants ten, and some to spare (with ten, 0.8 of the
 * int8 dots that twelve give on Intel's Granite Rapids class). Written out, since GCC 12 makes of intrinsics on an array a copy or a
 * store of every sum (740 to 1310 GOP/s in turn on Emerald Rapids, where this gives 1380). */
#define CHAINS(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
enum { CHAIN_COUNT = 12, CHAIN_STEPS = 4000000 };
#define CLEAR(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12"
#define CHAIN_LOOP(op, a, b)                                                                               \
    (void)thread, (void)n_threads;                                                                         \
    int n = CHAIN_STEPS;                                                                                   \
    __asm__ volatile(CHAINS(CLEAR) "1: " CHAINS(op) "sub $1, %0\n\tjnz 1b" : "+r"(n) : "v"(a), "v"(b) : CLOBBERED, "cc")

#define OP(i) "vfmadd231ps %1, %2, %%zmm" #i "\n\t"
AVX512 static double fma_avx512(int thread, int n_threads) {
    __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 32 * 1e-9;
}
#undef OP

#define OP(i) "vfmadd231ps %1, %2, %%ymm" #i "\n\t"
AVX2 static double fma_avx2(int thread, int n_threads) {
    __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 16 * 1e-9;
}
#undef OP

#define OP(i) "vdpbf16ps %1, %2, %%zmm" #i "\n\t"
AVX512 static double bf16_dot(int thread, int n_threads) {
    __m512i a = _mm512_set1_epi16(0x3f00), b = _mm512_set1_epi16(0x3e80);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 64 * 1e-9;
}
#undef OP

#define OP(i) "vpdpbusd %1, %2, %%zmm" #i "\n\t"
AVX512 static double int8_dot(int thread, int n_threads) {
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 128 * 1e-9;
}
#undef OP

#define OP(i) "%{vex%} vpdpbusd %1, %2, %%ymm" #i "\n\t"
AVX2 static double int8_dot_avxvnni(int thread, int n_threads) {
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 64 * 1e-9;
}
#undef OP

/* Where there are no such dots: products of bytes in pairs, added up in 16 bits; widening them costs more. One register for the pairs of
 * all chains: it is renamed. */
#define OP(i) "vpmaddubsw %2, %1, %%ymm12\n\tvpaddw %%ymm12, %%ymm" #i ", %%ymm" #i "\n\t"
AVX2 static double int8_pairs(int thread, int n_threads) {
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2);
    CHAIN_LOOP(OP, a, b);
    return (double)CHAIN_STEPS * CHAIN_COUNT * 64 * 1e-9;
}
#undef OP

/* Four vectors a step from each of n streams, which share the thread's part of the memory. */
AVX512 static double read_avx512(int thread, int n_threads, int n_streams) {
    size_t part = MEMORY_BYTES / (size_t)n_threads / 1024 * 1024, each = part / (size_t)n_streams;
    const uint8_t *from = memory + (size_t)thread * part;
    __m512i acc[4] = {_mm512_setzero_si512()};
    acc[1] = acc[2] = acc[3] = acc[0];
    for (size_t at = 0; at < each; at += 256)
        for (int s = 0; s < n_streams; s++)
            for (int i = 0; i < 4; i++) {
                const uint8_t *p = from + (size_t)s * each + at + (size_t)i * 64;
                _mm_prefetch((const char *)p + 1024, _MM_HINT_T0);
                acc[i] = _mm512_or_si512(acc[i], _mm512_loadu_si512(p));
            }
    sink = (float)_mm512_reduce_or_epi32(_mm512_or_si512(_mm512_or_si512(acc[0], acc[1]), _mm512_or_si512(acc[2], acc[3])));
    return (double)part * 1e-9;
}
static double read_plain_avx512(int thread, int n_threads) { return read_avx512(thread, n_threads, 1); }
static double read_four_avx512(int thread, int n_threads) { return read_avx512(thread, n_threads, 4); }

AVX2 static double read_avx2(int thread, int n_threads, int n_streams) {
    size_t part = MEMORY_BYTES / (size_t)n_threads / 1024 * 1024, each = part / (size_t)n_streams;
    const uint8_t *from = memory + (size_t)thread * part;
    __m256i acc[4] = {_mm256_setzero_si256()};
    acc[1] = acc[2] = acc[3] = acc[0];
    for (size_t at = 0; at < each; at += 128)
        for (int s = 0; s < n_streams; s++)
            for (int i = 0; i < 4; i++) {
                const uint8_t *p = from + (size_t)s * each + at + (size_t)i * 32;
                _mm_prefetch((const char *)p + 1024, _MM_HINT_T0);
                acc[i] = _mm256_or_si256(acc[i], _mm256_loadu_si256((const void *)p));
            }
    acc[0] = _mm256_or_si256(_mm256_or_si256(acc[0], acc[1]), _mm256_or_si256(acc[2], acc[3]));
    sink = (float)_mm256_extract_epi32(acc[0], 0);
    return (double)part * 1e-9;
}
static double read_plain_avx2(int thread, int n_threads) { return read_avx2(thread, n_threads, 1); }
static double read_four_avx2(int thread, int n_threads) { return read_avx2(thread, n_threads, 4); }
#else
static int always(void) { return 1; }
static double read_words(int thread, int n_threads) {
    size_t part = MEMORY_BYTES / (size_t)n_threads / 1024 * 1024;
    const uint64_t *from = (const uint64_t *)(const void *)(memory + (size_t)thread * part);
    uint64_t acc[8] = {0};
    for (size_t at = 0; at < part / 8; at += 8)
        for (int i = 0; i < 8; i++) acc[i] |= from[at + (size_t)i];
    for (int i = 1; i < 8; i++) acc[0] |= acc[i];
    sink = (float)acc[0];
    return (double)part * 1e-9;
}
#endif

enum limit { READ_PLAIN, READ_FOUR, FMA, BF16_DOT, INT8_DOT, N_LIMITS };
static const char *const limit_name[] = {"read, plain", "read, four streams", "fp32 FMA", "bf16 dot", "int8 dot"};
static const char *const limit_unit[] = {"GB/s", "GB/s", "GFLOP/s", "GFLOP/s", "GOP/s"};

/* Every way to probe a limit that runs here; the best counts. */
static const struct probe probes[] = {
#if defined(__x86_64__)
    {READ_PLAIN, has_avx512, read_plain_avx512}, {READ_FOUR, has_avx512, read_four_avx512},
    {READ_PLAIN, has_avx2, read_plain_avx2},     {READ_FOUR, has_avx2, read_four_avx2},
    {FMA, has_avx512, fma_avx512},               {FMA, has_avx2, fma_avx2},
    {BF16_DOT, has_bf16, bf16_dot},              {INT8_DOT, has_vnni, int8_dot},
    {INT8_DOT, has_avxvnni, int8_dot_avxvnni},  {INT8_DOT, has_avx2, int8_pairs},
#else
    {READ_PLAIN, always, read_words}, {READ_FOUR, always, read_words},
#endif
};

/* Time of the calling thread: the wall's, or with `count_cpu_time` what the thread had of a processor, for machines that are
 * shared with other work. A region takes as long as its slowest thread. */
static int count_cpu_time;
static double thread_ms(void) {
    struct timespec t;
    clock_gettime(count_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

enum { MAX_THREADS = 1024 };
struct region { const struct probe *p; double work[MAX_THREADS], ms[MAX_THREADS]; };
static void run_probe(void *arg, int thread, int n_threads) {
    struct region *r = arg;
    double start = thread_ms();
    r->work[thread] = r->p->work(thread, n_threads);
    r->ms[thread] = thread_ms() - start;
}

static double best_of(struct pool *pool, const struct probe *p) {
    static struct region r;
    double best = 0;
    r.p = p;
    for (int i = 0; i < ROUNDS; i++) {
        double sum = 0, slowest = 0;
        pool_run(pool, run_probe, &r);
        for (int j = 0; j < pool_threads(pool); j++) {
            sum += r.work[j];
            if (r.ms[j] > slowest) slowest = r.ms[j];
        }
        if (sum / slowest * 1e3 > best) best = sum / slowest * 1e3;
    }
    return best;
}

/* All limits with this pool's threads; 0 where this processor has no such thing. */
static int limits_measure(struct pool *pool, double limit[N_LIMITS]) {
    memory = mem_map_pages(MEMORY_BYTES);
    if (!memory) return -1;
    memset(memory, 1, MEMORY_BYTES);
    for (int i = 0; i < N_LIMITS; i++) limit[i] = 0;
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        double found = probes[i].runs_here() ? best_of(pool, &probes[i]) : 0;
        if (found > limit[probes[i].limit]) limit[probes[i].limit] = found;
    }
    mem_free_pages(memory, MEMORY_BYTES);
    return 0;
}
#endif
