/* Small products C[n_q][lanes] (+)= A[n_q][steps] B[steps][lanes] of attention: registers hold a tile of C, each element one
 * chain over the steps. A kernel is written once for n_q <= MM_Q vectors and n_v vectors of lanes and instantiated for each. */
#ifndef CPU_ATTENTION_MM_H
#define CPU_ATTENTION_MM_H

struct mm {
    int n_q, lanes, steps;
    const void *a, *a_low; int64_t a_stride; /* elements of the operand's own type to the next vector */
    const void *b; int64_t b_stride;         /* elements to the next step */
    float *c; int64_t c_stride;
    int accumulate;
    ptrdiff_t ahead;                         /* see attention_block */
    float *wide;                             /* see attention_work */
};

#define INLINE static inline __attribute__((always_inline))

/* Only the first vectors of a tile fetch. */
static inline ptrdiff_t mm_ahead(const struct mm *m, int q0) { return q0 == 0 ? m->ahead : 0; }
static inline void mm_fetch(const void *p, ptrdiff_t ahead) { __builtin_prefetch((const char *)p + ahead, 0, 2); }

/* bf16 rows: where few vectors ask, and memory is the bound, what comes MM_NEAR steps later goes on to L1 (a step at depth 16384: a twelfth
 * faster; fp32 rows gain nothing, and products of codes are a group long). */
enum { MM_NEAR = 16 };
INLINE void mm_fetch_near(const struct mm *m, const void *p, int n_q) {
    if (n_q < MM_Q) __builtin_prefetch((const char *)p + MM_NEAR * 4 * m->b_stride);
}

/* *acc += a * b. On x86 written out: GCC 12 copies sums and keeps some in memory, each then a chain of loads and stores (AVX2: 117 GFLOP/s
 * of a prompt's bf16 rows where these are 153; AVX-512: 2 % of them). With codes, which have a shift more, it is the other way. */
INLINE void mm_add(vf *acc, vf a, vf b) {
#ifdef __AVX2__
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*acc) : "v"(a), "v"(b));
#else
    *acc = vf_madd(a, b, *acc);
#endif
}

/* Defines NAME(const struct mm *) over an INLINE KERNEL(m, q0, lane0, n_q, n_v). */
#define MM_DEFINE(name, kernel)                                                                                              \
    static void name##_lanes(const struct mm *m, int q0, int lane0, int n_q, int wide) {                                     \
        if (wide) switch (n_q) {                                                                                             \
            case 1: kernel(m, q0, lane0, 1, MM_V); return;                                                                   \
            case 2: kernel(m, q0, lane0, 2 < MM_Q ? 2 : MM_Q, MM_V); return;                                                 \
            case 3: kernel(m, q0, lane0, 3 < MM_Q ? 3 : MM_Q, MM_V); return;                                                 \
            case 4: kernel(m, q0, lane0, 4 < MM_Q ? 4 : MM_Q, MM_V); return;                                                 \
            case 5: kernel(m, q0, lane0, 5 < MM_Q ? 5 : MM_Q, MM_V); return;                                                 \
            default: kernel(m, q0, lane0, MM_Q, MM_V); return;                                                               \
            }                                                                                                                \
        for (int q = q0; q < q0 + n_q; q++) kernel(m, q, lane0, 1, 1);                                                       \
    }                                                                                                                        \
    static void name(const struct mm *m) {                                                                                   \
        for (int q = 0; q < m->n_q; q += MM_Q) {                                                                             \
            int n_q = m->n_q - q < MM_Q ? m->n_q - q : MM_Q, lane = 0;                                                       \
            for (; lane + MM_V * V <= m->lanes; lane += MM_V * V) name##_lanes(m, q, lane, n_q, 1);                          \
            for (; lane < m->lanes; lane += V) name##_lanes(m, q, lane, n_q, 0);                                             \
        }                                                                                                                    \
    }

/* A tile's sums: from C, or 0; to C. */
INLINE void mm_begin(const struct mm *m, vf (*acc)[MM_V], const float *c, int n_q, int n_v) {
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++)
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) acc[q][v] = m->accumulate ? vf_load(c + q * m->c_stride + v * V) : vf_set(0.0f);
}
INLINE void mm_end(const struct mm *m, vf (*acc)[MM_V], float *c, int n_q, int n_v) {
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++)
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) vf_store(c + q * m->c_stride + v * V, acc[q][v]);
}

/* acc += a x for one step: a vector's element of A is at a, the next vector's a_stride floats further. */
INLINE void mm_step(vf (*acc)[MM_V], const vf *x, const float *a, int64_t a_stride, int n_q, int n_v) {
#pragma GCC unroll 8
    for (int q = 0; q < n_q; q++) {
        vf y = vf_set(a[q * a_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) mm_add(&acc[q][v], y, x[v]);
    }
}

/* A and B fp32. */
INLINE void kernel_f32(const struct mm *m, int q0, int lane0, int n_q, int n_v) {
    const float *a = (const float *)m->a + q0 * m->a_stride, *b = (const float *)m->b + lane0;
    float *c = m->c + q0 * m->c_stride + lane0;
    vf acc[MM_Q][MM_V];
    mm_begin(m, acc, c, n_q, n_v);
    ptrdiff_t ahead = mm_ahead(m, q0);
    for (int s = 0; s < m->steps; s++, b += m->b_stride) {
        vf x[MM_V];
#pragma GCC unroll 8
        for (int v = 0; v < n_v; v++) {
            x[v] = vf_load(b + v * V);
            mm_fetch(b + v * V, ahead);
        }
        mm_step(acc, x, a + s, m->a_stride, n_q, n_v);
    }
    mm_end(m, acc, c, n_q, n_v);
}
MM_DEFINE(mm_f32, kernel_f32)
#endif
