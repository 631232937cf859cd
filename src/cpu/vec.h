/* Primitives over rows of floats. Every sum runs over lanes and blocks fixed by n alone; n is any number. */
#ifndef CPU_VEC_H
#define CPU_VEC_H
#include <stdint.h>

struct cpu_vec {
    float (*dot)(const float *a, const float *b, int n);
    /* out = x * scale * gain; with `gate` times silu(gate); gain NULL: 1 */
    void (*norm)(const float *x, float scale, const float *gain, const float *gate, int n, float *out);
    void (*silu_mul)(const float *gate, const float *up, int n, float *out);
    /* out = x * scale * sigmoid(gate); gate NULL: 1 */
    void (*gated)(const float *x, float scale, const float *gate, int n, float *out);
    void (*add_scaled)(float *y, const float *x, float scale, int n); /* y += scale * x, one rounding where the ISA fuses */
    void (*exp)(const float *x, float minus, int n, float *out);      /* exp(x - minus) */
    float (*sigmoid)(float x);
    /* decay = exp(rate * softplus(a + bias)), beta = sigmoid(b) */
    void (*decay_beta)(const float *a, const float *bias, const float *rate, const float *b, int n, float *decay, float *beta);
    /* out row r, channel c = silu(bias + sum over j of weight[c][j] * in[r + j][c]), j ascending; bias NULL: 0.
     * in [n_rows + taps - 1] rows of n channels, weight [n][taps] */
    void (*conv)(const float *const *in, const float *weight, const float *bias, int taps, int n_rows, int n, float *out,
                 int64_t out_stride);
    /* Turns pairs (x[i], x[i + half]) by angles; [half] cosines and sines. */
    void (*rotate)(float *x, const float *cosines, const float *sines, int half);
    /* Forms of rows.h. */
    void (*to_bf16)(const float *x, int n, uint16_t *out);
    void (*to_q8)(const float *x, int n, int8_t *codes, float *scale, float *sum); /* blocks of 32, the last may be shorter */
};
extern const struct cpu_vec cpu_vec_portable, cpu_vec_avx2, cpu_vec_avx512, cpu_vec_neon;
#endif
