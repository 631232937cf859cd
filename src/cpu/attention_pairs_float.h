/* bf16 blocks where bf16 dot products are missing or slow: B [steps][lanes][2] bf16 widened, A fp32 [2 * steps]. */
enum { PAIR_BYTES = 8 };

static void pairs_operand(const float *x, int n, void *out) { memcpy(out, x, (size_t)n * sizeof *x); }

INLINE void kernel_pairs(const struct mm *m, int q0, int lane0, int n_q, int n_v) {
    const float *a = (const float *)m->a + q0 * m->a_stride * 2;
    const uint32_t *b = (const uint32_t *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0;
    vf acc[MM_Q][MM_V];
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++)
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) acc[q][v] = m->accumulate ? vf_load(c + q * m->c_stride + v * V) : vf_set(0.0f);
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int s = 0; s < m->steps; s++, b += m->b_stride) {
        vf x[MM_V];
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) {
            x[v] = (vf)(vi_load(b + v * V) << 16);
            mm_fetch(b + v * V, ahead), mm_fetch_near(m, b + v * V, n_q);
        }
#pragma GCC unroll 8
        for (int q = 0; q < n_q; q++) {
            vf y = vf_set(a[q * m->a_stride * 2 + 2 * s]);
#pragma GCC unroll 8
            for (int v = 0; v < n_v; v++) mm_add(&acc[q][v], y, x[v]);
        }
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) x[v] = (vf)(vi_load(b + v * V) & (int32_t)0xffff0000);
#pragma GCC unroll 8
        for (int q = 0; q < n_q; q++) {
            vf y = vf_set(a[q * m->a_stride * 2 + 2 * s + 1]);
#pragma GCC unroll 8
            for (int v = 0; v < n_v; v++) mm_add(&acc[q][v], y, x[v]);
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++)
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) vf_store(c + q * m->c_stride + v * V, acc[q][v]);
}
MM_DEFINE(mm_pairs, kernel_pairs)
