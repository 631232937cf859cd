/* exp and what is made of it, over the vectors of one ISA; about 1 ulp. Include after a simd_*.h. */
#ifndef CPU_SIMD_MATH_H
#define CPU_SIMD_MATH_H

/* 0 below -104, infinite above 88.7, NaN for NaN, exactly 1 for 0. */
static inline vf vf_exp(vf x) {
    x = vf_max(vf_set(-104.0f), vf_min(vf_set(89.0f), x));
    vf n = vf_rint(x * vf_set(1.44269504f));
    vf r = vf_madd(n, vf_set(-0.693359375f), x); /* exact: n * 0.693359375 has no rounding for |n| < 2^14 */
    r = vf_madd(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_madd(p, r, vf_set(1.3981999507e-3f));
    p = vf_madd(p, r, vf_set(8.3334519073e-3f));
    p = vf_madd(p, r, vf_set(4.1665795894e-2f));
    p = vf_madd(p, r, vf_set(1.6666665459e-1f));
    p = vf_madd(p, r, vf_set(5.0000001201e-1f));
    p = vf_madd(p, r * r, r) + vf_set(1.0f);
    return vf_times_power(p, n);
}

static inline vf vf_sigmoid(vf x) { return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x)); }
static inline vf vf_silu(vf x) { return x / (vf_set(1.0f) + vf_exp(-x)); }

/* log(1 + e) for e >= 0. */
static inline vf vf_log1p(vf e) {
    vf y = e + vf_set(1.0f), lost = (e - (y - vf_set(1.0f))) / y; /* what the sum rounded away, to first order */
    vi bits = (vi)y, shift = (bits - 0x3f3504f3) >> 23;           /* mantissa to [sqrt(1/2), sqrt(2)) */
    vf m = (vf)(bits - (shift << 23)) - vf_set(1.0f), n = vf_from_int(shift), z = m * m;
    vf p = vf_set(7.0376836292e-2f);
    p = vf_madd(p, m, vf_set(-1.1514610310e-1f));
    p = vf_madd(p, m, vf_set(1.1676998740e-1f));
    p = vf_madd(p, m, vf_set(-1.2420140846e-1f));
    p = vf_madd(p, m, vf_set(1.4249322787e-1f));
    p = vf_madd(p, m, vf_set(-1.6668057665e-1f));
    p = vf_madd(p, m, vf_set(2.0000714765e-1f));
    p = vf_madd(p, m, vf_set(-2.4999993993e-1f));
    p = vf_madd(p, m, vf_set(3.3333331174e-1f));
    p = vf_madd(n, vf_set(-2.12194440e-4f), m * z * p);
    p = vf_madd(z, vf_set(-0.5f), p) + lost;
    return vf_madd(n, vf_set(0.693359375f), m + p);
}

/* log(1 + exp(x)), x itself above 20 as torch has it. */
static inline vf vf_softplus(vf x) { return vf_pick(x > vf_set(20.0f), x, vf_log1p(vf_exp(vf_min(vf_set(20.0f), x)))); }

/* Nearest even, NaN to 0x7fc0, in the low 16 bits of each lane. */
static inline vi vf_to_bf16(vf x) {
    vi b = (vi)x;
    vi r = ((b + 0x7fff + ((b >> 16) & 1)) >> 16) & 0xffff;
    vi nan = (b & 0x7fffffff) > 0x7f800000;
    return (nan & 0x7fc0) | (~nan & r);
}
static inline vf vf_from_bf16(const uint16_t *p) { return (vf)(vi_load_u16(p) << 16); }
#endif
