/* A register tile of 6 rows x 4 vectors, as named variables and single instructions: GCC 12 keeps an array of 24 sums in memory
 * and copies a sum before and after each dot product written as an intrinsic (3 times slower, measured on Zen 4). */
#ifndef CPU_LINEAR_TILE_AVX512_H
#define CPU_LINEAR_TILE_AVX512_H
#include <immintrin.h>

#include "backend/linear.h"
#include "cpu/linear_tile.h"

#define TILE_VECTORS(M, r) M(r, 0) M(r, 1) M(r, 2) M(r, 3)
#define TILE_DECLARE(r) __m512 s##r##0, s##r##1, s##r##2, s##r##3;
#define TILE_CLEAR(r) s##r##0 = s##r##1 = s##r##2 = s##r##3 = _mm512_setzero_ps();
/* From and to memory with a row `p##r` of four vectors. */
#define TILE_LOAD(r) if (R > r) s##r##0 = (p##r)[0], s##r##1 = (p##r)[1], s##r##2 = (p##r)[2], s##r##3 = (p##r)[3];
#define TILE_STORE(r) if (R > r) (p##r)[0] = s##r##0, (p##r)[1] = s##r##1, (p##r)[2] = s##r##2, (p##r)[3] = s##r##3;

/* The value stays in its register: without this it is loaded again for every row, and one 512-bit load a cycle is all Zen 4 has. */
INLINE void keep(__m512i *v) { __asm__("" : "+v"(*v)); }
INLINE void keep_floats(__m512 *v) { __asm__("" : "+v"(*v)); }
INLINE void dot_bytes(__m512i *acc, __m512i codes, __m512i x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(codes), "v"(x));
}
INLINE void fma_into(__m512 *acc, __m512 a, __m512 b) { __asm__("vfmadd231ps %2, %1, %0" : "+v"(*acc) : "v"(a), "v"(b)); }
/* The lines of a stream that will be read next. */
INLINE void ask(const uint8_t *at, struct ahead ahead) {
    _mm_prefetch((const char *)((uintptr_t)at + ahead.near), _MM_HINT_T0);
    _mm_prefetch((const char *)((uintptr_t)at + ahead.far), _MM_HINT_T1);
}
#if defined(__AVX512BF16__)
INLINE void dot_bf16(__m512 *acc, __m512 a, __m512 b) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(*acc) : "v"(a), "v"(b)); }
#endif
#endif
