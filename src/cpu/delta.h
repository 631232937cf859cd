/* Primitives of the delta rule on a slice of columns of one head's state S [key_dim][columns]. Each column is a chain of its
 * own: sums run over the key index in ascending order, so the cut into slices never shows. */
#ifndef CPU_DELTA_H
#define CPU_DELTA_H
#include <stdint.h>

/* One row. The state comes in as the last step left it: with `u_before` the update k_before u_before' is still to be added.
 *   S = in + k_before u_before'; S = decay S; u = beta (v - S'k); result = S'q + (q'k) u
 * S goes to `out`, without this row's own update. */
struct delta_step {
    const float *in; int64_t in_stride;
    float *out; int64_t out_stride; /* may be `in` */
    int key_dim, n_columns;
    const float *k_before, *u_before; /* [key_dim], [n_columns]; NULL, NULL: nothing to add */
    const float *k, *q, *v;         /* [key_dim], [key_dim], [n_columns] */
    float decay, beta;
    float *u, *result;              /* [n_columns]; u may be u_before */
    const float *next_k, *next_q, *next_v; /* of the row after it, which is asked for meanwhile; NULL: there is none */
    float *next_result;
    const float *ahead; /* half of the state of the slice after it, key_dim * n_columns / 2 floats, likewise; NULL: nothing */
};
struct delta_fold {
    const float *in; int64_t in_stride;
    float *out; int64_t out_stride;
    int key_dim, n_columns;
    float decay;
    const float *k, *u;
    const float *ahead; /* as in delta_step: the other half */
};
struct cpu_delta {
    int slice; /* columns that are best taken at once over many rows */
    void (*step)(const struct delta_step *s);
    /* out = decay * in + k u'; decay 1 adds only. out may be in. */
    void (*fold)(const struct delta_fold *f);
};
extern const struct cpu_delta cpu_delta_portable, cpu_delta_avx2, cpu_delta_avx512, cpu_delta_neon;
#endif
