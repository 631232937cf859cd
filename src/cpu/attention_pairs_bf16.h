/* bf16 blocks with bf16 dot products: B [steps][lanes][2] bf16, A rounded to bf16 pairs [steps]. */
enum { PAIR_BYTES = 4 };

static void pairs_operand(const float *x, int n, void *out) {
    uint16_t *to = out;
    for (int i = 0; i < n; i += V) _mm256_storeu_si256((__m256i *)(to + i), (__m256i)_mm512_cvtneps_pbh(vf_load(x + i)));
}

INLINE void kernel_pairs(const struct mm *m, int q0, int lane0, int n_q, int n_v) {
    const int32_t *a = (const int32_t *)m->a + q0 * m->a_stride;
    const uint32_t *b = (const uint32_t *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0;
    vf acc[MM_Q][MM_V];
    mm_begin(m, acc, c, n_q, n_v);
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int s = 0; s < m->steps; s++, b += m->b_stride) {
        vi x[MM_V];
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) {
            x[v] = vi_load(b + v * V);
            mm_fetch(b + v * V, ahead), mm_fetch_near(m, b + v * V, n_q);
        }
#pragma GCC unroll 8
        for (int q = 0; q < n_q; q++) {
            vi y = vi_set(a[q * m->a_stride + s]);
#pragma GCC unroll 8
            for (int v = 0; v < n_v; v++) acc[q][v] = _mm512_dpbf16_ps(acc[q][v], (__m512bh)y, (__m512bh)x[v]);
        }
    }
    mm_end(m, acc, c, n_q, n_v);
}
MM_DEFINE(mm_pairs, kernel_pairs)
