/* Primitives of the delta rule on a slice of columns of one head's state S [key_dim][columns]. Each column is a chain of its
 * own: sums run over the key index in ascending order, so the cut into slices never shows. */
#ifndef CPU_DELTA_H
#define CPU_DELTA_H
#include <stdint.h>

/* S = decay S + k u' */
struct delta_update { float decay; const float *k, *u; }; /* [key_dim], [n_columns] */
enum { DELTA_MOST_BEFORE = 4 };

/* One row: S = in; the updates of `before`, in order; S = decay S; u = beta (v - S'k); result = S'q + (q'k) u.
 * S goes to `out`, without this row's own update. */
struct delta_step {
    const float *in; int64_t in_stride;
    float *out; int64_t out_stride; /* may be `in`; NULL: nobody wants S */
    int key_dim, n_columns;
    struct delta_update before[DELTA_MOST_BEFORE]; int n_before; /* fastest: none, or one of decay 1 */
    const float *k, *q, *v;         /* [key_dim], [key_dim], [n_columns] */
    float decay, beta;
    float *u, *result;              /* [n_columns]; u may be the last one of before */
    const float *next_k, *next_q, *next_v; /* of the row after it, which is asked for meanwhile; NULL: there is none */
    float *next_result;
    const float *ahead; /* the state of the slice after it, likewise: the first half, or without `out` all of it; NULL: nothing */
};
struct delta_fold {
    const float *in; int64_t in_stride;
    float *out; int64_t out_stride;
    int key_dim, n_columns;
    float decay;
    const float *k, *u;
    const float *ahead; /* as in delta_step: the second half, ahead being where that begins */
};
struct cpu_delta {
    int slice; /* columns that are best taken at once over many rows */
    void (*step)(const struct delta_step *s);
    /* out = decay * in + k u'; decay 1 adds only. out may be in. */
    void (*fold)(const struct delta_fold *f);
};
extern const struct cpu_delta cpu_delta_portable, cpu_delta_avx2, cpu_delta_avx512, cpu_delta_neon;
#endif
