/* The body of vec_*.c, over the vectors of one ISA. */
#include <math.h>

#include "backend/rows.h"
#include "cpu/simd_math.h"
#include "cpu/vec.h"
#include "quant/convert.h"

/* Four chains of lanes, then a fixed tree. */
static float vec_dot(const float *a, const float *b, int n) {
    vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int i = 0;
    for (; i + 4 * V <= n; i += 4 * V) {
        s0 = vf_madd(vf_load(a + i), vf_load(b + i), s0);
        s1 = vf_madd(vf_load(a + i + V), vf_load(b + i + V), s1);
        s2 = vf_madd(vf_load(a + i + 2 * V), vf_load(b + i + 2 * V), s2);
        s3 = vf_madd(vf_load(a + i + 3 * V), vf_load(b + i + 3 * V), s3);
    }
    for (; i + V <= n; i += V) s0 = vf_madd(vf_load(a + i), vf_load(b + i), s0);
    if (i < n) s1 = vf_madd(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), s1);
    return vf_sum((s0 + s2) + (s1 + s3));
}

static inline vf load_some(const float *p, int n) { return n >= V ? vf_load(p) : vf_load_n(p, n); }
static inline void store_some(float *p, vf v, int n) {
    if (n >= V) vf_store(p, v);
    else vf_store_n(p, v, n);
}

static void vec_norm(const float *x, float scale, const float *gain, const float *gate, int n, float *out) {
    vf s = vf_set(scale);
    for (int i = 0; i < n; i += V) {
        vf v = load_some(x + i, n - i) * s;
        if (gain) v *= load_some(gain + i, n - i);
        if (gate) v *= vf_silu(load_some(gate + i, n - i));
        store_some(out + i, v, n - i);
    }
}

static void vec_silu_mul(const float *gate, const float *up, int n, float *out) {
    for (int i = 0; i < n; i += V)
        store_some(out + i, vf_silu(load_some(gate + i, n - i)) * load_some(up + i, n - i), n - i);
}

static void vec_gated(const float *x, float scale, const float *gate, int n, float *out) {
    vf s = vf_set(scale);
    for (int i = 0; i < n; i += V) {
        vf v = load_some(x + i, n - i) * s;
        if (gate) v *= vf_sigmoid(load_some(gate + i, n - i));
        store_some(out + i, v, n - i);
    }
}

static void vec_add_scaled(float *y, const float *x, float scale, int n) {
    vf s = vf_set(scale);
    for (int i = 0; i < n; i += V)
        store_some(y + i, vf_madd(s, load_some(x + i, n - i), load_some(y + i, n - i)), n - i);
}

static void vec_exp(const float *x, float minus, int n, float *out) {
    vf m = vf_set(minus);
    for (int i = 0; i < n; i += V) store_some(out + i, vf_exp(load_some(x + i, n - i) - m), n - i);
}

static float vec_sigmoid(float x) { return vf_sigmoid(vf_set(x))[0]; }

static void vec_decay_beta(const float *a, const float *bias, const float *rate, const float *b, int n, float *decay,
                           float *beta) {
    for (int i = 0; i < n; i += V) {
        vf s = vf_softplus(load_some(a + i, n - i) + load_some(bias + i, n - i));
        store_some(decay + i, vf_exp(load_some(rate + i, n - i) * s), n - i);
        store_some(beta + i, vf_sigmoid(load_some(b + i, n - i)), n - i);
    }
}

/* Tap j of V channels; weight [channels][taps]. */
static inline vf tap(const float *weight, int taps, int j, int n) {
    vf w = {0};
    for (int c = 0; c < V && c < n; c++) w[c] = weight[c * taps + j];
    return w;
}

static void conv_any(const float *const *in, const float *weight, const float *bias, int taps, int n_rows, int n, float *out,
                     int64_t out_stride) {
    for (int c = 0; c < n; c += V)
        for (int r = 0; r < n_rows; r++) {
            vf s = bias ? load_some(bias + c, n - c) : vf_set(0.0f);
            for (int j = 0; j < taps; j++)
                s = vf_madd(tap(weight + c * taps, taps, j, n - c), load_some(in[r + j] + c, n - c), s);
            store_some(out + r * out_stride + c, vf_silu(s), n - c);
        }
}

static void vec_conv(const float *const *in, const float *weight, const float *bias, int taps, int n_rows, int n, float *out,
                     int64_t out_stride) {
    if (taps != 4 || n % V) {
        conv_any(in, weight, bias, taps, n_rows, n, out, out_stride);
        return;
    }
    for (int c = 0; c < n; c += V) { /* the weights and the last three inputs stay in registers */
        const float *w = weight + c * 4;
        vf e0 = vf_even(vf_load(w), vf_load(w + V)), e1 = vf_even(vf_load(w + 2 * V), vf_load(w + 3 * V));
        vf o0 = vf_odd(vf_load(w), vf_load(w + V)), o1 = vf_odd(vf_load(w + 2 * V), vf_load(w + 3 * V));
        vf w0 = vf_even(e0, e1), w1 = vf_even(o0, o1), w2 = vf_odd(e0, e1), w3 = vf_odd(o0, o1);
        vf first = bias ? vf_load(bias + c) : vf_set(0.0f);
        vf x0 = vf_load(in[0] + c), x1 = vf_load(in[1] + c), x2 = vf_load(in[2] + c);
        for (int r = 0; r < n_rows; r++) {
            vf x3 = vf_load(in[r + 3] + c);
            __builtin_prefetch(in[r + 3] + c + 2 * V); /* rows lie far apart */
            __builtin_prefetch(out + r * out_stride + c + 2 * V, 1);
            vf_store(out + r * out_stride + c, vf_silu(vf_madd(w3, x3, vf_madd(w2, x2, vf_madd(w1, x1, vf_madd(w0, x0, first))))));
            x0 = x1, x1 = x2, x2 = x3;
        }
    }
}

static void vec_rotate(float *x, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i += V) {
        int n = half - i;
        vf a = load_some(x + i, n), b = load_some(x + half + i, n), c = load_some(cosines + i, n), s = load_some(sines + i, n);
        store_some(x + i, vf_madd(a, c, -(b * s)), n);
        store_some(x + half + i, vf_madd(b, c, a * s), n);
    }
}

static void vec_to_bf16(const float *x, int n, uint16_t *out) {
    int i = 0;
    for (; i + V <= n; i += V) vi_store_u16(out + i, vf_to_bf16(vf_load(x + i)));
    if (i < n) {
        vi v = vf_to_bf16(vf_load_n(x + i, n - i));
        for (int j = 0; j < n - i; j++) out[i + j] = (uint16_t)v[j];
    }
}

static void q8_block(const float *p, int m, int8_t *codes, float *scale, float *sum) {
    vi most = {0}; /* as integers, absolute values keep their order and a NaN is above them all */
    for (int i = 0; i < m; i += V) most = vi_max(most, (vi)load_some(p + i, m - i) & 0x7fffffff);
    float top = float_from_bits((uint32_t)vi_highest(most)), s = q8_scale_of(top);
    float inverse = s > 0.0f && s < HUGE_VALF ? 1.0f / s : HUGE_VALF;
    /* Without a finite inverse the codes are 0: a NaN or an infinity speaks through the scale. */
    vi total = {0};
    for (int i = 0; i < Q8_BLOCK; i += V) {
        vi q = {0};
        if (i < m && inverse < HUGE_VALF) q = vf_to_int(load_some(p + i, m - i) * vf_set(inverse));
        total += q;
        vi_store_i8(codes + i, q);
    }
    *scale = s, *sum = s * (float)vi_sum(total);
}

/* Of each of V vectors the highest lane, or the sum of its lanes, in the lane of its number. */
static inline vi vi_evens(vi a, vi b) { return (vi)vf_even((vf)a, (vf)b); }
static inline vi vi_odds(vi a, vi b) { return (vi)vf_odd((vf)a, (vf)b); }
static inline vi each_highest(vi *v) {
#pragma GCC unroll 4
    for (int n = V / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) v[i] = vi_max(vi_evens(v[2 * i], v[2 * i + 1]), vi_odds(v[2 * i], v[2 * i + 1]));
    return v[0];
}
static inline vi each_sum(vi *v) {
#pragma GCC unroll 4
    for (int n = V / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) v[i] = vi_evens(v[2 * i], v[2 * i + 1]) + vi_odds(v[2 * i], v[2 * i + 1]);
    return v[0];
}

/* V blocks at once; 0 where one has no finite inverse. */
static inline int q8_blocks(const float *x, int8_t *codes, float *scale, float *sum) {
    vi v[V];
#pragma GCC unroll 16
    for (int b = 0; b < V; b++) {
        v[b] = (vi)vf_load(x + b * Q8_BLOCK) & 0x7fffffff;
        for (int i = V; i < Q8_BLOCK; i += V) v[b] = vi_max(v[b], (vi)vf_load(x + b * Q8_BLOCK + i) & 0x7fffffff);
    }
    /* q8_scale_of */
    vf s = (vf)each_highest(v) / vf_set(127.0f);
    s = vf_pick(s > vf_set(0x1p104f), vf_set(HUGE_VALF), (vf)((vi)s & ~3));
    vf inverse = vf_set(1.0f) / s;
    float of[V];
    if (vi_sum((s > vf_set(0.0f)) & (s < vf_set(HUGE_VALF)) & (inverse < vf_set(HUGE_VALF))) != -V) return 0;
    vf_store(of, inverse);
#pragma GCC unroll 16
    for (int b = 0; b < V; b++) {
        v[b] = vi_set(0);
        for (int i = 0; i < Q8_BLOCK; i += V) {
            vi q = vf_to_int(vf_load(x + b * Q8_BLOCK + i) * vf_set(of[b]));
            vi_store_i8(codes + b * Q8_BLOCK + i, q);
            v[b] += q;
        }
    }
    vf_store(scale, s), vf_store(sum, s * vf_from_int(each_sum(v)));
    return 1;
}

static void vec_to_q8(const float *x, int n, int8_t *codes, float *scale, float *sum) {
    for (int b = 0; b * Q8_BLOCK < n;) {
        const int at = b * Q8_BLOCK, left = n - at;
        if (left >= V * Q8_BLOCK && q8_blocks(x + at, codes + at, scale + b, sum + b)) {
            b += V;
            continue;
        }
        for (int end = b + V; b < end && b * Q8_BLOCK < n; b++)
            q8_block(x + b * Q8_BLOCK, n - b * Q8_BLOCK < Q8_BLOCK ? n - b * Q8_BLOCK : Q8_BLOCK, codes + b * Q8_BLOCK, scale + b, sum + b);
    }
}

#define VEC_TABLE(name)                                                                                                      \
    const struct cpu_vec name = {                                                                                            \
        .dot = vec_dot, .norm = vec_norm, .silu_mul = vec_silu_mul, .gated = vec_gated, .add_scaled = vec_add_scaled,        \
        .exp = vec_exp, .sigmoid = vec_sigmoid, .decay_beta = vec_decay_beta, .conv = vec_conv, .rotate = vec_rotate,        \
        .to_bf16 = vec_to_bf16, .to_q8 = vec_to_q8,                                                                          \
    }
