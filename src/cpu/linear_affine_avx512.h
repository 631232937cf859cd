/* Affine tiles (linear_affine.h) in registers: shared by the AVX-512 and AMX files. */
#ifndef CPU_LINEAR_AFFINE_AVX512_H
#define CPU_LINEAR_AFFINE_AVX512_H
#include <immintrin.h>

#include "cpu/linear_affine.h"
#include "cpu/linear_call.h"
#include "cpu/linear_tile_avx512.h"

/* 16 scales or biases as fp32. */
INLINE __m512 load_scales(const uint8_t *p, enum dtype t) {
    if (t == DTYPE_F32) return _mm512_loadu_ps(p);
    __m256i h = _mm256_loadu_si256((const void *)p);
    if (t == DTYPE_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void prefetch(const void *p, size_t ahead) { _mm_prefetch((const char *)((uintptr_t)p + ahead), _MM_HINT_T0); }

/* The lines of a block's codes. */
INLINE void ask_block(const uint8_t *at, const int bits, struct ahead ahead) {
    for (int line = 0; line < bits; line++) ask(at + line * 64, ahead);
}

/* Vector s of a block. */
INLINE __m512i unpack_step(const uint8_t *in, const int bits, const int s) {
    const int main_bits = bits == 8 ? 8 : bits >= 4 ? 4 : 2, more = bits - main_bits;
    const int per = 8 / main_bits, down = s % per * main_bits;
    __m512i v = _mm512_loadu_si512(in + s / per * 64);
    if (bits == 8) return v;
    if (down) v = _mm512_srli_epi16(v, (unsigned)down);
    v = _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << main_bits) - 1)));
    if (!more) return v;
    const int per_more = 8 / (more ? more : 1), up = main_bits - s % per_more * more;
    __m512i p = _mm512_loadu_si512(in + main_bits * 64 + s / per_more * 64);
    p = up > 0 ? _mm512_slli_epi16(p, (unsigned)up) : up < 0 ? _mm512_srli_epi16(p, (unsigned)-up) : p;
    return _mm512_ternarylogic_epi32(v, p, _mm512_set1_epi8((char)(((1 << more) - 1) << main_bits)), 0xf8); /* v | (p & mask) */
}

/* The eight vectors of a block. */
INLINE void unpack(const uint8_t *in, const int bits, __m512i v[8]) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++) v[s] = unpack_step(in, bits, s);
}

INLINE void store_tile(const struct linear_call *c, int row, int col, __m512 v) {
    int n = c->w->n_out - col;
    __mmask16 m = n >= AFFINE_TILE ? 0xffff : (__mmask16)((1u << n) - 1);
    float *y = call_y(c, row) + col;
    if (c->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), v);
    _mm512_mask_storeu_ps(y, m, v);
}

/* Stream i's part of a call for columns from col on; a call without streams has stream 0 only, the last tile of which may be cut. */
INLINE void store_stream(const struct linear_call *c, int row, int col, int i, __m512 v) {
    if (!c->apart) {
        store_tile(c, row, col, v);
        return;
    }
    float *y = call_y(c, row) + col + i * c->y_apart;
    _mm512_storeu_ps(y, c->accumulate ? _mm512_add_ps(_mm512_loadu_ps(y), v) : v);
}
#endif
