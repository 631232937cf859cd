/* Blocks of codes in floats: B [steps][lanes][4] bytes widened, A fp32 [4 * steps] with scale 1. */

/* n values (a multiple of 4) as an operand and what its products are to be multiplied with; gives the sum of what the operand
 * stands for. */
static float codes_operand(const float *x, int n, int32_t *high, int32_t *low, float *scale) {
    (void)low;
    vf s = {0};
    for (int i = 0; i < n; i += V) s += vf_load(x + i);
    memcpy(high, x, (size_t)n * sizeof *x);
    *scale = 1.0f;
    return vf_sum(s);
}
enum { CODES_WORDS = 4 }; /* 32-bit words of `high` per step */

INLINE void kernel_codes(const struct mm *m, int q0, int lane0, int n_q, int n_v) {
    const float *a = (const float *)m->a + q0 * m->a_stride * 4;
    const uint32_t *b = (const uint32_t *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0;
    vf acc[MM_Q][MM_V];
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++)
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) acc[q][v] = vf_set(0.0f);
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int s = 0; s < m->steps; s++, b += m->b_stride) {
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) mm_fetch(b + v * V, ahead);
        for (int j = 0; j < 4; j++) {
            vf x[MM_V];
#pragma GCC unroll 8
            for (int v = 0; v < n_v; v++) x[v] = vf_from_int((vi_load(b + v * V) >> (8 * j)) & 255);
#pragma GCC unroll 8
            for (int q = 0; q < n_q; q++) {
                vf y = vf_set(a[(q * m->a_stride + s) * 4 + j]);
#pragma GCC unroll 8
                for (int v = 0; v < n_v; v++) acc[q][v] = vf_madd(y, x[v], acc[q][v]);
            }
        }
    }
    mm_end(m, acc, c, n_q, n_v);
}
MM_DEFINE(mm_codes, kernel_codes)
enum { HAS_NIBBLES = 0 }; /* blocks of 4 bits are unpacked first, once for all vectors */
static void mm_nibbles(const struct mm *m) { mm_codes(m); }
