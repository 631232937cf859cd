/* Blocks of codes in exact integers: B [steps][lanes][4] unsigned bytes; A in 16 bits with one scale, cut into two signed bytes
 * (256 high + low), each fed to the byte dot product. The sums stay below 2^31: 128 codes in keys, 64 rows in values. */
#include <math.h>

#include "quant/convert.h"

enum { CODES_WORDS = 1 };

static float codes_operand(const float *x, int n, int32_t *high, int32_t *low, float *scale) {
    vi most = {0}; /* as integers, a NaN is above all: then the scale is NaN */
    for (int i = 0; i < n; i += V) most = vi_max(most, vi_load(x + i) & 0x7fffffff);
    float top = float_from_bits((uint32_t)vi_highest(most)), s = top / 32512.0f, inverse = s > 0.0f && s < HUGE_VALF ? 1.0f / s : HUGE_VALF;
    vi total = {0};
    for (int i = 0; i < n; i += V) {
        vi q = {0}; /* without a finite inverse the scale alone speaks */
        if (inverse < HUGE_VALF) q = vf_to_int(vf_load(x + i) * vf_set(inverse));
        vi h = (q + 128) >> 8;
        total += q;
        vi_store_i8((int8_t *)high + i, h);
        vi_store_i8((int8_t *)low + i, q - (h << 8));
    }
    *scale = s;
    return s * (float)vi_sum(total);
}

/* `nibbles`: B [steps / 2][lanes][4], the lower half of each byte being the even step's. */
INLINE void dot_codes(const struct mm *m, int q0, int lane0, int n_q, int n_v, int nibbles) {
    const int32_t *a = (const int32_t *)m->a + q0 * m->a_stride, *l = (const int32_t *)m->a_low + q0 * m->a_stride;
    const uint32_t *b = (const uint32_t *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0;
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int v0 = 0; v0 < n_v; v0 += 2) { /* two vectors of lanes at a time: each needs two sums */
        const int pair = n_v - v0 < 2 ? 1 : 2, parts = nibbles ? 2 : 1;
        vi high[MM_Q][2], low[MM_Q][2];
        const uint32_t *at = b + v0 * V;
#pragma GCC unroll 8
        for (int q = 0; q < n_q; q++)
#pragma GCC unroll 2
            for (int v = 0; v < pair; v++) high[q][v] = low[q][v] = vi_set(0);
        for (int s = 0; s < m->steps; s += parts, at += m->b_stride) {
            vi raw[2];
#pragma GCC unroll 2
            for (int v = 0; v < pair; v++) {
                raw[v] = vi_load(at + v * V);
                mm_fetch(at + v * V, ahead);
            }
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++) {
                vi x[2];
#pragma GCC unroll 2
                for (int v = 0; v < pair; v++) x[v] = nibbles ? (raw[v] >> (4 * part)) & 0x0f0f0f0f : raw[v];
#pragma GCC unroll 8
                for (int q = 0; q < n_q; q++) {
                    vi h = vi_set(a[q * m->a_stride + s + part]), g = vi_set(l[q * m->a_stride + s + part]);
#pragma GCC unroll 2
                    for (int v = 0; v < pair; v++) {
                        high[q][v] = (vi)_mm512_dpbusd_epi32((__m512i)high[q][v], (__m512i)x[v], (__m512i)h);
                        low[q][v] = (vi)_mm512_dpbusd_epi32((__m512i)low[q][v], (__m512i)x[v], (__m512i)g);
                    }
                }
            }
        }
#pragma GCC unroll 8
        for (int q = 0; q < n_q; q++)
#pragma GCC unroll 2
            for (int v = 0; v < pair; v++)
                vf_store(c + q * m->c_stride + (v0 + v) * V, vf_from_int((high[q][v] << 8) + low[q][v]));
    }
}
INLINE void kernel_codes(const struct mm *m, int q0, int lane0, int n_q, int n_v) { dot_codes(m, q0, lane0, n_q, n_v, 0); }
INLINE void kernel_nibbles(const struct mm *m, int q0, int lane0, int n_q, int n_v) { dot_codes(m, q0, lane0, n_q, n_v, 1); }
MM_DEFINE(mm_codes, kernel_codes)
MM_DEFINE(mm_nibbles, kernel_nibbles) /* the same sums, bit for bit, without unpacking the block first */
enum { HAS_NIBBLES = 1 };
