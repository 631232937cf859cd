/* bf16 blocks where bf16 dot products are missing or slow: B [steps][lanes][2] bf16 widened, A fp32 [2 * steps].
 *
 * Of many vectors the first ones leave what they widened, a part of the block in L1, for the others, who then only multiply (every sixth
 * or seventh operation less). A sum waits in C between parts, which does not change its bits. */
enum {
    PAIR_BYTES = 8,
    WIDE_PAIRS = KV_ROWS / 2, WIDE_LANES = MM_V * V /* of a part */
};
_Static_assert((int)WIDE_LANES <= (int)KV_ROWS, "it fits attention_work");

static void pairs_operand(const float *x, int n, void *out) { memcpy(out, x, (size_t)n * sizeof *x); }

/* `leaves`: the widened rows, to m->wide [2 * steps][n_v * V]. */
INLINE void some_pairs(const struct mm *m, int q0, int lane0, int n_q, int n_v, const int leaves) {
    const float *a = (const float *)m->a + q0 * m->a_stride * 2;
    const uint32_t *b = (const uint32_t *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0, *wide = m->wide;
    vf acc[MM_Q][MM_V];
    mm_begin(m, acc, c, n_q, n_v);
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int s = 0; s < m->steps; s++, a += 2, b += m->b_stride) {
        vf x[MM_V];
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) {
            x[v] = (vf)(vi_load(b + v * V) << 16);
            mm_fetch(b + v * V, ahead), mm_fetch_near(m, b + v * V, n_q);
            if (leaves) vf_store(wide + v * V, x[v]);
        }
        mm_step(acc, x, a, m->a_stride * 2, n_q, n_v);
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) {
            x[v] = (vf)(vi_load(b + v * V) & (int32_t)0xffff0000);
            if (leaves) vf_store(wide + (n_v + v) * V, x[v]);
        }
        mm_step(acc, x, a + 1, m->a_stride * 2, n_q, n_v);
        wide += 2 * n_v * V;
    }
    mm_end(m, acc, c, n_q, n_v);
}

INLINE void kernel_pairs(const struct mm *m, int q0, int lane0, int n_q, int n_v) { some_pairs(m, q0, lane0, n_q, n_v, 0); }
MM_DEFINE(mm_few_pairs, kernel_pairs)

static void mm_part(const struct mm *m) {
    some_pairs(m, 0, 0, MM_Q, MM_V, 1);
    mm_f32(&(struct mm){.n_q = m->n_q - MM_Q, .lanes = WIDE_LANES, .steps = 2 * m->steps, .a = (const float *)m->a + MM_Q * m->a_stride * 2,
                        .a_stride = m->a_stride * 2, .b = m->wide, .b_stride = WIDE_LANES, .c = m->c + MM_Q * m->c_stride,
                        .c_stride = m->c_stride, .accumulate = m->accumulate});
}

static void mm_pairs(const struct mm *m) {
    struct mm part = *m;
    for (; m->n_q > MM_Q && part.lanes >= WIDE_LANES; part.lanes -= WIDE_LANES) {
        struct mm p = part;
        for (int left = m->steps; left > 0; left -= WIDE_PAIRS, p.accumulate = 1) {
            p.steps = left < WIDE_PAIRS ? left : WIDE_PAIRS;
            mm_part(&p);
            p.a = (const float *)p.a + 2 * WIDE_PAIRS, p.b = (const uint32_t *)p.b + WIDE_PAIRS * p.b_stride;
        }
        part.b = (const uint32_t *)part.b + WIDE_LANES, part.c += WIDE_LANES;
    }
    if (part.lanes > 0) mm_few_pairs(&part);
}
