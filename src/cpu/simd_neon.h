/* Four lanes with fused multiply-add: see simd_portable.h for what the names promise. */
#ifndef CPU_SIMD_H
#define CPU_SIMD_H
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

enum { V = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf vf_load(const float *p) { return (vf)vld1q_f32(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, (float32x4_t)v); }
static inline vi vi_load(const void *p) { vi v; memcpy(&v, p, sizeof v); return v; }
static inline void vi_store(void *p, vi v) { memcpy(p, &v, sizeof v); }
static inline vf vf_set(float x) { return (vf)vdupq_n_f32(x); }
static inline vi vi_set(int32_t x) { return (vi)vdupq_n_s32(x); }
static inline vf vf_load_n(const float *p, int n) { vf v = {0}; memcpy(&v, p, (size_t)n * 4); return v; }
static inline void vf_store_n(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * 4); }
static inline vf vf_madd(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
static inline vf vf_pick(vi mask, vf a, vf b) {
    return (vf)vbslq_f32((uint32x4_t)mask, (float32x4_t)a, (float32x4_t)b);
}
static inline vf vf_max(vf a, vf b) { return vf_pick(a > b, a, b); } /* Arm's own maximum treats NaN otherwise */
static inline vf vf_min(vf a, vf b) { return vf_pick(a < b, a, b); }
static inline vf vf_rint(vf x) { return (vf)vrndnq_f32((float32x4_t)x); }
static inline vi vf_to_int(vf x) { return (vi)vcvtnq_s32_f32((float32x4_t)x); }
static inline vf vf_from_int(vi x) { return (vf)vcvtq_f32_s32((int32x4_t)x); }
static inline vf vf_sqrt(vf x) { return (vf)vsqrtq_f32((float32x4_t)x); }
static inline float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline float vf_highest(vf v) {
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
static inline vi vi_max(vi a, vi b) { return (vi)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }
static inline int32_t vi_highest(vi v) { return vmaxvq_s32((int32x4_t)v); }
static inline int32_t vi_sum(vi v) { return vaddvq_s32((int32x4_t)v); }
static inline vf vf_even(vf a, vf b) { return (vf)vuzp1q_f32((float32x4_t)a, (float32x4_t)b); }
static inline vf vf_odd(vf a, vf b) { return (vf)vuzp2q_f32((float32x4_t)a, (float32x4_t)b); }
static inline vi vi_load_u16(const uint16_t *p) { return (vi)vmovl_u16(vld1_u16(p)); }
static inline void vi_store_u16(uint16_t *p, vi v) { vst1_u16(p, vmovn_u32((uint32x4_t)v)); }
static inline void vi_store_i8(int8_t *p, vi v) {
    int16x4_t h = vmovn_s32((int32x4_t)v);
    int8x8_t b = vmovn_s16(vcombine_s16(h, h));
    vst1_lane_s32((int32_t *)(void *)p, vreinterpret_s32_s8(b), 0);
}
static inline vf vf_load_f16(const uint16_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vf vf_lookup(const float *table, int n, vi i) {
    return (void)n, (vf){table[i[0]], table[i[1]], table[i[2]], table[i[3]]};
}
static inline vf vf_times_power(vf x, vf power) {
    vi n = vf_to_int(power);
    vi half = n >> 1;
    return x * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}
#endif
